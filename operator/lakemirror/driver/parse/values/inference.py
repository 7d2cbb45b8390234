"""Types of columns whose records carry no schema: from the table, the manifest, or the values.

Inference runs in Spark, with one aggregation for all tables of a batch. A whole number is BIGINT
(DECIMAL(38,0) if it does not fit), a number with a fraction is DOUBLE, and text is STRING. Arrays and objects
are inferred element by element. An object without a known shape, and values of several kinds, are STRING (as
JSON), and so is what is nested too deeply (`DEEPEST`, `MOST_LISTS`). A column in which only nulls were seen
has no type yet.

No value is lost to an unknown type: the elements of arrays that are all empty are STRING, which takes any
value, and "NaN" and "Infinity" are text where no number was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

from lakemirror.driver.rules.inference import DEEPEST, MOST_LISTS

# JSON has no numbers for these floats and spells them as text, which would turn a DOUBLE into a STRING.
_NO_NUMBER = r'(?<!\\)"(NaN|-?Infinity)"(?=\s*[,}\]])'

Types = dict[str, DataType | None]
"""Types by column name, in the source's order; None if not known yet."""


def infer(images: DataFrame) -> dict[str, Types]:
    """Infer the types of each table's columns.

    ``images`` has the columns ``table`` and ``text`` (the JSON of a row image, or null).
    """
    schemas = images.where("text IS NOT NULL").groupBy("table").agg(*shape(F.col("text")))
    return {row["table"]: columns(*(row[each] for each in SHAPE)) for row in schemas.collect()}


SHAPE = ("schema", "texts", "order")
"""The names of the aggregates of `shape`."""


def shape(text: Column) -> tuple[Column, Column, Column]:
    """Return aggregates over the JSON of row images; their results are the arguments of `columns`."""
    keys = F.json_object_keys(text)
    numbers = F.regexp_replace(text, _NO_NUMBER, "null")
    return (
        F.schema_of_variant_agg(_parsed(numbers)).alias("schema"),
        F.schema_of_variant_agg(_parsed(F.when(numbers != text, text))).alias("texts"),
        F.max_by(keys, F.size(keys)).alias("order"),
    )


def _parsed(text: Column) -> Column:
    """Parse a row's JSON (VARIANT). Of a member that it has several times, the last one counts.

    `parse_json` refuses such an object, and so it would show nothing of its row. A member whose value has
    an object with a member several times is a text here, which takes any value.
    """
    return F.coalesce(F.try_parse_json(text), F.try_parse_json(_with_distinct_members(text)))


def _with_distinct_members(text: Column) -> Column:
    """Return JSON of an object that `parse_json` refuses, with the last of each member (STRING)."""
    names = F.json_object_keys(text)
    refused = F.when(F.try_parse_json(text).isNull() & names.isNotNull(), text)
    values = F.map_values(F.from_json(refused, "map<string,string>"))
    inner = F.filter(values, lambda each: each.rlike(r"^[{\[]") & F.try_parse_json(each).isNull())
    plain = F.aggregate(
        inner, refused, lambda found, each: F.replace(found, F.concat(F.lit(":"), each), F.lit(':"{}"'))
    )
    entries = F.map_entries(F.from_json(plain, "map<string,variant>"))

    def last(name: Column) -> Column:
        found = F.filter(entries, lambda each: each["key"] == name)
        value = F.to_json(F.array(F.get(found, F.size(found) - 1)["value"]))
        return F.concat(_within(F.to_json(F.array(name))), F.lit(":"), _within(value))

    members = F.array_join(F.transform(F.array_distinct(names), last), ",")
    return F.when(refused.isNotNull(), F.concat(F.lit("{"), members, F.lit("}")))


def _within(array: Column) -> Column:
    """Return the only element of a JSON array."""
    return F.substring(array, F.lit(2), F.length(array) - 2)


@dataclass(frozen=True)
class Objects:
    """Where objects are in a row: at a path, or in arrays at a path."""

    path: tuple[str, ...]
    in_arrays: bool = False


def members(text: Column, where: Objects) -> Column:
    """Return an aggregate over the objects in row images.

    Its result is the argument of `of_members`. Values of another kind say nothing about the objects' members.
    """
    found = _parsed(text)
    for name in where.path:
        found = F.from_json(F.to_json(found), "map<string,variant>")[name]
    if where.in_arrays:
        items = F.filter(F.from_json(F.to_json(found), "array<variant>"), _is_object)
        return F.schema_of_variant_agg(F.try_parse_json(F.to_json(items)))
    return F.schema_of_variant_agg(F.when(_is_object(found), found))


def _is_object(value: Column) -> Column:
    return F.schema_of_variant(value).startswith("OBJECT")


