"""Every state that the operator can report of a pipeline, and what whoever waits for it has to make of it.

The statuses are made by the operator's own plans. ``test_states`` fails when the operator's code has a
verdict that no state here has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from lakemirror.api import ManifestError, PipelineStatus
from lakemirror.controller import names, status
from lakemirror.controller.claims import Claim
from lakemirror.controller.values import (
    Ending,
    Moved,
    Observed,
    Obstacle,
    Plan,
    Rival,
    Stated,
    Turn,
    Workload,
)
from tests.controller.builders import (
    NOW,
    ago,
    crashed,
    document,
    following,
    iso,
    job,
    observed,
    planned,
    pod,
    report,
    revision,
    running,
    spec,
)
from tests.controller.kstatus import KStatus

Health = Literal["Healthy", "Suspended", "Progressing", "Degraded"]
"""In the words of Argo CD."""


@dataclass(frozen=True)
class State:
    """A state: how it comes about, its ``reason`` of Ready, and what is to be made of it.

    ``ready``: whether ``kubectl wait --for=condition=Ready`` has what it waits for.
    """

    made: Callable[[], Plan | PipelineStatus]
    reason: str
    health: Health
    kstatus: KStatus
    ready: bool = False
    spec: dict[str, Any] | None = None
    deleting: bool = False

    def resource(self, name: str = "shop") -> dict[str, Any]:
        """The resource as the API has it."""
        made = self.made()
        body = document(name, **(self.spec or {}))
        said = made.status if isinstance(made, Plan) else made
        body["metadata"] |= {"generation": said.observed_generation, "uid": "uid-1"}
        if self.deleting:
            body["metadata"] |= {"deletionTimestamp": iso(NOW), "finalizers": [names.FINALIZER]}
        return body | {"status": status.document(said)}


STREAM = spec()
ONCE = spec(trigger={"availableNow": True})
CRON = spec(trigger={"availableNow": True, "schedule": "0 * * * *"})
CLEANED = spec(deletionPolicy="DeleteAll")
WRONG = ManifestError([("spec.target", "is required"), ("spec.checkpoint", "is required")])
MOVE = Moved("driver:0", ago(minutes=1), True)
DRIFT = {"column": "note", "change": "added", "to": "string", "action": "added", "seen": iso(NOW)}
FOUND = report(
    totals={"applied": 1, "quarantinedOpen": 2},
    tables=[
        {"source": "shop.public.a", "drift": [DRIFT]},
        {"source": "shop.public.b", "error": "no such bucket", "quarantinedOpen": 2},
    ],
)
DIFFERS = report(
    verified={
        "endedAt": iso(NOW),
        "equal": False,
        "tables": 2,
        "unequal": 1,
        "findings": [{"source": "shop.public.a", "missing": 1, "differing": 2, "keys": ["1", "2", "3"]}],
    }
)
RESTARTED = report(phase="Failed", sourceRestarted="positions start again", failure="positions start again")
LOST = report(phase="Failed", sourceLost="records were lost", failure="records were lost")
STUCK: dict[str, Any] = {"caughtUp": False, "lagRecords": 10}
FOREIGN = Obstacle("ForeignObject", "StatefulSet shop-driver is not Lakemirror's: rename or delete it")
EVICTED = Ending(0, "Evicted", "the node was low on memory", ago(seconds=5))
KILLED = Ending(137, "OOMKilled", "", ago(seconds=1))


def stream(of: Any = STREAM, /, **changes: Any) -> Callable[[], Plan]:
    """A streaming pipeline that ran with ``STREAM``, what is seen now, and ``of`` as its newest spec."""
    return lambda: planned(of, running(STREAM, **changes))


def edited(of: Any, **changes: Any) -> Callable[[], Plan]:
    """The same, in the generation of an edit."""
    return stream(of, resource={"generation": 2}, **changes)


def new(wanted: Any = STREAM, /, **changes: Any) -> Callable[[], Plan]:
    """A pipeline of which there is nothing yet but ``changes``."""
    return lambda: planned(wanted, observed(**changes))


def waiting(waits: str, words: str = "", **changes: Any) -> Callable[[], Plan]:
    """A driver whose container does not start."""
    there = pod(STREAM, started=None, phase="Pending", waiting=waits, message=words)
    return stream(pods=(there,), report=None, **changes)


def reporting(**said: Any) -> Callable[[], Plan]:
    """A driver that runs and says this."""
    return stream(report=report(**said))


def leaving(**changes: Any) -> Callable[[], Plan]:
    """A pipeline that is being deleted, with its data."""
    resource = {"deleting": True, "finalizers": (names.FINALIZER,)} | changes.pop("resource", {})
    return lambda: planned(CLEANED, running(CLEANED, resource=resource, **changes))


def scheduled(**run: Any) -> Callable[[], Plan]:
    cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
    last = Workload("Job", "shop-driver-1", "job-1", "batch/v1", scheduled=True, created=ago(hours=1), **run)
    return new(CRON, of=CRON, workloads=(cron, last) if run else (cron,))


def overdue() -> Workload:
    cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
    return replace(cron, schedule="0 * * * *", due_since=ago(days=2))


def outlived(seconds: int) -> Callable[[], Plan]:
    """The driver of a run has ended, and the proxy beside it has not."""
    ended = Ending(0, "Completed", "", ago(seconds=seconds))
    left = pod(ONCE, name="shop-run-1", started=None, exits=1, ending=ended, outlived_by=("istio-proxy",))
    return new(ONCE, of=ONCE, workloads=(job(ONCE),), pods=(left,), report=report())


def removed(reason: str, words: str) -> Callable[[], Plan]:
    """Kubernetes removed the driver's pod, and its successor is not there yet."""
    return stream(pods=(), lost=replace(EVICTED, reason=reason, message=words))


