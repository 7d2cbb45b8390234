"""Drift: what a changed schema does to a mirror, by policy."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.types import DataType

from lakemirror.driver.drift import SchemaVersion, fits, plan_drift, widened
from lakemirror.driver.errors import SchemaDriftRefused
from lakemirror.driver.results import Drift
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, decimal, table

SINCE = datetime(2026, 1, 2, tzinfo=UTC)


KINDS: dict[str, DataType] = {
    each.simpleString(): each
    for each in (
        t.BooleanType(),
        t.ByteType(),
        t.ShortType(),
        t.IntegerType(),
        t.LongType(),
        t.FloatType(),
        t.DoubleType(),
        t.StringType(),
        t.BinaryType(),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
        t.ArrayType(t.IntegerType()),
        t.ArrayType(t.LongType()),
    )
}


def kind(name: str) -> DataType:
    """The type of a name, without Spark."""
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", name)
    return t.DecimalType(int(decimal[1]), int(decimal[2])) if decimal else KINDS[name]


def version(*, complete: bool = True, **columns: str) -> SchemaVersion:
    return SchemaVersion({name: kind(ddl) for name, ddl in columns.items()}, SINCE, complete)


def stored(**columns: str) -> dict[str, DataType]:
    return {name: kind(ddl) for name, ddl in columns.items()}


@pytest.mark.parametrize(
    ("present", "wanted", "common"),
    [
        ("int", "int", "int"),
        ("tinyint", "smallint", "smallint"),
        ("int", "bigint", "bigint"),
        ("bigint", "int", "bigint"),
        ("int", "double", "double"),
        ("bigint", "double", None),  # a double holds 53 bits
        ("double", "int", "double"),
        ("double", "bigint", None),
        ("float", "double", "double"),
        ("double", "float", "double"),
        ("int", "float", None),
        ("int", "decimal(4,2)", "decimal(12,2)"),
        ("bigint", "decimal(30,2)", "decimal(30,2)"),
        ("decimal(4,2)", "int", "decimal(12,2)"),
        ("decimal(10,2)", "decimal(12,4)", "decimal(12,4)"),
        ("decimal(10,2)", "decimal(10,4)", "decimal(12,4)"),
        ("decimal(12,4)", "decimal(10,2)", "decimal(12,4)"),
        ("decimal(38,0)", "decimal(38,10)", None),  # 48 digits
        ("bigint", "decimal(38,30)", None),
        ("date", "timestamp_ntz", "timestamp_ntz"),
        ("timestamp_ntz", "date", "timestamp_ntz"),
        ("date", "timestamp", None),  # it would need a time zone
        ("timestamp_ntz", "timestamp", None),
        ("string", "int", None),
        ("int", "string", None),
        ("boolean", "int", None),
        ("binary", "string", None),
        ("array<int>", "array<bigint>", None),
    ],
)
def test_a_type_is_widened_only_to_one_that_holds_both(present: str, wanted: str, common: str | None) -> None:
    assert widened(kind(present), kind(wanted)) == (common and kind(common))


@pytest.mark.parametrize(
    ("value", "column", "expected"),
    [
        ("int", "bigint", True),
        ("bigint", "int", False),
        ("decimal(10,2)", "decimal(12,4)", True),
        ("decimal(10,2)", "decimal(10,4)", False),
        ("int", "decimal(12,2)", True),
        ("int", "decimal(11,2)", False),
        ("float", "double", True),
        ("string", "int", False),
    ],
)
def test_a_value_fits_where_nothing_of_it_is_lost(value: str, column: str, expected: bool) -> None:
    assert fits(kind(value), kind(column)) is expected


def test_a_new_table_takes_the_columns_of_its_events() -> None:
    plan = plan_drift("t", None, [version(id="int", a="string")], "fail")
    assert plan.columns == stored(id="int", a="string")
    assert (plan.add, plan.alter, plan.drift, plan.refused) == ({}, {}, (), (frozenset(),))


def test_a_new_table_of_two_schemas_has_the_columns_of_both_in_the_wider_type() -> None:
    plan = plan_drift("t", None, [version(id="int", old="int"), version(id="bigint", new="int")], "evolve")
    assert plan.columns == stored(id="bigint", old="int", new="int")
    assert {(d.column, d.change) for d in plan.drift} == {
        ("id", "widened"),
        ("new", "added"),
        ("old", "dropped"),
    }


def test_fail_refuses_a_column_that_the_batch_which_makes_the_table_drops() -> None:
    with pytest.raises(SchemaDriftRefused, match=r"column old .* is gone"):
        plan_drift("t", None, [version(id="int", old="int"), version(id="int")], "fail")


def test_evolve_adds_widens_keeps_and_refuses_column_by_column() -> None:
    existing = stored(id="int", text="string", gone="int", wide="bigint")
    plan = plan_drift("t", existing, [version(id="bigint", text="int", new="date", wide="int")], "evolve")
    assert plan.columns == {**existing, **stored(id="bigint", new="date")}
    assert plan.add == stored(new="date")
    assert plan.alter == stored(id="bigint")
    assert plan.refused == (frozenset({"text"}),)
    assert set(plan.drift) == {
        Drift("id", "widened", "int", "bigint", "altered", SINCE),
        Drift("text", "incompatible", "string", "int", "quarantined", SINCE),
        Drift("new", "added", None, "date", "added", SINCE),
        Drift("gone", "dropped", "int", None, "kept", SINCE),
    }


def test_only_the_version_that_does_not_fit_is_refused() -> None:
    plan = plan_drift("t", stored(v="string"), [version(v="string"), version(v="int")], "evolve")
    assert plan.refused == (frozenset(), frozenset({"v"}))


def test_a_column_added_in_one_version_and_widened_in_the_next_is_added_wide() -> None:
    plan = plan_drift(
        "t", stored(id="int"), [version(id="int", n="int"), version(id="int", n="bigint")], "evolve"
    )
    assert plan.add == stored(n="bigint")
    assert plan.alter == {}


def test_a_column_that_no_value_showed_is_not_dropped() -> None:
    """Events without schema: a column not seen is unknown."""
    assert plan_drift("t", stored(id="int", a="int"), [version(complete=False, id="int")], "fail").drift == ()


def test_skip_changes_no_column() -> None:
    existing = stored(id="int", gone="int")
    plan = plan_drift("t", existing, [version(id="bigint", new="int")], "skip")
    assert plan.columns == existing
    assert (plan.add, plan.alter) == ({}, {})
    assert {(d.column, d.change, d.action) for d in plan.drift} == {
        ("id", "widened", "skipped"),
        ("new", "added", "skipped"),
        ("gone", "dropped", "kept"),
    }


@pytest.mark.parametrize(
    ("existing", "event", "column", "types"),
    [
        (stored(id="int"), version(id="int", new="date"), "new", ["date"]),
        (stored(id="int", old="date"), version(id="int"), "old", ["date"]),
        (stored(id="int"), version(id="bigint"), "id", ["int", "bigint"]),
        (stored(v="string"), version(v="int"), "v", ["string", "int"]),
    ],
    ids=["added", "dropped", "widened", "incompatible"],
)
def test_fail_names_table_column_types_policy_and_remedy(
    existing: dict[str, DataType], event: SchemaVersion, column: str, types: list[str]
) -> None:
    with pytest.raises(SchemaDriftRefused) as refusal:
        plan_drift("shop.t", existing, [event], "fail")
    for part in ("table shop.t", f"column {column}", *types, "'fail'", "'evolve' or 'skip'"):
        assert part in str(refusal.value)


def test_fail_takes_what_fits() -> None:
    plan = plan_drift("t", stored(id="bigint"), [version(id="int")], "fail")
    assert plan.drift == ()


# Through a whole run

ADDED, WIDENED, BROKEN, NARROWED = "added", "widened", "broken", "narrowed"
BEFORE = {
    ADDED: table(ADDED),
    WIDENED: table(WIDENED, Column("v", "int32"), decimal("price", 5, 2)),
    BROKEN: table(BROKEN, Column("v", "int32")),
    NARROWED: table(NARROWED, Column("v", "int64")),
}
AFTER = {
    ADDED: table(ADDED, Column("size", "int32", default=7), Column("note", "string", optional=True)),
    WIDENED: table(WIDENED, Column("v", "int64"), decimal("price", 12, 3)),
    BROKEN: table(BROKEN, Column("v", "string")),
    NARROWED: table(NARROWED, Column("v", "int32")),
}


def unscaled(digits: int) -> str:
    """A decimal as Connect sends it."""
    return base64.b64encode(digits.to_bytes(digits.bit_length() // 8 + 1, "big", signed=True)).decode()


def first_rows(shop: Shop) -> list[Record]:
    return [
        *shop.create(BEFORE[ADDED], id=1),
        *shop.create(BEFORE[WIDENED], id=1, v=1, price=unscaled(12345)),
        *shop.create(BEFORE[BROKEN], id=1, v=1),
        *shop.create(BEFORE[NARROWED], id=1, v=2**40),
    ]


def changed_rows(shop: Shop, key: int) -> list[Record]:
    return [
        *shop.create(AFTER[ADDED], id=key, size=9, note="n"),
        *shop.create(AFTER[WIDENED], id=key, v=2**40, price=unscaled(123456789012)),
        *shop.create(AFTER[BROKEN], id=key, v="five"),
        *shop.create(BEFORE[BROKEN], id=key + 10, v=5),
        *shop.create(AFTER[NARROWED], id=key, v=3),
    ]


def values(spark: SparkSession, mirroring: Mirroring, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in at(spark, mirroring.path("demo", "public", name)).collect())


def audited_drift(spark: SparkSession, mirroring: Mirroring) -> list[tuple[object, ...]]:
    audit = spark.read.format("delta").load(f"{mirroring.checkpoint}/audit").where("drift IS NOT NULL")
    return sorted(
        (row["source"], each["column"], each["change"], each["from_type"], each["to_type"], each["action"])
        for row in audit.collect()
        for each in json.loads(row["drift"])
    )


def test_evolving_tables_keep_every_value_and_report_each_change_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    shop = Shop()
    batches = [first_rows(shop), changed_rows(shop, 2), changed_rows(shop, 3)]
    mirroring = Mirroring(tmp_path).deliver(batches[:2])
    summary = mirroring.run(spark)
    reported = summary.tables["demo.public.added"].drift
    assert {(d.column, d.change, d.action) for d in reported} == {
        ("size", "added", "added"),
        ("note", "added", "added"),
    }
    assert {d.since for d in reported} == {datetime.fromtimestamp(1_700_000_005, UTC)}
    mirroring.deliver(batches).run(spark)

    assert values(spark, mirroring, ADDED) == [(1, 7, None), (2, 9, "n"), (3, 9, "n")]
    price = Decimal("123456789.012")
    assert values(spark, mirroring, WIDENED) == [
        (1, 1, Decimal("123.450")),
        (2, 2**40, price),
        (3, 2**40, price),
    ]
    assert values(spark, mirroring, BROKEN) == [(1, 1), (12, 5), (13, 5)]
    assert values(spark, mirroring, NARROWED) == [(1, 2**40), (2, 3), (3, 3)]
    assert audited_drift(spark, mirroring) == [
        ("demo.public.added", "note", "added", None, "string", "added"),
        ("demo.public.added", "size", "added", None, "int", "added"),
        ("demo.public.broken", "v", "incompatible", "int", "string", "quarantined"),
        ("demo.public.widened", "price", "widened", "decimal(5,2)", "decimal(12,3)", "altered"),
        ("demo.public.widened", "v", "widened", "int", "bigint", "altered"),
    ]
    bad = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    assert [row["source"] for row in bad] == ["demo.public.broken"] * 2
    assert {row["reason"] for row in bad} == {"column v: its type changed from int to string"}


def test_fail_stops_the_batch_whole_and_skip_lets_it_go_on(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop()
    first = first_rows(shop)
    mirroring = Mirroring(tmp_path, {"schemaEvolution": "fail"}).deliver([first])
    mirroring.run(spark)
    before = mirroring.versions()
    drifted = [
        *shop.create(BEFORE[BROKEN], id=2, v=2),
        *shop.create(BEFORE[WIDENED], id=2, v=2, price=unscaled(1)),
        *shop.create(AFTER[ADDED], id=2, size=9, note="n"),
        *shop.garbage(BEFORE[ADDED], "{"),
    ]
    mirroring.deliver([first, drifted])
    with pytest.raises(SchemaDriftRefused, match=r"demo\.public\.added: column size is new"):
        mirroring.run(spark)
    assert mirroring.versions() == before
    assert not (mirroring.checkpoint / "quarantine").exists()

    skipping = Mirroring(tmp_path, {"schemaEvolution": "skip"})
    skipping.run(spark)
    assert values(spark, skipping, ADDED) == [(1,), (2,)]
    assert values(spark, skipping, BROKEN) == [(1, 1), (2, 2)]
    assert [each[1:] for each in audited_drift(spark, skipping)] == [
        ("note", "added", None, "string", "skipped"),
        ("size", "added", None, "int", "skipped"),
    ]
