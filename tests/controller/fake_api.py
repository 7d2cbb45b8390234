"""An API server in memory: what of Kubernetes the operator's loop leans on, and no more.

Objects have uids, versions and generations; server-side apply merges maps, replaces lists and takes away only
what the same field manager applied before; watches tell changes from a version on; deletion respects uid
preconditions and finalizers, and takes along what is owned. Controllers (of StatefulSets, Jobs) are played by
the tests, which can also have a namespace refuse or end, watches be late, silent or interrupted, and
somebody else write between two requests.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from lakemirror.controller import names
from lakemirror.controller.kube import ApiError, Cause, Listed, Propagation, Unreachable, Watched
from lakemirror.controller.values import Object

Id = tuple[str, str, str, str]
Manager = tuple[str, str]
"""Who owns fields, and by which operation: ``Apply`` or ``Update``."""
Path = tuple[str, ...]
Objects = list[Object]
PERSON: Manager = ("kubectl", "Update")
_SETS: tuple[Path, ...] = (("metadata", "finalizers"), ("metadata", "ownerReferences"))
"""Lists of which each entry has an owner of its own."""
_OF_SERVER = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp")


class FakeApi:
    """Stands in for ``kube.Kube``; ``calls`` are the writes, in order."""

    def __init__(self) -> None:
        self.objects: dict[Id, Object] = {}
        self.managers: dict[Id, dict[Manager, set[Path]]] = {}
        """Which manager owns which fields."""
        self.calls: list[tuple[str, str, str]] = []
        self.reachable = True
        self.refusals: dict[tuple[str, str], ApiError] = {}
        """(verb, kind) -> what it is answered with."""
        self.forbidden: set[str] = set()
        """Namespaces in which the operator has no rights, as when its RoleBinding there is gone."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted: nothing can be created there."""
        self.late: set[str] = set()
        """Kinds whose watches are silent: what happens is told once the kind is taken out of here."""
        self.before: Callable[[str, str], Awaitable[None]] | None = None
        """What somebody else does before a request of the operator (verb, kind) is processed."""
        self.policy: Callable[[Object], ApiError | None] = lambda document: None
        """What admission says of a document that is created."""
        self.created: list[Object] = []
        """What was asked to be created, also in a dry run."""
        self._history: list[tuple[int, str, Object]] = []
        self._gaps: dict[str, int] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._news = asyncio.Condition()
        self._version = 0

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        await self._asked("get", kind, namespace)
        if kind == "Namespace":
            phase = "Terminating" if name in self.terminating else "Active"
            return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "status": {"phase": phase}}
        return copy.deepcopy(self.objects.get((api_version, kind, namespace, name)))

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed:
        await self._asked("list", kind, namespace)
        found = [
            o for i, o in self.objects.items() if i[:2] == (api_version, kind) and namespace in (None, i[2])
        ]
        found = [o for o in found if _matches(o, labels)]
        if fields:
            path, _, value = fields.partition("=")
            found = [o for o in found if _field(o, path) == value]
        return Listed(copy.deepcopy(found), str(self._version))

    async def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]:
        await self._asked("watch", kind, namespace)
        seen = int(version)
        while True:
            self._reach()
            if namespace in self.forbidden:
                raise Unreachable("the connection was closed")
            if self._gaps.get(kind, 0) > seen:
                raise ApiError(410, "Expired", "too old resource version")
            if kind not in self.late:
                for number, type, document in self._history:
                    same = (document["apiVersion"], document["kind"]) == (api_version, kind)
                    where = document["metadata"]["namespace"]
                    if number > seen and same and namespace in (None, where) and _matches(document, labels):
                        yield Watched(type, copy.deepcopy(document))
                seen = self._version
            async with self._news:
                await self._news.wait()

    async def create(self, document: Object, *, dry_run: bool = False) -> Object:
        await self._asked("create", document["kind"], document["metadata"]["namespace"])
        self.created.append(copy.deepcopy(document))
        self._creatable(document)
        refused = self.policy(document)
        if refused is not None:
            raise refused
        if "name" in document["metadata"] and _id(document) in self.objects:
            raise ApiError(409, "AlreadyExists", f"{_id(document)} is there already")
        if dry_run:
            return copy.deepcopy(document)
        return await self._write("create", document, _OPERATOR)

    async def replace(self, document: Object) -> Object:
        await self._asked("replace", document["kind"], document["metadata"]["namespace"])
        there = self._there(document)
        if there["metadata"]["resourceVersion"] != document["metadata"].get("resourceVersion"):
            raise ApiError(409, "Conflict", "the object has been modified")
        return await self._write("replace", document, _OPERATOR)

    async def merge(self, document: Object) -> Object:
        await self._asked("merge", document["kind"], document["metadata"]["namespace"])
        return await self._write("merge", _merged(self._there(document), document), _OPERATOR)

    async def patch(
        self, api_version: str, kind: str, namespace: str, name: str, operations: Sequence[Object]
    ) -> Object:
        await self._asked("patch", kind, namespace)
        there = self.objects.get((api_version, kind, namespace, name))
        if there is None:
            raise ApiError(404, "NotFound", "no such object")
        return await self._write("patch", _patched(there, operations), _OPERATOR)

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object:
        verb = f"apply{f' {part}' if part else ''}"
        await self._asked(verb, document["kind"], document["metadata"]["namespace"])
        there = self.objects.get(_id(document))
        uid = document["metadata"].get("uid")
        if there is None:
            if part or document["kind"] == "CdcPipeline":
                raise ApiError(404, "NotFound", "no such object")
            if uid is not None:
                raise ApiError(409, "Conflict", "uid mismatch")
            self._creatable(document)
            there = {key: document[key] for key in ("apiVersion", "kind")}
            there["metadata"] = {key: document["metadata"][key] for key in ("name", "namespace")}
        elif uid not in (None, there["metadata"]["uid"]):
            raise ApiError(409, "Conflict", "uid mismatch")
        given = {part: document[part]} if part else {k: v for k, v in document.items() if k != "status"}
        key = (manager, f"Apply {part}".strip())
        wanted, owned = _applied(there, given, key, self.managers.get(_id(document), {}))
        return wanted if dry_run else await self._write(verb, wanted, key, owned)

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None:
        await self._asked("delete", kind, namespace)
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
            if "deletionTimestamp" not in there["metadata"]:
                leaving = {**there["metadata"], "deletionTimestamp": "2026-03-01T12:00:00Z"}
                leaving["generation"] += 1
                await self._write("", {**there, "metadata": leaving}, log=False)
            return
        del self.objects[_id(document)]
        self.managers.pop(_id(document), None)
        await self._tell(
            "DELETED", {**there, "metadata": {**there["metadata"], "resourceVersion": self._next()}}
        )
        for other in list(self.objects.values()):
            owners = other["metadata"].get("ownerReferences", ())
            if any(owner["uid"] == there["metadata"]["uid"] for owner in owners):
                await self.remove(other)

    async def end(self, namespace: str) -> None:
        """Begin to delete a namespace. Its content goes with ``empty``, after the grace of Kubernetes."""
        self.terminating.add(namespace)

    async def empty(self, namespace: str) -> None:
        """Delete the content of a namespace; the operator's RoleBinding there goes first."""
        self.forbidden.add(namespace)
        for there in [o for i, o in self.objects.items() if i[2] == namespace]:
            await self.remove(there)
        await self.wake()

    async def interrupt(self, kind: str) -> None:
        """Let the watches of a kind end with a gap: what has happened is never told."""
        self._gaps[kind] = self._version + 1
        self._next()
        await self.wake()

    async def cut(self) -> None:
        """Break all connections: the server is gone."""
        self.reachable = False
        await self.wake()

    def restore(self) -> None:
        """The server is back."""
        self.reachable = True

    async def wake(self) -> None:
        """Let watches look again."""
        async with self._news:
            self._news.notify_all()

    def all(self, kind: str) -> Objects:
        return [o for i, o in self.objects.items() if i[1] == kind]

    def one(self, kind: str, name: str) -> Object:
        return next(o for i, o in self.objects.items() if (i[1], i[3]) == (kind, name))

    def forget_history(self) -> None:
        """Drop what every watch has seen, as the API server does after some minutes."""
        self._history.clear()

    async def _write(
        self,
        verb: str,
        document: Object,
        manager: Manager = PERSON,
        owned: set[Path] | None = None,
        *,
        log: bool = True,
    ) -> Object:
        """Store a document. ``owned``: what the manager owns from now on; by default, what is different."""
        there = self.objects.get(_id(document))
        document = copy.deepcopy(document)
        metadata = document["metadata"]
        self._own(there or {}, document, manager, owned)
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

    def _own(self, there: Object, document: Object, manager: Manager, owned: set[Path] | None) -> None:
        before, after = dict(_leaves(there)), dict(_leaves(document))
        touched = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        managers = self.managers.setdefault(_id(document), {})
        for paths in managers.values():
            paths -= touched
        if owned is None:
            owned = managers.get(manager, set()) | (touched & after.keys())
        managers[manager] = owned

    def _there(self, document: Object) -> Object:
        if _id(document) not in self.objects:
            raise ApiError(404, "NotFound", "no such object")
        return self.objects[_id(document)]

    def _creatable(self, document: Object) -> None:
        if document["metadata"]["namespace"] in self.terminating:
            cause = Cause("NamespaceTerminating", field="metadata.namespace")
            raise ApiError(403, "Forbidden", "the namespace is being terminated", (cause,))

    def _reach(self) -> None:
        if not self.reachable:
            raise Unreachable("connection refused")

    async def _asked(self, verb: str, kind: str, namespace: str | None) -> None:
        self._reach()
        if self.before is not None:
            await self.before(verb, kind)
            self._reach()
        if namespace in self.forbidden:
            raise ApiError(403, "Forbidden", f"cannot {verb} {kind} in the namespace {namespace}")
        refusal = self.refusals.get((verb.partition(" ")[0], kind))
        if refusal is not None and verb not in ("get", "watch", "merge", "patch", "replace", "apply status"):
            raise refusal

    def _next(self) -> str:
        self._version = next(self._versions)
        return str(self._version)

    async def _tell(self, type: str, document: Object) -> None:
        self._history.append((self._version, type, copy.deepcopy(document)))
        await self.wake()


