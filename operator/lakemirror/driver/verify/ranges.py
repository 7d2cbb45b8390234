"""Narrowing down: which ranges of keys differ, and then which keys. Plain functions over plain values.

Both sides are cut into the same ranges, of each of which only a digest is asked for. A range whose digests
differ is cut again until it is small; its rows alone are compared key by key.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class KeyRange:
    """Rows whose first key column is at least ``low`` and below ``high``; None is open. A null is in the one
    that is open below.
    """

    low: Any = None
    high: Any = None

    def cut(self, bounds: Sequence[Any]) -> list[KeyRange]:
        """The same rows as ranges that meet at ``bounds``, which lie inside of it, in their order."""
        ends = [self.low, *bounds, self.high]
        return [KeyRange(low, high) for low, high in itertools.pairwise(ends)]


WHOLE = KeyRange()
"""All rows."""


@dataclass(frozen=True)
class Digest:
    """Of a multiset of rows: how many there are, the sum of their hashes, and their exclusive or."""

    rows: int = 0
    total: int = 0
    mixed: int = 0


@dataclass(frozen=True)
class Found:
    """What narrowing found: keys that differ at this moment; how many rows the mirror and the source had;
    how many range digests were read of each side; whether these are all keys that differ.
    """

    keys: tuple[str, ...]
    mirror_rows: int
    source_rows: int
    digests: int
    complete: bool = True


class Comparison(Protocol):
    """Two sides of a table, as they are at the moment they are asked. Ranges are given in their order."""

    def digests(self, ranges: Sequence[KeyRange]) -> list[tuple[Digest, Digest]]:
        """The digest of each range in the source, and in the mirror."""

    def bounds(self, range_: KeyRange, parts: int) -> list[Any]:
        """At most ``parts - 1`` values inside of a range, growing, that cut it into similar parts; none
        where it cannot be cut.
        """

    def unequal(self, ranges: Sequence[KeyRange], most: int) -> list[str]:
        """Keys in these ranges whose rows differ or are on one side only, at most so many."""


def narrow(sides: Comparison, *, parts: int, small: int, most: int) -> Found:
    """Find the keys that differ. A range is cut into ``parts`` until it has no more than ``small`` rows; no
    more than ``most`` keys are listed.
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
