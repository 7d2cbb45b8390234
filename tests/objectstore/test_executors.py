"""Executors in processes of their own read and write the bucket as the driver does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts
from tests.support.driver_process import driver
from tests.support.local_cluster import MASTER, executors_seen, no_jars_left
from tests.support.object_store import Bucket
from tests.support.store_mirroring import StoreMirroring

pytestmark = [pytest.mark.sources, pytest.mark.thorough, pytest.mark.timeout(600)]
CAPTURE = Capture("pk_change")


@pytest.fixture(autouse=True)
def tidy() -> Iterator[None]:
    with no_jars_left():
        yield


def test_two_executors_write_to_a_bucket(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = StoreMirroring(tmp_path, bucket, master=MASTER)
    mirroring.deliver(parts(CAPTURE.records, 2))
    with driver(mirroring, "--once") as running:
        said, _ = running.communicate(timeout=400)
    assert running.returncode == 0, said[-3000:]
    assert not wrong(CAPTURE.differences(s3, mirroring))
    assert mirroring.told_twice(s3) == []
    assert executors_seen() == {"0", "1"}
