"""Captured change events end in tables that equal their databases, however they were delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.captures import FIXED_SCHEMA, READDED, SCENARIOS, Capture, wrong
from tests.support.agreement import assert_agreement
from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record, Row, payload
from tests.support.reference import Mirror, in_source_order

DELIVERIES: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "doubled": lambda records: whole(doubled(records)),
    "interleaved": lambda records: parts(interleaved(records, 1), 2),
}
HARD: dict[str, Callable[[Sequence[Record]], Batches]] = {
    "whole": whole,
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
    return "\n".join(filter(None, (wrong(c.differences(spark, mirroring, by_others=True)) for c in captures)))


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("A mirror equals its source after any delivery")
@pytest.mark.guarantee(
    "Programs that lack a Delta feature never encounter it where `target.compatibility` names them"
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "delivery",
    [
        pytest.param("doubled", marks=pytest.mark.thorough),
        pytest.param("interleaved", marks=pytest.mark.long),
    ],
)
def test_every_capture_ends_in_the_rows_of_its_database(
    delivery: str, spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario) for scenario in SCENARIOS]
    mirroring = Mirroring(tmp_path).deliver(DELIVERIES[delivery](all_of(captures)))
    summary = mirroring.run(spark)
    assert not report(spark, mirroring, captures)
    assert_agreement(spark, mirroring)
    stale = {name: table.counts.stale for name, table in summary.tables.items() if table.counts.stale}
    duplicates = sum(table.counts.duplicates for table in summary.tables.values())
    changes = sum(1 for record in all_of(captures) if record["value"] and _is_change(record))
    assert not stale, "no event came after a newer one of its key"
    assert duplicates == (changes if delivery == "doubled" else 0)


def _is_change(record: Record) -> bool:
    return payload(record["value"]).get("op") in ("c", "u", "d", "r")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_records_without_schemas_end_in_the_rows_too_when_types_are_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures = [Capture(scenario, "json") for scenario in FIXED_SCHEMA]
    declared = [table for capture in captures for table in capture.declared()]
    mirroring = Mirroring(tmp_path, {"tables": declared})
    mirroring.deliver(parts(interleaved(all_of(captures), 3), 2)).run(spark)
    assert not report(spark, mirroring, captures)


@pytest.mark.guarantee(
    "What a record lacks says nothing about other rows: only the log of a database ends a column; a column "
    "that is added again begins a new life, in any order of delivery; a constant default goes to all rows, a "
    "placeholder of a moment or a UUID to none"
)
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_columns_that_were_dropped_and_added_again_are_as_in_their_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Records without schemas do not show that a column was dropped: rows keep what they had in it."""
    ordered, bare = Capture(READDED, "jsons", "ordered"), Capture(READDED, "json", "bare")
    some = {
        Capture(READDED, "jsons", "shuffled"): {"retyped_default", "toasted", "renamed"},
        bare: {"retyped", "toasted"},
    }
    first, second, third = parts(ordered.records, 3)
    for capture, tables in some.items():
        records = [record for record in capture.records if record["topic"].rpartition(".")[2] in tables]
        for batch, part in zip((second, third), parts(shuffled(records, 3), 2), strict=True):
            batch += part
    mirroring = Mirroring(tmp_path).deliver([first, second, third])
    summary = mirroring.run(spark)
    found = {
        capture: capture.differences(spark, mirroring, only=tables, by_others=True)
        for capture, tables in some.items()
    }
    kept = [line for lines in found.pop(bare).values() for line in lines]
    assert kept
    assert all(line.endswith(" in the mirror, None in the source") for line in kept)
    differences = [ordered.differences(spark, mirroring, by_others=True), *found.values()]
    assert not "\n".join(filter(None, map(wrong, differences)))
    assert summary.counts.quarantined == 0
    assert_agreement(spark, mirroring)


@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
@pytest.mark.guarantee("Types are exact")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("unrepresentable", ["text", pytest.param("null", marks=pytest.mark.thorough)])
def test_every_type_of_column_equals_the_source(
    unrepresentable: str, spark: SparkSession, tmp_path: Path
) -> None:
    captures = [
        Capture("types", variant, f"types_{variant}") for variant in ("jsons", "jsonalt", "jsonconnect")
    ]
    mirroring = Mirroring(tmp_path, {"onUnrepresentable": unrepresentable})
    mirroring.deliver(whole(doubled(all_of(captures)))).run(spark)
    assert not report(spark, mirroring, captures)
    assert_agreement(spark, mirroring)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [7, 1])
def test_a_short_capture_in_tiny_batches(size: int, spark: SparkSession, tmp_path: Path) -> None:
    """A part of a capture that the model can tell the end of; keys move in it."""
    capture = Capture("pk_change")
    users = in_source_order(r for r in capture.records if r["topic"].endswith(".users"))
    records = users[24 : 24 + 6 * size]
    mirroring = Mirroring(tmp_path).deliver(cut(records, size))
    mirroring.run(spark)
    expected = list(Mirror().replay(records).tables["public.users"].values())
    found = [row.asDict() for row in at(spark, mirroring.path("pk_change", "public", "users")).collect()]
    assert sorted(found, key=_id) == sorted(expected, key=_id)
    assert expected


def _id(row: Row) -> int:
    return int(row["id"])


@pytest.mark.guarantee("A mirror equals its source after any delivery")
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
