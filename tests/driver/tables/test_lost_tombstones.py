"""Tombstones that are lost while a driver runs."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lakemirror.driver.tables.tombstones import Summary, Tombstones, TombstonesGone


class Facts:
    """The place of tombstones, which are counted."""

    apart = True

    def __init__(self) -> None:
        self.exist, self.number = False, 0

    def add(self, rows: object) -> None:
        self.exist, self.number = True, self.number + 1


def test_lost_tombstones_are_not_begun_anew() -> None:
    """Then nobody would see that they are lost, and late changes would bring back rows."""
    facts = Facts()
    tombstones, nothing = Tombstones(cast(Any, None), cast(Any, facts)), cast(Any, None)
    for number in (1, 2):
        tombstones.add(nothing, Summary(retained=number))
        assert facts.number == number
    facts.exist = False
    with pytest.raises(TombstonesGone):
        tombstones.add(nothing, Summary(retained=3))
    assert (facts.number, tombstones.summary) == (2, Summary(retained=2))
