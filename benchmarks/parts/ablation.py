"""Measures what each lever brings: the same run with one of them off."""

from __future__ import annotations

from typing import Any

from benchmarks.events import Load
from benchmarks.markdown import lane_table
from benchmarks.options import Options
from benchmarks.race import MERGE, OURS, SPARKS_PLANS, Make, lanes, ours, race

TITLE = "Ablation"
LEVERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("engine=spark", SPARKS_PLANS),
    ("engine=spark, writer=merge", MERGE),
)
"""The name of each lever, and the Spark settings that switch it off."""


def run(options: Options) -> dict[str, Any]:
    """Run the default and each lever side by side."""
    load = Load(options.rows_or(1_000_000), options.batch_or(10_000), options.batches_or())
    made: dict[str, Make] = {OURS: ours({})} | {name: ours(settings) for name, settings in LEVERS}
    with options.session() as spark, options.folder("ablation") as folder:
        starters = lanes(spark, folder, load, made, options.cold_or())
        return {"settings": dict(LEVERS), "lanes": race(spark, starters)}


def text(figures: dict[str, Any]) -> str:
    """Return a table of the levers and the default."""
    load = figures["lanes"][0]["load"]
    settings = {
        name: f"{key}={value}" for name, kept in figures["settings"].items() for key, value in kept.items()
    }
    named = "; ".join(f"{name}: `{setting}`" for name, setting in settings.items())
    about = f"{load['batch']:,} events a batch on {load['rows']:,} rows. Settings: {named}."
    return f"{about}\n\n{lane_table(figures['lanes'])}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
