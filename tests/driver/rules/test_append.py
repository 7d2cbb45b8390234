"""What makes two events of a list (mode append) the same event."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from lakemirror.driver.rules.append import Listed, append, former_row, is_listed, replaces
from lakemirror.driver.rules.positions import NOWHERE, Origin
from lakemirror.driver.rules.values import Outcome
from tests.driver.rules.test_merge import at

CHANGE = Listed(at(5), "u", Origin("t", 0, 5), payload="p", values={"id": 1, "v": 5})
AGAIN = CHANGE._replace(origin=Origin("t", 0, 9))
READ = Listed(at(5, 0), "r", Origin("t", 0, 5), payload="p", values={"id": 1, "v": 5})
TIMED = CHANGE._replace(is_placed=False)
NO_PLACE = CHANGE._replace(seq=bytes(2) + NOWHERE, is_placed=False)
FORMER = CHANGE._replace(payload=None)
"""A row of an earlier version, which kept no hash of what was sent."""


class Case(NamedTuple):
    name: str
    event: Listed
    stored: Listed
    is_same: bool


CASES = [
    Case("the same record", CHANGE, CHANGE, True),
    Case("the change, sent again", AGAIN, CHANGE, True),
    Case("another change at its position", AGAIN._replace(payload="q"), CHANGE, False),
    Case(
        "the next event within its position, with the same payload",
        AGAIN._replace(seq=at(5, 2)),
        CHANGE,
        True,
    ),
    Case("the same payload at another position", AGAIN._replace(seq=at(6)), CHANGE, False),
    Case("the same payload further on in its file", AGAIN._replace(seq=at(6, major=5)), CHANGE, False),
    Case("the same record with another position", CHANGE._replace(seq=at(6)), CHANGE, False),
    Case("another operation at its position", AGAIN._replace(op="c"), CHANGE, False),
    Case("another operation of the same record", CHANGE._replace(op="d"), CHANGE, False),
    Case("the same change of another table", AGAIN._replace(shard="b"), CHANGE._replace(shard="a"), False),
    Case("a row of a snapshot, from the same record", READ, READ, True),
    Case("an equal row of the snapshot", READ._replace(origin=Origin("t", 0, 6)), READ, False),
    Case("an equal change without a position", TIMED._replace(origin=Origin("t", 0, 6)), TIMED, False),
    Case("a change without a position, from the same record", TIMED, TIMED, True),
    Case("a record without any place, from the same offset", NO_PLACE, NO_PLACE, True),
    Case("the change, sent again, in a row of an earlier version", AGAIN, FORMER, True),
    Case("another row in one of an earlier version", AGAIN._replace(values={"id": 1, "v": 6}), FORMER, False),
    Case("less of the row in one of an earlier version", AGAIN._replace(values={"id": 1}), FORMER, True),
    Case(
        "a column that a row of an earlier version lacks",
        AGAIN._replace(values={"id": 1, "w": 2}),
        FORMER,
        False,
    ),
    Case(
        "a delete, sent again, in a row of an earlier version",
        AGAIN._replace(op="d", values=None),
        FORMER._replace(op="d", values={"id": 1}),
        True,
    ),
    Case("a row where one of an earlier version has none", AGAIN, FORMER._replace(values=None), False),
]


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_a_list_knows(case: Case) -> None:
    found = Outcome.DUPLICATE if case.is_same else Outcome.APPLIED
    assert is_listed(case.event, case.stored) == case.is_same
    assert append([case.event], [case.stored]) == [found]
    assert append([case.event], [CHANGE._replace(seq=at(99)), case.stored]) == [found]


@pytest.mark.parametrize(
    ("again", "outcome"),
    [
        (AGAIN, Outcome.DUPLICATE),
        (AGAIN._replace(payload="q"), Outcome.APPLIED),
        (AGAIN._replace(op="d"), Outcome.APPLIED),
        (AGAIN._replace(seq=at(6)), Outcome.APPLIED),
    ],
)
def test_a_batch_has_each_event_once(again: Listed, outcome: Outcome) -> None:
    assert append([CHANGE, again], []) == [Outcome.APPLIED, outcome]


def test_the_row_under_its_former_key_is_ended_once() -> None:
    ended = former_row(CHANGE, {"id": 0})
    assert (ended.op, ended.values) == ("d", {"id": 0})
    assert append([CHANGE, ended, former_row(AGAIN, {"id": 0})], []) == [
        Outcome.APPLIED,
        Outcome.APPLIED,
        Outcome.DUPLICATE,
    ]
    deleted = CHANGE._replace(op="d")
    assert append([deleted], [ended._replace(origin=Origin("t", 0, 1))]) == [Outcome.APPLIED]


LINE = TIMED._replace(origin=Origin("t", 0, 5))
OTHER = LINE._replace(payload="q")
ENDED = former_row(LINE, {"id": 0})


@pytest.mark.parametrize(
    ("event", "stored", "outcome"),
    [
        (LINE, LINE, Outcome.DUPLICATE),
        (OTHER, LINE, Outcome.APPLIED),
        (OTHER._replace(op="d"), LINE, Outcome.APPLIED),
        (OTHER._replace(seq=at(6)), LINE, Outcome.APPLIED),
        (ENDED, ENDED, Outcome.DUPLICATE),
        (former_row(OTHER, {"id": 0}), ENDED, Outcome.APPLIED),
    ],
)
def test_a_line_that_is_read_again_with_other_bytes_replaces_its_event(
    event: Listed, stored: Listed, outcome: Outcome
) -> None:
    assert append([event], [stored], corrects=True) == [outcome]
    assert replaces(event, stored)


def test_a_line_replaces_no_event_of_another_one() -> None:
    assert not replaces(OTHER, LINE._replace(origin=Origin("t", 0, 6)))
    assert not replaces(LINE, ENDED)
    assert not replaces(ENDED, LINE)
    assert append([AGAIN], [CHANGE], corrects=True) == [Outcome.DUPLICATE], "an event that was sent again"
