"""Measures other events: more of one kind, hot keys, late and repeated ones, wide rows, embedded schemas."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

from benchmarks.events import Load
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import CONTENDERS, OURS, lanes, median, race, warm
from benchmarks.stats import ratio
from benchmarks.svg import bars

TITLE = "Mixes"
_NAMES = (OURS, "textbook", "floor")
_WIDE = 59
"""Columns besides the key."""
_PLAIN = Load()
_WIDE_ROWS = 200_000
MIXES: dict[str, Load] = {
    "usual": _PLAIN,
    "inserts 90 %": replace(_PLAIN, inserts=0.9, deletes=0.02, reinserts=0.0),
    "updates 95 %": replace(_PLAIN, inserts=0.03, deletes=0.02, reinserts=0.0),
    "deletes 45 %": replace(_PLAIN, inserts=0.25, deletes=0.45, reinserts=0.1),
    "80 % of updates on 0.1 % of keys": replace(_PLAIN, hot=0.8),
    "late 10 %": replace(_PLAIN, late=0.1),
    "repeated 20 %": replace(_PLAIN, repeated=0.2),
    "key changes 5 %": replace(_PLAIN, moves=0.05),
    "with schema": replace(_PLAIN, schemas=True),
    "60 columns": replace(_PLAIN, columns=_WIDE, rows=_WIDE_ROWS),
}


def run(options: Options) -> dict[str, Any]:
    """Run three contenders side by side on each mix."""
    mixes = []
    with options.session() as spark:
        for name, mix in MIXES.items():
            load = replace(
                mix,
                rows=options.rows_or(mix.rows),
                batch=options.batch_or(mix.batch),
                batches=options.batches_or(10),
            )
            with options.folder(f"mixes-{zlib.crc32(name.encode()):x}") as folder:
                chosen = {each: CONTENDERS[each] for each in _NAMES}
                starters = lanes(spark, folder, load, chosen, options.cold_or())
                mixes.append({"name": name, "lanes": race(spark, starters)})
    return {"mixes": mixes}


def text(figures: dict[str, Any]) -> str:
    """Return a table with a row for each mix."""
    header = ("", "rows", *(f"{name}, s" for name in _NAMES), *(f"{OURS} by {name}" for name in _NAMES[1:]))
    load = figures["mixes"][0]["lanes"][0]["load"]
    about = (
        f"{load['batch']:,} events a batch; the usual mix has 25 % inserts, 60 % updates, 10 % deletes and "
        "5 % inserts of keys that were deleted. The textbook's table is wrong where events come late."
    )
    return f"{about}\n\n{table(header, [_row(mix) for mix in figures['mixes']])}"


def _row(mix: dict[str, Any]) -> list[str]:
    mine, *others = mix["lanes"]
    ratios = [ratio(warm(mine), warm(other)) for other in others]
    middles = [f"{median(lane):.2f}" for lane in mix["lanes"]]
    return [mix["name"], f"{mine['load']['rows']:,}", *middles, *(f"{each:.2f}" for each in ratios)]


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Plot our seconds as a ratio to the textbook's."""
    values = {}
    for mix in figures["mixes"]:
        mine, textbook = mix["lanes"][:2]
        values[mix["name"]] = ratio(warm(mine), warm(textbook))
    return {"mixes": bars(f"Seconds of {OURS} by the textbook's", values, "x")}
