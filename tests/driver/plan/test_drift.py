"""Drift: what a changed schema does to a mirror, by policy."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as t
from pyspark.sql.types import DataType

from lakemirror.driver.errors import SchemaDriftRefused
from lakemirror.driver.plan.drift import Policy, SchemaVersion, fits, plan_drift, widened
from lakemirror.driver.results import Drift
from lakemirror.driver.runtime.replayer import replay
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record, Table
from tests.support.shop import Shop, decimal, table

pytestmark = pytest.mark.guarantee("Drift is detected and applied by policy")

SINCE = datetime(2026, 1, 2, tzinfo=UTC)


def _struct(**members: DataType) -> DataType:
    return t.StructType([t.StructField(name, kind) for name, kind in members.items()])


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
        _struct(a=t.IntegerType()),
        _struct(a=t.LongType()),
        _struct(A=t.IntegerType()),
        _struct(b=t.StringType(), a=t.IntegerType()),
        _struct(a=t.IntegerType(), b=t.StringType()),
        _struct(a=t.LongType(), b=t.StringType()),
        t.ArrayType(_struct(a=t.IntegerType(), o=_struct(p=t.IntegerType()))),
        t.ArrayType(_struct(o=_struct(q=t.IntegerType()))),
        t.ArrayType(_struct(a=t.IntegerType(), o=_struct(p=t.IntegerType(), q=t.IntegerType()))),
    )
}


def kind(name: str) -> DataType:
    """The type of a name, without Spark."""
    decimal = re.fullmatch(r"decimal\((\d+),(\d+)\)", name)
    return t.DecimalType(int(decimal[1]), int(decimal[2])) if decimal else KINDS[name]


def version(**columns: str) -> SchemaVersion:
    return SchemaVersion({name: kind(ddl) for name, ddl in columns.items()}, SINCE)


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
        ("array<bigint>", "array<int>", "array<bigint>"),
        ("struct<a:int>", "struct<b:string,a:int>", "struct<a:int,b:string>"),
        ("struct<a:bigint>", "struct<b:string,a:int>", "struct<a:bigint,b:string>"),
        ("struct<a:int,b:string>", "struct<a:int>", "struct<a:int,b:string>"),
        ("struct<a:int>", "struct<a:bigint,b:string>", None),
        ("struct<a:int>", "struct<A:int>", None),
        (
            "array<struct<a:int,o:struct<p:int>>>",
            "array<struct<o:struct<q:int>>>",
            "array<struct<a:int,o:struct<p:int,q:int>>>",
        ),
        ("struct<a:int>", "array<int>", None),
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
        ("array<int>", "array<bigint>", True),
        ("struct<a:int>", "struct<a:bigint,b:string>", True),
        ("struct<a:int,b:string>", "struct<a:int>", False),
    ],
)
def test_a_value_fits_where_nothing_of_it_is_lost(value: str, column: str, expected: bool) -> None:
    assert fits(kind(value), kind(column)) is expected


def test_a_new_table_takes_the_columns_of_its_events() -> None:
    plan = plan_drift("t", None, [version(id="int", a="string")], "fail")
    assert plan.columns == stored(id="int", a="string")
    assert (plan.add, plan.alter, plan.drift, plan.refused) == ({}, {}, (), (frozenset(),))


def test_a_new_table_of_two_schemas_has_the_columns_of_both_in_the_wider_type() -> None:
    versions = [version(id="int", old="int"), version(id="bigint", new="int")]
    plan = plan_drift("t", None, versions, "evolve", dropped=["old"])
    assert plan.columns == stored(id="bigint", old="int", new="int")
    assert {(d.column, d.change) for d in plan.drift} == {
        ("id", "widened"),
        ("new", "added"),
        ("old", "dropped"),
    }


def test_fail_refuses_a_column_that_the_batch_which_makes_the_table_drops() -> None:
    with pytest.raises(SchemaDriftRefused, match=r"column old .* is gone"):
        plan_drift("t", None, [version(id="int", old="int"), version(id="int")], "fail", dropped=["old"])


def test_evolve_adds_widens_keeps_and_refuses_column_by_column() -> None:
    existing = stored(id="int", text="string", number="int", gone="int", wide="bigint", back="int")
    versions = [version(id="bigint", text="int", number="string", new="date", wide="int", back="int")]
    plan = plan_drift("t", existing, versions, "evolve", dropped=["gone"], returned=["back"])
    assert plan.columns == {**existing, **stored(id="bigint", new="date")}
    assert plan.add == stored(new="date")
    assert plan.alter == stored(id="bigint")
    assert plan.refused == (frozenset({"number"}),)
    assert set(plan.drift) == {
        Drift("id", "widened", "int", "bigint", "altered", SINCE),
        Drift("text", "incompatible", "string", "int", "stored-as-text", SINCE),
        Drift("number", "incompatible", "int", "string", "quarantined", SINCE),
        Drift("back", "added", None, "int", "added", SINCE),
        Drift("new", "added", None, "date", "added", SINCE),
        Drift("gone", "dropped", "int", None, "kept", SINCE),
    }


def test_only_the_version_that_does_not_fit_is_refused() -> None:
    plan = plan_drift("t", stored(v="int"), [version(v="int"), version(v="string")], "evolve")
    assert plan.refused == (frozenset(), frozenset({"v"}))


def test_a_column_added_in_one_version_and_widened_in_the_next_is_added_wide() -> None:
    plan = plan_drift(
        "t", stored(id="int"), [version(id="int", n="int"), version(id="int", n="bigint")], "evolve"
    )
    assert plan.add == stored(n="bigint")
    assert plan.alter == {}


@pytest.mark.parametrize("policy", ["evolve", "skip", "fail"])
def test_a_column_that_only_older_events_have_is_added_by_evolve_alone(policy: Policy) -> None:
    """The source no longer has it."""
    plan = plan_drift("t", stored(id="int"), [version(id="int", old="int")], policy, past=["old"])
    assert plan.add == (stored(old="int") if policy == "evolve" else {})
    assert len(plan.drift) == (policy == "evolve")


def test_skip_changes_no_column() -> None:
    existing = stored(id="int", gone="int")
    plan = plan_drift("t", existing, [version(id="bigint", new="int")], "skip", dropped=["gone"])
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
        plan_drift("shop.t", existing, [event], "fail", dropped=existing.keys() - event.columns.keys())
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


@pytest.mark.long
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
    (reason,) = {row["reason"] for row in bad}
    assert "column v: its type changed from int to string" in reason
    assert "columns.rename: {v: NEW_NAME} and run `lakemirror replay`" in reason


@pytest.mark.long
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


# Old schemas, and types that do not fit


@pytest.mark.thorough
def test_older_events_are_no_drift_and_a_dropped_column_is(spark: SparkSession, tmp_path: Path) -> None:
    """A partition that lags, or a table that is read again."""
    size, note = Column("size", "int32", default=7), Column("note", "string", optional=True)
    old, new, less = table("lagging"), table("lagging", size, note), table("lagging", size)
    shop = Shop()
    early = [*shop.create(old, id=1), *shop.create(old, id=2)]
    late = shop.create(new, id=3, size=9, note="n")
    mirroring = Mirroring(tmp_path, {"schemaEvolution": "fail"}).deliver([late])
    mirroring.run(spark)
    mirroring.deliver([late, early])
    assert mirroring.run(spark).tables["demo.public.lagging"].drift == ()
    assert values(spark, mirroring, "lagging") == [(1, 7, None), (2, 7, None), (3, 9, "n")]

    gone = shop.update(less, id=3, size=8)
    mirroring.deliver([late, early, gone])
    with pytest.raises(SchemaDriftRefused, match=r"demo\.public\.lagging: column note .* is gone"):
        mirroring.run(spark)
    evolving = Mirroring(tmp_path)
    (drift,) = evolving.run(spark).tables["demo.public.lagging"].drift
    assert (drift.column, drift.change, drift.action) == ("note", "dropped", "kept")
    assert values(spark, evolving, "lagging") == [(1, 7, None), (2, 7, None), (3, 8, None)]


@pytest.mark.thorough
def test_values_that_do_not_fit_go_to_a_new_column(spark: SparkSession, tmp_path: Path) -> None:
    """The remedy that the reason names, followed."""
    tables = ("changed", "again", "bare")
    number, text = Column("v", "int64"), Column("v", "string", optional=True)
    shop = Shop()
    batches: list[list[Record]] = [[], [], []]
    for name in tables:
        first, gone, last = table(name, number), table(name), table(name, text)
        if name == "bare":
            first, gone, last = (replace(each, schemas=False) for each in (first, gone, last))
        batches[0] += [*shop.create(first, id=1, v=1), *shop.create(first, id=2, v=2)]
        if name == "again":
            batches[1] += shop.create(gone, id=3)
        batches[2] += [*shop.update(last, id=2, v="two"), *shop.create(last, id=4, v=None)]
    mirroring = Mirroring(tmp_path).deliver(batches)
    mirroring.run(spark)
    assert values(spark, mirroring, "changed") == [(1, 1), (2, 2)]
    assert values(spark, mirroring, "again") == [(1, None), (2, None), (3, None)]
    assert values(spark, mirroring, "bare") == [(1, 1), (2, 2), (4, None)]
    bad = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    for row in bad:
        assert re.search(
            r"columns\.rename: \{(v|COLUMN): NEW_NAME\}(, columns\.types: \{\1: string\})? and run "
            r"`lakemirror replay`",
            row["reason"],
        )

    renamed = {"columns": {"rename": {"v": "v_text"}, "types": {"v": "string"}}}
    corrected = Mirroring(tmp_path, {"tables": [{"source": f"public.{name}", **renamed} for name in tables]})
    assert replay(corrected.pipeline, spark=spark).still_bad == 0
    found = {
        name: [
            (row["id"], row["v_text"])
            for row in at(spark, corrected.path("demo", "public", name)).orderBy("id").collect()
        ]
        for name in tables
    }
    assert found == {
        "changed": [(1, "1"), (2, "two"), (4, None)],
        "again": [(1, None), (2, "two"), (3, None), (4, None)],
        "bare": [(1, "1"), (2, "two"), (4, None)],
    }


# Keys


@pytest.mark.thorough
@pytest.mark.guarantee("A change of the key is never ignored")
def test_a_key_of_another_type_is_told_what_takes_it(spark: SparkSession, tmp_path: Path) -> None:
    """Under another name, as other columns get it, it would be another key."""
    shop, size = Shop(), Column("size", "int32")
    ids = (Column("id", "string"), size)
    first = shop.create(table("items", size), id=1, size=1)
    second = shop.create(Table("demo", "public", "items", ids, ("id",), "demo", False, True), id="b", size=2)
    mirroring = Mirroring(tmp_path).deliver([first, second])
    mirroring.run(spark)
    [bad] = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    place = "tables[demo.public.items]"
    said = f"columns.types: {{id: TYPE}}, and {place}.target to a new place with a new resyncToken"
    assert said in bad["reason"], bad["reason"]
    listed = {"source": "demo.public.items", "columns": {"types": {"id": "string"}}, "resyncToken": "1"}
    anew = f"{mirroring.lake}/anew/{{table}}"
    Mirroring(tmp_path, {"tables": [{**listed, "target": {"path": anew}}]}).run(spark)
    rows = at(spark, f"{mirroring.lake}/anew/items").collect()
    assert sorted((row["id"], row["size"]) for row in rows) == [("1", 1), ("b", 2)]


@pytest.mark.thorough
@pytest.mark.guarantee("A change of the key is never ignored")
def test_another_key_is_told_and_never_ignored(spark: SparkSession, tmp_path: Path) -> None:
    shop, region = Shop(), Column("region", "string")
    both = ("id", "region")

    def of(name: str, key: tuple[str, ...] = ("id",), **kind: bool) -> Table:
        return replace(table(name, region, key=key), **kind)

    def row(id: int, region: str) -> dict[str, object]:
        return {"id": id, "region": region}

    def renamed(name: str) -> Table:
        return Table("demo", "public", name, (Column("uid", "int32"), region), ("uid",), "demo", False, True)

    def routed(records: list[Record]) -> list[Record]:
        """The key has a column that the row lacks."""
        key = '{"id":1,"shard":"a"}'
        return [{**record, "key": key} for record in records]

    first = [
        *(record for name in ("grown", "lost", "moved") for record in shop.create(of(name), **row(1, "a"))),
        *shop.create(of("bare", schemas=False), **row(1, "a")),
        *shop.keyless(of("late"), **row(1, "a")),
        *shop.truncate(of("wiped")),
        *shop.create(of("mixed"), **row(1, "a")),
        *shop.create(of("mixed"), **row(2, "a")),
        *shop.create(of("mixed", both), **row(1, "b")),
        *routed(shop.create(of("routed", schemas=False), **row(1, "a"))),
        *shop.create(of("cut"), **row(1, "a")),
    ]
    second = [
        *shop.create(of("grown", both), **row(1, "b")),
        *shop.create(of("grown", both), **row(2, "b")),
        *shop.create(of("bare", schemas=False), **row(2, "a")),
        *shop.create(of("bare", both, schemas=False), **row(1, "b")),
        *shop.keyless(of("lost"), **row(2, "b")),
        *shop.create(renamed("moved"), uid=2, region="b"),
        *shop.create(of("late"), **row(2, "b")),
        *shop.create(of("wiped"), **row(1, "a")),
        *shop.delete(of("wiped"), **row(1, "a")),
        *shop.create(of("wiped"), **row(1, "b")),
    ]
    listed: list[dict[str, object]] = [{"source": "public.cut", "columns": {"exclude": ["id"]}}]
    mirroring = Mirroring(tmp_path, {"tables": listed}).deliver([first, second])
    mirroring.run(spark)
    for name, rows in {
        "grown": [(1, "a")],
        "bare": [(1, "a"), (2, "a")],
        "mixed": [(1, "a"), (2, "a")],
        "lost": [(1, "a")],
        "moved": [(1, "a")],
        "late": [(1, "a")],
        "wiped": [(1, "b")],
    }.items():
        assert values(spark, mirroring, name) == rows, name
    for name in ("routed", "cut"):
        assert not Path(mirroring.path("demo", "public", name)).exists(), name
    bad = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").collect()
    reasons = {row["source"].rpartition(".")[2]: row["reason"] for row in bad}
    for name, said in {
        "grown": ("the key (id)", "the key (id, region)", "primaryKey: [id, region]", "resyncToken"),
        "bare": ("the key (id)", "the key (id, region)"),
        "mixed": ("the key (id)", "the key (id, region)", "primaryKey: [id, region]"),
        "moved": ("the key (id)", "the key (uid)", "primaryKey: [uid]"),
        "late": ("no key", "the key (id)", "mode: append"),
        "lost": ("the key is missing", "id"),
        "routed": ("shard", "primaryKey"),
        "cut": ("id", "tables[public.cut].columns", "keep it"),
        "wiped": ("only a truncate",),
    }.items():
        assert all(part in reasons[name] for part in said), (name, reasons.get(name))

    anew = f"{mirroring.lake}/anew/{{table}}"
    followed = Mirroring(
        tmp_path,
        {
            "tables": [
                {
                    "source": "public.grown",
                    "primaryKey": ["id", "region"],
                    "target": {"path": anew},
                    "resyncToken": "1",
                },
                {"source": "public.late", "mode": "append"},
            ]
        },
    )
    followed.run(spark)  # tries by itself what it holds
    assert sorted(tuple(r) for r in at(spark, f"{mirroring.lake}/anew/grown").collect()) == [
        (1, "a"),
        (1, "b"),
        (2, "b"),
    ]
    assert values(spark, followed, "late") == [(1, "a"), (2, "b")]
