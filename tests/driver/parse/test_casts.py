"""No text that a record's producer chose is cast but in `lakemirror.driver.shapes`, which looks at it first.

The code is searched for casts, and for other functions that make Spark throw. Those of constants and those
whose result is text or bytes are harmless. The others are listed here by the function that they are in, with
what they cast.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
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
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.driver import shapes
from lakemirror.driver.parse.values import codecs, semantics, temporal
from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.parse.values.texts import DEBEZIUM, MAXWELL, UNKNOWN
from lakemirror.driver.parse.values.untyped import codec_of_type
from lakemirror.driver.rules.schemas import PHYSICAL
from lakemirror.driver.rules.types import MOST_BITS

DRIVER = Path(shapes.__file__).parent
SEARCHED = ("parse", "read", "verify/values.py", "sequence.py", "orders.py", "times.py")
CASTS = (
    *("cast", "try_cast", "astype", "conv", "to_number", "try_to_number", "to_date", "try_to_date"),
    *("to_timestamp", "try_to_timestamp", "to_timestamp_ntz", "to_timestamp_ltz"),
    *("variant_get", "try_variant_get", "make_timestamp", "make_dt_interval", "make_ym_interval"),
    *("unbase64", "to_binary", "parse_json", "map_concat", "map_from_entries"),
)
HARMLESS = ("'string'", "'binary'", "'array<string>'", "'map<string, string>'", "'array<bigint>'")
CONSTANTS = ("F.lit(", "F.array()", "F.create_map()", "nothing.", "unknown.")

LISTED = {
    "parse/computed.py:Computed.of": "the result of an expression of the manifest",
    "parse/condition.py:applied": "a decoded value, to its own type",
    "parse/decode.py:_former_row": "a decoded value, to its own type",
    "parse/decode.py:_value": "a constant, to its own type",
    "parse/decode.py:_texts": "entries with one name for each column",
    "parse/encodings.py:_number": "eight bytes",
    "parse/encodings.py:_text": "a struct, whose fields get other names",
    "parse/envelopes/base.py:source_block": "fields of the source block, which have their types",
    "parse/envelopes/custom.py:Custom._micros": "a decimal",
    "parse/envelopes/maxwell.py:_with_nulls": "a constant",
    "parse/order.py:_of": "a number or a date",
    "parse/order.py:_seconds": "a moment",
    "parse/order.py:_value": "a decimal",
    "parse/values/codecs.py:Bits.text": "a byte",
    "parse/values/codecs.py:NanoDuration.text": "an integer",
    "parse/values/decimals.py:_limbs": "seven hexadecimal digits",
    "parse/values/decimals.py:decimal": "a decimal",
    "parse/values/decode.py:RowDecoder.parse": "a struct, whose fields get other names",
    "parse/values/fit.py:_number": "a number, of which `fit` knows the type",
    "parse/values/fit.py:fit": "a number or a moment, of which `fit` knows the type; a text to a BOOLEAN",
    "parse/values/fit.py:is_exact": "a float",
    "parse/values/temporal.py:clock": "an integer",
    "parse/values/temporal.py:scaled": "a constant",
    "parse/values/untyped.py:JsonDecimal._of_double": "a VARIANT that is a double",
    "parse/values/untyped.py:JsonDecimal._of_pair": "a VARIANT, to an integer",
    "parse/values/untyped.py:JsonFloat.parts": "a VARIANT that is a number",
    "parse/values/untyped.py:JsonTimestamp._number": "a decimal",
    "read/change_feed.py:ChangeFeed._listed": "a condition",
    "read/change_feed.py:_place_in_list": "an integer",
    "read/files/text_rows.py:_joined": "a number that the driver counted",
    "sequence.py:_digits_of_value": "a decimal",
    "sequence.py:_hex": "a number",
    "orders.py:_ten_bytes": "a number",
    "verify/values.py:_boolean": "a BOOLEAN",
    "verify/values.py:_date": "a date, or its number of days",
    "verify/values.py:_micros_of_day": "a decimal",
    "verify/values.py:_nearest": "a double",
    "verify/values.py:_single": "a float",
    "verify/values.py:_time": "a number",
    "verify/values.py:_timestamp.number": "a number",
}


def casts(tree: ast.AST, where: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Yield the casts in a piece of code that may be harmful, each with the name of its function."""
    for each in ast.iter_child_nodes(tree):
        named = isinstance(each, (ast.FunctionDef, ast.ClassDef))
        inner = (*where, each.name) if isinstance(each, (ast.FunctionDef, ast.ClassDef)) and named else where
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) and each.func.attr in CASTS:
            code = ast.unparse(each)
            target = ast.unparse(each.args[-1]) if each.args else ""
            if target not in HARMLESS and not code.startswith(CONSTANTS):
                yield ".".join(where), code
        yield from casts(each, inner)


def found() -> dict[str, list[str]]:
    files = [file for name in SEARCHED for file in (DRIVER / name, *sorted((DRIVER / name).rglob("*.py")))]
    codes: dict[str, list[str]] = {}
    for file in files:
        if file.is_file():
            for function, code in casts(ast.parse(file.read_text(encoding="utf-8"))):
                codes.setdefault(f"{file.relative_to(DRIVER)}:{function}", []).append(code)
    return codes


@pytest.mark.guarantee("A text that a producer wrote is looked at before it is read as a number or a time")
def test_only_shapes_casts_what_a_producer_wrote() -> None:
    codes = found()
    assert {place: code for place, code in codes.items() if place not in LISTED} == {}
    assert LISTED.keys() - codes.keys() == set(), "no longer in the code"


