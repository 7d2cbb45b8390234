"""``spec.maintenance``: runs OPTIMIZE and VACUUM between batches on everything that a pipeline writes.

One task of one table runs at a time, starting with the one that has waited longest, so that a batch never
waits for more than one task. The time when a task was last done comes from the table's own history, which
outlives the driver. A failure is reported as a warning, is retried after a growing delay, and stops nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds
from lakemirror.driver.checkpoint.possession import is_of_another, stored
from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.results import TableResult
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import Maintained
from lakemirror.driver.runtime.turns import Turns
from lakemirror.driver.tables import housekeeping
from lakemirror.driver.tables.delta import is_table
from lakemirror.driver.tables.housekeeping import Task
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY, SOURCE_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location, owner_of
from lakemirror.driver.tables.tombstones import folder_of

FIRST_DELAY, LONGEST_DELAY = 60.0, 3600.0
_NEVER = datetime.min.replace(tzinfo=UTC)
_log = logging.getLogger(__name__)

Idle = Callable[[], AbstractContextManager[object]]
"""Returns a context manager that keeps all writers of a table away while it is active."""


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
        self._run, self._turns = run, turns
        self._session = housekeeping.session_for(run.session)
        self._every, self._retain = _asked(run.pipeline)
        self._found: set[tuple[str, Location]] = set()
        spec = run.pipeline.spec
        self._idle: dict[str, Idle] = {
            quarantine.path(spec.checkpoint): turns.pause,
            audit.path(spec.checkpoint): audit_idle,
        }
        """How to keep the writers of each table away, by the table's path."""
        self._done: dict[str, dict[Task, datetime]] = {}
        self._delays: Backoff[tuple[str, Task | None]] = Backoff(FIRST_DELAY, LONGEST_DELAY, clock)

    def serve(self) -> bool:
        """Do the due task that has waited longest. Return whether there was anything to do."""
        return self._serve(datetime.now(UTC))

    def _serve(self, moment: datetime) -> bool:
        """Do the same with what is due at ``moment``."""
        if not self._every:
            return False
        looked = self._look()
        due = min(self._due(moment), default=None)
        if due is None:
            return looked
        _, path, name = due
        self._do(path, Task(name))
        return True

    def serve_all(self, stopping: Callable[[], bool]) -> None:
        """Do everything that is due now, each task once, unless it is time to stop."""
        moment = datetime.now(UTC)
        while not stopping() and self._serve(moment):
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
        unknown = (each for each in self._idle if each not in self._done)
        path = next((each for each in unknown if self._delays.is_due((each, None))), None)
        if path is None:
            return False
        self._attempt(path, None, partial(self._learn, path))
        return True

    def _next_mirror(self) -> tuple[str, Location] | None:
        """Return a source table whose mirror has not been found yet, and the location of that mirror."""
        for source, table in self._run.announcer.progress.known_tables().items():
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
        if not table.target or table.version is None:
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
            for path in (mirror.required_path, *map(mirror.side, beside)):
                self._idle[path] = self._turns.pause
        self._found.add(found)

    def _learn(self, path: str) -> None:
        """Look up when a table was last maintained. If it does not exist yet, try again later."""
        if is_table(self._session, path):
            self._done[path] = housekeeping.last_done(self._session, path, self._every)
        else:
            self._delays.failed((path, None))

    def _due(self, moment: datetime) -> Iterator[tuple[datetime, str, str]]:
        """Yield each task that is due at a moment: when it was last done, the table's path, and its name."""
        for path, done in self._done.items():
            for task, every in self._every.items():
                last = done.get(task, _NEVER)
                if (moment - last).total_seconds() >= every and self._delays.is_due((path, task)):
                    yield last, path, task.value

    # -- running a task -----------------------------------------------------------------------------

    def _do(self, path: str, task: Task) -> None:
        if self._attempt(path, task, partial(self._carry_out, path, task)):
            self._delays.forget((path, task))
            self._done[path][task] = datetime.now(UTC)

    def _carry_out(self, path: str, task: Task) -> None:
        with self._idle[path]():
            began = time.monotonic()
            if task is Task.OPTIMIZE:
                done = housekeeping.optimize(self._session, path)
            else:
                done = housekeeping.vacuum(self._session, path, self._retain)
            seconds = time.monotonic() - began
        _log.info("%s of %s: %s in %.1f s", task.value, path, done, seconds)
        self._run.announcer.progress.maintained()
        self._run.announcer.tell(Maintained(task.value, path, done, seconds))

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
