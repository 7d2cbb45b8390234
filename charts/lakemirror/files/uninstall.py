"""helm uninstall: which pipelines hold a finalizer that nobody removes once the operator is gone?

Takes how to end if there are some ("warn" or "fail"), and the namespaces to look at; none means all. What is
printed, helm shows; the same is recorded as an Event of each of these pipelines. Leaves with exit code 1 only
with "fail": that cannot look is no reason not to uninstall.
"""

import json
import os
import ssl
import sys
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
API = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
GROUP = "lakemirror.io"
FINALIZER = f"{GROUP}/data"
PATCH = """kubectl patch cdc {name} -n {namespace} --type=merge -p '{{"metadata":{{"finalizers":null}}}}'"""
REMEDY = """Their drivers run on. But from now on, to delete such a pipeline hangs: only the operator deletes
its data and then removes the finalizer {finalizer}. To delete it and keep its data:

  {patch}

or install the operator again, which goes on with the deletion."""
EVENT = (
    "helm uninstall removed the operator. The driver runs on, but to delete this pipeline hangs: only the "
    "operator deletes its data and then removes the finalizer {finalizer}. Install the operator again, or "
    "keep the data: {patch}"
)


def call(path, body=None):
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
        "Content-Type": "application/json",
    }
    request = urllib.request.Request(f"{API}{path}", body and json.dumps(body).encode(), headers)
    trust = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    with urllib.request.urlopen(request, context=trust, timeout=10) as answer:
        return json.load(answer)


def pipelines(namespaces):
    for path in [f"namespaces/{namespace}/" for namespace in namespaces] or [""]:
        listed = call(f"/apis/{GROUP}/v1alpha1/{path}cdcpipelines")
        yield from (p for p in listed["items"] if FINALIZER in p["metadata"].get("finalizers", ()))


def record(pipeline):
    """An Event; the status is the operator's, and there is none any more."""
    metadata, now = pipeline["metadata"], datetime.now(UTC).isoformat(timespec="seconds")
    event = {
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": f"{GROUP}/v1alpha1",
            "kind": "CdcPipeline",
            **{key: metadata[key] for key in ("name", "namespace", "uid")},
        },
        "type": "Warning",
        "reason": "OperatorUninstalled",
        "message": EVENT.format(finalizer=FINALIZER, patch=PATCH.format(**metadata)),
        "source": {"component": "helm-uninstall"},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    call(f"/api/v1/namespaces/{metadata['namespace']}/events", event)


def told(pipeline):
    metadata, policy = pipeline["metadata"], pipeline["spec"].get("deletionPolicy")
    return f"  {metadata['namespace']}/{metadata['name']} (deletionPolicy: {policy})"


mode, *namespaces = sys.argv[1:]
try:
    held = list(pipelines(namespaces))
    if not held:
        sys.exit(0)
    print("WARNING: without the operator, these pipelines cannot be deleted:\n")
    print("\n".join(map(told, held)))
    print()
    print(REMEDY.format(finalizer=FINALIZER, patch=PATCH.format(name="NAME", namespace="NAMESPACE")))
    if mode == "fail":
        print("\nNothing was uninstalled. Delete them first, or set spec.deletionPolicy: Retain in each.")
        sys.exit(1)
    for pipeline in held:
        record(pipeline)
except OSError as error:
    print(f"pipelines with the finalizer {FINALIZER} cannot be looked for: {error}")
