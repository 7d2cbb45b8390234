"""How values of a database are compared with those of the mirror."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import VariantType

from lakemirror.driver.verify.values import Family, SourceType, rule_of


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
