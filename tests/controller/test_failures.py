"""What a pipeline says when something goes wrong: rows of ``plan``, and the loop against refusals."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from lakemirror.api import PipelineStatus
from lakemirror.controller import names, observe, operator, podtemplate
from lakemirror.controller.cache import Key
from lakemirror.controller.kube import ApiError
from lakemirror.controller.status import document as status_document
from lakemirror.controller.status import unchanged
from lakemirror.controller.values import Ending, Object, Observed, Obstacle, Plan, Workload
from tests.controller.builders import (
    NOW,
    ago,
    crashed,
    document,
    find,
    following,
    iso,
    observed,
    planned,
    pod,
    ready,
    reason,
    report,
    revision,
    running,
    spec,
    stateful_set,
)
from tests.controller.fake_api import FakeApi
from tests.controller.kstatus import kstatus, waits_for_ready
from tests.controller.test_loop import World, in_loop, quick, world

__all__ = ["quick"]

STREAM = spec()
TYPED = ApiError(
    500,
    "",
    "failed to create typed patch object (mirrors/shop-driver; apps/v1, Kind=StatefulSet): "
    ".spec.template.spec.tolerations: expected list, got &{all}",
)


def message(of: Plan, type: Any = "Ready") -> str:
    condition = of.status.condition(type)
    assert condition is not None
    return condition.message


def resource(of: Plan, generation: int = 1, **metadata: Any) -> dict[str, Any]:
    """The resource as the API has it once the plan is carried out."""
    body = document() | {"status": status_document(of.status)}
    return body | {"metadata": body["metadata"] | {"generation": generation} | metadata}


class TestRefusedEdits:
    """The API server refuses what an edit leads to."""

    EDITED = spec(spark={"podTemplate": {"spec": {"tolerations": "all"}}})
    REFUSED = Obstacle("InvalidSpec", "the API server refuses StatefulSet shop-driver: tolerations")

    def seen(self, **changes: Any) -> Observed:
        return running(STREAM, resource={"generation": 2}, obstacles=(self.REFUSED,), **changes)

    def test_the_driver_goes_on_with_the_last_good_spec(self) -> None:
        plan = planned(self.EDITED, self.seen())
        assert (ready(plan), reason(plan, "Stalled")) == (("True", "Progressing"), "InvalidSpec")
        assert message(plan, "Stalled").startswith(self.REFUSED.message)
        assert reason(plan, "Reconciling") is None
        assert plan.deletions == ()
        config = find(plan.objects, "ConfigMap", "shop-config")
        assert config is not None
        assert config["metadata"]["annotations"][names.CURRENT] == revision(STREAM)

    def test_ready_is_about_the_generation_before(self) -> None:
        plan = planned(self.EDITED, self.seen())
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert (condition.observed_generation, plan.status.observed_generation) == (1, 2)
        again = planned(self.EDITED, following(self.seen(), plan))
        assert (again.status, again.events) == (plan.status, ())
        assert waits_for_ready(resource(plan, 2))
        assert kstatus(resource(plan, 2)) == "Failed"
        assert plan.status.reason == "InvalidSpec"

    @pytest.mark.parametrize("hold", [{"suspend": True}])
    def test_suspending_works_beside_it(self, hold: dict[str, Any]) -> None:
        edited = spec(spark={"podTemplate": {"spec": {"tolerations": "all"}}}, **hold)
        plan = planned(edited, self.seen())
        [stopped] = plan.urgent
        assert (stopped["kind"], stopped["spec"]["replicas"]) == ("StatefulSet", 0)
        assert stopped["metadata"]["annotations"][names.REVISION] == revision(STREAM)
        gone = planned(edited, following(self.seen(), plan, pods=()))
        assert (ready(gone), reason(gone, "Stalled")) == (("True", "Suspended"), "InvalidSpec")

    def test_going_back_ends_it(self) -> None:
        plan = planned(self.EDITED, self.seen())
        back = following(running(STREAM, resource={"generation": 3}), plan)
        back = following(back, plan, resource={"generation": 3}, obstacles=())
        mended = planned(STREAM, back)
        assert (ready(mended), reason(mended, "Stalled"), mended.deletions) == (
            ("True", "Progressing"),
            None,
            (),
        )
        assert not waits_for_ready(resource(mended, 3))

    def test_it_is_judged_before_anything_is_applied(self) -> None:
        """A Job that replaces a StatefulSet comes later, but is tried with the edit."""
        once = spec(trigger={"availableNow": True})
        plan = planned(once, running(STREAM))
        assert find(plan.objects, "Job") is None
        assert find(plan.trial, "Job") is not None

    def test_without_an_earlier_spec_nothing_runs(self) -> None:
        plan = planned(self.EDITED, observed(obstacles=(self.REFUSED,)))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "InvalidSpec"), "InvalidSpec")

    def test_what_is_mended_is_no_edit(self) -> None:
        """An object of ours that cannot be restored says nothing against the spec that runs."""
        plan = planned(STREAM, self.seen())
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert (condition.observed_generation, reason(plan, "Stalled")) == (2, "InvalidSpec")


@pytest.mark.guarantee("Every failure is named; a refused edit touches nothing and blocks nothing")
@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ({"metadata": {"labels": "x"}}, "metadata.labels: must be a mapping"),
        (
            {"metadata": {"annotations": {"a": 5}}},
            "metadata.annotations.a: must be text: write '5' in quotes",
        ),
        ({"spec": {"nodeSelector": ["a"]}}, "spec.nodeSelector: must be a mapping"),
        (
            {"spec": {"containers": [{"name": "driver", "resources": {"requests": {"cpu": "a lot"}}}]}},
            "spec.containers[driver].resources.requests.cpu: 'a lot' is not a quantity such as 500m or 2Gi",
        ),
        (
            {"spec": {"initContainers": [{"name": "a", "resources": {"limits": ["1"]}}]}},
            "spec.initContainers[a].resources.limits: must be a mapping",
        ),
        ({"spec": {"containers": [{"name": "driver", "resources": {"requests": {"cpu": 0.5}}}]}}, None),
        ({"spec": {"containers": [{"name": "driver", "resources": {"limits": {"memory": "1.5Gi"}}}]}}, None),
        ({"metadata": None, "spec": {"tolerations": None}}, None),
        (None, None),
    ],
)
def test_what_cannot_be_a_pod_template_is_named_by_its_path(template: Any, expected: str | None) -> None:
    assert podtemplate.wrong(template) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ".spec.template.spec.tolerations: expected list, got &{all}",
            "spec.spark.podTemplate.spec.tolerations: expected list, got &{all}",
        ),
        (
            "spec.jobTemplate.spec.template.spec.tolerations[0].operator: Invalid value",
            "spec.spark.podTemplate.spec.tolerations[0].operator: Invalid value",
        ),
        (
            "spec.template.spec.dnsPolicy: Unsupported value",
            "spec.template.spec.dnsPolicy: Unsupported value",
        ),
    ],
)
def test_paths_of_a_workload_are_told_as_those_of_the_resource(words: str, expected: str) -> None:
    assert podtemplate.in_spec(words, {"spec": {"tolerations": []}}) == expected


class TestKstatus:
    """Each state, as Flux, Helm and kubectl wait judge it."""

    def test_a_resource_that_nobody_has_seen_is_in_progress(self) -> None:
        unseen = document() | {"status": {"observedGeneration": -1}}
        unseen["metadata"]["generation"] = 1
        assert kstatus(unseen) == "InProgress"
        assert waits_for_ready(unseen)
        assert PipelineStatus.model_validate(unseen["status"])

    @pytest.mark.parametrize(
        ("plan", "expected"),
        [
            (planned(STREAM, observed()), "InProgress"),
            (planned(STREAM, running(STREAM)), "Current"),
            (planned(spec(suspend=True), running(STREAM)), "InProgress"),
            (planned(spec(suspend=True), running(STREAM, pods=())), "Current"),
            (planned(spec(target={"path": "s3a://other/{table}"}), running(STREAM)), "Failed"),
        ],
    )
    def test_states(self, plan: Plan, expected: str) -> None:
        assert kstatus(resource(plan)) == expected
        types = {condition.type for condition in plan.status.conditions or []}
        assert not {"Reconciling", "Stalled"} <= types

    def test_deleting_is_terminating(self) -> None:
        plan = planned(STREAM, running(STREAM))
        assert kstatus(resource(plan, deletionTimestamp="2026-03-01T12:00:00Z")) == "Terminating"


@in_loop
async def test_a_wrongly_typed_template_is_refused_before_anything_is_made() -> None:
    api = FakeApi()
    api.refusals = {("apply", "StatefulSet"): TYPED}
    async with world(api) as w:
        await w.apply(spark={"podTemplate": {"spec": {"tolerations": "all"}}})
        await w.until(lambda: w.ready() == ("False", "InvalidSpec"))
        said = w.status()["conditions"][0]["message"]
        assert "spec.spark.podTemplate.spec.tolerations: expected list" in said
        assert not api.all("ConfigMap")
        api.refusals = {}
        await w.apply()
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))


@pytest.mark.guarantee("Every failure is named; a refused edit touches nothing and blocks nothing")
@in_loop
async def test_a_refused_edit_touches_nothing_and_blocks_nothing() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        w.api.refusals = {("apply", "StatefulSet"): TYPED}
        before = w.api.one("ConfigMap", "shop-config")
        await w.apply(spark={"podTemplate": {"spec": {"tolerations": "all"}}})
        await w.until(lambda: w.status()["reason"] == "InvalidSpec")
        assert (w.ready(), w.api.one("ConfigMap", "shop-config")) == (("True", "Progressing"), before)
        w.api.refusals = {}
        await w.apply()
        await w.until(lambda: w.status()["reason"] == "Progressing")
        assert w.written("Pod") == []


@in_loop
async def test_an_edit_whose_pod_is_refused_leaves_the_driver_alone() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        words = 'pods "shop-driver-x" is forbidden: no PriorityClass with name gold was found'
        refused = ApiError(403, "Forbidden", words)
        w.api.policy = lambda pod: refused if "priorityClassName" in pod.get("spec", {}) else None
        await w.apply(spark={"podTemplate": {"spec": {"priorityClassName": "gold"}}})
        await w.until(lambda: w.status()["reason"] == "PodRefused")
        assert (w.ready(), w.written("Pod")) == (("True", "Progressing"), [])
        full = ApiError(403, "Forbidden", "exceeded quota: little, requested: pods=1, used: pods=1")
        w.api.policy = lambda pod: full
        await w.apply(onBadRecord="fail")
        await w.until(lambda: w.status()["reason"] == "Restarting")


@in_loop
async def test_the_pod_that_is_tried_is_that_of_the_stateful_set() -> None:
    """Policies refuse bare pods, and know those of workloads by owner, labels and name."""

    def no_bare_pods(document: Object) -> ApiError | None:
        owners = document["metadata"].get("ownerReferences", ())
        owned = any(owner["kind"] == "StatefulSet" and owner["controller"] for owner in owners)
        bare = document["kind"] == "Pod" and not owned
        return ApiError(403, "Forbidden", "denied: bare pods") if bare else None

    async with world() as w:
        await w.run()
        await w.settle()
        w.api.policy = no_bare_pods
        await w.apply(onBadRecord="fail")
        await w.until(lambda: w.status()["reason"] == "Restarting")
        tried = [each for each in w.api.created if each["kind"] == "Pod"][-1]
        there = w.api.one("StatefulSet", "shop-driver")
        assert tried["metadata"]["name"] == "shop-driver-0"
        assert tried["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "shop-driver-0"
        assert tried["metadata"]["ownerReferences"][0]["uid"] == there["metadata"]["uid"]
        assert there["spec"]["selector"]["matchLabels"].items() <= tried["metadata"]["labels"].items()


@in_loop
async def test_what_the_running_pod_would_be_refused_too_is_a_warning() -> None:
    async with world() as w:
        await w.run()
        await w.settle()
        denied = ApiError(403, "Forbidden", "denied: images must be signed")
        w.api.policy = lambda document: denied if document["kind"] == "Pod" else None
        await w.apply(onBadRecord="fail")
        await w.until(lambda: w.status()["reason"] == "Restarting")
        assert w.stalled() is None
        await w.until(lambda: [e for e in w.api.all("Event") if "images must be signed" in e["message"]])


@in_loop
async def test_a_silent_watch_makes_no_figures_old() -> None:
    """The connection is half open: nothing comes, and nothing breaks."""
    clock = Clock()
    async with world(clock=clock) as w:
        await w.run()
        await w.settle()
        w.api.late = {"ConfigMap"}
        for seconds in (60, 95, 190, 285):
            clock.ahead = timedelta(seconds=seconds)
            await w.report(observedAt=iso(clock()), batchId=seconds)
            w.operator.reconciler._queue.add(Key("mirrors", "shop"))
            await asyncio.sleep(0.1)
            assert w.ready() == ("True", "Progressing")
        clock.ahead = timedelta(seconds=600)  # now the driver is silent, too
        w.operator.reconciler._queue.add(Key("mirrors", "shop"))
        await w.until(lambda: w.ready() == ("Unknown", "StaleFigures"))


class Clock:
    ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


STUCK = {"caughtUp": False, "lagRecords": 100_000, "batches": 0, "batchId": None, "committedAt": None}


@in_loop
async def test_a_driver_that_has_applied_nothing_is_not_ready_and_its_executors_are_named() -> None:
    async with world() as w:
        await w.apply(spark={"executors": {"min": 1, "max": 2}})
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))
        await w.start_pod()
        full = ApiError(403, "Forbidden", "exceeded quota: little, requested: pods=1, used: pods=1")
        w.api.policy = lambda document: full if document["kind"] == "Pod" else None
        await w.report(**STUCK)
        await w.until(lambda: w.ready() == ("False", "ExecutorsPending"))
        assert "exceeded quota" in _message(w)
        w.api.policy = lambda document: None
        labels = {names.PIPELINE: "shop", names.COMPONENT: "executor"}
        metadata = {"name": "shop-exec-1", "namespace": "mirrors", "labels": labels}
        unscheduled = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes",
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}
        await w.api.put({**body, "status": {"phase": "Pending", "conditions": [unscheduled]}})
        await w.until(lambda: "shop-exec-1: Unschedulable: 0/3 nodes" in _message(w))
        waiting = {
            "name": "executor",
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such"}},
        }
        await w.api.put(
            {**body, "status": {"phase": "Pending", "conditions": [], "containerStatuses": [waiting]}}
        )
        await w.until(lambda: "ImagePullBackOff: no such" in _message(w))
        await w.api.put({**body, "status": {"phase": "Running", "containerStatuses": []}})
        await w.until(lambda: w.ready() == ("False", "DriverStarting"))
        await w.report(**{**STUCK, "batches": 1, "batchId": 1})
        await w.until(lambda: w.ready() == ("True", "Progressing"))


def _message(w: World) -> str:
    return next(c["message"] for c in w.status()["conditions"] if c["type"] == "Ready")


@in_loop
async def test_a_report_counts_for_the_pod_that_wrote_it_whatever_its_clock_says() -> None:
    """The former driver's clock is ahead: its last word does not speak for the next one."""
    async with world() as w:
        await w.run()
        ahead = iso(datetime.now(UTC) + timedelta(seconds=3))
        for told in ({}, {"pod": w.api.one("Pod", "shop-driver-0")["metadata"]["uid"]}):
            await w.report(observedAt=ahead, batchId=2, **told)
            await w.settle()
            await w.api.remove(w.api.one("Pod", "shop-driver-0"))
            await w.until(lambda: w.ready() == ("False", "DriverPending"))
            pod = await w.start_pod()
            await w.until(lambda: w.ready() == ("False", "DriverStarting"))
            await w.settle()
            assert w.ready() == ("False", "DriverStarting")
            behind = iso(datetime.now(UTC) - timedelta(minutes=5))
            by = {"pod": pod["metadata"]["uid"], "runId": f"run-of-{pod['metadata']['uid']}"}
            await w.report(observedAt=behind, batchId=3, **by)
            await w.until(lambda: w.ready() == ("True", "Progressing"))


