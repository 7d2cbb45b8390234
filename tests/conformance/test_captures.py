"""Captured change events end in tables that equal their databases, however they were delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import FIXED_SCHEMA, SCENARIOS, Capture, wrong
from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.mirroring import Mirroring
from tests.support.records import Record, payload

DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "whole": whole,
    "doubled": lambda records: whole(doubled(records)),
    "interleaved": lambda records: parts(interleaved(records, 1), 2),
}
HARD: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "batches of 50": lambda records: cut(records, 50),
    "interleaved, batches of 30": lambda records: cut(interleaved(records, 5), 30),
    "after restarts": lambda records: parts(restarted(records, back=60, every=150), 5),
    "shuffled": lambda records: whole(shuffled(records, 1)),
    "shuffled otherwise": lambda records: whole(shuffled(records, 2)),
    "shuffled, 7 batches": lambda records: parts(shuffled(records, 3), 7),
    "backwards, 5 batches": lambda records: parts(records[::-1], 5),
}


def all_of(captures: Sequence[Capture]) -> list[Record]:
    return [record for capture in captures for record in capture.records]


def report(spark: SparkSession, mirroring: Mirroring, captures: Sequence[Capture]) -> str:
    return "\n".join(filter(None, (wrong(c.differences(spark, mirroring)) for c in captures)))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("delivery", DELIVERIES)
def test_every_capture_ends_in_the_rows_of_its_database(
    delivery: str, spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario) for scenario in SCENARIOS]
    mirroring = Mirroring(tmp_path).deliver(DELIVERIES[delivery](all_of(captures)))
    summary = mirroring.run(spark)
    assert not report(spark, mirroring, captures)
    stale = {name: table.stale for name, table in summary.tables.items() if table.stale}
    duplicates = sum(table.duplicates for table in summary.tables.values())
    changes = sum(1 for record in all_of(captures) if record["value"] and _is_change(record))
    assert not stale, "no event came after a newer one of its key"
    assert duplicates == (changes if delivery == "doubled" else 0)


def _is_change(record: Record) -> bool:
    return payload(record["value"]).get("op") in ("c", "u", "d", "r")


@pytest.mark.timeout(600)
def test_records_without_schemas_end_in_the_rows_too_when_types_are_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario, "json") for scenario in FIXED_SCHEMA]
    declared = [table for capture in captures for table in capture.declared()]
    mirroring = Mirroring(tmp_path, {"tables": declared})
    mirroring.deliver(parts(interleaved(all_of(captures), 3), 2)).run(spark)
    assert not report(spark, mirroring, captures)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("unrepresentable", ["text", "null"])
def test_every_type_of_column_equals_the_source(
    unrepresentable: str, spark: SparkSession, tmp_path: Path
) -> None:
    captures = [
        Capture("types", variant, f"types_{variant}") for variant in ("jsons", "jsonalt", "jsonconnect")
    ]
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": unrepresentable})
    mirroring.deliver(whole(doubled(all_of(captures)))).run(spark)
    assert not report(spark, mirroring, captures)


@pytest.mark.timeout(600)
def test_a_short_capture_in_batches_of_seven(spark: SparkSession, tmp_path: Path) -> None:
    capture = Capture("pk_change")
    records = [r for r in capture.records if r["topic"].endswith(".users")][:42]
    of_seven = Mirroring(tmp_path / "seven").deliver(cut(records, 7))
    at_once = Mirroring(tmp_path / "once").deliver(whole(records))
    of_seven.run(spark)
    at_once.run(spark)
    tables = [
        spark.read.format("delta").load(m.path("pk_change", "public", "users")) for m in (of_seven, at_once)
    ]
    small, large = (sorted(map(tuple, t.select("id", "name", "email").collect())) for t in tables)
    assert small == large != []


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("delivery", [*DELIVERIES, *HARD])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_capture_in_every_delivery(
    scenario: str, delivery: str, spark: SparkSession, tmp_path: Path
) -> None:
    capture = Capture(scenario)
    deliver = (DELIVERIES | HARD)[delivery]
    mirroring = Mirroring(tmp_path).deliver(deliver(capture.records))
    mirroring.run(spark)
    assert not report(spark, mirroring, [capture])


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("size", [1, 7])
@pytest.mark.parametrize("scenario", ["pk_change", "schema_change"])
def test_a_capture_in_tiny_batches(scenario: str, size: int, spark: SparkSession, tmp_path: Path) -> None:
    capture = Capture(scenario)
    mirroring = Mirroring(tmp_path).deliver(cut(capture.records, size))
    mirroring.run(spark)
    assert not report(spark, mirroring, [capture])
