"""A topic in Kafka with the records of a load."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.records import PARTITIONS

_SECONDS = 10.0
_POLL_EVERY = 10_000


class KafkaMissing(Exception):
    """There is no Kafka where it is said to be."""


@contextmanager
def filled(kafka: str, name: str, files: Iterable[Path]) -> Iterator[str]:
    """Write the records of the files to a new topic, and return its full name; delete the topic at the end.

    Raises KafkaMissing if there is no broker at `kafka` (host:port).
    """
    admin = AdminClient({"bootstrap.servers": kafka})
    topic = f"bench_{int(time.time())}.{name}"
    try:
        admin.list_topics(timeout=_SECONDS)
    except KafkaException as error:
        raise KafkaMissing(f"there is no Kafka at {kafka} ({error.args[0].str()})") from None
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(_SECONDS)
    try:
        _write(kafka, topic, files)
        yield topic
    finally:
        admin.delete_topics([topic])[topic].exception(_SECONDS)


def _write(kafka: str, topic: str, files: Iterable[Path]) -> None:
    # Without idempotence, a retry could put records behind later ones of their partition.
    settings = {"enable.idempotence": True, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": kafka, **settings})
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines):
                record = json.loads(line)
                producer.produce(topic, record["value"], record["key"], record["partition"])
                if number % _POLL_EVERY == 0:
                    producer.poll(0)
        left = producer.flush()
        if left:
            raise RuntimeError(f"{left} records did not reach {topic}")
