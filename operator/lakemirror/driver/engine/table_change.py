"""From what a fold says to what happens to a table: added files, hidden rows, and files that are taken out.

In a mirror with deletion vectors, rows are hidden, unless their files are so small that it is no more work to
rewrite them. In another one, files are rewritten as long as they are small, so that a small mirror needs no
feature that some readers lack. Files most of whose rows are hidden are rewritten, and many small files become
one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, takewhile
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakemirror.driver.columns.fold import Folded
from lakemirror.driver.columns.key_codes import key_codes
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.engine.mirror_files import MirrorFiles, hidden_in, path_of
from lakemirror.driver.engine.stored_rows import StoredRows
from lakemirror.driver.writer import stores, vectors
from lakemirror.driver.writer.actions import Add, Transaction
from lakemirror.driver.writer.data_files import data_files
from lakemirror.driver.writer.schema import arrow_schema
from lakemirror.driver.writer.stores import Files
from lakemirror.driver.writer.transaction import Change

SMALL: Final = 8 * 1024 * 1024
"""Maximum size, in bytes, of files that are rewritten together in a mirror without vectors."""
_LITTLE: Final = 1024 * 1024
"""Maximum size, in bytes, of files that are rewritten together although rows may be hidden."""
_SCRAP, _SCRAP_ROWS = 4 * 1024 * 1024, 100_000
"""Size in bytes and number of rows below which a file is a scrap."""
_FEW: Final = 24
"""Maximum number of scraps in a table. When there are more, they are combined."""
_WORTHWHILE: Final = 4
"""Minimum number of files that are worth combining."""
_DEAD: Final = 0.5
"""Share of hidden rows above which a file is rewritten."""
_IN_MEMORY: Final = 96 * 1024 * 1024
"""Size in memory, in bytes, at which rows become a file, and of scraps that are combined."""
_UNPACKED: Final = 2
"""Rows are this many times larger in memory than in an uncompressed file: a guess."""
_PLACE: Final = 4.0
"""How many bytes an array takes for each of its values, if they have no fixed size."""
_LARGE: Final = "lakemirror.large"
"""A tag of files whose rows take at least half of `_IN_MEMORY`.

Rows with many nulls, or with long texts that repeat, take so little space in a file that its size does not
show that. Combined with others, such files would become as many files again, in each batch.
"""


class NeedsVectors(ValueError):
    """Rows of large files, or of several buckets, are to be hidden: the mirror needs deletion vectors."""


@dataclass(frozen=True)
class TableChange:
    """What happens to a table at ``version``. The added files are stored; nothing reads them before a commit.

    ``hidden`` are all hidden rows of files in which rows are hidden, by their path in the log, with those
    that were hidden before. ``removed`` are the paths of files that are taken out.
    """

    version: int
    added: tuple[Add, ...] = ()
    removed: frozenset[str] = frozenset()
    hidden: Mapping[str, BitMap64] = field(default_factory=dict)
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rearranges: bool = False
    """Whether all rows stay the same."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.hidden)

    def commit(self, transactions: Sequence[Transaction]) -> Change:
        """Return it as a commit with the marks of a batch."""
        return Change(
            removed=self.removed,
            hidden=self.hidden,
            transactions=transactions,
            added=self.added,
            rearranges=self.rearranges,
        )


def together(changes: Sequence[TableChange]) -> TableChange:
    """Return what several buckets of one table do to it.

    Raises ValueError if there are none, if they are of different versions, or if one of several takes files
    out: a file has rows of other buckets as well.
    """
    if len({each.version for each in changes}) != 1:
        raise ValueError("the changes of a table are of one version of it")
    if len(changes) > 1 and any(each.removed for each in changes):
        raise ValueError("files are only taken out where all keys of a batch are in one bucket")
    hidden: dict[str, BitMap64] = {}
    for each in changes:
        for path, rows in each.hidden.items():
            hidden[path] = hidden[path] | rows if path in hidden else rows
    return TableChange(
        changes[0].version,
        tuple(add for each in changes for add in each.added),
        frozenset(path for each in changes for path in each.removed),
        hidden,
        sum(each.inserted for each in changes),
        sum(each.updated for each in changes),
        sum(each.deleted for each in changes),
    )


