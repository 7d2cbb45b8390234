"""One pipeline, one namespace or one former operator stops nobody else."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lakemirror.api import API_VERSION, KIND
from lakemirror.controller import names, observe, operator, remembered
from lakemirror.controller.cache import Key
from lakemirror.controller.fence import Fenced, NotLeading
from lakemirror.controller.kube import ApiError
from lakemirror.controller.lease import Lease
from lakemirror.controller.operator import Operator, Options
from lakemirror.controller.values import Object
from lakemirror.controller.vitals import Vitals
from tests.api.test_documents import bomb as yaml_bomb
from tests.controller.builders import SETTINGS, document
from tests.controller.fake_api import FakeApi
from tests.controller.test_interleavings import Scene
from tests.controller.test_loop import World, in_loop, quick, world

__all__ = ["quick"]


def in_namespace(namespace: str, name: str = "shop", **changes: Any) -> Object:
    made = document(name, **changes)
    made["metadata"]["namespace"] = namespace
    return made


@asynccontextmanager
async def of_namespaces(api: FakeApi, *namespaces: str) -> AsyncIterator[World]:
    """An operator that was installed for these namespaces."""
    lease = Lease(api, "operators", "operator", "one")
    await lease.acquire()
    options = Options(SETTINGS, "one", "operators", namespaces=namespaces)
    vitals = Vitals()
    working = Operator(api, options, lease, vitals)
    watches = [_watch(api, working, namespace) for namespace in namespaces]
    tasks = [asyncio.create_task(one) for one in (working.run(), *watches)]
    try:
        yield World(api, working, vitals)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(api: FakeApi, operator: Operator, namespace: str) -> None:
    """kopf's watch of the pipelines of one namespace."""
    version = "0"
    while True:
        try:
            async for type, body in api.watch(API_VERSION, KIND, namespace, version):
                version = body["metadata"]["resourceVersion"]
                operator.gone(body) if type == "DELETED" else operator.take(body)
        except Exception:
            await asyncio.sleep(0.02)


def workload(api: FakeApi, namespace: str) -> Object | None:
    return api.objects.get(("apps/v1", "StatefulSet", namespace, "shop-driver"))


def finalizers(api: FakeApi, namespace: str) -> Any:
    return api.objects[API_VERSION, KIND, namespace, "shop"]["metadata"]["finalizers"]


@pytest.mark.guarantee(
    "A namespace that refuses the operator, or is deleted, stops no other; nothing is stuck in it"
)
class TestNamespaces:
    @in_loop
    async def test_one_that_refuses_stops_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator, "_RESYNC_SECONDS", 0.05)
        api = FakeApi()
        api.forbidden = {"b"}
        async with of_namespaces(api, "a", "b") as w:
            await api.put(in_namespace("a"))
            await api.put(in_namespace("b", checkpoint="s3a://b/c", target={"path": "s3a://b/{table}"}))
            await w.until(lambda: workload(api, "a"))
            assert workload(api, "b") is None
            api.forbidden = set()  # its RoleBinding has come
            await w.until(lambda: workload(api, "b"))

    @in_loop
    async def test_one_that_begins_to_refuse_stops_no_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operator, "_RESYNC_SECONDS", 0.05)
        api = FakeApi()
        async with of_namespaces(api, "a", "b") as w:
            await api.put(in_namespace("b", checkpoint="s3a://b/c", target={"path": "s3a://b/{table}"}))
            await w.until(lambda: workload(api, "b"))
            api.forbidden = {"b"}
            await api.wake()
            await api.put(in_namespace("a"))
            await w.until(lambda: workload(api, "a"))
            await asyncio.sleep(0.2)
            # What was known there still counts: its places are not given to others.
            assert set(w.operator.reconciler.pipelines) == {Key("a", "shop"), Key("b", "shop")}

    @in_loop
    async def test_one_that_is_deleted_is_not_held_up_though_the_rights_go_first(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operator, "_LOOKING_SECONDS", 0.02)
        api = FakeApi()
        async with of_namespaces(api, "a", "b") as w:
            other: dict[str, Any] = {"checkpoint": "s3a://b/c", "target": {"path": "s3a://b/{table}"}}
            await api.put(in_namespace("a", deletionPolicy="DeleteAll"))
            await api.put(in_namespace("b", deletionPolicy="DeleteAll", **other))
            for namespace in "ab":
                await w.until(
                    lambda n=namespace: api.objects[API_VERSION, KIND, n, "shop"]["metadata"]["finalizers"]
                )
            await w.until(lambda: workload(api, "a") and workload(api, "b"))
            await api.end("a")
            await asyncio.sleep(0.3)  # Kubernetes waits for 5 s
            await api.empty("a")
            assert [i for i in api.objects if i[2] == "a"] == []
            assert finalizers(api, "b") == [names.FINALIZER]


