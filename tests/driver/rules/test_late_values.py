"""Values that come late, by another key or from a transaction that was open end where the source has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.driver.rules.late_values import CASES, Sent, batches, rows
from tests.support.agreement import assert_agreement, targets_of
from tests.support.delivery import Batches
from tests.support.histories import Shape
from tests.support.mirroring import Mirroring
from tests.support.rule_engine import Asked, Engine

CURRENT = {"scd1": "true", "scd2": "__is_current"}

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_the_rules_end_in_the_rows_of_the_source(number: int) -> None:
    engine = Engine()
    for batch in CASES[number].sent(number):
        engine.deliver(batch)
    [table] = engine.tables.values()
    found = {key[1]: (row.values["v"], row.values["big"]) for key, row in table.rows.items()}
    assert found == CASES[number].rows


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_the_newest_versions_of_the_rules_are_the_rows_of_the_source(number: int) -> None:
    engine = Engine(default=Asked("scd2"))
    for batch in CASES[number].sent(number):
        engine.deliver(batch)
    [table] = engine.tables.values()
    found = {
        key[1]: (each.row.values["v"], each.row.values["big"])
        for key, stored in table.versions.keys.items()
        for each in stored.versions
        if each.is_current
    }
    assert found == CASES[number].rows


MOVED_BEFORE_THE_SNAPSHOT: Sequence[Callable[[Sent], Batches]] = (
    lambda s: [
        [s.update(6, 68, 1, 3, "three")],
        [s.leave(7, 95, 1, 2, last=94), s.arrive(8, 95, 2, 1, 5, last=94)],
        [s.read(5, 90, 1, 2, "two")],
    ],
    lambda s: [
        [s.update(6, 68, 1, 3, "three"), s.leave(7, 95, 1, 2, last=94)],
        [s.read(5, 90, 1, 2, "two"), s.arrive(8, 95, 2, 1, 5, last=94)],
    ],
)
"""A value of an open transaction that is stored and moved before the row of the snapshot comes.

Versions know where it stood in its partition. Of a row that is gone, a mirror of current rows does not.
"""


@pytest.mark.parametrize("sent", MOVED_BEFORE_THE_SNAPSHOT, ids=["stored", "in one batch"])
def test_a_version_that_moved_keeps_its_value_when_the_snapshot_comes(
    sent: Callable[[Sent], Batches],
) -> None:
    engine = Engine(default=Asked("scd2"))
    for batch in sent(Sent(replace(Shape().table, schemas=False), 0)):
        engine.deliver(batch)
    [table] = engine.tables.values()
    shown = [each.row for stored in table.versions.keys.values() for each in stored.versions]
    assert [row.values["big"] for row in shown if row.values["id"] == 2] == ["three"]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_a_pipeline_ends_in_the_rows_of_the_source(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    mirroring = Mirroring(tmp_path, {"defaults": {"mode": mode}}).deliver(batches())
    mirroring.run(spark)
    assert_agreement(spark, mirroring)
    found = {
        (row["h"], row["id"]): (row["v"], row["big"])
        for path in targets_of(spark, mirroring).values()
        for row in spark.read.format("delta").load(path).where(CURRENT[mode]).collect()
    }
    assert found == rows()
