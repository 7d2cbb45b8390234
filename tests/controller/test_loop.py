"""The loop against an API server in memory: what is written, how often, and what when things break."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import pytest

from lakemirror.controller import cache, names, operator, reconciler, shares
from lakemirror.controller import plan as plan_module
from lakemirror.controller.cache import Key
from lakemirror.controller.kube import ApiError, Cause
from lakemirror.controller.lease import Lease
from lakemirror.controller.operator import Operator, Options
from lakemirror.controller.values import Object, Pace, Settings
from lakemirror.controller.vitals import Vitals
from tests.controller.builders import SETTINGS, document, iso, merged
from tests.controller.fake_api import FakeApi

POD_SPEC = {"containers": [{"name": "driver", "image": "driver:1"}]}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is waited for in seconds takes hundredths here."""
    monkeypatch.setattr(cache, "_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(operator, "_WAITING_SECONDS", 0.02)
    monkeypatch.setattr(operator, "_OTHERS_SECONDS", 0.02)
    monkeypatch.setattr(shares, "_ATTEMPT_SECONDS", 0.02)
    monkeypatch.setattr(operator, "_MOST_SECONDS", 0.05)
    monkeypatch.setattr(reconciler, "_WAITING_SECONDS", 0.02)
    monkeypatch.setattr(reconciler, "_LOOKING_SECONDS", 0.02)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(120):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


class World:
    """A cluster with an operator; the tests play its controllers."""

    def __init__(self, api: FakeApi, operator: Operator, vitals: Vitals | None = None) -> None:
        self.api, self.operator, self.vitals = api, operator, vitals or Vitals()

    def figures(self) -> dict[tuple[str, ...], float]:
        """What is served at /metrics: the value by the names of series and labels' values."""
        families = self.vitals.registry.collect()
        return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}

    async def apply(self, name: str = "shop", **changes: Any) -> Object:
        """What `kubectl apply` of a manifest does."""
        wanted = document(name, **changes)
        there = self.api.objects.get(("lakemirror.io/v1alpha1", "CdcPipeline", "mirrors", name))
        body = {**copy.deepcopy(there), "spec": wanted["spec"]} if there is not None else wanted
        return await self.api._write("", body, log=False)

    def status(self, name: str = "shop") -> dict[str, Any]:
        found: dict[str, Any] = self.api.one("CdcPipeline", name).get("status") or {}
        return found

    def ready(self, name: str = "shop") -> tuple[str, str] | None:
        conditions = {c["type"]: c for c in self.status(name).get("conditions", ())}
        return (
            (conditions["Ready"]["status"], conditions["Ready"]["reason"]) if "Ready" in conditions else None
        )

    def stalled(self, name: str = "shop") -> str | None:
        return next((c["reason"] for c in self.status(name)["conditions"] if c["type"] == "Stalled"), None)

    async def until(self, what: Callable[[], Any]) -> None:
        while True:
            with suppress(StopIteration, KeyError):
                if what():
                    return
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Returns when nothing is written for a while."""
        before = -1
        while before != len(self.api.calls):
            before = len(self.api.calls)
            await asyncio.sleep(0.15)

    async def start_pod(self, name: str = "shop") -> Object:
        """What the controller of StatefulSets and the kubelet do."""
        workload = self.api.one("StatefulSet", f"{name}-driver")
        generation = workload["metadata"]["generation"]
        await self.api.put({**workload, "status": {"observedGeneration": generation}})
        template = workload["spec"]["template"]
        started = iso(datetime.now(UTC).replace(microsecond=0))
        state = {
            "name": "driver",
            "ready": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": started}},
        }
        metadata = {
            "name": f"{name}-driver-0",
            "namespace": "mirrors",
            "labels": template["metadata"]["labels"],
            "annotations": template["metadata"]["annotations"],
            "ownerReferences": [{"kind": "StatefulSet", "uid": workload["metadata"]["uid"]}],
        }
        status = {"phase": "Running", "containerStatuses": [state]}
        return await self.api.put(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": POD_SPEC, "status": status}
        )

    async def report(self, name: str = "shop", **changes: Any) -> None:
        """What the driver does."""
        there = self.api.one("ConfigMap", f"{name}-progress")
        told = {
            "runId": "run-1",
            "phase": "Running",
            "batchId": 1,
            "observedAt": iso(datetime.now(UTC)),
            "committedAt": iso(datetime.now(UTC)),
            "caughtUp": True,
            "lagRecords": 0,
            "totals": {"applied": 1},
            "tablesTotal": 0,
            "tables": [],
        }
        await self.api.put({**there, "data": {"progress.json": json.dumps(told | changes)}})

    async def run(self, name: str = "shop", **changes: Any) -> None:
        """A pipeline from nothing to ready."""
        await self.apply(name, **changes)
        await self.until(lambda: self.api.one("StatefulSet", f"{name}-driver"))
        await self.start_pod(name)
        await self.report(name)
        await self.until(lambda: self.ready(name) == ("True", "Progressing"))

    def written(self, kind: str) -> list[tuple[str, str]]:
        return [(verb, name) for verb, k, name in self.api.calls if k == kind]


@asynccontextmanager
async def world(
    api: FakeApi | None = None,
    identity: str = "one",
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    settings: Settings = SETTINGS,
    installation: str = "mirrors/operator",
) -> AsyncIterator[World]:
    api = api or FakeApi()
    namespace, _, name = installation.partition("/")
    lease = Lease(api, namespace, name, identity)
    await lease.acquire()
    options = Options(settings, identity, namespace, lease=name)
    vitals = Vitals()
    working = Operator(api, options, lease, vitals, clock)
    tasks = [asyncio.create_task(one) for one in (working.run(), _kopf(api, working))]
    try:
        yield World(api, working, vitals)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await lease.release() if api.reachable else None


async def _kopf(api: FakeApi, operator: Operator) -> None:
    """The watch of pipelines, which kopf keeps elsewhere."""
    version = "0"
    while True:
        with suppress(Exception):
            async for type, body in api.watch("lakemirror.io/v1alpha1", "CdcPipeline", None, version):
                version = body["metadata"]["resourceVersion"]
                operator.gone(body) if type == "DELETED" else operator.take(body)
        await asyncio.sleep(0.02)


@pytest.mark.guarantee("Nothing is written twice; nothing is decided without the API server or the Lease")
@in_loop
async def test_a_pipeline_becomes_ready_and_then_nothing_is_written() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        before = list(w.api.calls)
        for _ in range(3):  # the driver lives and says the same again
            await w.report(
                committedAt=json.loads(w.api.one("ConfigMap", "shop-progress")["data"]["progress.json"])[
                    "committedAt"
                ]
            )
            await asyncio.sleep(0.1)
        assert w.api.calls == before
        assert [verb for verb, _ in w.written("StatefulSet")] == ["apply"]


@in_loop
async def test_metrics_tell_of_the_operator_and_of_each_pipeline() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        found = w.figures()
        assert found["lakemirror_pipeline_phase", "mirrors", "shop", "Running"] == 1
        ready = "lakemirror_pipeline_condition", "mirrors", "shop", "Ready", "True", "Progressing"
        assert found[ready] == 1
        assert found["lakemirror_operator_leader",] == 1
        assert found["lakemirror_operator_passes_total", "done"] >= 1
        assert found["lakemirror_operator_pass_duration_seconds_count",] >= 1
        assert found["lakemirror_operator_heartbeat_timestamp_seconds",] > 0
    assert World(w.api, w.operator).figures()["lakemirror_operator_heartbeat_timestamp_seconds",] == 0


@in_loop
async def test_a_new_operator_changes_nothing() -> None:
    api = FakeApi()
    async with world(api) as w:
        await w.run()
        await w.settle()
    api.calls.clear()
    async with world(api, "two") as w:
        await w.until(lambda: len(w.operator.reconciler.pipelines) == 1)
        await asyncio.sleep(0.3)
        assert [call for call in api.calls if call[1] != "Lease"] == []


@in_loop
async def test_what_happened_while_no_operator_ran_is_done_once() -> None:
    api = FakeApi()
    async with world(api) as w:
        await w.run()
        await w.settle()
    absent = World(api, w.operator)
    await absent.apply(onBadRecord="fail")
    await absent.apply(onBadRecord="quarantine", schemaEvolution="skip")
    api.calls.clear()
    async with world(api, "two") as w:
        await w.until(lambda: ("apply", "shop-driver") in w.written("StatefulSet"))
        changed = api.one("StatefulSet", "shop-driver")
        generation = changed["metadata"]["generation"]
        await api.put({**changed, "status": {"observedGeneration": generation}})
        await w.until(lambda: ("delete", "shop-driver-0") in w.written("Pod"))
        await w.start_pod()
        await w.report()
        await w.until(lambda: w.ready() == ("True", "Progressing"))
        await w.settle()
        assert w.written("Pod") == [("delete", "shop-driver-0")]
        assert len(w.written("StatefulSet")) == 1


@in_loop
async def test_what_is_deleted_or_changed_by_others_is_mended() -> None:
    async with world() as w:
        await w.run()
        await w.api.remove(w.api.one("Service", "shop-driver"))
        await w.until(lambda: w.api.one("Service", "shop-driver"))
        workload = w.api.one("StatefulSet", "shop-driver")
        await w.api.put({**workload, "spec": {**workload["spec"], "replicas": 5}})
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver")["spec"]["replicas"] == 1)


@in_loop
async def test_a_foreign_object_is_left_alone_until_it_is_gone() -> None:
    async with world() as w:
        foreign = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "shop-driver", "namespace": "mirrors"},
        }
        made = await w.api.put({**foreign, "spec": {"clusterIP": "1.2.3.4"}})
        await w.apply()
        await w.until(lambda: w.ready() == ("False", "ForeignObject"))
        assert w.api.one("Service", "shop-driver")["spec"] == {"clusterIP": "1.2.3.4"}
        assert not w.api.all("StatefulSet")
        await w.api.remove(made)
        w.operator.take(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))


@in_loop
async def test_the_objects_of_a_former_pipeline_are_waited_for() -> None:
    async with world() as w:
        labels = {names.MANAGED_BY: names.FIELD_MANAGER, names.PIPELINE: "shop"}
        owners = [{"kind": "CdcPipeline", "name": "shop", "uid": "old"}]
        metadata = {
            "name": "shop-driver",
            "namespace": "mirrors",
            "labels": labels,
            "ownerReferences": owners,
        }
        old = await w.api.put(
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": {}}
        )
        await w.apply()
        await w.until(lambda: w.ready() == ("False", "FormerObject"))
        await w.api.remove(old)
        await w.until(
            lambda: w.api.one("StatefulSet", "shop-driver")["metadata"]["uid"] != old["metadata"]["uid"]
        )


@pytest.mark.guarantee("One poisoned pipeline does not stop another, whatever its spec holds")
@in_loop
async def test_one_poisoned_pipeline_stops_no_other() -> None:
    async with world() as w:
        await w.apply("wrong", target=None)
        odd = document("odd")
        odd["spec"] = "no map"
        await w.api.put(odd)
        await w.run("good", checkpoint="s3a://other/c", target={"path": "s3a://other/{table}"})
        assert w.ready("wrong") == ("False", "InvalidSpec")
        await w.until(lambda: w.ready("odd") == ("False", "InvalidSpec"))


@in_loop
async def test_a_pass_that_breaks_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        whole, times = w.operator.reconciler._observe, iter(range(3))

        async def broken(*args: Any) -> Any:
            if next(times, None) is not None:
                raise RuntimeError("a bug")
            return await whole(*args)

        monkeypatch.setattr(w.operator.reconciler, "_observe", broken)
        await w.run()


@in_loop
async def test_the_younger_of_two_waits_until_the_older_is_gone() -> None:
    async with world() as w:
        await w.run("first")
        await w.apply("second")
        await w.until(lambda: w.ready("second") == ("False", "Conflict"))
        assert [o["metadata"]["name"] for o in w.api.all("StatefulSet")] == ["first-driver"]
        await w.api.remove(w.api.one("CdcPipeline", "first"))
        await w.until(lambda: w.api.one("StatefulSet", "second-driver"))


@in_loop
async def test_an_edit_into_a_conflict_waits_while_the_driver_goes_on() -> None:
    elsewhere = {"checkpoint": "s3a://other/c", "target": {"path": "s3a://other/{table}"}}
    moved = {"target": document("first")["spec"]["target"], "spark": {"resetToken": "1"}}
    async with world() as w:
        await w.run("first")
        await w.run("second", **elsewhere)
        before = w.api.one("StatefulSet", "second-driver")
        await w.apply("second", **merged(elsewhere, moved))
        await w.until(lambda: w.stalled("second") == "Conflict")
        assert w.api.one("StatefulSet", "second-driver")["spec"] == before["spec"]
        await w.apply("second", **elsewhere)
        await w.until(lambda: w.stalled("second") is None)
        await w.apply("second", **merged(elsewhere, moved))
        await w.until(lambda: w.stalled("second") == "Conflict")
        await w.api.remove(w.api.one("CdcPipeline", "first"))
        await w.until(lambda: w.api.one("StatefulSet", "second-driver")["spec"] != before["spec"])
        await w.until(lambda: w.stalled("second") is None)


@in_loop
async def test_a_new_operator_leaves_its_place_to_a_pipeline_with_a_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although the one that waits for this place has its pass first."""
    api = FakeApi()
    async with world(api) as w:
        await w.run("first")
        await w.apply("second")
        await w.until(lambda: w.ready("second") == ("False", "Conflict"))
        await w.apply("first", onBadRecord="drop")
        await w.until(lambda: w.stalled("first") == "InvalidSpec")
        await w.settle()
    passes = reconciler.Reconciler.reconcile

    async def late(self: reconciler.Reconciler, key: Key) -> bool:
        if key.name == "first":
            await asyncio.sleep(0.3)
        return await passes(self, key)

    monkeypatch.setattr(reconciler.Reconciler, "reconcile", late)
    api.calls.clear()
    async with world(api, "two") as w:
        await w.until(lambda: len(w.operator.reconciler.pipelines) == 2)
        await asyncio.sleep(0.6)
        assert w.written("StatefulSet") == []
        assert (w.stalled("first"), w.ready("second")) == ("InvalidSpec", ("False", "Conflict"))


