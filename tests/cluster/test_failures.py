"""Whatever goes wrong, the status says what, in the words of whoever knows, and what still can be done is."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.cluster.kube import Kube, KubectlFailed, Object, eventually, never
from tests.cluster.mirror import SMALL, Mirror, merged
from tests.controller.kstatus import kstatus, waits_for_ready

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.guarantee("Every failure is named; a refused edit touches nothing and blocks nothing"),
]


def pod(**spec: Any) -> Object:
    """A change of spec: the pod template has these fields besides."""
    return {"spark": {"podTemplate": merged(SMALL, {"spec": spec})}}


def driver(**container: Any) -> Object:
    """A change of spec: the driver's container has these fields besides."""
    [small] = SMALL["spec"]["containers"]
    return {"spark": {"podTemplate": {"spec": {"containers": [merged(small, container)]}}}}


def runs(script: str, **container: Any) -> Object:
    """A change of spec: the driver's container runs a script."""
    return driver(command=["sh", "-c", script], args=[], **container)


# What the API server refuses

TEMPLATES: dict[str, tuple[Object, str]] = {
    "tolerations": (pod(tolerations="all"), "spec.tolerations"),
    "quantity": (driver(resources={"requests": {"cpu": "a lot"}}), "resources.requests.cpu"),
    "env": (driver(env={"a": "b"}), ".env"),
    "env-number": (driver(env=[{"name": "A", "value": 5}]), ".value"),
    "selector": (pod(nodeSelector=["a"]), "spec.nodeSelector"),
    "annotations": (
        {"spark": {"podTemplate": {"metadata": {"annotations": {"a": 5}}}}},
        "metadata.annotations.a",
    ),
    "labels": ({"spark": {"podTemplate": {"metadata": {"labels": "x"}}}}, "metadata.labels"),
    "label": ({"spark": {"podTemplate": {"metadata": {"labels": {"a": "b c"}}}}}, "b c"),
    "typo": (pod(nodeSelectr={"a": "b"}), "spec.nodeSelectr"),
    "sidecar": (
        pod(containers=[*SMALL["spec"]["containers"], {"name": "sidecar"}]),
        "spec.containers[1].image",
    ),
    "port": (driver(ports=[{"containerPort": "x"}]), "containerPort"),
    "affinity": (pod(affinity=[1]), "spec.affinity"),
    "mount": (driver(volumeMounts=[{"name": "nope", "mountPath": "/x"}]), "nope"),
    "restart": (pod(restartPolicy="Never"), "spec.restartPolicy"),
    "memory": (driver(resources={"requests": {"memory": "9Gi"}, "limits": {"memory": "1Mi"}}), "9Gi"),
}


def test_each_refusal_of_a_template_is_named(kube: Kube) -> None:
    mirrors = {name: Mirror(kube, name).create(**spec) for name, (spec, _) in TEMPLATES.items()}
    for name, one in mirrors.items():
        stalled = one.wait("Stalled", reason="InvalidSpec", within=30)
        assert TEMPLATES[name][1] in stalled["message"], name
        assert one.condition("Ready")["reason"] == "InvalidSpec"
        assert kstatus(one.resource()) == "Failed"
    assert not kube.list("configmap", "app.kubernetes.io/managed-by=lakemirror-operator")
    warnings = [e for one in mirrors.values() for e in one.events() if e["type"] == "Warning"]
    assert sorted(e["reason"] for e in warnings) == ["InvalidSpec"] * len(mirrors)
    mended = mirrors["tolerations"]
    mended.edit(spark={"podTemplate": {"spec": {"tolerations": None}}})
    mended.ready()
    mirrors["quantity"].delete("--timeout=30s")


REFUSED = {"tolerations": "all"}


