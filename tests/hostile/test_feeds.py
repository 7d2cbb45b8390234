"""Sources that change under the driver, and troubles that time heals."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline, Pipeline
from lakemirror.api.source import KafkaSource
from lakemirror.driver.checkpoint import tokens
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.read.base import Batch
from lakemirror.driver.read.files.listing import Inputs
from lakemirror.driver.read.kafka import KafkaFeed, SourceLost
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime import retry
from lakemirror.driver.runtime.runner import run
from tests.driver.read.test_reach import Reports, quickly
from tests.support.counting import Counter, make
from tests.support.kafka_broker import Broker

# --- troubles that time heals


class Flaky:
    """An applier that fails a number of times."""

    failures = 0
    calls: list[str]

    def __init__(self, *_: object) -> None:
        pass

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        Flaky.calls.append(f"batch {batch.batch_id}")
        if Flaky.failures:
            Flaky.failures -= 1
            raise OSError("No space left on device")
        return BatchResult(batch.batch_id)

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        return 0

    def forget(self) -> None:
        Flaky.calls.append("forget")


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CdcPipeline:
    """Two files, a batch each; delays are short."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.05, 0.05, 0.05))
    Flaky.calls = []
    (tmp_path / "in").mkdir()
    for number in range(2):
        given = {"topic": "t", "partition": 0, "offset": number, "timestamp": 0, "key": None, "value": "v"}
        (tmp_path / "in" / f"{number}.jsonl").write_text(json.dumps(given) + "\n")
    return Pipeline(
        "flaky",
        source={"files": {"path": str(tmp_path / "in"), "maxFilesPerBatch": 1}},
        target={"path": f"{tmp_path}/out/{{table}}"},
        checkpoint=f"{tmp_path}/state",
    )


def test_a_batch_that_fails_for_a_while_is_applied_in_the_same_run(
    pipeline: CdcPipeline, spark: SparkSession
) -> None:
    Flaky.failures = 3
    summary = run(pipeline, once=True, spark=spark, make_applier=Flaky)
    assert Flaky.calls == ["batch 0", "forget"] * 3 + ["batch 0", "batch 1"]
    assert summary.status == "completed"
    assert ["No space left" in warning for warning in summary.warnings] == [True] * 3


def test_one_that_goes_on_failing_ends_the_run(pipeline: CdcPipeline, spark: SparkSession) -> None:
    Flaky.failures = 100
    with pytest.raises(OSError, match="No space left"):
        run(pipeline, once=True, spark=spark, make_applier=Flaky)
    assert Flaky.calls.count("batch 0") == 4


