"""Every state of a pipeline, one plan each: what is seen -> what is done and said."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from lakemirror.api import CdcPipeline, ManifestError, PipelineSpec, PipelineStatus
from lakemirror.controller import names, observe
from lakemirror.controller.cache import slim
from lakemirror.controller.claims import Claim
from lakemirror.controller.values import (
    DeletionPolicy,
    Ending,
    Observed,
    Obstacle,
    Plan,
    Rival,
    State,
    Stated,
    Workload,
    Writer,
)
from tests.api.not_supported import NOT_SUPPORTED
from tests.controller.builders import (
    NOW,
    ago,
    crashed,
    document,
    find,
    following,
    iso,
    job,
    merged,
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

pytestmark = pytest.mark.guarantee("Every state has a plan; a plan that was carried out changes nothing")

STREAM = spec()
ONCE = spec(trigger={"availableNow": True})
CRON = spec(trigger={"availableNow": True, "schedule": "0 * * * *"})
WRONG = ManifestError([("spec.target", "is required"), ("spec.checkpoint", "is required")])


def said(of: Plan) -> str:
    condition = of.status.condition("Ready")
    assert condition is not None
    return condition.message or ""


def replicas(of: Plan) -> int | None:
    workload = find(of.objects, "StatefulSet")
    return workload["spec"]["replicas"] if workload is not None else None


def deleted(of: Plan) -> list[tuple[str, str]]:
    return [(d.kind, d.name) for d in of.deletions]


class TestFirstPass:
    def test_everything_is_made_at_once_and_ready_is_told_from_the_start(self) -> None:
        plan = planned(STREAM, observed())
        kinds = [o["kind"] for o in plan.objects]
        assert kinds == [
            "ServiceAccount",
            "Role",
            "RoleBinding",
            "NetworkPolicy",
            "NetworkPolicy",
            "Secret",
            "ConfigMap",
            "ConfigMap",
            "Service",
            "StatefulSet",
        ]
        assert (ready(plan), plan.status.phase) == (("False", "DriverPending"), "Pending")
        assert reason(plan, "Reconciling") == "DriverPending"
        assert (plan.deletions, plan.finalizer) == ((), False)

    def test_every_object_belongs_to_the_pipeline(self) -> None:
        for made in planned(STREAM, observed()).objects:
            [owner] = made["metadata"]["ownerReferences"]
            assert (owner["uid"], owner["controller"]) == ("uid-1", True)
            assert made["metadata"]["namespace"] == "mirrors"
            assert made["metadata"]["labels"][names.MANAGED_BY] == names.FIELD_MANAGER
            assert "finalizers" not in made["metadata"]

    def test_an_invalid_spec_makes_nothing_and_says_all_that_is_wrong(self) -> None:
        plan = planned(WRONG, observed())
        assert (plan.objects, ready(plan), plan.status.phase) == ((), ("False", "InvalidSpec"), "Failed")
        stalled = plan.status.condition("Stalled")
        assert stalled is not None
        assert stalled.message == "spec.target: is required; spec.checkpoint: is required"

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ({"spec": {"containers": "none"}}, "spec.spark.podTemplate.spec.containers: must be a list"),
            ({"spec": {"containers": [{"image": "x"}]}}, "each entry with a name"),
            ({"spec": {"volumes": ["x"]}}, "spec.spark.podTemplate.spec.volumes"),
            ({"spec": "none"}, "spec.spark.podTemplate.spec: must be a mapping"),
            ({"metadata": [1]}, "spec.spark.podTemplate.metadata: must be a mapping"),
        ],
    )
    def test_a_pod_template_that_is_none_is_refused(self, template: dict[str, Any], message: str) -> None:
        plan = planned(spec(spark={"podTemplate": template}), observed())
        stalled = plan.status.condition("Stalled")
        assert stalled is not None
        assert (stalled.reason, message in stalled.message) == ("InvalidSpec", True)


class TestRunning:
    def test_a_driver_that_has_applied_everything_is_ready(self) -> None:
        plan = planned(STREAM, running(STREAM))
        assert (ready(plan), plan.status.phase) == (("True", "Progressing"), "Running")
        assert plan.status.driver is not None
        assert plan.status.driver.pod == "shop-driver-0"
        assert plan.status.checkpoint is not None
        assert (plan.status.checkpoint.batch_id, plan.status.checkpoint.caught_up) == (7, True)
        assert [c.type for c in plan.status.conditions or []] == ["Ready"]

    def test_a_second_pass_changes_nothing(self) -> None:
        before = running(STREAM)
        plan = planned(STREAM, before)
        assert (plan.status, plan.events, plan.deletions) == (before.resource.status, (), ())

    @pytest.mark.parametrize("hours", [1, 240])
    def test_a_quiet_source_stays_healthy(self, hours: float) -> None:
        quiet = report(committedAt=iso(ago(hours=hours)), progressed=NOW)
        assert ready(planned(STREAM, running(STREAM, report=quiet))) == ("True", "Progressing")

    def test_old_figures_are_unknown_and_stay_so_for_an_operator_that_is_new(self) -> None:
        old = report(seen=ago(seconds=90), observedAt=iso(ago(seconds=50)))
        plan = planned(STREAM, running(STREAM, report=old))
        assert ready(plan) == ("Unknown", "StaleFigures")
        seen_again = replace(old, seen=NOW, progressed=NOW)
        seen = following(running(STREAM), plan, report=seen_again)
        assert ready(planned(STREAM, seen)) == ("Unknown", "StaleFigures")
        assert ready(planned(STREAM, replace(seen, report=report()))) == ("True", "Progressing")

    def test_figures_are_not_old_before_three_periods(self) -> None:
        seen = running(STREAM, report=report(seen=ago(seconds=89)))
        plan = planned(STREAM, seen)
        assert ready(plan) == ("True", "Progressing")
        assert plan.again == NOW + timedelta(seconds=1)

    def test_lag_without_a_commit_for_the_deadline_is_no_progress(self) -> None:
        lagging: dict[str, Any] = {"caughtUp": False, "lagRecords": 10}
        for minutes, expected in ((9, ("True", "Progressing")), (10, ("False", "NoProgress"))):
            stuck = report(progressed=ago(minutes=minutes), **lagging)
            assert ready(planned(STREAM, running(STREAM, report=stuck))) == expected

    def test_no_progress_stands_until_a_batch_comes(self) -> None:
        lagging: dict[str, Any] = {"caughtUp": False, "lagRecords": 10}
        stuck = report(progressed=ago(minutes=10), **lagging)
        plan = planned(STREAM, running(STREAM, report=stuck))
        seen = following(running(STREAM), plan, report=replace(stuck, progressed=NOW))
        assert ready(planned(STREAM, seen)) == ("False", "NoProgress")
        moved = report(batchId=8, committedAt=iso(NOW), **lagging)
        assert ready(planned(STREAM, replace(seen, report=moved))) == ("True", "Progressing")

    @pytest.mark.guarantee("A file that cannot be read keeps the pipeline behind, and is named")
    def test_files_that_wait_are_named(self) -> None:
        waiting: dict[str, Any] = {"caughtUp": False, "waiting": ["b.jsonl.gz: it is cut off"]}
        new = report(batches=0, committedAt=iso(ago(hours=9)), lagRecords=None, **waiting)
        for minutes, expected in ((9, ("True", "Progressing")), (11, ("False", "NoProgress"))):
            plan = planned(STREAM, running(STREAM, report=replace(new, progressed=ago(minutes=minutes))))
            assert ready(plan) == expected
            said = plan.status.condition("Ready")
            assert said is not None
            assert said.message.endswith("these files cannot be read: b.jsonl.gz: it is cut off")

    def test_unknown_lag_without_a_commit_is_no_progress_too(self) -> None:
        stuck = report(progressed=ago(minutes=11), caughtUp=False, lagRecords=None)
        assert ready(planned(STREAM, running(STREAM, report=stuck))) == ("False", "NoProgress")

    @pytest.mark.guarantee("Ready means that the source was reached")
    @pytest.mark.parametrize(
        ("source", "expected", "again"),
        [
            ({"reachedAt": iso(ago(seconds=50))}, ("True", "Progressing"), 90),
            ({}, ("False", "SourceConnecting"), 5),
            ({"lostSince": iso(ago(seconds=1)), "error": "refused"}, ("False", "SourceConnecting"), 5),
            (
                {"reachedAt": iso(ago(hours=1)), "lostSince": iso(ago(seconds=59)), "error": "refused"},
                ("True", "Progressing"),
                1,
            ),
            (
                {"reachedAt": iso(ago(hours=1)), "lostSince": iso(ago(seconds=60)), "error": "refused"},
                ("False", "SourceUnreachable"),
                90,
            ),
        ],
    )
    def test_a_driver_is_ready_when_it_has_reached_the_source(
        self, source: dict[str, str], expected: tuple[str, str], again: float
    ) -> None:
        seen = running(STREAM, report=report(source=source))
        plan = planned(STREAM, seen)
        assert ready(plan) == expected
        assert plan.again == NOW + timedelta(seconds=again)
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert ("refused" in condition.message) == (expected[0] == "False" and "error" in source)

    @pytest.mark.guarantee("Ready means that the source was reached")
    def test_a_source_that_is_not_reached_within_the_grace_is_named(self) -> None:
        source = {"lostSince": iso(ago(seconds=30)), "error": "kafka:9092: connection refused"}
        for phase in ("Starting", "Running"):
            said = report(phase=phase, source=source, startedAt=iso(ago(seconds=61)), caughtUp=False)
            plan = planned(STREAM, running(STREAM, report=said))
            assert ready(plan) == ("False", "SourceUnreachable")
            assert [(e.type, e.reason) for e in plan.events] == [("Warning", "SourceUnreachable")]
            assert "kafka:9092: connection refused" in plan.events[0].message
            back = report(source={"reachedAt": iso(NOW)})
            assert ready(planned(STREAM, following(running(STREAM), plan, report=back)))[0] == "True"

    def test_what_the_driver_warns_of_is_told_once(self) -> None:
        first, second = "topic a was deleted", "topic b was deleted"
        plan = planned(STREAM, seen := running(STREAM, report=report(warnings=[first])))
        assert plan.status.warnings == [first]
        assert [(e.type, e.reason, e.message) for e in plan.events if e.message == first] == [
            ("Warning", "DriverWarning", first)
        ]
        plan = planned(STREAM, following(seen, plan, report=report(warnings=[first, second, "x" * 2000])))
        assert plan.status.warnings == [first, second, "x" * 1024]
        assert [e.message for e in plan.events] == [second, "x" * 1024]
        plan = planned(STREAM, following(seen, plan, report=report(warnings=[first, second])))
        assert plan.events == ()
        plan = planned(STREAM, following(seen, plan, report=None))
        assert plan.status.warnings == [first, second]
        many = [f"topic {n} was deleted" for n in range(20)]
        assert planned(STREAM, running(STREAM, report=report(warnings=many))).status.warnings == many[-5:]

    @pytest.mark.guarantee("A login that is sent without encryption is reported, with the field that says so")
    def test_a_login_without_encryption_is_told_until_it_is_mended(self) -> None:
        def of(protocol: str) -> dict[str, Any]:
            security = {"protocol": protocol, "mechanism": "PLAIN", "secret": "kafka"}
            return {"source": {"kafka": {"security": security}}}

        plain, safe = (spec(**of(protocol)) for protocol in ("SASL_PLAINTEXT", "SASL_SSL"))
        plan = planned(plain, seen := running(plain, report=report(warnings=["topic a was deleted"])))
        [first, risk] = plan.status.warnings or []
        assert first == "topic a was deleted"
        assert risk.startswith("spec.source.kafka.security.protocol: SASL_PLAINTEXT logs in without")
        again = planned(plain, following(seen, plan, report=None))
        told_again = [event for event in again.events if event.reason == "DriverWarning"]
        assert (again.status.warnings, told_again) == ([first, risk], [])
        assert planned(safe, following(seen, plan, report=None)).status.warnings == [first]

    def test_a_driver_that_ends_because_of_its_source_says_so(self) -> None:
        said = report(phase="Failed", failure="boom", source={"lostSince": iso(ago(minutes=2)), "error": "x"})
        assert ready(planned(STREAM, running(STREAM, report=said))) == ("False", "SourceUnreachable")
        ended = running(STREAM, report=said, pods=(crashed(pod(STREAM)),))
        assert ready(planned(STREAM, ended)) == ("False", "SourceUnreachable")
        other = report(phase="Failed", failure="another", source=said.said.source)
        assert ready(planned(STREAM, replace(ended, report=other))) == ("False", "DriverFailed")

    @pytest.mark.parametrize(
        "before", [{"phase": "Starting"}, {"caughtUp": False, "lagRecords": 3}, {"source": {}}]
    )
    def test_a_driver_that_falls_silent_is_unknown_whatever_it_was_before(
        self, before: dict[str, Any]
    ) -> None:
        stuck = report(progressed=ago(minutes=20), seen=ago(seconds=89), **before)
        plan = planned(STREAM, running(STREAM, report=stuck))
        assert ready(plan)[0] == "False"
        assert plan.again is not None
        assert plan.again <= NOW + timedelta(seconds=5)
        silent = following(running(STREAM), plan, report=stuck)
        assert ready(planned(STREAM, silent, NOW + timedelta(seconds=1))) == ("Unknown", "StaleFigures")

    def test_the_report_of_a_run_before_says_nothing_of_this_one(self) -> None:
        before = report(observedAt=iso(ago(minutes=2)))
        plan = planned(STREAM, running(STREAM, report=before))
        assert ready(plan) == ("False", "DriverStarting")
        assert plan.status.totals is not None
        assert plan.status.totals.applied == 3

    def test_a_driver_that_never_reports_is_seen(self) -> None:
        silent = running(STREAM, report=None, pods=(pod(STREAM, started=ago(minutes=10)),))
        assert ready(planned(STREAM, silent)) == ("False", "NoProgress")


class TestStartingAndFailing:
    @pytest.mark.parametrize(
        ("changes", "expected", "message"),
        [
            ({"waiting": "ContainerCreating"}, "DriverPending", "starting"),
            (
                {"waiting": "ImagePullBackOff", "message": "no such image"},
                "ImagePullBackOff",
                "no such image",
            ),
            ({"waiting": "Unschedulable", "message": "0/1 nodes"}, "Unschedulable", "0/1 nodes"),
        ],
    )
    def test_what_a_pod_waits_for_is_told(self, changes: dict[str, str], expected: str, message: str) -> None:
        waiting = pod(STREAM, started=None, phase="Pending", **changes)
        plan = planned(STREAM, running(STREAM, pods=(waiting,), report=None))
        assert (ready(plan), plan.status.phase) == (("False", expected), "Pending")
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert message in condition.message

    def test_a_missing_secret_is_named(self) -> None:
        said = 'MountVolume.SetUp failed for volume "secret-0" : secret "kafka-auth" not found'
        waiting = pod(STREAM, started=None, phase="Pending", waiting="ContainerCreating")
        plan = planned(STREAM, running(STREAM, pods=(waiting,), report=None, mount_problem=said))
        assert ready(plan) == ("False", "SecretMissing")
        assert [(e.type, e.reason, e.message) for e in plan.events] == [("Warning", "SecretMissing", said)]

    def test_a_failure_is_counted_once_however_often_it_is_seen(self) -> None:
        seen = running(STREAM, pods=(crashed(pod(STREAM)),))
        plan = planned(STREAM, seen)
        assert ready(plan) == ("False", "DriverFailed")
        for _ in range(3):
            driver = plan.status.driver
            assert driver is not None
            assert (driver.consecutive_failures, driver.restarts) == (1, 1)
            assert driver.last_failure is not None
            assert driver.last_failure.message == "boom"
            plan = planned(STREAM, following(seen, plan))
        assert plan.events == ()

    def test_failures_that_were_missed_are_counted(self) -> None:
        plan = planned(STREAM, running(STREAM, pods=(crashed(pod(STREAM), exits=4),)))
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 4

    def test_to_end_well_is_no_failure(self) -> None:
        plan = planned(STREAM, running(STREAM, pods=(crashed(pod(STREAM), code=0),)))
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 0
        assert ready(plan) == ("False", "Restarting")
        assert [event for event in plan.events if event.type == "Warning"] == []

    def failed(self, times: int, **restart: Any) -> tuple[PipelineSpec, Observed]:
        of = spec(restart=restart)
        seen = running(of, pods=(crashed(pod(of), exits=times),))
        return of, following(seen, planned(of, seen))

    def test_after_too_many_failures_the_driver_stays_away(self) -> None:
        of, seen = self.failed(3, backoffLimit=2)
        plan = planned(of, seen)
        assert (ready(plan), plan.status.phase, replicas(plan)) == (
            ("False", "BackoffLimitExceeded"),
            "Failed",
            0,
        )
        assert reason(plan, "Stalled") == "BackoffLimitExceeded"
        gone = following(seen, plan, pods=())
        assert ready(planned(of, gone)) == ("False", "BackoffLimitExceeded")

    def test_as_many_failures_as_the_limit_are_borne(self) -> None:
        of, seen = self.failed(2, backoffLimit=2)
        assert replicas(planned(of, seen)) == 1

    @pytest.mark.parametrize(
        "change",
        [
            {"restartToken": "again"},
            {"spark": {"resetToken": "again"}},
            {"spark": {"conf": {"spark.a": "b"}}},
        ],
    )
    def test_a_token_or_a_new_spec_begins_again(self, change: dict[str, Any]) -> None:
        of, seen = self.failed(3, backoffLimit=2)
        stopped = following(seen, planned(of, seen), pods=())
        plan = planned(spec(restart={"backoffLimit": 2}, **change), stopped)
        assert replicas(plan) == 1
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 0

    def test_health_for_long_enough_forgives(self) -> None:
        of, seen = self.failed(2, backoffLimit=2, resetAfter="30m")
        recovered = pod(of, exits=2, started=ago(minutes=29))
        plan = planned(of, replace(seen, pods=(recovered,)))
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 2
        later = planned(of, following(seen, plan, pods=(recovered,)), NOW + timedelta(minutes=1))
        assert later.status.driver is not None
        assert (later.status.driver.consecutive_failures, later.status.driver.restarts) == (0, 2)

    def test_durations_that_mean_for_ever_break_nothing(self) -> None:
        of, seen = self.failed(2, resetAfter="999999999d")
        recovered = replace(seen, pods=(pod(of, exits=2),), report=report(caughtUp=False, lagRecords=1))
        plan = planned(of.model_copy(update={"progress_deadline": "999999999d"}), recovered)
        assert ready(plan) == ("True", "Progressing")
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 2

    def test_a_new_pod_of_the_same_revision_goes_on_counting(self) -> None:
        of, seen = self.failed(2, backoffLimit=5)
        plan = planned(of, replace(seen, pods=(crashed(pod(of, uid="pod-2")),)))
        assert plan.status.driver is not None
        assert plan.status.driver.consecutive_failures == 3


class TestRestarts:
    def changed(self, before: PipelineSpec, after: PipelineSpec) -> tuple[Plan, Plan]:
        """The plan on a change, and the plan when the StatefulSet's new template is known."""
        first = planned(after, running(before))
        settled = following(running(before), first, workloads=(stateful_set(after),))
        return first, planned(after, settled)

    def test_a_change_restarts_once_when_the_new_template_is_known(self) -> None:
        after = spec(onBadRecord="fail")
        first, second = self.changed(STREAM, after)
        assert (deleted(first), ready(first)) == ([], ("False", "Restarting"))
        assert [(d.kind, d.name, d.uid) for d in second.deletions] == [("Pod", "shop-driver-0", "pod-1")]
        leaving = running(after, pods=(pod(STREAM, deleted=NOW + timedelta(seconds=120)),))
        assert planned(after, leaving).deletions == ()
        assert planned(after, running(after, pods=(pod(after, uid="pod-2"),))).deletions == ()

    def test_nothing_is_deleted_while_the_template_is_not_seen_by_its_controller(self) -> None:
        after = spec(onBadRecord="fail")
        seen = running(STREAM, workloads=(stateful_set(after, settled=False),))
        assert planned(after, seen).deletions == ()

    @pytest.mark.parametrize(
        "change",
        [
            {"progressDeadline": "1h"},
            {"restart": {"backoffLimit": 1}},
            {"deletionPolicy": "DeleteAll"},
        ],
    )
    def test_what_the_driver_does_not_read_restarts_nothing(self, change: dict[str, Any]) -> None:
        after = spec(**change)
        first, second = self.changed(STREAM, after)
        assert (deleted(first), deleted(second), ready(second)) == ([], [], ("True", "Progressing"))

    def test_an_old_pod_keeps_what_it_runs_until_it_is_gone(self) -> None:
        after = spec(onBadRecord="fail")
        before = find(planned(STREAM, observed()).objects, "ConfigMap", "shop-config")
        assert before is not None
        seen = running(STREAM, config=before["data"])
        config = find(planned(after, seen).objects, "ConfigMap", "shop-config")
        assert config is not None
        assert config["data"].keys() > before["data"].keys()
        gone = running(after, config=config["data"])
        last = find(planned(after, gone).objects, "ConfigMap", "shop-config")
        assert last is not None
        assert not last["data"].keys() & before["data"].keys()

    @pytest.mark.parametrize(("state", "kept"), [("Active", True), ("Succeeded", False), ("Failed", False)])
    def test_a_run_keeps_what_it_runs_while_it_has_no_pod(self, state: State, kept: bool) -> None:
        """As between two attempts. Its next pod mounts the same key."""
        before = find(planned(CRON, observed()).objects, "ConfigMap", "shop-config")
        assert before is not None
        after = spec(trigger={"availableNow": True, "schedule": "0 * * * *"}, onBadRecord="fail")
        cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(after))
        run = Workload("Job", "shop-driver-1", "job-1", "batch/v1", revision(CRON), state, scheduled=True)
        seen = observed(after, workloads=(cron, run), config=before["data"])
        config = find(planned(after, seen).objects, "ConfigMap", "shop-config")
        assert config is not None
        assert (config["data"].items() > before["data"].items()) == kept
        assert (f"{revision(CRON)}.yaml" in config["data"]) == kept

    def test_what_the_workload_of_before_runs_is_kept_until_it_has_the_new_template(self) -> None:
        before = find(planned(STREAM, observed()).objects, "ConfigMap", "shop-config")
        assert before is not None
        seen = observed(STREAM, workloads=(stateful_set(STREAM),), config=before["data"])
        config = find(planned(spec(onBadRecord="fail"), seen).objects, "ConfigMap", "shop-config")
        assert config is not None
        assert config["data"].items() > before["data"].items()

    def test_a_handled_token_stands_in_the_status_once_a_driver_runs_with_it(self) -> None:
        tokens: dict[str, Any] = {"restartToken": "2", "spark": {"resetToken": "3"}}
        after = spec(**tokens, tables=[{"source": "public.a", "resyncToken": "x"}])
        waiting = planned(after, running(STREAM)).status.handled
        assert waiting is not None
        assert (waiting.restart_token, waiting.reset_token) == ("", "")
        done = planned(after, running(after)).status.handled
        assert done is not None
        assert (done.restart_token, done.reset_token, done.resync) == ("2", "3", {"public.a": "x"})

    def test_a_reset_is_not_handled_by_the_driver_that_runs_without_it(self) -> None:
        reset = spec(spark={"resetToken": "1"})
        found = planned(reset, running(STREAM))
        assert ready(found) == ("False", "Restarting")
        assert found.status.handled is not None
        assert found.status.handled.reset_token == ""

    def test_a_resync_is_handled_once_the_table_is_read_again(self) -> None:
        before = spec(tables=[{"source": "public.a", "resyncToken": "x"}])
        after = spec(tables=[{"source": "public.a", "resyncToken": "y"}, {"source": "b", "resyncToken": "1"}])
        done = planned(before, running(before)).status
        seen = replace(running(after), resource=replace(running(after).resource, status=done))
        for said, handled in (
            (None, {"public.a": "x"}),
            (report(resyncing=["b", "public.a"]), {"public.a": "x"}),
            (report(resyncing=["public.a"]), {"public.a": "x", "b": "1"}),
            (report(resyncing=[]), {"public.a": "y", "b": "1"}),
        ):
            found = planned(after, replace(seen, report=said)).status.handled
            assert found is not None
            assert found.resync == handled

    def test_the_resync_of_a_parked_table_waits(self) -> None:
        parked = spec(tables=[{"source": "public.a", "resyncToken": "x", "suspend": True}])
        found = planned(parked, running(parked)).status.handled
        assert found is not None
        assert found.resync is None

    @pytest.mark.parametrize("trigger", [{}, {"schedule": "0 * * * *"}])
    def test_a_run_that_ended_well_has_read_again_what_was_asked(self, trigger: dict[str, Any]) -> None:
        """Its pod may have come and gone without a look."""
        tables = [
            {"source": "public.a", "resyncToken": "x"},
            {"source": "b", "resyncToken": "1", "suspend": True},
        ]
        of = spec(trigger={"availableNow": True, **trigger}, restartToken="2", tables=tables)
        for state, handled in (("Failed", None), ("Succeeded", {"public.a": "x"})):
            run = replace(job(of, state=state), scheduled=bool(trigger))
            cron = [Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(of))] if trigger else []
            found = planned(of, observed(of, workloads=(*cron, run))).status.handled
            assert (found and found.resync) == handled
            assert (found and found.restart_token) == (handled and "2")

    def test_a_new_image_of_the_operator_restarts_once(self) -> None:
        from lakemirror.controller.plan import plan
        from lakemirror.controller.values import Settings

        after = plan(STREAM, running(STREAM), NOW, Settings("driver:2"))
        workload = find(after.objects, "StatefulSet")
        assert workload is not None
        assert workload["metadata"]["annotations"][names.REVISION] != revision(STREAM)


