"""Manifests of all kinds.

What is valid can be carried out, the rest is refused with the path of a field. No field is without effect.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace as changed
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from lakemirror import driver
from lakemirror.api import CdcPipeline, ManifestError, PipelineSpec, source, spec, tables, topics
from lakemirror.api.base import Model
from lakemirror.api.report import Report
from lakemirror.api.supported import not_supported
from lakemirror.controller import build
from lakemirror.controller.build import Application
from tests.controller import builders

pytestmark = pytest.mark.guarantee(
    "Anything unsupported is refused before it runs; every field has an effect"
)

Spec = dict[str, Any]

# -- any manifest is valid or refused with a path -----------------------------------------------------------

NAMES = st.sampled_from(["id", "v", "n", "gone", "Gone", "V", "__op", "", "a b", "x`;"])
TEMPLATES = st.sampled_from(
    ["lake/{table}", "lake/{schema}/{table}", "lake/t", "lake/T/", "lake/{x}", " ", "a{b"]
)
DELETES = st.fixed_dictionaries(
    {"type": st.sampled_from(["hard", "soft", "none"])}, optional={"column": NAMES}
)
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "include": st.lists(NAMES, max_size=3),
        "exclude": st.lists(NAMES, max_size=2),
        "rename": st.dictionaries(NAMES, NAMES, max_size=2),
        "types": st.dictionaries(
            NAMES, st.sampled_from(["int", "bigint", "decimal(50,2)", "struct<>", "binary"]), max_size=2
        ),
        "encodings": st.dictionaries(NAMES, st.sampled_from(["text", "hex", "ascii"]), max_size=2),
    },
)
TABLES = st.fixed_dictionaries(
    {"source": st.sampled_from(["t", "s.t", "d.s.t", "s.u", "d.s.T", ".", "s..t"])},
    optional={
        "mode": st.sampled_from(["append", "scd1", "scd2", "other"]),
        "primaryKey": st.lists(NAMES, max_size=2),
        "target": st.fixed_dictionaries(
            {}, optional={"path": TEMPLATES, "table": st.sampled_from(["t", "a.b.c.d"])}
        ),
        "columns": COLUMNS,
        "delete": DELETES,
        "onConflict": st.sampled_from(["replace", "fail"]),
        "filter": st.sampled_from(["", "id > 1"]),
        "suspend": st.booleans(),
        "resyncToken": st.sampled_from(["", "1"]),
    },
)
EPOCHS = st.fixed_dictionaries(
    {
        "epoch": st.sampled_from([0, 1, 65_535, 65_536]),
        "from": st.dictionaries(st.sampled_from(["a", "b"]), st.just({"0": 1}), max_size=1),
    }
)
ORDERINGS = st.fixed_dictionaries(
    {},
    optional={
        "by": st.sampled_from(["auto", "lsn", "binlog", "timestamp", "offset", "columns", "scn"]),
        "columns": st.lists(NAMES, max_size=2),
        "toleranceMs": st.sampled_from([-1, 0, 5000, 10]),
        "epochs": st.lists(EPOCHS, max_size=2),
    },
)
KAFKA = st.fixed_dictionaries(
    {"bootstrapServers": st.sampled_from(["k:9092", "k"])},
    optional={
        "topics": st.just(["a"]),
        "topicPattern": st.sampled_from(["a.*", "*"]),
        "startingOffsets": st.sampled_from(["earliest", {"a": {"0": 1}}, {"b": {"0": 1}}, 5]),
    },
)
ENVELOPES = st.fixed_dictionaries(
    {"format": st.sampled_from(["debezium", "debezium-flat", "maxwell", "custom", "canal"])},
    optional={
        "fields": st.dictionaries(
            st.sampled_from(["op", "before", "after", "key", "timestamp", "table", "row"]),
            st.sampled_from(["op", "a.b", "a..b", ""]),
            max_size=3,
        ),
        "opMap": st.dictionaries(st.sampled_from(["I", "x" * 65]), st.sampled_from(["c", "ignore", "x"])),
        "nullValue": st.sampled_from(["delete", "ignore", "keep"]),
        "unavailableValuePlaceholder": st.sampled_from(["", "?", "x" * 1025, 5]),
    },
)
SPECS = st.fixed_dictionaries(
    {
        "source": st.one_of(
            st.just({"files": {"path": "in"}}),
            st.builds(lambda given: {"kafka": given}, KAFKA),
            st.just({"files": {"path": "in", "format": "csv"}}),
        ),
        "target": st.builds(lambda path: {"path": path}, TEMPLATES),
        "checkpoint": st.sampled_from(["state", "state", "lake/t", ""]),
    },
    optional={
        "defaults": st.fixed_dictionaries(
            {}, optional={"mode": st.sampled_from(["append", "scd1", "scd2"]), "delete": DELETES}
        ),
        "unlisted": st.sampled_from(["mirror", "ignore", "drop"]),
        "tables": st.lists(TABLES, max_size=3),
        "envelope": ENVELOPES,
        "ordering": ORDERINGS,
        "schemaEvolution": st.sampled_from(["evolve", "skip", "fail", "ask"]),
        "onBadRecord": st.sampled_from(["quarantine", "fail"]),
        "onUnrepresentable": st.sampled_from(["quarantine", "null", "text", None]),
        "tombstones": st.fixed_dictionaries(
            {}, optional={"retention": st.sampled_from(["7d", "0s", "week"])}
        ),
        "trigger": st.sampled_from([{"interval": "1s"}, {"availableNow": True, "schedule": "@daily"}, {}]),
        "maintenance": st.sampled_from(
            [{}, {"optimize": {}}, {"vacuum": {"retain": "1h"}}, {"vacuum": {"retain": "1s"}}]
        ),
        "verify": st.sampled_from(
            [
                {},
                {"jdbc": {"url": "jdbc:mariadb://db/", "secret": "s"}, "schedule": "@daily"},
                {"snapshot": {"path": "/s/{table}"}, "wait": "1m"},
            ]
        ),
        "restart": st.sampled_from([{}, {"resetAfter": "1h"}]),
        "spark": st.fixed_dictionaries(
            {}, optional={"backend": st.sampled_from(["native", "kubeflow", "apache"])}
        ),
    },
)


def manifest(spec: Spec) -> dict[str, Any]:
    head = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": "shop"}}
    return {**head, "spec": spec}


@given(SPECS)
@settings(max_examples=600, deadline=None)
def test_any_manifest_is_valid_or_refused_with_the_path_of_a_field(given: Spec) -> None:
    wanted: PipelineSpec | None = None
    try:
        wanted = CdcPipeline.from_dict(manifest(given)).spec
        refused = not_supported(wanted)
    except ManifestError as error:
        refused = error.errors
    for path, message in refused:
        assert path.startswith("spec"), path
        assert message
    if wanted is not None and not refused:  # what is accepted can be carried out
        app = Application("mirrors", "shop", wanted, "revision", "image", held=False)
        assert build.workload(app)["kind"]


class Recorder:
    """Which fields of the manifest the operator reads, seen at each access."""

    def __init__(self) -> None:
        self.read: set[tuple[type[BaseModel], str]] = set()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        plain = Model.__getattribute__

        def watched(model: Model, name: str) -> Any:
            kind = type(model)
            if name in kind.model_fields and _is_operator(sys._getframe(1)):
                self.read.add((kind, name))
            return plain(model, name)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Model, "__getattribute__", watched)
            yield


def _is_operator(frame: FrameType) -> bool:
    return "/lakemirror/controller/" in frame.f_code.co_filename


# -- no field is without effect -----------------------------------------------------------------------------


def _model(path: str) -> type[BaseModel]:
    """The model of an object of the spec, by its dotted path in Python's names."""
    here: type[BaseModel] = PipelineSpec
    for part in path.split("."):
        here = _models_in(here.model_fields[part].annotation)[0]
    return here


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in _models_in(each)]


