"""The state that is read from logs that Delta writes is that of Delta's own snapshot, and of delta-rs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.tables.delta import snapshot
from lakemirror.driver.writer.actions import Domain, Metadata, Protocol, Transaction
from lakemirror.driver.writer.entry import LogStore, known
from lakemirror.driver.writer.java_store import DeltaLogStore
from lakemirror.driver.writer.log_files import segment_of
from lakemirror.driver.writer.log_state import State, advance, read
from lakemirror.driver.writer.stores import LocalLogStore
from tests.support.layouts import FOLDER as LAYOUTS

pytestmark = pytest.mark.long

COLUMNS = """
    id BIGINT, p INT, flag BOOLEAN, tiny TINYINT, big BIGINT, single FLOAT, double DOUBLE, price DECIMAL(9,2),
    exact DECIMAL(38,10), text STRING, octets BINARY, day DATE, instant TIMESTAMP, local TIMESTAMP_NTZ,
    items ARRAY<INT>, inner STRUCT<x: INT, y: STRING>
"""
ROWS = """
    SELECT id, CAST(id % 2 AS INT) p, id % 3 = 0 flag, CAST(id AS TINYINT) tiny, id * 1000000007 big,
        CAST(id / 3 AS FLOAT) single, IF(id = 4, DOUBLE('NaN'), id / 7) double,
        CAST(id / 9 AS DECIMAL(9,2)) price,
        CAST(id / 11 AS DECIMAL(38,10)) exact, IF(id = 3, NULL, repeat(CHAR(CAST(65 + id AS INT)), 40)) text,
        CAST('x' AS BINARY) octets, DATE '0001-01-01' + CAST(id * 365000 AS INT) day,
        TIMESTAMP '1500-01-01 00:00:00.123456' + make_interval(id * 100) instant,
        TIMESTAMP_NTZ '9999-12-31 23:59:59.999999' local, array(1) items, named_struct('x', 1, 'y', 'z') inner
    FROM range({begin}, {begin} + 6)
"""
VECTORS = {"delta.enableDeletionVectors": "true", "delta.checkpointInterval": "1000"}


@dataclass(frozen=True)
class Kind:
    """How Delta is told to write a checkpoint, and how many files of it there are."""

    files: int
    properties: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    layout: str = "PARTITIONED BY (p)"
    parsed: bool = False


ONLY_PARSED = {"delta.checkpoint.writeStatsAsJson": "false", "delta.checkpoint.writeStatsAsStruct": "true"}
MAPPED = {"delta.columnMapping.mode": "name"}
PARTS = {"spark.databricks.delta.checkpoint.partSize": "2"}
KINDS = {
    "classic": Kind(1),
    "with columns of statistics": Kind(1, {"delta.checkpoint.writeStatsAsStruct": "true"}),
    "with nothing but columns of statistics": Kind(1, ONLY_PARSED, parsed=True),
    "with columns of statistics of mapped columns": Kind(1, {**ONLY_PARSED, **MAPPED}, parsed=True),
    "of several parts": Kind(4, {}, PARTS),
    "V2 in JSON": Kind(1, {"delta.checkpointPolicy": "v2"}, PARTS),
    "V2 in Parquet": Kind(
        1,
        {"delta.checkpointPolicy": "v2", **ONLY_PARSED},
        {**PARTS, "spark.databricks.delta.checkpointV2.topLevelFileFormat": "parquet"},
        parsed=True,
    ),
    "of a clustered table": Kind(1, {}, {}, "CLUSTER BY (id, day)"),
}
OFTEN = ("classic", "with nothing but columns of statistics", "V2 in Parquet")


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Any:
    for name, value in given.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in given:
            spark.conf.unset(name)


def made(spark: SparkSession, path: Path, kind: Kind) -> None:
    told = ", ".join(f"'{name}' = '{value}'" for name, value in {**VECTORS, **kind.properties}.items())
    spark.sql(f"CREATE TABLE delta.`{path}` ({COLUMNS}) USING DELTA {kind.layout} TBLPROPERTIES ({told})")
    for batch in range(3):
        appended(spark, path, batch)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id IN (1, 8)")
    with settings(spark, kind.settings):
        log = snapshot(spark, str(path)).deltaLog()
        log.checkpoint(snapshot(spark, str(path)), spark._jvm.scala.Option.empty())


def appended(spark: SparkSession, path: Path, batch: int) -> None:
    writer = spark.sql(ROWS.format(begin=6 * batch)).coalesce(1).write.format("delta").mode("append")
    writer.option("txnAppId", f"app{batch % 2}").option("txnVersion", batch).save(str(path))


def changed(spark: SparkSession, path: Path) -> None:
    """Commits of several sorts, of Delta's own."""
    appended(spark, path, 3)
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id = 2")
    spark.sql(f"UPDATE delta.`{path}` SET big = 0 WHERE id = 3")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE id BETWEEN 18 AND 23")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN more STRING")
    spark.sql(f"OPTIMIZE delta.`{path}`")


def _listed(items: Any) -> list[dict[str, Any]]:
    return [json.loads(each.json()) for each in items]


def _sequence(found: Any) -> list[Any]:
    return [found.apply(index) for index in range(found.size())]


