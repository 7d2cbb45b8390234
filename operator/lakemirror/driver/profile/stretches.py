"""Finds with Spark what the events of a batch say about the source's positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.consistent.reach import Part
from lakemirror.driver.profile.evidence import unreached
from lakemirror.driver.profile.positions import (
    At,
    Former,
    Memory,
    Place,
    Standing,
    Stream,
    StreamSeen,
    Stretch,
    highest,
    latest,
)
from lakemirror.driver.tables.names import name_of
from lakemirror.driver.times import own_time

_STREAM: Final = ("topic", "partition", "stream")
_DAY: Final = 86_400_000_000
"""In microseconds."""
_TOPS: Final = (
    "_topic STRING, _partition INT, _stream STRING, _offset BIGINT, _seq STRING, _streamed STRING, "
    "_snapshots ARRAY<STRING>"
)


def aggregates(every: int = 1) -> list[Column]:
    """Return the aggregates that `note` and `part` need, for a group of one stream and table.

    Whether positions grow is determined from the events at offsets that ``every`` divides.
    """
    at = F.struct("seq", "offset")
    placed = F.col("stream").isNotNull()
    compared = placed & (F.col("op") != Op.READ) & (F.pmod("offset", F.lit(every)) == 0)
    by_offset = F.sort_array(F.collect_list(F.when(compared, F.struct("offset", "seq"))))
    by_seq = F.sort_array(F.collect_list(F.when(compared, F.col("seq"))))
    return [
        (by_offset["seq"] == by_seq).alias("ordered"),
        F.max(F.when(placed, at)).alias("top"),
        F.max(F.when(placed & (F.col("op") != Op.READ), at)).alias("streamed_top"),
        F.max(F.when(placed & ~F.col("unanchored"), F.col("offset"))).alias("last"),
        F.max(F.when(placed & F.col("unanchored"), F.col("offset"))).alias("last_unanchored"),
        F.min(F.when(placed, F.col("seq"))).alias("low"),
        F.max(F.when(placed, _time())).alias("time"),
        F.collect_set(F.when(placed, F.col("server"))).alias("servers"),
        F.min(F.when(placed & (F.col("op") == Op.READ), F.col("seq"))).alias("first_read"),
        F.max(F.when(placed & (F.col("op") == Op.READ), F.col("seq"))).alias("last_read"),
        F.min(F.when(_streamed(), F.col("seq"))).alias("streamed_low"),
        F.min(F.when(~_streamed(), F.col("seq"))).alias("beside_low"),
        F.max(F.when(~_streamed(), F.col("seq"))).alias("beside_top"),
        F.max(~_streamed() & ~_was_read()).alias("strays"),
    ]


def _streamed() -> Column:
    """BOOLEAN: whether the event is a change that is in its stream at its position."""
    return F.col("stream").isNotNull() & ~_was_read()


def _was_read() -> Column:
    """BOOLEAN: whether the row was read from the table."""
    return F.coalesce(F.col("op") == Op.READ, F.lit(False))


def part(row: Row) -> Part:
    """Return what a group's row says about its table in its stream."""
    name, topic = row["stream"], row["topic"]
    ours = topic is not None and topic.startswith(OWN_TOPICS)
    return Part(
        None if name is None else Stream(topic, row["partition"], name),
        None if ours else name,
        _ends(row["streamed_low"], row["streamed_top"] and row["streamed_top"]["seq"]),
        _ends(row["beside_low"], row["beside_top"]),
        bool(row["strays"]),
    )


def _ends(low: bytearray | None, top: bytearray | None) -> tuple[str, str] | None:
    return None if low is None or top is None else (bytes(low).hex(), bytes(top).hex())


def note(found: dict[Stream, StreamSeen], row: Row, table: str) -> None:
    """Add a group's row to what was ``found`` in the batch."""
    if row["stream"] is None:
        return
    stream = Stream(row["topic"], row["partition"], row["stream"])
    top, streamed = _at(row["top"]), row["streamed_top"] and _at(row["streamed_top"])
    seen = found.setdefault(stream, StreamSeen(top))
    seen.top = max(seen.top, top)
    seen.streamed = highest(seen.streamed, streamed)
    seen.ordered = seen.ordered and row["ordered"]
    seen.last = max(seen.last, _or(row["last"]))
    seen.last_unanchored = max(seen.last_unanchored, _or(row["last_unanchored"]))
    seen.time = latest(seen.time, row["time"])
    seen.servers.update(row["servers"])
    reads = (row["first_read"], row["last_read"])
    seen.reads.update(bytes(each).hex() for each in reads if each is not None)
    low, time = seen.tables.get(table, (bytes(row["low"]).hex(), None))
    seen.tables[table] = min(low, bytes(row["low"]).hex()), latest(time, row["time"])


