"""YAML, Python and the model say the same, and nothing is added on the way."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import lakemirror
from lakemirror.api import CdcPipeline, ManifestError, Pipeline, load_documents
from tests.api.manifests import FULL, SMALL
from tests.controller.builders import spec

EXAMPLES = [
    text
    for path in sorted((Path(__file__).parents[2] / "examples").glob("*/*.yaml"))
    if "kind: CdcPipeline" in (text := path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("text", [FULL, yaml.safe_dump(SMALL), *EXAMPLES])
def test_yaml_to_model_to_yaml_keeps_what_was_set_and_adds_nothing(text: str) -> None:
    pipeline = CdcPipeline.from_yaml(text)
    [document] = load_documents(text)
    assert pipeline.to_dict() == document
    assert load_documents(pipeline.to_yaml()) == [document]
    assert CdcPipeline.from_yaml(pipeline.to_yaml()) == pipeline


_OF_COLUMNS = (
    "include",
    "exclude",
    "rename",
    "types",
    "encodings",
    "metadata",
    "row_hash",
    "key_hash",
    "identity",
    "expressions",
)
_OF_TABLES = (
    *("topics", "primary_key", "mode", "target", "delete", "filter", "expectations"),
    *("tracked_columns", "initial_valid_from"),
)


def test_the_full_manifest_sets_every_field_of_the_spec() -> None:
    def unset(model: Any, path: str) -> list[str]:
        missing = [f"{path}.{name}" for name in type(model).model_fields if getattr(model, name) is None]
        for name in type(model).model_fields:
            value = getattr(model, name)
            for child in value if isinstance(value, list) else [value]:
                if hasattr(type(child), "model_fields"):
                    missing += unset(child, f"{path}.{name}")
        return missing

    alternatives = {".source.files", ".source.change_feed", ".source.kafka.topics", ".target.table"}
    alternatives |= {".verify.snapshot", ".target.jdbc", ".envelope.unavailable_value_placeholder"}
    alternatives |= {
        ".trigger.interval",
        ".defaults.delete.column",
        ".tables.target.path",
        ".tables.delete.column",
    }
    alternatives |= {f".tables.{name}" for name in _OF_TABLES}
    alternatives |= {f".tables.columns.{name}" for name in _OF_COLUMNS}
    assert set(unset(CdcPipeline.from_yaml(FULL).spec, "")) <= alternatives


# Texts that YAML would take for something else, and any others.
TEXTS = st.sampled_from(
    ["null", "~", "yes", "1e3", "0x1F", "1:30", "2026-01-01", "- a", "a: b", "#x", "=", "0o7"]
)
TEXTS |= st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=20)
FULL_SPEC = load_documents(FULL)[0]["spec"]
OPTIONAL = sorted(set(FULL_SPEC) - {"source", "target", "checkpoint"})


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    document = copy.deepcopy(SMALL)
    for name in draw(st.sets(st.sampled_from(OPTIONAL))):
        document["spec"][name] = copy.deepcopy(FULL_SPEC[name])
    document["spec"]["restartToken"] = draw(TEXTS)
    document["spec"].setdefault("spark", {})["conf"] = draw(
        st.dictionaries(TEXTS.map(_key), TEXTS, max_size=3)
    )
    columns = draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))
    literal = draw(TEXTS).replace("\\", "\\\\").replace("'", "''")
    document["spec"]["tables"] = [{"source": "t", "primaryKey": columns, "filter": f"a = '{literal}'"}]
    return document


def _key(text: str) -> str:
    return "spark." + "".join(text.split())


@settings(deadline=None)
@given(documents())
def test_any_document_survives_the_round_trip(document: dict[str, Any]) -> None:
    pipeline = CdcPipeline.from_dict(document)
    assert pipeline.to_dict() == document
    assert CdcPipeline.from_yaml(pipeline.to_yaml()) == pipeline
    assert Pipeline(document["metadata"]["name"], **document["spec"]) == pipeline


def test_python_in_snake_case_equals_yaml() -> None:
    pipeline = lakemirror.Pipeline(
        name="shop",
        namespace="mirrors",
        source={
            "kafka": {"bootstrap_servers": "kafka:9092", "topics": ["a"], "starting_offsets": {"a": {0: 5}}}
        },
        target={"path": "lake/{table}"},
        checkpoint="state",
        on_bad_record="fail",
        tables=[{"source": "t", "primary_key": ["id"]}],
        ordering={"epochs": [{"epoch": 1, "from": {"a": {0: 7}}}]},
    )
    assert pipeline == CdcPipeline.from_yaml(
        """
        apiVersion: lakemirror.io/v1alpha1
        kind: CdcPipeline
        metadata: {name: shop, namespace: mirrors}
        spec:
          source: {kafka: {bootstrapServers: kafka:9092, topics: [a], startingOffsets: {a: {0: 5}}}}
          target: {path: "lake/{table}"}
          checkpoint: state
          onBadRecord: fail
          tables: [{source: t, primaryKey: [id]}]
          ordering: {epochs: [{epoch: 1, from: {a: {0: 7}}}]}
        """
    )
    assert CdcPipeline.from_yaml(pipeline.to_yaml()) == pipeline
    assert pipeline.spec.source.kafka is not None
    assert pipeline.spec.source.kafka.starting_offsets == {"a": {0: 5}}
    assert pipeline.spec.ordering.epochs[0].from_ == {"a": {0: 7}}


@pytest.mark.parametrize("topic", ["public.Kundenübersicht", 'public."v1.orders"', "my%20table", "a" * 300])
def test_an_epoch_may_begin_in_a_source_that_has_tables_instead_of_topics(topic: str) -> None:
    epochs = [{"epoch": 1, "from": {topic: {"0": 0}}}]
    of = spec(source={"kafka": None, "changeFeed": {"path": "/lake/t"}}, ordering={"epochs": epochs})
    assert of.ordering.epochs[0].from_ == {topic: {0: 0}}


def test_a_mistake_in_python_is_told_like_one_in_yaml() -> None:
    with pytest.raises(ManifestError) as caught:
        Pipeline("shop", source={"files": {"path": "in"}}, target={"path": "{table}"}, checkpont="state")
    assert caught.value.errors == [("spec.checkpont", "unknown field; did you mean checkpoint?")]


def test_a_pipeline_can_be_loaded_from_a_path_or_an_open_file(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(FULL, "utf-8")
    expected = CdcPipeline.from_yaml(FULL)
    assert (
        CdcPipeline.load(path)
        == CdcPipeline.load(str(path))
        == CdcPipeline.load(io.StringIO(FULL))
        == expected
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(t, True) for t in ("y", "Y", "yes", "on", "true")],
        *[(t, False) for t in ("n", "No", "Off", "FALSE")],
        *[("012", 10), ("0o7", 7), ("08", 8), ("0b11", 3), ("0x1F", 31), ("-0x1F", -31), ("1_000", 1000)],
        *[
            ("+5", 5),
            ("-5", -5),
            ("-012", -10),
            ("0", 0),
            ("1e3", 1000),
            ("1E+3", 1000),
            ("5.", 5),
            (".5", 0.5),
        ],
        *[(t, t) for t in ("1:30", "2026-01-01", "=", "0b2", "1e", "_1", "ja", "1.2.3", "7d")],
        *[(t, None) for t in ("~", "null", "")],
    ],
)
def test_plain_words_are_read_as_kubernetes_reads_them(text: str, value: Any) -> None:
    [document] = load_documents(f"a: {text}")
    assert document == {"a": value}
    assert type(document["a"]) is type(value)


def test_keys_are_text() -> None:
    assert load_documents("{0: x, true: u, 1.5: z, n: w}") == [
        {"0": "x", "true": "u", "1.5": "z", "false": "w"}
    ]


def test_merged_keys_can_be_overridden() -> None:
    assert load_documents("a: &x {b: 1, c: 2}\nd: {<<: *x, c: 3}") == [
        {"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}}
    ]


def test_defaults() -> None:
    spec = CdcPipeline.from_dict(SMALL).spec
    assert spec.source.files is not None
    assert (spec.source.files.format, spec.source.files.max_files_per_batch) == ("records", 1000)
    assert (spec.envelope.format, spec.envelope.encoding) == ("debezium", "json")
    assert (spec.defaults.mode, spec.defaults.delete.type, spec.unlisted) == ("scd1", "hard", "mirror")
    assert (spec.ordering.by, spec.ordering.tolerance_ms) == ("auto", 5000)
    assert (spec.schema_evolution, spec.on_bad_record, spec.on_unrepresentable) == (
        "evolve",
        "quarantine",
        "quarantine",
    )
    assert (spec.tombstones.retention, spec.trigger.interval, spec.progress_deadline) == ("7d", "10s", "10m")
    assert (spec.restart.backoff_limit, spec.deletion_policy, spec.maintenance) == (10, "Retain", None)
    assert spec.verify is None
