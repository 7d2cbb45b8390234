"""Columns that are put together from parts of records."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.parse.values.expressions import with_members


def test_members_are_added_to_any_object(spark: SparkSession) -> None:
    """Also to one that has a name twice, which Spark puts into no map."""
    more = '{"u":null,"w\\"":{"a":1}}'
    objects = {
        "{}": more,
        '{"v":1,"v":2}': '{"v":1,"v":2,"u":null,"w\\"":{"a":1}}',
        ' { "v" : "}" } ': '{"v":"}","u":null,"w\\"":{"a":1}}',
    }
    texts = spark.createDataFrame([(text, more) for text in objects], "a STRING, b STRING")
    first, second = (F.from_json(name, "map<string,variant>") for name in ("a", "b"))
    assert [row[0] for row in texts.select(with_members(first, second)).collect()] == list(objects.values())
