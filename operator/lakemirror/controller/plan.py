"""``plan`` derives what to do from the desired and the actual state. Pure: no clock, no API, no state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from lakemirror.api import ManifestError, PipelineSpec
from lakemirror.api.spec import Restart
from lakemirror.api.status import ConditionType
from lakemirror.controller import build, health, names, observe, status, tally, workloads
from lakemirror.controller.decide import Decision, Verdict, decide
from lakemirror.controller.health import Health, case, judge
from lakemirror.controller.values import Deletion, Object, Observed, Plan, Pod, Settings, Workload

RETRY_AFTER = timedelta(seconds=30)
"""When an object that could not be applied is retried. Foreign objects are not watched."""
_CONSIDERED_SOON = timedelta(seconds=5)


def plan(
    spec: PipelineSpec | ManifestError, observed: Observed, now: datetime, settings: Settings | None = None
) -> Plan:
    """Plan what to do for one pipeline, whatever happened before.

    ``spec`` is the pipeline's spec, or what is wrong with it. The same input gives the same plan, and once a
    plan has been carried out, the next one changes nothing.
    """
    decision = decide(spec, observed, settings or Settings())
    if observed.resource.deleting:
        return _leave(decision, observed, now)
    restart = decision.spec.restart if decision.spec is not None else Restart()
    pods = workloads.drivers(observed)
    counted = tally.count(
        observed.resource.status.driver,
        decision.revision,
        pods[0] if pods else None,
        workloads.current(decision, observed),
        restart,
        now,
        observed.lost,
    )
    gathered = case(decision, observed, counted, now)
    judged = judge(gathered)
    after = status.status(gathered, judged)
    retry = _retry(observed, now)
    again = [moment for moment in (judged.again, retry) if moment is not None]
    return Plan(
        objects=tuple(workloads.objects(decision, observed)),
        deletions=tuple(workloads.deletions(decision, observed)),
        status=after,
        events=tuple(status.events(observed.resource.status, after)),
        finalizer=_has_data_to_delete(decision, observed),
        again=min(again, default=None),
        marks=tuple(workloads.marks(decision, observed)),
        urgent=tuple(workloads.urgent(decision, observed)),
        trial=tuple(workloads.trial(decision, observed)),
        steady_until=judged.steady_until if retry is None else None,
    )


def _retry(observed: Observed, now: datetime) -> datetime | None:
    if not (observed.obstacles or observed.foreign_pod):
        return None
    soon = bool(observed.obstacles) and all(o.reason == "FormerObject" for o in observed.obstacles)
    return now + (_CONSIDERED_SOON if soon else RETRY_AFTER)


def _has_data_to_delete(decision: Decision, observed: Observed) -> bool:
    """Return whether data has to be deleted with the pipeline.

    What a pipeline claims that never ran because of a conflict belongs to another pipeline.
    """
    if decision.spec is None or decision.spec.deletion_policy == "Retain" or observed.namespace_ends:
        return False
    return not decision.conflicts or observed.accepted is not None


def _leave(decision: Decision, observed: Observed, now: datetime) -> Plan:
    """Plan for a pipeline that is being deleted.

    Without our finalizer, Kubernetes deletes what the pipeline owns. With it, first the driver goes, then a
    Job deletes the data, then the finalizer goes. The data stays if any of it belongs to another pipeline.
    """
    ending = Health("False", "Deleting", "the pipeline is being deleted", "Pending", reconciling=True)
    held = names.FINALIZER in observed.resource.finalizers
    cleans = _has_data_to_delete(decision, observed) and not decision.conflicts
    if not held or not cleans or _cannot_clean(observed):
        return _let_go(decision, observed, now, ending)
    running = workloads.drivers(observed)
    driving = [w for w in observed.workloads if w.name != names.cleanup(observed.resource.name)]
    if running or driving:
        gone = tuple(workloads.deletion(w) for w in driving if not w.deleting)
        namespace = observed.resource.namespace
        slow = next(
            filter(
                None,
                (
                    *(health.ending(pod, namespace, now) for pod in observed.pods),
                    health.held_back(driving, namespace, now),
                ),
            ),
            None,
        )
        left_over = _left_over(observed, running) if not driving else ""
        if left_over and _long_deleted(observed, now):
            slow = Health("False", "CleanupBlocked", _keep(left_over), "Failed", stalled=True)
        said = _kept(slow) if slow is not None else ending
        left = _leaving(decision, observed, now, said, deletions=gone)
        return replace(left, again=left.again or now + health.LEAVING_TOO_LONG)
    job = next((w for w in observed.workloads if w.name == names.cleanup(observed.resource.name)), None)
    if job is not None and job.state == "Succeeded":
        return _let_go(decision, observed, now, ending)
    if job is not None and job.revision != decision.revision:  # an edit may have removed the cause
        gone = () if job.deleting else (workloads.deletion(job),)
        return _leaving(decision, observed, now, ending, deletions=gone)
    if job is not None and job.state == "Failed":
        return _leaving(decision, observed, now, _cleanup_failed(job))
    app = workloads.application(decision, observed)
    objects = (*build.foundations(app), *((build.cleanup(app),) if job is None else ()))
    blocked = _cleanup_problem(observed) or _runs_on(observed, now)
    if blocked:
        ending = Health("False", "CleanupBlocked", _keep(blocked), "Failed", stalled=True)
    left = _leaving(decision, observed, now, ending, objects=objects)
    return replace(left, again=left.again or now + health.LEAVING_TOO_LONG)


def _long_deleted(observed: Observed, now: datetime) -> bool:
    deleted = observed.resource.deleted
    return deleted is not None and now >= deleted + health.LEAVING_TOO_LONG


def _left_over(observed: Observed, running: Sequence[Pod]) -> str:
    """Return which driver runs on though nothing of the pipeline manages it; empty if it is ending."""
    pod = next((pod for pod in running if pod.deleted is None), None)
    if pod is None:
        return ""
    name, namespace = names.driver(observed.resource.name), observed.resource.namespace
    return (
        f"driver pod {pod.name} runs on, but its workload does not belong to this pipeline any more, as "
        "after kubectl delete --cascade=orphan. To end it: kubectl delete statefulset,cronjob "
        f"{name} -n {namespace} --ignore-not-found, and kubectl delete pod {pod.name} -n {namespace} if it "
        "is still there then"
    )


def _let_go(decision: Decision, observed: Observed, now: datetime, ending: Health) -> Plan:
    """Plan to remove our finalizer. What others keep by theirs, they are told to let go after a minute."""
    resource = observed.resource
    slow = health.kept_by_others(resource, now) or health.held_back(
        observed.workloads, resource.namespace, now
    )
    left = _leaving(decision, observed, now, _kept(slow) if slow else ending, finalizer=False)
    return replace(left, again=left.again or now + health.LEAVING_TOO_LONG)


def _runs_on(observed: Observed, now: datetime) -> str:
    """Return which containers keep the Job from its end, a minute after the data was deleted."""
    for pod in observed.pods:
        done = pod.ending if pod.component == "cleanup" and pod.started is None else None
        if done is None or done.code != 0 or not pod.beside or pod.ended:
            continue
        if done.at is not None and now >= done.at + health.LEAVING_TOO_LONG:
            return (
                f"pod {pod.name} has done its work, but {', '.join(pod.beside)} runs on in it. Have that "
                "container end with the driver, make it a sidecar (an init container with restartPolicy: "
                f"Always), or end it by hand: kubectl delete pod {pod.name} -n {observed.resource.namespace}"
            )
    return ""


def _cleanup_problem(observed: Observed) -> str:
    """Return why the data cannot be deleted for now, as reported by Kubernetes; empty if nothing is known."""
    job = names.cleanup(observed.resource.name)
    if observed.obstacles:
        return observed.obstacles[0].message
    if observed.pod_refusal:
        return f"the pod of job {job} cannot be created: {observed.pod_refusal}"
    pod = next((p for p in observed.pods if p.component == "cleanup" and p.started is None), None)
    if pod is None or pod.ended:
        return ""
    if observed.mount_problem:
        return f"pod {pod.name} cannot start: {observed.mount_problem}"
    if pod.waiting in observe.STARTING:
        return ""
    return f"pod {pod.name} cannot start: {pod.waiting}: {pod.message}"


def _keep(problem: str) -> str:
    return (
        f"the data cannot be deleted: {problem.rstrip('.')}. This goes on by itself once the cause is gone. "
        "To leave the data where it is and let the pipeline go, set spec.deletionPolicy: Retain"
    )


def _kept(slow: Health) -> Health:
    """Return the health of a pipeline that is kept because its driver does not end. Someone has to act."""
    return replace(slow, phase="Failed", reconciling=not slow.stalled)


def _cannot_clean(observed: Observed) -> bool:
    """Return whether the namespace is being deleted, too. Then no Job can be created and the data stays."""
    return any(obstacle.reason == "NamespaceTerminating" for obstacle in observed.obstacles)


def _cleanup_failed(job: Workload) -> Health:
    message = (
        f"job {job.name} could not delete the data: {job.message}. Delete the job to try again, or set "
        "spec.deletionPolicy: Retain to leave the data where it is"
    )
    return Health("False", "CleanupFailed", message, "Failed", stalled=True)


def _leaving(
    decision: Decision,
    observed: Observed,
    now: datetime,
    said: Health,
    *,
    objects: tuple[Object, ...] = (),
    deletions: tuple[Deletion, ...] = (),
    finalizer: bool = True,
) -> Plan:
    verdict = Verdict(said.reason, said.message)
    mark: ConditionType = "Stalled" if said.stalled else "Reconciling"
    wanted: list[tuple[ConditionType, str, Verdict]] = [
        ("Ready", said.ready, verdict),
        (mark, "True", verdict),
    ]
    conditions = list(status.conditions_of(observed.resource, wanted, now))
    before = observed.resource.status
    after = before.model_copy(
        update={
            "observed_generation": observed.resource.generation,
            "phase": said.phase,
            "reason": said.reason,
            "conditions": conditions,
        }
    )
    again = _retry(observed, now)
    events = tuple(status.events(before, after))
    return Plan(objects, deletions, after, events, finalizer, again, trial=objects)
