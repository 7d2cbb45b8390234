"""Turns typed rows into the documents that Kafka Connect's JsonConverter would write for them.

Rows of a table are thus read like rows of a database, with the types of the table: schemas as in
``parse.values.connect``, values as Debezium writes them (decimals as bytes, times as numbers).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.tables.delta import quoted

TimeUnit = Literal["MILLIS", "MICROS", "NANOS"]

_PLAIN: Final[dict[type[DataType], str]] = {
    BooleanType: "boolean",
    ByteType: "int8",
    ShortType: "int16",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "bytes",
}
_DATE: Final = "org.apache.kafka.connect.data.Date"
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_INSTANT: Final = "io.debezium.time.ZonedTimestamp"
_JSON: Final = "io.debezium.data.Json"
_MICROS: Final = "io.debezium.time.MicroTimestamp"
_TIMES: Final[dict[TimeUnit, dict[str, str]]] = {
    "MILLIS": {"type": "int32", "name": "io.debezium.time.Time"},
    "MICROS": {"type": "int64", "name": "io.debezium.time.MicroTime"},
    "NANOS": {"type": "int64", "name": "io.debezium.time.NanoTime"},
}
_UTC: Final = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"
_NULLS: Final = {"ignoreNullFields": "false"}


class TimeOfDay(DataType):
    """The type of plain integers that count from midnight in this unit. Spark has no type for all of them."""

    def __init__(self, unit: TimeUnit) -> None:
        self.unit = unit

    def jsonValue(self) -> str:  # noqa: N802  # the name in DataType
        return f"time({self.unit})"


class UnreadableType(LakemirrorError):
    """A column has a type that no change event can carry."""


def schema_of(fields: Sequence[StructField], *, optional: bool = True) -> dict[str, Any]:
    """Return the Connect schema of a struct with these fields. Raises UnreadableType."""
    members = [{**_schema(each.dataType, each.name), "field": each.name} for each in fields]
    return {"type": "struct", "fields": members, "optional": optional}


def wire(
    fields: Sequence[StructField], of: str = "", called: Mapping[str, str] = MappingProxyType({})
) -> Column:
    """STRUCT: columns with these names (of the alias ``of``) as JsonConverter would write their values.

    ``called`` maps names to the ones that they get in the struct.
    """
    prefix = f"{of}." if of else ""
    return F.struct(
        *[
            _wire(F.col(f"{prefix}{quoted(each.name)}"), each.dataType).alias(
                called.get(each.name, each.name)
            )
            for each in fields
        ]
    )


def document(schema: dict[str, Any], payload: Column) -> Column:
    """STRING: a payload with its schema embedded."""
    head = f'{{"schema":{json.dumps(schema, separators=(",", ":"))},"payload":'
    return F.concat(F.lit(head), text(payload), F.lit("}"))


def text(payload: Column) -> Column:
    """STRING: the struct from `wire` as JSON. Equal values give the same text."""
    return F.to_json(payload, _NULLS)


def _schema(kind: DataType, column: str) -> dict[str, Any]:
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return {"type": plain, "optional": True}
    if isinstance(kind, DecimalType):
        parameters = {"scale": str(kind.scale), "connect.decimal.precision": str(kind.precision)}
        return {"type": "bytes", "optional": True, "name": _DECIMAL, "parameters": parameters}
    if isinstance(kind, TimeOfDay):
        return {**_TIMES[kind.unit], "optional": True}
    if isinstance(kind, DateType):
        return {"type": "int32", "optional": True, "name": _DATE}
    if isinstance(kind, TimestampType):
        return {"type": "string", "optional": True, "name": _INSTANT}
    if isinstance(kind, TimestampNTZType):
        return {"type": "int64", "optional": True, "name": _MICROS}
    if isinstance(kind, VariantType):
        return {"type": "string", "optional": True, "name": _JSON}
    if isinstance(kind, ArrayType):
        return {"type": "array", "optional": True, "items": _schema(kind.elementType, column)}
    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        keys = {"type": "string", "optional": False}
        return {"type": "map", "optional": True, "keys": keys, "values": _schema(kind.valueType, column)}
    if isinstance(kind, StructType):
        return schema_of(kind.fields)
    raise UnreadableType(
        f"column {column} is of type {kind.simpleString()}, which cannot be mirrored: read a copy of the "
        "table without it"
    )


def _wire(column: Column, kind: DataType) -> Column:
    if isinstance(kind, DecimalType):
        return _unscaled(column, kind)
    if isinstance(kind, DateType):
        return F.unix_date(column)
    if isinstance(kind, TimestampType):
        return F.date_format(F.to_utc_timestamp(column, F.current_timezone()), _UTC)
    if isinstance(kind, TimestampNTZType):
        return F.timestamp_diff("MICROSECOND", F.lit("1970-01-01").cast("timestamp_ntz"), column)
    if isinstance(kind, VariantType):
        return F.to_json(column)
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda each: _wire(each, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(column, lambda _, each: _wire(each, kind.valueType))
    if isinstance(kind, StructType):
        members = [_wire(column.getField(each.name), each.dataType).alias(each.name) for each in kind.fields]
        return F.when(column.isNotNull(), F.struct(*members))
    return column


def _unscaled(column: Column, kind: DecimalType) -> Column:
    """BINARY: the unscaled value of a decimal as Connect writes it, big-endian in two's complement.

    Avro writes the same bytes after one byte with their number.
    """
    schema = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return F.substring(to_avro(column, json.dumps(schema)), 2, 64)
