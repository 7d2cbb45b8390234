"""Positions that start again, after a failover or a restore: found before anything of them is dropped.

Changes of one connector stand in each partition in the order of their positions. A connector that restarts
sends a tail once more, until it reaches the highest position again. So a change that lies below what came
before it was either sent again, or made by another server, whose log began elsewhere. What is sent again is
never later than all that came before it, and from no new server. So a change that is, is evidence that the
positions have started again. Without evidence the changes since the highest position are undecided: they wait
in the quarantine, until the highest position is reached again or an epoch is declared.

A reading that has no memory of positions (a new checkpoint, a reset, a new topic) is compared with what
stands in the mirrors. There, everything may be sent again: only what is later than all that stands there
waits, and is evidence when it is later by more than ``ordering.toleranceMs``.

`judge` and what it takes and gives are for the batch; `settle` and `starts` decide, and are pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final, NamedTuple

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F

from lakemirror.api.spec import Ordering
from lakemirror.driver.errors import SourceRestarted
from lakemirror.driver.tables.mirror import name_of

_MOST: Final = 100
"""Runs and servers that are remembered of a partition."""


class Stream(NamedTuple):
    """The changes that one connector sends to one partition."""

    topic: str
    partition: int
    name: str


class At(NamedTuple):
    """A sequence as hexadecimal digits, and the last offset at which it stood."""

    seq: str
    offset: int


@dataclass(frozen=True)
class Run:
    """Changes at growing positions, from offset ``first`` to ``last``; ``time`` is the latest source time, in
    microseconds. ``above`` all that came before them, or below.
    """

    first: int
    last: int
    low: str
    high: str
    time: int | None = None
    servers: tuple[str, ...] = ()
    above: bool = False


@dataclass(frozen=True)
class Former:
    """What a mirror holds of a table from before this reading: highest sequence, latest time; and the first
    offset of what is below and later than that.
    """

    seq: str
    time: int
    first: int | None = None


@dataclass(frozen=True)
class Place:
    """What is remembered of a stream.

    ``top`` is its highest change, ``streamed`` the highest that is no snapshot row; ``time`` and ``servers``
    are the latest source time (microseconds) and the servers up to there, ``tail`` what is undecided since.
    ``former``, by table, is there until the stream has reached it.
    """

    top: At
    streamed: At | None = None
    time: int | None = None
    servers: tuple[str, ...] = ()
    tail: tuple[Run, ...] = ()
    former: Mapping[str, Former] = field(default_factory=dict)


Memory = Mapping[Stream, Place]


@dataclass
class Seen:
    """What a batch has of a stream. ``last`` is the last offset of a change that is anchored (see
    `lakemirror.driver.sequence`), ``last_unanchored`` of one that is not; ``ordered`` says whether the
    positions of each table grow; ``tables`` has the lowest sequence and the latest time of each.
    """

    top: At
    streamed: At | None = None
    ordered: bool = True
    last: int = -1
    last_unanchored: int = -1
    time: int | None = None
    servers: set[str] = field(default_factory=set)
    tables: dict[str, tuple[str, int | None]] = field(default_factory=dict)


class Stored(NamedTuple):
    """What a mirror has of a partition."""

    topic: str | None
    partition: int | None
    seq: str
    time: int | None


@dataclass(frozen=True)
class Verdict:
    """``held``: BOOLEAN of the events that wait (their reason is `REASON`); None when none does. ``memory``
    is what to remember.
    """

    memory: Memory
    held: Column | None = None


REASON: Final = (
    "undecided: its position lies below that of an earlier record of its partition, and nothing shows yet "
    "whether the source sends changes again or was restored. It is applied once that shows, or once "
    "ordering.epochs says so"
)


# -- what a batch has ------------------------------------------------------------------------------


def aggregates(every: int = 1) -> list[Column]:
    """For a group of one stream and table: what `note` wants of it. Whether its positions grow is seen from
    those at offsets that ``every`` divides.
    """
    at = F.struct("seq", "offset")
    placed = F.col("stream").isNotNull()
    compared = placed & (F.col("op") != "r") & (F.pmod("offset", F.lit(every)) == 0)
    by_offset = F.sort_array(F.collect_list(F.when(compared, F.struct("offset", "seq"))))
    by_seq = F.sort_array(F.collect_list(F.when(compared, F.col("seq"))))
    return [
        (by_offset["seq"] == by_seq).alias("ordered"),
        F.max(F.when(placed, at)).alias("top"),
        F.max(F.when(placed & (F.col("op") != "r"), at)).alias("streamed_top"),
        F.max(F.when(placed & ~F.col("unanchored"), F.col("offset"))).alias("last"),
        F.max(F.when(placed & F.col("unanchored"), F.col("offset"))).alias("last_unanchored"),
        F.min(F.when(placed, F.col("seq"))).alias("low"),
        F.max(F.when(placed, _time())).alias("time"),
        F.collect_set(F.when(placed, F.col("server"))).alias("servers"),
    ]


def note(found: dict[Stream, Seen], row: Row, table: str) -> None:
    """Add a group's row to what a batch has."""
    if row["stream"] is None:
        return
    stream = Stream(row["topic"], row["partition"], row["stream"])
    top, streamed = _at(row["top"]), row["streamed_top"] and _at(row["streamed_top"])
    seen = found.setdefault(stream, Seen(top))
    seen.top = max(seen.top, top)
    seen.streamed = _highest(seen.streamed, streamed)
    seen.ordered = seen.ordered and row["ordered"]
    seen.last = max(seen.last, _or(row["last"]))
    seen.last_unanchored = max(seen.last_unanchored, _or(row["last_unanchored"]))
    seen.time = _latest(seen.time, row["time"])
    seen.servers.update(row["servers"])
    low, time = seen.tables.get(table, (bytes(row["low"]).hex(), None))
    seen.tables[table] = min(low, bytes(row["low"]).hex()), _latest(time, row["time"])


