"""Records without schema that write a null have the column, though nothing tells its type yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.agreement import assert_agreement
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

NOTES = replace(table("notes", Column("note", "string", optional=True)), schemas=False)


@pytest.mark.long
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_an_earlier_value_of_a_column_that_was_null_so_far(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    earlier, later = shop.create(NOTES, id=1, note="kept"), shop.create(NOTES, id=2, note=None)
    mirroring = Mirroring(tmp_path, {"defaults": {"mode": mode}})
    summary = mirroring.deliver([later, [*earlier, *shop.create(NOTES, id=3, note="new")]]).run(spark)
    assert summary.counts.quarantined == 0
    assert_agreement(spark, mirroring)
    rows = at(spark, mirroring.path("demo", "public", "notes")).select("id", "note").collect()
    assert sorted(map(tuple, rows)) == [(1, "kept"), (2, None), (3, "new")]
