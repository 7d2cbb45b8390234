"""Judges the health of a pipeline with a chain of checks, of which the first that applies decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from croniter import croniter

from lakemirror.api import duration_seconds
from lakemirror.api import report as api
from lakemirror.api.status import Phase
from lakemirror.controller import causes, names, observe, workloads
from lakemirror.controller.decide import Decision, Verdict
from lakemirror.controller.tally import Tally
from lakemirror.controller.times import iso, moment
from lakemirror.controller.values import Ending, Observed, Pod, Report, Resource, Workload

REPORT_PERIOD = timedelta(seconds=30)
"""The driver renews its report at least this often."""
STALE_AFTER = 3 * REPORT_PERIOD
SOURCE_GRACE = timedelta(seconds=60)
"""How long a source may be unreachable before Ready says so."""
STARTING_DEADLINE = timedelta(seconds=600)
"""``startingDeadlineSeconds`` of the CronJob."""
_CLOCKS_DIFFER = timedelta(seconds=10)
_COMPARED = 512
"""How much of two messages has to be the same. Both may have been cut at their ends."""
LEAVING_TOO_LONG = timedelta(seconds=60)
"""If a pod still exists this long after it should be gone, its node is lost."""


@dataclass(frozen=True)
class Case:
    """Everything that the checks look at, gathered once. ``report`` is that of the running driver, if any."""

    observed: Observed
    decision: Decision
    tally: Tally
    now: datetime
    pod: Pod | None
    workload: Workload | None
    report: Report | None

    @property
    def started(self) -> datetime:
        return (self.pod.started if self.pod is not None else None) or self.now

    @property
    def deadline(self) -> timedelta:
        """How long a batch may be waited for. One that begins seldom is not late before it begins."""
        spec = self.decision.spec
        assert spec is not None
        deadline = timedelta(seconds=duration_seconds(spec.progress_deadline))
        interval = timedelta(seconds=duration_seconds(spec.trigger.interval or "0s"))
        return deadline + interval if 2 * interval > deadline else deadline


@dataclass(frozen=True)
class Health:
    """The phase, and what ``Ready`` says.

    ``again``: when time alone may change it. ``steady_until``: when it may change even though the driver
    renews its report. None means unknown.
    """

    ready: Literal["True", "False", "Unknown"]
    reason: str
    message: str
    phase: Phase
    reconciling: bool = False
    stalled: bool = False
    again: datetime | None = None
    steady_until: datetime | None = None


def case(decision: Decision, observed: Observed, tally: Tally, now: datetime) -> Case:
    """Gather what the checks look at."""
    pods = workloads.drivers(observed)
    pod = pods[0] if pods else None
    return Case(
        observed,
        decision,
        tally,
        now,
        pod,
        workloads.current(decision, observed),
        current_report(observed, pod),
    )


def current_report(observed: Observed, pod: Pod | None) -> Report | None:
    """Return the report if the running driver made it, and not an earlier one.

    That is: this pod, this start of its container and this revision. Times are compared only if a driver does
    not name its pod, because the clocks of its node and of an earlier driver's node may differ.
    """
    report = observed.report
    if report is None or pod is None or pod.started is None:
        return None
    said, by = report.said, report.by
    if said.pod not in (None, pod.uid) or (said.revision or pod.revision) != pod.revision:
        return None
    if by is not None and (by.pod, by.exits) != (pod.uid, pod.exits):
        return None
    if by is not None and said.pod is not None:
        return report
    made, began = moment(said.observed_at), moment(said.started_at)
    if by is None and began is not None and began + _CLOCKS_DIFFER < pod.started:
        return None
    return report if made is not None and made >= pod.started else None


def is_of_revision(observed: Observed, revision: str) -> bool:
    """Return whether a driver of this revision made the report."""
    report, ran = observed.report, observed.resource.status.driver
    if report is None:
        return False
    known = report.said.revision or (report.by.revision if report.by is not None else None)
    return revision == (known or (ran.revision if ran is not None else None))


def committed(report: Report, pod: Pod | None) -> bool:
    """Return whether this run of the driver has committed a batch, or has nothing that it can apply."""
    said = report.said
    if said.caught_up or not _lags(report) or said.batches or said.waiting:
        return True
    if "batches" in said.model_fields_set:
        return False
    at, since = moment(said.committed_at), moment(said.started_at) or (pod.started if pod else None)
    return at is not None and (since is None or at >= since)


def judge(case: Case) -> Health:
    """Return the verdict of the first check that applies."""
    for check in CHECKS:
        health = check(case)
        if health is not None:
            return health
    raise AssertionError("the last check always applies")


Check = Callable[[Case], Health | None]


def nothing_to_run(case: Case) -> Health | None:
    refusal = case.decision.refusal
    if case.decision.spec is not None or refusal is None:
        return None
    if case.observed.resource.stated.suspend and case.observed.accepted is None:
        stopped = "spec.suspend is true: no driver runs"
        if case.observed.workloads or case.pod is not None:
            stopped = "spec.suspend is true: the driver is being stopped"
        message = f"{refusal.message.rstrip('.')}. {stopped}"
        return Health("False", refusal.reason, message, "Failed", stalled=True)
    return Health("False", refusal.reason, refusal.message, "Failed", stalled=True)


def held(case: Case) -> Health | None:
    hold = case.decision.hold
    if hold is None:
        return None
    if hold.reason == "Suspended":
        if case.pod is not None:
            return ending(case.pod, case.observed.resource.namespace, case.now) or Health(
                "False",
                "Suspended",
                f"waiting for driver pod {case.pod.name} to end",
                "Suspended",
                reconciling=True,
            )
        # Like Flux's own resources, which stay ready while suspended: the desired state is reached.
        return Health("True", "Suspended", hold.message, "Suspended")
    return Health("False", hold.reason, hold.message, "Failed", stalled=True)


def completed(case: Case) -> Health | None:
    workload = case.workload
    done = workload is not None and workload.kind != "CronJob" and workload.state == "Succeeded"
    if done or (workload is None and workloads.already_completed(case.decision, case.observed)):
        return Health("True", "Completed", "everything that was there has been applied", "Completed")
    return None


def source_stopped(case: Case) -> Health | None:
    """The source stopped the driver for a reason that a restart does not change.

    `decide` therefore keeps the driver away as long as Ready says so.
    """
    report = case.observed.report
    verdict = _stop_of(report.said) if report is not None else None
    if verdict is None or not _ended_with(case, verdict.message):
        return None
    return Health("False", verdict.reason, verdict.message, "Failed", stalled=True)


def _stop_of(said: api.Report) -> Verdict | None:
    if said.source_restarted:
        return Verdict("SourceRestarted", said.source_restarted)
    return Verdict("SourceLost", said.source_lost) if said.source_lost else None


def _ended_with(case: Case, message: str) -> bool:
    """Return whether what the last report says ended a driver of the current revision.

    If a driver runs, the report must be its own. Otherwise, a pod must have ended with the same message.
    """
    revision = case.decision.revision
    if case.pod is not None and case.pod.started is not None:
        return case.report is not None and case.pod.revision == revision
    begins = message[:_COMPARED]
    return any(
        begins in pod.ending.message
        for pod in case.observed.pods
        if pod.component == "driver" and pod.revision == revision and pod.ending is not None
    )


def run_failed(case: Case) -> Health | None:
    workload = case.workload
    if workload is None or workload.state != "Failed":
        return None
    last = case.tally.last
    why = (last.message if last is not None else None) or workload.message or "see the driver's log"
    return Health("False", "RunFailed", why, "Failed", stalled=True)


def scheduled(case: Case) -> Health | None:
    """Between two runs of a schedule, the last run counts. A run that goes on is judged like any other."""
    if case.workload is None or case.workload.kind != "CronJob" or case.pod is not None:
        return None
    last = _run(case)
    if last is not None and last.state == "Active" and not last.deleting:
        return None
    if last is not None and last.state == "Failed":
        return Health("False", "RunFailed", f"run {last.name} failed: {last.message}", "Failed")
    late = _overdue_at(case.workload, last)
    if late is not None and case.now >= late:
        return Health(
            "False",
            "RunOverdue",
            f"no run has begun since {iso(case.workload.due_since or late)}, although one was due by "
            f"{iso(late - STARTING_DEADLINE)} ({case.workload.schedule}). Look at CronJob "
            f"{case.workload.name} and at the controller manager",
            "Pending",
        )
    if last is not None and last.state == "Succeeded":
        return Health(
            "True", "Completed", "the last run applied everything that was there", "Completed", again=late
        )
    return Health("True", "Scheduled", "waiting for the schedule", "Pending", again=late)


def _overdue_at(schedule: Workload, last: Workload | None) -> datetime | None:
    """Return when the next run of a schedule is overdue; None if that is not known.

    It is due after the last one has begun and ended, and after the schedule was changed. Kubernetes gives up
    a run that it could not start for ``startingDeadlineSeconds``.
    """
    times = [schedule.due_since, last.due_since if last is not None else None]
    since = max((time for time in times if time is not None), default=None)
    if since is None or not schedule.schedule:
        return None
    due: datetime = croniter(schedule.schedule, since).get_next(datetime)
    return due + STARTING_DEADLINE


def _run(case: Case) -> Workload | None:
    """Return the Job of the newest run, of a pipeline whose runs end by themselves."""
    if case.workload is None or case.workload.kind != "CronJob":
        return case.workload if case.workload is not None and case.workload.kind == "Job" else None
    runs = [w for w in case.observed.workloads if w.scheduled]
    return max(runs, key=lambda w: w.created or case.now, default=None)


def foreign(case: Case) -> Health | None:
    """Someone else's pod has the name that the driver's pod needs."""
    if not case.observed.foreign_pod or case.pod is not None:
        return None
    pod = case.observed.foreign_pod
    message = f"Pod {pod} already exists and does not belong to Lakemirror: delete or rename it"
    return Health("False", "ForeignObject", message, "Failed", stalled=True)


def obstructed(case: Case) -> Health | None:
    if case.pod is not None or not case.observed.obstacles:
        return None
    obstacle = case.observed.obstacles[0]
    waiting = obstacle.reason == "FormerObject"
    phase: Phase = "Pending" if waiting else "Failed"
    return Health("False", obstacle.reason, obstacle.message, phase, reconciling=waiting, stalled=not waiting)


def leaving(case: Case) -> Health | None:
    """The driver's pod is being deleted, or it has ended and still occupies its name."""
    held = [p for p in case.observed.pods if p.component == "driver" and p.ended and p.finalizers]
    blocked = held_back(case.observed.workloads, case.observed.resource.namespace, case.now)
    if blocked is not None:
        return blocked
    pod = case.pod or next(iter(held), None)
    if pod is None:
        return None
    found = ending(pod, case.observed.resource.namespace, case.now)
    if found is None and pod.deleted is not None:
        return Health(
            "False",
            "Restarting",
            f"driver pod {pod.name} is ending" + (f": {pod.reason}: {pod.message}" if pod.reason else ""),
            "Starting",
            reconciling=True,
            again=pod.deleted + LEAVING_TOO_LONG,
        )
    return found


