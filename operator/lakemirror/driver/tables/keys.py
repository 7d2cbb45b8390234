"""Keys and rows as text: exact, and canonical for keys.

Tombstones and moved rows store keys as text, so widening a key column does not affect what is already stored.
Two keys have the same text exactly if ``=`` holds between them in the mirror, before and after every widening
of `lakemirror.driver.plan.drift`. The text is a JSON array with one text for each key column, in the order of
their names:

==================  =====================================================================================
type                text
==================  =====================================================================================
integers            ``42``
DECIMAL             ``1.1``, without trailing zeros in the fraction; ``42`` if there is no fraction
FLOAT, DOUBLE       a whole number within BIGINT as such (``-0.0`` is ``0``), else as by Java's
                    ``Double.toHexString`` (``0x1.0p-1``), ``NaN``, ``Infinity``, ``-Infinity``; a FLOAT as
                    the DOUBLE that it equals
STRING              itself
BINARY              hexadecimal digits, in upper case
BOOLEAN             ``true`` or ``false``
DATE, TIMESTAMP_NTZ ``2026-01-02 03:04:05.000006``, a DATE at midnight, no trailing zeros in the fraction
TIMESTAMP           microseconds since 1970-01-01 UTC
ARRAY, STRUCT       JSON of the texts of their members
==================  =====================================================================================

Rows (`encode_row`) are written in the same way as one JSON object, but with the sign of zero, and maps as
arrays of their entries, and variants as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

_TEXTS: Final = (StringType, CharType, VarcharType)
_ORDERED: Final = (
    IntegralType,
    DecimalType,
    FloatType,
    DoubleType,
    *_TEXTS,
    BinaryType,
    BooleanType,
    DateType,
    TimestampType,
    TimestampNTZType,
)
_LARGEST: Final = str(2**31 - 1)
_OPTIONS: Final = {"mode": "FAILFAST", "maxStringLen": _LARGEST, "maxNestingDepth": _LARGEST}

Leaf = Callable[[Column, DataType], Column]


def can_be_key(kind: DataType) -> bool:
    """Return whether values of a type can identify rows: types that ``=`` compares, not maps or variants."""
    if isinstance(kind, ArrayType):
        return can_be_key(kind.elementType)
    if isinstance(kind, StructType):
        return all(can_be_key(field.dataType) for field in kind.fields)
    return isinstance(kind, _ORDERED)


def encode(key: Column, kind: StructType) -> Column:
    """STRING: the canonical text of a struct of key columns; null for a null struct.

    Raises TypeError for a type that no key can have (see `can_be_key`).
    """
    for field in kind.fields:
        if not can_be_key(field.dataType):
            raise TypeError(f"column {field.name} of type {field.dataType.simpleString()} cannot be a key")
    parts = [_part(key.getField(field.name), field.dataType) for field in _in_order(kind)]
    return F.when(key.isNotNull(), F.to_json(F.array(*parts)))


def decode(text: Column, kind: StructType) -> Column:
    """STRUCT: the key columns that `encode` wrote, from a text that is not null.

    Their types may have been widened since.
    """
    parts = F.from_json(text, ArrayType(StringType()), _OPTIONS)
    found = {field.name: _of_part(parts[i], field.dataType) for i, field in enumerate(_in_order(kind))}
    return F.when(text.isNotNull(), F.struct(*[found[field.name].alias(field.name) for field in kind.fields]))


def encode_row(row: Column, kind: StructType) -> Column:
    """STRING: a row of any types as JSON, from which `decode_row` restores the same row."""
    return F.to_json(F.struct(*_members(row, kind, _exact, in_order=False)))


def comparable_row(row: Column, kind: StructType) -> Column:
    """STRING: a row of any types as JSON, which is the same for equal rows.

    Unlike in `encode_row`, the entries of maps are in the order of their keys' texts.
    """
    return F.to_json(F.struct(*_members(row, kind, _exact, in_order=True)))


def decode_row(text: Column, kind: StructType) -> Column:
    """STRUCT: the row that `encode_row` wrote, from a text that is not null. Missing members are null."""
    # A field with the same name as the "corrupt record" would never be read.
    corrupt = "_" + "".join(kind.fieldNames())
    wire = F.from_json(text, _wire(kind), {**_OPTIONS, "columnNameOfCorruptRecord": corrupt})  # type: ignore[arg-type]
    members = [_values(wire.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
    return F.struct(*members)


def canonical_row(values: Mapping[str, Column], kinds: Mapping[str, DataType]) -> Column:
    """STRING: a row as one JSON object in canonical form.

    Members are in the order of their names, and formatted as in keys. Those that are null are left out. The
    text therefore stays the same if a column is widened, or added without a value. The entries of maps are in
    the order of their keys' texts.
    """
    members = [
        _texts(values[name], kinds[name], _canonical, in_order=True).alias(name) for name in sorted(kinds)
    ]
    return F.to_json(F.struct(*members))


def _in_order(kind: StructType) -> list[StructField]:
    return sorted(kind.fields, key=lambda field: field.name)


def _part(value: Column, kind: DataType) -> Column:
    texts = _texts(value, kind, _canonical, in_order=True)
    return F.to_json(texts) if isinstance(kind, (ArrayType, StructType)) else texts


def _of_part(text: Column, kind: DataType) -> Column:
    if isinstance(kind, (ArrayType, StructType)):
        text = F.from_json(text, _wire(kind), _OPTIONS)  # type: ignore[arg-type]
    return _values(text, kind)


# -- values as texts, with the shape of their type --------------------------------------------------------


def _wire(kind: DataType) -> DataType:
    """Return the type of what `_texts` makes of a value."""
    if isinstance(kind, ArrayType):
        return ArrayType(_wire(kind.elementType))
    if isinstance(kind, MapType):
        entry = [StructField("k", _wire(kind.keyType)), StructField("v", _wire(kind.valueType))]
        return ArrayType(StructType(entry))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _wire(field.dataType)) for field in kind.fields])
    return StringType()


def _texts(value: Column, kind: DataType, leaf: Leaf, *, in_order: bool) -> Column:
    """Return a value with texts in the place of its parts, and with arrays of entries in that of its maps.

    ``in_order`` says whether these are sorted, because the entries of a map have no order of their own.
    """
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda each: _texts(each, kind.elementType, leaf, in_order=in_order))
    if isinstance(kind, MapType):
        entries = F.transform(
            F.map_entries(value),
            lambda each: F.struct(
                _texts(each["key"], kind.keyType, leaf, in_order=in_order).alias("k"),
                _texts(each["value"], kind.valueType, leaf, in_order=in_order).alias("v"),
            ),
        )
        return F.array_sort(entries) if in_order else entries
    if isinstance(kind, StructType):
        return F.when(value.isNotNull(), F.struct(*_members(value, kind, leaf, in_order=in_order)))
    return leaf(value, kind)


def _members(value: Column, kind: StructType, leaf: Leaf, *, in_order: bool) -> list[Column]:
    return [
        _texts(value.getField(f.name), f.dataType, leaf, in_order=in_order).alias(f.name) for f in kind.fields
    ]


def _values(wire: Column, kind: DataType) -> Column:
    if isinstance(kind, ArrayType):
        return F.transform(wire, lambda each: _values(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.map_from_entries(
            F.transform(
                wire,
                lambda each: F.struct(_values(each["k"], kind.keyType), _values(each["v"], kind.valueType)),
            )
        )
    if isinstance(kind, StructType):
        members = [_values(wire.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(wire.isNotNull(), F.struct(*members))
    return _value(wire, kind)


def _canonical(value: Column, kind: DataType) -> Column:
    """STRING: the same text for all equal values, of this type and of those that it may be widened to."""
    if isinstance(kind, DecimalType) and kind.scale:
        return F.rtrim(F.rtrim(value.cast("string"), F.lit("0")), F.lit("."))
    if isinstance(kind, (FloatType, DoubleType)):
        whole = value.try_cast("bigint")
        return F.when(whole.cast("double") == value.cast("double"), whole.cast("string")).otherwise(
            _exact(value, kind)
        )
    return _exact(value, kind)


def _exact(value: Column, kind: DataType) -> Column:
    if isinstance(kind, _TEXTS):
        return value
    if isinstance(kind, BinaryType):
        return F.hex(value)
    if isinstance(kind, (FloatType, DoubleType)):
        return F.when(value.isNotNull(), F.format_string("%a", value.cast("double")))
    if isinstance(kind, DateType):
        return value.cast("timestamp_ntz").cast("string")
    if isinstance(kind, TimestampType):
        return F.unix_micros(value).cast("string")
    if isinstance(kind, VariantType):
        return F.to_json(value)
    return value.cast("string")


def _value(text: Column, kind: DataType) -> Column:
    if isinstance(kind, _TEXTS):
        return text
    if isinstance(kind, BinaryType):
        return F.unhex(text)
    if isinstance(kind, FloatType):
        return text.cast("double").cast("float")
    if isinstance(kind, DateType):
        return text.cast("timestamp_ntz").cast("date")
    if isinstance(kind, TimestampType):
        return F.timestamp_micros(text.cast("bigint"))
    if isinstance(kind, VariantType):
        return F.parse_json(text)
    return text.cast(kind)
