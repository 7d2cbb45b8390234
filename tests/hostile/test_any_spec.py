"""Whatever a spec holds that the API server accepts: it is valid, or refused by a ManifestError.

The specs are generated from the CRD's schema. None of them may stop the operator, which reads those of all
tenants.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemirror.api import CdcPipeline, ManifestError
from lakemirror.api.crd import definition
from lakemirror.api.documents import load_documents
from lakemirror.controller.cache import Key
from lakemirror.controller.claims import claims
from lakemirror.controller.plan import plan
from lakemirror.controller.reconciler import spec_of
from lakemirror.controller.values import Observed, Resource
from tests.controller.builders import NOW, SETTINGS, document, merged
from tests.controller.test_interleavings import Scene

pytestmark = pytest.mark.guarantee("One poisoned pipeline does not stop another, whatever its spec holds")

Schema = dict[str, Any]
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "s3a://[BUCKET]/x",
            "//[",
            "s3a://<bucket>/x",
            "s3a://lake/_c",
            "hdfs://[::1]:9000/x",
            "abfss://c@[x]/y",
            "/{table}",
            "lake.{schema}.{table}",
            "//[",
            "jdbc:postgresql://[h/db",
            "jdbc:mysql://db:x/y",
            "10s",
            "2Gi",
            "* * * * *",
            "/(/",
            "a.b",
            "true",
            "\ud7ff\U0001f600",
        ]
    ),
)
FIELDS = ("metadata", "spec", "containers", "volumes", "name", "env", "resources", "limits", "key", "secret")
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Perhaps an object with some of these fields, perhaps anything else."""
    return st.one_of(st.fixed_dictionaries({}, optional=fields), ANYTHING)


NAMES = st.one_of(st.sampled_from(["driver", "executor", "x", ""]), ANYTHING)
CONTAINERS = st.lists(
    _some(
        name=NAMES,
        env=st.lists(_some(name=NAMES, value=ANYTHING, valueFrom=_some(secretKeyRef=ANYTHING)), max_size=2),
        envFrom=st.lists(_some(configMapRef=_some(name=NAMES)), max_size=2),
        ports=st.lists(_some(containerPort=ANYTHING), max_size=2),
        volumeMounts=st.lists(_some(name=NAMES, mountPath=ANYTHING), max_size=2),
        resources=_some(limits=_some(memory=ANYTHING), requests=ANYTHING),
    ),
    max_size=2,
)
TEMPLATES = _some(
    metadata=_some(labels=ANYTHING, annotations=ANYTHING),
    spec=_some(
        containers=CONTAINERS,
        initContainers=CONTAINERS,
        volumes=st.lists(_some(name=NAMES, secret=ANYTHING, projected=_some(sources=ANYTHING)), max_size=2),
        terminationGracePeriodSeconds=ANYTHING,
        nodeSelector=ANYTHING,
        securityContext=ANYTHING,
    ),
).filter(lambda template: isinstance(template, dict))
"""Pod templates, of which no schema says anything."""


def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Values of a structural schema, as far as types, enumerations and bounds go."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return ANYTHING.filter(lambda value: isinstance(value, dict) or schema.get("type") != "object")
    if schema.get("x-kubernetes-int-or-string"):
        return st.one_of(st.integers(-1, 9), TEXTS)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return _objects(schema)
    if kind == "object":
        inner = schema.get("additionalProperties", {"type": "string"})
        return st.dictionaries(TEXTS, values(inner), max_size=2)
    if kind == "array":
        return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=2)
    if kind == "integer":
        return st.integers(schema.get("minimum", -9), schema.get("maximum", 99))
    if kind == "number":
        return st.floats(0, 9)
    return st.booleans() if kind == "boolean" else TEXTS


def _objects(schema: Schema) -> st.SearchStrategy[Any]:
    fields = {name: values(inner) for name, inner in schema["properties"].items()}
    needed = set(schema.get("required", ()))
    return st.fixed_dictionaries(
        {name: fields[name] for name in fields if name in needed},
        optional={name: fields[name] for name in fields if name not in needed},
    )


