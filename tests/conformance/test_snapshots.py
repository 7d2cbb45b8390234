"""The rows of a connector's snapshot come when they like: what the stream said after them stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.delivery import Batches, parts, sent_again
from tests.support.mirroring import Mirroring
from tests.support.records import Record, payload

Delivery = Callable[[Sequence[Record], Sequence[Record]], Batches]


def after(snapshot: Sequence[Record], stream: Sequence[Record]) -> Batches:
    """When the stream has ended, twice in a batch: as by a consumer that goes back."""
    return [*parts(stream, 2), [*snapshot, *snapshot]]


def between(snapshot: Sequence[Record], stream: Sequence[Record]) -> Batches:
    """In the midst of the stream, and once more behind its end: as by a connector that sends it again."""
    first, second = parts(stream, 2)
    return [first, [*snapshot, *second], sent_again(snapshot, [*snapshot, *stream])]


DELIVERIES: Sequence[tuple[str, Delivery]] = [
    ("inventory", after),
    ("inventory", between),
    ("pk_change", after),
    ("mariadb_inventory", between),
]


@pytest.mark.timeout(600)
def test_a_snapshot_that_comes_late_changes_no_newer_row_and_brings_none_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario, as_db=f"{scenario}_{how.__name__}") for scenario, how in DELIVERIES]
    delivered = []
    for capture, (_, how) in zip(captures, DELIVERIES, strict=True):
        snapshot = [record for record in capture.records if _operation(record) == "r"]
        stream = [record for record in capture.records if _operation(record) != "r"]
        ends = {(record["topic"], record["key"]): _operation(record) for record in stream if record["value"]}
        gone = [record for record in snapshot if ends.get((record["topic"], record["key"])) == "d"]
        assert len(gone) > 20, "rows of the snapshot that the stream deletes"
        delivered.append(how(snapshot, stream))
    mirroring = Mirroring(tmp_path)
    mirroring.deliver(
        [[record for part in batch for record in part] for batch in zip(*delivered, strict=True)]
    )
    summary = mirroring.run(spark)
    assert not wrong({t: d for c in captures for t, d in c.differences(spark, mirroring).items()})
    assert summary.counts.quarantined == 0
    assert summary.counts.stale > 100


def _operation(record: Record) -> str | None:
    change = payload(record["value"]) if record["value"] else {}
    return change.get("op") if "source" in change else None
