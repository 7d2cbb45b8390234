"""Selects the codec of a column by its semantic name and its physical type.

The names are from Debezium's documentation ("Data type mappings" of each connector) and Kafka Connect's
``org.apache.kafka.connect.data``. An unknown name falls back to the physical type.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.types import IntegerType, LongType

from lakemirror.driver.parse.values import codecs
from lakemirror.driver.parse.values.codecs import Codec
from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.parse.values.decimals import MAX_DIGITS, MAX_SCALE
from lakemirror.driver.parse.values.temporal import MICROS, MILLIS, NANOS
from lakemirror.driver.rules.schemas import PADDED, SchemaError
from lakemirror.driver.rules.types import MOST_BITS

_UNBOUNDED_BITS = 2**31 - 1  # the length that Debezium gives PostgreSQL's bit varying


def codec_of(field: Field) -> Codec:
    """Return the codec of a column that has a schema."""
    make = _SEMANTIC.get((field.connect_type, field.semantic_name or ""))
    return make(field) if make else _PHYSICAL[field.connect_type](field)


def is_known(field: Field) -> bool:
    """Return whether this version knows the field's semantic name, if it has one."""
    name = field.semantic_name
    return (
        not name
        or (field.connect_type, name) in _SEMANTIC
        or (field.connect_type in ("struct", "array") and name.startswith(_AS_THEY_ARE))
    )


_AS_THEY_ARE = (
    "io.debezium.data.geometry.",
    "io.debezium.data.DoubleVector",
    "io.debezium.data.FloatVector",
    "io.debezium.data.SparseDoubleVector",
)


def _decimal(field: Field) -> Codec:
    scale = _parameter(field, "scale", 0)
    if not -MAX_SCALE <= scale <= MAX_SCALE:
        raise SchemaError(f"column {field.name!r}: its scale is beyond {MAX_SCALE:,} digits")
    precision = _parameter(field, "connect.decimal.precision", 0)
    if not 0 <= scale <= MAX_DIGITS:
        return codecs.DecimalText(scale)
    padded = PADDED in field.parameters
    if 0 < precision <= MAX_DIGITS:
        return codecs.DecimalBytes(max(precision, scale), scale, bounded=True, padded=padded)
    return codecs.DecimalBytes(MAX_DIGITS, scale, bounded=False, padded=padded)


def _bits(field: Field) -> Codec:
    length = _parameter(field, "length", _UNBOUNDED_BITS)
    if length != _UNBOUNDED_BITS and not 0 <= length <= MOST_BITS:
        raise SchemaError(f"column {field.name!r}: its length is not one of 0 to {MOST_BITS:,} bits")
    return codecs.Bits(None if length == _UNBOUNDED_BITS else length)


def _parameter(field: Field, name: str, default: int) -> int:
    text = field.parameters.get(name, default)
    try:
        return int(text)
    except ValueError as error:
        raise SchemaError(
            f"column {field.name!r}: parameter {name} is {str(text)[:80]!r}, not a number"
        ) from error


def _array(field: Field) -> Codec:
    if field.items is None:
        raise SchemaError(f"column {field.name!r}: the schema of an array has no items")
    return codecs.Array(codec_of(field.items), uuids=field.items.semantic_name == "io.debezium.data.Uuid")


def _map(field: Field) -> Codec:
    if field.items is None or field.keys is None:
        raise SchemaError(f"column {field.name!r}: the schema of a map lacks its keys or values")
    return codecs.Map(codec_of(field.keys), codec_of(field.items))


def _struct(field: Field) -> Codec:
    return codecs.Struct(tuple((f.name, codec_of(f)) for f in field.fields))


def _always(codec: Codec) -> Callable[[Field], Codec]:
    return lambda _: codec


_PHYSICAL: dict[str, Callable[[Field], Codec]] = {
    "int8": _always(codecs.Byte()),
    "int16": _always(codecs.INT16),
    "int32": _always(codecs.INT32),
    "int64": _always(codecs.INT64),
    "float": _always(codecs.FLOAT),
    "double": _always(codecs.DOUBLE),
    "boolean": _always(codecs.BOOLEAN),
    "string": _always(codecs.TEXT),
    "bytes": _always(codecs.BYTES),
    "array": _array,
    "map": _map,
    "struct": _struct,
}

_TIME, _DATA, _CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."

_SEMANTIC: dict[tuple[str, str], Callable[[Field], Codec]] = {
    ("bytes", _CONNECT + "Decimal"): _decimal,
    ("int32", _CONNECT + "Date"): _always(codecs.Days()),
    ("int32", _CONNECT + "Time"): _always(codecs.Clock(MILLIS, IntegerType())),
    ("int64", _CONNECT + "Timestamp"): _always(codecs.Timestamp(MILLIS)),
    ("int32", _TIME + "Date"): _always(codecs.Days()),
    ("string", _TIME + "IsoDate"): _always(codecs.IsoDate()),
    ("int32", _TIME + "Time"): _always(codecs.Clock(MILLIS, IntegerType())),
    ("int64", _TIME + "MicroTime"): _always(codecs.Clock(MICROS, LongType())),
    ("int64", _TIME + "NanoTime"): _always(codecs.Clock(NANOS, LongType())),
    ("string", _TIME + "IsoTime"): _always(codecs.IsoTime()),
    ("string", _TIME + "ZonedTime"): _always(codecs.FORMATTED),
    ("int64", _TIME + "Timestamp"): _always(codecs.Timestamp(MILLIS)),
    ("int64", _TIME + "MicroTimestamp"): _always(codecs.Timestamp(MICROS)),
    ("int64", _TIME + "NanoTimestamp"): _always(codecs.Timestamp(NANOS)),
    ("string", _TIME + "IsoTimestamp"): _always(codecs.IsoTimestamp(zoned=False)),
    ("string", _TIME + "ZonedTimestamp"): _always(codecs.IsoTimestamp(zoned=True)),
    ("int64", _TIME + "MicroDuration"): _always(codecs.INT64),
    ("int64", _TIME + "NanoDuration"): _always(codecs.NanoDuration()),
    ("string", _TIME + "Interval"): _always(codecs.FORMATTED),
    ("int32", _TIME + "Year"): _always(codecs.INT32),
    ("struct", _DATA + "VariableScaleDecimal"): _always(codecs.VariableScale()),
    ("bytes", _DATA + "Bits"): _bits,
    ("string", _DATA + "Uuid"): _always(codecs.FORMATTED),
    ("string", _DATA + "Enum"): _always(codecs.FORMATTED),
    ("string", _DATA + "EnumSet"): _always(codecs.FORMATTED),
    ("string", _DATA + "Json"): _always(codecs.TEXT),
    ("string", _DATA + "Xml"): _always(codecs.TEXT),
    ("string", _DATA + "Ltree"): _always(codecs.TEXT),
    ("string", _DATA + "Tsvector"): _always(codecs.TEXT),
}
