"""The first stage of a batch's job: blocks of raw records become changes of tables, divided into buckets.

What a stage hands on are parcels: rows that say for which task they are, what they contain, and their content
as bytes. Nothing is raised for a record: a topic in which anything is not as it is believed is reported as
odd, and its records are read by Spark.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.columns import odd as odd_records
from lakemirror.driver.columns.changes import MOMENT
from lakemirror.driver.columns.decode import Decoder
from lakemirror.driver.columns.key_codes import without_signs
from lakemirror.driver.columns.kinds import to_arrow
from lakemirror.driver.columns.masks import Indices
from lakemirror.driver.columns.payloads import Texts
from lakemirror.driver.columns.raw_records import RawRecords, joined, octets_of
from lakemirror.driver.engine.believed import CONNECTORS, Believed, Filter
from lakemirror.driver.engine.filters import ODD_ROW, PLAIN_ROW, Questions
from lakemirror.driver.engine.seen import NOTHING, Alone, Seen, seen
from lakemirror.driver.rules.conditions import Evidence, Undecided, filter_decides
from lakemirror.driver.rules.envelopes.records import Bad, Change
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.positions import Origin, log_of, server_of, source_micros
from lakemirror.driver.rules.restarts import Point, trusted
from lakemirror.driver.rules.values import Event

RAW: Final = (
    *("topic", "partition", "offset", "timestamp", "key", "value", "headers", "problem"),
    *("file", "row"),
)
"""The columns of raw records that the job reads."""
PARCELS: Final = "target INT, what STRING, number INT, bucket INT, content BINARY, task INT"
"""The schema of parcels. ``number`` is that of a table, ``bucket`` that of some of its keys.

``task`` is the one that has made the parcel. If tables have filters, there are rows for Spark among the
parcels, without contents, and further columns for them (`filters`).
"""
SCHEMA: Final = pa.schema(
    [
        ("target", pa.int32()),
        ("what", pa.string()),
        ("number", pa.int32()),
        ("bucket", pa.int32()),
        ("content", pa.binary()),
        ("task", pa.int32()),
    ]
)
CHANGES, ODD, REPORT = "changes", "odd", "report"
"""What parcels contain: plain changes in Arrow's format, events of odd records, or a `Report`."""
MOST_HELD: Final = 1 << 28
"""How many bytes of raw records a task reads and holds as changes; Spark applies batches that have more."""
MOST_ASIDE, MOST_ASIDE_BYTES = 1_000, 1 << 21
"""How many records that cannot be applied a task returns with their bytes, and how many bytes; else none."""
_OPEN: Final = "its place depends on a snapshot"
_NO_QUESTIONS: Final = Questions()
_MANY: Final = 4_000
"""How many records of a topic are decoded at once, without waiting for more."""
_MOST_WAITING: Final = 48 * 2**20
"""How many bytes of records wait at most to be decoded together."""
_ROWS_A_BLOCK: Final = 50_000
"""Maximum number of rows for Spark in one block."""
_MOST_DECODERS: Final = 2_000
_DECODERS: dict[tuple[str, str], tuple[str, Decoder]] = {}
"""Decoders by topic and connector, with the identity of what is believed, kept between batches.

They are large, and tables may be learned anew in each batch: there is one for each.
"""


class Parcel(NamedTuple):
    """What one task has for another."""

    target: int
    what: str
    number: int
    bucket: int
    content: bytes
    task: int


