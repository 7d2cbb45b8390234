"""Which columns a mirror was written with, and what another choice does to its rows."""

from __future__ import annotations

import pytest

from lakemirror.api.tables import Columns
from lakemirror.driver.plan.selection import (
    Renaming,
    Selection,
    after,
    from_text,
    lost,
    missed,
    renamings,
    to_text,
)

ALL = Selection()
WITHOUT = Selection(exclude=frozenset({"ssn"}))
ONLY = Selection(include=frozenset({"id", "v"}))
MIRROR = ["id", "v", "ssn"]


def renamed(**names: str) -> Selection:
    return Selection(rename=names)


@pytest.mark.parametrize(
    ("made", "now", "expected"),
    [
        (ALL, ALL, []),
        (ALL, WITHOUT, ["ssn"]),
        (ALL, ONLY, ["ssn"]),
        (WITHOUT, ALL, []),
        (WITHOUT, WITHOUT, []),  # a column of that name that somebody added by hand
        (ONLY, WITHOUT, []),
        (None, WITHOUT, ["ssn"]),
        (None, ONLY, []),  # it may have been left out ever since
        (renamed(n="v"), Selection(exclude=frozenset({"n"})), ["n"]),
    ],
)
def test_a_mirrored_column_that_is_left_out_now(
    made: Selection | None, now: Selection, expected: list[str]
) -> None:
    assert lost(made, now, MIRROR) == expected


@pytest.mark.parametrize(
    ("made", "now", "expected"),
    [
        (ALL, renamed(v="total"), [Renaming("v", "v", "total")]),
        (renamed(n="v"), renamed(n="total"), [Renaming("n", "v", "total")]),
        (renamed(n="v"), ALL, [Renaming("n", "v", "n")]),
        (renamed(n="v"), renamed(n="v"), []),
        (None, renamed(v="total"), [Renaming("v", "v", "total")]),
        (None, renamed(n="v"), []),  # it was renamed ever since
        (None, renamed(other="total"), []),
        (ALL, renamed(other="total"), []),
    ],
)
def test_a_column_that_has_another_name_now(
    made: Selection | None, now: Selection, expected: list[Renaming]
) -> None:
    assert list(renamings(made, now, MIRROR)) == expected


def test_two_columns_that_swap_their_names() -> None:
    found = renamings(ALL, renamed(v="ssn", ssn="v"), MIRROR)
    assert {(each.before, each.after) for each in found} == {("v", "ssn"), ("ssn", "v")}


def test_a_new_name_is_noted_only_once_the_column_is_there() -> None:
    now = renamed(v="total")
    assert after((ALL,), now, MIRROR, []) == (ALL,)
    noted = after((ALL,), now, MIRROR, ["total"])
    assert noted == (ALL, now)
    assert after(noted, now, [*MIRROR, "total"], []) == noted


def test_what_was_left_out_once_is_remembered() -> None:
    assert not missed((), "ssn")
    assert not missed((ALL,), "ssn")
    made = after((WITHOUT,), ALL, ["id", "v"], [])
    assert missed(made, "ssn")
    assert not missed(made, "v")
    assert missed(after((ONLY,), ALL, ["id", "v"], []), "any")


@pytest.mark.parametrize("each", [ALL, WITHOUT, ONLY, renamed(n="v")])
def test_what_is_noted_is_read_back(each: Selection) -> None:
    assert from_text(to_text((each, ALL))) == (each, ALL)


def test_a_mirror_from_before_says_nothing() -> None:
    assert from_text(None) == ()


def test_the_selection_of_a_manifest() -> None:
    assert Selection.of(None) == ALL
    assert Selection.of(Columns(exclude=["ssn"])) == WITHOUT
    assert Selection.of(Columns(include=["id", "v"], rename={"v": "w"})) == Selection(
        frozenset({"id", "v"}), frozenset(), {"v": "w"}
    )
