"""A run from beginning to end, with an applier that only counts: what is wired to what."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import lakemirror.driver
from lakemirror.api import CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import CheckpointInUse, TableFailed
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.display import Display
from lakemirror.driver.runtime.events import BatchDone, Event, Finished, Started
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.supported import NotSupported
from tests.support.counting import Counter, make, record
from tests.support.kafka_broker import Broker


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Counter.made = []


@pytest.fixture
def pipeline(tmp_path: Path) -> CdcPipeline:
    (tmp_path / "in").mkdir()
    for i in range(3):
        lines = record("a", i) + record("b", i) * i
        (tmp_path / "in" / f"{i}.jsonl").write_text(lines)
    return make(tmp_path, source={"files": {"path": str(tmp_path / "in"), "maxFilesPerBatch": 2}})


def state(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((path / "state" / "progress.json").read_text())
    return document


def test_a_run_sums_up_what_it_did(pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path) -> None:
    events: list[Event] = []
    summary = run(pipeline, once=True, spark=spark, on_event=events.append, make_applier=Counter)
    assert (summary.status, summary.batches) == ("completed", 2)
    assert (summary.counts.records, summary.counts.no_row_change) == (8, 2)
    assert {name: table.counts.inserted for name, table in summary.tables.items()} == {"a": 3, "b": 3}
    assert summary.lag.caught_up
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    assert [e.result.batch_id for e in events if isinstance(e, BatchDone)] == [0, 1]
    [applier] = Counter.made
    assert {batch.query_id for batch in applier.batches} == {applier.query_id}
    assert applier.collected == [True]
    report = state(tmp_path)
    assert (report["phase"], report["batchId"], report["caughtUp"]) == ("Completed", 1, True)
    assert report["totals"]["inserted"] == 6
    assert spark.range(1).count() == 1  # the session that was given still works
    again = run(pipeline, once=True, spark=spark, make_applier=Counter)
    assert (again.status, again.batches, again.tables) == ("completed", 0, {})
    assert Counter.made[1].batches == Counter.made[1].collected == []
    assert Counter.made[1].query_id == applier.query_id


def test_running_on_until_it_is_told_to_stop(
    pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path
) -> None:
    stop = threading.Event()

    def watch(event: Event) -> None:
        if isinstance(event, BatchDone) and event.result.batch_id == 1:
            (tmp_path / "in" / "late.jsonl").write_text(record("late", 0))
        if isinstance(event, BatchDone) and "late" in event.result.tables:
            stop.set()

    summary = run(pipeline, spark=spark, stopping=stop.is_set, on_event=watch, make_applier=Counter)
    assert (summary.status, summary.counts.records) == ("stopped", 10)
    assert state(tmp_path)["phase"] == "Stopped"


def test_a_failure_is_reported_and_the_batch_repeated(
    pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path
) -> None:
    class Failing(Counter):
        def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
            raise TableFailed("table a could not be written: disk full")

    with pytest.raises(TableFailed, match="disk full"):
        run(pipeline, once=True, spark=spark, make_applier=Failing)
    report = state(tmp_path)
    assert (report["phase"], report["tableFailed"]) == ("Failed", "table a could not be written: disk full")
    faults.arm("before-checkpoint-commit")
    with pytest.raises(faults.InjectedCrash):
        run(pipeline, once=True, spark=spark, make_applier=Counter)
    run(pipeline, once=True, spark=spark, make_applier=Counter)
    first, second = (applier.batches for applier in Counter.made[1:])
    assert first == second[:1]
    assert [batch.batch_id for batch in second] == [0, 1]


def test_a_checkpoint_in_use_is_refused(pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path) -> None:
    with Owner(LocalStorage(tmp_path / "state")), pytest.raises(CheckpointInUse, match=str(os.getpid())):
        run(pipeline, once=True, spark=spark, make_applier=Counter)
    assert Counter.made == []


def test_a_driver_that_was_followed_stops_before_its_next_batch(
    pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path
) -> None:
    def follow(event: Event) -> None:
        if isinstance(event, BatchDone):
            records = tmp_path / "state" / "owner"
            (records / "2.json").write_text((records / "1.json").read_text())

    with pytest.raises(CheckpointInUse):
        run(pipeline, once=True, spark=spark, on_event=follow, make_applier=Counter)
    assert [batch.batch_id for batch in Counter.made[0].batches] == [0]


SOURCES = str(Path(lakemirror.driver.__file__).parents[2])
RUN = """
import sys, time
from lakemirror.api import CdcPipeline
from lakemirror.api.report import Counts
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime.runner import run

