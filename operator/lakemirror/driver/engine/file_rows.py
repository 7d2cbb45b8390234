"""The rows of a data file, read by row group, with the names and types that the table has now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap64

from lakemirror.driver.columns.masks import Indices
from lakemirror.driver.engine.mirror_files import path_of
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.schema import Column, Group, ListOf, MapOf, Type, arrow_schema
from lakemirror.driver.writer.stores import Files, Opened

_FEW, _MANY = 1 << 18, 1 << 15
"""How many rows are read at a time: of at most eight columns, and of more."""
_FEW_COLUMNS: Final = 8
_WHOLE: Final = 1 << 12
"""How many whole rows are read at a time. Their texts may be long, and in the file only once."""
_HYBRID: Final = frozenset((b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"))
"""What the footers of files say that Spark has written with a rebase mode of LEGACY (`DataSourceUtils`)."""
_FIRST_DAY: Final = -141_427
_FIRST_MICROS: Final = -2_177_452_800_000_000
"""From here on, days (since 1582-10-15) and times (since 1901) are the same in both calendars of Spark."""


class OtherCalendar(ValueError):
    """A file has days or times in a calendar that only Spark reads."""


@dataclass(frozen=True)
class FileRows:
    """The rows of a data file of a table. It is open while something is read, or while it is `kept_open`."""

    store: Files
    add: Add
    layout: Layout
    _open: list[_Reading] = field(default_factory=list, compare=False)

    @cached_property
    def footer(self) -> pq.FileMetaData:
        known = self.store.footer(self._path)
        if known is not None:
            return known
        with self._opened() as opened:
            return opened.parquet.metadata

    @property
    def _path(self) -> str:
        return path_of(self.add)

    @property
    def unpacked(self) -> int:
        """How many bytes the file has without compression."""
        groups = (self.footer.row_group(i) for i in range(self.footer.num_row_groups))
        return sum(int(each.total_byte_size) for each in groups)

    @cached_property
    def starts(self) -> Indices:
        """The index of the first row of each row group, and the number of all rows."""
        numbers = [self.footer.row_group(i).num_rows for i in range(self.footer.num_row_groups)]
        return np.cumsum([0, *numbers])

    @cached_property
    def leaves(self) -> Mapping[str, int]:
        """The numbers of the columns in the footer, by their paths.

        A path that two have is left out: the one of the column `a.b` is also that of a member of `a`.
        """
        if not self.footer.num_row_groups:
            return {}
        group = self.footer.row_group(0)
        paths = [group.column(i).path_in_schema for i in range(group.num_columns)]
        numbers = Counter(paths)
        return {path: i for i, path in enumerate(paths) if numbers[path] == 1}

    def chunk(self, group: int, leaf: str) -> pq.ColumnChunkMetaData | None:
        """Return what the footer says about a leaf, by its physical path, in a row group."""
        number = self.leaves.get(leaf)
        return None if number is None else self.footer.row_group(group).column(number)

    def stored_type(self, column: Column) -> pa.DataType | None:
        """Return the type of a column in the file."""
        return self._types.get(column.physical)

    @cached_property
    def _types(self) -> Mapping[str, pa.DataType]:
        return {each.name: each.type for each in self.footer.schema.to_arrow_schema()}

    @cached_property
    def is_hybrid(self) -> bool:
        """Whether old days and times are in the calendar that is the Julian one before 1582-10-15."""
        return not _HYBRID.isdisjoint(self.footer.metadata or {})

    def read(self, names: Sequence[str], group: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Return columns of a row group, each part with the index of its first row in the file.

        A column that the file lacks is null. Raises OtherCalendar.
        """
        columns = {each.name: each for each in self.layout.columns}
        chosen = [columns[name] for name in names]
        schema = arrow_schema(chosen)
        at = int(self.starts[group])
        with self._opened() as opened:
            there = {each.physical for each in chosen} & set(opened.parquet.schema_arrow.names)
            if not there:
                number = int(self.starts[group + 1]) - at
                yield (
                    at,
                    pa.RecordBatch.from_arrays(
                        [pa.nulls(number, each.type) for each in schema], schema=schema
                    ),
                )
                return
            opened.file.fetch(list(self._parts(there, group)))
            most = self._at_a_time(len(names))
            parts = opened.parquet.iter_batches(most, [group], sorted(there), use_threads=False)
            for part in parts:
                found = _fitted(part, chosen, schema)
                if self.is_hybrid and any(map(_has_old, found.columns)):
                    raise OtherCalendar(f"{self._path} has old days or times in the hybrid calendar")
                yield at, found
                at += part.num_rows

    def _at_a_time(self, columns: int) -> int:
        """Return how many rows are read at a time, of so many columns."""
        most = _FEW if columns <= _FEW_COLUMNS else _MANY
        return most if columns < len(self.layout.columns) else min(most, _WHOLE)

    def shown(self, names: Sequence[str], hidden: BitMap64) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows that are not hidden."""
        gone = np.array(hidden.to_array(), np.int64)
        for group in range(self.footer.num_row_groups):
            for at, block in self.read(names, group):
                first, end = np.searchsorted(gone, [at, at + block.num_rows])
                if first == end:
                    yield block
                    continue
                shown = np.ones(block.num_rows, np.bool_)
                shown[gone[first:end] - at] = False
                yield block.filter(pa.array(shown))

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Leave the file open between reads."""
        with self._opened() as opened:
            self._open.append(opened)
            try:
                yield
            finally:
                self._open.pop()

    def _parts(self, physical: Collection[str], group: int) -> Iterator[tuple[int, int]]:
        """Yield where columns of a row group are in the file: start and end of each leaf."""
        for leaf, number in self.leaves.items():
            if any(leaf == each or leaf.startswith(f"{each}.") for each in physical):
                chunk = self.footer.row_group(group).column(number)
                start = chunk.data_page_offset
                if chunk.has_dictionary_page and chunk.dictionary_page_offset > 0:
                    start = min(start, chunk.dictionary_page_offset)
                yield start, start + chunk.total_compressed_size

    @contextmanager
    def _opened(self) -> Iterator[_Reading]:
        if self._open:
            yield self._open[-1]
            return
        known = self.store.footer(self._path)
        with (
            self.store.open(self._path, self.add.size) as file,
            # INT96, in which Spark writes times unless told otherwise, would overflow as nanoseconds.
            pq.ParquetFile(file.source, metadata=known, coerce_int96_timestamp_unit="us") as parquet,
        ):
            if known is None:
                self.store.keep_footer(self._path, parquet.metadata)
            yield _Reading(file, parquet)


