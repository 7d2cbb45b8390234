"""The table of fields: complete, and what it says is what happens."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import CdcPipeline, PipelineSpec
from lakemirror.api.effects import EFFECTS, Effect, effect
from lakemirror.controller import fields
from lakemirror.controller.fields import accepts, incompatible
from tests.api.manifests import FULL
from tests.controller.builders import document, merged, spec

pytestmark = pytest.mark.guarantee("Every field has its declared effect and no other")

IMAGE = "driver:1"


def revision(of: PipelineSpec, image: str = IMAGE) -> str:
    return fields.revision(of, image)


def test_every_field_of_the_spec_has_an_effect() -> None:
    names = {field.alias or name for name, field in PipelineSpec.model_fields.items()}
    assert names <= EFFECTS.keys()


def test_every_path_of_the_table_is_a_field() -> None:
    for path in EFFECTS:
        model: Any = PipelineSpec
        for part in path.split("."):
            found = {field.alias or name: field for name, field in model.model_fields.items()}
            assert part in found, path
            model = next(
                (
                    a
                    for a in (found[part].annotation, *_arguments(found[part].annotation))
                    if hasattr(a, "model_fields")
                ),
                None,
            )


def _arguments(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", ())


def test_the_longest_path_counts() -> None:
    assert effect("trigger.schedule") is Effect.LIVE
    assert effect("trigger.interval") is Effect.RESTART
    assert effect("source.files.path") is Effect.RESET
    with pytest.raises(KeyError, match=r"new\.field"):
        effect("new.field")


def test_defaults_that_the_api_server_fills_in_are_no_change() -> None:
    bare = spec()
    filled = bare.model_dump(mode="json", by_alias=True, exclude_none=True)
    whole = CdcPipeline.from_dict({**document(), "spec": filled}).spec
    assert revision(whole) == revision(bare)
    assert incompatible(bare, whole) == incompatible(whole, bare) == []


@pytest.mark.parametrize(
    "change",
    [
        {"suspend": True},
        {"progressDeadline": "1h"},
        {"restart": {"backoffLimit": 3}},
        {"deletionPolicy": "DeleteAll"},
    ],
)
def test_what_the_operator_alone_acts_upon_is_the_same_revision(change: dict[str, Any]) -> None:
    assert revision(spec(**change)) == revision(spec())


def test_a_schedule_is_no_part_of_the_revision() -> None:
    hourly, daily = (
        spec(trigger={"availableNow": True, "schedule": f"@{word}"}) for word in ("hourly", "daily")
    )
    assert revision(hourly) == revision(daily)


@pytest.mark.parametrize(
    "change",
    [
        {"restartToken": "1"},
        {"spark": {"resetToken": "1"}},
        {"source": {"kafka": {"topicPattern": "other.*"}}},
        {"source": {"kafka": {"bootstrapServers": "other:9092"}}},
        {"onBadRecord": "fail"},
        {"tables": [{"source": "public.a", "resyncToken": "1"}]},
        {"tables": [{"source": "public.a", "suspend": True}]},
        {"trigger": {"interval": "1m"}},
        {"spark": {"executors": {"max": 0}}},
        {"spark": {"conf": {"spark.a": "b"}}},
        {"ordering": {"epochs": [{"epoch": 1, "from": {"t": {"0": 5}}}]}},
    ],
)
def test_what_the_driver_reads_is_another_revision_that_its_checkpoint_can_follow(
    change: dict[str, Any],
) -> None:
    assert revision(spec(**change)) != revision(spec())
    assert incompatible(spec(), spec(**change)) == []


def test_an_empty_reset_token_is_the_same_revision_as_none() -> None:
    conf = {"conf": {"spark.a": "b"}}
    assert revision(spec(spark={"resetToken": ""})) == revision(spec())
    assert revision(spec(spark={**conf, "resetToken": ""})) == revision(spec(spark=conf))


def test_another_image_is_another_revision() -> None:
    assert revision(spec(), "driver:2") != revision(spec(), "driver:1")


def test_to_name_the_image_that_runs_anyway_is_the_same_revision() -> None:
    assert revision(spec(spark={"image": IMAGE})) == revision(spec())


@pytest.mark.parametrize(
    ("change", "paths"),
    [
        ({"target": {"path": "s3a://x/{table}"}}, ["target.path"]),
        ({"target": {"compatibility": ["all"]}}, []),
        ({"target": {"path": None, "table": "lake.{table}"}}, ["target.path", "target.table"]),
        ({"checkpoint": "s3a://x"}, ["checkpoint"]),
        ({"source": {"kafka": None, "files": {"path": "/in"}}}, ["source"]),
        ({"envelope": {"format": "maxwell"}}, ["envelope.format"]),
        ({"defaults": {"mode": "append"}}, ["defaults.mode"]),
        ({"tables": [{"source": "public.a", "primaryKey": ["id"]}]}, ["tables[public.a].primaryKey"]),
        ({"tables": [{"source": "public.a", "target": {"path": "/x"}}]}, ["tables[public.a].target"]),
        ({"tables": [{"source": "public.a", "mode": "append"}]}, ["tables[public.a].mode"]),
        ({"tables": [{"source": "public.a", "filter": "id > 1"}]}, ["tables[public.a].filter"]),
        ({"tables": [{"source": "public.a", "columns": {"rowHash": "h"}}]}, ["tables[public.a].columns"]),
        ({"tables": [{"source": "public.a", "trackedColumns": ["v"]}]}, ["tables[public.a].trackedColumns"]),
    ],
)
def test_what_the_checkpoint_cannot_follow_is_named(change: dict[str, Any], paths: list[str]) -> None:
    assert incompatible(spec(), spec(**change)) == paths


@pytest.mark.parametrize(
    ("url", "paths"),
    [
        ("jdbc:postgresql://db/shop", []),
        ("jdbc:postgresql://db/shop?sslmode=require", []),
        ("jdbc:postgresql://db/shop?sslmode=require&tcpKeepAlive=true", []),
        ("jdbc:postgresql://db/shop2", ["target.jdbc.url"]),
        ("jdbc:postgresql://db/shop2?sslmode=prefer", ["target.jdbc.url"]),
        ("jdbc:postgresql://db/shop?sslmode=prefer&currentSchema=mirrors", ["target.jdbc.url"]),
    ],
)
def test_options_of_a_database_are_not_its_place(url: str, paths: list[str]) -> None:
    def at(url: str) -> PipelineSpec:
        return spec(target={"path": None, "table": "{schema}_{table}", "jdbc": {"url": url}})

    before = at("jdbc:postgresql://db/shop?sslmode=prefer")
    assert incompatible(before, at(url)) == paths
    assert revision(before) != revision(at(url))


def test_to_list_a_table_as_it_is_changes_nothing() -> None:
    listed = {
        "tables": [{"source": "public.a", "mode": "scd1", "target": {"path": "s3a://lake/{schema}/{table}"}}]
    }
    assert incompatible(spec(), spec(**listed)) == []


def of(*tables: tuple[str, dict[str, Any]], **changes: Any) -> PipelineSpec:
    return spec(tables=[{"source": source, **settings} for source, settings in tables], **changes)


def to(path: str) -> dict[str, Any]:
    return {"target": {"path": path}}


EU, ALL = r"/shop_(?<region>\w+)\.public\..*/", "/shop.*/"
NAME = "shop_eu.public.orders"


@pytest.mark.parametrize(
    ("old", "new", "paths"),
    [
        (of(), of((EU, to("s3a://eu/{table}"))), [f"tables[{EU}].target"]),
        (of((EU, to("s3a://eu/{table}")), unlisted="ignore"), of(), [f"tables[{EU}].target"]),
        (
            of((EU, to("s3a://eu/{table}")), unlisted="ignore"),
            of((ALL, to("s3a://all/{table}")), unlisted="ignore"),
            [f"tables[{ALL}].target"],
        ),
        (
            of((EU, to("s3a://{region}/{schema}/{table}")), unlisted="ignore"),
            of((ALL, to("s3a://eu/public/{table}")), unlisted="ignore"),
            [],
        ),
        (of(), of((EU, {"mode": "append"})), [f"tables[{EU}].mode"]),
        (of(), of(("orders", {"primaryKey": ["id"]})), ["tables[orders].primaryKey"]),
        (
            of((EU, {"primaryKey": ["id"]}), unlisted="ignore"),
            of(("orders", {"primaryKey": ["no"]}), unlisted="ignore"),
            ["tables[orders].primaryKey"],
        ),
        (of((EU, {})), of((EU, {"resyncToken": "1"})), []),
        (of(), of((EU, {**to("s3a://eu/{table}"), "mode": "append", "resyncToken": "1"})), []),
        (
            of((EU, {"resyncToken": "1"})),
            of((EU, {**to("s3a://eu/{table}"), "resyncToken": "1"})),
            [f"tables[{EU}].target"],
        ),
        (of(), of((EU, {"mode": "append", "resyncToken": "1"})), [f"tables[{EU}].mode"]),  # of the old mirror
        (of(), of((EU, {}), (ALL, {"filter": "id > 1"})), [f"tables[{ALL}].filter"]),  # of others than this
        (of(), of(("public.orders", to("s3a://lake/public/orders"))), []),
    ],
)
def test_tables_are_judged_by_the_names_of_mirrors(
    old: PipelineSpec, new: PipelineSpec, paths: list[str]
) -> None:
    assert incompatible(old, new, [NAME]) == paths


@pytest.mark.parametrize("entry", ["orders", "public.orders", NAME, EU])
def test_a_refused_table_without_a_mirror_may_be_mended(entry: str) -> None:
    old, new = of((entry, {"mode": "scd1"})), of((entry, {"mode": "append", "primaryKey": ["id"]}))
    paths = [f"tables[{entry}].primaryKey", f"tables[{entry}].mode"]
    assert incompatible(old, new) == paths, "it may have a mirror"
    assert incompatible(old, new, [], [NAME]) == incompatible(of(), new, [], [NAME]) == []
    assert incompatible(old, new, ["shop.public.others"], [NAME]) == []
    assert incompatible(old, new, [NAME], []) == paths


def test_a_list_of_events_may_be_told_its_key() -> None:
    """The key is what the net changes of a change feed are grouped by; the list has none."""
    events, keyed = {"mode": "append"}, {"mode": "append", "primaryKey": ["id"]}
    assert incompatible(of(("orders", events)), of(("orders", keyed)), [NAME]) == []
    rows = of(("orders", {"mode": "scd1"}))
    assert incompatible(of(("orders", keyed)), rows) == ["tables[orders].primaryKey", "tables[orders].mode"]


@pytest.mark.parametrize("entry", ["orders", "public.orders", NAME, EU])
def test_a_refused_table_may_become_what_its_mirror_is(entry: str) -> None:
    old, new = of((entry, {"filter": "id > 1"})), of((entry, {"mode": "append"}))
    paths = [f"tables[{entry}].mode", f"tables[{entry}].filter"]
    assert incompatible(old, new, [NAME]) == paths
    assert incompatible(old, new, [NAME], refused=[NAME]) == []
    assert incompatible(old, of((entry, to("s3a://x/{table}"))), [NAME], refused=[NAME]) == [
        f"tables[{entry}].target"
    ]


def test_a_pattern_of_which_one_table_is_refused_stays_for_the_others() -> None:
    old, new = of((ALL, {"filter": "id > 1"})), of((ALL, {}))
    both = [NAME, "shop_us.public.orders"]
    assert incompatible(old, new, both, refused=[NAME]) == [f"tables[{ALL}].filter"]
    assert incompatible(old, new, both, refused=both) == []


def test_one_mirror_of_a_pattern_keeps_it_as_it_is() -> None:
    old, new = of((ALL, {"mode": "scd1"})), of((ALL, {"mode": "append"}))
    assert incompatible(old, new, ["shop_us.public.orders"], [NAME]) == [f"tables[{ALL}].mode"]


def test_one_of_two_patterns_that_match_a_refused_table_may_go() -> None:
    both, one = of((EU, to("s3a://eu/{table}")), (ALL, {})), of((ALL, {}))
    assert incompatible(both, one) == [f"tables[{EU}].target"], "it may have mirrors"
    assert incompatible(both, one, [], [NAME]) == []
    assert incompatible(both, one, ["shop_eu.public.items"], [NAME]) == [f"tables[{EU}].target"]


def test_a_name_that_two_patterns_match_breaks_nothing() -> None:
    both = of(("/.*orders/", {}), ("/shop.*/", {}), unlisted="ignore")
    assert incompatible(of(("shop_orders", {"mode": "append"})), both, [NAME]) == []


def test_a_table_that_was_not_mirrored_may_begin_anyhow() -> None:
    few = spec(unlisted="ignore", tables=[{"source": "public.a"}])
    more = spec(unlisted="ignore", tables=[{"source": "public.a"}, {"source": "public.b", "mode": "append"}])
    assert incompatible(few, more) == []


def test_a_file_source_that_moves_needs_a_reset() -> None:
    here = spec(source={"kafka": None, "files": {"path": "/a"}})
    there = spec(source={"kafka": None, "files": {"path": "/b"}})
    assert incompatible(here, there) == ["source.files.path"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [("", "", False), ("", "1", True), ("1", "1", False), ("1", "2", True), ("1", "", False)],
)
def test_only_a_new_token_resets(before: str, after: str, expected: bool) -> None:
    assert accepts(spec(spark={"resetToken": before}), spec(spark={"resetToken": after})) is expected


def test_the_manifest_with_everything_has_a_revision() -> None:
    full = CdcPipeline.from_yaml(FULL).spec
    assert len(revision(full)) == 10
    assert incompatible(full, full) == []


def test_merging_is_as_the_tests_think() -> None:
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None, "d": 3}}) == {"a": {"c": 2, "d": 3}}