@in_loop
async def test_what_is_gone_is_not_brought_back_by_an_old_list() -> None:
    async with world() as w:
        await w.run()
        body = copy.deepcopy(w.api.one("CdcPipeline", "shop"))
        await w.api.remove(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: not w.operator.reconciler.pipelines)
        w.operator.reconciler.take(body)
        assert not w.operator.reconciler.pipelines
        await w.settle()
        assert not w.api.all("StatefulSet")


@pytest.mark.guarantee("Every failure is named; a refused edit touches nothing and blocks nothing")
@in_loop
async def test_objects_that_went_with_their_pipeline_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch of pipelines is behind that of their objects."""
    async with world() as w:
        await w.run()
        await w.settle()
        monkeypatch.setattr(w.operator, "gone", lambda body: None)
        w.api.calls.clear()
        await w.api.remove(w.api.one("CdcPipeline", "shop"))
        await w.until(lambda: not w.operator.reconciler.pipelines)
        await w.settle()
        assert [call for call in w.api.calls if call[1] not in ("Lease", "Event")] == []
        assert not [e for e in w.api.all("Event") if e["type"] == "Warning"]


@pytest.mark.guarantee("A deletion that others hold up says who, after a minute")
@in_loop
async def test_what_fails_for_long_is_told_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_TOLD_AFTER", timedelta(seconds=0.1))
    api = FakeApi()
    webhook = ApiError(500, "InternalError", 'failed calling webhook "policy": connection refused')
    api.refusals = {("apply", "ConfigMap"): webhook}
    async with world(api) as w:
        await w.apply()
        await w.until(lambda: w.ready() == ("Unknown", "ReconcileError"))
        assert "failed calling webhook" in w.status()["conditions"][0]["message"]
        assert kstatus(api.one("CdcPipeline", "shop")) == "InProgress"
        assert [e["reason"] for e in api.all("Event") if e["type"] == "Warning"] == ["ReconcileError"]
        generation = api.one("CdcPipeline", "shop")["metadata"]["generation"]
        await w.apply(onBadRecord="fail")
        await w.until(lambda: w.status()["observedGeneration"] > generation)
        api.refusals = {}
        await w.until(lambda: w.ready() == ("False", "DriverPending"))


@in_loop
async def test_a_kind_that_the_operator_may_not_see_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "_TOLD_AFTER", timedelta(seconds=0.1))
    api = FakeApi()
    api.refusals = {("list", "CronJob"): ApiError(403, "Forbidden", "cronjobs.batch is forbidden")}
    async with world(api) as w:
        await w.apply()
        await w.until(lambda: w.ready() == ("Unknown", "ReconcileError"))
        assert "cronjobs.batch is forbidden" in w.status()["conditions"][0]["message"]
        api.refusals = {}
        await w.until(lambda: w.api.one("StatefulSet", "shop-driver"))


@in_loop
async def test_a_status_that_is_refused_is_shortened_to_its_conditions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = FakeApi()
    whole = api.apply

    async def old_crd(document: dict[str, Any], **options: Any) -> dict[str, Any]:
        if "reason" in document.get("status", {}):
            raise ApiError(500, "", "failed to create typed patch object: .status.reason: field not declared")
        return await whole(document, **options)

    monkeypatch.setattr(api, "apply", old_crd)
    async with world(api) as w:
        await w.apply()
        await w.until(lambda: w.ready() == ("False", "DriverPending"))
        assert ".status.reason: field not declared" in w.status()["conditions"][0]["message"]
        await asyncio.sleep(0)


class TestPodsThatAreMissing:
    """What keeps the driver's pod from being made or from going, in the words of whoever knows."""

    @pytest.mark.parametrize(
        ("words", "expected", "stalls"),
        [
            ("forbidden: exceeded quota: little, requested: pods=1", "QuotaExceeded", False),
            ("forbidden: no PriorityClass with name x was found", "PodRefused", True),
        ],
    )
    def test_a_refused_pod(self, words: str, expected: str, stalls: bool) -> None:
        plan = planned(STREAM, observed(STREAM, workloads=(stateful_set(STREAM),), pod_refusal=words))
        assert (ready(plan), message(plan)) == (
            ("False", expected),
            f"the driver's pod cannot be created: {words}",
        )
        assert (reason(plan, "Stalled"), reason(plan, "Reconciling")) == (
            (expected, None) if stalls else (None, expected)
        )
        assert [(e.type, e.reason) for e in plan.events] == [("Warning", expected)]

    def test_a_foreign_pod_stalls_and_nothing_takes_its_name(self) -> None:
        plan = planned(STREAM, observed(foreign_pod="shop-driver-0"))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "ForeignObject"), "ForeignObject")
        assert find(plan.objects, "StatefulSet") is None
        assert plan.again == NOW + timedelta(seconds=30)

    @pytest.mark.parametrize("phase", ["Running", "Succeeded"])
    def test_a_pod_that_a_finalizer_holds(self, phase: str) -> None:
        held = pod(
            STREAM,
            phase=phase,
            started=None,
            ending=Ending(0, "Completed", "", NOW),
            deleted=NOW,
            finalizers=("example.com/hold",),
        )
        plan = planned(STREAM, running(STREAM, pods=(held,)))
        assert (ready(plan), "example.com/hold" in message(plan)) == (("False", "PodTerminating"), True)
        later = planned(STREAM, running(STREAM, pods=(held,)), NOW + timedelta(minutes=1))
        assert reason(later, "Stalled") == "PodTerminating"

    def test_an_evicted_pod_is_told_until_its_successor_runs(self) -> None:
        lost = Ending(0, "Evicted", "The node was low on resource: memory", NOW)
        seen = running(STREAM, pods=(), lost=lost)
        plan = planned(STREAM, seen)
        assert (ready(plan), "low on resource" in message(plan)) == (("False", "Evicted"), True)
        successor = pod(STREAM, uid="pod-2", started=None, waiting="ContainerCreating")
        after = planned(STREAM, following(seen, plan, pods=(successor,), lost=None))
        assert ready(after) == ("False", "Evicted")
        assert after.status.driver is not None
        assert after.status.driver.restarts == 1
        assert after.status.driver.consecutive_failures == 0
        assert after.status.driver.last_failure is not None
        assert after.status.driver.last_failure.reason == "Evicted"


