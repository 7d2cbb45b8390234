"""Converts the API's objects to the values that ``plan`` reads. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, get_args

from pydantic import ValidationError

from lakemirror.api import CdcPipeline, ManifestError, PipelineSpec, PipelineStatus
from lakemirror.api import report as api
from lakemirror.controller import backends, names, rollout
from lakemirror.controller.remembered import last
from lakemirror.controller.times import moment
from lakemirror.controller.values import (
    Accepted,
    DeletionPolicy,
    Ending,
    Given,
    Object,
    Pod,
    Report,
    Resource,
    State,
    Stated,
    Workload,
    Writer,
)

REPORT_KEY = "progress.json"
"""The key of the progress ConfigMap under which the driver writes its report."""
DRIVER_CONTAINERS = ("driver", "spark-kubernetes-driver")
"""Our name for it, and Spark's when another operator submits in cluster mode."""


def resource(body: Object) -> Resource:
    """Return the pipeline's metadata and status. A status that does not fit the model counts as none."""
    metadata = body["metadata"]
    try:
        status = PipelineStatus.model_validate(body.get("status") or {})
    except ValidationError:
        status = PipelineStatus()
    return Resource(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 1),
        deleting="deletionTimestamp" in metadata,
        deleted=moment(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        status=status,
        stated=_stated(body.get("spec")),
    )


def is_in_effect(body: Object) -> bool:
    """Return whether the status says of the newest edit that it is in effect, and in nobody's way."""
    seen = resource(body)
    ready = seen.status.condition("Ready")
    if ready is None or ready.reason == "Conflict":
        return False
    return ready.observed_generation == seen.generation


def _stated(spec: object) -> Stated:
    """Read the fields that count in an invalid spec, too. A value that is itself invalid says nothing."""
    if not isinstance(spec, Mapping):
        return Stated()
    suspend, policy = spec.get("suspend"), spec.get("deletionPolicy")
    return Stated(
        suspend if isinstance(suspend, bool) else None,
        next((known for known in get_args(DeletionPolicy) if known == policy), None),
    )


def accepted(config: Object | None, workloads: Iterable[Workload] = ()) -> Accepted | None:
    """Return the last good spec, or None if there is none that this version can read.

    It is the spec of the applied workload, because the ConfigMap alone may hold one that got no further.
    """
    if config is None:
        return None
    lasting = [w.revision for w in workloads if w.kind in ("StatefulSet", "CronJob") and w.revision]
    for revision in (*lasting, metadata_of(config, "annotations").get(names.CURRENT, "")):
        pipeline = metadata_of(config, "labels").get(names.PIPELINE, "")
        text = (config.get("data") or {}).get(f"{revision}.yaml", "")
        spec = _spec(_Text((config["metadata"].get("namespace", ""), pipeline), text))
        if spec is not None:
            return Accepted(spec, revision)
    return None


def given(config: Object | None, before: PipelineStatus) -> Given | None:
    """Return what the driver was given to run, or None if that is nothing yet.

    Operators that did not have the annotation yet left only the pod's image, in the status.
    """
    if config is None:
        return None
    annotations = metadata_of(config, "annotations")
    ran = before.driver.image if before.driver is not None else None
    image = annotations.get(names.IMAGE) or ran or ""
    moved = rollout.read(_decoded(annotations.get(names.MOVED)))
    return Given(image, annotations.get(names.CURRENT, ""), moved)


