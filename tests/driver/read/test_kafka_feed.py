"""The Kafka feed against a real broker."""

from __future__ import annotations

import json
import shutil
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import _parse_datatype_string

from lakemirror.api.source import KafkaSource
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.read.base import RAW, Batch
from lakemirror.driver.read.kafka import KafkaFeed, SourceLost, tasks
from lakemirror.driver.read.login import client_options
from tests.support.beside import beside
from tests.support.kafka_broker import COMPACTED, Broker

pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee("The same batch has the same input"),
]


@dataclass
class Setup:
    """A feed's checkpoint, and an apply that keeps what it was given."""

    spark: SparkSession
    broker: Broker
    path: Path
    batches: list[tuple[Batch, list[Row]]] = field(default_factory=list)
    crash: BaseException | None = None
    schema: str = ""
    tasks: list[int] = field(default_factory=list)
    sessions: list[SparkSession] = field(default_factory=list)
    warn: Callable[[str], None] = print

    def feed(self, **source: Any) -> KafkaFeed:
        document = {"bootstrapServers": self.broker.bootstrap, **source}
        return KafkaFeed(
            self.spark,
            KafkaSource.model_validate(document),
            LocalStorage(self.path),
            interval_seconds=0.2,
            warn=self.warn,
        )

    def apply(self, frame: DataFrame, batch: Batch) -> None:
        if self.crash is not None:
            crash, self.crash = self.crash, None
            raise crash
        self.schema = frame.schema.simpleString()
        self.tasks.append(frame.rdd.getNumPartitions())
        self.sessions.append(frame.sparkSession)
        rows = frame.orderBy("topic", "partition", "offset").collect()
        self.batches.append((batch, rows))

    def once(self, **source: Any) -> KafkaFeed:
        feed = self.feed(**source)
        feed.run(self.apply, once=True, stopping=lambda: False)
        return feed

    @property
    def values(self) -> list[bytes | None]:
        return [row.value and bytes(row.value) for _, rows in self.batches for row in rows]

    @property
    def extents(self) -> list[dict[str, Any]]:
        return [batch.extent for batch, _ in self.batches]


@pytest.fixture
def setup(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Setup:
    return Setup(spark, kafka, tmp_path / "state")


def fill(broker: Broker, topic: str, values: list[str], *, partition: int = 0, **other: Any) -> None:
    for value in values:
        broker.send(topic, value, partition=partition, **other)
    broker.flush()


@pytest.mark.parametrize(
    ("sizes", "cores", "expected"),
    [
        ([5], 2, 1),
        ([5] * 100, 2, 4),
        ([5] * 100, 64, 100),
        ([100, 1_000_000], 2, 2),
        ([10_000] * 50, 2, 50),
        ([2_000] * 50, 2, 10),
        ([2_001] * 50, 2, 11),
    ],
)
def test_a_batch_has_as_many_tasks_as_its_records_need(sizes: list[int], cores: int, expected: int) -> None:
    extent = {"topic": {str(number): [7, 7 + size] for number, size in enumerate(sizes)}}
    assert tasks(extent, cores) == expected


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        ({}, 0),
        ({"t": {"0": [5, 9], "1": [0, 1]}, "files": {"0": [1, 2]}}, 6),
        ({"files": [["a.json", "5"], ["b.json", "9"]]}, None),
    ],
)
def test_a_batch_knows_how_many_offsets_it_has(extent: dict[str, Any], expected: int | None) -> None:
    assert Batch("q", 1, extent).offsets == expected