def discard(store: Files, changes: Iterable[TableChange]) -> None:
    """Delete the files of changes that are known not to be in the log, and never to be (`stores.discard`)."""
    for each in changes:
        _delete(store, each.added)


def change_of(
    store: Files,
    mirror: MirrorFiles,
    stored: StoredRows,
    folded: Folded,
    key: Sequence[str],
    now: int,
    *,
    whole: bool,
    new_id: Callable[[], UUID] = uuid.uuid4,
) -> TableChange:
    """Carry out a fold: store the new files, and return what happens to the table.

    ``stored`` are the rows that the fold has seen, and ``key`` are the columns of the key. ``now`` is in ms
    since 1970. ``whole`` says that all keys of the batch are in this bucket: only then files are rewritten.
    Raises NeedsVectors, and ValueError if files must be rewritten and are touched by one bucket of several.
    If an error is raised, no file of the change is left.
    """
    hidden = {
        path: stored.hidden[path] | BitMap64(rows.tolist())
        for path, rows in stored.places(folded.hidden).items()
    }
    _require_means(mirror, hidden, whole=whole)
    anew = _anew(store, mirror, hidden) if whole else []
    added = _written(store, mirror, folded.rows, anew, hidden, now, new_id)
    removed = frozenset(each.path for each in anew)
    left = {path: rows for path, rows in hidden.items() if path not in removed}
    updated = _in_both(folded, stored, key)
    inserted, deleted = folded.rows.num_rows - updated, len(folded.hidden) - updated
    return TableChange(mirror.version, added, removed, left, inserted, updated, deleted)


def _in_both(folded: Folded, stored: StoredRows, key: Sequence[str]) -> int:
    """Return how many of the rows that go away come back with other values."""
    if not len(folded.hidden) or not folded.rows.num_rows:
        return 0
    new = [folded.rows.column(name) for name in key]
    old = [stored.column(name).take(pa.array(folded.hidden)) for name in key]
    (mine, theirs), _ = key_codes([new, old])
    return len(np.intersect1d(mine, theirs))


# -- which files are rewritten ----------------------------------------------------------------------------


def is_untidy(mirror: MirrorFiles) -> bool:
    """Return whether a mirror has many scraps, or a file most of whose rows are hidden."""
    is_worn = any(hidden_in(each) > _dead(each) for each in mirror.files)
    return is_worn or len(_scraps(mirror, mirror.files)) > _FEW


def tidied(
    store: Files, mirror: MirrorFiles, now: int, new_id: Callable[[], UUID] = uuid.uuid4
) -> TableChange:
    """Rewrite files of an untidy mirror, whose rows stay the same: for one that several buckets change."""
    worn = {each.path for each in mirror.files if hidden_in(each) > _dead(each)}
    anew = _with_scraps(store, mirror, worn)
    nothing = pa.RecordBatch.from_pylist([], mirror.schema)
    added = _written(store, mirror, nothing, anew, {}, now, new_id)
    return TableChange(mirror.version, added, frozenset(each.path for each in anew), rearranges=True)


def _require_means(mirror: MirrorFiles, hidden: Mapping[str, BitMap64], *, whole: bool) -> None:
    if not hidden or mirror.may_hide:
        return
    if mirror.must_rewrite and not whole:
        raise ValueError("all keys of a mirror that must not have deletion vectors have to be in one bucket")
    size = sum(each.size for each in mirror.files if each.path in hidden)
    if not mirror.must_rewrite and not (whole and size <= SMALL):
        raise NeedsVectors(f"rows of {len(hidden)} files with {size} bytes are to be hidden")


def _anew(store: Files, mirror: MirrorFiles, hidden: Mapping[str, BitMap64]) -> list[Add]:
    """Return the files to rewrite, if these rows are hidden."""
    touched, width = [each for each in mirror.files if each.path in hidden], _least_width(mirror)
    are_little = sum(each.size for each in touched) <= _LITTLE
    if not mirror.may_hide or (are_little and not any(_is_large(each, width) for each in touched)):
        chosen = {each.path for each in touched}
    else:
        chosen = {each.path for each in touched if len(hidden[each.path]) > _dead(each)}
    return _with_scraps(store, mirror, chosen)