def _decoded(text: str | None) -> Any:
    """Return a JSON document that others may have written; None if it is none, or nested too deep."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


class _Text(NamedTuple):
    """The manifest of a pipeline, as it is in its config ConfigMap."""

    pipeline: tuple[str, str]
    manifest: str


MOST_VALUES = 50_000
"""Whoever may edit ConfigMaps of a namespace must not make all wait for one that takes hours to read."""


@last
def _spec(text: _Text) -> PipelineSpec | None:
    try:
        return CdcPipeline.from_yaml(text.manifest, most=MOST_VALUES, aliases=False).spec
    except ManifestError:
        return None


def workload(body: Object) -> Workload:
    """Read a workload that creates driver pods."""
    metadata, kind = body["metadata"], body["kind"]
    common = Workload(
        kind=kind,
        api_version=body["apiVersion"],
        name=metadata["name"],
        uid=metadata["uid"],
        revision=metadata_of(body, "annotations").get(names.REVISION),
        deleting="deletionTimestamp" in metadata,
        deleted=moment(metadata.get("deletionTimestamp")),
        finalizers=tuple(metadata.get("finalizers") or ()),
        created=moment(metadata.get("creationTimestamp")),
        scheduled=any(owner.get("kind") == "CronJob" for owner in metadata.get("ownerReferences", ())),
    )
    if kind == "StatefulSet":
        seen = (body.get("status") or {}).get("observedGeneration")
        selected = ((body.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        settled, former = seen == metadata.get("generation"), names.PIPELINE_UID not in selected
        return replace(common, state="Active", settled=settled, former=former)
    if kind == "Job":
        return _job(common, body.get("status") or {})
    if kind == "CronJob":
        return _cron_job(common, body)
    if kind == "SparkApplication":
        return _application(common, body)
    return common


def _cron_job(common: Workload, body: Object) -> Workload:
    """Read a CronJob. The next run is due after the last one began, or after it was changed."""
    last = moment((body.get("status") or {}).get("lastScheduleTime"))
    changes = [
        moment(entry.get("time"))
        for entry in body["metadata"].get("managedFields", ())
        if entry.get("manager") == names.FIELD_MANAGER and not entry.get("subresource")
    ]
    times = [time for time in (common.created, last, *changes) if time is not None]
    schedule = (body.get("spec") or {}).get("schedule", "")
    return replace(common, schedule=schedule, due_since=max(times, default=None))


def _job(common: Workload, status: Mapping[str, Any]) -> Workload:
    ended = [c for c in status.get("conditions", ()) if c.get("status") == "True"]
    state: State = "Active"
    message = ""
    for condition in ended:
        if condition["type"] == "Complete":
            state = "Succeeded"
        elif condition["type"] == "Failed":
            state, message = "Failed", condition.get("message", "")
    times = [moment(status.get("completionTime")), *(moment(c.get("lastTransitionTime")) for c in ended)]
    over = max((time for time in times if time is not None), default=None)
    return replace(common, state=state, message=message, failures=status.get("failed", 0), due_since=over)


def _application(common: Workload, body: Object) -> Workload:
    """Read a SparkApplication, in the terms of the operator that runs it."""
    state, message, failures = backends.application(body["apiVersion"], body.get("status") or {})
    return replace(common, state=state, message=message, failures=failures)


def pod(body: Object) -> Pod:
    """Read a driver's pod."""
    metadata, spec, status = body["metadata"], body.get("spec") or {}, body.get("status") or {}
    conditions = {c["type"]: c for c in status.get("conditions", ())}
    container: Object = next((c for c in spec.get("containers", ()) if c["name"] in DRIVER_CONTAINERS), {})
    seen: Object = next(
        (c for c in status.get("containerStatuses", ()) if c["name"] in DRIVER_CONTAINERS), {}
    )
    state, last = seen.get("state") or {}, seen.get("lastState") or {}
    running = state.get("running")
    ending = state.get("terminated") or last.get("terminated")
    waiting, words = _waiting(status, state.get("waiting") or {})
    disrupted = conditions.get("DisruptionTarget", {})
    gone = status if status.get("reason") or disrupted.get("status") != "True" else disrupted
    scheduled = conditions.get("PodScheduled", {})
    unscheduled = scheduled.get("status") == "False"
    ready = conditions.get("Ready", {})
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        component=metadata_of(body, "labels").get(names.COMPONENT, ""),
        revision=metadata_of(body, "annotations").get(names.REVISION),
        image=container.get("image"),
        node=spec.get("nodeName"),
        phase=status.get("phase", "Pending"),
        reason=gone.get("reason", ""),
        started=moment(running.get("startedAt")) if running else None,
        exits=seen.get("restartCount", 0) + (1 if ending and not running else 0),
        ending=_ending(ending) if ending else None,
        waiting=scheduled.get("reason", "") if unscheduled else waiting,
        message=scheduled.get("message", "") if unscheduled else words or gone.get("message", ""),
        deleted=moment(metadata.get("deletionTimestamp")),
        # None of our containers has a readiness probe. So if a pod is not ready although its container is,
        # the node controller says so, because it cannot reach the kubelet.
        unreachable=bool(running and seen.get("ready") and ready.get("status") == "False"),
        finalizers=tuple(metadata.get("finalizers", ())),
        memory_limit=((container.get("resources") or {}).get("limits") or {}).get("memory", ""),
        beside=tuple(
            each["name"]
            for each in status.get("containerStatuses", ())
            if each["name"] not in DRIVER_CONTAINERS and (each.get("state") or {}).get("running")
        ),
        marked=names.PIPELINE_UID in metadata_of(body, "labels"),
        outlived_by=_outliving(spec, status, bool(state.get("terminated"))),
    )


