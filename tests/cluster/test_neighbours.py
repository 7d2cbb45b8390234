"""What others do to a pipeline, and what only a real API server shows of it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lakemirror.controller import names
from tests.cluster.kube import Kube, KubectlFailed, Object, eventually, never
from tests.cluster.mirror import SMALL, Mirror, merged
from tests.cluster.operator import Operator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ADMISSION = "admissionregistration.k8s.io/v1"


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


def test_a_dumped_pipeline_is_created_elsewhere_and_goes_with_its_data(
    mirror: Mirror, neighbour: Kube
) -> None:
    mirror.create(deletionPolicy="DeleteAll").ready()
    dumped = mirror.resource()
    dumped["metadata"] |= {"namespace": neighbour.namespace}
    del dumped["metadata"]["resourceVersion"]
    copy = Mirror(neighbour, mirror.name)
    copy.behave()
    neighbour.kubectl("create", "-f", "-", text=json.dumps(dumped))
    copy.ready()
    copy.delete("--timeout=90s")
    assert [line["what"] for line in copy.journal()][-1].startswith("cleanup")
    assert [line["what"] for line in mirror.journal()] == ["start"]


def test_a_finalizer_of_others_on_the_pipeline_is_named(mirror: Mirror) -> None:
    mirror.create(deletionPolicy="DeleteAll").ready()
    held = [*mirror.resource()["metadata"]["finalizers"], "example.com/hold"]
    mirror.kube.merge("cdc", mirror.name, {"metadata": {"finalizers": held}})
    mirror.delete("--wait=false")
    said = mirror.wait("Stalled", reason="PipelineTerminating", within=120)
    assert "example.com/hold" in said["message"]
    assert mirror.resource()["metadata"]["finalizers"] == ["example.com/hold"]
    command = said["message"].partition("by hand: ")[2]
    mirror.kube.kubectl(*shlex.split(command)[1:])
    mirror.gone()


# Policies


@contextmanager
def policy(kube: Kube, name: str, expression: str, message: str) -> Iterator[None]:
    """A ValidatingAdmissionPolicy for new pods of the namespace."""
    whole = f"{name}-{kube.namespace}"
    metadata = {"name": whole}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    spec: Object = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [pods]},
        "validations": [{"expression": expression, "message": message}],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}}
    binding = {"policyName": whole, "validationActions": ["Deny"], "matchResources": here}
    kube.apply(
        {"apiVersion": ADMISSION, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {
            "apiVersion": ADMISSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": binding,
        },
    )
    try:
        eventually(lambda: message in refusal_of_a_bare_pod(kube), what="the policy in effect")
        yield
    finally:
        kube.delete("validatingadmissionpolicybinding", whole)
        kube.delete("validatingadmissionpolicy", whole)


def refusal_of_a_bare_pod(kube: Kube) -> str:
    secure = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "x", "image": "x:1", "securityContext": secure}
    bare = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    try:
        kube.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(bare))
    except KubectlFailed as refused:
        return str(refused)
    return ""


OWNED = (
    "has(object.metadata.ownerReferences) && "
    "object.metadata.ownerReferences.exists(o, has(o.controller) && o.controller)"
)


def test_each_edit_is_accepted_where_bare_pods_are_forbidden(mirror: Mirror) -> None:
    with policy(mirror.kube, "no-bare-pods", OWNED, "bare pods are forbidden"):
        mirror.create().ready()
        labelled = merged(SMALL, {"metadata": {"labels": {"team": "data"}}})
        edits: list[dict[str, Any]] = [
            {"onBadRecord": "fail"},
            {"spark": {"podTemplate": labelled}},
            {"restartToken": "again"},
        ]
        for number, edit in enumerate(edits, 2):
            mirror.edit(**edit)
            mirror.ready()
            assert not mirror.condition("Stalled")
            assert not mirror.status().get("warnings")
            eventually(lambda number=number: len(mirror.starts()) == number, what="a restart")  # type: ignore[misc]


def test_a_policy_that_the_running_pod_does_not_meet_either_is_a_warning(mirror: Mirror) -> None:
    mirror.create().ready()
    asks = "has(object.metadata.labels) && 'team' in object.metadata.labels"
    with policy(mirror.kube, "team", asks, "each pod needs a team"):
        mirror.edit(onBadRecord="fail")
        told = eventually(
            lambda: [e for e in mirror.events() if e["reason"] == "DriverWarning"], what="a warning"
        )
        assert "each pod needs a team" in told[0]["message"]
        assert "the edit is not the cause" in told[0]["message"]
        mirror.wait("Ready", "False", reason="PodRefused")
        mirror.edit(spark={"podTemplate": merged(SMALL, {"metadata": {"labels": {"team": "data"}}})})
        mirror.ready(within=120)


# Runs that do not end


def beside(image: str) -> Object:
    """A pod template with another container, which goes on after the driver's end."""
    secure = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    proxy = {
        "name": "proxy",
        "image": image,
        "command": ["sleep", "3600"],
        "securityContext": secure,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    return {"spec": {"containers": [*SMALL["spec"]["containers"], proxy], "terminationGracePeriodSeconds": 1}}


def test_a_container_that_keeps_a_run_from_its_end_is_named(mirror: Mirror, standin_image: str) -> None:
    once = {"interval": None, "availableNow": True}
    mirror.create(trigger=once, spark={"podTemplate": beside(standin_image)}).behave(exit=0)
    said = mirror.wait("Stalled", reason="SidecarRunning", within=180)
    for word in ("container proxy runs on", "exit code 0", "sidecar.istio.io/inject", "kubectl delete pod"):
        assert word in said["message"]
    mirror.edit(spark={"podTemplate": SMALL})
    mirror.wait("Ready", reason="Completed", within=120)


def test_a_schedule_goes_on_after_a_run_that_another_container_has_kept(
    mirror: Mirror, standin_image: str
) -> None:
    each_minute = {"interval": None, "availableNow": True, "schedule": "* * * * *"}
    mirror.create(trigger=each_minute, spark={"podTemplate": beside(standin_image)}).behave(exit=0)
    mirror.wait("Stalled", reason="SidecarRunning", within=240)
    assert len(mirror.starts()) == 1
    mirror.edit(spark={"podTemplate": SMALL})
    eventually(lambda: len(mirror.starts()) > 2, within=240, what="two further runs")
    mirror.wait("Ready", reason="Completed", within=120)


# Executors


def executor(name: str, pipeline: str) -> Object:
    """A pod as Spark makes it, of an image that nobody made."""
    labels = {"lakemirror.io/pipeline": pipeline, "app.kubernetes.io/component": "executor"}
    secure = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "executor", "image": "nobody/made:9", "securityContext": secure}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def test_nothing_is_ready_before_a_batch_and_executors_that_cannot_start_are_named(mirror: Mirror) -> None:
    mirror.behave(lag=100_000)
    mirror.kube.apply(mirror.manifest(spark={"executors": {"max": 2}}))
    mirror.wait("Ready", "False", reason="DriverStarting", within=90)
    eventually(lambda: "not committed a batch" in mirror.condition("Ready")["message"], what="why it waits")
    with pytest.raises(KubectlFailed, match="timed out"):
        mirror.kube.kubectl("wait", f"cdc/{mirror.name}", "--for=condition=Ready", "--timeout=10s")
    mirror.kube.apply(executor("exec-1", mirror.name))
    said = mirror.wait("Ready", "False", reason="ExecutorsPending", within=60)
    assert "nobody/made:9" in said["message"]
    mirror.kube.delete("pod", "exec-1")
    pods = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    mirror.kube.apply({**pods, "spec": {"hard": {"pods": "1"}}})
    eventually(lambda: "exceeded quota" in mirror.condition("Ready")["message"], what="the quota named")
    mirror.behave(lag=100_000, commits=True)
    mirror.ready()


