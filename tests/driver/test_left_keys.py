"""An update that changes its row's key and cannot be applied: the former key's row goes, the image waits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.runtime.replayer import replay
from tests.support.agreement import assert_agreement, by_rules
from tests.support.mirroring import Mirroring
from tests.support.records import Column, PostgresPosition, Record, Row, Table, Topic
from tests.support.rule_engine import Mirrored
from tests.support.shop import ID, Shop, table

pytestmark = pytest.mark.guarantee(
    "A row leaves its former key even if the record that says so goes to the quarantine"
)

BAD = {"id": 2, "v": -1, "note": "bad"}
SOFT = {"type": "soft", "column": "gone"}
EXPECTED = {"expectations": [{"name": "spend", "condition": "v >= 0", "onViolation": "quarantine"}]}


@dataclass(frozen=True)
class Case:
    """A table whose row 1 gets another key in an update that goes to the quarantine.

    ``shown`` are the ids that the mirror shows afterwards, before and after the replay.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    bad: Row = field(default_factory=lambda: BAD)
    keyed: bool = True
    partial: bool = False
    shown: Sequence[int] = (2, 5)


UNKEYED = {"primaryKey": ["id"]}
TYPES = {"columns": {"types": {"id": "bigint", "v": "bigint"}}}
CASES = (
    Case("rows", EXPECTED),
    Case("soft", {**EXPECTED, "delete": SOFT}),
    Case("versions", {**EXPECTED, "mode": "scd2"}),
    Case("listed", {**EXPECTED, "mode": "append"}),
    Case("filtered", {**EXPECTED, "filter": "v IS NOT NULL"}),
    Case("unfit", TYPES, bad={**BAD, "v": "much"}),
    Case("partial", EXPECTED, partial=True),
    Case("declared", {**EXPECTED, **UNKEYED}, keyed=False),
    Case("declared_versions", {**EXPECTED, **UNKEYED, "mode": "scd2"}, keyed=False),
    Case("no_such_key", TYPES, bad={**BAD, "id": "two"}),
    Case("null_key", UNKEYED, bad={**BAD, "id": None}, keyed=False),
    # What says nothing about the former key
    Case("lost_key", bad={"v": -1, "note": "bad"}, shown=(1, 2, 5)),
    Case("empty_key", bad={**BAD, "id": None}, shown=(1, 2, 5)),
    Case("same_key", EXPECTED, bad={**BAD, "id": 1}, shown=(1, 2, 5)),
)


def custom(case: Case) -> list[list[Record]]:
    """Two rows, the update that changes the key of one, and the next update of its row, in two batches."""
    rows: list[tuple[str, Row | None, Row]] = [
        ("c", None, {"id": 1, "v": 1, "note": "a"}),
        ("c", None, {"id": 5, "v": 5, "note": "a"}),
        ("u", {"id": 1, "v": 1} if case.partial else {"id": 1, "v": 1, "note": "a"}, case.bad),
        ("u", {"v": -1} if case.partial else {**BAD}, {"id": 2, "v": 3, "note": "b"}),
    ]
    records: list[Record] = []
    for offset, (op, before, row) in enumerate(rows):
        value = {"op": op, "table": case.name, "at": 1_790_000_000_000 + offset, "before": before, "row": row}
        key = json.dumps({"id": row["id"]} if "id" in row else {}) if case.keyed else None
        place = {"topic": case.name, "partition": 0, "offset": offset, "timestamp": 1_790_000_000_000}
        records.append({**place, "key": key, "value": json.dumps(value), "headers": []})
    return [records[:2], records[2:]] if case.partial else [records[:3], records[3:]]


def shown(spark: SparkSession, path: str) -> list[int]:
    frame = spark.read.format("delta").load(path)
    if "__is_current" in frame.columns:
        frame = frame.where("__is_current")
    if "gone" in frame.columns:
        frame = frame.where("gone IS NULL")
    if path.endswith("listed"):
        gone = {row["id"] for row in frame.where("__op = 'd'").collect()}
        return sorted({row["id"] for row in frame.collect()} - gone)
    return [row["id"] for row in frame.orderBy("id").collect()]


