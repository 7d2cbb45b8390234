"""What the job leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.engine import job
from lakemirror.driver.engine.blocks import Dividing, Report
from lakemirror.driver.read.base import RAW

_OF_NOBODY = ("t", 0, 7, None, None, b"{}", None, None, None, None)
"""A record of a topic of which nothing is believed."""


def run(spark: SparkSession, size: int) -> job.JobResult:
    """Run the job with so many bytes that its tasks have to know."""
    raw = spark.createDataFrame([_OF_NOBODY], RAW)
    places: Any = [os.urandom(size)]
    return job.run(raw, [], places, Dividing([], 1, is_small=True))


@pytest.mark.parametrize("size", [10, 3 << 19, 3 << 20])
def test_files_that_were_made_to_send_a_job_to_its_tasks_are_deleted(spark: SparkSession, size: int) -> None:
    folder = Path(spark.sparkContext._temp_dir)  # type: ignore[attr-defined]
    before = set(folder.rglob("*"))
    assert run(spark, size) == job.JobResult({"t": Report("t", -1, 1)}, {})
    assert set(folder.rglob("*")) == before


def test_they_are_deleted_after_a_job_that_fails(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: DataFrame) -> Any:
        raise RuntimeError("a worker has died")

    folder = Path(spark.sparkContext._temp_dir)  # type: ignore[attr-defined]
    before = set(folder.rglob("*"))
    monkeypatch.setattr(type(spark.range(1)), "collect", fails)
    with pytest.raises(RuntimeError, match="a worker has died"):
        run(spark, 3 << 20)
    assert set(folder.rglob("*")) == before
