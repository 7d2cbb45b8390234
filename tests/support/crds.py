"""Objects of other projects' kinds against the CRDs that those projects publish.

Most of these CRDs are large, and none is ours. Put them into a folder, in files with any name that ends in
.yaml, and name the folder in LAKEMIRROR_PUBLISHED_CRDS:

    fluxcd/kustomize-controller    config/crd/bases/kustomize.toolkit.fluxcd.io_kustomizations.yaml
    fluxcd/helm-controller         config/crd/bases/helm.toolkit.fluxcd.io_helmreleases.yaml
    fluxcd/source-controller       config/crd/bases/source.toolkit.fluxcd.io_gitrepositories.yaml
    fluxcd/source-controller       config/crd/bases/source.toolkit.fluxcd.io_ocirepositories.yaml
    argoproj/argo-cd               manifests/crds/application-crd.yaml
    prometheus-operator/prometheus-operator
                                   example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml
    prometheus-operator/prometheus-operator
                                   example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

FOLDER = os.environ.get("LAKEMIRROR_PUBLISHED_CRDS")
needs_crds = pytest.mark.skipif(not FOLDER, reason="LAKEMIRROR_PUBLISHED_CRDS names no folder with CRDs")

Object = dict[str, Any]


def kind_of(document: Object) -> str:
    return f"{document['apiVersion']} {document['kind']}"


@functools.cache
def published() -> dict[str, Object]:
    """From "group/version kind" to the schema, for all CRDs in the folder."""
    found: dict[str, Object] = {}
    for path in sorted(Path(FOLDER or "").glob("*.yaml")):
        spec = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        for version in spec["versions"]:
            kind = f"{spec['group']}/{version['name']} {spec['names']['kind']}"
            found[kind] = version["schema"]["openAPIV3Schema"]
    return found


def wrong_in(document: Object, schema: Object) -> list[str]:
    """What the API server refuses when it validates strictly, without rules in CEL."""
    errors = Draft202012Validator(closed(schema)).iter_errors(document)
    return [f"{error.json_path}: {error.message}" for error in errors]


def closed(node: Any) -> Any:
    """A schema that refuses unknown fields."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: closed(value) for key, value in node.items() if key != "properties"}
    if "properties" in node:
        found["properties"] = {name: closed(value) for name, value in node["properties"].items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = node.get("additionalProperties", False)
    return found
