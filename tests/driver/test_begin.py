"""What is begun with a batch while it is profiled is taken where it fits, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.applier import TableApplier
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

pytestmark = [
    pytest.mark.guarantee("A batch that was started on a guess is still correct"),
    pytest.mark.usefixtures("stages_of_spark"),
]

THINGS = table("things", Column("v", "int32"))


@pytest.mark.long
def test_only_a_batch_as_plain_as_the_one_before_takes_what_was_begun(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, taken = Shop(), []
    take = TableApplier._take_begun

    def noting(self: TableApplier, *args: Any) -> Any:
        begun = take(self, *args)
        taken.append(begun is not None)
        return begun

    monkeypatch.setattr(TableApplier, "_take_begun", noting)
    batches = [
        [record for n in range(4) for record in shop.create(THINGS, id=n, v=n)],
        shop.update(THINGS, id=0, v=10),
        [*shop.update(THINGS, id=1, v=11), *shop.delete(THINGS, id=2)],
        [*shop.truncate(THINGS), *shop.create(THINGS, id=5, v=5)],
        shop.update(THINGS, id=5, v=6),
        shop.create(THINGS, id=6, v=7),
    ]
    mirroring = Mirroring(tmp_path).deliver(batches)
    summary = mirroring.run(spark)
    assert taken == [False, True, True, True, False, False]
    assert summary.counts.unaccounted == 0
    found = at(spark, mirroring.path("demo", "public", "things")).collect()
    assert sorted((row["id"], row["v"]) for row in found) == [(5, 6), (6, 7)]
