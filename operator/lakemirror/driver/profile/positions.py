"""Positions of a source: what is remembered about each stream of changes, and what a batch has from it.

Only values, and their JSON form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from lakemirror.driver.consistent.complete import Top

MOST: Final = 100
"""Maximum number of stretches, of servers and of snapshots that are remembered for a stream."""


class Stream(NamedTuple):
    """The changes that one connector sends to one partition."""

    topic: str
    partition: int
    name: str


class At(NamedTuple):
    """A sequence in hexadecimal digits, and the last offset at which it occurred."""

    seq: str
    offset: int


@dataclass(frozen=True)
class Stretch:
    """Changes at growing positions, from offset ``first`` to ``last``.

    ``low`` and ``high`` are their lowest and highest sequences. ``time`` is the latest source time, in
    microseconds. ``above`` says whether the stretch lies above everything that came before it, or below.
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
    """What a mirror holds of a table from before this reading: the highest sequence and the latest time.

    ``first`` is the first offset of what lies below that sequence and is later than that time.
    """

    seq: str
    time: int
    first: int | None = None


@dataclass(frozen=True)
class Began:
    """Where the positions of a stream have started again, and which tables wait for an epoch.

    The epoch has to begin at ``offset`` or before. ``tables`` are those that had changes since then.
    ``reads`` says that all of these were rows of a snapshot.
    """

    offset: int
    tables: tuple[str, ...] = ()
    reads: bool = False


@dataclass(frozen=True)
class Place:
    """What is remembered about a stream.

    ``top`` is its highest change, and ``streamed`` its highest change that is not a snapshot row. ``time``
    and ``servers`` are the latest source time (microseconds) and the servers up to there. ``tail`` is what
    has been undecided since. ``former``, by table, is kept until the stream has caught up with it.
    ``snapshots`` are the sequences of the connector's snapshots that were applied: rows at these sequences
    come from the same source. ``unread`` are tables whose mirrors could not tell what they have: their
    changes are held, and they are asked again. ``began`` is set while an epoch has to be declared.
    """

    top: At
    streamed: At | None = None
    time: int | None = None
    servers: tuple[str, ...] = ()
    tail: tuple[Stretch, ...] = ()
    former: Mapping[str, Former] = field(default_factory=dict)
    snapshots: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    began: Began | None = None


Memory = Mapping[Stream, Place]


@dataclass
class StreamSeen:
    """What a batch has from a stream.

    ``last`` is the last offset of an anchored change (see `lakemirror.driver.sequence`), and
    ``last_unanchored`` that of an unanchored one. ``ordered`` says whether the positions of each table grow.
    ``tables`` has the lowest sequence and the latest time of each table. ``reads`` has the lowest and the
    highest sequence of each table's snapshot rows.
    """

    top: At
    streamed: At | None = None
    ordered: bool = True
    last: int = -1
    last_unanchored: int = -1
    time: int | None = None
    servers: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    tables: dict[str, tuple[str, int | None]] = field(default_factory=dict)


class Standing(NamedTuple):
    """What a mirror has from a partition."""

    topic: str | None
    partition: int | None
    seq: str
    time: int | None


def newest(memories: Iterable[Memory]) -> dict[Stream, Place]:
    """Merge the memories of several queries: for each stream, the place that is furthest ahead wins.

    If one of them has found that positions have started again, all tables that wait for that still wait.
    """
    merged: dict[Stream, Place] = {}
    for memory in memories:
        for stream, place in memory.items():
            known = merged.get(stream)
            newer = place if known is None or known.top < place.top else known
            merged[stream] = replace(
                newer, began=_both(known.began if known is not None else None, place.began)
            )
    return merged


def _both(one: Began | None, other: Began | None) -> Began | None:
    if one is None or other is None:
        return one or other
    tables = tuple(sorted({*one.tables, *other.tables}))
    return Began(min(one.offset, other.offset), tables, one.reads and other.reads)


def of_logs(memory: Memory, logs: Container[str]) -> Memory:
    """Return what is remembered about the streams of these logs. Positions of others cannot be compared."""
    return {stream: place for stream, place in memory.items() if stream.name in logs}


def may_be_of(memory: Memory, logs: Collection[str] | None, topics: Iterable[str | None]) -> bool:
    """Return whether records in one of ``topics`` may be of a table whose changes come from ``logs``.

    They may, unless all that is known to come in a topic is from other logs. ``logs`` is None if the table's
    are unknown. A record without a topic may be of any table.
    """
    for topic in topics:
        found = {stream.name for stream in memory if stream.topic == topic}
        if topic is None or logs is None or not found or not found.isdisjoint(logs):
            return True
    return False