_OPERATOR: Manager = (names.FIELD_MANAGER, "Update")


def _applied(
    there: Object, given: Object, manager: Manager, managers: dict[Manager, set[Path]]
) -> tuple[Object, set[Path]]:
    """What server-side apply makes of an object, and what its manager then owns.

    What the manager no longer applies goes, unless another manager owns it, too.
    """
    made = _merged(there, given)
    for path in _SETS:
        with suppress(KeyError, TypeError):
            both = [*(_field(there, ".".join(path)) or []), *(_field(given, ".".join(path)) or [])]
            if both:
                made[path[0]][path[1]] = list({_entry(each): each for each in both}.values())
    owned = {path for path, _ in _leaves(given)}
    others = set().union(*(paths for who, paths in managers.items() if who != manager))
    for path in managers.get(manager, set()) - owned - others:
        _take_out(made, path)
    return made, owned


def _leaves(document: Any, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field of an object that can have an owner, with its value."""
    if at in _SETS and isinstance(document, list):
        yield from (((*at, _entry(each)), each) for each in document)
    elif isinstance(document, dict) and (document or not at):
        for key, value in document.items():
            of_server = at == ("metadata",) and key in _OF_SERVER
            if not of_server and (at or key not in ("apiVersion", "kind")):
                yield from _leaves(value, (*at, key))
    else:
        yield at, document


def _entry(each: Any) -> str:
    return str(each["uid"]) if isinstance(each, dict) else str(each)


def _take_out(document: Any, path: Path) -> None:
    *above, last = path
    chain = [document]
    for part in above:
        if not isinstance(chain[-1], dict) or part not in chain[-1]:
            return
        chain.append(chain[-1][part])
    if isinstance(chain[-1], list):
        chain[-1][:] = [each for each in chain[-1] if _entry(each) != last]
    elif isinstance(chain[-1], dict):
        chain[-1].pop(last, None)
    for parent, part in zip(reversed(chain[:-1]), reversed(above), strict=True):
        if parent[part] in ({}, []):
            del parent[part]


def _patched(there: Object, operations: Sequence[Object]) -> Object:
    """The object after a JSON patch: https://datatracker.ietf.org/doc/html/rfc6902."""
    made: Any = copy.deepcopy(there)
    for operation in operations:
        *above, last = [p.replace("~1", "/").replace("~0", "~") for p in operation["path"].split("/")[1:]]
        try:
            here = made
            for part in above:
                here = here[int(part)] if isinstance(here, list) else here[part]
            index: Any = int(last) if isinstance(here, list) else last
            if operation["op"] == "test" and here[index] != operation["value"]:
                raise KeyError(last)
            if operation["op"] == "remove":
                del here[index]
        except (KeyError, IndexError, TypeError):
            raise ApiError(422, "Invalid", f"the patch does not apply: {operation}") from None
    return made  # type: ignore[no-any-return]


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


def _matches(document: Object, selector: str) -> bool:
    """Whether an object has the labels of a selector: names, or names with values."""
    labels = document["metadata"].get("labels") or {}
    pairs = [part.partition("=") for part in selector.split(",") if part]
    return all(name in labels and (not mark or labels[name] == value) for name, mark, value in pairs)


def _field(document: Object, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part, {})
    return document
