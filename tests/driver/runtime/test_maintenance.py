"""OPTIMIZE and VACUUM between batches: when, of what, and that no batch is any wiser for it."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.record import audit, history
from lakemirror.driver.runtime import between_batches, maintenance
from lakemirror.driver.runtime.events import BatchDone, Event, Maintained
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.tables import housekeeping
from lakemirror.driver.tables.housekeeping import Task
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

ITEMS = table("items", Column("v", "int32"))
ALWAYS = {"maintenance": {"optimize": {"every": "1ms"}, "vacuum": {"every": "1ms", "retain": "1h"}}}


def operations(spark: SparkSession, path: str) -> list[str]:
    """Of all commits, oldest first."""
    history = DeltaTable.forPath(spark, path).history().select("version", "operation").collect()
    return [row["operation"] for row in sorted(history)]


def files(spark: SparkSession, path: str) -> int:
    return len(spark.read.format("delta").load(path).inputFiles())


def batches(shop: Shop) -> list[list[Record]]:
    """Rows, one batch each; then one of them goes."""
    created = [shop.create(ITEMS, id=n, v=n) for n in range(3)]
    return [*created, shop.delete(ITEMS, id=0, v=0)]


def rows(spark: SparkSession, mirroring: Mirroring) -> list[tuple[int, int]]:
    return sorted(
        (row["id"], row["v"]) for row in at(spark, mirroring.path("demo", "public", "items")).collect()
    )


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A file beside the checkpoint, and otherwise the tables' own history, determines when housekeeping is "
    "due; housekeeping harms no replay and no tombstone, and stops nothing"
)
def test_a_run_once_does_at_its_end_what_is_due_and_a_replay_is_still_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also where the driver died between a commit and its checkpoint, and housekeeping came in between."""
    shop, events = Shop(), []
    mirroring = Mirroring(tmp_path, ALWAYS).deliver(batches(shop))
    mirroring.deliver([shop.garbage(ITEMS, "{")])
    run(mirroring.pipeline, once=True, spark=spark, on_event=events.append)
    path = mirroring.path("demo", "public", "items")
    places = {path, f"{path}/_tombstones", f"{mirroring.checkpoint}/quarantine"}
    done = [event for event in events if isinstance(event, Maintained)]
    assert {(event.path.removeprefix("file:"), event.task) for event in done} >= {
        (place, task) for place in places for task in ("optimize", "vacuum")
    }
    last_batch = max(n for n, event in enumerate(events) if isinstance(event, BatchDone))
    assert events.index(done[0]) > last_batch
    assert files(spark, path) == 1
    assert {"VACUUM START", "VACUUM END"} <= set(operations(spark, path))
    assert spark.read.format("delta").load(f"{path}/_tombstones").where("kind = 'deleted'").count() == 1

    mirroring.deliver([shop.update(ITEMS, id=1, v=10)])
    faults.arm("before-checkpoint-commit")
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(spark)
    session = housekeeping.session_for(spark)
    housekeeping.optimize(session, path)
    housekeeping.vacuum(session, path, 3600)
    before = operations(spark, path).count("STREAMING UPDATE") + operations(spark, path).count("MERGE")
    again = mirroring.run(spark)
    after = operations(spark, path).count("STREAMING UPDATE") + operations(spark, path).count("MERGE")
    assert after == before, "the batch is there already"
    assert (again.counts.applied, again.counts.updated) == (1, 1)
    assert "VACUUM END" in operations(spark, f"{mirroring.checkpoint}/audit")
    assert rows(spark, mirroring) == [(1, 10), (2, 2)]


