"""Real records of other envelopes than Debezium's own end in the rows of their databases."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.tables.columns import METADATA
from tests.conformance.captures import FOLDER, Capture
from tests.support import maxwell, truth
from tests.support.delivery import cut, doubled, parts, shuffled
from tests.support.mirroring import Mirroring, at
from tests.support.records import Record

pytestmark = pytest.mark.guarantee(
    "Records of each envelope are read as its format specifies; what they lack is named"
)

MARIADB = "mariadb_inventory"
KEYS = {"customers": "id", "products": "id", "orders": "order_number", "addresses": "id"}
SHUFFLED = "shuffled"

DECLARED = {
    "customers": {"credit_limit": "decimal(10,2)", "created_at": "timestamp_ntz", "vip": "int"},
    "products": {"price": "decimal(10,2)"},
    "orders": {"order_date": "date"},
}
"""What JSON alone does not say."""

CUSTOM: Mapping[str, Any] = {
    "format": "custom",
    "fields": {
        **{"op": "type", "after": "data", "before": "old", "timestamp": "ts", "table": "table"},
    },
    "opMap": {
        **{"insert": "c", "update": "u", "delete": "d", "bootstrap-insert": "r"},
        **{"bootstrap-start": "ignore", "bootstrap-complete": "ignore"},
    },
}
"""Maxwell's records, said in a manifest."""


def differences(spark: SparkSession, paths: Mapping[str, str]) -> list[str]:
    types = truth.source_types(FOLDER / MARIADB)
    found = []
    for table, path in paths.items():
        mirror, key = at(spark, path), (KEYS[table],)
        expected = truth.load_truth(maxwell.FOLDER / "inventory" / "truth" / f"shop.{table}.jsonl", key)
        lines = truth.diff(truth.collect(mirror), expected, types[f"shop.{table}"], mirror.schema, key)
        found += [f"{path}: {line}" for line in lines[:3]]
    return found


def declared(database: str = "") -> list[dict[str, Any]]:
    prefix = f"{database}." if database else ""
    return [{"source": f"{prefix}{table}", "columns": {"types": types}} for table, types in DECLARED.items()]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_maxwell_ends_in_the_rows_of_its_database(spark: SparkSession, tmp_path: Path) -> None:
    one, other = maxwell.captured("one"), maxwell.captured(SHUFFLED)
    tables = declared("one") + declared(SHUFFLED)
    mirroring = Mirroring(tmp_path, {"envelope": {"format": "maxwell"}, "tables": tables})
    batches = [a + b for a, b in zip(cut(one, 160), parts(shuffled(doubled(other), 4), 3), strict=True)]
    summary = mirroring.deliver(batches).run(spark)

    assert not differences(spark, {t: mirroring.path("one", None, t) for t in KEYS})
    assert not differences(spark, {t: mirroring.path(SHUFFLED, None, t) for t in KEYS})
    assert {name.partition(".")[0] for name in summary.tables} == {"one", SHUFFLED}
    counts = [each.counts for name, each in summary.tables.items() if name.startswith("one.")]
    assert sum(each.stale + each.duplicates + each.quarantined for each in counts) == 0


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_custom_envelope_reads_maxwells_records_to_the_same_tables(
    spark: SparkSession, tmp_path: Path
) -> None:
    tables = [
        {**each, "primaryKey": [KEYS[each["source"]]]} for each in (*declared(), {"source": "addresses"})
    ]
    mirroring = Mirroring(
        tmp_path,
        {
            "envelope": CUSTOM,
            "tables": tables,
            "ordering": {"by": "offset"},
            "target": {"path": f"{tmp_path}/lake/{{table}}"},
        },
    )
    mirroring.deliver(cut(maxwell.captured(), 200)).run(spark)
    assert not differences(spark, {t: f"{tmp_path}/lake/{t}" for t in KEYS})


def flat() -> list[Record]:
    return Capture("inventory", "jsonflat").records


def typed() -> list[dict[str, Any]]:
    return [
        {**each, "source": each["source"].split(".", 1)[1]}
        for each in Capture("inventory", "jsonflat").declared()
    ]