@pytest.mark.guarantee("The finalizer goes, whoever set it; those of others stay")
class TestFinalizers:
    @in_loop
    async def test_one_that_somebody_else_set_is_removed(self) -> None:
        """As ``kubectl get -o yaml | kubectl create -f -`` sets it in another cluster."""
        async with world() as w:
            copied = document(deletionPolicy="DeleteAll")
            copied["metadata"]["finalizers"] = [names.FINALIZER, "example.com/mine"]
            await w.api.put(copied)
            await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))
            await w.apply(deletionPolicy="Retain")
            await w.until(
                lambda: w.api.one("CdcPipeline", "shop")["metadata"]["finalizers"] == ["example.com/mine"]
            )

    @in_loop
    async def test_a_copied_pipeline_goes_after_its_data(self) -> None:
        async with world() as w:
            copied = document(deletionPolicy="DeleteAll")
            copied["metadata"]["finalizers"] = [names.FINALIZER]
            await w.api.put(copied)
            await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))
            await w.api.remove(w.api.one("CdcPipeline", "shop"))
            await w.until(lambda: w.api.one("Job", "shop-cleanup"))
            job = w.api.one("Job", "shop-cleanup")
            await w.api.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
            await w.until(lambda: not w.api.all("CdcPipeline"))

    @in_loop
    async def test_those_of_others_stay_though_the_list_changes_meanwhile(self) -> None:
        async with world() as w:
            await w.run(deletionPolicy="DeleteAll")
            await w.settle()

            async def before(verb: str, kind: str) -> None:
                if verb == "patch":
                    w.api.before = None
                    there = w.api.one("CdcPipeline", "shop")
                    metadata = {**there["metadata"], "finalizers": ["example.com/a", names.FINALIZER]}
                    await w.api._write("", {**there, "metadata": metadata}, log=False)

            w.api.before = before
            await w.apply(deletionPolicy="Retain")
            await w.until(
                lambda: w.api.one("CdcPipeline", "shop")["metadata"]["finalizers"] == ["example.com/a"]
            )


@pytest.mark.guarantee(
    "Memory depends on the pipelines that exist, not on how many edits or pipelines there have been"
)
class TestMemory:
    @in_loop
    async def test_foreign_config_maps_with_our_labels_are_not_kept(self) -> None:
        async with world() as w:
            await w.run()
            owner = w.api.one("ConfigMap", "shop-config")["metadata"]["ownerReferences"]
            for name, owners in (("shop-big", owner), ("other-config", []), ("shop-config-2", owner)):
                labels = names.labels("shop", "driver")
                metadata: Object = {
                    "name": name,
                    "namespace": "mirrors",
                    "labels": labels,
                    "ownerReferences": owners,
                }
                await w.api.put(
                    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": "y" * 999}}
                )
            await w.settle()
            kept = [i.name for i in w.operator._cache.of(Key("mirrors", "shop")) if i.kind == "ConfigMap"]
            assert sorted(kept) == ["shop-config", "shop-progress"]

    @in_loop
    async def test_a_pipeline_leaves_nothing_behind(self) -> None:
        before = remembered.count()  # of other tests
        async with world() as w:
            for number in range(3):
                for text in ("one", "two"):
                    await w.apply(f"p{number}", restartToken=text, **elsewhere(number))
                    await w.until(lambda n=number: w.api.one("StatefulSet", f"p{n}-driver"))
            await w.settle()
            assert remembered.count() >= before + 3
            for number in range(3):
                await w.api.remove(w.api.one("CdcPipeline", f"p{number}"))
            await w.until(lambda: not w.operator.reconciler.pipelines and not w.operator._cache._objects)
            await w.settle()
            assert sizes(w) == dict.fromkeys(sizes(w), 0) | {"remembered": before}

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "pipelines",
        [pytest.param(200, marks=pytest.mark.long), pytest.param(2_000, marks=pytest.mark.thorough)],
    )
    def test_memory_is_flat_over_edits_and_over_pipelines_that_come_and_go(self, pipelines: int) -> None:
        async def soak() -> None:
            scene = Scene()
            await scene.edit()
            await edits(scene, 1_000)
            await come_and_go(scene, 100)
            before = resident()
            await edits(scene, 10 * pipelines)
            await come_and_go(scene, pipelines)
            assert resident() - before < 16 * 2**20

        asyncio.run(soak())


async def edits(scene: Scene, number: int) -> None:
    for count in range(number):
        await scene.edit(restartToken=f"{id(scene)}-{count}-{number}", suspend=count % 2 == 0)
        await passes(scene)


async def come_and_go(scene: Scene, number: int) -> None:
    for count in range(number):
        made = await scene.api.put(document(f"p{number}-{count}", **elsewhere(count)))
        scene.reconciler.take(made)
        key = Key("mirrors", made["metadata"]["name"])
        await scene.reconciler.reconcile(key)
        there = scene.api.objects[API_VERSION, KIND, *key]
        await scene.api.remove(there)
        scene.reconciler.gone(there)
        for identity in list(scene.cache.of(key)):  # as the watches tell
            scene.cache._drop(key, identity)
        scene.forget()


async def passes(scene: Scene) -> None:
    scene.reconciler.take(scene.body())
    await scene.settle()
    scene.specs = {scene.body()["metadata"]["generation"]: scene.body()["spec"]}
    scene.forget()


