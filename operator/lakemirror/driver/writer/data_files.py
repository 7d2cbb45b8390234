"""Rows as Parquet files of a Delta table, and what the log says about each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakemirror.driver.rules import kinds
from lakemirror.driver.writer.actions import Add, ChangeFile, Metadata, Values
from lakemirror.driver.writer.partitions import divided, folder
from lakemirror.driver.writer.schema import Column, Group, ListOf, MapOf, Type, arrow_schema, parse
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.statistics import indexed, of_rows

CHANGE_TYPE: Final = Column("_change_type", kinds.STRING)
"""The column of change files that says what happened: insert, update_preimage, update_postimage or delete."""
_CHANGES: Final = "_change_data/"

_SAMPLE: Final = 1024
"""How many rows are looked at to see whether values repeat."""

_FLOATING: Final = (kinds.FLOAT, kinds.DOUBLE)

_WRITTEN_BY: Final = {"org.apache.spark.version": "3.0.0"}
"""Tells Spark that dates and times are in the Gregorian calendar throughout.

It reads days before 1582 in another calendar, or refuses them, in files that do not say so, if it is older
than 4.0 or is set up to (``spark.sql.parquet.datetimeRebaseModeInRead``, `DataSourceUtils`). Version 3.0 is
the first that writes them like this.
"""


class WrongRows(TypeError):
    """Rows are not of the table's columns."""


@dataclass(frozen=True)
class File:
    """The content of a file, and its path in the table's folder, which is not encoded."""

    path: str
    content: pa.Buffer | bytes


@dataclass(frozen=True)
class Layout:
    """What the files of a table look like. ``indexed`` are the names of columns with statistics."""

    columns: tuple[Column, ...]
    partitions: tuple[str, ...] = ()
    indexed: frozenset[str] = frozenset()
    mapped: bool = False

    @classmethod
    def of(cls, snapshot: Snapshot) -> Layout:
        return cls.of_metadata(snapshot.metadata, [path[0] for path in snapshot.clustered])

    @classmethod
    def of_metadata(cls, metadata: Metadata, clustered: Sequence[str] = ()) -> Layout:
        """Return the layout of a table. ``clustered`` are the physical names of clustering columns."""
        columns = parse(metadata.schema)
        return cls(
            columns,
            metadata.partitions,
            indexed(columns, metadata.partitions, metadata.properties, clustered),
            metadata.properties.get("delta.columnMapping.mode", "none") != "none",
        )

    @property
    def dividing(self) -> list[Column]:
        """The partition columns, in their order."""
        named = {each.name: each for each in self.columns}
        return [named[name] for name in self.partitions]

    @property
    def stored(self) -> list[Column]:
        """The columns that data files have."""
        return [each for each in self.columns if each.name not in self.partitions]

    def folder(self, values: Values) -> str:
        """Return the folder of a partition. With column mapping, folders would show names that may change."""
        return "" if self.mapped else folder(values)


def data_files(
    table: pa.Table, layout: Layout, now: int, new_id: Callable[[], UUID]
) -> Iterator[tuple[File, Add]]:
    """Return rows as files, one per partition that they are in.

    The table has the columns of `schema.arrow_schema`. ``now`` is in ms since 1970. Raises WrongRows, and
    NotRepresentable for a partition value that the log cannot hold.
    """
    for values, rows in _parted(table, layout.columns, layout):
        file = _file(rows, layout.stored, layout.folder(values), new_id())
        told = of_rows(rows, layout.stored, layout.indexed)
        yield file, Add(uri_of(file.path), values, _size(file), now, told)


def change_files(
    table: pa.Table, layout: Layout, new_id: Callable[[], UUID]
) -> Iterator[tuple[File, ChangeFile]]:
    """Return changed rows as files of the change data feed.

    The table has `CHANGE_TYPE` as its last column.
    """
    for values, rows in _parted(table, (*layout.columns, CHANGE_TYPE), layout):
        file = _file(rows, [*layout.stored, CHANGE_TYPE], _CHANGES + layout.folder(values), new_id())
        yield file, ChangeFile(uri_of(file.path), values, _size(file))


