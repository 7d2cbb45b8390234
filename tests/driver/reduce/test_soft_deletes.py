"""Soft deletes: a deleted row shows its last values and when it was deleted, however events are batched."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, Record, Table, payload
from tests.support.shop import Shop, table, with_payload

V, NOTE = Column("v", "int32", optional=True), Column("note", "string", optional=True)
SOFT: Mapping[str, Any] = {"delete": {"type": "soft", "column": "gone"}}
SOFT_ROWS: Mapping[str, Any] = {"tables": [{"source": "soft", **SOFT}]}
BEGAN = 1_700_000_000
"""The time at which the shop opens, in seconds."""

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
    seconds = stored.withColumn("gone", F.unix_seconds("gone") - BEGAN)
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


@pytest.mark.thorough
def test_columns_may_be_called_like_states_and_stored_rows(
    spark: SparkSession, tmp_path: Path, shop: Shop
) -> None:
    """Where a mirror is made, and where its rows change."""
    odd = table("soft", Column("s", "string", optional=True), Column("t", "string", optional=True))
    first = [shop.create(odd, id=1, s="a", t="b"), shop.create(odd, id=2, s="c", t="d")]
    second = [shop.update(odd, id=2, s="e", t=UNAVAILABLE), shop.delete(odd, id=1, s="a", t="b")]
    found = rows(spark, tmp_path, [joined(*first), joined(*second)])
    assert [row[:4] for row in found] == [(1, "a", "b", 4), (2, "e", "d", None)]


@pytest.mark.long
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


@pytest.mark.thorough
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


FILTERED: Mapping[str, Any] = {"tables": [{"source": "soft", **SOFT, "filter": "v > 0"}]}


@pytest.mark.thorough
def test_the_time_is_that_of_the_first_delete_after_the_row_was_last_there(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table
) -> None:
    """A filter turns several updates in a row into deletes, and earlier deletes may be sent again."""
    first = [*shop.create(soft, id=1, v=1, note="a"), *shop.create(soft, id=2, v=1, note="a")]
    left = shop.update(soft, id=2, v=-1, note="a")
    back = shop.update(soft, id=2, v=2, note="b")
    second = [
        *shop.update(soft, id=1, v=-2, note="b"),
        *shop.update(soft, id=1, v=-3, note="c"),
        *left,
        *shop.update(soft, id=2, v=-2, note="c"),
        *shop.delete(soft, id=2, v=-2, note="c"),
        *shop.create(soft, id=3, v=-1, note="a"),
        *shop.update(soft, id=3, v=-2, note="a"),
    ]
    third = [*shop.update(soft, id=1, v=-4, note="d"), *shop.update(soft, id=2, v=-3, note="d")]
    expected = [(1, 1, "a", 5), (2, 2, "b", 7), (3, None, None, 9)]
    assert rows(spark, tmp_path, [[*first, *left, *back], second, third], FILTERED) == expected


@pytest.mark.thorough
@pytest.mark.parametrize(
    "at_once", [pytest.param(True, id="at once"), pytest.param(False, id="apart", marks=pytest.mark.thorough)]
)
def test_a_row_that_comes_to_the_key_outside_the_filter_leaves_the_last_one_as_it_was(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table, at_once: bool
) -> None:
    first = [*shop.create(soft, id=1, v=1, note="long"), *shop.create(soft, id=2, v=1, note="other")]
    moved = {"id": 1, "v": 0, "note": "other"}
    events = [
        shop.update(soft, id=1, v=2, note="longer"),
        shop.delete(soft, id=1, v=2),
        shop.send(soft, *soft.move(shop.next(), {"id": 2, "v": 1}, moved)),
    ]
    batches = [joined(*events)] if at_once else events
    expected = [(1, 2, "longer", 4), (2, 1, "other", 5)]
    assert rows(spark, tmp_path, [first, *batches], FILTERED) == expected


def untimed(records: Sequence[Record]) -> list[Record]:
    """Records that do not say when the change was made."""
    source = {"ts_ms": None, "ts_us": None, "ts_ns": None}
    return [
        with_payload(each, source={**payload(each["value"])["source"], **source}, ts_ms=None)
        for each in records
        if each["value"]
    ]


def test_a_delete_without_a_time_has_that_of_the_driver(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table
) -> None:
    first = [*shop.create(soft, id=1, v=1, note="a"), *untimed(shop.delete(soft, id=2, v=1))]
    second = untimed(shop.delete(soft, id=1, v=1))
    found = rows(spark, tmp_path, [first, second])
    assert [row[:3] for row in found] == [(1, 1, "a"), (2, None, None)]
    assert all(now - 3600 < row[3] + BEGAN <= now for now in [time.time()] for row in found)


@pytest.mark.long
@pytest.mark.parametrize(
    "at_once", [pytest.param(True, id="at once"), pytest.param(False, id="apart", marks=pytest.mark.thorough)]
)
def test_a_truncate_is_a_delete_of_each_row_there(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table, at_once: bool
) -> None:
    """Its time is that of the truncate, also for rows that the same batch creates."""
    first = [
        *shop.create(soft, id=1, v=1, note="a"),
        *shop.create(soft, id=2, v=1, note="a"),
        *shop.create(soft, id=3, v=1, note="long"),
        *shop.create(soft, id=4, v=1, note="a"),
        *shop.delete(soft, id=4, v=1, note="a"),
        *shop.create(soft, id=7, v=1, note="a"),
    ]
    events = [
        shop.create(soft, id=5, v=1, note="b"),
        shop.update(soft, id=2, v=2, note="b"),
        shop.update(soft, id=3, v=2, note=UNAVAILABLE),
        shop.create(soft, id=4, v=2, note="b"),
        shop.delete(soft, id=7, v=1, note="a"),
        shop.truncate(soft),
        shop.create(soft, id=6, v=1, note="c"),
        shop.create(soft, id=2, v=3, note=UNAVAILABLE),
        shop.truncate(soft),
        shop.create(soft, id=8, v=1, note="d"),
        shop.create(soft, id=6, v=2, note="d"),
    ]
    expected = [
        (1, 1, "a", 12),
        (2, 3, None, 15),
        (3, 2, "long", 12),
        (4, 2, "b", 12),
        (5, 1, "b", 12),
        (6, 2, "d", None),
        (7, 1, "a", 11),
        (8, 1, "d", None),
    ]
    batches = [joined(*events)] if at_once else events
    assert rows(spark, tmp_path, [first, *batches]) == expected


@pytest.mark.thorough
def test_a_row_that_a_truncate_deletes_has_the_metadata_of_its_last_change(
    spark: SparkSession, tmp_path: Path, shop: Shop, soft: Table
) -> None:
    first = shop.create(soft, id=1, v=1, note="a")
    second = joined(shop.update(soft, id=1, v=2, note="b"), shop.create(soft, id=2, v=2, note="b"))
    added = {"metadata": {"made_by": "op", "made_at": "offset"}, "expressions": {"twice": "v * 2"}}
    settings = {"tables": [{"source": "soft", **SOFT, "columns": added}]}
    expected = [(1, 2, "b", 4, "u", 1, 4), (2, 2, "b", 4, "c", 2, 4)]
    wiped = [*second, *shop.truncate(soft)]
    assert rows(spark, tmp_path, [first, wiped], settings) == expected
