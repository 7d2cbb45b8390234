"""What is not supported, and what would have no effect, is refused by name and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api.object_stores import FILE_MANAGER_SETTING, one_spelling, session_settings
from lakemirror.api.source import Envelope
from lakemirror.api.spark_settings import OURS, in_columns
from lakemirror.api.supported import not_supported, wrong_sql
from tests.api.not_supported import JDBC, NOT_SUPPORTED
from tests.controller.builders import spec

pytestmark = pytest.mark.guarantee(
    "Anything unsupported is refused before it runs; every field has an effect"
)


@pytest.mark.guarantee(
    "The driver uses no setting, session or store with which two drivers could commit the same version"
)
@pytest.mark.guarantee("No setting of Spark, from the manifest or the image, changes what a mirror contains")
@pytest.mark.parametrize(("change", "path", "word"), NOT_SUPPORTED)
def test_it_is_refused_with_its_path(change: dict[str, Any], path: str, word: str) -> None:
    [(found, message)] = not_supported(spec(**change))
    assert found == path
    assert word in message


def test_no_remedy_is_one_that_is_refused_as_well() -> None:
    tracked = {"tables": [{"source": "public.a", "trackedColumns": ["a"]}]}
    [(_, message)] = not_supported(spec(**JDBC, **tracked))
    assert message.endswith("keeps no versions: leave it out")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"target": {"path": "/lake/[a]/{table}"}},
        {"defaults": {"mode": "append"}},
        {"defaults": {"mode": "append", "delete": {"type": "hard"}}},
        {
            "defaults": {"mode": "append", "delete": {"type": "soft", "column": "gone"}},
            "tables": [{"source": "a", "mode": "scd1"}],
        },
        {"defaults": {"mode": "append"}, "tables": [{"source": "a", "mode": "scd1", "primaryKey": ["id"]}]},
        {"defaults": {"mode": "scd2"}, "tables": [{"source": "a", "primaryKey": ["id"]}]},
        {"defaults": {"mode": "scd1"}, "tables": [{"source": "a", "mode": "scd2"}]},
        {"ordering": {"by": "timestamp", "toleranceMs": 5000}},
        {"envelope": {"format": "maxwell"}},
        {"envelope": {"format": "maxwell"}, "ordering": {"by": "binlog"}},
        {"envelope": {"format": "debezium-flat", "nullValue": "ignore"}},
        {"envelope": {"format": "debezium-flat", "unavailableValuePlaceholder": "__left_out"}},
        {
            "envelope": {"format": "custom", "fields": {"timestamp": "at"}, "nullValue": "ignore"},
            "ordering": {"by": "timestamp"},
        },
        {"maintenance": {"optimize": {}}},
        {"restart": {"resetAfter": "30m"}, "spark": {"backend": "kubeflow"}},
        {"spark": {"backend": "kubeflow", "conf": {"spark.jars": "local:///opt/a.jar, local:///opt/b.jar"}}},
        {"spark": {"conf": session_settings()}},
        {"spark": {"conf": dict(OURS)}},
        {"spark": {"conf": {"spark.sql.ansi.enabled": "TRUE", "spark.sql.session.timeZone": " utc"}}},
        {"spark": {"conf": {"spark.sql.shuffle.partitions": "8", "spark.sql.adaptive.enabled": "false"}}},
        {"spark": {"conf": {"spark.sql.autoBroadcastJoinThreshold": "-1"}}},
        {"spark": {"conf": {"spark.sql.catalogImplementation": "hive", "spark.sql.warehouse.dir": "/w"}}},
        {"spark": {"conf": {"spark.sql.catalog.unity": "io.unitycatalog.spark.UCSingleCatalog"}}},
        {"spark": {"conf": {"spark.databricks.delta.optimize.maxFileSize": "1", "spark.ui.enabled": "x"}}},
        {"spark": {"conf": {"spark.hadoop.fs.s3a.create.conditional.enabled": "true"}}},
        {"checkpoint": "hdfs://n/c", "spark": {"conf": {FILE_MANAGER_SETTING: "x"}}},
        {"restart": {"resetAfter": "1h"}, "spark": {"backend": "apache"}},
        {"checkpoint": "s3a://lake/x"},
        {"checkpoint": "viewfs://lake/x", "source": {"kafka": None, "files": {"path": "ftp://host/x"}}},
        {"unlisted": "ignore", "tables": [{"source": "a"}]},
        {"spark": {"executors": {"max": 0}, "conf": {"spark.lakemirror.writer": "merge"}}},
        {"spark": {"conf": {"spark.lakemirror.engine": "columns"}}},
        {"spark": {"conf": {"spark.lakemirror.engine": "spark"}}},
        {
            "defaults": {"mode": "append"},
            "tombstones": {"retention": "1d"},
            "tables": [{"source": "a", "mode": "scd1"}],
        },
        {"checkpoint": "s3a://lake/a", "target": {"path": "s3a://lake/ab/{table}"}},
        {"checkpoint": "/lake/_checkpoints/x", "target": {"path": "/lake/{schema}/{table}"}},
    ],
)
def test_what_has_an_effect_is_not_refused(change: dict[str, Any]) -> None:
    assert not_supported(spec(**change)) == []


def test_wrong_sql_is_named_by_its_path() -> None:
    tables = [
        {
            "source": "public.a",
            "filter": "d < now()",
            "expectations": [{"name": "few", "condition": "n <"}],
            "columns": {"expressions": {"x": "count(*)", "y": "n + 1"}},
        }
    ]
    found = wrong_sql(spec(tables=tables))
    assert [path for path, _ in found] == [
        "spec.tables[public.a].filter",
        "spec.tables[public.a].expectations[few].condition",
        "spec.tables[public.a].columns.expressions.x",
    ]
    assert found[0][1].startswith("'d < now()' has now, ")


def test_conditions_on_shards_do_not_see_the_shard() -> None:
    table = {
        "source": "/shop_.*/",
        "mergeShards": True,
        "target": {"path": "s3a://lake/all"},
        "filter": "n > 1 AND `__source` <> '__source'",
        "columns": {"expressions": {"shard": "upper(__source)"}},
    }
    [(path, message)] = wrong_sql(spec(tables=[table]))
    assert path == "spec.tables[/shop_.*/].filter"
    assert "has __source: a condition sees the columns of the source" in message
    assert wrong_sql(spec(tables=[table | {"filter": "n <> '__source'"}])) == []
    alone = {"source": "public.a", "filter": "__source = 'a'"}
    assert wrong_sql(spec(tables=[alone])) == []


@pytest.mark.parametrize(
    ("path", "spelled"),
    [
        ("s3://lake/a/", "s3a://lake/a"),
        ("S3N://lake//a", "s3a://lake/a"),
        ("abfs://c@account/a", "abfss://c@account/a"),
        ("hdfs://n:8020/a/./b", "hdfs://n:8020/a/b"),
        ("file:///a/", "/a"),
        ("FILE:/a/b/../c", "/a/c"),
        ("//a", "/a"),
        ("/", "/"),
        ("./lake/a", "lake/a"),
    ],
)
def test_a_place_has_one_spelling(path: str, spelled: str) -> None:
    assert one_spelling(path) == spelled


@pytest.mark.parametrize(
    ("envelope", "placeholder"),
    [
        ({}, "__debezium_unavailable_value"),
        ({"format": "debezium-flat", "unavailableValuePlaceholder": "__left_out"}, "__left_out"),
        ({"format": "maxwell"}, None),
        ({"format": "custom", "fields": {"key": "id"}}, None),
    ],
)
def test_only_records_of_debezium_have_placeholders(envelope: Any, placeholder: str | None) -> None:
    assert Envelope.model_validate(envelope).placeholder == placeholder


@pytest.mark.parametrize(
    ("engine", "writer", "expected"),
    [
        (None, None, True),
        ("", "", True),
        ("columns", None, True),
        ("spark", None, False),
        (None, "merge", False),
        ("columns", "merge", True),
    ],
)
def test_changes_are_applied_in_columns_unless_a_setting_says_otherwise(
    engine: str | None, writer: str | None, expected: bool
) -> None:
    given = {"spark.lakemirror.engine": engine, "spark.lakemirror.writer": writer}
    assert in_columns({name: value for name, value in given.items() if value is not None}) == expected