def stored(rows: DataFrame) -> list[Stored]:
    """What a mirror has, by the partition that it came from; ``rows``: topic, partition, seq, event_time."""
    found = rows.groupBy("topic", "partition").agg(
        F.max("seq").alias("seq"), F.max(F.unix_micros("event_time")).alias("time")
    )
    return [
        Stored(row["topic"], row["partition"], bytes(row["seq"]).hex(), row["time"])
        for row in found.collect()
        if row["seq"] is not None
    ]


def _time() -> Column:
    """The source's time, unless it lies more than a day after the record's own: such a clock says nothing."""
    too_late = F.col("source_time") > F.unix_micros("timestamp") + F.lit(86_400_000_000)
    return F.when(~F.coalesce(too_late, F.lit(False)), F.col("source_time"))


# -- judging ---------------------------------------------------------------------------------------


def judge(
    events: DataFrame,
    seen: Mapping[Stream, Seen],
    memory: Memory,
    ordering: Ordering,
    standing: Callable[[str], Sequence[Stored]] = lambda table: (),
) -> Verdict:
    """What of a batch has to wait, and what to remember of it.

    ``standing`` tells what the mirror of a source table has. Raises SourceRestarted, with the epoch that has
    to be declared.
    """
    before = {
        stream: memory.get(stream) or _begun(stream, each, memory, standing) for stream, each in seen.items()
    }
    unclear = [s for s, each in seen.items() if is_unclear(before[s], each, known=s in memory)]
    looked = _look(events, {stream: memory.get(stream) for stream in unclear}) if unclear else {}
    places = {
        stream: settle(_advanced(before[stream], each), looked.get(stream) or [_whole(each)])
        for stream, each in seen.items()
    }
    later = _look_at_later(events, dict(_formers(places, seen)))
    every = {**memory, **places}
    begun = starts(every, later, ordering.tolerance_ms * 1000)
    if begun:
        raise SourceRestarted(remedy(begun, every, later, ordering))
    waits = {stream: place for stream, place in places.items() if place.tail or stream in later}
    return Verdict(
        {stream: _reached(place, later.get(stream, ())) for stream, place in every.items()}, held_by(waits)
    )


def is_unclear(place: Place, seen: Seen, *, known: bool = True) -> bool:
    """Whether something may lie below what came before it, so that a closer look is needed.

    ``place`` is what was remembered before the batch, if the stream was ``known``.
    """
    after = _advanced(place, seen)
    low = min(low for low, _ in seen.tables.values())
    fell = known and low < place.top.seq and max(seen.last, seen.last_unanchored) > place.top.offset
    unanchored = after.streamed is not None and seen.last_unanchored > after.streamed.offset
    return fell or unanchored or not seen.ordered or seen.last > after.top.offset