def blocked(reason: Any, words: str) -> Callable[[], Plan]:
    """An object of a new pipeline cannot be applied."""
    return new(of=STREAM, obstacles=(Obstacle(reason, words),))


def rolled(turn: Turn) -> Callable[[], Plan]:
    return stream(turn=turn)


def given_up() -> Plan:
    of = spec(restart={"backoffLimit": 2})
    seen = running(of, pods=(crashed(pod(of), exits=3),))
    return planned(of, following(seen, planned(of, seen), pods=()))


def source_restarted_again() -> Plan:
    """The next run of a schedule has begun, and its first report knows nothing of it yet."""
    cron = Workload("CronJob", "shop-driver", "cron-1", "batch/v1", revision(CRON))
    seen = running(CRON, workloads=(cron,), report=RESTARTED)
    again = report(phase="Starting", batchId=None, committedAt=None)
    return planned(CRON, following(seen, planned(CRON, seen), report=again))


def source_lost_and_held() -> Plan:
    """No driver is started again."""
    seen = running(STREAM, report=LOST)
    return planned(STREAM, following(seen, planned(STREAM, seen), pods=()))


def still_evicted() -> Plan:
    """The pod that takes an evicted one's place is starting."""
    seen: Observed = running(STREAM, pods=(), lost=EVICTED, report=None)
    next_pod = pod(STREAM, uid="pod-2", started=None, phase="Pending", waiting="ContainerCreating")
    return planned(STREAM, following(seen, planned(STREAM, seen), pods=(next_pod,), lost=None))


def reconcile_error() -> PipelineStatus:
    return status.failing(running(STREAM).resource, ago(minutes=1), "configmaps is forbidden", NOW)


def cut_status() -> PipelineStatus:
    return status.essential(planned(STREAM, running(STREAM)).status, "status.tables: unknown field")


def cleanup(**changes: Any) -> Workload:
    made = Workload("Job", "shop-cleanup", "job-9", "batch/v1", revision(CLEANED), state="Active")
    return replace(made, **changes)


SUSPENDED = {"suspend": True}
RETARGETED = {"target": {"path": "s3a://other/{table}"}}
TAKEN = {"target": {"path": "s3a://taken/{table}"}, "spark": {"resetToken": "1"}}
TOLERATIONS = {"spark": {"podTemplate": {"spec": {"tolerations": "all"}}}}
NO_TEMPLATE = {"spark": {"podTemplate": {"spec": {"containers": "none"}}}}
APACHE_CRON = {"trigger": {"availableNow": True, "schedule": "@daily"}, "spark": {"backend": "apache"}}
INVALID = Obstacle("InvalidSpec", "the API server refuses StatefulSet shop-driver: tolerations")

