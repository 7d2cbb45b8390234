"""What a deleted pipeline leaves behind, by its deletionPolicy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.errors import CheckpointInUse, LakemirrorError
from lakemirror.driver.plan.targets import Targets
from lakemirror.driver.runtime.cleanup import delete_data
from tests.support.mirroring import Mirroring
from tests.support.records import Column
from tests.support.shop import Shop, table


def mirrored(spark: SparkSession, folder: Path, policy: str) -> tuple[Mirroring, Path]:
    """A pipeline that has run, and the folder of its one mirror."""
    of = table("orders", Column("v", "int32"))
    mirroring = Mirroring(folder, {"deletionPolicy": policy}).deliver([Shop().create(of, id=1, v=1)])
    mirroring.run(spark)
    return mirroring, Path(mirroring.path("demo", "public", "orders"))


def test_retain_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "Retain")
    assert delete_data(mirroring.pipeline, spark) == []
    assert mirror.exists()
    assert mirroring.checkpoint.exists()


def test_the_checkpoint_alone(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "DeleteCheckpoint")
    assert delete_data(mirroring.pipeline, spark) == [str(mirroring.checkpoint)]
    assert mirror.exists()
    assert not mirroring.checkpoint.exists()


def test_everything_but_what_others_made(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "DeleteAll")
    other = mirror.parent / "other"
    spark.range(1).write.format("delta").save(str(other))
    assert delete_data(mirroring.pipeline, spark) == [str(mirror), str(mirroring.checkpoint)]
    assert not mirror.exists()
    assert not mirroring.checkpoint.exists()
    assert other.exists()
    assert delete_data(mirroring.pipeline, spark) == [str(mirroring.checkpoint)], "it can be run again"


def test_everything_after_a_crash_in_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The mirror is known by the batch's pending audit alone."""
    faults.arm("after-audit")
    with pytest.raises(faults.InjectedCrash):
        mirrored(spark, tmp_path, "DeleteAll")
    mirroring = Mirroring(tmp_path, {"deletionPolicy": "DeleteAll"})
    assert not (mirroring.checkpoint / "audit").exists()
    mirror = mirroring.path("demo", "public", "orders")
    assert delete_data(mirroring.pipeline, spark) == [mirror, str(mirroring.checkpoint)]
    assert not Path(mirror).exists()


def test_a_mirror_that_another_pipeline_has_taken_over_stays(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "DeleteAll")
    spark.sql(
        f"ALTER TABLE delta.`{mirror}` SET TBLPROPERTIES ('lakemirror.source' = 'b/demo.public.orders')"
    )
    assert delete_data(mirroring.pipeline, spark) == [str(mirroring.checkpoint)]
    assert mirror.exists()


def test_a_mirror_in_the_checkpoint_is_not_deleted_with_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Because its name led there, before drivers refused such a target."""
    monkeypatch.setattr(Targets, "_require_apart", lambda *_: None)
    of = table("orders", Column("v", "int32"))
    inside = {
        "target": {"path": f"{tmp_path}/lake/{{db}}/{{schema}}/{{table}}"},
        "checkpoint": f"{tmp_path}/lake/demo",
    }
    mirroring = Mirroring(tmp_path, {**inside, "deletionPolicy": "DeleteCheckpoint"})
    mirroring.deliver([Shop().create(of, id=1, v=1)]).run(spark)
    mirror = tmp_path / "lake/demo/public/orders"
    with pytest.raises(LakemirrorError, match=r"the mirror of demo.public.orders lies in it .*Retain"):
        delete_data(mirroring.pipeline, spark)
    assert (mirror / "_delta_log").exists()
    assert (tmp_path / "lake/demo/metadata.json").exists()
    mirroring = Mirroring(tmp_path, {**inside, "deletionPolicy": "DeleteAll"})
    assert delete_data(mirroring.pipeline, spark) == [str(mirror), f"{tmp_path}/lake/demo"]
    assert not (tmp_path / "lake/demo").exists()


def test_what_others_have_in_the_checkpoint_is_not_deleted_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "DeleteCheckpoint")
    inner = mirroring.checkpoint / "others" / "checkpoint"
    Owner(open_storage(str(inner))).__enter__()
    with pytest.raises(
        LakemirrorError, match=r"checkpoint of another pipeline lies in it .*others/checkpoint"
    ):
        delete_data(mirroring.pipeline, spark)
    assert (mirroring.checkpoint / "metadata.json").exists()
    shutil.rmtree(inner)
    spark.range(1).write.format("delta").save(str(inner))
    with pytest.raises(LakemirrorError, match=r"a table lies in it .*others/checkpoint.*Retain"):
        delete_data(mirroring.pipeline, spark)
    shutil.rmtree(inner)
    assert delete_data(mirroring.pipeline, spark) == [str(mirroring.checkpoint)]
    assert mirror.exists()


def test_nothing_is_deleted_under_a_driver_that_lives(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, mirror = mirrored(spark, tmp_path, "DeleteAll")
    with Owner(open_storage(str(mirroring.checkpoint))), pytest.raises(CheckpointInUse):
        delete_data(mirroring.pipeline, spark)
    assert mirror.exists()


def test_what_no_pipeline_wrote_stays(spark: SparkSession, tmp_path: Path) -> None:
    mirroring, _ = mirrored(spark, tmp_path, "DeleteCheckpoint")
    (mirroring.checkpoint / "notes").mkdir()
    (mirroring.checkpoint / "notes" / "mine.txt").write_text("kept")
    (mirroring.checkpoint / "metadata.json.bak").write_text("kept")
    assert delete_data(mirroring.pipeline, spark) == [str(mirroring.checkpoint)]
    assert sorted(each.name for each in mirroring.checkpoint.iterdir()) == ["metadata.json.bak", "notes"]
    assert (mirroring.checkpoint / "notes" / "mine.txt").read_text() == "kept"
