"""Runs several contenders side by side: all of them take each batch, in an order that rotates.

So whatever else the machine does affects them alike. At the end, their tables are compared with the source's
rows.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks import processes
from benchmarks.columns import names_of
from benchmarks.contenders import Contender, Floor, Ours, Textbook
from benchmarks.events import Files, Load
from benchmarks.events import make as make_load
from benchmarks.rival import Polars
from lakemirror.api import spark_settings

OURS = "lakemirror"
BY_SPARK = f"{OURS}, by Spark's plans"
_QUIET_SECONDS = 0.1

Make = Callable[[SparkSession, Path, Load], Contender]


def ours(settings: Mapping[str, str]) -> Make:
    """Return a factory of Lakemirror contenders with these Spark settings."""
    return lambda spark, folder, load: Ours(spark, folder, load, settings)


SPARKS_PLANS = {spark_settings.ENGINE: spark_settings.BY_SPARK}
"""The settings with which tables are applied as those are that the engine in columns leaves to Spark."""
MERGE = {**SPARKS_PLANS, "spark.lakemirror.writer": "merge"}

CONTENDERS: dict[str, Make] = {
    OURS: Ours,
    BY_SPARK: ours(SPARKS_PLANS),
    "textbook": Textbook,
    "deltalake + polars": Polars,
    "floor": Floor,
}


class WrongResult(Exception):
    """A contender's table is not the source's, so its speed means nothing."""


@dataclass
class Lane:
    """A contender, its load, and its seconds and CPU seconds per batch; the first `cold` do not count.

    `first` is how many seconds the initial rows take, and `restarted` is the same for a batch after a restart
    in the same JVM.
    """

    name: str
    load: Load
    files: Files
    contender: Contender
    cold: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    equal: bool | None = None
    first: float | None = None
    restarted: float | None = None

    def figures(self) -> dict[str, Any]:
        """Return what the report needs."""
        return {
            "name": self.name,
            "load": asdict(self.load),
            "cold": self.cold,
            "seconds": [round(each, 4) for each in self.seconds],
            "cpu": [round(each, 3) for each in self.cpu],
            "equal": self.equal,
            "first": self.first,
            "restarted": self.restarted,
        }


def lanes(spark: SparkSession, folder: Path, load: Load, made: Mapping[str, Make], cold: int) -> list[Lane]:
    """Return a lane for each contender, all with the same load, which is made here but not loaded yet."""
    files = make_load(load, folder / "load")
    folders = [folder / f"contender-{number}" for number in range(len(made))]
    return [
        Lane(name, load, files, make(spark, place, load), cold)
        for (name, make), place in zip(made.items(), folders, strict=True)
    ]


def race(spark: SparkSession, starters: Sequence[Lane], *, restart: bool = False) -> list[dict[str, Any]]:
    """Load all, apply all batches, check and close. Returns the lanes' figures. Raises WrongResult.

    With `restart`, the last batch is applied after a restart, which is measured by itself. All contenders
    have to be Lakemirror then.
    """
    try:
        for lane in starters:
            lane.first = _seconds(partial(lane.contender.load, lane.files.snapshot))
        for number in range(len(starters[0].files.batches) - restart):
            for turn in range(len(starters)):
                _take_turn(spark, starters[(number + turn) % len(starters)], number)
        for lane in starters if restart else ():
            assert isinstance(lane.contender, Ours)
            lane.contender.close()
            lane.restarted = _seconds(partial(lane.contender.restart, lane.files.batches[-1]))
        for lane in starters:
            _check(spark, lane)
    finally:
        for lane in starters:
            lane.contender.close()
    return [lane.figures() for lane in starters]


def _seconds(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return round(time.perf_counter() - began, 2)


def _take_turn(spark: SparkSession, lane: Lane, number: int) -> None:
    batch = lane.files.batches[number]
    processes.collect_garbage(spark)  # so that nobody pays for what others left
    cpu, began = _cpu_seconds(), time.perf_counter()
    lane.contender.apply(batch)
    done = time.perf_counter()
    lane.seconds.append(done - began + work_afterwards(spark, done))
    lane.cpu.append(_cpu_seconds() - cpu)


def work_afterwards(spark: SparkSession, done: float) -> float:
    """Wait until Spark has had no job for a while. Returns the seconds for which it still had some.

    What a contender does between batches counts as its time.
    """
    busy, tracker = done, spark.sparkContext.statusTracker()
    while time.perf_counter() - busy < _QUIET_SECONDS:
        if tracker.getActiveJobsIds():
            busy = time.perf_counter()
        time.sleep(0.01)
    return busy - done


def _cpu_seconds() -> float:
    """Return the CPU seconds that this process, its JVM and their Python workers have used so far."""
    return processes.cpu_seconds_of_tree(os.getpid())


def _check(spark: SparkSession, lane: Lane) -> None:
    table = lane.contender.table(spark)
    if table is None:
        return
    lane.equal = is_source(spark, table, lane.load, lane.files.truth)
    if not lane.equal and (lane.contender.right_when_odd or not lane.load.is_odd):
        raise WrongResult(f"{lane.name} does not have the source's rows")


def is_source(spark: SparkSession, table: DataFrame, load: Load, truth: Path) -> bool:
    """Return whether a table has those of the source's final rows that meet the filter.

    They are compared by count and checksum.
    """
    columns, rows = names_of(load.columns), spark.read.parquet(str(truth))
    return checksum(table, columns) == checksum(rows.where(load.filter or "true"), columns)


def checksum(table: DataFrame, columns: Sequence[str]) -> tuple[int, int]:
    """Return the number of rows and the sum of their hashes, independent of their order."""
    hashed = table.select(F.xxhash64(*columns).cast("decimal(38,0)").alias("hash"))
    row = hashed.agg(F.count("*"), F.sum("hash")).first()
    assert row is not None
    return int(row[0]), int(row[1] or 0)


def warm(lane: Mapping[str, Any], what: str = "seconds") -> list[float]:
    """Return a lane's figures for the batches that count."""
    return list(lane[what][lane["cold"] :])


def median(lane: Mapping[str, Any], what: str = "seconds") -> float:
    """Return the median of the batches that count."""
    return statistics.median(warm(lane, what))
