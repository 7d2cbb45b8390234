"""An API server in memory: what of Kubernetes the operator's loop leans on, and no more.

Objects have uids, versions and generations; server-side apply merges maps and replaces lists; watches tell
changes from a version on; deletion respects uid preconditions and finalizers, and takes along what is owned.
Controllers (of StatefulSets, Jobs) are played by the tests.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator
from typing import Any

from lakemirror.api import GROUP
from lakemirror.controller import names
from lakemirror.controller.kube import ApiError, Listed, Propagation, Unreachable, Watched
from lakemirror.controller.values import Object

Id = tuple[str, str, str, str]


class FakeApi:
    """Stands in for ``kube.Kube``; ``calls`` are the writes, in order."""

    def __init__(self) -> None:
        self.objects: dict[Id, Object] = {}
        self.calls: list[tuple[str, str, str]] = []
        self.reachable = True
        self.refusals: dict[tuple[str, str], ApiError] = {}
        """(verb, kind) -> what it is answered with."""
        self._history: list[tuple[int, str, Object]] = []
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._news = asyncio.Condition()
        self._version = 0

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        self._reach()
        return copy.deepcopy(self.objects.get((api_version, kind, namespace, name)))

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed:
        self._reach()
        self._answer("list", kind)
        found = [
            o for i, o in self.objects.items() if i[:2] == (api_version, kind) and namespace in (None, i[2])
        ]
        found = [o for o in found if not labels or _selected(o)]
        if fields:
            path, _, value = fields.partition("=")
            found = [o for o in found if _field(o, path) == value]
        return Listed(copy.deepcopy(found), str(self._version))

    async def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]:
        seen = int(version)
        while True:
            self._reach()
            for number, type, document in self._history:
                same = (document["apiVersion"], document["kind"]) == (api_version, kind)
                where = document["metadata"]["namespace"]
                if (
                    number > seen
                    and same
                    and namespace in (None, where)
                    and (not labels or _selected(document))
                ):
                    yield Watched(type, copy.deepcopy(document))
            seen = self._version
            async with self._news:
                await self._news.wait()

    async def create(self, document: Object, *, dry_run: bool = False) -> Object:
        self._reach()
        self._answer("create", document["kind"])
        if dry_run:
            return copy.deepcopy(document)
        if _id(document) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{_id(document)} is there already")
        return await self._write("create", document)

    async def replace(self, document: Object) -> Object:
        self._reach()
        there = self._there(document)
        if there["metadata"]["resourceVersion"] != document["metadata"].get("resourceVersion"):
            raise ApiError(409, "Conflict", "the object has been modified")
        return await self._write("replace", document)

    async def merge(self, document: Object) -> Object:
        self._reach()
        return await self._write("merge", _merged(self._there(document), document))

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object:
        self._reach()
        self._answer("apply", document["kind"])
        there = self.objects.get(_id(document))
        uid = document["metadata"].get("uid")
        if there is None:
            if part or document["kind"] == "CdcPipeline":
                raise ApiError(404, "NotFound", "no such object")
            if uid is not None:
                raise ApiError(409, "Conflict", "uid mismatch")
            return copy.deepcopy(document) if dry_run else await self._write("apply", document)
        if uid not in (None, there["metadata"]["uid"]):
            raise ApiError(409, "Conflict", "uid mismatch")
        merged = _merged(there, document)
        if "annotations" in document["metadata"]:
            merged["metadata"]["annotations"] = _applied_annotations(there, document)
        if part == "status":
            merged = {**there, "status": document["status"]}
        if manager.endswith("-finalizer"):
            merged["metadata"]["finalizers"] = document["metadata"].get("finalizers", [])
        return merged if dry_run else await self._write(f"apply{f' {part}' if part else ''}", merged)

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None:
        self._reach()
        there = self.objects.get((api_version, kind, namespace, name))
        if there is None:
            raise ApiError(404, "NotFound", "no such object")
        if there["metadata"]["uid"] != uid:
            raise ApiError(409, "Conflict", "uid mismatch")
        self.calls.append(("delete", kind, name))
        if propagation == "Orphan":
            await self._orphan(uid)
        await self.remove(there)

    async def _orphan(self, owner: str) -> None:
        """What the garbage collector does to the dependents of an object that goes without them."""
        for other in list(self.objects.values()):
            owners = other["metadata"].get("ownerReferences", [])
            kept = [each for each in owners if each["uid"] != owner]
            if kept != owners:
                metadata = {**other["metadata"], "ownerReferences": kept}
                await self._write("", {**other, "metadata": metadata}, log=False)

    # What tests do as persons and controllers.

    async def put(self, document: Object) -> Object:
        """Create or change an object, as kubectl or a controller would; metadata is kept."""
        there = self.objects.get(_id(document))
        return await self._write("", _merged(there, document) if there is not None else document, log=False)

    async def remove(self, document: Object) -> None:
        """Delete an object and what it owns, unless a finalizer holds it."""
        there = self.objects.get(_id(document))
        if there is None:
            return
        if there["metadata"].get("finalizers"):
            leaving = {**there["metadata"], "deletionTimestamp": "2026-03-01T12:00:00Z"}
            await self._write("", {**there, "metadata": leaving}, log=False)
            return
        del self.objects[_id(document)]
        await self._tell(
            "DELETED", {**there, "metadata": {**there["metadata"], "resourceVersion": self._next()}}
        )
        for other in list(self.objects.values()):
            owners = other["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == there["metadata"]["uid"] for owner in owners):
                await self.remove(other)

    async def cut(self) -> None:
        """Break all connections: the server is gone."""
        self.reachable = False
        async with self._news:
            self._news.notify_all()

    def restore(self) -> None:
        """The server is back."""
        self.reachable = True

    def all(self, kind: str) -> list[Object]:
        return [o for i, o in self.objects.items() if i[1] == kind]

    def one(self, kind: str, name: str) -> Object:
        return next(o for i, o in self.objects.items() if (i[1], i[3]) == (kind, name))

    async def _write(self, verb: str, document: Object, *, log: bool = True) -> Object:
        there = self.objects.get(_id(document))
        document = copy.deepcopy(document)
        metadata = document["metadata"]
        if there is None:
            metadata |= {"uid": f"uid-{next(self._uids)}", "generation": 1}
            metadata.setdefault("creationTimestamp", f"2026-03-01T00:00:{self._version % 60:02}Z")
        elif _same(there, document):
            return copy.deepcopy(there)
        elif there.get("spec") != document.get("spec"):
            metadata["generation"] = there["metadata"]["generation"] + 1
        metadata["resourceVersion"] = self._next()
        self.objects[_id(document)] = document
        if log:
            self.calls.append((verb, document["kind"], metadata["name"]))
        gone = there is not None and "deletionTimestamp" in metadata and not metadata.get("finalizers")
        if gone:
            await self.remove(document)
        else:
            await self._tell("MODIFIED" if there is not None else "ADDED", document)
        return copy.deepcopy(document)

    def _there(self, document: Object) -> Object:
        if _id(document) not in self.objects:
            raise ApiError(404, "NotFound", "no such object")
        return self.objects[_id(document)]

    def _reach(self) -> None:
        if not self.reachable:
            raise Unreachable("connection refused")

    def _answer(self, verb: str, kind: str) -> None:
        if (verb, kind) in self.refusals:
            raise self.refusals[verb, kind]

    def _next(self) -> str:
        self._version = next(self._versions)
        return str(self._version)

    async def _tell(self, type: str, document: Object) -> None:
        self._history.append((self._version, type, copy.deepcopy(document)))
        async with self._news:
            self._news.notify_all()


def _applied_annotations(there: Object, document: Object) -> dict[str, str]:
    """The annotations of others stay; of one's own, those that are not applied any more go."""
    before = there["metadata"].get("annotations", {})
    others = {name: value for name, value in before.items() if not name.startswith(f"{GROUP}/")}
    return others | document["metadata"]["annotations"]


def _id(document: Object) -> Id:
    metadata = document["metadata"]
    return document["apiVersion"], document["kind"], metadata["namespace"], metadata["name"]


def _same(a: Object, b: Object) -> bool:
    def bare(o: Object) -> Object:
        return {**o, "metadata": {k: v for k, v in o["metadata"].items() if k != "resourceVersion"}}

    return bare(a) == bare(b)


def _merged(there: Any, given: Any) -> Any:
    if not isinstance(there, dict) or not isinstance(given, dict):
        return copy.deepcopy(given)
    return copy.deepcopy(there) | {key: _merged(there.get(key), value) for key, value in given.items()}


def _selected(document: Object) -> bool:
    labels = document["metadata"].get("labels") or {}
    return labels.get(names.MANAGED_BY) == names.FIELD_MANAGER and names.PIPELINE in labels


def _field(document: Object, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part, {})
    return document
