"""What blocks of changes say about the positions of their source. What two blocks say merges in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.columns.masks import Indices, Mask, mask_of
from lakemirror.driver.columns.places import Streams
from lakemirror.driver.columns.sequences import Sequences, whole
from lakemirror.driver.consistent.reach import Part
from lakemirror.driver.profile.positions import At, Stream
from lakemirror.driver.rules.restarts import Point, Span, Summary, merge
from lakemirror.driver.times import AHEAD

_MICRO: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1) // _MICRO
_AHEAD: Final = AHEAD // _MICRO

SequenceRange = tuple[bytes, bytes]
"""The lowest and the highest of some sequences."""
LogPartition = tuple[str, int, str | None]
"""A topic, a partition, and the log that positions are of, or None."""


@dataclass(frozen=True)
class Beside:
    """The changes of a table in a stream: the ends of what is in its order, and of what is not (`Part`)."""

    streamed: SequenceRange | None = None
    beside: SequenceRange | None = None
    strays: bool = False

    def __or__(self, other: Beside) -> Beside:
        return Beside(
            _both(self.streamed, other.streamed),
            _both(self.beside, other.beside),
            self.strays or other.strays,
        )

    def part(self, place: LogPartition) -> Part:
        """Return the same in the form in which a batch's reach is determined."""
        topic, partition, name = place
        ours = topic.startswith(OWN_TOPICS)
        return Part(
            None if name is None else Stream(topic, partition, name),
            None if ours else name,
            _digits(self.streamed),
            _digits(self.beside),
            self.strays,
        )


class Points(NamedTuple):
    """The changes of a block in one stream, in the order of their offsets, for a closer look.

    ``times`` are those of the source, -1 where it cannot be right.
    """

    offsets: Indices
    seqs: npt.NDArray[np.bytes_]
    ops: list[str]
    times: npt.NDArray[np.int64]
    servers: list[str | None]

    def listed(self, table: str) -> Iterator[Point]:
        """Yield the changes one by one, as those of a table."""
        times = (None if each < 0 else each for each in self.times.tolist())
        seqs = map(whole, self.seqs.tolist())
        of_all = zip(self.offsets.tolist(), self.ops, seqs, times, self.servers, strict=True)
        return (Point(table, *each) for each in of_all)


@dataclass(frozen=True)
class Seen:
    """What a batch has of one table.

    ``streams`` has the positions of each stream, ``parts`` what the table has in each. ``latest`` is the
    latest time of a change that can be right (microseconds since 1970), ``ends`` the lowest and the highest
    sequence, ``records`` the number of changes. ``points`` has all changes of each stream, if they were asked
    for. ``unanchored`` says whether any is (`rules.anchors`).
    """

    records: int = 0
    streams: Mapping[Stream, Summary] = field(default_factory=dict)
    parts: Mapping[LogPartition, Beside] = field(default_factory=dict)
    latest: int | None = None
    ends: SequenceRange | None = None
    points: Mapping[Stream, tuple[Points, ...]] = field(default_factory=dict)
    unanchored: bool = False

    def __or__(self, other: Seen) -> Seen:
        streams, parts = dict(self.streams), dict(self.parts)
        for stream, found in other.streams.items():
            streams[stream] = merge(streams[stream], found) if stream in streams else found
        for place, each in other.parts.items():
            parts[place] = parts[place] | each if place in parts else each
        latest = max((each for each in (self.latest, other.latest) if each is not None), default=None)
        points = dict(self.points)
        for stream, mine in other.points.items():
            points[stream] = (*points.get(stream, ()), *mine)
        ends = _both(self.ends, other.ends)
        unanchored = self.unanchored or other.unanchored
        return Seen(self.records + other.records, streams, parts, latest, ends, points, unanchored)


NOTHING: Final = Seen()
"""What no changes say."""


class Alone(NamedTuple):
    """A change that is not in columns: where it was read, and when it was made and recorded."""

    place: LogPartition
    point: Point
    at: int | None
    recorded: int


def seen(
    table: str,
    changes: pa.RecordBatch,
    streams: Streams,
    recorded: pa.Array,
    now: int,
    *,
    alone: Sequence[Alone] = (),
    closer: bool = False,
) -> Seen:
    """Return what a block of changes of one table says.

    ``recorded`` has the times of their records, and ``now`` is when they are read (microseconds since 1970).
    ``alone`` are the other changes of the block. With ``closer``, each change is listed.
    """
    if not changes.num_rows and not alone:
        return NOTHING
    made = changes.column("__event_time").view(pa.int64()).to_numpy()
    own = np.minimum(recorded.cast(pa.timestamp("us", "UTC")).view(pa.int64()).fill_null(now).to_numpy(), now)
    times, likely = np.where(made > own + _DAY, -1, made), [*made[made <= own + _AHEAD]]
    if alone:
        changes, streams = _with(changes, streams, alone)
        times = np.concatenate(
            [times, [-1 if each.point.time is None else each.point.time for each in alone]]
        )
        likely += [each.at for each in alone if each.at is not None and each.at <= each.recorded + _AHEAD]
    sequences = Sequences.of(changes)
    block = _Block(table, changes, streams, sequences, times)
    parts, summaries, points = {}, {}, {}
    for place, numbers in _by_place(changes, streams):
        parts[place] = block.beside(place, numbers)
        if place[2] is not None:
            stream, ordered = Stream(place[0], place[1], place[2]), block.ordered(numbers)
            summaries[stream] = block.summary(ordered)
            if closer:
                points[stream] = (block.points(ordered),)
    latest = int(max(likely)) if likely else None
    unanchored = any(each.point.unanchored for each in alone)
    return Seen(changes.num_rows, summaries, parts, latest, _ends(sequences.values), points, unanchored)