def standing(rows: DataFrame) -> list[Standing]:
    """Return what a mirror has, by the partition from which it came.

    ``rows`` has the columns topic, partition, seq and event_time.
    """
    time = F.unix_micros("event_time")
    past = F.when(time <= F.unix_micros(F.current_timestamp()) + F.lit(_DAY), time)
    found = rows.groupBy("topic", "partition").agg(F.max("seq").alias("seq"), F.max(past).alias("time"))
    return [
        Standing(row["topic"], row["partition"], bytes(row["seq"]).hex(), row["time"])
        for row in found.collect()
        if row["seq"] is not None
    ]


def cut(events: DataFrame, unclear: Mapping[Stream, Place | None]) -> dict[Stream, list[Stretch]]:
    """Take the closer look: return the stretches of the ``unclear`` streams.

    A stretch ends where a position falls back, passes the highest one, or comes from another server. Events
    at offsets that were read before form one stretch, which counts as above. Rows of a snapshot that was
    applied before are in no stretch, because it means nothing that they come again.
    """
    stretches = (
        _numbered(_without_known_reads(_beside_tops(events, unclear)))
        .groupBy(*_STREAM, "old", "stretch")
        .agg(*_of_stretch(), F.first("above").alias("above"))
    )
    found: dict[Stream, list[Stretch]] = {}
    for row in sorted(stretches.collect(), key=lambda row: (not row["old"], row["first"])):
        found.setdefault(Stream(row["topic"], row["partition"], row["stream"]), []).append(_stretch(row))
    return found


def _beside_tops(events: DataFrame, unclear: Mapping[Stream, Place | None]) -> DataFrame:
    """Return the events of these streams, each with its stream's highest position before the batch."""
    none = Place(At("", -1))
    tops = [
        (
            *(*stream, place.top.offset, place.top.seq, place.streamed.seq if place.streamed else ""),
            list(place.snapshots),
        )
        for stream, place in ((stream, place or none) for stream, place in unclear.items())
    ]
    known = F.broadcast(events.sparkSession.createDataFrame(tops, _TOPS))
    same = reduce(Column.__and__, [F.col(name) == F.col(f"_{name}") for name in _STREAM])
    return events.join(known, same).select(
        *_STREAM,
        "offset",
        F.lower(F.hex("seq")).alias("seq"),
        _reach().alias("reach"),
        (F.col("op") == Op.READ).alias("read"),
        "_snapshots",
        "server",
        _time().alias("time"),
        (F.col("offset") <= F.col("_offset")).alias("old"),
        F.when(F.col("unanchored"), F.col("_streamed")).otherwise(F.col("_seq")).alias("stood"),
        "unanchored",
        F.when(F.col("op") != Op.READ, F.lower(F.hex("seq"))).alias("streamed"),
    )


def _without_known_reads(events: DataFrame) -> DataFrame:
    """Mark whether events lie ``above`` everything that came before them.

    Rows of snapshots that were read above earlier and now come again are left out.
    """
    order = Window.partitionBy(*_STREAM, "old").orderBy("offset", "seq")
    past = order.rowsBetween(Window.unboundedPreceding, -1)
    top = F.when(F.col("unanchored"), F.max("streamed").over(past)).otherwise(F.max("seq").over(past))
    above = F.col("old") | (F.col("reach") >= F.greatest(F.coalesce(top, F.lit("")), "stood"))
    snapshot = Window.partitionBy(*_STREAM, "old", "read", "seq").orderBy("offset")
    known = F.first("above").over(snapshot) | F.array_contains("_snapshots", F.col("seq"))
    steps = events.withColumn("above", above).withColumn("known", known)
    return steps.where(F.col("above") | ~F.col("read") | ~F.col("known"))


def _numbered(events: DataFrame) -> DataFrame:
    """Add to each event the number of its ``stretch``."""
    order = Window.partitionBy(*_STREAM, "old").orderBy("offset", "seq")
    past = order.rowsBetween(Window.unboundedPreceding, -1)
    steps = events.withColumn("before", F.last("server", ignorenulls=True).over(past))
    begins = (
        (F.col("above") != F.lag("above").over(order))
        | (~F.col("above") & (F.col("seq") < F.lag("seq").over(order)))
        | (~F.col("above") & (F.col("server") != F.col("before")))
    )
    marked = steps.withColumn("begins", F.coalesce(begins, F.lit(False)).cast("int"))
    return marked.withColumn("stretch", F.sum("begins").over(order))


def _of_stretch() -> list[Column]:
    return [
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min("seq").alias("low"),
        F.max("seq").alias("high"),
        F.max("time").alias("time"),
        F.collect_set("server").alias("servers"),
    ]