@pytest.mark.guarantee(
    "What a pipeline has, no other one gets, however old it is; nesting is a conflict, and a bucket or table "
    "is that of its endpoint or metastore; a conflict names nobody of another namespace"
)
@in_loop
async def test_what_another_has_is_refused_to_an_older_one_too() -> None:
    """Age decides only between two that have nothing yet: a suspended old one stops no running one."""
    elsewhere = {"checkpoint": "s3a://other/c", "target": {"path": "s3a://other/{table}"}}
    async with world() as w:
        await w.apply("old", suspend=True, **elsewhere)
        await w.until(lambda: w.ready("old") == ("True", "Suspended"))
        await w.run("young", deletionPolicy="Retain")
        before = w.api.one("StatefulSet", "young-driver")["spec"]
        await w.apply("old", suspend=True, deletionPolicy="DeleteCheckpoint")
        await w.until(lambda: w.stalled("old") == "Conflict")
        await w.settle()
        assert w.ready("young") == ("True", "Progressing")
        assert w.api.one("StatefulSet", "young-driver")["spec"] == before
        await w.apply("young", onBadRecord="fail")  # it may be edited in its place
        await w.until(lambda: w.api.one("StatefulSet", "young-driver")["spec"] != before)
        assert w.stalled("young") is None


@pytest.mark.guarantee(
    "What a pipeline has, no other one gets, however old it is; nesting is a conflict, and a bucket or table "
    "is that of its endpoint or metastore; a conflict names nobody of another namespace"
)
@in_loop
@pytest.mark.parametrize("restarted", [False, True])
async def test_the_older_one_that_goes_takes_nothing_of_another_along(restarted: bool) -> None:
    elsewhere = {"checkpoint": "s3a://other/c", "target": {"path": "s3a://other/{table}"}}
    api = FakeApi()
    async with world(api) as w:
        await w.run("old", deletionPolicy="DeleteAll", **elsewhere)
        await w.run("young")
        await w.apply("old", deletionPolicy="DeleteAll", spark={"resetToken": "1"})
        await w.until(lambda: w.stalled("old") == "Conflict")
        if not restarted:
            await api.remove(api.one("CdcPipeline", "old"))
            await _sees_cleanup_of(w, "s3a://other/c")
    if restarted:
        await api.remove(api.one("CdcPipeline", "old"))
        async with world(api, "two") as w:
            await _sees_cleanup_of(w, "s3a://other/c")