@pytest.mark.parametrize(
    "code", ["text.try_cast('decimal(38,9)')", "F.to_timestamp(text)", "F.col('value').cast(kind)"]
)
def test_the_search_finds_a_cast(code: str) -> None:
    assert list(casts(ast.parse(f"def f(text):\n    return {code}"))) == [("f", code)]


TYPES: list[DataType] = [
    *(DecimalType(10, 2), DecimalType(38, 0), DoubleType(), FloatType(), BooleanType(), BinaryType()),
    *(ByteType(), ShortType(), IntegerType(), LongType(), StringType(), VariantType()),
    *(DateType(), TimestampType(), TimestampNTZType()),
]


def test_no_parser_reads_a_decimal() -> None:
    """``from_json`` would write out its exponent."""
    nested = [*TYPES, *map(ArrayType, TYPES), *(MapType(DecimalType(9, 2), each) for each in TYPES)]
    wires = [codec_of_type(each, writing).wire for each in nested for writing in (DEBEZIUM, MAXWELL, UNKNOWN)]
    plain = PHYSICAL - {"array", "map", "struct", "float32", "float64"}
    wires += [semantics.codec_of(Field("v", kind)).wire for kind in sorted(plain)]
    wires += [semantics.codec_of(Field("v", kind, name)).wire for kind, name in semantics._SEMANTIC]
    assert [each for each in wires if "decimal" in each.simpleString()] == []


SHAPES: dict[str, dict[str, object]] = {
    "1e-100000000": {},
    "1E+99999999": {},
    "9" * 5000: {},
    "1e99999": {},
    "0x1F": {},
    "１２": {},
    "": {},
    "1e-9999": {"decimal": Decimal(0), "double": 0.0},
    "1e300": {"double": 1e300},
    "-1.5e1": {"decimal": Decimal(-15), "double": -15.0},
    " 12 ": {"decimal": Decimal(12), "double": 12.0, "whole": 12},
    "NaN": {"double": "nan"},
    "-Infinity": {"double": float("-inf")},
    "9223372036854775808": {"decimal": Decimal(2**63), "double": 2.0**63},
    "2024-02-29": {"day": "2024-02-29", "moment": "2024-02-29 00:00:00"},
    "2024-01-01T00:00:00Z": {"moment": "2024-01-01 00:00:00"},
    "2024-01-01" + " " * 30_000 + "x": {},
    "2024-01-01T00:00:00." + "0" * 30_000: {},
}
PAIRS = {
    '{"scale":2,"value":"AQ=="}': Decimal("0.01"),
    '{"scale":16383,"value":"AA=="}': Decimal(0),
    '{"scale":25,"value":"AQ=="}': Decimal("1e-25"),
    '{"scale":3000000,"value":"AQ=="}': None,
    '{"scale":-3000000,"value":"AQ=="}': None,
    '{"scale":-9223372036854775808,"value":"AQ=="}': None,
    '{"scale":"x","value":"AQ=="}': None,
    "1e-30": Decimal("1e-30"),
    '"1e-100000000"': None,
}


def test_texts_of_any_shape(spark: SparkSession) -> None:
    """In one query, which ends. What is shorter than a number's limit may still be none."""
    given = spark.createDataFrame([(text,) for text in SHAPES], "text STRING").coalesce(1)
    text = F.col("text")
    double = shapes.number(text, "double")
    found = given.select(
        text,
        shapes.number(text, "decimal(38,9)").alias("decimal"),
        F.when(F.isnan(double), "nan").otherwise(double.cast("string")).alias("double"),
        shapes.whole(text).alias("whole"),
        temporal.day_of(text).cast("string").alias("day"),
        temporal.instant_of(text).cast("string").alias("moment"),
    )
    for row in found.collect():
        wanted = SHAPES[row["text"]]
        values = {name: row[name] for name in ("decimal", "double", "whole", "day", "moment")}
        told = values["double"]
        values["double"] = told if told in (None, "nan") else float(told)
        assert values == {**dict.fromkeys(values), **wanted}, row["text"][:40]


def test_pairs_and_extremes(spark: SparkSession) -> None:
    codec = codec_of_type(DecimalType(38, 30), MAXWELL)
    given = spark.createDataFrame([(text,) for text in PAIRS], "text STRING").coalesce(1)
    parts = codec.parts(F.try_parse_json("text"))
    found = {row[0]: row[1] for row in given.select("text", parts.value).collect()}
    assert found == PAIRS
    lowest = F.lit(-(2**63)).cast("bigint")
    pair = F.struct(F.lit(-(2**31)).alias("scale"), F.lit(b"\1").alias("value"))
    deep: DataType = ArrayType(ArrayType(ArrayType(ArrayType(DecimalType(9, 2)))))
    lists = F.from_json(F.lit("[[[[1.5, null]]]]"), codec_of_type(deep, MAXWELL).wire)
    row = spark.range(1).select(
        temporal.clock(lowest, temporal.MICROS).alias("clock"),
        codecs.VariableScale().parts(pair).value.alias("pair"),
        codecs.Bits(9).parts(F.lit(b"\5")).value.alias("bits"),
        codecs.Bits(None).parts(F.lit(bytes(MOST_BITS // 8 + 1))).misfit.alias("many"),
        codec_of_type(deep, MAXWELL).decode(lists, deep).value.alias("deep"),
    )
    assert row.collect()[0].asDict() == {
        "clock": "-2562047788:00:54.775808",
        "pair": None,
        "bits": "000000101",
        "many": True,
        "deep": [[[[Decimal("1.50"), None]]]],
    }
