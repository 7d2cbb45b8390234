"""The stored rows of a bucket's keys: where they are, and of their columns what is asked for.

Of a file, only the columns of the key are read as a whole, a row group at a time, and only where the
statistics of the log and of the Parquet footer leave room for a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakemirror.driver.columns.masks import Indices
from lakemirror.driver.engine import bounds
from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.engine.mirror_files import MirrorFiles
from lakemirror.driver.writer import vectors
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.schema import Column
from lakemirror.driver.writer.stores import Files

In = TypeVar("In")
Out = TypeVar("Out")
_SEQ: Final = "__seq"


@dataclass(frozen=True)
class Part:
    """Some rows of a row group, by their indexes in the file, in their order."""

    file: FileRows
    group: int
    rows: Indices

    def read(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Return columns of the rows."""
        for at, block in self.file.read(names, self.group):
            first, end = np.searchsorted(self.rows, [at, at + block.num_rows])
            if first < end:
                yield block.take(pa.array(self.rows[first:end] - at))


@dataclass(frozen=True)
class StoredRows:
    """The stored rows of some keys. Nothing but their keys is read before it is asked for.

    ``hidden`` are the rows that were hidden before, by the path of each file
    that has one of the rows. A row that is
    known to be older than ``since`` may have another sequence that is older than ``since`` in `column`, but
    has its own in `take`. ``threads`` files are read at a time.
    """

    schema: pa.Schema
    parts: Sequence[Part]
    hidden: Mapping[str, BitMap64]
    since: bytes | None = None
    threads: int = 1
    _loaded: dict[str, pa.Array] = field(default_factory=dict)
    _among: tuple[StoredRows, Indices] | None = None

    @property
    def num_rows(self) -> int:
        return sum(len(each.rows) for each in self.parts)

    def places(self, numbers: Indices) -> dict[str, Indices]:
        """Return where some of the rows are: indexes in files, by the path of the file in the log."""
        found: dict[str, list[Indices]] = {}
        for part, mine in self._by_part(np.sort(numbers)):
            found.setdefault(part.file.add.path, []).append(part.rows[mine])
        return {path: np.concatenate(rows) for path, rows in found.items()}

    def column(self, name: str) -> pa.Array:
        """Return a column of all rows."""
        if name not in self._loaded and self._among is not None:
            others, numbers = self._among
            self._loaded[name] = others.column(name).take(pa.array(numbers))
        if name not in self._loaded:
            kind = self.schema.field(name).type
            read = _each(lambda part: list(self._chunks(part, name, kind)), self.parts, self.threads)
            chunks = [chunk for each in read for chunk in each]
            self._loaded[name] = pa.concat_arrays(chunks) if chunks else pa.array([], kind)
        return self._loaded[name]

    def _chunks(self, part: Part, name: str, kind: pa.DataType) -> Iterator[pa.Array]:
        column = _named(part.file, name)
        if pa.types.is_map(kind) and bounds.has_no_entries(part.file, part.group, column):
            yield _empty_maps(len(part.rows), kind)
            return
        if name == _SEQ and self.since is not None:
            newest = bounds.greatest(part.file, part.group, column)
            if newest is not None and newest < self.since:
                yield pa.repeat(pa.scalar(newest, kind), len(part.rows))
                return
        for each in part.read([name]):
            yield each.column(0)

    def select(self, names: Sequence[str]) -> StoredRows:
        """Return the same rows with some of their columns."""
        schema = pa.schema([self.schema.field(name) for name in names])
        return replace(self, schema=schema)

    def among(self, keys: Mapping[str, pa.Array]) -> StoredRows:
        """Return those of the rows that have one of some keys: what `look_up` would return for them.

        What is read of a column is kept for others: look up the keys of several buckets together, where one
        task has them, and then those of each among them.
        """
        numbers = KeySearch(keys).find([self.column(name) for name in keys])
        parts = [replace(part, rows=part.rows[mine]) for part, mine in self._by_part(numbers)]
        return replace(self, parts=parts, _loaded={}, _among=(self, numbers))

    def take(self, numbers: pa.Array) -> pa.RecordBatch:
        """Return some of the rows with all of their columns, in the order of ``numbers``."""
        wanted, order = np.unique(np.asarray(numbers, np.int64), return_inverse=True)
        names = self.schema.names
        parts = [replace(part, rows=part.rows[mine]) for part, mine in self._by_part(wanted)]
        read = _each(lambda part: list(part.read(names)), parts, self.threads)
        blocks = [
            pa.RecordBatch.from_arrays(block.columns, schema=self.schema) for each in read for block in each
        ]
        if not blocks:
            return _nothing(self.schema)
        return pa.concat_batches(blocks).take(pa.array(order))

    def _by_part(self, numbers: Indices) -> Iterator[tuple[Part, Indices]]:
        """Return for each part which of its rows are among ``numbers``, which are in their order."""
        ends = np.cumsum([len(each.rows) for each in self.parts])
        cuts = np.searchsorted(numbers, [0, *ends])
        for i, part in enumerate(self.parts):
            mine = numbers[cuts[i] : cuts[i + 1]]
            if len(mine):
                yield part, mine - (ends[i] - len(part.rows))


