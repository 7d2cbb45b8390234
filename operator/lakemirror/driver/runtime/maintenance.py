"""Maintains everything that a pipeline writes, between batches.

``spec.maintenance`` asks for OPTIMIZE and VACUUM of mirrors and of the tables of our own. Without being
asked, the driver compacts and vacuums its own tables, because the time of a batch and of a start would
otherwise grow with the number of batches before it. For the same reason, the log of a mirror reaches back a
week, and that of our own tables a day, unless a property of the table says otherwise.

One task of one table runs at a time, starting with the one that has waited longest, so that a batch never
waits for more than one task. The time when a task was last done is kept beside the checkpoint, and otherwise
comes from the table's own history. A failure is reported as a warning, is retried after a growing delay, and
stops nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds
from lakemirror.driver.checkpoint.possession import is_of_another, stored
from lakemirror.driver.checkpoint.storage import FileCutOff
from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.record import audit, quarantine, retention
from lakemirror.driver.results import TableResult
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import Maintained
from lakemirror.driver.runtime.turns import Turns
from lakemirror.driver.tables import housekeeping
from lakemirror.driver.tables.delta import MIRROR_LOG_SECONDS, SIDE_LOG_SECONDS
from lakemirror.driver.tables.housekeeping import Task
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY, SOURCE_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location, owner_of
from lakemirror.driver.tables.tombstones import folder_of

FIRST_DELAY, LONGEST_DELAY = 60.0, 3600.0
FILE = "maintained.json"
"""When each task of each table was last done."""
FEW_VERSIONS = 50
"""A table with fewer versions needs nothing unasked."""
MANY_FILES = 25
"""How many files a table of our own may have got before it is compacted unasked."""
CLEANED_EVERY = 360
"""How many versions a table may have got before its log is cleaned."""
TENDED_EVERY_SECONDS = 300.0
_LOOKS_SECONDS = 1.0
_DAY = 86_400.0
_LOOKED, _DID = "looked", "did"
_NEVER = datetime.min.replace(tzinfo=UTC)
_log = logging.getLogger(__name__)

Idle = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that keeps all writers of a table away while it is active."""


@dataclass
class _Table:
    """A table that is maintained.

    ``idle`` keeps its writers away. ``ours`` says that it is a table of our own, and no mirror. ``files`` is
    how many files it had when it was last compacted, ``version`` is when its log was last cleaned, and
    ``tended`` when it was last looked at. ``forget`` removes or sums up what is older than a moment, and says
    how much.
    """

    idle: Idle
    ours: bool
    files: int = 0
    version: int = 0
    tended: float | None = None
    forget: Callable[[datetime], str] | None = None
    retention: float = 0.0
    """How long the table keeps what ``forget`` takes, in seconds."""