def fields(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, tuple[type[BaseModel], str]]]:
    """Every field of the spec: its dotted path and where it is defined."""
    for name, field in model.model_fields.items():
        path = f"{at}{field.alias or name}"
        yield path, (model, name)
        for inner in _models_in(field.annotation):
            yield from fields(inner, f"{path}.")


ANSWERS = ("avoided", "keeps", "may_change", "order", "own", "placeholder", "table_settings")
"""Functions of the contract that answer the driver's questions."""


def _read_by_driver() -> set[tuple[type[BaseModel], str]]:
    """What the driver may read: fields by whose name its code asks for an attribute."""
    code: list[ast.AST] = [
        ast.parse(file.read_text("utf-8")) for file in Path(driver.__path__[0]).rglob("*.py")
    ]
    for module in (source, spec, tables, topics):
        tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
        code += [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name in ANSWERS]
    names = {node.attr for part in code for node in ast.walk(part) if isinstance(node, ast.Attribute)}
    return {field for _, field in fields(PipelineSpec) if field[1] in names}


def _plan_all(recorder: Recorder) -> None:
    """The operator's plans for each kind of workload, and for a driver that has reported."""
    drift = {"source": "a", "drift": [{"column": "c", "change": "added", "seen": "2026-01-01T00:00:00Z"}]}
    said = Report.read({**builders.report().said.document(), "tables": [drift]})
    assert said is not None
    told = changed(builders.report(), said=said)
    specs = [
        builders.spec(
            driftAcknowledgedUntil="2026-03-01T00:00:00Z", spark={"backend": backend}, trigger=trigger
        )
        for backend in ("native", "kubeflow", "apache")
        for trigger in ({"interval": "10s"}, {"availableNow": True})
    ]
    specs.append(builders.spec(trigger={"availableNow": True, "schedule": "@daily"}))
    specs.append(
        builders.spec(source={"kafka": {"security": {"protocol": "SSL", "secret": "tls"}}}, suspend=True)
    )
    with recorder():
        for each in specs:
            builders.planned(each, builders.observed())
        builders.planned(specs[0], builders.running(specs[0], report=told))
        late = builders.report(caughtUp=False, lagRecords=5)
        builders.planned(specs[0], builders.running(specs[0], report=late))


def test_no_field_is_without_effect() -> None:
    """Each field is read by the driver or the operator; one that is not is named here."""
    recorder = Recorder()
    _plan_all(recorder)
    read = recorder.read | _read_by_driver()
    assert [path for path, field in fields(PipelineSpec) if field not in read] == []
