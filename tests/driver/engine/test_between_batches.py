"""What others do to mirrors between two batches of a run, and what a crash leaves there.

The engine goes on, or leaves the table for Spark. Each case of what others do is a table of its own, so that
one run has them all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import deltalake
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver import faults
from lakemirror.driver.batch import BatchApplier
from lakemirror.driver.engine.engine import Engine, Plain
from lakemirror.driver.java import java_class
from lakemirror.driver.read.base import Batch
from lakemirror.driver.runtime.summary import RunSummary
from tests.support import engines
from tests.support.mirroring import Mirroring, at, audited
from tests.support.readers import differences
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

pytestmark = pytest.mark.long

Rows = Sequence[tuple[int | None, ...]]

_VECTORS = "ALTER TABLE {} SET TBLPROPERTIES (delta.enableDeletionVectors = true)"
_NO_VECTORS = "ALTER TABLE {} SET TBLPROPERTIES (delta.enableDeletionVectors = false)"
_MAPPED = """ALTER TABLE {} SET TBLPROPERTIES (
    delta.columnMapping.mode = 'name', delta.minReaderVersion = 2, delta.minWriterVersion = 5)"""
_WIDENING = "ALTER TABLE {} SET TBLPROPERTIES (delta.enableTypeWidening = true)"
_SIDECARS = "ALTER TABLE {} SET TBLPROPERTIES (delta.checkpointPolicy = 'v2')"
_IN_COLUMNS = """ALTER TABLE {} SET TBLPROPERTIES (
    delta.checkpoint.writeStatsAsStruct = true, delta.checkpoint.writeStatsAsJson = false)"""
_ALWAYS = "ALTER TABLE {} SET TBLPROPERTIES (delta.checkpointInterval = 1)"
"""Each commit is followed by a checkpoint."""


def sql(*texts: str) -> Callable[[SparkSession, str], object]:
    """Statements about a mirror, ``{}``, or its tombstones, ``{gone}``."""

    def do(spark: SparkSession, path: str) -> None:
        for each in texts:
            spark.sql(each.format(f"delta.`{path}`", gone=f"delta.`{path}/_tombstones`"))

    return do


class Case(NamedTuple):
    """What somebody does to a mirror with rows 1 and 2, from which row 3 was deleted.

    ``rows`` are those in the end, and ``held`` is a part of why nothing is applied from then on. ``goes_on``
    says that the engine applies the last batches, too.
    """

    do: Callable[[SparkSession, str], object]
    rows: Rows = ((1, 30), (2, 4), (4, 4))
    held: str = ""
    goes_on: bool = True


CASES: Mapping[str, Case] = {
    "nothing": Case(lambda spark, path: None),
    "compacted": Case(sql("OPTIMIZE {}", "OPTIMIZE {gone}")),
    "compacted_by_delta_rs": Case(lambda _, path: deltalake.DeltaTable(path).optimize.compact()),
    "clustered": Case(sql("ALTER TABLE {} CLUSTER BY (id)", "OPTIMIZE {}", _ALWAYS)),
    "purged": Case(
        sql(_VECTORS, "DELETE FROM {} WHERE id = 2", "REORG TABLE {} APPLY (PURGE)", _ALWAYS),
        ((1, 30), (4, 4)),
    ),
    "widened": Case(sql(_WIDENING, "ALTER TABLE {} ALTER COLUMN v TYPE BIGINT", _ALWAYS)),
    "mapped": Case(sql(_MAPPED, _VECTORS, _ALWAYS)),
    "renamed": Case(
        sql(_MAPPED, "ALTER TABLE {} RENAME COLUMN v TO w"),
        ((1, 1, 30), (2, 4, None), (4, None, 4)),
        goes_on=False,
    ),
    "sidecars": Case(sql(_SIDECARS, _ALWAYS)),
    "in_columns": Case(sql(_IN_COLUMNS, _ALWAYS)),
    "dropped_a_feature": Case(
        sql(_VECTORS, _NO_VECTORS, "ALTER TABLE {} DROP FEATURE deletionVectors", _ALWAYS)
    ),
    "erased": Case(sql("DELETE FROM {} WHERE id = 2"), ((1, 30), (4, 4))),
    "added": Case(sql("INSERT INTO {} (id, v) VALUES (4, 77)")),
    "twice": Case(
        sql("INSERT INTO {} (id, v) VALUES (1, 7)"), ((1, 30), (1, 30), (2, 4), (4, 4)), goes_on=False
    ),
    "forgot": Case(sql("DELETE FROM {gone}"), ((1, 30), (2, 4), (3, 2), (4, 4))),
    "vectors": Case(sql(_VECTORS)),
    "bounded": Case(
        sql("ALTER TABLE {} ADD CONSTRAINT small CHECK (v < 20)"), ((1, 10), (2, 4), (4, 4)), "small"
    ),
    "lost": Case(lambda _, path: shutil.rmtree(f"{path}/_tombstones"), ((1, 1), (2, 4)), "tombstones"),
    "removed": Case(lambda _, path: shutil.rmtree(path), held="is gone"),
}
TABLES = {name: table(name, Column("v", "int32", optional=True)) for name in CASES}


def batches() -> list[list[Record]]:
    """The same changes for each table. In the third batch, a change comes after the delete of its row."""
    shop, found = Shop(), [list[Record]() for _ in range(4)]
    for of in TABLES.values():
        late = shop.update(of, id=3, v=2)
        for id in (1, 2, 3):
            found[0] += shop.create(of, id=id, v=id)
        found[1] += shop.delete(of, id=3, v=3) + shop.update(of, id=2, v=4)
        found[2] += shop.update(of, id=1, v=10) + shop.create(of, id=4, v=4) + late
        found[3] += shop.update(of, id=1, v=30)
    return found


class Left(NamedTuple):
    """What a run left, and which batches of each table the engine applied."""

    summary: RunSummary
    rows: Mapping[str, Rows]
    applied: Mapping[str, Sequence[int]]
    paths: Mapping[str, str]


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Left by a run in which all is done before the third batch."""
    mirroring = Mirroring(tmp_path_factory.mktemp("columns")).deliver(batches())
    apply, written = BatchApplier.apply, Engine._written
    applied: Mapping[str, list[int]] = {name: [] for name in CASES}

    def after_others(self: BatchApplier, raw: DataFrame, batch: Batch) -> Any:
        for name, case in CASES.items() if batch.batch_id == 2 else ():
            case.do(spark, mirroring.path("demo", "public", name))
        return apply(self, raw, batch)

    def noted(self: Engine, table: Any, plain: Plain, batch: Batch) -> Any:
        done = written(self, table, plain, batch)
        applied[plain.name.table].append(batch.batch_id)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchApplier, "apply", after_others)
        patch.setattr(Engine, "_written", noted)
        with engines.in_columns(spark):
            summary = mirroring.run(spark)
    paths = {name: mirroring.path("demo", "public", name) for name in CASES}
    there = {name: rows_at(spark, path) for name, path in paths.items() if Path(path).exists()}
    return Left(summary, there, applied, paths)