# Two pipelines that try to hurt each other


def at(place: str, **more: Any) -> Object:
    """A pipeline that keeps its checkpoint and its mirrors in a bucket."""
    return {
        "checkpoint": f"s3a://{place}/_checkpoint",
        "target": {"path": f"s3a://{place}/{{table}}"},
        **more,
    }


def test_who_is_older_does_not_stop_a_running_neighbour(kube: Kube, neighbour: Kube) -> None:
    bucket = kube.namespace
    old = Mirror(kube, "old").create(suspend=True, deletionPolicy="DeleteCheckpoint", **at(f"{bucket}/old"))
    old.wait("Ready", reason="Suspended")
    young = Mirror(neighbour, "young").create(**at(f"{bucket}/young")).ready()
    uid = young.uid()
    attempts = {
        "the same": {"checkpoint": f"s3a://{bucket}/young/_checkpoint"},
        "inside": {"checkpoint": f"s3a://{bucket}/young/_checkpoint/mine"},
        "mirrors inside": {"target": {"path": f"s3a://{bucket}/young/_checkpoint/{{table}}"}},
        "around": {"checkpoint": f"s3a://{bucket}/young"},
        "another spelling": {"checkpoint": f"s3://{bucket}//young/./_checkpoint/"},
    }
    for what, attempt in attempts.items():
        old.edit(**(at(f"{bucket}/old") | attempt))
        said = old.wait("Stalled", reason="Conflict")
        assert "a pipeline of another namespace" in said["message"], what
        assert neighbour.namespace not in json.dumps(old.status())
    assert not [event for event in old.events() if neighbour.namespace in event["message"]]
    old.delete("--timeout=120s")
    [cleanup] = [line for line in old.journal() if line["what"].startswith("cleanup")]
    assert f"s3a://{bucket}/old/_checkpoint" in cleanup["manifest"]
    assert "/young" not in cleanup["manifest"]
    assert (young.uid(), len(young.starts())) == (uid, 1)
    assert young.condition("Ready")["status"] == "True"


