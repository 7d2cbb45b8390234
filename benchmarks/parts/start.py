"""Measures how long `lakemirror run --once` takes from the command to the summary, and Spark alone."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.markdown import table
from benchmarks.options import JAVA_OF_SHORT_RUNS, Options
from benchmarks.race import OURS

TITLE = "Cold start"
_MANIFEST = "examples/inventory/pipeline.yaml"
_EMPTY = """
import sys
from benchmarks.options import create_session
spark = create_session("empty")
spark.range(1).write.format("delta").mode("append").save(sys.argv[1])
print("completed", flush=True)
spark.stop()
"""


def run(options: Options) -> dict[str, Any]:
    """Run both in turn, each time in a process of its own and with an empty folder."""
    seconds: dict[str, list[float]] = {f"{OURS} run --once": [], "Spark, one append": []}
    ends: dict[str, list[float]] = {name: [] for name in seconds}
    for number in range(1 if options.quick else 5):
        with options.folder("start") as folder:
            commands = (_ours(folder), [sys.executable, "-c", _EMPTY, f"{folder}/empty"])
            turns = list(zip(seconds, commands, strict=True))
            for name, command in turns if number % 2 == 0 else reversed(turns):
                summary, end = _timed(command)
                seconds[name].append(summary)
                ends[name].append(end)
    return {"seconds": seconds, "ends": ends}


def _ours(folder: Path) -> list[str]:
    settings = {
        "target.path": f"{folder}/{{schema}}/{{table}}",
        "checkpoint": f"{folder}/checkpoint",
    }
    sets = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "lakemirror.cli.main", "run", "--once", "-f", _MANIFEST, *sets]


def _timed(command: list[str]) -> tuple[float, float]:
    """Run the command. Returns the seconds until its last line and until its end."""
    environment = {"JDK_JAVA_OPTIONS": JAVA_OF_SHORT_RUNS, **os.environ, "PYTHONUNBUFFERED": "1"}
    began = last = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for _ in process.stdout:
            last = time.perf_counter()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} ended with {process.returncode}")
    return last - began, time.perf_counter() - began


def text(figures: dict[str, Any]) -> str:
    """Return a table of the medians of both."""
    rows = [
        [name, f"{statistics.median(values):.1f}", f"{statistics.median(figures['ends'][name]):.1f}"]
        for name, values in figures["seconds"].items()
    ]
    about = (
        "From the command to its last line, the summary, and to the end of the process, on the records of "
        f"`{_MANIFEST}`; beside it a Spark session that appends one row to a Delta table. A new process each "
        "time, in turn; medians."
    )
    return f"{about}\n\n{table(('', 's to the summary', 's to the end'), rows)}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
