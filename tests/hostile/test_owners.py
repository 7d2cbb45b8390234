"""Two pipelines of one name, with a checkpoint each and one target: one writes, and people are told."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.possession import Possessor, ensured
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.runtime.cleanup import delete_data
from lakemirror.driver.runtime.events import BatchDone, Event
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY, Mirror
from lakemirror.driver.tables.names import Location
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee(
    "A mirror belongs to one checkpoint. Another one takes it over only if its driver has stopped or shows "
    "no life for a lease, or the checkpoint is gone, and says so; cleanup and maintenance leave it alone"
)

ORDERS = table("orders", Column("v", "int32"))
TABLE = "demo.public.orders"


@dataclass
class World:
    """A lake, the log of one database, and pipelines with a folder each."""

    spark: SparkSession
    folder: Path
    lake: Path
    shop: Shop

    def pipeline(self, name: str, **settings: Any) -> Mirroring:
        target = {"path": f"{self.lake}/{{db}}/{{schema}}/{{table}}"}
        return Mirroring(self.folder / name, {"target": target, **settings})

    @property
    def mirror(self) -> str:
        return f"{self.lake}/demo/public/orders"

    @property
    def named(self) -> Possessor | None:
        properties = Mirror(self.spark, Location(path=self.mirror)).properties
        return Possessor.from_text(properties.get(CHECKPOINT_PROPERTY))

    def name(self, text: str) -> None:
        listed = f"'{CHECKPOINT_PROPERTY}' = '{text}'"
        self.spark.sql(f"ALTER TABLE delta.`{self.mirror}` SET TBLPROPERTIES ({listed})")

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row["id"], row["v"]) for row in at(self.spark, self.mirror).collect())

    def next(self, *pipelines: Mirroring, v: int) -> None:
        """One more change, of which each pipeline gets a copy."""
        records = self.shop.create(ORDERS, id=v, v=v)
        for each in pipelines:
            each.deliver([records])


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path, tmp_path / "lake", Shop())


def identity(mirroring: Mirroring) -> Possessor:
    return ensured(open_storage(str(mirroring.checkpoint)))


@contextmanager
def running(mirroring: Mirroring) -> Iterator[None]:
    """A driver that has the checkpoint."""
    with Owner(open_storage(str(mirroring.checkpoint))):
        yield


def warnings(summary: RunSummary) -> list[str]:
    return [each for each in summary.warnings if "takes over" in each]


@pytest.mark.thorough
def test_another_checkpoint_waits_for_the_owner_and_says_that_it_takes_over(
    spark: SparkSession, world: World
) -> None:
    production = world.pipeline("production", deletionPolicy="DeleteAll")
    staging = world.pipeline("staging", deletionPolicy="DeleteAll")
    world.next(production, v=1)
    assert not warnings(production.run(spark))
    assert world.named == identity(production)
    world.next(staging, v=2)
    with running(production):
        summary = staging.run(spark)
        error = summary.tables[TABLE].error
        assert error is not None
        assert f"{world.mirror} belongs to another checkpoint of a pipeline of this name" in error
        assert "stop that pipeline, or set tables[" in error
        assert str(production.checkpoint) not in error, "who guesses a place learns nothing"
        assert world.rows() == [(1, 1)]
    assert delete_data(staging.pipeline, spark) == [str(staging.checkpoint)], "another's mirror stays"
    assert world.rows() == [(1, 1)]

    told = warnings(staging.run(spark))
    assert len(told) == 1, "it is told once"
    assert "no driver uses that checkpoint now" in told[0]
    assert world.rows() == [(1, 1), (2, 2)]
    assert world.named == identity(staging).after(identity(production))
    assert delete_data(production.pipeline, spark) == [str(production.checkpoint)]
    assert world.rows() == [(1, 1), (2, 2)]
    assert delete_data(staging.pipeline, spark) == [world.mirror, str(staging.checkpoint)]


@pytest.mark.thorough
def test_what_a_pipeline_does_to_its_own_checkpoint(spark: SparkSession, world: World) -> None:
    """A reset, a copy of both, a lost checkpoint, and a mirror from before."""
    first = world.pipeline("first")
    world.next(first, v=1)
    first.run(spark)
    made = identity(first)
    first = world.pipeline("first", spark={"resetToken": "1"})
    world.next(first, v=2)
    assert not warnings(first.run(spark))
    assert world.named == identity(first) == made, "a reset makes no other checkpoint"

    old, world.lake = world.lake, world.folder / "copied"
    shutil.copytree(old, world.lake)
    shutil.copytree(world.folder / "first", world.folder / "second")
    second = world.pipeline("second", spark={"resetToken": "1"})
    world.next(second, v=3)
    with running(first):
        assert not warnings(second.run(spark))
    assert world.rows() == [(1, 1), (2, 2), (3, 3)]
    assert world.named == identity(second)
    assert (world.named.id, world.named.place) == (made.id, f"file://{second.checkpoint}")

    shutil.rmtree(second.checkpoint)
    world.next(second, v=4)
    told = warnings(second.run(spark))
    assert len(told) == 1
    assert "that checkpoint no longer exists" in told[0]
    assert world.rows() == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert world.named == identity(second).after(made)

    world.name("")
    third = world.pipeline("third")
    world.next(second, third, v=5)
    assert not warnings(third.run(spark)), "by name, it is its own"
    assert world.named is None, "another checkpoint's before it has written there"
    assert not warnings(second.run(spark))
    assert world.named == identity(second)
    world.name("{")
    world.next(second, v=6)
    assert "lakemirror.checkpoint of the target" in str(second.run(spark).tables[TABLE].error)
    assert world.rows()[-1] == (5, 5)


@pytest.mark.long
def test_a_driver_that_wakes_sees_that_its_mirror_was_taken(spark: SparkSession, world: World) -> None:
    asleep, other = world.pipeline("asleep"), world.pipeline("other")
    for v in (1, 2):
        world.next(asleep, v=v)

    def taken(event: Event) -> None:
        if isinstance(event, BatchDone) and event.result.batch_id == 0:
            world.name(identity(other).to_text())

    with running(other):
        summary = run(asleep.pipeline, once=True, spark=spark, on_event=taken)
    assert "belongs to another checkpoint" in str(summary.tables[TABLE].error)
    assert world.rows() == [(1, 1)]
