"""Rows whose deletes are soft show what the source had last, however their changes come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.driver.rules.soft_values import CASES, Shown, batches, rows
from tests.support.agreement import DELETED_AT, assert_agreement, targets_of
from tests.support.mirroring import Mirroring
from tests.support.rule_engine import Asked, Engine

pytestmark = pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")

SOFT = {"mode": "scd1", "delete": {"type": "soft", "column": DELETED_AT}}


def lsn_of(deleted_at: int | None) -> int | None:
    return None if deleted_at is None else (deleted_at - 10**15) // 1000


@pytest.mark.parametrize("number", range(len(CASES)), ids=[case.name for case in CASES])
def test_the_rules_show_what_the_source_had(number: int) -> None:
    engine = Engine(default=Asked("scd1", soft=True))
    for batch in CASES[number].sent(number):
        engine.deliver(batch)
    [table] = engine.tables.values()
    found = {
        key[1]: (row.values.get("v"), row.values.get("big"), lsn_of(row.deleted_at))
        for key, row in table.mirror.rows.items()
        if row.is_live or not CASES[number].late
    }
    assert found == CASES[number].rows


TOGETHER = [number for number, case in enumerate(CASES) if not case.alone]
ALONE = [number for number, case in enumerate(CASES) if case.alone]


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(TOGETHER + ALONE[::8], marks=pytest.mark.long, id="some"),
        pytest.param(TOGETHER + ALONE, marks=pytest.mark.thorough, id="all"),
    ],
)
@pytest.mark.timeout(900)
def test_a_pipeline_shows_what_the_source_had(
    spark: SparkSession, tmp_path: Path, numbers: list[int]
) -> None:
    sent = batches(numbers, draws=100)
    names = sorted({record["topic"].split(".", 1)[1] for batch in sent for record in batch})
    settings: dict[str, Any] = {"tables": [{"source": name, **SOFT} for name in names]}
    mirroring = Mirroring(tmp_path, settings).deliver(sent)
    mirroring.run(spark)
    found: dict[tuple[int, int], Shown] = {}
    for name, path in targets_of(spark, mirroring).items():
        if not name.endswith(".drawn"):
            frame = spark.read.format("delta").load(path)
            for row in frame.withColumn("gone", F.unix_micros(DELETED_AT)).collect():
                if row["gone"] is None or not CASES[row["h"]].late:
                    found[row["h"], row["id"]] = (row["v"], row["big"], lsn_of(row["gone"]))
    assert_agreement(spark, mirroring)
    assert found == rows(numbers)
