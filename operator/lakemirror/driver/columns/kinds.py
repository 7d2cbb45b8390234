"""The types of a mirror's columns in Arrow, and values of one as those of the rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final

import pyarrow as pa

from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Plain,
    Structs,
)
from lakemirror.driver.rules.values import Value

_PLAIN: Final[dict[Plain, pa.DataType]] = {
    BOOLEAN: pa.bool_(),
    TINYINT: pa.int8(),
    SMALLINT: pa.int16(),
    INT: pa.int32(),
    BIGINT: pa.int64(),
    FLOAT: pa.float32(),
    DOUBLE: pa.float64(),
    STRING: pa.string(),
    BINARY: pa.binary(),
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us", "UTC"),
    TIMESTAMP_NTZ: pa.timestamp("us"),
}


def has_arrow_type(kind: Kind) -> bool:
    """Return whether values of a type can be in Arrow's columns. A VARIANT is only known to Spark."""
    if isinstance(kind, Arrays):
        return has_arrow_type(kind.item)
    if isinstance(kind, Maps):
        return has_arrow_type(kind.key) and has_arrow_type(kind.value)
    if isinstance(kind, Structs):
        return all(has_arrow_type(each) for _, each in kind.fields)
    return kind != VARIANT


def arrow_type(kind: Kind) -> pa.DataType:
    """Return the Arrow type of a mirror's type. Raises KeyError for one that has none."""
    if isinstance(kind, Decimals):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, Arrays):
        return pa.list_(arrow_type(kind.item))
    if isinstance(kind, Maps):
        return pa.map_(arrow_type(kind.key), arrow_type(kind.value))
    if isinstance(kind, Structs):
        return pa.struct([pa.field(name, arrow_type(each)) for name, each in kind.fields])
    return _PLAIN[kind]


def to_arrow(values: Sequence[Value], kind: Kind) -> pa.Array:
    """Return values of the rules as a column. Raises ArrowException or OverflowError if one does not fit."""
    return pa.array(list(map(_entries(kind), values)) if _has_maps(kind) else values, arrow_type(kind))


def to_values(column: pa.Array, kind: Kind) -> list[Value]:
    """Return the values of a column as the rules have them."""
    if kind == TIMESTAMP:
        return [None if each is None else each.replace(tzinfo=UTC) for each in column.to_pylist()]
    values: list[Value] = column.to_pylist()
    return list(map(_mappings(kind), values)) if _has_maps(kind) else values


def _has_maps(kind: Kind) -> bool:
    if isinstance(kind, Arrays):
        return _has_maps(kind.item)
    if isinstance(kind, Structs):
        return any(_has_maps(each) for _, each in kind.fields)
    return isinstance(kind, Maps)


def _entries(kind: Kind) -> Callable[[Value], Any]:
    """Return the function that makes lists of entries of the maps in a value."""
    return _with_maps(kind, lambda value: value.items(), list)


def _mappings(kind: Kind) -> Callable[[Any], Value]:
    """Return the function that makes maps of the lists of entries in a value."""
    return _with_maps(kind, lambda value: value, dict)


def _with_maps(
    kind: Kind, entries: Callable[[Any], Any], made: Callable[[list[tuple[Any, Any]]], Any]
) -> Callable[[Any], Any]:
    if isinstance(kind, Maps):
        key, item = _with_maps(kind.key, entries, made), _with_maps(kind.value, entries, made)
        return lambda value: (
            None if value is None else made([(key(name), item(each)) for name, each in entries(value)])
        )
    if isinstance(kind, Arrays):
        inner = _with_maps(kind.item, entries, made)
        return lambda value: None if value is None else [inner(each) for each in value]
    if isinstance(kind, Structs):
        members = {name: _with_maps(each, entries, made) for name, each in kind.fields}
        return lambda value: (
            None if value is None else {name: of(value[name]) for name, of in members.items()}
        )
    return lambda value: value
