"""The Kubernetes API: the few verbs that the operator uses, on plain documents, with the official client.

Server-side apply: https://kubernetes.io/docs/reference/using-api/server-side-apply/.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient, Resource
from kubernetes.aio.watch import Watch

from lakemirror.api import API_VERSION, KIND
from lakemirror.api.crd import PLURAL
from lakemirror.controller import backends, names
from lakemirror.controller.values import Object

PLURALS = {
    ("v1", "ConfigMap"): "configmaps",
    ("v1", "Event"): "events",
    ("v1", "Namespace"): "namespaces",
    ("v1", "Pod"): "pods",
    ("v1", "Secret"): "secrets",
    ("v1", "Service"): "services",
    ("v1", "ServiceAccount"): "serviceaccounts",
    ("apps/v1", "StatefulSet"): "statefulsets",
    ("batch/v1", "CronJob"): "cronjobs",
    ("batch/v1", "Job"): "jobs",
    ("coordination.k8s.io/v1", "Lease"): "leases",
    ("networking.k8s.io/v1", "NetworkPolicy"): "networkpolicies",
    ("rbac.authorization.k8s.io/v1", "Role"): "roles",
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): "rolebindings",
    (backends.KUBEFLOW, "SparkApplication"): "sparkapplications",
    (backends.APACHE, "SparkApplication"): "sparkapplications",
    (API_VERSION, KIND): PLURAL,
}
_SUBRESOURCES: Mapping[tuple[str, str], tuple[str, ...]] = {(API_VERSION, KIND): ("status",)}
_CLUSTER_SCOPED = ("Namespace",)
_PAGE = 500
_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
_WATCH_SECONDS = 300
_SILENT_SECONDS = 90.0
"""A watch that is silent for this long is dead: the API server sends a bookmark every minute."""
_WATCH_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30.0, sock_read=_SILENT_SECONDS)
_UNAVAILABLE = (429, 503, 504)


class Cause(NamedTuple):
    """One of the ``details.causes`` of a Status. ``field`` is a path in the object, often empty."""

    reason: str
    message: str = ""
    field: str = ""


class ApiError(Exception):
    """The API server answered with an error. ``message`` is in its own words.

    ``reason`` is Kubernetes' word for the class of error, such as AlreadyExists, or empty. Status 500 may be
    about the object, too: server-side apply returns it for a value of the wrong type.
    """

    def __init__(self, status: int, reason: str, message: str, causes: tuple[Cause, ...] = ()) -> None:
        super().__init__(message or reason or f"status {status}")
        self.status = status
        self.reason = reason
        self.message = str(self)
        self.causes = causes

    @property
    def refused(self) -> bool:
        """Whether a retry is useless until the object, the rights or the cluster change."""
        return self.status in (400, 403, 404, 405, 409, 413, 415, 422)

    def caused_by(self, reason: str) -> bool:
        """Return whether one of the causes has this reason, such as NamespaceTerminating."""
        return any(cause.reason == reason for cause in self.causes)


class Unreachable(Exception):
    """The API server did not answer, or only answered that it cannot for now (429, 503, 504)."""


class Listed(NamedTuple):
    items: list[Object]
    version: str


class Watched(NamedTuple):
    """``type``: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


Propagation = Literal["Foreground", "Background", "Orphan"]
"""What happens to an object's dependents when it is deleted: Kubernetes' propagationPolicy."""


