"""Reduces the events of a table to one state per key, and determines what these states do to its rows.

The states are checked against what is known about keys that are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.expressions import kept
from lakemirror.driver.materialise import materialised
from lakemirror.driver.parse.condition import LEFT_OUT
from lakemirror.driver.parse.decode import EventDecoder, Reading
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce import bounds, moves
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.reduce.events import ENDS, ROW_ORIGIN, anchor, reduce_events
from lakemirror.driver.reduce.gate import gate, with_origins_of
from lakemirror.driver.reduce.scd1 import Scd1, changes
from lakemirror.driver.reduce.scd2 import Truncate, distinct, moment
from lakemirror.driver.reduce.waiting import Apart, floor_of, is_checked, without_waiting
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables import keys
from lakemirror.driver.tables.columns import SENT, SHARD, T, of_shard, seq_of_row
from lakemirror.driver.tables.delta import ddl
from lakemirror.driver.tables.tombstones import ORIGIN, Summary

_MARKS: Final = ("known", "renewed", "repeated", "stale")
"""The columns that `gate` adds to states."""
_ONE_TASK: Final = 5_000
"""Maximum number of events of a table that are reduced in one task, and therefore without a shuffle."""


@dataclass(frozen=True)
class StateCounts:
    """What a materialized state frame contains.

    Numbers of records:

    - ``bad``: records that go to the quarantine, including the ``waiting`` ones, which have no place yet
    - ``superseded``: overtaken by a newer event or a truncate of the batch
    - ``duplicates``: delivered again in the batch
    - ``stale``: older than a tombstone or a former truncate
    - ``newest``: the state of their key, and not stale
    - ``repeated``: the newest of their key, a delete that came before
    - ``left_out``: excluded by the filter of a table without a key
    - ``records``: all of these, counted independently

    Numbers of keys:

    - ``keys``: to be merged
    - ``deletes``: deleted
    - ``known``: deleted before
    - ``renewed``: deleted before, and to be recorded nevertheless (`lakemirror.driver.reduce.gate`)
    - ``expected``: expected to appear as a changed row
    - ``unborn``: updated, without an event of the batch that created the row

    ``bounds`` are the minimum and maximum of key columns, ``first_seq`` is the lowest sequence of a live key,
    and ``last_delete`` is the highest sequence of a delete.
    """

    records: int = 0
    bad: int = 0
    waiting: int = 0
    superseded: int = 0
    duplicates: int = 0
    stale: int = 0
    newest: int = 0
    repeated: int = 0
    left_out: int = 0
    keys: int = 0
    deletes: int = 0
    known: int = 0
    renewed: int = 0
    expected: int = 0
    unborn: int = 0
    first_seq: bytes | None = None
    last_delete: bytes | None = None
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """One state per key (`lakemirror.driver.reduce.events`), materialized.

    ``images`` are the rows that changed their key in the batch, or None if there are none.
    """

    frame: DataFrame
    images: DataFrame | None = None


@dataclass(frozen=True)
class Reduced:
    """What a batch has for one table.

    ``events`` are the decoded events (None for a batch that only truncates). ``state`` is what they are
    reduced to if the table has a key. ``counts`` says what these contain. In mode scd2, the state has each
    event that makes a version. ``truncates`` are those of the batch, if they leave rows or versions.
    ``apart`` are those that are not placed (`lakemirror.driver.reduce.waiting`).
    """

    events: DataFrame | None = None
    state: State | None = None
    counts: StateCounts = StateCounts()
    truncates: tuple[Truncate, ...] = ()
    apart: Apart = field(default_factory=Apart)


@dataclass(frozen=True)
class Begun:
    """The events and states of a table, reduced as a plain batch (see `is_plain`).

    ``counts`` says what the states contain.
    """

    decoder: EventDecoder
    soft: bool
    events: DataFrame
    state: State
    counts: StateCounts


NOTHING = Reduced()
"""A batch that has nothing for a table, or only truncates."""


def is_plain(table: MirroredTable, plan: TablePlan) -> bool:
    """Return whether events alone make states: no truncate, tombstone, key change or older value matters."""
    seen, summary = plan.seen, table.tombstone_summary
    return (
        bool(plan.mode == "scd1" and plan.reading.versions)
        and not plan.tracked
        and seen.floor is None
        and summary.floor is None
        and not (seen.snapshot and seen.unanchored)
        and _outlived(seen, summary, plan.tracked)
        and not is_checked(table, seen)
    )


def begin(decoder: EventDecoder, changes: DataFrame, *, soft: bool) -> Begun:
    """Reduce a table's classified ``changes`` as a plain batch. Whether it is one is determined later."""
    events = decoder.decode(changes)
    reduced = reduce_events(events, soft=soft, filtered=decoder.reading.condition is not None)
    state = State(_numbered(reduced.select("*", *_ungated())))
    return Begun(decoder, soft, events, state, _count(state, decoder.reading))


