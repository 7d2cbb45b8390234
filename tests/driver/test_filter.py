"""``tables[].filter``: the mirror is the rows of the source that meet a condition, however events come."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DateType, IntegerType, StringType

from lakemirror.driver.parse.condition import Condition, WrongCondition, checked
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.supported import WrongFilter
from tests.support import delivery
from tests.support.histories import Shape, many, play
from tests.support.mirroring import Mirroring, at
from tests.support.records import UNAVAILABLE, Column
from tests.support.shop import Shop, table

pytestmark = pytest.mark.guarantee(
    "A filtered mirror has the rows that meet the condition, after any delivery"
)

STATUS, NOTE = Column("status", "string", optional=True), Column("note", "string", optional=True)
COLUMNS = {"id": IntegerType(), "a b": StringType(), "d": DateType(), "tags": ArrayType(StringType())}


def found(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[object, ...]]:
    """A mirror's rows as tuples, in order."""
    return sorted(tuple(row) for row in at(spark, mirroring.path("demo", "public", name)).collect())


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("id > 1", ("id",)),
        ("`A B` LIKE 'x%' OR d >= DATE'2026-01-01'", ("a b", "d")),
        ("true", ()),
        ("array_contains(tags, 'x') AND id IN (1, 2)", ("id", "tags")),
        ("exists(tags, t -> t = 'x')", ("tags",)),
    ],
)
def test_a_condition_reads_columns_of_a_row(spark: SparkSession, sql: str, columns: tuple[str, ...]) -> None:
    assert checked(spark, sql, COLUMNS) == Condition(sql, columns)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("id >", "cannot be parsed"),
        ("id > 1; true", "cannot be parsed"),
        ("price > 1", "price"),
        ("id + 1", "of type int"),
        ("`a b`", "of type string"),
        ("nosuch(id)", "nosuch"),
        ("id IN (SELECT 1)", "subquery"),
        ("EXISTS (SELECT 1)", "subquery"),
        ("id = (SELECT 1)", "subquery"),
        ("count(*) > 1", "aggregate"),
        ("max(id) = id", "GROUP BY"),
        ("row_number() OVER (ORDER BY id) = 1", "window"),
        ("explode(tags) = 'x'", "generator"),
        ("rand() < 0.5", "rand"),
        ("uuid() = `a b`", "uuid"),
        ("d < current_date", "current_date"),
        ("d < now() - INTERVAL 1 DAY", "now"),
        ("`a b` = current_user()", "current_user"),
        ("*", "not a condition"),
        ("id > 1 AS x", "not a condition"),
    ],
)
def test_what_is_no_condition_on_a_row_says_why(spark: SparkSession, sql: str, why: str) -> None:
    with pytest.raises(WrongCondition, match=why):
        checked(spark, sql, COLUMNS)