async def _sees_cleanup_of(w: World, checkpoint: str) -> None:
    await w.until(lambda: not [o for o in w.api.all("StatefulSet") if o["metadata"]["name"] == "old-driver"])
    await w.until(lambda: w.api.one("Job", "old-cleanup"))
    job = w.api.one("Job", "old-cleanup")
    volumes = job["spec"]["template"]["spec"]["volumes"]
    key = next(v for v in volumes if v["name"] == "config")["configMap"]["items"][0]["key"]
    assert checkpoint in w.api.one("ConfigMap", "old-config")["data"][key]


@pytest.mark.guarantee(
    "What a pipeline has, no other one gets, however old it is; nesting is a conflict, and a bucket or table "
    "is that of its endpoint or metastore; a conflict names nobody of another namespace"
)
@in_loop
async def test_after_a_restart_each_keeps_what_it_has_whatever_the_others_ask() -> None:
    """While no operator runs, the old one is edited to what the young one has."""
    elsewhere = {"checkpoint": "s3a://other/c", "target": {"path": "s3a://other/{table}"}}
    api = FakeApi()
    async with world(api) as w:
        await w.run("old", **elsewhere)
        await w.run("young")
        await w.settle()
    await World(api, w.operator).apply("old", spark={"resetToken": "1"})
    api.calls.clear()
    async with world(api, "two") as w:
        await w.until(lambda: w.stalled("old") == "Conflict")
        await w.settle()
        assert w.written("StatefulSet") == []
        assert (w.ready("old"), w.ready("young")) == (("True", "Progressing"),) * 2