def reduce_table(
    table: MirroredTable,
    plan: TablePlan,
    decoder: EventDecoder,
    changes: DataFrame,
    truncates: DataFrame,
    begun: Begun | None = None,
    *,
    batch: int,
) -> Reduced:
    """Read and reduce a table's classified ``changes`` and ``truncates``. Materializes the state.

    If ``begun`` was started for the same changes, it is used if it fits. ``batch`` is the batch's number.
    """
    if plan.seen.events <= _ONE_TASK:
        changes = changes.coalesce(1)
    if plan.mode == "scd2":
        return _reduce_to_versions(table, plan, decoder, changes, truncates)
    keyed, soft = bool(plan.reading.key), plan.soft is not None
    found = _collected(truncates) if soft and plan.seen.truncates else ()
    if keyed and not plan.reading.versions:
        return replace(NOTHING, truncates=found)
    if begun is not None and begun.decoder is decoder and begun.soft == soft and is_plain(table, plan):
        return Reduced(begun.events, begun.state, begun.counts)
    events, waiting = without_waiting(table, plan, decoder.decode(changes))
    if not keyed:
        events = _with_truncates(events, truncates, plan.reading) if plan.seen.truncates else events
        return Reduced(events, counts=_count_events(events))
    state = _state(table, plan, events, batch, [each.seq for each in found])
    return Reduced(events, state, replace(_count(state, plan.reading), waiting=waiting), found)


def with_apart(reduced: Reduced, apart: Apart) -> Reduced:
    """Return what a batch has, with the truncates that are not placed."""
    counts = reduced.counts
    duplicates, waiting = counts.duplicates + apart.known, counts.waiting + apart.number
    more = replace(counts, duplicates=duplicates, waiting=waiting, bad=counts.bad + apart.number)
    return replace(reduced, apart=apart, counts=more)


def _reduce_to_versions(
    table: MirroredTable,
    plan: TablePlan,
    decoder: EventDecoder,
    changes: DataFrame,
    truncates: DataFrame,
) -> Reduced:
    """Return the events that make versions. Their effect is determined when they are written."""
    found = _collected(truncates) if plan.seen.truncates else ()
    if not plan.reading.versions:
        return Reduced(truncates=found)
    events, waiting = without_waiting(table, plan, decoder.decode(changes))
    state = State(_numbered(distinct(events, plan.tracked)))
    return Reduced(events, state, replace(_count(state, plan.reading), waiting=waiting), found)


def _collected(truncates: DataFrame) -> tuple[Truncate, ...]:
    """Return each truncate once.

    They have no key, so a table has only a few.
    """
    place = F.min(F.struct("topic", "partition")).alias("place")
    rows = truncates.groupBy("seq").agg(F.unix_micros(F.min("event_time")).alias("micros"), place).collect()
    return tuple(
        Truncate(bytes(row["seq"]), moment(row["micros"]), topic=row["place"][0], partition=row["place"][1])
        for row in rows
    )


def row_changes(plan: TablePlan, reduced: Reduced) -> Changes | None:
    """Return what the batch does to the rows of a table with a key, or None if it does nothing."""
    seen, counts = plan.seen, reduced.counts
    if not counts.keys and not plan.tracked and seen.floor is None and not plan.fills:
        return None
    found = changes(merging(plan, reduced), counts.keys, counts.deletes)
    mine = [replace(each, when=of_own_shard(plan, each.when)) for each in found.untouched]
    return replace(found, untouched=tuple(mine))


def merging(plan: TablePlan, reduced: Reduced) -> Scd1:
    """Return how the states of a batch are merged into the rows of a table with a key."""
    seen = plan.seen
    return Scd1(
        columns=plan.reading.columns,
        key=plan.reading.key,
        tracked=plan.tracked,
        soft=plan.soft,
        floor=seen.floor,
        truncates=reduced.truncates,
        fills=plan.fills,
        snapshot=seen.snapshot,
        unanchored=seen.unanchored,
        corrects=plan.reading.corrects,
        bounds={} if seen.floor is not None or plan.fills else bounds_of(plan, reduced.counts),
    )