@pytest.mark.long
@pytest.mark.parametrize("shuffled", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_the_mirror_has_the_rows_that_meet_it_after_any_delivery(
    spark: SparkSession, tmp_path: Path, shuffled: bool
) -> None:
    """Rows come to meet it and stop meeting it, move, go and return; the condition may be null."""
    steps = many(range(40), random.Random(7), most=9, truncates=1)
    history = play(steps, Shape(full=True, snapshot="open", seed=3))
    records = delivery.restarted(history.records, back=9, every=200)
    if shuffled:
        records = delivery.shuffled(records, 5)
    listed = {"tables": [{"source": "items", "filter": "v % 3 <> 0 AND (note LIKE 'note%' OR big > '')"}]}
    mirroring = Mirroring(tmp_path, listed).deliver(delivery.parts(records, 3))
    summary = mirroring.run(spark)
    wanted = [row for row in history.rows.values() if row["v"] % 3 != 0 and (row["note"] or row["big"])]
    names = ("h", "id", "v", "note", "big")
    expected = sorted((tuple(row[name] for name in names) for row in wanted), key=repr)
    assert len(expected) > 5
    assert len(expected) < len(history.rows)
    rows = at(spark, mirroring.path("demo", "public", "items")).select(*names).collect()
    assert sorted(map(tuple, rows), key=repr) == expected
    assert (summary.counts.unaccounted, summary.counts.refused) == (0, 0)
    open_still = quarantine.open_counts(spark, str(mirroring.checkpoint))
    scopes = {scope for counts in open_still.values() for scope in counts}
    assert scopes <= {"order"}, "nothing is held but the end of what came again, until a later change comes"


@pytest.mark.thorough
def test_what_stops_meeting_it_is_deleted_or_left_out(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    hard, soft, kept, gaps = (table(name, STATUS, NOTE) for name in ("hard", "soft", "kept", "gaps"))
    first = [
        record
        for of in (hard, soft, kept)
        for record in [
            *shop.create(of, id=1, status="active", note=None),
            *shop.create(of, id=2, status="closed", note="secret"),
            *shop.create(of, id=3, status=None, note=None),
        ]
    ]
    late = [*shop.update(hard, id=1, status="active", note="late")]
    second = [
        record
        for of in (hard, soft, kept)
        for record in [
            *shop.update(of, id=1, status="closed", note="x"),
            *shop.update(of, id=2, status="active", note="y"),
            *shop.delete(of, id=3, status=None, note=None),
        ]
    ]
    first += shop.create(gaps, id=1, status="active", note="large")
    second += shop.update(gaps, id=1, status="active", note=UNAVAILABLE)
    active = "STATE = 'active'"
    rename = {"columns": {"rename": {"status": "state"}}}
    listed = {
        "tables": [
            {"source": "hard", "filter": active, **rename},
            {"source": "soft", "filter": active, **rename, "delete": {"type": "soft", "column": "gone"}},
            {"source": "kept", "filter": active, **rename, "mode": "append"},
            {"source": "gaps", "filter": active, **rename},
        ]
    }
    mirroring = Mirroring(tmp_path, listed).deliver([first, second, late])
    summary = mirroring.run(spark)
    tables = {source.rpartition(".")[2]: each for source, each in summary.tables.items()}
    assert summary.counts.unaccounted == 0

    assert found(spark, mirroring, "hard") == [(2, "active", "y")], "the late event brought nothing back"
    counts = tables["hard"].counts
    assert (counts.applied, counts.stale) == (6, 1)
    assert (counts.inserted, counts.deleted) == (2, 1)

    rows = [(id, state, note, gone is not None) for id, state, note, gone in found(spark, mirroring, "soft")]
    assert rows == [(1, "active", None, True), (2, "active", "y", False), (3, None, None, True)]

    assert found(spark, mirroring, "kept") == [(1, "active", None), (2, "active", "y"), (3, None, None)]
    counts = tables["kept"].counts
    assert (counts.applied, counts.no_row_change - counts.tombstone_records) == (3, 3), "a delete passes"

    assert found(spark, mirroring, "gaps") == [(1, "active", "large")]
    assert tables["gaps"].counts.quarantined == 1
    [bad] = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert "did not send note, and tables[gaps].filter needs the whole row" in bad["reason"]


@pytest.mark.thorough
def test_a_condition_that_does_not_fit_refuses_the_table_and_one_that_changes_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop, wrong, good = Shop(), table("wrong", STATUS), table("good", STATUS)
    rows = [record for of in (wrong, good) for record in shop.create(of, id=1, status="active")]
    listed = {"tables": [{"source": "wrong", "filter": "price > 1"}, {"source": "good", "filter": "id < 9"}]}
    mirroring = Mirroring(tmp_path, listed).deliver([rows])
    tables = mirroring.run(spark).tables
    reason = tables["demo.public.wrong"].error or ""
    assert "tables[wrong].filter cannot be evaluated" in reason
    assert "price" in reason
    assert "id, status" in reason
    assert found(spark, mirroring, "good") == [(1, "active")]

    other = {"tables": [{"source": "wrong", "filter": "id > 0"}, {"source": "good", "filter": "id < 8"}]}
    again = Mirroring(tmp_path, other).deliver([shop.create(good, id=2, status="active")]).run(spark)
    assert "was made with the filter id < 9" in (again.tables["demo.public.good"].error or "")
    assert found(spark, mirroring, "wrong") == [(1, "active")], "its held records are applied"


def test_a_condition_that_cannot_be_parsed_is_found_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    mirroring = Mirroring(tmp_path, {"tables": [{"source": "public.a", "filter": "id >"}]})
    with pytest.raises(WrongFilter, match=r"spec\.tables\[public\.a\]\.filter: 'id >' cannot be parsed"):
        mirroring.run(spark)
