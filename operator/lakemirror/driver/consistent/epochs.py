"""Positions in a log whose tables are not all in its newest epoch.

A declared epoch lists only the partitions that had to begin it (`lakemirror.driver.profile.epochs`). In the
others, changes of the former server and of the new one have positions of the same epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakemirror.driver.consistent.cuts import Commit
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.errors import LakemirrorError


def epoch_of(position: str) -> int:
    """Return the epoch of a position, which is neither `BEGIN` nor `END`."""
    return int(position[:4], 16)


def position_in(source: str, position: str, epoch: int, commits: Sequence[Commit]) -> str:
    """Return the place of a position of the source among the changes of a table.

    ``epoch`` is the lowest one among the table's partitions. If that of the position is higher, a change
    above the position in the table's epoch may be one of the former server, which belongs before it, or one
    of the new server, which comes after it. Nothing tells which. There is an answer only if the table has no
    such change: then everything that it has is before the position. Raises LakemirrorError.
    """
    if epoch_of(position) <= epoch:
        return position
    place = f"{epoch:04x}{position[4:]}"
    if any(each.last > place for each in commits):
        raise LakemirrorError(
            f"{source}: not all of its partitions are in epoch {epoch_of(position)}, which the position "
            "belongs to, so that nothing tells which of its changes come after the position: declare the "
            "epoch for all partitions of its topics (ordering.epochs), or give the position as a value of "
            "__seq, with the table's own epoch"
        )
    return place


def complete_in(below: str, epoch: int) -> str:
    """Return the position before which all changes of a table are applied.

    ``below`` is that of its log. Changes that the new server makes before it may have a lower epoch in this
    table, whose lowest is ``epoch``, and so may lie below it and still be to come.
    """
    if below in (BEGIN, END) or epoch_of(below) <= epoch:
        return below
    return f"{epoch:04x}{below[4:]}"
