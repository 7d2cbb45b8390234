"""Plain changes that are applied in columns end as the rules say, beside tables that Spark applies."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from lakemirror.driver.engine.engine import SETTING
from tests.support.agreement import by_rules, differences
from tests.support.delivery import parts
from tests.support.histories import Shape, many, play
from tests.support.mirroring import Mirroring


@pytest.fixture
def columns(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set(SETTING, "columns")
    yield spark
    spark.conf.unset(SETTING)


def test_a_plain_history_in_order(
    columns: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "lakemirror.driver.engine")
    rnd = random.Random(1)
    steps = [each._replace(verb=rnd.choice(("put", "put", "drop"))) for each in many(range(6), rnd)]
    played = play(steps, Shape(full=True, schemas=False, name="items"))
    mirroring = Mirroring(tmp_path).deliver(parts(played.records, 6))
    mirroring.run(columns)
    print([r.getMessage() for r in caplog.records][-20:])
    path = mirroring.path("demo", "public", "items")
    print(DeltaTable.forPath(columns, path).history().select("version", "operation", "engineInfo").collect())
    assert differences(columns, mirroring, by_rules(mirroring)) == []
