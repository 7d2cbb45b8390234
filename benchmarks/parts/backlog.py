"""Measures how long it takes to work off a backlog in Kafka, beside a rival that reads nothing but Kafka."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks import ematix
from benchmarks.columns import all_types_of
from benchmarks.events import Files, Load, make
from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.race import OURS, WrongResult, is_source
from benchmarks.running import Ended, Watch, lakemirror, running
from benchmarks.topic import KafkaMissing, filled

TITLE = "A backlog in Kafka"
_ROUNDS = 3
_QUIET_SECONDS, _QUIET_SECONDS_OF_SHORT_RUNS = 60.0, 10.0
"""How long no version comes before a mirror counts as complete. Whether it is shows in its rows."""


@dataclass(frozen=True)
class Mirror:
    """A mirror: the command that keeps it, and where it is."""

    command: Sequence[str]
    path: Path


@dataclass(frozen=True)
class Topics:
    """A topic with the initial rows, and one with the changes that are measured."""

    snapshot: str
    changes: str


Prepare = Callable[[Topics, Path], Mirror]
"""Makes a mirror of the initial rows in a folder, and returns how it goes on."""


def run(options: Options) -> dict[str, Any]:
    """Apply all changes to mirrors of the initial rows, in turn, each time by a new process."""
    load = Load(options.rows_or(200_000), options.batch_or(10_000), options.batches_or(30, cold=0))
    made: dict[str, Prepare] = {OURS: lambda topics, folder: _ours(options, load, topics, folder)}
    if ematix.is_installed():
        made[ematix.PACKAGE] = lambda topics, folder: _ematix(options, load, topics, folder)
    rounds, quiet = (1, _QUIET_SECONDS_OF_SHORT_RUNS) if options.quick else (_ROUNDS, _QUIET_SECONDS)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in made}
    with options.folder("backlog") as folder, options.session() as spark:
        files = make(load, folder / "load")
        try:
            with _topics(options.kafka, files) as topics:
                for number, (name, prepare) in enumerate([*made.items()] * rounds):
                    if any("ended" in each for each in found[name]):
                        continue
                    with options.folder(f"backlog/{number}") as place:
                        found[name].append(_run(spark, prepare, topics, place, load, files.truth, quiet))
        except KafkaMissing as error:
            return {"skipped": f"{error}; --kafka says where it is."}
    if not all(each.get("equal") for each in found[OURS]):
        raise WrongResult(f"{OURS} does not have the source's rows: {found[OURS]}")
    return {"load": asdict(load), "runs": found}


def _run(
    spark: SparkSession, prepare: Prepare, topics: Topics, place: Path, load: Load, truth: Path, quiet: float
) -> dict[str, Any]:
    """Return the figures of one run, or what its process said if it ended by itself."""
    try:
        mirror = prepare(topics, place)
        measured = _measure(mirror, place / "run.log", quiet)
    except Ended as error:
        return {"ended": str(error).replace(str(place), "")}
    rows = spark.read.format("delta").load(str(mirror.path))
    return {**measured, "equal": is_source(spark, rows, load, truth)}


@contextmanager
def _topics(kafka: str, files: Files) -> Iterator[Topics]:
    with (
        filled(kafka, "snapshot", files.snapshot) as snapshot,
        filled(kafka, "changes", files.batches) as changes,
    ):
        yield Topics(snapshot, changes)


def _ours(options: Options, load: Load, topics: Topics, folder: Path) -> Mirror:
    types = {f"public.{load.names[0]}": all_types_of(load.columns)}
    first = lakemirror(options, "backlog", options.kafka, [topics.snapshot], folder, types)
    with (folder / "first.log").open("w") as log:
        subprocess.run([*first, "--once"], stdout=log, stderr=log, check=True)
    command = lakemirror(options, "backlog", options.kafka, [topics.snapshot, topics.changes], folder, types)
    return Mirror(command, folder / "lake" / load.names[0])


def _ematix(options: Options, load: Load, topics: Topics, folder: Path) -> Mirror:
    name = load.names[0]
    path = ematix.prepare(folder, name, load)
    return Mirror(ematix.command(options.kafka, topics.changes, folder, name), path)


def _measure(mirror: Mirror, log: Path, quiet: float) -> dict[str, Any]:
    """Return the seconds from the start of the process to the first and the last version that it made."""
    watch, before = Watch(mirror.path), _versions(mirror.path)
    began = time.time()
    with running(mirror.command, log), watch:
        watch.until_there_are(before + 1)
        watch.until_quiet(quiet)
    seconds = [round(at - began, 2) for version, at in watch.times.items() if version >= before]
    return {"first": seconds[0], "last": seconds[-1], "commits": len(seconds)}


def _versions(table: Path) -> int:
    """Return how many versions there are already."""
    return len(list((table / "_delta_log").glob("*.json")))


def text(figures: dict[str, Any]) -> str:
    """Return a table of the medians, with a line for each mirror."""
    load, lines = figures["load"], []
    events = load["batch"] * load["batches"]
    ended = {name: runs[0]["ended"] for name, runs in figures["runs"].items() if "ended" in runs[0]}
    for name, runs in figures["runs"].items():
        if name in ended:
            continue
        first, last, commits = (
            statistics.median(each[part] for each in runs) for part in ("first", "last", "commits")
        )
        equal = "yes" if all(each["equal"] for each in runs) else "no"
        lines.append([name, f"{first:.1f}", f"{last:.1f}", f"{events / last:,.0f}", f"{commits:,.0f}", equal])
    about = (
        f"{events:,} changes of one table with {load['rows']:,} rows, all of them in a topic with three "
        "partitions before the process starts; the mirror has the initial rows already. From the start of "
        "the process to its first commit and to its last; medians of "
        f"{len(next(iter(figures['runs'].values())))} runs in turn."
    )
    header = ("", "s to the first commit", "s to the last", "events/s", "commits", "equal")
    failures = "".join(f"\n\n{name} ended by itself: `{message}`" for name, message in ended.items())
    return f"{about}\n\n{table(header, lines)}{failures}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
