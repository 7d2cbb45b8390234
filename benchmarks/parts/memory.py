"""Measures whether a long run needs more and more memory."""

from __future__ import annotations

import os
import statistics
import time
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import processes
from benchmarks.contenders import Ours
from benchmarks.events import Load, make
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import OURS
from benchmarks.stats import slope
from benchmarks.svg import lines

TITLE = "Memory"
_SAMPLES = 10
_CLEANING_SECONDS = 3.0
_KINDS = ("heap after GC", "JVM, resident", "Python, resident")
_FLAT = 0.05
"""The share of its mean by which a value may grow over the second half and still be called flat."""


def run(options: Options) -> dict[str, Any]:
    """Run many small batches, and note what the run uses after every tenth of them."""
    load = Load(options.rows_or(50_000), options.batch_or(1_000), 4 if options.quick else 500)
    every = max(1, load.batches // _SAMPLES)
    samples: list[list[float]] = []
    # The whole heap is allocated from the beginning, so that only memory outside it can grow.
    whole_heap = {"spark.driver.extraJavaOptions": f"-Xms{options.memory} -XX:+AlwaysPreTouch"}
    with options.session(whole_heap) as spark, options.folder("memory") as folder:
        files, contender = make(load, folder / "load"), Ours(spark, folder / "ours", load)
        try:
            contender.load(files.snapshot)
            for number, batch in enumerate(files.batches, start=1):
                contender.apply(batch)
                if number % every == 0:
                    samples.append([number, *_used(spark)])
        finally:
            contender.close()
    return {"rows": load.rows, "batch": load.batch, "samples": samples}


def _used(spark: SparkSession) -> list[float]:
    """Return the MiB in use, in the order of `_KINDS`."""
    processes.collect_garbage(spark)
    time.sleep(_CLEANING_SECONDS)  # a thread of Spark releases what a collection finds unused
    processes.collect_garbage(spark)
    resident = (processes.resident_mib(processes.jvm(spark)), processes.resident_mib(os.getpid()))
    return [round(each, 1) for each in (processes.heap_mib(spark), *resident)]


def text(figures: dict[str, Any]) -> str:
    """Return a table of what was used at the beginning and end, and whether it grows."""
    rows = []
    for number, kind in enumerate(_KINDS, start=1):
        values = [sample[number] for sample in figures["samples"]]
        a_hundred, flat = growth([sample[0] for sample in figures["samples"]], values)
        rows.append(
            [kind, f"{values[0]:.0f}", f"{values[-1]:.0f}", f"{a_hundred:+.1f}", "yes" if flat else "no"]
        )
    first, last = (int(figures["samples"][n][0]) for n in (0, -1))
    header = ("MiB", f"after {first} batches", f"after {last}", "growth in 100", "flat")
    about = (
        f"{OURS}, {figures['batch']:,} events a batch on {figures['rows']:,} rows. Growth is that of the "
        f"second half of the run; it is flat if that comes to less than {_FLAT:.0%} of the mean."
    )
    return f"{about}\n\n{table(header, rows)}"


def growth(batches: list[float], values: list[float]) -> tuple[float, bool]:
    """Return what 100 batches add in the second half, and whether that is next to nothing."""
    half = len(values) // 2
    xs, ys = batches[half:], values[half:]
    rate = slope(xs, ys)
    return rate * 100, rate * (xs[-1] - xs[0]) < _FLAT * statistics.mean(ys)


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Plot the MiB over the batches."""
    xs = [sample[0] for sample in figures["samples"]]
    series = {kind: [sample[n] for sample in figures["samples"]] for n, kind in enumerate(_KINDS, start=1)}
    return {"memory": lines("MiB in use", xs, series, "batches")}