_NO_FINALIZERS = '{"metadata":{"finalizers":null}}'


def held_back(workloads: Iterable[Workload], namespace: str, now: datetime) -> Health | None:
    """Return which workload others keep, by a finalizer, for a minute after its deletion."""
    for each in workloads:
        others = _of_others(each.finalizers)
        if each.deleted is None or not others or now < each.deleted + LEAVING_TOO_LONG:
            continue
        message = _kept_by(others, f"{each.kind} {each.name}", f"{_resource(each)} {each.name}", namespace)
        return Health("False", "WorkloadTerminating", message, "Starting", stalled=True)
    return None


def kept_by_others(resource: Resource, now: datetime) -> Health | None:
    """Return who keeps the pipeline itself, by a finalizer, for a minute after its deletion."""
    others = _of_others(resource.finalizers)
    if resource.deleted is None or not others or now < resource.deleted + LEAVING_TOO_LONG:
        return None
    message = _kept_by(others, "the pipeline", f"cdcpipeline {resource.name}", resource.namespace)
    return Health("False", "PipelineTerminating", message, "Failed", stalled=True)


def _of_others(finalizers: Iterable[str]) -> list[str]:
    return [name for name in finalizers if name not in (*_OF_KUBERNETES, names.FINALIZER)]


def _kept_by(finalizers: Iterable[str], what: str, argument: str, namespace: str) -> str:
    return (
        f"{what} is deleted, but cannot go before its finalizers are removed: {', '.join(finalizers)}. They "
        "belong to whoever set them; to remove them by hand: kubectl patch "
        f"{argument} -n {namespace} --type=merge -p '{_NO_FINALIZERS}'"
    )