class TestRestarts:
    """``driver.restarts`` counts what ended in its pod and pods that were replaced, of one revision."""

    def test_a_replaced_pod_counts_once(self) -> None:
        seen = running(STREAM)
        gone = planned(STREAM, replace(seen, pods=()))
        again = following(seen, gone, pods=(pod(STREAM, uid="pod-2"),))
        for _ in range(2):
            plan = planned(STREAM, again)
            assert plan.status.driver is not None
            assert (plan.status.driver.restarts, plan.status.driver.exits) == (1, 0)
            again = following(again, plan)
        crashed_again = planned(STREAM, replace(again, pods=(crashed(pod(STREAM, uid="pod-2")),)))
        assert crashed_again.status.driver is not None
        assert (crashed_again.status.driver.restarts, crashed_again.status.driver.exits) == (2, 1)

    def test_neither_a_new_revision_nor_suspending_counts(self) -> None:
        after = spec(onBadRecord="fail")
        plan = planned(after, running(STREAM, pods=(pod(after, uid="pod-2"),)))
        assert plan.status.driver is not None
        assert plan.status.driver.restarts == 0
        suspended = planned(spec(suspend=True), running(STREAM, pods=()))
        resumed = planned(STREAM, following(running(STREAM), suspended, pods=(pod(STREAM, uid="pod-2"),)))
        assert resumed.status.driver is not None
        assert resumed.status.driver.restarts == 0

    def test_an_oom_kill_is_the_reason(self) -> None:
        killed = replace(crashed(pod(STREAM, memory_limit="896Mi")), ending=Ending(137, "OOMKilled", "", NOW))
        plan = planned(STREAM, running(STREAM, pods=(killed,)))
        assert (ready(plan), "896Mi" in message(plan)) == (("False", "OOMKilled"), True)


