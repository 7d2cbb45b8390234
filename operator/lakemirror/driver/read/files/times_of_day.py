"""Times of day in Parquet and Avro files, which Spark refuses.

Spark reads them as the integers that they are stored as if it is given a schema that says so. To find the
columns, elements and members that are times, the schema of a file is converted twice: once with integers in
their place, once with a type of its own for each unit.

Sources: https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#time,
https://avro.apache.org/docs/1.12.0/specification/#time_us
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StructField,
    StructType,
)

from lakemirror.driver.java import java_class
from lakemirror.driver.read.rows import TimeOfDay, TimeUnit

_STAND_IN: Final[Mapping[TimeUnit, str]] = {"MILLIS": "boolean", "MICROS": "float", "NANOS": "double"}
"""Types that no integer becomes, by their names in Avro and, in capitals, in Parquet."""

_UNIT: Final[Mapping[type[DataType], TimeUnit]] = {
    BooleanType: "MILLIS",
    FloatType: "MICROS",
    DoubleType: "NANOS",
}
_AVRO: Final = {"type": "long", "logicalType": "time-micros"}
"""Spark reads the other one, ``time-millis``, as integers, which mirrors have by now."""


@dataclass(frozen=True)
class Types:
    """The types that a file's values have, and those that Spark reads it with."""

    schema: StructType
    stored: StructType

    @staticmethod
    def of(schema: StructType) -> Types:
        """Return the types of a file without times of day."""
        return Types(schema, schema)


def types_of_parquet(spark: SparkSession, schema: Any) -> Types | None:
    """Return the types of a Parquet file with this MessageType, or None if it has no times of day."""
    if "(TIME(" not in str(schema.toString()):
        return None
    parquet = "org.apache.parquet.schema"
    names = java_class(spark, f"{parquet}.PrimitiveType$PrimitiveTypeName")
    state: Any = spark._jsparkSession.sessionState()
    sql = "org.apache.spark.sql.execution.datasources.parquet"
    converter = java_class(spark, f"{sql}.ParquetToSparkSchemaConverter")(state.conf())

    def changed(field: Any, stand_in: bool) -> Any:
        if not field.isPrimitive():
            return field.asGroupType().withNewFields(members(field, stand_in))
        unit = _parquet_unit(field)
        if unit is None:
            return field
        stored = field.asPrimitiveType().getPrimitiveTypeName()
        kind = names.valueOf(_STAND_IN[unit].upper()) if stand_in else stored
        return java_class(spark, f"{parquet}.PrimitiveType")(field.getRepetition(), kind, field.getName())

    def members(group: Any, stand_in: bool) -> Any:
        found = java_class(spark, "java.util.ArrayList")()
        for each in group.asGroupType().getFields():
            found.add(changed(each, stand_in))
        return found

    def converted(stand_in: bool) -> StructType:
        message = java_class(spark, f"{parquet}.MessageType")(schema.getName(), members(schema, stand_in))
        return StructType.fromJson(json.loads(converter.convert(message).json()))

    return _types(converted)


def types_of_avro(spark: SparkSession, schema: str) -> Types | None:
    """Return the types of an Avro file with this schema (JSON), or None if it has no times of day."""
    whole = json.loads(schema)
    if _avro_changed(whole, stand_in=False) == whole:
        return None

    def converted(stand_in: bool) -> StructType:
        text = json.dumps(_avro_changed(whole, stand_in=stand_in))
        converters = java_class(spark, "org.apache.spark.sql.avro.SchemaConverters")
        parsed = java_class(spark, "org.apache.avro.Schema$Parser")().parse(text)
        return StructType.fromJson(json.loads(converters.toSqlType(parsed).dataType().json()))

    return _types(converted)


def _types(converted: Callable[[bool], StructType]) -> Types:
    stored = converted(False)
    return Types(_struct(stored, converted(True)), stored)


def _struct(stored: StructType, told: StructType) -> StructType:
    pairs = zip(stored.fields, told.fields, strict=True)
    return StructType([StructField(a.name, _marked(a.dataType, b.dataType), a.nullable) for a, b in pairs])


def _marked(stored: DataType, told: DataType) -> DataType:
    if isinstance(stored, StructType) and isinstance(told, StructType):
        return _struct(stored, told)
    if isinstance(stored, ArrayType) and isinstance(told, ArrayType):
        return ArrayType(_marked(stored.elementType, told.elementType), stored.containsNull)
    if isinstance(stored, MapType) and isinstance(told, MapType):
        value = _marked(stored.valueType, told.valueType)
        return MapType(_marked(stored.keyType, told.keyType), value, stored.valueContainsNull)
    return stored if type(stored) is type(told) else TimeOfDay(_UNIT[type(told)])


def _parquet_unit(field: Any) -> TimeUnit | None:
    annotation = field.getLogicalTypeAnnotation()
    told = "" if annotation is None else str(annotation.toString())  # such as TIME(MICROS,true)
    return next((unit for unit in _STAND_IN if told.startswith(f"TIME({unit},")), None)


def _avro_changed(schema: Any, *, stand_in: bool) -> Any:
    """Return a schema of Avro (JSON) whose times are integers, or of the type that stands in for them."""
    if isinstance(schema, list):  # a union: of more than null and one type, Spark makes types of its own
        alone = sum(each != "null" for each in schema) == 1
        return [_avro_changed(each, stand_in=stand_in and alone) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if {name: schema.get(name) for name in _AVRO} == _AVRO:
        return _STAND_IN["MICROS"] if stand_in else "long"
    changed = {
        name: _avro_changed(schema[name], stand_in=stand_in)
        for name in ("type", "items", "values")
        if name in schema
    }
    if "fields" in schema:
        changed["fields"] = [_avro_changed(each, stand_in=stand_in) for each in schema["fields"]]
    return {**schema, **changed}
