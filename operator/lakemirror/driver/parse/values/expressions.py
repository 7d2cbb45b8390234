"""Small Column helpers shared by this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType


def either(*conditions: Column | None) -> Column | None:
    """Return the disjunction of the conditions that are not None; None if there are none."""
    present = [c for c in conditions if c is not None]
    return reduce(or_, present) if present else None


def unless(condition: Column | None, value: Column) -> Column:
    """Return ``value``, or null if ``condition`` is true."""
    return value if condition is None else F.when(~condition, value)


def null(type: DataType) -> Column:
    return F.lit(None).cast(type)


def div(value: Column, by: int) -> Column:
    """Divide whole numbers, rounding toward zero."""
    return F.call_function("div", value, F.lit(by))


def floor_div(value: Column, by: int) -> Column:
    """Divide whole numbers, rounding down; exact over the whole range of BIGINT."""
    return div(value, by) - F.when(value % by < 0, 1).otherwise(0)


def at_least(width: int, digits: Column) -> Column:
    """Pad ``digits`` with leading zeros to ``width`` characters, without ever truncating it."""
    return F.when(F.length(digits) < width, F.lpad(digits, width, "0")).otherwise(digits)


def let(value: Column, body: Callable[[Column], Column]) -> Column:
    """Return ``body(value)`` with ``value`` computed once, even if lambdas in ``body`` use it many times."""
    return F.transform(F.array(value), body).getItem(0)


def with_members(values: Column, more: Column) -> Column:
    """Return a JSON object (STRING) with the members of two maps, the second of which is not empty.

    A name that ``values`` has twice stays there twice, as the record has it: Spark puts no such map together
    (DUPLICATED_MAP_KEY).
    """
    first, second = F.to_json(values), F.to_json(more)
    both = F.concat(F.substr(first, F.lit(1), F.length(first) - 1), F.lit(","), F.substr(second, F.lit(2)))
    return F.when(first == "{}", second).otherwise(both)


def same_value(one: Column, other: Column, kind: DataType) -> Column:
    """Return whether both are the same value of type ``kind``, or both null (BOOLEAN).

    Spark itself compares neither maps nor variants. The entries of a map have no order.
    """
    return _comparable(one, kind).eqNullSafe(_comparable(other, kind))


def _comparable(value: Column, kind: DataType) -> Column:
    """Return a value in which maps are arrays of their entries, by key, and variants are JSON."""
    if _is_comparable(kind):
        return value
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda each: _comparable(each, kind.elementType))
    if isinstance(kind, MapType):
        entries = F.transform(
            F.map_entries(value),
            lambda each: F.struct(
                _comparable(each["key"], kind.keyType).alias("key"),
                _comparable(each["value"], kind.valueType).alias("value"),
            ),
        )
        return F.array_sort(entries)
    if isinstance(kind, StructType):
        members = [_comparable(value.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*members))
    return F.to_json(value)


def _is_comparable(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _is_comparable(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_comparable(field.dataType) for field in kind.fields)
    return not isinstance(kind, (MapType, VariantType))
