"""The place of a snapshot in the order of changes: pure functions on sequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakemirror.driver.sequence import WIDTH, in_epoch

NOWHERE = bytes(WIDTH)
"""The place of a snapshot whose place is unknown.

Its rows fill only keys that are absent and have no tombstone, and it deletes nothing.
"""


def after(newest: bytes) -> bytes:
    """Return the place of a snapshot that shows the change at ``newest`` and none that comes later.

    It is above all changes at that position, because the tie of their sequences
    (`lakemirror.driver.sequence`) no longer counts. It is below every change at a later position, because a
    snapshot row yields to a change at its own position.
    """
    minor = int.from_bytes(newest[12:22], "big") + 1
    return newest[:12] + minor.to_bytes(10, "big") + bytes(4)


@dataclass(frozen=True)
class Places:
    """The places of a snapshot in the order of a table's changes, by epoch.

    ``epoch`` is that of the table. A row whose last change in the mirror is of a higher epoch has its place
    in that one: its partition is in that epoch, so that later changes of the row are, too, and in a lower
    one the row of the snapshot would be stale.
    """

    epoch: int
    by_epoch: Mapping[int, bytes]

    def at(self, epoch: int) -> bytes:
        """Return the place in an epoch: the one of the newest epoch up to there."""
        newest = max((each for each in self.by_epoch if each <= epoch), default=None)
        return NOWHERE if newest is None else self.by_epoch[newest]

    @property
    def own(self) -> bytes:
        """The place of rows of which the mirror has nothing."""
        return self.at(self.epoch)

    @property
    def newest(self) -> bytes:
        """The place in the newest epoch."""
        return max(self.by_epoch.values(), default=NOWHERE)

    @property
    def higher(self) -> Mapping[int, bytes]:
        """The places in epochs that the table as a whole is not in yet, in order."""
        return {each: self.at(each) for each in sorted(self.by_epoch) if each > self.epoch}


def at_position(position: bytes, epoch: int, declared: Iterable[int]) -> Places:
    """Return the places of a snapshot that a database has at a position, which is the same in all epochs."""
    return Places(epoch, {each: in_epoch(position, each) for each in (0, epoch, *declared)})
