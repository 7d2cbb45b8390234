"""Many pipelines on a Kubernetes cluster, and stand-ins for their drivers.

The stand-ins are pods that nobody schedules and reports like those of drivers. None of this needs a node.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.cluster import APPLY, MERGE, Cluster, Gone, Object, Refused
from lakemirror.api import API_VERSION, GROUP, KIND, VERSION
from lakemirror.controller import names

MOST = 10_000
A_NAMESPACE = 100
"""The number of pipelines per namespace."""
TABLES = 10
"""The number of tables in each report."""
PERIOD_SECONDS = 30.0
"""How often a driver reports when nothing happens."""
_LABEL = f"{GROUP}/benchmark"
_CRD = Path("crds/cdcpipelines.lakemirror.io.yaml")
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_PIPELINES = f"/apis/{GROUP}/{VERSION}/cdcpipelines"
_SET_OF_DRIVERS = "apps/v1", "statefulsets"
_MADE = (
    (f"{GROUP}/{VERSION}", "cdcpipelines"),
    ("v1", "pods"),
    _SET_OF_DRIVERS,
    ("v1", "configmaps"),
    ("v1", "serviceaccounts"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
    ("rbac.authorization.k8s.io/v1", "roles"),
    ("v1", "events"),
    ("coordination.k8s.io/v1", "leases"),
)
"""What is deleted at the end in each namespace before the namespace, in case no controller does that."""


@dataclass
class Mirror:
    """One pipeline, and what is reported about it. Times are those of ``time.monotonic``."""

    namespace: str
    name: str
    batch: int = 0
    committed: str = ""
    """When its driver applied the last batch."""
    created: float = 0.0
    seen: float | None = None
    generation: int = 0
    version: int = 0
    lateness: list[float] = field(default_factory=list)
    sent: dict[int, float] = field(default_factory=dict)
    """When each batch was reported that is not in the status yet."""

    def path(self, part: str = "") -> str:
        return f"{_of(self.namespace, f'{GROUP}/{VERSION}', 'cdcpipelines')}/{self.name}{part}"


class Fleet:
    """Pipelines in namespaces of their own. A context manager: at the end, all of it is gone."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        if number > MOST:
            raise ValueError(f"not more than {MOST:,} pipelines")
        self._cluster = cluster
        self._run = uuid.uuid4().hex[:6]
        self.mirrors = [
            Mirror(f"lakemirror-scale-{self._run}-{i // A_NAMESPACE:03}", f"shop-{i:05}")
            for i in range(number)
        ]
        self._by_key = {(mirror.namespace, mirror.name): mirror for mirror in self.mirrors}
        self._news = asyncio.Event()
        self._own_crd = False

    async def __aenter__(self) -> Fleet:
        await self._require_an_empty_cluster()
        await self._install_crd()
        await each(self.namespaces, self._make_namespace)
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(lambda _: self._news.set())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        await each(self.namespaces, self._clear)
        if self._own_crd:
            await self._cluster.ask("DELETE", f"{_CRDS}/cdcpipelines.{GROUP}")

    @property
    def namespaces(self) -> list[str]:
        return list(dict.fromkeys(mirror.namespace for mirror in self.mirrors))

    async def _require_an_empty_cluster(self) -> None:
        """Raise an error if the cluster has an active operator or any pipelines.

        The pipelines would be measured as well, and the operator would share the work.
        """
        leases = await self._cluster.items(
            "/apis/coordination.k8s.io/v1/leases", fieldSelector="metadata.name=lakemirror-operator"
        )
        if any(lease["spec"].get("holderIdentity") for lease in leases):
            raise RuntimeError("an operator acts in this cluster: measure on another one")
        try:
            if (await self._cluster.ask("GET", _PIPELINES, query={"limit": "1"}))["items"]:
                raise RuntimeError("there are CdcPipelines in this cluster: measure on another one")
        except Refused as refused:
            if refused.status != 404:
                raise
            self._own_crd = True

    async def _install_crd(self) -> None:
        crd = yaml.safe_load(_CRD.read_text("utf-8"))
        path = f"{_CRDS}/{crd['metadata']['name']}"
        await self._cluster.ask("PATCH", path, crd, APPLY, {"fieldManager": "benchmark", "force": "true"})
        await self._until(self._is_served, 30)

    async def _is_served(self) -> bool:
        try:
            await self._cluster.ask("GET", _PIPELINES, query={"limit": "1"})
        except Refused:
            return False
        return True

    async def _until(self, holds: Callable[[], Awaitable[bool]], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {seconds:.0f} s")
            await asyncio.sleep(0.2)

    async def _make_namespace(self, name: str) -> None:
        metadata = {"name": name, "labels": {_LABEL: self._run}}
        await self._cluster.ask("POST", "/api/v1/namespaces", {"metadata": metadata})

    async def _clear(self, namespace: str) -> None:
        for api_version, plural in _MADE:
            query = {"gracePeriodSeconds": "0"} if plural == "pods" else {}
            await self._cluster.ask("DELETE", _of(namespace, api_version, plural), query=query)
        for service in await self._cluster.items(_of(namespace, "v1", "services")):
            path = f"{_of(namespace, 'v1', 'services')}/{service['metadata']['name']}"
            with suppress(Gone):  # the garbage collector was quicker
                await self._cluster.ask("DELETE", path)
        await self._cluster.ask("DELETE", f"/api/v1/namespaces/{namespace}")

    # What a person does

    async def create(self, mirror: Mirror) -> None:
        """Create the pipeline."""
        where = mirror.path().rpartition("/")[0]
        mirror.created = time.monotonic()
        made = await self._cluster.ask("POST", where, manifest(mirror))
        mirror.generation = made["metadata"]["generation"]

    async def edit(self, mirror: Mirror, **spec: Any) -> float:
        """Edit the pipeline. Returns the seconds until its status reflects the edit."""
        began = time.monotonic()
        mirror.seen = None
        edited = await self._cluster.ask("PATCH", mirror.path(), {"spec": spec}, MERGE)
        mirror.generation = edited["metadata"]["generation"]
        await self.until(lambda: mirror.seen is not None, 120)
        assert mirror.seen is not None
        return mirror.seen - began

    # What is seen

    async def until(self, holds: Callable[[], bool], seconds: float) -> None:
        """Wait until the condition holds. It is checked whenever a status was written."""
        async with asyncio.timeout(seconds):
            while not holds():
                if self._watching.done():
                    self._watching.result()  # raises what ended it
                self._news.clear()
                await self._news.wait()

    async def _watch(self) -> None:
        async for type, body in self._cluster.watch(_PIPELINES):
            metadata = body["metadata"]
            mirror = self._by_key.get((metadata["namespace"], metadata["name"]))
            if mirror is not None and type != "DELETED":
                mirror.version = int(metadata["resourceVersion"])
                self._look(mirror, body.get("status") or {}, time.monotonic())
                self._news.set()

    def _look(self, mirror: Mirror, status: Object, now: float) -> None:
        current = status.get("observedGeneration", -1) >= max(mirror.generation, 1)
        if mirror.seen is None and current:
            mirror.seen = now
        batch = (status.get("checkpoint") or {}).get("batchId", -1)
        for sent in [number for number in mirror.sent if number <= batch]:
            mirror.lateness.append(now - mirror.sent.pop(sent))

    # What controllers, the kubelet and drivers do

    async def start(self, namespace: str) -> None:
        """Give each pipeline of a namespace a running driver pod and its first report."""
        sets = await self._cluster.items(_of(namespace, *_SET_OF_DRIVERS))
        owners = {each["metadata"]["labels"][names.PIPELINE]: each for each in sets}
        mirrors = [mirror for mirror in self.mirrors if mirror.namespace == namespace]
        await each(mirrors, lambda mirror: self._start(mirror, owners[mirror.name]))

    async def _start(self, mirror: Mirror, owner: Object) -> None:
        path = _of(mirror.namespace, "v1", "pods")
        pod = driver(owner)
        try:
            await self._cluster.ask("POST", path, pod)
        except Refused as refused:
            if refused.status != 409:  # the controller of StatefulSets was quicker
                raise
        await self._cluster.ask("PATCH", f"{path}/{pod['metadata']['name']}/status", running(), MERGE)
        await self.report(mirror)

    async def report(self, mirror: Mirror, *, news: bool = True) -> None:
        """Write a driver's report: on a new batch, or on none, which only says that the driver is well.

        A driver that has not started yet reports nothing.
        """
        if not news and not mirror.batch:
            return
        if news:
            mirror.batch, mirror.committed = mirror.batch + 1, _now()
            mirror.sent[mirror.batch] = time.monotonic()
        path = f"{_of(mirror.namespace, 'v1', 'configmaps')}/{names.progress(mirror.name)}"
        told = {"data": {"progress.json": json.dumps(progress(mirror))}}
        await self._cluster.ask("PATCH", path, told, MERGE)


async def each(many: Sequence[Any], do: Callable[[Any], Awaitable[None]]) -> None:
    """Run `do` for all of them concurrently; the first failure ends it."""
    async with asyncio.TaskGroup() as tasks:
        for one in many:
            tasks.create_task(_awaited(do(one)))


async def _awaited(done: Awaitable[None]) -> None:
    await done


async def paced(turns: Iterable[Callable[[], Awaitable[None]]], a_second: float) -> None:
    """Start this many a second, whether earlier ones have ended or not; return when all have ended."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for number, turn in enumerate(turns):
            await asyncio.sleep(max(0.0, began + number / a_second - time.monotonic()))
            tasks.create_task(_awaited(turn()))


def rounds(fleet: Fleet, number: int, *, news: bool) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield this many reports, of each pipeline in turn."""
    for index in range(number):
        yield partial(fleet.report, fleet.mirrors[index % len(fleet.mirrors)], news=news)


def manifest(mirror: Mirror) -> Object:
    """Return a pipeline with its own source, target and checkpoint, whose driver no scheduler looks at."""
    where = f"s3a://lake/{mirror.namespace}"
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": mirror.name, "namespace": mirror.namespace},
        "spec": {
            "source": {"kafka": {"bootstrapServers": "kafka:9092", "topics": [mirror.name]}},
            "target": {"path": f"{where}/{mirror.name}/{{table}}"},
            "checkpoint": f"{where}/_checkpoints/{mirror.name}",
            "spark": {"podTemplate": {"spec": {"schedulerName": "benchmark"}}},
        },
    }


