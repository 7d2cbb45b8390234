"""Kafka topics as a source: one streaming query, whose own checkpoint says which offsets each batch has."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from lakemirror.api.source import FromTimestamp, KafkaSecurity, KafkaSource, Source
from lakemirror.driver import checkpoint, faults
from lakemirror.driver.sources.base import Batch, Lag
from lakemirror.driver.storage import Storage

Offsets = dict[str, dict[int, int]]
"""topic -> partition -> offset of the next record."""

SPARK_FOLDER = "spark"
_NEW_TOPICS_SECONDS = 10
_MARK_SECONDS = 30
_ANSWER_SECONDS = 30
_RECORDS_PER_TASK = 10_000
_TASKS_PER_CORE = 2


class KafkaFeed:
    """Topics as a source; see ``base.Feed``. A batch's extent is ``{topic: {partition: [from, until]}}``.

    ``secrets`` has the keys of the Secret that ``security`` names, as text.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: KafkaSource,
        storage: Storage,
        *,
        interval_seconds: float = 10.0,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._source = source
        self._storage = storage
        self._interval = interval_seconds
        self._client = client_options(source, secrets or {})
        self._admin = _Admin(spark, self._client)
        self._log = _OffsetLog(storage)
        self._calls = threading.Lock()
        self._draining = threading.Event()
        self._failure: BaseException | None = None
        self._position = self._log.position()
        self._applied: int | None = None
        self.query_id = checkpoint.query_id(storage, "kafka", started=bool(self._log.recorded()))

    def run(
        self,
        apply: Callable[[DataFrame, Batch], None],
        *,
        once: bool,
        stopping: Callable[[], bool],
    ) -> None:
        self._failure = None
        self._draining.clear()
        query = self._start(partial(self._call, apply), once=once)
        try:
            while not query.awaitTermination(1) and not stopping():
                pass
            self._drain(query)
        except StreamingQueryException:
            # What apply raised says more than Spark's report of it.
            if self._failure is None:
                raise
        finally:
            self._draining.set()
            query.stop()
        if self._failure is not None:
            raise self._failure

    def lag(self) -> Lag:
        behind = 0
        position = self._position or self._log.position()
        if position is None:
            return Lag(None, False)
        for topic, partitions in self._admin.end_offsets(self._wanted()).items():
            done = position.get(topic, {})
            behind += sum(max(0, end - done.get(partition, 0)) for partition, end in partitions.items())
        return Lag(behind, behind == 0)

    def from_its_beginning(self) -> Source:
        """The source from where the checkpoint began to read it, as far as the brokers still have that."""
        try:
            began = self._log.until(-1)
        except FileNotFoundError:
            return Source(kafka=self._source)
        kept = self._admin.begin_offsets(self._wanted())
        offsets = {
            topic: {number: max(at, began.get(topic, {}).get(number, at)) for number, at in each.items()}
            for topic, each in kept.items()
        }
        return Source(kafka=self._source.model_copy(update={"starting_offsets": offsets}))

    def pending(self) -> Iterator[Batch]:
        for batch_id in sorted(self._log.recorded() - self._log.committed()):
            yield self._batch(batch_id)

    def close(self) -> None:
        """Close the connection that asks for lag."""
        self._admin.close()

    def _start(self, call: Callable[[DataFrame, int], None], *, once: bool) -> StreamingQuery:
        writer = (
            self._read()
            .writeStream.foreachBatch(call)
            .option("checkpointLocation", f"{self._storage.uri}/{SPARK_FOLDER}")
        )
        if once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{self._interval} seconds").start()

    def _read(self) -> DataFrame:
        options = {f"kafka.{name}": value for name, value in self._client.items()} | {
            "kafka.metadata.max.age.ms": str(_NEW_TOPICS_SECONDS * 1000),
            # A new consumer goes to a partition's end and back, and waits so long for what is not there.
            "kafka.fetch.max.wait.ms": "50",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "maxOffsetsPerTrigger": str(self._source.max_records_per_batch),
            **self._subscription(),
            **self._start_options(),
        }
        frame = self._spark.readStream.format("kafka").options(**options).load()
        nothing = [
            F.lit(None).cast(kind).alias(name)
            for name, kind in (("file", "string"), ("row", "bigint"), ("problem", "string"))
        ]
        return frame.select("topic", "partition", "offset", "timestamp", "key", "value", "headers", *nothing)

    def _subscription(self) -> dict[str, str]:
        if self._source.topic_pattern is not None:
            return {"subscribePattern": self._source.topic_pattern}
        return {"subscribe": ",".join(self._source.topics or [])}

    def _start_options(self) -> dict[str, str]:
        """Where a new checkpoint starts; Spark ignores it when the checkpoint has batches."""
        start = self._source.starting_offsets
        if isinstance(start, str):
            return {"startingOffsets": start}
        if isinstance(start, FromTimestamp):
            millis = int(datetime.fromisoformat(start.timestamp).timestamp() * 1000)
            # A partition without a record that late starts with the next record it gets.
            return {"startingTimestamp": str(millis), "startingOffsetsByTimestampStrategy": "latest"}
        if self._log.recorded():
            return {}
        # Spark wants every partition named; those that the manifest leaves out start at the beginning (-2).
        offsets = {
            topic: {str(p): start.get(topic, {}).get(p, -2) for p in partitions}
            for topic, partitions in self._admin.end_offsets(self._wanted()).items()
        }
        return {"startingOffsets": json.dumps(offsets)}

    def _wanted(self) -> Callable[[str], bool]:
        if self._source.topics is not None:
            return set(self._source.topics).__contains__
        pattern = self._admin.compile(self._source.topic_pattern or "")
        return lambda topic: bool(pattern.matcher(topic).matches())

    def _call(self, apply: Callable[[DataFrame, Batch], None], frame: DataFrame, batch_id: int) -> None:
        """What Spark calls for every batch, in a thread of its own."""
        with self._calls:
            if self._draining.is_set():
                raise RuntimeError(f"stopping: batch {batch_id} is left to the next start")
            try:
                batch = self._batch(batch_id)
                if batch.extent:  # the first batch may be empty, as when it starts at the end
                    cores = frame.sparkSession.sparkContext.defaultParallelism
                    apply(frame.coalesce(tasks(batch.extent, cores)), batch)
                faults.reach("before-checkpoint-commit")
            except BaseException as error:
                # Also those that py4j does not expect in a callback. Spark sees an Exception.
                self._failure = error
                self._draining.set()
                raise RuntimeError(f"batch {batch_id} failed: {error}") from error
            self._position = self._log.until(batch_id)
            self._applied = batch_id

    def _batch(self, batch_id: int) -> Batch:
        return Batch(self.query_id, batch_id, self._log.extent(batch_id))

    def _drain(self, query: StreamingQuery) -> None:
        """Let the batch that runs be applied and marked done, and begin no other."""
        self._draining.set()
        with self._calls:  # free once the batch is applied; Spark marks it at once
            applied = self._applied
        end = time.monotonic() + _MARK_SECONDS
        while applied is not None and query.isActive and time.monotonic() < end:
            if applied in self._log.committed():
                return
            time.sleep(0.05)