class Slow:
    def __init__(self, *_): pass
    def apply(self, raw, batch):
        print("applying", batch.batch_id, flush=True)
        time.sleep(float(sys.argv[2]))
        return BatchResult(batch.batch_id, Counts(records=raw.count()))
    def collect_tombstones(self, *, had_all_at): return 0

summary = run(CdcPipeline.load(sys.argv[1]), make_applier=Slow)
print(summary.status, summary.batches, flush=True)
"""


def start(pipeline: CdcPipeline, path: Path, seconds: float) -> subprocess.Popen[str]:
    """A driver in a process of its own, with its first batch under way."""
    (path / "pipeline.yaml").write_text(pipeline.to_yaml())
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(path / "pipeline.yaml"), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCES},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "applying 0\n"
    return process


@pytest.mark.long
def test_a_signal_lets_the_batch_finish_and_a_kill_frees_the_checkpoint(
    pipeline: CdcPipeline, spark: SparkSession, tmp_path: Path
) -> None:
    killed = start(pipeline, tmp_path, 600)
    with pytest.raises(CheckpointInUse, match=f"process {killed.pid} on host"):
        run(pipeline, once=True, spark=spark, make_applier=Counter)
    killed.kill()
    killed.wait()
    stopped = start(pipeline, tmp_path, 3)
    stopped.send_signal(signal.SIGTERM)
    out, _ = stopped.communicate(timeout=120)
    assert (stopped.returncode, out.splitlines()[-1]) == (0, "stopped 1")
    commits = {file.name for file in (tmp_path / "state" / "files" / "commits").iterdir()}
    assert commits == {"0.json"}
    summary = run(pipeline, once=True, spark=spark, make_applier=Counter)
    assert [batch.batch_id for batch in Counter.made[-1].batches] == [1]
    assert summary.status == "completed"


@pytest.mark.thorough
@pytest.mark.sources
def test_a_run_from_kafka(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    topic = kafka.create("run")
    for i in range(5):
        kafka.send(topic, str(i))
    kafka.flush()
    source = {"kafka": {"bootstrapServers": kafka.bootstrap, "topics": [topic], "maxRecordsPerBatch": 3}}
    pipeline = make(tmp_path, source=source)
    summary = run(pipeline, once=True, spark=spark, make_applier=Counter)
    assert (summary.counts.records, summary.batches, summary.lag.records) == (7, 2, 0)
    assert state(tmp_path)["lagRecords"] == 0
    assert run(pipeline, once=True, spark=spark, make_applier=Counter).batches == 0


KAFKA = {"kafka": {"bootstrapServers": "k:9092", "topics": ["t"]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"source": {"files": {"path": "/in", "format": "csv"}}}, "spec.envelope.format: debezium"),
    ],
)
def test_what_is_not_built_yet_is_refused_by_name(tmp_path: Path, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported, match=field):
        run(make(tmp_path, **{"source": KAFKA, **spec}), make_applier=Counter)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("terminal", [False, True])
def test_what_a_person_sees(pipeline: CdcPipeline, spark: SparkSession, terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=60, highlight=False)
    with Display(console) as display:
        run(pipeline, once=True, spark=spark, on_event=display, make_applier=Counter)
    text = out.getvalue()
    for part in (
        "shop: checkpoint file:///",
        "drift: a.note added (string): added",
        "8 records in 2 batches, 6 applied, 2 no row change, 6 inserted, lag none",
    ):
        assert part in text
    if not terminal:
        lines = text.splitlines()
        assert any(line.startswith("batch 1: ") for line in lines)
        assert "  b: 1 records, 1 applied, 1 inserted" in lines
        summary = [line.split() for line in lines if line.startswith(("table ", "a ", "b "))]
        assert [row[:5] for row in summary] == [
            ["table", "rows", "records", "applied", "inserted"],
            ["a", "-", "3", "3", "3"],
            ["b", "-", "3", "3", "3"],
        ]
        assert "\x1b" not in text
