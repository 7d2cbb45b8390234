"""What becomes of rows is planned in a time that grows with their columns, and not by multiplication."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, IntegerType, StringType

from lakemirror.driver.reduce.scd1 import Scd1, changes
from lakemirror.driver.reduce.scd2 import Truncate

CHARACTERS = 200_000
"""The most text that all expressions for a tracked column may have; before they shared parts, 3.5 million."""


@pytest.mark.parametrize("soft", [None, "gone"])
def test_expressions_do_not_multiply(spark: SparkSession, soft: str | None) -> None:
    """A batch may have changes of open transactions, rows of a snapshot and truncates at once."""
    values = [f"v{number}" for number in range(3)]
    columns: dict[str, DataType] = {"id": IntegerType(), **dict.fromkeys(values, StringType())}
    truncates = [Truncate(bytes([number] * 26), datetime(2026, 1, 1, tzinfo=UTC)) for number in (1, 2)]
    plan = Scd1(
        columns,
        ["id"],
        values,
        soft,
        floor=truncates[-1].seq,
        truncates=truncates if soft else (),
        snapshot=True,
        unanchored=True,
    )
    found = changes(plan, keys=1, deletes=0)
    parts = [
        part
        for clause in (*found.matched, *found.unmatched, *found.untouched)
        for part in (clause.when, *(clause.values or {}).values())
    ]
    assert sum(len(part._jc.toString()) for part in parts) < CHARACTERS * len(values)
