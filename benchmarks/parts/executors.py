"""Measures what a second executor brings."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession

from benchmarks import processes
from benchmarks.contenders import Ours
from benchmarks.events import Load, make
from benchmarks.markdown import table
from benchmarks.options import Options, create_session
from benchmarks.race import WrongResult, is_source, work_afterwards

TITLE = "Executors"
_MIB = 1024
"""Memory of an executor."""
_ORDER = (1, 2, 2, 1)
"""The executors of each run. In this order, whatever else the machine does affects both alike."""
_WARM_UP = 4
"""Batches that do not count, in which Java compiles, in the driver and in each executor."""


def run(options: Options) -> dict[str, Any]:
    """Apply a million events, in a process of its own for each run and number of executors."""
    warm_up, counted = (1, 1) if options.quick else (_WARM_UP, 4)
    load = Load(options.rows_or(1_000_000), options.batch_or(250_000), warm_up + counted)
    runs: dict[str, list[dict[str, float]]] = {"1": [], "2": []}
    with options.folder("executors") as folder:
        make(load, folder / "load")
        for number, count in enumerate(_ORDER[:2] if options.quick else _ORDER):
            place = folder / f"run-{number}"
            said = [asdict(load), warm_up, str(folder / "load"), str(place), count, options.spark_settings]
            runs[str(count)].append(_in_a_process(said))
    return {"load": asdict(load), "warm_up": warm_up, "events": load.batch * counted, "runs": runs}


def _in_a_process(said: list[Any]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.parts.executors", json.dumps(said)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(
    load: Load, warm_up: int, files: Path, place: Path, executors: int, settings: dict[str, str]
) -> dict[str, float]:
    """Return what all batches took but those of the warm-up, with this many executors of one core each.

    `seconds` on the clock, and CPU seconds of the `driver` and of all `executors`.
    """
    master = f"local-cluster[{executors},1,{_MIB}]"
    cluster = {"spark.master": master, "spark.executor.memory": f"{_MIB}m"}
    spark = create_session("lakemirror-benchmark", settings | cluster)
    contender = Ours(spark, place, load)
    snapshot, batches = (sorted(files.glob(f"{kind}-*.jsonl")) for kind in ("snapshot", "batch"))
    try:
        contender.load(snapshot)
        for batch in batches[:warm_up]:
            contender.apply(batch)
        before, began = _cpu(spark), time.perf_counter()
        for batch in batches[warm_up:]:
            contender.apply(batch)
        done = time.perf_counter()
        seconds = done - began + work_afterwards(spark, done)
        cpu = [now - former for now, former in zip(_cpu(spark), before, strict=True)]
        if not is_source(spark, contender.table(spark), load, files / "truth.parquet"):
            raise WrongResult("lakemirror does not have the source's rows")
    finally:
        contender.close()
        application = spark.sparkContext.applicationId
        spark.stop()
        # Workers of a local cluster copy the jars to Spark's folder and leave them there.
        shutil.rmtree(Path(_find_spark_home(), "work", application), ignore_errors=True)
    return {"seconds": seconds, "driver": cpu[0], "executors": cpu[1]}


def _cpu(spark: SparkSession) -> tuple[float, float]:
    """Return the CPU seconds of the driver, with Python, and of the executors, so far."""
    jvm = processes.jvm(spark)
    executors = sum(processes.cpu_seconds(pid) for pid in processes.children(jvm))
    return time.process_time() + processes.cpu_seconds(jvm), executors


def text(figures: dict[str, Any]) -> str:
    """Return a table with a line for one executor and for two."""
    load, one = figures["load"], _medians(figures["runs"]["1"])
    lines = []
    for count, runs in figures["runs"].items():
        found = _medians(runs)
        by_one = "" if count == "1" else f"{found['seconds'] / one['seconds']:.2f}"
        cpu = [f"{found[part]:.1f}" for part in ("driver", "executors")]
        rate = f"{figures['events'] / found['seconds']:,.0f}"
        lines.append([f"{count} x 1 core", f"{found['seconds']:.1f}", rate, *cpu, by_one])
    about = (
        f"{figures['events']:,} events in batches of {load['batch']:,} on {load['rows']:,} rows, after "
        f"{figures['warm_up']} batches that do not count, with Spark's `local-cluster`: driver and executors "
        "are processes of one machine and share its cores."
    )
    header = ("executors", "s", "events/s", "CPU s of the driver", "of the executors", "by one")
    return f"{about}\n\n{table(header, lines)}"


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {part: statistics.median(each[part] for each in runs) for part in runs[0]}


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}


if __name__ == "__main__":
    said_load, said_warm_up, said_files, said_place, said_executors, said_settings = json.loads(sys.argv[1])
    found = measure(
        Load(**said_load),
        said_warm_up,
        Path(said_files),
        Path(said_place),
        said_executors,
        said_settings,
    )
    print(json.dumps(found))