class TestCleanups:
    OWN = spec(deletionPolicy="DeleteAll")

    def leaving(self, wanted: Any = None, **changes: Any) -> Plan:
        resource = {"deleting": True, "finalizers": (names.FINALIZER,)}
        resource |= {name: changes.pop(name) for name in ("finalizers", "deleted") if name in changes}
        return planned(wanted or self.OWN, running(self.OWN, resource=resource, **changes))

    def cleanup(self, **changes: Any) -> Workload:
        job = Workload("Job", "shop-cleanup", "job-9", "batch/v1", revision(self.OWN), state="Active")
        return replace(job, **changes)

    @pytest.mark.parametrize(
        ("seen", "words"),
        [
            ({"pod_refusal": "forbidden: exceeded quota"}, "exceeded quota"),
            ({"obstacles": (Obstacle("InvalidSpec", "the API server refuses Job x"),)}, "refuses Job x"),
            (
                {"mount_problem": 'secret "kafka-auth" not found', "waiting": "ContainerCreating"},
                "kafka-auth",
            ),
            ({"waiting": "ImagePullBackOff", "message": "no such image"}, "no such image"),
        ],
    )
    def test_one_that_cannot_run_stalls_and_says_how_to_let_go(
        self, seen: dict[str, Any], words: str
    ) -> None:
        about = {name: seen.pop(name) for name in ("waiting", "message") if name in seen}
        own = pod(self.OWN, name="shop-cleanup-1", component="cleanup", started=None, phase="Pending")
        pods = (replace(own, **about),) if about else ()
        plan = self.leaving(workloads=(self.cleanup(),), pods=pods, **seen)
        assert (reason(plan, "Stalled"), plan.finalizer) == ("CleanupBlocked", True)
        assert words in message(plan)
        assert "spec.deletionPolicy: Retain" in message(plan)

    def test_an_edit_begins_it_anew(self) -> None:
        other = spec(deletionPolicy="DeleteAll", spark={"image": "driver:2"})
        blocked = self.cleanup(state="Failed")
        plan = self.leaving(other, workloads=(blocked,), pods=())
        assert [(d.kind, d.name) for d in plan.deletions] == [("Job", "shop-cleanup")]
        assert find(self.leaving(other, workloads=(), pods=()).objects, "Job") is not None

    def test_a_driver_that_does_not_end_is_told(self) -> None:
        held = pod(self.OWN, phase="Failed", deleted=ago(minutes=2), finalizers=("example.com/hold",))
        plan = self.leaving(workloads=(stateful_set(self.OWN, deleting=True),), pods=(held,))
        assert (reason(plan, "Stalled"), "example.com/hold" in message(plan)) == ("PodTerminating", True)

    def test_a_workload_that_others_hold_is_told_after_a_minute(self) -> None:
        held = stateful_set(
            self.OWN, deleting=True, deleted=ago(seconds=50), finalizers=("example.com/hold",)
        )
        soon = self.leaving(workloads=(held,), pods=())
        assert (ready(soon), soon.again is not None) == (("False", "Deleting"), True)
        plan = self.leaving(workloads=(replace(held, deleted=ago(seconds=61)),), pods=())
        assert reason(plan, "Stalled") == "WorkloadTerminating"
        assert "StatefulSet shop-driver" in message(plan)
        assert "example.com/hold" in message(plan)
        assert "kubectl patch statefulset shop-driver" in message(plan)
        of_kubernetes = replace(held, deleted=ago(minutes=5), finalizers=("foregroundDeletion",))
        assert ready(self.leaving(workloads=(of_kubernetes,), pods=())) == ("False", "Deleting")

    @pytest.mark.parametrize("policy", ["Retain", "DeleteAll"])
    def test_a_finalizer_of_others_on_the_pipeline_is_told_after_a_minute(self, policy: str) -> None:
        kept = {"deletionPolicy": policy}
        done = self.cleanup(state="Succeeded")
        held = {"finalizers": ("example.com/hold", "foregroundDeletion"), "workloads": (done,), "pods": ()}
        soon = self.leaving(spec(**kept), deleted=ago(seconds=50), **held)
        assert (ready(soon), soon.again is not None) == (("False", "Deleting"), True)
        plan = self.leaving(spec(**kept), deleted=ago(seconds=61), **held)
        assert (reason(plan, "Stalled"), plan.finalizer) == ("PipelineTerminating", False)
        assert "finalizers are removed: example.com/hold. " in message(plan)
        assert "kubectl patch cdcpipeline shop -n mirrors" in message(plan)
        held["finalizers"] = ("foregroundDeletion",)
        alone = self.leaving(spec(**kept), deleted=ago(minutes=5), **held)
        assert ready(alone) == ("False", "Deleting")

    def test_a_driver_that_nothing_of_the_pipeline_manages_is_told(self) -> None:
        orphan = {"workloads": (), "pods": (pod(self.OWN),)}
        soon = self.leaving(deleted=ago(seconds=50), **orphan)
        assert (ready(soon), soon.again is not None) == (("False", "Deleting"), True)
        plan = self.leaving(deleted=ago(seconds=61), **orphan)
        assert (reason(plan, "Stalled"), plan.finalizer) == ("CleanupBlocked", True)
        assert "kubectl delete statefulset,cronjob shop-driver -n mirrors" in message(plan)
        going = self.leaving(deleted=ago(minutes=2), workloads=(), pods=(pod(self.OWN, deleted=NOW),))
        assert ready(going) == ("False", "Deleting")

    def test_what_foreground_deletion_waits_for_is_told(self) -> None:
        """Kubernetes keeps the pipeline while something that it owns is kept by others."""
        held = stateful_set(self.OWN, deleting=True, deleted=ago(minutes=2), finalizers=("example.com/hold",))
        waits = {"finalizers": ("foregroundDeletion",), "deleted": ago(minutes=2), "pods": ()}
        plan = self.leaving(spec(deletionPolicy="Retain"), workloads=(held,), **waits)
        assert reason(plan, "Stalled") == "WorkloadTerminating"

    def test_a_container_that_runs_on_beside_the_cleanup_is_told(self) -> None:
        done = Ending(0, "Completed", "", ago(seconds=70))
        own = pod(self.OWN, component="cleanup", started=None, ending=done, beside=("proxy",))
        plan = self.leaving(workloads=(self.cleanup(),), pods=(own,))
        assert (reason(plan, "Stalled"), plan.finalizer) == ("CleanupBlocked", True)
        assert "proxy runs on" in message(plan)
        just = replace(own, ending=replace(done, at=ago(seconds=5)))
        soon = self.leaving(workloads=(self.cleanup(),), pods=(just,))
        assert (reason(soon, "Stalled"), soon.again is not None) == (None, True)


