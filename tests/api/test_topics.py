"""Which topics may change which tables."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import CdcPipeline, PipelineSpec
from lakemirror.api.crd import resource_schema
from lakemirror.api.supported import not_supported
from lakemirror.api.topics import is_bound, may_change, unbound
from lakemirror.driver.profile.admission import foreign
from lakemirror.driver.reload.reading import as_read, as_repaired
from lakemirror.driver.tables.names import TableName
from tests.api.manifests import changed

pytestmark = pytest.mark.guarantee(
    "Only topics that may speak of a table change it, where the manifest says so"
)

KAFKA = {"bootstrapServers": "kafka:9092", "topicPattern": ".*"}


def pipeline(**fields: Any) -> CdcPipeline:
    return CdcPipeline.from_dict(changed(**fields))


def spec(
    templates: list[str] | None = None, source: dict[str, Any] | None = None, **topics: list[str]
) -> PipelineSpec:
    """A spec with ``source.tableTopics``, and with the topics of entries of ``tables``."""
    bound = {} if templates is None else {"tableTopics": templates}
    tables = [{"source": name, "topics": each} for name, each in topics.items()]
    return pipeline(source={**(source or {"kafka": KAFKA}), **bound}, tables=tables).spec


def allowed(of: PipelineSpec, name: TableName, topic: str | None) -> bool:
    return may_change(of, str(name), name.parts, topic)


POSTGRES = TableName("shop", "public", "orders")
MYSQL = TableName("shop", None, "orders")


def test_without_the_setting_any_topic_may_change_any_table() -> None:
    assert not is_bound(spec())
    assert allowed(spec(), POSTGRES, "anything")
    assert foreign(spec(), {POSTGRES: {"anything"}}) == {}


@pytest.mark.parametrize(
    ("template", "name", "topic", "expected"),
    [
        ("shop.{schema}.{table}", POSTGRES, "shop.public.orders", True),
        ("shop.{schema}.{table}", POSTGRES, "shop.public.items", False),
        ("shop.{schema}.{table}", POSTGRES, "shop.public.orders.more", False),
        ("shop.{schema}.{table}", POSTGRES, "xshop.public.orders", False),
        ("x.{db}.{schema}.{table}", POSTGRES, "x.shop.public.orders", True),
        # What MySQL calls a database may be what a topic's name makes a schema, and the other way around.
        ("my.{db}.{table}", MYSQL, "my.shop.orders", True),
        ("my.{schema}.{table}", MYSQL, "my.shop.orders", True),
        ("my.{db}.{table}", TableName(None, "shop", "orders"), "my.shop.orders", True),
        ("my.{db}.{schema}.{table}", MYSQL, "my.shop.shop.orders", False),
        ("all.{db}", POSTGRES, "all.shop", True),
        ("all.{db}", POSTGRES, "all.other", False),
        ("routed", POSTGRES, "routed", True),
        # Debezium replaces what no topic may have in its name.
        ("s.{table}", TableName(None, "s", "Bücher & co"), "s.B_cher___co", True),
        ("s.{table}", TableName(None, "s", "{db}"), "s._db_", True),
        ("{db}.{table}", TableName(None, None, "orders"), "orders", False),
        ("{table}", TableName(None, None, "orders"), "orders", True),
        ("{table}", TableName(None, None, "orders"), None, False),
    ],
)
def test_templates(template: str, name: TableName, topic: str | None, expected: bool) -> None:
    assert allowed(spec([template]), name, topic) is expected
    assert allowed(spec(["never", template]), name, topic) is expected


def test_topics_of_a_table_come_before_the_templates() -> None:
    of = spec(["shop.{schema}.{table}"], orders=["routed", "other"])
    assert [allowed(of, POSTGRES, each) for each in ("routed", "other", "shop.public.orders")] == [
        True,
        True,
        False,
    ]
    items = TableName("shop", "public", "items")
    assert allowed(of, items, "shop.public.items")
    assert not allowed(of, items, "routed")


def test_a_table_alone_may_be_bound() -> None:
    of = spec(orders=["routed"])
    assert is_bound(of)
    assert not allowed(of, POSTGRES, "x")
    assert allowed(of, TableName("shop", "public", "items"), "x")
    assert foreign(of, {POSTGRES: {"x", "routed", "y"}, MYSQL: {"x"}}) == {
        "x": ["shop.orders", "shop.public.orders"],
        "y": ["shop.public.orders"],
    }


def test_a_name_that_two_entries_match_is_bound_to_the_topics_of_both() -> None:
    of = spec()
    of = of.model_copy(
        update={"tables": spec(**{"/.*orders/": ["a"], "/shop.*/": ["b"]}).tables}  # type: ignore[arg-type]
    )
    assert [allowed(of, POSTGRES, each) for each in "abc"] == [True, True, False]


def test_events_of_the_driver_itself_come_from_no_topic() -> None:
    of = spec(["{table}"], orders=["a"])
    own = of.model_copy(update=unbound(of))
    assert not is_bound(own)
    whole = pipeline(
        source={"kafka": KAFKA, "tableTopics": ["{table}"]}, tables=[{"source": "orders", "topics": ["a"]}]
    )
    for each in (as_read(whole), as_repaired(whole)):
        assert not is_bound(each.spec)
        assert [table.source for table in each.spec.tables] == ["orders"]


@pytest.mark.parametrize(
    "source", [{"files": {"path": "a", "format": "json"}}, {"changeFeed": {"table": "a.b"}}]
)
def test_rows_without_topics_are_refused(source: dict[str, Any]) -> None:
    paths = {path for path, _ in not_supported(spec(["{table}"], source, orders=["a"]))}
    assert paths >= {"spec.source.tableTopics", "spec.tables[orders].topics"}
    records = {"files": {"path": "a"}}
    assert not_supported(spec(["{table}"], records, orders=["a"])) == []


def test_topics_that_are_not_read_are_refused() -> None:
    source = {"kafka": {"bootstrapServers": "k:1", "topics": ["b"]}}
    refused = not_supported(spec(None, source, orders=["a", "b"]))
    assert refused == [
        (
            "spec.tables[orders].topics",
            "a is not one of source.kafka.topics: add it there, or leave it out here",
        )
    ]


def test_the_field_has_no_default() -> None:
    """An operator of an earlier version would refuse a field that it does not know."""
    spec = resource_schema()["properties"]["spec"]["properties"]
    for node in (
        spec["source"]["properties"]["tableTopics"],
        spec["tables"]["items"]["properties"]["topics"],
    ):
        assert "default" not in node
