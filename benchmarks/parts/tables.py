"""Measures what it costs if a batch has changes to many tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.contenders import Ours
from benchmarks.events import Load
from benchmarks.markdown import lane_table
from benchmarks.options import Options
from benchmarks.race import OURS, lanes, race

TITLE = "Many tables"


def run(options: Options) -> dict[str, Any]:
    """Apply as many events to as many rows, in one table and in many, side by side."""
    many = options.tables or (4 if options.quick else 100)
    load = Load(options.rows_or(1_000_000), options.batch_or(100_000), options.batches_or(10))
    starters = []
    with options.session() as spark, options.folder("tables") as folder:
        for tables, name in ((1, f"{OURS}, 1 table"), (many, f"{OURS}, {many} tables")):
            same, place = replace(load, tables=tables), folder / f"{tables}"
            starters += lanes(spark, place, same, {name: Ours}, options.cold_or())
        return {"lanes": race(spark, starters)}


def text(figures: dict[str, Any]) -> str:
    """Return a table of both."""
    load = figures["lanes"][0]["load"]
    about = (
        f"{load['batch']:,} events a batch on {load['rows']:,} rows in all, in one table and spread evenly "
        "over many."
    )
    return f"{about}\n\n{lane_table(figures['lanes'], figures['lanes'][1]['name'])}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