def parts() -> Iterator[st.SearchStrategy[dict[str, Any]]]:
    """Changes of a valid spec in one field, each as its schema says."""
    version = definition()["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    for name, schema in spec.items():
        if name != "spark":
            yield values(schema).map(lambda value, name=name: {name: value})
    yield TEMPLATES.map(lambda template: {"spark": {"podTemplate": template}})
    yield TEMPLATES.map(lambda template: {"spark": {"driver": {"podTemplate": template}}})
    yield TEMPLATES.map(lambda template: {"spark": {"executors": {"podTemplate": template}}})
    for name, schema in spec["spark"]["properties"].items():
        yield values(schema).map(lambda value, name=name: {"spark": {name: value}})


@given(st.lists(st.one_of(*parts()), min_size=1, max_size=3))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_spec_of_the_schema_is_planned_or_refused(changes: list[dict[str, Any]]) -> None:
    made = document()
    for change in changes:
        made["spec"] = merged(made["spec"], change)
    carried_out(made)


@given(TEMPLATES, st.sampled_from(["native", "kubeflow", "apache"]))
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_pod_template_is_planned_or_refused(template: dict[str, Any], backend: str) -> None:
    carried_out(document(spark={"podTemplate": template, "backend": backend}))


@pytest.mark.parametrize(
    "containers",
    [
        [{"name": ["x"]}, {"name": {}}],
        [{"name": "driver", "env": [{"name": {"a": 1}}], "ports": [{"containerPort": []}]}],
        [{"name": "driver", "volumeMounts": [{"mountPath": ["a"]}, {"mountPath": {}}]}],
        [{"name": None}],
        [{"name": "driver", "resources": {"limits": {"memory": {}}}}],
    ],
)
def test_what_is_no_name_stops_nothing(containers: Any) -> None:
    carried_out(document(spark={"podTemplate": {"spec": {"containers": containers}}}))


def carried_out(made: dict[str, Any]) -> str:
    """Read a manifest, take it in and plan for it. Returns why it is refused, if it is."""
    refused = ""
    try:
        claims(CdcPipeline.from_dict(made).spec, "mirrors")
    except ManifestError as error:
        refused = str(error)
    metadata = {**made["metadata"], "uid": "u", "resourceVersion": "1", "generation": 1}
    body = {**made, "metadata": metadata}
    asyncio.run(_taken_in(body))
    plan(spec_of(body), Observed(Resource("mirrors", "shop", "u", 1)), NOW, SETTINGS)
    return refused


async def _taken_in(body: dict[str, Any]) -> None:
    reconciler = Scene().reconciler
    reconciler.take(body)
    assert Key("mirrors", "shop") in reconciler.pipelines


def nested(levels: int) -> Any:
    found: Any = "x"
    for _ in range(levels):
        found = {"a": found}
    return found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"checkpoint": "s3a://[BUCKET]/x"}, "spec.checkpoint: '[BUCKET]' is not the name of a bucket"),
        ({"checkpoint": "//[x"}, "spec.checkpoint: '[x' is not the name of a bucket"),
        ({"checkpoint": "s3a://<bucket>/x"}, "spec.checkpoint: '<bucket>' is not the name of a bucket"),
        ({"target": {"path": "gs://[B]/{table}"}}, "spec.target.path: '[B]' is not the name"),
        ({"spark": {"podTemplate": nested(1100)}}, "spec.spark.podTemplate: is nested more than 100 levels"),
        ({"spark": {"driver": {"podTemplate": nested(5000)}}}, "spec.spark.driver: is nested more than 100"),
    ],
)
def test_what_no_library_can_read_is_refused_by_its_field(changes: dict[str, Any], named: str) -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    try:
        made = document()
        deep = changes.get("spark")
        made["spec"] |= {"spark": deep} if deep else merged(made["spec"], changes)
    finally:
        sys.setrecursionlimit(before)
    assert carried_out(made).startswith(named)


@pytest.mark.parametrize("path", ["hdfs://[::1]:9000/x", "s3a://lake/[a]/x", "/in/[ab]*.json", "s3a://b"])
def test_brackets_elsewhere_are_no_placeholders(path: str) -> None:
    assert carried_out(document(checkpoint=path)) == ""


def test_a_deep_document_is_no_traceback(tmp_path: Path) -> None:
    text = "{a: " * 1100 + "x" + "}" * 1100
    with pytest.raises(ManifestError, match="nested too deep"):
        load_documents(text)
