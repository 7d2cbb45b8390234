"""Statistics of figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def ratio(mine: Sequence[float], others: Sequence[float]) -> float:
    """Return the median ratio of mine to the other's in the same turn; below 1, mine is less."""
    return statistics.median(a / b for a, b in zip(mine, others, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of the values lies, interpolated between two of them."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Return the slope of the line that is closest to the points (least squares)."""
    return statistics.linear_regression(xs, ys).slope
