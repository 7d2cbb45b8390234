"""``kubectl wait`` itself, for each state that the operator can report: it ends when docs/gitops.md says so.

No operator takes part. The resources are of a copy of the CRD in another group, which none watches, and their
statuses are those of the test data of the health check for Argo CD, which the operator's own plans wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import yaml

from lakemirror.api import crd
from lakemirror.api.pipeline import KIND, VERSION
from tests.cluster.kube import Kube, KubectlFailed, Object, eventually
from tests.controller.builders import document
from tests.gitops.judges import CUSTOMIZATION
from tests.gitops.states import STATES

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.guarantee(
        "Argo CD, Flux, kstatus and `kubectl wait` judge every state correctly; no verdict of the operator "
        "is missing from these states"
    ),
]

GROUP = "states.lakemirror.test"
NAME = f"{crd.PLURAL}.{GROUP}"
FINALIZER = f"{GROUP}/kept"
AT_ONCE = 8
"""How many kubectl there are at a time; most of them do nothing but wait."""


def is_leaving(body: Object) -> bool:
    return "deletionTimestamp" in body["metadata"]


def stored(body: Object) -> Object:
    """A state as it is in a cluster, where a deletion is a new generation, which the operator has seen."""
    if is_leaving(body):
        status = body["status"]
        for part in (status, *status["conditions"]):
            part["observedGeneration"] += 1
        body["metadata"]["generation"] += 1
    return body


BODIES: dict[str, Object] = {
    path.stem.partition("_")[2]: stored(yaml.safe_load(path.read_text()))
    for path in sorted((CUSTOMIZATION / "testdata").glob("*.yaml"))
}
RUNNING = BODIES["running"]
BODIES["unseen"] = {"metadata": {"generation": 1}, "status": crd.UNSEEN}
BODIES["edited"] = {**RUNNING, "metadata": {**RUNNING["metadata"], "generation": 2}}

READY = {name: name in STATES and STATES[name].ready for name in BODIES}
STALLED = {
    name: any(c["type"] == "Stalled" for c in body["status"].get("conditions", ()))
    for name, body in BODIES.items()
}


def copy_of_the_crd() -> Object:
    """The same definition in another group, and without short names, which may exist once in a cluster."""
    definition = crd.definition()
    spec: Object = definition["spec"]
    names = {part: spec["names"][part] for part in ("kind", "listKind", "plural", "singular")}
    return {**definition, "metadata": {"name": NAME}, "spec": {**spec, "group": GROUP, "names": names}}


def is_established(kube: Kube) -> bool:
    """Whether the API server serves the copy. ``kubectl wait`` fails while there is no condition at all."""
    conditions = ((kube.get("crd", NAME) or {}).get("status") or {}).get("conditions") or []
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


@pytest.fixture(scope="module")
def states(cluster: Kube) -> Iterator[Kube]:
    """A namespace with a resource for each state, which has its name."""
    kube = cluster.within(f"states-{uuid.uuid4().hex[:8]}")
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": kube.namespace}})
    kube.apply(copy_of_the_crd())
    try:
        eventually(lambda: is_established(kube), what="the copy of the CRD established")
        kube.apply(*(resource(name) for name in BODIES))
        edited = [n for n, b in BODIES.items() if b["metadata"]["generation"] > 1 and not is_leaving(b)]
        kube.apply(*(resource(name, restartToken="1") for name in edited))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda name: bring_about(kube, name), BODIES))
        yield kube
    finally:
        for each in kube.list(NAME) if kube.get("crd", NAME) else []:
            if each["metadata"].get("finalizers"):
                kube.merge(NAME, each["metadata"]["name"], {"metadata": {"finalizers": None}})
        kube.delete("crd", NAME)
        kube.delete("namespace", kube.namespace, "--wait=false")


def resource(name: str, **spec: Any) -> Object:
    """A resource in that state. Its spec is a valid one, whatever brought the state about."""
    kept = [FINALIZER] if is_leaving(BODIES[name]) else []
    metadata = {"name": name, "finalizers": kept}
    made = document(name, **spec)
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": made["spec"]}


def bring_about(kube: Kube, name: str) -> None:
    """Delete the resource if it is leaving, and write its status, as the operator does."""
    if is_leaving(BODIES[name]):
        kube.delete(NAME, name, "--wait=false")
    if name != "unseen":
        kube.merge(NAME, name, {"status": BODIES[name]["status"]}, "--subresource=status")


@pytest.fixture(scope="module")
def ended(states: Kube) -> dict[tuple[str, str], bool]:
    """Whether ``kubectl wait`` ended well, for each state and condition; otherwise its time was up."""

    def waited(case: tuple[str, str, bool]) -> bool:
        name, condition, expected = case
        timeout = "60s" if expected else "1s"
        try:
            states.kubectl("wait", f"{NAME}/{name}", f"--for=condition={condition}", f"--timeout={timeout}")
        except KubectlFailed as failed:
            if "timed out waiting for the condition" in str(failed):
                return False
            raise
        return True

    cases = [(name, "Ready", wanted) for name, wanted in READY.items()]
    cases += [(name, "Stalled", wanted) for name, wanted in STALLED.items()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(waited, cases))
    return {(name, condition): well for (name, condition, _), well in zip(cases, found, strict=True)}


def test_each_state_is_there(states: Kube) -> None:
    """As the test data has it: with its generation, conditions and deletion."""
    there = {each["metadata"]["name"]: each for each in states.list(NAME)}
    assert there.keys() == BODIES.keys() >= STATES.keys()
    for name, body in BODIES.items():
        found = there[name]
        assert found["metadata"]["generation"] == body["metadata"]["generation"], name
        assert found["status"] == body["status"], name
        assert is_leaving(found) == is_leaving(body), name


@pytest.mark.parametrize("name", BODIES)
def test_kubectl_waits_for_ready(name: str, ended: dict[tuple[str, str], bool]) -> None:
    assert ended[name, "Ready"] == READY[name]


@pytest.mark.parametrize("name", BODIES)
def test_kubectl_waits_for_stalled(name: str, ended: dict[tuple[str, str], bool]) -> None:
    """As a script does that must not wait for a pipeline that has failed."""
    assert ended[name, "Stalled"] == STALLED[name]