class RawRecord(NamedTuple):
    """What a record has beside its place in a topic, as in `read.base.RAW`. The time is in microseconds."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str | None, bytes | None] | None] | None
    file: str | None
    row: int | None

    @property
    def size(self) -> int:
        """About how many bytes it has."""
        headers = [part for each in self.headers or () if each is not None for part in each]
        return sum(len(each) for each in (self.key, self.value, *headers) if each is not None)


class Aside(NamedTuple):
    """A record that cannot be applied: its place, and why.

    ``source`` is its table, None if that is not known. If it ``is_change``, it counts as one of its table.
    ``raw`` is what else it has, None if tasks have too much of that.
    """

    partition: int
    offset: int
    reason: str
    source: str | None
    is_change: bool
    raw: RawRecord | None = None


@dataclass(frozen=True)
class Report:
    """What a task has read of one topic: of a table, or of none that is believed (``number`` is -1).

    ``records`` are all that it has read, ``tombstones`` those without a value, ``aside`` those that cannot be
    applied. ``odd`` is the place of one that is not as it is believed: then not all were read. If it is that
    of no topic, nothing of the batch was.
    """

    topic: str | None
    number: int
    records: int
    tombstones: int = 0
    odd: str | None = None
    seen: Seen = NOTHING
    aside: tuple[Aside, ...] = ()

    @property
    def spoilt(self) -> int:
        """How many changes of the table cannot be applied."""
        return sum(each.is_change for each in self.aside)

    @property
    def unreadable(self) -> int:
        """How many records are not known to be changes."""
        return len(self.aside) - self.spoilt

    def beyond(self) -> Report:
        """Return the same for a topic of which a task cannot hold all records."""
        if self.number < 0:
            return self
        return replace(self, odd=self.odd or f"{self.topic} (there are more than a task can hold)")

    def without_unreadable(self) -> Report:
        """Return the same without the records that are not known to be changes."""
        changes = tuple(each for each in self.aside if each.is_change)
        return replace(self, records=self.records - self.unreadable, aside=changes)

    def without_raw(self) -> Report:
        """Return the same with no more of its records than their places."""
        return replace(self, aside=tuple(each._replace(raw=None) for each in self.aside))

    def __or__(self, other: Report) -> Report:
        return replace(
            self,
            records=self.records + other.records,
            tombstones=self.tombstones + other.tombstones,
            odd=self.odd or other.odd,
            seen=self.seen | other.seen,
            aside=self.aside + other.aside,
        )


@dataclass(frozen=True)
class Dividing:
    """How tables are divided among tasks: how many buckets each table has, and the number of tasks.

    ``is_small`` says that one task does both stages.
    """

    buckets: Sequence[int]
    tasks: int
    is_small: bool = False

    @cached_property
    def _firsts(self) -> list[int]:
        """The number of the first bucket of each table."""
        return [0, *accumulate(self.buckets)]

    def target(self, number: int, bucket: int) -> int:
        """Return the task of a bucket."""
        return (self._firsts[number] + bucket) % self.tasks


def divided(
    blocks: Iterator[RawRecords],
    tables: Sequence[Believed],
    dividing: Dividing,
    questions: Questions = _NO_QUESTIONS,
    task: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Return the parcels of a partition of raw records, and the rows that Spark has to judge.

    ``questions`` are those about the tables, ``task`` is the number of the partition.
    """
    of_topic = {table.topic: number for number, table in enumerate(tables)}
    reports: dict[str | None, Report] = {}
    changes: dict[tuple[int, int], list[pa.RecordBatch]] = {}
    events: dict[tuple[int, int], list[Event]] = {}
    now, held, room = time.time_ns() // 1000, 0, _Room()
    for topic, records in _gathered(blocks):
        held += records.nbytes
        is_full = held > MOST_HELD
        if is_full:
            changes, events = {}, {}
        number = of_topic.get(topic, -1) if topic is not None else -1
        before = reports.get(topic)
        if is_full or number < 0 or (before is not None and before.odd):
            reports[topic] = _both(before, Report(topic, number, records.num_rows))
            continue
        report, found, odd = _tried(records, number, tables[number], now)
        reports[topic] = _both(before, room.fitted(report))
        of_table = dividing.buckets[number]
        if found is not None and found.num_rows:
            for bucket, part in _buckets(found, tables[number], of_table):
                changes.setdefault((number, bucket), []).append(part)
        for bucket, event in _buckets_of(odd, tables[number], of_table):
            events.setdefault((number, bucket), []).append(event)
    if held > MOST_HELD:
        reports = {topic: each.beyond() for topic, each in reports.items()}
    asking = _Asking(questions, tables, dividing, task)
    for number, reason in asking.about(changes, events, reports.values()):
        topic = tables[number].topic
        reports[topic] = replace(reports[topic], odd=f"{topic}: {reason}")
    expected = {each.number for each in reports.values() if each.odd is None}
    schema = asking.schema
    told = (each.without_raw() if room.is_full or each.odd else each for each in reports.values())
    yield from _batches(_reported(told, task), schema)
    yield from asking.rows()
    yield from _batches(_parcels(CHANGES, changes, packed, expected, dividing, task), schema)
    yield from _batches(_parcels(ODD, events, pickle.dumps, expected, dividing, task), schema)


