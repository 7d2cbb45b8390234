"""What the API server lets the operator's account do, with the chart's admission policy: its work, no more.

All tests of a cluster run with that policy, so that what the operator does has passed it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.kube import KubectlFailed, Object
from tests.cluster.mirror import Mirror
from tests.cluster.operator import OPERATORS, RELEASE

pytestmark = pytest.mark.cluster

ACCOUNT = f"system:serviceaccount:{OPERATORS}:{RELEASE}"
OURS = {"app.kubernetes.io/managed-by": "lakemirror-operator", "lakemirror.io/pipeline": "shop"}


def owner(mirror: Mirror, **changes: Any) -> Object:
    metadata = mirror.resource()["metadata"]
    named = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "name": metadata["name"]}
    return {**named, "uid": metadata["uid"], **changes}


def config(labels: dict[str, str], *owners: Object) -> Object:
    metadata = {"name": "made", "labels": labels, "ownerReferences": list(owners)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def pod(labels: dict[str, str], *owners: Object) -> Object:
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "c", "image": "i:1", "securityContext": security}
    safe = {"runAsNonRoot": True, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": safe}
    return {**config(labels, *owners), "kind": "Pod", "spec": spec}


def login(*owners: Object) -> Object:
    """A Secret into which the API server writes a token of a service account."""
    made = config(OURS, *owners)
    account = {"annotations": {"kubernetes.io/service-account.name": "default"}}
    kind = {"kind": "Secret", "type": "kubernetes.io/service-account-token"}
    return {**made, **kind, "metadata": {**made["metadata"], **account}}


def create(mirror: Mirror, made: Object, *options: str) -> str:
    """What the API server says to the operator's account; empty if it creates the object."""
    try:
        mirror.kube.create_as(ACCOUNT, made, *options)
    except KubectlFailed as error:
        return str(error)
    return ""


@pytest.mark.guarantee(
    "On demand, the API server holds the operator's account to objects with its label that a pipeline owns"
)
def test_the_operator_works_and_its_account_may_do_nothing_else(mirror: Mirror) -> None:
    mirror.create(spark={"executors": {"max": 1}}).ready()
    [secret] = mirror.kube.list("secret", "lakemirror.io/pipeline=shop")
    ours = owner(mirror)
    assert secret["metadata"]["ownerReferences"][0]["uid"] == ours["uid"]
    assert set(secret["data"]) == {"secret", "secret-base64"}
    assert create(mirror, config(OURS, ours), "--dry-run=server") == ""
    refused = {
        "without a label": config({}, ours),
        "of nobody": config(OURS),
        "of another pipeline": config(OURS, owner(mirror, name="other")),
        "of another kind": config(OURS, owner(mirror, kind="Deployment", apiVersion="apps/v1")),
        "a pod without the label": pod({}, ours),
        "a pod of the pipeline": pod(OURS, ours),
        "a pod like a driver's": pod(OURS, owner(mirror, kind="StatefulSet", apiVersion="apps/v1")),
        "a login": login(ours),
    }
    for what, made in refused.items():
        said = create(mirror, made)
        assert "ValidatingAdmissionPolicy" in said, (what, said)
    mirror.kube.apply({**config({}), "metadata": {"name": "foreign"}})
    for command in (["delete", "configmap", "foreign"], ["label", "configmap", "foreign", "a=b"]):
        with pytest.raises(KubectlFailed, match="changes and deletes only objects with its own labels"):
            mirror.kube.kubectl(*command, f"--as={ACCOUNT}")