def later_than_mirrors(
    events: DataFrame, waiting: Mapping[Stream, Mapping[str, Former]]
) -> dict[Stream, list[tuple[Former, Stretch]]]:
    """Return what these streams have below and later than what the mirrors have.

    There is one stretch per table.
    """
    found: dict[Stream, list[tuple[Former, Stretch]]] = {}
    for stream, formers in waiting.items():
        for table, former in formers.items():
            mine = events.where(_of(stream) & _is_later(table, former))
            columns = ("offset", F.lower(F.hex("seq")).alias("seq"), _time().alias("time"), "server")
            row = mine.select(*columns).agg(*_of_stretch(), F.lit(False).alias("above")).first()
            if row is not None and row["first"] is not None:
                found.setdefault(stream, []).append((former, _stretch(row)))
    return found


def are_reads(events: DataFrame, begun: Mapping[tuple[str, int], int]) -> bool:
    """Return whether only snapshot rows are found from these offsets on.

    ``begun`` has the offsets by topic and partition.
    """
    after = [
        (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("offset") >= offset)
        for (topic, partition), offset in begun.items()
    ]
    changes = events.where(F.col("stream").isNotNull() & reduce(Column.__or__, after))
    row = changes.agg(F.bool_and(F.col("op") == Op.READ)).first()
    return row is not None and bool(row[0])


def held_by(memory: Memory) -> Column | None:
    """BOOLEAN: whether the event waits, according to what is remembered. None if no event can wait."""
    conditions = [_undecided(stream, place) for stream, place in memory.items() if place.tail]
    conditions += [
        _of(stream) & _is_later(table, former)
        for stream, place in memory.items()
        for table, former in unreached(place)
    ]
    return F.coalesce(reduce(Column.__or__, conditions), F.lit(False)) if conditions else None


def _undecided(stream: Stream, place: Place) -> Column:
    streamed = place.streamed or At("", 2**63 - 1)
    tail = _is_tail(
        *(F.lit(each) for each in (place.top.offset, place.top.seq, streamed.offset, streamed.seq))
    )
    again = (F.col("op") == Op.READ) & F.lower(F.hex("seq")).isin(*place.snapshots)
    return _of(stream) & tail & ~again if place.snapshots else _of(stream) & tail


def _is_tail(offset: Column, seq: Column, streamed_offset: Column, streamed_seq: Column) -> Column:
    """BOOLEAN: whether the event comes after the highest position and lies below it.

    Unanchored changes are compared with other changes only, not with snapshot rows.
    """
    plain = (F.col("offset") > offset) & (_reach() < seq)
    anchored_no_more = (F.col("offset") > streamed_offset) & (_reach() < streamed_seq)
    return F.when(F.col("unanchored"), anchored_no_more).otherwise(plain)


def _of(stream: Stream) -> Column:
    """BOOLEAN, never null: whether the event belongs to the stream."""
    parts = zip(("topic", "partition", "stream"), stream, strict=True)
    return reduce(Column.__and__, [F.col(name).eqNullSafe(F.lit(value)) for name, value in parts])


def _is_later(table: str, former: Former) -> Column:
    """BOOLEAN: whether the event is a change of the table that is below and later than its mirror."""
    name = name_of(F.col("database"), F.col("schema"), F.col("table"))
    return (name == table) & (_reach() < former.seq) & (_time() > former.time)


def _reach() -> Column:
    """STRING: the sequence in hexadecimal digits; for a snapshot row, the highest sequence at its position.

    A snapshot row shows everything that was changed up to its position, although it yields to each of these
    changes.
    """
    digits = F.lower(F.hex("seq"))
    major, minor = F.substring(digits, 1, 24), F.substring(digits, 25, 20)
    within = F.when(minor == "0" * 20, "f" * 20).otherwise(minor)
    return F.when(F.col("op") == Op.READ, F.concat(major, within, F.lit("f" * 8))).otherwise(digits)


def _time() -> Column:
    """The source's time, unless it is more than a day later than the record's own time.

    A clock that is so far off says nothing. One that is a little ahead still tells what came later.
    """
    too_late = F.col("source_time") > F.unix_micros(own_time()) + F.lit(_DAY)
    return F.when(~F.coalesce(too_late, F.lit(False)), F.col("source_time"))


def _stretch(row: Row) -> Stretch:
    first, last, low, high = (row[name] for name in ("first", "last", "low", "high"))
    return Stretch(first, last, low, high, row["time"], tuple(sorted(row["servers"])), row["above"])


def _at(row: Row) -> At:
    return At(bytes(row["seq"]).hex(), row["offset"])


def _or(offset: int | None) -> int:
    return -1 if offset is None else offset