def all_rows(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(path)
    return sorted((tuple(row) for row in frame.select("id", "v", "__op").collect()), key=str)


FEW = ("rows", "versions", "listed", "declared", "lost_key")


def mirroring_of(folder: Path, cases: Sequence[Case], *, least: int = 0) -> Mirroring:
    """A pipeline for these cases, whose expectations let through what is not below ``least``."""
    expected = {"expectations": [{**EXPECTED["expectations"][0], "condition": f"v >= {least}"}]}
    tables = [
        {"source": case.name, **case.settings, **(expected if "expectations" in case.settings else {})}
        for case in cases
    ]
    fields = {"op": "op", "before": "before", "after": "row", "table": "table", "timestamp": "at"}
    settings = {"tables": tables, "target": {"path": f"{folder}/lake/{{table}}"}}
    return Mirroring(folder, {"envelope": {"format": "custom", "fields": fields}, **settings})


def delivered(mirroring: Mirroring, cases: Sequence[Case]) -> Mirroring:
    deliveries = [custom(case) for case in cases]
    return mirroring.deliver([[r for each in deliveries for r in each[n]] for n in range(2)])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([case for case in CASES if case.name in FEW], id="few"),
        pytest.param(
            [case for case in CASES if case.name not in FEW], id="others", marks=pytest.mark.thorough
        ),
    ],
)
def test_the_former_key_does_not_wait_for_an_image(
    cases: Sequence[Case], spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = delivered(mirroring_of(tmp_path, cases), cases)
    summary = mirroring.run(spark)
    found = {case.name: shown(spark, f"{tmp_path}/lake/{case.name}") for case in cases}
    assert found == {case.name: [*case.shown] for case in cases}
    for case in cases:
        counts = summary.tables[case.name].counts
        assert (counts.records, counts.quarantined, counts.unaccounted) == (4, 1, 0), case.name
    assert_agreement(spark, mirroring)


def shown_by_rules(table: Mirrored) -> list[int]:
    if table.mode == "append":
        gone = {(each.values or {})["id"] for each in table.listed if each.op == "d"}
        return sorted({(each.values or {})["id"] for each in table.listed} - gone)
    if table.mode == "scd2":
        current = [
            key for key, stored in table.versions.keys.items() if any(v.is_current for v in stored.versions)
        ]
        return sorted(id for (id,) in current)
    return sorted(id for (id,) in table.rows)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_nor_does_it_by_the_rules_alone(case: Case, tmp_path: Path) -> None:
    table = by_rules(delivered(mirroring_of(tmp_path, [case]), [case])).tables[case.name]
    assert shown_by_rules(table) == [*case.shown]
    assert table.counts["quarantined"] == 1


REPLAYED: dict[str, list[tuple[Any, ...]]] = {
    "rows": [(2, 3, "u"), (5, 5, "c")],
    "versions": [(1, 1, "c"), (2, -1, "c"), (2, 3, "u"), (5, 5, "c")],
    "listed": [(1, 1, "c"), (1, None, "d"), (2, -1, "u"), (2, 3, "u"), (5, 5, "c")],
    "declared": [(2, 3, "u"), (5, 5, "c")],
    "same_key": [(1, -1, "u"), (2, 3, "u"), (5, 5, "c")],
}


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_image_is_applied_when_it_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    """At its place in the order of the source; the former key's row has gone before, and goes only once."""
    cases = [case for case in CASES if case.name in REPLAYED]
    delivered(mirroring_of(tmp_path, cases), cases).run(spark)
    outcome = replay(mirroring_of(tmp_path, cases, least=-9).pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (len(cases), 0)
    found = {name: all_rows(spark, f"{tmp_path}/lake/{name}") for name in REPLAYED}
    assert found == {name: sorted(rows, key=str) for name, rows in REPLAYED.items()}
    versions = spark.read.format("delta").load(f"{tmp_path}/lake/versions")
    ended = versions.where("id = 1").first()
    assert ended is not None
    assert (ended["__is_current"], ended["__is_deleted"]) == (False, True)


@pytest.mark.thorough
def test_nor_does_it_with_maxwell(spark: SparkSession, tmp_path: Path) -> None:
    lines: list[tuple[str, Row, Row | None]] = [
        ("insert", {"id": 1, "v": 1, "note": "a"}, None),
        ("update", BAD, {"id": 1, "v": 1}),
        ("update", {"id": 2, "v": 3, "note": "bad"}, {"v": -1}),
    ]
    records: list[Record] = []
    for offset, (kind, row, old) in enumerate(lines):
        place = {"xid": 100 + offset, "commit": True, "position": f"binlog.000001:{1000 + offset}"}
        value = {"database": "shop", "table": "items", "type": kind, "ts": 1_790_000_000 + offset, **place}
        value |= {"primary_key_columns": ["id"], "data": row, **({"old": old} if old else {})}
        key = json.dumps({"database": "shop", "table": "items", "pk.id": row["id"]})
        record = {"topic": "shop", "partition": 0, "offset": offset, "timestamp": 1_790_000_000_000}
        records.append({**record, "key": key, "value": json.dumps(value), "headers": []})
    settings = {"envelope": {"format": "maxwell"}, "tables": [{"source": "items", **EXPECTED}]}
    mirroring = Mirroring(tmp_path, settings).deliver([[each] for each in records])
    counts = mirroring.run(spark).counts
    path = mirroring.path("shop", None, "items")
    assert (all_rows(spark, path), counts.quarantined) == ([(2, 3, "u")], 1)


@pytest.mark.thorough
def test_nor_does_it_with_debezium(spark: SparkSession, tmp_path: Path) -> None:
    """A key of the record is sent as a delete and a create; a declared key changes in an update."""
    own = table("own", Column("v", "int32"), Column("note", "string", True), full=True)
    columns = (ID, Column("code", "int32"), Column("v", "int32"))
    declared = Table("demo", "public", "declared", columns, ("id",), "demo", True, True)
    shop = Shop()
    first, good = {"id": 1, "v": 1, "note": "a"}, {"id": 2, "v": 3, "note": "b"}
    batches = [shop.create(own, **first), shop.send(own, *own.move(shop.next(), first, BAD))]
    batches.append(shop.update(own, **good))
    before, moved = {"id": 7, "code": 1, "v": 1}, {"id": 7, "code": 2, "v": -1}
    topic, at = Topic(declared.topic, partitions=1), iter(range(3))

    def place() -> PostgresPosition:
        n = next(at)
        return PostgresPosition(1000 + n, 900 + n, n, 1_790_000_000_000_000 + n)

    sent = [
        declared.create(place(), before),
        declared.update(place(), moved, before),
        declared.update(place(), {**moved, "v": 3}, moved),
    ]
    for batch, record in zip(batches, topic.append(sent), strict=True):
        batch.append(record)
    tables = [{"source": "own", **EXPECTED}, {"source": "declared", "primaryKey": ["code"], **EXPECTED}]
    mirroring = Mirroring(tmp_path, {"tables": tables}).deliver(batches)
    counts = mirroring.run(spark).counts
    assert counts.quarantined == 2
    assert all_rows(spark, mirroring.path("demo", "public", "own")) == [(2, 3, "u")]
    assert all_rows(spark, mirroring.path("demo", "public", "declared")) == [(7, 3, "u")]
