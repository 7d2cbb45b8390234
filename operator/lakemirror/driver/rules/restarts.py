"""Whether the positions of a source have started again, after a failover or a restore.

In each partition, the changes of one connector are in the order of their positions. A connector that restarts
sends a tail again, until it reaches the highest position again. So a change that lies below what came before
it was either sent again, or made by another server whose log began elsewhere. One that is sent again is never
later than everything before it, and never comes from a new server; one that is, is evidence. Without evidence
the changes since the highest position are undecided: they wait until that position is reached again or an
epoch is declared. With evidence, the tables that have changes there wait as a whole, and no others do: the
evidence may be a single record that somebody made up.

A batch is looked at in two steps:

1. Every block of it is summed up (`summary`), and summaries merge in any order (`merge`). As a rule, they
   show that the positions of a stream only grow, and say all that there is to remember.
2. Otherwise (`is_unclear`), all changes of that one stream are looked at in the order of their offsets
   (`stretches`).

`judge` does both, and decides. What is remembered of a stream, and what is evidence, is defined by
`lakemirror.driver.profile.positions` and `lakemirror.driver.profile.evidence`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

from lakemirror.api.spec import Ordering
from lakemirror.driver.codes import Op
from lakemirror.driver.profile import epochs, evidence
from lakemirror.driver.profile.evidence import Ask
from lakemirror.driver.profile.positions import (
    At,
    Former,
    Memory,
    Place,
    Stream,
    StreamSeen,
    Stretch,
    highest,
    latest,
)

T = TypeVar("T")
_DAY: Final = 86_400_000_000
"""In microseconds."""


class Point(NamedTuple):
    """A change as it stands in its stream. ``time`` is the source's, in microseconds (`trusted`)."""

    table: str
    offset: int
    op: str
    seq: bytes
    time: int | None = None
    server: str | None = None
    unanchored: bool = False

    @property
    def is_read(self) -> bool:
        """Whether the row was read from its table by a snapshot."""
        return self.op == Op.READ

    @property
    def digits(self) -> str:
        """The sequence as hexadecimal digits."""
        return self.seq.hex()

    @property
    def reach(self) -> str:
        """The sequence, for a row of a snapshot the highest one at its position.

        Such a row shows everything that was changed up to its position, although it yields to each of these
        changes.
        """
        if not self.is_read:
            return self.digits
        minor = self.seq[12:22]
        return (self.seq[:12] + (b"\xff" * 10 if minor == bytes(10) else minor) + b"\xff" * 4).hex()


def trusted(time: int | None, recorded: int) -> int | None:
    """Return the source's time of a change whose record was made at ``recorded``; None if it is impossible.

    A clock that is more than a day ahead says nothing. One that is a little ahead still tells what came
    later.
    """
    return None if time is None or time > recorded + _DAY else time


# -- the summary of a block -------------------------------------------------------------------------------


class Span(NamedTuple):
    """The changes of one table in one block: their offsets, their positions, and whether these grow."""

    first: int
    last: int
    low: str
    high: str
    grows: bool


@dataclass(frozen=True)
class Summary:
    """What blocks of a batch have of one stream. Summaries of blocks merge in any order (`merge`).

    ``top`` is the highest change, ``streamed`` the highest one that is not a row of a snapshot. ``last`` and
    ``last_unanchored`` are the last offsets of anchored and unanchored changes, -1 without any. ``tables``
    has the lowest sequence and the latest time of each table, ``reads`` the lowest and the highest sequence
    of each table's snapshot rows, ``spans`` one span for each table and block.
    """

    top: At
    streamed: At | None = None
    last: int = -1
    last_unanchored: int = -1
    time: int | None = None
    servers: frozenset[str] = frozenset()
    tables: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    reads: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    spans: Mapping[str, tuple[Span, ...]] = field(default_factory=dict)

    def seen(self) -> StreamSeen:
        """Return the summary of a whole batch in the form in which it is judged."""
        return StreamSeen(
            self.top,
            self.streamed,
            all(_is_growing(each) for each in self.spans.values()),
            self.last,
            self.last_unanchored,
            self.time,
            set(self.servers),
            {seq for ends in self.reads.values() for seq in ends},
            dict(self.tables),
        )


def summary(points: Sequence[Point]) -> Summary:
    """Return the summary of one block: some of the changes of one stream, at least one, in any order."""
    by_table: dict[str, list[Point]] = {}
    for each in points:
        by_table.setdefault(each.table, []).append(each)
    reads = {name: [p.digits for p in mine if p.is_read] for name, mine in by_table.items()}
    streamed = [each for each in points if not each.is_read]
    return Summary(
        top=_top(points),
        streamed=_top(streamed) if streamed else None,
        last=max((each.offset for each in points if not each.unanchored), default=-1),
        last_unanchored=max((each.offset for each in points if each.unanchored), default=-1),
        time=_latest(points),
        servers=frozenset(each.server for each in points if each.server is not None),
        tables={name: (min(p.digits for p in mine), _latest(mine)) for name, mine in by_table.items()},
        reads={name: (min(seqs), max(seqs)) for name, seqs in reads.items() if seqs},
        spans={name: spans for name, mine in by_table.items() if (spans := _spans(mine))},
    )


