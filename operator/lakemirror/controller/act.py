"""Carries out plans: applies and deletes objects, writes the status, records events."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from kubernetes.utils.quantity import parse_quantity

from lakemirror.api import API_VERSION, KIND, PipelineStatus
from lakemirror.api.report import cut_off
from lakemirror.controller import authentication, names, observe, status
from lakemirror.controller.cache import Cache, Identity, Key, identity_of
from lakemirror.controller.kube import Api, ApiError, Propagation, Unreachable
from lakemirror.controller.values import Deletion, Event, Object, Obstacle, Pod, Resource

_MADE_ONCE = ("Job", "SparkApplication")
_UNTRIED = ("RoleBinding",)
"""Kinds that a dry run cannot check: binding a Role is checked against its rights, so the Role must exist."""
_TRIES = 5
_TOLD_KEPT = 50
"""How many different events of a pipeline are counted."""
_log = logging.getLogger(__name__)


class _Outdated(Exception):
    """The resource is not what the request was made for."""


class Actor:
    """Acts for all pipelines. Returns obstacles; raises Unreachable and any other unexpected error."""

    def __init__(self, api: Api, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._told: dict[Key, dict[str, int]] = {}
        """How often each of a pipeline's latest events was recorded."""
        self._missing: set[Key] = set()
        """Pipelines whose pods say that the Secret is not there, although it was created once."""

    def forget(self, key: Key) -> None:
        """Forget a pipeline that is no longer managed."""
        self._told.pop(key, None)
        self._missing.discard(key)

    def look_for_secret(self, resource: Resource, *problems: str) -> None:
        """Have the Secret of a pipeline created again if ``problems``, which pods have, name it."""
        name = self._named_secret(resource)
        if name and any(name in problem for problem in problems):
            self._missing.add(Key(resource.namespace, resource.name))

    def makes_new(self, resource: Resource, objects: Sequence[Object]) -> bool:
        """Return whether any of ``objects`` does not exist yet, as far as the cache knows."""
        return any(there is None for _, there in self._due(resource, objects))

    async def trial(self, resource: Resource, objects: Sequence[Object]) -> tuple[Obstacle, ...]:
        """Dry-run ``objects`` and return the obstacles to applying them. Changes nothing."""
        due = self._due(resource, objects)
        found = await asyncio.gather(*(self._apply(resource, *each, dry_run=True) for each in due))
        return tuple(obstacle for obstacle in found if obstacle is not None)

    async def apply(self, resource: Resource, objects: Sequence[Object]) -> tuple[Obstacle, ...]:
        """Apply the objects that are not up to date, in the given order, until the first obstacle.

        An object of ours that depends on another is useless without it.
        """
        for document, there in self._due(resource, objects):
            obstacle = await self._apply(resource, document, there)
            if obstacle is not None:
                return (obstacle,)
        return ()

    def _due(self, resource: Resource, objects: Sequence[Object]) -> list[tuple[Object, Object | None]]:
        """Return the ``objects`` that are not up to date, each with the existing object if it is known."""
        key = Key(resource.namespace, resource.name)
        known = self._cache.of(key)
        secret = "" if key in self._missing else self._named_secret(resource)
        pairs = [(document, known.get(identity_of(document))) for document in objects]
        return [
            (document, there)
            for document, there in pairs
            if not is_applied(document, there)
            and (document["kind"] != "Secret" or document["metadata"]["name"] != secret)
        ]

    def _named_secret(self, resource: Resource) -> str:
        """Return the name of the Secret that was created before the config; empty if none was."""
        known = self._cache.of(Key(resource.namespace, resource.name))
        config = known.get(Identity("v1", "ConfigMap", names.config(resource.name)))
        if config is None or not observe.owned_by(config, resource.uid):
            return ""
        return str(observe.metadata_of(config, "annotations").get(names.AUTHENTICATION, ""))

    async def _apply(
        self, resource: Resource, document: Object, there: Object | None, *, dry_run: bool = False
    ) -> Obstacle | None:
        where = f"{document['kind']} {document['metadata']['name']}"
        if document["kind"] == "Secret":
            return await self._create_secret(resource, document, where, dry_run=dry_run)
        try:
            if there is None:
                there = await self._api.get(
                    document["apiVersion"], document["kind"], resource.namespace, document["metadata"]["name"]
                )
            if there is not None and not observe.owned_by(there, resource.uid):
                return _stranger(resource, where, there)
            if there is not None and document["kind"] in _MADE_ONCE:
                return None
            if dry_run and document["kind"] in _UNTRIED:
                return None
            made = await self._api.apply(_pinned(document, there), dry_run=dry_run)
        except ApiError as error:
            obstacle = _refused(where, error)
            if obstacle is None:
                raise
            return obstacle
        if dry_run:
            if there is not None and document["kind"] == "StatefulSet":
                return await self._try_pod(resource, document, there)
            return None
        _log.info("%s/%s: %s is applied", resource.namespace, resource.name, where)
        self._cache.take(made)
        return None

    async def _create_secret(
        self, resource: Resource, document: Object, where: str, *, dry_run: bool
    ) -> Obstacle | None:
        """Create a Secret, unless there is one of its name, which only this pipeline has.

        The operator may neither read nor change it: no one but the kubelet needs to know what is in it.
        """
        try:
            await self._api.create({**document, "data": authentication.new_data()}, dry_run=dry_run)
            if not dry_run:
                _log.info("%s/%s: %s is created", resource.namespace, resource.name, where)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                obstacle = _refused(where, error)
                if obstacle is None:
                    raise
                return obstacle
        if not dry_run:
            self._missing.discard(Key(resource.namespace, resource.name))
        return None

    async def _try_pod(self, resource: Resource, workload: Object, there: Object) -> Obstacle | None:
        """Return the obstacle to creating the workload's next pod, if any.

        This is checked before the running pod has to go for it, with a pod as the StatefulSet's controller
        creates it: policies may refuse others. Exceeded quota does not count, because the running pod counts
        against the quota, too. If the pod that runs would be refused in the same way, the edit is not the
        cause: this is a warning.
        """
        error = await self._pod_error(resource, workload, there)
        if error is None:
            return None
        obstacle = _refused(f"the pod of StatefulSet {workload['metadata']['name']}", error)
        if obstacle is None:
            raise error
        if obstacle.reason == "QuotaExceeded" or "cannot create resource" in str(error):
            return None
        if await self._pod_error(resource, there, there) is None:
            return replace(obstacle, reason="PodRefused")
        words = f"{obstacle.message}. The pod that runs would be refused, too, so the edit is not the cause"
        return replace(obstacle, message=words, warning=True)

    async def _pod_error(self, resource: Resource, workload: Object, owner: Object) -> ApiError | None:
        """Return why the API server would not create the pod of a StatefulSet that exists as ``owner``."""
        try:
            await self._api.create(_pod_of(workload, owner, resource.namespace), dry_run=True)
        except ApiError as error:
            return None if error.reason == "AlreadyExists" else error  # that comes after all other checks
        return None

    async def try_executor(self, resource: Resource, pod: Object) -> str:
        """Return why the API server would not create an executor's pod; empty if it would."""
        try:
            await self._api.create(pod, dry_run=True)
        except ApiError as error:
            obstacle = _refused("an executor's pod", error)
            known = "cannot create resource" in str(error)
            return obstacle.message if obstacle is not None and not known else ""
        return ""

    async def mark(self, resource: Resource, pods: Sequence[Pod]) -> None:
        """Label ``pods`` with the uid of their pipeline."""
        for pod in pods:
            metadata = {"name": pod.name, "namespace": resource.namespace, "uid": pod.uid}
            labels = {names.PIPELINE_UID: resource.uid}
            made = await self._api.merge(
                {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "labels": labels}}
            )
            self._cache.take(made)

    async def delete(self, resource: Resource, deletions: Sequence[Deletion]) -> None:
        """Delete the objects that are still the ones that were seen; skip those that are gone or replaced."""
        for gone in deletions:
            _log.info("%s/%s: %s %s is deleted", resource.namespace, resource.name, gone.kind, gone.name)
            try:
                await self._api.delete(
                    gone.api_version,
                    gone.kind,
                    resource.namespace,
                    gone.name,
                    gone.uid,
                    propagation=_propagation(gone),
                )
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

    async def write_status(self, resource: Resource, after: PipelineStatus) -> Object | None:
        """Write the status and return the updated resource, or None if the resource is gone.

        If the API server finds the status invalid, write only its conditions, which then say so.
        """
        try:
            return await self._patch(resource, {"status": status.document(after)}, part="status")
        except ApiError as error:
            if _verdict(error) != "InvalidSpec":
                raise
            _log.error("%s/%s: the status is refused: %s", resource.namespace, resource.name, error)
            least = status.document(status.essential(after, str(error)))
            return await self._patch(resource, {"status": least}, part="status")

    async def add_finalizer(self, resource: Resource) -> Object | None:
        """Add our finalizer and return the updated resource, or None if it is gone."""
        manager = f"{names.FIELD_MANAGER}-finalizer"
        return await self._patch(resource, {}, manager=manager, metadata={"finalizers": [names.FINALIZER]})

    async def remove_finalizer(self, resource: Resource) -> Object | None:
        """Remove our finalizer, whoever set it, and return the updated resource, or None if it is gone.

        Server-side apply would remove only what the operator has applied itself, but the finalizer of a
        pipeline that was copied from another cluster was set by whoever created the copy. The patch tests
        that it still is the same pipeline and the same entry of the list.
        """
        where = (API_VERSION, KIND, resource.namespace, resource.name)
        held = resource.finalizers
        for _ in range(_TRIES):
            if names.FINALIZER in held:
                with contextlib.suppress(_Outdated):
                    return await self._take_out(resource, held.index(names.FINALIZER))
            there = await self._api.get(*where)
            if there is None or there["metadata"]["uid"] != resource.uid:
                return None
            held = tuple(there["metadata"].get("finalizers") or ())
            if names.FINALIZER not in held:
                return there
        raise Unreachable("the finalizer cannot be removed, because others keep changing the list")

    async def _take_out(self, resource: Resource, index: int) -> Object | None:
        """Remove the entry ``index`` of the finalizers. Raises _Outdated if it is not ours."""
        entry = f"/metadata/finalizers/{index}"
        operations = [
            {"op": "test", "path": "/metadata/uid", "value": resource.uid},
            {"op": "test", "path": entry, "value": names.FINALIZER},
            {"op": "remove", "path": entry},
        ]
        try:
            return await self._api.patch(API_VERSION, KIND, resource.namespace, resource.name, operations)
        except ApiError as error:
            if error.status == 404:
                return None
            if error.status in (409, 422):
                raise _Outdated from None
            raise

    async def _patch(
        self,
        resource: Resource,
        body: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> Object | None:
        identity = {"name": resource.name, "namespace": resource.namespace, "uid": resource.uid}
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": identity | dict(metadata or {}),
            **body,
        }
        try:
            return await self._api.apply(document, manager=manager, part=part)
        except ApiError as error:
            if error.status in (404, 409):  # gone, or replaced by another of this name
                return None
            raise

    async def record(self, resource: Resource, events: Sequence[Event], now: str) -> None:
        """Record events. A repeated event is counted up; one that the API server refuses is dropped."""
        for event in events:
            try:
                await self._record(resource, event, now)
            except ApiError as error:
                level = logging.DEBUG if error.caused_by("NamespaceTerminating") else logging.WARNING
                _log.log(level, "event %s is not recorded: %s", event.reason, error)

    async def _record(self, resource: Resource, event: Event, now: str) -> None:
        text = f"{resource.uid} {event.type} {event.reason} {event.message}"
        name = f"{resource.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        told = self._told.setdefault(Key(resource.namespace, resource.name), {})
        told[name] = told.pop(name, 0) + 1
        if len(told) > _TOLD_KEPT:
            del told[next(iter(told))]
        document = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": resource.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "namespace": resource.namespace,
                "name": resource.name,
                "uid": resource.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": cut_off(event.message, 1024),
            "source": {"component": names.FIELD_MANAGER},
            "reportingComponent": names.FIELD_MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": told[name],
        }
        try:
            await self._api.create(document)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            del document["firstTimestamp"]
            await self._api.merge(document)


