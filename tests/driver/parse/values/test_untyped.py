"""Values without a schema: what the target type makes of them, and what it refuses to guess."""

from __future__ import annotations

import base64
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

from lakemirror.driver.parse.values import RowDecoder, infer, resolve, schemaless
from lakemirror.driver.parse.values.decimals import twos_complement
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


def test_the_tables_type_wins_then_the_manifests_then_the_inferred() -> None:
    inferred = {"a": LongType(), "b": LongType(), "c": LongType(), "unknown": None, "known": None}
    existing = {"a": IntegerType(), "known": DateType()}
    declared = {"a": StringType(), "b": DateType()}
    resolved = resolve(inferred, existing, declared)
    assert resolved == {"a": IntegerType(), "b": DateType(), "c": LongType(), "known": DateType()}


POINT = StructType(
    [StructField("a", LongType()), StructField("in", StructType([StructField("b", LongType())]))]
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