class Api(Protocol):
    """The verbs. ``namespace`` None means all namespaces. Errors: ApiError, Unreachable.

    A Namespace itself is read with an empty ``namespace``.

    With ``dry_run``, the API server processes the request in full (defaults, validation, admission) but
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

    async def patch(
        self, api_version: str, kind: str, namespace: str, name: str, operations: Sequence[Object]
    ) -> Object: ...

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None: ...


class Kube:
    """``Api`` on a real API server: the official client, on plain documents. A context manager.

    It knows the kinds in ``PLURALS`` and does not use the client's own discovery. That sends requests to the
    API server before there is anything to do, fails if there is no answer, and keeps a file in the temporary
    folder.
    """

    def __init__(self, asked: Callable[[str, str], None] = lambda verb, kind: None) -> None:
        """``asked`` is called with the verb and the kind of each request."""
        self._asked = asked
        # Each watch keeps a connection. Without a proxy, looking for one takes two threads per request.
        self._configuration = Configuration(
            connection_pool_maxsize=0, client_session_kwargs={"trust_env": bool(getproxies())}
        )

    async def __aenter__(self) -> Kube:
        await log_in(self._configuration)
        Configuration.set_default(self._configuration)  # each Watch makes its own client from it
        self._client = ApiClient(self._configuration)
        dynamic = DynamicClient(self._client)
        self._kinds = {key: _kind(dynamic, *key) for key in PLURALS}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return await self._ask(
                self._kinds[api_version, kind], "get", name=name, namespace=namespace or None
            )
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(
        self, api_version: str, kind: str, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> Listed:
        items: list[Object] = []
        next_page = None
        while True:
            page = await self._ask(
                self._kinds[api_version, kind],
                "get",
                namespace=namespace,
                label_selector=labels or None,
                field_selector=fields or None,
                limit=_PAGE,
                _continue=next_page,
            )
            # The items of a list lack these fields, which are the same for all.
            items += [{**item, "apiVersion": api_version, "kind": kind} for item in page["items"]]
            next_page = page["metadata"].get("continue")
            if not next_page:
                return Listed(items, page["metadata"]["resourceVersion"])

    async def watch(
        self, api_version: str, kind: str, namespace: str | None, version: str, *, labels: str = ""
    ) -> AsyncIterator[Watched]:
        self._asked("watch", kind)
        async with _Watch() as watch:
            events = watch.stream(
                self._kinds[api_version, kind].get,
                namespace=namespace,
                label_selector=labels or None,
                resource_version=version,
                timeout_seconds=_WATCH_SECONDS,
                query_params=[("allowWatchBookmarks", "true")],
                serialize=False,
                _request_timeout=_WATCH_TIMEOUT,
            )
            while True:
                try:
                    event = await _answer(anext(events))
                except StopAsyncIteration:
                    return
                yield Watched(event["type"], event["object"])

    async def create(self, document: Object, *, dry_run: bool = False) -> Object:
        return await self._ask(
            self._kind_of(document),
            "create",
            body=document,
            field_manager=names.FIELD_MANAGER,
            dry_run=_dry(dry_run),
        )

    async def replace(self, document: Object) -> Object:
        return await self._ask(
            self._kind_of(document), "replace", body=document, field_manager=names.FIELD_MANAGER
        )

    async def apply(
        self,
        document: Object,
        *,
        manager: str = names.FIELD_MANAGER,
        part: str = "",
        dry_run: bool = False,
    ) -> Object:
        kind = self._kind_of(document)
        return await self._ask(
            kind.subresources[part] if part else kind,
            "server_side_apply",
            body=document,
            field_manager=manager,
            force_conflicts=True,
            dry_run=_dry(dry_run),
        )

    async def merge(self, document: Object) -> Object:
        return await self._ask(
            self._kind_of(document),
            "patch",
            body=document,
            content_type="application/merge-patch+json",
            field_manager=names.FIELD_MANAGER,
        )

    async def patch(
        self, api_version: str, kind: str, namespace: str, name: str, operations: Sequence[Object]
    ) -> Object:
        """Apply a JSON patch. If one of its tests fails, the answer is status 422."""
        return await self._ask(
            self._kinds[api_version, kind],
            "patch",
            name=name,
            namespace=namespace,
            body=list(operations),
            content_type="application/json-patch+json",
            field_manager=names.FIELD_MANAGER,
        )

    async def delete(
        self, api_version: str, kind: str, namespace: str, name: str, uid: str, *, propagation: Propagation
    ) -> None:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": propagation,
            "preconditions": {"uid": uid},
        }
        await self._ask(
            self._kinds[api_version, kind], "delete", name=name, namespace=namespace, body=options
        )

    async def _ask(self, kind: Resource, verb: str, **options: Any) -> Object:
        """Send one request and return the answer as a plain document. Refused credentials are renewed once.

        The client itself only rereads a service account's token, and that once a minute.
        """
        try:
            return await self._ask_once(kind, verb, options)
        except ApiError as error:
            if error.status != 401:
                raise
        await log_in(self._configuration)
        return await self._ask_once(kind, verb, options)

    async def _ask_once(self, kind: Resource, verb: str, options: Mapping[str, Any]) -> Object:
        self._asked(_verb(verb, options), kind.kind)
        ask = getattr(kind, verb)
        found: Object = await _answer(ask(serializer=_plain, _request_timeout=_TIMEOUT, **options))
        return found

    def _kind_of(self, document: Object) -> Resource:
        return self._kinds[document["apiVersion"], document["kind"]]


class _Watch(Watch):  # type: ignore[misc]  # the client's types are partial and not read
    """The client's watch, with the whole Status of an ERROR event, which the client reduces to text.

    A line that is not JSON raises ValueError; the client would return it as it is.
    """

    def unmarshal_event(self, data: str, response_type: object) -> Object:
        event: Object = json.loads(data)
        if event["type"] == "ERROR":
            status = event["object"]
            raise ApiException(status=status.get("code", 500), body=json.dumps(status))
        return event


async def log_in(configuration: Configuration) -> None:
    """Configure access to the API server: by the pod's service account, else KUBECONFIG or ~/.kube/config.

    Raises Unreachable if none of them exists.
    """
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException:
        await _load_kubeconfig(configuration)


async def _load_kubeconfig(configuration: Configuration) -> None:
    file = os.environ.get("KUBECONFIG") or config.KUBE_CONFIG_DEFAULT_LOCATION
    try:
        await config.load_kube_config(file, client_configuration=configuration, persist_config=False)
    except config.ConfigException as error:
        raise Unreachable(f"there is neither a service account nor a kubeconfig: {error}") from error


def _kind(client: DynamicClient, api_version: str, kind: str) -> Resource:
    group, _, version = api_version.rpartition("/")
    parts = {
        part: {"kind": kind, "name": f"{PLURALS[api_version, kind]}/{part}", "namespaced": True}
        for part in _SUBRESOURCES.get((api_version, kind), ())
    }
    return Resource(
        prefix="apis" if group else "api",
        group=group,
        api_version=version,
        kind=kind,
        name=PLURALS[api_version, kind],
        namespaced=kind not in _CLUSTER_SCOPED,
        subresources=parts,
        client=client,
    )


def _verb(method: str, options: Mapping[str, Any]) -> str:
    """Return Kubernetes' verb for a request. Dry runs, which write nothing, have a verb of their own."""
    if options.get("dry_run"):
        return "dry-run"
    if method == "get":
        return "get" if "name" in options else "list"
    return {"server_side_apply": "apply", "replace": "update"}.get(method, method)


def _dry(dry_run: bool) -> str | None:
    return "All" if dry_run else None


def _plain(_: DynamicClient, document: Object) -> Object:
    """Return answers unchanged: attribute access would cost a copy of each."""
    return document


async def _answer(asked: Awaitable[Any]) -> Any:
    """Return what the API server answers, and raise its errors as ApiError or Unreachable."""
    try:
        return await asked
    except ApiException as error:
        raise _error(error) from None  # the cause would repeat the answer, its headers and the traceback
    except TimeoutError as error:
        raise Unreachable(str(error) or "the API server did not answer in time") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error


def _error(error: ApiException) -> ApiError | Unreachable:
    """Convert the Status in the answer's body to an ApiError or Unreachable.

    Format: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/.
    """
    document = _status(error.body or "")
    message = str(document.get("message") or error.body or error.reason or "")
    if error.status in _UNAVAILABLE:
        return Unreachable(f"status {error.status}: {message}")
    details = document.get("details") or {}
    causes = tuple(
        Cause(*(str(cause.get(key) or "") for key in Cause._fields)) for cause in details.get("causes") or ()
    )
    return ApiError(error.status, str(document.get("reason") or ""), message, causes)


def _status(body: str) -> Mapping[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
