"""What goes wrong with one table leaves the others alone, and every record is accounted for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.applier import TableApplier
from lakemirror.driver.errors import RecordsUnaccounted
from lakemirror.driver.parse.decode import EventDecoder
from lakemirror.driver.plan.targets import canonical
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.tables.mirror import SOURCE_PROPERTY, Mirror
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

GOOD, BAD = table("good", Column("v", "int32")), table("bad", Column("v", "int32"))


def values(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[int, int]]:
    rows = at(spark, mirroring.path("demo", "public", name)).collect()
    return sorted((row["id"], row["v"]) for row in rows)


def delivered(folder: Path) -> Mirroring:
    shop = Shop()
    return Mirroring(folder).deliver([[*shop.create(GOOD, id=1, v=1), *shop.create(BAD, id=1, v=1)]])


def failing(step: Callable[..., Any], times: int, of: str = "bad") -> Callable[..., Any]:
    """The step, which fails for one table the first ``times`` it is taken."""
    left = [times]

    def attempt(self: TableApplier, *args: Any, **options: Any) -> Any:
        if self.name.table == of and left[0]:
            left[0] -= 1
            raise OSError("the disk is full")
        return step(self, *args, **options)

    return attempt


@pytest.mark.parametrize("step", ["decide", "prepare", "write"])
def test_a_table_that_fails_once_is_written_in_the_same_run(
    step: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableApplier, step, failing(getattr(TableApplier, step), 1))
    mirroring = delivered(tmp_path)
    tables = mirroring.run(spark).tables
    assert tables["demo.public.bad"].error is None
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


def test_what_was_materialised_is_lost_with_an_executor(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local checkpoint of the state goes between deciding and committing: it is decided again."""
    prepare, lost = TableApplier.prepare, []

    def lose(self: TableApplier, decision: Any, *args: Any, **options: Any) -> None:
        if not lost:
            state = decision.reduced.state.frame
            state._jdf.queryExecution().toRdd().cache()
            for each in spark.sparkContext._jsc.getPersistentRDDs().values():
                each.unpersist(True)
            lost.append(state)
        prepare(self, decision, *args, **options)

    monkeypatch.setattr(TableApplier, "prepare", lose)
    mirroring = delivered(tmp_path)
    assert mirroring.run(spark).counts.applied == 2
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


def test_a_table_that_fails_twice_is_held_and_applied_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirroring = delivered(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(TableApplier, "write", failing(TableApplier.write, 99))
        tables = mirroring.run(spark).tables
    assert values(spark, mirroring, "good") == [(1, 1)]
    error = tables["demo.public.bad"].error or ""
    assert "demo.public.bad could not be written: OSError: the disk is full" in error
    assert "suspend: true" in error
    assert tables["demo.public.bad"].counts.refused == 1
    replay(mirroring.pipeline, spark=spark)
    assert values(spark, mirroring, "bad") == [(1, 1)]


def test_a_record_that_makes_spark_throw_is_quarantined_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    records = [record for n in range(8) for record in shop.create(BAD, id=n, v=n)]
    whole = EventDecoder.decode

    def throwing(decoder: EventDecoder, events: DataFrame) -> DataFrame:
        decoded = whole(decoder, events)
        thrown = F.when(F.col("offset") == 5, F.raise_error(F.lit("a codec's mistake")))
        return decoded.withColumn("op", F.coalesce(thrown.cast("string"), F.col("op")))

    monkeypatch.setattr(EventDecoder, "decode", throwing)
    mirroring = Mirroring(tmp_path).deliver([records])
    counts = mirroring.run(spark).tables["demo.public.bad"].counts
    assert (counts.records, counts.applied, counts.quarantined) == (8, 7, 1)
    assert values(spark, mirroring, "bad") == [(n, n) for n in range(8) if n != 5]
    (row,) = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert (row["offset"], row["source"]) == (5, "demo.public.bad")
    assert "a codec's mistake" in row["reason"]


def test_a_batch_whose_records_are_not_accounted_for_is_not_done(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EventDecoder.decode
    monkeypatch.setattr(EventDecoder, "decode", lambda *args: whole(*args).where("row.id <> 1 OR row.v <> 1"))
    mirroring = delivered(tmp_path)
    with pytest.raises(RecordsUnaccounted, match=r"table demo\.public\.bad: .*1 records .*applied: 0"):
        mirroring.run(spark)
    assert list(mirroring.checkpoint.glob("files/commits/*")) == []
    assert not (mirroring.checkpoint / "audit").exists()
    monkeypatch.undo()
    mirroring.run(spark)
    assert values(spark, mirroring, "bad") == values(spark, mirroring, "good") == [(1, 1)]


def test_a_target_that_another_pipeline_makes_at_the_same_time(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Mirror.create

    def late(self: Mirror, columns: Any, properties: Any, *args: Any, **options: Any) -> None:
        if str(self.location).endswith("/bad"):
            create(self, columns, {**properties, SOURCE_PROPERTY: "other/db.t"}, *args, **options)
        create(self, columns, properties, *args, **options)

    monkeypatch.setattr(Mirror, "create", late)
    mirroring = delivered(tmp_path)
    tables = mirroring.run(spark).tables
    assert "is the mirror of other/db.t" in (tables["demo.public.bad"].error or "")
    assert (values(spark, mirroring, "bad"), values(spark, mirroring, "good")) == ([], [(1, 1)])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/lake/public/t", "file:///lake//public/T/"),
        ("s3a://lake/a.b/c", "s3a://lake/A.b/c/"),
        ("lake.public.t", "LAKE.public.T"),
    ],
)
def test_spellings_of_one_target(one: str, other: str) -> None:
    assert canonical(one) == canonical(other)
    assert canonical(one) != canonical(one + "x")