class TestFormerSelectors:
    """A StatefulSet of an earlier version, whose selector lacks the uid, is replaced; its driver goes on."""

    def test_first_the_pod_is_marked_then_the_set_goes_without_it(self) -> None:
        before = stateful_set(STREAM, former=True)
        seen = running(STREAM, workloads=(before,), pods=(pod(STREAM, marked=False),))
        plan = planned(STREAM, seen)
        assert ([p.name for p in plan.marks], plan.deletions) == (["shop-driver-0"], ())
        assert find(plan.objects, "StatefulSet") is None
        assert find(plan.trial, "StatefulSet") is None
        marked = planned(STREAM, replace(seen, pods=(pod(STREAM),)))
        [gone] = marked.deletions
        assert (gone.kind, gone.orphan, marked.marks) == ("StatefulSet", True, ())
        going = replace(seen, workloads=(replace(before, deleting=True),), pods=(pod(STREAM),))
        assert find(planned(STREAM, going).trial, "StatefulSet") is None
        after = planned(STREAM, replace(seen, workloads=(), pods=(pod(STREAM),)))
        made = find(after.objects, "StatefulSet")
        assert made is not None
        assert made["spec"]["selector"]["matchLabels"][names.PIPELINE_UID] == "uid-1"
        assert after.deletions == ()