def _outliving(spec: Mapping[str, Any], status: Mapping[str, Any], ended: bool) -> tuple[str, ...]:
    """Return the containers that keep a pod from ending although the driver's has, and is not restarted."""
    if not ended or spec.get("restartPolicy") != "Never":
        return ()
    return tuple(
        each["name"]
        for each in status.get("containerStatuses", ())
        if each["name"] not in DRIVER_CONTAINERS and (each.get("state") or {}).get("running")
    )


def executor_problem(pods: Iterable[Object]) -> str:
    """Return why no executor runs, in the words of Kubernetes; empty if one does, or nothing is known."""
    found = [_not_running(pod) for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return "" if None in found else next((words for words in found if words), "")


def _not_running(body: Object) -> str | None:
    """Return why an executor does not run, empty if unknown; None if it runs."""
    status, name = body.get("status") or {}, body["metadata"]["name"]
    scheduled: Object = next((c for c in status.get("conditions", ()) if c["type"] == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        return f"pod {name}: {scheduled.get('reason', '')}: {scheduled.get('message', '')}"
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    for each in containers:
        waits = (each.get("state") or {}).get("waiting") or {}
        if waits.get("reason", "") not in STARTING:
            words = _BACK_OFF.sub("", waits.get("message", ""))
            return f"pod {name}: {waits['reason']}: {words}"
    return None if status.get("phase") == "Running" else ""


STARTING = ("", "ContainerCreating", "PodInitializing")
"""What a container that is about to start may be waiting for."""


def _waiting(status: Mapping[str, Any], driver: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the driver's container, or another one of its pod, waits for: reason and message."""
    reason, words = driver.get("reason", ""), driver.get("message", "")
    if reason in STARTING:
        for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            found = (each.get("state") or {}).get("waiting") or {}
            if found.get("reason", "") not in STARTING:
                reason, words = found["reason"], f"container {each['name']}: {found.get('message', '')}"
                break
    # The kubelet says ErrImagePull while it pulls, and ImagePullBackOff between two attempts.
    return ("ImagePullBackOff" if reason == "ErrImagePull" else reason), _BACK_OFF.sub("", words)


_BACK_OFF = re.compile(r'Back-off pulling image "[^"]*": ErrImagePull: ')


def _ending(terminated: Mapping[str, Any]) -> Ending:
    return Ending(
        code=terminated.get("exitCode", 0),
        reason=terminated.get("reason", ""),
        message=terminated.get("message", ""),
        at=moment(terminated.get("finishedAt")),
    )


def report(
    progress: Object | None, before: Report | None, now: datetime, by: Writer | None = None
) -> Report | None:
    """Read the driver's report, with when it was ``seen`` and ``progressed``, based on ``before``.

    ``by`` is who runs now, if that is known. What is seen for the first time is attributed to it, but not
    another report of a run that is known, if the driver names its pod: then only restarts have to be told.
    """
    said = api.Report.read(_decoded(((progress or {}).get("data") or {}).get(REPORT_KEY)))
    if said is None:
        return None
    if before is None:
        return Report(said, now, now, by)
    if said == before.said:
        return before
    if said.pod is not None and said.run_id == before.said.run_id and before.by is not None:
        by = before.by
    moved = bool(said.caught_up) or bool(before.said.caught_up) or _batch(said) != _batch(before.said)
    return Report(said, now, now if moved else before.progressed, by)


def run_of(progress: Object | None) -> str | None:
    """Return the run that wrote a report, if it says so."""
    found = report(progress, None, datetime.min)
    return found.said.run_id if found is not None else None


def says_the_same(before: api.Report, said: api.Report) -> bool:
    """Return whether a later report says the same as the one ``before``."""
    old, new = moment(before.observed_at), moment(said.observed_at)
    if old is None or new is None or new < old:
        return False
    return said.model_copy(update={name: getattr(before, name) for name in _OF_TIME}) == before


_OF_TIME = ("observed_at", "lag_seconds", "overdue_seconds")
"""Fields of a report that change even though nothing happens."""


def _batch(said: api.Report) -> tuple[object, ...]:
    """Return the fields by which the reports of two batches differ."""
    return said.run_id, said.batch_id, said.committed_at


def mount_problem(events: Iterable[Object], uid: str) -> str:
    """Return the kubelet's last message about a volume that the pod with ``uid`` cannot mount, if any."""
    said = [str(event.get("message", "")) for event in _of(events, uid, "FailedMount")]
    lasting = [words for words in said if not _KUBELET_IS_SLOW.search(words)]
    return lasting[-1] if lasting else ""


_KUBELET_IS_SLOW = re.compile(r"timed out waiting for the condition$|object \S+ not registered$")
"""What the kubelet says while it is still fetching what it mounts."""


def pod_refusal(events: Iterable[Object], uid: str) -> str:
    """Return why the newest attempt to create a pod for the workload with ``uid`` failed, if it did."""
    tried = _of(events, uid, "FailedCreate", "SuccessfulCreate")
    if not tried or tried[-1]["reason"] != "FailedCreate":
        return ""
    return _CONTROLLER_WORDS.sub("", str(tried[-1].get("message", "")))


_CONTROLLER_WORDS = re.compile(
    r"^(?:(?:create Pod \S+ in StatefulSet \S+ failed error|Error creating(?: job)?): )?"
    r'(?:pods? "[^"]*" is )?'
)


def lost(events: Iterable[Object], uid: str) -> Ending | None:
    """Return why the pod with ``uid`` had to go, if the cause is something other than its own end."""
    found = _of(events, uid, "Evicted", "Preempted", "TaintManagerEviction", "EvictionByEvictionAPI")
    if not found:
        return None
    reason, at = found[-1]["reason"], moment(_time_of(found[-1]) or None)
    return Ending(0, reason, str(found[-1].get("message", "")), at)


def _of(events: Iterable[Object], uid: str, *reasons: str) -> list[Object]:
    """Return the events of an object with one of the reasons, oldest first.

    Within the same second, failures come first.
    """
    found = [
        event
        for event in events
        if event.get("reason") in reasons and event.get("involvedObject", {}).get("uid") == uid
    ]
    return sorted(found, key=lambda event: (_time_of(event), event["reason"]))


def _time_of(event: Object) -> str:
    return event.get("lastTimestamp") or event.get("eventTime") or ""


def is_foreign(pod: Object, uid: str) -> bool:
    """Return whether a pod belongs neither to the pipeline with ``uid`` nor to any kind of workload."""
    if metadata_of(pod, "labels").get(names.PIPELINE_UID) == uid:
        return False
    owners = pod["metadata"].get("ownerReferences", ())
    return not any(owner.get("kind") in ("StatefulSet", "Job", "SparkApplication") for owner in owners)


def owned_by(body: Object, uid: str) -> bool:
    """Return whether the pipeline with ``uid`` owns the object."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences", ()))


def metadata_of(body: Object, part: str) -> Mapping[str, str]:
    """Return the labels or annotations; empty if there are none."""
    return body["metadata"].get(part) or {}
