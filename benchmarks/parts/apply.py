"""How fast changes are applied, beside other ways."""

from __future__ import annotations

from typing import Any

from benchmarks.events import Load
from benchmarks.markdown import lane_table
from benchmarks.options import Options
from benchmarks.race import CONTENDERS, lanes, median, race
from benchmarks.svg import bars

TITLE = "Apply"
_COLD = {10_000: 30, 100_000: 5}
"""Batches before those that count, by the size of a batch: Java compiles what a batch runs for minutes, and a
driver runs for days. Small batches bring it less to do, so that it takes more of them.
"""


def run(options: Options) -> dict[str, Any]:
    """All contenders side by side, for each size of batch."""
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
    """A table for each size of batch."""
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
    """Seconds a batch."""
    return {
        f"apply-{group['batch']}": bars(
            f"{group['batch']:,} events on {group['rows']:,} rows",
            {lane["name"]: median(lane) for lane in group["lanes"]},
            "s",
        )
        for group in figures["groups"]
    }
