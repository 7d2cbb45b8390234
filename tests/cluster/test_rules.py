"""The CRD's rules on a real API server: each is accepted there, and refuses what its message says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kube import Kube, KubectlFailed
from tests.cluster.mirror import Mirror

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.guarantee("The API server accepts every rule of the CRD, and each rule does what it says"),
]
ROOT = Path(__file__).parents[2]

Spec = dict[str, Any]
TABLE = {"source": "public.items"}
KAFKA = {"bootstrapServers": "kafka:9092"}
FILES = {"kafka": None, "files": {"path": "/in", "format": "records"}}
JDBC = {"url": "jdbc:postgresql://db:5432/shop"}
AGAIN = "the checkpoint cannot follow this change"


def tables(*each: Spec) -> Spec:
    return {"tables": [{**TABLE, **table} for table in each]}


def security(**fields: str) -> Spec:
    return {"source": {"kafka": {"security": fields}}}


def files(**fields: Any) -> Spec:
    return {"source": {"kafka": None, "files": {"path": "/in", **fields}}}


def feed(**fields: Any) -> Spec:
    return {"source": {"kafka": None, "changeFeed": fields}}


REFUSED: list[tuple[Spec, str]] = [
    (
        {"target": {"path": "/lake/all"}},
        "target must contain {table} where several tables follow it: they would share it",
    ),
    ({"target": {"path": "/lake/{table}/x"}, "checkpoint": "/lake/{table}/x"}, "checkpoint"),
    (
        {"target": {"path": "/one"}, "checkpoint": "/one/", "unlisted": "ignore", "tables": [TABLE]},
        "checkpoint must not be the path of the target",
    ),
    (
        {
            "trigger": {"interval": None, "availableNow": True, "schedule": "@daily"},
            "spark": {"backend": "apache"},
        },
        "trigger.schedule has no effect with this spark.backend: only native has schedules",
    ),
    (
        {"spark": {"backend": "kubeflow"}, "restart": {"resetAfter": "1h"}},
        "restart.resetAfter has no effect with spark.backend kubeflow",
    ),
    (
        {"defaults": {"mode": "append"}, **tables({"primaryKey": ["id"]})},
        "delete and primaryKey have no effect with mode append",
    ),
    (
        tables({"mode": "append", "delete": {"type": "hard"}}),
        "delete and primaryKey have no effect with mode append",
    ),
    (
        {"source": {"files": {"path": "/in", "format": "records"}}},
        "exactly one of kafka, files and changeFeed is needed",
    ),
    ({"source": {"kafka": {"topicPattern": "a.*"}}}, "exactly one of topics and topicPattern is needed"),
    (
        security(protocol="SASL_SSL", secret="s"),
        "mechanism is needed with SASL_PLAINTEXT and SASL_SSL, and only there",
    ),
    (security(protocol="SASL_SSL", mechanism="PLAIN"), "secret is required with SASL"),
    (
        security(protocol="SASL_SSL", secret="s", mechanism="OAUTHBEARER"),
        "oauth is needed with OAUTHBEARER, and only there",
    ),
    (security(protocol="PLAINTEXT", secret="s"), "PLAINTEXT does not use a secret"),
    (feed(path="/a", table="b"), "exactly one of table and path is needed"),
    (
        feed(path="/a", startingVersion=1, startingTimestamp="2026-03-01T00:00:00Z"),
        "only one of startingVersion and startingTimestamp can be given",
    ),
    (files(format="json", csv={}), "csv belongs to format csv"),
    (
        files(format="csv", csv={"header": False}),
        "columns is needed with header: false, and only there",
    ),
    (
        files(format="records", table="public.items"),
        "table has no meaning with format records, whose records have a topic",
    ),
    ({"envelope": {"format": "custom"}}, "fields is needed with custom, and only there"),
    ({"envelope": {"opMap": {"I": "c"}}}, "opMap belongs to custom"),
    ({"envelope": {"encoding": "avro"}}, "schemaRegistry is needed with avro, and only there"),
    (
        {"target": {"path": None, "table": "lake.{tables}"}},
        "target: the placeholders are {db}, {schema} and {table}",
    ),
    ({"target": {"path": None, "jdbc": JDBC}}, "with jdbc, table is needed: schema.table"),
    (
        {"target": {"path": None, "table": "a.{table}", "jdbc": {"url": JDBC["url"] + "?user=me"}}},
        "url must not have user or password: put them into a Secret",
    ),
    (
        {"target": {"path": None, "table": "a.{table}", "jdbc": {"url": "jdbc:mysql://root:x@db/"}}},
        "url must not have user or password: put them into a Secret",
    ),
    ({"verify": {"schedule": "@daily"}}, "exactly one of jdbc and snapshot is needed"),
    (
        {"verify": {"jdbc": {"url": "jdbc:mariadb://db:3306/", "slot": "shop"}}},
        "slot belongs to PostgreSQL",
    ),
    ({"target": {"table": "lake.{table}"}}, "exactly one of path and table is needed"),
    (tables({"target": {"path": "/a", "table": "b"}}), "exactly one of path and table is needed"),
    ({"defaults": {"delete": {"type": "soft"}}}, "column is needed with soft, and only there"),
    (tables({"delete": {"type": "hard", "column": "c"}}), "column is needed with soft, and only there"),
    (
        {"tables": [{"source": "items"}, {"source": "public.items"}]},
        "one source is the end of another: both match the same table",
    ),
    (
        tables({"columns": {"include": ["a"], "exclude": ["b"]}}),
        "only one of include and exclude can be given",
    ),
    ({"ordering": {"by": "columns"}}, "columns is needed with by: columns, and only there"),
    (
        {"ordering": {"epochs": [{"epoch": e, "from": {"shop": {"0": 5}}} for e in (2, 1)]}},
        "epochs must be in the order of their numbers",
    ),
    (
        {"trigger": {"availableNow": True, "interval": "1m"}},
        "exactly one of interval and availableNow is needed",
    ),
    ({"trigger": {"schedule": "@daily"}}, "schedule belongs to availableNow"),
    ({"spark": {"executors": {"min": 3, "max": 2}}}, "min must not be above max"),
    ({"spark": {"conf": {"park.a": "b"}}}, "names of Spark settings begin with spark."),
]
"""Changes of a good manifest, and the message of the rule that refuses them."""

ACCEPTED: list[Spec] = [
    {},
    {"source": FILES},
    {"source": {"kafka": {"topics": None, "topicPattern": "a.*"}}},
    security(protocol="SSL", secret="ca"),
    {"target": {"path": "/one"}, "unlisted": "ignore", **tables({})},
    {"defaults": {"mode": "append"}, **tables({"mode": "scd1", "primaryKey": ["id"]})},
    {"defaults": {"delete": {"type": "soft", "column": "gone"}}},
    {"tables": [{"source": "public.items"}, {"source": "sales.items"}]},
    {"ordering": {"by": "offset", "epochs": [{"epoch": e, "from": {"shop": {"0": e}}} for e in (1, 2)]}},
    {"trigger": {"interval": None, "availableNow": True, "schedule": "@daily"}},
    {"spark": {"backend": "apache", "executors": {"min": 2, "max": 2}, "conf": {"spark.a": "b"}}},
]

FOLLOWED: list[Spec] = [
    {"suspend": True},
    {"source": {"kafka": {"topics": ["shop", "more"]}}},
    {"source": {"kafka": {"bootstrapServers": "other:9092"}}},
    {"defaults": {"delete": {"type": "soft", "column": "gone"}}},
    {"onBadRecord": "fail", "trigger": {"interval": "1m"}, **tables({})},
    {"checkpoint": "/another", "spark": {"resetToken": "1"}},
    {"target": {"path": "/elsewhere/{table}"}, "spark": {"resetToken": "1"}},
]
"""Edits of a pipeline that has mirrored something."""

NOT_FOLLOWED: list[tuple[Spec, str]] = [
    ({"checkpoint": "/another"}, "spec.checkpoint"),
    ({"target": {"path": "/elsewhere/{table}"}}, "spec.target"),
    ({"target": {"path": None, "table": "lake.{table}"}}, "spec.target"),
    ({"source": FILES}, "spec.source"),
    ({"defaults": {"mode": "append"}}, "spec.defaults.mode"),
    ({"ordering": {"by": "offset"}}, "spec.ordering.by"),
    ({"checkpoint": "/another", "restartToken": "1"}, "spec.checkpoint"),
]


@pytest.fixture(scope="module")
def there(cluster: Kube, installed: object) -> Mirror:
    """A place for dry runs."""
    return Mirror(cluster, "rules")


def dry_run(mirror: Mirror, verb: str, changes: Spec) -> str:
    """What the API server says: nothing if it would take the manifest."""
    document = mirror.manifest(**changes)
    try:
        options = ("--dry-run=server", "--validate=strict", "-f", "-")
        mirror.kube.kubectl(verb, *options, text=json.dumps(document))
    except KubectlFailed as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_a_rule_refuses(there: Mirror, changes: Spec, message: str) -> None:
    assert message in dry_run(there, "create", changes)


@pytest.mark.parametrize("changes", ACCEPTED)
def test_what_no_rule_refuses(there: Mirror, changes: Spec) -> None:
    assert dry_run(there, "create", changes) == ""


@pytest.mark.parametrize(
    "example", ["examples/kubernetes", "examples/kafka", "examples/kafka-login", "examples/kafka-oauth"]
)
def test_an_example_is_accepted_as_it_is(kube: Kube, example: str) -> None:
    manifest = ROOT / example / "pipeline.yaml"
    kube.kubectl("apply", "--dry-run=server", "-f", str(manifest))


def test_a_large_manifest_is_judged_within_the_cost_limits(there: Mirror) -> None:
    many = [{"source": f"schema_{n % 7}.table_{n:03}", "primaryKey": ["id"]} for n in range(500)]
    assert dry_run(there, "create", {"tables": many}) == ""
    assert "one source is the end" in dry_run(
        there, "create", {"tables": [*many[:499], {"source": "table_007"}]}
    )


# -- changes that the checkpoint cannot follow -------------------------------------------------------


@pytest.fixture
def begun(kube: Kube) -> Mirror:
    """A pipeline that has mirrored something. No operator changes its status: it is suspended."""
    return with_progress(Mirror(kube, "begun").create(suspend=True))


def with_progress(mirror: Mirror) -> Mirror:
    """The pipeline, once its status says that it has mirrored something."""
    mirror.wait("Ready", reason="Suspended")
    mirror.kube.merge("cdc", mirror.name, {"status": {"checkpoint": {"batchId": 3}}}, "--subresource=status")
    return mirror


def test_a_change_that_the_checkpoint_cannot_follow_is_refused_before_it_is_made(begun: Mirror) -> None:
    for changes, path in NOT_FOLLOWED:
        for verb in ("apply", "replace"):
            said = dry_run(begun, verb, {"suspend": True, **changes})
            assert path in said, (verb, changes)
            assert AGAIN in said, (verb, changes)
            assert "spec.spark.resetToken" in said
    for changes in FOLLOWED:
        assert dry_run(begun, "replace", {"suspend": True, **changes}) == "", changes
    with pytest.raises(KubectlFailed, match=AGAIN):
        begun.edit(checkpoint="/another")
    begun.edit(checkpoint="/another", spark={"resetToken": "1"})
    with pytest.raises(KubectlFailed, match=AGAIN):
        begun.edit(checkpoint="/a-third", spark={"resetToken": "1"})


def test_options_of_a_database_may_change(kube: Kube) -> None:
    def at(options: str, name: str = "shop") -> Spec:
        jdbc = {"url": f"jdbc:postgresql://db:5432/{name}{options}"}
        return {"suspend": True, "target": {"path": None, "table": "lake.{table}", "jdbc": jdbc}}

    mirror = with_progress(Mirror(kube, "options").create(**at("?sslmode=prefer")))
    for options in ("", "?", "?sslmode=require&tcpKeepAlive=true"):
        assert dry_run(mirror, "replace", at(options)) == "", options
        for name in ("shop2", "sho", "SHOP"):
            assert "spec.target.jdbc.url" in dry_run(mirror, "replace", at(options, name)), (options, name)


def test_before_anything_was_mirrored_everything_may_change(kube: Kube) -> None:
    mirror = Mirror(kube, "fresh").create(suspend=True)
    mirror.wait("Ready", reason="Suspended")
    for changes, _ in NOT_FOLLOWED:
        assert dry_run(mirror, "replace", {"suspend": True, **changes}) == "", changes


def test_from_a_spec_that_was_refused_one_may_go_back(begun: Mirror) -> None:
    """The keys of tables are no rule's business: the operator refuses that; then all edits pass."""
    begun.edit(**tables({"primaryKey": ["other"]}))
    begun.wait("Stalled", reason="ResetNeeded")
    begun.edit(checkpoint="/another")
    begun.edit(checkpoint=begun.manifest()["spec"]["checkpoint"], tables=[])
    begun.seen(begun.resource()["metadata"]["generation"])
    assert not begun.condition("Stalled")
