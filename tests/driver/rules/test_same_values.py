"""Whether two values of a column are the same: what is no change makes no version, and no duplicate."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.values import Event, Row, is_same

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, None),
        (1, 1),
        (math.nan, -math.nan),
        (math.nan, float("nan")),
        (0.0, -0.0),
        (Decimal("1.0"), Decimal("1.00")),
        ({"a": [math.nan, {"b": 0.0}]}, {"a": [float("nan"), {"b": -0.0}]}),
        ({"a": 1, "b": None}, {"b": None, "a": 1}),
        ([], []),
        ({}, {}),
    ],
)
def test_the_same(one: Any, other: Any) -> None:
    assert is_same(one, other)
    assert is_same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (None, 0),
        (1, 2),
        (math.nan, 0.0),
        (math.nan, None),
        (1.0, 2.0),
        ("1", 1),
        ({"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}),
        ({"a": 1}, {"a": 1, "b": None}),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, [1]),
        ({}, []),
        ([1], [1, 2]),
        ([1, 2], [2, 1]),
        ([1, 2], [1, 3]),
        ([[1]], [[2]]),
        ([math.nan], [0.0]),
    ],
)
def test_not_the_same(one: Any, other: Any) -> None:
    assert not is_same(one, other)
    assert not is_same(other, one)


def test_events_at_one_place_are_in_the_order_in_which_they_arrived() -> None:
    places = [Origin(), Origin(None, 0, 5), Origin("a"), Origin("a", 0), Origin("a", 0, 0), Origin("a", 0, 1)]
    places += [Origin("a", 1, 0), Origin("b", 0, 0)]
    events = [Event((1,), "u", b"", origin=each) for each in places]
    assert sorted([*events[3:], *events[:3]], key=lambda each: each.arrival) == events


def test_a_value_is_as_new_as_its_row_unless_the_row_remembers_it() -> None:
    row = Row(b"5", seqs={"old": b"3\xff"})
    assert (row.seq_of("new"), row.seq_of("old")) == (b"5\xff", b"3\xff")
    assert [Row(b"", op).is_live for op in "curd"] == [True, True, True, False]
