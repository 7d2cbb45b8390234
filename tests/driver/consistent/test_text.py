"""Positions as people write them."""

from __future__ import annotations

import pytest

from lakemirror.driver.consistent import text
from lakemirror.driver.consistent.reach import END
from lakemirror.driver.consistent.text import PositionUnclear

SNAPSHOT_AT = "0000" + f"{0x16B374D848:020x}" + "0" * 28


def test_each_form_is_read() -> None:
    assert text.parse("16/B374D848") == SNAPSHOT_AT
    assert text.parse(f"{0x16B374D848}:0") == SNAPSHOT_AT
    assert text.parse("mysql-bin.000003:154", epoch=2) == f"{2:04x}{3:020x}{154:020x}{0:08x}"
    assert (
        text.parse("0000002a:00000d40:0002")
        == "0000" + "00000000002a00000d400002"[4:].rjust(20, "0") + "f" * 28
    )
    assert text.parse("scn:17") == f"{0:04x}{17:020x}" + "f" * 28
    assert text.parse(SNAPSHOT_AT.upper(), epoch=3) == SNAPSHOT_AT


@pytest.mark.parametrize("wrong", ["", "now", "12", "16/", "binlog.000003", "2026-03-01", "0" * 51])
def test_what_is_no_position_is_refused(wrong: str) -> None:
    with pytest.raises(PositionUnclear, match="is not a position: write an LSN"):
        text.parse(wrong)


def test_positions_are_shown_in_the_form_that_was_given() -> None:
    assert text.shown(SNAPSHOT_AT, "0/1") == "16/B374D848"
    assert text.shown(SNAPSHOT_AT, "1:2") == f"{0x16B374D848}:0"


def test_a_text_between_positions_names_one_of_them() -> None:
    """An LSN stands before the changes at it; so the first after a change is the next one, if all of the
    next changes lie behind that.
    """
    change, next_ = "0000" + f"{7:020x}{7:020x}{1:08x}", "0000" + f"{9:020x}{9:020x}{1:08x}"
    assert text.between(change, next_, "0/1") == "0/8"
    assert text.between(change, next_) == "7:8"
    assert text.between(change, END, "0/1") == "0/8"
    same = "0000" + f"{7:020x}{8:020x}{1:08x}"
    assert text.between(change, same, "0/1") is None
    assert text.between(change, same) == "7:8"
    for found in ("0/8", "7:8"):
        assert change <= text.parse(found) < next_
