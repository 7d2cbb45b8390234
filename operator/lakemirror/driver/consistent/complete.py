"""Up to which position of the source everything is applied.

A connector sends in the order of positions, but to several partitions, of which one may take a moment longer
than another; and that a partition shows nothing does not tell that nothing is to come. So a position is
complete once a change at it was seen, and all that the source's topics had so much later (``settle``) that
nothing older can still be on its way is applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lakemirror.driver.consistent.reach import BEGIN, after

_MOST: Final = 64
"""Positions that are remembered of a log until they are settled."""


class Top(NamedTuple):
    """The greatest position of the changes of a stream of a log, None before the first change, and its time
    in microseconds.
    """

    log: str
    position: str | None
    time: int | None


class Mark(NamedTuple):
    """All that lies before a position, and when the source made what is there, in microseconds."""

    below: str
    time: int | None = None


NOTHING: Final = Mark(BEGIN)


class Seen(NamedTuple):
    """A position that was reached, and since when (seconds) that is known."""

    at: float
    mark: Mark


@dataclass(frozen=True)
class Watch:
    """Of a log: which positions were reached, and up to which one nothing can be on its way any more."""

    seen: tuple[Seen, ...] = ()
    settled: Mark = NOTHING

    def reaching(self, tops: Iterable[Top], now: float) -> Watch:
        """With what its streams have reached now."""
        known = [(top.position, top.time) for top in tops if top.position is not None]
        if not known:
            return self
        position, time = max(known, key=lambda each: each[0])
        mark = Mark(after(position), time)
        newest = self.seen[-1].mark.below if self.seen else self.settled.below
        if mark.below <= newest:
            return self
        seen = (*self.seen, Seen(now, mark))
        # To forget some is safe: what they passed is settled with the next that is left.
        return replace(self, seen=seen if len(seen) <= _MOST else (*seen[:-1:2], seen[-1]))

    def had_all(self, at: float, settle: float) -> Watch:
        """When all is applied that the topics had ``at`` a time."""
        over = [each.mark for each in self.seen if each.at <= at - settle]
        if not over:
            return self
        return Watch(self.seen[len(over) :], over[-1])
