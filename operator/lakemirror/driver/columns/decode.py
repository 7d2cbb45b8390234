"""Blocks of raw records of one table, read in columns.

What is exactly as expected becomes a change in columns. All else is parted off, record by record, and is for
the rules: gaps, changes of keys, truncates, messages, other types than the schema has, members that are
unknown or missing, values that a mirror cannot hold, places that are not plain. No value becomes null, is
rounded or is made another one.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.changes import MOMENT, none, schema_of
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.masks import Indices, Mask, mask_of
from lakemirror.driver.columns.payloads import Payloads, Texts, decoded
from lakemirror.driver.columns.places import Streams, Where, reading_of, times
from lakemirror.driver.columns.raw_records import RawRecords, are_none, chosen
from lakemirror.driver.columns.structs import envelope_struct, row_struct
from lakemirror.driver.columns.wires import Wire, wire_of
from lakemirror.driver.rules.positions import WIDTH

_OF_A_MOVE: Final = pa.array(["__debezium.newkey", "__debezium.oldkey"])
_NO_STREAMS: Final = Streams(pa.nulls(0, pa.string()), pa.nulls(0, pa.string()))
_LARGEST_OFFSET: Final = 2**63 - 2


class Decoded(NamedTuple):
    """What a block of records says.

    ``changes`` are the plain ones (`changes`), ``numbers`` the record of each in the block, and ``streams``
    the stream that each is in. ``tombstones`` are records without a value, which change no row, and ``odd``
    those that are for the rules. If a table cannot be in columns at all (`Facts.are_plain`), all of its
    records are odd, and ``changes`` has none of its columns.
    """

    changes: pa.RecordBatch
    numbers: Indices
    tombstones: Indices
    odd: Indices
    streams: Streams


class Decoder:
    """Reads blocks of records of one table that have one schema, or none."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._kinds = {name: each.kind for name, each in facts.columns.items()}
        if not facts.are_plain:
            self._kinds = {}
            return
        placeholder = facts.settings.placeholder
        self._wires = {name: wire_of(each, placeholder) for name, each in facts.columns.items()}
        self._of_key = {each: wire_of(facts.key.columns[each], placeholder) for each in facts.key.names}
        members = {facts.columns[name].source: each.read_as for name, each in self._wires.items()}
        members |= dict.fromkeys(sorted(facts.left_out - members.keys()), msgspec.Raw)
        row = row_struct(members, are_nullable=True)
        keys = {facts.key.columns[name].source: each.read_as for name, each in self._of_key.items()}
        self._reading = reading_of(facts.connector, facts.table, facts.settings)
        envelope = envelope_struct(row, self._reading.struct)
        self._read_value = msgspec.json.Decoder(envelope).decode
        self._read_key = msgspec.json.Decoder(row_struct(keys, are_nullable=False)).decode
        self._nothing = row(*[None] * len(members))
        self._values, self._keys = Payloads(facts.schema), Payloads(facts.key_schema)

    def decode(self, block: RawRecords) -> Decoded:
        """Return what the records of a block say."""
        is_tombstone = are_none(block.values)
        plain = ~is_tombstone & _are_usual(block) & self._facts.are_plain
        with without_collecting():
            changes, numbers, streams = self._changes(block, np.flatnonzero(plain))
        odd = ~is_tombstone
        odd[numbers] = False
        return Decoded(changes, numbers, np.flatnonzero(is_tombstone), np.flatnonzero(odd), streams)

    def _changes(self, block: RawRecords, numbers: Indices) -> tuple[pa.RecordBatch, Indices, Streams]:
        if not len(numbers):
            return none(self._kinds), numbers, _NO_STREAMS
        values, keys = (_some(texts, numbers) for texts in (block.values, block.keys))
        events = decoded(self._values.of(values), self._read_value)
        keyed = decoded(self._keys.of(keys), self._read_key)
        if None in events or None in keyed:
            there = [i for i, each in enumerate(events) if each is not None and keyed[i] is not None]
            events, keyed = [events[i] for i in there], [keyed[i] for i in there]
            numbers = numbers[there]
        if not events:
            return none(self._kinds), numbers, _NO_STREAMS
        return self._columns(block, numbers, events, keyed)

    def _columns(
        self, block: RawRecords, numbers: Indices, events: list[Any], keyed: list[Any]
    ) -> tuple[pa.RecordBatch, Indices, Streams]:
        ops = pa.array(map(attrgetter("op"), events), pa.string())
        deletes = mask_of(pc.equal(ops, "d"))
        rows = [each.after for each in events]
        odd: Mask = np.fromiter((each is None for each in rows), np.bool_, len(rows)) != deletes
        if deletes.any() or odd.any():
            rows = [self._nothing if each is None else each for each in rows]
        columns, wrong = _arrays(rows, self._wires)
        of_key, wrong_keys = _arrays(keyed, self._of_key)
        odd[[*wrong, *wrong_keys]] = True
        for name, column in of_key.items():
            odd |= _is_unlike(column, columns[name], deletes)
            columns[name] = column
        topics = block.column("topic").take(pa.array(numbers))
        partitions, offsets = (_numbers(block.column(name), numbers) for name in ("partition", "offset"))
        sources = [each.source for each in events]
        where = Where(mask_of(pc.equal(ops, "r")), topics.to_pylist(), partitions, offsets)
        places = self._reading.places(sources, where, self._facts.settings)
        micros, untimed = times(sources)
        odd |= places.odd | untimed
        meta = [
            pa.FixedSizeBinaryArray.from_buffers(
                pa.binary(WIDTH), len(events), [None, pa.py_buffer(np.ascontiguousarray(places.seqs))]
            ),
            ops,
            micros.view(MOMENT),
            topics.cast(pa.string()),
            pa.array(partitions, pa.int32()),
            pa.array(offsets, pa.int64()),
            places.logs,
        ]
        found = pa.RecordBatch.from_arrays([*columns.values(), *meta], schema=schema_of(self._kinds))
        streams = self._reading.streams(sources, self._facts.settings.ordering.by)
        if not odd.any():
            return found, numbers, streams
        plain = pa.array(~odd)
        return found.filter(plain), numbers[~odd], Streams(*[each.filter(plain) for each in streams])


