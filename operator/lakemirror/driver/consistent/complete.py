"""Determines the position of the source up to which everything is applied.

A connector sends changes in the order of their positions, but to several partitions, and one partition may be
a little slower than another. An empty partition does not prove that nothing is still to come. A position is
therefore complete once two things hold. A change at the position has been seen. And everything is applied
that the source's topics had so much later (``settle``) that nothing older can still be on its way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakemirror.driver.consistent.reach import BEGIN, after

_MOST: Final = 64
"""The maximum number of positions that are remembered for a log until they are settled."""


class Top(NamedTuple):
    """The greatest position among the changes of one stream of a log, and its time in microseconds.

    The position is None before the first change.
    """

    log: str
    position: str | None
    time: int | None


class Mark(NamedTuple):
    """Everything before a position, and when the source made the change there, in microseconds."""

    below: str
    time: int | None = None


NOTHING: Final = Mark(BEGIN)


class Seen(NamedTuple):
    """A position that was reached, and since when that is known, in seconds."""

    at: float
    mark: Mark


@dataclass(frozen=True)
class Watch:
    """The positions of a log that were reached, and the one before which nothing can still be on its way."""

    seen: tuple[Seen, ...] = ()
    settled: Mark = NOTHING

    def reaching(self, tops: Iterable[Top], now: float) -> Watch:
        """Return the watch, updated with what the log's streams have reached now."""
        known = [(top.position, top.time) for top in tops if top.position is not None]
        if not known:
            return self
        position, time = max(known, key=lambda each: each[0])
        mark = Mark(after(position), time)
        newest = self.seen[-1].mark.below if self.seen else self.settled.below
        if mark.below <= newest:
            return self
        seen = (*self.seen, Seen(now, mark))
        # Forgetting some is safe: what they cover is settled together with the next one that remains.
        return replace(self, seen=seen if len(seen) <= _MOST else (*seen[:-1:2], seen[-1]))

    def had_all(self, at: float, settle: float) -> Watch:
        """Return the watch, updated for the fact that everything the topics had at time ``at`` is applied."""
        over = [each.mark for each in self.seen if each.at <= at - settle]
        if not over:
            return self
        return Watch(self.seen[len(over) :], over[-1])
