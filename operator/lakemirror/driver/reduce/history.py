"""Determines what a batch does to the versions of a table.

The stored facts of its keys are fetched and folded with its events (`lakemirror.driver.reduce.scd2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import MapType, StringType, StructField, StructType

from lakemirror.driver.codes import Op
from lakemirror.driver.joins import hinted
from lakemirror.driver.materialise import materialised
from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.plan.fills import aged, is_former, of_former_life
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce import bounds, moves, scd2
from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.reduce.events import with_values
from lakemirror.driver.reduce.scd2 import Scd2, Truncate, moment
from lakemirror.driver.reduce.table import Reduced, bounds_of, images_of, no_events, of_own_shard
from lakemirror.driver.sequence import as_bytes, own
from lakemirror.driver.tables import keys
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.tombstones import ORIGIN, encoded_key


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of the events of a batch.

    ``late`` are those among the applied events that are older than a collected tombstone. ``deletes`` are
    facts that no tombstone records yet, up to ``last_delete`` and to the time ``latest``; the same applies to
    ``merged`` changes.
    """

    applied: int = 0
    stale: int = 0
    repeated: int = 0
    late: int = 0
    deletes: int = 0
    last_delete: bytes | None = None
    latest: datetime | None = None
    puts: int = 0
    gone: int = 0
    merged: int = 0


@dataclass(frozen=True)
class History:
    """What a batch does to a table.

    ``versions`` are the versions of its keys as they should be. ``rows`` and ``changes`` bring the mirror to
    that state. ``truncates`` are those that no tombstone records yet. ``known`` is the number of the batch's
    truncates that were known before.
    """

    versions: DataFrame
    rows: DataFrame
    changes: Changes | None
    outcomes: Outcomes
    truncates: Sequence[Truncate] = ()
    known: int = 0
    images: DataFrame | None = None


def history(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, batch: int, version: int | None = None
) -> History:
    """Fold a batch into what is stored, either now or at a version of the mirror."""
    state = reduced.state.frame if reduced.state is not None else no_events(table, plan)
    state = state.where("key IS NOT NULL")
    truncates, known = _truncates(table, reduced, batch)
    fetch = _Fetch(table, plan, version, whole=bool(reduced.truncates), all_of_key=_is_placed(plan))
    facts = _facts(plan, fetch, state, reduced)
    images = _images(table, plan, state, facts, truncates)
    patches = moves.patches(images, plan.tracked) if images is not None else None
    if patches is not None:
        facts = _facts(plan, fetch, state, reduced, patches)
    rules = Scd2(
        columns=plan.reading.columns,
        key=plan.reading.key,
        tracked=plan.tracked,
        truncates=truncates,
        placed=_is_placed(plan),
        whole=bool(plan.fills),
        compared=plan.compared,
        initial=plan.initial,
        corrects=plan.reading.corrects,
    )
    folded = _before_added(scd2.fold(facts, rules, batch, patches), plan)
    versions = materialised(_without_former(folded, plan))
    outcomes = _outcomes(versions, table.tombstones.summary.collected)
    return History(
        versions,
        materialised(scd2.puts(versions, plan.reading.key)),
        _changes(plan, reduced, outcomes, fetch, patched=patches is not None),
        outcomes,
        [each for each in truncates if not each.told],
        known,
        images,
    )


def _before_added(versions: DataFrame, plan: TablePlan) -> DataFrame:
    """Leave null the columns that were added with a default after a version had ended.

    The database gives the default to the rows that are there when the column is added. Whether the same batch
    brings the versions from before and the column does not matter.
    """
    values = {
        name: F.when(
            F.coalesce((F.col("seq") < F.lit(since)) & (F.col("end") < F.lit(since)), F.lit(False)),
            F.lit(None),
        ).otherwise(F.col("row")[name])
        for name, since in plan.since.items()
    }
    if not values:
        return versions
    row = F.when(F.col("op") != Op.DELETE, with_values("row", values)).otherwise(F.col("row"))
    return versions.withColumn("row", row)