def test_a_bucket_of_ones_own_is_no_conflict(kube: Kube, neighbour: Kube) -> None:
    """Two namespaces, each with a Service ``minio`` and a bucket ``lake``."""
    own = {"spark": {"conf": {"spark.hadoop.fs.s3a.endpoint": "http://minio:9000"}}}
    mirrors = [Mirror(each, "shop").create(**at("lake/shop"), **own) for each in (kube, neighbour)]
    for one in mirrors:
        one.ready()
    third = Mirror(neighbour, "third").create(**at("lake/shop"), **own)
    assert f"{neighbour.namespace}/shop" in third.wait("Stalled", reason="Conflict")["message"]


# Silence


def on_node(command: str) -> str:
    runner = os.environ.get("LAKEMIRROR_ON_NODE")
    if not runner:
        pytest.skip("LAKEMIRROR_ON_NODE does not say how to run a command on the node")
    return subprocess.run([*shlex.split(runner), command], capture_output=True, text=True, check=True).stdout


@contextmanager
def silent_connections(address: str) -> Iterator[None]:
    """What a pod has open now stays open, and nothing comes through any more; new connections work."""
    seen = on_node(f"ss -Htn state established dst {address}").splitlines()
    ports = [line.split()[3].rpartition(":")[2] for line in seen]
    assert ports, "the pod has no connections"
    rules = [f"INPUT -p tcp -s {address} --sport {port} -j DROP" for port in ports]
    rules += [f"OUTPUT -p tcp -d {address} --dport {port} -j DROP" for port in ports]
    try:
        for rule in rules:
            on_node(f"iptables -w -I {rule}")
        yield
    finally:
        for rule in rules:
            on_node(f"iptables -w -D {rule}")


def test_watches_that_are_silent_make_no_figures_old(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    operator.scale(1)
    eventually(operator.holder, what="an operator that acts")
    mirror.ready()
    [pod] = operator.pods()
    with silent_connections(pod["status"]["podIP"]):
        never(
            lambda: mirror.condition("Ready")["reason"] == "StaleFigures",
            during=200,
            what="figures that count as old",
            every=2,
        )
        mirror.edit(onBadRecord="fail")
        eventually(lambda: len(mirror.starts()) == 2, within=180, what="an edit that takes effect")
        mirror.ready()
    [same] = operator.pods()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
