"""Decides which objects must exist and which must go, so that one driver of one revision runs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from lakemirror.controller import build, names, rollout
from lakemirror.controller.build import Application
from lakemirror.controller.decide import Decision
from lakemirror.controller.values import Deletion, Kind, Object, Observed, Pod, Workload


def application(decision: Decision, observed: Observed) -> Application:
    """Return the input from which the pipeline's objects are built."""
    assert decision.spec is not None
    resource = observed.resource
    revisions = _revisions(observed) - {decision.revision}
    kept = {k: v for k, v in observed.config.items() if k.partition(".")[0].partition("-")[0] in revisions}
    return Application(
        resource.namespace,
        resource.name,
        decision.spec,
        decision.revision,
        decision.image,
        uid=resource.uid,
        held=decision.hold is not None,
        kept=kept,
        moved=_moved(decision, observed),
    )


def _revisions(observed: Observed) -> set[str]:
    """Return the revisions that pods mount, or will: a workload may be without a pod between two attempts."""
    found = {pod.revision for pod in observed.pods}
    found |= {w.revision for w in observed.workloads if w.state not in ("Succeeded", "Failed")}
    return {revision for revision in found if revision is not None}


def _moved(decision: Decision, observed: Observed) -> str:
    """Return what the config keeps until the driver is Ready on the image to which it was moved."""
    turn = observed.turn
    if turn is None or turn.moved is None or decision.image != turn.image:
        return ""
    return json.dumps(rollout.document(turn.moved), sort_keys=True)


def objects(decision: Decision, observed: Observed) -> list[Object]:
    """Return the objects to apply."""
    if decision.spec is None:
        return []
    if decision.conflicts and observed.accepted is None:
        return []  # it has nothing yet, and is not bound to a spec that never ran
    app = application(decision, observed)
    due = [build.workload(app)] if _workload_is_due(decision, observed) else []
    return [*build.foundations(app), *due]


def urgent(decision: Decision, observed: Observed) -> list[Object]:
    """Return the object that stops a driver that must not run. It depends on no other object."""
    there = current(decision, observed)
    if decision.hold is None or there is None or there.former:
        return []
    if there.kind not in ("StatefulSet", "CronJob"):
        return []
    return [build.workload(application(decision, observed))]


def trial(decision: Decision, observed: Observed) -> list[Object]:
    """Return what the API server must find valid before any of it is applied.

    This includes a workload that still has to wait.
    """
    found = objects(decision, observed)
    if not found or decision.spec is None or already_completed(decision, observed):
        return found
    workload = build.workload(application(decision, observed))
    name = workload["metadata"]["name"]
    if any(w.name == name and (w.deleting or w.former) for w in observed.workloads):
        return found  # it would be checked as a change of the one that must go first
    return found if workload in found else [*found, workload]


def _workload_is_due(decision: Decision, observed: Observed) -> bool:
    """Return whether the workload has to be applied now. Jobs and SparkApplications are never changed."""
    there = current(decision, observed)
    if there is None and (observed.foreign_pod or former_drivers(decision, observed)):
        return False
    if there is not None and there.former:
        return False
    if kind(decision) in ("StatefulSet", "CronJob"):
        return True
    return there is None and decision.hold is None and not already_completed(decision, observed)


def deletions(decision: Decision, observed: Observed) -> list[Deletion]:
    """Return what to delete: workloads of another kind or revision, and a pod that runs another revision."""
    if decision.spec is None:
        return _stopped(observed)
    gone = [deletion(w) for w in _unwanted(decision, observed) if not w.deleting]
    there = current(decision, observed)
    if there is not None and there.former:
        # Its pods stay, and its successor adopts them.
        return gone if marks(decision, observed) else [*gone, replace(deletion(there), orphan=True)]
    if (
        there is not None
        and there.kind == "StatefulSet"
        and there.settled
        and there.revision == decision.revision
    ):
        outdated = [p for p in drivers(observed) if p.revision != decision.revision and p.deleted is None]
        gone += [Deletion("v1", "Pod", pod.name, pod.uid) for pod in outdated]
    return gone


