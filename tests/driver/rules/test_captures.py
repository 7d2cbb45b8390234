"""Captured change events go through the rules alone, and end in the rows of the databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import pytest
from pyspark.sql.types import StructField, StructType

from tests.conformance.captures import FOLDER, READDED, SCENARIOS, Capture
from tests.driver.rules.test_rows import spark
from tests.support import truth
from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.records import Record, Row
from tests.support.rule_engine import Engine, Mirrored

pytestmark = pytest.mark.guarantee("A mirror equals its source after any delivery")

DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "whole": whole,
    "doubled": lambda records: whole(doubled(records)),
    "batches of 50": lambda records: cut(records, 50),
    "interleaved": lambda records: cut(interleaved(records, 5), 30),
    "after restarts": lambda records: parts(restarted(records, back=60, every=150), 5),
    "shuffled": lambda records: whole(shuffled(records, 1)),
    "shuffled, 7 batches": lambda records: parts(shuffled(records, 3), 7),
    "backwards": lambda records: parts(records[::-1], 5),
}


def rows_of(table: Mirrored) -> list[Row]:
    """The rows as `truth.collect` gives them: instants are in UTC, without a zone."""
    return [
        {
            name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
            for name, value in row.values.items()
        }
        for row in table.rows.values()
    ]


def differences(capture: Capture, engine: Engine, table: str) -> list[str]:
    mine = engine.tables[table if table.startswith(capture.db) else f"{capture.db}.{table}"]
    about = capture.about["truth"][table]
    fields = [StructField(name, spark(kind)) for name, kind in mine.columns.items()]  # type: ignore[arg-type]
    return truth.diff(
        rows_of(mine),
        truth.load_truth(FOLDER / capture.scenario / about["file"], mine.key),
        truth.source_types(FOLDER / capture.scenario)[table],
        StructType(fields),
        mine.key,
    )


@pytest.mark.parametrize("delivery", DELIVERIES)
@pytest.mark.parametrize("scenario", [*SCENARIOS, READDED])
def test_a_capture_ends_in_the_rows_of_its_database(scenario: str, delivery: str) -> None:
    capture = Capture(scenario)
    engine, batches = Engine(), DELIVERIES[delivery](capture.records)
    for batch in batches:
        engine.deliver(batch)
    assert not [line for table in capture.tables for line in differences(capture, engine, table)]
    counted = sum(table.counts.total() for table in engine.tables.values()) + engine.unknown.total()
    assert counted == sum(map(len, batches))
    assert not any(table.reasons for table in engine.tables.values())