_OF_KUBERNETES = ("foregroundDeletion", "orphan", "batch.kubernetes.io/job-tracking")
"""Finalizers that Kubernetes removes itself."""


def _resource(workload: Workload) -> str:
    group = workload.api_version.rpartition("/")[0]
    return (
        f"{workload.kind.lower()}.{group}" if workload.kind == "SparkApplication" else workload.kind.lower()
    )


def ending(pod: Pod, namespace: str, now: datetime) -> Health | None:
    """Return why a pod that is being deleted remains: finalizers hold it, or its node may be lost."""
    if pod.deleted is None:
        return None
    lost = pod.deleted + LEAVING_TOO_LONG
    if pod.ended and pod.finalizers:
        message = (
            f"pod {pod.name} has ended, but cannot go before its finalizers are removed: "
            f"{', '.join(pod.finalizers)}. They belong to whoever set them; to remove them by hand: "
            f"kubectl patch pod {pod.name} -n {namespace} --type=merge -p '{_NO_FINALIZERS}'"
        )
        return Health("False", "PodTerminating", message, "Starting", reconciling=True, stalled=now >= lost)
    if now >= lost:
        return Health(
            "False",
            "NodeLost",
            f"driver pod {pod.name} should have ended, but node {pod.node} has not confirmed it. If the "
            f"node is gone, `kubectl delete pod {pod.name} --force -n {namespace}` is safe: a driver that "
            "still writes is stopped by the checkpoint's owner record",
            "Starting",
            reconciling=True,
        )
    return None


