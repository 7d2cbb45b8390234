"""Keys that are almost equal, and keys that are equal though they are written in two ways."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.agreement import assert_agreement
from tests.support.mirroring import Mirroring, at
from tests.support.shop import Shop, Special, decimal, table

MOMENT = 1_700_000_000_123_456
MOMENTS = table(
    "moments", Special("at", "int64", name_of_type="io.debezium.time.MicroTimestamp"), key=("at",)
)
SMALL, LARGE = (table("prices", decimal("price", 8, scale), key=("price",)) for scale in (2, 4))
SHORT, LONG, OTHER = "bg==", "Kvg=", "bw=="
"""1.10 with two digits after the point, 1.1000 with four, and 1.11 with two: base64 of the unscaled value."""


@pytest.mark.thorough
@pytest.mark.guarantee("The rules and the driver's engine make the same of the same records")
def test_neighbouring_microseconds_and_decimals_of_two_scales(spark: SparkSession, tmp_path: Path) -> None:
    """A key of one microsecond more is another row; 1.1000 is the row of 1.10, also for its tombstone."""
    shop = Shop()
    first = [
        *(record for n in range(3) for record in shop.create(MOMENTS, id=n, at=MOMENT + n)),
        *shop.create(SMALL, id=1, price=SHORT),
        *shop.create(SMALL, id=2, price=OTHER),
    ]
    late = shop.update(SMALL, id=9, price=SHORT)
    second = [*shop.delete(MOMENTS, id=1, at=MOMENT + 1), *shop.update(LARGE, id=3, price=LONG)]
    third = [*shop.update(MOMENTS, id=7, at=MOMENT + 2), *shop.delete(LARGE, id=3, price=LONG)]
    mirroring = Mirroring(tmp_path).deliver([first, second])
    mirroring.run(spark)
    assert found(spark, mirroring, "prices", "price") == [(Decimal("1.1000"), 3), (Decimal("1.1100"), 2)]
    mirroring.deliver([third, late])
    summary = mirroring.run(spark)
    assert found(spark, mirroring, "prices", "price") == [(Decimal("1.1100"), 2)]
    assert [id for _, id in found(spark, mirroring, "moments", "at")] == [0, 7]
    assert (summary.counts.stale, summary.counts.quarantined) == (1, 0)
    assert_agreement(spark, mirroring)


def found(spark: SparkSession, mirroring: Mirroring, name: str, key: str) -> list[tuple[object, ...]]:
    """The rows of a mirror as (key, id), in order."""
    rows = at(spark, mirroring.path("demo", "public", name)).select(key, "id").collect()
    return sorted(tuple(row) for row in rows)