def settle(place: Place, runs: Sequence[Run]) -> Place:
    """What is remembered of a stream after the ``runs`` of a batch, by offset. What is below what came before
    is undecided, until something is above again; but evidence stays.
    """
    for run in runs:
        if not run.above:
            place = replace(place, tail=tuple(_joined(place.tail, run)[:_MOST]))
        elif any(is_evidence(each, place) for each in place.tail):
            break
        else:
            place = replace(
                place,
                time=_latest(place.time, run.time),
                servers=tuple(sorted({*place.servers, *run.servers}))[:_MOST],
                tail=tuple(each for each in place.tail if each.last > run.last),
            )
    return place


def with_epochs(memory: Memory, ordering: Ordering) -> Memory:
    """What was remembered, with the epochs that were declared since."""
    return {
        stream: declared(place, _starts_of(stream, ordering)) if place.tail else place
        for stream, place in memory.items()
    }


def declared(place: Place, epochs: Sequence[tuple[int, int]]) -> Place:
    """A place whose undecided tail is decided where an epoch was declared for it: then it is what came last,
    and what follows may be below it. ``epochs`` are numbers and first offsets.
    """
    tail = []
    for run in place.tail:
        number = max((number for number, first in epochs if first <= run.first), default=0)
        low, high = (f"{number:04x}{each[4:]}" for each in (run.low, run.high))
        if low <= place.top.seq:
            tail.append(run)
            continue
        top = At(high, run.last)
        place = replace(
            place,
            top=top,
            streamed=_highest(place.streamed, top),
            time=_latest(place.time, run.time),
            servers=tuple(sorted({*place.servers, *run.servers}))[:_MOST],
        )
    return replace(place, tail=tuple(tail))


def _starts_of(stream: Stream, ordering: Ordering) -> list[tuple[int, int]]:
    """Where the declared epochs begin in a stream's partition."""
    found = ((each.epoch, each.from_.get(stream.topic, {})) for each in ordering.epochs)
    return [(number, firsts[stream.partition]) for number, firsts in found if stream.partition in firsts]


def _whole(seen: Seen) -> Run:
    """A batch in which nothing falls back."""
    low = min(low for low, _ in seen.tables.values())
    return Run(-1, seen.top.offset, low, seen.top.seq, seen.time, tuple(seen.servers), above=True)


def _joined(runs: Sequence[Run], run: Run) -> list[Run]:
    """Add a run to those before it; one that goes on is one with the last, one that is known stays one."""
    for i, other in enumerate(runs):
        overlaps = run.first <= other.last and other.first <= run.last
        last = i == len(runs) - 1
        goes_on = last and run.first > other.last and run.low >= other.high
        moved = run.servers and other.servers and not set(run.servers) & set(other.servers)
        if overlaps or (goes_on and not moved):
            both = Run(
                min(run.first, other.first),
                max(run.last, other.last),
                min(run.low, other.low),
                max(run.high, other.high),
                _latest(run.time, other.time),
                tuple(sorted({*run.servers, *other.servers})),
            )
            return [*runs[:i], both, *runs[i + 1 :]]
    return sorted([*runs, run], key=lambda each: each.first)


def is_evidence(run: Run, place: Place) -> bool:
    """Whether a run cannot be sent again: it is later than everything before it, or of a new server."""
    later = run.time is not None and place.time is not None and run.time > place.time
    moved = bool(place.servers) and not set(run.servers) <= set(place.servers)
    return later or moved