def of_own_shard(plan: TablePlan, when: Column) -> Column:
    """BOOLEAN: a condition on stored rows whose keys are not in the batch, for the shard's own rows only."""
    return when if plan.reading.shard is None else of_shard(plan.reading.shard) & when


def states(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> DataFrame:
    """Return the states that change rows."""
    frame = reduced.state.frame if reduced.state is not None else _no_state(table, plan)
    return frame.where("key IS NOT NULL" if plan.tracked else f"key IS NOT NULL AND op <> '{Op.PASSED}'")


def _state(
    table: MirroredTable, plan: TablePlan, events: DataFrame, batch: int, truncates: Sequence[bytes]
) -> State:
    """Reduce an event frame to its state, with what `gate` adds.

    ``truncates`` are the sequences of those of the batch, if deletes are soft.
    """
    seen, reading, tracked = plan.seen, plan.reading, plan.tracked
    if seen.snapshot and seen.unanchored:
        events = anchor(events)
    summary = table.tombstone_summary
    floor = max(filter(None, (summary.floor, seen.floor)), default=None)
    # After a crash, the truncate may have been noted, but what it leaves of the batch's rows not written.
    noted = plan.soft is not None and summary.floor == seen.floor
    order = floor_of(table, seen) if seen.floor is None else None
    state = reduce_events(
        events,
        tracked=tracked,
        floor=floor,
        former_floor=None if noted else summary.floor,
        truncates=truncates,
        order=order,
        soft=plan.soft is not None,
        filtered=reading.condition is not None,
    )
    deleted = None if _outlived(seen, summary, tracked) else table.tombstones.deleted(batch)
    gating = deleted if plan.soft is None or deleted is None else table.tombstones.without_moves(batch)
    if gating is not None and seen.moves and plan.soft is None:
        gating = with_origins_of(gating, events)
    state = state.select("*", *_ungated()) if gating is None else gate(state, gating, tracked=tracked)
    images = None
    if tracked and (seen.moves or summary.moved or reading.inherits):
        known = (*truncates, floor, summary.floor) if order is None else ()
        ended = {each for each in known if each is not None}
        found, stored = images_of(table, events, deleted, reading, tracked, ended, opened=seen.unanchored)
        images = found.localCheckpoint()
        marks = state.select("key", *_MARKS)
        passed = moves.patches(images, tracked)
        state = moves.inherit(state.drop(*_MARKS), passed, tracked, stored, opened=seen.unanchored)
        state = state.join(marks, "key", "left").na.fill(False, list(_MARKS))
    return State(_numbered(state), images)


def _ungated() -> list[Column]:
    """Return the additional columns of states that no tombstone affects."""
    return [F.lit(False).alias(name) for name in _MARKS]


def _numbered(state: DataFrame) -> DataFrame:
    """Number the states, and keep them once they are computed, because writers read them twice."""
    return materialised(state.select("*", F.monotonically_increasing_id().alias("number")))


def _outlived(seen: TableOverview, summary: Summary, tracked: Sequence[str]) -> bool:
    """Return whether every event is newer than every tombstone, so that none has to be read: the common case.

    This is not so if sequences are inconclusive: with snapshot rows, with transactions that were open at the
    snapshot, and with values that a tombstone keeps from being filled.
    """
    if summary.newest is None:
        return True
    if tracked or seen.snapshot or seen.unanchored:
        return False
    first = min((group.first_seq for group in seen.groups.values() if group.first_seq), default=b"")
    return first > summary.newest


def images_of(
    table: MirroredTable,
    events: DataFrame,
    deleted: DataFrame | None,
    reading: Reading,
    tracked: Sequence[str],
    truncates: Collection[bytes],
    more: DataFrame | None = None,
    *,
    opened: bool = False,
    placed: bool = False,
) -> tuple[DataFrame, DataFrame | None]:
    """Return rows as they were when their key changed, and the stored rows of all keys of moves, if any.

    They come from the batch, the mirror, the tombstones, the table's ``truncates``, and ``more`` rows (key,
    row of tracked columns, seq, seqs, origin). ``opened`` says that the batch has unanchored events, and
    ``placed`` that they have their place among what is stored.
    """
    key_type = StructType([StructField(name, reading.columns[name]) for name in reading.key])
    row_type = StructType([StructField(name, reading.columns[name]) for name in tracked])
    known = rows = None
    gone = []
    if table.mirror.exists:
        rows = _stored_rows(table, reading, tracked)
        rows = rows if more is None else rows.unionByName(more, allowMissingColumns=True)
        if table.soft is not None:
            gone.append(_softly_deleted(table, reading))
        stored = table.tombstones.moved()
        if stored is not None:
            known = stored.select(
                keys.decode(F.col("key"), key_type).alias("key"),
                "seq",
                keys.decode(F.col("new_key"), key_type).alias("new_key"),
                F.col("seqs")[F.lit(SENT)].isNotNull().alias("opened"),
                *ORIGIN,
                keys.decode_row(F.col("image"), row_type).alias("row"),
                F.map_filter("seqs", lambda name, _: name != SENT).alias("seqs"),
            )
    if deleted is not None:
        gone.append(deleted.select(keys.decode(F.col("key"), key_type).alias("key"), "seq", *ORIGIN))
    good = events.where("key IS NOT NULL")
    told = moves.told(good, known, opened=opened)
    if opened and gone:
        told = moves.with_origins(told, reduce(DataFrame.unionByName, gone))
    told = told.localCheckpoint()
    rows = None if rows is None else moves.of_moves(rows, told).localCheckpoint()
    found = moves.images(
        told, good, known, rows, gone, tracked=tracked, truncates=truncates, opened=opened and not placed
    )
    return found, rows


def _stored_rows(table: MirroredTable, reading: Reading, tracked: Sequence[str]) -> DataFrame:
    """Return the mirror's live rows: key, row of tracked columns, seq, seqs, and the origin."""
    present = table.mirror.columns or {}
    values = [
        (T(name) if name in present else F.lit(None)).cast(reading.columns[name]).alias(name)
        for name in tracked
    ]
    rows = table.rows().where(f"NOT (__op <=> '{Op.DELETE}')")
    return rows.select(
        stored_key(reading),
        F.struct(*values).alias("row"),
        seq_of_row().alias("seq"),
        T("__column_seq").alias("seqs"),
        *[T("__origin")[name].alias(name) for name in ORIGIN],
    )


def _softly_deleted(table: MirroredTable, reading: Reading) -> DataFrame:
    """Return the mirror's rows that are softly deleted: key, seq, and the origin."""
    rows = table.rows().where(f"__op <=> '{Op.DELETE}'")
    origin = [T("__origin")[name].alias(name) for name in ORIGIN]
    return rows.select(stored_key(reading), seq_of_row().alias("seq"), *origin)


def _count(state: State, reading: Reading) -> StateCounts:
    """Count what a state contains, in one aggregation. This materializes the state."""
    bounded = {
        name: reading.columns[name] for name in reading.key if bounds.has_bounds(reading.columns[name])
    }
    row = state.frame.agg(*_aggregates(tuple(bounded.items()))).first()
    assert row is not None
    found = row.asDict()
    limits = {name: tuple(found.pop(f"ends_{i}")) for i, name in enumerate(bounded)}
    first, last = as_bytes(found.pop("first_seq")), as_bytes(found.pop("last_delete"))
    return StateCounts(**found, first_seq=first, last_delete=last, bounds=limits)


@kept
def _aggregates(bounded: tuple[tuple[str, DataType], ...]) -> list[Column]:
    """Return the aggregates of `StateCounts`, by its names.

    The minimum and maximum of each of the ``bounded`` key columns are named by the column's number.
    """
    good, op, records, own = F.col("key").isNotNull(), F.col("op"), F.col("records"), F.col("own")
    bad, counted = ~good & (op != Op.TRUNCATED), good | (op == Op.TRUNCATED)
    live, deleted = good & op.isin(*WITH_ROW), good & (op == Op.DELETE)
    return [
        _sum(records).alias("records"),
        _sum(F.when(bad, records)).alias("bad"),
        _sum(F.when(counted, records - own - F.col("duplicates"))).alias("superseded"),
        _sum(F.when(good, F.col("duplicates"))).alias("duplicates"),
        _sum(F.when((op == Op.TRUNCATED) | (good & F.col("stale")), own)).alias("stale"),
        _sum(F.when(good & ~F.col("stale"), own)).alias("newest"),
        _sum(F.when(good & F.col("repeated"), own)).alias("repeated"),
        F.count_if(good & (op != Op.PASSED)).alias("keys"),
        F.count_if(deleted).alias("deletes"),
        F.count_if(good & F.col("known")).alias("known"),
        F.count_if(good & F.col("renewed")).alias("renewed"),
        F.count_if(good & (op != Op.PASSED) & ~(deleted & F.col("born"))).alias("expected"),
        F.count_if(live & (op == Op.UPDATE) & ~F.col("born")).alias("unborn"),
        F.min(F.when(live, F.col("seq"))).alias("first_seq"),
        F.max(F.when(deleted, F.col("seq"))).alias("last_delete"),
        *[
            F.struct(*bounds.ends(F.when(good, F.col("key")[name]), kind)).alias(f"ends_{i}")
            for i, (name, kind) in enumerate(bounded)
        ],
    ]


def _sum(column: Column) -> Column:
    return F.coalesce(F.sum(column), F.lit(0))


def no_events(table: MirroredTable, plan: TablePlan) -> DataFrame:
    """Return an empty frame of the events that make versions."""
    state = _no_state(table, plan)
    key = state.schema["key"].dataType
    names = ArrayType(StringType())
    more = {"gaps": names, "begun": names, "new_key": key, "old_key": key}
    return state.withColumns({name: F.lit(None).cast(kind) for name, kind in more.items()})


def _no_state(table: MirroredTable, plan: TablePlan) -> DataFrame:
    """Return an empty state frame, for a batch that only truncates."""
    columns = plan.reading.columns
    key = ddl(StructType([StructField(name, columns[name]) for name in plan.reading.key]))
    row = ddl(StructType([StructField(name, kind) for name, kind in columns.items()]))
    return table.spark.createDataFrame(
        [],
        f"key {key}, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic STRING, "
        f"partition INT, offset BIGINT, row {row}, seqs MAP<STRING, BINARY>, "
        "texts MAP<STRING, STRING>, records BIGINT, own BIGINT, duplicates BIGINT, row_seq BINARY, "
        f"opened MAP<STRING, BIGINT>, ends {ENDS}, row_origin {ROW_ORIGIN}, row_opened BIGINT, "
        "number BIGINT, born BOOLEAN, known BOOLEAN, renewed BOOLEAN, repeated BOOLEAN, stale BOOLEAN",
    )


def bounds_of(plan: TablePlan, counts: StateCounts) -> dict[str, Bound]:
    """Return the ranges of the batch's keys."""
    return {
        name: Bound(plan.reading.columns[name], low, high)
        for name, (low, high) in counts.bounds.items()
        if low is not None
    }


def bounded(stored: DataFrame, plan: TablePlan, reduced: Reduced) -> DataFrame:
    """Return the stored rows whose keys are within the bounds of the batch's keys."""
    for name, (low, high) in reduced.counts.bounds.items():
        if low is not None:
            stored = stored.where(bounds.within(T(name), plan.reading.columns[name], low, high))
    return stored


def _with_truncates(events: DataFrame, truncates: DataFrame, reading: Reading) -> DataFrame:
    """Return an event frame with the truncates of its table added as events without a row.

    Truncates thereby leave a trace of their own.
    """
    given = {
        "op": F.lit(Op.TRUNCATE),
        "digest": F.xxhash64("identity"),
        "placed": F.col("identity").isNotNull(),
        "line": F.col("row"),
        "records": F.lit(1),
        **{
            name: F.col(name)
            for name in ("seq", "unanchored", "event_time", "topic", "partition", "offset", "file")
        },
    }
    if reading.shard is not None:
        parts = {SHARD: F.lit(reading.shard)}
        given["row"] = F.struct(
            *[parts.get(n, F.lit(None)).cast(kind).alias(n) for n, kind in reading.columns.items()]
        )
    rows = [
        given.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name)
        for field in events.schema.fields
    ]
    return events.unionByName(truncates.select(*rows))


def _count_events(events: DataFrame) -> StateCounts:
    """Count the events of a table without a key."""
    row = events.agg(
        _sum(F.col("records")).alias("records"),
        F.count("problem").alias("bad"),
        F.count_if(F.col("op") == LEFT_OUT).alias("left_out"),
    ).first()
    assert row is not None
    return StateCounts(**row.asDict(), newest=row["records"] - row["bad"] - row["left_out"])
