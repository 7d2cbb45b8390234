"""Captured change events in a Kafka broker, and pipelines that read them there."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.support.kafka_broker import Broker
from tests.support.records import Record


def from_kafka(kafka: Broker, prefix: str, at_most: int) -> dict[str, object]:
    """Settings of a pipeline that reads all topics whose names begin so, with so many records a batch."""
    kafka_source = {
        "bootstrapServers": kafka.bootstrap,
        "topicPattern": re.escape(prefix) + ".*",
        "startingOffsets": "earliest",
        "maxRecordsPerBatch": at_most,
    }
    return {"source": {"kafka": kafka_source}, "trigger": {"interval": "500ms"}}


def send_captured(kafka: Broker, prefix: str, records: Iterable[Record]) -> None:
    """The records as they were captured, in their partitions and their order; topics are made if need be."""
    listed = list(records)
    partitions = max(record["partition"] for record in listed) + 1
    known = kafka.admin.list_topics(timeout=30).topics
    for topic in sorted({record["topic"] for record in listed}):
        if prefix + topic not in known:
            kafka.create_named(prefix + topic, partitions)
    for record in listed:
        headers = [(name, text and text.encode()) for name, text in record["headers"]]
        kafka.send(
            prefix + record["topic"],
            record["value"],
            key=record["key"],
            partition=record["partition"],
            headers=headers,
            timestamp=record["timestamp"],
        )
    kafka.flush()