def _arrays(rows: Sequence[Any], wires: Mapping[str, Wire]) -> tuple[dict[str, pa.Array], list[int]]:
    """Return the columns of rows, and the rows that have an odd value."""
    columns: dict[str, pa.Array] = {}
    odd: list[int] = []
    for i, (name, wire) in enumerate(wires.items()):
        columns[name], wrong = wire.convert(list(map(attrgetter(f"c{i}"), rows)))
        odd += wrong
    return columns, odd


def _is_unlike(key: pa.Array, column: pa.Array, deletes: Mask) -> Mask:
    """Return where a part of a key is null, is not a number, or differs from what the row has."""
    alike = mask_of(pc.equal(key, column).fill_null(False))
    if key.type in (pa.float32(), pa.float64()):
        zero = mask_of(pc.equal(key, 0.0).fill_null(False))
        alike &= ~zero | (np.signbit(key.fill_null(0)) == np.signbit(column.fill_null(0)))
        return ~(alike | deletes) | mask_of(pc.is_null(key, nan_is_null=True))
    return ~(alike | deletes) | mask_of(key.is_null())


def _are_usual(block: RawRecords) -> Mask:
    """Return which records are text with a key, were read from a topic, and have no headers of a move."""
    usual = block.are_utf8 & ~are_none(block.keys)
    for name in ("topic", "partition", "offset"):
        usual &= mask_of(block.column(name).is_valid())
    partitions, offsets = block.column("partition"), block.column("offset")
    usual &= mask_of(pc.greater_equal(partitions, 0).fill_null(False))
    within = pc.and_(pc.greater_equal(offsets, 0), pc.less_equal(offsets, _LARGEST_OFFSET))
    usual &= mask_of(within.fill_null(False))
    if "headers" in block.columns.schema.names:
        headers = block.column("headers")
        named = pc.is_in(headers.flatten().field("key"), value_set=_OF_A_MOVE)
        usual[pc.list_parent_indices(headers).filter(named).to_numpy()] = False
    return usual


def _some(texts: Texts, numbers: Indices) -> Texts:
    return texts if len(numbers) == len(texts) else chosen(texts, numbers)


def _numbers(column: pa.Array, numbers: Indices) -> Any:
    return column.take(pa.array(numbers)).to_numpy()


@contextmanager
def without_collecting() -> Iterator[None]:
    """Let no garbage be collected: records become very many objects that live for a moment, in no cycle."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
