"""Wherever the driver dies, the next run goes on from there: equal tables, each event counted once."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import local_path
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.runtime.runner import run
from tests.conformance.captures import Capture, wrong
from tests.support.delivery import parts, whole
from tests.support.mirroring import Mirroring, at, audited
from tests.support.records import Column
from tests.support.shop import Shop, table

CAPTURE = Capture("pk_change")
COUNTS = ("records", "inserted", "updated", "deleted", "stale", "duplicates", "tombstone_records")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def undisturbed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """The same two batches, applied without a crash."""
    mirroring = Mirroring(tmp_path_factory.mktemp("undisturbed")).deliver(parts(CAPTURE.records, 2))
    mirroring.run(spark)
    return mirroring


@pytest.mark.thorough
@pytest.mark.guarantee("A second run, or a replay of a committed batch, creates no new version")
def test_a_second_run_makes_no_new_version(spark: SparkSession, undisturbed: Mirroring) -> None:
    before = undisturbed.versions()
    summary = undisturbed.run(spark)
    assert undisturbed.versions() == before != {}
    assert summary is not None
    assert not wrong(CAPTURE.differences(spark, undisturbed))


@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("batch", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_after_crashes_the_tables_and_totals_are_as_without_them(
    batch: int, spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    """One batch crashes at each of the named points in turn, each time a step further."""
    batches = parts(CAPTURE.records, 2)
    mirroring = Mirroring(tmp_path)
    if batch:
        mirroring.deliver(batches[:1]).run(spark)
        batches = batches[1:]
    mirroring.deliver(batches)
    for point in get_args(faults.Point):
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
    crashed = mirroring.versions()
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert audited(spark, mirroring, COUNTS) == audited(spark, undisturbed, COUNTS)
    if batch:
        assert mirroring.versions() == crashed, "a replayed batch makes no new version"


@pytest.mark.guarantee("No batch waits for the audit table, and no row of it is lost or duplicated")
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_crashes_of_what_writes_the_audit_behind_the_batches_lose_and_double_no_row(
    spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    """A run ends before its first commit, between that one and the deletion of the file, and there again."""
    batches = parts(CAPTURE.records, 2)
    mirroring = Mirroring(tmp_path)
    audit, pending = mirroring.checkpoint / "audit", mirroring.checkpoint / "audit-pending"
    points: list[faults.AnyPoint] = ["after-audit", "after-audit-commit", "after-audit-commit"]
    for number, (point, delivered) in enumerate(zip(points, (batches[:1], [], batches[1:]), strict=True)):
        mirroring.deliver(delivered)
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
        assert len(list(pending.glob("*.json"))) == 1
        assert audit.exists() == bool(number)
        if number:
            assert at(spark, str(audit)).where("source IS NULL").count() == number
    mirroring.run(spark)
    assert not list(pending.glob("*.json"))
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert audited(spark, mirroring, COUNTS) == audited(spark, undisturbed, COUNTS)


@pytest.mark.thorough
def test_everything_read_again_changes_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """The checkpoint is deleted: every record comes again, under a new query."""
    mirroring = Mirroring(tmp_path).deliver(whole(CAPTURE.records))
    mirroring.run(spark)
    shutil.rmtree(mirroring.checkpoint)
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    totals = audited(spark, mirroring, COUNTS)
    assert len(totals) == len(CAPTURE.tables)
    assert {total[name] for total in totals.values() for name in ("inserted", "updated", "deleted")} == {0}


def cut_off(folder: Path) -> None:
    """What a kill leaves of a table while Delta writes its first commit."""
    log = folder / "_delta_log"
    (log / "_staged_commits").mkdir(parents=True)
    (log / ".00000000000000000000.json.80f810ad-514c-497f-9ba5-fd7282e43c9a.tmp").write_text('{"protocol":')
    (log / "..00000000000000000000.json.80f810ad-514c-497f-9ba5-fd7282e43c9a.tmp.crc").write_bytes(b"crc")


@pytest.mark.long
@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
@pytest.mark.parametrize("target", [pytest.param("path", marks=pytest.mark.thorough), "table"])
def test_a_table_whose_first_commit_was_cut_off_is_made_anew(
    target: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop, items = Shop(), table(f"cut_off_{target}", Column("v", "int32"))
    if target == "path":
        mirroring, mirror = Mirroring(tmp_path), tmp_path / "lake" / "demo" / "public" / items.name
    else:
        mirroring = Mirroring(tmp_path, {"target": {"table": "{table}"}})
        mirror = local_path(str(spark.conf.get("spark.sql.warehouse.dir"))) / items.name
    for folder in (mirror, *(mirroring.checkpoint / name for name in ("audit", "quarantine"))):
        cut_off(folder)
    [bad] = shop.create(items, id=3, v=1)
    rows = [*shop.create(items, id=1, v=1), *shop.create(items, id=2, v=2), {**bad, "value": "{"}]
    mirroring.deliver([rows])
    mirroring.run(spark)
    cut_off(mirror / "_tombstones")
    mirroring.deliver([rows, shop.delete(items, id=1, v=1)])
    mirroring.run(spark)
    assert [(row["id"], row["v"]) for row in at(spark, str(mirror)).collect()] == [(2, 2)]
    assert at(spark, str(mirror / "_tombstones")).count() == 1
    assert at(spark, str(mirroring.checkpoint / "quarantine")).count() == 1
    assert at(spark, str(mirroring.checkpoint / "audit")).where("source IS NULL").count() == 2


@pytest.mark.long
@pytest.mark.guarantee("Only one driver runs")
@pytest.mark.timeout(300)
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
        first.join(timeout=300)
    assert not first.is_alive()
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))


@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "times", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.soak)]
)
def test_kills_at_any_moment_lose_and_double_nothing(
    times: int, spark: SparkSession, tmp_path: Path, undisturbed: Mirroring
) -> None:
    mirroring = Mirroring(tmp_path).deliver(parts(CAPTURE.records, 4))
    _kill_at_random_moments(mirroring, times, random.Random(4))
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    events = {table: total["records"] for table, total in audited(spark, mirroring, COUNTS).items()}
    assert events == {table: total["records"] for table, total in audited(spark, undisturbed, COUNTS).items()}


@pytest.mark.guarantee("A crash at any moment loses and duplicates nothing")
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
            _wait_for(functools.partial(_has_written, mirroring, written, running))
            time.sleep(rnd.uniform(0, 3))
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
            _, errors = running.communicate(timeout=30)
        assert running.returncode in (-signal.SIGKILL, 0), errors.decode(errors="replace")[-2000:]


def _has_written(mirroring: Mirroring, before: int, running: subprocess.Popen[bytes]) -> bool:
    return _files(mirroring) > before or running.poll() is not None


def _files(mirroring: Mirroring) -> int:
    return sum(1 for _ in mirroring.folder.glob("lake/**/_delta_log/*.json"))


def _wait_for(happened: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)
