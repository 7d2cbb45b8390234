"""Soft deletes: a deleted row shows its last values and when it was deleted, however events are batched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, Record, Table
from tests.support.shop import Shop, table

V, NOTE = Column("v", "int32", optional=True), Column("note", "string", optional=True)
SOFT: Mapping[str, Any] = {"delete": {"type": "soft", "column": "gone"}}
SOFT_ROWS: Mapping[str, Any] = {"tables": [{"source": "soft", **SOFT}]}

Rows = list[tuple[Any, ...]]


def rows(
    spark: SparkSession,
    folder: Path,
    batches: Sequence[Sequence[Record]],
    settings: Mapping[str, Any] = SOFT_ROWS,
) -> Rows:
    """The mirror's rows after these batches; ``gone`` is the second of the shop in which it was deleted."""
    mirroring = Mirroring(folder, settings).deliver([list(batch) for batch in batches])
    assert mirroring.run(spark).counts.refused == 0
    stored = at(spark, mirroring.path("demo", "public", "soft"))
    seconds = stored.withColumn("gone", F.unix_seconds("gone") - 1_700_000_000)
    return sorted(tuple(row) for row in seconds.collect())


def joined(*events: Sequence[Record]) -> list[Record]:
    """One batch."""
    return [record for event in events for record in event]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def soft() -> Table:
    return table("soft", V, NOTE)


def test_a_value_that_the_batch_does_not_carry_stays(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table
) -> None:
    """The row is updated without it, and deleted or moved to another key, in one batch."""
    first = [
        *shop.create(soft, id=1, v=1, note="long"),
        *shop.create(soft, id=2, v=1, note="long"),
        *shop.create(soft, id=4, v=1, note="other"),
    ]
    second = [
        *shop.update(soft, id=1, v=2, note=UNAVAILABLE),
        *shop.delete(soft, id=1, v=2),
        *shop.update(soft, id=2, v=2, note=UNAVAILABLE),
        *shop.send(soft, *soft.move(shop.next(), {"id": 2, "v": 2}, {"id": 3, "v": 2, "note": UNAVAILABLE})),
        *shop.delete(soft, id=4, v=1),
        *shop.create(soft, id=4, v=2, note=None),
        *shop.update(soft, id=4, v=3, note=UNAVAILABLE),
        *shop.delete(soft, id=4, v=3),
    ]
    assert rows(spark, tmp_path, [first, second]) == [
        (1, 2, "long", 5),
        (2, 2, "long", 7),
        (3, 2, "long", None),
        (4, 3, None, 11),
    ]


def test_a_row_that_was_deleted_and_is_made_and_deleted_again_is_the_new_one(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table
) -> None:
    first = [*shop.create(soft, id=1, v=1, note="a"), *shop.create(soft, id=2, v=1, note="a")]
    second = [*shop.delete(soft, id=1, v=1), *shop.delete(soft, id=2, v=1)]
    third = [
        *shop.create(soft, id=1, v=2, note="b"),
        *shop.delete(soft, id=1, v=2),
        *shop.create(soft, id=2, v=2, note=UNAVAILABLE),
        *shop.delete(soft, id=2, v=2),
    ]
    assert rows(spark, tmp_path, [first, second, third]) == [(1, 2, "b", 6), (2, 2, None, 8)]