def tasks(extent: Mapping[str, Mapping[str, Sequence[int]]], cores: int) -> int:
    """In how many tasks a batch is read: one a partition of a topic, but not more than its records need.

    A task costs as much as some thousand records, so that many partitions with little in them are read
    together.
    """
    ranges = [each for partitions in extent.values() for each in partitions.values()]
    records = sum(until - start for start, until in ranges)
    return min(len(ranges), max(cores * _TASKS_PER_CORE, -(-records // _RECORDS_PER_TASK)))


class _OffsetLog:
    """The files of a streaming query's checkpoint that say which offsets a batch has.

    ``offsets/<N>`` (a version, a line of metadata, a line of JSON: the offsets that batch N ends before),
    ``commits/<N>``, and ``sources/0/0`` with the offsets that batch 0 begins at (Structured Streaming's
    OffsetSeqLog, CommitLog and the Kafka source's initial offsets).
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def recorded(self) -> set[int]:
        return self._numbers("offsets")

    def committed(self) -> set[int]:
        return self._numbers("commits")

    def until(self, batch_id: int) -> Offsets:
        """Where the batch ends; for -1, where the first one begins. FileNotFoundError if not recorded."""
        name = f"offsets/{batch_id}" if batch_id >= 0 else "sources/0/0"
        last_line = self._storage.read_text(f"{SPARK_FOLDER}/{name}").rstrip().rpartition("\n")[2]
        return {topic: {int(p): o for p, o in part.items()} for topic, part in json.loads(last_line).items()}

    def position(self) -> Offsets | None:
        """Where the last batch that is done ends; None before the query has first been started."""
        try:
            return self.until(max(self.committed(), default=-1))
        except FileNotFoundError:
            return None

    def extent(self, batch_id: int) -> dict[str, dict[str, list[int]]]:
        """What the batch covers; partitions without records are left out."""
        begin, end = self.until(batch_id - 1), self.until(batch_id)
        extent: dict[str, dict[str, list[int]]] = {}
        for topic, partitions in sorted(end.items()):
            for partition, until in sorted(partitions.items()):
                # A partition that has appeared since is read from its beginning.
                start = begin.get(topic, {}).get(partition, 0)
                if start != until:
                    extent.setdefault(topic, {})[str(partition)] = [start, until]
        return extent

    def _numbers(self, folder: str) -> set[int]:
        entries = self._storage.list(f"{SPARK_FOLDER}/{folder}")
        return {int(entry.name) for entry in entries if entry.name.isdecimal()}


class _Admin:
    """Questions to the brokers, through the Kafka client that Spark's source brings."""

    def __init__(self, spark: SparkSession, client: Mapping[str, str]) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        properties = jvm.java.util.Properties()
        for name, value in client.items():
            properties.setProperty(name, value)
        self._client: Any = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)

    def compile(self, pattern: str) -> Any:
        """A Java regular expression."""
        return self._jvm.java.util.regex.Pattern.compile(pattern)

    def begin_offsets(self, wanted: Callable[[str], bool]) -> Offsets:
        """Where the partitions of the topics that are ``wanted`` begin now."""
        return self._offsets(wanted, "earliest")

    def end_offsets(self, wanted: Callable[[str], bool]) -> Offsets:
        """Where they end now."""
        return self._offsets(wanted, "latest")

    def _offsets(self, wanted: Callable[[str], bool], which: str) -> Offsets:
        kafka = self._jvm.org.apache.kafka
        names = self._get(self._client.listTopics().names())
        topics = self._jvm.java.util.ArrayList()
        for name in names:
            if wanted(name):
                topics.add(name)
        asked = self._jvm.java.util.HashMap()
        described = self._get(self._client.describeTopics(topics).allTopicNames())
        for name in topics:
            for partition in described[name].partitions():
                at = kafka.common.TopicPartition(name, partition.partition())
                asked.put(at, getattr(kafka.clients.admin.OffsetSpec, which)())
        offsets: Offsets = {}
        for at, found in self._get(self._client.listOffsets(asked).all()).items():
            offsets.setdefault(at.topic(), {})[at.partition()] = found.offset()
        return offsets

    def close(self) -> None:
        self._client.close()

    def _get(self, future: Any) -> Any:
        return future.get(_ANSWER_SECONDS, self._jvm.java.util.concurrent.TimeUnit.SECONDS)


def client_options(source: KafkaSource, secrets: Mapping[str, str]) -> dict[str, str]:
    """Settings of a Kafka client for this source; ``secrets`` as in ``KafkaFeed``.

    Certificates and keys are PEM texts (ca.crt, tls.crt, tls.key), as in a Kubernetes TLS Secret.
    """
    options: dict[str, str] = {"bootstrap.servers": source.bootstrap_servers}
    if source.security is None:
        return options
    return options | _security_options(source.security, secrets)


def _security_options(security: KafkaSecurity, secrets: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {"security.protocol": security.protocol}
    if "ca.crt" in secrets:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": secrets["ca.crt"]}
    if "tls.crt" in secrets and "tls.key" in secrets:
        options |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": secrets["tls.crt"],
            "ssl.keystore.key": secrets["tls.key"],
        }
    return options
