"""A Kafka broker for tests: one KRaft node on this machine, from jars of Maven Central."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.support import maven
from tests.support.ports import free_port

VERSION = "4.3.1"
_LOG4J = "2.25.4"
"""What Kafka logs to: without its binding, a broker that does not start says nothing."""
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.lakemirror</groupId><artifactId>test-kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>{_LOG4J}</version></dependency>
  </dependencies>
</project>
"""
JVM = ["java", "-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

_START_SECONDS = 180.0
_KNOWN_SECONDS = 120.0
"""For so long a topic may take to be known to those who send to it."""

Header = tuple[str, bytes | None]
NOTHING: Mapping[str, str] = MappingProxyType({})
TICK = b"tick"
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
"""Settings of a topic that is compacted as soon as may be."""


@dataclass
class Broker:
    """A broker, which may be killed and started again."""

    bootstrap: str
    _command: Sequence[str] = field(repr=False)
    _log: Path = field(repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _producer: Producer | None = field(default=None, repr=False)
    _admin: AdminClient | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + _START_SECONDS
        while self._process.poll() is None and time.monotonic() < until:
            try:
                self.admin.list_topics(timeout=2)
                return
            except KafkaException:
                time.sleep(0.3)
        raise RuntimeError(f"the Kafka broker did not come up:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """SIGKILL: what it has written it finds again, and nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    @property
    def admin(self) -> AdminClient:
        """What asks and tells the broker, until `close`."""
        if self._admin is None:
            self._admin = AdminClient(self._client)
        return self._admin

    @property
    def _sending(self) -> Producer:
        if self._producer is None:
            # Without idempotence, a retry puts records behind later ones of their partition.
            self._producer = Producer({**self._client, "linger.ms": 5, "enable.idempotence": True})
        return self._producer

    @property
    def _client(self) -> dict[str, str | int]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0}

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] = NOTHING) -> str:
        """Create a topic under a name that no other test uses; gives the name."""
        name = f"{topic}.{uuid.uuid4().hex[:8]}"
        self.create_named(name, partitions, config)
        return name

    def create_named(self, name: str, partitions: int = 1, config: Mapping[str, str] = NOTHING) -> None:
        """Create a topic, and wait until records can be sent to each of its partitions."""
        for done in self.admin.create_topics([NewTopic(name, partitions, 1, config=dict(config))]).values():
            done.result(30)
        self._until_led(name, partitions)

    def _until_led(self, name: str, partitions: int) -> None:
        until = time.monotonic() + _KNOWN_SECONDS
        while self._led(name) < partitions:
            assert time.monotonic() < until, f"{name} has no leaders"
            time.sleep(0.05)

    def _led(self, name: str) -> int:
        """How many partitions of a topic have a leader that the producer knows. It is the producer that is
        asked: it keeps that a topic was not there, as one that was deleted and is made again.
        """
        found = self._sending.list_topics(name, timeout=60).topics[name]
        return sum(each.leader >= 0 for each in found.partitions.values()) if found.error is None else 0

    def widen(self, name: str, partitions: int) -> None:
        """Give a topic so many partitions, and wait until records can be sent to each of them."""
        for done in self.admin.create_partitions([NewPartitions(name, partitions)]).values():
            done.result(30)
        self._until_led(name, partitions)

    def delete(self, name: str) -> None:
        """Delete a topic, and wait until it is gone."""
        for done in self.admin.delete_topics([name]).values():
            done.result(30)
        until = time.monotonic() + 120
        while name in self.admin.list_topics(timeout=60).topics:
            assert time.monotonic() < until, f"{name} is still there"
            time.sleep(0.1)

    def expire(self, name: str, before: int, partition: int = 0) -> None:
        """Delete a partition's records before an offset."""
        for done in self.admin.delete_records([TopicPartition(name, partition, before)]).values():
            done.result(30)

    def send(
        self,
        topic: str,
        value: str | bytes | None,
        *,
        key: str | bytes | None = None,
        partition: int = 0,
        headers: Sequence[Header] = (),
        timestamp: int = 0,
    ) -> None:
        """Hand one record over; ``flush`` waits until the broker has all of them."""
        until = time.monotonic() + _KNOWN_SECONDS
        more = {"partition": partition, "headers": list(headers), "timestamp": timestamp}
        while True:
            try:
                self._sending.produce(topic, value=value, key=key, **more)
                break
            except KafkaException as error:
                # Something told the producer of the topic before it was there.
                if error.args[0].code() != KafkaError._UNKNOWN_TOPIC or time.monotonic() > until:
                    raise
                self._led(topic)
        self._sending.poll(0)

    @contextmanager
    def transaction(self, topic: str, values: Sequence[str]) -> Iterator[None]:
        """Records in a transaction, which is committed at the end, and aborted where that is an exception."""
        producer = Producer({**self._client, "transactional.id": uuid.uuid4().hex})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value=value, partition=0)
        assert producer.flush(30) == 0, "the broker took not all of the records"
        try:
            yield
        except BaseException:
            producer.abort_transaction(30)
            raise
        producer.commit_transaction(30)

    def until_compacted(self, topic: str, *, left: int) -> None:
        """Wait until so many records of a topic that is `COMPACTED` are left, not counting the ticks that are
        sent meanwhile: the newest records of a topic are never compacted away.
        """
        until = time.monotonic() + 120
        while sum(key != TICK for key in self._keys(topic)) > left:
            assert time.monotonic() < until, f"{topic} was not compacted"
            self.send(topic, None, key=TICK)
            self.flush()
            time.sleep(0.5)

    def _keys(self, topic: str) -> list[bytes | None]:
        """The keys of what is there in partition 0."""
        reader = Consumer({**self._client, "group.id": "none"})
        try:
            end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
            reader.assign([TopicPartition(topic, 0, 0)])
            found = []
            while message := reader.poll(10):
                assert message.error() is None
                found.append(message.key())
                if message.offset() == end - 1:
                    break
            return found
        finally:
            reader.close()

    def records(self, prefix: str) -> int:
        """How many records the topics hold whose names begin so."""
        reader = Consumer({**self._client, "group.id": "none"})
        try:
            topics = reader.list_topics(timeout=30).topics
            places = [
                TopicPartition(name, partition)
                for name, each in topics.items()
                if name.startswith(prefix)
                for partition in each.partitions
            ]
            marks = [reader.get_watermark_offsets(place, timeout=30) for place in places]
            return sum(end - begin for begin, end in marks)
        finally:
            reader.close()

    def close(self) -> None:
        """Let go of the clients, which else ask for the broker as long as the process lives."""
        if self._producer is not None:
            self._producer.purge()
        self._producer = self._admin = None

    def flush(self) -> None:
        assert self._sending.flush(30) == 0, "the broker took not all of the records"