class Maintenance:
    """Maintains the tables of a run. Do not use it from several threads at once.

    During a task, ``turns`` keeps batches away, and ``audit_idle`` the thread that writes the audit.
    """

    def __init__(
        self,
        run: RunContext,
        turns: Turns,
        audit_idle: Idle,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._turns, self._clock = run, turns, clock
        self._session = housekeeping.session_for(run.session)
        self._every, self._retain = _asked(run.pipeline)
        self._own_every = {
            **self._every,
            Task.VACUUM: min(self._every.get(Task.VACUUM, _DAY), _DAY),
        }
        self._found: set[tuple[str, Location]] = set()
        spec = run.pipeline.spec
        self._tables = {
            quarantine.path(spec.checkpoint): _Table(
                turns.pause,
                ours=True,
                forget=self._forget_closed,
                retention=duration_seconds(spec.retention.quarantine),
            ),
            audit.path(spec.checkpoint): _Table(
                audit_idle,
                ours=True,
                forget=self._sum_up,
                retention=duration_seconds(spec.retention.audit),
            ),
        }
        """The tables to maintain, by path."""
        self._kept = self._read()
        self._done: dict[str, dict[Task, datetime]] = {}
        self._delays: Backoff[tuple[str, Task | None]] = Backoff(FIRST_DELAY, LONGEST_DELAY, clock)

    def serve(self) -> bool:
        """Look at tables for a moment, or do the due task that has waited longest.

        Returns whether there was anything to do.
        """
        worked, until = False, self._clock() + _LOOKS_SECONDS
        while self._clock() < until:
            found = self._serve(datetime.now(UTC))
            worked |= found is not None
            if found is None or found is _DID:
                break
        return worked

    def _serve(self, moment: datetime) -> str | None:
        """Do the next thing of what is due at ``moment``. Returns what it was, or None if nothing is due."""
        looked = self._look()
        due = min(self._due(moment), default=None)
        if due is not None:
            _, path, name = due
            self._do(path, Task(name))
            return _DID
        return _LOOKED if looked else self._tend()

    def serve_all(self, stopping: Callable[[], bool]) -> None:
        """Do everything that is due now, each task once, unless it is time to stop."""
        moment = datetime.now(UTC)
        while not stopping() and self._serve(moment) is not None:
            pass

    # -- finding due tasks --------------------------------------------------------------------------

    def _look(self) -> bool:
        """Locate one more mirror, or look up when one more table was last maintained.

        Each call does only one of these, because both query the store. Returns whether there was anything to
        do.
        """
        found = self._next_mirror()
        if found is not None:
            self._attempt(found[0], None, partial(self._find, found))
            return True
        unknown = (each for each in self._tables if each not in self._done)
        path = next((each for each in unknown if self._delays.is_due((each, None))), None)
        if path is None:
            return False
        self._attempt(path, None, partial(self._learn, path))
        return True

    def _next_mirror(self) -> tuple[str, Location] | None:
        """Return a source table whose mirror has not been found yet, and the location of that mirror.

        If nobody asks for maintenance, only tables that this run writes count, once they have some versions.
        """
        progress = self._run.announcer.progress
        tables = progress.known_tables() if self._every else progress.written_tables()
        for source, table in tables.items():
            if not self._every and (table.version or 0) < FEW_VERSIONS:
                continue
            location = self._location(source, table)
            if location is None or (source, location) in self._found:
                continue
            if self._delays.is_due((source, None)):
                return source, location
        return None

    def _location(self, source: str, table: TableResult) -> Location | None:
        """Return the location of a source table's mirror.

        None if there is no mirror, or if the manifest leaves the table out or suspends it.
        """
        if self._run.pipeline.spec.target.jdbc is not None or not table.target or table.version is None:
            return None
        try:
            settings = self._run.pipeline.spec.table_settings(source)
        except AmbiguousTable:
            return None
        if settings is None or settings.suspend or settings.target is None:
            return None
        named = settings.target.path is None
        return Location(name=table.target) if named else Location(path=table.target)

    def _find(self, found: tuple[str, Location]) -> None:
        """Register a mirror and the tables beside it, if the mirror belongs to this checkpoint."""
        source, location = found
        mirror = Mirror(self._session, location)
        spec = self._run.pipeline.spec
        kept_as = spec.kept_as(source)
        shard = source if spec.merges(source) else None
        owner = owner_of(self._run.pipeline.name, kept_as)
        ours = stored(self._run.storage)
        another = mirror.exists and is_of_another(mirror.properties.get(CHECKPOINT_PROPERTY), ours)
        if mirror.exists and mirror.properties.get(SOURCE_PROPERTY) == owner and not another:
            files = self._run.pipeline.spec.source.files
            beside = [
                folder_of(shard),
                *(["files"] if files is not None and files.format != "records" else []),
            ]
            self._tables.setdefault(mirror.required_path, _Table(self._turns.pause, ours=False))
            for path in map(mirror.side, beside):
                self._tables.setdefault(path, _Table(self._turns.pause, ours=True))
        self._found.add(found)

    def _learn(self, path: str) -> None:
        """Look up when a table was last maintained, and limit its log, unless a property does.

        If the table does not exist yet, or has few versions and nobody asks, try again later.
        """
        version, table = housekeeping.version_of(self._session, path), self._tables[path]
        if version is None or (not self._every and version < FEW_VERSIONS):
            self._delays.failed((path, None))
            return
        if not housekeeping.keeps_log(self._session, path):
            with table.idle():
                seconds = SIDE_LOG_SECONDS if table.ours else max(MIRROR_LOG_SECONDS, self._retain)
                housekeeping.keep_log(self._session, path, seconds, files=table.ours)
        every = self._every_of(table)
        found = self._kept.get(path)
        if found is None:
            asked: dict[Task, float] = {
                task: seconds for task, seconds in every.items() if task is not Task.FORGET
            }
            found = housekeeping.last_done(self._session, path, asked) if asked else {}
            if found and Task.FORGET in every:
                found[Task.FORGET] = min(found.values())
        self._done[path] = dict(found)

    def _every_of(self, table: _Table) -> dict[Task, float]:
        """Return how often each task of a table is done, in seconds."""
        if not table.ours:
            return self._every
        return self._own_every | ({Task.FORGET: _DAY} if table.forget is not None else {})

    def _due(self, moment: datetime) -> Iterator[tuple[datetime, str, str]]:
        """Yield each task that is due at a moment: when it was last done, the table's path, and its name.

        A time that is yet to come is from a clock that was ahead: the task is due.
        """
        for path, done in self._done.items():
            for task, every in self._every_of(self._tables[path]).items():
                last = done.get(task, _NEVER)
                waited = (moment - last).total_seconds()
                if (waited >= every or last > datetime.now(UTC)) and self._delays.is_due((path, task)):
                    yield last, path, task.value

    def _tend(self) -> str | None:
        """Look after the next table that was not looked at for a while, unasked."""
        now = self._clock()
        path = next((each for each in self._done if self._waits(self._tables[each], now)), None)
        if path is None:
            return None
        self._tables[path].tended = now
        did: list[str] = []
        self._attempt(path, None, lambda: did.append(self._look_after(path)))
        return did[0] if did else _LOOKED

    @staticmethod
    def _waits(table: _Table, now: float) -> bool:
        return table.tended is None or now - table.tended >= TENDED_EVERY_SECONDS

    def _look_after(self, path: str) -> str:
        """Compact a table of our own that has got many files, and clean a log that has got many versions."""
        table, did = self._tables[path], _LOOKED
        if table.ours and housekeeping.files_of(self._session, path) - table.files >= MANY_FILES:
            self._do(path, Task.OPTIMIZE)
            table.files, did = housekeeping.files_of(self._session, path), _DID
        version = housekeeping.version_of(self._session, path)
        if version is not None and version - table.version >= CLEANED_EVERY:
            housekeeping.clean_log(self._session, path)
            table.version, did = version, _DID
        return did

    # -- running a task -----------------------------------------------------------------------------

    def _do(self, path: str, task: Task) -> None:
        if self._attempt(path, task, partial(self._carry_out, path, task)):
            self._delays.forget((path, task))
            self._done[path][task] = datetime.now(UTC)
            self._keep()

    def _carry_out(self, path: str, task: Task) -> None:
        table = self._tables[path]
        retain = min(self._retain or SIDE_LOG_SECONDS, SIDE_LOG_SECONDS) if table.ours else self._retain
        with table.idle():
            began = time.monotonic()
            if task is Task.OPTIMIZE:
                done = housekeeping.optimize(self._session, path)
            elif task is Task.VACUUM:
                done = housekeeping.vacuum(self._session, path, retain)
            else:
                assert table.forget is not None
                done = table.forget(datetime.now(UTC) - timedelta(seconds=table.retention))
            seconds = time.monotonic() - began
        _log.info("%s of %s: %s in %.1f s", task.value, path, done, seconds)
        self._run.announcer.progress.maintained()
        self._run.announcer.tell(Maintained(task.value, path, done, seconds))

    def _forget_closed(self, before: datetime) -> str:
        number = quarantine.forget(self._session, self._run.pipeline.spec.checkpoint, before)
        return f"{number} closed records deleted"

    def _sum_up(self, before: datetime) -> str:
        number = retention.sum_up(self._session, self._run.pipeline.spec.checkpoint, before)
        return f"{number} rows summed up"

    def _keep(self) -> None:
        """Store when each task was last done."""
        self._kept |= self._done
        told = {
            path: {task.value: at.isoformat() for task, at in done.items()}
            for path, done in self._kept.items()
        }
        self._run.storage.write_text(FILE, json.dumps(told, indent=1, sort_keys=True) + "\n")

    def _read(self) -> dict[str, dict[Task, datetime]]:
        """Return when each task was last done, as far as it is known: without the file, the tables know."""
        try:
            told = json.loads(self._run.storage.read_text(FILE))
            return {path: _times(done) for path, done in told.items()}
        except (FileNotFoundError, FileCutOff, ValueError, TypeError, KeyError, AttributeError):
            return {}

    def _attempt(self, what: str, task: Task | None, step: Callable[[], None]) -> bool:
        """Run a step and return whether it succeeded. A failure is reported as a warning, and retried."""
        try:
            step()
        except CheckpointInUse:
            raise
        except Exception as error:
            delay = self._delays.failed((what, task))
            self._run.announcer.warn(
                f"maintenance: {task.value if task else 'a look'} at {what} failed and is tried again in "
                f"{delay:g} s: {cause_of(error)}"
            )
            return False
        return True


def _times(done: Mapping[str, str]) -> dict[Task, datetime]:
    return {Task(name): datetime.fromisoformat(at) for name, at in done.items()}


def _asked(pipeline: CdcPipeline) -> tuple[dict[Task, float], int]:
    """Return the interval of each task, and how long VACUUM keeps files, in seconds."""
    maintenance = pipeline.spec.maintenance
    every: dict[Task, float] = {}
    if maintenance is None:
        return every, 0
    if maintenance.optimize is not None:
        every[Task.OPTIMIZE] = duration_seconds(maintenance.optimize.every)
    if maintenance.vacuum is None:
        return every, 0
    every[Task.VACUUM] = duration_seconds(maintenance.vacuum.every)
    return every, int(duration_seconds(maintenance.vacuum.retain))
