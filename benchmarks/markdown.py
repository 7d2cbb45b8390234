"""Markdown tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.race import OURS, median, warm
from benchmarks.stats import percentile, ratio

EQUAL = {True: "yes", False: "no", None: "-"}
"""What tables say of whether a lane ended with the rows of the source."""


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first column is text and whose others are numbers."""
    marks = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, marks, *rows))


def lane_table(
    lanes: Sequence[Mapping[str, Any]], reference: str = OURS, *, by_reference: bool = False
) -> str:
    """Return a table of the lanes of one race, compared with one of them.

    Ratios are those of the reference by each lane, or of each lane by the reference.
    """
    ratios = ("s, ratio", "CPU, ratio") if by_reference else (f"{reference} by this",)
    header = ("", "s a batch", "quartiles", "events/s", "CPU s", *ratios, "equal")
    beside = next(lane for lane in lanes if lane["name"] == reference)
    return table(header, [_lane_row(lane, beside, by_reference=by_reference) for lane in lanes])


def _lane_row(lane: Mapping[str, Any], beside: Mapping[str, Any], *, by_reference: bool) -> list[str]:
    seconds = warm(lane)
    middle = statistics.median(seconds)
    if by_reference:
        ratios = [ratio(warm(lane, part), warm(beside, part)) for part in ("seconds", "cpu")]
    else:
        ratios = [ratio(warm(beside), seconds)]
    return [
        lane["name"],
        f"{middle:.2f}",
        f"{percentile(seconds, 0.25):.2f} to {percentile(seconds, 0.75):.2f}",
        f"{lane['load']['batch'] / middle:,.0f}",
        f"{median(lane, 'cpu'):.2f}",
        *("" if lane is beside else f"{each:.2f}" for each in ratios),
        EQUAL[lane["equal"]],
    ]
