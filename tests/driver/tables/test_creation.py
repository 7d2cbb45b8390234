"""An empty Delta table at a path is like the one that the command of Spark SQL creates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lakemirror.driver.tables import mirror as mirrors
from lakemirror.driver.tables.creation import FolderNotEmpty, create
from lakemirror.driver.tables.mirror import CHANGE_FEED_PROPERTY, VECTORS, Mirror
from lakemirror.driver.tables.names import Location

_KINDS = (
    "id BIGINT, flag BOOLEAN, small SMALLINT, real FLOAT, price DECIMAL(10, 2), day DATE, at TIMESTAMP, "
    "bytes BINARY, items ARRAY<STRUCT<a: INT, b: STRING>>, pairs MAP<STRING, BIGINT>"
)
CASES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "types": (_KINDS, {"comments": {"id": "its number"}, "comment": "a 'mirror'"}),
    "versions": ("id BIGINT, name STRING", {"properties": {"lakemirror.mode": "scd2"}}),
    "a time without a zone": ("id BIGINT, at TIMESTAMP_NTZ", {}),
    "one within a struct": ("id BIGINT, inner STRUCT<at: TIMESTAMP_NTZ>", {}),
    "names that need a mapping": ("`the id` BIGINT, inner STRUCT<`a b`: INT>, `x;y` STRING", {}),
    "a name with a dot": ("id BIGINT, `a.b``c` DOUBLE", {}),
    "no vectors": ("id BIGINT", {"avoided": [VECTORS]}),
    "a change feed": ("id BIGINT", {"properties": {CHANGE_FEED_PROPERTY: "true"}}),
    "limited texts": ("id BIGINT, code CHAR(3), name VARCHAR(5)", {}),
}


def _by_command(
    spark: SparkSession, path: str, schema: StructType, properties: Mapping[str, str], *, comment: str | None
) -> None:
    builder = DeltaTable.createIfNotExists(spark).location(path)
    for each in schema.fields:
        builder = builder.addColumn(each.name, each.dataType, comment=each.metadata.get("comment"))
    for name, value in properties.items():
        builder = builder.property(name, value)
    (builder if comment is None else builder.comment(comment)).execute()


def _state(path: Path) -> dict[str, Any]:
    """Return protocol and metadata of a new table, without what is made up for each."""
    log = path / "_delta_log"
    text = re.sub(r"col-[0-9a-f-]{36}", "col", (log / f"{0:020d}.json").read_text())
    actions = [json.loads(line) for line in text.splitlines()]
    found = {name: each for action in actions for name, each in action.items() if name != "commitInfo"}
    metadata = {k: v for k, v in found.pop("metaData").items() if k not in ("id", "createdTime")}
    metadata["schemaString"] = json.loads(metadata["schemaString"])
    protocol = {k: sorted(v) if isinstance(v, list) else v for k, v in found.pop("protocol").items()}
    return {**found, "metadata": metadata, "protocol": protocol, "files": sorted(map(str, _names(log)))}


def _names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("defaults", [{}, {"enableDeletionVectors": "true", "appendOnly": "false"}])
def test_it_is_like_one_by_command(
    case: str,
    defaults: Mapping[str, str],
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ddl, given = CASES[case]
    columns = {each.name: each.dataType for each in StructType.fromDDL(ddl).fields}
    for name, value in defaults.items():
        spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
    try:
        for name in ("ours", "command"):
            Mirror(spark, Location(path=str(tmp_path / name))).create(
                columns, **{"properties": {}, "key": [next(iter(columns))], **given}
            )
            monkeypatch.setattr(mirrors, "create", _by_command)
    finally:
        for name in defaults:
            spark.conf.unset(f"spark.databricks.delta.properties.defaults.{name}")
    assert _state(tmp_path / "ours") == _state(tmp_path / "command")


def _create(spark: SparkSession, path: Path) -> Callable[[], None]:
    return lambda: create(spark, str(path), StructType.fromDDL("id BIGINT, at DATE"), partitions=["at"])


def test_a_table_that_exists_stays_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    _create(spark, tmp_path / "t")()
    assert spark.read.format("delta").load(str(tmp_path / "t")).count() == 3


def test_other_files_are_not_mixed_with_those_of_a_table(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "report.csv").write_text("1")
    with pytest.raises(FolderNotEmpty, match="is not empty"):
        _create(spark, tmp_path)()
    assert not (tmp_path / "_delta_log").exists()


def test_its_files_are_divided_by_columns(spark: SparkSession, tmp_path: Path) -> None:
    _create(spark, tmp_path / "t")()
    spark.sql(f"INSERT INTO delta.`{tmp_path}/t` VALUES (1, DATE '2026-01-02')")
    assert (tmp_path / "t" / "at=2026-01-02").is_dir()
