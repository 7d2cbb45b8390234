"""Values of each type are the same in the rules and in files that Spark writes and reads."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.kinds import INT, TIMESTAMP
from lakemirror.driver.rules.values import is_same
from tests.driver.rules.test_rows import spark as spark_type
from tests.support.values import VALUES

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)


@pytest.mark.long
def test_a_value_of_each_type_is_the_same_in_a_file_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    fields = [StructField(f"c{i}", spark_type(kind)) for i, (kind, _) in enumerate(VALUES)]  # type: ignore[arg-type]
    most = max(len(values) for _, values in VALUES) + 1
    columns = [[*values, *[None] * (most - len(values))] for _, values in VALUES]
    rows = [(n, *(column[n] for column in columns)) for n in range(most)]
    schema = StructType([StructField("n", spark_type(INT)), *fields])
    path = str(tmp_path / "values")
    spark.createDataFrame(rows, schema).coalesce(1).write.format("delta").save(path)
    instants = [f"c{i}" for i, (kind, _) in enumerate(VALUES) if kind == TIMESTAMP]
    read = spark.read.format("delta").load(path).withColumns({name: F.unix_micros(name) for name in instants})
    stored = read.orderBy("n").collect()
    wrong = [
        f"{kind}: {column[n]!r} is {row[i + 1]!r}"
        for n, row in enumerate(stored)
        for i, ((kind, _), column) in enumerate(zip(VALUES, columns, strict=True))
        if not is_same(plain(row[i + 1]), plain(column[n]))
    ]
    assert not wrong, "\n".join(wrong)


def plain(value: Any) -> Any:
    """A value as the rules have it: structs are dicts, and instants microseconds, which have no zone."""
    if hasattr(value, "asDict"):
        return value.asDict(recursive=True)
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return micros_of(value) if isinstance(value, datetime) and value.tzinfo is not None else value
