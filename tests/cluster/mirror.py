"""A pipeline under test: what a person asks of it, and what can be seen of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import yaml

from tests.cluster.kube import Kube, Object, eventually

READY_WITHIN = 60


@dataclass(frozen=True)
class Mirror:
    kube: Kube
    name: str

    # What a person does

    def manifest(self, **spec: Any) -> Object:
        """A small pipeline of its own source, target and checkpoint, changed by ``spec``."""
        whole = {
            "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": [self.name]}},
            "target": {"path": f"s3a://lake/{self.kube.namespace}/{self.name}/{{table}}"},
            "checkpoint": f"s3a://lake/{self.kube.namespace}/_checkpoints/{self.name}",
            "spark": {"executors": {"max": 0}, "driver": {"memory": "512m"}, "podTemplate": SMALL},
        }
        metadata = {"name": self.name, "namespace": self.kube.namespace}
        head = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": metadata}
        return {**head, "spec": merged(whole, spec)}

    def create(self, **spec: Any) -> Mirror:
        self.behave()
        self.kube.apply(self.manifest(**spec))
        return self

    def edit(self, **spec: Any) -> int:
        """A merge patch of the spec; returns the new generation."""
        self.kube.merge("cdc", self.name, {"spec": spec})
        return int(self.resource()["metadata"]["generation"])

    def delete(self, *options: str) -> None:
        self.kube.delete("cdc", self.name, *options)

    # What the stand-in does

    def behave(self, **behaviour: Any) -> None:
        """From now on; see tests/cluster/standin/standin.py."""
        name = f"{self.name}-behaviour"
        if self.kube.get("configmap", name) is None:
            self.kube.kubectl("create", "configmap", name)
        self.kube.merge("configmap", name, {"data": {"behaviour": json.dumps(behaviour)}})

    def journal(self) -> list[Object]:
        """The stand-in's starts and ends, in order."""
        found = self.kube.get("configmap", f"{self.name}-behaviour") or {}
        return [json.loads(line) for line in (found.get("data") or {}).get("journal", "").splitlines()]

    def starts(self) -> list[Object]:
        """The specs that drivers were started with, in order."""
        return [
            yaml.safe_load(line["manifest"])["spec"] for line in self.journal() if line["what"] == "start"
        ]

    # What can be seen

    def resource(self) -> Object:
        found = self.kube.get("cdc", self.name)
        assert found is not None, f"there is no pipeline {self.name}"
        return found

    def status(self) -> Object:
        status: Object = self.resource().get("status") or {}
        return status

    def condition(self, type: str) -> Object:
        """The condition; empty where there is none."""
        return next((c for c in self.status().get("conditions", []) if c["type"] == type), {})

    def drivers(self) -> list[Object]:
        """The driver's pods, those that are ending among them."""
        selector = f"lakemirror.io/pipeline={self.name},app.kubernetes.io/component=driver"
        return self.kube.list("pod", selector)

    def uid(self) -> str:
        """Of the only driver's pod."""
        (pod,) = self.drivers()
        return str(pod["metadata"]["uid"])

    def events(self) -> list[Object]:
        """Kubernetes Events about the pipeline."""
        found = self.kube.list("events")
        return [e for e in found if e["involvedObject"].get("name") == self.name]

    # What is waited for

    def wait(
        self, type: str, status: str = "True", *, reason: str = "", within: float = READY_WITHIN
    ) -> Object:
        """The condition, as soon as it has this status (and reason), of the newest generation."""

        def found() -> Object | None:
            resource = self.resource()
            seen = resource.get("status") or {}
            conditions = [c for c in seen.get("conditions", []) if c["type"] == type]
            current = seen.get("observedGeneration") == resource["metadata"]["generation"]
            good = [c for c in conditions if c["status"] == status and reason in ("", c["reason"])]
            return good[0] if good and current else None

        what = f"{type}={status} {reason} of {self.name}"
        try:
            return eventually(found, within=within, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}; status: {json.dumps(self.status(), indent=1)[:3000]}") from None

    def ready(self, within: float = READY_WITHIN) -> Mirror:
        self.wait("Ready", within=within)
        return self

    def seen(self, generation: int) -> None:
        """Return when the operator has judged this generation."""
        eventually(
            lambda: self.status().get("observedGeneration", 0) >= generation,
            what=f"generation {generation} seen",
        )

    def gone(self, within: float = READY_WITHIN) -> None:
        eventually(lambda: self.kube.get("cdc", self.name) is None, within=within, what=f"{self.name} gone")


SMALL = {
    "spec": {"containers": [{"name": "driver", "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}]}
}
"""Many stand-ins fit on a small node."""


def merged(base: Any, over: Any) -> Any:
    """``over`` laid over ``base``: mappings field by field (None removes one), the rest as a whole."""
    if not isinstance(over, dict):
        return over
    under = base if isinstance(base, dict) else {}
    found = {name: merged(under.get(name), value) for name, value in over.items() if value is not None}
    return {name: value for name, value in under.items() if name not in over} | found
