"""What the operator promises whatever happens to it: one driver, nothing stuck, no neighbour held up."""

from __future__ import annotations

import json
import random
import time

import pytest

from tests.cluster.kube import Kube, eventually, never
from tests.cluster.mirror import Mirror
from tests.cluster.operator import Operator

pytestmark = pytest.mark.cluster


def test_a_pipeline_becomes_ready_and_its_objects_are_its_own(mirror: Mirror) -> None:
    mirror.create().ready()
    kinds = ("statefulset", "service", "configmap", "serviceaccount", "role", "rolebinding", "networkpolicy")
    uid = mirror.resource()["metadata"]["uid"]
    for kind in kinds:
        ours = mirror.kube.list(kind, f"lakemirror.io/pipeline={mirror.name}")
        assert ours, kind
        for found in ours:
            assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [uid], kind
    assert "finalizers" not in mirror.resource()["metadata"]


def test_deleting_a_pipeline_takes_its_objects_along(mirror: Mirror) -> None:
    mirror.create().ready()
    mirror.delete()
    mirror.gone()
    selector = f"lakemirror.io/pipeline={mirror.name}"
    own = ("statefulset", "service", "configmap", "role", "rolebinding", "serviceaccount", "networkpolicy")
    for kind in (*own, "pod", "secret"):
        eventually(lambda kind=kind: not mirror.kube.list(kind, selector), what=f"no {kind}")  # type: ignore[misc]
    assert mirror.journal()[-1]["what"] == "end"


def test_kubectl_replace_changes_nothing(mirror: Mirror) -> None:
    mirror.create().ready()
    before = mirror.uid()
    plain = mirror.manifest()
    for _ in range(3):
        mirror.kube.kubectl("replace", "-f", "-", text=json.dumps(plain))
    never(lambda: mirror.uid() != before, during=10, what="another driver")
    assert len(mirror.starts()) == 1
    mirror.ready()


def test_a_deleted_child_comes_back(mirror: Mirror) -> None:
    mirror.create().ready()
    for kind in ("service", "rolebinding"):
        name = f"{mirror.name}-driver"
        mirror.kube.delete(kind, name)
        eventually(lambda kind=kind, name=name: mirror.kube.get(kind, name), what=f"{kind} {name}")  # type: ignore[misc]
    assert len(mirror.starts()) == 1


def test_restarting_the_operator_disturbs_no_driver(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    before = mirror.uid()
    version = mirror.resource()["metadata"]["resourceVersion"]
    operator.scale(0)
    operator.scale(2)
    never(lambda: mirror.uid() != before, during=15, what="another driver")
    assert len(mirror.starts()) == 1
    assert mirror.resource()["metadata"]["resourceVersion"] == version, "a restart has nothing to write"


def test_twenty_kills_in_mid_submit_make_one_driver(mirror: Mirror, operator: Operator) -> None:
    """The operator dies at random moments after a pipeline is made; each pipeline gets one driver, once."""
    mirrors = []
    for number in range(20):
        one = Mirror(mirror.kube, f"shop-{number}")
        acting = eventually(operator.holder, what="an operator that acts")
        one.create()
        time.sleep(random.uniform(0.0, 1.2))
        operator.kill(acting)
        mirrors.append(one)
    phases: set[str] = set()

    def all_ready() -> bool:
        statuses = [one.status() for one in mirrors]
        phases.update(status.get("phase", "") for status in statuses)
        return all(one.condition("Ready").get("status") == "True" for one in mirrors)

    eventually(all_ready, within=240, what="20 pipelines ready")
    assert "Failed" not in phases
    for one in mirrors:
        assert len(one.drivers()) == 1
        assert [line["what"] for line in one.journal()] == ["start"], one.name
        assert one.status().get("driver", {}).get("consecutiveFailures", 0) == 0


def test_a_namespace_goes_although_the_operator_is_gone(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    operator.scale(0)
    mirror.kube.kubectl("delete", "namespace", mirror.kube.namespace, "--timeout=90s", timeout=100)


def test_a_pipeline_goes_although_the_operator_is_gone(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    operator.scale(0)
    mirror.delete("--timeout=30s")
    mirror.gone()
    eventually(lambda: not mirror.drivers(), what="the driver gone")


def test_a_poisoned_pipeline_stops_no_other(kube: Kube) -> None:
    """What no CRD can check comes to the operator: it says so, and goes on with the others."""
    poisons = {
        "pattern": {"source": {"kafka": {"topics": None, "topicPattern": "a(b"}}},
        "cron": {"trigger": {"interval": None, "availableNow": True, "schedule": "61 * * * *"}},
        "template": {"spark": {"podTemplate": {"spec": {"containers": "none"}}}},
    }
    poisoned = [Mirror(kube, name).create(**spec) for name, spec in poisons.items()]
    Mirror(kube, "healthy").create().ready()
    for one in poisoned:
        assert one.wait("Stalled", reason="InvalidSpec")["message"], one.name
        assert one.condition("Ready")["status"] == "False"
    Mirror(kube, "later").create().ready()


def test_another_operator_takes_over_within_a_minute(mirror: Mirror, operator: Operator) -> None:
    first = eventually(operator.holder, what="an operator that acts")
    operator.kill(first)
    began = time.monotonic()
    mirror.create().ready(within=60)
    assert operator.holder() not in ("", first)
    assert time.monotonic() - began < 60


def test_losing_the_lease_ends_the_operator_at_once(mirror: Mirror, operator: Operator) -> None:
    acting = eventually(operator.holder, what="an operator that acts")
    lease = operator.lease()["metadata"]["name"]
    restarts = {pod["metadata"]["name"]: exits(pod) for pod in operator.pods()}
    operator.kube.merge("lease", lease, {"spec": {"holderIdentity": "somebody-else"}})
    eventually(
        lambda: {p["metadata"]["name"]: exits(p) for p in operator.pods()}.get(acting, 0) > restarts[acting],
        within=30,
        what="the operator that lost the Lease has ended",
    )
    mirror.create().ready(within=90)


def test_the_operator_is_small(mirror: Mirror, operator: Operator) -> None:
    mirror.create().ready()
    assert operator.image_size() < 250
    assert all(operator.memory(pod["metadata"]["name"]) < 120 for pod in operator.pods())


def exits(pod: dict) -> int:  # type: ignore[type-arg]
    return sum(c["restartCount"] for c in pod["status"].get("containerStatuses", []))
