"""What is made of figures: medians, ratios, tables, plots and the report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks import ematix, processes, report, running, svg
from benchmarks.__main__ import PARTS, main
from benchmarks.events import Load
from benchmarks.markdown import lane_table
from benchmarks.options import options_of, parser
from benchmarks.parts import (
    ablation,
    apply,
    backlog,
    executors,
    large,
    latency,
    memory,
    mixes,
    operator,
    scale,
    start,
    year,
)
from benchmarks.race import median
from benchmarks.stats import percentile, ratio, slope


def lane(name: str, seconds: list[float], **more: Any) -> dict[str, Any]:
    load = asdict(Load(rows=1000, batch=100, **more))
    return {"name": name, "load": load, "cold": 1, "seconds": seconds, "cpu": seconds, "equal": True}


def test_ratio_is_the_median_of_the_turns() -> None:
    assert ratio([1, 2, 9], [2, 4, 3]) == 0.5


@pytest.mark.parametrize(("share", "expected"), [(0, 1), (0.5, 2.5), (0.95, 3.85), (1, 4)])
def test_percentile(share: float, expected: float) -> None:
    assert percentile([4, 2, 3, 1], share) == pytest.approx(expected)


def test_slope_is_that_of_the_nearest_line() -> None:
    assert slope([0, 1, 2, 3], [5, 7, 9, 11]) == pytest.approx(2)


def test_cold_batches_do_not_count() -> None:
    assert median(lane("x", [100.0, 1.0, 3.0])) == 2


def test_a_table_of_lanes_compares_with_the_reference() -> None:
    shown = lane_table([lane("lakemirror", [9.0, 1.0, 1.0]), lane("floor", [9.0, 0.5, 0.5])])
    assert "| lakemirror | 1.00 | 1.00 to 1.00 | 100 | 1.00 |  | yes |" in shown
    assert "| floor | 0.50 | 0.50 to 0.50 | 200 | 0.50 | 2.00 | yes |" in shown


def test_scale_compares_the_tables_by_choice_of_keys() -> None:
    small = lane("lakemirror", [9.0, 1.0, 9.0, 2.0], recent=2)
    large = lane("lakemirror", [9.0, 1.5, 9.0, 8.0], recent=2)
    figures = {"rows": 1000, "lanes": [small, large]}
    assert scale.compared(figures) == [
        ("lakemirror", "recent", [1.0], [1.5]),
        ("lakemirror", "random", [2.0], [8.0]),
    ]
    assert "| lakemirror | random | 2.00 | 8.00 | 4.00 |" in scale.text(figures)


def test_growth_is_that_of_the_second_half() -> None:
    batches = [float(n) for n in range(50, 550, 50)]
    rising_at_first = [100.0, 200, 300, 400, 500, 500, 500, 500, 500, 500]
    assert memory.growth(batches, rising_at_first) == (0, True)
    rate, flat = memory.growth(batches, batches)
    assert rate == pytest.approx(100)
    assert not flat


def test_executors_are_compared_with_one() -> None:
    def a_run(seconds: float) -> dict[str, float]:
        return {"seconds": seconds, "driver": 2.0, "executors": 2 * seconds}

    runs = {"1": [a_run(10.0), a_run(12.0)], "2": [a_run(5.0), a_run(6.0)]}
    figures = {"load": asdict(Load(batch=250)), "warm_up": 4, "events": 1000, "runs": runs}
    assert "| 2 x 1 core | 5.5 | 182 | 2.0 | 11.0 | 0.50 |" in executors.text(figures)
    assert "after 4 batches that do not count" in executors.text(figures)


def test_a_year_is_compared_with_fresh() -> None:
    found = {
        what: {
            "fresh": [{"seconds": 2.0, "asked": 10.0}] * 3,
            "after a year": [{"seconds": seconds, "asked": 11.0} for seconds in (9.0, 2.2, 2.0)],
        }
        for what in year.MEASURED
    }
    size = {"files": 1_000, "logs": 900, "bytes": 2_000_000}
    kind = {"tables": 500, "made": 1.0, "sizes": {"fresh": size, "after a year": size}, "found": found}
    shown = year.text({"day": 8_640, "kinds": {"local": kind}})
    assert "| batch | 2.00 | 2.20 | 1.10 | 10 | 11 |" in shown
    assert "| after a year | 1,000 | 900 | 2,000,000 |" in shown


def test_processes_know_their_children() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in processes.children(os.getpid())
        child.kill()


def test_large_tables_are_shown_by_choice_of_keys() -> None:
    load = asdict(Load(rows=10**8, batch=1000, recent=3))
    seconds = [9.0, 1.0, 2.0, 9.0, 4.0, 6.0]
    figures = {"tables": [{"load": load, "cold": 1, "mib": 3000.0, "seconds": seconds, "cpu": seconds}]}
    shown = large.text(figures)
    assert "| 100,000,000 rows, 3,000 MiB | recent | 1.50 | 2.00 | 1.50 |" in shown
    assert "| 100,000,000 rows, 3,000 MiB | random | 5.00 | 6.00 | 5.00 |" in shown


def test_requests_of_an_idle_operator_are_shown_a_minute() -> None:
    spent = {"cpu": 6.0, "passes": 3.0, "mib": 99.6, "asked": {"list Pod": 3, "update Lease": 10}}
    idle = {**spent, "seconds": 30.0, "reports": 40.0, "statuses": 0}
    late = [0.1, 0.2, 0.3]
    size = {
        "pipelines": 20,
        "kubernetes": "v1",
        "create": {**spent, "made": 1.0, "seconds": 2.0, "waited": late},
        "start": {**spent, "started": 1.0, "seconds": 2.0},
        "idle": idle,
        "report": {**spent, "seconds": 30.0, "reports": 1000.0, "late": late},
        "edit": {**spent, "seconds": 30.0, "late": late},
        "restart": {**spent, "acts": 1.0, "seconds": 2.0, "written": 0.0},
    }
    shown = operator.text({"sizes": [size]})
    assert "| idle: requests a minute | 26 |" in shown
    assert "| update Lease | 20.0 |" in shown
    assert "| idle: cores | 0.20 |" in shown


def test_sizes_are_a_parts_own_unless_others_are_asked_for() -> None:
    def options(*words: str) -> Any:
        return options_of(parser([]).parse_args(words))

    plain, asked = options(), options("--rows", "7", "--warm", "2", "--cold", "0")
    assert (plain.rows_or(100), plain.batches_or(), plain.batches_or(5)) == (100, 18, 8)
    assert (asked.rows_or(100), asked.batches_or()) == (7, 2)


FIGURES: dict[str, Any] = {
    "apply": {"groups": [{"batch": 100, "rows": 1000, "lanes": [lane("lakemirror", [9.0, 1.0])]}]},
    "ablation": {"settings": dict(ablation.LEVERS), "lanes": [lane("lakemirror", [9.0, 1.0])]},
    "mixes": {
        "mixes": [{"name": "x", "lanes": [lane(n, [9.0, 1.0]) for n in ("lakemirror", "textbook", "floor")]}]
    },
    "start": {"seconds": {"a": [1.0, 2.0]}, "ends": {"a": [3.0, 4.0]}},
    "memory": {
        "rows": 1,
        "batch": 1,
        "samples": [[50, 1, 2, 3], [100, 1, 2, 3], [150, 1, 2, 3], [200, 1, 2, 3]],
    },
    "latency": {"skipped": "there is no PostgreSQL"},
}


def measured(part: str) -> dict[str, Any]:
    return {"date": "a day", "minutes": 1.0, "environment": {"heap": "4g"}, "figures": FIGURES[part]}


def test_the_report_has_a_section_a_part_and_its_plots(tmp_path: Path) -> None:
    for part in FIGURES:
        parts = report.store(tmp_path, part, measured(part))
    report.write(tmp_path, PARTS, parts)
    text = (tmp_path / "RESULTS.md").read_text()
    for module in (apply, ablation, mixes, start, memory):
        assert f"## {module.TITLE}" in text
    assert "Skipped: there is no PostgreSQL" in text
    assert "Not measured: scale, large, tables, executors, backlog, footprint, operator, year." in text
    assert text.count("heap: 4g") == 1
    for plot in ("apply-100", "mixes", "memory"):
        assert f"(plots/{plot}.svg)" in text
        ElementTree.parse(tmp_path / "plots" / f"{plot}.svg")
    assert json.loads((tmp_path / "RESULTS.json").read_text())["start"]["figures"] == FIGURES["start"]


def test_environments_are_told_apart_where_they_differ() -> None:
    parts = {"a": {"environment": {"heap": "1g"}}, "b": {"environment": {"heap": "2g"}}}
    assert report.environments(parts) == "- a: heap: 1g.\n- b: heap: 2g."


def test_a_part_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such part: nothing" in capsys.readouterr().err


def test_several_parts_run_each_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []

    def call(command: list[str]) -> int:
        started.append(command[3:])
        return int("memory" in command)

    monkeypatch.setattr("benchmarks.__main__.subprocess", SimpleNamespace(call=call))
    assert main(["start", "memory", "--quick", "--rows", "5"]) == 1
    assert started == [["start", "--quick", "--rows", "5"], ["memory", "--quick", "--rows", "5"]]


def test_names_in_plots_are_escaped() -> None:
    drawn = svg.bars("a < b", {"x & y": 1.0}, "s")
    assert "a &lt; b" in drawn
    assert "x &amp; y" in drawn


def test_a_commit_is_seen_with_the_first_version_that_has_it() -> None:
    committed = [10.0, 10.1, 10.2, 10.3]
    seen = [(9.0, -1), (10.5, 1), (11.0, 1), (11.5, 3)]
    assert latency.latencies(committed, seen) == pytest.approx([0.5, 0.4, 1.3, 1.2])
    assert latency.latencies(committed, seen[:2]) == pytest.approx([0.5, 0.4])


def test_latency_tells_the_median_and_the_slowest() -> None:
    text = latency.text({"rate": 100, "interval": "1s", "counts": {"1.00": 1, "2.00": 1, "3.00": 1}})
    assert "| commit to mirror | 2.00 s | 2.90 s | 2.98 s | 3.00 s |" in text


def test_a_backlog_tells_the_medians_and_whether_all_were_equal() -> None:
    def a_run(last: float, equal: bool) -> dict[str, Any]:
        return {"first": last / 2, "last": last, "commits": 3, "equal": equal}

    runs = {
        "lakemirror": [a_run(10.0, True), a_run(20.0, True), a_run(60.0, True)],
        "ematix-flow": [a_run(40.0, True), a_run(40.0, False), a_run(40.0, True)],
    }
    load = asdict(Load(rows=1000, batch=100, batches=10))
    text = backlog.text({"load": load, "runs": runs})
    assert "1,000 changes of one table with 1,000 rows" in text
    assert "| lakemirror | 10.0 | 20.0 | 50 | 3 | yes |" in text
    assert "| ematix-flow | 20.0 | 40.0 | 25 | 3 | no |" in text


def test_a_rival_that_ends_is_told_with_its_message() -> None:
    runs = {
        "lakemirror": [{"first": 1.0, "last": 2.0, "commits": 3, "equal": True}],
        "ematix-flow": [{"ended": "ValueError: no"}],
    }
    text = backlog.text({"load": asdict(Load(rows=10, batch=10, batches=10)), "runs": runs})
    assert "| lakemirror | 1.0 | 2.0 | 50 | 3 | yes |" in text
    assert text.endswith("ematix-flow ended by itself: `ValueError: no`")
    assert "| ematix-flow" not in text


def test_a_command_that_ends_by_itself_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('first'); print('last')"]
    with pytest.raises(running.Ended, match=r"^last$"), running.running(command, tmp_path / "log"):
        time.sleep(1)


def test_the_configuration_of_the_rival_is_toml(tmp_path: Path) -> None:
    found = tomllib.loads(ematix.settings("localhost:9092", 'a"b', str(tmp_path), "accounts"))
    assert (found["source"]["kind"], found["source_query"]) == ("kafka", 'a"b')
    assert found["target"]["table"] == {"schema": "public", "name": "accounts", "primary_key": ["id"]}
    assert found["transform"]["cdc"]["envelope"] == "debezium"
