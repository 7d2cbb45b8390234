"""Histories in the order of a column of their rows: any delivery ends in the rows of the source."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.delivery import doubled, parts, restarted, shuffled
from tests.support.histories import Shape, key_of, many, play
from tests.support.mirroring import Mirroring, at

ORDERED = {"ordering": {"by": "columns", "columns": ["h", "v"]}}


@pytest.mark.long
@pytest.mark.timeout(900)
def test_any_delivery_in_the_order_of_a_column_ends_in_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """``v`` grows with each change of a history; positions are not looked at. Sent again by a connector that
    restarts, doubled and shuffled over two batches, rows that move, go and return end as in the source.
    """
    rnd = random.Random(5)
    history = play(many(range(24), rnd), Shape(full=True, name="items"))
    records = restarted(history.records, back=20, every=150)
    mirroring = Mirroring(tmp_path, ORDERED).deliver(parts(shuffled(doubled(records), 11), 2))
    summary = mirroring.run(spark)
    found = at(spark, mirroring.path("demo", "public", "items")).collect()
    assert {key_of(row.asDict()): row.asDict() for row in found} == history.rows
    assert len(found) > 10
    assert sum(table.counts.quarantined for table in summary.tables.values()) == 0