def look_up(
    store: Files,
    mirror: MirrorFiles,
    keys: Mapping[str, pa.Array],
    since: bytes | None = None,
    threads: int = 1,
) -> StoredRows:
    """Return the stored rows of some keys.

    ``keys`` has the columns of the key, in their order and with the types of ``mirror.schema``. Where no
    change is older than ``since``, the sequences of older rows need not be read (see `StoredRows`).
    ``threads`` files are read at a time, which saves time where each request takes some. Raises
    FileNotFoundError for a file that is gone, pa.ArrowInvalid for one that is damaged, and vectors.Damaged.
    """
    for name, values in keys.items():
        if values.type != mirror.schema.field(name).type:
            raise TypeError(f"the key {name} is {mirror.schema.field(name).type}, and not {values.type}")
    search, hidden = KeySearch(keys), _Hidden(store)
    columns = [each for each in mirror.layout.columns if each.name in keys]
    files: list[FileRows] = []
    if len(next(iter(keys.values()))):
        may_have = (each for each in mirror.files if bounds.file_may_have(each, search, columns))
        files = [FileRows(store, add, mirror.layout) for add in may_have]
    read = _each(lambda file: list(_matches(file, search, columns, hidden)), files, threads)
    found = [each for matches in read for each in matches]
    loaded = {}
    for name in keys:
        chunks = [block.column(name) for _, block in found]
        loaded[name] = pa.concat_arrays(chunks) if chunks else pa.array([], mirror.schema.field(name).type)
    return StoredRows(mirror.schema, [part for part, _ in found], hidden.found, since, threads, loaded)


def oldest(changes: pa.RecordBatch) -> bytes | None:
    """Return the least sequence of changes, for `look_up`, or None if there are none."""
    found: bytes | None = pc.min(changes.column(_SEQ)).as_py()
    return found


class _Hidden:
    """The hidden rows of files. A file of vectors, which has those of many, is read once."""

    def __init__(self, store: Files) -> None:
        self.found: dict[str, BitMap64] = {}
        self._store = store
        self._contents: dict[str, bytes] = {}
        self._lock = Lock()

    def of(self, add: Add) -> BitMap64:
        with self._lock:
            if add.path not in self.found:
                self.found[add.path] = vectors.hidden_by(add.vector, self._content)
            return self.found[add.path]

    def _content(self, path: str) -> bytes:
        if path not in self._contents:
            self._contents[path] = self._store.read(path)
        return self._contents[path]


def _matches(
    file: FileRows, search: KeySearch, columns: Sequence[Column], hidden: _Hidden
) -> Iterator[tuple[Part, pa.RecordBatch]]:
    """Return the rows of a file that have one of the keys, by row group, and their keys."""
    with file.kept_open():
        for group in range(file.footer.num_row_groups):
            if not bounds.group_may_have(file, group, search, columns):
                continue
            found: list[Indices] = []
            keys: list[pa.RecordBatch] = []
            for at, block in file.read(search.names, group):
                rows = search.find([block.column(name) for name in search.names])
                if len(rows):
                    rows = _shown(rows, at, hidden.of(file.add))
                    found.append(rows + at)
                    keys.append(block.take(pa.array(rows)))
            if sum(map(len, found)):
                yield Part(file, group, np.concatenate(found)), pa.concat_batches(keys)


def _shown(rows: Indices, at: int, hidden: BitMap64) -> Indices:
    """Return those of a block's rows that are not hidden. The block begins with row ``at`` of its file."""
    if not hidden:
        return rows
    gone = hidden & BitMap64((rows + at).tolist())
    if not gone:
        return rows
    return np.setdiff1d(rows, np.array(gone.to_array(), np.int64) - at, assume_unique=True)


def _each(function: Callable[[In], Out], items: Sequence[In], threads: int) -> list[Out]:
    if threads == 1 or len(items) < 2:
        return [function(each) for each in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


def _named(file: FileRows, name: str) -> Column:
    return next(each for each in file.layout.columns if each.name == name)


def _empty_maps(number: int, kind: pa.MapType) -> pa.Array:
    offsets = pa.array(np.zeros(number + 1, np.int32))
    return pa.MapArray.from_arrays(offsets, pa.array([], kind.key_type), pa.array([], kind.item_type), kind)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], each.type) for each in schema], schema=schema)
