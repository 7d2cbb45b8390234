"""Plain values that ``plan`` reads and returns. ``observe`` makes them from the API's objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from lakemirror.api import PipelineSpec, PipelineStatus, report
from lakemirror.api.report import TableReport
from lakemirror.controller.claims import Claim

Object = dict[str, Any]
"""An object of the Kubernetes API as a document."""

Kind = Literal["StatefulSet", "Job", "CronJob", "SparkApplication"]
State = Literal["Idle", "Active", "Succeeded", "Failed"]
DeletionPolicy = Literal["Retain", "DeleteCheckpoint", "DeleteAll"]
"""From the one that deletes least to the one that deletes most."""


@dataclass(frozen=True)
class Stated:
    """What the newest spec says that counts even if the rest of it is refused; None if it says nothing."""

    suspend: bool | None = None
    deletion_policy: DeletionPolicy | None = None


@dataclass(frozen=True)
class Resource:
    """The CdcPipeline itself, without its spec, but with what the spec ``stated`` even if it is invalid."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleting: bool = False
    deleted: datetime | None = None
    """Since when it is being deleted."""
    finalizers: tuple[str, ...] = ()
    status: PipelineStatus = field(default_factory=PipelineStatus)
    stated: Stated = Stated()


@dataclass(frozen=True)
class Accepted:
    """The last good spec, as it is in the ConfigMap that drivers read, and its revision there."""

    spec: PipelineSpec
    revision: str


@dataclass(frozen=True)
class Moved:
    """A running driver was given another default image, and has not been Ready on it yet.

    ``before``: the image that it had until then. ``ready``: whether it was Ready on that image.
    """

    before: str
    at: datetime
    ready: bool


@dataclass(frozen=True)
class Given:
    """What the driver was given to run, according to the config ConfigMap."""

    image: str
    revision: str
    moved: Moved | None = None


@dataclass(frozen=True)
class Turn:
    """Which default image a pipeline has at this time (``image``); ``default`` is the newest one.

    ``state`` is empty if there is nothing to report. ``Moving``: ``moved`` to the image and not Ready yet.
    ``Failed``: not Ready in time. ``Waiting``: its turn has not come. ``Stopped``: held back with others
    because of pipeline ``stopped_by``.
    """

    image: str
    default: str
    moved: Moved | None = None
    state: Literal["", "Waiting", "Moving", "Failed", "Stopped"] = ""
    stopped_by: str = ""


@dataclass(frozen=True)
class Workload:
    """A workload that creates driver pods: an object of one of ``Kind``.

    ``settled``: its controller has seen its newest version. ``failures`` counts the failed runs.
    ``scheduled``: a Job that a CronJob created.
    """

    kind: Kind
    name: str
    uid: str
    api_version: str = "apps/v1"
    revision: str | None = None
    state: State = "Idle"
    settled: bool = True
    deleting: bool = False
    deleted: datetime | None = None
    """Since when it is being deleted."""
    finalizers: tuple[str, ...] = ()
    scheduled: bool = False
    created: datetime | None = None
    failures: int = 0
    message: str = ""
    schedule: str = ""
    due_since: datetime | None = None
    """CronJob: when it was changed, or last started a run. Job: when it ended."""
    former: bool = False
    """Created by an earlier version: its selector, which never changes, also matches pods of others."""


@dataclass(frozen=True)
class Ending:
    """How a container or a pod ended."""

    code: int
    reason: str
    message: str
    at: datetime | None


@dataclass(frozen=True)
class Pod:
    """A driver's pod. ``exits``: how often its container ended. ``started``: since when it runs now."""

    name: str
    uid: str
    component: str = "driver"
    revision: str | None = None
    image: str | None = None
    node: str | None = None
    phase: str = "Pending"
    reason: str = ""
    started: datetime | None = None
    exits: int = 0
    ending: Ending | None = None
    waiting: str = ""
    message: str = ""
    deleted: datetime | None = None
    """When it should be gone: Kubernetes' deletionTimestamp, which includes the grace period."""
    unreachable: bool = False
    """Its node no longer answers."""
    finalizers: tuple[str, ...] = ()
    memory_limit: str = ""
    """The memory limit of the driver's container."""
    beside: tuple[str, ...] = ()
    """The other containers that run in it."""
    marked: bool = True
    """Whether it has the label with the pipeline's uid."""
    outlived_by: tuple[str, ...] = ()
    """Containers that run on although the driver's has ended and is not started again."""

    @property
    def ended(self) -> bool:
        """Whether nothing runs in it anymore, though it may still exist."""
        over = self.deleted is not None and self.started is None and self.ending is not None
        return over or self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Writer:
    """Who wrote a report: a pod by its uid, its container after so many ``exits``, and what it runs."""

    pod: str
    exits: int
    revision: str | None = None


