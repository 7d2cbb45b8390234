"""Wherever the driver dies, the next run goes on from there: equal tables, each event counted once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.runner import run
from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts, whole
from tests.support.mirroring import Mirroring

CAPTURE = Capture("pk_change")
COUNTS = ("records", "events", "inserted", "updated", "deleted", "stale", "duplicates", "tombstone_records")
ROOT = Path(__file__).parents[2]


def audited(spark: SparkSession, mirroring: Mirroring) -> dict[str, dict[str, int]]:
    """Totals by table, from the audit table."""
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit")
    rows = audit.groupBy("source").sum(*COUNTS).collect()
    return {str(row["source"]): {name: row[f"sum({name})"] for name in COUNTS} for row in rows}


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """The same two batches, applied without a crash."""
    mirroring = Mirroring(tmp_path_factory.mktemp("undisturbed")).deliver(parts(CAPTURE.records, 2))
    mirroring.run(spark)
    return mirroring


def test_a_second_run_makes_no_new_version(spark: SparkSession, undisturbed: Mirroring) -> None:
    before = undisturbed.versions()
    summary = undisturbed.run(spark)
    assert undisturbed.versions() == before != {}
    assert summary is not None
    assert not wrong(CAPTURE.differences(spark, undisturbed))


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("point", get_args(faults.Point))
def test_after_a_crash_the_tables_and_totals_are_as_without_it(
    point: faults.Point, batch: int, spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    mirroring = Mirroring(tmp_path).deliver(parts(CAPTURE.records, 2))
    once_a_table = point in ("after-tombstones", "after-rows")
    faults.arm(point, after=batch * (2 if once_a_table else 1))
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(spark)
    crashed = mirroring.versions()
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert audited(spark, mirroring) == audited(spark, undisturbed)
    if point == "before-checkpoint-commit" and batch == 1:
        assert mirroring.versions() == crashed, "a replayed batch makes no new version"


def test_everything_read_again_changes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint is deleted: every record comes again, under a new query."""
    mirroring = Mirroring(tmp_path).deliver(whole(CAPTURE.records))
    mirroring.run(spark)
    shutil.rmtree(mirroring.checkpoint)
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    totals = audited(spark, mirroring)
    applied = [totals[table][name] for table in totals for name in ("inserted", "updated", "deleted")]
    assert sum(applied) == 0


@pytest.mark.timeout(120)
def test_two_runs_on_one_checkpoint_cannot_both_write(spark: SparkSession, tmp_path: Path) -> None:
    mirroring = Mirroring(tmp_path, {"trigger": {"interval": "1s"}}).deliver(parts(CAPTURE.records, 2))
    enough = threading.Event()
    first = threading.Thread(
        target=lambda: run(mirroring.pipeline, once=False, spark=spark, stopping=enough.is_set)
    )
    first.start()
    try:
        _wait_for(lambda: any(mirroring.checkpoint.glob("owner/*")))
        with pytest.raises(CheckpointInUse):
            run(mirroring.pipeline, once=True, spark=spark)
    finally:
        enough.set()
        first.join(timeout=90)
    assert not first.is_alive()
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))


@pytest.mark.timeout(280)
def test_three_kills_at_any_moment_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    mirroring = Mirroring(tmp_path).deliver(parts(CAPTURE.records, 6))
    _kill_at_random_moments(mirroring, 3, random.Random(4))
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    events = {table: total["events"] for table, total in audited(spark, mirroring).items()}
    assert events == {table: total["events"] for table, total in audited(spark, undisturbed).items()}


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(5))
def test_many_kills(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    capture = Capture("inventory")
    mirroring = Mirroring(tmp_path).deliver(parts(capture.records, 12))
    _kill_at_random_moments(mirroring, 10, random.Random(seed))
    mirroring.run(spark)
    assert not wrong(capture.differences(spark, mirroring))


def _kill_at_random_moments(mirroring: Mirroring, times: int, rnd: random.Random) -> None:
    """SIGKILL a real run, process and JVM, some time after it has begun to write."""
    for _ in range(times):
        written = _files(mirroring)
        running = subprocess.Popen(
            [sys.executable, "-m", "lakemirror.cli.main", "run", "-f", str(mirroring.manifest), "--once"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'operator'}"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _wait_for(lambda start=written, p=running: _files(mirroring) > start or p.poll() is not None, 90)
            time.sleep(rnd.uniform(0, 3))
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            _, errors = running.communicate(timeout=30)
        assert running.returncode in (-signal.SIGKILL, 0), errors.decode(errors="replace")[-2000:]


def _files(mirroring: Mirroring) -> int:
    return sum(1 for _ in mirroring.folder.glob("lake/**/_delta_log/*.json"))


def _wait_for(happened, seconds: float = 60) -> None:  # type: ignore[no-untyped-def]
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)