def driver(owner: Object) -> Object:
    """Return the pod that the StatefulSet controller makes."""
    template, metadata = owner["spec"]["template"], owner["metadata"]
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
    reference |= {name: metadata[name] for name in ("name", "uid")}
    about = {**template["metadata"], "name": f"{metadata['name']}-0", "ownerReferences": [reference]}
    return {"metadata": about, "spec": template["spec"]}


def running() -> Object:
    """Return what the kubelet says about a running driver."""
    now = _now()
    container = {
        "name": "driver",
        "image": "driver:1",
        "imageID": "",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }
    conditions = [
        {"type": type, "status": "True", "lastTransitionTime": now}
        for type in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    ]
    return {"status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}}


def progress(mirror: Mirror) -> Object:
    """Return a driver's report that all is applied."""
    batch, now = mirror.batch, mirror.committed
    counts = {"records": 1000 * batch, "applied": 1000 * batch, "inserted": 1000 * batch}
    tables = [
        {"source": f"shop.public.table_{index}", "version": batch, "lastEventTime": now, **counts}
        for index in range(TABLES)
    ]
    return {
        "pipeline": mirror.name,
        "runId": "run-1",
        "phase": "Running",
        "batchId": batch,
        "committedAt": now,
        "observedAt": _now(),
        "source": {"reachedAt": now},
        "lagRecords": 0,
        "lagSeconds": 0.0,
        "caughtUp": True,
        "totals": {name: TABLES * value for name, value in counts.items()},
        "tablesTotal": TABLES,
        "tables": tables,
    }


def _of(namespace: str, api_version: str, plural: str) -> str:
    prefix = "apis" if "/" in api_version else "api"
    return f"/{prefix}/{api_version}/namespaces/{namespace}/{plural}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
