"""SparkApplications against the CRDs that those projects publish, as the API server validates strictly.

The CRDs are large and not ours; put them into a folder and name it in LAKEMIRROR_SPARK_CRDS:

    kubeflow.yaml   kubeflow/spark-operator, config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml
    apache.yaml     apache/spark-kubernetes-operator, build-tools/helm/spark-kubernetes-operator/crds/
                    sparkapplications.spark.apache.org-v1.yaml
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from lakemirror.api import CdcPipeline, PipelineSpec, load_documents
from lakemirror.controller import build
from lakemirror.controller.build import Application
from tests.api.manifests import FULL
from tests.controller.builders import revision, spec

FOLDER = os.environ.get("LAKEMIRROR_SPARK_CRDS")

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="LAKEMIRROR_SPARK_CRDS names no folder with the CRDs"),
    pytest.mark.guarantee("SparkApplications fit the published CRDs"),
]


def schema(backend: str, version: str) -> dict[str, Any]:
    definition = yaml.load((Path(FOLDER or "") / f"{backend}.yaml").read_text(), yaml.CSafeLoader)
    found = next(v for v in definition["spec"]["versions"] if v["name"] == version)
    result: dict[str, Any] = found["schema"]["openAPIV3Schema"]
    return result


def unknown(value: Any, node: dict[str, Any], path: str = "") -> Iterator[str]:
    """Fields that the schema does not have: strict field validation refuses them."""
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            below = node.get("properties", {}).get(name) or node.get("additionalProperties")
            if isinstance(below, dict):
                yield from unknown(inner, below, f"{path}.{name}")
            elif not below:
                yield f"{path}.{name}"
    elif isinstance(value, list):
        for inner in value:
            yield from unknown(inner, node.get("items", {}), f"{path}[]")


def full(backend: str) -> PipelineSpec:
    [document] = load_documents(FULL)
    document["spec"]["spark"]["backend"] = backend
    document["spec"]["trigger"] = {"availableNow": True}
    return CdcPipeline.from_dict(document).spec


@pytest.mark.parametrize("backend", ["kubeflow", "apache"])
@pytest.mark.parametrize("which", ["small", "full", "local"])
def test_the_application_is_what_its_operator_takes(backend: str, which: str) -> None:
    specs = {
        "small": spec(spark={"backend": backend}),
        "full": full(backend),
        "local": spec(spark={"backend": backend, "executors": {"max": 0}}),
    }
    of = specs[which]
    made = build.workload(Application("mirrors", "shop", of, revision(of), "driver:1", uid="uid-1"))
    node = schema(backend, made["apiVersion"].partition("/")[2])["properties"]["spec"]
    wrong = Draft202012Validator(node).iter_errors(made["spec"])
    assert [f"{error.json_path}: {error.message}" for error in wrong] == []
    assert list(unknown(made["spec"], node)) == []