@pytest.mark.guarantee(
    "A file beside the checkpoint, and otherwise the tables' own history, determines when housekeeping is "
    "due; housekeeping harms no replay and no tombstone, and stops nothing"
)
@pytest.mark.thorough
def test_batches_go_on_over_it(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a driver knows of a mirror's files is read anew where OPTIMIZE has replaced them."""
    monkeypatch.setattr(between_batches, "_EVERY_SECONDS", 0.1)
    shop, stop = Shop(), threading.Event()
    on = {"maintenance": {"optimize": {"every": "1ms"}}, "trigger": {"interval": "100ms"}}
    mirroring = Mirroring(tmp_path, on).deliver([shop.create(ITEMS, id=n, v=n) for n in range(3)])
    path = mirroring.path("demo", "public", "items")
    more = [shop.update(ITEMS, id=1, v=10), shop.delete(ITEMS, id=2, v=2), shop.create(ITEMS, id=2, v=20)]
    seen: list[int] = []

    def watch(event: Event) -> None:
        if isinstance(event, BatchDone):
            seen.append(event.result.batch_id)
        if isinstance(event, Maintained) and event.path.endswith(path) and len(seen) >= 6 - len(more):
            if more:
                mirroring.deliver([more.pop(0)])
            elif len(seen) == 6:
                stop.set()

    summary = run(mirroring.pipeline, spark=spark, stopping=stop.is_set, on_event=watch)
    assert rows(spark, mirroring) == [(0, 0), (1, 10), (2, 20)]
    assert summary.counts.unaccounted == 0
    assert "OPTIMIZE" in operations(spark, path)
    assert not summary.warnings


@pytest.mark.guarantee(
    "A file beside the checkpoint, and otherwise the tables' own history, determines when housekeeping is "
    "due; housekeeping harms no replay and no tombstone, and stops nothing"
)
def test_what_fails_is_a_warning(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> str:
        raise OSError(28, "No space left on device", "/lake")

    monkeypatch.setattr(housekeeping, "optimize", full)
    shop = Shop()
    mirroring = Mirroring(tmp_path, {"maintenance": {"optimize": {"every": "1ms"}}})
    summary = mirroring.deliver([shop.create(ITEMS, id=1, v=1)]).run(spark)
    assert (summary.status, summary.counts.applied) == ("completed", 1)
    path = mirroring.path("demo", "public", "items")
    assert any("optimize of" in each or f"optimize at {path} failed" in each for each in summary.warnings)
    assert all("No space left" in each for each in summary.warnings)


@pytest.mark.thorough
def test_nothing_runs_before_it_is_due_or_where_nobody_asks(spark: SparkSession, tmp_path: Path) -> None:
    later = {"maintenance": {"optimize": {"every": "1h"}, "vacuum": {}}}
    for name, settings in (("later", later), ("never", {})):
        mirroring = Mirroring(tmp_path / name, settings).deliver(batches(Shop()))
        mirroring.run(spark)
        assert not {"OPTIMIZE", "VACUUM START"} & set(
            operations(spark, mirroring.path("demo", "public", "items"))
        )


@pytest.fixture
def small_files(spark: SparkSession, tmp_path: Path) -> Callable[[], str]:
    def write() -> str:
        path = str(tmp_path / "t")
        for n in range(3):
            spark.range(n, n + 1).coalesce(1).write.format("delta").mode("append").save(path)
        return path

    return write


@pytest.mark.long
@pytest.mark.guarantee(
    "A file beside the checkpoint, and otherwise the tables' own history, determines when housekeeping is "
    "due; housekeeping harms no replay and no tombstone, and stops nothing"
)
def test_the_table_itself_remembers_when_it_was_done(
    spark: SparkSession, small_files: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, session = small_files(), housekeeping.session_for(spark)
    every = {Task.OPTIMIZE: 3600.0, Task.VACUUM: 3600.0}
    made = housekeeping.last_done(session, path, every)
    assert made[Task.OPTIMIZE] == made[Task.VACUUM], "as if done when the table was made"
    assert housekeeping.optimize(session, path) == "3 files became 1"
    assert housekeeping.optimize(session, path) == "0 files became 0"
    housekeeping.vacuum(session, path, 3600)
    done = housekeeping.last_done(session, path, every)
    assert made[Task.VACUUM] < done[Task.OPTIMIZE] < done[Task.VACUUM]
    for n in range(3):
        spark.range(n, n + 1).write.format("delta").mode("append").save(path)
    monkeypatch.setattr(housekeeping, "_FIRST_LOOK", 2)
    monkeypatch.setattr(housekeeping, "_FURTHER", 2)
    assert housekeeping.last_done(session, path, every) == done, "looked for further back"
    assert housekeeping.last_done(session, path, dict.fromkeys(Task, 0.0)) == {}, "no further than needed"


@pytest.mark.long
@pytest.mark.guarantee(
    "A file beside the checkpoint, and otherwise the tables' own history, determines when housekeeping is "
    "due; housekeeping harms no replay and no tombstone, and stops nothing"
)
def test_vacuum_leaves_side_tables_and_what_is_kept(
    spark: SparkSession, small_files: Callable[[], str]
) -> None:
    path, session = small_files(), housekeeping.session_for(spark)
    side = f"{path}/_tombstones"
    spark.range(5).write.format("delta").save(side)
    beside = {file.name for file in Path(side).iterdir()}
    housekeeping.optimize(session, path)
    assert housekeeping.vacuum(session, path, 3600) == "0 files deleted", "an earlier version needs them"
    assert spark.read.format("delta").option("versionAsOf", 2).load(path).count() == 3
    time.sleep(1.1)
    assert housekeeping.vacuum(session, path, 1) == "3 files deleted"
    assert spark.read.format("delta").load(path).count() == 3
    assert {file.name for file in Path(side).iterdir()} == beside
    assert spark.read.format("delta").load(side).count() == 5


@pytest.mark.long
def test_a_time_longer_than_deltas_own_is_the_tables(
    spark: SparkSession, small_files: Callable[[], str]
) -> None:
    """Delta forgets after seven days that an earlier version needs a file, unless the table says more."""
    path, session = small_files(), housekeeping.session_for(spark)

    def properties() -> dict[str, str]:
        row = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
        assert row is not None
        return {name: value for name, value in row["properties"].items() if "Duration" in name}

    housekeeping.vacuum(session, path, 7 * 86_400)
    assert properties() == {}
    housekeeping.vacuum(session, path, 60 * 86_400)
    kept = "interval 5184000 seconds"
    assert properties() == {"delta.deletedFileRetentionDuration": kept, "delta.logRetentionDuration": kept}
    version = max(row["version"] for row in DeltaTable.forPath(spark, path).history().collect())
    housekeeping.vacuum(session, path, 60 * 86_400)
    newest = max(row["version"] for row in DeltaTable.forPath(spark, path).history().collect())
    assert newest == version + 2, "only its own start and end"


def log_properties(spark: SparkSession, path: str) -> dict[str, str]:
    row = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert row is not None
    return {name.removeprefix("delta."): v for name, v in row["properties"].items() if "Duration" in name}


WEEK, DAY = "interval 604800 seconds", "interval 86400 seconds"


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A batch costs what it brings, however many came before: logs have a limit unless a property of the "
    "table sets one, listings begin at the last checkpoint, and our own tables are compacted unasked"
)
def test_own_tables_are_compacted_and_logs_limited_unasked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New tables have the limits from the start. Others get them, unless a property of theirs is set."""
    monkeypatch.setattr(maintenance, "FEW_VERSIONS", 2)
    monkeypatch.setattr(maintenance, "MANY_FILES", 3)
    shop, events = Shop(), []
    others = table("others", Column("v", "int32"))
    made = [record for n in range(4) for each in (ITEMS, others) for record in shop.create(each, id=n, v=n)]
    mirroring = Mirroring(tmp_path).deliver([made])
    mirroring.run(spark)
    path, other = (mirroring.path("demo", "public", name) for name in ("items", "others"))
    audit = f"{mirroring.checkpoint}/audit"
    assert log_properties(spark, path) == {"logRetentionDuration": WEEK}
    assert log_properties(spark, audit) == {"logRetentionDuration": DAY, "deletedFileRetentionDuration": DAY}
    unset = "UNSET TBLPROPERTIES (delta.logRetentionDuration)"
    spark.sql(f"ALTER TABLE delta.`{path}` {unset}")
    longer = "interval 20 days"
    spark.sql(f"ALTER TABLE delta.`{other}` SET TBLPROPERTIES ('delta.logRetentionDuration' = '{longer}')")
    for n in range(3):
        mirroring.deliver([[*shop.delete(ITEMS, id=n, v=n), *shop.delete(others, id=n, v=n)]])
    run(mirroring.pipeline, once=True, spark=spark, on_event=events.append)
    done = {event.path.removeprefix("file:") for event in events if isinstance(event, Maintained)}
    assert done == {f"{path}/_tombstones", f"{other}/_tombstones"}, "no mirror is compacted unasked"
    assert files(spark, f"{path}/_tombstones") == 1
    assert log_properties(spark, path) == {"logRetentionDuration": WEEK}
    assert log_properties(spark, other) == {"logRetentionDuration": longer}
    assert log_properties(spark, f"{path}/_tombstones") == log_properties(spark, audit)
    assert rows(spark, mirroring) == [(3, 3)]


@pytest.mark.guarantee(
    "A batch costs what it brings, however many came before: logs have a limit unless a property of the "
    "table sets one, listings begin at the last checkpoint, and our own tables are compacted unasked"
)
def test_a_log_is_cleaned_as_delta_does(spark: SparkSession, tmp_path: Path) -> None:
    """What precedes the last checkpoint and is older than its retention goes, by whole hours."""
    path, session = tmp_path / "t", housekeeping.session_for(spark)
    properties = {"delta.checkpointInterval": "4"}
    for n in range(7):
        writer = spark.range(n, n + 1).coalesce(1).write.format("delta").mode("append")
        writer.options(**properties).save(str(path))
    housekeeping.keep_log(session, str(path), 7200, files=True)
    log, now = path / "_delta_log", time.time()
    for n in range(6):
        for file in log.glob(f"*{n:020d}*"):
            os.utime(file, (now - 10 * 3600 + n, now - 10 * 3600 + n))
    housekeeping.clean_log(session, str(path))
    left = sorted(int(file.stem) for file in log.glob("*.json"))
    assert left == [4, 5, 6, 7]
    assert spark.read.format("delta").load(str(path)).count() == 7


@pytest.mark.long
def test_a_time_that_is_yet_to_come_is_from_a_clock_that_was_ahead(
    spark: SparkSession, tmp_path: Path
) -> None:
    asked = {"maintenance": {"optimize": {"every": "6h"}}}
    mirroring = Mirroring(tmp_path, asked).deliver(batches(Shop()))
    mirroring.run(spark)
    path = mirroring.path("demo", "public", "items")
    assert "OPTIMIZE" not in operations(spark, path)
    ahead = json.dumps({path: {"optimize": "2199-01-01T00:00:00+00:00"}})
    (mirroring.checkpoint / maintenance.FILE).write_text(ahead)
    mirroring.run(spark)
    assert "OPTIMIZE" in operations(spark, path)
    mirroring.deliver([Shop().create(ITEMS, id=9, v=9)]).run(spark)
    assert operations(spark, path).count("OPTIMIZE") == 1


@pytest.mark.long
@pytest.mark.guarantee(
    "Old batches of the audit are summed up, and totals, drift and targets stay what they were; no version "
    "answers for a position that is within a sum"
)
def test_a_run_forgets_what_is_older_than_its_retention(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of the audit are summed up and closed records deleted. Later runs know all that they said."""
    monkeypatch.setattr(maintenance, "FEW_VERSIONS", 0)
    shop, events = Shop(), []
    mirroring = Mirroring(tmp_path, {"retention": {"audit": "1ms", "quarantine": "1ms"}})
    mirroring.deliver([*batches(shop), shop.garbage(ITEMS, "{")])
    before = mirroring.run(spark)
    replay(mirroring.pipeline, spark=spark, discard=True)
    checkpoint = str(mirroring.checkpoint)
    assert audit_rows(spark, checkpoint) == 5 + 4, "one per batch, and one per batch that changed the table"
    said, positions = audit.history(spark, checkpoint), audit.history(spark, checkpoint).memories
    long_ago = {path: {"forget": "2026-01-01T00:00:00+00:00"} for path in maintained(mirroring)}
    (mirroring.checkpoint / maintenance.FILE).write_text(json.dumps(long_ago))
    again = run(mirroring.pipeline, once=True, spark=spark, on_event=events.append)
    done = [
        (each.path, each.done) for each in events if isinstance(each, Maintained) and each.task == "forget"
    ]
    places = maintained(mirroring)
    assert (again.batches, again.warnings) == (0, before.warnings)
    assert sorted(done) == [(places[0], "9 rows summed up"), (places[1], "1 closed records deleted")]
    assert audit_rows(spark, checkpoint) == 2, "one per table and place, and one for all batches"
    now = audit.history(spark, checkpoint)
    assert (now.whole, now.written, now.places) == (said.whole, said.written, said.places)
    assert (now.memories, now.last_batches) == (positions, said.last_batches)
    (mirroring.checkpoint / history.FILE).unlink()
    again = mirroring.deliver([shop.update(ITEMS, id=1, v=10)]).run(spark)
    assert (again.batches, again.counts.applied) == (1, 1)
    assert rows(spark, mirroring) == [(1, 10), (2, 2)]
    total = audit.history(spark, checkpoint).whole
    assert total.records == said.whole.records + 1


def maintained(mirroring: Mirroring) -> list[str]:
    return [f"{mirroring.checkpoint}/{name}" for name in ("audit", "quarantine")]


def audit_rows(spark: SparkSession, checkpoint: str) -> int:
    found = audit.read(spark, checkpoint)
    assert found is not None
    return found.count()
