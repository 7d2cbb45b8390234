"""Measures how long a row takes from its commit in PostgreSQL to the mirror."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from benchmarks.markdown import table
from benchmarks.options import Options
from benchmarks.postgres import NAME, Source, SourceMissing
from benchmarks.running import Watch, lakemirror, running
from benchmarks.stats import percentile

TITLE = "Latency"
_A_SECOND = 100
_UPDATES = 3
"""Every third commit changes an existing row; the others insert one."""
_QUIET_SECONDS = 15.0


def run(options: Options) -> dict[str, Any]:
    """Commit at an even pace while ours runs; the warm-up does not count."""
    source = Source(options.postgres, options.kafka, options.connect)
    try:
        source.require()
    except SourceMissing as error:
        return {"skipped": f"{error}; --postgres, --kafka and --connect say where they are."}
    warm_up, counted = (5, 5) if options.quick else (60, 120)
    with options.folder("latency") as folder, source.table():
        watch = Watch(folder / "lake" / "orders")
        command = lakemirror(options, NAME.replace("_", "-"), source.kafka, [source.topic], folder)
        with running(command, folder / "run.log"), watch:
            committed = _commit(source, range(1))
            watch.until_there_are(1)
            committed += _commit(source, range(1, _A_SECOND * (warm_up + counted)))
            watch.until_quiet(_QUIET_SECONDS)
        seen = _seen(options, watch)
    seconds = latencies(committed, seen)
    if len(seconds) < len(committed):
        raise RuntimeError(f"only {len(seconds)} of {len(committed)} changes reached the mirror")
    seconds = seconds[_A_SECOND * warm_up :]
    counts = Counter(f"{each:.2f}" for each in seconds)
    return {"rate": _A_SECOND, "interval": "1s", "counts": dict(sorted(counts.items()))}


def _commit(source: Source, numbers: range) -> list[float]:
    """Commit changes with these numbers at an even pace. Returns when each was known to be committed."""
    times: list[float] = []
    with source.client() as client:
        assert client.stdin is not None
        _ask(client, "SELECT 'ready';")
        began = time.time()
        for place, n in enumerate(numbers):
            time.sleep(max(0.0, began + place / _A_SECOND - time.time()))
            _ask(client, _statement(n))
            times.append(time.time())
        client.stdin.close()
    return times


def _ask(client: subprocess.Popen[str], statement: str) -> None:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{statement}\n")
    if not client.stdout.readline():
        raise RuntimeError(f"psql ended at {statement}")


def _statement(n: int) -> str:
    """Return the statement of one change, which returns its number."""
    if n % _UPDATES == _UPDATES - 1:
        return f"UPDATE orders SET n = {n} WHERE id = {n - 1} RETURNING n;"
    return f"INSERT INTO orders VALUES ({n}, {n}, 'note {n}') RETURNING n;"


def _seen(options: Options, watch: Watch) -> list[tuple[float, int]]:
    """Return when each version came, and the highest number in it."""
    with options.session() as spark:
        reader = spark.read.format("delta")
        found = []
        for version, at in watch.times.items():
            rows = reader.option("versionAsOf", version).load(str(watch.table)).agg({"n": "max"}).collect()
            found.append((at, -1 if rows[0][0] is None else int(rows[0][0])))
    return found


def latencies(committed: Sequence[float], seen: Sequence[tuple[float, int]]) -> list[float]:
    """Return the seconds from each commit until it is seen.

    `seen`: when a version came, and the highest number in it. Numbers come in order because there is one
    partition, so a version with a number has all before it.
    """
    found: list[float] = []
    for at, highest in seen:
        found += [at - moment for moment in committed[len(found) : highest + 1]]
    return found


def text(figures: dict[str, Any]) -> str:
    """Return a table of the median and the slowest."""
    seconds = [float(each) for each, count in figures["counts"].items() for _ in range(count)]
    shares = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "longest": 1.0}
    row = [f"{percentile(seconds, share):.2f} s" for share in shares.values()]
    about = (
        f"{figures['rate']} commits a second in PostgreSQL, two inserts and an update in turn, through "
        "Debezium and Kafka to a mirror with `trigger.interval: "
        f"{figures['interval']}`; all on one machine. From the moment when psql says that a commit is done "
        f"until the mirror has a version with it; {len(seconds):,} commits."
    )
    return f"{about}\n\n{table(('', *shares), [('commit to mirror', *row)])}"


def plots(figures: dict[str, Any]) -> dict[str, str]:
    """Return no plots."""
    return {}