def test_a_refused_edit_touches_nothing_and_blocks_nothing(kube: Kube) -> None:
    back, stop, gone = mirrors = [Mirror(kube, name).create() for name in ("back", "stop", "gone")]
    for one in mirrors:
        one.ready()
    uids = [one.uid() for one in mirrors]
    for one in mirrors:
        one.edit(spark={"podTemplate": {"spec": REFUSED}})
    for one, uid in zip(mirrors, uids, strict=True):
        stalled = one.wait("Stalled", reason="InvalidSpec", within=30)
        assert "spec.spark.podTemplate.spec.tolerations" in stalled["message"]
        resource = one.resource()
        assert one.condition("Ready")["status"] == "True"
        assert not one.condition("Reconciling")
        assert waits_for_ready(resource)
        assert (kstatus(resource), one.uid()) == ("Failed", uid)
        assert one.kube.kubectl("get", "cdc", one.name).splitlines()[1].split()[1:3] == [
            "True",
            "InvalidSpec",
        ]
    with pytest.raises(KubectlFailed, match="timed out"):
        kube.kubectl("wait", "cdc/back", "--for=condition=Ready", "--timeout=2s")
    stop.edit(suspend=True)
    gone.delete("--timeout=60s")
    back.edit(spark={"podTemplate": {"spec": {"tolerations": None}}})
    back.ready()
    assert not back.condition("Stalled")
    assert (back.uid(), len(back.starts())) == (uids[0], 1)
    eventually(lambda: not stop.drivers(), what="a suspended driver gone")
    stop.edit(suspend=False)
    eventually(lambda: len(stop.starts()) == 2, what="the driver back with the last good spec")


def test_an_edit_whose_pod_is_refused_leaves_the_driver_alone(mirror: Mirror) -> None:
    mirror.create().ready()
    uid = mirror.uid()
    mirror.edit(spark={"podTemplate": {"spec": {"priorityClassName": "nobody-made"}}})
    assert "nobody-made" in mirror.wait("Stalled", reason="PodRefused", within=30)["message"]
    never(lambda: mirror.uid() != uid, during=5, what="another pod")
    assert mirror.condition("Ready")["status"] == "True"


# What keeps a pod from being made, or from going

UNMAKEABLE: dict[str, tuple[Object, str, str]] = {
    "insecure": (pod(hostPID=True), "PodRefused", "violates PodSecurity"),
    "priority": (pod(priorityClassName="nobody-made"), "PodRefused", "nobody-made"),
    "runtime": (pod(runtimeClassName="nobody-made"), "PodRefused", "nobody-made"),
    "range": (
        driver(resources={"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}),
        "PodRefused",
        "maximum cpu usage",
    ),
    "quota": (
        driver(resources={"requests": {"memory": "5Gi"}, "limits": {"memory": "5Gi"}}),
        "QuotaExceeded",
        "exceeded quota",
    ),
}


def test_what_keeps_a_pod_from_being_made_is_named(kube: Kube) -> None:
    cpu = {
        "type": "Container",
        "max": {"cpu": "2"},
        "default": {"cpu": "1"},
        "defaultRequest": {"cpu": "20m"},
    }
    quota = {"hard": {"limits.memory": "4Gi"}}
    kube.apply(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "small"}, "spec": {"limits": [cpu]}},
        {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "little"}, "spec": quota},
    )
    mirrors = {name: Mirror(kube, name).create(**spec) for name, (spec, _, _) in UNMAKEABLE.items()}
    once = Mirror(kube, "once").create(
        trigger={"interval": None, "availableNow": True}, **UNMAKEABLE["priority"][0]
    )
    assert "nobody-made" in once.wait("Ready", "False", reason="PodRefused", within=40)["message"]
    for name, one in mirrors.items():
        _, reason, words = UNMAKEABLE[name]
        assert words in one.wait("Ready", "False", reason=reason, within=40)["message"], name
        assert [e for e in one.events() if e["reason"] == reason and words in e["message"]], name
    kube.delete("resourcequota", "little")
    kube.delete("limitrange", "small")
    mirrors["insecure"].edit(spark={"podTemplate": {"spec": {"hostPID": None}}})
    mirrors["insecure"].ready(within=120)
    for name in ("quota",):
        eventually(lambda name=name: mirrors[name].drivers(), within=120, what="a pod once the quota is gone")  # type: ignore[misc]


