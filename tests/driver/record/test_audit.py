"""The audit remembers what the report tells: counts, the drift that was seen, why a table is refused. No
batch waits for its table, and no crash or failure loses or doubles a row.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from lakemirror.api.report import COUNTERS, Counts
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import HadoopStorage, LocalStorage
from lakemirror.driver.consistent.reach import BEGIN, END, Reach
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.profile.positions import At, Memory, Place, Stream
from lakemirror.driver.read.base import Batch, Lag
from lakemirror.driver.record import audit, pending
from lakemirror.driver.record.pending import Pending
from lakemirror.driver.record.write_behind import AT_ONCE, WriteBehind
from lakemirror.driver.results import BatchResult, Drift, TableResult
from lakemirror.driver.runtime.progress import Progress
from lakemirror.driver.write.log import TableChanged

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SEEN = datetime(2026, 3, 1, 13, tzinfo=UTC)
ADDED = Drift("note", "added", None, "string", "added", NOON, SEEN)
DRIFT = (
    '[{"column": "n", "change": "added", "from_type": null, "to_type": "int", "action": "added", '
    '"since": null}]'
)
PATIENCE_SECONDS = 120
EVERY = Counts(**{name: n for n, name in enumerate(COUNTERS, 1)})


@pytest.mark.guarantee("A new run reports what the previous one did")
def test_a_new_run_reports_what_the_one_before_did(spark: SparkSession, tmp_path: Path) -> None:
    written = TableResult(
        "s.a", "/lake/a", 3, EVERY, tombstones_retained=5, last_event_time=NOON, drift=(ADDED,)
    )
    refused = TableResult("s.b", counts=Counts(records=2, refused=2), error="s.b: give it another target")
    results = [
        BatchResult(0, Counts(records=1, no_row_change=1), {"s.a": written, "s.b": refused}),
        BatchResult(1, Counts(), {"s.a": TableResult("s.a", counts=Counts(records=1, stale=1))}),
    ]
    before = Progress("shop")
    for result in results:
        batch = Batch("query", result.batch_id, {"files": 1})
        audit.keep(spark, str(tmp_path), batch, result, {})
        before.batch_done(result)
        if result.batch_id == 0:  # the other one stays pending
            WriteBehind(spark, str(tmp_path)).flush()
    after = Progress("shop")
    after.begin_with(audit.history(spark, str(tmp_path)))
    said, once = after.report("Starting", Lag(0, True)), before.report("Running", Lag(0, True))
    assert said.totals == once.totals
    assert said.tables == once.tables
    a, b = said.tables
    assert (a.target, a.version, a.records) == ("/lake/a", 3, EVERY.records + 1)
    assert [(d.column, d.seen) for d in a.drift] == [("note", "2026-03-01T13:00:00.000Z")]
    assert b.error == "s.b: give it another target"


def test_positions_go_to_the_table_with_the_last_batch_of_a_query_alone() -> None:
    def batch(query: str, number: int, positions: str | None) -> Pending:
        row = {"query_id": query, "batch_id": number, "source": None, "positions": positions}
        return Pending(f"{query}-{number}", [row, {"query_id": query, "batch_id": number, "source": "s.a"}])

    batches = [batch("q", 7, "[7]"), batch("q", 8, "[8]"), batch("q", 9, None), batch("r", 1, "[1]")]
    kept = audit.newest_positions(batches)
    assert [each.rows[0]["positions"] for each in kept] == [None, "[8]", None, "[1]"]
    assert [each.rows[1]["source"] for each in kept] == ["s.a"] * 4


def test_an_audit_of_an_earlier_version_is_read_and_continued(spark: SparkSession, tmp_path: Path) -> None:
    old = (
        "SELECT timestamp'2026-03-01 12:00:00 UTC' AS committed_at, 'q' AS query_id, 0L AS batch_id, "
        "'{}' AS extent, 5L AS records, 1L AS ignored, s AS source, '/lake/a' AS target, 3L AS version, "
        "4L AS events, 4L AS inserted, 0L AS updated, 0L AS deleted, 0L AS stale, 0L AS duplicates, "
        "0L AS tombstone_records, 0L AS tombstones_retained, 0L AS late_after_collection, 0L AS quarantined, "
        "CAST(NULL AS TIMESTAMP) AS last_event_time, if(s IS NULL, NULL, "
        f"'{DRIFT}') AS drift, CAST(NULL AS STRING) AS error, '{{}}' AS positions "
        "FROM VALUES ('s.a'), (NULL) AS t(s)"
    )
    spark.sql(old).write.format("delta").save(audit.path(str(tmp_path)))
    result = BatchResult(1, tables={"s.a": TableResult("s.a", counts=Counts(records=2, applied=2))})
    for batch_id in (0, 1):  # the former driver had not marked the first one done
        audit.keep(spark, str(tmp_path), Batch("q", batch_id, {}), result, {}, seconds=1.5)
    for flush in (False, True):
        if flush:
            WriteBehind(spark, str(tmp_path)).flush()
        history = audit.history(spark, str(tmp_path))
        table = history.tables["s.a"]
        assert history.logs == {"s.a": None}, "it did not say then"
        assert (table.counts.inserted, table.counts.applied, history.whole.records) == (4, 2, 7)
        assert [each.seen.isoformat() for each in table.drift] == ["2026-03-01T12:00:00+00:00"]
        rows = audit.read(spark, str(tmp_path))
        assert rows is not None
        took = rows.where("batch_id = 1").select("source", "seconds").collect()
        assert {tuple(row) for row in took} == {(None, 1.5), ("s.a", None)}
    assert not files(tmp_path)


def keep(spark: SparkSession, folder: Path, *batches: int, query: str = "q", records: int = 1) -> None:
    """What a driver keeps of some batches of one table."""
    for batch_id in batches:
        table = TableResult("s.a", "/lake/a", batch_id, Counts(records=records, applied=records))
        result = BatchResult(batch_id, tables={"s.a": table})
        audit.keep(spark, str(folder), Batch(query, batch_id, {}), result, {})


def test_the_logs_of_tables_are_remembered(spark: SparkSession, tmp_path: Path) -> None:
    reaches = {
        "s.one": [Reach("10", "20", "db"), None, Reach("20", "30", "db")],
        "s.moved": [Reach("10", "20", "db"), Reach("01", "02", "other")],
        "s.mixed": [Reach("10", "20", "db"), Reach(BEGIN, END)],
        "s.loaded": [Reach("10", "10")],
        "s.again": [None],
    }
    for number in range(3):
        tables = {
            source: TableResult(source, counts=Counts(records=1, applied=1), reach=each[number])
            for source, each in reaches.items()
            if number < len(each)
        }
        audit.keep(spark, str(tmp_path), Batch("q", number, {}), BatchResult(number, tables=tables), {})
    assert audit.history(spark, str(tmp_path)).logs == {
        "s.one": {"db"},
        "s.moved": {"db", "other"},
        "s.mixed": None,
        "s.loaded": set(),
        "s.again": set(),
    }


def files(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob(f"{pending.FOLDER}/*"))


def written(spark: SparkSession, folder: Path) -> list[tuple[str, int, int]]:
    """What the table has of each batch as a whole, as anyone may read it."""
    rows = spark.read.format("delta").load(audit.path(str(folder))).where("source IS NULL")
    return sorted((row["query_id"], row["batch_id"], row["records"]) for row in rows.collect())


def records(spark: SparkSession, folder: Path) -> int:
    """The records of all batches, as our own readers have them."""
    history = audit.history(spark, str(folder))
    assert history.whole == history.tables["s.a"].counts
    return history.whole.records


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while not happened():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)


def test_readers_see_what_is_pending_beside_what_is_written(spark: SparkSession, tmp_path: Path) -> None:
    assert audit.read(spark, str(tmp_path)) is None
    keep(spark, tmp_path, 0, 1)
    assert records(spark, tmp_path) == 2
    with WriteBehind(spark, str(tmp_path)):
        pass
    keep(spark, tmp_path, 2)
    keep(spark, tmp_path, 0, query="replay-1")
    assert len(written(spark, tmp_path)) == 2
    assert records(spark, tmp_path) == 4


def test_positions_are_those_of_the_newest_batch_though_it_is_pending(
    spark: SparkSession, tmp_path: Path
) -> None:
    def batch(number: int, query: str, memory: Memory | None) -> None:
        result = BatchResult(number, Counts(records=1, no_row_change=1))
        audit.keep(spark, str(tmp_path), Batch(query, number), result, memory)

    before, now = ({Stream("t", 0, "shop"): Place(At(seq, 5))} for seq in ("01", "02"))
    batch(9, "q", before)
    WriteBehind(spark, str(tmp_path)).flush()
    assert audit.history(spark, str(tmp_path)).positions("q") == before
    batch(10, "q", now)
    batch(0, "replay-1", None)
    assert audit.history(spark, str(tmp_path)).positions("q") == now
    assert audit.history(spark, str(tmp_path)).positions() == now


@pytest.mark.guarantee("No batch waits for the audit table, and no row of it is lost or duplicated")
@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_a_batch_is_kept_once_on_any_file_system(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path) if kind == "local" else HadoopStorage(f"file://{tmp_path}", spark)
    for batch_id, text in ((10, "x"), (9, "x"), (10, "said again")):
        pending.keep(storage, [{"query_id": "q", "batch_id": batch_id, "error": text}])
    kept, damaged = pending.read(storage)
    assert [(each.query_id, each.batch_id, each.rows[0]["error"]) for each in kept] == [
        ("q", 9, "x"),
        ("q", 10, "x"),
    ]
    assert not damaged
    assert pending.count(storage) == 2


@pytest.mark.guarantee("No batch waits for the audit table, and no row of it is lost or duplicated")
def test_what_a_crash_left_is_completed_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    keep(spark, tmp_path, 9, 10)
    keep(spark, tmp_path, 0, query="replay-1")
    (tmp_path / pending.FOLDER / ".q-11.json.80f810ad").write_text('[{"query_id"')  # cut off while written
    with WriteBehind(spark, str(tmp_path)):
        wait_for(lambda: files(tmp_path) == [".q-11.json.80f810ad"])
        assert written(spark, tmp_path) == [("q", 9, 1), ("q", 10, 1), ("replay-1", 0, 1)]


@pytest.mark.guarantee("No batch waits for the audit table, and no row of it is lost or duplicated")
@pytest.mark.parametrize("point", ["after-audit-commit", "after-audit-history"])
def test_a_crash_between_commit_and_deletion_doubles_nothing(
    point: faults.AuditPoint, spark: SparkSession, tmp_path: Path
) -> None:
    keep(spark, tmp_path, 0, 1)
    faults.arm(point)
    with pytest.raises(faults.InjectedCrash), WriteBehind(spark, str(tmp_path)):
        pass
    assert len(files(tmp_path)) == 2
    assert records(spark, tmp_path) == len(written(spark, tmp_path)) == 2
    keep(spark, tmp_path, 2)
    with WriteBehind(spark, str(tmp_path)):
        pass
    assert written(spark, tmp_path) == [("q", 0, 1), ("q", 1, 1), ("q", 2, 1)]
    assert not files(tmp_path)


def test_a_batch_that_is_done_again_is_told_once(spark: SparkSession, tmp_path: Path) -> None:
    """While its file is there, after it was written by this object, and by one of an earlier run."""
    behind = WriteBehind(spark, str(tmp_path))
    for _ in range(2):
        keep(spark, tmp_path, 3)
        keep(spark, tmp_path, 3, records=7)
        assert records(spark, tmp_path) == 1
        behind.flush()
    keep(spark, tmp_path, 3, 4)
    WriteBehind(spark, str(tmp_path)).flush()
    assert written(spark, tmp_path) == [("q", 3, 1), ("q", 4, 1)]
    assert not files(tmp_path)


def test_several_batches_make_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    with WriteBehind(spark, str(tmp_path), look_seconds=0.01, at_latest_seconds=PATIENCE_SECONDS):
        keep(spark, tmp_path, *range(AT_ONCE - 1))
        time.sleep(0.5)
        assert len(files(tmp_path)) == AT_ONCE - 1, "fewer wait for some time"
        keep(spark, tmp_path, AT_ONCE - 1)
        wait_for(lambda: not files(tmp_path))
        keep(spark, tmp_path, *range(AT_ONCE, 2 * AT_ONCE - 1))
    assert [batch for _, batch, _ in written(spark, tmp_path)] == list(range(2 * AT_ONCE - 1))
    assert len(list((tmp_path / "audit" / "_delta_log").glob("*.json"))) == 3, "the table itself is one"


def test_a_damaged_file_is_named_and_nothing_else_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    keep(spark, tmp_path, *range(5))
    for batch_id, text in ((1, '[{"query_id"'), (2, ""), (3, '{"query_id": "q", "batch_id": 3}')):
        (tmp_path / pending.FOLDER / f"q-{batch_id}.json").write_text(text)
    warnings: list[str] = []
    with WriteBehind(spark, str(tmp_path), warnings.append) as behind:
        wait_for(lambda: len(files(tmp_path)) == 3)
    behind.flush()
    assert len(warnings) == 3, "each is told once"
    assert f"{tmp_path}/{pending.FOLDER}/q-1.json" in warnings[0]
    assert "delete it" in warnings[0]
    assert written(spark, tmp_path) == [("q", 0, 1), ("q", 4, 1)]
    assert records(spark, tmp_path) == 2
    keep(spark, tmp_path, 1, 2, 3)  # as a batch that was not marked done, or from a copy
    behind.flush()
    assert [batch for _, batch, _ in written(spark, tmp_path)] == [0, 1, 2, 3, 4]
    assert not files(tmp_path)


def test_a_failure_is_told_once_and_tried_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    tries = 0
    append = audit.append

    def fail(*args: object) -> None:
        nonlocal tries
        tries += 1
        raise OSError("the store does not answer")

    monkeypatch.setattr(audit, "append", fail)
    with WriteBehind(spark, str(tmp_path), warnings.append, look_seconds=0.01, at_latest_seconds=0):
        keep(spark, tmp_path, 0)
        wait_for(lambda: tries > 1)
        keep(spark, tmp_path, 1)  # batches go on
        assert records(spark, tmp_path) == 2
        monkeypatch.setattr(audit, "append", append)
        wait_for(lambda: not files(tmp_path))
        monkeypatch.setattr(audit, "append", fail)
        keep(spark, tmp_path, 2)
    told, at_the_end = warnings
    assert "the store does not answer" in told
    assert f"{tmp_path}/{pending.FOLDER}" in at_the_end
    assert written(spark, tmp_path) == [("q", 0, 1), ("q", 1, 1)]
    assert files(tmp_path) == ["q-2.json"]


@pytest.mark.guarantee("No batch waits for the audit table, and no row of it is lost or duplicated")
def test_a_batch_does_not_wait_for_the_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    append = audit.append

    def slow(spark: SparkSession, checkpoint: str, batches: Sequence[Pending], at: int) -> int:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return append(spark, checkpoint, batches, at)

    monkeypatch.setattr(audit, "append", slow)
    keep(spark, tmp_path, 0)
    with WriteBehind(spark, str(tmp_path)):
        assert begun.wait(PATIENCE_SECONDS)
        keep(spark, tmp_path, 1, 2)
        assert records(spark, tmp_path) == 3
        go_on.set()
    assert [batch for _, batch, _ in written(spark, tmp_path)] == [0, 1, 2]


@pytest.mark.thorough
@pytest.mark.parametrize("stands", [False, True], ids=["a new table", "a table that is there"])
def test_a_driver_that_slept_through_the_commit_of_another_one_doubles_no_row(
    stands: bool, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other driver takes over between the look at the table and the commit, or before that look."""
    if stands:
        keep(spark, tmp_path, 0)
        WriteBehind(spark, str(tmp_path)).flush()
    keep(spark, tmp_path, 1)
    append, folder = audit.append, tmp_path / pending.FOLDER
    copies = {file.name: file.read_text() for file in folder.glob("*.json")}

    def slept(spark: SparkSession, checkpoint: str, batches: Sequence[Pending], at: int) -> int:
        monkeypatch.setattr(audit, "append", append)
        WriteBehind(spark, checkpoint).flush()
        return append(spark, checkpoint, batches, at)

    monkeypatch.setattr(audit, "append", slept)
    behind = WriteBehind(spark, str(tmp_path))
    with pytest.raises(TableChanged if stands else AnalysisException, match=r"version|exist"):
        behind.flush()
    for name, text in copies.items():
        (folder / name).write_text(text)
    WriteBehind(spark, str(tmp_path)).flush()
    assert [batch for _, batch, _ in written(spark, tmp_path)] == ([0, 1] if stands else [1])