class TestRefusals:
    RESETS: tuple[dict[str, Any], ...] = (
        {"target": {"path": "s3a://other/{table}"}},
        {"source": {"kafka": None, "files": {"path": "s3a://in"}}},
        {"checkpoint": "s3a://lake/_checkpoints/other"},
        {"tables": [{"source": "public.orders", "primaryKey": ["id"]}]},
        {"ordering": {"by": "timestamp"}},
    )

    @pytest.mark.parametrize("change", RESETS)
    def test_what_the_checkpoint_cannot_follow_waits_for_a_token(self, change: dict[str, Any]) -> None:
        seen = running(STREAM, resource={"generation": 2})
        plan = planned(spec(**change), seen)
        assert (ready(plan), reason(plan, "Stalled")) == (("True", "Progressing"), "ResetNeeded")
        assert plan.status.observed_generation == 2
        workload = find(plan.objects, "StatefulSet")
        assert workload is not None
        assert workload["metadata"]["annotations"][names.REVISION] == revision(STREAM)
        allowed = planned(spec(**merged(change, {"spark": {"resetToken": "1"}})), seen)
        assert (reason(allowed, "Stalled"), ready(allowed)) == (None, ("False", "Restarting"))

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (
                RESETS[0],
                "Change it back, or give spec.spark.resetToken a new value, to read everything again that "
                "the source still has. Until",
            ),
            (RESETS[3], "Change it back, or give each table another target and a new resyncToken. Until"),
            (
                {"tables": [{"source": "public.orders", "target": {"path": "s3a://other/orders"}}]},
                "Change it back, or give each table another target and a new resyncToken, or give spec.spark",
            ),
            (
                {"defaults": {"mode": "scd2"}},
                "that the source still has. With another spec.defaults.mode, the target has to change, too",
            ),
            (
                {**RESETS[2], **RESETS[3]},
                "the source still has. With another spec.tables[public.orders].primaryKey, the target has",
            ),
        ],
    )
    def test_the_remedies_of_a_refusal_are_those_that_the_driver_accepts(
        self, change: dict[str, Any], told: str
    ) -> None:
        stalled = planned(spec(**change), running(STREAM)).status.condition("Stalled")
        assert stalled is not None
        assert told in stalled.message

    def test_tables_are_known_by_their_mirrors(self) -> None:
        def listed(source: str) -> PipelineSpec:
            table = {"source": source, "target": {"path": "s3a://x/{table}"}}
            return spec(unlisted="ignore", tables=[table, {"source": "/shop.*/"}])

        before, after = listed("orders"), listed("invoices")
        assert reason(planned(after, running(before)), "Stalled") == "ResetNeeded"
        nothing = report(tables=[{"source": "shop.public.orders", "error": "no key"}])
        assert reason(planned(after, running(before, report=nothing)), "Stalled") is None
        assert running(before, report=None).mirrored == ("shop.public.orders",)

    def test_a_refused_table_may_be_set_as_it_was(self) -> None:
        """As after a change that a reset token let through, although the mirror could not follow it."""
        before, after = (spec(tables=[{"source": "orders", **f}]) for f in ({"filter": "id > 1"}, {}))
        there = {"source": "shop.public.orders", "version": 4}
        for error, verdict in ((None, "ResetNeeded"), ("was made without a filter", None)):
            told = report(tables=[{**there, "error": error}])
            assert reason(planned(after, running(before, report=told)), "Stalled") == verdict

    @pytest.mark.parametrize("change", RESETS)
    def test_before_the_first_batch_everything_may_change(self, change: dict[str, Any]) -> None:
        seen = observed(STREAM, workloads=(stateful_set(STREAM),), pods=(pod(STREAM),))
        assert reason(planned(spec(**change), seen), "Stalled") is None

    def test_an_invalid_edit_leaves_the_running_one_alone(self) -> None:
        plan = planned(WRONG, running(STREAM))
        assert (ready(plan), reason(plan, "Stalled")) == (("True", "Progressing"), "InvalidSpec")
        assert (replicas(plan), plan.deletions) == (1, ())
        mended = planned(STREAM, following(running(STREAM), plan))
        assert (reason(mended, "Stalled"), mended.deletions) == (None, ())

    def test_suspending_works_also_beside_a_refused_change(self) -> None:
        change: dict[str, Any] = {"target": {"path": "s3a://other/{table}"}, "suspend": True}
        plan = planned(spec(**change), running(STREAM))
        assert (replicas(plan), reason(plan, "Stalled")) == (0, "ResetNeeded")

    @pytest.mark.guarantee("`suspend` stops the driver even if no spec can be read")
    def test_suspending_works_also_beside_a_mistake(self) -> None:
        plan = planned(WRONG, running(STREAM, resource={"stated": Stated(suspend=True)}))
        assert (replicas(plan), reason(plan, "Stalled")) == (0, "InvalidSpec")
        plan = planned(WRONG, running(spec(suspend=True), pods=(), resource={"stated": Stated()}))
        assert replicas(plan) == 0

    def test_other_back_ends_have_no_schedule(self) -> None:
        of = spec(trigger={"availableNow": True, "schedule": "@daily"}, spark={"backend": "apache"})
        assert ready(planned(of, observed())) == ("False", "NotSupported")

    @pytest.mark.guarantee("Anything unsupported is refused before it runs; every field has an effect")
    @pytest.mark.parametrize(("change", "path"), [(each, path) for each, path, _ in NOT_SUPPORTED])
    def test_what_is_not_supported_stalls_before_there_is_a_pod(
        self, change: dict[str, Any], path: str
    ) -> None:
        plan = planned(spec(**change), observed())
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "NotSupported"), "NotSupported")
        assert plan.objects == ()
        stalled = plan.status.condition("Stalled")
        assert stalled is not None
        assert path in stalled.message
        # What runs goes on as it was.
        plan = planned(spec(**change), running(STREAM))
        assert (replicas(plan), plan.deletions, reason(plan, "Stalled")) == (1, (), "NotSupported")


