"""Measures how much memory all processes of a driver need, with few tables and with many."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from benchmarks import processes
from benchmarks.contenders import Ours
from benchmarks.events import Load, make
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import BY_SPARK, OURS, SPARKS_PLANS

TITLE = "Memory of a driver"
HEAP = "1g"
_EVERY_SECONDS = 0.5
_LANES = {OURS: {}, BY_SPARK: SPARKS_PLANS}


def loads(options: Options) -> list[Load]:
    """Return what is applied: few small tables, many, and large batches."""
    rows, batch = options.rows_or(100_000), options.batch_or(1_000)
    few = Load(rows, batch, options.batches_or(40), 4 if options.quick else 10)
    if options.quick:
        return [few]
    many = Load(5 * rows, 10 * batch, options.batches_or(7), options.tables or 500)
    return [few, many, Load(10 * rows, 100 * batch, options.batches_or(7))]


def run(options: Options) -> dict[str, Any]:
    """Run each load with each engine, in processes of their own."""
    found = []
    spawn = multiprocessing.get_context("spawn")
    for load in loads(options):
        for name in _LANES:
            with ProcessPoolExecutor(1, spawn) as pool:
                parts = pool.submit(measure, options, load, name).result()
            found.append(
                {"tables": load.tables, "batch": load.batch, "rows": load.rows, "name": name, **parts}
            )
    return {"heap": HEAP, "found": found}


def measure(options: Options, load: Load, name: str) -> dict[str, float]:
    """Return the most that was used at a time, in MiB: by all processes, the JVM, and Python's workers."""
    heap = {"spark.driver.memory": HEAP}
    with options.session(heap) as spark, options.folder("footprint") as folder:
        files, contender = make(load, folder / "load"), Ours(spark, folder / "ours", load, _LANES[name])
        try:
            with _sampled(processes.jvm(spark)) as most:
                contender.load(files.snapshot)
                for batch in files.batches:
                    contender.apply(batch)
        finally:
            contender.close()
    return {each: round(value, 1) for each, value in most.items()}


@contextmanager
def _sampled(jvm: int) -> Iterator[dict[str, float]]:
    """Note the most that is used at a time until the context ends."""
    most, stop = {"all": 0.0, "workers": 0.0, "jvm": 0.0}, threading.Event()

    def sample() -> None:
        while not stop.wait(_EVERY_SECONDS):
            mine, java, *workers = map(processes.proportional_mib, (os.getpid(), *processes.tree(jvm)))
            now = {"all": mine + java + sum(workers), "workers": sum(workers), "jvm": java}
            most.update({name: max(most[name], value) for name, value in now.items()})

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def text(figures: dict[str, Any]) -> str:
    """Return a table with a row for each load and engine."""
    about = (
        f"The most that all processes of a driver used at a time, in MiB, with a heap of {figures['heap']}: "
        "memory that several processes share counts once (PSS). The first batches, which have all rows of "
        "the tables, are included."
    )
    header = ("", "tables", "events a batch", "rows", "all", "JVM", "Python workers")
    rows = [
        [each["name"], *(f"{each[part]:,}" for part in ("tables", "batch", "rows"))]
        + [f"{each[part]:,.0f}" for part in ("all", "jvm", "workers")]
        for each in figures["found"]
    ]
    return f"{about}\n\n{table(header, rows)}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
