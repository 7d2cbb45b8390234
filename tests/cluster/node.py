"""A node without a machine: what the API server sees of one that stops answering, as a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.cluster.kube import Kube, Object, eventually

LABEL = "lakemirror.io/test-node"


@dataclass(frozen=True)
class SilentNode:
    """It says once that it is ready, and that a pod runs; then nothing more, as if its machine were lost."""

    kube: Kube
    name: str

    def where(self) -> Object:
        """The part of a pod template that brings a pod here, and lets it be evicted soon after."""
        lost = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
        return {
            "nodeSelector": {LABEL: self.name},
            "tolerations": [lost | {"tolerationSeconds": 5}],
            "terminationGracePeriodSeconds": 5,
        }

    def run(self, pod: Object) -> None:
        """Say that the pod's containers run."""
        now = _now()
        containers = [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ]
        conditions = [
            {"type": type, "status": "True", "lastTransitionTime": now}
            for type in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ]
        status = {"phase": "Running", "conditions": conditions, "containerStatuses": containers}
        self.kube.merge("pod", pod["metadata"]["name"], {"status": status}, "--subresource=status")


@contextmanager
def silent_node(kube: Kube) -> Iterator[SilentNode]:
    """A node that pods can be scheduled on; gone at the end."""
    node = SilentNode(kube, f"silent-{kube.namespace}")
    # The kubelet sets the latter, and drivers ask for it.
    labels = {LABEL: node.name, "kubernetes.io/os": "linux"}
    metadata = {"name": node.name, "labels": labels}
    kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
    try:
        room = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": _now(),
            "lastTransitionTime": _now(),
        }
        status = {"capacity": room, "allocatable": room, "conditions": [ready]}
        kube.merge("node", node.name, {"status": status}, "--subresource=status")
        eventually(
            lambda: not ((kube.get("node", node.name) or {}).get("spec") or {}).get("taints"),
            what="a node that pods can be scheduled on",
        )
        yield node
    finally:
        kube.delete("node", node.name)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