def _without_former(versions: DataFrame, plan: TablePlan) -> DataFrame:
    """Replace the values of former lives of columns in the versions that are current.

    A version that has ended keeps what it had: a history shows what was.
    """
    if not plan.former:
        return versions
    values, differs = {}, F.lit(False)
    for name, fill in plan.former.items():
        seq = F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))
        old = F.col("is_current") & (F.col("op") != Op.DELETE) & of_former_life(fill, seq, F.col("topic"))
        values[name] = F.when(old, fill.value).otherwise(F.col("row")[name])
        differs = differs | (old & ~same_value(F.col("row")[name], fill.value, fill.kind))
    shown = ~F.coalesce("merged", F.lit(False))
    return versions.withColumns(
        {
            "row": F.when(F.col("op") != Op.DELETE, with_values("row", values)).otherwise(F.col("row")),
            "put": F.col("put") | (shown & F.coalesce(differs, F.lit(False))),
        }
    )


def _is_placed(plan: TablePlan) -> bool:
    """Return whether snapshot rows may determine the place of changes, or change it."""
    return plan.seen.snapshot or plan.seen.unanchored


def _facts(
    plan: TablePlan, fetch: _Fetch, state: DataFrame, reduced: Reduced, patches: DataFrame | None = None
) -> DataFrame:
    """Return the events of a batch, and what is stored for their keys.

    This includes the keys that get ``patches``.
    """
    firsts, placed = _firsts(state, patches), _is_placed(plan)
    found = fetch.versions(firsts, plan.reading.key, None if patches is not None else reduced)
    images = scd2.of_versions(found, placed=placed)
    facts = scd2.of_events(state, plan.tracked).unionByName(images)
    if plan.compared is not None:
        facts = facts.unionByName(scd2.beginnings(images))
        merged = fetch.merged(firsts, always=patches is not None)
        if merged is not None:
            facts = facts.unionByName(scd2.of_merged(merged, facts, placed=placed))
    deleted = fetch.tombstones(firsts, always=patches is not None)
    if deleted is None:
        return facts
    return facts.unionByName(scd2.of_tombstones(deleted, facts, placed=placed))


def _images(
    table: MirroredTable,
    plan: TablePlan,
    state: DataFrame,
    facts: DataFrame,
    truncates: Iterable[Truncate],
) -> DataFrame | None:
    """Return rows as they were under their former keys, or None if no values can come from there."""
    if not plan.tracked or not (plan.seen.moves or table.tombstone_summary.moved or plan.reading.inherits):
        return None
    rows = merged = None
    if table.tombstones.summary.merged:
        values = F.struct(*[F.col("row")[name].alias(name) for name in plan.tracked]).alias("row")
        merged = merged_changes(table, plan).select("key", values, "seq", "seqs", *ORIGIN)
    if _is_placed(plan):
        at = materialised(scd2.placed(facts))
        places = at.where("kind = 'event'").select(
            "key", F.col("base").alias("seq"), F.col("seq").alias("at")
        )
        state = materialised(state.join(places, ["key", "seq"]).drop("seq").withColumnRenamed("at", "seq"))
        values = F.struct(*[F.col("row")[name].alias(name) for name in plan.tracked])
        rows = at.where("kind = 'image'").select("key", values.alias("row"), "seq", "seqs", *ORIGIN)
    summary = table.tombstones.summary
    deleted = table.tombstones.frame().where("kind = 'deleted'") if summary.retained else None
    ended = [each.seq for each in truncates]
    if merged is not None:
        rows = merged if rows is None else rows.unionByName(merged)
    opened = plan.seen.unanchored
    found, _ = images_of(
        table, state, deleted, plan.reading, plan.tracked, ended, rows, opened=opened, placed=True
    )
    return found.localCheckpoint()


def _truncates(table: MirroredTable, reduced: Reduced, batch: int) -> tuple[list[Truncate], int]:
    """Return all truncates of the table, those already known and those of the batch.

    Also returns how many of the batch's own were known before it.
    """
    found = {each.seq: each for each in reduced.truncates}
    known = 0
    if table.tombstones.summary.floor is not None:
        rows = table.tombstones.frame().where("kind = 'truncated'")
        told = rows.groupBy("seq").agg(
            F.unix_micros(F.min("event_time")).alias("micros"), F.min("batch").alias("batch")
        )
        for row in told.collect():
            seq = bytes(row["seq"])
            known += seq in found and row["batch"] != batch
            found[seq] = replace(found.get(seq, Truncate(seq, moment(row["micros"]))), told=True)
    return list(found.values()), known


