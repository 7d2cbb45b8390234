"""What the audit tells of the versions of a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.consistent.cuts import Commit
from lakemirror.driver.record import histories as module
from lakemirror.driver.record.histories import histories

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
ROW = (
    "committed_at TIMESTAMP, query_id STRING, batch_id BIGINT, source STRING, target STRING, version BIGINT, "
    "positions STRING, first_seq STRING, last_seq STRING, log STRING, gap STRING"
)


def test_versions_of_a_former_place_are_not_those_of_the_mirror(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror that moved with a reset begins anew, with smaller numbers."""

    def row(minute: int, target: str | None, version: int | None, seq: str) -> tuple[Any, ...]:
        at = BEGAN + timedelta(minutes=minute)
        return (at, "q", minute, "a.b", target, version, None, seq, seq, "shop", None)

    rows = [row(n, "/lake/old", n, f"0{n}") for n in range(5)]
    rows += [row(5, "/lake/new", 0, "05"), row(6, "/lake/new", 1, "06"), row(7, None, None, "07")]
    monkeypatch.setattr(module.audit, "read", lambda *_: spark.createDataFrame(rows, ROW))
    found, unknown = histories(spark, "/checkpoint")
    assert not unknown
    assert found["a.b"].target == "/lake/new"
    assert sorted(found["a.b"].commits, key=lambda each: each.version) == [
        Commit(0, "05", "05"),
        Commit(1, "06", "06"),
    ]
