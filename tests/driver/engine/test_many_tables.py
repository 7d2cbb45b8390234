"""The first batch of many tables, and a restart, take no Spark job for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.java import java_class
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.schemas import Schemas
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.tables.tombstones import Tombstones
from lakemirror.driver.write import target
from lakemirror.driver.write.target import DELTA
from tests.support import engines
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

KINDS = {"a": "int32", "b": "string", "c": "double"}
"""The type of the column ``v`` in each table."""
TABLES = {
    name: replace(table(name, Column("v", kind, optional=True)), schemas=False)
    for name, kind in KINDS.items()
}
FIRST: dict[str, Any] = {"a": 1, "b": "x", "c": 1.5}
THEN: dict[str, Any] = {"a": 2, "b": "y", "c": 2.5}


@pytest.fixture
def in_columns(spark: SparkSession) -> Iterator[SparkSession]:
    with engines.in_columns(spark):
        yield spark


def test_values_of_new_tables_are_read_together_and_a_restart_reads_no_table_by_a_job(
    in_columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, shop, shown, asked = in_columns, Shop(), [], []

    def telling(self: Schemas, changes: Any, found: Any) -> Any:
        shown.append(found)
        return told(self, changes, found)

    told = Schemas._told
    monkeypatch.setattr(Schemas, "_told", telling)
    created = [record for name, of in TABLES.items() for record in shop.create(of, id=1, v=FIRST[name])]
    created += [record for name, of in TABLES.items() for record in shop.create(of, id=2, v=FIRST[name])]
    deleted = [record for of in TABLES.values() for record in shop.delete(of, id=2)]
    mirroring = Mirroring(tmp_path).deliver([created, deleted])
    assert mirroring.run(spark).counts.records_in_columns == 12  # three are tombstones
    assert len(shown) == 3
    assert None not in shown, "the values of a table were read by themselves"

    for kind, name in (
        *((Tombstones, "_summarise"), (MirroredTable, "last_batch_seen")),
        *((MirroredTable, "last_batch_of"), (Mirror, "_create_by_command")),
    ):
        monkeypatch.setattr(kind, name, lambda *_, name=name, **__: asked.append(name))
    mirroring.deliver([[r for name, of in TABLES.items() for r in shop.update(of, id=1, v=THEN[name])]])
    counts = mirroring.run(spark).counts
    assert asked == []
    assert (counts.records_in_columns, counts.applied) == (3, 3)
    for name in TABLES:
        rows = at(spark, mirroring.path("demo", "public", name)).collect()
        assert [(row["id"], row["v"]) for row in rows] == [(1, THEN[name])]


def test_tables_whose_values_cannot_be_read_together_read_their_own(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("too many")

    monkeypatch.setattr("lakemirror.driver.isolation.shown_by_values", fails)
    shop = Shop()
    created = [record for name, of in TABLES.items() for record in shop.create(of, id=1, v=FIRST[name])]
    mirroring = Mirroring(tmp_path).deliver([created])
    assert mirroring.run(spark).counts.applied == 3
    rows = at(spark, mirroring.path("demo", "public", "c")).collect()
    assert [(row["id"], row["v"]) for row in rows] == [(1, 1.5)]


def test_the_rows_of_mirrors_are_counted_without_a_job(
    in_columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits in columns have no checksum files, which tell Delta how many rows there are."""
    spark, shop, of = in_columns, Shop(), TABLES["a"]
    created = [record for id in range(5) for record in shop.create(of, id=id, v=1)]
    mirroring = Mirroring(tmp_path).deliver([created, shop.delete(of, id=3)])

    def counted(self: object) -> int:
        raise AssertionError("Spark counted")

    monkeypatch.setattr(type(spark.range(1)), "count", counted)
    assert mirroring.run(spark).tables["demo.public.a"].rows == 4
    monkeypatch.undo()
    mirror = mirroring.path("demo", "public", "a")
    spark.sql(f"ALTER TABLE delta.`{mirror}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    spark.sql(f"DELETE FROM delta.`{mirror}` WHERE id = 1")
    for each in Path(mirror, "_delta_log").glob("*.crc"):
        each.unlink()
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    assert DELTA.count(spark, mirror) == target._rows_in_log(spark, mirror) == 3


def test_a_batch_that_is_there_already_is_not_applied_again(
    in_columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends before the audit has the batch: the next one finds it in the logs of the mirrors."""
    spark, shop, of = in_columns, Shop(), TABLES["a"]
    mirroring = Mirroring(tmp_path).deliver([shop.create(of, id=1, v=1)])
    recorded = BatchApplier._record

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BatchApplier, "_record", dies)
    with pytest.raises(KeyboardInterrupt):
        mirroring.run(spark)
    monkeypatch.setattr(BatchApplier, "_record", recorded)
    mirror = mirroring.path("demo", "public", "a")
    assert mirroring.run(spark).counts.applied == 1
    assert [(row["id"], row["v"]) for row in at(spark, mirror).collect()] == [(1, 1)]
    operations = [row["operation"] for row in spark.sql(f"DESCRIBE HISTORY delta.`{mirror}`").collect()]
    assert operations.count("STREAMING UPDATE") == 1