class TestSpecsThatCannotBeRead:
    """The newest spec is wrong, and the accepted one is of a version that this operator does not know."""

    @pytest.mark.guarantee("`suspend` stops the driver even if no spec can be read")
    @pytest.mark.parametrize(
        ("seen", "stops"),
        [
            ({"workloads": (stateful_set(STREAM),)}, [("StatefulSet", "shop-driver")]),
            ({"workloads": (job(ONCE),), "pods": ()}, [("Job", job(ONCE).name)]),
        ],
    )
    def test_suspending_stops_the_driver_nevertheless(
        self, seen: dict[str, Any], stops: list[tuple[str, str]]
    ) -> None:
        unreadable = running(STREAM, accepted=None, resource={"stated": Stated(suspend=True)}, **seen)
        plan = planned(WRONG, unreadable)
        assert deleted(plan) == stops
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "InvalidSpec"), "InvalidSpec")
        assert "the driver is being stopped" in said(plan)
        gone = planned(WRONG, replace(unreadable, workloads=(), pods=()))
        assert deleted(gone) == []
        assert "no driver runs" in said(gone)

    def test_otherwise_it_is_left_alone(self) -> None:
        for stated in (Stated(), Stated(suspend=False)):
            plan = planned(WRONG, running(STREAM, accepted=None, resource={"stated": stated}))
            assert (plan.objects, deleted(plan)) == ((), [])


