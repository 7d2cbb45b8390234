"""Mode append: every event once, from which the rows of the source can be told (docs/append.md)."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import doubled, parts, shuffled
from tests.support.histories import Shape, key_of, many, play
from tests.support.mirroring import Mirroring

pytestmark = pytest.mark.guarantee("The newest events of a list are the rows of the source")

[QUERY] = re.findall(r"```sql\n(.+?)```", Path("docs/append.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.long
def test_the_newest_rows_of_a_list_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """By the documented query; doubled and shuffled, with truncates, deletes and moves."""
    history = play(many(range(24), random.Random(3), truncates=2), Shape(full=True))
    listed = {"defaults": {"mode": "append"}}
    mirroring = Mirroring(tmp_path, listed).deliver(parts(shuffled(doubled(history.records), 4), 2))
    counts = mirroring.run(spark).counts
    assert (counts.unaccounted, counts.quarantined, counts.refused) == (0, 0, 0)
    path = mirroring.path("demo", "public", "items")
    asked = QUERY.replace("/lake/public/orders", path).replace("BY id ", "BY h, id ")
    rows = [row.asDict() for row in spark.sql(asked).select(*next(iter(history.rows.values()))).collect()]
    assert {key_of(row): row for row in rows} == history.rows
    assert len(rows) == len(history.rows) > 5
    assert counts.applied == spark.read.format("delta").load(path).count()