def starts(
    memory: Memory, later: Mapping[Stream, Sequence[tuple[Former, Run]]], tolerance: int
) -> dict[tuple[str, int], int]:
    """Where a new epoch begins, by topic and partition; empty without evidence.

    Where one partition has evidence, the undecided tails of the same connector's other partitions are taken
    along, unless they are nearer to where their partition stood: then they were sent again. ``later`` has
    what is later than a mirror; ``tolerance`` is in microseconds.
    """
    sure: dict[str, list[Run]] = {}
    for stream, place in memory.items():
        sure.setdefault(stream.name, []).extend(run for run in place.tail if is_evidence(run, place))
    for stream, runs in later.items():
        sure.setdefault(stream.name, []).extend(
            run for former, run in runs if run.time is not None and run.time > former.time + tolerance
        )
    begun: dict[tuple[str, int], int] = {}
    for stream, place in memory.items():
        evidence = sure.get(stream.name)
        if not evidence:
            continue
        undecided = [(run, place.top.seq) for run in place.tail if not _is_known(run, place, evidence)]
        undecided += [(run, former.seq) for former, run in later.get(stream, ())]
        offsets = [
            run.first for run, stood in undecided if run in evidence or _is_nearer(run, evidence, stood)
        ]
        offsets += [former.first for former in place.former.values() if former.first is not None]
        if offsets:
            where = stream.topic, stream.partition
            begun[where] = min([*offsets, *([begun[where]] if where in begun else [])])
    return begun


def _is_known(run: Run, place: Place, evidence: Sequence[Run]) -> bool:
    """Whether a run is of a server that was there before, and no evidence itself."""
    return bool(run.servers) and set(run.servers) <= set(place.servers) and run not in evidence


def _is_nearer(run: Run, evidence: Sequence[Run], stood: str) -> bool:
    """Whether a run lies nearer to the new positions than to where its partition stood."""
    low, here, before = (int(each, 16) for each in (min(each.low for each in evidence), run.low, stood))
    high = int(max(each.high for each in evidence), 16)
    away = max(low - here, here - high, 0)
    return away < before - here


def remedy(
    begun: Mapping[tuple[str, int], int],
    memory: Memory,
    later: Mapping[Stream, Sequence[tuple[Former, Run]]],
    ordering: Ordering,
) -> str:
    """What happened and what to do, with the whole new value of ``ordering.epochs``."""
    (topic, partition), offset = min(begun.items())
    runs = [
        (run, place.top.offset)
        for stream, place in memory.items()
        if (stream.topic, stream.partition) == (topic, partition)
        for run in (*place.tail, *(run for _, run in later.get(stream, ())))
        if run.first >= offset
    ]
    time = max((run.time for run, _ in runs if run.time is not None), default=None)
    servers = sorted({server for run, _ in runs for server in run.servers})
    details = "; ".join(
        ([f"up to {_shown(time)} UTC"] if time is not None else [])
        + ([f"server {', '.join(servers)}"] if servers else [])
    )
    epochs = json.dumps(extended(ordering, begun))
    return (
        f"positions of the source start again: topic {topic}, partition {partition}, offset {offset} and "
        f"later{f' ({details})' if details else ''}: these records were made after those that were read "
        "before them, but stand before them in the source's log. Nothing of this batch was written. If "
        f"the source failed over or was restored, declare a new epoch: ordering.epochs: {epochs}; if these "
        "are old records that were sent again, correct the topic."
    )