def _stopped(observed: Observed) -> list[Deletion]:
    """Return the deletions that stop a driver of which no spec can be read, if the newest spec says so."""
    if not observed.resource.stated.suspend:
        return []
    cleanup = names.cleanup(observed.resource.name)
    return [deletion(w) for w in observed.workloads if not w.deleting and w.name != cleanup]


def marks(decision: Decision, observed: Observed) -> list[Pod]:
    """Return unlabeled pods of an earlier version's StatefulSet. Its successor selects pods by the label."""
    there = current(decision, observed)
    if there is None or not there.former:
        return []
    return [pod for pod in drivers(observed) if not pod.marked]


def _unwanted(decision: Decision, observed: Observed) -> Iterator[Workload]:
    wanted = kind(decision)
    there = current(decision, observed)
    for workload in observed.workloads:
        ended = workload.state in ("Succeeded", "Failed")
        if workload.name == names.cleanup(observed.resource.name):
            continue
        if workload.scheduled:
            stops = (
                wanted != "CronJob" or decision.hold is not None or _is_kept_up(workload, decision, observed)
            )
            if not ended and stops:
                yield workload
        elif workload != there:
            yield workload
        elif wanted == "SparkApplication" and workload.state == "Succeeded" and _streams(decision):
            yield workload  # it ended only to be started again
        elif wanted in ("Job", "SparkApplication") and decision.hold is not None and not ended:
            yield workload


def _is_kept_up(run: Workload, decision: Decision, observed: Observed) -> bool:
    """Return whether only other containers keep up a run of a former spec, and with it the whole schedule."""
    former = run.revision is not None and run.revision != decision.revision
    return former and any(pod.outlived_by and pod.revision == run.revision for pod in observed.pods)


def kind(decision: Decision) -> Kind:
    """Return the kind of workload that creates the driver's pods."""
    assert decision.spec is not None
    return build.kind_of(decision.spec)


def current(decision: Decision, observed: Observed) -> Workload | None:
    """Return the workload that should exist, if it does; a StatefulSet or CronJob of any revision."""
    if decision.spec is None:
        return None
    wanted, name = kind(decision), observed.resource.name
    expected = {
        "StatefulSet": names.driver(name),
        "CronJob": names.driver(name),
        "Job": names.run(name, decision.revision),
        "SparkApplication": name,
    }[wanted]
    for workload in observed.workloads:
        same = workload.revision == decision.revision or wanted in ("StatefulSet", "CronJob")
        if workload.kind == wanted and workload.name == expected and same and not workload.deleting:
            return workload
    return None


def already_completed(decision: Decision, observed: Observed) -> bool:
    """Return whether this revision has run to completion, even if its Job is gone by now."""
    status = observed.resource.status
    driver = status.driver
    ran = driver is not None and driver.revision == decision.revision
    return not _streams(decision) and status.phase == "Completed" and ran


def drivers(observed: Observed) -> list[Pod]:
    """Return the driver pods that have not ended; those that stay come before those that go."""
    alive = [p for p in observed.pods if p.component == "driver" and p.phase not in ("Succeeded", "Failed")]
    return sorted(alive, key=lambda pod: pod.deleted is not None)


def former_drivers(decision: Decision, observed: Observed) -> list[str]:
    """Return the names of what must be gone before a driver may start: other workloads and driver pods."""
    workloads = [w.name for w in _unwanted(decision, observed)]
    pod_of_set = f"{names.driver(observed.resource.name)}-0"
    own = pod_of_set if kind(decision) == "StatefulSet" else None
    return workloads + [pod.name for pod in drivers(observed) if pod.name != own]


def _streams(decision: Decision) -> bool:
    return decision.spec is not None and decision.spec.trigger.available_now is None


def deletion(workload: Workload) -> Deletion:
    """Return the deletion of the workload as it was seen."""
    return Deletion(workload.api_version, workload.kind, workload.name, workload.uid)
