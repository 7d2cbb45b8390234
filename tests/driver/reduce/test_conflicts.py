"""``onConflict: fail``: which creates meet a row that is there already."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.reduce.conflicts import conflicts
from tests.properties.test_reduce import frame, sequence
from tests.support import delivery
from tests.support.delivery import doubled, shuffled
from tests.support.histories import Shape, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, payload
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee("A source never conflicts with itself, in any order of delivery")

FAIL = {"tables": [{"source": "items", "onConflict": "fail"}]}
ITEMS, OTHERS = table("items", Column("v", "int32")), table("others", Column("v", "int32"))


def op(record: Record) -> str:
    return str(payload(record["value"])["op"]) if record["value"] else ""


def events(spark: SparkSession, records: list[Record]) -> DataFrame:
    return frame(spark, [record for record in records if op(record) not in ("", "t")])


def keys(found: DataFrame) -> set[tuple[int, int]]:
    return {(row["key"]["h"], row["key"]["id"]) for row in found.collect()}


@pytest.mark.parametrize("snapshot", ["initial", "open"])
def test_a_source_never_conflicts_with_itself(spark: SparkSession, snapshot: str) -> None:
    """In whatever order and however often its changes come, with truncates and moved keys."""
    history = play(many(range(200), random.Random(4), truncates=2), Shape(snapshot=snapshot))  # type: ignore[arg-type]
    floors = [sequence(payload(r["value"])["source"]) for r in history.records if op(r) == "t"]
    for records in (history.records, doubled(history.records), shuffled(history.records, 1)):
        assert keys(conflicts(events(spark, records), None, None, floors)) == set()


def test_a_create_whose_delete_is_missing_conflicts(spark: SparkSession) -> None:
    history = play(many(range(100), random.Random(5)), Shape(full=True))
    seen: dict[tuple[int, ...], str] = {}
    wanted, rest = set(), []
    for record in history.records:
        if op(record) == "d":
            continue
        rest.append(record)
        if op(record):
            key = tuple(payload(record["key"]).values())
            if op(record) == "c" and key in seen:
                wanted.add(key)
            seen[key] = op(record)
    assert len(wanted) > 30
    assert keys(conflicts(events(spark, shuffled(rest, 2)), None, None, [])) == wanted


def test_what_is_stored_and_what_is_gone_count(spark: SparkSession) -> None:
    history = play(many(range(60), random.Random(6)), Shape(full=True))
    every = events(spark, [record for record in history.records if op(record) == "c"])
    first = every.groupBy("key").agg(F.min("seq").alias("seq"))
    creates = every.join(first, ["key", "seq"], "left_semi")
    before, same = F.lit(b"\x00" * 26), F.col("seq")
    rows = creates.select("key", before.alias("stored"), F.lit(True).alias("live"))
    all_keys = keys(creates)
    assert keys(conflicts(creates, rows, None, [])) == all_keys
    assert keys(conflicts(creates, rows.withColumn("live", F.lit(False)), None, [])) == set()
    assert keys(conflicts(creates, rows, None, [b"\x00" * 25 + b"\x01"])) == set(), "truncated since"
    again = creates.select("key", same.alias("stored"), F.lit(True).alias("live"))
    assert keys(conflicts(creates, again, None, [])) == set(), "a replay"
    later = creates.select("key", F.lit(b"\xff" * 26).alias("stored"), F.lit(True).alias("live"))
    assert keys(conflicts(creates, later, None, [])) == set(), "stale"


def found(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[int, int]]:
    return sorted((r["id"], r["v"]) for r in at(spark, mirroring.path("demo", "public", name)).collect())


@pytest.mark.thorough
def test_a_conflict_holds_its_table_until_the_delete_comes_or_it_is_allowed(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    first = [*shop.create(ITEMS, id=1, v=1), *shop.create(OTHERS, id=1, v=1)]
    late = shop.delete(ITEMS, id=1, v=1)
    second = [
        *shop.create(ITEMS, id=1, v=2),
        *shop.create(ITEMS, id=2, v=2),
        *shop.update(OTHERS, id=1, v=2),
    ]
    mirroring = Mirroring(tmp_path, FAIL).deliver([delivery.doubled(first), second])
    summary = mirroring.run(spark)
    error = summary.tables["demo.public.items"].error or ""
    assert "demo.public.items/0/3 creates a row of demo.public.items that is there already" in error
    assert '"id"' not in error  # the status shows it to whoever may read the pipeline
    assert "tables[items].onConflict: replace" in error
    assert summary.counts.unaccounted == 0
    assert summary.counts.refused == 2
    assert (found(spark, mirroring, "items"), found(spark, mirroring, "others")) == ([(1, 1)], [(1, 2)])

    summary = mirroring.deliver([late]).run(spark)
    assert found(spark, mirroring, "items") == [(1, 2), (2, 2)], "the delete was only late"

    mirroring.deliver([shop.create(ITEMS, id=2, v=3)]).run(spark)
    assert found(spark, mirroring, "items") == [(1, 2), (2, 2)]
    Mirroring(tmp_path).run(spark)
    assert found(spark, mirroring, "items") == [(1, 2), (2, 3)], "onConflict is replace now"
