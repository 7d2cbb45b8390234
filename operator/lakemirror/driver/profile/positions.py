"""Positions of a source: what is remembered of each stream of changes, and what a batch has of it. Values
alone, and their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from lakemirror.driver.consistent.complete import Top

MOST: Final = 100
"""Stretches and servers that are remembered of a partition."""


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
class Stretch:
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
    ``former``, by table, is there until the stream has reached it. ``snapshots`` are the sequences of the
    connector's snapshots that were applied: what stands there is of the same source.
    """

    top: At
    streamed: At | None = None
    time: int | None = None
    servers: tuple[str, ...] = ()
    tail: tuple[Stretch, ...] = ()
    former: Mapping[str, Former] = field(default_factory=dict)
    snapshots: tuple[str, ...] = ()


Memory = Mapping[Stream, Place]


@dataclass
class StreamSeen:
    """What a batch has of a stream. ``last`` is the last offset of a change that is anchored (see
    `lakemirror.driver.sequence`), ``last_unanchored`` of one that is not; ``ordered`` says whether the
    positions of each table grow; ``tables`` has the lowest sequence and the latest time of each; ``reads``
    are sequences of snapshot rows, of each table the least and the greatest.
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
    """What a mirror has of a partition."""

    topic: str | None
    partition: int | None
    seq: str
    time: int | None


def newest(memories: Iterable[Memory]) -> dict[Stream, Place]:
    """Of several queries' memories, the one of each stream that is furthest."""
    merged: dict[Stream, Place] = {}
    for memory in memories:
        for stream, place in memory.items():
            if stream not in merged or merged[stream].top < place.top:
                merged[stream] = place
    return merged


def committed_by_all(memory: Memory, now: datetime, retention: timedelta) -> bytes:
    """The sequence below which no stream is expected to bring anything: the least of their highest ones,
    without streams that are quiet; empty where nothing is known.

    A stream is quiet when its newest change is older, by more than ``retention``, than the newest change of
    all streams: by the source's own times, so that a driver that was away takes no stream for quiet which it
    has not read yet. What a quiet stream still brings from below is later than the retention promises to wait
    for: it was made before the tombstone and comes at least that long after it, and is counted as
    late_after_collection if it writes a row. A stream without times, or with changes whose place is
    undecided, is never quiet.
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
    """Tells which position the changes of a stream have reached; None for one that is not remembered."""
    tops = {stream: place.streamed.seq for stream, place in memory.items() if place.streamed is not None}
    return lambda stream: tops.get(stream)  # type: ignore[call-overload]


def last_snapshot(memory: Memory, log: str) -> str | None:
    """The position of the last snapshot of a log; None where none is remembered."""
    places = (place for stream, place in memory.items() if stream.name == log)
    return max((each for place in places for each in place.snapshots), default=None)


def tops(memory: Memory) -> tuple[Top, ...]:
    """What the changes of each stream have reached."""
    return tuple(
        Top(stream.name, place.streamed and place.streamed.seq, place.time)
        for stream, place in sorted(memory.items())
    )


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
        tuple(Stretch(**{**stretch, "servers": tuple(stretch["servers"])}) for stretch in document["tail"]),
        {table: Former(**former) for table, former in document["former"].items()},
        tuple(document.get("snapshots", ())),
    )


def highest(one: At | None, other: At | None) -> At | None:
    """The higher of two positions; None where there is none."""
    return max(one, other) if one and other else one or other


def latest(one: int | None, other: int | None) -> int | None:
    """The later of two times; None where there is none."""
    return other if one is None else one if other is None else max(one, other)


def with_servers(place: Place, stretch: Stretch) -> tuple[str, ...]:
    """The servers that are remembered of a place, and those of a stretch that comes after it."""
    return tuple(sorted({*place.servers, *stretch.servers}))[:MOST]
