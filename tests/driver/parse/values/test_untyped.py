"""Values without a schema: what the target type makes of them, and what it refuses to guess."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.api.tables import TextEncoding
from lakemirror.driver.parse.values import Field, RowDecoder, infer, resolve, schemaless
from lakemirror.driver.parse.values.decimals import twos_complement
from lakemirror.driver.parse.values.texts import DEBEZIUM, MAXWELL, UNKNOWN, Writing
from tests.driver.parse.values.images import CORRUPT, GAP, MISFIT, fine, lost, outcomes

MARK = "__debezium_unavailable_value"


def unscaled(value: int) -> str:
    return base64.b64encode(twos_complement(value)).decode()


CASES: list[tuple[DataType, list[tuple[Any, dict[str, Any]]]]] = [
    (LongType(), [(5, fine(5)), (2**63 - 1, fine(2**63 - 1)), (1.5, CORRUPT), (None, fine(None))]),
    (IntegerType(), [(5, fine(5)), (2**31, MISFIT)]),
    (DoubleType(), [(5, fine(5.0)), ("Infinity", fine(float("inf")))]),
    (BooleanType(), [(True, fine(True)), (0, fine(False)), (1, fine(True)), ("no", MISFIT)]),
    (
        DecimalType(10, 2),
        [
            (unscaled(1234567890), fine(Decimal("12345678.90"))),
            ("0.10", fine(Decimal("0.10"))),
            ("-3", fine(Decimal("-3.00"))),
            (0.5, fine(Decimal("0.50"))),
            (12345678, fine(Decimal("12345678.00"))),
            (1e3, fine(Decimal("1000.00"))),
            ({"scale": 3, "value": unscaled(1230)}, fine(Decimal("1.23"))),
            ({"scale": 3, "value": unscaled(1)}, {**lost(None), "text": '{"scale":3,"value":"AQ=="}'}),
            (12345678.9, fine(Decimal("12345678.90"))),
            (1.005, lost("1.005")),
            (unscaled(10**10), lost("100000000.00")),
            ("NaN", lost("NaN")),
            ("0.001", lost("0.001")),
            ("what?", MISFIT),
            (None, fine(None)),
        ],
    ),
    (DecimalType(5, 0), [("12345", fine(Decimal(12345))), ("1234", MISFIT), ("AYaf", fine(Decimal(99999)))]),
    (DecimalType(20, 0), [(2**64 - 1, fine(Decimal(2**64 - 1)))]),
    (
        DecimalType(38, 18),
        [
            ({"scale": 18, "value": unscaled(5)}, fine(Decimal("5e-18"))),
            ({"scale": 20, "value": unscaled(5)}, {**lost(None), "text": '{"scale":20,"value":"BQ=="}'}),
        ],
    ),
    (
        DateType(),
        [
            (20512, fine("2026-02-28")),
            ("2026-02-28", fine("2026-02-28")),
            ("2026-02-28Z", fine("2026-02-28")),
            (2146033979, lost("infinity")),
            ("someday", MISFIT),
            (10**12, MISFIT),
        ],
    ),
    (
        TimestampNTZType(),
        [
            (1772284455123, fine("2026-02-28 13:14:15.123")),
            (1772284455123456, fine("2026-02-28 13:14:15.123456")),
            (1772284455123456789, fine("2026-02-28 13:14:15.123456")),
            (253402300799999, fine("9999-12-31 23:59:59.999")),
            (253402300799999999, fine("9999-12-31 23:59:59.999999")),
            ("2026-02-28T13:14:15.123456Z", fine("2026-02-28 13:14:15.123456")),
            ("2026-02-28 13:14:15", fine("2026-02-28 13:14:15")),
            (2**63 - 1, lost("infinity")),
            (9223372036825200000, lost("infinity")),
            (-63517780800000000, lost("0044-03-15 12:00:00 BC")),
            ("soon", MISFIT),
        ],
    ),
    (
        TimestampType(),
        [("1970-01-01T00:00:00Z", fine(0)), ("1970-01-01 00:00:00", fine(0)), (1000, fine(1000000))],
    ),
    (
        BinaryType(),
        [
            ("3q2+7wD/", fine(bytearray.fromhex("deadbeef00ff"))),
            ("A!", MISFIT),
            (base64.b64encode(MARK.encode()).decode(), GAP),
        ],
    ),
    (
        StringType(),
        [
            ("text", fine("text")),
            (5, fine("5")),
            (True, fine("true")),
            ({"a": [1]}, fine('{"a":[1]}')),
            ({"scale": 4, "value": "B1vNFQ=="}, fine("12345.6789")),
            ({"scale": 2, "value": "A"}, fine('{"scale":2,"value":"A"}')),
            ({"scale": 2, "value": "=A=="}, fine('{"scale":2,"value":"=A=="}')),
            ({"scale": 4, "value": unscaled(10**38)}, fine(f'{{"scale":4,"value":"{unscaled(10**38)}"}}')),
            (MARK, GAP),
            (base64.b64encode(MARK.encode()).decode(), GAP),
        ],
    ),
    (ArrayType(LongType()), [([1, None], fine([1, None])), (list(MARK.encode()), GAP)]),
    (
        VariantType(),
        [
            ({"b": 1, "a": [None, "x"]}, fine('{"a":[null,"x"],"b":1}')),
            (1.5, fine("1.5")),
            (True, fine("true")),
            ('{"a": 1}', fine('{"a":1}')),
            ("null", fine("null")),
            ("no {json", fine('"no {json"')),
            (None, fine(None)),
            (MARK, GAP),
        ],
    ),
    (ArrayType(VariantType()), [(["1", 2, {"a": "3"}], fine('["1",2,{"a":"3"}]')), ([MARK], GAP)]),
    (
        StructType([StructField("x", VariantType())]),
        [({"x": "1"}, fine('{"x":"1"}')), ({"x": None}, fine("{}")), (None, fine(None))],
    ),
    (
        FloatType(),
        [(100000000000, fine(99999997952.0)), (0.1, fine(0.10000000149011612)), (16777217, MISFIT)],
    ),
    (MapType(StringType(), VariantType()), [({"k": "1"}, fine('{"k":"1"}'))]),
    (ArrayType(DecimalType(6, 2)), [(["bg==", None], fine([Decimal("1.10"), None]))]),
    (
        StructType([StructField("x", DoubleType()), StructField("s", StringType())]),
        [({"x": 1.5}, fine({"x": 1.5, "s": None}))],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].simpleString())
def test_targets(spark: SparkSession, case: tuple[DataType, list[tuple[Any, dict[str, Any]]]]) -> None:
    target, values = case
    found = outcomes(spark, schemaless("c"), [wire for wire, _ in values], target)
    assert found == [expected for _, expected in values]


PRICE = DecimalType(10, 2)
WRITTEN: list[tuple[str, DataType, Writing, list[tuple[Any, dict[str, Any]]]]] = [
    (
        "decimals of Debezium",
        PRICE,
        DEBEZIUM,
        [
            ("1500", MISFIT),
            ("+123", MISFIT),
            ("0E-10", fine(Decimal("0.00"))),
            ("1.20E+2", fine(Decimal("120.00"))),
            ("120E-2", fine(Decimal("1.20"))),
            ("1.234E-1", lost("1.234E-1")),
            ("1E+9999", lost("1E+9999")),
            ("1E-99999", MISFIT),
            ("15.00", fine(Decimal("15.00"))),
            ("-300", fine(Decimal("-300.00"))),
            ("AfQ=", fine(Decimal("5.00"))),
            ("AfR=", MISFIT),  # decodes to the same bytes, and does not come back
            ("n/a", MISFIT),
            ("", MISFIT),
        ],
    ),
    (
        "decimals of any producer",
        PRICE,
        UNKNOWN,
        [
            ("1500", MISFIT),
            ("none", MISFIT),
            ("AfQ=", MISFIT),
            ("n/a", MISFIT),
            ("150", fine(Decimal("150.00"))),
            ("15.00", fine(Decimal("15.00"))),
            (1500, fine(Decimal("1500.00"))),
            ("NaN", lost("NaN")),
            ({"scale": 2, "value": "AfQ="}, fine(Decimal("5.00"))),
        ],
    ),
    (
        "decimals of Maxwell",
        PRICE,
        MAXWELL,
        [("1500", fine(Decimal("1500.00"))), ("none", MISFIT), ("AfQ=", MISFIT)],
    ),
    (
        "decimals that are said to be text",
        PRICE,
        Writing(encoding="text"),
        [("1500", fine(Decimal("1500.00"))), ("none", MISFIT), ("AfQ=", MISFIT), ("1.005", lost("1.005"))],
    ),
    (
        "decimals that are said to be base64",
        PRICE,
        Writing(encoding="base64"),
        [("1500", fine(Decimal("-26467.32"))), ("15.00", MISFIT), (1500, fine(Decimal("1500.00")))],
    ),
    (
        "decimals that are said to be hexadecimal",
        PRICE,
        Writing(encoding="hex"),
        [("01f4", fine(Decimal("5.00"))), ("15.00", MISFIT)],
    ),
    (
        "decimals in arrays",
        ArrayType(PRICE),
        UNKNOWN,
        [
            (["15.0", None], fine([Decimal("15.00"), None])),
            (["15.0", "1500"], {**MISFIT, "value": [Decimal("15.00"), None]}),
        ],
    ),
    (
        "bytes of Debezium",
        BinaryType(),
        DEBEZIUM,
        [
            ("3q2+7wD/", fine(bytearray.fromhex("deadbeef00ff"))),
            ("3q2-7wD_", fine(bytearray.fromhex("deadbeef00ff"))),
            ("deadbeef", MISFIT),
            ("AAAA", fine(bytearray(3))),  # its hexadecimal digits would be in lower case
            ("abcdef", fine(bytearray.fromhex("abcdef"))),
            ("AB==", MISFIT),
            ("", fine(bytearray())),
            (1234, MISFIT),
            (True, MISFIT),
            ([1], MISFIT),
        ],
    ),
    (
        "bytes of any producer",
        BinaryType(),
        UNKNOWN,
        [
            ("DEADBEEF", MISFIT),
            ("\\xdeadbeef", fine(bytearray.fromhex("deadbeef"))),
            ("0xdead", fine(bytearray.fromhex("dead"))),
            ("AA==", fine(bytearray(1))),
            (10, MISFIT),
            (1e5, MISFIT),
            (None, fine(None)),
        ],
    ),
    ("bytes of Maxwell", BinaryType(), MAXWELL, [("deadbeef", fine(bytearray.fromhex("75e69d6de79f")))]),
    (
        "bytes that are said to be hexadecimal",
        BinaryType(),
        Writing(encoding="hex"),
        [
            ("DEADbeef", fine(bytearray.fromhex("deadbeef"))),
            ("abc", MISFIT),
            ("AA==", MISFIT),
            (12, MISFIT),
        ],
    ),
    (
        "bytes that are said to be base64",
        BinaryType(),
        Writing(encoding="base64"),
        [
            ("deadbeef", fine(bytearray.fromhex("75e69d6de79f"))),
            ("AA", fine(bytearray(1))),
            ("AAAA\r\nAA==", fine(bytearray(4))),
            ("AB==", MISFIT),
        ],
    ),
    (
        "bytes that are said to be text",
        BinaryType(),
        Writing(encoding="text"),
        [("h\u00e4", fine(bytearray("h\u00e4".encode())))],
    ),
    (
        "times",
        TimestampType(),
        UNKNOWN,
        [
            (1790000000, fine(1_790_000_000_000_000)),
            ("1790000000", fine(1_790_000_000_000_000)),
            (1790000000.25, fine(1_790_000_000_250_000)),
            (1790000000123, fine(1_790_000_000_123_000)),
            (1790000000123456, fine(1_790_000_000_123_456)),
            (1790000000123456789, fine(1_790_000_000_123_456)),
            (253402214400000, fine(253_402_214_400_000_000)),
            (-86400, fine(-86_400_000_000)),
            ("2026-01-02T03:04:05+02:00", fine(1_767_315_845_000_000)),
            ("2026-01-02T03:04+02:00", fine(1_767_315_840_000_000)),
            ("2026-01-02T03:04Z", fine(1_767_323_040_000_000)),
            ("2026-01-02T03:04:05+01:00[Europe/Berlin]", fine(1_767_319_445_000_000)),
            ("2026-01-02 03:04 Europe/Berlin", fine(1_767_319_440_000_000)),
            ("2026-01-02T03:04:05 BST", MISFIT),
            ("2026-01-02 03:04:05 CST", MISFIT),
            ("2026-01-02T03:04:05+01:5", MISFIT),
            ("0001-01-01T00:00:00+01:00", MISFIT),
            ("0001-01-01T01:00:00+01:00", fine(-62_135_596_800_000_000)),
            ("9999-12-31T23:59:59-01:00", MISFIT),
            ("10:15", MISFIT),
        ],
    ),
    (
        "local times",
        TimestampNTZType(),
        UNKNOWN,
        [
            (1790000000, fine("2026-09-21 14:13:20")),
            ("2026-01-02T03:04+02:00", fine("2026-01-02 01:04:00")),
            ("2026-01-02T03:04:05 Europe/Berlin", fine("2026-01-02 02:04:05")),
            ("2026-01-02T03:04:05 PST", MISFIT),
            ("9999-12-31T23:59:59-01:00", MISFIT),
        ],
    ),
    (
        "numbers in maps",
        MapType(StringType(), IntegerType()),
        UNKNOWN,
        [({"a": 1, "b": None}, fine({"a": 1, "b": None})), ({"a": 2**31}, {**MISFIT, "value": {"a": None}})],
    ),
    (
        "decimals in maps",
        MapType(StringType(), PRICE),
        UNKNOWN,
        [
            ({"a": "1.5"}, fine({"a": Decimal("1.50")})),
            ({"a": "1500"}, {**MISFIT, "value": {"a": None}}),
            ({"a": 1.005}, {**lost('{"a":1.005}'), "value": {"a": None}}),
        ],
    ),
    (
        "maps with numbers as keys",
        MapType(IntegerType(), StringType()),
        UNKNOWN,
        [({"1": "a"}, fine({1: "a"})), ({"x": "a"}, MISFIT), ({"1": "a", "01": "b"}, MISFIT)],
    ),
    (
        "maps with floats as keys",
        MapType(DoubleType(), StringType()),
        UNKNOWN,
        [
            ({"0.5": "a", "-0": "b"}, fine({0.5: "a", 0.0: "b"})),
            ({"0": "a", "-0.0": "b"}, MISFIT),
            ({"NaN": "a", "nan": "b"}, MISFIT),
            ({"1": "a", "1.0": "b"}, MISFIT),
        ],
    ),
    (
        "maps with times as keys",
        MapType(TimestampType(), DateType()),
        UNKNOWN,
        [({"2026-01-02T03:04:05.1234567Z": "2026-01-02"}, MISFIT), ({}, fine({}))],
    ),
]


@pytest.mark.guarantee(
    "A text is base64, hexadecimal or a number only where the manifest or the kind of source says so, or "
    "nothing else fits; otherwise its record waits, and the reason names the setting"
)
@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case[0])
def test_texts_that_may_be_encoded_in_several_ways(
    spark: SparkSession, case: tuple[str, DataType, Writing, list[tuple[Any, dict[str, Any]]]]
) -> None:
    """A value comes back as it was sent, or it waits: nothing is taken for what it only may be."""
    _, target, writing, values = case
    said = {} if writing.encoding is None else {"encodings": {"c": writing.encoding}}
    wires = [wire for wire, _ in values]
    found = outcomes(spark, schemaless("c"), wires, target, writing=writing, **said)
    assert found == [expected for _, expected in values]


TEXT = Field("c", "string")
PAIRS = Field("c", "map", keys=Field("k", "int32"), items=Field("v", "int32", "io.debezium.time.Date"))
DOUBLES = Field("c", "map", keys=Field("k", "int64"), items=Field("v", "double"))


@pytest.mark.parametrize(
    ("field", "target", "said", "values"),
    [
        (TEXT, BinaryType(), {"c": "hex"}, [("deadbeef", fine(bytearray.fromhex("deadbeef")))]),
        (TEXT, BinaryType(), {}, [("deadbeef", MISFIT), ("AA==", fine(bytearray(1)))]),
        (
            TEXT,
            PRICE,
            {},
            [("1500", fine(Decimal("1500.00"))), ("n/a", MISFIT), ("0E-10", fine(Decimal("0.00")))],
        ),
        (TEXT, PRICE, {"c": "base64"}, [("AfQ=", fine(Decimal("5.00")))]),
        (
            Field("c", "array", items=TEXT),
            ArrayType(BinaryType()),
            {"c": "hex"},
            [(["beef", None], fine([bytearray.fromhex("beef"), None]))],
        ),
        (
            Field("c", "struct", fields=(TEXT, Field("n", "int32"))),
            StructType([StructField("c", PRICE), StructField("n", LongType())]),
            {"c": "base64"},
            [({"c": "AfQ=", "n": 1}, fine({"c": Decimal("5.00"), "n": 1}))],
        ),
        (
            PAIRS,
            None,
            {},
            [
                ([[1, 20512]], fine({1: datetime.date(2026, 2, 28)})),
                ([[1, 20512], [1, 3]], MISFIT),
                ([["x", 1]], MISFIT),
                ([[2, "12d"]], {**MISFIT, "value": {2: None}}),
            ],
        ),
        (DOUBLES, None, {}, [([[1, 1.5]], fine({1: 1.5})), ([[1, "12d"]], {**MISFIT, "value": {1: None}})]),
    ],
)
def test_values_with_a_schema(
    spark: SparkSession,
    field: Field,
    target: DataType | None,
    said: dict[str, TextEncoding],
    values: list[tuple[Any, dict[str, Any]]],
) -> None:
    found = outcomes(spark, field, [wire for wire, _ in values], target, encodings=said)
    assert found == [expected for _, expected in values]


@pytest.mark.guarantee(
    "A value that a type cannot hold exactly is kept as text, refused by name or, below the microsecond and "
    "outside of keys, rounded and reported; it is never a key and never null"
)
def test_numbers_with_more_digits_than_a_double_are_not_rounded(spark: SparkSession) -> None:
    decoder = RowDecoder([schemaless("c")], {"c": DecimalType(20, 2)})
    texts = [f'{{"c": {number}}}' for number in ("12345678901234567.891", "12345678901234567.89", "1e3")]
    frame = spark.createDataFrame([(text,) for text in texts], "text STRING").coalesce(1)
    decoded = decoder.project(decoder.parse(F.col("text")))["c"]
    found = frame.select(decoded.value.alias("v"), decoded.unrepresentable.alias("lost")).collect()
    kept = [Decimal("12345678901234567.89"), Decimal("1000.00")]
    assert [tuple(row) for row in found] == [(None, True), (kept[0], False), (kept[1], False)]


@pytest.mark.guarantee("A member that JSON has twice hides no column of its record")
def test_a_member_that_is_there_twice_hides_nothing(spark: SparkSession) -> None:
    """At any depth. Of the values of one member, the last one counts."""
    rows = [
        ("top", '{"a":1,"a":2,"text":"5","number":5}'),
        ("inner", '{"text":"[x","number":5,"o":{"b":1,"b":2},"l":[{"c":1,"c":2}]}'),
        ("beside", '{"a":1}'),
        ("beside", '{"a":"x","a":2,"flag":true}'),
        ("broken", '{"a":1,"a":'),
    ]
    found = infer(spark.createDataFrame(rows, "table STRING, text STRING"))
    assert found["top"] == {"a": LongType(), "text": StringType(), "number": LongType()}
    inner = {"text": StringType(), "number": LongType(), "o": StringType(), "l": StringType()}
    assert found["inner"] == inner
    assert found["beside"] == {"a": LongType(), "flag": BooleanType()}
    assert found["broken"] == {}


def test_types_are_inferred_by_table_in_the_sources_order(spark: SparkSession) -> None:
    rows = [
        (
            "a",
            {
                "z": 1,
                "odd, <name>": None,
                "b`t": 1.0,
                "flag": True,
                "big": 2**64,
                "arr": [1, None],
                "o": {"k": 1},
            },
        ),
        ("a", {"z": 2, "odd, <name>": "x", "b`t": 2.5, "flag": None, "big": 1, "arr": [], "o": {"k": 2}}),
        ("b", {"x": None, "mix": 1, "num": {"scale": 1, "value": "AA=="}, "deep": [{"p": [1.5]}]}),
        ("b", {"x": None, "mix": "one", "num": None, "deep": None, "late": {"k": 1}}),
        ("b", {"late": {"k": "text"}}),
    ]
    frame = spark.createDataFrame(
        [(t, json.dumps(r)) for t, r in rows] + [("b", None)], "table STRING, text STRING"
    )
    found = infer(frame)
    assert list(found["a"]) == ["z", "odd, <name>", "b`t", "flag", "big", "arr", "o"]
    assert found["a"] == {
        "z": LongType(),
        "odd, <name>": StringType(),
        "b`t": DoubleType(),
        "flag": BooleanType(),
        "big": DecimalType(38, 0),
        "arr": ArrayType(LongType()),
        "o": StructType([StructField("k", LongType())]),
    }
    assert found["b"] == {
        "x": None,
        "mix": StringType(),
        "num": StringType(),
        "deep": ArrayType(StructType([StructField("p", ArrayType(DoubleType()))])),
        "late": StringType(),
    }


@pytest.mark.guarantee("A number is the same moment in a column as in the order of changes")
def test_the_tables_type_wins_then_the_manifests_then_the_inferred() -> None:
    inferred = {"a": LongType(), "b": LongType(), "c": LongType(), "unknown": None, "known": None}
    existing = {"a": IntegerType(), "known": DateType()}
    declared = {"a": StringType(), "b": DateType()}
    resolved = resolve(inferred, existing, declared)
    assert resolved == {"a": IntegerType(), "b": DateType(), "c": LongType(), "known": DateType()}


POINT = StructType(
    [StructField("a", LongType()), StructField("in", StructType([StructField("b", LongType())]))]
)


@pytest.mark.guarantee(
    "A map has all of its entries, with the keys and values that were sent, or its record waits"
)
@pytest.mark.parametrize(
    ("kind", "value", "fits"),
    [
        (POINT, {"a": 1, "in": {"b": 2}}, True),
        (POINT, {"a": 1}, True),
        (POINT, None, True),
        (POINT, {"a": 1, "c": None}, True),
        (POINT, {"c": 2}, False),
        (POINT, {"a": 1, "in": {"b": 2, "c": 3}}, False),
        (ArrayType(POINT), [{"a": 1}, None, {"in": {"b": 1}}], True),
        (ArrayType(POINT), [{"a": 1}, {"c": 1}], False),
        (MapType(StringType(), POINT), {"x": {"a": 1}}, True),
        (MapType(StringType(), POINT), {"x": {"c": 1}}, False),
    ],
)
def test_members_that_a_column_has_no_place_for_are_not_left_out(
    spark: SparkSession, kind: DataType, value: Any, fits: bool
) -> None:
    decoder = RowDecoder([schemaless("c")], {"c": kind})
    frame = spark.createDataFrame([(json.dumps({"c": value}),)], "text STRING")
    [row] = frame.select(decoder.problem(F.col("text"), decoder.parse(F.col("text"))).alias("why")).collect()
    assert (row["why"] is None) == fits, row["why"]
    assert fits or "does not fit c (" in row["why"]
