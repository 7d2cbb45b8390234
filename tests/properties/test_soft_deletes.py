"""Generated histories in mirrors with soft deletes: they show what each row last was, and when it went.

Deliveries cut the source's order into batches anywhere, repeat parts of it, or mix up the records of one
batch. In other deliveries, a deleted row may lack what arrived after its delete, so only the rows there are
compared.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.delivery import Batches, parts, restarted, shuffled, whole
from tests.support.histories import History, Key, Shape, key_of, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row
from tests.support.reference import SoftMirror

SETTINGS: Mapping[str, Any] = {
    "defaults": {"delete": {"type": "soft", "column": "gone"}},
    "tables": [{"source": "filtered", "filter": "v % 3 <> 0"}],
}
HISTORIES = (
    play(many(range(60), random.Random(31)), Shape(snapshot="open", name="toasted")),
    play(many(range(40), random.Random(32), truncates=5), Shape(name="wiped")),
    play(many(range(40), random.Random(33), truncates=3), Shape(snapshot="open", full=True, name="filtered")),
    play(many(range(20), random.Random(34)), Shape(source="mariadb", name="stock")),
)

THOROUGH = (pytest.mark.thorough, pytest.mark.timeout(900))
Shown = dict[Key, tuple[Row | None, int | None]]


def _restarted(records: Sequence[Record]) -> list[Record]:
    return restarted(records, back=40, every=110)


def _of_each(deliver: Callable[[Sequence[Record]], Batches]) -> Batches:
    """Batches that have a part of each table."""
    tables = [deliver(history.records) for history in HISTORIES]
    most = max(map(len, tables))
    return [[r for table in tables for r in (table[n] if n < len(table) else [])] for n in range(most)]


def _expected(history: History) -> Shown:
    meets = (lambda row: row["v"] % 3 != 0) if history.shape.name == "filtered" else (lambda _: True)
    [shown] = SoftMirror(meets).replay(history.records).shown.values()
    return shown


def _found(spark: SparkSession, mirroring: Mirroring, history: History) -> Shown:
    table = history.shape.table
    stored = at(spark, mirroring.path(table.db, table.schema, table.name))
    rows = [row.asDict() for row in stored.withColumn("gone", F.unix_micros("gone")).collect()]
    found: Shown = {}
    for row in rows:
        gone = row.pop("gone")
        found[key_of(row)] = (None if row["v"] is None else row), gone
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.mark.parametrize(
    "deliver",
    [
        pytest.param(lambda records: parts(records, 4), id="in four batches", marks=THOROUGH),
        pytest.param(lambda records: whole(shuffled(records, 5)), id="shuffled", marks=THOROUGH),
        pytest.param(lambda records: parts(_restarted(records), 5), id="after restarts", marks=THOROUGH),
        pytest.param(lambda records: parts(records, 23), id="in many batches", marks=pytest.mark.soak),
    ],
)
def test_histories_end_in_the_last_rows_of_their_source(
    deliver: Callable[[Sequence[Record]], Batches], spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = Mirroring(tmp_path, SETTINGS).deliver(_of_each(deliver))
    counts = mirroring.run(spark).counts
    assert (counts.unaccounted, counts.refused, counts.stale > 0 or counts.superseded > 0) == (0, 0, True)
    for history in HISTORIES:
        expected, found = _expected(history), _found(spark, mirroring, history)
        wrong = sorted(key for key in expected.keys() | found if expected.get(key) != found.get(key))
        report = "\n".join(f"{key}: source {expected.get(key)}, mirror {found.get(key)}" for key in wrong[:5])
        assert not wrong, f"{history.shape.name}: {len(wrong)} of {len(expected)} are wrong:\n{report}"
        assert sum(gone is not None for _, gone in expected.values()) > 10
        assert any(gone is None for _, gone in expected.values())


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_in_any_order_the_rows_there_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    batches = _of_each(lambda records: parts(shuffled(records, 6), 4))
    mirroring = Mirroring(tmp_path, SETTINGS).deliver(batches)
    mirroring.run(spark)
    for history in HISTORIES:
        left_out = history.needs_a_reused_image()
        expected, found = (
            {key: row for key, (row, gone) in shown.items() if gone is None and key[0] not in left_out}
            for shown in (_expected(history), _found(spark, mirroring, history))
        )
        assert found == expected, history.shape.name
