"""What is kept of rows that changed their key: their images, and the tombstones of their former keys."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver import faults
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.tables.tombstones import DeltaFacts, Tombstones
from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, Record
from tests.support.shop import Shop, table

V, NOTE = Column("v", "int32", optional=True), Column("note", "string", optional=True)
ITEMS = table("items", V, NOTE)
MODES = pytest.mark.parametrize("mode", ["scd1", pytest.param("scd2", marks=pytest.mark.thorough)])


def moved(shop: Shop, before: int, after: int, note: str) -> tuple[list[Record], list[Record]]:
    """A change of a key that does not send the note: the delete with its Kafka tombstone, and the create."""
    old, new = {"id": before, "v": 1, "note": note}, {"id": after, "v": 2, "note": UNAVAILABLE}
    gone, tombstone, made = ITEMS.move(shop.next(), old, new)
    return shop.send(ITEMS, gone, tombstone), shop.send(ITEMS, made)


def mirror(mirroring: Mirroring) -> str:
    return mirroring.path("demo", "public", "items")


def live(spark: SparkSession, mirroring: Mirroring) -> list[tuple[Any, ...]]:
    frame = spark.read.format("delta").load(mirror(mirroring))
    frame = frame.where("__is_current") if "__is_current" in frame.columns else frame
    return [tuple(row) for row in frame.select("id", "v", "note").orderBy("id").collect()]


def images(spark: SparkSession, mirroring: Mirroring) -> list[SparkRow]:
    """The facts of moves, in the order of their batches."""
    facts = spark.read.format("delta").load(f"{mirror(mirroring)}/_tombstones").where("kind = 'moved'")
    return (
        facts.select("batch", "key", "new_key", F.get_json_object("image", "$.note"))
        .orderBy("batch")
        .collect()
    )


@pytest.mark.thorough
def test_a_value_that_is_replayed_reaches_the_new_key(spark: SparkSession, tmp_path: Path) -> None:
    """A replay numbers its batches anew: its image of the row is the newer one for all that."""

    def settings(condition: str) -> dict[str, Any]:
        unmet = {"name": "allowed", "condition": condition, "onViolation": "quarantine"}
        return {"tables": [{"source": "items", "expectations": [unmet]}]}

    shop = Shop()
    first = shop.create(ITEMS, id=1, v=1, note="old")
    refused = shop.update(ITEMS, id=1, v=-1, note="new")
    gone, made = moved(shop, 1, 2, "new")
    mirroring = Mirroring(tmp_path, settings("v > 0")).deliver([first, [*refused, *gone]])
    mirroring.run(spark)
    wider = Mirroring(tmp_path, settings("v > -9"))
    outcome = replay(wider.pipeline, spark=spark)
    assert (outcome.records, outcome.still_bad) == (1, 0)
    wider.deliver([made]).run(spark)
    assert live(spark, wider) == [(2, 2, "new")]


@pytest.mark.thorough
@MODES
def test_an_image_is_written_when_it_is_new_or_improved(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    first = shop.create(ITEMS, id=1, v=1, note="old")
    late = shop.update(ITEMS, id=1, v=1, note="new")
    gone, made = moved(shop, 1, 2, "new")
    others = [shop.create(ITEMS, id=n, v=1, note="") for n in (10, 11, 12)]
    mirroring = Mirroring(tmp_path, {"defaults": {"mode": mode}})
    mirroring.deliver([first, [*gone, *made], others[0], others[1]]).run(spark)
    key, new_key = '["1"]', '["2"]'
    assert [tuple(row) for row in images(spark, mirroring)] == [(1, key, new_key, "old")]
    mirroring.deliver([late, others[2], late]).run(spark)
    assert [tuple(row) for row in images(spark, mirroring)] == [
        (1, key, new_key, "old"),
        (4, key, new_key, "new"),
    ]
    assert live(spark, mirroring)[0] == (2, 2, "new")


@pytest.mark.thorough
@MODES
def test_images_are_collected(mode: str, spark: SparkSession, tmp_path: Path) -> None:
    """However many batches follow the change of a key."""
    shop = Shop()
    first = shop.create(ITEMS, id=1, v=1, note="old")
    gone, made = moved(shop, 1, 2, "old")
    mirroring = Mirroring(tmp_path, {"defaults": {"mode": mode}}).deliver([first, [*gone, *made]])
    mirroring.run(spark)
    then = datetime.now(UTC)
    mirroring.deliver([shop.create(ITEMS, id=n, v=1, note="") for n in (10, 11)]).run(spark)
    tombstones = Tombstones(spark, DeltaFacts(spark, f"{mirror(mirroring)}/_tombstones", lambda *_: None))
    assert tombstones.collect(then, None) == 2, "the delete and the image"
    assert images(spark, mirroring) == []
    assert (tombstones.summary.moved, tombstones.summary.retained) == (0, 0)


@pytest.mark.long
@MODES
def test_a_batch_that_is_done_again_writes_its_images_once(
    mode: str, spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    first = shop.create(ITEMS, id=1, v=1, note="old")
    gone, made = moved(shop, 1, 2, "old")
    mirroring = Mirroring(tmp_path, {"defaults": {"mode": mode}}).deliver([first])
    mirroring.run(spark)
    mirroring.deliver([[*gone, *made]])
    faults.arm("after-tombstones")
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(spark)
    mirroring.run(spark)
    assert len(images(spark, mirroring)) == 1
    assert live(spark, mirroring) == [(2, 2, "old")]


@pytest.mark.thorough
@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_move_stands_for_the_delete_that_is_still_to_come(
    restarted: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """A late event of the former key is stale in the same run as well as in the next one."""
    shop = Shop()
    other = shop.create(ITEMS, id=9, v=1, note="")
    late = shop.create(ITEMS, id=1, v=1, note="old")
    gone, made = moved(shop, 1, 2, "old")
    mirroring = Mirroring(tmp_path).deliver([other, made])
    if restarted:
        mirroring.run(spark)
    result = mirroring.deliver([late]).run(spark).tables["demo.public.items"]
    assert (result.counts.stale, result.tombstones_retained) == (1, 1)
    assert live(spark, mirroring) == [(2, 2, "old"), (9, 1, "")]
    result = mirroring.deliver([gone]).run(spark).tables["demo.public.items"]
    assert result.tombstones_retained == 1
    assert [tuple(row) for row in at(spark, mirror(mirroring)).orderBy("id").collect()] == [
        (2, 2, "old"),
        (9, 1, ""),
    ]


@pytest.mark.long
@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_a_row_that_is_to_be_deleted_softly_still_changes_after_its_move(
    restarted: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """Its delete has not come yet, and keeps the last row."""
    shop = Shop()
    first = shop.create(ITEMS, id=1, v=1, note="old")
    late = shop.update(ITEMS, id=1, v=5, note="new")
    gone, made = moved(shop, 1, 2, "new")
    settings = {"defaults": {"delete": {"type": "soft", "column": "deleted_at"}}}
    mirroring = Mirroring(tmp_path, settings).deliver([first, made])
    if restarted:
        mirroring.run(spark)
    mirroring.deliver([late, gone]).run(spark)
    rows = at(spark, mirror(mirroring)).selectExpr("id", "v", "note", "deleted_at IS NULL").orderBy("id")
    assert [tuple(row) for row in rows.collect()] == [(1, 5, "new", False), (2, 2, "new", True)]
