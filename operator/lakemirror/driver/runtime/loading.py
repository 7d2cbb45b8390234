"""Loads tables whose rows come from the database and not from the stream (``tables[].snapshot: jdbc``).

A new checkpoint loads them, and each new resyncToken loads them again. The stream is started first. It
therefore contains every change after the position at which the rows are read, and many changes before that
position, which are stale (`lakemirror.driver.reload`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from lakemirror.driver.checkpoint import tokens
from lakemirror.driver.errors import LakemirrorError, NotAnswered, cause_of, stops_pipeline
from lakemirror.driver.read.base import Feed
from lakemirror.driver.record import audit
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import Resync
from lakemirror.driver.runtime.reload import FOLDER, Reloaded, ReloadRequest, stage_table, wanted
from lakemirror.driver.runtime.replay_requests import await_outcome
from lakemirror.driver.runtime.table_epochs import TableEpochs
from lakemirror.driver.verify.open import open_source, source_of
from lakemirror.driver.verify.table import session_for
from lakemirror.driver.waiting import LOOK_SECONDS, pause

_FIRST_DELAY, _LONGEST_DELAY = 5.0, 300.0


class Loading:
    """Loads the tables in ``asked`` (listed names, with their tokens).

    ``ended`` returns whether ``feed`` has read everything that a run with ``once`` is going to read. A table
    that fails is retried after a growing delay and does not hold up the others. A run with ``once`` gives up.
    """

    def __init__(
        self, run: RunContext, asked: Mapping[str, str], feed: Feed, ended: Callable[[], bool]
    ) -> None:
        self._run, self._left, self._feed, self._ended = run, dict(asked), feed, ended
        self._filed: dict[str, tuple[Reloaded, ReloadRequest]] = {}
        """The tables that are read, and whose changes the thread that serves requests has to apply."""
        self._delays: Backoff[str] = Backoff(_FIRST_DELAY, _LONGEST_DELAY)

    def load(self, over: threading.Event) -> None:
        """Load until all tables are done, or the run is ``over``."""

        def stopping() -> bool:
            return over.is_set() or self._run.threads.stopping()

        self._await_begin(stopping)
        while self._left and not stopping():
            for table in [each for each in self._left if self._delays.is_due(each)]:
                if not stopping():
                    self._try(table)
            pause(LOOK_SECONDS, stopping)

    def _await_begin(self, stopping: Callable[[], bool]) -> None:
        """Wait until the stream has started: one that starts at its end would lose what comes before that."""
        kafka = self._run.pipeline.spec.source.kafka
        if kafka is None or kafka.starting_offsets == "earliest":
            return
        while not stopping():
            ended = self._ended()  # asked before the last look
            if self._feed.committed() is not None or any(self._feed.pending()):
                return
            if ended:
                raise LakemirrorError(
                    "the source has no partition yet, so that nothing tells from where it will be read: "
                    "create its topics, or set source.kafka.startingOffsets: earliest"
                )
            pause(LOOK_SECONDS, stopping)

    def _try(self, table: str) -> None:
        """Read a table, or look whether one that was read is written by now."""
        try:
            failed = self._look(table) if table in self._filed else self._stage(table)
        except Exception as error:  # the stream continues regardless
            if not isinstance(error, NotAnswered) and stops_pipeline(error, self._run.session):
                raise
            failed = str(error) if isinstance(error, LakemirrorError) else cause_of(error)
        if failed is None:
            return
        what = f"{table} could not be loaded from its database"
        if self._run.once:
            raise LakemirrorError(f"{what}: {failed}")
        delay = self._delays.failed(table)
        self._run.announcer.warn(f"{what}, and is loaded again in {delay:.0f} s: {failed}")

    def _stage(self, table: str) -> str | None:
        """Read a table, and file the request that has its changes applied. Returns why that failed."""
        run, spec = self._run, self._run.pipeline.spec
        assert spec.verify is not None
        run.announcer.tell(Resync(table, done=False))
        session = session_for(run.session)
        with open_source(session, source_of(spec.verify, run.secrets), spec) as sources:
            history = audit.history(run.session, spec.checkpoint)
            [name] = wanted(history.tables, [table], sources)
            epochs = TableEpochs(run.pipeline, run.storage, history.positions)
            found, request = stage_table(
                session, run.pipeline, sources, run.storage, name, epochs, open_store=run.target.open
            )
        if found.error is not None:
            return found.error
        if request is None:
            self._finish(table, found)
        else:
            run.storage.write_text_new(f"{FOLDER}/{request.id}.json", request.text())
            self._filed[table] = found, request
        return None

    def _look(self, table: str) -> str | None:
        """Finish a table if its changes are applied. Returns why that failed, if no more attempts follow.

        Who serves the request tries again by itself, and says so.
        """
        found, request = self._filed[table]
        outcome = await_outcome(self._run.storage, request, 0, FOLDER)
        if outcome.error is not None:
            return outcome.error if self._run.once else None
        if not outcome.filed:
            self._finish(table, replace(found, outcome=outcome))
        return None

    def _finish(self, table: str, done: Reloaded) -> None:
        run, staged = self._run, done.staged
        if staged.unfit:
            run.announcer.warn(
                f"{table}: {staged.unfit} rows have values that the mirror's types cannot hold, and were not "
                f"loaded, like {staged.unfitting}"
            )
        outcome = done.outcome
        for bad in outcome.bad if outcome is not None and outcome.still_bad else ():
            run.announcer.warn(f"{table}: {bad.records} rows were not loaded: {bad.reason}")
        tokens.loaded(run.storage, {table: self._left[table]}, run.pipeline.spec)
        del self._left[table]
        self._filed.pop(table, None)
        self._delays.forget(table)
        run.announcer.progress.resyncing(self._left)
        run.announcer.news()
        run.announcer.tell(Resync(table, done=True))