@contextmanager
def start_broker(
    folder: Path,
    host: str = "127.0.0.1",
    more: Callable[[str], Mapping[str, object]] = lambda listeners: {},
    java: Sequence[str] = (),
) -> Iterator[Broker]:
    """Run a broker whose data lies in ``folder``; skips the test where that is not possible.

    ``host``: the address of this machine at which clients reach it. ``more``: further settings, given the
    value of ``listeners``. ``java``: further options of its JVM.
    """
    jars = maven.jars(f"kafka-{VERSION}-log4j-{_LOG4J}", _fetch)
    port, controller = free_port(), free_port()
    properties = folder / "server.properties"
    settings = _properties(folder, host, port, controller)
    settings |= more(str(settings["listeners"]))
    properties.write_text("\n".join(f"{k}={v}" for k, v in settings.items()))
    command = [*JVM, *java, f"-Dlog4j2.configurationFile={quiet(folder)}", "-cp", f"{jars}/*"]
    # A name that begins with a dash would be read as an option.
    cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
    formatting = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
    subprocess.run(formatting, check=True, capture_output=True, timeout=120)
    broker = Broker(f"{host}:{port}", [*command, "kafka.Kafka", str(properties)], folder / "broker.log")
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
        broker.kill()


def _fetch(folder: Path) -> list[str]:
    (folder / "pom.xml").write_text(_POM)
    copy = f"{maven.COPY}:copy-dependencies"
    return ["-f", str(folder / "pom.xml"), copy, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]


def _properties(folder: Path, host: str, port: int, controller: int) -> dict[str, object]:
    return {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder / "data",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "log.cleaner.backoff.ms": 500,
        # Captured records keep their times, which are older than the seven days that are kept by default.
        "log.retention.ms": -1,
    }


def quiet(folder: Path) -> Path:
    settings = folder / "log4j2.properties"
    settings.write_text(
        "rootLogger.level = warn\nrootLogger.appenderRef.out.ref = out\n"
        "appender.out.type = Console\nappender.out.name = out\n"
        "appender.out.layout.type = PatternLayout\nappender.out.layout.pattern = %d %p %c{1}: %m%n\n"
    )
    return settings
