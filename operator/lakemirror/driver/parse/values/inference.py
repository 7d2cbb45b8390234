"""Types of columns whose records carry no schema: from the table, the manifest, or the values.

Inference runs in Spark, with one aggregation for all tables of a batch. A whole number is BIGINT
(DECIMAL(38,0) if it does not fit), a number with a fraction is DOUBLE, and text is STRING. Arrays and objects
are inferred element by element. An object without a known shape, and values of several kinds, are STRING (as
JSON). A column in which only nulls were seen has no type yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
)

# JSON has no numbers for these floats and spells them as text, which would turn a DOUBLE into a STRING.
_NO_NUMBER = r'(?<!\\)"(NaN|-?Infinity)"(?=\s*[,}\]])'

Types = dict[str, DataType | None]
"""Types by column name, in the source's order; None if not known yet."""


def infer(images: DataFrame) -> dict[str, Types]:
    """Infer the types of each table's columns.

    ``images`` has the columns ``table`` and ``text`` (the JSON of a row image, or null).
    """
    schemas = images.where("text IS NOT NULL").groupBy("table").agg(*shape(F.col("text")))
    return {row["table"]: columns(row["schema"], row["order"]) for row in schemas.collect()}


def shape(text: Column) -> tuple[Column, Column]:
    """Return aggregates over the JSON of row images; their results are the arguments of `columns`."""
    keys = F.json_object_keys(text)
    numbers = F.regexp_replace(text, _NO_NUMBER, "null")
    return (
        F.schema_of_variant_agg(F.try_parse_json(numbers)).alias("schema"),
        F.max_by(keys, F.size(keys)).alias("order"),
    )


def resolve(
    inferred: Types, existing: Mapping[str, DataType], declared: Mapping[str, DataType]
) -> dict[str, DataType]:
    """Return the type of each column that has one: the table's, else the declared, else the inferred type."""
    known = {name: existing.get(name) or declared.get(name) or type for name, type in inferred.items()}
    return {name: type for name, type in known.items() if type is not None}


def columns(schema: str | None, order: list[str] | None) -> Types:
    """Return the types that the aggregates of `shape` found."""
    parsed = _Parser(schema).type() if schema else None
    found = parsed if isinstance(parsed, dict) else {}
    order = order or []
    names = [n for n in order if n in found] + [n for n in found if n not in order]
    return {name: _spark(found[name]) for name in names}


_Shape = str | list["_Shape"] | dict[str, "_Shape"]  # atomic name | [element] | {name: shape}


def _spark(shape: _Shape) -> DataType | None:
    if isinstance(shape, list):
        element = _spark(shape[0])
        return None if element is None else ArrayType(element)
    if isinstance(shape, dict):
        return _struct(shape)
    if shape.startswith("DECIMAL"):
        # An integer beyond BIGINT has no scale and at least 19 digits; anything else came with a fraction.
        precision, scale = (int(n) for n in re.findall(r"\d+", shape))
        return DecimalType(38, 0) if scale == 0 and precision > 18 else DoubleType()
    return _ATOMIC.get(shape, StringType())


def _struct(shape: dict[str, _Shape]) -> DataType:
    if set(shape) == {"scale", "value"} and shape["scale"] == "BIGINT" and shape["value"] == "STRING":
        return StringType()  # Debezium's VariableScaleDecimal, as text
    members = {name: _spark(inner) for name, inner in shape.items()}
    known = [StructField(name, type) for name, type in members.items() if type is not None]
    return StructType(known) if known and "VARIANT" not in shape.values() else StringType()


_ATOMIC: dict[str, DataType | None] = {
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
    "VARIANT": StringType(),
    "VOID": None,
}


class _Mark(NamedTuple):
    """A punctuation mark of the notation; a column may have the same name."""

    character: str


class _Parser:
    """Parses the notation of ``schema_of_variant``: ``OBJECT<a: BIGINT, `b c`: ARRAY<DECIMAL(3,2)>>``."""

    _TOKEN = re.compile(r"`((?:[^`]|``)*)`|([A-Za-z_0-9]+(?:\(\d+,\s*\d+\))?)|([<>:,])|\s+")

    def __init__(self, text: str) -> None:
        self._tokens = self._scan(text)
        self._next: str | _Mark = next(self._tokens, "")

    def type(self) -> _Shape:
        name = self._take()
        if self._next != _Mark("<"):
            return name
        self._take()
        shape: _Shape = [self.type()] if name == "ARRAY" else dict(self._members())
        self._take()  # >
        return shape

    def _members(self) -> Iterator[tuple[str, _Shape]]:
        while self._next != _Mark(">"):
            name = self._take()
            self._take()  # :
            yield name, self.type()
            if self._next == _Mark(","):
                self._take()

    def _take(self) -> str:
        token, self._next = self._next, next(self._tokens, "")
        return token.character if isinstance(token, _Mark) else token

    def _scan(self, text: str) -> Iterator[str | _Mark]:
        for match in self._TOKEN.finditer(text):
            quoted, word, mark = match.groups()
            if quoted is not None:
                yield quoted.replace("``", "`")
            elif word:
                yield word
            elif mark:
                yield _Mark(mark)
