"""Restarts of positions: summaries merge in any order, and what is decided."""

from __future__ import annotations

import random
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.api.spec import Ordering
from lakemirror.driver.profile.positions import At, Place, Standing, Stream
from lakemirror.driver.rules.restarts import (
    Point,
    Restarted,
    Settled,
    judge,
    merge,
    stretches,
    summary,
    trusted,
)

pytestmark = pytest.mark.guarantee(
    "The rules of a mirror need no Spark, and do not depend on the order in which changes, blocks or batches "
    "arrive"
)

STREAM = Stream("t", 0, "shop")
NOW = 1_700_000_000_000_000


def point(offset: int, lsn: int, time: int | None = None, server: str | None = None, op: str = "u") -> Point:
    tie = 0 if op == "r" else 1
    minor = 0 if op == "r" else lsn
    seq = bytes(2) + lsn.to_bytes(10, "big") + minor.to_bytes(10, "big") + tie.to_bytes(4, "big")
    return Point("t", offset, op, seq, time, server)


def decide(
    points: list[Point], memory: dict[Stream, Place] | None = None, **more: object
) -> Settled | Restarted:
    return judge({STREAM: summary(points)}, lambda _: points, memory or {}, Ordering(), **more)  # type: ignore[arg-type]


POINTS = st.builds(
    point,
    st.integers(0, 30),
    st.integers(1, 20),
    st.one_of(st.none(), st.integers(1, 9)),
    st.sampled_from([None, "1", "2"]),
    st.sampled_from("curd"),
)


@given(st.lists(POINTS, min_size=3, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_summaries_merge_in_any_order_and_grouping(points: list[Point], chance: random.Random) -> None:
    blocks = [summary([each]) for each in points]
    expected = reduce(merge, blocks)
    chance.shuffle(blocks)
    cut = chance.randrange(1, len(blocks))
    assert merge(reduce(merge, blocks[:cut]), reduce(merge, blocks[cut:])) == expected


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from("ud")), min_size=2, max_size=12), st.integers(1, 4)
)
@settings(max_examples=200)
def test_blocks_tell_whether_positions_grow_as_the_whole_does(
    changes: list[tuple[int, str]], size: int
) -> None:
    points = [point(offset, lsn, op=op) for offset, (lsn, op) in enumerate(changes)]
    blocks = [summary(points[i : i + size]) for i in range(0, len(points), size)]
    seqs = [each.seq for each in points]
    assert reduce(merge, blocks[::-1]).seen().ordered == (seqs == sorted(seqs))


def test_a_tail_that_is_sent_again_waits_until_the_highest_position_is_reached_again() -> None:
    first = decide([point(n, 10 + n, time=n) for n in range(5)])
    assert isinstance(first, Settled)
    again = [point(5, 12, time=2), point(6, 13, time=3)]
    second = decide(again, dict(first.memory))
    assert isinstance(second, Settled)
    assert [second.waits(STREAM, each) for each in again] == [True, True]
    more = [point(7, 14, time=4), point(8, 15, time=5)]
    third = decide(more, dict(second.memory))
    assert isinstance(third, Settled)
    assert not any(third.waits(STREAM, each) for each in [*again, *more])
    assert third.memory[STREAM].tail == ()


def test_lower_positions_that_are_later_are_a_restart() -> None:
    first = decide([point(n, 100 + n, time=n) for n in range(5)])
    assert isinstance(first, Settled)
    assert decide([point(5, 3, time=50)], dict(first.memory)) == Restarted({("t", 0): 5})
    found = decide([point(5, 3, time=50, op="r")], dict(first.memory))
    assert found == Restarted({("t", 0): 5}, only_reads=True)


def test_lower_positions_of_a_new_server_are_a_restart() -> None:
    first = decide([point(n, 100 + n, server="1") for n in range(5)])
    assert isinstance(first, Settled)
    assert isinstance(decide([point(5, 3, server="2")], dict(first.memory)), Restarted)
    assert isinstance(decide([point(5, 3, server="1")], dict(first.memory)), Settled)


def test_rows_of_a_known_snapshot_mean_nothing_however_late_they_come() -> None:
    first = decide([point(0, 10, op="r"), point(1, 11), point(2, 12)])
    assert isinstance(first, Settled)
    late = point(3, 10, op="r", time=999)
    second = decide([late], dict(first.memory))
    assert isinstance(second, Settled)
    assert not second.waits(STREAM, late)


def test_a_new_reading_is_compared_with_what_the_mirrors_have() -> None:
    stands = (Standing("t", 0, point(0, 100).digits, 50),)
    again = decide([point(0, 3, time=40)], standing=lambda _: stands)
    assert isinstance(again, Settled)
    assert not again.waits(STREAM, point(0, 3, time=40))
    later = decide([point(0, 3, time=51)], standing=lambda _: stands)
    assert isinstance(later, Settled)
    assert later.waits(STREAM, point(0, 3, time=51))
    assert isinstance(decide([point(0, 3, time=50 + 6_000_000)], standing=lambda _: stands), Restarted)


def test_a_partition_of_a_topic_with_epochs_needs_one_of_its_own() -> None:
    ordering = Ordering.model_validate({"epochs": [{"epoch": 1, "from": {"t": {"0": 5}}}]})
    known = {STREAM: Place(At("", 1))}
    new = Stream("t", 1, "shop")
    found = judge({new: summary([point(0, 1)])}, lambda _: [point(0, 1)], known, ordering)
    assert found == Restarted({("t", 1): 0}, undeclared=True)


def test_stretches_end_where_positions_fall_back_pass_the_top_or_change_servers() -> None:
    points = [point(0, 5, server="1"), point(1, 6), point(2, 3), point(3, 4), point(4, 2), point(5, 7)]
    found = [(each.first, each.last, each.above) for each in stretches(points, None)]
    assert found == [(0, 1, True), (2, 3, False), (4, 4, False), (5, 5, True)]
    place = Place(At(point(1, 6).digits, 1))
    found = [(each.first, each.last, each.above) for each in stretches(points, place)]
    assert found == [(0, 1, True), (2, 3, False), (4, 4, False), (5, 5, True)]
    two = [point(2, 1, server="1"), point(3, 2, server="2"), point(4, 3)]
    assert [(each.first, each.last) for each in stretches(two, place)] == [(2, 2), (3, 4)]


def test_a_clock_that_is_a_day_ahead_says_nothing() -> None:
    assert trusted(NOW + 5, NOW) == NOW + 5
    assert trusted(NOW + 86_400_000_001, NOW) is None
    assert trusted(None, NOW) is None