@in_loop
async def test_a_checkpoint_or_mirrors_inside_of_anothers_checkpoint_wait() -> None:
    async with world() as w:
        await w.run("outer")
        inside = f"{document()['spec']['checkpoint']}/x"
        await w.apply("one", checkpoint=inside, target={"path": "s3a://one/{table}"})
        await w.apply("two", checkpoint="s3a://two/c", target={"path": f"{inside}/{{table}}"})
        for name in ("one", "two"):
            await w.until(lambda name=name: w.ready(name) == ("False", "Conflict"))
        assert [o["metadata"]["name"] for o in w.api.all("StatefulSet")] == ["outer-driver"]
        await w.api.remove(w.api.one("CdcPipeline", "outer"))
        # They are in each other's way, too: the mirrors of one lie in the checkpoint of the other.
        await w.until(lambda: len(w.api.all("StatefulSet")) == 1)


@in_loop
async def test_two_that_hurt_each_other_both_keep_what_they_have() -> None:
    """Each is edited to the other's place, again and again, and is deleted in the end."""
    mine = {"checkpoint": "s3a://a/c", "target": {"path": "s3a://a/{table}"}}
    yours = {"checkpoint": "s3a://b/c", "target": {"path": "s3a://b/{table}"}}
    async with world() as w:
        await w.run("one", **mine)
        await w.run("two", **yours)
        before = {o["metadata"]["name"]: o["spec"] for o in w.api.all("StatefulSet")}
        for token in ("1", "2", "3"):
            await w.apply("one", **merged(yours, {"spark": {"resetToken": token}}))
            await w.apply("two", **merged(mine, {"spark": {"resetToken": token}}))
            await w.until(lambda: w.stalled("one") == w.stalled("two") == "Conflict")
        await w.settle()
        assert {o["metadata"]["name"]: o["spec"] for o in w.api.all("StatefulSet")} == before
        assert w.ready("one") == w.ready("two") == ("True", "Progressing")