def require_same(spark: SparkSession, path: Path, state: State, parsed: bool = False) -> None:
    """The state is that of Delta's snapshot, and its files are those of delta-rs."""
    newest, found = snapshot(spark, str(path)), state.snapshot
    assert found.version == newest.version()
    assert state.known == known(LocalLogStore(path / "_delta_log"), found.version)
    assert found.protocol == Protocol.parse(json.loads(newest.protocol().json())["protocol"])
    assert _about(found.metadata) == _about(Metadata(json.loads(newest.metadata().json())["metaData"]))
    transactions = [Transaction.parse(each["txn"]) for each in _listed(_sequence(newest.setTransactions()))]
    assert found.transactions == {each.app_id: each for each in transactions}
    domains = [Domain.parse(each["domainMetadata"]) for each in _listed(_sequence(newest.domainMetadata()))]
    assert found.domains == {each.name: each for each in domains}
    expected = {each["add"]["path"]: each["add"] for each in _listed(newest.allFiles().collect())}
    assert {path for path, _ in found.files} == expected.keys()
    for each in found.files.values():
        told, theirs = each.action["add"], expected[each.path]
        require_same_statistics(told.pop("stats"), theirs.pop("stats"), parsed=parsed)
        assert {**told, "dataChange": False} == {**_filled(theirs), "dataChange": False}
    files = pa.table(deltalake.DeltaTable(str(path)).get_add_actions())
    assert sorted(files["path"].to_pylist()) == sorted(path for path, _ in found.files)


def _about(metadata: Metadata) -> Any:
    return (
        metadata.id,
        json.loads(metadata.schema),
        metadata.partitions,
        metadata.properties,
        metadata.provider,
    )


def _filled(given: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in given.items() if each is not None}


def require_same_statistics(text: str, theirs: str, *, parsed: bool) -> None:
    """What a checkpoint has in columns only may lack bounds, and Delta spells it in another way."""
    if not parsed:
        assert text == theirs
        return
    ours, others = (json.loads(each, parse_float=Decimal) for each in (text, theirs))
    assert ours["numRecords"] == others["numRecords"]
    assert ours.get("tightBounds") == others.get("tightBounds")
    for name in ("minValues", "maxValues", "nullCount"):
        for column, value in ours[name].items():
            assert _spelling(value) == _spelling(others[name][column]), (name, column)
    assert len(ours["minValues"]) >= 10


def _spelling(value: Any) -> Any:
    """A value without digits that one spelling has and another has not."""
    if isinstance(value, Decimal):
        return round(float(value), 5)
    return value.rstrip("Z0").rstrip(".") if isinstance(value, str) else value


@pytest.mark.parametrize(
    "name", [each if each in OFTEN else pytest.param(each, marks=pytest.mark.thorough) for each in KINDS]
)
def test_every_kind_of_checkpoint(name: str, spark: SparkSession, tmp_path: Path) -> None:
    kind, path = KINDS[name], tmp_path / "t"
    made(spark, path, kind)
    local: LogStore = LocalLogStore(path / "_delta_log")
    java = DeltaLogStore(spark, str(path))
    before = read(local)
    segment = segment_of(local.list_from(0))
    assert before is not None
    assert segment is not None
    assert len(segment.checkpoint) == kind.files
    assert len(list((path / "_delta_log").glob("_sidecars/*"))) > 1 or "V2" not in name
    require_same(spark, path, before, kind.parsed)
    of_java = read(java)
    assert of_java is not None
    assert of_java.snapshot == before.snapshot
    for version in range(segment.begins):  # nothing may be read from before the checkpoint
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    changed(spark, path)
    after = read(local)
    assert after is not None
    require_same(spark, path, after, kind.parsed)
    assert advance(local, before) == after
    forward = advance(java, of_java)
    assert forward is not None
    assert forward.snapshot == after.snapshot
    assert forward.known == known(java, after.snapshot.version)


def test_the_logs_of_earlier_versions(spark: SparkSession, tmp_path: Path) -> None:
    """Every table in every layout that a version has stored."""
    for archive in LAYOUTS.glob("*.tar.xz"):
        with tarfile.open(archive) as tar:
            tar.extractall(tmp_path / archive.name, filter="data")
    logs = sorted(tmp_path.rglob("_delta_log"))
    assert len(logs) > 10
    for log in logs:
        state = read(LocalLogStore(log))
        assert state is not None
        require_same(spark, log.parent, state)


def test_a_listing_through_deltas_log_store(spark: SparkSession, tmp_path: Path) -> None:
    """It has all that the local one has of versions, and files are read as they are."""
    path = tmp_path / "t"
    made(spark, path, KINDS["classic"])
    local, java = LocalLogStore(path / "_delta_log"), DeltaLogStore(spark, str(path))
    for version in (0, 3, 99):
        ours, theirs = (
            {each for each in log.list_from(version) if each.name[0].isdigit()} for log in (local, java)
        )
        assert ours == theirs
        assert (version < 99) == bool(ours)
    assert DeltaLogStore(spark, str(tmp_path / "never")).list_from(0) == []
    assert java.read("_last_checkpoint") == (path / "_delta_log/_last_checkpoint").read_bytes()
    assert java.read("never") is None
