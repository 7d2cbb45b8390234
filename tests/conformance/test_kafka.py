"""Captured change events through a real Kafka broker."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.events import BatchDone, Event
from lakemirror.driver.runtime.runner import run
from tests.conformance.captures import Capture, wrong
from tests.support.beside import beside
from tests.support.kafka_broker import Broker
from tests.support.kafka_captures import from_kafka, send_captured
from tests.support.mirroring import Mirroring

pytestmark = [pytest.mark.sources, pytest.mark.timeout(600)]

CAPTURE = Capture("inventory")
LATE_TOPIC = "jsons.inventory.public.orders"


@pytest.mark.guarantee("A mirror equals its source after any delivery")
def test_a_capture_from_kafka_with_a_topic_that_comes_later(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """The run goes on while a topic is made and filled that the pattern matches."""
    prefix = f"shop-{uuid.uuid4().hex[:8]}."
    mirroring = Mirroring(tmp_path, from_kafka(kafka, prefix, 400))
    late = [record for record in CAPTURE.records if record["topic"] == LATE_TOPIC]
    first = [record for record in CAPTURE.records if record["topic"] != LATE_TOPIC]
    assert late
    assert first
    send_captured(kafka, prefix, first)
    with _Running(mirroring, spark) as running:
        running.until_records(len(first))
        send_captured(kafka, prefix, late)
        running.until_records(len(CAPTURE.records))
    assert not wrong(CAPTURE.differences(spark, mirroring))
    versions = mirroring.versions()
    again = mirroring.run(spark)
    assert (again.batches, again.lag.records, mirroring.versions()) == (0, 0, versions)


@pytest.mark.thorough
@pytest.mark.guarantee("A parked table can be read again; a reset starts over")
def test_a_table_that_was_parked_is_read_again_from_kafka(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    prefix = f"shop-{uuid.uuid4().hex[:8]}."
    source = from_kafka(kafka, prefix, 500)
    send_captured(kafka, prefix, CAPTURE.records)
    Mirroring(tmp_path, {**source, "tables": [{"source": "orders", "suspend": True}]}).run(spark)
    mirroring = Mirroring(tmp_path, {**source, "tables": [{"source": "orders", "resyncToken": "1"}]})
    assert not Path(mirroring.path(CAPTURE.db, "public", "orders")).exists()
    mirroring.run(spark)
    assert not wrong(CAPTURE.differences(spark, mirroring))
    assert mirroring.run(spark).batches == 0


class _Running:
    """A run that goes on in a thread until the block ends."""

    def __init__(self, mirroring: Mirroring, spark: SparkSession) -> None:
        self._mirroring, self._spark = mirroring, spark
        self._records = 0
        self._stack = ExitStack()

    def __enter__(self) -> _Running:
        self._goes_on = self._stack.enter_context(beside(self._run))
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)

    def until_records(self, count: int, seconds: float = 240) -> None:
        until = time.monotonic() + seconds
        while self._records < count:
            assert self._goes_on(), "the run ended"
            assert time.monotonic() < until, f"{self._records} of {count} records in time"
            time.sleep(0.1)
        assert self._records == count

    def _run(self, stop: threading.Event) -> None:
        run(self._mirroring.pipeline, spark=self._spark, stopping=stop.is_set, on_event=self._told)

    def _told(self, event: Event) -> None:
        if isinstance(event, BatchDone):
            self._records += event.result.counts.records