def merge(one: Summary, other: Summary) -> Summary:
    """Return the summary of both; of the same two blocks in any order, and in any grouping with others."""
    return Summary(
        top=max(one.top, other.top),
        streamed=highest(one.streamed, other.streamed),
        last=max(one.last, other.last),
        last_unanchored=max(one.last_unanchored, other.last_unanchored),
        time=latest(one.time, other.time),
        servers=one.servers | other.servers,
        tables=_merged(one.tables, other.tables, lambda a, b: (min(a[0], b[0]), latest(a[1], b[1]))),
        reads=_merged(one.reads, other.reads, lambda a, b: (min(a[0], b[0]), max(a[1], b[1]))),
        spans=_merged(one.spans, other.spans, lambda a, b: tuple(sorted((*a, *b)))),
    )


def _merged(one: Mapping[str, T], other: Mapping[str, T], both: Callable[[T, T], T]) -> dict[str, T]:
    found = {**one, **other}
    return {**found, **{name: both(one[name], other[name]) for name in one.keys() & other.keys()}}


def _top(points: Iterable[Point]) -> At:
    return max(At(each.digits, each.offset) for each in points)


def _latest(points: Iterable[Point]) -> int | None:
    return max((each.time for each in points if each.time is not None), default=None)


def _spans(points: Iterable[Point]) -> tuple[Span, ...]:
    """Return the span of one table's changes, without its snapshot rows."""
    changes = sorted((each.offset, each.digits) for each in points if not each.is_read)
    if not changes:
        return ()
    seqs = [seq for _, seq in changes]
    return (Span(changes[0][0], changes[-1][0], min(seqs), max(seqs), seqs == sorted(seqs)),)


def _is_growing(spans: Sequence[Span]) -> bool:
    """Return whether the positions of a table grow over all blocks. False where blocks interleave."""
    follow = all(before.last < after.first and before.high <= after.low for before, after in pairwise(spans))
    return follow and all(each.grows for each in spans)


# -- the closer look --------------------------------------------------------------------------------------


def stretches(points: Iterable[Point], place: Place | None) -> list[Stretch]:
    """Return the stretches of a stream, given what is remembered of it (None: nothing).

    A stretch ends where a position falls back, passes the highest one, or comes from another server. Changes
    at offsets that were read before form stretches that count as above. Rows of a snapshot that was applied
    before are in no stretch, because it means nothing that they come again.
    """
    known = place or Place(At("", -1))
    in_order = sorted(points, key=lambda each: (each.offset, each.seq))
    old = [each for each in in_order if each.offset <= known.top.offset]
    new = [each for each in in_order if each.offset > known.top.offset]
    return [*_cut(old, known, old=True), *_cut(new, known, old=False)]


def _cut(points: Sequence[Point], place: Place, *, old: bool) -> list[Stretch]:
    found: list[list[Point]] = []
    aboves: list[bool] = []
    server: str | None = None
    for point, above in _without_known_reads(points, place, old=old):
        moved = server is not None and point.server is not None and point.server != server
        begins = not found or above != aboves[-1]
        if begins or (not above and (point.seq < found[-1][-1].seq or moved)):
            found.append([])
            aboves.append(above)
        found[-1].append(point)
        server = point.server if point.server is not None else server
    return sorted(map(_stretch, found, aboves), key=lambda each: each.first)


def _without_known_reads(points: Sequence[Point], place: Place, *, old: bool) -> list[tuple[Point, bool]]:
    """Return the points, each with whether it lies above everything that came before it.

    Rows of snapshots that were read above earlier and now come again are left out.
    """
    kept: list[tuple[Point, bool]] = []
    first_read: dict[bytes, bool] = {}
    top = streamed = ""
    for point in points:
        stood = (place.streamed.seq if place.streamed else "") if point.unanchored else place.top.seq
        above = old or point.reach >= max(streamed if point.unanchored else top, stood)
        known = point.is_read and first_read.setdefault(point.seq, above)
        known = known or (point.is_read and point.digits in place.snapshots)
        if above or not known:
            kept.append((point, above))
        top = max(top, point.digits)
        streamed = streamed if point.is_read else max(streamed, point.digits)
    return kept


def _stretch(points: Sequence[Point], above: bool) -> Stretch:
    seqs, servers = [each.digits for each in points], {each.server for each in points} - {None}
    return Stretch(
        min(each.offset for each in points),
        max(each.offset for each in points),
        min(seqs),
        max(seqs),
        _latest(points),
        tuple(sorted(str(each) for each in servers)),
        above,
    )


# -- the decision -----------------------------------------------------------------------------------------

Look = Callable[[Stream], Sequence[Point]]
"""Returns the changes that a batch has of a stream."""


