"""A live database at positions of its log: what `read-at` names has the rows that the database had there."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.consistent.answer import ReadAt
from lakemirror.driver.runtime.read_at import read_at
from tests.support import bank
from tests.support.live import Live, live

pytestmark = [
    pytest.mark.sources,
    pytest.mark.thorough,
    pytest.mark.timeout(1500),
    pytest.mark.guarantee(
        "Whatever is reported as complete is complete; the versions named for a position show the source at "
        "that position"
    ),
]

COLUMNS = {
    "accounts": ("id", "branch", "balance", "document"),
    "branches": ("id", "balance", "name"),
    "orders": ("account", "number", "total", "state"),
    "history": ("account", "branch", "delta"),
}
Rows = dict[str, list[list[str | None]]]


def test_the_mirrors_can_be_read_as_the_database_was(spark: SparkSession, tmp_path: Path) -> None:
    """At each pause of its load, although driver and connector were killed before the second one. The
    balances of the branches are then the sum of what was booked, which no other state of the mirrors has.
    """
    paused: dict[str, Rows] = {}
    with live(tmp_path) as mirror:
        for kills in (False, True, False):
            with bank.changing(mirror.server, tmp_path / "load", a_second=20):
                mirror.wait_for("the first rows", mirror.has_all)
                time.sleep(4)
                if kills:
                    mirror.kill()
                    mirror.connect.kill()
                    mirror.connect.start()
                    mirror.start()
                time.sleep(4)
            settle(mirror)
            position = mirror.server.sql("SELECT pg_current_wal_lsn()", bank.DATABASE).strip()
            paused[position] = database(mirror)
        *earlier, last = paused
        mirror.wait_for("earlier positions complete", lambda: answered(mirror, earlier[-1], spark).found)
        mirror.stop()
    for position in earlier:
        same(spark, answered(mirror, position, spark), paused[position])
    same(spark, read_at(mirror.mirroring.pipeline, last, settled=True, spark=spark), paused[last])


def settle(mirror: Live) -> None:
    """Wait until nothing changes any more, and all of it is applied."""
    time.sleep(1)  # a transaction that was cut off is rolled back
    bank.until_streamed(mirror.server)
    mirror.wait_for("all of it applied", mirror.caught_up)


def answered(mirror: Live, position: str, spark: SparkSession) -> ReadAt:
    return read_at(mirror.mirroring.pipeline, position, spark=spark)


def database(mirror: Live) -> Rows:
    """The rows of the database, as texts."""
    found: Rows = {}
    for table, columns in COLUMNS.items():
        texts = ", ".join(f"{column}::text" for column in columns)
        lines = mirror.server.sql(f"SELECT json_build_array({texts}) FROM {table}", bank.DATABASE)
        found[table] = sorted((json.loads(line) for line in lines.splitlines()), key=repr)
    return found


def same(spark: SparkSession, answer: ReadAt, expected: Rows) -> None:
    assert answer.found, [table.reason for table in answer.tables]
    found: Rows = {}
    for table in answer.tables:
        name = table.source.rpartition(".")[2]
        assert table.query is not None
        texts = [F.col(column).cast("string") for column in COLUMNS[name]]
        found[name] = sorted((list(row) for row in spark.sql(table.query).select(texts).collect()), key=repr)
    assert {name: len(rows) for name, rows in found.items()} == {n: len(rows) for n, rows in expected.items()}
    assert found == expected
    booked = sum(int(row[2] or 0) for row in found["history"])
    assert sum(int(row[1] or 0) for row in found["branches"]) == booked