def test_many_partitions_with_little_in_them_are_read_together(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("wide", 30)
    for partition in range(30):
        fill(kafka, topic, [f"{partition}.{n}" for n in range(3)], partition=partition)
    setup.once(topics=[topic])
    assert setup.values == [f"{partition}.{n}".encode() for partition in range(30) for n in range(3)]
    assert setup.tasks == [2 * setup.spark.sparkContext.defaultParallelism]


def test_a_record_as_it_is(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("plain", 2)
    headers = [("a", b"1"), ("b", None), ("\u00e4", b"\xff\x00")]
    kafka.send(topic, b"\x00\xff", key="k", partition=1, headers=headers, timestamp=1_700_000_000_123)
    kafka.send(topic, None, key="k", partition=1)
    kafka.send(topic, "", key=None, partition=0)
    kafka.flush()
    setup.once(topics=[topic])
    [(batch, rows)] = setup.batches
    keyless, full, tombstone = rows
    assert setup.schema == _parse_datatype_string(RAW).simpleString()
    assert (full.topic, full.partition, full.offset, bytes(full.key)) == (topic, 1, 0, b"k")
    assert bytes(full.value) == b"\x00\xff"
    assert [(h.key, h.value and bytes(h.value)) for h in full.headers] == headers
    assert full.timestamp.astimezone(UTC).timestamp() == 1_700_000_000.123
    assert (tombstone.offset, tombstone.value) == (1, None)
    assert (keyless.key, bytes(keyless.value)) == (None, b"")
    assert {(row.file, row.row, row.problem) for row in rows} == {(None, None, None)}
    assert batch.extent == {topic: {"0": [0, 1], "1": [0, 2]}}


def test_batches_are_bounded_and_a_second_run_does_nothing(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("bounded")
    fill(kafka, topic, [str(i) for i in range(10)])
    feed = setup.once(topics=[topic], maxRecordsPerBatch=4)
    assert setup.extents == [{topic: {"0": span}} for span in ([0, 4], [4, 8], [8, 10])]
    assert [batch.batch_id for batch, _ in setup.batches] == [0, 1, 2]
    assert all(each is setup.sessions[0] for each in setup.sessions), "what is kept belongs to a session"
    assert feed.lag().records == 0
    assert feed.lag().caught_up
    again = setup.once(topics=[topic])
    assert len(setup.batches) == 3
    assert again.query_id == feed.query_id
    fill(kafka, topic, ["new"])
    assert again.lag().records == 1
    setup.once(topics=[topic])
    assert setup.values == [*(str(i).encode() for i in range(10)), b"new"]
    assert setup.batches[3][0] == Batch(feed.query_id, 3, {topic: {"0": [10, 11]}})


def test_starting_at_offsets(setup: Setup, kafka: Broker) -> None:
    topic, other = kafka.create("at", 2), kafka.create("at")
    for partition in (0, 1):
        fill(kafka, topic, [f"{partition}.{i}" for i in range(5)], partition=partition)
    fill(kafka, other, ["other"])
    setup.once(topics=[topic, other], startingOffsets={topic: {"1": 3}})
    assert setup.extents == [{topic: {"0": [0, 5], "1": [3, 5]}, other: {"0": [0, 1]}}]


@pytest.mark.parametrize("start", [1, 6])
def test_starting_where_the_broker_has_nothing(setup: Setup, kafka: Broker, start: int) -> None:
    """A reset would start there again, so the message names the field."""
    topic = kafka.create("nowhere")
    fill(kafka, topic, [str(i) for i in range(5)])
    kafka.expire(topic, 2)
    said = rf"startingOffsets starts partition 0 of topic {topic} at offset {start}, and only 2 to 5 are"
    with pytest.raises(SourceLost, match=said):
        setup.once(topics=[topic], startingOffsets={topic: {"0": start}})
    setup.once(topics=[topic], startingOffsets={topic: {"0": 5}})
    assert setup.batches == []
    fill(kafka, topic, ["5"])
    setup.once(topics=[topic], startingOffsets={topic: {"0": 1}})
    assert setup.values == [b"5"], "where a checkpoint has begun, it goes on"


def test_starting_at_a_moment(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("moment", 2)
    stamp = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp() * 1000)
    for i, value in enumerate(["early", "exact", "late"]):
        fill(kafka, topic, [value], timestamp=stamp + (i - 1) * 1000)
    fill(kafka, topic, ["long ago"], partition=1, timestamp=stamp - 1000)
    setup.once(topics=[topic], startingOffsets={"timestamp": "2026-03-01T01:00:00+01:00"})
    assert setup.values == [b"exact", b"late"]


def test_starting_at_the_end(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("latest")
    fill(kafka, topic, ["before"])
    feed = setup.once(topics=[topic], startingOffsets="latest")
    assert (setup.batches, feed.lag().records) == ([], 0)
    fill(kafka, topic, ["after"])
    setup.once(topics=[topic], startingOffsets="latest")
    assert setup.values == [b"after"]


def test_a_new_topic_is_picked_up_while_running(setup: Setup, kafka: Broker) -> None:
    first = kafka.create("growing.a")
    prefix = first.removeprefix("growing.a.")
    fill(kafka, first, ["one"])
    feed = setup.feed(topicPattern=rf"growing\..*{prefix}")
    with beside(lambda stop: feed.run(setup.apply, once=False, stopping=stop.is_set)):
        until(lambda: setup.values == [b"one"])
        second = f"growing.b.{prefix}"
        kafka.create_named(second)
        fill(kafka, second, ["two"])
        kafka.create_named(f"shrinking.{prefix}")
        fill(kafka, f"shrinking.{prefix}", ["not matched"])
        until(lambda: len(setup.values) == 2)
        fill(kafka, second, ["three"])
        until(lambda: len(setup.values) == 3)
    assert setup.values == [b"one", b"two", b"three"]
    assert setup.extents[1] == {second: {"0": [0, 1]}}
    assert list(setup.feed(topicPattern=rf"growing\..*{prefix}").pending()) == []


def test_a_pattern_that_matches_nothing_is_told(setup: Setup, kafka: Broker) -> None:
    topic, said = kafka.create("somewhere"), list[str]()
    setup.warn = said.append
    setup.once(topicPattern=topic[:-1])
    assert setup.batches == []
    assert [warning for warning in said if "matches the whole name of no topic" in warning]


def test_partitions_that_are_added_are_read_from_their_beginning(setup: Setup, kafka: Broker) -> None:
    """While the driver runs, and while none runs: no record is missed, and none comes twice."""
    topic, sent = kafka.create("wider", 2), list[str]()

    def fill_all(name: str, partitions: int) -> None:
        for partition in range(partitions):
            values = [f"{name}.{partition}.{n}" for n in range(3)]
            fill(kafka, topic, values, partition=partition)
            sent.extend(values)

    fill_all("first", 2)
    feed = setup.feed(topics=[topic])
    with beside(lambda stop: feed.run(setup.apply, once=False, stopping=stop.is_set)):
        until(lambda: len(setup.values) == len(sent))
        kafka.widen(topic, 4)
        fill_all("running", 4)
        until(lambda: len(setup.values) >= len(sent))
        fill_all("later", 4)
        until(lambda: len(setup.values) >= len(sent))
        assert feed.lag().records == 0
    kafka.widen(topic, 5)
    fill_all("stopped", 5)
    again = setup.feed(topics=[topic])
    assert again.lag().records == 15
    again.run(setup.apply, once=True, stopping=lambda: False)
    assert again.lag().caught_up
    setup.once(topics=[topic])
    assert sorted(setup.values, key=str) == sorted((value.encode() for value in sent), key=str)
    ends = {str(p): end for p, end in enumerate([12, 12, 9, 9, 3])}
    assert {p: span[1] for each in setup.extents for p, span in each[topic].items()} == ends


def test_a_new_partition_whose_first_records_are_deleted_is_read_on(setup: Setup, kafka: Broker) -> None:
    """Nothing of it was known, so this is told and stops nothing. The others are read as always."""
    told: list[str] = []
    setup.warn = told.append
    topic = kafka.create("wider")
    fill(kafka, topic, ["a"])
    setup.once(topics=[topic])
    kafka.widen(topic, 2)
    fill(kafka, topic, ["b"])
    fill(kafka, topic, ["gone", "c"], partition=1)
    kafka.expire(topic, 1, partition=1)
    setup.once(topics=[topic])
    setup.once(topics=[topic])
    assert setup.values == [b"a", b"b", b"c"]
    assert [each.split(" and is read")[0] for each in told] == [f"topic {topic}, partition 1 is new here"]


def test_a_topic_that_the_manifest_leaves_out_ends_nothing(setup: Setup, kafka: Broker) -> None:
    """Also with records that were not read. Named again, it is a new one."""
    told: list[str] = []
    setup.warn = told.append
    kept, dropped = kafka.create("kept"), kafka.create("dropped")
    fill(kafka, kept, ["a"])
    fill(kafka, dropped, ["b"])
    setup.once(topics=[kept, dropped])
    fill(kafka, kept, ["c"])
    fill(kafka, dropped, ["unread"])
    setup.once(topics=[kept])
    setup.once(topics=[kept])
    assert told == [f"topic {dropped} is no longer read: spec.source.kafka does not name it any more"]
    assert setup.values == [b"a", b"b", b"c"] or setup.values == [b"b", b"a", b"c"]
    setup.once(topics=[kept, dropped])
    assert setup.values[3:] == [b"b", b"unread"]


class OursError(Exception):
    """An exception with something in it."""


@pytest.mark.parametrize("crash", [OursError("the table"), faults.InjectedCrash("after-rows"), "commit"])
def test_after_a_crash_the_same_batch_comes_again(
    setup: Setup, kafka: Broker, crash: BaseException | str
) -> None:
    topic = kafka.create("crash")
    fill(kafka, topic, [str(i) for i in range(5)])
    if isinstance(crash, str):
        faults.arm("before-checkpoint-commit")
        with pytest.raises(faults.InjectedCrash):
            setup.once(topics=[topic])
        setup.batches.clear()
    else:
        setup.crash = crash
        with pytest.raises(type(crash)) as raised:
            setup.once(topics=[topic])
        assert raised.value is crash  # the very one that apply raised
    fill(kafka, topic, ["later"])
    feed = setup.feed(topics=[topic], maxRecordsPerBatch=1)
    [pending] = feed.pending()
    feed.run(setup.apply, once=True, stopping=lambda: False)
    assert pending == Batch(feed.query_id, 0, {topic: {"0": [0, 5]}})
    assert setup.batches[0][0] == pending
    assert setup.values == [*(str(i).encode() for i in range(5)), b"later"]
    assert list(feed.pending()) == []


def test_spark_is_told_of_a_failure_in_a_few_lines(
    setup: Setup, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It searches them with a pattern that needs stack for each character."""
    topic = kafka.create("told")
    fill(kafka, topic, ["0"])
    setup.crash = OursError("the table " * 1000)
    setup.crash.__cause__ = OursError("at a place\n" * 1000)
    feed, told = setup.feed(topics=[topic]), []
    call = feed._call

    def spy(*batch: Any) -> None:
        try:
            call(*batch)
        except RuntimeError as error:
            told.append("".join(traceback.format_exception(error)))
            raise

    monkeypatch.setattr(feed, "_call", spy)
    with pytest.raises(OursError):
        feed.run(setup.apply, once=True, stopping=lambda: False)
    assert ["the table the table" in text for text in told] == [True]
    assert len(told[0]) < 2000


def test_a_batch_whose_number_has_a_marker_already_is_not_lost(setup: Setup, kafka: Broker) -> None:
    """A backup has copied the markers later than the records; then the driver dies in a batch."""
    topic = kafka.create("markers")
    fill(kafka, topic, ["0", "1"])
    setup.once(topics=[topic])
    shutil.copy(setup.path / "spark/commits/0", setup.path / "spark/commits/1")
    fill(kafka, topic, ["2"])
    setup.crash = OursError("the table")
    with pytest.raises(OursError):
        setup.once(topics=[topic])
    feed = setup.once(topics=[topic])
    assert [batch.batch_id for batch, _ in setup.batches] == [0, 2]
    assert setup.values == [b"0", b"1", b"2"]
    assert list(feed.pending()) == []


def test_stopping_lets_the_batch_finish_and_marks_it(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("stop")
    fill(kafka, topic, [str(i) for i in range(6)])
    stop = threading.Event()

    def apply(frame: DataFrame, batch: Batch) -> None:
        stop.set()
        time.sleep(1.5)
        setup.apply(frame, batch)

    feed = setup.feed(topics=[topic], maxRecordsPerBatch=2)
    feed.run(apply, once=True, stopping=stop.is_set)
    assert setup.extents == [{topic: {"0": [0, 2]}}]
    assert 0 not in [batch.batch_id for batch in feed.pending()]
    setup.once(topics=[topic], maxRecordsPerBatch=2)
    assert setup.values == [str(i).encode() for i in range(6)]


def test_lag_counts_what_is_not_applied(setup: Setup, kafka: Broker) -> None:
    topic = kafka.create("lag", 2)
    fill(kafka, topic, ["a", "b"])
    feed = setup.feed(topics=[topic])
    assert feed.lag().records is None  # where it starts is not known before it was started
    feed.run(setup.apply, once=True, stopping=lambda: False)
    fill(kafka, topic, ["c", "d", "e"], partition=1)
    assert (feed.lag().records, feed.lag().caught_up) == (3, False)
    feed.close()


def test_what_a_producer_takes_back_is_not_read(setup: Setup, kafka: Broker) -> None:
    """Records of a transaction are read when it is committed, and those after it not before."""
    topic = kafka.create("transactions")
    with kafka.transaction(topic, ["committed"]):
        pass
    with pytest.raises(OursError), kafka.transaction(topic, ["taken back"]):
        raise OursError("the producer")
    feed = setup.once(topics=[topic])
    assert setup.values == [b"committed"]
    assert (feed.lag().records, feed.lag().caught_up) == (0, True)
    with kafka.transaction(topic, ["open"]):
        fill(kafka, topic, ["after it"])
        feed = setup.once(topics=[topic])
        assert setup.values == [b"committed"]
        assert not feed.lag().caught_up, "more is to come"
    feed = setup.once(topics=[topic])
    assert setup.values == [b"committed", b"open", b"after it"]
    with pytest.raises(OursError), kafka.transaction(topic, ["taken back"]):
        raise OursError("the producer")
    feed = setup.once(topics=[topic])
    assert setup.values == [b"committed", b"open", b"after it"]
    assert feed.lag().caught_up, "a batch without records is done, too"


def test_records_that_the_brokers_compact_away_are_no_loss(setup: Setup, kafka: Broker) -> None:
    """Also where the next one to be read is among them."""
    topic = kafka.create("compacted", config=COMPACTED)
    fill(kafka, topic, ["1", "2"], key="a")
    setup.once(topics=[topic])
    fill(kafka, topic, ["3", "4", "5"], key="a")
    fill(kafka, topic, ["1"], key="b")
    kafka.until_compacted(topic, left=2)
    setup.once(topics=[topic])
    assert [value for value in setup.values if value is not None] == [b"1", b"2", b"5", b"1"]


def test_deletes_that_may_be_compacted_away_are_told(setup: Setup, kafka: Broker) -> None:
    """Not of what is read for the first time, not of records that are safe, and once."""
    told: list[str] = []
    setup.warn = told.append
    safe = {**COMPACTED, "min.compaction.lag.ms": "3600000"}
    risky, guarded = kafka.create("risky", 2, config=COMPACTED), kafka.create("guarded", config=safe)
    plain = kafka.create("plain")
    topics = [risky, guarded, plain]
    for topic in topics:
        fill(kafka, topic, ["1", "2"], key="a")
    setup.once(topics=topics)
    setup.once(topics=topics)
    assert told == []
    for topic in topics:
        fill(kafka, topic, ["3"], key="a")
    time.sleep(0.1)
    setup.once(topics=topics)
    [only] = told
    assert only.startswith(f"topic {risky} is compacted and has records that are older than its min.comp")
    assert len(setup.values) == 9
    setup.once(topics=topics)
    assert told == [only]


def test_options_of_the_client() -> None:
    source = {"bootstrapServers": "kafka:9092", "topics": ["t"]}
    plain = KafkaSource.model_validate(source)
    assert client_options(plain, {}) == {"bootstrap.servers": "kafka:9092"}
    secured = KafkaSource.model_validate({**source, "security": {"protocol": "SSL", "secret": "tls"}})
    options = client_options(secured, {"ca.crt": "CA", "tls.crt": "CERT", "tls.key": "KEY"})
    assert options["security.protocol"] == "SSL"
    assert options["ssl.truststore.certificates"] == "CA"
    assert (options["ssl.keystore.certificate.chain"], options["ssl.keystore.key"]) == ("CERT", "KEY")
    assert json.loads(json.dumps(options)) == options


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.1)
