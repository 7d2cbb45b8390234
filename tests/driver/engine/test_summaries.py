"""What is known of all tombstones of a mirror is the same from its files as by Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.engine import summaries
from lakemirror.driver.engine.commits import DeltaTable
from lakemirror.driver.tables.delta import append
from lakemirror.driver.tables.tombstones import TYPES, DeltaFacts, Summary, Tombstones

SCHEMA = ", ".join(f"{name} {kind}" for name, kind in TYPES.items())
AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)


def fact(kind: str, key: str | None, seq: int | None, **more: Any) -> dict[str, Any]:
    place = {"at": AT + timedelta(seconds=seq or 0), "event_time": AT - timedelta(days=seq or 0)}
    seq_bytes = None if seq is None else bytes([seq]) * 26
    return {**dict.fromkeys(TYPES), "kind": kind, "key": key, "seq": seq_bytes, **place, **more}


CASES = {
    "deletes": [fact("deleted", "[1]", 9), fact("deleted", "[1]", 200), fact("deleted", "[2]", 3)],
    "every kind": [
        fact("deleted", "[1]", 9, at=None),
        fact("moved", "[2]", 11),
        fact("moved", "[2]", 10),
        fact("truncated", None, 8),
        fact("collected", None, 255, at=AT - timedelta(days=99)),
        fact("merged", "[3]", 254, event_time=AT + timedelta(days=99)),
    ],
    "merged alone": [fact("merged", "[3]", 1)],
    "unknown times": [fact("deleted", "[1]", 1, at=None, event_time=None)],
    "before 1970": [fact("deleted", "[1]", 1, event_time=datetime(1969, 12, 31, 23, 59, 59, 1, UTC))],
    "no sequence": [fact("truncated", None, None), fact("deleted", None, 1)],
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_as_by_spark(case: str, spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "_tombstones"
    rows = [tuple(each.values()) for each in CASES[case]]
    append(spark.createDataFrame(rows[:1], SCHEMA), str(path))
    append(spark.createDataFrame(rows[1:], SCHEMA), str(path))
    by_spark = Tombstones(spark, DeltaFacts(spark, str(path), append))
    assert not by_spark.is_summarised
    assert summaries.summary_of(DeltaTable.on_disk(path)) == by_spark.summary != Summary()


def test_what_was_collected_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "_tombstones"
    append(spark.createDataFrame([tuple(each.values()) for each in CASES["deletes"]], SCHEMA), str(path))
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE key = '[1]'")
    found = summaries.summary_of(DeltaTable.on_disk(path))
    assert found == Tombstones(spark, DeltaFacts(spark, str(path), append)).summary
    assert found is not None
    assert (found.retained, found.newest) == (1, bytes([3]) * 26)
    spark.sql(f"DELETE FROM delta.`{path}`")
    assert summaries.summary_of(DeltaTable.on_disk(path)) == Summary()


def test_there_may_be_none(tmp_path: Path) -> None:
    assert summaries.summary_of(DeltaTable.on_disk(tmp_path / "_tombstones")) == Summary()


def test_many_are_left_to_spark(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "_LARGEST", 10)
    append(spark.createDataFrame([tuple(fact("deleted", "[1]", 9).values())], SCHEMA), str(tmp_path / "t"))
    assert summaries.summary_of(DeltaTable.on_disk(tmp_path / "t")) is None
