"""Delta and other readers go on from our checkpoints, without the entries and checkpoints before them."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.java import java_class
from lakemirror.driver.tables.delta import snapshot
from lakemirror.driver.tables.housekeeping import clean_log
from lakemirror.driver.writer.checkpointing import checkpoint
from lakemirror.driver.writer.entry import LogStore, name_of
from lakemirror.driver.writer.java_store import DeltaLogStore, checkpoint_by_delta
from lakemirror.driver.writer.log_files import checkpoint_of
from lakemirror.driver.writer.log_state import State, read
from lakemirror.driver.writer.stores import LocalLogStore
from tests.driver.writer.test_log_state_of_delta import KINDS, appended, changed, made, require_same
from tests.support.readers import _duckdb

pytestmark = pytest.mark.long


def state_of(path: Path) -> State:
    found = read(LocalLogStore(path / "_delta_log"))
    assert found is not None
    return found


def afresh(spark: SparkSession, path: Path) -> Any:
    """Delta's snapshot, of which nothing is known from before."""
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    return snapshot(spark, str(path))


def removed(newest: Any) -> list[dict[str, Any]]:
    """What Delta knows was removed, without what checkpoints do not have."""
    told = [json.loads(each.json())["remove"] for each in newest.tombstones().collect()]
    return sorted(
        ({name: each[name] for name in each if name not in ("stats", "tags")} for each in told), key=str
    )


def forget(path: Path, version: int) -> None:
    """Delete everything from before a version."""
    for each in (path / "_delta_log").rglob("*"):
        number = each.name.lstrip(".")[:20]
        if number.isdigit() and int(number) < version:
            each.unlink()


def ids(spark: SparkSession, path: Path) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(str(path)).select("id").collect())


@pytest.mark.parametrize(
    "name",
    [
        "classic",
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in ("of several parts", "V2 in JSON", "of a clustered table")
        ),
    ],
)
def test_delta_goes_on_from_a_checkpoint(name: str, spark: SparkSession, tmp_path: Path) -> None:
    kind, path = KINDS[name], tmp_path / "t"
    made(spark, path, kind)
    changed(spark, path)
    state, before = state_of(path), removed(afresh(spark, path))
    version, live = state.snapshot.version, ids(spark, path)
    local = LocalLogStore(path / "_delta_log")
    log: LogStore = local if name != "classic" else DeltaLogStore(spark, str(path))
    if log is not local:
        found = read(log)
        assert found is not None
        state = found
    now = int(1000 * (path / "_delta_log" / name_of(version)).stat().st_mtime)
    assert checkpoint(log, state, now) is None
    forget(path, version)
    newest = afresh(spark, path)
    assert newest.checkpointProvider().version() == version
    assert len(before) > 3
    assert removed(newest) == before
    require_same(spark, path, state_of(path))
    assert ids(spark, path) == live
    count = _duckdb().execute("SELECT count(*) FROM delta_scan(?)", [str(path)]).fetchone()
    assert count == (len(live),)
    if "V2" not in name:  # which Polars does not read
        assert polars.scan_delta(str(path)).select("id").collect()["id"].sort().to_list() == live
    assert spark.sql(f"VACUUM delta.`{path}` DRY RUN").count() == 0  # what was removed is kept for a week
    appended(spark, path, 5)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 30")
    checkpoint_by_delta(spark, str(path))
    forget(path, version + 2)
    (path / "_delta_log" / checkpoint_of(version)).unlink(missing_ok=True)
    assert len(removed(afresh(spark, path))) == len(before) + 1
    require_same(spark, path, state_of(path))
    assert ids(spark, path) == [*live, *range(31, 36)]


@pytest.mark.parametrize("name", ["with columns of statistics", "with nothing but columns of statistics"])
def test_what_is_left_to_delta(name: str, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    made(spark, path, KINDS[name])
    appended(spark, path, 4)
    log = LocalLogStore(path / "_delta_log")
    assert "writeStatsAs" in str(checkpoint(log, state_of(path), 0))


def test_delta_writes_a_checkpoint_in_a_new_thread(spark: SparkSession, tmp_path: Path) -> None:
    """The tables of a batch are committed side by side. No session is active in the threads of that."""
    path = tmp_path / "t"
    made(spark, path, KINDS["with nothing but columns of statistics"])
    appended(spark, path, 4)
    version = state_of(path).snapshot.version
    for each in (path / "_delta_log").glob(f"{version:020d}.c*"):
        each.unlink()  # commits of the engine leave no checksum file
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(checkpoint_by_delta, spark, str(path)).result()
    assert (path / "_delta_log" / checkpoint_of(version)).exists()


def test_deltas_clean_up_deletes_what_a_checkpoint_sums_up(spark: SparkSession, tmp_path: Path) -> None:
    """As the driver's maintenance calls it. Everything is as old as it has to be."""
    path = tmp_path / "t"
    made(spark, path, KINDS["classic"])
    appended(spark, path, 3)
    state = state_of(path)
    assert checkpoint(LocalLogStore(path / "_delta_log"), state, 0) is None
    expected = ids(spark, path)
    old = (path / "_delta_log" / name_of(0)).stat().st_mtime - 40 * 86_400
    for number, each in enumerate(sorted((path / "_delta_log").iterdir())):
        os.utime(each, (old + number, old + number))  # Delta keeps what seems to be of the same time
    clean_log(spark, str(path))
    left = sorted(each.name for each in (path / "_delta_log").glob("*.json"))
    assert left == [name_of(state.snapshot.version)]
    afresh(spark, path)
    assert ids(spark, path) == expected
    require_same(spark, path, state_of(path))
