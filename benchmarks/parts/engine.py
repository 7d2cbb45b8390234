"""Measures the engine in columns: beside other ways, over many tables, and on each mix."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.events import Load
from benchmarks.markdown import EQUAL, table
from benchmarks.options import Options
from benchmarks.parts.mixes import MIXES
from benchmarks.race import CONTENDERS, IN_COLUMNS, OURS, Lane, lanes, median, race, warm
from benchmarks.stats import ratio

TITLE = "In columns"
_OTHERS = (OURS, "deltalake + polars", "floor")
_FILTER = "tier IS NOT NULL OR balance % 3 <> 1"
"""Some rows meet it at one time and not at another."""
_MOST_ROWS = 200_000
"""Initial rows where a case has many loads or many tables. Loading them is not measured, and takes long."""


@dataclass(frozen=True)
class Case:
    """What runs side by side: loads by name, each of them in columns, and other contenders for the first."""

    name: str
    loads: Mapping[str, Load]
    others: Sequence[str] = ()
    cold: int = 10
    warm: int = 10


def cases(tables: int) -> list[Case]:
    """Return all cases, with as many tables in two of them, and five times as many in another."""
    usual = Load()
    many = replace(usual, batch=100_000)
    whole = replace(many, rows=_MOST_ROWS)
    spread, fleet = replace(whole, tables=tables), replace(whole, tables=5 * tables)
    mixes = {name: replace(each, rows=min(each.rows, _MOST_ROWS)) for name, each in MIXES.items()}
    return [
        Case("10,000 events a batch", {IN_COLUMNS: usual}, _OTHERS),
        Case("100,000 events a batch", {IN_COLUMNS: many}, _OTHERS, cold=3, warm=7),
        Case(
            "many tables",
            {"1 table": whole, f"{tables} tables": spread, f"{5 * tables} tables": fleet},
            cold=3,
            warm=7,
        ),
        Case("a filter", {"without": usual, "with a filter": replace(usual, filter=_FILTER)}),
        Case(
            f"a filter on each of {tables} tables",
            {"without": spread, "with filters": replace(spread, filter=_FILTER)},
            cold=3,
            warm=7,
        ),
        Case("mixes", mixes),
    ]


def run(options: Options) -> dict[str, Any]:
    """Run the lanes of each case side by side."""
    found = []
    all_cases = cases(options.tables or (4 if options.quick else 100))
    for case in all_cases[:5] if options.quick else all_cases:
        with (
            options.session() as spark,
            options.folder(f"engine-{zlib.crc32(case.name.encode()):x}") as folder,
        ):
            found.append({"name": case.name, "lanes": race(spark, _lanes(options, spark, folder, case))})
    return {"cases": found}


def _lanes(options: Options, spark: SparkSession, folder: Path, case: Case) -> list[Lane]:
    cold, made = options.cold_or(case.cold), list[Lane]()
    for number, (name, load) in enumerate(case.loads.items()):
        sized = replace(
            load,
            rows=options.rows_or(load.rows),
            batch=options.batch_or(load.batch),
            batches=options.batches_or(case.warm, cold),
        )
        others = case.others if number == 0 else ()
        chosen = {name: CONTENDERS[IN_COLUMNS], **{each: CONTENDERS[each] for each in others}}
        made += lanes(spark, folder / str(number), sized, chosen, cold)
    return made


def text(figures: dict[str, Any]) -> str:
    """Return a table of each case."""
    parts = [
        "`spark.lakemirror.engine: columns`. Seconds and CPU seconds of the whole process tree are medians "
        "of the batches that count. Ratios are those of the first line by the others where these are other "
        "ways, and of each load by the first one where all are in columns."
    ]
    for case in figures["cases"]:
        first = case["lanes"][0]
        about = f"{case['name']} ({first['load']['batch']:,} events a batch, {first['load']['rows']:,} rows)"
        parts += [f"**{about}**", _table(case["lanes"], by_first=first["name"] != IN_COLUMNS)]
    return "\n\n".join(parts)


def _table(found: Sequence[Mapping[str, Any]], *, by_first: bool) -> str:
    header = ("", "s a batch", "CPU s", "s, ratio", "CPU, ratio", "equal")
    first, lines = found[0], []
    for each in found:
        ratios = ["", ""]
        if each is not first:
            mine, other = (each, first) if by_first else (first, each)
            ratios = [f"{ratio(warm(mine, part), warm(other, part)):.2f}" for part in ("seconds", "cpu")]
        middles = [f"{median(each):.2f}", f"{median(each, 'cpu'):.2f}"]
        lines.append([each["name"], *middles, *ratios, EQUAL[each["equal"]]])
    return table(header, lines)


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
