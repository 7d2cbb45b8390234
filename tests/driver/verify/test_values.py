"""How values of a database are compared with those of the mirror."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ShortType,
    StringType,
    StructType,
    VariantType,
)

from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.tables.keys import canonical_row, comparable_row
from lakemirror.driver.verify.snapshot import as_type
from lakemirror.driver.verify.values import Family, SourceType, rule_of

pytestmark = pytest.mark.guarantee(
    "A comparison, a reload, a load and a repair cut no value: one that does not come back from the mirror's "
    "type differs, and is not written; maps are equal in any order of their entries"
)


@pytest.mark.parametrize("family", ["json", "text"])
def test_a_variant_is_compared_as_json(spark: SparkSession, family: Family) -> None:
    rule = rule_of(SourceType("json", family), VariantType())
    assert rule is not None
    assert rule.same is not None
    source, mirror = rule.same(rule.parse(F.col("text"))), rule.same(F.expr("parse_json(stored)"))
    rows = [
        ('{"b": 1, "a": [2]}', '{"a":[2],"b":1}'),
        ("1", "2"),
        ("1e2", "100"),
        ("null", None),
        ("{", "{}"),
    ]
    frame = spark.createDataFrame(rows, "text STRING, stored STRING")
    found = frame.select(source.eqNullSafe(mirror)).collect()
    assert [row[0] for row in found] == [True, False, True, False, False]


def text(value: str) -> Column:
    return F.lit(value)


SINGLE_OF_ONE_TENTH = "0.10000000149011612"


@pytest.mark.parametrize("strict", [True, False])
def test_no_value_of_a_database_is_cut(strict: bool, spark: SparkSession) -> None:
    """A value that does not come back from the mirror's type as it was is unfit; all others are kept."""
    numbers, floats = SourceType("numeric", "decimal", scale=4), SourceType("double precision", "float")
    integers, times = SourceType("bigint", "integer"), SourceType("time", "time", digits=6)
    listed = SourceType("numeric[]", None, element=numbers)
    cases: list[tuple[SourceType, str, DataType, object]] = [
        (numbers, "1.2300", DecimalType(10, 2), Decimal("1.23")),
        (numbers, "1.2349", DecimalType(10, 2), None),
        (numbers, "123456789.00", DecimalType(10, 2), None),
        (numbers, "2.0000", IntegerType(), 2),
        (numbers, "2.7", IntegerType(), None),
        (integers, "-3", ShortType(), -3),
        (integers, "70000", ShortType(), None),
        (integers, "9007199254740992", DoubleType(), 9007199254740992.0),
        (integers, "9007199254740993", DoubleType(), None),
        (integers, "1", BooleanType(), True),
        (integers, "2", BooleanType(), None),
        (numbers, "0.1", DoubleType(), 0.1),
        (SourceType("real", "float"), "1e-45", FloatType(), 1.401298464324817e-45),
        (floats, "0.1", FloatType(), float(SINGLE_OF_ONE_TENTH)),
        (floats, SINGLE_OF_ONE_TENTH, FloatType(), float(SINGLE_OF_ONE_TENTH)),
        (floats, "0.123456789012", FloatType(), None),
        (floats, "NaN", FloatType(), float("nan")),
        (times, "00:00:01", IntegerType(), 1_000_000),
        (times, "10:00:00", IntegerType(), None),
        (listed, '["1.2300",null]', ArrayType(DecimalType(10, 2)), [Decimal("1.23"), None]),
        (listed, '["1.2300","1.2349"]', ArrayType(DecimalType(10, 2)), None),
    ]
    columns = []
    for source, value, kind, _ in cases:
        rule = rule_of(source, kind)
        assert rule is not None
        columns += [rule.parse(text(value)).cast(kind), rule.unfit(text(value), strict=strict)]
    [row] = spark.range(1).select(*columns).collect()
    for i, (_, value, kind, wanted) in enumerate(cases):
        found, unfit = row[2 * i], row[2 * i + 1]
        assert unfit == (wanted is None), (value, kind)
        assert wanted is None or str(found) == str(wanted), (value, kind)


