"""Measures what ten times the rows cost."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.events import Load
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import CONTENDERS, OURS, Lane, lanes, race
from benchmarks.stats import ratio

TITLE = "Scale"
_NAMES = (OURS, "deltalake + polars")
_KEYS = ("recent", "random")


def run(options: Options) -> dict[str, Any]:
    """Run the same contenders on both tables, side by side.

    Batches of recent keys come first, then those of random keys.
    """
    rows = options.rows_or(1_000_000)
    with options.session() as spark, options.folder("scale") as folder:
        starters = [
            *_lanes(options, spark, folder / "small", rows),
            *_lanes(options, spark, folder / "large", 10 * rows),
        ]
        return {"rows": rows, "lanes": race(spark, starters)}


def _lanes(options: Options, spark: SparkSession, folder: Path, rows: int) -> list[Lane]:
    each = options.batches_or()
    load = Load(rows, options.batch_or(10_000), batches=2 * each, recent=each)
    chosen = {name: CONTENDERS[name] for name in _NAMES}
    return lanes(spark, folder, load, chosen, options.cold_or())


def text(figures: dict[str, Any]) -> str:
    """Return a table with a row for each contender and choice of keys."""
    rows = figures["rows"]
    header = ("", "keys", f"s at {rows:,} rows", f"s at {10 * rows:,} rows", "ratio")
    lines = []
    for name, keys, small, large in compared(figures):
        middles = [f"{statistics.median(seconds):.2f}" for seconds in (small, large)]
        lines.append([name, keys, *middles, f"{ratio(large, small):.2f}"])
    batch = figures["lanes"][0]["load"]["batch"]
    about = (
        f"{batch:,} events a batch. Recent keys are those of the newest twentieth of the rows, as in tables "
        "of orders; random ones are of the whole table. Ratio: seconds on the large table by those on the "
        "small one."
    )
    return f"{about}\n\n{table(header, lines)}"


def compared(figures: dict[str, Any]) -> list[tuple[str, str, list[float], list[float]]]:
    """Return name, keys, and the warm seconds on the small and on the large table."""
    found = []
    for name in dict.fromkeys(lane["name"] for lane in figures["lanes"]):
        small, large = (lane for lane in figures["lanes"] if lane["name"] == name)
        half = small["load"]["recent"]
        for keys, phase in zip(_KEYS, (slice(0, half), slice(half, None)), strict=True):
            seconds = [lane["seconds"][phase][lane["cold"] :] for lane in (small, large)]
            found.append((name, keys, *seconds))
    return found


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots: four figures need no picture."""
    return {}
