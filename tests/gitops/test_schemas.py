"""The examples for Argo CD and Flux against the CRDs that those projects publish."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.gitops.judges import ARGO, FLUX
from tests.support.crds import Object, kind_of, needs_crds, published, wrong_in

KINDS = {
    "argoproj.io/v1alpha1 Application",
    "helm.toolkit.fluxcd.io/v2 HelmRelease",
    "kustomize.toolkit.fluxcd.io/v1 Kustomization",
    "source.toolkit.fluxcd.io/v1 GitRepository",
    "source.toolkit.fluxcd.io/v1 OCIRepository",
}


def objects() -> Iterator[tuple[str, Object]]:
    """The objects of the examples, with the files they are in."""
    for path in sorted([*ARGO.glob("*.yaml"), *FLUX.glob("*.yaml")]):
        for document in yaml.safe_load_all(path.read_text()):
            if "metadata" in document and document["apiVersion"] != "v1":  # not a patch of a ConfigMap
                yield path.name, document


def test_the_examples_have_these_kinds() -> None:
    assert {kind_of(document) for _, document in objects()} == KINDS


@needs_crds
@pytest.mark.parametrize("document", [pytest.param(d, id=f"{f} {d['kind']}") for f, d in objects()])
def test_examples_are_what_their_projects_publish(document: Object) -> None:
    assert wrong_in(document, published()[kind_of(document)]) == []


@needs_crds
def test_a_mistake_is_found() -> None:
    """Below a field, in a list, and in a value; but what a chart takes is not the project's business."""
    documents: dict[str, Any] = {d["kind"]: copy.deepcopy(d) for _, d in objects()}
    documents["HelmRelease"]["spec"]["chartRef"]["nmae"] = "x"
    documents["Kustomization"]["spec"]["healthCheckExprs"][0]["succeeded"] = "true"
    documents["GitRepository"]["spec"]["interval"] = "soon"
    documents["Application"]["spec"]["syncPolicy"]["automated"]["heal"] = True
    documents["OCIRepository"]["spec"]["layerSelector"]["operation"] = "keep"
    for document in documents.values():
        assert len(wrong_in(document, published()[kind_of(document)])) == 1, document["kind"]
    release = next(d for _, d in objects() if d["kind"] == "HelmRelease")
    release["spec"]["values"]["anything"] = {"goes": True}
    assert wrong_in(release, published()[kind_of(release)]) == []
