"""Applies the batches of a pipeline to one of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import CdcPipeline
from lakemirror.api.report import Counts
from lakemirror.driver.mirror import MODE_PROPERTY, SOURCE_PROPERTY, TableName
from lakemirror.driver.overview import TableOverview
from lakemirror.driver.results import Drift, TableResult
from lakemirror.driver.sources.base import Batch
from lakemirror.driver.table import commit, decide
from lakemirror.driver.table.decision import Decision, Refused
from lakemirror.driver.table.mirrored import MirroredTable
from lakemirror.driver.table.schemas import Schemas


class TableApplier:
    """One source table; keeps what it knows of its mirror between batches.

    A batch is decided, prepared and committed, in this order.
    """

    def __init__(
        self, spark: SparkSession, pipeline: CdcPipeline, name: TableName, reported: Sequence[Drift]
    ) -> None:
        self.name = name
        self._table: MirroredTable | None = None
        settings = pipeline.spec.table_settings(str(name))
        if settings is not None and not settings.suspend:
            self._table = MirroredTable(spark, pipeline, name, settings, reported)
            self._schemas = Schemas(self._table)

    def decide(self, events: DataFrame, seen: TableOverview, documents: Mapping[int, str]) -> Decision:
        """What to do with the table's part of the batch; materialises its state. Writes nothing.

        ``documents``: every schema document that the batch refers to, by id.
        """
        if self._table is None:
            return Decision(self.name, seen)
        changes = _of(events, self.name).where("kind = 'change'")
        try:
            versions = self._schemas.of(changes, seen, documents)
            return Decision(self.name, seen, work=decide.decide(self._table, changes, seen, versions))
        except Refused as refusal:
            return Decision(self.name, seen, refused=str(refusal), changes=_of(events, self.name))

    def prepare(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> None:
        """Write what has to stand before the rows do: the mirror itself, and its tombstones.

        ``replay``: the batch may have been written before; then nothing is written again.
        """
        table, work = self._table, decision.work
        if table is None or work is None or (replay and _has(table, batch, app_id)):
            return
        commit.prepare(table, work, batch)

    def commit(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> TableResult:
        """Write the rows; a table that has this batch already is left as it is."""
        table, work, seen = self._table, decision.work, decision.overview
        assert table is not None
        result = TableResult(
            str(self.name),
            str(table.mirror.location),
            counts=Counts(
                records=decision.events + seen.tombstone_records,
                applied=decision.events - decision.bad,
                no_row_change=seen.tombstone_records,
                quarantined=decision.bad,
                tombstone_records=seen.tombstone_records,
            ),
            last_event_time=seen.last_event_time,
            drift=work.drift if work else (),
            error=decision.refused,
        )
        if work is None:
            return result
        if replay and _has(table, batch, app_id):
            return commit.already(table, work, batch, result)
        return commit.commit(table, work, result)

    def read_log(self) -> None:
        """Have Delta compute the state of the mirror's log, which every transaction id is looked up in."""
        if self._table is not None and self._table.mirror.exists:
            self._table.mirror.applied("")

    def collect_tombstones(self, before: datetime, below: bytes | None) -> int:
        """Forget tombstones that were recorded before a time and lie below a sequence (None: any); returns
        how many.
        """
        table = self._table
        if table is None or table.properties.get(MODE_PROPERTY) != "scd1":
            return 0
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return 0
        return table.tombstones.collect(before, below)


def _has(table: MirroredTable, batch: Batch, app_id: str) -> bool:
    if not table.mirror.exists:
        return False
    done = table.mirror.applied(app_id)
    return done is not None and done >= batch.batch_id


def _of(events: DataFrame, name: TableName) -> DataFrame:
    """The changes and truncates of one table."""
    return events.where(
        F.col("database").eqNullSafe(F.lit(name.database))
        & F.col("schema").eqNullSafe(F.lit(name.schema))
        & (F.col("table") == name.table)
        & F.col("kind").isin("change", "truncate")
    )
