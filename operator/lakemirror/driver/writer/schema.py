"""The columns of a Delta table as its metadata describes them, and the Arrow types of their values.

The format is in PROTOCOL.md, Schema Serialization Format and Column Mapping.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from lakemirror.driver.columns.kinds import arrow_type, has_arrow_type
from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals, Plain

PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
FIELD_ID: Final = "delta.columnMapping.id"
_PARQUET_FIELD_ID: Final = "PARQUET:field_id"

_PLAIN: Final = MappingProxyType(
    {
        "boolean": kinds.BOOLEAN,
        "byte": kinds.TINYINT,
        "short": kinds.SMALLINT,
        "integer": kinds.INT,
        "long": kinds.BIGINT,
        "float": kinds.FLOAT,
        "double": kinds.DOUBLE,
        "string": kinds.STRING,
        "binary": kinds.BINARY,
        "date": kinds.DATE,
        "timestamp": kinds.TIMESTAMP,
        "timestamp_ntz": kinds.TIMESTAMP_NTZ,
    }
)
_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


@dataclass(frozen=True)
class ListOf:
    """An array. Its elements may be null if ``nullable``."""

    item: Type
    nullable: bool = True


@dataclass(frozen=True)
class MapOf:
    """A map. Its values may be null if ``nullable``."""

    key: Type
    value: Type
    nullable: bool = True


@dataclass(frozen=True)
class Group:
    """A struct."""

    fields: tuple[Column, ...]


@dataclass(frozen=True)
class Unknown:
    """A type that is not written here, by its name in the schema."""

    name: str


Type = Plain | Decimals | ListOf | MapOf | Group | Unknown


@dataclass(frozen=True)
class Column:
    """A column, or a field of a struct.

    ``physical`` is its name in data files, statistics and partition values: under column mapping another one
    than its ``name``.
    """

    name: str
    type: Type
    nullable: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def physical(self) -> str:
        return str(self.metadata.get(PHYSICAL_NAME, self.name))

    @property
    def leaves(self) -> int:
        """How many columns Delta counts for this one: each field of a struct is one."""
        return sum(each.leaves for each in self.type.fields) if isinstance(self.type, Group) else 1


def parse(schema: str) -> tuple[Column, ...]:
    """Return the columns in a table's ``schemaString``."""
    found = _type(json.loads(schema))
    if not isinstance(found, Group):
        raise ValueError("the schema of a table is no struct")
    return found.fields


def _type(given: Any) -> Type:
    if isinstance(given, str):
        decimal = _DECIMAL.fullmatch(given)
        if decimal is not None:
            return Decimals(int(decimal[1]), int(decimal[2]))
        return _PLAIN.get(given, Unknown(given))
    match given["type"]:
        case "struct":
            return Group(tuple(map(_column, given["fields"])))
        case "array":
            return ListOf(_type(given["elementType"]), given["containsNull"])
        case "map":
            return MapOf(_type(given["keyType"]), _type(given["valueType"]), given["valueContainsNull"])
    return Unknown(str(given["type"]))


def _column(given: Mapping[str, Any]) -> Column:
    return Column(given["name"], _type(given["type"]), given["nullable"], given.get("metadata") or {})


def within(columns: Iterable[Column]) -> Iterator[Column]:
    """Return columns with all fields of structs in them, at any depth."""
    for each in columns:
        yield each
        yield from within(_members(each.type))


def types_within(columns: Iterable[Column]) -> Iterator[Type]:
    """Return the types of columns, and all types in them."""
    for each in columns:
        yield from _types(each.type)


def _types(given: Type) -> Iterator[Type]:
    yield given
    inner: Sequence[Type] = ()
    match given:
        case ListOf():
            inner = (given.item,)
        case MapOf():
            inner = (given.key, given.value)
        case Group():
            inner = tuple(each.type for each in given.fields)
    for each in inner:
        yield from _types(each)


def _members(given: Type) -> Iterator[Column]:
    """Return the fields of the structs directly within a type."""
    match given:
        case Group():
            yield from given.fields
        case ListOf():
            yield from _members(given.item)
        case MapOf():
            yield from _members(given.key)
            yield from _members(given.value)


def arrow_schema(columns: Iterable[Column], *, physical: bool = False) -> pa.Schema:
    """Return the Arrow schema of rows of a table, or with ``physical``, of a data file of it.

    A data file has physical names and, under column mapping, the columns' IDs. Raises ValueError for a type
    that is not written here.
    """
    return pa.schema([_arrow_field(each, physical=physical) for each in columns])


def _arrow_field(column: Column, *, physical: bool) -> pa.Field:
    number = column.metadata.get(FIELD_ID) if physical else None
    metadata = None if number is None else {_PARQUET_FIELD_ID: str(number)}
    name = column.physical if physical else column.name
    return pa.field(name, _arrow_type(column.type, physical=physical), metadata=metadata)


def _arrow_type(given: Type, *, physical: bool) -> pa.DataType:
    match given:
        case Plain() | Decimals() if has_arrow_type(given):
            return arrow_type(given)
        case ListOf():
            return pa.list_(pa.field("element", _arrow_type(given.item, physical=physical)))
        case MapOf():
            key, value = (_arrow_type(each, physical=physical) for each in (given.key, given.value))
            return pa.map_(key, value)
        case Group():
            return pa.struct([_arrow_field(each, physical=physical) for each in given.fields])
    raise ValueError(f"columns of type {given} are not written here")
