"""Measures other events: more of one kind, hot keys, late and odd ones, wide rows, schemas, filters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.events import Load
from benchmarks.markdown import EQUAL, table
from benchmarks.options import Options
from benchmarks.parts.tables import FILTER
from benchmarks.race import CONTENDERS, OURS, Lane, lanes, median, race, warm
from benchmarks.stats import ratio
from benchmarks.svg import bars

TITLE = "Mixes"
_TEXTBOOK = "textbook"
_WIDE = 59
"""Columns besides the key."""
_PLAIN = Load(rows=200_000)
MIXES: dict[str, Load] = {
    "usual": _PLAIN,
    "inserts 90 %": replace(_PLAIN, inserts=0.9, deletes=0.02, reinserts=0.0),
    "updates 95 %": replace(_PLAIN, inserts=0.03, deletes=0.02, reinserts=0.0),
    "deletes 45 %": replace(_PLAIN, inserts=0.25, deletes=0.45, reinserts=0.1),
    "80 % of updates on 0.1 % of keys": replace(_PLAIN, hot=0.8),
    "late 10 %": replace(_PLAIN, late=0.1),
    "repeated 20 %": replace(_PLAIN, repeated=0.2),
    "key changes 5 %": replace(_PLAIN, moves=0.05),
    "30 % of updates lack a value": replace(_PLAIN, gaps=0.3),
    "1 % cannot be read": replace(_PLAIN, bad=0.01),
    "with schema": replace(_PLAIN, schemas=True),
    "60 columns": replace(_PLAIN, columns=_WIDE),
    "a filter": replace(_PLAIN, filter=FILTER),
    "soft deletes": replace(_PLAIN, soft=True),
}


def run(options: Options) -> dict[str, Any]:
    """Run all mixes side by side, and the textbook beside those that it knows."""
    starters: list[Lane] = []
    cold = options.cold_or(10)
    with options.session() as spark, options.folder("mixes") as folder:
        for number, mix in enumerate(MIXES.values()):
            load = replace(
                mix,
                rows=options.rows_or(mix.rows),
                batch=options.batch_or(mix.batch),
                batches=options.batches_or(10, cold),
            )
            names = (OURS,) if mix.filter or mix.soft else (OURS, _TEXTBOOK)
            chosen = {each: CONTENDERS[each] for each in names}
            starters += lanes(spark, folder / str(number), load, chosen, cold)
        found = iter(race(spark, starters))
    mixes = []
    for name, mix in MIXES.items():
        mine = 1 if mix.filter or mix.soft else 2
        mixes.append({"name": name, "lanes": [next(found) for _ in range(mine)]})
    return {"mixes": mixes}


def text(figures: dict[str, Any]) -> str:
    """Return a table with a row for each mix."""
    header = (
        *("", "rows", f"{OURS}, s", "CPU s", "s by the usual mix", "CPU by the usual mix"),
        *("textbook, s", f"{OURS} by textbook", "textbook equal"),
    )
    load = figures["mixes"][0]["lanes"][0]["load"]
    about = (
        f"{load['batch']:,} events a batch; the usual mix has 25 % inserts, 60 % updates, 10 % deletes and "
        "5 % inserts of keys that were deleted. The textbook has no filters and no soft deletes, and its "
        "table is wrong where events are late, lack values or cannot be read."
    )
    usual = figures["mixes"][0]["lanes"][0]
    return f"{about}\n\n{table(header, [_row(mix, usual) for mix in figures['mixes']])}"


def _row(mix: Mapping[str, Any], usual: Mapping[str, Any]) -> list[str]:
    mine, *others = mix["lanes"]
    row = [mix["name"], f"{mine['load']['rows']:,}", f"{median(mine):.2f}", f"{median(mine, 'cpu'):.2f}"]
    row += [f"{ratio(warm(mine, what), warm(usual, what)):.2f}" for what in ("seconds", "cpu")]
    for other in others:
        row += [f"{median(other):.2f}", f"{ratio(warm(mine), warm(other)):.2f}", EQUAL[other["equal"]]]
    return row + [""] * (9 - len(row))


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Plot our seconds as a ratio to those of the usual mix."""
    usual = figures["mixes"][0]["lanes"][0]
    values = {mix["name"]: ratio(warm(mix["lanes"][0]), warm(usual)) for mix in figures["mixes"]}
    return {"mixes": bars(f"Seconds of {OURS} by the usual mix", values, "x")}