class _Reading(NamedTuple):
    """A data file that is open."""

    file: Opened
    parquet: pq.ParquetFile


def _fitted(part: pa.RecordBatch, columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    names = part.schema.names
    arrays = [
        fitted(part.column(names.index(each.physical)), each.type, kind.type)
        if each.physical in names
        else pa.nulls(part.num_rows, kind.type)
        for each, kind in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_old(values: pa.Array) -> bool:
    """Return whether there is a day or time that is another one in Spark's other calendar."""
    kind = values.type
    if pa.types.is_struct(kind):
        return any(map(_has_old, values.flatten()))
    if pa.types.is_map(kind):
        return _has_old(values.keys) or _has_old(values.items)
    if pa.types.is_list(kind):
        return _has_old(values.flatten())
    if pa.types.is_date32(kind):
        return bool(pc.any(pc.less(values.view(pa.int32()), _FIRST_DAY)).as_py())
    if pa.types.is_timestamp(kind):
        return bool(pc.any(pc.less(values.view(pa.int64()), _FIRST_MICROS)).as_py())
    return False


def fitted(values: pa.Array, given: Type, kind: pa.DataType) -> pa.Array:
    """Return values of a file, which may be older than the table's columns, as a column of type ``given``.

    ``kind`` is the same type in Arrow. The values may be of a type that was widened since, and structs may
    lack fields. Raises pa.ArrowInvalid if they do not fit.
    """
    if values.type == kind and not isinstance(given, (Group, ListOf, MapOf)):
        return values
    match given:
        case Group():
            return _fitted_struct(values, given, kind)
        case ListOf():
            items = fitted(values.values, given.item, kind.value_type)
            return pa.ListArray.from_arrays(_offsets(values), items, kind, mask=_nulls(values))
        case MapOf():
            keys = fitted(values.keys, given.key, kind.key_type)
            items = fitted(values.items, given.value, kind.item_type)
            return pa.MapArray.from_arrays(_offsets(values), keys, items, kind, mask=_nulls(values))
    if pa.types.is_timestamp(values.type) and pa.types.is_timestamp(kind) and values.type.unit == kind.unit:
        return values.view(kind)  # a zone is a mark of the type alone
    return pc.cast(values, kind)


def _fitted_struct(values: pa.Array, given: Group, kind: pa.StructType) -> pa.Array:
    there = [each.name for each in values.type]
    parts = [
        fitted(values.field(there.index(each.physical)), each.type, member.type)
        if each.physical in there
        else pa.nulls(len(values), member.type)
        for each, member in zip(given.fields, kind, strict=True)
    ]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(values))


def _offsets(values: pa.Array) -> pa.Array:
    return pa.array(np.asarray(values.offsets), pa.int32())


def _nulls(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None
