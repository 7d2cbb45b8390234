"""The store is away, slow, busy, or refuses: the mirrors end as without that, and no batch is told twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.runtime.runner import run
from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts
from tests.support.object_store import Bucket
from tests.support.s3_proxy import Fault
from tests.support.store_mirroring import StoreMirroring

pytestmark = [
    pytest.mark.sources,
    pytest.mark.timeout(600),
    pytest.mark.guarantee(
        "On an object store, one of several writers of a version succeeds, whatever the store answers; a "
        "driver that sleeps while another takes over makes no further commits"
    ),
]
CAPTURE = Capture("pk_change")


def require_right(spark: SparkSession, mirroring: StoreMirroring) -> None:
    assert not wrong(CAPTURE.differences(spark, mirroring))
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit")
    rows = audit.groupBy("query_id", "batch_id", "source").agg(F.count("*").alias("n")).collect()
    assert {row["n"] for row in rows} == {1}


@pytest.mark.thorough
def test_answers_that_fail_or_never_come_cost_time_only(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    mirroring = StoreMirroring(tmp_path, bucket).deliver(parts(CAPTURE.records, 2))
    with bucket.proxy.answers_that_fail_or_never_come():
        mirroring.run(s3)
    require_right(s3, mirroring)


@pytest.mark.thorough
def test_a_file_that_is_replaced_while_it_is_read_is_read_again(s3: SparkSession, bucket: Bucket) -> None:
    """Of the owner record, for example, which another thread keeps writing. S3 answers 412 then."""
    storage = open_storage(f"{bucket.uri}/checkpoint", s3)
    storage.write_text("owner.json", "{}\n")

    def reads(method: str, path: str) -> bool:
        return method == "GET" and path.endswith("owner.json")

    with bucket.proxy.fault(Fault(412, reads, times=3)) as fault:
        assert storage.read_text("owner.json") == "{}\n"
    assert fault.met == 3
    with bucket.proxy.fault(Fault(412, reads, times=100)), pytest.raises(Py4JJavaError, match="412"):
        storage.read_text("owner.json")


@pytest.mark.thorough
def test_a_slow_store_is_only_slow(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = StoreMirroring(tmp_path, bucket).deliver(parts(CAPTURE.records, 1))
    bucket.proxy.slow_seconds = 0.2
    mirroring.run(s3)
    require_right(s3, mirroring)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_store_that_was_away_for_a_minute_is_gone_on_with(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """The driver tries again for as long as it does with any failure; one that has ended is started anew."""
    first, *rest = parts(CAPTURE.records, 3)
    mirroring = StoreMirroring(tmp_path, bucket, {"trigger": {"interval": "1s"}}).deliver([first])
    enough = threading.Event()
    ended: list[BaseException] = []

    def drive() -> None:
        try:
            run(mirroring.pipeline, once=False, spark=s3, stopping=enough.is_set)
        except BaseException as error:
            ended.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    wait_for(driver, bucket, "checkpoint/files/commits/0.json")
    with bucket.proxy.away():
        mirroring.deliver(rest)
        time.sleep(60)
    assert not bucket.exists("checkpoint/files/commits/1.json")
    enough.set()
    driver.join(timeout=300)
    assert not driver.is_alive()
    mirroring.run(s3)
    assert bucket.exists("checkpoint/files/commits/2.json")
    require_right(s3, mirroring)


def wait_for(driver: threading.Thread, bucket: Bucket, key: str, seconds: float = 240) -> None:
    for _ in range(int(seconds * 10)):
        if bucket.exists(key):
            return
        driver.join(timeout=0.1)
        assert driver.is_alive(), "the driver has ended"
    raise AssertionError(f"{key} did not come in time")
