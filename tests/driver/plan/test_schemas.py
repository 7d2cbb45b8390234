"""What records without schema tell by their columns alone, and when their values are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.plan.schemas import Schemas
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

V, NOTE, MORE = Column("v", "int32"), Column("note", "string", True), Column("more", "int32", True)
BEFORE = replace(table("things", V, NOTE), schemas=False)
AFTER = replace(table("things", V, NOTE, MORE), schemas=False)


@pytest.mark.thorough
def test_values_are_read_for_what_is_new_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch, then a column that was added: of five batches two."""
    shop, read = Shop(), []
    told = Schemas._told

    def counting(self: Schemas, *args: Any) -> Any:
        read.append(args)
        return told(self, *args)

    monkeypatch.setattr(Schemas, "_told", counting)
    batches = [
        [*shop.create(BEFORE, id=1, v=1, note="a"), *shop.create(BEFORE, id=2, v=2, note="b")],
        shop.update(BEFORE, id=1, v=3, note="c"),
        shop.update(BEFORE, id=2, v=4, note=None),
        [*shop.update(BEFORE, id=1, v=5, note=None), *shop.delete(BEFORE, id=2)],
        [*shop.create(AFTER, id=3, v=6, note=None, more=7), *shop.update(BEFORE, id=1, v=8, note="d")],
    ]
    mirroring = Mirroring(tmp_path).deliver(batches)
    assert mirroring.run(spark).counts.applied == 8
    assert len(read) == 2
    found = at(spark, mirroring.path("demo", "public", "things")).collect()
    rows = sorted((row["id"], row["v"], row["note"], row["more"]) for row in found)
    assert rows == [(1, 8, "d", None), (3, 6, None, 7)]
