"""What a pipeline says when something goes wrong: rows of ``plan``, and the loop against refusals."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from lakemirror.api import PipelineStatus
from lakemirror.controller import names, operator, podtemplate
from lakemirror.controller.kube import ApiError
from lakemirror.controller.status import document as status_document
from lakemirror.controller.values import Observed, Obstacle, Plan
from tests.controller.builders import (
    document,
    find,
    following,
    observed,
    planned,
    ready,
    reason,
    revision,
    running,
    spec,
)
from tests.controller.fake_api import FakeApi
from tests.controller.kstatus import kstatus, waits_for_ready
from tests.controller.test_loop import in_loop, quick, world

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