STATES: dict[str, State] = {
    # It does what it should.
    "running": State(stream(), "Progressing", "Healthy", "Current", True),
    "catching-up": State(reporting(**STUCK), "Progressing", "Healthy", "Current", True),
    "with-findings": State(stream(report=FOUND), "Progressing", "Healthy", "Current", True),
    "mirror-differs": State(stream(report=DIFFERS), "Progressing", "Healthy", "Current", True),
    "status-cut": State(cut_status, "Progressing", "Healthy", "Current", True),
    "rollout-waiting": State(
        rolled(Turn("driver:1", "driver:2", state="Waiting")), "Progressing", "Healthy", "Current", True
    ),
    "rollout-stopped": State(
        rolled(Turn("driver:1", "driver:2", state="Stopped", stopped_by="mirrors/first")),
        "Progressing",
        "Healthy",
        "Current",
        True,
    ),
    "rollout-moving": State(
        rolled(Turn("driver:1", "driver:1", MOVE, "Moving")), "Progressing", "Healthy", "Current", True
    ),
    "rollout-failed": State(
        rolled(Turn("driver:1", "driver:1", MOVE, "Failed")), "Progressing", "Healthy", "Current", True
    ),
    "completed": State(
        new(ONCE, of=ONCE, workloads=(job(ONCE, state="Succeeded"),)),
        "Completed",
        "Healthy",
        "Current",
        True,
        {"trigger": {"availableNow": True}},
    ),
    "scheduled": State(scheduled(), "Scheduled", "Healthy", "Current", True),
    "scheduled-completed": State(scheduled(state="Succeeded"), "Completed", "Healthy", "Current", True),
    "suspended": State(
        stream(spec(**SUSPENDED), pods=()), "Suspended", "Suspended", "Current", True, SUSPENDED
    ),
    # Something is under way.
    "new": State(new(), "DriverPending", "Progressing", "InProgress"),
    "driver-pending": State(waiting("ContainerCreating"), "DriverPending", "Progressing", "InProgress"),
    "unschedulable": State(
        waiting("Unschedulable", "0/1 nodes"), "Unschedulable", "Progressing", "InProgress"
    ),
    "queued": State(
        waiting("SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates"),
        "SchedulingGated",
        "Progressing",
        "InProgress",
    ),
    "image-pull": State(
        waiting("ImagePullBackOff", "no such image"), "ImagePullBackOff", "Progressing", "InProgress"
    ),
    "secret-missing": State(
        waiting("ContainerCreating", mount_problem='secret "kafka-auth" not found'),
        "SecretMissing",
        "Progressing",
        "InProgress",
    ),
    "volume-missing": State(
        waiting("ContainerCreating", mount_problem='configmap "log4j" not found'),
        "VolumeMissing",
        "Progressing",
        "InProgress",
    ),
    "quota-exceeded": State(
        stream(pods=(), pod_refusal="exceeded quota: small"), "QuotaExceeded", "Progressing", "InProgress"
    ),
    "evicted": State(stream(pods=(), lost=EVICTED), "Evicted", "Progressing", "InProgress"),
    "preempted": State(
        removed("Preempted", "by pod mirrors/other on node a"), "Preempted", "Progressing", "InProgress"
    ),
    "tainted": State(
        removed("TaintManagerEviction", "deleting pod"), "TaintManagerEviction", "Progressing", "InProgress"
    ),
    "drained": State(
        removed("EvictionByEvictionAPI", "evicting"), "EvictionByEvictionAPI", "Progressing", "InProgress"
    ),
    "evicted-replaced": State(still_evicted, "Evicted", "Progressing", "InProgress"),
    "driver-starting": State(reporting(phase="Starting"), "DriverStarting", "Progressing", "InProgress"),
    "source-connecting": State(reporting(source={}), "SourceConnecting", "Progressing", "InProgress"),
    "restarting": State(edited(spec(onBadRecord="fail")), "Restarting", "Progressing", "InProgress"),
    "pod-ending": State(
        stream(pods=(pod(STREAM, deleted=ago(seconds=5)),)), "Restarting", "Progressing", "InProgress"
    ),
    "ended-well": State(
        stream(pods=(crashed(pod(STREAM), code=0),)), "Restarting", "Progressing", "InProgress"
    ),
    "driver-failed": State(stream(pods=(crashed(pod(STREAM)),)), "DriverFailed", "Progressing", "InProgress"),
    "oom-killed": State(
        stream(pods=(replace(crashed(pod(STREAM)), ending=KILLED),)), "OOMKilled", "Progressing", "InProgress"
    ),
    "driver-failing": State(
        reporting(phase="Failed", failure="boom"), "DriverFailed", "Progressing", "InProgress"
    ),
    "run-pending": State(scheduled(state="Active"), "DriverPending", "Progressing", "InProgress"),
    "run-repeated": State(scheduled(state="Active", failures=1), "DriverFailed", "Progressing", "InProgress"),
    "run-under-way": State(
        new(ONCE, of=ONCE, workloads=(job(ONCE),), pods=(pod(ONCE, name="shop-run-1"),), report=report()),
        "Running",
        "Progressing",
        "InProgress",
        spec={"trigger": {"availableNow": True}},
    ),
    "suspending": State(stream(spec(**SUSPENDED)), "Suspended", "Progressing", "InProgress", spec=SUSPENDED),
    "former-object": State(
        new(obstacles=(Obstacle("FormerObject", "StatefulSet shop-driver"),)),
        "FormerObject",
        "Progressing",
        "InProgress",
    ),
    "node-silent": State(
        stream(pods=(pod(STREAM, unreachable=True),)), "NodeLost", "Progressing", "InProgress"
    ),
    "node-lost": State(
        stream(pods=(pod(STREAM, deleted=ago(minutes=2)),)), "NodeLost", "Progressing", "InProgress"
    ),
    "pod-held": State(
        stream(pods=(pod(STREAM, phase="Failed", deleted=ago(seconds=5), finalizers=("example.org/keep",)),)),
        "PodTerminating",
        "Progressing",
        "InProgress",
    ),
    "reconcile-error": State(reconcile_error, "ReconcileError", "Progressing", "InProgress"),
    # It runs and does not do what it should; time may heal it.
    "no-progress": State(
        stream(report=report(progressed=ago(minutes=10), **STUCK)), "NoProgress", "Degraded", "InProgress"
    ),
    "never-reported": State(
        stream(report=None, pods=(pod(STREAM, started=ago(minutes=10)),)),
        "NoProgress",
        "Degraded",
        "InProgress",
    ),
    "executors-pending": State(
        stream(
            report=report(**STUCK, committedAt=iso(ago(minutes=5))),
            executors="pod shop-exec-1: Unschedulable: 0/3 nodes are available",
        ),
        "ExecutorsPending",
        "Progressing",
        "InProgress",
    ),
    "first-batch": State(
        stream(report=report(**STUCK, committedAt=None)), "DriverStarting", "Progressing", "InProgress"
    ),
    "run-overdue": State(new(CRON, of=CRON, workloads=(overdue(),)), "RunOverdue", "Degraded", "InProgress"),
    "sidecar-runs": State(outlived(10), "SidecarRunning", "Progressing", "InProgress"),
    "sidecar-stays": State(outlived(60), "SidecarRunning", "Degraded", "Failed"),
    "source-unreachable": State(
        reporting(
            source={"reachedAt": iso(ago(hours=1)), "lostSince": iso(ago(seconds=60)), "error": "refused"}
        ),
        "SourceUnreachable",
        "Degraded",
        "InProgress",
    ),
    "stale-figures": State(
        stream(report=report(seen=ago(seconds=90))), "StaleFigures", "Degraded", "InProgress"
    ),
    "scheduled-failed": State(
        scheduled(state="Failed", message="boom"), "RunFailed", "Degraded", "InProgress"
    ),
    # Somebody has to do something.
    "invalid": State(new(WRONG), "InvalidSpec", "Degraded", "Failed"),
    "invalid-template": State(
        new(spec(**NO_TEMPLATE)), "InvalidSpec", "Degraded", "Failed", spec=NO_TEMPLATE
    ),
    "suspended-and-invalid": State(
        new(spec(**NO_TEMPLATE, suspend=True), stated=Stated(suspend=True)),
        "InvalidSpec",
        "Degraded",
        "Failed",
        spec=NO_TEMPLATE | {"suspend": True},
    ),
    "not-supported": State(new(spec(**APACHE_CRON)), "NotSupported", "Degraded", "Failed", spec=APACHE_CRON),
    "edit-refused": State(edited(spec(**RETARGETED)), "Progressing", "Degraded", "Failed", spec=RETARGETED),
    "edit-conflicts": State(
        edited(spec(**TAKEN), rivals=(Rival("mirrors/older", Claim("target", "s3a://taken/{table}")),)),
        "Progressing",
        "Degraded",
        "Failed",
        spec=TAKEN,
    ),
    "edit-refused-by-api": State(
        edited(spec(**TOLERATIONS), obstacles=(INVALID,)),
        "Progressing",
        "Degraded",
        "Failed",
        spec=TOLERATIONS,
    ),
    "foreign-object": State(new(of=STREAM, obstacles=(FOREIGN,)), "ForeignObject", "Degraded", "Failed"),
    "foreign-object-beside": State(stream(obstacles=(FOREIGN,)), "Progressing", "Degraded", "Failed", True),
    "foreign-pod": State(new(of=STREAM, foreign_pod="shop-driver-0"), "ForeignObject", "Degraded", "Failed"),
    "refused": State(blocked("Refused", "the policy wants labels"), "Refused", "Degraded", "Failed"),
    "quota-of-objects": State(
        blocked("QuotaExceeded", "exceeded quota: few"), "QuotaExceeded", "Degraded", "Failed"
    ),
    "namespace-terminating": State(
        blocked("NamespaceTerminating", "the namespace is being deleted"),
        "NamespaceTerminating",
        "Degraded",
        "Failed",
    ),
    "pod-refused": State(
        stream(pods=(), pod_refusal="no PriorityClass with name gold was found"),
        "PodRefused",
        "Degraded",
        "Failed",
    ),
    "pod-held-for-long": State(
        stream(pods=(pod(STREAM, phase="Failed", deleted=ago(minutes=2), finalizers=("example.org/keep",)),)),
        "PodTerminating",
        "Degraded",
        "Failed",
    ),
    "workload-held": State(
        stream(
            pods=(),
            workloads=(
                replace(job(ONCE), deleting=True, deleted=ago(minutes=2), finalizers=("example.org/keep",)),
            ),
        ),
        "WorkloadTerminating",
        "Degraded",
        "Failed",
    ),
    "conflict": State(
        new(rivals=(Rival("mirrors/older", Claim("checkpoint", "s3a://lake/_checkpoints/shop")),)),
        "Conflict",
        "Degraded",
        "Failed",
    ),
    "given-up": State(given_up, "BackoffLimitExceeded", "Degraded", "Failed"),
    "run-failed": State(
        new(ONCE, of=ONCE, workloads=(job(ONCE, state="Failed", message="BackoffLimitExceeded"),)),
        "RunFailed",
        "Degraded",
        "Failed",
        spec={"trigger": {"availableNow": True}},
    ),
    "source-restarted": State(stream(report=RESTARTED), "SourceRestarted", "Degraded", "Failed"),
    "source-restarted-again": State(source_restarted_again, "DriverStarting", "Degraded", "Failed"),
    "source-lost": State(stream(report=LOST), "SourceLost", "Degraded", "Failed"),
    "source-lost-and-held": State(source_lost_and_held, "SourceLost", "Degraded", "Failed"),
    # It is being deleted: whatever its conditions say, it is on its way out.
    "deleting": State(leaving(), "Deleting", "Progressing", "Terminating", deleting=True),
    "deleting-held": State(
        leaving(
            resource={"deleted": ago(minutes=2), "finalizers": ("example.org/keep",)}, workloads=(), pods=()
        ),
        "PipelineTerminating",
        "Progressing",
        "Terminating",
        deleting=True,
    ),
    "cleanup-blocked-by-driver": State(
        leaving(resource={"deleted": ago(minutes=2)}, workloads=(), pods=(pod(CLEANED),)),
        "CleanupBlocked",
        "Progressing",
        "Terminating",
        deleting=True,
    ),
    "cleanup-blocked": State(
        leaving(workloads=(cleanup(),), pods=(), pod_refusal="exceeded quota: small"),
        "CleanupBlocked",
        "Progressing",
        "Terminating",
        deleting=True,
    ),
    "cleanup-failed": State(
        leaving(workloads=(cleanup(state="Failed", message="denied"),), pods=()),
        "CleanupFailed",
        "Progressing",
        "Terminating",
        deleting=True,
    ),
}
