"""kubectl, as far as the tests need it: everything they do and see goes through it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

Object = dict[str, Any]
T = TypeVar("T")


class KubectlFailed(AssertionError):
    """kubectl's own words."""


@dataclass(frozen=True)
class Kube:
    """A cluster, looked at from one namespace."""

    kubeconfig: Path
    namespace: str = "default"
    tools: dict[str, str] = field(default_factory=lambda: {"kubectl": "kubectl", "helm": "helm"})

    def within(self, namespace: str) -> Kube:
        """The same cluster, from another namespace."""
        return replace(self, namespace=namespace)

    def run(self, tool: str, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        """Standard output of a tool; KubectlFailed with its standard error if it fails."""
        command = [self.tools[tool], "--namespace", self.namespace, *arguments]
        environment = os.environ | {"KUBECONFIG": str(self.kubeconfig)}
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout, env=environment, check=False
        )
        if done.returncode != 0:
            raise KubectlFailed(f"{tool} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str, text: str | None = None, timeout: float = 120) -> str:
        return self.run("kubectl", *arguments, text=text, timeout=timeout)

    def apply(self, *objects: Object) -> None:
        """kubectl apply -f -, without a check of unknown fields beyond the API server's own."""
        documents = "\n---\n".join(json.dumps(o) for o in objects)
        self.kubectl(
            "apply", "--server-side", "--field-manager=tests", "--force-conflicts", "-f", "-", text=documents
        )

    def create_as(self, user: str, made: Object, *options: str) -> None:
        """kubectl create, as another user."""
        self.kubectl("create", f"--as={user}", *options, "-f", "-", text=json.dumps(made))

    def get(self, kind: str, name: str) -> Object | None:
        """The object, or None where there is none."""
        out = self.kubectl("get", kind, name, "--ignore-not-found", "-o", "json")
        found: Object | None = json.loads(out) if out else None
        return found

    def list(self, kind: str, selector: str = "") -> list[Object]:
        out = self.kubectl("get", kind, "-o", "json", *(("-l", selector) if selector else ()))
        items: list[Object] = json.loads(out)["items"]
        return items

    def merge(self, kind: str, name: str, patch: Object, *options: str) -> None:
        """A merge patch."""
        # From a file: some patches are longer than an argument can be.
        self.kubectl(
            "patch", kind, name, "--type=merge", "--patch-file=/dev/stdin", *options, text=json.dumps(patch)
        )

    def resident(self, pod: str) -> float:
        """What the processes of a pod have resident, in MiB."""
        read = "cat /proc/[0-9]*/status | grep VmRSS"
        lines = self.kubectl("exec", pod, "--", "sh", "-c", read).splitlines()
        return sum(int(line.split()[1]) for line in lines) / 1024

    def delete(self, kind: str, name: str, *options: str) -> None:
        self.kubectl("delete", kind, name, "--ignore-not-found", *options)


def eventually(look: Callable[[], T], *, within: float = 60, what: str = "", every: float = 0.5) -> T:
    """What ``look`` returns as soon as it is true; AssertionError with its last answer after ``within`` s."""
    end = time.monotonic() + within
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"not within {within:.0f} s: {what or look}; last seen: {found!r}"
        time.sleep(every)


def never(look: Callable[[], Any], *, during: float, what: str = "", every: float = 1.0) -> None:
    """``look`` stays false for ``during`` seconds."""
    end = time.monotonic() + during
    while time.monotonic() < end:
        found = look()
        assert not found, f"{what or look}: {found!r}"
        time.sleep(every)
