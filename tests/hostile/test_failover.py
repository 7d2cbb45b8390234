"""Real logs, however they are delivered, are never taken for those of a restored source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver.parse.envelopes.debezium import Debezium
from lakemirror.driver.profile import rewinds
from lakemirror.driver.profile.overview import overview
from lakemirror.driver.profile.positions import Memory
from lakemirror.driver.read.files.records import read_records
from tests.conformance.captures import SCENARIOS, Capture
from tests.support.delivery import Batches, doubled, parts, restarted, shuffled
from tests.support.records import Record, write

DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "in order, each twice": lambda records: parts(doubled(records), 2),
    "shuffled": lambda records: parts(shuffled(records, 3), 4),
    "backwards": lambda records: parts(records[::-1], 3),
}


def verdicts(spark: SparkSession, folder: Path, batches: Batches) -> tuple[Memory, int]:
    """What is remembered in the end, and how many events had to wait."""
    classifier, memory, waited = Debezium(Envelope(), Ordering()), {}, 0
    for number, batch in enumerate(batches):
        write(folder / f"{number}.jsonl", batch)
        events = classifier.classify(read_records(spark, [str(folder / f"{number}.jsonl")])).persist()
        verdict = rewinds.judge(events, overview(events).streams, memory, Ordering())
        waited += 0 if verdict.held is None else events.where(verdict.held).count()
        memory = dict(verdict.memory)
        events.unpersist()
    return memory, waited


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "delivery",
    DELIVERIES,
)
def test_captures_hold_no_restart(delivery: str, spark: SparkSession, tmp_path: Path) -> None:
    records = [record for scenario in SCENARIOS for record in Capture(scenario).records]
    memory, waited = verdicts(spark, tmp_path, DELIVERIES[delivery](records))
    assert waited == 0
    assert len(memory) > 20


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_connector_that_restarts_sends_again_what_waits_until_it_has_caught_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    records = [record for scenario in SCENARIOS for record in Capture(scenario).records]
    memory, _ = verdicts(spark, tmp_path, parts(restarted(records, back=60, every=150), 4))
    assert not any(place.tail for place in memory.values())
