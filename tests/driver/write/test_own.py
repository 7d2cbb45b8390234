"""``columns.metadata``, ``rowHash``, ``keyHash``: right whatever a row was made of, in every mode."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from lakemirror.api.spark_settings import WRITER
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column
from tests.support.shop import Shop, decimal, table

pytestmark = pytest.mark.guarantee("Columns that the manifest adds are correct, whatever a row was made of")

PRICE, NOTE = decimal("p.`ü`", 9, 2), Column("note", "string", optional=True)
COLUMNS = {
    "metadata": {
        "changed at": "sourceTime",
        "change": "op",
        "from": "topic",
        "part": "partition",
        "place": "offset",
        "loaded": "loadTime",
        "by": "pipeline",
        "batch": "batch",
    },
    "rowHash": "row hash",
    "keyHash": "key_hash",
}
P1, P2 = "AJY=", "Ag=="  # 1.50 and 0.02


def digest(**values: str) -> str:
    text = json.dumps(dict(sorted(values.items())), separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.thorough
@pytest.mark.parametrize("writer", ["", pytest.param("merge", marks=pytest.mark.thorough)])
def test_columns_that_the_manifest_adds(writer: str, spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    plain, soft, history, listed = (table(n, PRICE, NOTE) for n in ("plain", "soft", "history", "listed"))
    taken = table("taken", Column("LOADED", "string", optional=True))
    batches = [[], [], shop.create(taken, id=1, LOADED="x")]
    for of in (plain, soft, history, listed):
        batches[0] += shop.create(of, id=1, **{"p.`ü`": P1}, note="long")
        batches[0] += shop.create(of, id=2, **{"p.`ü`": P1}, note=None)
        batches[1] += shop.update(of, id=1, **{"p.`ü`": P2}, note=UNAVAILABLE)
        if of is not listed:
            batches[1] += shop.delete(of, id=2, **{"p.`ü`": P1}, note=None)
        batches[2] += shop.create(of, id=3, **{"p.`ü`": P2}, note=None)
    modes = {
        "plain": {},
        "soft": {"delete": {"type": "soft", "column": "gone"}},
        "history": {"mode": "scd2"},
        "listed": {"mode": "append", "columns": {k: v for k, v in COLUMNS.items() if k != "keyHash"}},
        "taken": {},
    }
    tables = {"tables": [{"source": name, "columns": COLUMNS, **each} for name, each in modes.items()]}
    mirroring = Mirroring(tmp_path, tables, name="shop").deliver(batches)
    spark.conf.set(WRITER, writer)
    try:
        summary = mirroring.run(spark)
    finally:
        spark.conf.unset(WRITER)
    assert {name for name, each in summary.tables.items() if each.error} == {"demo.public.taken"}
    assert "'LOADED' has the name of a column that" in (summary.tables["demo.public.taken"].error or "")

    def rows(name: str) -> list[Row]:
        frame = spark.read.format("delta").load(mirroring.path("demo", "public", name))
        return frame.orderBy("id", "__seq").collect()

    first, filled = (
        digest(**{"id": "1", "p.`ü`": "1.5", "note": "long"}),
        digest(**{"id": "1", "p.`ü`": "0.02", "note": "long"}),
    )
    one, three = rows("plain")
    assert (one["note"], one["row hash"], one["key_hash"]) == ("long", filled, digest(id="1"))
    assert (one["change"], one["batch"], one["by"], one["from"]) == ("u", 1, "shop", "demo.public.plain")
    assert (one["part"], one["place"]) == (one["__origin"]["partition"], one["__origin"]["offset"])
    assert (one["changed at"], one["loaded"] < three["loaded"]) == (one["__event_time"], True)
    assert three["row hash"] == digest(**{"id": "3", "p.`ü`": "0.02"}), "null is left out"

    two = rows("soft")[1]
    assert (two["change"], two["batch"], two["gone"]) == ("d", 1, two["changed at"])
    assert two["row hash"] == digest(**{"id": "2", "p.`ü`": "1.5"})

    versions = rows("history")
    assert [row["row hash"] for row in versions[:2]] == [first, filled]
    assert [(row["change"], row["batch"]) for row in versions] == [("c", 1), ("u", 1), ("c", 1), ("c", 2)]
    events = rows("listed")
    assert (events[0]["row hash"], events[0]["change"]) == (first, "c")
    assert [(row["change"], row["batch"]) for row in events] == [("c", 0), ("u", 1), ("c", 0), ("c", 2)]


@pytest.mark.long
def test_they_cannot_change(spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("items", NOTE)
    mirroring = Mirroring(tmp_path, {"tables": [{"source": "items", "columns": {"rowHash": "h"}}]})
    mirroring.deliver([shop.create(items, id=1, note=None)]).run(spark)
    other = {"tables": [{"source": "items", "columns": {"rowHash": "other"}}]}
    again = Mirroring(tmp_path, other).deliver([shop.update(items, id=1, note="x")]).run(spark)
    assert "rows that are there were written without" in (again.tables["demo.public.items"].error or "")


@pytest.mark.thorough
def test_rows_are_numbered_by_delta(spark: SparkSession, tmp_path: Path) -> None:
    """A number is a row's alone and stays while the row does; a row that comes again has another."""
    shop = Shop()
    items, history, listed = (table(name, NOTE) for name in ("items", "history", "listed"))
    batches = [[], []]
    for of in (items, history, listed):
        batches[0] += [r for n in range(6) for r in shop.create(of, id=n, note=None)]
        batches[1] += shop.update(of, id=1, note="x")
        batches[1] += shop.create(of, id=7, note=None)
        if of is items:
            batches[1] += shop.delete(of, id=2, note=None)
    batches.append(shop.create(items, id=2, note="again"))
    columns = {"columns": {"identity": "row no"}}
    modes = {"items": {}, "history": {"mode": "scd2"}, "listed": {"mode": "append"}}
    tables = {"tables": [{"source": name, **columns, **each} for name, each in modes.items()]}
    mirroring = Mirroring(tmp_path, tables).deliver(batches)
    summary = mirroring.run(spark)
    assert not any(each.error for each in summary.tables.values())
    sizes = {}
    for name in modes:
        path = mirroring.path("demo", "public", name)
        rows = spark.read.format("delta").load(path).collect()
        numbers = [row["row no"] for row in rows]
        assert None not in numbers
        sizes[name] = (len(rows), len(set(numbers)))
    assert sizes == {"items": (7, 7), "history": (8, 8), "listed": (8, 8)}
    path = mirroring.path("demo", "public", "items")
    now, before = (
        {row["id"]: row["row no"] for row in spark.read.format("delta").option(*at).load(path).collect()}
        for at in (("x", "y"), ("versionAsOf", 1))
    )
    assert {n: now[n] for n in (0, 1, 3, 4, 5)} == {n: before[n] for n in (0, 1, 3, 4, 5)}
    assert now[2] > max(before.values())
