"""The events of a table -> one state a key, seen against what is known of keys that are gone."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan.decision import State, StateCounts
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce import bounds, moves
from lakemirror.driver.reduce.changes import T
from lakemirror.driver.reduce.events import anchor, reduce_events
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables import keys, tombstones
from lakemirror.driver.tables.tombstones import Summary


def reduced(
    table: MirroredTable, events: DataFrame, seen: TableOverview, reading: Reading, tracked: Sequence[str]
) -> State:
    """An event frame's state, to which ``known`` and ``stale`` are added: a delete whose tombstone is there
    already, and a row that a tombstone forbids.
    """
    if seen.snapshot and seen.unanchored:
        events = anchor(events)
    summary = table.tombstone_summary
    floor = max(filter(None, (summary.floor, seen.floor)), default=None)
    state = reduce_events(
        events, tracked=tracked, floor=floor, former_floor=summary.floor, soft=table.soft is not None
    )
    deleted = None if _outlived(seen, summary, tracked) else table.tombstones.deleted()
    if deleted is not None:
        state = tombstones.gate(state, deleted, tracked=tracked)
    else:
        state = state.withColumns({"known": F.lit(False), "stale": F.lit(False)})
    images = None
    if tracked and (seen.moves or summary.moved or reading.from_rows):
        images = _images(table, events, deleted, reading, tracked, floor).localCheckpoint()
        marks = state.select("key", "known", "stale")
        state = moves.inherit(state.drop("known", "stale"), moves.patches(images, tracked), tracked)
        state = state.join(marks, "key", "left").na.fill(False, ["known", "stale"])
    state = state.withColumn("number", F.monotonically_increasing_id())
    return State(state.localCheckpoint(eager=False), images)  # writers read it twice


def _outlived(seen: TableOverview, summary: Summary, tracked: Sequence[str]) -> bool:
    """Whether every event is newer than every tombstone, so that none need be read: the common case.

    Not so where sequences do not tell all: snapshot rows, transactions open at the snapshot, and values
    that a tombstone keeps from being filled.
    """
    if summary.newest is None:
        return True
    if tracked or seen.snapshot or seen.unanchored:
        return False
    first = min((group.first_seq for group in seen.groups.values() if group.first_seq), default=b"")
    return first > summary.newest


def _images(
    table: MirroredTable,
    events: DataFrame,
    deleted: DataFrame | None,
    reading: Reading,
    tracked: Sequence[str],
    floor: bytes | None,
) -> DataFrame:
    """Rows as they were when their key changed; from the batch, the mirror and the tombstones."""
    key_type = StructType([StructField(name, reading.columns[name]) for name in reading.key])
    row_type = StructType([StructField(name, reading.columns[name]) for name in tracked])
    known = rows = gone = None
    if table.mirror.exists:
        rows = _stored_rows(table, reading, tracked)
        stored = table.tombstones.moved()
        if stored is not None:
            known = stored.select(
                keys.decode(F.col("key"), key_type).alias("key"),
                "seq",
                keys.decode(F.col("new_key"), key_type).alias("new_key"),
                keys.decode_row(F.col("image"), row_type).alias("row"),
                "seqs",
            )
    if deleted is not None:
        gone = deleted.select(keys.decode(F.col("key"), key_type).alias("key"), "seq")
    good = events.where("key IS NOT NULL")
    return moves.images(good, known, rows, gone, tracked=tracked, floor=floor)


def _stored_rows(table: MirroredTable, reading: Reading, tracked: Sequence[str]) -> DataFrame:
    """The mirror's live rows: key, row of tracked columns, seq, seqs."""
    present = table.mirror.columns or {}
    values = [
        (T(name) if name in present else F.lit(None)).cast(reading.columns[name]).alias(name)
        for name in tracked
    ]
    rows = table.mirror.frame().alias("t").where("__op <> 'd'")
    return rows.select(
        stored_key(reading),
        F.struct(*values).alias("row"),
        T("__seq").alias("seq"),
        T("__column_seq").alias("seqs"),
    )


def count(state: State, reading: Reading) -> StateCounts:
    """What a state holds, in one aggregation; this materialises it."""
    good, op, records, own = F.col("key").isNotNull(), F.col("op"), F.col("records"), F.col("own")
    bad, counted = ~good & (op != "x"), good | (op == "x")
    live, deleted = good & op.isin("c", "u", "r"), good & (op == "d")
    bounded = [name for name in reading.key if bounds.has_bounds(reading.columns[name])]
    ends = [
        F.struct(*bounds.ends(F.when(good, F.col("key")[name]), reading.columns[name])).alias(f"ends_{i}")
        for i, name in enumerate(bounded)
    ]
    row = state.frame.agg(
        _sum(records).alias("records"),
        _sum(F.when(bad, records)).alias("bad"),
        _sum(F.when(counted, records - own - F.col("duplicates"))).alias("superseded"),
        _sum(F.when(good, F.col("duplicates"))).alias("duplicates"),
        _sum(F.when((op == "x") | (good & F.col("stale")), own)).alias("stale"),
        _sum(F.when(good & ~F.col("stale"), own)).alias("newest"),
        F.count_if(good & (op != "p")).alias("keys"),
        F.count_if(deleted).alias("deletes"),
        F.count_if(good & F.col("known")).alias("known"),
        F.count_if(good & (op != "p") & ~(deleted & F.col("born"))).alias("expected"),
        F.min(F.when(live, F.col("seq"))).alias("first_seq"),
        F.max(F.when(deleted, F.col("seq"))).alias("last_delete"),
        *ends,
    ).first()
    assert row is not None
    found = row.asDict()
    limits = {name: tuple(found.pop(f"ends_{i}")) for i, name in enumerate(bounded)}
    first, last = as_bytes(found.pop("first_seq")), as_bytes(found.pop("last_delete"))
    return StateCounts(**found, first_seq=first, last_delete=last, bounds=limits)


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))
