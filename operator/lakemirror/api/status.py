"""``status``: what the operator saw. Only the operator writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lakemirror.api.base import Model
from lakemirror.api.report import (
    CheckpointReport,
    Count,
    Phrase,
    TableReport,
    Text,
    Time,
    Totals,
    Verification,
    Word,
)

WARNINGS_SHOWN = 5
Phase = Literal["Pending", "Starting", "Running", "Suspended", "Completed", "Failed"]
ConditionType = Literal[
    "Ready",
    "Reconciling",
    "Stalled",
    "SchemaDrift",
    "DataQuality",
    "SourceRestarted",
    "TableFailed",
    "ImageRollout",
]


class Condition(Model):
    """One thing that is true of the pipeline, or not, or unknown."""

    type: ConditionType
    """The type of the condition. Types other than Ready are present only while they are true."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    observed_generation: Count | None = None
    """The generation of the resource for which it was determined. While an edit is refused, Ready is about
    the last good spec, and this is an earlier generation."""
    last_transition_time: Time
    """When its status last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    """The reason, in one word for programs."""
    message: Text = ""
    """The reason, for people."""


class Failure(Model):
    """Why the driver last failed."""

    reason: Word | None = None
    """The reason that Kubernetes gives, such as OOMKilled."""
    message: Text | None = None
    """The cause in one line, if known; for a Java error, the innermost cause."""
    at: Time | None = None
    """When the driver ended."""


class DriverStatus(Model):
    """The driver that runs now, or the last one."""

    pod: Word | None = None
    """The pod's name."""
    uid: Word | None = None
    """The pod's UID; between two pods, that of the former one."""
    revision: Word | None = None
    """The revision of the spec that it runs: a hash of everything that restarts a driver."""
    run_id: Word | None = None
    """The ID of the run that reports. It changes with each restart."""
    started_at: Time | None = None
    """When its container started."""
    image: Word | None = None
    """The image it runs."""
    restarts: Count | None = None
    """How often it was restarted with this revision, in its pod or in a replacement of the pod."""
    exits: Count | None = None
    """How often its container exited in this pod."""
    consecutive_failures: Count | None = None
    """Consecutive failures. Beyond restart.backoffLimit the pipeline stalls."""
    last_failure: Failure | None = None


class Handled(Model):
    """The tokens that were acted on."""

    restart_token: Word | None = None
    """The last restartToken that was acted on."""
    reset_token: Word | None = None
    """The last resetToken that was acted on."""
    resync: Annotated[dict[str, Word], Field(max_length=500)] | None = None
    """Maps a table's source to the resyncToken for which it was last read again."""


class PipelineStatus(Model):
    """What the operator saw."""

    observed_generation: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    """The newest generation of the resource that the operator has processed; -1 before the first."""
    phase: Phase | None = None
    """A summary for people. Programs read the conditions."""
    reason: Word | None = None
    """The reason to look at first: that of Stalled if present, otherwise that of Ready."""
    conditions: (
        Annotated[
            list[Condition],
            Field(
                max_length=16,
                json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
            ),
        ]
        | None
    ) = None
    """The conditions. Ready is always present."""
    driver: DriverStatus | None = None
    checkpoint: CheckpointReport | None = None
    totals: Totals | None = None
    verified: Verification | None = None
    tables_total: Count | None = None
    """How many tables are mirrored."""
    tables: (
        Annotated[
            list[TableReport], Field(max_length=100, json_schema_extra={"x-kubernetes-list-type": "atomic"})
        ]
        | None
    ) = None
    """At most 100 tables: those with errors first, then those with drift, then the least recently updated."""
    warnings: Annotated[list[Phrase], Field(max_length=WARNINGS_SHOWN)] | None = None
    """The last warnings of this run of the driver."""
    handled: Handled | None = None

    def condition(self, type: ConditionType) -> Condition | None:
        """Return the condition of that type, if there is one."""
        return next((c for c in self.conditions or [] if c.type == type), None)
