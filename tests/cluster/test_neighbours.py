"""What only a real API server shows: who may remove a finalizer, how deep it nests, and its workloads."""

from __future__ import annotations

import json

import pytest

from lakemirror.controller import names
from tests.cluster.kube import eventually
from tests.cluster.mirror import Mirror

pytestmark = pytest.mark.cluster


def test_a_copied_finalizer_is_removed(mirror: Mirror) -> None:
    """As kubectl get -o yaml | kubectl create -f - copies it: kubectl is its manager, not the operator."""
    mirror.behave()
    copied = mirror.manifest(deletionPolicy="DeleteAll")
    copied["metadata"]["finalizers"] = [names.FINALIZER]
    mirror.kube.kubectl("create", "-f", "-", text=json.dumps(copied))
    mirror.ready()
    mirror.edit(deletionPolicy="Retain")
    eventually(lambda: not mirror.resource()["metadata"].get("finalizers"), what="the finalizer gone")
    mirror.delete("--timeout=30s")
    mirror.gone()


def test_a_deep_pod_template_stops_no_other(mirror: Mirror) -> None:
    """The patch is put together as text: Python's own JSON does not nest as deep."""
    poisoned = Mirror(mirror.kube, "deep")
    poisoned.create()
    text = json.dumps({"spec": {"spark": {"podTemplate": "HERE"}}})
    template = '{"a":' * 1100 + '"x"' + "}" * 1100
    poisoned.kube.kubectl(
        "patch",
        "cdc",
        poisoned.name,
        "--type=merge",
        "--patch-file=/dev/stdin",
        text=text.replace('"HERE"', template),
    )
    mirror.create().ready()
    mirror.edit(suspend=True)
    mirror.wait("Ready", reason="Suspended")


def test_a_workload_that_others_hold_is_named(mirror: Mirror) -> None:
    mirror.create(deletionPolicy="DeleteCheckpoint").ready()
    workload = names.driver(mirror.name)
    mirror.kube.merge("statefulset", workload, {"metadata": {"finalizers": ["example.com/hold"]}})
    mirror.delete("--wait=false")
    said = mirror.wait("Stalled", reason="WorkloadTerminating", within=120)
    assert f"StatefulSet {workload}" in said["message"]
    mirror.kube.merge("statefulset", workload, {"metadata": {"finalizers": None}})
    mirror.gone()