def unread(reason: str, questions: Questions, task: int) -> Iterator[pa.RecordBatch]:
    """Return the parcel of a partition that cannot be read, which is a report of no topic."""
    yield from _batches(_reported([Report(None, -1, 0, odd=reason)], task), _schema(questions))


def _schema(questions: Questions) -> pa.Schema:
    return pa.schema([*SCHEMA, *questions.schema]) if questions else SCHEMA


class _Room:
    """Measures what a task returns of records that cannot be applied. Once that is too much, nothing fits."""

    def __init__(self) -> None:
        self._records = self._bytes = 0

    @property
    def is_full(self) -> bool:
        return self._records > MOST_ASIDE or self._bytes > MOST_ASIDE_BYTES

    def fitted(self, report: Report) -> Report:
        """Return a report with as much as fits."""
        self._records += len(report.aside)
        self._bytes += sum(each.raw.size for each in report.aside if each.raw is not None)
        return report.without_raw() if self.is_full else report


class _Asking:
    """Collects the rows of the parcels of a task that Spark has to judge."""

    def __init__(
        self, questions: Questions, tables: Sequence[Believed], dividing: Dividing, task: int
    ) -> None:
        self._questions, self._tables, self._dividing, self._task = questions, tables, dividing, task
        self._rows: list[pa.Table] = []
        self.schema = _schema(questions)

    def about(
        self,
        changes: Mapping[tuple[int, int], Sequence[pa.RecordBatch]],
        events: Mapping[tuple[int, int], Sequence[Event]],
        reports: Iterable[Report],
    ) -> Iterator[tuple[int, str]]:
        """Collect the rows of all parcels, and yield the tables for which that fails, and why."""
        asked = self._questions.numbers.keys() & {each.number for each in reports if each.odd is None}
        for number, bucket in [*changes, *(each for each in events if each not in changes)]:
            if number not in asked:
                continue
            try:
                of_bucket = changes.get((number, bucket)), events.get((number, bucket))
                for what, rows in self._of(number, *of_bucket):
                    self._rows.append(self._addressed(what, number, bucket, rows))
            except Exception as error:
                yield number, f"{type(error).__name__}: {error}"

    def _of(
        self, number: int, changes: Sequence[pa.RecordBatch] | None, events: Sequence[Event] | None
    ) -> Iterator[tuple[str, pa.Table]]:
        if changes:
            yield PLAIN_ROW, self._questions.of_changes(number, pa.Table.from_batches(changes))
        if events:
            yield ODD_ROW, self._questions.of_events(number, events, self._tables[number])

    def _addressed(self, what: str, number: int, bucket: int, rows: pa.Table) -> pa.Table:
        """Return rows with what tells to which parcel they belong."""
        target = self._dividing.target(number, bucket)
        address = Parcel(target, what, number, bucket, b"", self._task)._asdict() | {"content": None}
        columns = [pa.repeat(pa.scalar(address[each.name], each.type), rows.num_rows) for each in SCHEMA]
        return pa.Table.from_arrays([*columns, *rows.columns], schema=self.schema)

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield what was collected."""
        if self._rows:
            yield from pa.concat_tables(self._rows).combine_chunks().to_batches(_ROWS_A_BLOCK)


def _both(before: Report | None, report: Report) -> Report:
    return report if before is None else before | report


def _reported(reports: Iterable[Report], task: int) -> Iterator[Parcel]:
    for each in reports:
        yield Parcel(0, REPORT, each.number, 0, pickle.dumps(each), task)


def _parcels(
    what: str,
    found: Mapping[tuple[int, int], Any],
    packing: Callable[[Any], bytes],
    expected: Collection[int],
    dividing: Dividing,
    task: int,
) -> Iterator[Parcel]:
    """Yield what there is for each bucket of the tables in which all is as expected."""
    for (number, bucket), parts in found.items():
        if number in expected:
            yield Parcel(dividing.target(number, bucket), what, number, bucket, packing(parts), task)


def _batches(parcels: Iterator[Parcel], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return parcels as blocks for Spark, one by one, because each may be large."""
    for each in parcels:
        yield pa.RecordBatch.from_pylist([each._asdict()], schema)


