"""Executors in processes of their own read and write the bucket as the driver does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts
from tests.support.driver_process import driver
from tests.support.object_store import Bucket
from tests.support.store_mirroring import StoreMirroring

pytestmark = [pytest.mark.sources, pytest.mark.timeout(600)]
CAPTURE = Capture("pk_change")


@pytest.fixture(autouse=True)
def no_jars_left() -> Iterator[None]:
    """Workers of a local cluster copy the jars to where Spark is, and leave them there."""
    work = Path(_find_spark_home(), "work")
    before = {*work.glob("*")}
    yield
    for folder in {*work.glob("*")} - before:
        shutil.rmtree(folder, ignore_errors=True)


def test_two_executors_write_to_a_bucket(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = StoreMirroring(tmp_path, bucket, master="local-cluster[2,1,1024]")
    mirroring.deliver(parts(CAPTURE.records, 2))
    with driver(mirroring, "--once") as running:
        said, _ = running.communicate(timeout=400)
    assert running.returncode == 0, said[-3000:]
    assert not wrong(CAPTURE.differences(s3, mirroring))
    assert mirroring.told_twice(s3) == []
    executors = {folder.name for folder in Path(_find_spark_home(), "work").glob("*/*") if folder.is_dir()}
    assert executors == {"0", "1"}