class TestSuspending:
    def test_the_driver_goes_and_its_objects_stay(self) -> None:
        of = spec(suspend=True)
        plan = planned(of, running(STREAM))
        assert (replicas(plan), deleted(plan)) == (0, [])
        assert (ready(plan), plan.status.phase) == (("False", "Suspended"), "Suspended")
        assert reason(plan, "Reconciling") == "Suspended"
        gone = planned(of, following(running(STREAM), plan, pods=()))
        assert (ready(gone), reason(gone, "Reconciling")) == (("True", "Suspended"), None)

    def test_resuming_needs_no_other_revision(self) -> None:
        plan = planned(STREAM, running(spec(suspend=True), pods=()))
        assert replicas(plan) == 1
        assert revision(spec(suspend=True)) == revision(STREAM)

    def test_a_run_is_stopped_and_begun_again(self) -> None:
        of = spec(trigger={"availableNow": True}, suspend=True)
        seen = observed(ONCE, workloads=(job(ONCE),), pods=(pod(ONCE, name="shop-run-1"),))
        plan = planned(of, seen)
        assert (deleted(plan), find(plan.objects, "Job")) == ([("Job", job(ONCE).name)], None)
        resumed = planned(ONCE, following(seen, plan, workloads=(), pods=()))
        assert find(resumed.objects, "Job") is not None

    def test_a_schedule_is_suspended_with_the_run_under_way(self) -> None:
        of = spec(trigger={"availableNow": True, "schedule": "0 * * * *"}, suspend=True)
        cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
        run = Workload("Job", "shop-driver-1", "job-1", "batch/v1", revision(CRON), "Active", scheduled=True)
        plan = planned(of, observed(CRON, workloads=(cron, run)))
        made = find(plan.objects, "CronJob")
        assert made is not None
        assert (made["spec"]["suspend"], deleted(plan)) == (True, [("Job", "shop-driver-1")])