def _with(
    changes: pa.RecordBatch, streams: Streams, alone: Sequence[Alone]
) -> tuple[pa.RecordBatch, Streams]:
    """Return where changes stand, together with others."""
    points = [each.point for each in alone]
    given = {
        "__seq": [each.seq for each in points],
        "__op": [str(each.op) for each in points],
        "__topic": [each.place[0] for each in alone],
        "__partition": [each.place[1] for each in alone],
        "__offset": [each.offset for each in points],
    }
    arrays = [pa.array(values, changes.schema.field(name).type) for name, values in given.items()]
    mine = changes.select(list(given))
    both = pa.concat_batches([mine, pa.RecordBatch.from_arrays(arrays, schema=mine.schema)])
    names = [each.place[2] for each in alone], [each.server for each in points]
    return both, Streams(
        *[
            pa.concat_arrays([old, pa.array(new, pa.string())])
            for old, new in zip((streams.names, streams.servers), names, strict=True)
        ]
    )


def merged(found: Iterator[Seen]) -> Seen:
    """Return what several blocks of one table say."""
    return reduce(Seen.__or__, found, NOTHING)


@dataclass(frozen=True)
class _Block:
    """A block of changes. ``times`` are those of the source, -1 where it cannot be right."""

    table: str
    changes: pa.RecordBatch
    streams: Streams
    sequences: Sequences
    times: npt.NDArray[np.int64]

    def beside(self, place: LogPartition, numbers: Indices) -> Beside:
        reads = self._reads(numbers)
        values = self.sequences.values[numbers]
        streamed = ~reads if place[2] is not None else np.zeros(len(numbers), np.bool_)
        strays = place[2] is None and not reads.all()
        return Beside(_ends(values[streamed]), _ends(values[~streamed]), bool(strays))

    def ordered(self, numbers: Indices) -> Indices:
        """Return the changes in the order of their offsets."""
        offsets = self.sequences.offsets[numbers]
        return numbers if (offsets[1:] >= offsets[:-1]).all() else numbers[np.argsort(offsets, kind="stable")]

    def points(self, numbers: Indices) -> Points:
        chosen = pa.array(numbers)
        return Points(
            self.sequences.offsets[numbers],
            self.sequences.values[numbers],
            self.changes.column("__op").take(chosen).to_pylist(),
            self.times[numbers],
            self.streams.servers.take(chosen).to_pylist(),
        )

    def summary(self, numbers: Indices) -> Summary:
        offsets = self.sequences.offsets[numbers]
        values, reads = self.sequences.values[numbers], self._reads(numbers)
        low, _ = _required(values)
        time, digits = self._latest(numbers), low.hex()
        of_reads = _ends(values[reads])
        span = _span(values[~reads], offsets[~reads])
        return Summary(
            top=_top(values, offsets),
            streamed=None if reads.all() else _top(values[~reads], offsets[~reads]),
            last=int(offsets[-1]),
            time=time,
            servers=frozenset(self.streams.servers.take(pa.array(numbers)).drop_null().unique().to_pylist()),
            tables={self.table: (digits, time)},
            reads={} if of_reads is None else {self.table: (of_reads[0].hex(), of_reads[1].hex())},
            spans={} if span is None else {self.table: (span,)},
        )

    def _reads(self, numbers: Indices) -> Mask:
        return mask_of(pc.equal(self.changes.column("__op"), str(Op.READ)))[numbers]

    def _latest(self, numbers: Indices) -> int | None:
        latest = int(self.times[numbers].max())
        return None if latest < 0 else latest


def _by_place(changes: pa.RecordBatch, streams: Streams) -> Iterator[tuple[LogPartition, Indices]]:
    """Yield the changes of each stream, and those of each partition that are in none."""
    names = ("__topic", "__partition")
    codes = np.zeros(changes.num_rows, np.int64)
    for column in (*(changes.column(name) for name in names), streams.names):
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    for code in np.unique(codes):
        numbers = np.flatnonzero(codes == code)
        first = int(numbers[0])
        topic, partition = (changes.column(name)[first].as_py() for name in names)
        yield (topic, partition, streams.names[first].as_py()), numbers


def _span(values: npt.NDArray[np.bytes_], offsets: Indices) -> Span | None:
    """Return the span of changes in the order of their offsets."""
    ends = _ends(values)
    if ends is None:
        return None
    grows = bool((values[1:] >= values[:-1]).all())
    return Span(int(offsets[0]), int(offsets[-1]), ends[0].hex(), ends[1].hex(), grows)


def _top(values: npt.NDArray[np.bytes_], offsets: Indices) -> At:
    _, top = _required(values)
    return At(top.hex(), int(offsets[values == np.bytes_(top)].max()))


def _ends(values: npt.NDArray[np.bytes_]) -> SequenceRange | None:
    if not len(values):
        return None
    if (values[1:] >= values[:-1]).all():
        return whole(values[0]), whole(values[-1])
    ordered = np.sort(values)
    return whole(ordered[0]), whole(ordered[-1])


def _required(values: npt.NDArray[np.bytes_]) -> SequenceRange:
    found = _ends(values)
    assert found is not None
    return found


def _digits(ends: SequenceRange | None) -> tuple[str, str] | None:
    return None if ends is None else (ends[0].hex(), ends[1].hex())


def _both(one: SequenceRange | None, other: SequenceRange | None) -> SequenceRange | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])