def test_a_source_that_is_away_for_a_while_is_read_in_the_same_run(
    pipeline: CdcPipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    Flaky.failures, away = 0, [True, False, True]
    listing = Inputs.files

    def list_or_fail(self: Any) -> Any:
        if away and away.pop():
            raise OSError("the share is away")
        return listing(self)

    monkeypatch.setattr(Inputs, "files", list_or_fail)
    summary = run(pipeline, once=True, spark=spark, make_applier=Flaky)
    assert Flaky.calls == ["batch 0", "batch 1"]
    assert any("the share is away" in warning for warning in summary.warnings)


# --- topics that are deleted, and made again


class Kafka:
    """A feed with its checkpoint, and the values that it gave."""

    def __init__(self, spark: SparkSession, broker: Broker, path: Path, *topics: str) -> None:
        self.spark, self.storage = spark, LocalStorage(path)
        document = {"bootstrapServers": broker.bootstrap, "topics": list(topics)}
        self.source = KafkaSource.model_validate(document)
        self.spec = Pipeline(
            "lost",
            source={"kafka": document},
            target={"path": "/lake/{table}"},
            checkpoint=str(path),
            spark={"resetToken": "1"},
        ).spec
        self.values: list[str] = []
        self.warnings: list[str] = []

    def feed(self) -> KafkaFeed:
        return KafkaFeed(
            self.spark, self.source, self.storage, interval_seconds=0.2, warn=self.warnings.append
        )

    def apply(self, frame: DataFrame, batch: Batch) -> None:
        self.values += sorted(bytes(row.value).decode() for row in frame.select("value").collect())

    def once(self) -> list[str]:
        """What came in a run once."""
        self.values = []
        feed = self.feed()
        try:
            feed.run(self.apply, once=True, stopping=lambda: False)
        finally:
            feed.close()
        return self.values

    def reset(self) -> None:
        """What a new resetToken does at the next start."""
        tokens.begin(self.storage, self.spec)


def fill(broker: Broker, topic: str, *values: str) -> None:
    for value in values:
        broker.send(topic, value)
    broker.flush()


@pytest.mark.thorough
@pytest.mark.sources
def test_a_deleted_topic_stops_no_other_unless_something_is_lost(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    kept, gone, never = kafka.create("kept"), kafka.create("gone"), "never.made"
    fill(kafka, kept, "a")
    fill(kafka, gone, "x", "y")
    given = Kafka(spark, kafka, tmp_path, kept, gone, never)
    assert given.once() == ["a", "x", "y"]
    kafka.delete(gone)
    fill(kafka, kept, "b")
    assert given.once() == ["b"]
    assert [warning.split(";")[0] for warning in given.warnings] == [
        "topic never.made does not exist",
        "topic never.made does not exist",
        f"topic {gone} was deleted",
    ]
    fill(kafka, kept, "c")
    assert given.once() == ["c"]

    fill(kafka, kept, "d", "e", "f")
    given.feed()._check_topics()
    kafka.expire(kept, 5)
    with pytest.raises(
        SourceLost, match=r"partition 0: offset 3 is the next .* deleted all before 5.*resetToken"
    ):
        given.once()
    given.reset()
    assert given.once() == ["f"]
    fill(kafka, kept, "g")
    given.feed()._check_topics()
    kafka.delete(kept)
    with pytest.raises(SourceLost, match=r"was deleted before all of it was read \(partition 0: offset 6 "):
        given.once()


@pytest.mark.thorough
@pytest.mark.sources
@pytest.mark.parametrize("records", [1, pytest.param(5, marks=pytest.mark.thorough)])
def test_a_topic_that_was_made_again_is_noticed(
    records: int, spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """With fewer records than were read, and with more."""
    topic = kafka.create("again")
    fill(kafka, topic, "old", "older")
    given = Kafka(spark, kafka, tmp_path, topic)
    assert given.once() == ["old", "older"]
    kafka.delete(topic)
    kafka.create_named(topic)
    new = [f"new {number}" for number in range(records)]
    fill(kafka, topic, *new)
    with pytest.raises(SourceLost, match=r"deleted and made again .* Set spec\.spark\.resetToken"):
        given.once()
    given.reset()
    assert given.once() == new


@pytest.mark.thorough
@pytest.mark.sources
def test_a_topic_that_is_deleted_meanwhile_stops_no_other(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    kept, gone = kafka.create("kept"), kafka.create("gone")
    fill(kafka, kept, "a")
    fill(kafka, gone, "x")
    given = Kafka(spark, kafka, tmp_path, kept, gone)
    stop, failures = threading.Event(), list[BaseException]()

    def read() -> None:
        try:
            given.feed().run(given.apply, once=False, stopping=stop.is_set)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        wait(lambda: len(given.values) == 2)
        kafka.delete(gone)
        fill(kafka, kept, "b")
        wait(lambda: "b" in given.values or bool(failures))
    finally:
        stop.set()
        thread.join(120)
    assert failures == []
    assert sorted(given.values) == ["a", "b", "x"]


class Held(Counter):
    """An applier that holds one batch until it is let go, once it has ``read`` it, or before."""

    batch: int
    read: bool
    reached: threading.Event
    release: threading.Event

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        if batch.batch_id != Held.batch:
            return super().apply(raw, batch)
        result = super().apply(raw, batch) if Held.read else None
        Held.reached.set()
        assert Held.release.wait(120)
        return result or super().apply(raw, batch)

    def forget(self) -> None:
        """Nothing is kept of a batch that failed."""


@pytest.mark.thorough
@pytest.mark.sources
@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(False, id="before its batch is planned"),
        pytest.param(True, id="after", marks=pytest.mark.thorough),
    ],
)
def test_what_retention_deletes_under_a_running_driver_is_told_as_lost(
    planned: bool, spark: SparkSession, kafka: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver lags behind, because of the batch that is held. Reset, it reads on with what is left."""
    quickly(monkeypatch)
    Held.batch, Held.read = int(planned), not planned
    Held.reached, Held.release = threading.Event(), threading.Event()
    topic, reports, failures = kafka.create("retained"), Reports(), list[BaseException]()
    given = {"bootstrapServers": kafka.bootstrap, "topics": [topic]}
    pipeline = make(tmp_path, source={"kafka": given}, spark={"resetToken": "1"})
    fill(kafka, topic, "a", "b")

    def read() -> None:
        try:
            run(pipeline, spark=spark, sinks=[reports], make_applier=Held)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        if planned:
            wait(lambda: bool(reports.all) and reports.all[-1].batch_id == 0)
            fill(kafka, topic, "c", "d", "e", "f")
            assert Held.reached.wait(120)
        else:
            assert Held.reached.wait(120)
            fill(kafka, topic, "c", "d", "e", "f")
        kafka.expire(topic, 4)
    finally:
        Held.release.set()
        thread.join(180)
    [error] = failures
    assert isinstance(error, SourceLost)
    lost = "offset 2 is the next to be read, and the brokers have deleted all before 4"
    assert f"topic {topic}, partition 0: {lost}" in str(error)
    last = reports.all[-1]
    assert (last.phase, last.source_lost, last.batch_id) == ("Failed", str(error), 0)
    again = make(tmp_path, source={"kafka": given}, spark={"resetToken": "2"})
    assert run(again, once=True, spark=spark, make_applier=Counter).status == "completed"
    assert [batch.extent for batch in Counter.made[-1].batches] == [{topic: {"0": [4, 6]}}]


def wait(condition: Any, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)
