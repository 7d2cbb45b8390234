"""Positions that start again: found before anything is written, and followed once they are declared."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.errors import SourceRestarted
from lakemirror.driver.overview import Overview, Position, suspects
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

ITEMS = table("items", Column("v", "int32"))
HOUR = 3600


def renumbered(records: list[Record]) -> list[Record]:
    """The records as one partition holds them: offsets count up."""
    return [{**record, "offset": offset} for offset, record in enumerate(records)]


def restored(shop: Shop) -> list[Record]:
    """After a failover to a server whose log is much younger."""
    shop.lsn = 5_000
    shop.seconds += HOUR
    return [*shop.update(ITEMS, id=1, v=2), *shop.delete(ITEMS, id=2, v=1)]


def values(spark: SparkSession, mirroring: Mirroring) -> list[tuple[int, int]]:
    return sorted((r["id"], r["v"]) for r in at(spark, mirroring.path("demo", "public", "items")).collect())


def test_a_restarted_source_stops_the_mirror_until_its_epoch_is_declared(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop(lsn=1_000_000)
    rows = [record for i in (1, 2, 3) for record in shop.create(ITEMS, id=i, v=1)]
    log = renumbered([*rows, *rows[1:], *rows[1:], *restored(shop)])  # a tail is sent again, twice
    before, again, after = log[:5], log[5:7], log[7:]
    mirroring = Mirroring(tmp_path).deliver([before, again])
    assert mirroring.run(spark).tables["demo.public.items"].counts.duplicates == 4
    assert values(spark, mirroring) == [(1, 1), (2, 1), (3, 1)]
    versions = mirroring.versions()

    mirroring.deliver([before, again, after])
    for _ in range(2):
        with pytest.raises(SourceRestarted, match=r"partition 0, offset 7 .*ordering\.epochs"):
            mirroring.run(spark)
        assert mirroring.versions() == versions

    declared = {"epochs": [{"epoch": 1, "from": {ITEMS.topic: {"0": 7}}}]}
    Mirroring(tmp_path, {"ordering": declared}).run(spark)
    assert values(spark, mirroring) == [(1, 2), (3, 1)]


def test_only_a_partition_with_something_later_than_its_highest_position_is_looked_at() -> None:
    """Other partitions may well be ahead: a look is a job each."""
    seen = Overview(
        positions={
            "t/0": Position("0a", 1_000_000, 7),
            "t/1": Position("0b", 9_000_000, 8),
            "t/2": Position("01", 9_000_000, 9),
            "t/3": Position("0c", None, 1),
        },
        latest={"t/0": 2_000_000, "t/1": 9_000_000, "t/2": 9_000_000, "t/3": 5},
    )
    before = {"t/2": Position("05", 2_000_000, 3), "t/4": Position("0f", 1, 1)}
    assert suspects(seen, before, tolerance_ms=1000) == {"t/2": ("05", 3_000_000, 3)}
    assert set(suspects(seen, before, tolerance_ms=999)) == {"t/0", "t/2"}


@pytest.mark.parametrize("by", ["auto", "timestamp"])
def test_a_restart_inside_of_a_batch(by: str, spark: SparkSession, tmp_path: Path) -> None:
    """Where positions are not what orders, they may start again."""
    shop = Shop(lsn=1_000_000)
    records = [record for i in (1, 2, 3) for record in shop.create(ITEMS, id=i, v=1)] + restored(shop)
    mirroring = Mirroring(tmp_path, {"ordering": {"by": by}}).deliver([records])
    if by == "auto":
        with pytest.raises(SourceRestarted):
            mirroring.run(spark)
        assert mirroring.versions() == {}
        assert not (mirroring.checkpoint / "audit").exists()
    else:
        mirroring.run(spark)
        assert values(spark, mirroring) == [(1, 2), (3, 1)]
