"""The installed operator, as someone who runs it sees it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.cluster.kube import Kube, Object, eventually

OPERATORS = "lakemirror-operators"
"""The namespace that the tests install the operator in."""
RELEASE = "lakemirror"
CRD = "cdcpipelines.lakemirror.io"
SELECTOR = "app.kubernetes.io/component=operator"


@dataclass(frozen=True)
class Operator:
    kube: Kube

    def install(self, chart: Path, image: str, driver_image: str, **more: str) -> None:
        """Install it, or upgrade it; ``more`` are further values of the chart, with __ for a dot."""
        values = {"replicas": "2", "log.level": "debug"}
        if "admissionPolicy" in (chart / "values.yaml").read_text():  # earlier versions lack it
            values["admissionPolicy.enabled"] = "true"
        values |= {name.replace("__", "."): value for name, value in more.items()}
        for name, reference in (("image", image), ("driverImage", driver_image)):
            values[f"{name}.repository"], _, values[f"{name}.tag"] = reference.rpartition(":")
        settings = [option for name, value in values.items() for option in ("--set", f"{name}={value}")]
        create = ["--install", "--create-namespace", "--wait", "--timeout", "120s"]
        self.kube.run("helm", "upgrade", RELEASE, str(chart), *create, *settings, timeout=180)

    def uninstall(self) -> None:
        """Take it away, and what it may have left: first the pipelines, which may need it to go."""
        for namespace in self.kube.list("namespace") if self.kube.get("crd", CRD) is not None else []:
            self.kube.within(namespace["metadata"]["name"]).kubectl("delete", "cdc", "--all")
        self.kube.run("helm", "uninstall", RELEASE, "--wait", "--ignore-not-found")
        self.kube.delete("crd", CRD)
        self.kube.delete("namespace", OPERATORS, "--wait=false")

    def scale(self, replicas: int) -> None:
        """Return when so many are ready and no other is left."""
        self.kube.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={replicas}")
        eventually(lambda: self._settled(replicas), within=90, what=f"{replicas} operators")

    def _settled(self, replicas: int) -> bool:
        pods = self.pods()
        return len(pods) == replicas and all(ready(pod) for pod in pods)

    def pods(self) -> list[Object]:
        return self.kube.list("pod", SELECTOR)

    def lease(self) -> Object:
        (lease,) = self.kube.list("lease")
        return lease

    def holder(self) -> str:
        """The pod that acts; empty when none does."""
        identity = self.lease()["spec"].get("holderIdentity") or ""
        names = [pod["metadata"]["name"] for pod in self.pods()]
        return next((name for name in names if identity.startswith(name)), "")

    def memory(self, pod: str) -> float:
        """What its processes have resident, in MiB."""
        return self.kube.resident(pod)

    def image_size(self) -> float:
        """The size of its image in the node's words, in MB."""
        image = self.pods()[0]["spec"]["containers"][0]["image"]
        images = [image for node in self.kube.list("node") for image in node["status"]["images"]]
        # Images that lost their tag to a newer build have no names.
        sizes = [i["sizeBytes"] for i in images if any(n.endswith(image) for n in i.get("names") or ())]
        return max(sizes) / 1e6

    def kill(self, pod: str) -> None:
        """End it at once, without a chance to give back the Lease."""
        self.kube.delete("pod", pod, "--force", "--grace-period=0", "--wait=false")


def ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
