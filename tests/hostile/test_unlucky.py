"""Settings that go wrong with the rows they meet: what fails is one record or one table, and it is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spark_settings import WRITER
from lakemirror.driver import faults
from lakemirror.driver.errors import BatchMismatch
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.write import writers
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

V = Column("v", "int32", optional=True)


def rows(spark: SparkSession, path: str) -> list[tuple[int, int | None]]:
    return sorted(tuple(row) for row in at(spark, path).select("id", "v").collect())


@pytest.mark.thorough
@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
@pytest.mark.guarantee(
    "A filter, an expectation or a computed column that fails for rows concerns the records of these rows, "
    "however many there are, in one pass; with `onViolation: warn` they are applied"
)
def test_expressions_that_fail_and_patterns_that_collide(spark: SparkSession, tmp_path: Path) -> None:
    """A division by zero concerns its record, whatever their number; a target that two tables of a pattern
    have, the second one.
    """
    ratio = {"name": "ratio", "condition": "100 / v > 1"}
    share = {"columns": {"expressions": {"share": "100 / v", "double": "2 * (100 / v)"}}}
    listed = {
        "warned": {"expectations": [ratio]},
        "aside": {"expectations": [{**ratio, "onViolation": "quarantine"}]},
        "strict": {"expectations": [{**ratio, "onViolation": "fail"}]},
        "untold": {
            "expectations": [{**ratio, "condition": "100 / v > 1 OR v IS NULL", "onViolation": "fail"}]
        },
        "part": {"filter": "100 / v > 1"},
        "list": {"filter": "100 / v > 1", "mode": "append"},
        "history": {"filter": "100 / v > 1", "mode": "scd2", "expectations": [ratio]},
        "soft": {"delete": {"type": "soft", "column": "gone"}, **share},
        "never": {"filter": "1 / 0 > id"},
    }
    none = [2, *range(100, 134)]
    tables = [{"source": name, **each} for name, each in listed.items()]
    pattern = r"/demo\.public\.r_(?<kind>[a-z]+)(_(?<number>\d))?/"
    tables.append({"source": pattern, "target": {"path": f"{tmp_path}/lake/r/{{kind}}"}})
    numbered = r"/demo\.public\.n_(?<kind>[a-z]+)(_(?<number>\d))?/"
    tables.append({"source": numbered, "target": {"path": f"{tmp_path}/lake/n/{{kind}}/{{number}}"}})
    shop, batch = Shop(), []
    for name in listed:
        of = table(name, V)
        for id, v in ((1, 5), (3, None), (4, 9), *((id, 0) for id in none)):
            batch += shop.create(of, id=id, v=v)
    for name in ("r_eu_1", "r_eu_2", "r_us_1", "n_eu", "n_eu_1"):
        batch += shop.create(table(name, V), id=1, v=len(name))
    mirroring = Mirroring(tmp_path, {"tables": tables}).deliver([batch])
    summary = mirroring.run(spark)
    assert summary.counts.unaccounted == 0
    found = {source.rpartition(".")[2]: each for source, each in summary.tables.items()}
    path = {name: mirroring.path("demo", "public", name) for name in listed}
    assert rows(spark, path["warned"]) == sorted([(1, 5), (3, None), (4, 9), *((id, 0) for id in none)])
    assert found["warned"].counts.violations == len(none) + 1
    assert rows(spark, path["aside"]) == [(1, 5), (4, 9)]
    assert rows(spark, path["part"]) == [(1, 5), (4, 9)]
    assert rows(spark, path["list"]) == [(1, 5), (4, 9)]
    assert rows(spark, path["history"]) == [(1, 5), (4, 9)]
    assert rows(spark, path["soft"]) == rows(spark, path["untold"]) == [(1, 5), (3, None), (4, 9)]
    assert "do not meet the expectation ratio" in (found["strict"].error or "")
    assert found["strict"].counts.refused == found["strict"].counts.records == 38, "all are held"
    assert all(each.error is None for name, each in found.items() if name in {*listed} - {"strict"})
    assert {name: each.counts.quarantined for name, each in found.items() if each.counts.quarantined} == {
        **dict.fromkeys(("part", "list", "history", "soft", "untold"), len(none)),
        "aside": len(none) + 1,
        "never": len(none) + 3,
    }
    kept = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    told = [row["reason"] for row in kept.where("reason LIKE '%DIVIDE_BY_ZERO%'").collect()]
    assert len(told) == 6 * len(none) + len(none) + 3
    assert not any("ansi" in each for each in told), "no advice that would change values"
    for place in ("filter, 100 / v", "expectations[ratio], 100 / v", "columns.expressions[share], 100 / v"):
        assert any(place in each and "fails for the row" in each for each in told), place

    # Another condition: what failed is applied.
    eased = {"source": "aside", "expectations": [{**ratio, "condition": "true"}]}
    other = {"tables": [eased], "unlisted": "ignore"}
    outcome = replay(Mirroring(tmp_path, other).pipeline, table="demo.public.aside", spark=spark)
    assert (outcome.records, outcome.still_bad) == (len(none) + 1, 0)
    assert len(rows(spark, path["aside"])) == len(none) + 3
    # Which of the two comes first is the order of their names.
    assert rows(spark, f"{tmp_path}/lake/r/eu") == [(1, len("r_eu_1"))]
    assert "is the mirror of" in (found["r_eu_2"].error or "")
    assert found["r_us_1"].error is None
    assert rows(spark, f"{tmp_path}/lake/n/eu/1") == [(1, len("n_eu_1"))]
    assert found["n_eu"].error is None
    assert quarantine.open_counts(spark, str(mirroring.checkpoint))["demo.public.r_eu_2"] == {"table": 1}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])
def test_a_batch_that_is_done_again_does_not_conflict_with_itself(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The rows stand there already, for the driver died before it said so; and the batch comes once more."""
    shop, items = Shop(), table("items", V)
    settings = {"tables": [{"source": "items", "onConflict": "fail", "mode": mode}]}
    again = shop.create(items, id=1, v=1)
    mirroring = Mirroring(tmp_path, settings).deliver([[*again, *shop.create(items, id=2, v=2)]])
    for point in ("after-rows", "before-checkpoint-commit"):
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            mirroring.run(spark)
    mirroring.deliver([[*again, *shop.delete(items, id=1, v=1), *shop.create(items, id=1, v=3)]])
    summary = mirroring.run(spark)
    assert summary.tables["demo.public.items"].error is None
    assert (summary.counts.refused, summary.counts.quarantined) == (0, 0)
    found = spark.read.format("delta").load(mirroring.path("demo", "public", "items"))
    current = found.where("__is_current") if mode == "scd2" else found
    assert sorted((row["id"], row["v"]) for row in current.collect()) == [(1, 3), (2, 2)]


