"""Change events from a Kafka broker into a bucket, which has the checkpoint of Spark's streaming, too."""

from __future__ import annotations

import os
import random
import signal
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.driver_process import driver, killed_while_it_writes, wait_for
from tests.support.kafka_broker import Broker
from tests.support.kafka_captures import from_kafka, send_captured
from tests.support.object_store import Bucket
from tests.support.s3_proxy import Fault
from tests.support.store_mirroring import StoreMirroring

pytestmark = [pytest.mark.sources, pytest.mark.thorough, pytest.mark.timeout(600)]
CAPTURE = Capture("pk_change")
HALF = len(CAPTURE.records) // 2


@pytest.fixture
def prefix() -> str:
    """With which the names of a test's topics begin."""
    return f"shop-{uuid.uuid4().hex[:8]}."


def require_right(spark: SparkSession, mirroring: StoreMirroring) -> None:
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert mirroring.told_twice(spark) == []


def test_a_capture_from_kafka_in_two_runs(
    s3: SparkSession, kafka: Broker, bucket: Bucket, prefix: str, tmp_path: Path
) -> None:
    mirroring = StoreMirroring(tmp_path, bucket, from_kafka(kafka, prefix, 100))
    send_captured(kafka, prefix, CAPTURE.records[:HALF])
    mirroring.run(s3)
    send_captured(kafka, prefix, CAPTURE.records[HALF:])
    mirroring.run(s3)
    require_right(s3, mirroring)
    assert bucket.exists("checkpoint/spark/commits/0")
    versions = mirroring.versions()
    again = mirroring.run(s3)
    assert (again.batches, again.lag.records, mirroring.versions()) == (0, 0, versions)


@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
@pytest.mark.thorough
def test_kills_at_random_moments_lose_and_double_nothing(
    s3: SparkSession, kafka: Broker, bucket: Bucket, prefix: str, tmp_path: Path
) -> None:
    mirroring = StoreMirroring(tmp_path, bucket, from_kafka(kafka, prefix, 20))
    send_captured(kafka, prefix, CAPTURE.records)
    rnd = random.Random(11)
    for _ in range(3):
        killed_while_it_writes(mirroring, rnd.uniform(0, 6))
    mirroring.run(s3)
    require_right(s3, mirroring)


def of_offsets(method: str, path: str) -> bool:
    return method == "PUT" and "/spark/offsets/" in path


def of_commits(method: str, path: str) -> bool:
    return method == "PUT" and "/spark/commits/" in path


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(of_offsets, id="offsets of a batch", marks=pytest.mark.thorough),
        pytest.param(of_commits, id="end of a batch", marks=pytest.mark.thorough),
    ],
)
def test_a_driver_that_sleeps_while_another_takes_over_changes_nothing_more(
    moment: Callable[[str, str], bool],
    s3: SparkSession,
    kafka: Broker,
    bucket: Bucket,
    prefix: str,
    tmp_path: Path,
) -> None:
    """A file of the streaming query's checkpoint is on its way to the store when the driver is stopped, for
    longer than its lease; the other one writes that file meanwhile.
    """
    mirroring = StoreMirroring(tmp_path, bucket, from_kafka(kafka, prefix, 1000))
    send_captured(kafka, prefix, CAPTURE.records[:HALF])
    mirroring.run(s3)
    send_captured(kafka, prefix, CAPTURE.records[HALF:])
    held = Fault("held", moment)
    with bucket.proxy.fault(held), driver(mirroring, "--once") as sleeps:
        wait_for(lambda: held.held.is_set() or sleeps.poll() is not None)
        assert sleeps.poll() is None, sleeps.communicate()[0][-2000:]
        os.killpg(sleeps.pid, signal.SIGSTOP)
        with driver(mirroring, "--once") as other:
            said, _ = other.communicate(timeout=300)
        assert other.returncode == 0, said[-2000:]
        require_right(s3, mirroring)
        logs, checkpoint = mirroring.logs(), streaming_checkpoint(bucket)
        held.go_on.set()
        os.killpg(sleeps.pid, signal.SIGCONT)
        said, _ = sleeps.communicate(timeout=300)
    assert sleeps.returncode in (0, 1), said[-2000:]
    assert (mirroring.logs(), streaming_checkpoint(bucket)) == (logs, checkpoint), said[-2000:]
    require_right(s3, mirroring)


def streaming_checkpoint(bucket: Bucket) -> dict[str, bytes]:
    """The files of the streaming query's checkpoint, with what they hold."""
    folder = bucket.files / "checkpoint" / "spark"
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for part in ("metadata", "offsets", "commits")
        for file in folder.rglob(f"{part}*/*" if part != "metadata" else part)
        if file.is_file()
    }
