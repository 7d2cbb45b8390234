"""The images of rows that have changed their keys, which are stored with the tombstones beside a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.changes import key_of
from lakemirror.driver.columns.masks import Mask, mask_of
from lakemirror.driver.engine import bounds
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.engine.stored_ends import (
    MOVED,
    ORIGIN_NAMES,
    TombstoneFiles,
    facts,
    require_others,
    rows_of,
    texts_of_keys,
)
from lakemirror.driver.rules.keys import decode, decode_row, encode, encode_row
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.rules.moves import Image, Move
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin, own
from lakemirror.driver.rules.values import Key, Said
from lakemirror.driver.tables.columns import SENT
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.stores import Files

_ENDS: Final = ("kind", "key", "new_key")
_OF_MOVES: Final = (*_ENDS, "seq", *ORIGIN_NAMES, "image", "seqs", "batch")
_SEQS: Final = pa.map_(pa.string(), pa.binary())


def stored_images(
    store: Files,
    ends: TombstoneFiles,
    of: pa.RecordBatch,
    kinds: Mapping[str, Kind],
    key: Sequence[str],
    tracked: Sequence[str],
) -> list[Image]:
    """Return the images of all rows that came to one of some keys, or left it, over any number of moves.

    ``of`` has the columns of the keys, ``tracked`` are the columns that images have. A move may have several
    images. Raises ValueError if some are of the batch itself, and the errors of `rules.keys.decode`.
    """
    files = [add for add in ends.files if of.num_rows and _may_have_moves(add, ends)]
    told = [(add, rows) for add in files for rows in _moves(store, add, ends, _ENDS)]
    if not told:
        return []
    keys = _connected(pa.concat_batches([rows for _, rows in told]), texts_of_keys(of, kinds, key))
    chosen = {add.path for add, rows in told if _are_of(rows, keys).any()}
    found = [
        rows.filter(pa.array(_are_of(rows, keys)))
        for add in files
        if add.path in chosen
        for rows in _moves(store, add, ends, _OF_MOVES)
    ]
    for rows in found:
        require_others(rows, ends)
    of_key, of_row = ({name: kinds[name] for name in names} for names in (key, tracked))
    return [_image(row, key, of_key, of_row) for rows in found for row in rows.to_pylist()]


def _may_have_moves(add: Add, ends: TombstoneFiles) -> bool:
    assert ends.layout is not None
    column = next(each for each in ends.layout.columns if each.name == "kind")
    return bounds.file_may_have(add, KeySearch({"kind": pa.array([MOVED])}), [column])


def _moves(store: Files, add: Add, ends: TombstoneFiles, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    assert ends.layout is not None
    for rows in rows_of(store, add, ends.layout, names):
        moved = mask_of(pc.equal(rows.column("kind"), MOVED).fill_null(False))
        if moved.any():
            yield rows.filter(pa.array(moved))


def _connected(moves: pa.RecordBatch, keys: pa.Array) -> pa.Array:
    """Return the keys, and all those that moves connect with them."""
    found = keys.unique()
    while True:
        mine = moves.filter(pa.array(_are_of(moves, found)))
        parts = [found, mine.column("key"), mine.column("new_key")]
        more = pa.concat_arrays(parts).unique()
        if len(more) == len(found):
            return found
        found = more


def _are_of(moves: pa.RecordBatch, keys: pa.Array) -> Mask:
    former, new = (mask_of(pc.is_in(moves.column(name), value_set=keys)) for name in ("key", "new_key"))
    return former | new


def _image(
    row: Mapping[str, Any], key: Sequence[str], of_key: Mapping[str, Kind], of_row: Mapping[str, Kind]
) -> Image:
    """Return an image as `reduce.moves.images` reads it: a column that it lacks was null then."""
    seq: bytes = row["seq"]
    seqs = dict(row["seqs"] or ())
    unanchored = seqs.pop(SENT, None) is not None
    origin = Origin(*(row[name] for name in ORIGIN_NAMES)) if unanchored else NO_ORIGIN
    former, new = (_key(row[name], key, of_key) for name in ("key", "new_key"))
    values = decode_row(row["image"], of_row)
    said = {name: Said(values[name], seqs.get(name, own(seq))) for name in of_row}
    return Image(Move(former, seq, new, unanchored, origin), said, is_new=False)


def _key(text: str, key: Sequence[str], kinds: Mapping[str, Kind]) -> Key:
    found = decode(text, kinds)
    return key_of([found[name] for name in key])


def as_facts(images: Sequence[Image], kinds: Mapping[str, Kind], key: Sequence[str]) -> pa.RecordBatch:
    """Return images as rows of the table of tombstones (`tables.tombstones`)."""
    of_key = {name: kinds[name] for name in key}

    def text_of(values: Key) -> str:
        return encode(dict(zip(key, values, strict=True)), of_key)

    moves = [each.move for each in images]
    origins = [each.origin if each.unanchored else NO_ORIGIN for each in moves]
    given = {
        "kind": pa.array([MOVED] * len(images), pa.string()),
        "key": pa.array([text_of(each.key) for each in moves], pa.string()),
        "seq": pa.array([each.seq for each in moves], pa.binary()),
        "topic": pa.array([each.topic for each in origins], pa.string()),
        "partition": pa.array([each.partition for each in origins], pa.int32()),
        "offset": pa.array([each.offset for each in origins], pa.int64()),
        "new_key": pa.array([text_of(each.new_key) for each in moves], pa.string()),
        "image": pa.array([_row(each, kinds) for each in images], pa.string()),
        "seqs": pa.array(map(_entries, images), _SEQS),
    }
    return facts(given, len(images))


def _row(image: Image, kinds: Mapping[str, Kind]) -> str:
    values = {name: said.value for name, said in image.said.items()}
    return encode_row(values, {name: kinds[name] for name in values})


def _entries(image: Image) -> list[tuple[str, bytes]]:
    sent = [(SENT, image.move.seq)] if image.move.unanchored else []
    return [*((name, said.seq) for name, said in image.said.items()), *sent]
