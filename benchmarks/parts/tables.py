"""Measures what it costs if a batch has changes to many tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.contenders import Ours
from benchmarks.events import Load
from benchmarks.markdown import lane_table, table
from benchmarks.options import Options
from benchmarks.race import OURS, lanes, race

TITLE = "Many tables"
FILTER = "tier IS NOT NULL OR balance % 3 <> 1"
"""Some rows meet it at one time and not at another."""
_ROWS = 200_000


def run(options: Options) -> dict[str, Any]:
    """Apply as many events to as many rows, in one table and in many, with filters and without."""
    many = options.tables or (4 if options.quick else 100)
    batches = options.batches_or(10) + 1  # the last one after a restart
    one = Load(options.rows_or(_ROWS), options.batch_or(100_000), batches)
    loads = {
        "1 table": one,
        f"{many} tables": replace(one, tables=many),
        f"{many} tables, each with a filter": replace(one, tables=many, filter=FILTER),
        f"{5 * many} tables": replace(one, tables=5 * many),
    }
    starters = []
    with options.session() as spark, options.folder("tables") as folder:
        for number, (name, load) in enumerate(loads.items()):
            made = {f"{OURS}, {name}": Ours}
            starters += lanes(spark, folder / str(number), load, made, options.cold_or())
        return {"lanes": race(spark, starters, restart=True)}


def text(figures: dict[str, Any]) -> str:
    """Return a table of all."""
    first = figures["lanes"][0]
    load = first["load"]
    about = (
        f"{load['batch']:,} events a batch on {load['rows']:,} rows in all, in one table and spread evenly "
        f"over many. Ratios are those of each by {first['name']}."
    )
    lanes = lane_table(figures["lanes"], first["name"], by_reference=True)
    return "\n\n".join([about, lanes, *_first_and_restart(figures["lanes"])])


def _first_and_restart(lanes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the batches that the lanes do not count."""
    rows = [
        [each["name"], f"{each['first']:.1f}", f"{each['restarted']:.1f}"]
        for each in lanes
        if each.get("first")
    ]
    if rows:
        yield (
            "Seconds of the first batch, which brings the initial rows of all tables and creates their "
            "mirrors, and of a batch after a restart, from the start of the run. The JVM runs already."
        )
        yield table(("", "first batch", "batch after a restart"), rows)


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
