"""Measures how fast changes are applied, compared with other ways."""

from __future__ import annotations

from typing import Any

from benchmarks.events import Load
from benchmarks.markdown import lane_table
from benchmarks.options import Options
from benchmarks.race import CONTENDERS, lanes, median, race
from benchmarks.svg import bars

TITLE = "Apply"
_COLD = {10_000: 30, 100_000: 5}
"""Batches before those that count, by batch size.

Java takes minutes to compile what a batch runs, and a driver runs for days. Small batches give it less to do,
so it takes more of them.
"""


def run(options: Options) -> dict[str, Any]:
    """Run all contenders side by side, for each batch size."""
    sizes = sorted({options.batch_or(10_000), options.batch_or(100_000)})
    groups = []
    with options.session() as spark:
        for size in sizes:
            cold = options.cold_or(_COLD.get(size, 3))
            load = Load(options.rows_or(1_000_000), size, options.batches_or(cold=cold))
            with options.folder(f"apply-{size}") as folder:
                starters = lanes(spark, folder, load, CONTENDERS, cold)
                groups.append({"batch": size, "rows": load.rows, "lanes": race(spark, starters)})
    return {"groups": groups}


def text(figures: dict[str, Any]) -> str:
    """Return a table for each batch size."""
    parts = [
        "Medians of the batches that count. `floor` parses the events and appends them, no more; `textbook` "
        "keeps the newest event of a key by `row_number` and runs MERGE; `deltalake + polars` does the same "
        "without Spark, in one process. These three keep no checkpoint of what they read, quarantine "
        "nothing, and get late events wrong."
    ]
    for group in figures["groups"]:
        lane = group["lanes"][0]
        cold, warm = lane["cold"], len(lane["seconds"]) - lane["cold"]
        parts += [
            f"{group['batch']:,} events a batch, {group['rows']:,} rows, {warm} batches after {cold} that "
            "do not count, in which Java compiles:",
            lane_table(group["lanes"]),
        ]
    return "\n\n".join(parts)


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Plot the seconds per batch."""
    return {
        f"apply-{group['batch']}": bars(
            f"{group['batch']:,} events on {group['rows']:,} rows",
            {lane["name"]: median(lane) for lane in group["lanes"]},
            "s",
        )
        for group in figures["groups"]
    }
