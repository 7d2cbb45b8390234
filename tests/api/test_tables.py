"""Which settings belong to which table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds, match_table
from lakemirror.api.checks import cron, regular_expression, sql_type
from lakemirror.api.tables import Target, groups_of, parts_of
from lakemirror.driver.tables.names import TableName, locate
from tests.api.manifests import changed


@pytest.mark.parametrize(
    ("sources", "table", "found"),
    [
        (["public.customers"], "shop.public.customers", "public.customers"),
        (["customers"], "shop.public.customers", "customers"),
        (["shop.public.customers"], "shop.public.customers", "shop.public.customers"),
        (["c.customers"], "shop.public.customers", None),
        (["ustomers"], "shop.public.customers", None),
        (["public"], "shop.public.customers", None),
        (["Customers"], "shop.public.customers", None),
        (["shop.public.customers"], "public.customers", None),
        (["a.t", "b.t"], "x.b.t", "b.t"),
        ([], "t", None),
        (["c"], 'a."b.c"', None),
        (["b.c"], 'a."b.c"', None),
        (['"b.c"'], 'a."b.c"', '"b.c"'),
        (['a."b.c"'], '"a.b".c', None),
        (['"b"'], "a.b", '"b"'),
        (['"x""y"'], 'a."x""y"', '"x""y"'),
        (["/shop_.+\\.public\\.customers/"], "shop_eu.public.customers", "/shop_.+\\.public\\.customers/"),
        (["/shop/"], "shop.public.customers", None),
        (["/.*/", "customers"], "shop.public.customers", "customers"),
    ],
)
def test_a_source_means_tables_by_whole_parts_at_the_end(
    sources: list[str], table: str, found: str | None
) -> None:
    assert match_table(sources, table) == found


def test_an_ambiguity_names_both() -> None:
    with pytest.raises(AmbiguousTable, match=r"shop.public.t .* public.t and t:"):
        match_table(["public.t", "other", "t"], "shop.public.t")


def test_two_patterns_of_one_table_are_ambiguous() -> None:
    with pytest.raises(AmbiguousTable, match=r"matched by both /a\.\+/ and /\.\+b/: list it by its name"):
        match_table(["/a.+/", "/.+b/"], "a.b")
    assert match_table(["/a.+/", "/.+b/", "b"], "a.b") == "b"


def test_the_groups_of_a_pattern_stand_in_its_target() -> None:
    """They come before the parts of the table's name, written in either way, and lead nowhere else."""
    source = r"/shop_(?<region>\w*)\.public\.(?P<table>.*)_v\d/"
    spec = CdcPipeline.from_dict(
        changed(
            unlisted="ignore",
            tables=[
                {"source": source, "mode": "append", "target": {"path": "lake/{region}/{db}/{table}"}},
                {"source": "public.a_v1", "target": {"path": "other"}, "resyncToken": "1"},
            ],
        )
    ).spec

    def place(name: str) -> str | None:
        settings = spec.table_settings(name)
        if settings is None or settings.target is None:
            return None
        table = TableName(*parts_of(name))
        return str(locate(settings.target, table, groups_of(settings.source, name)))

    assert place("shop_eu.public.orders_v1") == "lake/eu/shop_eu/orders"
    assert place("shop_.public.orders_v1") == "lake/%/shop_/orders"
    assert place('shop_eu.public."../b_v2"') is None, "the name ends with a quote"
    assert place("shop_eu.public.a_v1") == "other"
    assert place("shop_eu.public.a") is None
    odd = locate(Target(path="lake/{region}/x"), TableName("d", "s", "t"), {"region": ".."})
    assert str(odd) == "lake/%2E./x"
    assert spec.only({source}).table_settings("shop_eu.public.a_v1") is None, "the name is not the pattern's"
    assert spec.only({source}).table_settings("shop_eu.public.b_v1") is not None