class TestRunOnce:
    def test_a_job_is_made_once(self) -> None:
        assert find(planned(ONCE, observed()).objects, "Job") is not None
        assert find(planned(ONCE, observed(ONCE, workloads=(job(ONCE),))).objects, "Job") is None

    def test_a_run_is_ready_at_its_end_and_not_before(self) -> None:
        running_pod = pod(ONCE, name="shop-run-1")
        plan = planned(ONCE, observed(ONCE, workloads=(job(ONCE),), pods=(running_pod,), report=report()))
        assert (ready(plan), plan.status.phase) == (("False", "Running"), "Running")
        assert [e.type for e in plan.events] == ["Normal"]

    def completed(self) -> tuple[Observed, Plan]:
        under_way = observed(
            ONCE, workloads=(job(ONCE),), pods=(pod(ONCE, name="shop-run-1"),), report=report()
        )
        begun = following(under_way, planned(ONCE, under_way))
        ended = replace(begun, workloads=(job(ONCE, state="Succeeded"),), pods=())
        return ended, planned(ONCE, ended)

    def test_a_completed_run_is_ready(self) -> None:
        _, plan = self.completed()
        assert (ready(plan), plan.status.phase) == (("True", "Completed"), "Completed")

    def test_it_is_not_repeated_when_its_job_is_gone(self) -> None:
        ended, plan = self.completed()
        again = planned(ONCE, following(ended, plan, workloads=()))
        assert (find(again.objects, "Job"), ready(again)) == (None, ("True", "Completed"))

    @pytest.mark.parametrize("token", [{"restartToken": "2"}, {"spark": {"resetToken": "2"}}])
    def test_a_token_runs_it_again(self, token: dict[str, Any]) -> None:
        ended, plan = self.completed()
        of = spec(trigger={"availableNow": True}, **token)
        again = planned(of, following(ended, plan))
        assert (deleted(again), find(again.objects, "Job")) == ([("Job", job(ONCE).name)], None)
        cleared = planned(of, following(ended, again, workloads=()))
        made = find(cleared.objects, "Job")
        assert made is not None
        assert made["metadata"]["name"] == f"shop-run-{revision(of)}"

    def test_a_failed_run_stalls(self) -> None:
        failed = observed(ONCE, workloads=(job(ONCE, state="Failed", message="BackoffLimitExceeded"),))
        plan = planned(ONCE, failed)
        assert (ready(plan), plan.status.phase) == (("False", "RunFailed"), "Failed")
        assert reason(plan, "Stalled") == "RunFailed"

    def test_a_stream_becomes_a_run_only_when_its_driver_is_gone(self) -> None:
        seen = running(STREAM)
        plan = planned(ONCE, seen)
        assert (deleted(plan), find(plan.objects, "Job")) == ([("StatefulSet", "shop-driver")], None)
        still = planned(ONCE, replace(seen, workloads=()))
        assert find(still.objects, "Job") is None
        assert find(planned(ONCE, replace(seen, workloads=(), pods=())).objects, "Job") is not None


class TestSchedule:
    def seen(self, **run: Any) -> Observed:
        cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
        last = Workload(
            "Job", "shop-driver-1", "job-1", "batch/v1", scheduled=True, created=ago(hours=1), **run
        )
        return observed(CRON, workloads=(cron, last) if run else (cron,))

    @pytest.mark.parametrize(
        ("run", "expected"),
        [
            ({}, ("True", "Scheduled")),
            ({"state": "Succeeded"}, ("True", "Completed")),
            ({"state": "Failed", "message": "x"}, ("False", "RunFailed")),
        ],
    )
    def test_between_runs_the_last_one_counts(self, run: dict[str, Any], expected: tuple[str, str]) -> None:
        assert ready(planned(CRON, self.seen(**run))) == expected

    def test_a_run_that_waits_to_be_repeated_is_not_ready(self) -> None:
        plan = planned(CRON, self.seen(state="Active"))
        assert (ready(plan), reason(plan, "Reconciling")) == (("False", "DriverPending"), "DriverPending")
        failing = self.seen(state="Active", failures=1)
        assert ready(planned(CRON, failing)) == ("False", "DriverFailed")
        before, now = (
            pod(
                CRON,
                name=f"shop-driver-{n}",
                phase="Failed",
                started=None,
                ending=Ending(1, "Error", why, at),
            )
            for n, why, at in ((0, "an earlier run", ago(hours=2)), (1, "boom", ago(minutes=1)))
        )
        condition = planned(CRON, replace(failing, pods=(now, before))).status.condition("Ready")
        assert condition is not None
        assert condition.message == "the run failed and is repeated: boom"
        refused = replace(failing, pod_refusal="exceeded quota: small")
        assert ready(planned(CRON, refused)) == ("False", "QuotaExceeded")
        leaving = self.seen(state="Active", deleting=True)
        assert ready(planned(CRON, leaving)) == ("True", "Scheduled")

    def test_a_run_without_a_schedule_that_waits_to_be_repeated_says_so(self) -> None:
        plan = planned(ONCE, observed(ONCE, workloads=(job(ONCE, failures=1),)))
        assert (ready(plan), reason(plan, "Reconciling")) == (("False", "DriverFailed"), "DriverFailed")

    def test_a_new_schedule_changes_the_cron_job_alone(self) -> None:
        of = spec(trigger={"availableNow": True, "schedule": "@daily"})
        plan = planned(of, self.seen())
        made = find(plan.objects, "CronJob")
        assert made is not None
        assert (made["spec"]["schedule"], made["spec"]["timeZone"], plan.deletions) == (
            "@daily",
            "Etc/UTC",
            (),
        )


class TestLostNodes:
    def test_a_node_that_does_not_answer_is_named(self) -> None:
        plan = planned(STREAM, running(STREAM, pods=(pod(STREAM, unreachable=True),)))
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert (condition.status, condition.reason) == ("Unknown", "NodeLost")
        assert "node-1" in condition.message

    def test_a_pod_that_does_not_go_is_told_with_what_to_do(self) -> None:
        leaving = running(STREAM, pods=(pod(STREAM, deleted=ago(seconds=59)),))
        assert ready(planned(STREAM, leaving)) == ("False", "Restarting")
        plan = planned(STREAM, replace(leaving, pods=(pod(STREAM, deleted=ago(seconds=60)),)))
        condition = plan.status.condition("Ready")
        assert condition is not None
        assert condition.reason == "NodeLost"
        assert "kubectl delete pod shop-driver-0 --force -n mirrors" in condition.message
        assert plan.deletions == ()


class TestObstaclesAndRivals:
    FOREIGN = Obstacle("ForeignObject", "StatefulSet shop-driver is not Lakemirror's: rename or delete it")

    def test_a_foreign_object_is_reported_and_tried_again(self) -> None:
        plan = planned(STREAM, observed(STREAM, obstacles=(self.FOREIGN,)))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "ForeignObject"), "ForeignObject")
        assert plan.again == NOW + timedelta(seconds=30)

    def test_beside_a_healthy_driver_it_stalls_only(self) -> None:
        plan = planned(STREAM, running(STREAM, obstacles=(self.FOREIGN,)))
        assert (ready(plan), reason(plan, "Stalled")) == (("True", "Progressing"), "ForeignObject")

    def test_objects_of_a_former_pipeline_are_waited_for(self) -> None:
        plan = planned(STREAM, observed(obstacles=(Obstacle("FormerObject", "x"),)))
        assert (reason(plan, "Stalled"), reason(plan, "Reconciling")) == (None, "FormerObject")
        assert plan.again == NOW + timedelta(seconds=5)

    def test_the_younger_of_two_gets_nothing(self) -> None:
        rival = (Rival("mirrors/older", Claim("checkpoint", "s3a://lake/_checkpoints/shop")),)
        plan = planned(STREAM, observed(rivals=rival))
        assert (plan.objects, ready(plan)) == ((), ("False", "Conflict"))
        condition = plan.status.condition("Stalled")
        assert condition is not None
        assert "mirrors/older" in condition.message
        assert ready(planned(STREAM, observed())) == ("False", "DriverPending")

    def test_one_that_ran_is_stopped(self) -> None:
        rivals = (Rival("mirrors/b", Claim("checkpoint", STREAM.checkpoint)),)
        begun = planned(STREAM, running(STREAM, rivals=rivals))
        assert replicas(begun) == 0
        condition = begun.status.condition("Stalled")
        assert condition is not None
        assert "give one of them another, with a new spec.spark.resetToken, or" in condition.message

    @pytest.mark.guarantee(
        "What a pipeline has, no other one gets, however old it is; nesting is a conflict, and a bucket or "
        "table is that of its endpoint or metastore; a conflict names nobody of another namespace"
    )
    @pytest.mark.parametrize("has", [True, False])
    def test_who_guesses_a_place_of_another_namespace_learns_no_name(self, has: bool) -> None:
        theirs = (Rival("finance/salaries", Claim("checkpoint", STREAM.checkpoint), has=has),)
        for seen in (observed(rivals=theirs), running(STREAM, rivals=theirs)):
            written = planned(STREAM, seen).status.model_dump_json()
            assert "finance" not in written
            assert "salaries" not in written
            assert "belongs to a pipeline of another namespace" in written

    MOVED = spec(target={"path": "s3a://other/{table}"}, spark={"resetToken": "1"})
    TAKEN = (Rival("mirrors/b", Claim("target", "s3a://other/{table}"), has=True),)

    def test_an_edit_that_leads_to_what_another_has_is_refused_and_can_be_taken_back(self) -> None:
        before = running(STREAM, rivals=self.TAKEN, resource={"generation": 2})
        plan = planned(self.MOVED, before)
        assert (replicas(plan), plan.deletions, ready(plan)) == (1, (), ("True", "Progressing"))
        condition = plan.status.condition("Stalled")
        assert condition is not None
        assert condition.reason == "Conflict"
        assert condition.message.startswith(
            "target s3a://other/{table} belongs to pipeline mirrors/b, which has it already: change it back, "
            "or give one of them another"
        )
        taken_back = planned(STREAM, following(before, plan))
        assert (reason(taken_back, "Stalled"), taken_back.deletions) == (None, ())
        allowed = planned(self.MOVED, replace(following(before, plan), rivals=()))
        assert (reason(allowed, "Stalled"), ready(allowed)) == (None, ("False", "Restarting"))

    def test_an_edit_leads_away_from_what_another_has(self) -> None:
        rivals = (Rival("mirrors/b", Claim("target", f"{STREAM.target.path}")),)
        assert replicas(planned(STREAM, running(STREAM, rivals=rivals))) == 0
        assert ready(planned(self.MOVED, running(STREAM, rivals=rivals))) == ("False", "Restarting")
        both = planned(self.MOVED, running(STREAM, rivals=(*rivals, *self.TAKEN)))
        assert (replicas(both), ready(both)) == (0, ("False", "Conflict"))


