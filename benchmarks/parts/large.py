"""Measures what a table with very many rows costs, without a stream that has to bring the rows first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import processes
from benchmarks.columns import names_of
from benchmarks.contenders import Ours
from benchmarks.events import ROWS_A_FILE, Load
from benchmarks.events import make as make_load
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import WrongResult, checksum, work_afterwards
from benchmarks.rows import START, TIERS

TITLE = "A large table"
_ROWS_A_COMMIT = 25_000_000
_ROWS_A_FILE = 5_000_000
_KEYS = ("recent", "random")


def run(options: Options) -> dict[str, Any]:
    """Apply batches of recent keys, then of random ones, to a small table and then to a large one."""
    small = 200_000 if options.quick else 1_000_000
    large = options.rows or (400_000 if options.quick else 100_000_000)
    with options.session() as spark:
        return {"tables": [_measure(options, spark, rows) for rows in (small, large)]}


def _measure(options: Options, spark: SparkSession, rows: int) -> dict[str, Any]:
    each = options.batches_or(10)
    load = Load(rows, options.batch_or(10_000), batches=2 * each, recent=each)
    with options.folder("large") as folder:
        files = make_load(load, folder / "load", told=min(ROWS_A_FILE, rows))
        ours = Ours(spark, folder / "ours", load)
        try:
            ours.load(files.snapshot)
            began = time.perf_counter()
            mirror = folder / "ours" / "lake" / load.names[0]
            _fill(spark, str(mirror), min(ROWS_A_FILE, rows), rows)
            filled, size = time.perf_counter() - began, _size(mirror)
            seconds, cpu = _batches(spark, ours, files.batches)
            _check(spark, ours.table(spark), files.truth, rows)
        finally:
            ours.close()
    return {
        "load": asdict(load),
        "cold": options.cold_or(),
        "filled": filled,
        "mib": size / 2**20,
        "seconds": seconds,
        "cpu": cpu,
    }


def _fill(spark: SparkSession, mirror: str, begin: int, end: int) -> None:
    """Append the rows of the other keys as the driver writes those of a snapshot, in key order."""
    first = spark.read.format("delta").load(mirror).limit(1).collect()[0].asDict(recursive=True)
    schema = spark.read.format("delta").load(mirror).schema
    own = spark.createDataFrame([first], schema).select(*(n for n in first if n.startswith("__")))
    for start in range(begin, end, _ROWS_A_COMMIT):
        stop = min(start + _ROWS_A_COMMIT, end)
        parts = max(1, (stop - start) // _ROWS_A_FILE)
        mixed = "id * 2654435761 % 4294967296"
        tiers = ", ".join("null" if each is None else f"'{each}'" for each in TIERS)
        rows = spark.range(start, stop, numPartitions=parts).selectExpr(
            "CAST(id AS INT) AS id",
            f"concat('owner ', {mixed} % 1000000, ' ż') AS owner",
            f"{mixed} * 200 - 1000000000 AS balance",
            f"element_at(array({tiers}), CAST({mixed} % 3 AS INT) + 1) AS tier",
            f"timestamp_micros({START}) AS updated_at",
        )
        whole = rows.crossJoin(F.broadcast(own)).select(*schema.names)
        whole.write.format("delta").mode("append").save(mirror)


def _batches(spark: SparkSession, ours: Ours, batches: Sequence[Path]) -> tuple[list[float], list[float]]:
    seconds, cpu = [], []
    for batch in batches:
        processes.collect_garbage(spark)
        worked, began = processes.cpu_seconds(processes.jvm(spark)), time.perf_counter()
        ours.apply(batch)
        done = time.perf_counter()
        seconds.append(round(done - began + work_afterwards(spark, done), 3))
        cpu.append(round(processes.cpu_seconds(processes.jvm(spark)) - worked, 3))
    return seconds, cpu


def _check(spark: SparkSession, mirror: DataFrame, truth: Path, first: int) -> None:
    """Check that all changed rows are the source's, and that there are no others besides the initial ones."""
    columns = names_of(len(mirror.columns) - 1)
    changed = spark.read.parquet(str(truth))
    same = mirror.join(F.broadcast(changed.select("id")), "id", "left_semi")
    if checksum(same, columns) != checksum(changed, columns):
        raise WrongResult("the mirror does not have the source's rows")
    if mirror.where(F.col("id") >= first).count() != changed.where(F.col("id") >= first).count():
        raise WrongResult("the mirror has rows that the source does not have")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def text(figures: dict[str, Any]) -> str:
    """Return a table with a row for each table and choice of keys."""
    lines = []
    for each in figures["tables"]:
        rows, half = each["load"]["rows"], each["load"]["recent"]
        for keys, phase in zip(_KEYS, (slice(0, half), slice(half, None)), strict=True):
            seconds, cpu = (each[name][phase][each["cold"] :] for name in ("seconds", "cpu"))
            shown = [
                f"{statistics.median(seconds):.2f}",
                f"{max(seconds):.2f}",
                f"{statistics.median(cpu):.2f}",
            ]
            lines.append([f"{rows:,} rows, {each['mib']:,.0f} MiB", keys, *shown])
    batch = figures["tables"][0]["load"]["batch"]
    about = (
        f"{batch:,} events a batch. Recent keys are those of the newest twentieth of the rows, as in tables "
        f"of orders; random ones are of the whole table. All rows but the first {ROWS_A_FILE:,} were put "
        "there by Spark, as the driver would have written those of a snapshot."
    )
    return f"{about}\n\n{table(('', 'keys', 's a batch', 'slowest', 'CPU s of the JVM'), lines)}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots: four figures need no picture."""
    return {}