@in_loop
async def test_two_found_at_once_never_both_run() -> None:
    api = FakeApi()
    for name in ("b", "a", "c"):
        await api.put(document(name))
    async with world(api) as w:
        await w.until(lambda: len([n for n in "abc" if w.ready(n)]) == 3)
        await w.settle()
        assert [o["metadata"]["name"] for o in api.all("StatefulSet")] == ["b-driver"]


@pytest.mark.guarantee("Nothing is written twice; nothing is decided without the API server or the Lease")
@in_loop
async def test_while_the_api_server_is_away_nothing_is_decided() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        await w.api.cut()
        await asyncio.sleep(0.2)
        before = list(w.api.calls)
        w.api.restore()
        await w.report(batchId=2)
        await w.until(lambda: w.status()["checkpoint"]["batchId"] == 2)
        assert {call[:2] for call in w.api.calls[len(before) :]} == {("apply status", "CdcPipeline")}
        assert w.ready() == ("True", "Progressing")


@in_loop
async def test_a_kind_that_the_cluster_lacks_is_told() -> None:
    api = FakeApi()
    gone = ApiError(404, "NotFound", "the server could not find the requested resource")
    api.refusals = {("list", "SparkApplication"): gone, ("apply", "SparkApplication"): gone}
    async with world(api) as w:
        await w.apply(spark={"backend": "apache"})
        await w.until(lambda: w.ready() == ("False", "Refused"))
        assert "spec.spark.backend" in w.status()["conditions"][0]["message"]


@in_loop
async def test_a_refused_object_is_told_with_the_server_s_words() -> None:
    api = FakeApi()
    api.refusals = {
        ("apply", "StatefulSet"): ApiError(422, "Invalid", "spec.template.spec.containers[1].image: Required")
    }
    async with world(api) as w:
        await w.apply()
        await w.until(lambda: w.ready() == ("False", "InvalidSpec"))
        assert "containers[1].image" in w.status()["conditions"][0]["message"]


@in_loop
async def test_the_finalizer_comes_before_the_data_and_goes_after_it() -> None:
    async with world() as w:
        await w.run(deletionPolicy="DeleteAll")
        calls = [call[1] for call in w.api.calls]
        assert calls.index("CdcPipeline") < calls.index("StatefulSet")
        assert w.api.one("CdcPipeline", "shop")["metadata"]["finalizers"] == [names.FINALIZER]
        await w.api.remove(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: w.api.one("Job", "shop-cleanup"))
        assert not w.api.all("StatefulSet")
        job = w.api.one("Job", "shop-cleanup")
        await w.api.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
        await w.until(lambda: not w.api.all("CdcPipeline"))


@in_loop
async def test_data_can_be_kept_with_a_spec_that_has_a_mistake() -> None:
    async with world() as w:
        await w.run(deletionPolicy="DeleteAll")
        await w.apply(target=None, deletionPolicy="Retain")
        await w.until(lambda: not w.api.one("CdcPipeline", "shop")["metadata"].get("finalizers"))
        assert w.ready() == ("True", "Progressing")
        await w.api.remove(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: not w.api.all("CdcPipeline"))
        assert not w.api.all("Job")


@in_loop
async def test_the_runs_of_a_schedule_belong_to_the_pipeline() -> None:
    """Its CronJob owns them. A run of a suspended schedule is stopped, and one that failed is told."""
    schedule = {"availableNow": True, "schedule": "0 0 1 1 *"}
    async with world() as it:
        await it.apply(trigger=schedule)
        await it.until(lambda: it.ready() == ("True", "Scheduled"))
        cron = it.api.one("CronJob", "shop-driver")
        owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "shop-driver", "controller": True}
        run = cron["spec"]["jobTemplate"] | {"apiVersion": "batch/v1", "kind": "Job"}
        names_it = {"name": "shop-driver-1", "namespace": "mirrors"}
        owned = {"ownerReferences": [{**owner, "uid": cron["metadata"]["uid"]}]}
        run["metadata"] = {**run["metadata"], **names_it, **owned}
        failed = {"conditions": [{"type": "Failed", "status": "True", "message": "it broke"}]}
        await it.api._write("", {**run, "status": failed})
        await it.until(lambda: it.ready() == ("False", "RunFailed"))
        await it.api._write("", {**run, "metadata": {**run["metadata"], "name": "shop-driver-2"}})
        await it.until(lambda: it.ready() == ("False", "DriverPending"))
        await it.apply(trigger=schedule, suspend=True)
        await it.until(lambda: ("batch/v1", "Job", "mirrors", "shop-driver-2") not in it.api.objects)
        assert ("batch/v1", "Job", "mirrors", "shop-driver-1") in it.api.objects


