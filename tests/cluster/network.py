"""What pods reach of each other, seen from within them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tests.cluster.kube import Kube, Object, eventually

_CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 3).close()
except OSError:
    print("no")
else:
    print("yes")
"""
_LISTENED = """
import json
ports = set()
for name in ("tcp", "tcp6"):
    with open(f"/proc/net/{name}") as table:
        fields = [line.split() for line in table][1:]
    places = [each[1].split(":") for each in fields if each[3] == "0A"]
    ports |= {int(port, 16) for address, port in places if not address.endswith("0100007F")}
print(json.dumps(sorted(ports)))
"""
_PORT = 8000


@dataclass(frozen=True)
class Probe:
    """A pod that belongs to nobody; it listens on a port, and connects to others."""

    kube: Kube
    image: str
    name: str = "probe"

    def create(self) -> None:
        security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        container = {
            "name": "probe",
            "image": self.image,
            "command": ["python3", "-m", "http.server", str(_PORT), "--directory", "/opt"],
            "securityContext": security,
        }
        pod_security = {"runAsNonRoot": True, "runAsUser": 185, "seccompProfile": {"type": "RuntimeDefault"}}
        spec = {
            "containers": [container],
            "securityContext": pod_security,
            "terminationGracePeriodSeconds": 0,
        }
        metadata = {"name": self.name, "labels": {"app": "probe"}}
        self.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        eventually(lambda: self.pod()["status"].get("podIP"), what="a probe with an address")
        eventually(lambda: self.reaches(self.pod(), _PORT), what="a probe that listens")

    def pod(self) -> Object:
        found = self.kube.get("pod", self.name)
        assert found is not None
        return found

    def reaches(self, pod: Object, port: int) -> bool:
        """Whether a connection to a pod's port can be made."""
        return self._python(_CONNECT, pod["status"]["podIP"], str(port)) == "yes"

    def listened(self) -> set[int]:
        """The ports on which the pod's processes listen, beyond its own loopback."""
        return set(json.loads(self._python(_LISTENED)))

    def _python(self, text: str, *arguments: str) -> str:
        return self.kube.kubectl("exec", self.name, "--", "python3", "-c", text, *arguments).strip()


def require_enforcement(one: Probe, other: Probe) -> None:
    """Skip the test where the cluster's network knows no policies."""
    assert other.reaches(one.pod(), _PORT)
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "probe"},
        "spec": {"podSelector": {"matchLabels": {"app": "probe"}}, "policyTypes": ["Ingress"]},
    }
    one.kube.apply(policy)
    try:
        eventually(lambda: not other.reaches(one.pod(), _PORT), within=30)
    except AssertionError:
        pytest.skip("the cluster's network does not enforce network policies")