def uri_of(path: str) -> str:
    """Return a path in the table's folder as the log has it."""
    return quote(path, safe="/=")


def _parted(table: pa.Table, columns: Sequence[Column], layout: Layout) -> Iterator[tuple[Values, pa.Table]]:
    expected = arrow_schema(columns)
    if not table.schema.equals(expected):
        raise WrongRows(f"rows have {table.schema}, and the table's columns are {expected}")
    if table.num_rows:
        yield from divided(table, layout.dividing)


def _size(file: File) -> int:
    return int(file.content.size) if isinstance(file.content, pa.Buffer) else len(file.content)


def _file(rows: pa.Table, columns: Sequence[Column], place: str, number: UUID) -> File:
    return File(f"{place}part-{number}.parquet", encoded(rows, columns))


def encoded(rows: pa.Table, columns: Sequence[Column]) -> pa.Buffer:
    """Return rows as a Parquet file with the columns' physical names, as Spark expects it."""
    schema = arrow_schema(columns, physical=True)
    arrays = [
        pa.chunked_array([chunk.view(field.type) for chunk in rows[column.name].chunks], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    table = pa.Table.from_arrays(arrays, schema=schema)
    options: dict[str, Any] = {
        **{"compression": "snappy", "store_schema": False, "store_decimal_as_integer": True},
        "write_statistics": _bounded(rows, columns),
        "use_dictionary": _with_dictionary(table),
    }
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(_WRITTEN_BY)
    return sink.getvalue()


def _with_dictionary(table: pa.Table) -> bool | list[str]:
    """Return the leaves whose values repeat: a dictionary of others takes time, and no less space."""
    if table.num_rows < _SAMPLE:
        return True
    sample = table.slice(0, _SAMPLE).combine_chunks()
    return [leaf for name in sample.column_names for leaf in _repeating(sample[name].chunk(0), name)]


def _repeating(values: pa.Array, path: str) -> Iterator[str]:
    kind = values.type
    if pa.types.is_struct(kind):
        for i, each in enumerate(kind):
            yield from _repeating(values.field(i), f"{path}.{each.name}")
    elif pa.types.is_map(kind):
        first, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        yield from _repeating(values.keys.slice(first, end - first), f"{path}.key_value.key")
        yield from _repeating(values.items.slice(first, end - first), f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _repeating(values.flatten(), f"{path}.list.element")
    elif 2 * len(values.unique()) <= len(values):
        yield path


def _bounded(rows: pa.Table, columns: Sequence[Column]) -> list[str]:
    """Return the leaves for which the footer may have the least and the greatest value.

    Arrow leaves NaN out of them, and Spark sorts it last: it would skip rows. A column ``a.b`` and a member
    of ``a`` have the same path: it stands for both.
    """
    bounded, others = set[str](), set[str]()
    for column in columns:
        for path, kind in _leaves(column.type):
            found = others if kind in _FLOATING and (path or _has_nan(rows[column.name])) else bounded
            found.add(f"{column.physical}{path}")
    return sorted(bounded - others)


def _has_nan(values: pa.ChunkedArray) -> bool:
    return bool(pc.any(pc.is_nan(values)).as_py())


def _leaves(given: Type) -> list[tuple[str, Type]]:
    """Return the paths of the leaves in a type, and their types."""
    match given:
        case Group():
            leaves = [(each.physical, leaf) for each in given.fields for leaf in _leaves(each.type)]
            return [(f".{name}{path}", kind) for name, (path, kind) in leaves]
        case ListOf():
            return [(f".list.element{path}", kind) for path, kind in _leaves(given.item)]
        case MapOf():
            keys = [(f".key_value.key{path}", kind) for path, kind in _leaves(given.key)]
            return [*keys, *((f".key_value.value{path}", kind) for path, kind in _leaves(given.value))]
    return [("", given)]