@in_loop
async def test_a_namespace_that_is_deleted_is_not_held_up() -> None:
    async with world() as w:
        await w.run(deletionPolicy="DeleteAll")
        await w.settle()
        ending = ApiError(403, "Forbidden", "being terminated", (Cause("NamespaceTerminating"),))
        w.api.refusals = {("apply", kind): ending for kind in ("Job", "ConfigMap", "ServiceAccount")}
        await w.api.remove(w.api.one("CdcPipeline", "shop"))
        for kind in ("StatefulSet", "Pod", "Service", "ConfigMap", "ServiceAccount"):
            for there in w.api.all(kind):
                await w.api.remove(there)
        await w.until(lambda: not w.api.all("CdcPipeline"))


@in_loop
async def test_events_are_recorded_once() -> None:
    async with world() as w:
        await w.apply(target=None)
        await w.until(lambda: w.api.all("Event"))
        for number in range(3):
            await w.api.put(
                {
                    **w.api.one("CdcPipeline", "shop"),
                    "metadata": {
                        **w.api.one("CdcPipeline", "shop")["metadata"],
                        "labels": {"n": str(number)},
                    },
                }
            )
            await asyncio.sleep(0.05)
        [event] = w.api.all("Event")
        assert (event["reason"], event["count"], event["type"]) == ("InvalidSpec", 1, "Warning")
        assert event["involvedObject"]["name"] == "shop"


@in_loop
async def test_a_mount_that_fails_is_told_in_the_kubelet_s_words() -> None:
    async with world() as w:
        await w.apply()
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))
        pod = await w.start_pod()
        waiting = {"name": "driver", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
        await w.api.put({**pod, "status": {"phase": "Pending", "containerStatuses": [waiting]}})
        message = 'MountVolume.SetUp failed for volume "secret-0" : secret "kafka-auth" not found'
        await w.api.put(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": "x", "namespace": "mirrors"},
                "reason": "FailedMount",
                "message": message,
                "involvedObject": {"uid": pod["metadata"]["uid"]},
            }
        )
        await w.until(lambda: w.ready() == ("False", "SecretMissing"))
        await w.start_pod()
        await w.report()
        await w.until(lambda: w.ready() == ("True", "Progressing"))


@pytest.mark.guarantee("Nothing is written twice; nothing is decided without the API server or the Lease")
@pytest.mark.guarantee("The operator creates the secret of driver and executors once, and reads no Secret")
@in_loop
async def test_the_secret_of_executors_is_created_once_and_never_read() -> None:
    api = FakeApi()
    for verb in ("get", "list", "watch", "apply", "merge", "patch", "delete"):
        api.refusals[verb, "Secret"] = ApiError(403, "Forbidden", "no right")
    async with world(api) as w:
        await w.run()
        await w.apply(onBadRecord="fail")
        await w.settle()
        [secret] = api.all("Secret")
        uid = api.one("CdcPipeline", "shop")["metadata"]["uid"]
        assert secret["metadata"]["name"] == names.authentication("shop", uid)
        assert [owner["uid"] for owner in secret["metadata"]["ownerReferences"]] == [uid]
        assert w.written("Secret") == [("create", secret["metadata"]["name"])]
    tried = len([each for each in api.created if each["kind"] == "Secret"])
    async with world(api, "two") as w:  # a new operator knows that it is there
        await w.apply(onBadRecord="quarantine", schemaEvolution="skip")
        await w.until(lambda: len(w.written("StatefulSet")) > 2)
        await w.settle()
    assert len([each for each in api.created if each["kind"] == "Secret"]) == tried
    assert api.all("Secret") == [secret]


@in_loop
async def test_a_secret_that_somebody_deleted_is_created_again() -> None:
    async with world() as w:
        await w.apply()
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))
        pod = await w.start_pod()
        [secret] = w.api.all("Secret")
        await w.api.remove(secret)
        waiting = {"name": "driver", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
        await w.api.put({**pod, "status": {"phase": "Pending", "containerStatuses": [waiting]}})
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "x", "namespace": "mirrors"},
            "reason": "FailedMount",
            "message": f'MountVolume.SetUp failed for volume "authentication" : secret '
            f'"{secret["metadata"]["name"]}" not found',
            "involvedObject": {"uid": pod["metadata"]["uid"]},
        }
        await w.api.put(event)
        await w.until(lambda: w.api.all("Secret"))
        [again] = w.api.all("Secret")
        assert again["metadata"]["name"] == secret["metadata"]["name"]
        assert again["data"] != secret["data"]


