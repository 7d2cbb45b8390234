"""How the values of a column are written in JSON, and how a block of them becomes an Arrow array.

A wire has the type that `msgspec` reads a member as, and the function that makes the array. What msgspec
reads as another type is an error of its record. What is of the type but not plainly a value of the column is
told by its number: the record is then one for the rules. Where no faster way is known, each value is given to
the rule that reads it.

====================  =============================================  ===================================
column                read as                                        becomes
====================  =============================================  ===================================
integers              int within the type's bounds                   the number
FLOAT, DOUBLE         float; without a schema: the text of a number  the nearest; odd if it loses digits
BOOLEAN               bool                                           the truth value
STRING                str                                            the text; odd if it is a placeholder
DECIMAL               bytes; without a schema: the text of a number  the number; odd if it loses digits
DATE                  int; without a schema: also str                days since 1970
timestamps            int or str                                     microseconds since 1970
anything else         the JSON as it is                              whatever the rule makes of it
====================  =============================================  ===================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.kinds import arrow_type, to_arrow
from lakemirror.driver.rules import types
from lakemirror.driver.rules.conversions import Read, Reader
from lakemirror.driver.rules.kinds import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    Decimals,
    Kind,
)
from lakemirror.driver.rules.moments import FIRST_DAY, LAST_DAY, MICROS, MILLIS, NANOS, Unit
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.types import Placeholder
from lakemirror.driver.rules.untyped import loads

Numbers = Sequence[int]
"""The numbers of odd values in a block."""

Convert = Callable[[list[Any]], tuple[pa.Array, Numbers]]
"""Makes an array of values as they were read; those that are odd are null in it."""


class Wire(NamedTuple):
    """What a member is read as, and what makes an array of it."""

    read_as: Any
    convert: Convert


NONE: Final[Numbers] = ()


def wire_of(column: Column, placeholder: Placeholder) -> Wire:
    """Return the wire of a column."""
    found = _untyped(column, placeholder) if column.codec is None else _typed(column, placeholder)
    return _by_rule(column, placeholder) if found is None else found


def _typed(column: Column, placeholder: Placeholder) -> Wire | None:
    codec, kind = column.codec, column.kind
    if codec is None or codec.kind != kind:
        return None
    match codec:
        case types.Days():
            return Wire(_within(FIRST_DAY, LAST_DAY), _simply(kind))
        case types.Timestamp():
            return _timestamps(column)
        case types.Integer() if type(codec) is types.Integer:
            return _integers(kind)
        case types.Float():
            return Wire(float, _singles if kind == FLOAT else _simply(kind))
        case types.Boolean():
            return Wire(bool, _simply(kind))
        case types.Text() if type(codec) is types.Text:
            may_be_gap = codec.is_gap(placeholder.text, placeholder)
            return Wire(str, _texts(placeholder) if may_be_gap else _simply(kind))
        case types.IsoTimestamp():
            return Wire(str, lambda values: _instants(values, column, placeholder))
        case types.DecimalOctets():
            return Wire(bytes, lambda values: _unscaled(values, column, placeholder))
        case types.Octets() if type(codec) is types.Octets:
            return Wire(bytes, lambda values: _one_by_one(values, kind, column.reader(placeholder)))
    return None


def _untyped(column: Column, placeholder: Placeholder) -> Wire | None:
    kind, read = column.kind, column.reader(placeholder)
    if kind in BITS:
        return _integers(kind)
    if kind == BOOLEAN:
        return Wire(bool, _simply(kind))
    if kind == STRING:
        return Wire(str, _texts(placeholder))
    if kind == DOUBLE:
        return Wire(msgspec.Raw, lambda values: _doubles(values, read))
    if kind == DATE:
        return Wire(int | str, lambda values: _days(values, column, placeholder))
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        return Wire(int | str, lambda values: _moments(values, column, placeholder))
    if isinstance(kind, Decimals):
        return Wire(msgspec.Raw, lambda values: _decimals(values, column, placeholder))
    return None


def _by_rule(column: Column, placeholder: Placeholder) -> Wire:
    """Return the wire of a column that has no faster way: its rule reads the JSON."""
    read = column.reader(placeholder)

    return Wire(msgspec.Raw, lambda values: _one_by_one(values, column.kind, lambda raw: _by(read, raw)))


def _loaded(octets: bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also where a text may have half a character."""
    if b"\\u" in octets:
        raise ValueError("the rules look for halves of characters")
    return loads(octets.decode())


# -- columns whose values are those of JSON ---------------------------------------------------------------


def _within(least: int, most: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=least, le=most)]


def _integers(kind: Kind) -> Wire:
    half = 1 << (BITS[kind] - 1)  # type: ignore[index]
    return Wire(_within(-half, half - 1), _simply(kind))


