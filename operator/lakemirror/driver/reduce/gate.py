"""Applies tombstones: rejects events that are older than the deletes that tombstones record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakemirror.driver.codes import Op
from lakemirror.driver.expressions import shared
from lakemirror.driver.reduce.events import ARRIVAL
from lakemirror.driver.sequence import (
    anchored_at,
    are_of_one_epoch,
    behind,
    is_later,
    is_snapshot,
    minor,
    own,
    placed,
)
from lakemirror.driver.tables.tombstones import encoded_key


def gate(state: DataFrame, deleted: DataFrame, *, tracked: Sequence[str]) -> DataFrame:
    """Change states that a tombstone forbids to op ``p``, which writes no row.

    ``deleted`` are the newest tombstones (`lakemirror.driver.tables.tombstones.Tombstones.deleted`). Adds
    ``stale``, which says that the tombstone was newer, and ``known``, which says that a delete has its
    tombstone already. ``renewed`` says that such a delete came after that tombstone's, or that only a change
    of the key made it, so that the delete must be recorded, too. ``repeated`` says that a known delete came
    in an earlier batch. Values from before the tombstone are forgotten. Deletes pass, because only the stored
    row gates them.
    """
    tomb = deleted.select(
        F.col("key").alias("_key"),
        F.struct("seq", "topic", "partition", "offset", "by_delete", "delete_before").alias("_tomb"),
    )
    joined = _after(state.join(tomb, encoded_key(state) == F.col("_key"), "left"))
    seq, newest = F.col("seq"), F.col("_tomb.seq")
    tied = follows(F.col("_tomb"))
    precedes = same_partition(F.col("_tomb")) & (F.col("offset") < F.col("_tomb.offset")) & is_snapshot(seq)
    # Within a batch, a change of an open transaction is placed after its snapshot row; its LSN still counts.
    alone = F.col("unanchored") & are_of_one_epoch(seq, newest)
    outrun = alone & ~is_later(seq, newest, _follows())
    stale = newest.isNotNull() & (((seq <= newest) & ~tied) | precedes | outrun)
    stale = F.coalesce(stale, F.lit(False))
    deletes = F.col("op") == Op.DELETE
    same, before = seq == newest, F.col("_tomb.delete_before")
    # If the transaction was open during the snapshot, the delete may be placed after a row that was read.
    of_one_change = same | (alone & (minor(seq) == minor(newest)))
    half = of_one_change & ~F.col("_tomb.by_delete")
    # The tombstone is of this batch, which failed after it was written, or of the other half of a key change.
    first = (same | half) & (before.isNull() | (before < newest))
    columns: dict[str, Column] = {
        "known": F.coalesce(deletes & (stale | tied), F.lit(False)),
        "renewed": F.coalesce(deletes & (tied | half), F.lit(False)),
        "repeated": F.coalesce(deletes & (stale | tied) & ~first, F.lit(False)),
        "stale": stale & ~deletes,
        "op": F.when(stale & ~deletes, Op.PASSED).otherwise(F.col("op")),
    }
    gated = joined.withColumns(columns)
    return (_forget(gated, tracked) if tracked else gated).drop("_key", "_tomb")


def with_origins_of(deleted: DataFrame, events: DataFrame) -> DataFrame:
    """Return tombstones of moves with the origin of their delete half, if the batch has that.

    The create half told of the move in an earlier batch. What follows the delete at its position is the row
    that took the place of the moved one (a statement that changes several keys has one position in a binlog).
    """
    halves = events.where(f"op = '{Op.DELETE}' AND new_key IS NOT NULL")
    place = F.max(F.struct(*ARRIVAL)).alias("_place")
    halves = halves.groupBy(encoded_key(halves).alias("key"), "seq").agg(place)
    joined = deleted.join(halves, ["key", "seq"], "left")
    unknown = ~F.col("by_delete") & F.col("topic").isNull()
    told = {name: F.when(unknown, F.col("_place")[name]).otherwise(F.col(name)) for name in ARRIVAL}
    return joined.withColumns(told).drop("_place")


def _after(joined: DataFrame) -> DataFrame:
    """Place changes of transactions that were open during the snapshot after the delete that they follow.

    They have a higher LSN: PostgreSQL locks a row until the transaction that changed it ends, so that LSNs
    are in the order of a row's changes. Offsets are not, because a delete may be sent again. The delete may
    be placed after a snapshot row, which has a higher position; the change, and what it brings, then takes
    its place behind both.
    """
    seq, gone = F.col("seq"), F.col("_tomb.seq")
    opened = F.col("unanchored") & (seq <= gone) & is_later(seq, gone, _follows())
    opened = F.coalesce(opened & are_of_one_epoch(seq, gone), F.lit(False))

    def lifted(value: Column) -> Column:
        return F.when(minor(value) > minor(gone), behind(value, gone)).otherwise(value)

    placed = {
        "seq": anchored_at(seq, gone),
        "row_seq": lifted(F.col("row_seq")),
        "seqs": F.transform_values("seqs", lambda _, value: lifted(value)),
    }
    there = {name: value for name, value in placed.items() if name in joined.columns}
    return joined.withColumns(
        {name: F.when(opened, value).otherwise(F.col(name)) for name, value in there.items()}
    )


def follows(tombstone: Column) -> Column:
    """BOOLEAN, never null: whether an event comes after a delete at its own position.

    Of two changes at one position, the one that arrived later in its partition counts, as for stored rows
    (`lakemirror.driver.reduce.scd1`). ``tombstone`` is null, or a struct with the delete's seq and origin. If
    its origin is unknown, nothing follows.
    """
    later = same_partition(tombstone) & (F.col("offset") > tombstone["offset"])
    return F.coalesce((F.col("seq") == tombstone["seq"]) & later, F.lit(False))


def _forget(state: DataFrame, tracked: Sequence[str]) -> DataFrame:
    """Make values of columns unknown if they are older than the key's tombstone."""
    base, is_opened = own(F.col("_tomb.seq")), "opened" in state.columns
    # What follows a delete at its position brings values of that position, which are newer than the delete.
    oldest = F.when(follows(F.col("_tomb")), F.col("_tomb.seq")).otherwise(base)
    held = {}
    for i, name in enumerate(tracked):
        sent = F.coalesce(F.col("seqs")[F.lit(name)], own(F.col("seq")))
        beside = _beside(sent, F.col("opened")[F.lit(name)]) if is_opened else sent
        older = F.coalesce(F.col("_tomb.seq").isNotNull() & (beside < oldest), F.lit(False))
        entry = F.when(older, base).when(beside != sent, beside)
        held[f"_{i}"] = F.struct(older.alias("older"), entry.alias("entry"))
    forgotten = {name: F.col(f"_{i}.older") for i, name in enumerate(tracked)}
    entries = {name: F.col(f"_{i}.entry") for i, name in enumerate(tracked)}
    row = state.schema["row"].dataType
    assert isinstance(row, StructType)
    values = {field.name: F.col("row")[field.name] for field in row.fields}
    for name, older in forgotten.items():
        values[name] = F.when(~older, values[name])
    made = F.struct(*[value.alias(name) for name, value in values.items()])
    columns = {"row": F.when(F.col("row").isNotNull(), made), "seqs": _with_entries(F.col("seqs"), entries)}
    if is_opened:
        names = F.array_compact(F.array(*[F.when(older, F.lit(name)) for name, older in forgotten.items()]))
        columns["opened"] = F.map_filter("opened", lambda column, _: ~F.array_contains(names, column))
    return state.withColumns(held).withColumns(columns).drop(*held)