def test_settings_follow_the_defaults_where_they_say_nothing() -> None:
    spec = CdcPipeline.from_dict(
        changed(
            defaults={"mode": "scd2", "delete": {"type": "soft", "column": "gone"}},
            tables=[
                {"source": "public.a", "mode": "append"},
                {
                    "source": "public.b",
                    "target": {"table": "b"},
                    "delete": {"type": "hard"},
                    "primaryKey": ["id"],
                },
            ],
        )
    ).spec
    a, b, c = (spec.table_settings(f"shop.public.{name}") for name in "abc")
    assert a is not None
    assert b is not None
    assert c is not None
    assert a.source == "public.a"
    assert (a.mode, a.target, a.delete) == ("append", spec.target, spec.defaults.delete)
    assert b.mode == "scd2"
    assert b.delete is not None
    assert b.delete.type == "hard"
    assert b.target is not None
    assert b.target.template == "b"
    assert b.primary_key == ["id"]
    assert (c.source, c.mode, c.target, c.primary_key) == ("shop.public.c", "scd2", spec.target, None)
    assert (c.on_conflict, c.suspend, c.columns) == ("replace", False, None)


def test_tables_that_are_not_listed_can_be_ignored() -> None:
    spec = CdcPipeline.from_dict(changed(unlisted="ignore", tables=[{"source": "a"}])).spec
    assert spec.table_settings("shop.public.b") is None
    assert spec.table_settings("shop.public.a") is not None


def test_one_target_is_enough_for_one_table() -> None:
    tables = [{"source": "a"}, {"source": "b", "target": {"path": "lake/b"}}]
    CdcPipeline.from_dict(changed(target={"path": "lake/a"}, unlisted="ignore", tables=tables))
    CdcPipeline.from_dict(changed(target={"path": "lake/a"}, source={"changeFeed": {"table": "t"}}))


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("10s", 10), ("0s", 0), ("5m", 300), ("6h", 21600), ("7d", 604800)]
)
def test_durations_in_seconds(text: str, seconds: float) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["36501d", "999999999h", "999999999d"])
def test_a_duration_that_means_for_ever_can_be_reckoned_with(text: str) -> None:
    CdcPipeline.from_dict(changed(tombstones={"retention": text}))
    assert duration_seconds(text) == duration_seconds("36500d")
    long = timedelta(seconds=duration_seconds(text))
    assert datetime.now(UTC) - long < datetime.now(UTC) < datetime.now(UTC) + long


@pytest.mark.parametrize("text", ["", "7", "7 d", "-1s", "1.5h", "1w", "1h30m", "1s\n"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid duration"):
        duration_seconds(text)


@pytest.mark.parametrize(
    "text",
    [
        "bigint",
        "DECIMAL(10, 2)",
        "decimal",
        "array<string>",
        "map<string,array<int>>",
        "varchar(20)",
        "timestamp_ntz",
        "struct<a: int, `b c`: array<struct<d:date>>>",
        "struct<a int>",
    ],
)
def test_types_of_columns(text: str) -> None:
    pipeline = CdcPipeline.from_dict(changed(tables=[{"source": "t", "columns": {"types": {"a": text}}}]))
    assert pipeline.to_dict()["spec"]["tables"][0]["columns"]["types"] == {"a": text}


@pytest.mark.parametrize(
    "text",
    [
        "intx",
        "array<>",
        "array<int,int>",
        "map<int>",
        "struct<int>",
        "decimal()",
        "int int",
        "varchar(0)",
        "int>",
    ],
)
def test_what_is_no_type(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid Spark SQL type"):
        sql_type(text)


@pytest.mark.parametrize(
    "text",
    [r"shop\.public\..*", r"\Qa.b(\E.*", r"(?<db>\w+)\.\p{Alnum}+", r"(?<=a)b|(?<!c)d", r"a(?!b)", r"[^.]+"],
)
def test_regular_expressions_of_java(text: str) -> None:
    assert regular_expression(text) == text


@pytest.mark.parametrize("text", ["0 * * * *", "*/5 0-6 1,15 * MON-FRI", "@daily", "0 0 * * 7"])
def test_schedules(text: str) -> None:
    assert cron(text) == text


@pytest.mark.parametrize(
    "text", ["* * * *", "@reboot", "61 * * * *", "a b c d e", "0 0 L * *", "H * * * *", "@every 5m"]
)
def test_what_is_no_schedule(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid cron schedule"):
        cron(text)


@pytest.mark.parametrize("text", ["0 0 30 2 *", "0 0 31 4,6 *"])
def test_cron_schedules_that_never_come(text: str) -> None:
    with pytest.raises(ValueError, match="never comes"):
        cron(text)


def test_a_cron_schedule_of_leap_days() -> None:
    assert cron("0 0 29 2 *") == "0 0 29 2 *"
