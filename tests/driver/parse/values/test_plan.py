"""Decoding stays in the JVM: no Python worker sees a row, and a decoded batch is parsed once."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.parse.values import RowDecoder, parse_envelope, schemaless
from tests.driver.parse.values import images

TABLE = "public.types_full"


@pytest.fixture(autouse=True)
def whole_plans(spark: SparkSession) -> Iterator[None]:
    """Plans are printed whole: nothing hides behind what was cut off.

    The settings of the active session count, and an earlier test may have left another one active.
    """
    spark.createDataFrame([(1,)], "a INT")  # makes it the active one
    settings = ("spark.sql.maxPlanStringLength", "spark.sql.debug.maxToStringFields")
    before = {name: spark.conf.get(name) for name in settings}
    for name in settings:
        spark.conf.set(name, "100000000")
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())  # type: ignore[operator]


@pytest.mark.long
@pytest.mark.parametrize(
    "variant", ["jsons", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("jsonalt", "json"))]
)
def test_no_python_in_the_plan(spark: SparkSession, variant: str) -> None:
    found = images.of_capture(images.CAPTURES / "types" / f"{variant}.jsonl.gz")[TABLE]
    typed = images.of_capture(images.CAPTURES / "types" / "jsons.jsonl.gz")[TABLE]
    assert typed.schema is not None
    if found.schema is None:
        types = RowDecoder(parse_envelope(typed.schema)).types
        decoder = RowDecoder([schemaless(name) for name in types], types)
    else:
        decoder = RowDecoder(parse_envelope(found.schema))
    frame = spark.range(1).select(F.col("id").cast("string").alias("text"))
    wired = frame.withColumn("wire", decoder.parse(F.col("text")))
    decoded = decoder.project(F.col("wire"))
    columns = [
        column.alias(f"{part}_{name}")
        for name, d in decoded.items()
        for part, column in vars(d).items()
        if isinstance(column, Column)
    ]
    plan = plan_of(wired.select(*columns, decoder.problem(F.col("text"), F.col("wire")).alias("problem")))
    assert not re.search("Python|ArrowEval|BatchEval|reflect", plan)
    assert "from_json" in plan


def test_the_plan_of_a_python_udf_would_be_seen(spark: SparkSession) -> None:
    doubled = F.udf(lambda x: x, "bigint")
    assert re.search("Python|ArrowEval|BatchEval", plan_of(spark.range(1).select(doubled("id"))))


def test_building_the_same_projection_again_costs_nothing(spark: SparkSession) -> None:
    decoder = RowDecoder([schemaless("a")])
    first, again = (RowDecoder([schemaless("a")]).project(F.col("wire")) for _ in range(2))
    assert first["a"].value is again["a"].value
    assert decoder.project(F.col("other"))["a"].value is not first["a"].value
