"""Reduces the change events of one table to one state per key.

A state is the newest event, with the values that this event did not carry itself.

Everything here is a pure function from frames to frames. An *event* frame has the columns

    key STRUCT, op, seq, unanchored, event_time, topic, partition, offset, digest, row STRUCT, gaps
    ARRAY<STRING>, texts MAP<STRING, STRING>, new_key STRUCT, old_key STRUCT, records INT

and a *state* frame has the columns

    key STRUCT, op, seq, unanchored, event_time, topic, partition, offset, row STRUCT, seqs MAP<STRING,
    BINARY>, texts MAP<STRING, STRING>, records BIGINT, own BIGINT, duplicates BIGINT, row_seq, born, opened
    MAP<STRING, BIGINT>

``records`` is 1 for an event that stands for a record and 0 for an event that was derived from one. In a
state, it is the number of records: ``own`` (1 or 0) of them stand for the newest event itself, and
``duplicates`` for repeated deliveries of one event. A state with op ``x`` and a null key stands for events
that a truncate made irrelevant: a truncate in the batch (``own`` is 0), or before it (``own`` is their number
as well). If deletes are soft, a truncate in the batch makes no event irrelevant, because rows stay: the state
is what the key's events give without the truncate, and `lakemirror.driver.reduce.scd1` applies it.

``row_seq`` is the sequence of the event that ``row`` comes from. This is the state's own sequence, except for
a soft delete, which keeps the last row before it (null if there is none). ``born`` says that the first of the
key's events is a create or a snapshot row.

If deletes are soft, a state also has ``ends`` (`ENDS`): the deletes after ``row``, in any order. There may be
several, because a filter makes deletes of events that show a row which stays outside. ``row_origin`` is the
origin of the event that ``row`` comes from, ``row_opened`` its offset if it is unanchored, and ``opened`` of
a delete likewise.

``opened`` has, for each tracked column whose value an unanchored event carried, the offset of that event.

``seqs`` has the sequence of each column whose value is older than the event (see
`lakemirror.driver.sequence`). A column that is not in it is as new as the event. Columns are merged one by
one, the newest sequence wins, and a delete or truncate counts as null for all of them. The result therefore
does not depend on the order of delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lakemirror.driver.codes import Op
from lakemirror.driver.expressions import kept, shared
from lakemirror.driver.orders import Fact, Floor
from lakemirror.driver.sequence import MISSING, anchored_at, is_snapshot, own
from lakemirror.driver.tables.delta import quoted

ARRIVAL = ("topic", "partition", "offset")

ROW_ORIGIN: Final = "struct<topic: string, partition: int, offset: bigint>"
ENDS: Final = (
    "array<struct<seq: binary, event_time: timestamp, opened: bigint, topic: string, partition: int, "
    "offset: bigint>>"
)
"""The types of ``row_origin`` and ``ends`` of a state."""


def anchor(events: DataFrame) -> DataFrame:
    """Place unanchored changes after the snapshot row of their key that precedes them in their partition.

    A transaction that was open while the snapshot was taken has an LSN below the snapshot's, but is newer.
    """
    before = Window.partitionBy("key", "topic", "partition").orderBy("offset")
    base = F.max(F.when(is_snapshot(F.col("seq")), F.col("seq"))).over(before)
    lifted = F.when(F.col("unanchored") & (base > F.col("seq")), anchored_at(F.col("seq"), base))
    return events.withColumn("seq", F.coalesce(lifted, F.col("seq")))


def reduce_events(
    events: DataFrame,
    *,
    tracked: Sequence[str] = (),
    floor: bytes | None = None,
    former_floor: bytes | None = None,
    truncates: Sequence[bytes] = (),
    order: Floor | None = None,
    soft: bool = False,
    filtered: bool = False,
) -> DataFrame:
    """Convert an event frame to a state frame.

    ``tracked`` are the columns that may have a gap; without any, every value is as new as its event.
    ``floor`` is the sequence of the newest truncate: older events are left out, and no value is filled from
    below it. ``former_floor`` is the sequence of the newest truncate before the batch. ``order`` is that of
    the truncate if not all events are of its order: it says nothing about the others. ``soft`` keeps the
    last row of a key that is deleted, also by a truncate of the batch: ``truncates`` are then the sequences
    of all of these. ``filtered`` says that some deletes stand for events whose row the manifest leaves out;
    ``was`` is their original op.
    """
    floors = floor, former_floor, tuple(truncates)
    marked, repeated, folded, states = _steps(tuple(tracked), *floors, soft, filtered, order)
    return events.select("*", *marked).select("*", *repeated).select(*folded).where("newest").select(*states)


@kept
def _steps(
    tracked: tuple[str, ...],
    floor: bytes | None,
    former_floor: bytes | None,
    truncates: tuple[bytes, ...],
    soft: bool,
    filtered: bool,
    order: Floor | None,
) -> tuple[list[Column], ...]:
    """Return the lists of columns that `reduce_events` selects, one after the other."""
    parts = ("key", "stale") if soft else ("key", "below", "stale")
    by_key = Window.partitionBy(*parts).orderBy("seq", *ARRIVAL)
    repeated = (F.lag("seq").over(by_key) == F.col("seq")) & (F.lag("digest").over(by_key) == F.col("digest"))
    so_far = by_key.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = {
        f"_{i}": F.last(_carried(name), ignorenulls=True).over(so_far) for i, name in enumerate(tracked)
    }
    place = F.struct(*ARRIVAL).alias("origin")
    shown = F.struct("row", "seq", "texts", place, _opened_at().alias("opened"), *(values if soft else ()))
    live = F.last(F.when(F.col("op") != Op.DELETE, shown), ignorenulls=True).over(so_far)
    again = F.when(F.col("repeated") & ~F.col("below"), F.col("records")).otherwise(0)
    folded = [
        *map(F.col, ("key", "below", "stale", "op", "seq", "unanchored", "event_time", *ARRIVAL)),
        (live["texts"] if soft else F.col("texts")).alias("texts"),
        (F.coalesce(live["row"], F.col("row")) if soft else F.col("row")).alias("row"),
        (live["seq"] if soft else F.col("seq")).alias("row_seq"),
        *[(live[i] if soft else value).alias(i) for i, value in values.items()],
        F.sum("records").over(so_far).alias("records"),
        F.col("records").alias("own"),
        F.first("was" if filtered else "op").over(so_far).isin(Op.CREATE, Op.READ).alias("born"),
        F.sum(again).over(so_far).alias("duplicates"),
        F.lead("seq").over(by_key).isNull().alias("newest"),
        *([_deletes().over(Window.partitionBy(*parts)).alias("ends")] if soft else []),
        *([live["origin"].alias("row_origin"), live["opened"].alias("row_opened")] if soft else []),
    ]
    before = [F.coalesce(repeated, F.lit(False)).alias("repeated")]
    if soft:  # what a row has that is deleted, it had as of its last event
        before += [value.alias(i) for i, value in values.items()]
    floors = {each for each in (floor, former_floor, *truncates) if each is not None}
    least = F.lit(MISSING) if floor is None else own(F.lit(floor))
    least = last_before(F.col("row_seq"), floors) if soft else least
    return (
        [_below(floor, order).alias("below"), _below(former_floor, order).alias("stale")],
        before,
        folded,
        [
            *_states({name: F.col(f"_{i}") for i, name in enumerate(tracked)}, least, soft, order),
            *_ends(soft),
        ],
    )


def _deletes() -> Column:
    """The deletes among events, as an aggregate (`ENDS`)."""
    end = F.struct("seq", "event_time", _opened_at().alias("opened"), *ARRIVAL)
    return F.collect_list(F.when(F.col("op") == Op.DELETE, end))


def _opened_at() -> Column:
    """BIGINT: the offset of an unanchored event, -1 if it has none; null if the event is not unanchored."""
    return F.when(F.col("unanchored"), F.coalesce("offset", F.lit(-1))).cast("bigint")


def _ends(soft: bool) -> list[Column]:
    """Return ``ends``, ``row_origin`` and ``row_opened``, which only the states of soft deletes have.

    Of two changes at one position, the later arrival is later.
    """
    if not soft:
        return []
    row, mine = F.col("row_seq"), F.struct(*[F.col("row_origin")[name] for name in ARRIVAL])

    def is_after(end: Column) -> Column:
        later = F.struct(*[end[name] for name in ARRIVAL]) > mine
        return row.isNull() | (end["seq"] > row) | ((end["seq"] == row) & later)

    return [F.filter("ends", is_after).alias("ends"), F.col("row_origin"), F.col("row_opened")]


def last_before(seq: Column, truncates: Iterable[bytes]) -> Column:
    """Return the column sequence of the last truncate before the row at ``seq``; empty if there is none."""
    last = F.lit(MISSING)
    for each in sorted(truncates):
        last = F.when(seq > F.lit(each), own(F.lit(each))).otherwise(last)
    return last


def _states(
    found: Mapping[str, Column], least: Column, soft: bool, order: Floor | None = None
) -> list[Column]:
    """Return the columns of a state frame. ``found`` is what was carried to each tracked column.

    ``least`` is the column sequence of the last truncate before the row.
    """
    if soft:
        found = {name: F.when(each["seq"] > least, each) for name, each in found.items()}
    if order is not None:
        least = F.when(order.compares(Fact.of_event()), least).otherwise(F.lit(MISSING))
    gone = F.col("stale" if soft else "below")
    seqs = {name: F.coalesce(each["seq"], least) for name, each in found.items()}
    mine = F.when(~F.col("below"), F.col("own")).when(F.col("stale"), F.col("records")).otherwise(0)
    return [
        F.when(~gone, F.col("key")).alias("key"),
        F.when(gone, Op.TRUNCATED).otherwise(F.col("op")).alias("op"),
        *map(F.col, ("seq", "unanchored", "event_time", *ARRIVAL)),
        with_values("row", {name: each["value"] for name, each in found.items()}),
        older_seqs(seqs, F.col("seq")).alias("seqs"),
        texts_of(F.col("texts"), {name: each["text"] for name, each in found.items()}).alias("texts"),
        F.col("records").cast("bigint"),
        mine.cast("bigint").alias("own"),
        F.col("duplicates").cast("bigint"),
        *map(F.col, ("row_seq", "born")),
        _opened(found, least),
    ]


def _opened(found: Mapping[str, Column], least: Column) -> Column:
    """MAP<STRING, BIGINT>: the offsets of the unanchored events that carried tracked values; may be null.

    What a truncate left without a value, no event carried.
    """
    if not found:
        return F.lit(None).cast("map<string, bigint>").alias("opened")
    offsets = [F.when(each["seq"] > least, each["opened"]) for each in found.values()]
    opened = F.map_from_arrays(F.array(*map(F.lit, found)), F.array(*offsets))
    return unless_empty(F.map_filter(opened, lambda _, offset: offset.isNotNull())).alias("opened")


def _below(floor: bytes | None, order: Floor | None) -> Column:
    """BOOLEAN: whether a valid event does not come after the truncate at ``floor``."""
    if floor is None:
        return F.lit(False)
    below = F.col("key").isNotNull() & (F.col("seq") <= F.lit(floor))
    return below if order is None else below & order.compares(Fact.of_event())


def _carried(name: str) -> Column:
    """STRUCT<value, seq, text, opened>: what an event says about a column; null if it says nothing.

    An update with a gap says nothing, so older events are consulted. A create with a gap begins a new life of
    the key: nothing older may fill the gap. Its sequence has no suffix, so that values moved from the former
    key can fill it.
    """
    gap = F.coalesce(F.array_contains("gaps", name), F.lit(False))
    nothing, own_seq, opened = F.lit(None), own(F.col("seq")), _opened_at().alias("opened")

    def said(value: Column, seq: Column, text: Column) -> Column:
        return F.struct(value.alias("value"), seq.alias("seq"), text.alias("text"), opened)

    return (
        F.when(F.col("op") == Op.DELETE, said(nothing, own_seq, nothing))
        .when(gap & (F.col("op") == Op.CREATE), said(nothing, F.col("seq"), nothing))
        .when(~gap, said(F.col("row")[name], own_seq, F.col("texts")[name]))
    )


def texts_of(others: Column, tracked: Mapping[str, Column]) -> Column:
    """MAP<STRING, STRING>: the texts of unrepresentable values; null if there are none.

    ``tracked`` columns have the texts of their values, and all ``others`` those of their row.
    """
    if not tracked:
        return others
    names = F.array(*map(F.lit, tracked))
    rest = F.map_filter(others, lambda name, _: ~F.array_contains(names, name))
    mine = F.map_filter(
        F.map_from_arrays(names, F.array(*tracked.values())), lambda _, text: text.isNotNull()
    )
    return unless_empty(shared(mine, lambda each: F.coalesce(F.map_concat(rest, each), each)))


def unless_empty(entries: Column) -> Column:
    """Return a map, or null if it has no entries."""
    return shared(entries, lambda each: F.when(F.size(each) > 0, each))


def with_values(row: str, values: dict[str, Column]) -> Column:
    """Return the struct ``row`` with some fields replaced."""
    column = F.col(row)
    for name, value in values.items():
        column = column.withField(quoted(name), value)
    return column.alias("row")


def older_seqs(seqs: dict[str, Column], seq: Column) -> Column:
    """MAP of the sequences that differ from the row's own; null if there are none."""
    if not seqs:
        return F.lit(None).cast("map<string, binary>")
    all_seqs = F.map_from_arrays(F.array(*map(F.lit, seqs)), F.array(*seqs.values()))
    return unless_empty(F.map_filter(all_seqs, lambda _, value: value != own(seq)))