def committed_by_all(memory: Memory, now: datetime, retention: timedelta) -> bytes:
    """Return the sequence below which no stream is expected to deliver anything.

    This is the lowest of the streams' highest sequences, except for streams that are quiet. It is empty if
    nothing is known.

    A stream is quiet if its newest change is older than the newest change of all streams by more than
    ``retention``. The source's own times are compared, so a driver that was down does not mistake a stream
    that it has not read yet for a quiet one. Anything that a quiet stream still delivers from below is later
    than the retention promises to wait for: it was made before the tombstone and arrives at least that long
    after it. It is counted as late_after_collection if it writes a row. A stream without times, or with
    changes whose place is undecided, is never quiet.
    """
    moment = int(now.timestamp() * 1e6)
    newest = min(max((each.time for each in memory.values() if each.time is not None), default=0), moment)
    since = newest - int(retention.total_seconds() * 1e6)
    tops = [
        bytes.fromhex(each.top.seq)
        for each in memory.values()
        if each.time is None or each.tail or each.time >= since
    ]
    return min(tops, default=b"")


def streamed(memory: Memory) -> Callable[[object], str | None]:
    """Return a function that gives the position that the changes of a stream have reached.

    It gives None for a stream that is not remembered.
    """
    tops = {stream: place.streamed.seq for stream, place in memory.items() if place.streamed is not None}
    return lambda stream: tops.get(stream)  # type: ignore[call-overload]


def last_snapshot(memory: Memory, log: str) -> str | None:
    """Return the position of a log's last snapshot, or None if no snapshot is remembered."""
    places = (place for stream, place in memory.items() if stream.name == log)
    return max((each for place in places for each in place.snapshots), default=None)


def tops(memory: Memory) -> tuple[Top, ...]:
    """Return what the changes of each stream have reached."""
    return tuple(
        Top(stream.name, place.streamed and place.streamed.seq, place.time)
        for stream, place in sorted(memory.items())
    )


def to_json(memory: Memory) -> str:
    """Serialize a memory in the form in which the audit stores it."""
    return json.dumps([[list(stream), asdict(place)] for stream, place in sorted(memory.items())])


def from_json(text: str, until: datetime | None = None) -> dict[Stream, Place]:
    """Read what `to_json` wrote ``until`` a moment, without times that are more than a day later.

    The result is empty for text from earlier versions, which stored less. These also stored times that no
    clock can have shown yet.
    """
    document = json.loads(text)
    if not isinstance(document, list):
        return {}
    latest = None if until is None else int((until + timedelta(days=1)).timestamp() * 1e6)
    return {Stream(*stream): _possible(_place(place), latest) for stream, place in document}


def _possible(place: Place, latest: int | None) -> Place:
    """Return a place without times that are after the ``latest`` possible one (microseconds)."""
    if latest is None:
        return place

    def past(time: int | None) -> int | None:
        return None if time is None or time > latest else time

    return replace(
        place,
        time=past(place.time),
        tail=tuple(replace(each, time=past(each.time)) for each in place.tail),
        former={table: each for table, each in place.former.items() if each.time <= latest},
    )


def _place(document: Mapping[str, Any]) -> Place:
    streamed = document["streamed"]
    return Place(
        At(*document["top"]),
        streamed and At(*streamed),
        document["time"],
        tuple(document["servers"]),
        tuple(Stretch(**{**stretch, "servers": tuple(stretch["servers"])}) for stretch in document["tail"]),
        {table: Former(**former) for table, former in document["former"].items()},
        tuple(document.get("snapshots", ())),
        tuple(document.get("unread", ())),
        _began(document.get("began")),
    )


def _began(document: Mapping[str, Any] | None) -> Began | None:
    if document is None:
        return None
    return Began(document["offset"], tuple(document["tables"]), document["reads"])


def highest(one: At | None, other: At | None) -> At | None:
    """Return the higher of two positions, or None if there is none."""
    return max(one, other) if one and other else one or other


def latest(one: int | None, other: int | None) -> int | None:
    """Return the later of two times, or None if there is none."""
    return other if one is None else one if other is None else max(one, other)


def with_servers(place: Place, stretch: Stretch) -> tuple[str, ...]:
    """Return a place's remembered servers, together with those of a stretch that follows it."""
    return tuple(sorted({*place.servers, *stretch.servers}))[:MOST]
