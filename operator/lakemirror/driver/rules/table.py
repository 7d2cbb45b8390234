"""What the rules need to know of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from lakemirror.driver.rules.orders import Truncated


@dataclass(frozen=True)
class Table:
    """What the rules need to know of a table.

    ``columns`` are those of the mirror. ``tracked`` are the ones that events may leave out. ``soft`` says
    that deletes are soft: the row stays and shows when it was deleted. ``former`` is the newest truncate that
    the mirror had before the batch, ``truncates`` are those of the batch. One that does not compare with all
    that the mirror and the batch have is not among them: it waits. ``corrects`` says that a record
    with the origin of an earlier one is a correction of it: a line of a file that was read before it was
    complete. ``now`` stands in for the time of a soft delete whose record has none. ``key`` are the columns
    of the key, which a row shows of which nothing but a soft delete is known.
    """

    columns: Sequence[str] = ()
    tracked: Sequence[str] = ()
    soft: bool = False
    former: Truncated | None = None
    truncates: Sequence[Truncated] = ()
    corrects: bool = False
    now: int | None = None
    key: Sequence[str] = ()

    @cached_property
    def known_truncates(self) -> Sequence[Truncated]:
        """The truncates of the batch, and the one that the mirror had before."""
        return [*self.truncates, *([] if self.former is None else [self.former])]

    @cached_property
    def floor(self) -> Truncated | None:
        """The newest truncate."""
        return max(self.known_truncates, key=lambda each: each.seq, default=None)

    @cached_property
    def floor_of_batch(self) -> Truncated | None:
        """The newest truncate of the batch."""
        return max(self.truncates, key=lambda each: each.seq, default=None)

    @cached_property
    def floor_before(self) -> Truncated | None:
        """The newest truncate before the batch: what is below it is stale.

        After a crash, the tombstones may have the truncate of this very batch, but not the rows that it
        leaves if deletes are soft.
        """
        floor = self.floor_of_batch
        is_told = self.former is not None and floor is not None and self.former.seq == floor.seq
        return None if self.soft and is_told else self.former
