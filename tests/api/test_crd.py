"""The CRD is what the models say, and what an API server takes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lakemirror.api import CdcPipeline, crd, load_documents
from lakemirror.api.effects import EFFECTS, Effect
from tests.api.manifests import FULL, SMALL
from tests.cluster.test_rules import AGAIN, REFUSED

pytestmark = pytest.mark.guarantee("The CRD matches the models, and describes every field")

FILE = Path(__file__).parents[2] / "crds" / f"{crd.NAME}.yaml"
VERSION = yaml.safe_load(crd.to_yaml())["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
Node = dict[str, Any]


def nodes(schema: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """All schemas of values below and with this one, and where they stand."""
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = [(path, node) for path, node in nodes(SCHEMA) if path.startswith((".spec", ".status"))]


def test_the_file_is_up_to_date() -> None:
    assert FILE.read_text() == crd.to_yaml(), f"stale: lakemirror crd > crds/{FILE.name}"


def test_it_is_small_enough_for_a_plain_kubectl_apply() -> None:
    assert len(FILE.read_bytes()) < 110_000


def test_the_schema_is_structural() -> None:
    known = {
        "type",
        "properties",
        "items",
        "additionalProperties",
        "description",
        "default",
        "required",
        "enum",
    }
    known |= {"format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
    known |= {"minProperties", "maxProperties", "anyOf", "not"}
    for path, node in NODES:
        free = node.get("x-kubernetes-preserve-unknown-fields") is True
        assert {key for key in node if not key.startswith("x-kubernetes-")} <= known, path
        assert node.get("type") in {"object", "array", "string", "integer", "number", "boolean"} or free, path
        assert not ("properties" in node and "additionalProperties" in node), path
        if node.get("type") == "object":
            assert "properties" in node or "additionalProperties" in node or free, path
        for arm in [*node.get("anyOf", []), node.get("not", {})]:
            assert not {"type", "properties", "default", "description", "nullable"} & set(arm), path
        assert set(node.get("required", [])) <= set(node.get("properties", {})), path


def test_everything_is_bounded() -> None:
    for path, node in NODES:
        match node.get("type"):
            case "string":
                assert "maxLength" in node or "enum" in node, path
            case "array":
                assert "maxItems" in node, path
            case "object" if "additionalProperties" in node:
                assert "maxProperties" in node, path
            case "integer" | "number":
                assert "minimum" in node, path
                assert "maximum" in node or node.get("format") == "int64", path


def test_lists_say_how_they_are_merged() -> None:
    by_path = dict(NODES)
    for path, keys in (
        (".spec.tables", ["source"]),
        (".status.conditions", ["type"]),
        (".spec.ordering.epochs", ["epoch"]),
    ):
        assert by_path[path]["x-kubernetes-list-type"] == "map"
        assert by_path[path]["x-kubernetes-list-map-keys"] == keys
        assert set(keys) <= set(by_path[path]["items"]["required"])


def test_rules_name_fields_that_are_there() -> None:
    found = 0
    for path, node in NODES:
        for rule in node.get("x-kubernetes-validations", []):
            assert rule["message"], path
            for name in re.findall(r"self\.(\w+)\b(?!\()", rule["rule"]):
                assert name in node["properties"], (path, rule)
                found += 1
    assert found > 20


def test_defaults_are_those_of_the_models() -> None:
    document = CdcPipeline.from_dict(SMALL)
    whole = document.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    defaults = {
        name: node["default"]
        for name, node in SCHEMA["properties"]["spec"]["properties"].items()
        if "default" in node
    }
    assert defaults == {name: value for name, value in whole.items() if name in defaults}
    assert set(whole) - set(defaults) == {"source", "target", "checkpoint", *crd.FILLED_IN_BY_MODELS}


def test_every_field_has_a_description() -> None:
    fields = [(path, node) for path, node in NODES if not path.endswith(("[]", "{}"))]
    assert [path for path, node in fields if not node.get("description")] == []


def test_a_status_has_no_defaults() -> None:
    """But for the one by which kstatus and kubectl tell a resource that nobody has seen yet."""
    found = {
        path: node["default"] for path, node in NODES if path.startswith(".status") and "default" in node
    }
    assert found == {".status": {"observedGeneration": -1}}


def test_names_and_columns() -> None:
    names = crd.definition()["spec"]["names"]
    assert names["shortNames"] == ["cdc"]
    assert VERSION["subresources"] == {"status": {}}
    columns = {column["name"]: column for column in VERSION["additionalPrinterColumns"]}
    assert {"Ready", "Phase", "Lag", "Tables", "Age"} <= {
        n for n, c in columns.items() if not c.get("priority")
    }
    known = {path for path, _ in NODES} | {".metadata.creationTimestamp"}
    for column in columns.values():
        path = re.sub(r"\[\?.*?\]", "[]", column["jsonPath"])
        assert path in known, column


@pytest.mark.parametrize("document", [SMALL, load_documents(FULL)[0]])
def test_good_manifests_fit_the_schema(document: Node) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("value", ["erliest", 5, True, [], ["a"], {}])
def test_starting_offsets_are_a_word_or_an_object(value: Any) -> None:
    node = dict(NODES)[".spec.source.kafka.startingOffsets"]
    validator = jsonschema.Draft7Validator(node)
    assert not validator.is_valid(value)
    assert validator.is_valid("latest")
    assert validator.is_valid({"t": {"0": 1}})


def test_every_rule_is_tried_on_an_api_server() -> None:
    """Here, for the tests that need a cluster run less often."""
    rules = [rule for _, node in nodes(SCHEMA) for rule in node.get("x-kubernetes-validations", [])]
    messages = {rule["message"] for rule in rules}
    tried = {message for _, message in REFUSED}
    own = {message for message in messages if not message.startswith(AGAIN)}
    assert (own - tried, [each for each in tried if not any(each in message for message in own)]) == (
        set(),
        [],
    )
    paths = {rule["fieldPath"] for rule in rules if rule["message"].startswith(AGAIN)}
    expected = {f".spec.{path}" for path, effect in EFFECTS.items() if effect is Effect.RESET}
    assert paths == expected | {".spec.source"}