def outlived(case: Case) -> Health | None:
    """The driver of a run has ended, but other containers of its pod run on, and the run does not end."""
    pod = case.pod
    if pod is None or not pod.outlived_by or pod.ending is None:
        return None
    return sidecars(pod, case.observed.resource.namespace, case.now)


def sidecars(pod: Pod, namespace: str, now: datetime) -> Health:
    """Return the health of a pipeline whose pod is kept from ending by ``outlived_by``."""
    ending = pod.ending
    assert ending is not None
    late = (ending.at or now) + LEAVING_TOO_LONG
    listed, several = ", ".join(pod.outlived_by), len(pod.outlived_by) > 1
    container = f"containers {listed} run on" if several else f"container {listed} runs on"
    message = (
        f"the driver of pod {pod.name} has ended with {causes.exit_code(ending.code)}, but {container}, so "
        "the pod does not end and Kubernetes does not count the run as over. Let the injector leave these "
        'pods out (for Istio, the label sidecar.istio.io/inject: "false" in spec.spark.podTemplate), or make '
        "it inject native sidecars, which end with the pod (init containers with restartPolicy: Always). A "
        "change of the spec then ends this run. Without one, repeat the run: "
        f"kubectl delete pod {pod.name} -n {namespace}"
    )
    over = now >= late
    return Health(
        "False",
        "SidecarRunning",
        message,
        "Failed" if over else "Running",
        reconciling=not over,
        stalled=over,
        again=None if over else late,
    )


def unreachable(case: Case) -> Health | None:
    if case.pod is None or not case.pod.unreachable:
        return None
    return Health(
        "Unknown",
        "NodeLost",
        f"node {case.pod.node} of driver pod {case.pod.name} does not answer",
        "Running",
        reconciling=True,
    )


def outdated(case: Case) -> Health | None:
    if case.pod is None or case.pod.revision == case.decision.revision:
        return None
    if case.workload is not None and case.workload.kind == "CronJob":
        return None  # a run in progress continues as it started
    image = case.decision.image
    new = "a new spec" if case.pod.image in (None, image) else f"image {image}"
    message = f"driver pod {case.pod.name} is being restarted with {new}"
    return Health("False", "Restarting", message, "Starting", reconciling=True)


def no_pod(case: Case) -> Health | None:
    if case.pod is not None:
        return None
    if case.observed.pod_refusal:
        full = "exceeded quota" in case.observed.pod_refusal
        reason = "QuotaExceeded" if full else "PodRefused"
        message = f"the driver's pod cannot be created: {case.observed.pod_refusal}"
        return Health("False", reason, message, "Pending", reconciling=full, stalled=not full)
    if case.observed.lost is not None:
        return _replaced(case, case.observed.lost)
    run = _run(case)
    if run is not None and run.failures:
        message = f"the run failed and is repeated{_why_failed(case, run)}"
        return Health("False", "DriverFailed", message, "Starting", reconciling=True)
    former = workloads.former_drivers(case.decision, case.observed) if case.workload is None else []
    message = f"waiting for {', '.join(former)} to be gone" if former else "waiting for the driver's pod"
    if case.workload is not None and case.workload.message:
        message = case.workload.message
    return Health("False", "DriverPending", message, "Pending", reconciling=True)