def _simply(kind: Kind) -> Convert:
    of = arrow_type(kind)
    if kind == DATE:
        return lambda values: (pa.array(values, pa.int32()).view(of), NONE)
    return lambda values: (pa.array(values, of), NONE)


def _singles(values: list[Any]) -> tuple[pa.Array, Numbers]:
    return pa.array(values, pa.float64()).cast(pa.float32(), safe=False), NONE


def _texts(placeholder: Placeholder) -> Convert:
    spellings = placeholder.spellings

    def convert(values: list[Any]) -> tuple[pa.Array, Numbers]:
        if spellings.isdisjoint(values):
            return pa.array(values, pa.string()), NONE
        odd = [i for i, each in enumerate(values) if each in spellings]
        return pa.array(values, pa.string()), odd

    return convert


# -- one by one -------------------------------------------------------------------------------------------


def _one_by_one(values: list[Any], kind: Kind, read: Reader) -> tuple[pa.Array, Numbers]:
    """Return the array of what the rule makes of each value; it tells those that it reads with a remark."""
    found: list[Any] = []
    odd: list[int] = []
    for number, value in enumerate(values):
        try:
            made = None if value is None else read(value)
        except (ValueError, ArithmeticError, RecursionError):
            made = _ODD
        if type(made) is Read:
            if made.is_odd:
                odd.append(number)
            made = None if made.is_odd else made.value
        found.append(made)
    try:
        return to_arrow(found, kind), odd
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return _each_alone(found, kind, odd)


_ODD: Final = Read(is_misfit=True)