class TestFindings:
    def test_drift_quarantine_and_failed_tables_are_told_with_names(self) -> None:
        drift = {
            "column": "note",
            "change": "added",
            "from": None,
            "to": "string",
            "action": "added",
            "since": None,
        }
        tables = [
            {"source": "shop.public.a", "drift": [drift], "error": None},
            {"source": "shop.public.b", "drift": [], "error": "no such bucket", "quarantinedOpen": 2},
        ]
        told = report(tables=tables, tablesTotal=2, totals={"applied": 1, "quarantinedOpen": 2})
        plan = planned(STREAM, running(STREAM, report=told))
        messages = {c.type: c.message for c in plan.status.conditions or []}
        assert messages["SchemaDrift"].startswith("shop.public.a.note added: added. To acknowledge, set ")
        assert messages["DataQuality"].startswith("2 records (shop.public.b: 2) are in quarantine")
        assert messages["TableFailed"] == "shop.public.b: no such bucket"
        assert plan.status.tables is not None
        assert plan.status.tables[0].drift is not None
        assert ready(plan) == ("True", "Progressing")

    def test_a_mirror_that_differs_from_its_source_is_told_until_it_does_not(self) -> None:
        finding = {"source": "shop.public.a", "missing": 1, "differing": 2}
        verified = {"endedAt": "2026-03-01T00:00:00Z", "equal": False, "tables": 3, "findings": [finding]}
        told = report(verified=verified)
        plan = planned(STREAM, running(STREAM, report=told))
        assert reason(plan, "DataQuality") == "MirrorDiffers"
        assert plan.status.verified is not None
        assert plan.status.verified.tables == 3
        message = next(c.message for c in plan.status.conditions or [] if c.type == "DataQuality")
        assert "shop.public.a: 1 missing, 0 extra, 2 differing" in message
        for fine in ({"equal": True}, {"findings": [{"source": "a", "arriving": 1}]}, {"error": "refused"}):
            told = report(verified=verified | {"findings": []} | fine)
            assert reason(planned(STREAM, running(STREAM, report=told)), "DataQuality") is None

    def test_data_quality_ends_when_nothing_is_open(self) -> None:
        told = report(
            totals={"quarantined": 2, "quarantinedOpen": 0}, tables=[{"source": "a", "quarantined": 2}]
        )
        assert reason(planned(STREAM, running(STREAM, report=told)), "DataQuality") is None

    def test_drift_ends_when_it_is_acknowledged(self) -> None:
        def drift(column: str, seen: datetime) -> dict[str, Any]:
            return {"column": column, "change": "added", "action": "added", "seen": iso(seen)}

        early, late = drift("a", ago(hours=2)), drift("b", ago(hours=1))
        seen = running(STREAM, report=report(tables=[{"source": "shop.public.a", "drift": [late, early]}]))
        before = planned(STREAM, seen).status.condition("SchemaDrift")
        assert before is not None
        assert before.message.endswith(f"spec.driftAcknowledgedUntil: {iso(ago(hours=1))}")
        half = spec(driftAcknowledgedUntil=iso(ago(hours=2)))
        plan = planned(half, seen)
        after = plan.status.condition("SchemaDrift")
        assert after is not None
        assert "shop.public.a.b added" in after.message
        assert "shop.public.a.a added" not in after.message
        assert revision(half) == revision(STREAM)
        all_of_it = planned(spec(driftAcknowledgedUntil=iso(ago(hours=1))), seen)
        assert reason(all_of_it, "SchemaDrift") is None
        assert all_of_it.status.tables is not None
        assert all_of_it.status.tables[0].drift == []

    def test_a_source_that_restarted_stalls_until_the_spec_changes(self) -> None:
        told = report(
            phase="Failed", sourceRestarted="positions start again", failure="positions start again"
        )
        seen = running(STREAM, report=told)
        plan = planned(STREAM, seen)
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "SourceRestarted"), "SourceRestarted")
        # The container was started again before the set was scaled down; its report knows nothing of it yet.
        again = report(phase="Starting", batchId=None, committedAt=None)
        later = planned(STREAM, following(seen, plan, report=again))
        assert (ready(later), replicas(later)) == (("False", "SourceRestarted"), 0)
        assert reason(later, "SourceRestarted") == "PositionsStartAgain"
        epochs = {"epochs": [{"epoch": 1, "from": {"shop.a": {"0": 5}}}]}
        after = spec(ordering=epochs)
        mended = following(seen, later, workloads=(stateful_set(after),), pods=(pod(after),), report=report())
        assert reason(planned(after, mended), "SourceRestarted") is None

    def test_tables_that_wait_for_an_epoch_stop_no_driver(self) -> None:
        """The others go on, so that the pipeline is Ready, and the condition says what to declare."""
        seen = running(STREAM, report=report(positionsRestarted="declare an epoch"))
        plan = planned(STREAM, seen)
        condition = plan.status.condition("SourceRestarted")
        assert condition is not None
        assert (condition.reason, condition.message) == ("PositionsStartAgain", "declare an epoch")
        assert (ready(plan)[0], reason(plan, "Stalled"), replicas(plan)) == ("True", None, 1)
        gone = planned(STREAM, following(seen, plan, report=report(batchId=99)))
        assert reason(gone, "SourceRestarted") is None

    def test_the_epochs_to_declare_are_told_whole_however_many_partitions_have_one(self) -> None:
        topics = {f"shop.public.table_{n}": {"0": 1000 + n} for n in range(100)}
        epochs = json.dumps([{"epoch": 1, "from": topics}])
        said = f"positions start again{' and again' * 40}: ordering.epochs: {epochs}; else correct the topic"
        driver = report(phase="Failed", sourceRestarted=said, failure=said).said.shortened()
        told = report(**driver.document())
        ended = Ending(1, "Error", said[:4096], ago(seconds=1))  # as much as Kubernetes keeps
        there = replace(crashed(pod(STREAM)), ending=ended)
        plan = planned(STREAM, running(STREAM, report=told, pods=(there,)))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "SourceRestarted"), "SourceRestarted")
        for type in ("Ready", "Stalled", "SourceRestarted"):
            condition = plan.status.condition(type)
            assert condition is not None
            assert epochs in condition.message

    def lost(self, of: PipelineSpec, **changes: Any) -> tuple[Observed, Plan]:
        """A driver whose source has lost records: the report says so, and so does the end of its pod."""
        told = report(phase="Failed", sourceLost="records were lost", failure="records were lost")
        ended = Ending(1, "Error", "records were lost", ago(seconds=1))
        there = crashed(pod(of))
        seen = running(of, **{"report": told, "pods": (replace(there, ending=ended),), **changes})
        return seen, planned(of, seen)

    def test_a_driver_whose_source_was_lost_stays_away_until_the_spec_changes(self) -> None:
        seen, plan = self.lost(STREAM)
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "SourceLost"), "SourceLost")
        assert (plan.status.phase, reason(plan, "Reconciling")) == ("Failed", None)
        assert [(event.type, event.reason) for event in plan.events][:1] == [("Warning", "SourceLost")]
        away = planned(STREAM, following(seen, plan))
        assert (ready(away), reason(away, "Stalled"), replicas(away)) == (
            ("False", "SourceLost"),
            "SourceLost",
            0,
        )
        gone = following(seen, away, pods=())
        still = planned(STREAM, gone)
        message = still.status.condition("Ready")
        assert message is not None
        assert (message.reason, message.message, replicas(still)) == ("SourceLost", "records were lost", 0)
        assert still.events == ()
        for token in ({"spark": {"resetToken": "2"}}, {"restartToken": "2"}):
            of = spec(**token)
            begun = planned(of, following(gone, still))
            assert (ready(begun), replicas(begun)) == (("False", "DriverPending"), 1)
            there = pod(of, started=NOW + timedelta(seconds=10))
            new = planned(of, following(gone, begun, workloads=(stateful_set(of),), pods=(there,)))
            assert (ready(new), replicas(new)) == (("False", "DriverStarting"), 1)
            assert reason(new, "Stalled") is None

    def test_an_edit_while_the_former_driver_still_fails_takes_effect(self) -> None:
        seen, plan = self.lost(STREAM)
        of = spec(spark={"resetToken": "2"})
        edited = planned(of, following(seen, plan))
        assert (ready(edited)[1], replicas(edited)) == ("Restarting", 1)
        assert replicas(planned(of, following(seen, edited))) == 1

    def test_a_driver_that_fails_for_another_reason_later_is_restarted(self) -> None:
        _, plan = self.lost(STREAM, pods=(crashed(pod(STREAM)),))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "DriverFailed"), None)

    def test_a_run_whose_source_was_lost_is_not_repeated(self) -> None:
        ended = Ending(1, "Error", "records were lost", ago(seconds=1))
        failed = pod(ONCE, phase="Failed", started=None, ending=ended, exits=1)
        seen, plan = self.lost(ONCE, workloads=(job(ONCE, failures=1),), pods=(failed,))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "SourceLost"), "SourceLost")
        assert deleted(planned(ONCE, following(seen, plan))) == [("Job", job(ONCE).name)]

    def test_the_next_run_of_a_schedule_tries_again(self) -> None:
        cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
        last = replace(cron, kind="Job", name="shop-1", uid="job-1", scheduled=True, state="Failed")
        ended = Ending(1, "Error", "records were lost", ago(seconds=1))
        failed = pod(CRON, phase="Failed", started=None, ending=ended, exits=1)
        seen, plan = self.lost(CRON, workloads=(cron, last), pods=(failed,))
        assert (ready(plan), reason(plan, "Stalled")) == (("False", "SourceLost"), "SourceLost")
        after = planned(CRON, following(seen, plan))
        made = find(after.objects, "CronJob")
        assert made is not None
        assert made["spec"]["suspend"] is False

    def test_a_report_with_surprises_breaks_nothing(self) -> None:
        odd = report(
            batchId="seven", totals={"applied": -1, "inserted": 2, "new": 1}, tables=[{"source": 5}, {}]
        )
        plan = planned(STREAM, running(STREAM, report=odd))
        assert plan.status.totals is not None
        assert (plan.status.totals.applied, plan.status.totals.inserted) == (0, 2)


