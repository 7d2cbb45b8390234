"""The figures of RESULTS.json by name, so that pages can say which one they show.

A page marks what it shows with a comment: ``4.78 s <!-- figures: apply/100000/lakemirror/seconds -->``.
Several names, separated by semicolons, belong to the last so many numbers before the comment. In a section
with the comment ``<!-- figures: not stored -->``, the figures are of runs that RESULTS.json does not have;
before the first section, it speaks of the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median as middle
from typing import Any

from benchmarks.parts import scale, year
from benchmarks.race import median, warm
from benchmarks.stats import percentile, ratio

RESULTS = Path(__file__).parent / "RESULTS.json"

NOT_STORED = "<!-- figures: not stored -->"
MARK = re.compile(r"<!-- figures: ([^>]*?) -->")
_NUMBER = re.compile(r"(?<![\w.,])(\d[\d,]*(?:\.\d+)?|twice|three|four|five)(?: (million))?(?!\w)")
_MEASURED = re.compile(r"(?<![\w.,])\d[\d,]*(?:\.\d+)?(?= (?:s|ms|MiB|MB|events per second)\b)")
_CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_WORDS = {"twice": "2", "three": "3", "four": "4", "five": "5"}

Parts = Mapping[str, Any]


def named(parts: Parts | None = None) -> dict[str, float]:
    """Return all figures that pages may show, by name: ``part/case/contender/figure``."""
    found = json.loads(RESULTS.read_text("utf-8")) if parts is None else parts
    makers = {
        "apply": _apply,
        "mixes": _mixes,
        "tables": _tables,
        "scale": _scale,
        "large": _large,
        "executors": _executors,
        "backlog": _backlog,
        "latency": _latency,
        "start": _start,
        "memory": _memory,
        "operator": _operator,
        "year": _year,
    }
    return {
        f"{part}/{name}": float(value)
        for part, make in makers.items()
        if part in found and "skipped" not in found[part]["figures"]
        for name, value in make(found[part]["figures"])
    }


Figures = Iterator[tuple[str, float]]


def _lane(lane: Mapping[str, Any]) -> Figures:
    seconds = median(lane)
    yield "seconds", seconds
    yield "cpu", median(lane, "cpu")
    yield "events", lane["load"]["batch"] / seconds


def _apply(figures: Mapping[str, Any]) -> Figures:
    for group in figures["groups"]:
        lanes = {lane["name"]: lane for lane in group["lanes"]}
        yield f"{group['batch']}/rows", group["rows"]
        for name, lane in lanes.items():
            yield from ((f"{group['batch']}/{name}/{what}", value) for what, value in _lane(lane))
            yield f"{group['batch']}/{name}/times", ratio(warm(lanes["lakemirror"]), warm(lane))


def _mixes(figures: Mapping[str, Any]) -> Figures:
    usual = figures["mixes"][0]["lanes"][0]
    for mix in figures["mixes"]:
        lanes = {lane["name"]: lane for lane in mix["lanes"]}
        for name, lane in lanes.items():
            yield from ((f"{mix['name']}/{name}/{what}", value) for what, value in _lane(lane))
            yield f"{mix['name']}/{name}/times", ratio(warm(lanes["lakemirror"]), warm(lane))
        for what in ("seconds", "cpu"):
            yield f"{mix['name']}/{what}, times", ratio(warm(mix["lanes"][0], what), warm(usual, what))


def _tables(figures: Mapping[str, Any]) -> Figures:
    first = figures["lanes"][0]
    for lane in figures["lanes"]:
        tables = lane["load"]["tables"]
        name = f"{tables} with filters" if lane["load"]["filter"] else f"{tables}"
        yield from ((f"{name}/{what}", value) for what, value in _lane(lane))
        yield from ((f"{name}/{what}", lane[what]) for what in ("first", "restarted") if lane.get(what))
        yield f"{name}/seconds of each", median(lane) / tables
        yield f"{name}/cpu of each in ms", 1000 * median(lane, "cpu") / tables
        for what in ("seconds", "cpu"):
            yield f"{name}/{what}, times", ratio(warm(lane, what), warm(first, what))


def _scale(figures: Mapping[str, Any]) -> Figures:
    for name, keys, small, large in scale.compared(figures):
        yield f"{name}/{keys}/times", ratio(large, small)


def _large(figures: Mapping[str, Any]) -> Figures:
    for each in figures["tables"]:
        rows, half = each["load"]["rows"], each["load"]["recent"]
        yield f"{rows}/rows", rows
        yield f"{rows}/mib", each["mib"]
        yield f"{rows}/gib", each["mib"] / 1024
        for keys, phase in (("recent", slice(0, half)), ("random", slice(half, None))):
            for what in ("seconds", "cpu"):
                yield f"{rows}/{keys}/{what}", middle(each[what][phase][each["cold"] :])


def _executors(figures: Mapping[str, Any]) -> Figures:
    seconds = {number: middle(run["seconds"] for run in runs) for number, runs in figures["runs"].items()}
    for number, value in seconds.items():
        yield f"{number}/seconds", value
        yield f"{number}/events", figures["events"] / value
        yield f"{number}/times", value / seconds["1"]
        for what in ("driver", "executors"):
            yield f"{number}/cpu of {what}", middle(run[what] for run in figures["runs"][number])


def _backlog(figures: Mapping[str, Any]) -> Figures:
    load = figures["load"]
    yield "events", load["batch"] * load["batches"]
    yield "rows", load["rows"]
    for name, runs in figures["runs"].items():
        if all("last" in run for run in runs):
            yield f"{name}/last", middle(run["last"] for run in runs)


def _latency(figures: Mapping[str, Any]) -> Figures:
    seconds = [float(each) for each, number in figures["counts"].items() for _ in range(number)]
    yield "commits", figures["rate"]
    yield from (
        ("median", percentile(seconds, 0.5)),
        ("99 %", percentile(seconds, 0.99)),
        ("longest", max(seconds)),
    )


def _start(figures: Mapping[str, Any]) -> Figures:
    for name, seconds in figures["seconds"].items():
        yield f"{name}/seconds", middle(seconds)


def _memory(figures: Mapping[str, Any]) -> Figures:
    for name, values in zip(
        ("heap", "jvm", "python"), list(zip(*figures["samples"], strict=True))[1:], strict=True
    ):
        yield f"{name}/first", values[0]
        yield f"{name}/last", values[-1]
        yield f"{name}/last gib", values[-1] / 1024


def _operator(figures: Mapping[str, Any]) -> Figures:
    for size in figures["sizes"]:
        at = str(size["pipelines"])
        yield f"{at}/pipelines", size["pipelines"]
        yield f"{at}/create/made", size["create"]["made"]
        yield f"{at}/create/cpu of each in ms", 1000 * size["create"]["cpu"] / size["pipelines"]
        yield f"{at}/create/requests of each", sum(size["create"]["asked"].values()) / size["pipelines"]
        for phase in ("create", "start", "idle", "report", "edit", "restart"):
            found = size[phase]
            yield f"{at}/{phase}/seconds", found["seconds"]
            yield f"{at}/{phase}/cpu", found["cpu"]
            yield f"{at}/{phase}/cores", found["cpu"] / found["seconds"]
            yield f"{at}/{phase}/mib", found["mib"]
            yield f"{at}/{phase}/requests", sum(found["asked"].values()) / found["seconds"] * 60
            for name, value in zip(("median", "95 %", "longest"), found.get("late", ()), strict=False):
                yield f"{at}/{phase}/late/{name}", value
        yield f"{at}/idle/reports", size["idle"]["reports"]
        yield f"{at}/idle/statuses", size["idle"]["statuses"]
        yield (
            f"{at}/idle/requests of the Lease",
            size["idle"]["asked"]["update Lease"] / size["idle"]["seconds"] * 60,
        )
        yield f"{at}/report/reports", size["report"]["reports"]
        yield f"{at}/restart/acts", size["restart"]["acts"]
        yield f"{at}/restart/written", size["restart"]["written"]


def _year(figures: Mapping[str, Any]) -> Figures:
    for kind, found in figures["kinds"].items():
        yield f"{kind}/tables", found["tables"]
        for what, each in found["found"].items():
            yield f"{kind}/{what}/fresh", year.median(each[year.FRESH], "seconds")
            yield f"{kind}/{what}/seconds", year.median(each[year.OLD], "seconds")
            yield f"{kind}/{what}/times", year.times(each)
            fresh, old = (year.median(each[name], "asked") for name in (year.FRESH, year.OLD))
            yield f"{kind}/{what}/asked", old / max(1.0, fresh)
        for name, value in found["sizes"][year.OLD].items():
            yield f"{kind}/{name}", value
        yield f"{kind}/gib", found["sizes"][year.OLD]["bytes"] / 2**30


def wrong(text: str, figures: Mapping[str, float]) -> list[str]:
    """Return what is wrong with the marked figures of a page: one line for each."""
    found = []
    for names, shown in _marked(text):
        if len(shown) < len(names):
            found.append(f"{'; '.join(names)}: there are fewer numbers before it")
            continue
        for name, number in zip(names, shown, strict=True):
            if name not in figures:
                found.append(f"{name}: there is no such figure")
            elif not _is(number, figures[name]):
                found.append(f"{name}: is {figures[name]:.4g}, not {number[0]}")
    return found


def unmarked(text: str) -> list[str]:
    """Return the measured figures of a page that have no mark: numbers with a unit, outside of code."""
    found = []
    sections = re.split(r"^(?=##+ )", _CODE.sub("", text), flags=re.MULTILINE)
    for section in sections:
        if NOT_STORED in section or NOT_STORED in sections[0]:
            continue
        known = {number.start() for _, shown in _marked(section) for number in shown}
        found += [number[0] for number in _MEASURED.finditer(section) if number.start() not in known]
    return found


def _marked(text: str) -> Iterator[tuple[list[str], list[re.Match[str]]]]:
    """Yield the names of each mark, and as many of the numbers before it in its line."""
    for mark in MARK.finditer(text):
        if mark[0] == NOT_STORED:
            continue
        names = [name.strip() for name in mark[1].split(";")]
        hidden = [(each.start(), each.end()) for each in MARK.finditer(text, 0, mark.start())]
        line = text.rfind("\n", 0, mark.start()) + 1
        numbers = [
            number
            for number in _NUMBER.finditer(text, line, mark.start())
            if not any(begin <= number.start() < end for begin, end in hidden)
        ]
        yield names, numbers[-len(names) :]


def _is(number: re.Match[str], figure: float) -> bool:
    """Whether a figure is the shown number, rounded as that is."""
    shown = _WORDS.get(number[1], number[1]).replace(",", "")
    decimals = len(shown.partition(".")[2])
    unit = 1e6 if number[2] else 1.0
    return abs(float(shown) - figure / unit) <= 0.5 * 10**-decimals + 1e-9
