"""Narrows down which ranges of keys differ, and then which keys, with pure functions on plain values.

Both sides are split into the same ranges, and only a digest of each range is requested. A range whose digests
differ is split again until it is small. Only then are its rows compared key by key.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class KeyRange:
    """Rows whose first key column is at least ``low`` and below ``high``, where None means no limit.

    A null is in the range without a lower limit.
    """

    low: Any = None
    high: Any = None

    def cut(self, bounds: Sequence[Any]) -> list[KeyRange]:
        """Split the range at ``bounds``, which are inside it and in order."""
        ends = [self.low, *bounds, self.high]
        return [KeyRange(low, high) for low, high in itertools.pairwise(ends)]


WHOLE = KeyRange()
"""All rows."""


@dataclass(frozen=True)
class Digest:
    """The digest of a multiset of rows: their number, and the sum and the exclusive or of their hashes."""

    rows: int = 0
    total: int = 0
    mixed: int = 0


@dataclass(frozen=True)
class Found:
    """The result of narrowing down.

    It has the keys that differ at this moment, how many rows the mirror and the source had, how many range
    digests were read from each side, and whether these are all keys that differ.
    """

    keys: tuple[str, ...]
    mirror_rows: int
    source_rows: int
    digests: int
    complete: bool = True


class Comparison(Protocol):
    """The two sides of a table, as of the moment of each request. Ranges are given in order."""

    def digests(self, ranges: Sequence[KeyRange]) -> list[tuple[Digest, Digest]]:
        """Return the digest of each range in the source and in the mirror."""

    def bounds(self, range_: KeyRange, parts: int) -> list[Any]:
        """Return at most ``parts - 1`` ascending values that split a range into similar parts.

        Empty if it cannot be split.
        """

    def unequal(self, ranges: Sequence[KeyRange], most: int) -> list[str]:
        """Return at most ``most`` keys in these ranges whose rows differ or exist on one side only."""


def narrow(sides: Comparison, *, parts: int, small: int, most: int) -> Found:
    """Find the keys that differ.

    A range is split into ``parts`` until it has no more than ``small`` rows. At most ``most`` keys are
    listed.
    """
    level = WHOLE.cut(sides.bounds(WHOLE, parts))
    leaves: list[KeyRange] = []
    counts = (0, 0)
    read = 0
    while level:
        pairs = sides.digests(level)
        if not read:
            counts = sum(each[0].rows for each in pairs), sum(each[1].rows for each in pairs)
        read += len(level)
        following: list[KeyRange] = []
        for range_, (source, mirror) in zip(level, pairs, strict=True):
            if source == mirror:
                continue
            large = max(source.rows, mirror.rows) > small
            bounds = sides.bounds(range_, parts) if large else []
            if bounds:
                following += range_.cut(bounds)
            else:
                leaves.append(range_)
        level = following
    leaves.sort(key=lambda each: (each.low is not None, each.low))
    keys = sides.unequal(leaves, most + 1) if leaves else []
    return Found(tuple(sorted(keys)[:most]), counts[1], counts[0], read, complete=len(keys) <= most)
