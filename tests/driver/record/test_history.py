"""One small file has what later batches need of all earlier ones: the audit table is for people."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.report import COUNTERS, Counts
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.consistent.reach import BEGIN, END, Reach
from lakemirror.driver.java import java_class
from lakemirror.driver.profile.positions import At, Memory, Place, Stream
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import audit, history
from lakemirror.driver.record.history import AuditHistory, HistoryDamaged, from_text, to_text
from lakemirror.driver.record.lost import note_lost_files
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.results import BatchResult, Drift, Left, TableResult, Violated

pytestmark = pytest.mark.guarantee(
    "What later batches need of earlier ones is in one small file; old rows and files of the audit may go"
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
MEMORY: Memory = {Stream("t", 0, "shop"): Place(At("01", 5), At("01", 5), 7, ("a",), snapshots=("01",))}
DRIFT = Drift("note", "added", None, "string", "added", NOON, NOON + timedelta(hours=1), rows=2)
EVERY = Counts(**{name: number for number, name in enumerate(COUNTERS, 1)})


def row(query: str, batch: int, source: str | None = None, **values: Any) -> dict[str, Any]:
    at = (NOON + timedelta(seconds=batch)).isoformat()
    return {"committed_at": at, "query_id": query, "batch_id": batch, "source": source, **values}


def test_what_is_written_is_read() -> None:
    table = TableResult("s.a", "/lake/a", 3, EVERY, 5, None, NOON, (DRIFT,), (Violated("v", "warn", 2),))
    table = replace(table, checked=0)
    whole = AuditHistory(
        EVERY,
        {"s.a": table, "s.b": TableResult("s.b", error="no key", gap="02")},
        {"q": 3, "r": 0},
        {"q": MEMORY},
        True,
        12,
        {"s.a": NOON},
        {"s.a": frozenset({"shop"}), "s.b": None},
        {"q": NOON, "r": NOON},
        {"s.a": frozenset({"/lake/a", "/lake/b"})},
        MEMORY,
        NOON,
    )
    assert from_text(to_text(whole)) == whole
    assert from_text(to_text(AuditHistory())) == AuditHistory()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}', '{"queries": {"q": {}}}'])
def test_a_damaged_file_is_not_taken_for_a_history(text: str) -> None:
    with pytest.raises(HistoryDamaged):
        from_text(text)


def test_rows_are_added_in_their_order() -> None:
    told = AuditHistory().after(
        [
            row("q", 1, positions="[]", records=2),
            row("q", 1, "s.a", target="/b", version=7, records=2, first_seq="02", last_seq="03", log="x"),
            row(
                "q", 0, "s.a", target="/a", version=4, records=1, error="once", first_seq="01", last_seq="02"
            ),
            row("q", 0, records=1, gap=BEGIN),
            row("r", 0, "s.b", records=4, refused=4, error="held", first_seq=BEGIN, last_seq=END),
            row("r", 0, records=4),
        ],
        3,
    )
    assert (told.whole.records, told.gap, told.version) == (7, True, 3)
    a, b = told.tables["s.a"], told.tables["s.b"]
    assert (a.target, a.version, a.counts.records, a.error) == ("/b", 7, 3, None)
    assert (b.target, b.counts.refused, b.error) == (None, 4, "held")
    assert told.places == {"s.a": {"/a", "/b"}}
    assert told.logs == {"s.a": {"x"}, "s.b": None}
    assert told.last_batches == {"q": 1, "r": 0}
    assert told.left_since(NOON) == {"/b": Left(7, 7)}
    assert told.left_since(NOON + timedelta(seconds=2)) == {}


def test_up_to_where_commits_are_known_belongs_to_a_version() -> None:
    """Earlier versions of the driver do not say that, and a batch that holds its table leaves no version."""
    told = AuditHistory().after([row("q", 1, "s.a", target="/a", version=7, checked=5)])
    assert told.left_since(NOON) == {"/a": Left(7, checked=5)}
    held = told.after([row("q", 2, "s.a", error="held")])
    assert from_text(to_text(held)).left_since(NOON) == {"/a": Left(7, checked=5)}
    earlier = held.after([row("q", 3, "s.a", target="/a", version=8)])
    assert earlier.left_since(NOON) == {"/a": Left(8, 8)}
    document = json.loads(to_text(told))
    del document["tables"]["s.a"]["checked"]
    assert from_text(json.dumps(document)).left_since(NOON) == {"/a": Left(7, 7)}


def test_queries_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "_MOST_QUERIES", 2)
    positions = json.dumps([[["t", 0, "shop"], json.loads(history.to_json(MEMORY))[0][1]]])
    told = AuditHistory().after([row("old", 0, positions=positions), row("r", 1), row("q", 2)])
    assert told.last_batches == {"r": 1, "q": 2}
    assert told.positions() == MEMORY, "what it knew of the source stays"
    assert told.has("old", 0, NOON), "its rows are not counted again"
    assert not told.has("new", 0, NOON + timedelta(seconds=1))


def keep(spark: SparkSession, folder: Path, *batches: int) -> None:
    """What a driver keeps of some batches of one table, each with a record."""
    for number in batches:
        table = TableResult("s.a", f"/lake/{number}", number, Counts(records=1, applied=1), checked=0)
        result = BatchResult(number, tables={"s.a": replace(table, reach=Reach("01", "02", "shop"))})
        audit.keep(spark, str(folder), Batch("q", number, {}), result, MEMORY)


def test_the_file_may_be_missing_damaged_older_or_alone(spark: SparkSession, tmp_path: Path) -> None:
    file, table = tmp_path / history.FILE, tmp_path / "audit"
    keep(spark, tmp_path, 0)
    behind = WriteBehind(spark, str(tmp_path))
    behind.flush()
    older = file.read_text()
    keep(spark, tmp_path, 1, 2)
    behind.flush()
    newer = file.read_text()
    whole = audit.history(spark, str(tmp_path))
    assert whole == history.read(LocalStorage(tmp_path))
    assert (whole.whole.records, whole.last_batches, whole.memories["q"]) == (3, {"q": 2}, MEMORY)
    for name, text in {"missing": None, "damaged": newer[:-40], "older": older}.items():
        file.unlink()
        if text is not None:
            file.write_text(text)
        assert audit.history(spark, str(tmp_path)) == whole, name
        keep(spark, tmp_path, 2)  # a batch that was not marked done
        WriteBehind(spark, str(tmp_path)).flush()
        assert audit.history(spark, str(tmp_path)) == whole == from_text(file.read_text()), name
    spark.sql(f"DELETE FROM delta.`{table}` WHERE batch_id < 2")
    assert audit.history(spark, str(tmp_path)).whole == whole.whole, "old rows of the audit may go"
    for each in table.glob("*.parquet"):
        each.unlink()
    assert audit.history(spark, str(tmp_path)).whole == whole.whole, "and so may its files"
    shutil.rmtree(table)
    alone = audit.history(spark, str(tmp_path))
    assert replace(alone, version=whole.version) == whole
    keep(spark, tmp_path, 3)
    WriteBehind(spark, str(tmp_path)).flush()
    assert audit.history(spark, str(tmp_path)).whole.records == 4
    assert _numbers(spark, table) == {3: 2}


def test_a_table_whose_log_lacks_files_is_set_aside(spark: SparkSession, tmp_path: Path) -> None:
    """As a rule of the bucket leaves it that deletes old objects."""
    keep(spark, tmp_path, 0)
    behind = WriteBehind(spark, str(tmp_path))
    behind.flush()
    keep(spark, tmp_path, 1)
    behind.flush()
    for file in (tmp_path / "audit" / "_delta_log").glob("*00000000000000000000.*"):
        file.unlink()
    for file in (tmp_path / "audit" / "_delta_log").glob("*.crc"):
        file.unlink()
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    warnings: list[str] = []
    note_lost_files(spark, str(tmp_path), warnings.append)
    [warning] = warnings
    assert f"{tmp_path}/audit cannot be read, because files of its log are gone" in warning
    [aside] = (tmp_path / "damaged").iterdir()
    assert str(aside) in warning
    assert audit.history(spark, str(tmp_path)).whole.records == 2
    keep(spark, tmp_path, 2)
    WriteBehind(spark, str(tmp_path)).flush()
    assert audit.history(spark, str(tmp_path)).whole.records == 3
    note_lost_files(spark, str(tmp_path), warnings.append)
    assert warnings == [warning]


def _numbers(spark: SparkSession, table: Path) -> Mapping[int, int]:
    rows = spark.read.format("delta").load(str(table)).groupBy("batch_id").count().collect()
    return {row["batch_id"]: row["count"] for row in rows}
