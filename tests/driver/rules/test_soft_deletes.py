"""What a softly deleted row shows, and since when, where events carry some columns always and others not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import MISSING, own
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome, Row, Said
from tests.driver.rules.test_merge import at, event, in_any_order, row

SOFT = Table(("id", "v", "note"), ("note",), soft=True)
"""Every event carries ``v``; ``note`` may be left out (TOAST)."""


KEYED = replace(SOFT, key=("id",))


def truncated(lsn: int) -> Truncated:
    return Truncated(at(lsn), at=lsn * 1000)


def deleted(lsn: int, v: Any, note: Any) -> Row:
    return row(lsn, v, note, op="d", deleted_at=lsn * 1000)


class Case(NamedTuple):
    name: str
    events: Sequence[Event]
    stored: Row | None
    shows: tuple[Any, Any]
    since: int | None
    truncates: Sequence[Truncated] = ()


CASES = [
    Case(
        "the stored row, if an update came late",
        [event("u", 4, v=4), event("d", 6)],
        row(5, 5, "e"),
        (5, "e"),
        6000,
    ),
    Case("the row of its batch", [event("u", 6, v=6), event("d", 7)], row(5, 5, "e"), (6, "e"), 7000),
    Case(
        "the row of its batch, over one that was deleted before",
        [event("c", 8, v=8, note="h"), event("d", 9)],
        deleted(5, 5, "e"),
        (8, "h"),
        9000,
    ),
    Case("what it showed, if it is deleted again", [event("d", 9)], deleted(5, 5, "e"), (5, "e"), 5000),
    Case(
        "the time of its first delete after the stored row",
        [event("u", 3, v=3), event("d", 4), event("d", 6), event("d", 7)],
        row(5, 5, "e"),
        (5, "e"),
        6000,
    ),
    Case(
        "the time of a truncate before the delete",
        [event("d", 7)],
        row(3, 3, "c"),
        (3, "c"),
        5000,
        [truncated(5)],
    ),
    Case("no truncate from before its row", [event("d", 7)], row(3, 3, "c"), (3, "c"), 7000, [truncated(2)]),
    Case("its key alone, since its own delete", [event("d", 6)], None, (None, None), 6000, [truncated(5)]),
    Case("its key alone, since the first delete", [event("d", 6), event("d", 8)], None, (None, None), 6000),
    Case(
        "a row that came and went", [event("c", 5, v=5), event("d", 6), event("d", 8)], None, (5, None), 6000
    ),
    Case("the clock, if nothing has a time", [event("d", 6, at=None)], row(5, 5, "e"), (5, "e"), 99),
    Case(
        "the time of the newest delete, if the first has none",
        [event("d", 6, at=None), event("d", 7)],
        None,
        (None, None),
        7000,
    ),
    Case(
        "the time of the newest of two deletes at one position",
        [event("d", 6, 6, at=None), event("d", 6, 7)],
        row(5, 5, "e"),
        (5, "e"),
        6000,
    ),
    Case(
        "that a late update is below a truncate",
        [event("u", 2, v=2)],
        row(3, 3, "c"),
        (3, "c"),
        5000,
        [truncated(5)],
    ),
    Case(
        "what it showed below a truncate",
        [event("u", 2, v=2)],
        deleted(3, 3, "c"),
        (3, "c"),
        3000,
        [truncated(5)],
    ),
    Case("a row at the position of a truncate", [event("c", 5, v=5)], None, (5, None), 5000, [truncated(5)]),
    Case(
        "a row at the position of a truncate, deleted after it",
        [event("c", 5, v=5), event("d", 7)],
        None,
        (5, None),
        5000,
        [truncated(5)],
    ),
    Case(
        "the stored row at the position of a truncate, deleted after it",
        [event("d", 7)],
        row(5, 5, "e"),
        (5, "e"),
        5000,
        [truncated(5)],
    ),
    Case(
        "no value from before a truncate that is before its row, deleted by another one",
        [],
        row(6, 6, "old", seqs={"note": own(at(3))}),
        (6, None),
        8000,
        [truncated(5), truncated(8)],
    ),
    Case(
        "the time of its first delete, if that came through another partition",
        [event("d", 6, partition=1), event("d", 7)],
        row(5, 5, "old", seqs={"note": own(at(3))}),
        (5, "old"),
        6000,
    ),
    Case(
        "no value from the position of a truncate before its row",
        [event("u", 5, v=5, note="x"), event("d", 8)],
        row(7, 7, None, seqs={"note": MISSING}),
        (7, None),
        8000,
        [truncated(5)],
    ),
    Case(
        "the row of its batch that came after the stored one at its position",
        [event("u", 5, 9, v=9, note="z"), event("d", 10)],
        row(5, 5, "e"),
        (9, "z"),
        10000,
    ),
    Case(
        "the stored row, if that came later at its position",
        [event("u", 5, 4, v=9, note="z"), event("d", 10)],
        row(5, 5, "e"),
        (5, "e"),
        10000,
    ),
    Case(
        "the row that came back at the position of its delete",
        [event("u", 5, 9, v=9, note="z"), event("d", 10)],
        deleted(5, 5, "e"),
        (9, "z"),
        10000,
    ),
    Case(
        "its value from before a truncate at its position",
        [event("d", 7)],
        row(5, 5, "old", seqs={"note": own(at(3))}),
        (5, "old"),
        5000,
        [truncated(5)],
    ),
    Case(
        "no value from before a late delete that came before its row at its position",
        [event("d", 5, 1), event("d", 7)],
        row(5, 5, "old", seqs={"note": own(at(3))})._replace(origin=event("u", 5, 2).origin),
        (5, None),
        7000,
    ),
    Case(
        "its value, and the time of a delete that came after it at its position",
        [event("d", 5, 9), event("d", 7)],
        row(5, 5, "old", seqs={"note": own(at(3))}),
        (5, "old"),
        5000,
    ),
    Case(
        "the time of a delete that came after the row of its batch at its position",
        [event("c", 5, 5, v=5), event("d", 5, 6, at=5001), event("d", 7)],
        None,
        (5, None),
        5001,
    ),
    Case(
        "its value from before a truncate",
        [event("u", 5, v=5)],
        row(3, 3, "c"),
        (5, "c"),
        5000,
        [truncated(5)],
    ),
    Case(
        "its value, deleted after a truncate", [event("d", 6)], row(3, 3, "c"), (3, "c"), 5000, [truncated(5)]
    ),
    Case(
        "the update of a transaction that was open during the snapshot",
        [event("u", 70, 2, v=7, unanchored=True), event("d", 97, 4)],
        row(90, 0, "read", op="r")._replace(origin=event("r", 90, 1).origin),
        (7, "read"),
        97000,
    ),
    Case(
        "what was read after the transaction, whose changes came before in the partition",
        [event("u", 70, 2, v=7, unanchored=True), event("d", 97, 9)],
        row(90, 0, "read", op="r")._replace(origin=event("r", 90, 5).origin),
        (0, "read"),
        97000,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[each.name for each in CASES])
def test_a_softly_deleted_row_shows(case: Case) -> None:
    table = replace(SOFT, truncates=case.truncates, now=99)
    merged, _ = in_any_order(case.events, case.stored, table=table)
    assert merged.row is not None
    assert not merged.row.is_live
    assert (merged.row.values["v"], merged.row.values["note"]) == case.shows
    assert merged.row.deleted_at == case.since


def test_a_softly_deleted_row_has_the_texts_of_the_row_that_it_shows() -> None:
    stored = row(5, None, "e", texts={"v": "NaN"})
    late = event("u", 4, v=None, texts={"v": "infinity"})
    assert merge([late, event("d", 6)], stored, None, SOFT).row.texts == {"v": "NaN"}  # type: ignore[union-attr]
    newer = late._replace(seq=at(6))
    assert merge([newer, event("d", 7)], stored, None, SOFT).row.texts == {"v": "infinity"}  # type: ignore[union-attr]


def test_a_row_that_comes_back_at_the_position_of_its_delete_is_there() -> None:
    stored = deleted(5, 1, "a")
    assert merge([event("u", 5, 6, v=1, note="a")], stored, None, SOFT).row.is_live  # type: ignore[union-attr]


def test_a_delete_that_is_sent_again_is_a_duplicate() -> None:
    stored = deleted(5, 1, "a")
    merged = merge([event("d", 5, 6)], stored, None, SOFT)
    assert (merged.row, merged.outcomes) == (stored, [Outcome.DUPLICATE])


def test_a_value_that_a_soft_delete_left_is_none_of_the_row_that_is_back() -> None:
    merged = merge([event("d", 6)], row(7, 7, "e", seqs={"note": own(at(5))}), None, SOFT)
    assert merged.row == row(7, 7, None, seqs={"note": own(at(6))})


def test_a_row_of_which_the_mirror_knows_no_more_than_its_delete_shows_its_key_alone() -> None:
    """It took this key, but was left out by a filter from then on: nothing that it had before is shown."""
    inherited = {"note": [Said("of its former key", own(at(5)), "a text")]}
    for events in ([event("d", 6)], [event("d", 5), event("d", 6)]):
        found = merge(events, None, None, KEYED, inherited).row
        assert found is not None
        assert (found.values, found.texts, found.unseen) == ({"id": 1, "v": None, "note": None}, {}, True)
    seen = merge([event("u", 5, v=5), event("d", 6)], None, None, KEYED, inherited).row
    assert seen is not None
    assert (seen.values["note"], seen.unseen) == ("of its former key", False)