def _with_entries(seqs: Column, entries: Mapping[str, Column]) -> Column:
    """Return the map of sequences with the entries that are not null in place of those of their columns."""
    found = F.map_from_arrays(F.array(*map(F.lit, entries)), F.array(*entries.values()))
    nothing = F.create_map().cast("map<string, binary>")

    def with_changed(changed: Column) -> Column:
        others = F.map_filter(F.coalesce(seqs, nothing), lambda name, _: ~F.map_contains_key(changed, name))
        return F.when(F.size(changed) > 0, F.map_concat(others, changed)).otherwise(seqs)

    return shared(F.map_filter(found, lambda _, entry: entry.isNotNull()), with_changed)


def _beside(value: Column, offset: Column) -> Column:
    """Return the sequence of a value, placed after the delete if an unanchored change carried it.

    ``offset`` is that of such a change, otherwise null. It has a higher LSN than the delete, or follows it in
    its partition if that was derived from a row of a snapshot.
    """
    later = same_partition(F.col("_tomb")) & (offset > F.col("_tomb.offset"))
    return placed(value, F.col("_tomb.seq"), unanchored=offset.isNotNull(), follows=later)


def _follows() -> Column:
    """BOOLEAN, never null: whether the state's event came after the tombstone's in one partition."""
    tombstone = F.col("_tomb")
    return F.coalesce(same_partition(tombstone) & (F.col("offset") > tombstone["offset"]), F.lit(False))


def same_partition(other: Column) -> Column:
    """BOOLEAN: whether the state's event and ``other`` (a struct) came through one partition of one topic."""
    return (F.col("topic") == other["topic"]) & (F.col("partition") == other["partition"])
