"""Applies the batches of a pipeline to one of its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from lakemirror.api.report import Counts
from lakemirror.driver.decision import Decision, Held
from lakemirror.driver.errors import ShardsDiffer
from lakemirror.driver.expressions import kept
from lakemirror.driver.orders import names_tables_by_folder, rows_are_dated
from lakemirror.driver.parse.attempt import causes
from lakemirror.driver.parse.decode import EventDecoder, with_arrival
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.places import Places, alone_since
from lakemirror.driver.plan.possession import is_possessed
from lakemirror.driver.plan.refusal import Refused, Waiting
from lakemirror.driver.plan.schemas import Schemas
from lakemirror.driver.plan.table import TablePlan, plan_table
from lakemirror.driver.profile import stretches
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.profile.positions import Standing
from lakemirror.driver.read.base import Batch, SourceFile
from lakemirror.driver.reduce.conflicts import refuse_conflicts
from lakemirror.driver.reduce.expectations import violations
from lakemirror.driver.reduce.table import Begun, Reduced, begin, is_plain, reduce_table, with_apart
from lakemirror.driver.reduce.waiting import place_truncates, require_same_topics
from lakemirror.driver.results import TableResult, finer
from lakemirror.driver.tables.applied_files import AppliedFiles
from lakemirror.driver.tables.mirror import MODE_PROPERTY, SOURCE_PROPERTY
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.write.commit import already, write_table
from lakemirror.driver.write.form import form
from lakemirror.driver.write.target import DELTA, TargetKind
from lakemirror.driver.write.transaction import of_shard
from lakemirror.driver.write.writer import Transaction


@dataclass(frozen=True)
class KnownFile:
    """A file whose content a mirror has; with ``only_dated``, only rows that say when they are from."""

    file: SourceFile
    only_dated: bool = False


InColumns = Callable[[MirroredTable, TablePlan], bool]
"""Whether the engine applies what is planned for a table."""


def never(table: MirroredTable, plan: TablePlan) -> bool:
    """Have nothing applied by the engine."""
    return False


class TableApplier:
    """One source table.

    It keeps what it knows about its mirror between batches. A batch is decided, prepared and written, in this
    order.
    """

    def __init__(
        self,
        name: TableName,
        table: MirroredTable | None,
        held: Held | None = None,
        writing: AbstractContextManager[object] | None = None,
        target: TargetKind = DELTA,
        places: Places | None = None,
    ) -> None:
        """Create an applier for one source table.

        ``table`` is None if the manifest leaves the table out or if the table is ``held``. ``writing`` is
        entered while the table changes its mirror; it is needed if other shards write to the same mirror.
        ``target`` is the kind of place that holds the mirror, and ``places`` knows how the mirror was left.
        """
        self.name, self._places = name, places
        self._writing = writing or nullcontext()
        self._table = table
        self._held = held
        self._decoder: EventDecoder | None = None
        self._expected: Callable[[DataFrame], Begun] | None = None
        """Reduces the next batch if it is as plain as this one. None after a batch that was not plain."""
        self._begun: tuple[DataFrame, Future[Begun]] | None = None
        if table is not None:
            self._schemas = Schemas(table)
            self._writers = target.writers(table)

    @property
    def left_out(self) -> bool:
        """Whether the manifest leaves the table out."""
        return self._table is None and self._held is None

    @property
    def mirrored(self) -> MirroredTable | None:
        """The table with its mirror, or None if nothing is applied to it."""
        return self._table

    @property
    def held(self) -> Held | None:
        """Why nothing is applied to the table, or None."""
        return self._held

    def files_of(self, batch: Batch, app_id: str) -> list[KnownFile]:
        """Return the batch's files of rows whose content the mirror already has from another batch.

        Content that comes again under another name after other content says something new: rows are as they
        were before. Only rows that say when they are from say nothing new, wherever they are.
        """
        table = self._table
        mine = (None, str(self.name))
        asked = [file for file in batch.files if not file.again and file.table in mine]
        if table is None or not asked or not table.mirror.exists:
            return []
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return []
        known = AppliedFiles(table.spark, table.mirror)
        found = known.among([file.sha256 for file in asked], app_id, batch.batch_id)
        alike = known.alike(found, app_id, batch.batch_id) if found else []
        dated, files, fresh = rows_are_dated(table.spec), list[KnownFile](), list[SourceFile]()
        for file in sorted(asked, key=lambda each: each.start):
            beside = file.place if names_tables_by_folder(table.spec) else None
            here = [each for each in alike if each.sha256 == file.sha256 and each.may_be_beside(beside)]
            earlier = [each for each in here if each.start < file.start]
            others = [each for each in fresh if each.sha256 != file.sha256 and _is_beside(each, beside)]
            if any(each.is_at(file.place) for each in here) or (dated and here):
                files.append(KnownFile(file))
            elif not earlier:
                fresh.append(file)
            else:
                last = max(earlier, key=lambda each: each.place)
                followed = any(last.start < each.start for each in others) or known.has_others(
                    last, file.start, beside, app_id, batch.batch_id
                )
                files.append(KnownFile(file, only_dated=followed))
                fresh += [file] if followed else []
        return files

    def require_readable(self) -> None:
        """Raise an error if the mirror cannot be read."""
        if self._table is not None:
            _ = self._table.properties

    def reads_values(self, seen: TableOverview) -> bool:
        """Return whether the columns' types depend on values that can be read for many tables at once."""
        return self._table is not None and self._schemas.reads_values(seen)

    def begin(self, events: DataFrame, pool: Executor) -> None:
        """Reduce the table's classified ``events`` in the background while they are profiled.

        This assumes that the batch is as plain as the previous one.
        """
        if self._expected is not None:
            changes = of_table(events, self.name).where("kind = 'change'")
            self._begun = events, pool.submit(self._expected, changes)

    def _take_begun(self, events: DataFrame) -> Begun | None:
        """Return the reduction that was started for these very events, or None.

        It is handed out only once: if the events are decided again, it may be broken.
        """
        begun, self._begun = self._begun, None
        if begun is None or begun[0] is not events:
            return None
        return begun[1].result() if begun[1].exception() is None else None

    def decide(
        self,
        events: DataFrame,
        seen: TableOverview,
        documents: Mapping[int, str],
        batch: int,
        in_columns: InColumns = never,
        shown: Row | None = None,
    ) -> Decision:
        """Decide what to do with the table's part of the batch.

        Materializes the state, but writes nothing. ``documents`` holds every schema document that the batch
        refers to, by ID. ``batch`` is its number. ``in_columns`` is asked whether the engine applies a plan;
        nothing is reduced then. ``shown`` is what the values of these events show, if that was read before.
        """
        if self._held is not None:
            return hold(self.name, self._held, events, seen)
        if self._table is None:
            return Decision(self.name, seen)
        seen = self._table.with_orders(seen)
        mine = of_table(events, self.name)
        changes, truncates = mine.where("kind = 'change'"), mine.where("kind = 'truncate'")
        try:
            if self._table.shard is not None:
                self._table.mirror.refresh()  # other shards may have written to it
            self._require_as_left(self._table)
            plan = plan_table(self._table, seen, self._schemas.of(changes, seen, documents, shown))
            if in_columns(self._table, plan):
                self._expected = None
                return Decision(self.name, seen, plan, in_columns=True)
            decoder = self._decoder_for(plan)
            plan = _with_rounding(self._table, plan, decoder, changes)
            begun = self._take_begun(events)
            if plan.mode == "scd2":
                changes, truncates = with_arrival(changes), with_arrival(truncates)
            require_same_topics(self._table, plan)
            plan, truncates, apart = place_truncates(self._table, plan, changes, truncates)
            reduced = reduce_table(self._table, plan, decoder, changes, truncates, begun, batch=batch)
            reduced = with_apart(reduced, apart)
            refuse_conflicts(self._table, plan, reduced)
            violated = violations(self._table, plan, reduced)
            plain = is_plain(self._table, plan)
            self._expected = partial(begin, decoder, soft=plan.soft is not None) if plain else None
            return Decision(self.name, seen, plan, reduced, violated=violated, causes=_causes(plan, reduced))
        except (Refused, Waiting) as reason:
            return hold(self.name, Held(str(reason), error=isinstance(reason, Refused)), events, seen)

    def _require_as_left(self, table: MirroredTable) -> None:
        """Raise Refused if the mirror was removed, restored or replaced since the driver left it."""
        if self._places is None:
            _look(table)
            return
        lost = self._places.look(table)
        if lost is not None:
            raise Refused(lost)

    def _decoder_for(self, plan: TablePlan) -> EventDecoder:
        """Return the previous batch's decoder if this batch is read the same way, otherwise a new one."""
        reading = plan.decoding or plan.reading
        if self._decoder is None or self._decoder.reading != reading:
            self._decoder = EventDecoder(reading)
        return self._decoder

    def prepare(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> None:
        """Bring the mirror into the planned form.

        ``replay`` means that the batch may have been written before. If it was, nothing is written again.
        Whether it was has been asked of a table that the engine applies.
        """
        table, plan = self._table, decision.plan
        if table is None or plan is None:
            return
        with self._writing:
            if replay and not decision.in_columns and _has(table, batch, app_id):
                return
            if table.shard is not None:
                _require_same_columns(table)
            form(table, plan, f"{app_id}/{batch.batch_id}")

    def write(self, decision: Decision, batch: Batch, app_id: str, *, replay: bool) -> TableResult:
        """Write tombstones and rows. A table that already has this batch is left unchanged."""
        table, plan, reduced = self._table, decision.plan, decision.reduced
        assert table is not None
        assert plan is not None
        result = replace(described(decision), target=str(table.location), drift=plan.drift)
        with self._writing:
            before = _look(table)
            if replay and _has(table, batch, app_id):
                done = already(table, plan, reduced, Transaction(app_id, batch), result, self._writers)
            else:
                transaction = Transaction(app_id, batch)
                if table.shard is not None:
                    transaction = of_shard(app_id, batch, table.shard, table.spark)
                done = write_table(table, plan, reduced, result, transaction, self._writers, before=before)
            table.note_tombstones()
            if self._places is None:
                return done
            return self._places.written(table, done, alone_since(before, done.version))

    def left_at(self, done: TableResult) -> TableResult:
        """Note how a batch has left the mirror that the engine has written, which nobody else had changed."""
        if self._table is None or self._places is None:
            return done
        return self._places.written(self._table, done, since=self._table.checked)

    def standing(self) -> list[Standing] | None:
        """Return the highest positions in the mirror and its tombstones, or None if there is no mirror."""
        table = self._table
        if table is None or not table.mirror.exists:
            return None
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return []
        rows = table.rows().where("__seq IS NOT NULL")  # null: inserted by hand
        rows = rows.select(
            "__origin.topic", "__origin.partition", F.col("__seq").alias("seq"), "__event_time"
        )
        rows = rows.withColumnRenamed("__event_time", "event_time")
        if table.tombstone_summary.newest is not None:
            gone = table.tombstones.frame().where("kind <> 'collected'")
            rows = rows.unionByName(gone.select(*rows.columns))
        return stretches.standing(rows)

    def highest_offset(self, app_id: str, topics: Collection[str]) -> int | None:
        """Return the highest offset of the rows that the mirror has from ``topics``, tombstones included.

        Returns None if there are none, or if the query of ``app_id`` has already written the mirror: whatever
        it brings later has higher offsets.
        """
        table = self._table
        if table is None or not table.mirror.exists or table.last_batch_of(app_id) is not None:
            return None
        if table.properties.get(SOURCE_PROPERTY) != table.source:
            return None
        rows = table.rows().select("__origin.topic", "__origin.offset")
        if table.tombstone_summary.newest is not None:
            rows = rows.unionByName(table.tombstones.frame().select("topic", "offset"))
        row = rows.where(F.col("topic").isin(*topics)).agg(F.max("offset")).first()
        return None if row is None else row[0]

    def read_log(self) -> None:
        """Make Delta compute the state of the mirror's log, in which MERGE looks up its transaction ID."""
        table = self._table
        if table is not None and self._writers.merged and table.mirror.exists:
            table.mirror.applied("")

    def has_tombstones(self, before: datetime) -> bool:
        """Return whether tombstones were recorded before a time that this table may collect."""
        table = self._table
        try:
            properties = table.properties if table is not None else {}
        except Refused:
            return False
        if table is None or properties.get(MODE_PROPERTY) not in ("scd1", "scd2"):
            return False
        if properties.get(SOURCE_PROPERTY) != table.source or not is_possessed(table):
            return False
        return table.tombstones.has_any(before)

    def collect_tombstones(self, before: datetime, below: bytes | None) -> int:
        """Delete tombstones recorded before a time and below a sequence (None: any), and return how many."""
        if self._table is None or not self.has_tombstones(before):
            return 0
        return self._table.tombstones.collect(before, below)


def _is_beside(file: SourceFile, place: str | None) -> bool:
    """Return whether a file is in the folder of the one at ``place``; with None, folders do not matter."""
    return place is None or file.place.rpartition("/")[0] == place.rpartition("/")[0]


def _with_rounding(
    table: MirroredTable, plan: TablePlan, decoder: EventDecoder, changes: DataFrame
) -> TablePlan:
    """Add a drift for each column whose values are rounded, the first time that one is."""
    drift = {
        name: finer(name, plan.reading.columns[name].simpleString())
        for name, by_number in decoder.rounds.items()
        if by_number or plan.seen.finer
    }
    asked = [each.column for each in table.unreported(list(drift.values()))]
    if not asked:
        return plan
    found = decoder.rounded(changes, asked)
    return replace(plan, drift=(*plan.drift, *(drift[name] for name in found)))


def _causes(plan: TablePlan, reduced: Reduced) -> dict[str, str]:
    """Return what Spark says of expressions that fail for rows of a batch."""
    if reduced.events is None or reduced.counts.bad == reduced.counts.waiting:
        return {}
    return causes(reduced.events, plan.reading.fallible)


def hold(name: TableName, held: Held, events: DataFrame, seen: TableOverview) -> Decision:
    """Apply nothing from this batch to the table, and keep its records for later."""
    return Decision(name, seen, held=held, changes=of_table(events, name))


def described(decision: Decision) -> TableResult:
    """Return what is known about a table's part of a batch before anything is written."""
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


def _look(table: MirroredTable) -> int | None:
    """Ask for the newest version of the mirror, of which this process knows from then on."""
    return table.mirror.version


def _has(table: MirroredTable, batch: Batch, app_id: str) -> bool:
    """Return whether the mirror has a batch, as of the last look at it."""
    done = table.last_batch_seen(app_id)
    return done is not None and done >= batch.batch_id


def _require_same_columns(table: MirroredTable) -> None:
    """Raise ShardsDiffer if another shard has altered the mirror since the batch was planned."""
    before = table.mirror.columns
    table.mirror.refresh()
    if table.mirror.columns != before:
        raise ShardsDiffer(
            f"another shard of {table.kept_as} has altered the mirror meanwhile: the batch is planned anew"
        )


def of_table(events: DataFrame, name: TableName) -> DataFrame:
    """Return the changes and truncates of one table."""
    return events.where(is_of(name))


@kept
def is_of(name: TableName) -> Column:
    """BOOLEAN: whether the event is a change or truncate of this table, however it spells the name."""
    database, schema = (F.coalesce(F.col(part), F.lit("")) for part in ("database", "schema"))
    above = [
        (database == (each.database or "")) & (schema == (each.schema or "")) for each in name.spellings()
    ]
    return (
        reduce(Column.__or__, above)
        & (F.col("table") == name.table)
        & F.col("kind").isin("change", "truncate")
    )
