"""Retries held records without a request.

Records are held if their table was refused, failed or suspended, or if their place in the source's order was
undecided. A table is retried at the start of a run, as soon as it takes batches again, otherwise after a
growing delay, and at the latest when a run ends on its own. Merging is commutative, so records that are
applied late result in the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable
from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.record.quarantine import HELD, OpenRecords
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.replayer import Replayer

FIRST_DELAY, LONGEST_DELAY = 15.0, 900.0
_log = logging.getLogger(__name__)


class HeldRecords:
    """Decides which tables' held records are retried and when, and has the ``replayer`` do it.

    `batch_done` may be called from another thread than `serve`. ``warn`` receives a message if a retry as a
    whole fails.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        replayer: Replayer,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        kept_aside: Callable[[], int] = lambda: 0,
    ) -> None:
        """``kept_aside`` returns the number of batches that have kept records aside."""
        self._spec, self._replayer, self._warn = spec, replayer, warn
        self._delays: Backoff[str] = Backoff(FIRST_DELAY, LONGEST_DELAY, clock)
        self._results: SimpleQueue[BatchResult] = SimpleQueue()
        self._held: set[str] | None = None
        self._untried: set[str] = set()
        """Tables whose records were first held in this run, and have not been retried yet."""
        self._refused: set[str] = set()
        self._outdated = True
        self.open: OpenRecords = {}
        """The open records of the quarantine when last counted: {source table: {scope: number}}."""
        self.counted: int | None = None
        """The number of batches that had kept records aside at that time; None before the first count."""
        self._kept_aside = kept_aside

    def batch_done(self, result: BatchResult) -> None:
        """Record what a batch of the source did."""
        self._results.put(result)

    def recount(self) -> None:
        """Note that the quarantine has changed."""
        self._outdated = True

    def serve(self, *, last: bool = False) -> None:
        """Retry what is due, and the ``last`` time in a run also what has not been retried yet."""
        self._take_in()
        if self._outdated:
            self._count()
        now = self._untried if last else set()
        due = sorted(each for each in self._held or () if self._delays.is_due(each) or each in now)
        if due:
            self._try(due)

    def _take_in(self) -> None:
        while True:
            try:
                result = self._results.get_nowait()
            except Empty:
                return
            self._outdated |= bool(result.counts.refused or result.counts.quarantined or result.corrected)
            for source, table in result.tables.items():
                if table.error is not None or table.counts.refused:
                    self._refused.add(source)
                elif source in self._refused:  # it takes batches again
                    self._refused.discard(source)
                    self._delays.forget(source)

    def _count(self) -> None:
        """Count the open records.

        Records that are held while the driver runs wait before their first retry. Those from before do not.
        """
        counted = self._kept_aside()
        self.open = self._replayer.open_counts()
        self.counted = counted
        held = {source for source, scopes in self.open.items() if any(scopes.get(each) for each in HELD)}
        found = {source for source in held if self._is_wanted(source)}
        if self._held is not None:
            for source in found - self._held:
                self._delays.failed(source)
                self._untried.add(source)
        self._held, self._outdated = found, False

    def _try(self, sources: Sequence[str]) -> None:
        """Retry all tables at once, or each on its own if that fails."""
        _log.info("held records are tried again: %s", ", ".join(sources))
        self._untried.difference_update(sources)
        try:
            self._replayer.apply(_held(sources))
        except CheckpointInUse:
            raise
        except Exception as error:
            if len(sources) > 1:
                for source in sources:
                    self._try([source])
                return
            self._explain(sources[0], error)
        self._count()
        for source in sources:
            if self._held and source in self._held:
                self._delays.failed(source)
            else:
                self._delays.forget(source)
                self._refused.discard(source)

    def _explain(self, source: str, error: Exception) -> None:
        message = cause_of(error)
        self._warn(f"held records of {source or 'unknown tables'} could not be applied: {message}")
        try:
            self._replayer.explain(_held([source]), message)
        except Exception as failure:
            self._warn(f"the quarantine could not be written: {failure}")

    def _is_wanted(self, source: str) -> bool:
        """Return whether the manifest mirrors the table and does not suspend it."""
        try:
            settings = self._spec.table_settings(source) if source else None
        except AmbiguousTable:  # applying the records reports that
            return True
        return not source or (settings is not None and not settings.suspend)


def _held(sources: Sequence[str]) -> Column:
    """Return the condition that selects the held records of these tables among the open rows."""
    return F.col("scope").isin(*HELD) & F.coalesce("source", F.lit("")).isin(*sources)
