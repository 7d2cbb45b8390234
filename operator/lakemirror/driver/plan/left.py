"""Whether a mirror is where the driver left it, and what was done to it by hand. Pure.

Ours is a commit that carries Lakemirror's transaction or note: that of a batch, a replay, a reload or another
shard, also if its audit is still to come. A commit that changes no data, such as maintenance, is nobody's.

Rows that were changed by hand are reported, and the table goes on: people erase rows by hand, and must be
able to. A mirror that was removed, restored or replaced is held, because changes that it had are not read
again: the table would look complete, and rows would be missing for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakemirror.driver.results import Drift, DriftAction, DriftChange
from lakemirror.driver.tables.commits import Commit
from lakemirror.driver.tables.mirror import TOMBSTONES_PROPERTY

ALL_COLUMNS = "*"
"""The column of a drift that concerns rows."""


@dataclass(frozen=True)
class Found:
    """What became of a mirror since the driver left it.

    ``lost`` says why the table has to be held, or is None. ``by_hand`` are the commits that changed rows.
    """

    lost: str | None = None
    by_hand: tuple[Commit, ...] = ()

    @property
    def drift(self) -> tuple[Drift, ...]:
        """The changes by hand as drift."""
        return tuple(
            Drift(ALL_COLUMNS, DriftChange.BY_HAND, None, told(each), DriftAction.KEPT)
            for each in self.by_hand
        )


def judge(left: int | None, newest: int | None, commits: Sequence[Commit]) -> Found:
    """Compare a mirror with how it was left.

    ``left`` is the version that the driver left (None if it has not written the mirror yet), ``newest`` the
    current version (None if there is no mirror), and ``commits`` are those in between.
    """
    if left is None:
        return Found()
    if newest is None:
        return Found(f"is gone (the driver left it at version {left})")
    if newest < left:
        return Found(
            f"has version {newest}, and the driver left it at version {left}: it was restored or replaced"
        )
    foreign = [each for each in commits if each.changes and not each.ours]
    for each in foreign:
        if each.replaces:
            return Found(f"was restored or replaced by hand: {told(each)}")
    return Found(by_hand=tuple(foreign))


def told(commit: Commit) -> str:
    """Describe a commit: its version, operation, number of rows, and user."""
    rows = "an unknown number of rows" if commit.rows is None else f"{commit.rows} row(s)"
    return f"version {commit.version}, {commit.operation} of {rows} by {commit.user or 'an unknown user'}"


def warning(source: str, target: object, commit: Commit) -> str:
    """Return the message about rows that were changed by hand."""
    return (
        f"rows of the mirror {target} of {source} were changed by hand ({told(commit)}). The table "
        "goes on. To bring its rows back to the source's, run `lakemirror verify --repair`"
    )


def lost(source: str, target: object, entry: str, why: str) -> str:
    """Return why a table is held whose mirror is not as the driver left it, and what to do."""
    return (
        f"the mirror {target} of {source} {why}. Changes that it had are not read again, so rows would be "
        f"missing: give tables[{entry}].resyncToken a new value to read the table again, or run "
        f"`lakemirror reload` for it. Its records are held until then"
    )


def lost_tombstones(source: str, target: object, entry: str) -> str:
    """Return why a table is held whose tombstones are gone, and what to do."""
    return (
        f"the tombstones of {source} are gone from the mirror {target}: nothing tells which rows were "
        "deleted, and a change that arrives late would bring them back. Restore the folder _tombstones of "
        "the mirror (its hidden folders belong to it), or give "
        f"tables[{entry}].resyncToken a new value to read the table again. If no change from before can "
        f"arrive any more, set the mirror's table property {TOMBSTONES_PROPERTY} to ''. Its records are held "
        "until then"
    )