class TestStatus:
    def test_it_stays_small_with_a_thousand_tables(self) -> None:
        drift = {"column": "c" * 200, "change": "added", "to": "string", "action": "added" * 100}
        tables = [
            {
                "source": f"shop.public.table_{i:04}",
                "error": "x" * 20_000,
                "drift": [drift] * 100,
                "target": "t" * 900,
            }
            for i in range(1000)
        ]
        plan = planned(STREAM, running(STREAM, report=report(tables=tables, tablesTotal=1000)))
        assert len(plan.status.model_dump_json(by_alias=True, exclude_none=True)) < 64_000
        assert plan.status.tables_total == 1000
        assert plan.status.tables

    def test_the_tables_that_matter_come_first(self) -> None:
        tables: list[dict[str, Any]] = [
            {"source": f"s.t{i:04}", "lastEventTime": iso(NOW)} for i in range(1000)
        ]
        tables[500]["error"] = "broken"
        tables[600]["drift"] = [{"column": "c", "change": "added"}]
        tables[700]["lastEventTime"] = iso(ago(days=1))
        plan = planned(STREAM, running(STREAM, report=report(tables=tables, tablesTotal=1000)))
        shown = [t.source for t in plan.status.tables or []]
        assert len(shown) == 100
        assert shown[:3] == ["s.t0500", "s.t0600", "s.t0700"]

    def test_nothing_is_written_when_only_time_moved(self) -> None:
        from lakemirror.controller.status import unchanged

        before = running(STREAM)
        later = report(observedAt=iso(NOW + timedelta(seconds=30)), lagSeconds=30.0)
        after = planned(STREAM, replace(before, report=later), NOW + timedelta(seconds=30))
        assert unchanged(before.resource.status, after.status)
        batch = report(batchId=8, observedAt=iso(NOW + timedelta(seconds=30)))
        moved = planned(STREAM, replace(before, report=batch), NOW + timedelta(seconds=30))
        assert not unchanged(before.resource.status, moved.status)

    def test_a_condition_keeps_the_time_of_its_transition(self) -> None:
        before = running(STREAM)
        later = NOW + timedelta(hours=1)
        fresh = report(seen=later, progressed=later, observedAt=iso(later), batchId=9)
        condition = planned(STREAM, replace(before, report=fresh), later).status.condition("Ready")
        assert condition is not None
        assert condition.last_transition_time == iso(NOW)

    def test_every_plan_writes_what_the_contract_allows(self) -> None:
        plan = planned(STREAM, running(STREAM))
        written = plan.status.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert PipelineStatus.model_validate(written) == plan.status
        assert CdcPipeline.from_dict(document() | {"status": written})


class TestDeletion:
    def test_without_a_policy_nothing_holds_the_pipeline(self) -> None:
        plan = planned(STREAM, running(STREAM, resource={"deleting": True}))
        assert (plan.finalizer, plan.objects, plan.deletions) == (False, (), ())
        assert reason(plan, "Reconciling") == "Deleting"

    OWN = spec(deletionPolicy="DeleteAll")

    def leaving(self, **changes: Any) -> Plan:
        resource = {"deleting": True, "finalizers": (names.FINALIZER,)}
        return planned(changes.pop("wanted", self.OWN), running(self.OWN, resource=resource, **changes))

    def cleanup(self, **changes: Any) -> Workload:
        job = Workload("Job", "shop-cleanup", "job-9", "batch/v1", revision(self.OWN), state="Active")
        return replace(job, **changes)

    def test_a_policy_asks_for_the_finalizer(self) -> None:
        assert planned(self.OWN, running(self.OWN)).finalizer
        assert planned(spec(deletionPolicy="DeleteCheckpoint"), observed()).finalizer
        assert not planned(STREAM, running(STREAM, resource={"finalizers": (names.FINALIZER,)})).finalizer

    def test_first_the_driver_goes(self) -> None:
        plan = self.leaving()
        assert (deleted(plan), plan.objects, plan.finalizer) == ([("StatefulSet", "shop-driver")], (), True)
        assert self.leaving(workloads=()).objects == ()

    def test_then_a_job_deletes_the_data_and_the_finalizer_goes(self) -> None:
        plan = self.leaving(workloads=(), pods=())
        cleanup = find(plan.objects, "Job", "shop-cleanup")
        assert cleanup is not None
        assert cleanup["spec"]["template"]["spec"]["containers"][0]["args"][-1] == "cleanup"
        assert plan.finalizer
        done = self.cleanup()
        assert self.leaving(workloads=(done,), pods=()).finalizer
        done = replace(done, state="Succeeded")
        assert not self.leaving(workloads=(done,), pods=()).finalizer

    def test_a_cleanup_that_fails_says_how_to_let_go(self) -> None:
        failed = self.cleanup(state="Failed", message="denied")
        plan = self.leaving(workloads=(failed,), pods=())
        assert (plan.finalizer, reason(plan, "Stalled")) == (True, "CleanupFailed")
        assert not self.leaving(wanted=STREAM, workloads=(failed,), pods=()).finalizer

    POLICIES: tuple[DeletionPolicy, ...] = ("Retain", "DeleteCheckpoint", "DeleteAll")

    @pytest.mark.parametrize("asked", POLICIES)
    @pytest.mark.parametrize("accepted", POLICIES)
    def test_beside_a_refused_edit_what_deletes_less_counts(
        self, accepted: DeletionPolicy, asked: DeletionPolicy
    ) -> None:
        """Keeping the data is the remedy if it cannot be deleted, so it works whatever else is wrong."""
        least = min(accepted, asked, key=self.POLICIES.index)
        before = spec(deletionPolicy=accepted)
        needs_reset = spec(deletionPolicy=asked, tables=[{"source": "public.orders", "primaryKey": ["a"]}])
        for wanted, stated in ((needs_reset, Stated()), (WRONG, Stated(deletion_policy=asked))):
            going = {"deleting": True, "finalizers": (names.FINALIZER,), "stated": stated}
            plan = planned(wanted, running(before, resource={"stated": stated}))
            assert plan.finalizer == (least != "Retain")
            plan = planned(wanted, running(before, resource=going, workloads=(), pods=()))
            assert plan.finalizer == (find(plan.objects, "Job", "shop-cleanup") is not None)
            assert plan.finalizer == (least != "Retain")
            if plan.finalizer:
                config = find(plan.objects, "ConfigMap", "shop-config")
                assert config is not None
                [text] = [text for key, text in config["data"].items() if key == f"{revision(before)}.yaml"]
                assert CdcPipeline.from_yaml(text).spec.deletion_policy == least

    def test_a_mistake_that_says_nothing_of_the_policy_leaves_it(self) -> None:
        assert find(self.leaving(wanted=WRONG, workloads=(), pods=()).objects, "Job", "shop-cleanup")

    RIVALS = (Rival("prod/shop", Claim("checkpoint", "s3a://lake/_checkpoints/shop")),)

    def test_one_that_never_ran_for_an_older_one_holds_nothing_and_deletes_nothing(self) -> None:
        """Its checkpoint is that of the older one."""
        assert not planned(self.OWN, observed(rivals=self.RIVALS)).finalizer
        held = observed(rivals=self.RIVALS, deleting=True, finalizers=(names.FINALIZER,))
        plan = planned(self.OWN, held)
        assert (plan.finalizer, plan.objects, plan.trial) == (False, (), ())

    def test_what_an_older_pipeline_claims_stays_even_if_this_one_ran(self) -> None:
        assert planned(self.OWN, running(self.OWN, rivals=self.RIVALS)).finalizer
        for found in ({}, {"workloads": (), "pods": ()}):
            plan = self.leaving(rivals=self.RIVALS, **found)
            assert (plan.finalizer, plan.objects, plan.deletions) == (False, (), ())

    def test_an_edit_that_never_took_effect_deletes_nothing_where_it_led(self) -> None:
        """The data that goes is that of the spec that ran, and not what is at the place of the newest one."""
        moved = spec(checkpoint="s3a://theirs/c", spark={"resetToken": "1"}, deletionPolicy="DeleteAll")
        plan = self.leaving(wanted=moved, workloads=(), pods=())
        config = find(plan.objects, "ConfigMap", "shop-config")
        assert config is not None
        assert "s3a://theirs" not in json.dumps(config)
        assert "DeleteAll" in json.dumps(config)

    def test_a_namespace_that_goes_is_not_held_up(self) -> None:
        ending = (Obstacle("NamespaceTerminating", "x"),)
        assert not self.leaving(workloads=(), pods=(), obstacles=ending).finalizer