def die_before_the_batch_is_marked_done(mirroring: Mirroring, spark: SparkSession) -> None:
    faults.arm("before-checkpoint-commit")
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(spark)


def go_back_to_the_first_batch(mirroring: Mirroring, copy: Path) -> None:
    """Restore the checkpoint from a copy, and take all input away but the first file."""
    shutil.rmtree(mirroring.checkpoint)
    shutil.copytree(copy, mirroring.checkpoint)
    for file in sorted(mirroring.input.iterdir())[1:]:
        file.unlink()


@pytest.mark.usefixtures("stages_of_spark")
def test_a_batch_that_is_done_again_is_found_behind_the_commits_of_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards, housekeeping and changed columns commit to a mirror, too."""
    monkeypatch.setattr(writers, "_FIRST_LOOK", 2)
    monkeypatch.setattr(writers, "_FURTHER", 2)
    shop, items = Shop(), table("items", V)
    mirroring = Mirroring(tmp_path).deliver(
        [[*shop.create(items, id=1, v=1), *shop.create(items, id=2, v=2)]]
    )
    die_before_the_batch_is_marked_done(mirroring, spark)
    mirror = mirroring.path("demo", "public", "items")
    for number in range(5):
        spark.sql(f"ALTER TABLE delta.`{mirror}` SET TBLPROPERTIES (number = '{number}')")
    versions = mirroring.versions()
    summary = mirroring.run(spark)
    assert (summary.counts.records, summary.counts.applied) == (2, 2)
    assert mirroring.versions() == versions


@pytest.mark.long
@pytest.mark.parametrize("note", ["nightly", "[1]"])
def test_a_batch_that_is_done_again_is_found_behind_the_notes_of_others(
    note: str, spark: SparkSession, tmp_path: Path
) -> None:
    """Somebody's own commits may have a note of any kind."""
    mirroring, items = Mirroring(tmp_path), table("items", V)
    mirroring.deliver([Shop().create(items, id=1, v=1)])
    die_before_the_batch_is_marked_done(mirroring, spark)
    setting = "spark.databricks.delta.commitInfo.userMetadata"
    mirror = mirroring.path("demo", "public", "items")
    spark.conf.set(setting, note)
    try:
        spark.sql(f"ALTER TABLE delta.`{mirror}` SET TBLPROPERTIES (number = '1')")
    finally:
        spark.conf.unset(setting)
    summary = mirroring.run(spark)
    assert summary.tables["demo.public.items"].error is None
    assert (summary.counts.records, summary.counts.applied) == (1, 1)


