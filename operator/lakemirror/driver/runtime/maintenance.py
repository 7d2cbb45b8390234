"""``spec.maintenance``: OPTIMIZE and VACUUM of all that a pipeline writes, between batches.

One task of one table at a time, the one that waits longest first: so a batch waits for no more than that.
When a task was done last stands in the table's own history, which outlives the driver. What fails is a
warning, is tried again after a growing delay, and stops nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds
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
from lakemirror.driver.tables.mirror import SOURCE_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location, owner_of
from lakemirror.driver.tables.tombstones import folder_of

FIRST_DELAY, LONGEST_DELAY = 60.0, 3600.0
_NEVER = datetime.min.replace(tzinfo=UTC)
_log = logging.getLogger(__name__)

Idle = Callable[[], AbstractContextManager[object]]
"""Keeps all writers of a table away while it is entered."""


class Maintenance:
    """The housekeeping of a run's tables. ``turns`` keep batches away meanwhile, ``audit_idle`` the thread
    that writes the audit. Not for use from several threads at once.
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
        """How the writers of each table are kept away, by its path."""
        self._done: dict[str, dict[Task, datetime]] = {}
        self._delays: Backoff[tuple[str, Task | None]] = Backoff(FIRST_DELAY, LONGEST_DELAY, clock)

    def serve(self) -> bool:
        """Do the one task that waits longest, if any is due; returns whether there was something to do."""
        return self._serve(datetime.now(UTC))

    def _serve(self, moment: datetime) -> bool:
        """The same, of what is due at a moment."""
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
        """Do all that is due now, each task once, unless it is time to stop."""
        moment = datetime.now(UTC)
        while not stopping() and self._serve(moment):
            pass

    # -- what there is to do ------------------------------------------------------------------------

    def _look(self) -> bool:
        """Find where one more mirror stands, or see when one more table was maintained last: little at a
        time, for both ask the store. Returns whether there was one.
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
        """A source table with a mirror that was not found yet, and where that stands."""
        for source, table in self._run.announcer.progress.known_tables().items():
            location = self._location(source, table)
            if location is None or (source, location) in self._found:
                continue
            if self._delays.is_due((source, None)):
                return source, location
        return None

    def _location(self, source: str, table: TableResult) -> Location | None:
        """Where the mirror of a source table stands; None where there is none, or the manifest does not have
        it mirrored, or has it suspended.
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
        """Take in a mirror and what stands beside it, if the mirror is this pipeline's."""
        source, location = found
        mirror = Mirror(self._session, location)
        spec = self._run.pipeline.spec
        kept_as = spec.kept_as(source)
        shard = source if spec.merges(source) else None
        owner = owner_of(self._run.pipeline.name, kept_as)
        if mirror.exists and mirror.properties.get(SOURCE_PROPERTY) == owner:
            files = self._run.pipeline.spec.source.files
            beside = [
                folder_of(shard),
                *(["files"] if files is not None and files.format != "records" else []),
            ]
            for path in (mirror.required_path, *map(mirror.side, beside)):
                self._idle[path] = self._turns.pause
        self._found.add(found)

    def _learn(self, path: str) -> None:
        """See when a table was maintained last. One that is not there yet is looked at again later."""
        if is_table(self._session, path):
            self._done[path] = housekeeping.last_done(self._session, path, self._every)
        else:
            self._delays.failed((path, None))

    def _due(self, moment: datetime) -> Iterator[tuple[datetime, str, str]]:
        """Tasks that are due at a moment: when they were done last, where and which."""
        for path, done in self._done.items():
            for task, every in self._every.items():
                last = done.get(task, _NEVER)
                if (moment - last).total_seconds() >= every and self._delays.is_due((path, task)):
                    yield last, path, task.value

    # -- doing it -----------------------------------------------------------------------------------

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
        """Whether a step succeeded; a failure is a warning, and is tried again later."""
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
    """How often each task is to be done, and for how long VACUUM keeps files; in seconds."""
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
