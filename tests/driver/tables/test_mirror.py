"""What becomes of a Delta table when its mirror gets other columns."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, DateType, IntegerType, StructType, TimestampNTZType

from lakemirror.driver.tables.mirror import WIDENING, Mirror
from lakemirror.driver.tables.names import Location

INNER = StructType().add("a", IntegerType())
GROWN = StructType().add("a", IntegerType()).add("b", ArrayType(TimestampNTZType()))


@pytest.mark.parametrize(
    ("add", "widen", "avoided"),
    [
        ({"at": TimestampNTZType()}, {}, ()),
        ({"nested": GROWN}, {}, ()),
        ({}, {"day": TimestampNTZType()}, ()),
        ({}, {"day": TimestampNTZType()}, (WIDENING,)),
        ({}, {"inner": GROWN}, ()),
    ],
    ids=["added", "added within", "widened", "rewritten", "added to a struct"],
)
def test_an_older_mirror_gets_times_without_a_zone(
    add: dict[str, DataType],
    widen: dict[str, DataType],
    avoided: tuple[str, ...],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Delta switches their feature on by itself in new tables only."""
    mirror = Mirror(spark, Location(path=str(tmp_path / "mirror")))
    mirror.create({"id": IntegerType(), "day": DateType(), "inner": INNER}, {})
    assert "timestampNtz" not in mirror.features
    for _ in range(2):
        mirror.alter(add, widen, {}, avoided=avoided)
        assert {**add, **widen}.items() <= (mirror.columns or {}).items()
    assert "timestampNtz" in mirror.features