def flat_differences(spark: SparkSession, mirroring: Mirroring) -> list[str]:
    found = []
    for table in Capture("inventory").tables:
        schema, _, name = table.partition(".")
        (path,) = Path(mirroring.lake).glob(f"*/{schema}/{name}")
        mirror, key = at(spark, str(path)), (KEYS[name],)
        columns = spark.read.format("delta").load(str(path)).columns
        assert {column for column in columns if column.startswith("__")} <= set(METADATA)
        expected = truth.load_truth(FOLDER / "inventory" / "truth" / f"{table}.jsonl", key)
        types = truth.source_types(FOLDER / "inventory")[table]
        lines = truth.diff(truth.collect(mirror), expected, types, mirror.schema, key)
        found += [f"{table}: {line}" for line in lines[:3]]
    return found


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_flat_records_of_debezium_end_in_the_rows_of_their_database(
    spark: SparkSession, tmp_path: Path
) -> None:
    mirroring = Mirroring(
        tmp_path, {"envelope": {"format": "debezium-flat", "nullValue": "ignore"}, "tables": typed()}
    )
    records = flat()
    summary = mirroring.deliver(cut(records, 350)).run(spark)
    assert not flat_differences(spark, mirroring)
    assert sum(each.counts.quarantined for each in summary.tables.values()) == 0
    nulls = sum(record["value"] is None for record in records)
    assert nulls > 50


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_null_values_alone_delete_where_the_offset_orders(spark: SparkSession, tmp_path: Path) -> None:
    """``delete.tombstone.handling.mode=tombstone``: the deletes that were rewritten are left out."""
    records = [
        _without_metadata(record) for record in flat() if '"__deleted":"true"' not in (record["value"] or "")
    ]
    mirroring = Mirroring(
        tmp_path,
        {"envelope": {"format": "debezium-flat"}, "tables": typed(), "ordering": {"by": "offset"}},
    )
    mirroring.deliver(cut(records, 350)).run(spark)
    assert not flat_differences(spark, mirroring)


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_null_values_with_headers_delete_in_any_order(spark: SparkSession, tmp_path: Path) -> None:
    """The same with ``add.headers``, which place the deletes among the other changes."""
    deleted: dict[tuple[Any, ...], list[list[str]]] = {}
    records = []
    for record in flat():
        place = record["topic"], record["partition"], record["key"]
        if '"__deleted":"true"' in (record["value"] or ""):
            row = json.loads(record["value"])
            deleted[place] = [[name, str(row[name])] for name in row if name.startswith("__")]
        elif record["value"] is None:
            records.append({**record, "headers": deleted.pop(place)})
        else:
            records.append(record)
    mirroring = Mirroring(tmp_path, {"envelope": {"format": "debezium-flat"}, "tables": typed()})
    mirroring.deliver(parts(shuffled(doubled(records), 3), 3)).run(spark)
    assert not deleted
    assert not flat_differences(spark, mirroring)


def _without_metadata(record: Record) -> Record:
    if not record["value"]:
        return record
    row = re.sub(r',"__[a-z_]+":("[^"]*"|\d+)', "", record["value"])
    assert "__" not in json.loads(row) or record["topic"].startswith("__")
    return {**record, "value": row}


@pytest.mark.thorough
def test_what_the_manifest_did_not_know_is_replayed_when_it_does(spark: SparkSession, tmp_path: Path) -> None:
    history = maxwell.History("shop")
    history.insert(1, "a")
    history.insert(2, "b")
    history.delete(2)
    history.update(1, "c")
    fields = CUSTOM["fields"]
    known = {"insert": "c", "update": "u"}
    tables = [{"source": "items", "primaryKey": ["id"]}]
    settings = {"tables": tables, "target": {"path": f"{tmp_path}/lake/{{table}}"}}
    envelope = {"format": "custom", "fields": fields}

    before = Mirroring(tmp_path, {**settings, "envelope": {**envelope, "opMap": known}})
    before.deliver([maxwell.sent(history.lines, partitions=1)]).run(spark)
    rows = at(spark, f"{tmp_path}/lake/items")
    assert {row["id"]: row["v"] for row in rows.collect()} == {1: "c", 2: "b"}
    stored = quarantine.read(spark, str(before.checkpoint))
    assert stored is not None
    [record] = stored.collect()
    assert "unknown op 'delete': it is not in envelope.opMap" in record["reason"]

    after = Mirroring(tmp_path, {**settings, "envelope": {**envelope, "opMap": {**known, "delete": "d"}}})
    outcome = replay(after.pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (1, 0)
    assert {row["id"]: row["v"] for row in at(spark, f"{tmp_path}/lake/items").collect()} == {1: "c"}