def test_a_pod_that_a_finalizer_holds_is_named(kube: Kube) -> None:
    held = pod()
    held["spark"]["podTemplate"]["metadata"] = {"finalizers": ["example.com/hold"]}
    one = Mirror(kube, "held").create(**held).ready()
    one.edit(restartToken="again")
    said = one.wait("Ready", "False", reason="PodTerminating", within=60)
    assert "example.com/hold" in said["message"]
    one.edit(suspend=True)
    kube.merge("pod", "held-driver-0", {"metadata": {"finalizers": None}})
    eventually(lambda: not one.drivers(), what="the pod gone")


# Foreign pods


@pytest.mark.parametrize("labelled", [False, True], ids=["plain", "labelled"])
def test_a_foreign_pod_is_named_and_never_adopted(kube: Kube, labelled: bool) -> None:
    ours = Mirror(kube, "ours").create().ready()
    [pod] = ours.drivers()
    theirs = {k: v.replace("ours", "shop") for k, v in pod["metadata"]["labels"].items() if "uid" not in k}
    container = {
        "name": "driver",
        "image": pod["spec"]["containers"][0]["image"],
        "command": ["sleep", "600"],
        "securityContext": pod["spec"]["containers"][0]["securityContext"],
    }
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "shop-driver-0", "labels": theirs if labelled else {}},
            "spec": {
                "containers": [container],
                "securityContext": pod["spec"]["securityContext"],
                "terminationGracePeriodSeconds": 1,
            },
        }
    )
    shop = Mirror(kube, "shop").create()
    stalled = shop.wait("Stalled", reason="ForeignObject", within=30)
    assert "shop-driver-0" in stalled["message"]
    never(lambda: (kube.get("pod", "shop-driver-0") or {})["metadata"].get("ownerReferences"), during=5)
    kube.delete("pod", "shop-driver-0")
    shop.ready(within=90)


# Deleting


def test_deleting_never_hangs_in_silence(kube: Kube) -> None:
    security = {"protocol": "SSL", "secret": "kafka-ca"}
    specs: dict[str, Object] = {
        "secret": {"source": {"kafka": {"security": security}}},
        "image": {"spark": {"image": "nobody/made:1"}},
        "refused": pod(priorityClassName="nobody-made"),
        "typed": {},
    }
    mirrors = {
        name: Mirror(kube, name).create(deletionPolicy="DeleteAll", **spec) for name, spec in specs.items()
    }
    mirrors["typed"].ready()
    for one in mirrors.values():
        eventually(lambda one=one: one.resource()["metadata"].get("finalizers"), what="a finalizer")  # type: ignore[misc]
    for one in mirrors.values():
        one.delete("--wait=false")
    words = {"secret": "kafka-ca", "image": "nobody/made:1", "refused": "nobody-made"}
    for name, word in words.items():
        stalled = mirrors[name].wait("Stalled", reason="CleanupBlocked", within=90)
        assert word in stalled["message"], name
        assert "spec.deletionPolicy: Retain" in stalled["message"]
    mirrors["typed"].gone()
    kube.kubectl("create", "secret", "generic", "kafka-ca", "--from-literal=ca.crt=x")
    kube.merge("cdc", "refused", {"spec": {"deletionPolicy": "Retain"}})  # and it is gone at once
    mirrors["refused"].gone()
    kube.merge("cdc", "image", {"spec": {"spark": {"image": None}}})
    mirrors["image"].gone(within=120)
    mirrors["secret"].gone(within=180)  # the kubelet tries a mount again after up to two minutes


def test_deleting_makes_no_warnings(kube: Kube) -> None:
    mirrors = [Mirror(kube, f"shop-{number}").create() for number in range(6)]
    for one in mirrors[:3]:
        one.ready()
    for one in mirrors:
        one.delete("--wait=false")
    for one in mirrors:
        one.gone()
    time.sleep(5)
    assert [e for one in mirrors for e in one.events() if e["type"] == "Warning"] == []


# Why a driver failed

