"""``status``: what the operator saw. It alone writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lakemirror.api.base import Model
from lakemirror.api.report import CheckpointReport, Count, TableReport, Text, Time, Totals, Word

Phase = Literal["Pending", "Starting", "Running", "Suspended", "Completed", "Failed"]
ConditionType = Literal[
    "Ready", "Reconciling", "Stalled", "SchemaDrift", "DataQuality", "SourceRestarted", "TableFailed"
]


class Condition(Model):
    """One thing that is true of the pipeline, or not, or unknown."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    observed_generation: Count | None = None
    last_transition_time: Time
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Text = ""


class Failure(Model):
    """Why a driver ended."""

    reason: Word | None = None
    message: Text | None = None
    at: Time | None = None


class DriverStatus(Model):
    """The driver that runs now, or the last one."""

    pod: Word | None = None
    uid: Word | None = None
    """The pod's uid."""
    revision: Word | None = None
    """Which revision of the spec it runs: a hash of all that a driver is restarted for."""
    run_id: Word | None = None
    started_at: Time | None = None
    image: Word | None = None
    restarts: Count | None = None
    """How often it ended and was started again in this pod."""
    consecutive_failures: Count | None = None
    last_failure: Failure | None = None


class Handled(Model):
    """Tokens that were acted upon."""

    restart_token: Word | None = None
    reset_token: Word | None = None
    resync: Annotated[dict[str, Word], Field(max_length=500)] | None = None
    """From a table's source to the resyncToken for which it was last read again."""


class PipelineStatus(Model):
    """What the operator saw."""

    observed_generation: Count | None = None
    phase: Phase | None = None
    """A word for people; machines read the conditions."""
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
    driver: DriverStatus | None = None
    checkpoint: CheckpointReport | None = None
    totals: Totals | None = None
    tables_total: Count | None = None
    tables: (
        Annotated[
            list[TableReport], Field(max_length=100, json_schema_extra={"x-kubernetes-list-type": "atomic"})
        ]
        | None
    ) = None
    """At most 100: those with errors, with drift, and with most lag first."""
    handled: Handled | None = None

    def condition(self, type: ConditionType) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((c for c in self.conditions or [] if c.type == type), None)
