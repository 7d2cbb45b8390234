"""Names of the operator's objects, and the labels and annotations by which it recognizes them."""

from __future__ import annotations

import hashlib

from lakemirror.api import GROUP

FIELD_MANAGER = "lakemirror-operator"
"""The name under which the operator applies objects (server-side apply)."""

MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
PIPELINE = f"{GROUP}/pipeline"
PIPELINE_UID = f"{GROUP}/pipeline-uid"
"""Label of pods, by which workloads select them. Others may use a name, and it may recur; a uid is unique."""
REVISION = f"{GROUP}/revision"
"""Annotation of workloads and pods: the revision of the spec that they run; see ``fields.revision``."""
APPLIED = f"{GROUP}/applied"
"""Annotation of every object: a hash of what was applied, so that unchanged objects are not applied again."""
CURRENT = f"{GROUP}/current"
"""Annotation of the config ConfigMap: the revision that should run now."""
IMAGE = f"{GROUP}/image"
"""Annotation of the config ConfigMap: the image that the driver was given."""
MOVED = f"{GROUP}/moved"
"""Annotation of the config ConfigMap while the driver has to prove itself on a new default image.

It says since when, and which image came before; see ``rollout``.
"""
AUTHENTICATION = f"{GROUP}/authentication"
"""Annotation of the config ConfigMap: the Secret, which was created before it. The operator reads none."""
FINALIZER = f"{GROUP}/data"
"""Keeps a deleted pipeline until its data is deleted. Not used with deletionPolicy Retain."""

SELECTOR = f"{MANAGED_BY}={FIELD_MANAGER},{PIPELINE}"
"""Selects what the operator watches: its own objects, but no executors."""


def labels(pipeline: str, component: str) -> dict[str, str]:
    """Return the labels of an object of ``pipeline`` that the operator watches."""
    return {
        "app.kubernetes.io/name": "lakemirror",
        "app.kubernetes.io/instance": pipeline,
        COMPONENT: component,
        MANAGED_BY: FIELD_MANAGER,
        PIPELINE: pipeline,
    }


def pod_labels(pipeline: str, component: str, uid: str | None) -> dict[str, str]:
    """Return the labels of a pod of ``pipeline``. Without ``uid``, as in mere renderings, they lack it."""
    return labels(pipeline, component) | ({PIPELINE_UID: uid} if uid is not None else {})


def selector(pipeline: str, component: str, uid: str | None) -> dict[str, str]:
    """Return the labels by which a pipeline's pods are selected."""
    whole = pod_labels(pipeline, component, uid)
    return {name: whole[name] for name in (PIPELINE, COMPONENT, PIPELINE_UID) if name in whole}


def driver(pipeline: str) -> str:
    """Return the name of the workload, its Service, account and rights. The driver's pod appends ``-0``."""
    return f"{pipeline}-driver"


def config(pipeline: str) -> str:
    """Return the name of the ConfigMap with what the driver runs: the last good spec."""
    return f"{pipeline}-config"


def progress(pipeline: str) -> str:
    """Return the name of the ConfigMap into which the driver writes its progress report."""
    return f"{pipeline}-progress"


def executors(pipeline: str) -> str:
    """Return the name of the executors' NetworkPolicy."""
    return f"{pipeline}-executors"


def executor_labels(pipeline: str) -> dict[str, str]:
    """Return the labels of the executors' pods, by which they are selected."""
    return {PIPELINE: pipeline, COMPONENT: "executor"}


def authentication(pipeline: str, uid: str | None) -> str:
    """Return the name of the Secret by which driver and executors recognize each other.

    It contains the uid: the Secret of a former pipeline of this name is deleted some time after that one, and
    the operator, which may not read Secrets, could not tell whose it is.
    """
    digest = hashlib.sha256(uid.encode()).hexdigest()[:8] if uid is not None else "0"
    return f"{pipeline}-rpc-{digest}"


def run(pipeline: str, revision: str) -> str:
    """Return the name of the Job of a run-once pipeline."""
    return f"{pipeline}-run-{revision}"


def cleanup(pipeline: str) -> str:
    """Return the name of the Job that deletes the data of a deleted pipeline."""
    return f"{pipeline}-cleanup"
