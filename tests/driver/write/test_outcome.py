"""What is told of records besides their outcome."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column, Record
from tests.support.shop import Shop, table


@pytest.mark.long
def test_records_that_come_much_later_than_newer_ones_are_counted_and_told(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of stale records, those older than the row or the tombstone by more than the tolerance."""
    shop, items = Shop(), table("items", Column("v", "int32"))
    late = [*shop.create(items, id=1, v=1), *shop.create(items, id=3, v=1)]
    shop.seconds += 20
    much_later = [*shop.update(items, id=1, v=2), *shop.delete(items, id=3, v=1)]
    little = shop.create(items, id=2, v=1)
    little_later = shop.update(items, id=2, v=2)
    other = shop.create(items, id=4, v=1)
    batches = [[*much_later, *little_later], [*late, *little, *other]]
    mirroring = Mirroring(tmp_path, {"ordering": {"toleranceMs": 10_000}}).deliver(batches)
    counts = mirroring.run(spark).tables["demo.public.items"].counts
    assert (counts.stale, counts.out_of_order) == (3, 2)
    assert counts.unaccounted == 0
    assert sorted(map(tuple, at(spark, mirroring.path("demo", "public", "items")).collect())) == [
        (1, 2),
        (2, 2),
        (4, 1),
    ]
    assert "2 record(s) came more than ordering.toleranceMs (10000 ms) after newer changes" in caplog.text


@pytest.mark.thorough
def test_columns_may_be_called_what_states_call_theirs(spark: SparkSession, tmp_path: Path) -> None:
    names = ("own", "known", "seq", "key", "event_time", "a.b")
    shop, batches = Shop(), [list[Record](), list[Record]()]
    for number, named in enumerate(names):
        items = table(f"t{number}", Column(named, "int32"))
        first = [*shop.create(items, id=1, **{named: 1}), *shop.create(items, id=2, **{named: 1})]
        late = shop.update(items, id=1, **{named: 2})
        newer = [*shop.update(items, id=1, **{named: 3}), *shop.delete(items, id=2, **{named: 1})]
        batches[0] += [*first, *newer]
        batches[1] += [*late, *newer[-2:]]
    mirroring = Mirroring(tmp_path).deliver(batches)
    tables = mirroring.run(spark).tables
    for number, named in enumerate(names):
        counts = tables[f"demo.public.t{number}"].counts
        assert (counts.applied, counts.stale, counts.unaccounted) == (2, 1, 0), named
        found = at(spark, mirroring.path("demo", "public", f"t{number}")).collect()
        assert sorted(map(tuple, found)) == [(1, 3)], named


@pytest.mark.long
def test_a_late_record_that_only_fills_a_value_is_stale(spark: SparkSession, tmp_path: Path) -> None:
    """It changes the row, though it is older: no number of changed rows tells it from a newer record."""
    shop, items = Shop(), table("items", Column("v", "int32"), Column("big", "string"))
    late = shop.create(items, id=1, v=1, big="old")
    early = shop.create(items, id=2, v=1, big="two")
    gap = shop.update(items, id=1, v=2, big=UNAVAILABLE)
    newer = [*shop.update(items, id=2, v=2, big=UNAVAILABLE), *shop.create(items, id=3, v=3, big="three")]
    mirroring = Mirroring(tmp_path).deliver([[*early, *gap], newer, late])
    rows = [(1, 2, "old"), (2, 2, "two"), (3, 3, "three")]
    counts = mirroring.run(spark).tables["demo.public.items"].counts
    assert (counts.applied, counts.stale, counts.unaccounted) == (4, 1, 0)
    assert sorted(map(tuple, at(spark, mirroring.path("demo", "public", "items")).collect())) == rows