def _pod_of(workload: Object, owner: Object, namespace: str) -> Object:
    """Return the first pod of a StatefulSet as its controller creates it.

    https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#pod-identity. The owner reference
    does not block its deletion, for which the operator would need another right.
    """
    template, name = workload["spec"]["template"], owner["metadata"]["name"]
    identity = {"statefulset.kubernetes.io/pod-name": f"{name}-0", "apps.kubernetes.io/pod-index": "0"}
    reference = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "name": name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    metadata = {
        **template["metadata"],
        "name": f"{name}-0",
        "namespace": namespace,
        "labels": {**template["metadata"].get("labels", {}), **identity},
        "ownerReferences": [reference],
    }
    network = {"hostname": f"{name}-0", "subdomain": workload["spec"].get("serviceName", name)}
    spec = {**template["spec"], **network}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _propagation(gone: Deletion) -> Propagation:
    if gone.orphan:
        return "Orphan"
    return "Background" if gone.kind == "Pod" else "Foreground"


def is_applied(wanted: Object, there: Object | None) -> bool:
    """Return whether ``there`` is as wanted: this version was applied, and nobody has changed it since."""
    if there is None:
        return False
    if wanted["kind"] in _MADE_ONCE:
        return True
    if wanted["kind"] == "ServiceAccount":
        there = _without_added(there, wanted)
    hashes = [observe.metadata_of(document, "annotations").get(names.APPLIED) for document in (wanted, there)]
    return hashes[0] == hashes[1] and _covers(there, wanted)