def _firsts(state: DataFrame, patches: DataFrame | None) -> DataFrame:
    """Return the first fact of each key that the batch has something for: key, first."""
    places = state.select("key", "seq")
    if patches is not None:
        places = places.union(patches.select("key", "seq"))
    return materialised(places.groupBy("key").agg(F.min("seq").alias("first")))


@dataclass(frozen=True)
class _Fetch:
    """Reads what is stored.

    It reads all keys (``whole``), everything about the batch's keys (``all_of_key``), or only what the batch
    can change of these keys.
    """

    table: MirroredTable
    plan: TablePlan
    version: int | None
    whole: bool
    all_of_key: bool

    def versions(self, firsts: DataFrame, key: Sequence[str], within: Reduced | None) -> DataFrame:
        """Return stored versions in the form that `scd2.of_versions` needs.

        ``within`` has the range of the keys.
        """
        reading = self.plan.reading
        rows = self.table.rows(self.version).where(T("__seq").isNotNull())  # null: inserted by hand
        values = {name: self._value(name, rows.columns) for name in reading.columns}
        nothing = F.lit(None).cast("binary")
        if self.whole:
            found = rows.select(stored_key(reading), nothing.alias("first"), *scd2.stored(values))
        else:
            limits = {} if within is None else bounds_of(self.plan, within.counts)
            for name, each in limits.items():
                rows = rows.where(bounds.within(T(name), each.kind, each.low, each.high))
            wanted = (firsts if within is None else hinted(firsts, within.counts.keys)).alias("f")
            same = [T(name) == F.col("f.key")[name] for name in key]
            found = rows.join(wanted, reduce(Column.__and__, same)).select(
                F.col("f.key").alias("key"),
                (nothing if self.all_of_key else F.col("f.first")).alias("first"),
                *scd2.stored(values),
            )
        older = F.col("seq") < F.col("first")
        below = F.max(F.when(older, F.col("seq"))).over(Window.partitionBy("key"))
        needed = F.col("first").isNull() | ~older | (F.col("seq") == F.col("below"))
        found = found.withColumn("below", below).where(needed)
        return materialised(
            found.withColumn("anchored", F.coalesce(older, F.lit(False))).drop("first", "below")
        )

    def _value(self, name: str, present: Sequence[str]) -> Column:
        """Return a stored value with the type that the column has now.

        A version that is current has the default of a column that is added.
        """
        kind, fill = self.plan.reading.columns[name], self.plan.fills.get(name)
        value = (T(name) if name in present else F.lit(None)).cast(kind)
        if fill is None or fill.life is not None:
            return value
        return F.when(is_former(name, fill), fill.value).otherwise(value)

    def tombstones(self, firsts: DataFrame, *, always: bool) -> DataFrame | None:
        """Return deletes that may matter, in the form that `scd2.of_tombstones` needs.

        A delete matters to events that come before it. If no version tells of it, such as that of a row which
        the filter leaves out, it also matters to later ones: to whether a row was there before its first
        change, and to when a version begins whose event has an earlier time. None if there are no deletes.
        """
        newest, reading = self.table.tombstones.summary.newest, self.plan.reading
        if newest is None:
            return None
        all_of_key = always or self.all_of_key or bool(self.plan.tracked) or self.plan.initial is not None
        all_of_key = all_of_key or self._may_be_earlier()
        if not (all_of_key or self.whole or self._may_be_older(newest)):
            return None
        deleted = self.table.tombstones.frame().where("kind = 'deleted'")
        facts = ("seq", "event_time", "topic", "partition", "offset", "seqs", "batch")
        if self.whole:
            kind = StructType([StructField(name, reading.columns[name]) for name in reading.key])
            return deleted.select(keys.decode(F.col("key"), kind).alias("key"), *facts)
        named = firsts.select(F.col("key").alias("_key"), "first", encoded_key(firsts).alias("_text"))
        joined = deleted.join(named, deleted["key"] == F.col("_text"))
        if not all_of_key:
            joined = joined.where(deleted["seq"] >= F.col("first"))
        return joined.select(F.col("_key").alias("key"), *[deleted[name] for name in facts])

    def merged(self, firsts: DataFrame, *, always: bool) -> DataFrame | None:
        """Return changes that began no version, in the form that `scd2.of_merged` needs.

        None if there are none, or if the whole batch is newer than everything that was applied.
        """
        if not self.table.tombstones.summary.merged:
            return None
        if not (always or self.whole or self.all_of_key or self._may_be_older(self.table.highest() or b"")):
            return None
        found = merged_changes(self.table, self.plan)
        if self.whole:
            return found
        return found.join(firsts.select("key"), "key", "left_semi")

    def _may_be_earlier(self) -> bool:
        """Return whether an event of the batch may have an earlier time than some delete."""
        latest, since = (
            self.table.tombstones.summary.latest,
            [each.since for each in self.plan.seen.groups.values()],
        )
        return latest is not None and any(each is None or each < latest for each in since)

    def _may_be_older(self, newest: bytes) -> bool:
        """Return whether an event of the batch may come before the event with this sequence."""
        groups = self.plan.seen.groups.values()
        return min((each.first_seq for each in groups if each.first_seq), default=b"") <= newest