def packed(parts: Sequence[pa.RecordBatch]) -> bytes:
    """Return blocks of one schema as one, in Arrow's format for streams."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, parts[0].schema) as out:
        for each in parts:
            out.write_batch(each)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def unpacked(content: bytes) -> list[pa.RecordBatch]:
    """Return the blocks that `packed` wrote."""
    return list(pa.ipc.open_stream(content))


def _gathered(blocks: Iterable[RawRecords]) -> Iterator[tuple[str | None, RawRecords]]:
    """Yield the records of each topic, those of small parts of several blocks together.

    To decode a few records takes almost as long as to decode some hundreds.
    """
    waiting: dict[str | None, list[RawRecords]] = {}
    size = 0
    for block in blocks:
        for topic, records in _by_topic(block):
            if records.num_rows >= _MANY:
                yield topic, records
                continue
            waiting.setdefault(topic, []).append(records)
            size += records.nbytes
        if size >= _MOST_WAITING:
            yield from ((topic, joined(parts)) for topic, parts in waiting.items())
            waiting, size = {}, 0
    yield from ((topic, joined(parts)) for topic, parts in waiting.items())


def _by_topic(block: RawRecords) -> Iterator[tuple[str | None, RawRecords]]:
    """Yield the records of each topic. Records with a problem are in none."""
    topics = block.column("topic")
    if block.column("problem").null_count < block.num_rows:
        topics = pc.if_else(block.column("problem").is_valid(), None, topics)
    encoded = topics.dictionary_encode(null_encoding="encode")
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], block
        return
    codes = encoded.indices.to_numpy()
    for code, name in enumerate(names):
        yield name, block.take(np.flatnonzero(codes == code))


def _tried(
    records: RawRecords, number: int, table: Believed, now: int
) -> tuple[Report, pa.RecordBatch | None, Sequence[Event]]:
    """Return what `_read` does; records that make it fail are odd."""
    try:
        return _read(records, number, table, now)
    except Exception as error:
        reason = f"{table.topic}: {type(error).__name__}: {error}"
        return Report(table.topic, number, records.num_rows, odd=reason), None, ()


def _read(
    records: RawRecords, number: int, table: Believed, now: int
) -> tuple[Report, pa.RecordBatch | None, Sequence[Event]]:
    """Return what records of a table are: a report, the plain changes, and the events of odd ones."""
    decoder = _decoder(table, records.values)
    if decoder is None:  # there are only tombstones, or nobody knows the connector
        tombstones = records.values.count(None)
        odd = _place(records, 0) if tombstones < records.num_rows else None
        return Report(table.topic, number, records.num_rows, tombstones, odd), None, ()
    decoded = decoder.decode(records)
    report = Report(table.topic, number, records.num_rows, len(decoded.tombstones))
    recorded = records.column("timestamp").take(pa.array(decoded.numbers))
    alone, events, aside = list[Alone](), list[Event](), list[Aside]()
    bad = list[int]()
    for at, record in zip(decoded.odd, odd_records.records_in(records, decoded.odd), strict=True):
        read = odd_records.read(record, table.facts, table.unrepresentable)
        reason = _against(read, table)
        if reason is None and table.filter is not None and isinstance(read, odd_records.OddChange):
            read, reason = _beside_filter(read, table, table.filter)
        if reason is not None:
            place = "/".join(map(str, record.origin))
            return replace(report, odd=f"{place} ({reason})"), None, ()
        if isinstance(read, odd_records.OddChange | odd_records.Spoilt):
            stood = records.column("timestamp")[int(at)].as_py()
            alone.append(_alone(read.change, table, record.origin, stood, now))
        if isinstance(read, odd_records.OddChange):
            events += read.events
        elif isinstance(read, odd_records.Spoilt | Bad):
            aside.append(_aside(read, record.origin, table))
            bad.append(int(at))
    given = (str(table.name), decoded.changes, decoded.streams, recorded, now)
    told = seen(*given, alone=alone, closer=table.closer)
    whole = (each._replace(raw=raw) for each, raw in zip(aside, _raw(records, bad), strict=True))
    return replace(report, seen=told, aside=tuple(whole)), decoded.changes, events


def _raw(records: RawRecords, numbers: Sequence[int]) -> Iterator[RawRecord]:
    """Yield what some of the records of a block have beside their places."""
    if not numbers:  # as in most blocks
        return
    chosen = records.take(np.array(numbers, np.int64))
    moments = chosen.column("timestamp").cast(MOMENT).view(pa.int64()).to_pylist()
    rest = chosen.columns.select(["headers", "file", "row"]).to_pylist()
    for moment, key, value, each in zip(moments, chosen.keys, chosen.values, rest, strict=True):
        headers = each.pop("headers")
        listed = None if headers is None else list(map(_header, headers))
        yield RawRecord(moment, octets_of(key), octets_of(value), listed, **each)


def _header(given: Mapping[str, Any] | None) -> tuple[str | None, bytes | None] | None:
    return None if given is None else (given["key"], given["value"])


def _aside(read: odd_records.Spoilt | Bad, origin: Origin, table: Believed) -> Aside:
    assert origin.partition is not None
    assert origin.offset is not None
    is_change = isinstance(read, odd_records.Spoilt)
    is_named = isinstance(read, odd_records.Spoilt) or read.table is not None
    source = str(table.name) if is_named else None
    return Aside(origin.partition, origin.offset, read.reason, source, is_change)


def _against(read: odd_records.OddRecord, table: Believed) -> str | None:
    """Return why a record is left for Spark, or None for a change that the rules apply, and a bad record."""
    match read:
        case odd_records.Other():
            return read.what
        case odd_records.OddChange():
            return _of_events(read, table)
        case odd_records.Spoilt():
            moves = read.change.old_key or read.change.new_key
            reasons = {
                # Without a schema, the value is one of another type, which Spark plans anew.
                read.reason: not table.keeps_bad or table.facts.schema is None,
                _OPEN: read.change.unanchored and not table.may_be_open,
                "its row changes its key": bool(moves),
            }
            return next((reason for reason, applies in reasons.items() if applies), None)
        case Bad():
            is_of_another = read.table is not None and read.table != table.facts.table
            return None if table.keeps_bad and not is_of_another else read.reason
    return type(read).__name__


def _of_events(read: odd_records.OddChange, table: Believed) -> str | None:
    reasons = {
        "its row changes its key": not table.may_move
        and any(each.old_key or each.new_key for each in read.events),
        _OPEN: read.change.unanchored and not table.may_be_open,
        "it has digits that nobody has been told are lost": not read.rounded <= table.rounded,
        "it lacks values": not all(each.gaps <= table.may_lack for each in read.events),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _beside_filter(
    read: odd_records.OddChange, table: Believed, of: Filter
) -> tuple[odd_records.OddChange | odd_records.Spoilt, str | None]:
    """Return a change, or that it cannot be applied because nobody can tell whether its row meets a filter.

    The second answer is why the record is left for Spark, or None.
    """
    event, columns = read.events[0], table.facts.columns
    if event.op not in WITH_ROW:
        return read, None
    shown = read.change.row or {}
    there = table.facts.schema is not None
    lacks = [name for name in of.reads if not there and columns[name].source not in shown]
    gaps = [name for name in columns if name in event.gaps]
    match filter_decides(of.reads, Evidence(gaps, lacks), keyed=True):
        case None:
            return read, None
        case Undecided.LACKS:
            return read, "it lacks columns that the filter reads"
    if not table.keeps_bad or len(read.events) > 1:
        return read, "it lacks values that the filter needs"
    listed = ", ".join(gaps)
    reason = f"the source did not send {listed}, and {of.place} needs the whole row: {of.remedy}"
    return odd_records.Spoilt(read.change, reason), None


def _alone(change: Change, table: Believed, origin: Origin, recorded: datetime | None, now: int) -> Alone:
    by = table.facts.settings.ordering.by
    own = now if recorded is None else min(micros_of(recorded), now)
    point = Point(
        str(table.name),
        -1 if origin.offset is None else origin.offset,
        change.op,
        change.seq,
        trusted(source_micros(change.source), own),
        server_of(change.source),
        change.unanchored,
    )
    place = origin.topic or "", -1 if origin.partition is None else origin.partition
    return Alone((*place, log_of(change.source, by)), point, change.at, own)


def _place(records: RawRecords, number: int) -> str:
    return "/".join(str(records.column(name)[number].as_py()) for name in ("topic", "partition", "offset"))


class _Source(msgspec.Struct):
    connector: str


class _Body(msgspec.Struct):
    source: _Source | None = None
    payload: _Body | None = None


_read_body = msgspec.json.Decoder(_Body).decode


def _decoder(table: Believed, values: Texts) -> Decoder | None:
    """Return what reads records of a table: their connector is that of the first one."""
    first = next((each for each in values if each is not None), None)
    if first is None:
        return None
    try:
        body = _read_body(first)
    except (msgspec.MsgspecError, ValueError):
        return None
    body = body.payload or body
    connector = None if body.source is None else body.source.connector
    if connector not in CONNECTORS:
        return None
    key = table.topic, str(connector)
    identity, decoder = _DECODERS.get(key, ("", None))
    if decoder is None or identity != table.identity:
        if len(_DECODERS) >= _MOST_DECODERS:
            _DECODERS.clear()
        decoder = Decoder(replace(table.facts, connector=connector))
        _DECODERS[key] = table.identity, decoder
    return decoder


def _buckets(changes: pa.RecordBatch, table: Believed, number: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the changes of each bucket. All changes of a key are in one."""
    if number == 1:
        yield 0, changes
        return
    buckets = _hashes([changes.column(name) for name in table.mirrored.key]) % number
    for bucket in np.unique(buckets):
        yield int(bucket), changes.take(pa.array(np.flatnonzero(buckets == bucket)))


