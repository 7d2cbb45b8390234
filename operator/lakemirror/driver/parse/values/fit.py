"""Converts a Spark value of one type to another type, exactly or not at all."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    FractionalType,
    IntegralType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.driver import shapes
from lakemirror.driver.parse.values import temporal
from lakemirror.driver.parse.values.decimals import NUMBER, SPECIAL, of_digits
from lakemirror.driver.parse.values.expressions import null

_MOMENTS = (DateType, TimestampType, TimestampNTZType)


@dataclass(frozen=True)
class Parts:
    """The outcome of converting one value.

    ``value`` is null if Spark cannot hold the value. ``unrepresentable`` is true if the source's value is
    valid but the type has no equivalent, ``misfit`` if the value is not of the type at all, and ``rounded``
    if the value lacks digits of the source's, which are below the microsecond. All three are None if that
    cannot happen. ``text`` is the source's spelling of an unrepresentable value.
    """

    value: Column
    unrepresentable: Column | None = None
    text: Column | None = None
    misfit: Column | None = None
    rounded: Column | None = None


def fit(value: Column, source: DataType, target: DataType) -> Parts:
    """Convert ``value`` from type ``source`` to type ``target``.

    Numbers must keep their value: one that does not is unrepresentable in a DECIMAL, otherwise a misfit.
    If the types have nothing in common, every value is a misfit. A VARIANT is the value of a text of JSON.
    """
    if source == target or _holds(source, target):
        return Parts(value if source == target else value.cast(target))
    if isinstance(source, NumericType) and isinstance(target, NumericType):
        return _number(value, source, target)
    if isinstance(source, StringType) and isinstance(target, DecimalType):
        return _decimal_text(value, target)
    if isinstance(source, IntegralType) and isinstance(target, BooleanType):
        known = value.isin(0, 1)
        return Parts(F.when(known, value == 1), misfit=~known)
    if isinstance(source, StringType) and isinstance(target, VariantType):
        return _parsed(value)
    if isinstance(source, StringType) and isinstance(target, _MOMENTS):
        return _moment_text(value, target)
    if isinstance(source, StringType) and isinstance(target, (FloatType, DoubleType)):
        return _float_text(value, target)
    if isinstance(source, StringType) and isinstance(target, IntegralType):
        return _unless_null(value, shapes.whole(value, target))
    if _castable(source, target):
        return _unless_null(value, value.try_cast(target))
    return Parts(null(target), misfit=value.isNotNull())


def settled(value: Column, given: Column) -> Parts:
    """Return a VARIANT that was ``given``, as it is once it was written as JSON and read again.

    Then it has the same JSON ever after: 1e2 becomes 100.
    """
    value = F.try_parse_json(F.to_json(value))
    return Parts(value, misfit=given.isNotNull() & value.isNull())


def _parsed(text: Column) -> Parts:
    """Convert a text of JSON to a VARIANT. A number beyond DOUBLE is a misfit: Spark makes it infinity."""
    value = settled(F.try_parse_json(text), text).value
    infinite = F.to_json(value).contains("Infinity") & ~text.contains("Infinity")
    value = F.when(~infinite, value)
    return Parts(value, misfit=text.isNotNull() & value.isNull())


def _digits(type: DataType) -> tuple[int, int]:
    """Return the number of digits before and after the point of an exact numeric type."""
    if isinstance(type, DecimalType):
        return type.precision - type.scale, type.scale
    return {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}[type.simpleString()], 0


def _holds(source: DataType, target: DataType) -> bool:
    """Return whether a plain cast maps every value of ``source`` to an equal value of ``target``."""
    if isinstance(source, (IntegralType, DecimalType)) and isinstance(target, (IntegralType, DecimalType)):
        if isinstance(source, DecimalType) and isinstance(target, IntegralType):
            return False
        before, after = _digits(source)
        wide, deep = _digits(target)
        return before <= wide and after <= deep
    if isinstance(source, IntegralType) and isinstance(target, FractionalType):
        exact = {"float": 5, "double": 10}
        return _digits(source)[0] <= exact.get(target.simpleString(), 0)
    return (source.simpleString(), target.simpleString()) in {
        ("float", "double"),
        ("date", "timestamp_ntz"),
        ("char", "string"),
        ("varchar", "string"),
    }


def _number(value: Column, source: DataType, target: DataType) -> Parts:
    converted = value.try_cast(target)
    back = converted.try_cast(source)
    changed = value.isNotNull() & ~F.coalesce(back == value, F.lit(False))
    kept = F.when(~changed, converted)
    if isinstance(target, DecimalType):
        return Parts(kept, unrepresentable=changed, text=value.cast("string"))
    return Parts(kept, misfit=changed)


def _decimal_text(value: Column, target: DecimalType) -> Parts:
    number, special = value.rlike(NUMBER), value.rlike(SPECIAL)
    converted = F.when(number, of_digits(value, target))
    return Parts(
        converted,
        unrepresentable=(number | special) & converted.isNull(),
        text=value,
        misfit=value.isNotNull() & ~number & ~special,
    )


def _moment_text(value: Column, target: DataType) -> Parts:
    if isinstance(target, DateType):
        return _unless_null(value, temporal.day_of(value))
    moment = temporal.instant_of if isinstance(target, TimestampType) else temporal.local_of
    parts = _unless_null(value, moment(value))
    return replace(parts, rounded=temporal.is_finer(value))


def _float_text(value: Column, target: DataType) -> Parts:
    fits = is_exact(value, shapes.number(value, "double"), target) | value.rlike(SPECIAL)
    return _unless_null(value, F.when(fits, shapes.number(value, target)))


def is_exact(number: Column, double: Column, target: DataType) -> Column:
    """Return whether a float of type ``target`` is a decimal number, given also as a DOUBLE (BOOLEAN).

    It is, if its shortest spelling has the number's digits. ``number`` is any text; if it is not a number,
    the result is false.
    """
    alike = _digits_of(number) == _digits_of(double.cast("string"))
    if isinstance(target, FloatType):
        single = double.cast("float")
        same = single.cast("double") == double
        alike = (alike & same) | (_digits_of(number) == _digits_of(single.cast("string")))
    # Up to 15 digits always survive, or six; the JVM's own spelling is not always the shortest one.
    most, least, largest = 15, sys.float_info.min, sys.float_info.max
    if isinstance(target, FloatType):
        most, least, largest = 6, 2.0**-126, 2.0**128 - 2.0**104
    few = (F.length(_digits_of(number)) <= most) & F.abs(double).between(least, largest)
    return F.coalesce(number.rlike(shapes.NUMBER) & (alike | few), F.lit(False))


def _digits_of(number: Column) -> Column:
    """Return the significant digits of a number's text."""
    digits = F.translate(F.substring_index(F.lower(number), "e", 1), "-+. ", "")
    return F.rtrim(F.ltrim(digits, F.lit("0")), F.lit("0"))


def _unless_null(value: Column, converted: Column) -> Parts:
    """Return a converted value; a value that could not be converted is a misfit."""
    return Parts(converted, misfit=value.isNotNull() & converted.isNull())


def _castable(source: DataType, target: DataType) -> bool:
    if isinstance(source, StringType):
        return isinstance(target, AtomicType) and not isinstance(target, (BinaryType, VariantType))
    if isinstance(source, BooleanType):
        return isinstance(target, NumericType)
    return isinstance(source, DateType) and isinstance(target, _MOMENTS)
