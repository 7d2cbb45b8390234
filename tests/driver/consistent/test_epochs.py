"""Positions in tables that are not in the newest epoch of their log."""

from __future__ import annotations

import pytest

from lakemirror.driver.consistent.cuts import Commit
from lakemirror.driver.consistent.epochs import complete_in, position_in
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.errors import LakemirrorError


def test_a_position_counts_as_it_is_where_all_partitions_are_in_its_epoch() -> None:
    commits = [Commit(1, "00001", "00009"), Commit(2, "00011", "00019")]
    assert position_in("a", "00015", 1, commits) == "00015"
    assert position_in("a", "00015", 2, commits) == "00015"


def test_a_position_counts_in_a_former_epoch_only_if_nothing_lies_above_it() -> None:
    """What does may be of the former server, and so before the position."""
    before, later = Commit(1, "00001", "00003"), Commit(2, "00006", "00007")
    assert position_in("a", "00015", 0, [before]) == "00005"
    assert position_in("a", "00015", 0, []) == "00005"
    for commits in ([before, later], [before, Commit(2, "00011", "00012")]):
        with pytest.raises(LakemirrorError, match=r"^public\.a: not all .* epoch 1.*ordering\.epochs.*__seq"):
            position_in("public.a", "00015", 0, commits)


@pytest.mark.parametrize(
    ("below", "epoch", "found"),
    [
        (BEGIN, 0, BEGIN),
        (END, 0, END),
        ("00015", 1, "00015"),
        ("00005", 1, "00005"),
        ("00015", 0, "00005"),
    ],
)
def test_what_is_complete_in_a_log_may_be_less_in_a_table_of_a_former_epoch(
    below: str, epoch: int, found: str
) -> None:
    assert complete_in(below, epoch) == found