def to_remember() -> Column:
    """BOOLEAN: whether a change was merged into another version and is not recorded beside the mirror yet."""
    return F.col("merged") & F.col("kind").isin("event", "image")


def merged_changes(table: MirroredTable, plan: TablePlan) -> DataFrame:
    """Return all changes that began no version.

    Columns: key, seq, op, event_time, topic, partition, offset, row, seqs, texts, batch.
    """
    reading = plan.reading
    key = StructType([StructField(name, reading.columns[name]) for name in reading.key])
    kind = StructType(
        [
            StructField("op", StringType()),
            StructField("texts", MapType(StringType(), StringType())),
            StructField("row", StructType([StructField(n, each) for n, each in reading.columns.items()])),
        ]
    )
    stored = table.tombstones.frame().where("kind = 'merged'")
    return (
        stored.select(
            keys.decode(F.col("key"), key).alias("key"),
            *("seq", "event_time", "topic", "partition", "offset", "seqs", "batch"),
            keys.decode_row(F.col("image"), kind).alias("_image"),
        )
        .select("*", "_image.*")
        .drop("_image")
    )


def _outcomes(versions: DataFrame, collected: bytes | None) -> Outcomes:
    told = (F.col("kind") == "event") & (F.col("op") == Op.DELETE)
    late = F.lit(False)
    if collected is not None:
        late = (F.col("kind") == "event") & (F.col("op") != Op.DELETE) & (F.col("seq") <= F.lit(collected))
    row = versions.agg(
        *[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in ("applied", "stale", "repeated")],
        F.count_if(late).alias("late"),
        F.count_if(told).alias("deletes"),
        F.max(F.when(told, F.col("seq"))).alias("last_delete"),
        F.unix_micros(F.max(F.when(told, F.col("event_time")))).alias("latest"),
        F.count_if("put").alias("puts"),
        F.count_if("gone").alias("gone"),
        F.count_if(to_remember()).alias("merged"),
    ).first()
    assert row is not None
    found = row.asDict()
    ends = {"last_delete": as_bytes(found["last_delete"]), "latest": moment(found["latest"])}
    return Outcomes(**{**found, **ends})


def _changes(
    plan: TablePlan, reduced: Reduced, outcomes: Outcomes, fetch: _Fetch, *, patched: bool
) -> Changes | None:
    """Return the changes to the mirror, or None if no version changes."""
    if not (outcomes.puts or outcomes.gone or plan.fills):
        return None
    untouched = []
    if plan.fills:
        filled = {
            name: F.when(is_former(name, fill), fill.value).otherwise(T(name))
            for name, fill in plan.fills.items()
        }
        untouched = [Clause(of_own_shard(plan, aged(plan.fills)), filled)]
    narrow = not (fetch.whole or patched or plan.fills)
    return scd2.changes(
        plan.reading.columns,
        plan.reading.key,
        keys=outcomes.puts + outcomes.gone,
        rows=outcomes.puts,
        untouched=untouched,
        bounds=bounds_of(plan, reduced.counts) if narrow else {},
    )