def extended(ordering: Ordering, begun: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """The declared epochs and the one that begins there: a new one, unless the highest has none of these
    partitions yet.
    """
    epochs: list[dict[str, Any]] = [
        {"epoch": each.epoch, "from": {t: {str(p): o for p, o in starts.items()} for t, starts in froms}}
        for each in ordering.epochs
        for froms in [each.from_.items()]
    ]
    newest = epochs[-1]["from"] if epochs else {}
    if not epochs or any(str(partition) in newest.get(topic, {}) for topic, partition in begun):
        epochs.append({"epoch": epochs[-1]["epoch"] + 1 if epochs else 1, "from": {}})
    for (topic, partition), offset in sorted(begun.items()):
        epochs[-1]["from"].setdefault(topic, {})[str(partition)] = offset
    return epochs


def _shown(micros: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).strftime("%Y-%m-%d %H:%M:%S")


def held_by(memory: Memory) -> Column | None:
    """BOOLEAN: the events that wait, by what is remembered; None when none can."""
    conditions = [_undecided(stream, place) for stream, place in memory.items() if place.tail]
    conditions += [
        _of(stream) & _is_later(table, former)
        for stream, place in memory.items()
        for table, former in _unreached(place)
    ]
    return F.coalesce(reduce(Column.__or__, conditions), F.lit(False)) if conditions else None


# -- parts -----------------------------------------------------------------------------------------


def _begun(stream: Stream, seen: Seen, memory: Memory, standing: Callable[[str], Sequence[Stored]]) -> Place:
    """A stream that is read for the first time."""
    known = {(each.topic, each.partition) for each in memory}
    former = {}
    for table in seen.tables:
        groups = [group for group in standing(table) if (group.topic, group.partition) not in known]
        same = [g for g in groups if (g.topic, g.partition) == (stream.topic, stream.partition)]
        found = same or [g for g in groups if g.topic == stream.topic] or groups
        times = [group.time for group in found if group.time is not None]
        if times:
            former[table] = Former(max(group.seq for group in found), max(times))
    return Place(seen.top, former=former)


def _advanced(place: Place, seen: Seen) -> Place:
    return replace(place, top=max(place.top, seen.top), streamed=_highest(place.streamed, seen.streamed))


def _formers(places: Memory, seen: Mapping[Stream, Seen]) -> Iterable[tuple[Stream, dict[str, Former]]]:
    """Streams that have something below and later than what a mirror has."""
    for stream, each in seen.items():
        found = {}
        for table, former in places[stream].former.items():
            low, time = each.tables.get(table, ("", None))
            if time is not None and low < former.seq and time > former.time:
                found[table] = former
        if found:
            yield stream, found


def _reached(place: Place, later: Sequence[tuple[Former, Run]]) -> Place:
    """Without what the stream has reached; with where begins what waits."""
    firsts = {former: run.first for former, run in later}
    left = {}
    for table, former in _unreached(place):
        known = [each for each in (former.first, firsts.get(former)) if each is not None]
        left[table] = replace(former, first=min(known, default=None))
    return replace(place, former=left) if place.former else place


def _unreached(place: Place) -> list[tuple[str, Former]]:
    return [(table, each) for table, each in place.former.items() if place.top.seq < each.seq]


def _of(stream: Stream) -> Column:
    """BOOLEAN, never null: an event of the stream."""
    parts = zip(("topic", "partition", "stream"), stream, strict=True)
    return reduce(Column.__and__, [F.col(name).eqNullSafe(F.lit(value)) for name, value in parts])


def _undecided(stream: Stream, place: Place) -> Column:
    streamed = place.streamed or At("", 2**63 - 1)
    return _of(stream) & _is_tail(
        *(F.lit(each) for each in (place.top.offset, place.top.seq, streamed.offset, streamed.seq))
    )


def _is_tail(offset: Column, seq: Column, streamed_offset: Column, streamed_seq: Column) -> Column:
    """BOOLEAN: after the highest position and below it; an unanchored change is no snapshot row's equal."""
    digits = F.lower(F.hex("seq"))
    plain = (F.col("offset") > offset) & (digits < seq)
    anchored_no_more = (F.col("offset") > streamed_offset) & (digits < streamed_seq)
    return F.when(F.col("unanchored"), anchored_no_more).otherwise(plain)


def _is_later(table: str, former: Former) -> Column:
    """BOOLEAN: a change of a table below and later than what its mirror has."""
    name = name_of(F.col("database"), F.col("schema"), F.col("table"))
    return (name == table) & (F.lower(F.hex("seq")) < former.seq) & (_time() > former.time)


def _look(events: DataFrame, unclear: Mapping[Stream, Place | None]) -> dict[Stream, list[Run]]:
    """The closer look: the runs of these streams, cut where a position falls back, passes the highest, or
    comes from another server. What stands where the stream was read before is one run above.
    """
    none = Place(At("", -1))
    tops = [
        (*stream, place.top.offset, place.top.seq, place.streamed.seq if place.streamed else "")
        for stream, place in ((stream, place or none) for stream, place in unclear.items())
    ]
    known = F.broadcast(events.sparkSession.createDataFrame(tops, _TOPS))
    same = reduce(Column.__and__, [F.col(name) == F.col(f"_{name}") for name in _STREAM])
    mine = events.join(known, same).select(
        *_STREAM,
        "offset",
        F.lower(F.hex("seq")).alias("seq"),
        "server",
        _time().alias("time"),
        (F.col("offset") <= F.col("_offset")).alias("old"),
        F.when(F.col("unanchored"), F.col("_streamed")).otherwise(F.col("_seq")).alias("stood"),
        "unanchored",
        F.when(F.col("op") != "r", F.lower(F.hex("seq"))).alias("streamed"),
    )
    order = Window.partitionBy(*_STREAM, "old").orderBy("offset", "seq")
    past = order.rowsBetween(Window.unboundedPreceding, -1)
    highest = F.when(F.col("unanchored"), F.max("streamed").over(past)).otherwise(F.max("seq").over(past))
    above = F.col("old") | (F.col("seq") >= F.greatest(F.coalesce(highest, F.lit("")), "stood"))
    steps = mine.withColumns({"above": above, "before": F.last("server", ignorenulls=True).over(past)})
    begins = (
        (F.col("above") != F.lag("above").over(order))
        | (~F.col("above") & (F.col("seq") < F.lag("seq").over(order)))
        | (~F.col("above") & (F.col("server") != F.col("before")))
    )
    cut = steps.withColumn("begins", F.coalesce(begins, F.lit(False)).cast("int"))
    numbered = cut.withColumn("run", F.sum("begins").over(order))
    runs = numbered.groupBy(*_STREAM, "old", "run").agg(*_of_run(), F.first("above").alias("above"))
    found: dict[Stream, list[Run]] = {}
    for row in sorted(runs.collect(), key=lambda row: (not row["old"], row["first"])):
        found.setdefault(Stream(row["topic"], row["partition"], row["stream"]), []).append(_run(row))
    return found


_STREAM: Final = ("topic", "partition", "stream")
_TOPS: Final = "_topic STRING, _partition INT, _stream STRING, _offset BIGINT, _seq STRING, _streamed STRING"


def _of_run() -> list[Column]:
    return [
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
        F.min("seq").alias("low"),
        F.max("seq").alias("high"),
        F.max("time").alias("time"),
        F.collect_set("server").alias("servers"),
    ]


def _look_at_later(
    events: DataFrame, waiting: Mapping[Stream, Mapping[str, Former]]
) -> dict[Stream, list[tuple[Former, Run]]]:
    """What these streams have below and later than what the mirrors have, one run for each table."""
    found: dict[Stream, list[tuple[Former, Run]]] = {}
    for stream, formers in waiting.items():
        for table, former in formers.items():
            mine = events.where(_of(stream) & _is_later(table, former))
            columns = ("offset", F.lower(F.hex("seq")).alias("seq"), _time().alias("time"), "server")
            row = mine.select(*columns).agg(*_of_run(), F.lit(False).alias("above")).first()
            if row is not None and row["first"] is not None:
                found.setdefault(stream, []).append((former, _run(row)))
    return found


def _run(row: Row) -> Run:
    first, last, low, high = (row[name] for name in ("first", "last", "low", "high"))
    return Run(first, last, low, high, row["time"], tuple(sorted(row["servers"])), row["above"])


def _at(row: Row) -> At:
    return At(bytes(row["seq"]).hex(), row["offset"])


def _highest(one: At | None, other: At | None) -> At | None:
    return max(one, other) if one and other else one or other


def _latest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _or(offset: int | None) -> int:
    return -1 if offset is None else offset


# -- as text ---------------------------------------------------------------------------------------


def to_json(memory: Memory) -> str:
    """As the audit keeps it."""
    return json.dumps([[list(stream), asdict(place)] for stream, place in sorted(memory.items())])


def from_json(text: str) -> dict[Stream, Place]:
    """What `to_json` wrote; nothing of what earlier versions did, which knew less."""
    document = json.loads(text)
    if not isinstance(document, list):
        return {}
    return {Stream(*stream): _place(place) for stream, place in document}


def _place(document: Mapping[str, Any]) -> Place:
    streamed = document["streamed"]
    return Place(
        At(*document["top"]),
        streamed and At(*streamed),
        document["time"],
        tuple(document["servers"]),
        tuple(Run(**{**run, "servers": tuple(run["servers"])}) for run in document["tail"]),
        {table: Former(**former) for table, former in document["former"].items()},
    )


def newest(memories: Iterable[Memory]) -> dict[Stream, Place]:
    """Of several queries' memories, the one of each stream that is furthest."""
    merged: dict[Stream, Place] = {}
    for memory in memories:
        for stream, place in memory.items():
            if stream not in merged or merged[stream].top < place.top:
                merged[stream] = place
    return merged
