"""Reads tables again from the beginning when their resyncToken asks for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Mapping
from contextlib import closing
from functools import partial

from pyspark.sql import functions as F

from lakemirror.api import CdcPipeline
from lakemirror.api.source import Source
from lakemirror.api.tables import matches
from lakemirror.driver.checkpoint import identity, tokens
from lakemirror.driver.checkpoint.storage import Storage
from lakemirror.driver.read.base import ChangesLost, Feed
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.files.waiting import InputIncomplete
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.runtime.batches import Batches
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import Resync
from lakemirror.driver.runtime.retry import Retries
from lakemirror.driver.waiting import LOOK_SECONDS, pause


class Rereading:
    """Reads again everything that the source still has of the ``wanted`` tables (with their tokens).

    ``feed`` keeps reading the source, and batches of both take turns. How far this reading has come is
    recorded in a folder of its own beside the checkpoint. ``others`` are the tables that are being read again
    elsewhere.
    """

    def __init__(
        self,
        run: RunContext,
        wanted: Mapping[str, str],
        feed: Feed,
        batches: Batches,
        retries: Retries,
        others: Collection[str] = (),
    ) -> None:
        self._run, self._wanted, self._feed, self._others = run, wanted, feed, others
        self._batches, self._retries = batches, retries
        self._tables = ", ".join(sorted(wanted))

    def read(self, over: threading.Event) -> None:
        """Read until everything is applied, or the run is ``over``."""

        def stopping() -> bool:
            return over.is_set() or self._run.threads.stopping()

        self._run.announcer.tell(Resync(self._tables, done=False))
        self._await_source(stopping)
        if self._read_all(stopping) and not stopping():
            self._finish()

    def _await_source(self, stopping: Callable[[], bool]) -> None:
        source = self._run.announcer.source
        while not stopping() and (source.lost or source.said.reached_at is None):
            pause(LOOK_SECONDS, stopping)

    def _read_all(self, stopping: Callable[[], bool]) -> bool:
        """Return whether all that the source has was read.

        If part of it went before it was read, the source itself goes on, and the tables are read again from
        the beginning at the next start.
        """
        feed = self._feed
        beginning = self._retries.reading(feed.from_its_beginning, stopping)
        if beginning is None:
            return False
        run, place = self._run, tokens.resync_folder(self._wanted)
        folder = run.storage.below(place)
        if identity.has_progress(folder) and not identity.exists(folder):  # damaged: begin again
            run.storage.delete_folder(place)
        try:
            self._read(beginning, folder, stopping)
        except InputIncomplete as error:
            run.announcer.warn(str(error))
            # The feed itself reads the others once they are complete.
            lost = [name for name in error.names if isinstance(feed, FilesFeed) and feed.has_read(name)]
            if lost:
                run.announcer.warn(
                    f"{self._tables}: not read again to the end, because {', '.join(sorted(lost))} cannot be "
                    "read any more. This is tried again at the driver's next start"
                )
                return False
        except ChangesLost as error:
            run.storage.delete_folder(place)
            run.announcer.warn(
                f"{self._tables} could not be read again, which is tried at the driver's next start: {error}"
            )
            return False
        return True

    def _read(self, beginning: Source, folder: Storage, stopping: Callable[[], bool]) -> None:
        run = self._run
        with closing(run.feeds.open(beginning, folder, rereads=self._feed)) as feed:
            history = audit.history(run.session, run.pipeline.spec.checkpoint)
            applier = run.make_applier(_only(run.pipeline, self._wanted), feed.query_id, history)
            apply = partial(self._batches.apply, applier=applier)
            with self._batches.turns.shared_with(applier):
                self._retries.reading(lambda: feed.run(apply, once=True, stopping=stopping), stopping)
            if not stopping():
                self._close_truncates(feed.query_id)

    def _close_truncates(self, query_id: str) -> None:
        """Close truncates of the tables that the source does not have any more, nor what was before them."""
        run = self._run
        gone = F.lit(False)
        for source in quarantine.open_sources(run.session, run.pipeline.spec.checkpoint):
            if any(matches(name, source) for name in self._wanted):
                gone = gone | quarantine.truncates(source)
        again = F.col("query_id").eqNullSafe(F.lit(query_id))
        quarantine.close(run.session, run.pipeline.spec.checkpoint, gone & ~again)

    def _finish(self) -> None:
        announcer = self._run.announcer
        tokens.resynced(self._run.storage, self._wanted, self._run.pipeline.spec)
        announcer.progress.resyncing(self._others)
        announcer.news()
        announcer.tell(Resync(self._tables, done=True))


def _only(pipeline: CdcPipeline, sources: Container[str]) -> CdcPipeline:
    """Return the pipeline with only these of its listed tables."""
    return pipeline.model_copy(update={"spec": pipeline.spec.only(sources)})