def resident() -> float:
    """The memory of this process, in bytes."""
    gc.collect()
    return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def elsewhere(number: int) -> dict[str, Any]:
    return {"checkpoint": f"s3a://p{number}/c", "target": {"path": f"s3a://p{number}/{{table}}"}}


def sizes(w: World) -> dict[str, int]:
    """How much is known of pipelines."""
    loop, reconciler = w.operator, w.operator.reconciler
    return {
        "remembered": remembered.count(),
        "pipelines": len(reconciler.pipelines),
        "unseen": len(reconciler._unseen),
        "events": len(reconciler._actor._told),
        "objects": len(loop._cache._objects),
        "watched": len(loop._watched),
        "failures": len(loop._failures) + len(loop._failing),
        "images": len(reconciler.images._standings),
    }


@pytest.mark.guarantee(
    "Only one operator acts in a namespace; a former leader writes nothing more, even in the middle of a pass"
)
class TestOperators:
    @in_loop
    async def test_of_two_for_the_whole_cluster_one_acts_in_a_namespace(self) -> None:
        api = FakeApi()
        async with world(api, installation="operators/a") as one:
            await one.run()
            async with world(api, installation="operators/b") as two:
                await two.until(lambda: two.operator.reconciler.pipelines)
                api.calls.clear()
                await one.apply(suspend=True)
                await one.until(lambda: one.status()["reason"] == "Suspended")
                await asyncio.sleep(0.2)
                assert [call for call in api.calls if call == ("apply", "StatefulSet", "shop-driver")] == [
                    ("apply", "StatefulSet", "shop-driver")
                ]
                assert not two.operator.reconciler.pipelines[Key("mirrors", "shop")].steady
                assert two.operator._shares._told == {"mirrors": "operators/a"}
                await one.operator.release()  # it is uninstalled
                one.operator._lease._renewed = None
                await two.apply(suspend=False)
                await two.until(lambda: two.operator.reconciler.pipelines[Key("mirrors", "shop")].report)

    @in_loop
    async def test_where_no_lease_may_be_held_an_operator_acts_as_before(self) -> None:
        api = FakeApi()
        whole = api._asked

        async def asked(verb: str, kind: str, namespace: str | None) -> None:
            if kind == "Lease" and namespace == "mirrors":
                raise ApiError(403, "Forbidden", "leases.coordination.k8s.io is forbidden")
            await whole(verb, kind, namespace)

        async with world(api, installation="operators/a") as w:
            api._asked = asked  # type: ignore[method-assign]
            await w.run()

    @in_loop
    async def test_no_lease_is_asked_for_where_a_pipeline_is_gone(self) -> None:
        """Its namespace may be gone, too, and then no Lease can ever be held there."""
        async with world(installation="operators/a") as w:
            await w.run()
            await w.api.remove(w.api.one("CdcPipeline", "shop"))
            await w.until(lambda: not w.operator.reconciler.pipelines)
            await w.operator._shares.renew([])
            w.operator._queue.add(Key("mirrors", "shop"))  # as an object's late event does
            await asyncio.sleep(0.2)
            assert not w.operator._shares._leases
            assert not w.operator._shares._attempted

    @in_loop
    async def test_a_former_leader_writes_nothing_more_in_the_middle_of_a_pass(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with world() as w:
            await w.run()
            await w.settle()

            async def before(verb: str, kind: str) -> None:
                if verb == "apply" and kind == "ConfigMap":  # the Lease ends while the pass goes on
                    monkeypatch.setattr(Lease, "held", property(lambda lease: False))

            w.api.before = before
            w.api.calls.clear()
            await w.apply(onBadRecord="fail")
            await asyncio.sleep(0.5)
            assert {call[:2] for call in w.api.calls} <= {("apply", "ConfigMap")}
            w.api.before = None
            monkeypatch.undo()
            await w.until(lambda: ("apply", "shop-driver") in w.written("StatefulSet"))

    @in_loop
    async def test_a_request_ends_before_the_lease_can_pass(self) -> None:
        api, now = FakeApi(), [100.0]
        lease = Lease(api, "operators", "operator", "one", lambda: now[0], duration=2.0)
        await lease.acquire()
        fenced = Fenced(api, lease)
        hangs = asyncio.Event()

        async def before(verb: str, kind: str) -> None:
            await hangs.wait()

        api.before = before
        began = asyncio.get_running_loop().time()
        with pytest.raises(NotLeading, match="before the lease may pass"):
            await fenced.create(in_namespace("a"))
        assert 1.5 < asyncio.get_running_loop().time() - began < 10
        now[0] += 1.5  # it could not be renewed
        with pytest.raises(NotLeading, match="not held"):
            await fenced.create(in_namespace("a"))
        assert api.all("CdcPipeline") == []


class TestConfigMaps:
    def test_one_that_takes_hours_to_read_is_not_read(self) -> None:
        """Whoever may edit ConfigMaps of a namespace can write anything into ours."""
        metadata = {"name": "shop-config", "namespace": "mirrors", "annotations": {names.CURRENT: "r"}}
        for text in (yaml_bomb(), "[" * 10_000, f"a: [{'1,' * 60_000}]"):
            assert observe.accepted({"metadata": metadata, "data": {"r.yaml": text}}) is None
