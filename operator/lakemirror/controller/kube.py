"""The Kubernetes API over HTTP: the few verbs that the operator uses, on plain documents.

Server-side apply: https://kubernetes.io/docs/reference/using-api/server-side-apply/. How to connect is kopf's
word: the pod's service account, or a kubeconfig.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

import aiohttp
import kopf

from lakemirror.api import API_VERSION, KIND
from lakemirror.api.crd import PLURAL
from lakemirror.controller import backends, names
from lakemirror.controller.values import Object

PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "Pod"): "pods",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("batch/v1", "CronJob"): "cronjobs",
    ("batch/v1", "Job"): "jobs",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("rbac.authorization.k8s.io/v1", "Role"): "roles",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    (backends.KUBEFLOW, "SparkApplication"): "sparkapplications",
    (backends.APACHE, "SparkApplication"): "sparkapplications",
    (API_VERSION, KIND): PLURAL,
}
_TIMEOUT_SECONDS = 30.0
_WATCH_SECONDS = 300
_UNAVAILABLE = (429, 503, 504)
_log = logging.getLogger(__name__)


class Cause(NamedTuple):
    """One of the ``details.causes`` of a Status: ``field`` is a path in the object, often empty."""

    reason: str
    message: str = ""
    field: str = ""


class ApiError(Exception):
    """The API server's answer was an error. ``message`` is in its own words.

    ``reason`` is Kubernetes' word for the class of it, such as AlreadyExists; empty where there is none. An
    answer of 500 may be about the object too: server-side apply gives it for a value of the wrong type.
    """

    def __init__(self, status: int, reason: str, message: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason
        self.message = str(self)
        self.causes = causes

    @property
    def refused(self) -> bool:
        """Whether to ask again cannot help before the object, the rights or the cluster have changed."""
        return self.status in (400, 403, 404, 405, 409, 413, 415, 422)

    def caused_by(self, reason: str) -> bool:
        """Whether a cause with this reason, such as NamespaceTerminating, is among the causes."""
        return any(cause.reason == reason for cause in self.causes)


class Unreachable(Exception):
    """The API server did not answer, or only that it cannot for now (429, 503, 504)."""


class Listed(NamedTuple):
    items: list[Object]
    version: str


class Watched(NamedTuple):
    """``type``: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


Propagation = Literal["Foreground", "Background", "Orphan"]
"""What becomes of an object's dependents when it is deleted: Kubernetes' propagationPolicy."""


class Api(Protocol):
    """The verbs; ``namespace`` None means all of them. Errors: ApiError, Unreachable.

    ``dry_run``: the API server judges the request as if it were meant (defaults, validation, admission), and
    persists nothing.
    """

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None: ...

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed: ...

    def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]: ...

    async def create(self, document: Object, *, dry_run: bool = False) -> Object: ...

    async def replace(self, document: Object) -> Object: ...

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object: ...

    async def merge(self, document: Object) -> Object: ...

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None: ...