EVENTS = [
    {
        "reason": "FailedCreate",
        "lastTimestamp": "2026-03-01T11:00:00Z",
        "involvedObject": {"uid": "set-1"},
        "message": "create Pod shop-driver-0 in StatefulSet shop-driver failed error: "
        'pods "shop-driver-0" is forbidden: exceeded quota: little',
    },
    {"reason": "FailedCreate", "lastTimestamp": "2026-03-01T12:00:00Z", "involvedObject": {"uid": "other"}},
]
MADE = {
    "reason": "SuccessfulCreate",
    "lastTimestamp": "2026-03-01T11:00:00Z",
    "involvedObject": {"uid": "set-1"},
}


def test_the_newest_attempt_to_make_a_pod_counts() -> None:
    assert observe.pod_refusal(EVENTS, "set-1") == "forbidden: exceeded quota: little"
    assert observe.pod_refusal([*EVENTS, MADE], "set-1") == ""


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ErrImagePull", "failed to pull x: not found"),
        ("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: failed to pull x: not found'),
    ],
)
def test_an_image_that_cannot_be_pulled_says_one_thing(reason: str, words: str) -> None:
    waiting = {"name": "driver", "state": {"waiting": {"reason": reason, "message": words}}}
    body = {"metadata": {"name": "p", "uid": "u"}, "status": {"containerStatuses": [waiting]}}
    found = observe.pod(body)
    assert (found.waiting, found.message) == ("ImagePullBackOff", "failed to pull x: not found")


