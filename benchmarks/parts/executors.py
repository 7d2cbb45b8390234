"""Measures what a second executor brings."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.find_spark_home import _find_spark_home

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
_WARM_UP = 1


def run(options: Options) -> dict[str, Any]:
    """Apply a million events, in a process of its own for each run and number of executors."""
    load = Load(options.rows_or(1_000_000), options.batch_or(250_000), _WARM_UP + (1 if options.quick else 4))
    seconds: dict[str, list[float]] = {"1": [], "2": []}
    with options.folder("executors") as folder:
        make(load, folder / "load")
        for number, count in enumerate(_ORDER[:2] if options.quick else _ORDER):
            place = folder / f"run-{number}"
            seconds[str(count)].append(
                _in_a_process(load, folder / "load", place, count, options.spark_settings)
            )
    return {"load": asdict(load), "events": load.batch * (load.batches - _WARM_UP), "seconds": seconds}


def _in_a_process(load: Load, files: Path, place: Path, executors: int, settings: dict[str, str]) -> float:
    said = json.dumps([asdict(load), str(files), str(place), executors, settings])
    command = [sys.executable, "-m", "benchmarks.parts.executors", said]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def measure(load: Load, files: Path, place: Path, executors: int, settings: dict[str, str]) -> float:
    """Return the seconds for all batches but the first, with this many executors of one core each."""
    master = f"local-cluster[{executors},1,{_MIB}]"
    cluster = {"spark.master": master, "spark.executor.memory": f"{_MIB}m"}
    spark = create_session("lakemirror-benchmark", settings | cluster)
    contender = Ours(spark, place, load)
    snapshot, batches = (sorted(files.glob(f"{kind}-*.jsonl")) for kind in ("snapshot", "batch"))
    try:
        contender.load(snapshot)
        for batch in batches[:_WARM_UP]:
            contender.apply(batch)
        began = time.perf_counter()
        for batch in batches[_WARM_UP:]:
            contender.apply(batch)
        done = time.perf_counter()
        seconds = done - began + work_afterwards(spark, done)
        if not is_source(spark, contender.table(spark), load, files / "truth.parquet"):
            raise WrongResult("lakemirror does not have the source's rows")
    finally:
        contender.close()
        application = spark.sparkContext.applicationId
        spark.stop()
        # Workers of a local cluster copy the jars to Spark's folder and leave them there.
        shutil.rmtree(Path(_find_spark_home(), "work", application), ignore_errors=True)
    return seconds


def text(figures: dict[str, Any]) -> str:
    """Return a table of the seconds with one and with two executors."""
    load, seconds = figures["load"], figures["seconds"]
    middle = {count: statistics.median(values) for count, values in seconds.items()}
    rows = [
        [f"{count} x 1 core", f"{middle[count]:.1f}", f"{figures['events'] / middle[count]:,.0f}", ratio]
        for count, ratio in (("1", ""), ("2", f"{middle['2'] / middle['1']:.2f}"))
    ]
    about = (
        f"{figures['events']:,} events in batches of {load['batch']:,} on {load['rows']:,} rows, with "
        "Spark's `local-cluster`: driver and executors are processes of one machine and share its cores."
    )
    return f"{about}\n\n{table(('executors', 's', 'events/s', 'by one'), rows)}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}


if __name__ == "__main__":
    said_load, said_files, said_place, said_executors, said_settings = json.loads(sys.argv[1])
    print(measure(Load(**said_load), Path(said_files), Path(said_place), said_executors, said_settings))