def _each_alone(values: list[Any], kind: Kind, odd: list[int]) -> tuple[pa.Array, Numbers]:
    """Return the array of values of which Arrow cannot hold each."""
    for number, value in enumerate(values):
        try:
            to_arrow([value], kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            odd.append(number)
            values[number] = None
    return to_arrow(values, kind), odd


# -- numbers ----------------------------------------------------------------------------------------------


def _doubles(values: list[Any], read: Reader) -> tuple[pa.Array, Numbers]:
    """Return DOUBLEs of the texts of numbers, each of which is the shortest one of its number."""
    texts = _texts_of(values)
    plain = pc.match_substring_regex(texts, _FRACTION).fill_null(True)
    made = pc.if_else(plain, texts, None).cast(pa.float64())
    few = pc.less_equal(pc.binary_length(texts), _ALWAYS_EXACT)
    is_exact = pc.or_kleene(few, pc.equal(made.cast(pa.string()), texts)).fill_null(True)
    plain = pc.and_(plain, is_exact)
    return _with_others(made, plain, values, DOUBLE, lambda raw: _by(read, raw))


_FRACTION: Final = r"^-?[0-9]{1,15}\.[0-9]{1,20}$"
_ALWAYS_EXACT: Final = 16
"""So many characters are at most 15 digits, which a DOUBLE always keeps."""


def _texts_of(values: list[Any]) -> pa.Array:
    """Return the texts of JSON values; null for null."""
    octets = pa.array([None if each is None else bytes(each) for each in values], pa.binary())
    texts = octets.cast(pa.string())
    return pc.if_else(pc.equal(texts, "null"), None, texts)


def _by(read: Reader, raw: msgspec.Raw) -> Any:
    """Return what a rule makes of the JSON of a value."""
    value = _loaded(bytes(raw))
    return None if value is None else read(value)


def _with_others(
    made: pa.Array, plain: pa.Array, values: list[Any], kind: Kind, read: Reader
) -> tuple[pa.Array, Numbers]:
    """Return an array in which the values that are not plain are read one by one."""
    others = pc.invert(plain)
    rest = pc.indices_nonzero(others).to_pylist()
    if not rest:
        return made, NONE
    found, odd = _one_by_one([values[i] for i in rest], kind, read)
    return pc.replace_with_mask(made, others, found), [rest[i] for i in odd]


def _unscaled(values: list[Any], column: Column, placeholder: Placeholder) -> tuple[pa.Array, Numbers]:
    """Return decimals of Connect's bytes: the unscaled number, as big-endian two's complement."""
    kind = column.kind
    assert isinstance(kind, Decimals)
    from_bytes = int.from_bytes
    if kind.precision <= _DIGITS_OF_LONG and all(each is None or 0 < len(each) <= 8 for each in values):
        numbers = [0 if each is None else from_bytes(each, "big", signed=True) for each in values]
        made = np.array(numbers, np.int64)
        limit = 10**kind.precision
        most = limit.bit_length() // 8 + 1  # as many bytes as the rules take for so many digits
        if ((made < limit) & (made > -limit)).all() and (
            most >= 8 or all(each is None or len(each) <= most for each in values)
        ):
            return _of_longs(made, [each is None for each in values], kind), NONE
    return _one_by_one(values, kind, column.reader(placeholder))


_DIGITS_OF_LONG: Final = 18


def _of_longs(numbers: npt.NDArray[np.int64], nulls: list[bool], kind: Decimals) -> pa.Array:
    """Return decimals of unscaled numbers."""
    parts = np.empty((len(numbers), 2), np.int64)
    parts[:, 0], parts[:, 1] = numbers, numbers >> 63
    validity = pa.array(nulls, pa.bool_())
    valid = pc.invert(validity).buffers()[1] if any(nulls) else None
    return pa.Array.from_buffers(arrow_type(kind), len(numbers), [valid, pa.py_buffer(parts)])


_PLAIN_NUMBER: Final = r"^-?[0-9]{1,18}(\.[0-9]{1,18})?$"


def _decimals(values: list[Any], column: Column, placeholder: Placeholder) -> tuple[pa.Array, Numbers]:
    """Return decimals of the texts of numbers; any other JSON is read by the rule."""
    kind, read = column.kind, column.reader(placeholder)
    texts = _texts_of(values)
    plain = pc.match_substring_regex(texts, _PLAIN_NUMBER).fill_null(True)
    try:
        made = pc.if_else(plain, texts, None).cast(arrow_type(kind))
    except pa.ArrowException:  # a number has more digits than the column: the rule says which
        return _one_by_one(values, kind, lambda raw: _by(read, raw))
    return _with_others(made, plain, values, kind, lambda raw: _by(read, raw))


# -- moments ----------------------------------------------------------------------------------------------


def _timestamps(column: Column) -> Wire:
    """Return the wire of numbers since 1970, of which only those that a mirror can hold are read."""
    unit = next(each for each in (MILLIS, MICROS, NANOS) if _is_in(column, each))
    return Wire(_within(*unit.bounds), lambda values: _since_1970(values, unit, column.kind))


def _is_in(column: Column, unit: Unit) -> bool:
    """Return whether a column's numbers count in a unit: then one second is what it says."""
    assert column.codec is not None
    second = column.codec.read(unit.per_second).value
    return second is not None and (second.year, second.minute, second.second) == (1970, 0, 1)


def _since_1970(values: list[Any], unit: Unit, kind: Kind) -> tuple[pa.Array, Numbers]:
    column = pa.array(values, pa.int64())
    odd: Numbers = NONE
    if unit == MILLIS:
        column = pc.multiply_checked(column, 1000)
    if unit == NANOS:
        micros = pc.divide(column, 1000)
        odd = pc.indices_nonzero(pc.not_equal(pc.multiply(micros, 1000), column).fill_null(False)).to_pylist()
        column = micros
    return column.view(arrow_type(kind)), odd


_ISO: Final = (
    r"^(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?Z$"
)
"""A timestamp of which Arrow and the rules make the same, on a day that each month has."""


def _instants(values: list[Any], column: Column, placeholder: Placeholder) -> tuple[pa.Array, Numbers]:
    """Return timestamps of ISO texts; what is not of the usual form is read by the rule."""
    kind, texts = column.kind, pa.array(values, pa.string())
    plain = pc.match_substring_regex(texts, _ISO).fill_null(True)
    made = pc.if_else(plain, texts, None).cast(pa.timestamp("us", "UTC")).view(arrow_type(kind))
    return _with_others(made, plain, values, kind, column.reader(placeholder))


def _days(values: list[Any], column: Column, placeholder: Placeholder) -> tuple[pa.Array, Numbers]:
    if str not in set(map(type, values)) and _are_within(values, FIRST_DAY, LAST_DAY):
        return pa.array(values, pa.int32()).view(pa.date32()), NONE
    return _one_by_one(values, column.kind, column.reader(placeholder))


def _moments(values: list[Any], column: Column, placeholder: Placeholder) -> tuple[pa.Array, Numbers]:
    """Return timestamps of texts, or of numbers, whose unit the rules tell by their size."""
    found = set(map(type, values))
    if int not in found:
        return _instants(values, column, placeholder)
    if str not in found and not column.writing.seconds:
        if _are_within(values, *MILLIS.bounds):
            return _since_1970(values, MILLIS, column.kind)
        if _are_within(values, MILLIS.bounds[1] + 1, MICROS.bounds[1]):
            return _since_1970(values, MICROS, column.kind)
    return _one_by_one(values, column.kind, column.reader(placeholder))


def _are_within(values: list[Any], least: int, most: int) -> bool:
    return all(each is None or least <= each <= most for each in values)
