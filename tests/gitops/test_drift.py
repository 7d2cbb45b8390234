"""What the API server fills in is no difference between a repository and the cluster."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakemirror.api import crd, load_documents
from tests.api.manifests import FULL, SMALL

pytestmark = pytest.mark.guarantee("Fields that the API server fills in are not drift")

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(ROOT.glob("examples/*/pipeline.yaml"))
MANIFESTS: dict[str, dict[str, Any]] = {
    "full": load_documents(FULL)[0],
    "small": SMALL,
    "tables": {
        **SMALL,
        "spec": {
            **SMALL["spec"],
            "tables": [{"source": "a.b", "expectations": [{"name": "positive", "condition": "n > 0"}]}],
            "ordering": {"epochs": [{"epoch": 1, "from": {"t": {"0": 5}}}]},
        },
    },
    **{path.parent.name: yaml.safe_load(path.read_text()) for path in EXAMPLES},
}


def defaulted(value: Any, node: dict[str, Any]) -> Any:
    """What the API server stores: each default of the schema where a field is missing, from the top down."""
    if isinstance(value, dict):
        properties = node.get("properties", {})
        whole = {
            name: copy.deepcopy(n["default"]) for name, n in properties.items() if "default" in n
        } | value
        below = node.get("additionalProperties")
        return {
            name: defaulted(each, properties.get(name, below if isinstance(below, dict) else {}))
            for name, each in whole.items()
        }
    if isinstance(value, list):
        return [defaulted(each, node.get("items", {})) for each in value]
    return value


def merged(live: Any, desired: Any) -> Any:
    """A JSON merge patch (RFC 7396), by which Argo CD compares custom resources unless told otherwise."""
    if not isinstance(live, dict) or not isinstance(desired, dict):
        return desired
    return live | {name: merged(live.get(name), value) for name, value in desired.items()}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_pipeline_is_in_sync_once_it_is_applied(name: str) -> None:
    desired = MANIFESTS[name]
    live = defaulted(desired, crd.resource_schema())
    assert live["spec"].keys() >= {"trigger", "spark", "restart"}, "defaults are filled in"
    assert merged(live, desired) == live


def test_a_default_inside_of_a_list_would_be_a_difference() -> None:
    """Which is why the CRD has none: the test above can fail."""
    schema = copy.deepcopy(crd.resource_schema())
    tables = schema["properties"]["spec"]["properties"]["tables"]["items"]["properties"]
    assert "default" not in tables["suspend"]
    tables["suspend"]["default"] = False
    desired = MANIFESTS["tables"]
    live = defaulted(desired, schema)
    assert merged(live, desired) != live
