"""The options of the command line, and what all parts do with them."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import SparkSession

from lakemirror.driver.runtime.session import create_session as create_session

_QUICK_ROWS, _QUICK_BATCH, _QUICK_WARM, _QUICK_COLD = 2_000, 200, 2, 1
_COLD = 3
JAVA_OF_SHORT_RUNS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
"""As in scripts/demo: short runs gain nothing from well-compiled code."""
_SPARK_OF_SHORT_RUNS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_PACKAGES = ("lakemirror", "pyspark", "delta-spark", "pyarrow", "deltalake", "polars")


@dataclass(frozen=True)
class Options:
    """`rows`, `batch`, `warm` and `cold`, if given, replace a part's own sizes."""

    quick: bool
    rows: int | None
    batch: int | None
    warm: int | None
    cold: int | None
    memory: str
    work: Path
    results: Path
    keep: bool
    postgres: str
    kafka: str
    connect: str
    tables: int | None
    kubeconfig: Path | None
    pipelines: list[int] | None

    def rows_or(self, full: int) -> int:
        """Return how many rows a table has initially."""
        return self.rows or (min(full, _QUICK_ROWS) if self.quick else full)

    def batch_or(self, full: int) -> int:
        """Return how many events a batch has."""
        return self.batch or (min(full, _QUICK_BATCH) if self.quick else full)

    def batches_or(self, full: int = 15, cold: int = _COLD) -> int:
        """Return how many batches there are: those that count, and the cold ones before them."""
        warm = self.warm or (min(full, _QUICK_WARM) if self.quick else full)
        return self.cold_or(cold) + warm

    def cold_or(self, full: int = _COLD) -> int:
        """Return how many batches come before those that count."""
        return self.cold if self.cold is not None else min(full, _QUICK_COLD) if self.quick else full

    @contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Create an empty folder, and remove it at the end unless it is to be kept."""
        folder = (self.work / name).absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            if not self.keep:
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def spark_settings(self) -> dict[str, str]:
        """Spark settings in addition to those that the driver makes itself."""
        return {"spark.driver.memory": self.memory, **(_SPARK_OF_SHORT_RUNS if self.quick else {})}

    @contextmanager
    def session(self, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[SparkSession]:
        """Create a session like that of `lakemirror run`, with further Spark settings."""
        spark = create_session("lakemirror-benchmark", {**self.spark_settings, **settings})
        try:
            yield spark
        finally:
            spark.stop()


def parser(parts: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of the command line.

    Its result has, besides the options, `part`: the names of the parts.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures, and writes RESULTS.md, RESULTS.json and plots. Without a part: all of them.",
    )
    add = parser.add_argument
    add("part", nargs="*", metavar="part", help=", ".join(parts))
    add("--quick", action="store_true", help="small sizes, to see that it works; goes to .build")
    add("--rows", type=int, help="rows of a table at first, in place of a part's own number")
    add("--batch", type=int, help="events a batch, in place of a part's own number")
    add("--warm", type=int, help="batches that count, in place of 15")
    add("--cold", type=int, help="batches before those that count, in place of a part's own number")
    add("--memory", default="4g", help="heap of the JVM (4g)")
    add("--work", type=Path, default=Path(".build/benchmarks"), help="folder for data (.build/benchmarks)")
    add("--results", type=Path, help="folder for RESULTS.md (benchmarks)")
    add("--keep", action="store_true", help="leave the data there")
    add("--postgres", default="localhost:15432", help="latency: PostgreSQL with wal_level=logical, user cdc")
    add("--kafka", default="localhost:19092", help="latency and backlog: Kafka")
    add("--connect", default="localhost:18083", help="latency: Kafka Connect with Debezium's connector")
    add("--tables", type=int, help="tables: how many, in place of 100")
    add("--kubeconfig", type=Path, help="operator: of a cluster without pipelines, where some may be made")
    add("--pipelines", type=int, nargs="+", help="operator: how many, in place of 100 1000 5000")
    return parser


def options_of(said: argparse.Namespace) -> Options:
    """Return the options of a parsed command line. Quick ones make Java compile quickly instead of well."""
    if said.quick:
        os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OF_SHORT_RUNS)
    values = {name: value for name, value in vars(said).items() if name != "part"}
    if values["results"] is None:
        values["results"] = said.work / "quick" if said.quick else Path("benchmarks")
    return Options(**values)


def environment(memory: str) -> dict[str, str]:
    """Return what the figures depend on."""
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    about = {
        "machine": f"{len(os.sched_getaffinity(0))} cores ({_processor()}), {pages / 2**30:.0f} GiB",
        "system": f"{platform.system()}, Python {platform.python_version()}, {_java()}",
        "heap": memory,
        "commit": _commit(),
    }
    return about | {name: _version(name) for name in _PACKAGES}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _java() -> str:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return f"Java {said.split(chr(34))[1]}" if said.count('"') > 1 else "Java"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