@dataclass(frozen=True)
class Verdict:
    """What becomes of a batch: what to remember of each stream, and what waits.

    ``held`` are the streams that have undecided changes in the batch. ``begun`` is where positions have
    started again, by topic and partition: an epoch has to begin there or before, and until one does, the
    ``tables`` that have changes there wait as a whole. All other tables go on.
    """

    memory: Memory
    held: Memory = field(default_factory=dict)
    begun: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def tables(self) -> frozenset[str]:
        """The tables that wait for an epoch, with all their changes of any stream."""
        return frozenset(epochs.tables_of(self.memory))

    def waits(self, stream: Stream, point: Point) -> bool:
        """Return whether a change is not applied with the batch: it is undecided, or its table waits."""
        place = self.held.get(stream)
        if point.table in self.tables or place is None:
            return point.table in self.tables
        formers = [each for name, each in evidence.unreached(place) if name == point.table]
        return _is_tail(point, place) or any(_is_later(point, each) for each in formers)


def _is_tail(point: Point, place: Place) -> bool:
    """Return whether a change came after the highest position and lies below it.

    Unanchored changes are compared with other changes only, not with snapshot rows.
    """
    if not place.tail or (point.is_read and point.digits in place.snapshots):
        return False
    top = place.top
    if point.unanchored:
        top = place.streamed or At("", 2**63 - 1)
    return point.offset > top.offset and point.reach < top.seq


def _is_later(point: Point, former: Former) -> bool:
    """Return whether a change lies below what its mirror has from before, and is later than that."""
    return point.reach < former.seq and point.time is not None and point.time > former.time


def judge(
    seen: Mapping[Stream, Summary],
    look: Look,
    memory: Memory,
    ordering: Ordering,
    standing: Ask = lambda table: (),
    mirrored: Callable[[str], bool] = lambda table: True,
) -> Verdict:
    """Decide about a batch. ``standing`` returns what the mirror of a table has (None: it cannot be read).

    A stream that is read for the first time (a new checkpoint, a reset, a new topic) is compared with what
    the mirrors have. Then everything may be sent again: only what is later than everything in the mirrors
    waits, and it is evidence if it is later by more than ``ordering.toleranceMs``.

    Once there is evidence, the tables of that stream wait as a whole, until an epoch is declared that begins
    there or before (`lakemirror.driver.profile.epochs.with_epochs`). Tables that are not ``mirrored`` do not.
    """
    batch = {stream: each.seen() for stream, each in seen.items()}
    before = {stream: _before(stream, each, memory, standing) for stream, each in batch.items()}
    found = {stream: _stretches(stream, each, memory, before, look) for stream, each in batch.items()}
    places = {
        stream: evidence.settle(evidence.advanced(before[stream], each), found[stream])
        for stream, each in batch.items()
    }
    later = {
        stream: mine
        for stream, formers in evidence.formers(places, batch)
        if (mine := _later(look(stream), formers))
    }
    every = {**memory, **places}
    known = epochs.waiting(memory)
    begun = evidence.earliest(
        known,
        epochs.undeclared(seen, memory, ordering),
        evidence.starts(every, later, ordering.tolerance_ms * 1000),
    )
    every |= {s: evidence.with_snapshots(places[s], batch[s]) for s in places if s not in later}
    held = {
        stream: every[stream]
        for stream, place in places.items()
        if (place.tail or stream in later) and _partition(stream) not in begun
    }
    left = {stream: evidence.without_reached(each, later.get(stream, ())) for stream, each in every.items()}
    reads = _are_reads(batch, {where: at for where, at in begun.items() if where not in known}, look)
    left = evidence.with_restarts(left, before, batch, begun, mirrored, reads=reads)
    return Verdict(left, held, begun)


def _partition(stream: Stream) -> tuple[str, int]:
    return stream.topic, stream.partition


def _before(stream: Stream, seen: StreamSeen, memory: Memory, standing: Ask) -> Place:
    place = memory.get(stream)
    if place is None:
        return evidence.first_place(stream, seen, memory, standing)
    return evidence.asked_again(place, stream, seen, memory, standing)


def _stretches(
    stream: Stream, seen: StreamSeen, memory: Memory, before: Memory, look: Look
) -> Sequence[Stretch]:
    if evidence.is_unclear(before[stream], seen, known=stream in memory):
        return stretches(look(stream), memory.get(stream))
    return [evidence.unbroken(seen)]


def _later(points: Sequence[Point], formers: Mapping[str, Former]) -> list[tuple[Former, Stretch]]:
    """Return what a stream has below and later than what mirrors have, one stretch for each table."""
    found = []
    for table, former in formers.items():
        mine = [each for each in points if each.table == table and _is_later(each, former)]
        if mine:
            found.append((former, _stretch(mine, above=False)))
    return found


def _are_reads(seen: Iterable[Stream], begun: Mapping[tuple[str, int], int], look: Look) -> bool:
    after = [
        point
        for stream in seen
        if (stream.topic, stream.partition) in begun
        for point in look(stream)
        if point.offset >= begun[stream.topic, stream.partition]
    ]
    return bool(after) and all(each.is_read for each in after)