def test_an_idle_checkpoint_is_renewed_now_and_then() -> None:
    before = running(STREAM)
    for minutes, expected in ((9, True), (10, False)):
        later = NOW + timedelta(minutes=minutes)
        fresh = report(seen=later, progressed=later, observedAt=iso(later))
        plan = planned(STREAM, replace(before, report=fresh), later)
        assert unchanged(before.resource.status, plan.status) is expected


@in_loop
async def test_a_set_of_an_earlier_version_is_replaced_and_its_pod_goes_on() -> None:
    api = FakeApi()
    async with world(api) as w:
        await w.run()
        await w.settle()
    made = api.one("StatefulSet", "shop-driver")
    old = copy.deepcopy(made)
    del old["spec"]["selector"]["matchLabels"][names.PIPELINE_UID]
    running_pod = api.one("Pod", "shop-driver-0")
    labels = {k: v for k, v in running_pod["metadata"]["labels"].items() if k != names.PIPELINE_UID}
    api.objects[("apps/v1", "StatefulSet", "mirrors", "shop-driver")] = old
    running_pod["metadata"]["labels"] = labels
    async with world(api, "two") as w:
        await w.until(
            lambda: api.one("StatefulSet", "shop-driver")["metadata"]["uid"] != made["metadata"]["uid"]
        )
        after = api.one("Pod", "shop-driver-0")
        assert after["metadata"]["uid"] == running_pod["metadata"]["uid"]
        assert after["metadata"]["labels"][names.PIPELINE_UID]
        assert ("delete", "shop-driver-0") not in w.written("Pod")