class TestBackends:
    def application(self, of: PipelineSpec, **changes: Any) -> Workload:
        app = Workload("SparkApplication", "shop", "app-1", "spark.apache.org/v1", revision(of), "Active")
        return replace(app, **changes)

    @pytest.mark.parametrize("backend", ["kubeflow", "apache"])
    def test_a_new_revision_replaces_the_application(self, backend: str) -> None:
        before, after = spec(spark={"backend": backend}), spec(spark={"backend": backend}, onBadRecord="fail")
        made = find(planned(before, observed()).objects, "SparkApplication")
        assert made is not None
        driver = pod(before, name="shop-driver")
        seen = observed(before, workloads=(self.application(before),), pods=(driver,), report=report())
        assert find(planned(before, seen).objects, "SparkApplication") is None
        assert ready(planned(before, seen)) == ("True", "Progressing")
        plan = planned(after, seen)
        assert (deleted(plan), find(plan.objects, "SparkApplication")) == (
            [("SparkApplication", "shop")],
            None,
        )
        assert find(planned(after, replace(seen, workloads=())).objects, "SparkApplication") is None
        gone = planned(after, replace(seen, workloads=(), pods=()))
        assert find(gone.objects, "SparkApplication") is not None

    def test_a_stream_that_ended_well_is_started_again(self) -> None:
        of = spec(spark={"backend": "kubeflow"})
        plan = planned(of, observed(of, workloads=(self.application(of, state="Succeeded"),)))
        assert deleted(plan) == [("SparkApplication", "shop")]

    def test_suspending_deletes_the_application(self) -> None:
        of = spec(spark={"backend": "apache"}, suspend=True)
        plan = planned(of, observed(of, workloads=(self.application(of),)))
        assert (deleted(plan), ready(plan)) == ([("SparkApplication", "shop")], ("True", "Suspended"))

    def test_one_that_was_given_up_stalls(self) -> None:
        of = spec(spark={"backend": "apache"})
        failed = self.application(of, state="Failed", failures=11, message="exceeded")
        plan = planned(of, observed(of, workloads=(failed,)))
        assert (ready(plan)[0], plan.status.phase, deleted(plan)) == ("False", "Failed", [])
        assert plan.status.condition("Stalled") is not None


class TestTime:
    @pytest.mark.parametrize(
        ("interval", "minutes", "late"),
        [("10s", 9, False), ("10s", 10, True), ("1h", 69, False), ("1h", 70, True), ("6m", 15, False)],
    )
    def test_a_batch_that_begins_seldom_is_not_late_before_it_begins(
        self, interval: str, minutes: int, late: bool
    ) -> None:
        of = spec(trigger={"interval": interval})
        told = report(progressed=ago(minutes=minutes), caughtUp=False, lagRecords=10)
        assert (ready(planned(of, running(of, report=told)))[1] == "NoProgress") == late

    CRON = spec(trigger={"availableNow": True, "schedule": "0 * * * *"})

    def between_runs(self, **metadata: Any) -> tuple[str, str]:
        body = {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {
                "name": "shop-driver",
                "uid": "cron-1",
                "creationTimestamp": iso(ago(days=9)),
                "annotations": {names.REVISION: revision(self.CRON)},
                **metadata,
            },
            "spec": {"schedule": "0 * * * *"},
            "status": {"lastScheduleTime": iso(ago(days=2))},
        }
        found = observe.workload(slim(body))
        return ready(planned(self.CRON, observed(self.CRON, workloads=(found,))))

    def test_a_schedule_that_does_not_run_is_not_ready(self) -> None:
        assert self.between_runs() == ("False", "RunOverdue")
        edited = {"manager": names.FIELD_MANAGER, "time": iso(ago(minutes=5)), "fieldsV1": {}}
        assert self.between_runs(managedFields=[edited]) == ("True", "Scheduled"), (
            "the next one is not late yet"
        )
        by_controller = {"manager": "kube-controller-manager", "time": iso(NOW), "subresource": "status"}
        assert self.between_runs(managedFields=[by_controller]) == ("False", "RunOverdue")

    @pytest.mark.parametrize("known", ["report", "writer", "status"])
    def test_a_repaired_pipeline_is_not_stalled_by_the_report_from_before(self, known: str) -> None:
        told = report(
            sourceRestarted="positions start again",
            phase="Failed",
            **({"revision": revision(STREAM)} if known == "report" else {}),
        )
        if known == "writer":
            told = replace(told, by=Writer("pod-1", 0, revision(STREAM)))
        before = running(STREAM, report=told)
        assert reason(planned(STREAM, before), "Stalled") is not None
        mended = spec(ordering={"epochs": [{"epoch": 1, "from": {"shop.a": {"0": 7}}}]})
        after = planned(
            mended, following(before, planned(STREAM, before), pods=(), resource={"generation": 2})
        )
        assert reason(after, "Stalled") is None
        assert reason(after, "SourceRestarted") is None


class TestSidecars:
    ONCE = spec(trigger={"availableNow": True})

    def left(self, seconds: int, code: int = 0) -> Observed:
        terminated = {"exitCode": code, "reason": "Completed", "finishedAt": iso(ago(seconds=seconds))}
        body = {
            "metadata": {
                "name": "shop-run-1",
                "uid": "pod-1",
                "labels": {names.COMPONENT: "driver"},
                "annotations": {names.REVISION: revision(self.ONCE)},
            },
            "spec": {"restartPolicy": "Never", "containers": [{"name": "driver"}, {"name": "istio-proxy"}]},
            "status": {
                "phase": "Running",
                "containerStatuses": [
                    {"name": "driver", "state": {"terminated": terminated}},
                    {"name": "istio-proxy", "state": {"running": {"startedAt": iso(ago(minutes=9))}}},
                ],
            },
        }
        return observed(self.ONCE, workloads=(job(self.ONCE),), pods=(observe.pod(body),), report=report())

    @pytest.mark.parametrize("code", [0, 1])
    def test_a_run_that_a_proxy_keeps_is_stalled_after_a_minute(self, code: int) -> None:
        soon = planned(self.ONCE, self.left(10, code))
        assert (ready(soon), reason(soon, "Stalled")) == (("False", "SidecarRunning"), None)
        assert soon.again == NOW + timedelta(seconds=50)
        late = planned(self.ONCE, self.left(60, code))
        assert reason(late, "Stalled") == "SidecarRunning"
        condition = late.status.condition("Ready")
        assert condition is not None
        assert "istio-proxy" in condition.message
        assert "restartPolicy: Always" in condition.message
        assert "kubectl delete pod shop-run-1 -n mirrors" in condition.message

    def test_an_edit_ends_the_run_that_keeps_the_schedule_from_going_on(self) -> None:
        before, after = (
            spec(trigger={"availableNow": True, "schedule": "@hourly"}, onBadRecord=each)
            for each in ("quarantine", "fail")
        )
        cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(before))
        run = Workload(
            "Job", "shop-driver-1", "job-1", "batch/v1", revision(before), "Active", scheduled=True
        )
        left = pod(
            before, name="shop-driver-1-x", started=None, ending=Ending(0, "Completed", "", ago(minutes=9))
        )
        seen = observed(before, workloads=(cron, run), pods=(replace(left, outlived_by=("proxy",)),))
        assert planned(before, seen).deletions == ()
        assert [gone.name for gone in planned(after, seen).deletions] == ["shop-driver-1"]
        works = replace(seen, pods=(replace(left, started=NOW, ending=None),))
        assert planned(after, works).deletions == ()
