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
from lakemirror.driver.columns.kinds import to_values
from lakemirror.driver.columns.masks import mask_of
from lakemirror.driver.columns.sequences import Sequences
from lakemirror.driver.columns.stored import ORIGIN, tombstones_schema
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import BIGINT, INT, SMALLINT, STRING, TINYINT, Kind
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
_ESCAPED: Final = r'["\\\x00-\x1f]'
"""Characters that JSON escapes (`rules.keys.to_json`)."""
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
    store: Files, ends: TombstoneFiles, of: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]
) -> pa.RecordBatch:
    """Return the newest tombstone of each key in ``of``, which has the columns of the key (`columns.stored`).

    Raises ValueError if some are of the batch itself: they would count its deletes as repeated.
    """
    texts = texts_of_keys(of, kinds, key)
    parts = []
    layout = ends.layout
    if layout is not None and len(texts):
        for rows in (block for add in ends.files for block in rows_of(store, add, layout, _OF_DELETES)):
            mine = mask_of(pc.equal(rows.column("kind"), DELETED).fill_null(False))
            mine &= mask_of(pc.is_in(rows.column("key"), value_set=texts))
            if mine.any():
                parts.append(rows.filter(pa.array(mine)))
    if not parts:
        return pa.RecordBatch.from_pylist([], tombstones_schema(kinds, key))
    found = pa.concat_batches(parts)
    require_others(found, ends)
    return _newest(found, of.take(pc.index_in(found.column("key"), value_set=texts)), kinds, key)


def require_others(found: pa.RecordBatch, ends: TombstoneFiles) -> None:
    """Raise ValueError if some facts are of the batch that is applied."""
    if ends.batch is not None and mask_of(pc.equal(found.column("batch"), ends.batch).fill_null(False)).any():
        raise ValueError("the batch has written its tombstones before")


ORIGIN_NAMES: Final = ("topic", "partition", "offset")
_OF_DELETES: Final = ("kind", "key", "seq", "event_time", *ORIGIN_NAMES, "batch")


def rows_of(store: Files, add: Add, layout: Layout, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns of the rows of a file that are not hidden."""
    file = FileRows(store, add, layout)
    with file.kept_open():
        yield from file.shown(names, vectors.hidden_by(add.vector, store.read))


def texts_of_keys(found: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]) -> pa.Array:
    """Return the text of each key (`rules.keys.encode`), which are in the columns of a block."""
    plain = [_plain_texts(found.column(name), kinds[name]) for name in sorted(key)]
    parts = [each for each in plain if each is not None]
    if len(parts) == len(plain):
        inner = pc.binary_join_element_wise(*parts, '","')
        return pc.binary_join_element_wise('["', inner, '"]', "")
    mine = {name: kinds[name] for name in key}
    rows = zip(*(to_values(found.column(name), kinds[name]) for name in key), strict=True)
    return pa.array([encode(dict(zip(key, each, strict=True)), mine) for each in rows], pa.string())


def _plain_texts(column: pa.Array, kind: Kind) -> pa.Array | None:
    """Return the texts of a part of keys in JSON, without quotes; None for what takes more to write."""
    if column.null_count:
        return None
    if kind in (TINYINT, SMALLINT, INT, BIGINT):
        return column.cast(pa.string())
    if kind == STRING and not mask_of(pc.match_substring_regex(column, _ESCAPED)).any():
        return column
    return None


def _newest(
    rows: pa.RecordBatch, of: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]
) -> pa.RecordBatch:
    """Return the newest of some tombstones of each key. ``of`` has the columns of their keys."""
    numbers = rows.column("key").dictionary_encode().indices.to_numpy().astype(np.int64)
    origins = pa.StructArray.from_arrays([rows.column(each) for each in ORIGIN_NAMES], fields=list(ORIGIN))
    stood = pa.RecordBatch.from_arrays([rows.column("seq"), origins], names=["__seq", "__origin"])
    order = Sequences.of_stored(stood).order(numbers)
    ordered = numbers[order]
    chosen = pa.array(order[ends_of_runs(ordered)])
    columns = [of.column(name).take(chosen) for name in key]
    columns += [each.take(chosen) for each in (rows.column("seq"), rows.column("event_time"), origins)]
    return pa.RecordBatch.from_arrays(columns, schema=tombstones_schema(kinds, key))


def as_rows(found: pa.RecordBatch, kinds: Mapping[str, Kind], key: Sequence[str]) -> pa.RecordBatch:
    """Return tombstones as rows of their table, of which `recorded` says when and by which batch."""
    given = {
        "kind": pa.array([DELETED] * found.num_rows, pa.string()),
        "key": texts_of_keys(found, kinds, key),
        "seq": found.column("__seq"),
        "event_time": found.column("__event_time"),
        **dict(zip(ORIGIN_NAMES, found.column("__origin").flatten(), strict=True)),
    }
    return facts(given, found.num_rows)


def facts(given: Mapping[str, pa.Array], number: int) -> pa.RecordBatch:
    """Return rows of the table of tombstones. Columns that are not given are null."""
    arrays = [given.get(each.name, pa.nulls(number, each.type)) for each in ROWS]
    return pa.RecordBatch.from_arrays(arrays, schema=ROWS)


def recorded(rows: pa.RecordBatch, now: int, batch: int) -> pa.RecordBatch:
    """Return facts that a batch records ``now`` (microseconds since 1970)."""
    given = {
        "at": pa.array([now] * rows.num_rows, pa.int64()).view(MOMENT),
        "batch": pa.array([batch] * rows.num_rows, pa.int64()),
    }
    columns = [given.get(name, rows.column(name)) for name in rows.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)