def test_a_driver_that_lost_the_checkpoint_writes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    def lost() -> None:
        raise CheckpointInUse("the checkpoint is another driver's")

    keep(spark, tmp_path, 0)
    warnings: list[str] = []
    with WriteBehind(spark, str(tmp_path), warnings.append, lost):
        pass
    assert len(warnings) == 1
    assert "another driver's" in warnings[0]
    assert not (tmp_path / "audit").exists()
    assert len(files(tmp_path)) == 1


def test_the_settings_of_a_batch_have_no_effect_on_the_commit(spark: SparkSession, tmp_path: Path) -> None:
    """A batch sets them for its own commits, and the audit's commit may fall into that time."""
    keep(spark, tmp_path, 0)
    settings = {
        "spark.databricks.delta.write.txnAppId": "lakemirror/shop/q",
        "spark.databricks.delta.write.txnVersion": "7",
        "spark.databricks.delta.commitInfo.userMetadata": "the batch's",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        with WriteBehind(spark, str(tmp_path)):
            wait_for(lambda: not files(tmp_path))
            keep(spark, tmp_path, 1)
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert len(written(spark, tmp_path)) == 2
    log = "".join(file.read_text() for file in (tmp_path / "audit" / "_delta_log").glob("*.json"))
    assert '"commitInfo"' in log
    assert '"txn"' not in log
    assert "the batch's" not in log