FIRST = {
    "name": "first",
    "image": "nobody/made:2",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
ENDS: dict[str, tuple[Object, str, str]] = {
    "memory": (
        runs(
            "python3 -c 'x = b\"1\" * 10**9'",
            resources={"limits": {"memory": "48Mi"}, "requests": {"memory": "16Mi"}},
        ),
        "OOMKilled",
        "48Mi",
    ),
    "killed": (runs("exit 137"), "DriverFailed", "exit code 137 (SIGKILL)"),
    "term": (runs("exit 143"), "DriverFailed", "exit code 143 (SIGTERM)"),
    "trace": (
        runs(
            'printf \'Traceback (most recent call last):\\n  File "a.py", line 1\\npy4j.Py4JJavaError: x\\n'
            ": org.apache.spark.SparkException: Job aborted\\n\\tat org.apache.A.b(A.java:1)\\n"
            "Caused by: java.net.UnknownHostException: kafka.shop\\n\\tat java.base/java.net.B.c(B.java:2)\\n"
            "\\t... 12 more\\n' > /dev/termination-log; exit 1"
        ),
        "DriverFailed",
        "java.net.UnknownHostException: kafka.shop",
    ),
    "image": ({"spark": {"image": "nobody/made:1"}}, "ImagePullBackOff", "nobody/made:1"),
    "name": ({"spark": {"image": "Not:A:Name"}}, "InvalidImageName", "Not:A:Name"),
    "config": (driver(envFrom=[{"secretRef": {"name": "nobody-made"}}]), "SecretMissing", "nobody-made"),
    "init": (pod(initContainers=[FIRST]), "ImagePullBackOff", "nobody/made:2"),
    "nowhere": (pod(nodeSelector={"moon": "dark"}), "Unschedulable", "0/"),
}


def test_a_failure_tells_its_cause(kube: Kube) -> None:
    mirrors = {name: Mirror(kube, name).create(**spec) for name, (spec, _, _) in ENDS.items()}
    for name, one in mirrors.items():
        _, reason, words = ENDS[name]
        said = one.wait("Ready", "False", reason=reason, within=60)
        assert words in said["message"], (name, said["message"])
        assert "\n" not in said["message"], name
    time.sleep(30)
    for name, (_, reason, _) in ENDS.items():
        told = [e for e in mirrors[name].events() if e["reason"] == reason]
        assert len(told) == 1, (name, [(e["reason"], e["message"]) for e in mirrors[name].events()])


def test_pods_that_were_replaced_count_as_restarts(mirror: Mirror) -> None:
    mirror.create().ready()
    for times in (1, 2):
        before = mirror.uid()
        mirror.kube.kubectl("delete", "pod", f"{mirror.name}-driver-0", "--force", "--grace-period=0")
        eventually(lambda before=before: [p for p in mirror.drivers() if p["metadata"]["uid"] != before])  # type: ignore[misc]
        mirror.ready()
        eventually(
            lambda times=times: mirror.status()["driver"]["restarts"] == times, what="a restart counted"
        )  # type: ignore[misc]


def test_an_evicted_driver_says_so(mirror: Mirror) -> None:
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    script = "test -e /tmp/done || dd if=/dev/zero of=/scratch/x bs=1M count=20; sleep 600"
    container = runs(script, volumeMounts=[{"name": "scratch", "mountPath": "/scratch"}])
    container["spark"]["podTemplate"]["spec"]["volumes"] = [scratch]
    mirror.create(**container)
    evicted = mirror.wait("Ready", "False", reason="Evicted", within=180)
    assert "exceeds" in evicted["message"]
    assert mirror.status()["driver"]["lastFailure"]["reason"] == "Evicted"


# At a glance


def test_a_resource_that_no_operator_has_seen_is_in_progress(mirror: Mirror) -> None:
    text = json.dumps(mirror.manifest())
    unseen = json.loads(mirror.kube.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", text=text))
    assert unseen["status"] == {"observedGeneration": -1}
    assert kstatus(unseen) == "InProgress"


def test_a_suspended_pipeline_is_current(mirror: Mirror) -> None:
    mirror.create(suspend=True).wait("Ready", reason="Suspended")
    assert kstatus(mirror.resource()) == "Current"
    columns = mirror.kube.kubectl("get", "cdc", mirror.name).splitlines()[1].split()
    assert columns[:4] == [mirror.name, "True", "Suspended", "Suspended"]