class Kube:
    """``Api`` on a real API server; a context manager."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Kube:
        self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    def _connect(self) -> aiohttp.ClientSession:
        info = connection()
        self._headers = info.as_http_headers()
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(ssl=info.as_ssl_context(), limit=100)
        self._session = aiohttp.ClientSession(info.server.rstrip("/"), connector=connector, timeout=timeout)
        return self._session

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return await self._call("GET", path(api_version, kind, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed:
        items: list[Object] = []
        query = {"limit": "500", **_selectors(labels, fields)}
        while True:
            page = await self._call("GET", path(api_version, kind, namespace), query=query)
            # The items of a list leave out what they have in common.
            items += [{**item, "apiVersion": api_version, "kind": kind} for item in page["items"]]
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                return Listed(items, page["metadata"]["resourceVersion"])

    async def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(_WATCH_SECONDS),
            **_selectors(labels, ""),
        }
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_TIMEOUT_SECONDS, sock_read=_WATCH_SECONDS + 30
        )
        try:
            async with self._open().get(
                path(api_version, kind, namespace), params=query, headers=self._headers, timeout=timeout
            ) as response:
                await self._check(response)
                async for line in _lines(response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _error(event["object"].get("code", 500), event["object"])
                    yield Watched(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def create(self, document: Object, *, dry_run: bool = False) -> Object:
        query = {"fieldManager": names.FIELD_MANAGER, **_dry(dry_run)}
        return await self._call("POST", _path_of(document, named=False), query=query, body=document)

    async def replace(self, document: Object) -> Object:
        query = {"fieldManager": names.FIELD_MANAGER}
        return await self._call("PUT", _path_of(document), query=query, body=document)

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object:
        query = {"fieldManager": manager, "force": "true", **_dry(dry_run)}
        where = _path_of(document) + (f"/{part}" if part else "")
        return await self._call(
            "PATCH", where, query=query, body=document, content="application/apply-patch+yaml"
        )

    async def merge(self, document: Object) -> Object:
        query = {"fieldManager": names.FIELD_MANAGER}
        return await self._call(
            "PATCH", _path_of(document), query=query, body=document, content="application/merge-patch+json"
        )

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        await self._call(
            "DELETE", path(api_version, kind, namespace, name), body=body | {"preconditions": {"uid": uid}}
        )

    async def _call(
        self,
        verb: str,
        where: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> Object:
        try:
            answer = await self._once(verb, where, query, body, content)
        except ApiError as error:
            if error.status != 401:
                raise
            self._headers = connection().as_http_headers()  # tokens of service accounts are renewed
            answer = await self._once(verb, where, query, body, content)
        return answer

    async def _once(
        self, verb: str, where: str, query: Mapping[str, str] | None, body: Object | None, content: str
    ) -> Object:
        data = json.dumps(body) if body is not None else None
        headers = {**self._headers, "Content-Type": content}
        try:
            async with self._open().request(
                verb, where, params=query, data=data, headers=headers
            ) as response:
                await self._check(response)
                found: Object = await response.json()
                return found
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status < 400:
            return
        try:
            document = await response.json()
        except (aiohttp.ClientError, ValueError):
            document = {"message": await response.text()}
        raise _error(response.status, document if isinstance(document, dict) else {})

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use Kube as a context manager"
        return self._session


def connection() -> kopf.ConnectionInfo:
    """How to reach the API server: from the pod's service account, else from a kubeconfig."""
    settings = kopf.OperatorSettings()
    info = kopf.login_with_service_account(settings=settings) or kopf.login_with_kubeconfig(settings=settings)
    if info is None:
        raise Unreachable("there is neither a service account nor a kubeconfig: set KUBECONFIG")
    return info


def path(api_version: str, kind: str, namespace: str | None, name: str | None = None) -> str:
    """The path of a kind, or of one object of it."""
    root = "/api/v1" if api_version == "v1" else f"/apis/{api_version}"
    inside = f"/namespaces/{namespace}" if namespace is not None else ""
    return f"{root}{inside}/{PLURALS[api_version, kind]}" + (f"/{name}" if name is not None else "")


def _path_of(document: Object, *, named: bool = True) -> str:
    metadata = document["metadata"]
    name = metadata["name"] if named else None
    return path(document["apiVersion"], document["kind"], metadata["namespace"], name)


def _dry(dry_run: bool) -> dict[str, str]:
    return {"dryRun": "All"} if dry_run else {}


def _selectors(labels: str, fields: str) -> dict[str, str]:
    return {**({"labelSelector": labels} if labels else {}), **({"fieldSelector": fields} if fields else {})}


def _error(status: int, document: Mapping[str, Any]) -> ApiError | Unreachable:
    """From the API's Status object:
    https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/.
    """
    message = str(document.get("message") or "")
    if status in _UNAVAILABLE:
        return Unreachable(f"status {status}: {message}")
    details = document.get("details") or {}
    causes = tuple(
        Cause(*(str(cause.get(key) or "") for key in Cause._fields)) for cause in details.get("causes") or ()
    )
    return ApiError(status, str(document.get("reason") or ""), message, causes)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of a stream, however long they are."""
    rest = b""
    async for chunk in response.content.iter_any():
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            if line:
                yield line
