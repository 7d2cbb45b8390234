"""An executor that is lost in mid-batch costs a retry, never a wrong row."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.conformance.test_crashes import COUNTS
from tests.support.delivery import parts
from tests.support.driver_process import driver
from tests.support.local_cluster import MASTER, kill_executor, no_jars_left
from tests.support.mirroring import Mirroring, audited

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
CAPTURE = Capture("pk_change")
KILLS = 8
"""Spark gives up after ten executors in a row that end by themselves."""


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    with no_jars_left():
        yield


def test_killed_executors_change_no_row_and_no_count(spark: SparkSession, tmp_path: Path) -> None:
    batches = parts(CAPTURE.records, 4)
    undisturbed = Mirroring(tmp_path / "undisturbed").deliver(batches)
    undisturbed.run(spark)
    conf = {"spark.master": MASTER, "spark.driver.memory": "1g"}
    mirroring = Mirroring(tmp_path / "disturbed", {"spark": {"conf": conf}}).deliver(batches)
    seed = random.randrange(1 << 16)
    chance = random.Random(seed)
    killed: list[str] = []
    with driver(mirroring, "--once") as running:
        while running.poll() is None:
            time.sleep(chance.uniform(0.5, 5))
            if len(killed) < KILLS:
                killed += [number] if (number := kill_executor(running)) is not None else []
        said, _ = running.communicate(timeout=60)
    assert running.returncode == 0, f"seed {seed}: {said[-3000:]}"
    assert len(killed) >= 3, killed
    assert not wrong(CAPTURE.differences(spark, mirroring)), seed
    assert audited(spark, mirroring, COUNTS) == audited(spark, undisturbed, COUNTS), seed
