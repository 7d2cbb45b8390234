"""The rows of a connector's snapshot come when they like: what the stream said after them stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import Capture, wrong
from tests.support.delivery import Batches, parts
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, payload, read

pytestmark = pytest.mark.guarantee("A mirror equals its source after any delivery")

ROOT = Path(__file__).parents[2]
Delivery = Callable[[Sequence[Record], Sequence[Record]], Batches]


def after(snapshot: Sequence[Record], stream: Sequence[Record]) -> Batches:
    """When the stream has ended, and then once more."""
    return [[*stream], [*snapshot], [*snapshot]]


def between(snapshot: Sequence[Record], stream: Sequence[Record]) -> Batches:
    """In the midst of the stream, and once more when it has ended."""
    first, second = parts(stream, 2)
    return [first, [*snapshot], [*second, *snapshot]]


DELIVERIES: Sequence[tuple[str, Delivery, tuple[str, str]]] = [
    ("inventory", between, ("customers", "orders")),
    ("pk_change", after, ("items", "users")),
    ("mariadb_inventory", after, ("customers", "orders")),
]
"""Captures, and two tables of each."""


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_a_snapshot_that_comes_late_changes_no_newer_row_and_brings_none_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    delivered, deleted = [], 0
    for scenario, how, tables in DELIVERIES:
        records = [each for each in Capture(scenario).records if each["topic"].endswith(tables)]
        snapshot = [record for record in records if _operation(record) == "r"]
        stream = [record for record in records if _operation(record) != "r"]
        ends = {(record["topic"], record["key"]): _operation(record) for record in stream if record["value"]}
        deleted += [ends.get((record["topic"], record["key"])) for record in snapshot].count("d")
        delivered.append(how(snapshot, stream))
    mirroring = Mirroring(tmp_path)
    mirroring.deliver(
        [[record for part in batch for record in part] for batch in zip(*delivered, strict=True)]
    )
    summary = mirroring.run(spark)
    for scenario, _, tables in DELIVERIES:
        assert not wrong(Capture(scenario).differences(spark, mirroring, only=tables))
    assert summary.counts.quarantined == 0
    assert deleted > 50, "rows of the snapshots that the streams delete"
    assert summary.counts.stale >= deleted


@pytest.mark.long
def test_a_connector_that_reads_its_table_again_is_no_other_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """On demand, and after it has lost its offsets, and its slot as well; in two batches."""
    records = read(ROOT / "tests/fixtures/read_again/items.jsonl.gz")
    assert [_operation(record) for record in records].count("r") == 23
    mirroring = Mirroring(tmp_path).deliver([records[:8], records[8:]])
    summary = mirroring.run(spark)
    assert (summary.counts.quarantined, summary.counts.refused) == (0, 0)
    rows = at(spark, mirroring.path("shop", "public", "items")).collect()
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, 10), (2, 20), (3, 30), (4, 4)]


def _operation(record: Record) -> str | None:
    change = payload(record["value"]) if record["value"] else {}
    return change.get("op") if "source" in change else None
