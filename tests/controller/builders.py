"""A small world for the tests of the operator: a pipeline, its pod, its report, a clock that stands."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lakemirror.api import CdcPipeline, PipelineSpec, PipelineStatus
from lakemirror.api import report as api
from lakemirror.controller import fields
from lakemirror.controller.plan import plan
from lakemirror.controller.values import (
    Accepted,
    Ending,
    Object,
    Observed,
    Plan,
    Pod,
    Report,
    Resource,
    Settings,
    Stated,
    Workload,
)

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SETTINGS = Settings("driver:1")

SPEC: dict[str, Any] = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topicPattern": "shop.*"}},
    "target": {"path": "s3a://lake/{schema}/{table}"},
    "checkpoint": "s3a://lake/_checkpoints/shop",
}


def ago(**time: float) -> datetime:
    return NOW - timedelta(**time)


def iso(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def document(name: str = "shop", **changes: Any) -> dict[str, Any]:
    """A manifest; ``changes`` are fields of spec, merged into it (None takes one out)."""
    return {
        "apiVersion": "lakemirror.io/v1alpha1",
        "kind": "CdcPipeline",
        "metadata": {"name": name, "namespace": "mirrors"},
        "spec": merged(SPEC, changes),
    }


def merged(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return copy.deepcopy(above)
    both = {key: merged(below.get(key), value) for key, value in above.items() if value is not None}
    return {key: copy.deepcopy(value) for key, value in below.items() if key not in above} | both


def spec(**changes: Any) -> PipelineSpec:
    return CdcPipeline.from_dict(document(**changes)).spec


def revision(of: PipelineSpec) -> str:
    return fields.revision(of, of.spark.image or SETTINGS.driver_image)


def pod(of: PipelineSpec, **changes: Any) -> Pod:
    """A driver's pod that has been running for a minute."""
    running = Pod(
        "shop-driver-0",
        "pod-1",
        revision=revision(of),
        image=of.spark.image or SETTINGS.driver_image,
        node="node-1",
        phase="Running",
        started=ago(minutes=1),
    )
    return replace(running, **changes)


def crashed(pod: Pod, exits: int = 1, code: int = 1) -> Pod:
    """The pod after its container ended, before it is started again."""
    ending = Ending(code, "Error", "boom", ago(seconds=1))
    return replace(pod, started=None, exits=exits, ending=ending, waiting="CrashLoopBackOff")


def stateful_set(of: PipelineSpec, **changes: Any) -> Workload:
    return replace(
        Workload("StatefulSet", "shop-driver", "set-1", revision=revision(of), state="Active"), **changes
    )


def job(of: PipelineSpec, **changes: Any) -> Workload:
    name = f"shop-run-{revision(of)}"
    return replace(
        Workload("Job", name, "job-1", "batch/v1", revision(of), "Active", created=ago(minutes=1)), **changes
    )


def report(seen: datetime = NOW, progressed: datetime = NOW, **changes: Any) -> Report:
    """What a driver says that has applied everything."""
    told = {
        "pipeline": "shop",
        "runId": "run-1",
        "startedAt": iso(ago(seconds=55)),
        "phase": "Running",
        "batchId": 7,
        "committedAt": iso(ago(seconds=5)),
        "observedAt": iso(NOW),
        "lagRecords": 0,
        "lagSeconds": 0.0,
        "eventTime": iso(ago(seconds=6)),
        "caughtUp": True,
        "totals": {"applied": 3, "inserted": 3, "quarantined": 0},
        "tablesTotal": 1,
        "tables": [{"source": "shop.public.orders", "applied": 3, "version": 4, "drift": [], "error": None}],
        "sourceRestarted": None,
        "tableFailed": None,
        "failure": None,
        "warnings": [],
    }
    said = api.Report.read(told | changes)
    assert said is not None
    return Report(said, seen, progressed)


def observed(of: PipelineSpec | None = None, **changes: Any) -> Observed:
    """What is seen of a pipeline that has been accepted with ``of``; without it nothing is there yet."""
    resource = Resource("mirrors", "shop", "uid-1", generation=changes.pop("generation", 1))
    resource = replace(
        resource,
        status=changes.pop("status", PipelineStatus()),
        deleting=changes.pop("deleting", False),
        deleted=changes.pop("deleted", None),
        finalizers=changes.pop("finalizers", ()),
        stated=changes.pop("stated", Stated()),
    )
    accepted = Accepted(of, revision(of)) if of is not None else None
    return replace(Observed(resource, accepted), **changes)


def running(of: PipelineSpec, **changes: Any) -> Observed:
    """A pipeline whose driver runs and has applied everything, with the status that says so."""
    seen = observed(of, workloads=(stateful_set(of),), pods=(pod(of),), report=report())
    return following(seen, plan(of, seen, NOW, SETTINGS), **changes)


def following(seen: Observed, after: Plan, **changes: Any) -> Observed:
    """What is seen in the next pass: the status as planned, and ``changes``."""
    resource = replace(seen.resource, status=after.status, **changes.pop("resource", {}))
    return replace(seen, resource=resource, **changes)


def planned(wanted: Any, seen: Observed, now: datetime = NOW) -> Plan:
    return plan(wanted, seen, now, SETTINGS)


def ready(of: Plan) -> tuple[str, str]:
    condition = of.status.condition("Ready")
    assert condition is not None
    return condition.status, condition.reason


def reason(of: Plan, type: Any) -> str | None:
    condition = of.status.condition(type)
    return condition.reason if condition is not None else None


def find(objects: Any, kind: str, name: str | None = None) -> Object | None:
    return next(
        (o for o in objects if o["kind"] == kind and (name is None or o["metadata"]["name"] == name)), None
    )