def _why_failed(case: Case, run: Workload) -> str:
    """Return why the last pod of the run failed, as the end of a message; empty if no pod tells."""
    begun = run.created or case.now
    failed = [
        (pod.ending.at, causes.why(pod.ending, pod.memory_limit))
        for pod in case.observed.pods
        if pod.component == "driver" and pod.phase == "Failed" and pod.ending is not None
        # Pods of an earlier run may still be there.
        if pod.ending.code != 0 and pod.ending.at is not None and pod.ending.at >= begun
    ]
    return f": {max(failed)[1]}" if failed else ""


def waiting(case: Case) -> Health | None:
    """The pod exists, but its container cannot start, or has ended and is being restarted."""
    pod = case.pod
    if pod is None or pod.started is not None:
        return None
    if case.observed.mount_problem:
        reason = "SecretMissing" if "secret" in case.observed.mount_problem.lower() else "VolumeMissing"
        return Health("False", reason, case.observed.mount_problem, "Pending", reconciling=True)
    if pod.exits and pod.waiting in (*observe.STARTING, "CrashLoopBackOff"):
        if pod.ending is not None and pod.ending.code == 0:  # because a Secret or ConfigMap has changed
            message = "the driver has ended without a failure and is being started again"
            return Health("False", "Restarting", message, "Starting", reconciling=True)
        last = case.tally.last
        why = f": {last.message}" if last is not None and last.message else ""
        message = f"the driver failed and is being restarted{why}"
        reason = "OOMKilled" if last is not None and last.reason == "OOMKilled" else _reason_of(case, why)
        return Health("False", reason, message, "Starting", reconciling=True)
    if pod.waiting not in observe.STARTING:
        missing = pod.waiting == "CreateContainerConfigError" and 'secret "' in pod.message
        reason = "SecretMissing" if missing else pod.waiting
        message = pod.message or f"the driver's container cannot start: {pod.waiting}"
        return Health("False", reason, message, "Pending", reconciling=True)
    if case.observed.lost is not None:
        return _replaced(case, case.observed.lost)
    before = case.observed.resource.status.condition("Ready")
    if before is not None and before.reason in _REPLACED:
        return Health("False", before.reason, before.message, "Pending", reconciling=True)
    return Health("False", "DriverPending", "the driver's pod is starting", "Pending", reconciling=True)


_REPLACED = ("Evicted", "Preempted", "TaintManagerEviction")
"""Reasons why a pod had to go; reported until its successor runs."""


def _replaced(case: Case, lost: Ending) -> Health:
    message = f"the driver's pod was removed and is being replaced: {lost.reason}: {lost.message}"
    return Health("False", lost.reason, message, "Pending", reconciling=True)


def unreached(case: Case) -> Health | None:
    """The source has not been reached by this run yet, or has been lost for longer than the grace period."""
    late = _out_of_reach_at(case)
    if late is None:
        return None
    assert case.report is not None
    source = case.report.said.source
    assert source is not None
    if case.now >= late:
        why = source.error or "it does not answer"
        message = f"the source cannot be reached: {why}. The driver continues to try"
        again = case.report.seen + STALE_AFTER
        return Health("False", "SourceUnreachable", message, "Running", again=again)
    if source.reached_at is not None:
        return None
    message = "the driver is connecting to the source" + (f": {source.error}" if source.error else "")
    return Health("False", "SourceConnecting", message, "Starting", reconciling=True, again=late)


def _out_of_reach_at(case: Case) -> datetime | None:
    """Return when the grace period of an unreachable source ends, or None while the source is reachable.

    How long it has been unreachable comes from the driver's report, by the driver's clock alone.
    """
    report = case.report
    source = report.said.source if report is not None else None
    if report is None or source is None or (source.reached_at is not None and source.lost_since is None):
        return None
    since = moment(source.lost_since if source.reached_at is not None else report.said.started_at)
    until = moment(report.said.observed_at)
    lasted = until - since if since is not None and until is not None else timedelta()
    return report.seen - lasted + SOURCE_GRACE


def _reason_of(case: Case, message: str) -> str:
    """Return why the driver failed.

    The reason is SourceUnreachable if the last report is about this failure and says that the source is lost.
    """
    said = case.observed.report.said if case.observed.report is not None else None
    if said is None or said.source is None or said.source.lost_since is None:
        return "DriverFailed"
    return "SourceUnreachable" if said.failure and said.failure in message else "DriverFailed"


