"""The tombstones beside a mirror: those of some keys, and new ones as rows of their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.changes import MOMENT
from lakemirror.driver.columns.key_codes import ends_of_runs
from lakemirror.driver.columns.kinds import to_arrow, to_values
from lakemirror.driver.columns.masks import mask_of
from lakemirror.driver.columns.sequences import Sequences
from lakemirror.driver.columns.stored import ORIGIN, tombstones_schema
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.writer import vectors
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.stores import Files

ROWS: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("key", pa.string()),
        ("seq", pa.binary()),
        ("at", MOMENT),
        ("event_time", MOMENT),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("new_key", pa.string()),
        ("image", pa.string()),
        ("seqs", pa.map_(pa.string(), pa.binary())),
        ("batch", pa.int64()),
    ]
)
"""The schema of the table of tombstones (`tables.tombstones.TYPES`)."""
DELETED: Final = "deleted"
MOVED: Final = "moved"
"""Kinds of facts (`tables.tombstones`)."""
TOMBSTONES: Final = "_tombstones"
"""The folder of the table of tombstones in that of its mirror."""


@dataclass(frozen=True)
class TombstoneFiles:
    """The table of the tombstones of a mirror: the files that it has. There are none without one.

    ``batch`` is the number of the batch that is applied. Its own tombstones are there if it failed after they
    were written.
    """

    layout: Layout | None = None
    files: tuple[Add, ...] = ()
    batch: int | None = None


def stored_ends(
    store: Files, ends: TombstoneFiles, changes: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]
) -> pa.RecordBatch:
    """Return the newest tombstone of each key of some changes (`columns.stored`).

    Raises ValueError if some are of the batch itself: they would count its deletes as repeated.
    """
    keys = dict(_keys_by_text(changes, kinds, key))
    texts = pa.array(list(keys), pa.string())
    parts = []
    layout = ends.layout
    if layout is not None:
        for rows in (block for add in ends.files for block in _rows_of(store, add, layout)):
            mine = mask_of(pc.equal(rows.column("kind"), DELETED).fill_null(False))
            mine &= mask_of(pc.is_in(rows.column("key"), value_set=texts))
            if mine.any():
                parts.append(rows.filter(pa.array(mine)))
    if not parts:
        return pa.RecordBatch.from_pylist([], tombstones_schema(kinds, key))
    found = pa.concat_batches(parts)
    if ends.batch is not None and mask_of(pc.equal(found.column("batch"), ends.batch).fill_null(False)).any():
        raise ValueError("the batch has written its tombstones before")
    return _newest(found, keys, kinds, key)


def any_moved(
    store: Files,
    ends: TombstoneFiles,
    changes: pa.RecordBatch,
    kinds: Mapping[str, Kind],
    key: Sequence[str],
) -> bool:
    """Return whether a row came to the key of one of some changes, or left it, by a change of its key."""
    texts = pa.array([text for text, _ in _keys_by_text(changes, kinds, key)], pa.string())
    names = ("kind", "key", "new_key")
    for add in ends.files if ends.layout is not None else ():
        assert ends.layout is not None
        for rows in _rows_of(store, add, ends.layout, names):
            moved = mask_of(pc.equal(rows.column("kind"), MOVED).fill_null(False))
            here = [mask_of(pc.is_in(rows.column(name), value_set=texts)) for name in names[1:]]
            if (moved & (here[0] | here[1])).any():
                return True
    return False


ORIGIN_NAMES: Final = ("topic", "partition", "offset")
_OF_DELETES: Final = ("kind", "key", "seq", "event_time", *ORIGIN_NAMES, "batch")


def _rows_of(
    store: Files, add: Add, layout: Layout, names: Sequence[str] = _OF_DELETES
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that are not hidden."""
    file = FileRows(store, add, layout)
    with file.kept_open():
        yield from file.shown(names, vectors.hidden_by(add.vector, store.read))


def _keys_by_text(
    found: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]
) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Yield the text of the key of each change or tombstone, and the key."""
    columns = [to_values(found.column(name), kinds[name]) for name in key]
    mine = {name: kinds[name] for name in key}
    for each in zip(*columns, strict=True):
        yield encode(dict(zip(key, each, strict=True)), mine), each


def _newest(
    rows: pa.RecordBatch,
    keys: Mapping[str, tuple[object, ...]],
    kinds: Mapping[str, Kind],
    key: Sequence[str],
) -> pa.RecordBatch:
    numbers = rows.column("key").dictionary_encode().indices.to_numpy().astype(np.int64)
    origins = pa.StructArray.from_arrays([rows.column(each) for each in ORIGIN_NAMES], fields=list(ORIGIN))
    stood = pa.RecordBatch.from_arrays([rows.column("seq"), origins], names=["__seq", "__origin"])
    order = Sequences.of_stored(stood).order(numbers)
    ordered = numbers[order]
    chosen = pa.array(order[ends_of_runs(ordered)])
    named = [keys[each] for each in rows.column("key").take(chosen).to_pylist()]
    columns = [to_arrow([each[i] for each in named], kinds[name]) for i, name in enumerate(key)]
    columns += [each.take(chosen) for each in (rows.column("seq"), rows.column("event_time"), origins)]
    return pa.RecordBatch.from_arrays(columns, schema=tombstones_schema(kinds, key))


def as_rows(
    found: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str], now: int, batch: int
) -> pa.RecordBatch:
    """Return tombstones as rows of their table, recorded ``now`` (microseconds since 1970) by a batch."""
    number = found.num_rows
    texts = [text for text, _ in _keys_by_text(found, kinds, key)]
    given = {
        "kind": pa.array([DELETED] * number, pa.string()),
        "key": pa.array(texts, pa.string()),
        "seq": found.column("__seq"),
        "at": pa.array([now] * number, pa.int64()).view(MOMENT),
        "event_time": found.column("__event_time"),
        **dict(zip(ORIGIN_NAMES, found.column("__origin").flatten(), strict=True)),
        "batch": pa.array([batch] * number, pa.int64()),
    }
    arrays = [given.get(each.name, pa.nulls(number, each.type)) for each in ROWS]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)
