"""The generator keeps its word: its records tell the rows, and a real source could have sent them."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.histories import (
    VERBS,
    Change,
    History,
    Shape,
    Step,
    gaps,
    key_of,
    many,
    play,
    shapes,
    steps,
)
from tests.support.records import UNAVAILABLE, payload
from tests.support.reference import Mirror, in_source_order, position

ALL = (*VERBS, "truncate")


def replayed(history: History) -> dict[tuple[int, int], dict[str, Any]]:
    tables = Mirror().replay(history.records).tables
    return next(iter(tables.values()), {})


@given(steps(2, verbs=(*ALL, "reread")), shapes())
@settings(max_examples=300, deadline=None)
def test_the_records_of_a_history_say_what_the_source_has(played: list[Step], shape: Shape) -> None:
    history = play(played, shape)
    assert replayed(history) == history.rows


@given(steps(3, verbs=ALL), shapes())
@settings(max_examples=200, deadline=None)
def test_positions_grow_in_every_partition(played: list[Step], shape: Shape) -> None:
    last: dict[int, tuple[int, ...]] = {}
    snapshot_over = False
    for record in play(played, shape).records:
        change = payload(record["value"]) if record["value"] else None
        if change is None:
            continue
        at = position(change["source"])
        assert at is not None
        if shape.snapshot == "open" and change["op"] != "r" and not snapshot_over:
            last, snapshot_over = {}, True  # the transaction that was open while the snapshot was taken
        assert last.get(record["partition"], (0,)) <= at
        last[record["partition"]] = at


@given(steps(3, verbs=VERBS), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_sorting_by_position_restores_the_order_of_the_source(played: list[Step], seed: int) -> None:
    history = play(played, Shape(seed=seed))
    shuffled = random.Random(seed).sample(history.records, len(history.records))
    assert Mirror().replay(in_source_order(shuffled)).tables == Mirror().replay(history.records).tables


@given(steps(4, verbs=ALL), shapes())
@settings(max_examples=200, deadline=None)
def test_a_row_is_locked_until_its_transaction_commits(played: list[Step], shape: Shape) -> None:
    """On one key, and around a truncate, lsns grow in the order of commits."""
    last: dict[Any, int] = defaultdict(int)
    for record in play(played, shape).records:
        change = payload(record["value"]) if record["value"] else None
        if change is None or shape.source != "postgres" or change["op"] == "r":
            continue
        lsn = change["source"]["lsn"]
        everything = change["op"] == "t"
        locks = list(last) if everything else [record["key"], None]
        assert all(lsn >= last[lock] for lock in locks)
        last[None if everything else record["key"]] = lsn


@pytest.fixture(scope="module")
def hundreds() -> History:
    return play(many(range(300), random.Random(1)), Shape(snapshot="open"))


def the_changes(history: History) -> list[Change]:
    return [change for transaction in history.transactions for change in transaction.changes]


def test_a_large_batch_has_all_that_is_hard(hundreds: History) -> None:
    found = the_changes(hundreds)
    sources = [payload(r["value"])["source"] for r in hundreds.records if r["value"]]
    streamed = [s for s in sources if s["snapshot"] == "false"]
    lsns = [s["lsn"] for s in streamed]
    taken = sources[0]["lsn"]
    assert {c.verb for c in found} == {"create", "update", "delete", "move", "read"}
    assert sum(c.verb == "move" and bool(gaps(c, hundreds.shape)) for c in found) > 40
    assert sum(c.verb == "update" and bool(gaps(c, hundreds.shape)) for c in found) > 50
    assert sum(a > b for a, b in itertools.pairwise(lsns)) > 50, "transactions interleave"
    assert any(s["lsn"] < taken and s["sequence"].startswith("[null") for s in streamed), (
        "open at the snapshot"
    )
    assert len({s["ts_us"] for s in streamed}) < len({s["txId"] for s in streamed}), (
        "transactions share a time"
    )
    assert len({r["partition"] for r in hundreds.records}) == 3
    assert UNAVAILABLE in str(hundreds.records)


def test_the_halves_of_a_key_change_share_a_position_and_can_be_in_two_partitions(hundreds: History) -> None:
    halves: dict[str, list[Any]] = defaultdict(list)
    for record in hundreds.records:
        if record["value"] and any(name.endswith(("newkey", "oldkey")) for name, _ in record["headers"]):
            source = payload(record["value"])["source"]
            halves[str(position(source))].append(record["partition"])
    assert len(halves) > 100
    assert all(len(partitions) == 2 for partitions in halves.values())
    assert any(len(set(partitions)) == 2 for partitions in halves.values())


def test_a_truncate_can_share_its_transaction_with_what_comes_before_and_after() -> None:
    history = play(many(range(30), random.Random(3), truncates=30), Shape())
    verbs = [[c.verb for c in t.changes] for t in history.transactions if t.truncates]
    assert any(v[0] == "truncate" != v[-1] for v in verbs)
    assert any(v[-1] == "truncate" != v[0] for v in verbs)


def test_the_same_seed_gives_the_same_records() -> None:
    first, second = (play(many(range(20), random.Random(7)), Shape(seed=3)).records for _ in range(2))
    assert first == second


def test_rows_that_no_snapshot_read_come_with_an_incremental_one() -> None:
    played = [Step(0, "put", 0, big=0), Step(0, "reread"), Step(0, "put", 1)]
    history = play(played, Shape(snapshot="none"))
    incremental = [r for r in history.records if '"incremental"' in r["value"]]
    changes = [payload(r["value"]) for r in incremental]
    assert [change["source"]["lsn"] for change in changes] == [None, None]
    assert replayed(history) == history.rows


def test_a_binlog_file_gets_a_longer_number() -> None:
    history = play(many(range(40), random.Random(1)), Shape(source="mariadb"))
    files = {payload(r["value"])["source"]["file"] for r in history.records if r["value"]}
    assert {len(name) for name in files} == {len("binlog.999999"), len("binlog.1000000")}


def test_histories_that_need_an_overwritten_image_are_told_apart() -> None:
    reused = [Step(0, "move", 0, 2), Step(0, "put", 0)]
    fresh = [Step(1, "move", 0, 2)]
    shape = Shape()
    rows = play([*reused, *fresh], shape).transactions[0].changes
    large = {key_of(c.row)[0] for c in rows if c.row and str(c.row["big"]).startswith("large")}
    given_large = [Step(h, "put", 0, big=1) for h in (0, 1)]
    assert play([*given_large, *reused, *fresh], shape).needs_a_reused_image() == {0}
    assert large