def _buckets_of(events: Sequence[Event], table: Believed, number: int) -> Iterator[tuple[int, Event]]:
    """Yield events, each with the bucket of its key."""
    if number == 1 or not events:
        yield from ((0, each) for each in events)
        return
    key = table.mirrored.key
    columns = [to_arrow([each.key[i] for each in events], table.kinds[name]) for i, name in enumerate(key)]
    for bucket, each in zip(_hashes(columns) % number, events, strict=True):
        yield int(bucket), each


def _hashes(key: Sequence[pa.Array]) -> Indices:
    """Return a number for each key: keys that are equal have the same one."""
    found = np.zeros(len(key[0]), np.uint64)
    for each in key:
        column = without_signs(each)
        if pa.types.is_integer(column.type):
            mine = column.fill_null(0).to_numpy().astype(np.int64).view(np.uint64)
        else:
            mine = _hashes_of_texts(column)
        found = (found ^ mine) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return (found >> np.uint64(2)).astype(np.int64)


def _hashes_of_texts(column: pa.Array) -> Any:
    encoded = column.dictionary_encode()
    values = encoded.dictionary
    octets = values if pa.types.is_binary(values.type) else values.cast(pa.string())
    numbers = [crc32(each.encode() if isinstance(each, str) else each) for each in octets.to_pylist()]
    return np.array(numbers, np.uint64)[encoded.indices.fill_null(0).to_numpy()]