@pytest.mark.usefixtures("stages_of_spark")
def test_a_batch_that_is_done_again_need_not_be_in_the_history_any_more(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says that the mirror has the batch, but Delta keeps its history for a limited time."""
    mirroring, items = Mirroring(tmp_path), table("items", V)
    mirroring.deliver([Shop().create(items, id=1, v=1)])
    die_before_the_batch_is_marked_done(mirroring, spark)
    monkeypatch.setattr(writers.DeltaWriters, "done", lambda *_: None)
    summary = mirroring.run(spark)
    assert summary.tables["demo.public.items"].error is None
    assert (summary.counts.records, summary.counts.duplicates) == (1, 1)
    assert rows(spark, mirroring.path("demo", "public", "items")) == [(1, 1)]


@pytest.mark.long
@pytest.mark.parametrize(
    "writer",
    [
        "direct",
        pytest.param("merge", marks=pytest.mark.thorough),
        pytest.param("append", marks=pytest.mark.thorough),
    ],
)
def test_other_input_under_the_number_of_a_batch_that_is_done_is_not_skipped(
    writer: str, spark: SparkSession, tmp_path: Path
) -> None:
    """The checkpoint was restored from a copy, and the input since then is another; later in the same run."""
    shop, items, others = Shop(), table("items", V), table("others", V)
    settings = {"tables": [{"source": "items", "mode": "append"}], "unlisted": "mirror"}
    mirroring = Mirroring(tmp_path, settings if writer == "append" else None)
    mirroring.deliver([shop.create(items, id=1, v=1)]).run(spark)
    shutil.copytree(mirroring.checkpoint, tmp_path / "copy")
    mirroring.deliver([shop.create(items, id=2, v=2), shop.create(items, id=3, v=3)]).run(spark)

    go_back_to_the_first_batch(mirroring, tmp_path / "copy")
    mirroring.deliver([shop.create(others, id=1, v=1), shop.create(items, id=9, v=9)])
    spark.conf.set(WRITER, writer)
    try:
        with pytest.raises(BatchMismatch, match="another range of input"):
            mirroring.run(spark)
    finally:
        spark.conf.unset(WRITER)


@pytest.mark.long
def test_a_checkpoint_that_is_older_than_the_mirror_is_told(spark: SparkSession, tmp_path: Path) -> None:
    """The mirror was not in the first batch after the copy, and is in another one of that number now."""
    shop, items, others = Shop(), table("items", V), table("others", V)
    mirroring = Mirroring(tmp_path)
    mirroring.deliver([shop.create(items, id=1, v=1)]).run(spark)
    shutil.copytree(mirroring.checkpoint, tmp_path / "copy")
    mirroring.deliver([shop.create(others, id=1, v=1), shop.create(items, id=2, v=2)]).run(spark)

    go_back_to_the_first_batch(mirroring, tmp_path / "copy")
    mirroring.deliver([shop.create(items, id=9, v=9)])
    with pytest.raises(BatchMismatch, match="restore the newest one"):
        mirroring.run(spark)
