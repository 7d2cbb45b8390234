"""Applies the batches of a run in turn, retries them if that may help, and records their results."""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.errors import NotAnswered, cause_of, stops_pipeline
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import audit
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.runtime.events import BatchDone, BatchStarted
from lakemirror.driver.runtime.held import HeldRecords
from lakemirror.driver.runtime.retry import Retries
from lakemirror.driver.runtime.turns import Applier, Turns

_COLLECT_EVERY_SECONDS = 600.0
_ABSENT = (
    "{source}: {rows} row(s) came with an update, and the mirror never had them: what is read begins after "
    "they were created, the topic was compacted, or the table was renamed. Values that the update does not "
    "carry are null, and other rows may be missing: load the table with `lakemirror reload`, or have the "
    "connector take a snapshot. Further rows are counted as absentRows"
)


class Batches:
    """Applies batches of the source or of a resync when it is their turn.

    ``repeated`` contains the source's batches that an earlier run may already have applied.
    """

    def __init__(
        self,
        run: RunContext,
        turns: Turns,
        retries: Retries,
        held: HeldRecords,
        repeated: Collection[int],
    ) -> None:
        self.turns = turns
        self._run, self._retries, self._held, self._repeated = run, retries, held, repeated
        self._collected = time.monotonic()
        self._lacking: set[str] = set()
        """The tables about whose missing rows this run has warned."""

    def apply(self, raw: DataFrame, batch: Batch, applier: Applier | None = None) -> None:
        """Apply a batch of the source, or one that is read again and has an ``applier`` of its own."""
        chosen = applier or self.turns.first
        self._retries.batch(
            batch.batch_id,
            partial(self._apply, raw, batch, chosen),
            partial(self.turns.forget, chosen),
        )

    def _apply(self, raw: DataFrame, batch: Batch, applier: Applier) -> None:
        announcer = self._run.announcer
        with self.turns.turn(applier):
            announcer.tell(BatchStarted(batch))
            began = time.monotonic()
            with batch.explained():
                result = applier.apply(raw, batch)
            again = applier is not self.turns.first
            repeated = again or batch.batch_id in self._repeated
            history = self._history(raw.sparkSession) if repeated else None
            seconds = time.monotonic() - began
            announcer.progress.batch_done(result, history, again=again, seconds=seconds)
            self._held.batch_done(result)
            self._warn_of_absent_rows(result)
            announcer.tell(BatchDone(result, seconds))
            announcer.news()
            if self._due():
                self.collect_tombstones(had_all_at=announcer.progress.had_all_at)

    def _warn_of_absent_rows(self, result: BatchResult) -> None:
        """Warn once of each table that gets updates of rows that its mirror never had."""
        for source, table in result.tables.items():
            if table.counts.absent_rows and source not in self._lacking:
                self._lacking.add(source)
                self._run.announcer.warn(_ABSENT.format(source=source, rows=table.counts.absent_rows))

    def collect_while_idle(self) -> None:
        """Collect tombstones between batches, if this is due and no batch has come to do it.

        To be called now and then. Nothing is done before it is known that everything that the source had at
        some moment is applied, because the last batch has collected whatever could be collected without that.
        """
        had_all_at = self._run.announcer.progress.had_all_at
        if had_all_at is None or not self._due():
            return
        with self.turns.pause():
            if self._due():
                self.collect_tombstones(had_all_at=had_all_at)

    def _due(self) -> bool:
        return time.monotonic() - self._collected > _COLLECT_EVERY_SECONDS

    def collect_tombstones(self, *, had_all_at: datetime | None) -> None:
        """Delete tombstones that no event can need any more.

        Everything that the source had at ``had_all_at`` is applied (None: this is not known of any moment). A
        failure is only reported: the batches before it are applied and counted, and tombstones do no harm
        until they are collected later.
        """
        self._collected = time.monotonic()
        announcer = self._run.announcer
        # Not while old events are being read again: they would arrive after their tombstones are gone.
        if not announcer.progress.batches or not self.turns.alone:
            return
        try:
            self.turns.first.collect_tombstones(had_all_at=had_all_at)
        except Exception as error:
            if not isinstance(error, NotAnswered) and stops_pipeline(error, self._run.session):
                raise
            announcer.warn(
                f"tombstones could not be collected, which is tried again later: {cause_of(error)}"
            )

    def _history(self, session: SparkSession) -> AuditHistory:
        return audit.history(session, self._run.pipeline.spec.checkpoint)