def _with_scraps(store: Files, mirror: MirrorFiles, chosen: Collection[str]) -> list[Add]:
    """Return the chosen files, and if there are many scraps beside them, as many as fit into memory."""
    scraps = _scraps(mirror, (each for each in mirror.files if each.path not in chosen))
    more: list[str] = []
    if len(scraps) > _FEW:
        sizes = accumulate(_memory_of(store, mirror, each) for each in scraps)
        fitting = takewhile(lambda each: each[1] <= _IN_MEMORY, zip(scraps, sizes, strict=False))
        more = [each.path for each, _ in fitting]
    paths = {*chosen, *(more if len(more) >= _WORTHWHILE else ())}
    return [each for each in mirror.files if each.path in paths]


def _scraps(mirror: MirrorFiles, files: Iterable[Add]) -> list[Add]:
    """Return the files that are so small that many of them are better one, the smallest first."""
    width = _least_width(mirror)
    small = (each for each in files if each.size < _SCRAP and (each.rows or 0) < _SCRAP_ROWS)
    return sorted((each for each in small if not _is_large(each, width)), key=lambda each: each.size)


def _is_large(file: Add, width: float) -> bool:
    """Return whether rows of at least this width take much memory, however small their file is."""
    return _LARGE in (file.more.get("tags") or {}) or 2 * width * (file.rows or 0) >= _IN_MEMORY


def _memory_of(store: Files, mirror: MirrorFiles, file: Add) -> float:
    """Return about how many bytes the rows of a file take in memory."""
    unpacked = FileRows(store, file, mirror.layout).unpacked
    return max(_UNPACKED * unpacked, _least_width(mirror) * (file.rows or 0))


def _least_width(mirror: MirrorFiles) -> float:
    """Return how many bytes a row takes in memory at least, if all of its values are null."""
    return sum(_width_of(each.type) for each in arrow_schema(mirror.layout.columns))


def _width_of(kind: pa.DataType) -> float:
    if pa.types.is_struct(kind):
        return sum(_width_of(each.type) for each in kind)
    try:
        return float(kind.bit_width / 8)
    except ValueError:  # texts, arrays and maps have places in their order
        return _PLACE


def _dead(file: Add) -> float:
    """Return how many hidden rows of a file are too many."""
    return _DEAD * (file.rows or 0)


# -- new files --------------------------------------------------------------------------------------------


def _written(
    store: Files,
    mirror: MirrorFiles,
    rows: pa.RecordBatch,
    anew: Sequence[Add],
    hidden: Mapping[str, BitMap64],
    now: int,
    new_id: Callable[[], UUID],
) -> tuple[Add, ...]:
    """Store new rows, and what is left of rewritten files."""
    schema = arrow_schema(mirror.layout.columns)
    added: list[Add] = []
    try:
        for table in _tables(_blocks(store, mirror, rows, anew, hidden, schema), schema):
            more = {"tags": {_LARGE: "true"}} if 2 * table.nbytes >= _IN_MEMORY else {}
            for file, add in data_files(table, mirror.layout, now, new_id):
                added.append(replace(add, more=more))  # before it is written: half of it may be there
                store.write(file)
    except BaseException:
        _delete(store, added)
        raise
    return tuple(added)


def _blocks(
    store: Files,
    mirror: MirrorFiles,
    rows: pa.RecordBatch,
    anew: Iterable[Add],
    hidden: Mapping[str, BitMap64],
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_arrays([rows.column(name) for name in schema.names], schema=schema)
    for add in anew:
        gone = hidden.get(add.path)
        if gone is None:
            gone = vectors.hidden_by(add.vector, store.read)
        if len(gone) == add.rows:
            continue
        file = FileRows(store, add, mirror.layout)
        with file.kept_open():
            yield from file.shown(schema.names, gone)


def _tables(blocks: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Put blocks together to tables of a limited size in memory."""
    held: list[pa.RecordBatch] = []
    size = 0
    for block in blocks:
        held.append(block)
        size += block.nbytes
        if size >= _IN_MEMORY:
            yield pa.Table.from_batches(held, schema)
            held, size = [], 0
    yield pa.Table.from_batches(held, schema)


def _delete(store: Files, added: Collection[Add]) -> None:
    stores.discard(store, map(path_of, added))