@in_loop
async def test_without_the_lease_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        monkeypatch.setattr(Lease, "held", property(lambda lease: False))
        await w.apply()
        await asyncio.sleep(0.2)
        assert w.ready() is None
        monkeypatch.setattr(Lease, "held", property(lambda lease: True))
        await w.until(lambda: w.ready() is not None)


@in_loop
async def test_figures_do_not_age_while_the_api_server_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may hang with all connections open: then the Lease alone shows it."""
    now = [datetime.now(UTC)]
    async with world(clock=lambda: now[0]) as w:
        await w.run()
        await w.settle()
        monkeypatch.setattr(Lease, "held", property(lambda lease: False))
        w.operator.take(w.api.one("CdcPipeline", "shop"))
        await asyncio.sleep(0.1)
        now[0] += timedelta(seconds=100)
        monkeypatch.setattr(Lease, "held", property(lambda lease: True))
        w.operator.take(w.api.one("CdcPipeline", "shop"))
        await asyncio.sleep(0.1)
        assert w.ready() == ("True", "Progressing")
        now[0] += timedelta(seconds=100)
        w.operator.take(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: w.ready() == ("Unknown", "StaleFigures"))


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """When plans are made: all but nothing else of a pass takes time."""
    made: list[datetime] = []

    def plan(spec: Any, observed: Any, now: datetime, settings: Settings) -> Any:
        made.append(now)
        return plan_module.plan(spec, observed, now, settings)

    monkeypatch.setattr(reconciler, "plan", plan)
    return made


@pytest.mark.guarantee(
    "An unchanged pipeline costs the operator next to nothing; in a full cluster, checks of thousands of "
    "waiting drivers do not flood the API server"
)
@in_loop
async def test_a_driver_that_says_the_same_again_costs_no_plan(plans: list[datetime]) -> None:
    now = [datetime.now(UTC)]
    same = {"committedAt": iso(now[0]), "observedAt": iso(now[0])}
    async with world(clock=lambda: now[0]) as w:
        await w.run()
        await w.report(**same)
        await w.settle()
        now[0] += timedelta(seconds=30)
        await w.report(**same | {"observedAt": iso(now[0])})  # the last pass may have written conditions
        await w.settle()
        writes = len(w.api.calls)
        for _ in range(8):
            plans.clear()
            now[0] += timedelta(seconds=30)
            await w.report(**same | {"observedAt": iso(now[0]), "lagSeconds": 1.0})
            await w.settle()
            assert plans == []
        assert len(w.api.calls) == writes
        assert w.ready() == ("True", "Progressing")


@in_loop
async def test_what_counts_is_planned_for_though_the_driver_says_the_same(plans: list[datetime]) -> None:
    now = [datetime.now(UTC)]
    same = {"committedAt": iso(now[0])}

    async def reported(w: World, **changes: Any) -> None:
        await w.report(**same | {"observedAt": iso(now[0])} | changes)
        await w.settle()

    async with world(clock=lambda: now[0]) as w:
        await w.run()
        await reported(w)
        await reported(w, caughtUp=False, lagRecords=7)
        assert w.status()["checkpoint"]["lagRecords"] == 7
        now[0] += timedelta(minutes=11)  # the time that the status has is renewed
        await reported(w, caughtUp=False, lagRecords=7)
        assert w.status()["checkpoint"]["observedAt"] == iso(now[0])
        now[0] += timedelta(minutes=5)
        await reported(w, caughtUp=False, lagRecords=7)
        assert w.ready() == ("False", "NoProgress")
        await reported(w)
        assert w.ready() == ("True", "Progressing")
        await w.api.remove(w.api.one("Role", "shop-driver"))
        await w.until(lambda: w.api.one("Role", "shop-driver"))
        await reported(w)
        pod = w.api.one("Pod", "shop-driver-0")
        state = pod["status"]["containerStatuses"][0]
        ended = {**state, "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        await w.api.put({**pod, "status": {"phase": "Running", "containerStatuses": [ended]}})
        await w.until(lambda: w.ready() == ("False", "DriverFailed"))


@pytest.mark.guarantee(
    "An unchanged pipeline costs the operator next to nothing; in a full cluster, checks of thousands of "
    "waiting drivers do not flood the API server"
)
@in_loop
async def test_a_report_with_figures_alone_costs_one_pass(plans: list[datetime]) -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        for number in range(2, 5):
            plans.clear()
            await w.report(batchId=number)
            await w.until(lambda number=number: w.status()["checkpoint"]["batchId"] == number)
            await w.settle()
            assert len(set(plans)) == 1


@pytest.mark.guarantee(
    "An unchanged pipeline costs the operator next to nothing; in a full cluster, checks of thousands of "
    "waiting drivers do not flood the API server"
)
@in_loop
async def test_a_driver_that_does_not_start_is_looked_after_less_and_less(plans: list[datetime]) -> None:
    now = [datetime.now(UTC)]
    async with world(clock=lambda: now[0]) as w:
        await w.apply()
        await w.until(lambda: w.ready() == ("False", "DriverPending"))
        await w.settle()
        plans.clear()
        await w.until(lambda: len(plans) > 6)
        now[0] += timedelta(minutes=10)
        await asyncio.sleep(0.1)
        plans.clear()
        await asyncio.sleep(0.3)
        assert plans == []
        await w.start_pod()  # a watch tells of that
        await w.until(lambda: w.ready() != ("False", "DriverPending"))


PACE = Pace(1, timedelta(seconds=0.5))
SHOPS = ("a", "b", "c")


async def run_shops(w: World) -> None:
    for name in SHOPS:
        await w.run(name, target={"path": f"s3a://{name}/{{table}}"}, checkpoint=f"s3a://lake/{name}")
    await w.settle()


def templates(api: FakeApi) -> list[str]:
    """The image of each workload."""
    sets = [api.one("StatefulSet", f"{name}-driver") for name in SHOPS]
    return [one["spec"]["template"]["spec"]["containers"][0]["image"] for one in sets]


async def take_over(w: World, name: str) -> None:
    """A driver starts with the template that is there now, and is Ready."""
    with suppress(StopIteration):
        await w.api.remove(w.api.one("Pod", f"{name}-driver-0"))
    await w.start_pod(name)
    await w.report(name, runId=f"run-{datetime.now(UTC).isoformat()}")


@pytest.mark.guarantee(
    "A new default image is rolled out only as far as it works, and the rollout survives a restart of the "
    "operator"
)
@in_loop
async def test_a_new_default_image_is_rolled_out_one_by_one() -> None:
    api = FakeApi()
    async with world(api) as w:
        await run_shops(w)
    async with world(api, "two", settings=Settings("driver:2", Pace(1, timedelta(minutes=5)))) as w:
        for done, name in enumerate(SHOPS):
            await w.until(lambda done=done: templates(api).count("driver:2") == done + 1)
            await w.settle()
            assert templates(api) == ["driver:2"] * (done + 1) + ["driver:1"] * (2 - done)
            await take_over(w, name)
        await w.until(lambda: all(w.ready(name) == ("True", "Progressing") for name in SHOPS))
        await w.settle()
        for name in SHOPS:
            assert [c["type"] for c in w.status(name)["conditions"]] == ["Ready"]
            assert (
                "lakemirror.io/moved" not in api.one("ConfigMap", f"{name}-config")["metadata"]["annotations"]
            )
        assert w.operator.reconciler.images.counts()["updated"] == 3


@pytest.mark.guarantee(
    "A new default image is rolled out only as far as it works, and the rollout survives a restart of the "
    "operator"
)
@in_loop
async def test_a_rollout_stops_at_what_is_not_ready_also_for_another_operator() -> None:
    api = FakeApi()
    async with world(api) as w:
        await run_shops(w)
    seen = {"failed": 1, "waiting": 2, "moving": 0, "updated": 0, "later": 0}
    for identity in ("two", "three"):
        async with world(api, identity, settings=Settings("driver:2", PACE)) as w:
            await w.until(lambda: "mirrors/a" in condition(w, "b", "ImageRollout").get("message", ""))
            await w.until(lambda: condition(w, "a", "ImageRollout").get("reason") == "RolloutFailed")
            # The status may be the work of the operator before: what this one has seen tells that it acts.
            await w.until(lambda: w.operator.reconciler.images.counts() == seen)
            await w.settle()
            assert templates(api) == ["driver:2", "driver:1", "driver:1"]
            assert w.ready("b") == ("True", "Progressing")
    async with world(api, "four", settings=Settings("driver:2", PACE)) as w:
        await take_over(w, "a")
        await w.until(lambda: templates(api) == ["driver:2", "driver:2", "driver:1"])
    async with world(api, "five", settings=Settings("driver:1", PACE)) as w:
        await w.until(lambda: templates(api).count("driver:1") >= 2)
        assert templates(api)[2] == "driver:1"


def condition(w: World, name: str, type: str) -> dict[str, Any]:
    return next((c for c in w.status(name).get("conditions", ()) if c["type"] == type), {})


@pytest.mark.guarantee(
    "A new default image is rolled out only as far as it works, and the rollout survives a restart of the "
    "operator"
)
@in_loop
async def test_another_image_takes_back_the_one_that_failed_at_once() -> None:
    api = FakeApi()
    async with world(api) as w:
        await run_shops(w)
    async with world(api, "two", settings=Settings("driver:2", PACE)) as w:
        await w.until(lambda: condition(w, "a", "ImageRollout").get("reason") == "RolloutFailed")
    async with world(api, "three", settings=Settings("driver:1", PACE)) as w:
        await w.until(lambda: templates(api) == ["driver:1"] * 3)
        await take_over(w, "a")
        await w.until(lambda: w.ready("a") == ("True", "Progressing"))
        await w.settle()
        assert condition(w, "b", "ImageRollout") == {}