def test_decimals_in_text_are_compared_with_all_their_digits(spark: SparkSession) -> None:
    """Also with those from before the column was made narrower."""
    rule = rule_of(SourceType("numeric(10,2)", "decimal", scale=2), StringType())
    assert rule is not None
    assert rule.same is not None
    pairs = [
        ("1.20", "1.2", True),
        ("1.20", "eA==", True),
        ("-0.50", "-.5", True),
        ("0.00", "0.0", True),
        ("1.23", "1.2349", False),
        ("1.23", "-1.23", False),
    ]
    found = spark.range(1).select(
        *[rule.same(text(one)).eqNullSafe(rule.same(text(other))) for one, other, _ in pairs]
    )
    assert list(found.collect()[0]) == [same for _, _, same in pairs]


def test_no_value_of_a_snapshot_is_cut(spark: SparkSession) -> None:
    cases: list[tuple[str, str, bool]] = [
        ("2.7D", "int", False),
        ("2.0D", "int", True),
        ("2.7", "int", False),
        ("'2.7'", "int", False),
        ("'27'", "int", True),
        ("1.2349", "decimal(10,2)", False),
        ("1.2300", "decimal(10,2)", True),
        ("1.2349D", "decimal(10,2)", False),
        ("0.1D", "decimal(10,2)", True),
        ("'1.2349'", "decimal(10,2)", False),
        ("9007199254740993L", "double", False),
        ("2", "boolean", False),
        ("1", "boolean", True),
        ("TIMESTAMP'2026-01-02 03:04:05'", "date", False),
        ("TIMESTAMP'2026-01-02 00:00:00'", "date", True),
        ("TIMESTAMP_NTZ'2026-01-02 03:04:05'", "date", False),
        ("DATE'2026-01-02'", "timestamp_ntz", True),
        ("TIMESTAMP'2026-01-02 03:04:05.5'", "bigint", False),
        ("'2026-01-02 03:04'", "date", False),
        ("5", "date", False),
        ("array(1.0D, 2.7D)", "array<int>", False),
        ("array(1.0D, 2.0D)", "array<int>", True),
        ("map('a', 2.7D)", "map<string,int>", False),
        ("map('b', 2.0D, 'a', 1.0D)", "map<string,int>", True),
        ("named_struct('x', 2.7D)", "struct<x:int>", False),
        ("named_struct('y', 1.5, 'x', 2.0D)", "struct<x:int,y:decimal(4,2)>", True),
        ("named_struct('x', 1)", "struct<z:bigint>", False),
        ("map(1.5D, 1)", "map<int,int>", False),
        ("named_struct('x', 2.0D, 'y', map('a', 1))", "struct<x:int,y:map<string,bigint>>", True),
        ("123.456", "string", True),
    ]
    frame = spark.range(1).select(*[F.expr(sql).alias(f"c{i}") for i, (sql, _, _) in enumerate(cases)])
    kinds = [DataType.fromDDL(kind) for _, kind, _ in cases]
    stored = frame.schema
    found = [as_type(F.col(f"c{i}"), stored[i].dataType, kind) for i, kind in enumerate(kinds)]
    [row] = frame.select(*[each.isNotNull() for each in found]).collect()
    assert [(sql, kind, fits) for (sql, kind, _), fits in zip(cases, row, strict=True)] == cases


def test_maps_are_the_same_in_any_order(spark: SparkSession) -> None:
    kind = DataType.fromDDL("struct<m:map<string,struct<v:variant,w:map<int,int>>>>")
    inner = "named_struct('v', parse_json('{}'), 'w', map(1, %s))"
    one, other, third = (
        f"named_struct('m', map('{a}', {inner % x}, '{b}', {inner % 1}))"
        for a, b, x in (("a", "b", 1), ("b", "a", 1), ("b", "a", 2))
    )
    rows = [F.expr(each) for each in (one, other, third)]
    assert isinstance(kind, StructType)
    texts = [canonical_row({"m": row["m"]}, {"m": kind["m"].dataType}) for row in rows]
    exact = [comparable_row(row, kind) for row in rows]
    found = spark.range(1).select(
        *[each[0] == each[1] for each in (texts, exact)],
        *[each[0] == each[2] for each in (texts, exact)],
        same_value(rows[0], rows[1], kind),
        same_value(rows[0], rows[2], kind),
        same_value(F.lit(None).cast(kind), F.lit(None).cast(kind), kind),
        same_value(rows[0], F.lit(None).cast(kind), kind),
    )
    assert list(found.collect()[0]) == [True, True, False, False, True, False, True, False]