def _without_added(there: Object, wanted: Object) -> Object:
    """Return a ServiceAccount without the logins that others add, as OpenShift does for its registry."""
    named = [
        each for each in there.get("imagePullSecrets") or [] if each in wanted.get("imagePullSecrets", [])
    ]
    return {**there, "imagePullSecrets": named}


def _covers(there: Any, wanted: Any) -> bool:
    """Return whether ``there`` contains all of ``wanted``; the API server may have filled in more."""
    if isinstance(wanted, dict):
        there = there or {}
        return isinstance(there, dict) and all(_covers(there.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list):
        there = there or []
        same = isinstance(there, list) and len(there) == len(wanted)
        return same and all(_covers(a, b) for a, b in zip(there, wanted, strict=True))
    return bool(there == wanted) or (there is None and not wanted) or _is_same_quantity(there, wanted)


def _is_same_quantity(there: Any, wanted: Any) -> bool:
    """Return whether two quantities are equal: the API server writes 3072Mi as 3Gi, and 0.5 as 500m."""
    try:
        return bool(parse_quantity(there) == parse_quantity(wanted))
    except ValueError:
        return False


def _pinned(document: Object, there: Object | None) -> Object:
    """Return ``document`` with the uid of ``there``, so that it cannot be applied to a successor."""
    if there is None:
        return document
    return {**document, "metadata": {**document["metadata"], "uid": there["metadata"]["uid"]}}


def _stranger(resource: Resource, where: str, there: Object) -> Obstacle:
    owners = there["metadata"].get("ownerReferences", ())
    if any((owner.get("kind"), owner.get("name")) == (KIND, resource.name) for owner in owners):
        return Obstacle("FormerObject", f"{where} of a former pipeline of this name must be deleted first")
    return Obstacle(
        "ForeignObject", f"{where} already exists and does not belong to Lakemirror: delete or rename it"
    )


def _refused(where: str, error: ApiError) -> Obstacle | None:
    """Return the obstacle that ``error`` means, or None if the error may pass on its own."""
    reason = _verdict(error)
    if reason is None:
        return None
    if reason == "NamespaceTerminating":
        return Obstacle(reason, f"{where}: the namespace is being deleted")
    if error.status == 404:
        hint = "the cluster does not know this kind: is the operator of spec.spark.backend installed?"
        return Obstacle(reason, f"{where}: {hint}")
    return Obstacle(reason, f"the API server refuses {where}: {_readable(str(error))}")


def _readable(words: str) -> str:
    """Return the API server's message without Go's notation for values."""
    words = _DUMPED.sub("", _TYPED_PREFIX.sub("", words))
    return _GO_VALUE.sub(lambda found: found[1] or found[2], words)


def _verdict(
    error: ApiError,
) -> Literal["InvalidSpec", "NamespaceTerminating", "QuotaExceeded", "Refused"] | None:
    """Return what is wrong with what was sent, or None if the error is not about that."""
    if error.caused_by("NamespaceTerminating"):
        return "NamespaceTerminating"
    if "exceeded quota" in str(error):
        return "QuotaExceeded"
    # Errors in a pod template that no CRD can check show up here.
    if error.status in (400, 413, 415, 422) or (error.status == 500 and _TYPED.search(str(error))):
        return "InvalidSpec"
    return "Refused" if error.refused and error.status != 409 else None


_TYPED_PREFIX = re.compile(
    r"^failed to create typed (?:patch )?object \([^)]*\): "
    r"|^failed to convert new object \([^)]*\) to proper version: "
    r'|^\S+ "[^"]*" is invalid: |^pods "[^"]*" is '
)
_DUMPED = re.compile(r"Invalid value: \{.*?\}: ")
_GO_VALUE = re.compile(r"(?<=got )&(?:value\.valueUnstructured\{Value:(.*?)\}|\{(.*)\})")
_TYPED = re.compile(
    r"failed to create typed|unable to convert|field not declared in schema|quantities must match"
)
"""How server-side apply reports a value of the wrong type: with 500, as if the server were at fault."""