@dataclass(frozen=True)
class Report:
    """What a driver ``said`` about itself.

    ``seen`` is when the operator first saw it. ``progressed`` is when it last saw a new batch or a source
    with nothing left. Both are by the operator's clock, so that clocks are never compared. ``by`` is who ran
    when this was first seen, or with a driver that names its pod, when this run was first heard of.
    """

    said: report.Report
    seen: datetime
    progressed: datetime
    by: Writer | None = None


@dataclass(frozen=True)
class Obstacle:
    """Why an object cannot be applied.

    A foreign object has its name, or the API server refuses it or its pod.
    """

    reason: Literal[
        "ForeignObject",
        "FormerObject",
        "InvalidSpec",
        "NamespaceTerminating",
        "PodRefused",
        "QuotaExceeded",
        "Refused",
    ]
    message: str
    warning: bool = False
    """Whether it has nothing to do with the edit, which therefore takes effect."""


@dataclass(frozen=True)
class Rival:
    """Another pipeline that comes first, and the ``claim`` of this one that belongs to it.

    ``has``: it has that already; otherwise neither has it, and the other one is older.
    """

    pipeline: str
    claim: Claim
    has: bool = False


@dataclass(frozen=True)
class Observed:
    """Everything that is known about a pipeline besides its spec."""

    resource: Resource
    accepted: Accepted | None = None
    config: Mapping[str, str] = field(default_factory=dict)
    """The data of the config ConfigMap."""
    workloads: tuple[Workload, ...] = ()
    pods: tuple[Pod, ...] = ()
    report: Report | None = None
    rivals: tuple[Rival, ...] = ()
    given: Given | None = None
    turn: Turn | None = None
    """Which default image it has; if None, that of the settings."""
    obstacles: tuple[Obstacle, ...] = ()
    mount_problem: str = ""
    """What the kubelet says about a volume that it cannot mount, such as a missing Secret."""
    pod_refusal: str = ""
    """What the API server said when a workload's controller tried to create its pod, which is missing."""
    namespace_ends: bool = False
    """Whether the namespace is being deleted. Then the operator is about to lose its rights there."""
    foreign_pod: str = ""
    """A pod that is not ours and has the name that the driver's pod needs."""
    executors: str = ""
    """Why executors do not start, if a batch is waited for and none runs."""
    warnings: tuple[str, ...] = ()
    """What the API server will refuse later, but not because of the newest edit."""
    lost: Ending | None = None
    """How the driver's pod in the last status ended, if another one replaces it."""

    @property
    def mirrored(self) -> tuple[str, ...]:
        """The source tables that have a mirror, as far as the report or the status names them."""
        return tuple(table.source for table in self._told if table.version is not None)

    @property
    def refused(self) -> tuple[str, ...]:
        """The source tables that the driver refuses, with or without a mirror, as far as the same tells."""
        return tuple(table.source for table in self._told if table.error is not None)

    @property
    def _told(self) -> Sequence[TableReport]:
        return self.report.said.tables if self.report is not None else self.resource.status.tables or []


@dataclass(frozen=True)
class Pace:
    """How a new default image is rolled out.

    ``at_once``: to how many drivers at a time. ``timeout``: how long each may take to become Ready on it
    before the others are spared.
    """

    at_once: int = 1
    timeout: timedelta = timedelta(minutes=5)


@dataclass(frozen=True)
class Settings:
    """The operator's own settings."""

    driver_image: str = "lakemirror-driver:0.1.0"
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class Deletion:
    """An object to delete, if it still has this uid."""

    api_version: str
    kind: str
    name: str
    uid: str
    orphan: bool = False
    """Whether the objects that it owns stay."""


@dataclass(frozen=True)
class Event:
    """What a person may want to know, as a Kubernetes Event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """What to do: ``objects`` to apply, ``deletions``, then ``status`` to write and ``events`` to record.

    ``urgent`` stops a driver and is applied first, whatever happens to the others. ``trial``: what the API
    server must find valid before any of it is applied. ``finalizer``: whether ours must be present.
    ``again``: when time alone may change the plan; None means never.
    """

    objects: tuple[Object, ...]
    deletions: tuple[Deletion, ...]
    status: PipelineStatus
    events: tuple[Event, ...] = ()
    finalizer: bool = False
    again: datetime | None = None
    marks: tuple[Pod, ...] = ()
    """Pods that get the label with the pipeline's uid."""
    urgent: tuple[Object, ...] = ()
    trial: tuple[Object, ...] = ()
    steady_until: datetime | None = None
    """Until when nothing changes as long as the driver keeps reporting the same; None if unknown."""