def objects_of(columns: Mapping[str, DataType]) -> list[Objects]:
    """Return where rows of these types have objects. Those in arrays are the last of their path."""
    found: list[Objects] = []
    for name, kind in columns.items():
        if isinstance(kind, StructType):
            inner = objects_of({field.name: field.dataType for field in kind.fields})
            found += [Objects((name,)), *(Objects((name, *each.path), each.in_arrays) for each in inner)]
        elif isinstance(kind, ArrayType) and isinstance(kind.elementType, StructType):
            found.append(Objects((name,), in_arrays=True))
    return found


def of_members(schema: str | None, where: Objects) -> DataType | None:
    """Return the type of the column that holds these objects, as the aggregate of `members` shows it.

    A member with values of several kinds is STRING, which takes any value.
    """
    parsed = _Parser(schema).type() if schema else None
    shape = parsed[0] if where.in_arrays and isinstance(parsed, list) else parsed
    if not isinstance(shape, dict):
        return None
    levels, lists = max(DEEPEST - len(where.path), 0), MOST_LISTS - where.in_arrays
    kinds = {name: _spark(each, levels, lists) for name, each in shape.items()}
    found: DataType = StructType(
        [StructField(name, kind) for name, kind in kinds.items() if kind is not None]
    )
    if where.in_arrays:
        found = ArrayType(found)
    for name in reversed(where.path[1:]):
        found = StructType([StructField(name, found)])
    return found


def resolve(
    inferred: Types, existing: Mapping[str, DataType], declared: Mapping[str, DataType]
) -> dict[str, DataType]:
    """Return the type of each column that has one: the table's, else the declared, else the inferred type."""
    known = {name: existing.get(name) or declared.get(name) or type for name, type in inferred.items()}
    return {name: type for name, type in known.items() if type is not None}


def columns(schema: str | None, texts: str | None, order: list[str] | None) -> Types:
    """Return the types that the aggregates of `shape` found."""
    parsed = _Parser(schema).type() if schema else None
    if texts is not None and parsed is not None:
        parsed = _completed(parsed, _Parser(texts).type())
    found = parsed if isinstance(parsed, dict) else {}
    order = order or []
    names = [n for n in order if n in found] + [n for n in found if n not in order]
    return {name: _spark(found[name]) for name in names}


_Shape = str | list["_Shape"] | dict[str, "_Shape"]  # atomic name | [element] | {name: shape}


def _completed(shape: _Shape, texts: _Shape) -> _Shape:
    """Return ``shape``, found without the texts that spell a float, completed by ``texts``, found with them.

    Such a text is a float beside numbers, and otherwise a text.
    """
    if isinstance(shape, dict) and isinstance(texts, dict):
        return {name: _completed(each, texts.get(name, each)) for name, each in shape.items()}
    if isinstance(shape, list) and isinstance(texts, list):
        return [_completed(shape[0], texts[0])]
    if texts not in ("STRING", _MIXED) or shape == "STRING":
        return shape
    if shape == _UNKNOWN:
        return texts
    is_number = isinstance(shape, str) and shape.startswith(("BIGINT", "DECIMAL", "DOUBLE", "FLOAT"))
    return "DOUBLE" if is_number else _MIXED


def _spark(shape: _Shape, levels: int = DEEPEST, lists: int = MOST_LISTS) -> DataType | None:
    """Return the type of a value; ``levels`` and ``lists`` are how many may be nested in it."""
    if isinstance(shape, (list, dict)) and not (levels and (lists or isinstance(shape, dict))):
        return StringType()
    if isinstance(shape, list):
        return ArrayType(_spark(shape[0], levels - 1, lists - 1) or StringType())
    if isinstance(shape, dict):
        return _struct(shape, levels - 1, lists)
    if shape.startswith("DECIMAL"):
        # An integer beyond BIGINT has no scale and at least 19 digits; anything else came with a fraction.
        precision, scale = (int(n) for n in re.findall(r"\d+", shape))
        return DecimalType(38, 0) if scale == 0 and precision > 18 else DoubleType()
    return _ATOMIC.get(shape, StringType())


def _struct(shape: dict[str, _Shape], levels: int, lists: int) -> DataType:
    if set(shape) == {"scale", "value"} and shape["scale"] == "BIGINT" and shape["value"] == "STRING":
        return StringType()  # Debezium's VariableScaleDecimal, as text
    members = {name: _spark(inner, levels, lists) for name, inner in shape.items()}
    known = [StructField(name, type) for name, type in members.items() if type is not None]
    return StructType(known) if known and _MIXED not in shape.values() else StringType()


_UNKNOWN, _MIXED = "VOID", "VARIANT"

_ATOMIC: dict[str, DataType | None] = {
    "BIGINT": LongType(),
    "DOUBLE": DoubleType(),
    "FLOAT": DoubleType(),
    "BOOLEAN": BooleanType(),
    "STRING": StringType(),
    _MIXED: StringType(),
    _UNKNOWN: None,
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
