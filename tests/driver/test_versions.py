"""What one pipeline does to tables of mode scd2: versions, keys, columns, counts, views."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spark_settings import WRITER
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column, Record
from tests.support.shop import Shop, table

V = Column("v", "int32")
BIG = Column("big", "string", optional=True)
SCD2 = {"defaults": {"mode": "scd2"}}
Line = tuple[object, ...]


def lines(spark: SparkSession, path: str, *columns: str) -> list[Line]:
    """Versions in the order of key and sequence; start and end are seconds of the shop's clock."""
    frame = spark.read.format("delta").load(path).orderBy("id", "__seq")
    rows = frame.selectExpr(
        *columns,
        "unix_seconds(__valid_from) - 1700000000",
        "unix_seconds(__valid_to) - 1700000000",
        "__is_current",
        "__is_deleted",
    )
    return [tuple(row) for row in rows.collect()]


@pytest.fixture(params=["", pytest.param("merge", marks=pytest.mark.thorough)])
def writer(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    """Each writer makes the same of it."""
    spark.conf.set(WRITER, request.param)
    yield request.param
    spark.conf.unset(WRITER)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_versions_of_a_row_through_the_driver(writer: str, spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("items", V, BIG)
    insert = shop.create(items, id=1, v=1, big="x")
    late = shop.update(items, id=1, v=2, big="y")
    update = shop.update(items, id=1, v=3, big=UNAVAILABLE)
    moved = shop.send(
        items, *items.move(shop.next(), {"id": 1, "v": 3, "big": "y"}, {"id": 2, "v": 3, "big": UNAVAILABLE})
    )
    again = shop.create(items, id=1, v=9, big=None)
    other = shop.create(items, id=3, v=1, big=None)
    truncate = shop.truncate(items)
    last = shop.create(items, id=3, v=2, big=None)
    mirroring = Mirroring(tmp_path, SCD2)
    mirroring.deliver([[*insert, *update], [*moved, *other], [*late, *again], [*truncate, *last], insert])
    summary = mirroring.run(spark)
    assert lines(spark, mirroring.path("demo", "public", "items"), "id", "v", "big") == [
        (1, 1, "x", 1, 2, False, False),
        (1, 2, "y", 2, 3, False, False),
        (1, 3, "y", 3, 4, False, False),
        (1, 9, None, 5, 7, False, True),
        (2, 3, "y", 4, 7, False, True),
        (3, 1, None, 6, 7, False, False),
        (3, 2, None, 8, None, True, False),
    ]
    counts = summary.tables["demo.public.items"].counts
    assert (counts.records, counts.applied, counts.duplicates) == (11, 9, 1)
    assert counts.no_row_change == 1, "the Kafka tombstone of the move"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_columns_that_are_added_and_widened(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    before = table("items", Column("v", "int32"))
    after = table("items", Column("v", "int64"), Column("note", "string", optional=True))
    batches = [
        [*shop.create(before, id=1, v=1), *shop.create(before, id=2, v=1)],
        [*shop.update(after, id=1, v=2**40, note="n"), *shop.delete(after, id=2, v=1, note=None)],
    ]
    mirroring = Mirroring(tmp_path, SCD2).deliver(batches)
    summary = mirroring.run(spark)
    assert lines(spark, mirroring.path("demo", "public", "items"), "id", "v", "note") == [
        (1, 1, None, 1, 3, False, False),
        (1, 2**40, "n", 3, None, True, False),
        (2, 1, None, 2, 4, False, True),
    ]
    assert {(each.column, each.action) for each in summary.tables["demo.public.items"].drift} == {
        ("v", "altered"),
        ("note", "added"),
    }


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_key_is_needed_where_the_manifest_asks_for_versions(spark: SparkSession, tmp_path: Path) -> None:
    """Of tables in general it does not: those without a key keep all events anyway."""
    shop = Shop()
    log, asked, named = table("log", V), table("asked", V), table("named", Column("__valid_to", "int32"))
    records = [*shop.keyless(log, id=1, v=1), *shop.keyless(asked, id=1, v=1)]
    records += shop.create(named, id=1, __valid_to=1)
    tables = [{"source": "public.asked", "mode": "scd2"}]
    mirroring = Mirroring(tmp_path, {**SCD2, "tables": tables}).deliver([records])
    summary = mirroring.run(spark)
    assert summary.tables["demo.public.log"].counts.inserted == 1
    error = summary.tables["demo.public.asked"].error
    assert error is not None
    assert "mode scd2 needs a key" in error
    error = summary.tables["demo.public.named"].error
    assert error is not None
    assert "'__valid_to' has a name that the mirror needs" in error


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_mirror_does_not_change_its_mode(spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("items", V)
    Mirroring(tmp_path).deliver([shop.create(items, id=1, v=1)]).run(spark)
    mirroring = Mirroring(tmp_path, SCD2).deliver([shop.update(items, id=1, v=2)])
    error = mirroring.run(spark).tables["demo.public.items"].error
    assert error is not None
    assert "was made with mode scd1, and scd2 is asked for now" in error


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_view_has_the_current_rows_of_a_table_of_the_catalog(spark: SparkSession, tmp_path: Path) -> None:
    shop, before, after = Shop(), table("viewed", V), table("viewed", V, BIG)
    target = {"target": {"table": "{table}"}}
    mirroring = Mirroring(tmp_path, {**SCD2, **target}).deliver(
        [[*shop.create(before, id=1, v=1), *shop.create(before, id=2, v=1)], shop.delete(before, id=1, v=1)]
    )
    mirroring.run(spark)
    assert [tuple(row) for row in spark.table("viewed__current").collect()] == [(2, 1)]
    mirroring.deliver([shop.update(after, id=2, v=2, big="x")]).run(spark)
    view = spark.table("viewed__current")
    assert (view.columns, [tuple(row) for row in view.collect()]) == (["id", "v", "big"], [(2, 2, "x")])


@pytest.mark.timeout(300)
def test_a_view_whose_name_is_taken_does_not_stop_the_mirror(spark: SparkSession, tmp_path: Path) -> None:
    shop, items = Shop(), table("taken", V)
    spark.sql("CREATE TABLE taken__current (a INT) USING delta")
    mirroring = Mirroring(tmp_path, {**SCD2, "target": {"table": "{table}"}})
    mirroring.deliver([shop.create(items, id=1, v=1)]).run(spark)
    assert spark.table("taken").where("__is_current").count() == 1
    assert spark.table("taken__current").columns == ["a"]


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_settings_of_versions(spark: SparkSession, tmp_path: Path) -> None:
    """A change of columns that are not tracked is taken into its version, also when it comes late; and what a
    filter, a conflict and a first moment mean for versions.
    """
    shop, note = Shop(), Column("note", "string", optional=True)
    tracked, first, kept, strict = (table(n, V, note) for n in ("tracked", "first", "kept", "strict"))
    batches: list[list[Record]] = [[], [], []]
    for of, id in ((tracked, 1), (tracked, 2)):
        batches[0] += shop.create(of, id=id, v=1, note="a")
        lsn, began = shop.lsn, shop.seconds
        shop.seconds += 3
        batches[0] += [*shop.update(of, id=id, v=1, note="d"), *shop.update(of, id=id, v=2, note="e")]
        late = replace(shop, lsn=lsn - 50, seconds=began + 1)
        batches[id] += late.update(of, id=id, v=1, note="b") if id == 1 else []
        late = replace(shop, lsn=lsn - 30, seconds=began + 2)
        batches[id] += late.update(of, id=id, v=7, note="c")
    batches[0] += shop.create(tracked, id=3, v=1, note=None)
    batches[0] += [*shop.update(first, id=1, v=1, note=None), *shop.create(first, id=2, v=1, note=None)]
    batches[0] += [
        *shop.create(kept, id=1, v=1, note="in"),
        *shop.update(kept, id=1, v=-1, note="out"),
        *shop.update(kept, id=1, v=2, note="again"),
        *shop.create(strict, id=1, v=1, note=None),
    ]
    batches[1] += shop.create(strict, id=1, v=2, note=None)
    settings = {
        "tracked": {"trackedColumns": ["v"], "columns": {"rename": {"v": "V w"}}},
        "first": {"initialValidFrom": "1900-01-01T00:00:00Z"},
        "kept": {"filter": "v > 0"},
        "strict": {"onConflict": "fail"},
    }
    tables = {"tables": [{"source": name, "mode": "scd2", **each} for name, each in settings.items()]}
    mirroring = Mirroring(tmp_path, tables).deliver(batches[:1])
    mirroring.run(spark)
    path = mirroring.path("demo", "public", "tracked")
    assert lines(spark, path, "id", "`V w`", "note")[:4] == [
        (1, 1, "d", 1, 6, False, False),
        (1, 2, "e", 6, None, True, False),
        (2, 1, "d", 7, 12, False, False),
        (2, 2, "e", 12, None, True, False),
    ]
    began = spark.read.format("delta").load(mirroring.path("demo", "public", "first"))
    starts = began.orderBy("id").selectExpr("year(__valid_from)").collect()
    assert [row[0] for row in starts] == [1900, 2023], "a row that is created begins with that"
    times = lines(spark, mirroring.path("demo", "public", "kept"), "v", "note")
    assert [(row[0], row[1], row[3] is None, *row[4:]) for row in times] == [
        (1, "in", False, False, False),
        (2, "again", True, True, False),
    ]
    assert times[1][2] - times[0][3] == 1, "it was outside of the mirror for a second"  # type: ignore[operator]

    summary = mirroring.deliver(batches[1:2]).run(spark)
    assert lines(spark, path, "id", "`V w`", "note")[:4] == [
        (1, 1, "b", 1, 4, False, False),
        (1, 7, "c", 4, 5, False, False),
        (1, 1, "d", 5, 6, False, False),
        (1, 2, "e", 6, None, True, False),
    ]
    counts = summary.tables["demo.public.tracked"].counts
    assert (counts.applied, counts.inserted, counts.deleted) == (2, 2, 0)
    assert "creates a row of demo.public.strict" in (summary.tables["demo.public.strict"].error or "")

    # What changes were that are taken in is kept for a time; then versions still begin where they did.
    spark.sql(f"DELETE FROM delta.`{path}/_tombstones` WHERE kind = 'merged'")
    mirroring.deliver(batches[2:]).run(spark)
    assert lines(spark, path, "id", "`V w`", "note")[4:8] == [
        (2, 1, "d", 7, 10, False, False),
        (2, 7, "c", 10, 11, False, False),
        (2, 1, "d", 11, 12, False, False),
        (2, 2, "e", 12, None, True, False),
    ]
    other = {"tables": [{"source": "tracked", "mode": "scd2"}]}
    again = Mirroring(tmp_path, other).deliver([shop.update(tracked, id=1, v=2, note="f")]).run(spark)
    assert "was made with the trackedColumns" in (again.tables["demo.public.tracked"].error or "")


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["offset", "timestamp"])
def test_changes_whose_position_does_not_count_are_not_placed_by_it(
    by: str, spark: SparkSession, tmp_path: Path
) -> None:
    """An LSN without the last commit's beside it, where something else orders the changes."""
    settings = {"envelope": {"format": "debezium-flat"}, "ordering": {"by": by}}
    mirroring = Mirroring(tmp_path, {**settings, "tables": [{"source": "t", "mode": "scd2"}]})
    for offset, op in enumerate("cu"):
        row = {"id": 1, "v": offset + 1, "__op": op, "__lsn": 5 + offset}
        row |= {"__source_ts_ms": 1_700_000_000_000 + offset}
        place = {"topic": "p.s.t", "partition": 0, "offset": offset, "timestamp": 0}
        mirroring.deliver([[{**place, "key": '{"id":1}', "value": json.dumps(row)}]])
    mirroring.run(spark)
    found = spark.read.format("delta").load(mirroring.path("p", "s", "t")).orderBy("v")
    assert [(row["v"], row["__is_current"]) for row in found.collect()] == [(1, False), (2, True)]