def starting(case: Case) -> Health | None:
    report = case.report
    if report is not None and report.said.phase != "Starting":
        return None
    late = case.started + case.deadline
    if case.now >= late:
        return Health(
            "False", "NoProgress", "the driver is running but has not applied anything yet", "Running"
        )
    again = late if report is None else min(late, report.seen + STALE_AFTER)
    return Health(
        "False", "DriverStarting", "the driver is starting", "Starting", reconciling=True, again=again
    )


def stale(case: Case) -> Health | None:
    """Old figures mean nothing. They stay old, even for an operator that has only just seen them."""
    if case.report is None:
        return None
    old = case.report.seen + STALE_AFTER
    status = case.observed.resource.status
    ready = status.condition("Ready")
    known = ready is not None and ready.reason == "StaleFigures"
    same = status.checkpoint is not None and status.checkpoint.observed_at == case.report.said.observed_at
    if case.now >= old or (known and same):
        return Health("Unknown", "StaleFigures", "the driver has not reported for a while", "Running")
    return None


def failing(case: Case) -> Health | None:
    if case.report is None or case.report.said.phase != "Failed":
        return None
    message = case.report.said.failure or "the driver failed"
    return Health("False", _reason_of(case, message), message, "Starting", reconciling=True)


def not_progressing(case: Case) -> Health | None:
    """There is lag but no batch for too long. The verdict holds until one comes, even for a new operator."""
    assert case.report is not None
    if case.report.said.caught_up or not _lags(case.report):
        return None
    late = case.report.progressed + case.deadline
    status = case.observed.resource.status
    ready = status.condition("Ready")
    known = ready is not None and ready.reason == "NoProgress"
    same = status.checkpoint is not None and status.checkpoint.committed_at == case.report.said.committed_at
    if case.now < late and not (known and same):
        return None
    seconds = case.deadline.total_seconds()
    return Health(
        "False",
        "NoProgress",
        f"records are waiting in the source, but no batch was committed for {seconds:.0f} s"
        f"{_because_of_executors(case)}{_because_of_files(case.report)}",
        "Running",
        again=case.report.seen + STALE_AFTER,
    )


def _because_of_executors(case: Case) -> str:
    return f": executors cannot start: {case.observed.executors}" if case.observed.executors else ""


def _because_of_files(report: Report) -> str:
    waiting = report.said.waiting
    return f": these files cannot be read: {'; '.join(waiting)}" if waiting else ""


def first_batch(case: Case) -> Health | None:
    """There is lag, and this run has not shown yet that it can commit a batch."""
    assert case.report is not None
    if committed(case.report, case.pod):
        return None
    spec, problem = case.decision.spec, _because_of_executors(case)
    once = spec is not None and spec.trigger.available_now and spec.trigger.schedule is None
    if once and not problem:
        return None
    return Health(
        "False",
        "ExecutorsPending" if problem else "DriverStarting",
        f"the driver has reached the source and has not committed a batch yet{problem}",
        "Starting",
        reconciling=True,
        again=min(case.report.progressed + case.deadline, case.report.seen + STALE_AFTER),
    )


def progressing(case: Case) -> Health | None:
    assert case.report is not None
    moments = [datetime.max.replace(tzinfo=UTC)]
    if _lags(case.report):
        moments.append(case.report.progressed + case.deadline)
    if case.tally.forgiven_at is not None:
        moments.append(case.tally.forgiven_at)
    if (late := _out_of_reach_at(case)) is not None:
        moments.append(late)
    steady = min(moments)
    again = min(steady, case.report.seen + STALE_AFTER)
    spec = case.decision.spec
    if spec is not None and spec.trigger.available_now and spec.trigger.schedule is None:
        # Users wait for Ready, which here means the end of the run.
        message = (
            "the run is under way; the pipeline is ready when everything that was there has been applied"
        )
        return Health(
            "False", "Running", message, "Running", reconciling=True, again=again, steady_until=steady
        )
    caught_up = bool(case.report.said.caught_up)
    message = "everything that the source has is applied" if caught_up else "the driver is applying batches"
    message += _because_of_files(case.report)
    return Health("True", "Progressing", message, "Running", again=again, steady_until=steady)


def _lags(report: Report) -> bool:
    return not report.said.caught_up and report.said.lag_records != 0


CHECKS: tuple[Check, ...] = (
    nothing_to_run,
    held,
    completed,
    source_stopped,
    run_failed,
    scheduled,
    foreign,
    obstructed,
    leaving,
    outlived,
    unreachable,
    outdated,
    no_pod,
    waiting,
    failing,
    stale,
    unreached,
    starting,
    not_progressing,
    first_batch,
    progressing,
)
