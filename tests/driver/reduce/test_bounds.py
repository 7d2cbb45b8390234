"""Bounds of a batch's keys: files outside of them are not read, and they change seldom."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakemirror.driver.reduce.bounds import rounded
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, Special, table

V = Column("v", "int32")
DAY = Special("day", "int32", name_of_type="io.debezium.time.Date")
NAME = Column("name", "string")
MOST = 2**63 - 1


@given(st.integers(-MOST - 1, MOST), st.integers(-MOST - 1, MOST))
def test_rounded_bounds_hold_the_range_and_little_more(one: int, other: int) -> None:
    low, high = sorted((one, other))
    least, greatest = rounded(low, high, 64)
    assert -MOST - 1 <= least <= low <= high <= greatest <= MOST
    assert greatest - least <= (high - low) * 1.5 + 1


def test_batches_of_random_keys_have_the_same_bounds() -> None:
    assert rounded(17, 1_000_105, 32) == rounded(3, 1_012_345, 32)


@pytest.mark.long
def test_files_outside_of_a_batch_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    """Tables with keys of three types: the files with their first rows are gone, and nobody notices."""
    shop = Shop()
    tables = {
        table("numbers", V): ({"id": 1}, {"id": 1_000_000}),
        table("days", DAY, V, key=("day",)): ({"id": 0, "day": 1}, {"id": 0, "day": 20_000}),
        table("texts", NAME, V, key=("name",)): ({"id": 0, "name": "a"}, {"id": 0, "name": "z"}),
    }
    first = [record for each, (key, _) in tables.items() for record in shop.create(each, **key, v=0)]
    second = [record for each, (_, key) in tables.items() for record in shop.create(each, **key, v=1)]
    third = [record for each, (_, key) in tables.items() for record in shop.update(each, **key, v=2)]
    mirroring = Mirroring(tmp_path).deliver([first, second])
    mirroring.run(spark)
    for each in tables:
        [file] = at(spark, mirroring.path("demo", "public", each.name)).where("v = 0").inputFiles()
        Path(unquote(urlsplit(file).path)).unlink()
    mirroring.deliver([third])
    mirroring.run(spark)
    for each in tables:
        mirror = at(spark, mirroring.path("demo", "public", each.name))
        assert [row["v"] for row in mirror.where("v > 0").collect()] == [2]
