"""How fast changes are applied, side by side: `python -m benchmarks.apply`.

For each batch all contenders apply it in turn, in an order that rotates, so that what else the machine does
hits them alike; the figures are medians of the batches' ratios. Before anything is printed the tables are
compared with the source's rows by count and checksum: ours always, the textbook's on input in order (it has
no way to be right about late events). All share one SparkSession: same shuffle partitions, same settings of
Delta.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contenders import COLUMNS, Contender, Floor, Ours, Textbook
from benchmarks.events import Files, Load, make
from lakemirror.driver.runtime.session import create_session

_SETTINGS = ("spark.sql.shuffle.partitions", "spark.databricks.delta.snapshotPartitions")


class WrongResult(Exception):
    """A contender's table is not the source's: its speed means nothing."""


@dataclass(frozen=True)
class Result:
    """Seconds a batch by contender, and the most heap a contender had in use (MiB)."""

    load: Load
    seconds: dict[str, list[float]]
    heap_mib: dict[str, int]
    equal: dict[str, bool]

    def ratio(self, over: str, to: str = Ours.name) -> float:
        """Median over the batches of `to`'s time by `over`'s: below 1 `to` is faster."""
        pairs = zip(self.seconds[to], self.seconds[over], strict=True)
        return statistics.median(mine / other for mine, other in pairs)

    def rate(self, name: str) -> float:
        """Events a second, by the median batch."""
        events = self.load.events / len(self.seconds[name])
        return events / statistics.median(self.seconds[name])


def measure(spark: SparkSession, load: Load, folder: Path) -> Result:
    """Run all contenders on one load. Raises WrongResult."""
    files = make(load, folder / "load")
    kinds: tuple[Callable[[SparkSession, Path, bool], Contender], ...] = (Ours, Textbook, Floor)
    contenders = [kind(spark, folder / f"contender-{n}", load.schemas) for n, kind in enumerate(kinds)]
    try:
        return _race(spark, load, files, contenders)
    finally:
        for contender in contenders:
            contender.close()


def _race(spark: SparkSession, load: Load, files: Files, contenders: Sequence[Contender]) -> Result:
    for contender in contenders:
        contender.load(files.snapshot)
    seconds: dict[str, list[float]] = {c.name: [] for c in contenders}
    heap: dict[str, int] = dict.fromkeys(seconds, 0)
    for number, batch in enumerate(files.batches):
        for turn in range(len(contenders)):
            contender = contenders[(number + turn) % len(contenders)]
            _reset_heap_peak(spark)
            start = time.perf_counter()
            contender.apply(batch)
            seconds[contender.name].append(time.perf_counter() - start)
            heap[contender.name] = max(heap[contender.name], _heap_peak_mib(spark))
    return Result(load, seconds, heap, _check(spark, contenders, files, load))


def _check(spark: SparkSession, contenders: Sequence[Contender], files: Files, load: Load) -> dict[str, bool]:
    truth = checksum(spark.read.parquet(str(files.truth)))
    equal = {c.name: checksum(c.table()) == truth for c in contenders if not isinstance(c, Floor)}
    in_order = not load.late
    wrong = [name for name, same in equal.items() if not same and (in_order or name == Ours.name)]
    if wrong:
        raise WrongResult(f"not equal to the source: {', '.join(wrong)}; the source has (rows, sum) {truth}")
    return equal


def checksum(table: DataFrame) -> tuple[int, int]:
    """Count of rows, and the sum of their hashes, whatever their order."""
    hashed = table.select(F.xxhash64(*COLUMNS).cast("decimal(38,0)").alias("hash"))
    row = hashed.agg(F.count("*"), F.sum("hash")).first()
    assert row is not None
    return int(row[0]), int(row[1] or 0)


def _heap_pools(spark: SparkSession) -> list[Any]:
    assert spark._jvm is not None
    factory = spark._jvm.java.lang.management.ManagementFactory
    return [pool for pool in factory.getMemoryPoolMXBeans() if pool.getType().name() == "HEAP"]


def _reset_heap_peak(spark: SparkSession) -> None:
    assert spark._jvm is not None
    spark._jvm.java.lang.System.gc()
    for pool in _heap_pools(spark):
        pool.resetPeakUsage()


def _heap_peak_mib(spark: SparkSession) -> int:
    return int(sum(pool.getPeakUsage().getUsed() for pool in _heap_pools(spark)) // 2**20)


def environment(spark: SparkSession) -> dict[str, str]:
    """What the figures depend on."""
    conf = spark.sparkContext.getConf()
    shown = {name: conf.get(name, "?") for name in ("spark.master", "spark.driver.memory")}
    shown |= {name: spark.conf.get(name, "?") or "?" for name in _SETTINGS}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**30
    assert spark._jvm is not None
    return {
        "cpu": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "memory": f"{memory} GiB",
        "java": spark._jvm.java.lang.System.getProperty("java.version"),
        "spark": pyspark.__version__,
        "settings": ", ".join(f"{name}={value}" for name, value in shown.items()),
        "load average": f"{os.getloadavg()[0]:.1f}",
    }


def report(results: Sequence[Result], about: dict[str, str]) -> str:
    """The figures as text."""
    lines = [f"{name}: {value}" for name, value in about.items()]
    for result in results:
        load = result.load
        lines += [
            "",
            f"{load.events:,} events on {load.rows:,} rows, batches of {load.batch:,}, "
            f"schemas {'embedded' if load.schemas else 'none'}, "
            f"late {load.late:.0%}, twice {load.duplicates:.0%}",
            f"  {'':<11}{'s a batch':>10}{'events/s':>10}{'heap MiB':>10}  equal to the source",
        ]
        for name, seconds in result.seconds.items():
            equal = {True: "yes", False: "no", None: "-"}[result.equal.get(name)]
            median = statistics.median(seconds)
            lines.append(
                f"  {name:<11}{median:>10.2f}{result.rate(name):>10.0f}{result.heap_mib[name]:>10}  {equal}"
            )
        ratios = [f"{result.ratio(kind.name):.2f} x {kind.name}" for kind in (Textbook, Floor)]
        lines.append(f"  time of ours: {', '.join(ratios)} (below 1 ours is faster)")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None, spark: SparkSession | None = None) -> list[Result]:
    """Measure what the arguments say, print the report and write it as JSON."""
    options = _options().parse_args(arguments)
    base = Load(
        rows=options.rows,
        events=options.events,
        schemas=options.schemas,
        late=options.late,
        duplicates=options.duplicates,
        seed=options.seed,
    )
    spark = spark or create_session("lakemirror-benchmark", {"spark.driver.memory": options.memory})
    results = []
    for batch in options.batch:
        folder = options.out / f"apply-{batch}"
        shutil.rmtree(folder, ignore_errors=True)
        results.append(measure(spark, replace(base, batch=batch), folder))
        if not options.keep:
            shutil.rmtree(folder)
    about = environment(spark)
    print(report(results, about))
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"environment": about, "results": [asdict(result) for result in results]}
    (options.out / "apply.json").write_text(json.dumps(document, indent=1))
    return results


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.apply", description="How fast changes are applied."
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows mirrored before")
    parser.add_argument("--events", type=int, default=300_000)
    parser.add_argument("--batch", type=int, nargs="+", default=[10_000, 100_000], help="events a batch")
    parser.add_argument("--schemas", action="store_true", help="events with their schema embedded")
    parser.add_argument(
        "--late", type=float, default=0.0, help="share of events that come up to 3 batches late"
    )
    parser.add_argument("--duplicates", type=float, default=0.0, help="share of events that come twice")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="4g", help="heap of the JVM")
    parser.add_argument("--out", type=Path, default=Path(".build/benchmarks"))
    parser.add_argument("--keep", action="store_true", help="leave the tables there")
    return parser


if __name__ == "__main__":
    main()
    sys.exit(0)
