"""Applies the batches of a pipeline to one of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.api.report import Counts
from lakemirror.driver.decision import Decision, Held
from lakemirror.driver.errors import ShardsDiffer
from lakemirror.driver.expressions import kept
from lakemirror.driver.parse.decode import EventDecoder
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused, Waiting
from lakemirror.driver.plan.schemas import Schemas
from lakemirror.driver.plan.table import TablePlan, plan_table
from lakemirror.driver.profile import stretches
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.profile.positions import Standing
from lakemirror.driver.read.base import Batch, SourceFile
from lakemirror.driver.reduce.conflicts import refuse_conflicts
from lakemirror.driver.reduce.expectations import violations
from lakemirror.driver.reduce.table import Begun, begin, is_plain, reduce_table
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables.applied_files import AppliedFiles
from lakemirror.driver.tables.mirror import MODE_PROPERTY, SOURCE_PROPERTY
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.write.commit import already, write_table
from lakemirror.driver.write.form import form
from lakemirror.driver.write.target import DELTA, TargetKind
from lakemirror.driver.write.transaction import of_shard
from lakemirror.driver.write.writer import Transaction


class TableApplier:
    """One source table; keeps what it knows of its mirror between batches.

    A batch is decided, prepared and written, in this order.
    """

    def __init__(
        self,
        name: TableName,
        table: MirroredTable | None,
        held: Held | None = None,
        writing: AbstractContextManager[object] | None = None,
        target: TargetKind = DELTA,
    ) -> None:
        """``table`` is None for one that the manifest leaves out, and for one that is ``held``. ``writing``
        is entered while the table changes its mirror, where other shards write it, too; ``target`` is the
        kind of place that has the mirror.
        """
        self.name = name
        self._writing = writing or nullcontext()
        self._table = table
        self._held = held
        self._decoder: EventDecoder | None = None
        self._expected: Callable[[DataFrame], Begun] | None = None
        """How the next batch begins if it is as plain as this one; None after one that was not."""
        self._begun: tuple[DataFrame, Future[Begun]] | None = None
        if table is not None:
            self._schemas = Schemas(table)
            self._writers = target.writers(table)

    @property
    def left_out(self) -> bool:
        """The manifest leaves the table out."""
        return self._table is None and self._held is None

    def files_of(self, batch: Batch, app_id: str) -> list[SourceFile]:
        """Those files of rows of a batch that the mirror has from another one."""
        table = self._table
        asked = [file for file in batch.files if not file.again]
        if table is None or not asked or not table.mirror.exists:
            return []
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return []
        known = AppliedFiles(table.spark, table.mirror)
        found = known.among([file.sha256 for file in asked], app_id, batch.batch_id)
        return [file for file in asked if file.sha256 in found]

    def begin(self, events: DataFrame, pool: Executor) -> None:
        """Reduce the table's classified ``events`` in the background, while they are profiled, as if the
        batch were as plain as the one before.
        """
        if self._expected is not None:
            changes = of_table(events, self.name).where("kind = 'change'")
            self._begun = events, pool.submit(self._expected, changes)

    def _take_begun(self, events: DataFrame) -> Begun | None:
        """What was begun for these very events, once: when they are decided again, it may be broken."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] is not events:
            return None
        return begun[1].result() if begun[1].exception() is None else None

    def decide(self, events: DataFrame, seen: TableOverview, documents: Mapping[int, str]) -> Decision:
        """What to do with the table's part of the batch; materialises its state. Writes nothing.

        ``documents``: every schema document that the batch refers to, by id.
        """
        if self._held is not None:
            return hold(self.name, self._held, events, seen)
        if self._table is None:
            return Decision(self.name, seen)
        mine = of_table(events, self.name)
        changes, truncates = mine.where("kind = 'change'"), mine.where("kind = 'truncate'")
        try:
            if self._table.shard is not None:
                self._table.mirror.refresh()  # others have written it
            plan = plan_table(self._table, seen, self._schemas.of(changes, seen, documents))
            decoder = self._decoder_for(plan)
            begun = self._take_begun(events)
            reduced = reduce_table(self._table, plan, decoder, changes, truncates, begun)
            refuse_conflicts(self._table, plan, reduced)
            violated = violations(self._table, plan, reduced)
            plain = is_plain(self._table, plan)
            self._expected = partial(begin, decoder, soft=plan.soft is not None) if plain else None
            return Decision(self.name, seen, plan, reduced, violated=violated)
        except (Refused, Waiting) as reason:
            return hold(self.name, Held(str(reason), error=isinstance(reason, Refused)), events, seen)

    def _decoder_for(self, plan: TablePlan) -> EventDecoder:
        """The one of the batch before, if this one is read alike."""
        reading = plan.decoding or plan.reading
        if self._decoder is None or self._decoder.reading != reading:
            self._decoder = EventDecoder(reading)
        return self._decoder

    def prepare(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> None:
        """Bring the mirror into the form that is planned.

        ``replay``: the batch may have been written before; then nothing is written again.
        """
        table, plan = self._table, decision.plan
        if table is None or plan is None:
            return
        with self._writing:
            if replay and _has(table, batch, app_id):
                return
            if table.shard is not None:
                _require_same_columns(table)
            form(table, plan)

    def write(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> TableResult:
        """Write tombstones and rows; a table that has this batch already is left as it is."""
        table, plan, reduced = self._table, decision.plan, decision.reduced
        assert table is not None
        assert plan is not None
        result = replace(described(decision), target=str(table.location), drift=plan.drift)
        with self._writing:
            if replay and _has(table, batch, app_id):
                return already(table, plan, reduced, Transaction(app_id, batch), result, self._writers)
            transaction = Transaction(app_id, batch)
            if table.shard is not None:
                transaction = of_shard(app_id, batch, table.shard, table.spark)
            return write_table(table, plan, reduced, result, transaction, self._writers)

    def standing(self) -> list[Standing] | None:
        """The highest positions that stand in the mirror and its tombstones; None without a mirror."""
        table = self._table
        if table is None or not table.mirror.exists:
            return None
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return []
        rows = table.rows().select(
            "__origin.topic", "__origin.partition", F.col("__seq").alias("seq"), "__event_time"
        )
        rows = rows.withColumnRenamed("__event_time", "event_time")
        if table.tombstone_summary.newest is not None:
            gone = table.tombstones.frame().where("kind <> 'collected'")
            rows = rows.unionByName(gone.select(*rows.columns))
        return stretches.standing(rows)

    def read_log(self) -> None:
        """Have Delta compute the state of the mirror's log, in which MERGE looks up its transaction id."""
        table = self._table
        if table is not None and self._writers.merged and table.mirror.exists:
            table.mirror.applied("")

    def collect_tombstones(self, before: datetime, below: bytes | None) -> int:
        """Forget tombstones that were recorded before a time and lie below a sequence (None: any); returns
        how many.
        """
        table = self._table
        try:
            properties = table.properties if table is not None else {}
        except Refused:
            return 0
        if table is None or properties.get(MODE_PROPERTY) not in ("scd1", "scd2"):
            return 0
        if properties.get(SOURCE_PROPERTY) != table.source:
            return 0
        return table.tombstones.collect(before, below)


def hold(name: TableName, held: Held, events: DataFrame, seen: TableOverview) -> Decision:
    """Nothing of a table is applied in this batch; its records are kept for later."""
    return Decision(name, seen, held=held, changes=of_table(events, name))


def described(decision: Decision) -> TableResult:
    """What is known of a table's part of a batch before anything is written."""
    seen = decision.overview
    return TableResult(
        str(decision.name),
        counts=Counts(
            records=decision.records + seen.tombstone_records,
            no_row_change=seen.tombstone_records,
            quarantined=decision.bad,
            refused=decision.refused,
            tombstone_records=seen.tombstone_records,
            violations=sum(each.records for each in decision.violated),
        ),
        violated=decision.violated,
        last_event_time=seen.last_event_time,
        error=decision.error,
    )


def _has(table: MirroredTable, batch: Batch, app_id: str) -> bool:
    if not table.mirror.exists:
        return False
    done = table.mirror.applied(app_id if table.shard is None else f"{app_id}/{table.shard}")
    return done is not None and done >= batch.batch_id


def _require_same_columns(table: MirroredTable) -> None:
    """Raise ShardsDiffer where another shard has altered the mirror since the batch was planned."""
    before = table.mirror.columns
    table.mirror.refresh()
    if table.mirror.columns != before:
        raise ShardsDiffer(
            f"another shard of {table.kept_as} has altered the mirror meanwhile: the batch is planned anew"
        )


def of_table(events: DataFrame, name: TableName) -> DataFrame:
    """The changes and truncates of one table."""
    return events.where(is_of(name))


@kept
def is_of(name: TableName) -> Column:
    """BOOLEAN: an event is a change or truncate of this table."""
    return (
        F.col("database").eqNullSafe(F.lit(name.database))
        & F.col("schema").eqNullSafe(F.lit(name.schema))
        & (F.col("table") == name.table)
        & F.col("kind").isin("change", "truncate")
    )
