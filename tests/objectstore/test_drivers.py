"""Drivers that are killed, run at once, or sleep while another one takes over: nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts
from tests.support.driver_process import LEASE_SECONDS, driver, killed_while_it_writes, wait_for
from tests.support.mirroring import at
from tests.support.object_store import Bucket
from tests.support.s3_proxy import Fault, commits
from tests.support.store_mirroring import StoreMirroring

pytestmark = [pytest.mark.sources, pytest.mark.timeout(600)]
CAPTURE = Capture("pk_change")


def require_right(spark: SparkSession, mirroring: StoreMirroring) -> None:
    """The mirrors are the source's rows, and the audit tells of each batch and table once."""
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert mirroring.told_twice(spark) == []
    audit = at(spark, f"{mirroring.checkpoint}/audit")
    batches = {row["batch_id"] for row in audit.select("batch_id").distinct().collect()}
    assert batches == set(range(len(list(mirroring.input.iterdir()))))


@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
@pytest.mark.thorough
def test_kills_at_random_moments_lose_and_double_nothing(
    s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    mirroring = StoreMirroring(tmp_path, bucket).deliver(parts(CAPTURE.records, 4))
    rnd = random.Random(7)
    for _ in range(2):
        killed_while_it_writes(mirroring, rnd.uniform(0, 6))
    mirroring.run(s3)
    require_right(s3, mirroring)


@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
@pytest.mark.thorough
def test_of_two_drivers_at_once_one_applies(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> None:
    mirroring = StoreMirroring(tmp_path, bucket, {"trigger": {"interval": "1s"}})
    mirroring.deliver(parts(CAPTURE.records, 2))
    with driver(mirroring) as one, driver(mirroring) as other:
        wait_for(lambda: (one.poll() is None) != (other.poll() is None))
        refused, works = (one, other) if other.poll() is None else (other, one)
        said, _ = refused.communicate(timeout=300)
        assert refused.returncode == 1, said[-2000:]
        assert "is in use by" in said
        mirroring.deliver(parts(CAPTURE.records[:5], 1))
        wait_for(lambda: bucket.exists("checkpoint/files/commits/2.json") or works.poll() is not None)
        works.send_signal(signal.SIGTERM)
        said, _ = works.communicate(timeout=300)
        assert works.returncode == 0, said[-2000:]
    require_right(s3, mirroring)


def of_a_mirror(method: str, path: str) -> bool:
    return commits(method, path) and "/lake/" in path and "_tombstones" not in path


def of_the_audit(method: str, path: str) -> bool:
    return commits(method, path) and "/audit/" in path


@pytest.mark.thorough
@pytest.mark.guarantee(
    "On an object store, one of several writers of a version succeeds, whatever the store answers; a driver "
    "that sleeps while another takes over makes no further commits"
)
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(of_a_mirror, id="commit of a mirror", marks=pytest.mark.thorough),
        pytest.param(of_the_audit, id="commit of the audit"),
    ],
)
def test_a_driver_that_sleeps_while_another_takes_over_commits_nothing_more(
    moment: Callable[[str, str], bool], s3: SparkSession, bucket: Bucket, tmp_path: Path
) -> None:
    """Its commit is on its way to the store when it is stopped, for longer than its lease."""
    first, second = parts(CAPTURE.records, 2)
    mirroring = StoreMirroring(tmp_path, bucket).deliver([first])
    mirroring.run(s3)
    mirroring.deliver([second])
    held = Fault("held", moment)
    with bucket.proxy.fault(held), driver(mirroring, "--once") as sleeps:
        wait_for(lambda: held.held.is_set() or sleeps.poll() is not None)
        assert sleeps.poll() is None, sleeps.communicate()[0][-2000:]
        os.killpg(sleeps.pid, signal.SIGSTOP)
        began = time.monotonic()
        with driver(mirroring, "--once") as other:
            said, _ = other.communicate(timeout=300)
        assert other.returncode == 0, said[-2000:]
        assert time.monotonic() - began > LEASE_SECONDS
        require_right(s3, mirroring)
        before = mirroring.logs()
        held.go_on.set()
        os.killpg(sleeps.pid, signal.SIGCONT)
        said, _ = sleeps.communicate(timeout=300)
    assert sleeps.returncode in (0, 1), said[-2000:]
    assert mirroring.logs() == before, said[-2000:]
    require_right(s3, mirroring)
