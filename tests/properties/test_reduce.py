"""The reducer alone, without Delta: one batch of events gives one state a key, whatever their order."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.reduce.events import anchor, reduce_events
from tests.support.delivery import doubled, shuffled
from tests.support.histories import History, Shape, gaps, key_of, many, play
from tests.support.records import UNAVAILABLE, Record, payload
from tests.support.reference import Mirror, position

pytestmark = pytest.mark.guarantee("A mirror equals its source after any delivery")

KEY, ROW = "STRUCT<h: INT, id: INT>", "STRUCT<h: INT, id: INT, v: INT, note: STRING, big: STRING>"
EVENT = (
    f"key {KEY}, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic STRING, "
    f"partition INT, offset BIGINT, digest BIGINT, row {ROW}, gaps ARRAY<STRING>, "
    f"texts MAP<STRING, STRING>, new_key {KEY}, old_key {KEY}, records INT"
)


def sequence(source: dict[str, Any]) -> bytes:
    """The 26 bytes of a PostgreSQL change, as the format of `__seq` has them."""
    at = position(source)
    assert at is not None
    major, minor = at
    snapshot = minor < 0
    return struct.pack(">HHQHQI", 0, 0, major, 0, 0 if snapshot else minor, 0 if snapshot else 1)


def event(record: Record) -> tuple[Any, ...]:
    change = payload(record["value"])
    row = change["after"] and dict(change["after"])
    missing = [name for name, value in (row or {}).items() if value == UNAVAILABLE]
    if row is not None:
        row |= dict.fromkeys(missing)
    headers = {
        name: tuple(json.loads(text).values()) for name, text in record["headers"] if name.endswith("key")
    }
    unanchored = change["op"] != "r" and json.loads(change["source"]["sequence"])[0] is None
    return (
        tuple(payload(record["key"]).values()),
        change["op"],
        sequence(change["source"]),
        unanchored,
        None,
        record["topic"],
        record["partition"],
        record["offset"],
        hash(json.dumps([change["op"], change["after"]])),
        row and tuple(row.values()),
        missing or None,
        None,
        headers.get("__debezium.newkey"),
        headers.get("__debezium.oldkey"),
        1,
    )


def frame(spark: SparkSession, records: Sequence[Record]) -> DataFrame:
    return anchor(spark.createDataFrame([event(r) for r in records if r["value"]], EVENT))


def states(spark: SparkSession, records: Sequence[Record]) -> dict[tuple[int, int], Any]:
    reduced = reduce_events(frame(spark, records), tracked=["big"]).collect()
    return {
        (row["key"]["h"], row["key"]["id"]): (
            row["op"],
            row["seq"],
            row["row"],
            row["seqs"],
            row["duplicates"],
        )
        for row in reduced
    }


@pytest.fixture(scope="module")
def history() -> History:
    return play(many(range(200), random.Random(9)), Shape(snapshot="open"))


@pytest.fixture(scope="module")
def in_order(spark: SparkSession, history: History) -> dict[tuple[int, int], Any]:
    return states(spark, history.records)


def test_the_state_of_a_key_is_the_sources_row(
    in_order: dict[tuple[int, int], Any], history: History
) -> None:
    """But for what only another key's row can tell: values that moved with a key."""
    inherited = {
        key_of(change.row)
        for transaction in history.transactions
        for change in transaction.changes
        if change.verb == "move" and change.row is not None and gaps(change, history.shape)
    }
    alive = {key: state[2] for key, state in in_order.items() if state[0] != "d"}
    assert alive.keys() == history.rows.keys()
    assert len(alive) > 200
    for key, row in alive.items():
        names = ("v", "note") if key in inherited else ("v", "note", "big")
        assert {n: row[n] for n in names} == {n: history.rows[key][n] for n in names}


@pytest.mark.parametrize("seed", [1, 2])
def test_the_order_of_a_batch_does_not_matter(
    seed: int, spark: SparkSession, in_order: dict[tuple[int, int], Any], history: History
) -> None:
    assert states(spark, shuffled(history.records, seed)) == in_order


def test_events_that_come_twice_are_counted_and_change_nothing(
    spark: SparkSession, in_order: dict[tuple[int, int], Any], history: History
) -> None:
    twice = states(spark, doubled(history.records))
    assert {key: state[:4] for key, state in twice.items()} == {key: s[:4] for key, s in in_order.items()}
    changes = sum(1 for record in history.records if record["value"])
    assert sum(state[4] for state in twice.values()) == changes
    assert sum(state[4] for state in in_order.values()) == 0


def test_events_below_a_floor_leave_no_state(spark: SparkSession) -> None:
    history = play(many(range(40), random.Random(2), truncates=1), Shape())
    (at,) = (n for n, r in enumerate(history.records) if r["value"] and payload(r["value"])["op"] == "t")
    truncate = payload(history.records[at]["value"])["source"]
    rest = [r for r in history.records if r["key"] is not None and r["value"]]
    reduced = reduce_events(frame(spark, rest), tracked=["big"], floor=sequence(truncate)).collect()
    below = [row for row in reduced if row["op"] == "x"]
    reduced = [row for row in reduced if row["op"] != "x"]
    assert all(row["key"] is None and row["own"] == 0 for row in below)
    assert sum(row["records"] for row in [*below, *reduced]) == len(rest)
    touched = {tuple(payload(r["key"]).values()) for r in history.records[at + 1 :]}
    assert {(row["key"]["h"], row["key"]["id"]) for row in reduced} == touched
    rows = next(iter(Mirror().replay(history.records).tables.values()))
    assert {(r["key"]["h"], r["key"]["id"]) for r in reduced if r["op"] != "d"} == rows.keys()
