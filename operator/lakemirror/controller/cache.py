"""Caches the operator's own objects: one watch per kind and namespace, with a label selector on the server.

Without a list of namespaces, there is one watch per kind for the whole cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import NamedTuple

from lakemirror.api import GROUP, KIND
from lakemirror.controller import backends, names
from lakemirror.controller.kube import Api, ApiError, Unreachable
from lakemirror.controller.observe import metadata_of
from lakemirror.controller.values import Object

KINDS: tuple[tuple[str, str], ...] = (
    ("v1", "ConfigMap"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ServiceAccount"),
    ("apps/v1", "StatefulSet"),
    ("batch/v1", "CronJob"),
    ("batch/v1", "Job"),
    ("networking.k8s.io/v1", "NetworkPolicy"),
    ("rbac.authorization.k8s.io/v1", "Role"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"),
)
OPTIONAL_KINDS: tuple[tuple[str, str], ...] = (
    (backends.KUBEFLOW, "SparkApplication"),
    (backends.APACHE, "SparkApplication"),
)
"""Kinds that the cluster may not know, or that the operator may not be allowed to read."""

_RETRY_SECONDS = 2.0
_REFUSED_MOST_SECONDS = 30.0
"""How often a kind is asked for, at least, that the API server refuses to let the operator read."""
_ABSENT_SECONDS = 60.0
_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """Identifies a pipeline."""

    namespace: str
    name: str


class Identity(NamedTuple):
    """Identifies an object of a pipeline."""

    api_version: str
    kind: str
    name: str


class Cache:
    """Holds the objects of all pipelines. ``changed`` is called with the pipeline of each changed object."""

    def __init__(
        self,
        api: Api,
        namespaces: Iterable[str] | None,
        changed: Callable[[Key], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._namespaces: list[str | None] = list(namespaces) if namespaces is not None else [None]
        self._changed = changed
        self._clock = clock
        self._objects: dict[Key, dict[Identity, Object]] = defaultdict(dict)
        self._behind = {(*kind, ns) for kind in (*KINDS, *OPTIONAL_KINDS) for ns in self._namespaces}
        self._refused: dict[tuple[str, str, str | None], str] = {}
        self._current_since: dict[str | None, datetime] = {}

    def current_since(self, namespace: str) -> datetime | None:
        """Return since when all watches of a namespace have been up to date, or None while one is not."""
        return self._current_since.get(self._scope(namespace))

    def refusal(self, namespace: str) -> str | None:
        """Return why the API server refuses to let a kind be watched there; None if it does not."""
        scope = self._scope(namespace)
        return next((words for what, words in self._refused.items() if what[2] == scope), None)

    def _scope(self, namespace: str) -> str | None:
        return namespace if None not in self._namespaces else None

    def of(self, key: Key) -> dict[Identity, Object]:
        """Return the objects of a pipeline."""
        return self._objects.get(key, {})

    def take(self, document: Object) -> bool:
        """Store what the API returned, unless something newer is known. Returns whether it is new.

        A ConfigMap that merely has the operator's labels, which anyone can set, is not stored.
        """
        key, identity = _key(document), identity_of(document)
        if not _is_of_pipeline(document, key):
            self._drop(key, identity)
            return False
        known = self._objects[key].get(identity)
        if known is not None and _version(document) <= _version(known):
            return False
        self._objects[key][identity] = slim(document)
        return True

    def resume(self) -> None:
        """Note that the API server answers again after a silence, in which a watch may have seemed alive."""
        self._current_since = dict.fromkeys(self._current_since, self._clock())

    def _drop(self, key: Key, identity: Identity) -> None:
        objects = self._objects.get(key)
        if objects is not None:
            objects.pop(identity, None)
            if not objects:
                del self._objects[key]

    async def run(self) -> None:
        """Watch forever."""
        async with asyncio.TaskGroup() as tasks:
            for api_version, kind, namespace in sorted(self._behind, key=str):
                tasks.create_task(self._follow(api_version, kind, namespace))

    async def _follow(self, api_version: str, kind: str, namespace: str | None) -> None:
        """Keep up with one kind in one namespace: list, watch, and start over when the watch breaks."""
        what = (api_version, kind, namespace)
        refused = 0
        while True:
            try:
                listed = await self._api.list(api_version, kind, namespace, labels=names.SELECTOR)
                self._replace(what, listed.items)
                self._is_current(what)
                refused = 0
                if await self._watch_for_long(what, listed.version):
                    continue
                self._is_behind(what)
            except ApiError as error:
                if (api_version, kind) in OPTIONAL_KINDS and error.status in (403, 404):
                    self._is_current(what)  # no such object can exist
                    await asyncio.sleep(_ABSENT_SECONDS)
                    continue
                self._is_behind(what)
                self._note_refusal(what, f"{kind} cannot be watched: {error}")
                refused += 1
                await asyncio.sleep(min(_RETRY_SECONDS * 2 ** min(refused, 9), _REFUSED_MOST_SECONDS))
                continue
            except Unreachable as error:
                _log.warning("%s cannot be listed: %s", kind, error)
                self._is_behind(what)
            await asyncio.sleep(_RETRY_SECONDS)

    def _note_refusal(self, what: tuple[str, str, str | None], words: str) -> None:
        known = self._refused.get(what) == words
        _log.log(logging.DEBUG if known else logging.ERROR, "%s", words)
        self._refused[what] = words

    async def _watch_for_long(self, what: tuple[str, str, str | None], version: str) -> bool:
        """Watch until the watch breaks. Returns whether it worked for a while.

        If it did, the caller lists again at once, so that nobody has to wait. API servers send nothing on a
        watch if its kind has had no event since they started, so such a watch seems to break every 90 s.
        """
        began = asyncio.get_running_loop().time()
        try:
            await self._watch(what, version)
        except Unreachable as error:
            _log.info("the watch of %s broke: %s", what[1], error)
        except ApiError as error:
            if error.status != 410:
                raise
        return asyncio.get_running_loop().time() - began >= _RETRY_SECONDS

    async def _watch(self, what: tuple[str, str, str | None], version: str) -> None:
        """Follow changes for as long as the server can continue without a gap."""
        while True:
            async for event in self._api.watch(*what, version, labels=names.SELECTOR):
                version = event.object["metadata"]["resourceVersion"]
                if event.type == "BOOKMARK":
                    continue
                document = {**event.object, "apiVersion": what[0], "kind": what[1]}
                if event.type == "DELETED":
                    self._drop(_key(document), identity_of(document))
                else:
                    self.take(document)
                self._changed(_key(document))

    def _replace(self, what: tuple[str, str, str | None], items: list[Object]) -> None:
        api_version, kind, namespace = what
        there = {(_key(item), identity_of(item)) for item in items}
        for key, objects in list(self._objects.items()):
            for identity in [i for i in objects if (i.api_version, i.kind) == (api_version, kind)]:
                if namespace in (None, key.namespace) and (key, identity) not in there:
                    self._drop(key, identity)
                    self._changed(key)
        for item in items:
            if self.take(item):  # after a gap, nearly all are unchanged
                self._changed(_key(item))

    def _is_current(self, what: tuple[str, str, str | None]) -> None:
        self._behind.discard(what)
        self._refused.pop(what, None)
        scope = what[2]
        if scope not in self._current_since and all(behind[2] != scope for behind in self._behind):
            self._current_since[scope] = self._clock()

    def _is_behind(self, what: tuple[str, str, str | None]) -> None:
        self._behind.add(what)
        self._current_since.pop(what[2], None)


def _key(document: Object) -> Key:
    return Key(document["metadata"]["namespace"], metadata_of(document, "labels").get(names.PIPELINE, ""))


def _is_of_pipeline(document: Object, key: Key) -> bool:
    """Return whether an object may be of the pipeline that its labels name. No other is worth keeping."""
    if document["kind"] != "ConfigMap":
        return True
    owners = document["metadata"].get("ownerReferences") or ()
    return document["metadata"]["name"] in (names.config(key.name), names.progress(key.name)) and any(
        (owner.get("kind"), owner.get("name")) == (KIND, key.name)
        and str(owner.get("apiVersion", "")).startswith(f"{GROUP}/")
        for owner in owners
    )


def identity_of(document: Object) -> Identity:
    """Return what identifies an object within its namespace."""
    return Identity(document["apiVersion"], document["kind"], document["metadata"]["name"])


def _version(document: Object) -> int:
    """Return the resource version as a number. The versions of objects of one kind increase."""
    return int(document["metadata"].get("resourceVersion") or 0)


def slim(document: Object) -> Object:
    """Return the object without ``managedFields``, the long list of which manager owns which field.

    Of a CronJob it keeps when each manager changed it last.
    """
    metadata = {k: v for k, v in document["metadata"].items() if k != "managedFields"}
    if document.get("kind") == "CronJob":
        managers = document["metadata"].get("managedFields", ())
        kept = ("manager", "subresource", "time")
        metadata["managedFields"] = [{k: v for k, v in each.items() if k in kept} for each in managers]
    return {**document, "metadata": metadata}