def rows_at(spark: SparkSession, path: str) -> Rows:
    """The rows that Delta reads, which remembers nothing of the log."""
    java_class(spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    return sorted(map(tuple, at(spark, path).collect()))


@pytest.mark.parametrize("name", CASES)
def test_the_engine_goes_on_beside_others(name: str, left: Left) -> None:
    """A table that is held stays so: the engine does not go on with it, either."""
    case, error = CASES[name], left.summary.held.get(f"demo.public.{name}", "")
    assert case.held in error
    assert bool(case.held) == bool(error)
    assert left.rows.get(name, list(case.rows)) == list(case.rows)
    assert left.applied[name][:2] == [0, 1]
    assert (left.applied[name][-1] == 3) is (case.goes_on and not case.held)


def test_a_column_that_is_renamed_by_hand_is_reported_as_a_new_one(left: Left) -> None:
    """It is null in rows that are not written again, and the renamed one keeps its values."""
    found = left.summary.tables["demo.public.renamed"].drift
    assert [(each.column, each.change, each.action) for each in found] == [("v", "added", "added")]


WITH_CHECKPOINTS = ("clustered", "purged", "widened", "mapped", "sidecars", "in_columns", "dropped_a_feature")


@pytest.mark.parametrize("name", WITH_CHECKPOINTS)
def test_the_last_checkpoint_says_all(name: str, left: Left, spark: SparkSession, tmp_path: Path) -> None:
    """It is written by the engine, or by Delta where it has to be."""
    path = tmp_path / "copy"
    shutil.copytree(left.paths[name], path)
    log = path / "_delta_log"
    newest = max(each.name[:20] for each in log.glob("0*.checkpoint*"))
    assert int(newest) == max(int(each.stem) for each in log.glob("0*.json") if each.stem.isdigit())
    for each in log.iterdir():
        if each.is_file() and (each.name[:20] < newest or each.suffix == ".crc"):
            each.unlink()
    assert rows_at(spark, str(path)) == list(CASES[name].rows)


OF_OTHERS = ("renamed", "sidecars")
"""Tables that became what the driver makes none of: that some programs refuse or misread them is known."""


@pytest.mark.parametrize("name", [name for name in CASES if not CASES[name].held and name not in OF_OTHERS])
def test_other_programs_read_the_same(name: str, left: Left, spark: SparkSession) -> None:
    rows = [each.asDict() for each in at(spark, left.paths[name]).collect()]
    assert differences(left.paths[name], rows) == []


def test_lost_tombstones_are_not_begun_anew(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are lost before a batch that needs none of them. Then come a delete, and a late change."""
    of, shop, apply = table("items", Column("v", "int32", optional=True)), Shop(), BatchApplier.apply
    found = [[each for id in (1, 2, 3) for each in shop.create(of, id=id, v=id)]]
    late = shop.update(of, id=3, v=2)
    found += [shop.delete(of, id=3, v=3), shop.update(of, id=1, v=10), shop.delete(of, id=2, v=2), late]
    mirroring = Mirroring(tmp_path).deliver(found)
    path = mirroring.path("demo", "public", "items")

    def after_loss(self: BatchApplier, raw: DataFrame, batch: Batch) -> Any:
        if batch.batch_id == 2:
            shutil.rmtree(f"{path}/_tombstones")
        return apply(self, raw, batch)

    monkeypatch.setattr(BatchApplier, "apply", after_loss)
    with engines.in_columns(spark):
        summary = mirroring.run(spark)
    assert "tombstones" in summary.held["demo.public.items"]
    assert sorted(map(tuple, at(spark, path).collect())) == [(1, 10), (2, 2)]


def test_a_delete_whose_tombstone_a_crash_has_left_is_not_counted_as_repeated(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The row was created and deleted in the batch that failed, so that the mirror never had it."""
    shop, of = Shop(), table("items", Column("v", "int32", optional=True))
    first = shop.create(of, id=1, v=1)
    second = shop.create(of, id=2, v=2) + shop.delete(of, id=2, v=2) + shop.delete(of, id=1, v=1)
    mirroring = Mirroring(tmp_path).deliver([first, second])
    faults.arm("after-tombstones", after=1)
    with engines.in_columns(spark):
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
        mirroring.run(spark)
    found = audited(spark, mirroring, ["applied", "superseded", "duplicates"])
    assert found == {"demo.public.items": {"applied": 3, "superseded": 1, "duplicates": 0}}
    assert at(spark, mirroring.path("demo", "public", "items")).count() == 0
