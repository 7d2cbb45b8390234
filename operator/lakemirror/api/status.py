"""``status``: what the operator saw. It alone writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from lakemirror.api.base import Model
from lakemirror.api.checks import moment

Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"}), AfterValidator(moment)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Word = Annotated[str, Field(max_length=1024)]
Text = Annotated[str, Field(max_length=32768)]

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


class CheckpointStatus(Model):
    """How far the pipeline is."""

    batch_id: Count | None = None
    """The last batch that was committed."""
    committed_at: Time | None = None
    lag_records: Count | None = None
    """Records that the source holds and that are not applied."""
    lag_seconds: Annotated[float, Field(ge=0, le=1e12)] | None = None
    """How long ago the source made the newest change that is applied, while there is lag."""
    event_time: Time | None = None
    caught_up: bool | None = None
    observed_at: Time | None = None
    """When the driver said so; old figures make Ready unknown."""


class Totals(Model):
    """Counts of events since the checkpoint began; a replayed batch counts once."""

    applied: Count | None = None
    inserted: Count | None = None
    updated: Count | None = None
    deleted: Count | None = None
    stale: Count | None = None
    duplicates: Count | None = None
    tombstone_records: Count | None = None
    tombstones_retained: Count | None = None
    late_after_collection: Count | None = None
    quarantined: Count | None = None


class DriftStatus(Model):
    """A column that changed, and what was done about it."""

    column: Word
    change: Word
    from_: Annotated[Word | None, Field(alias="from")] = None
    to: Word | None = None
    action: Word | None = None
    since: Time | None = None


class TableStatus(Model):
    """One table's mirror."""

    source: Annotated[str, Field(max_length=767)]
    target: Word | None = None
    version: Count | None = None
    """The version of the Delta table."""
    last_event_time: Time | None = None
    applied: Count | None = None
    tombstones_retained: Count | None = None
    drift: Annotated[list[DriftStatus], Field(max_length=100)] | None = None
    error: Text | None = None


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
    checkpoint: CheckpointStatus | None = None
    totals: Totals | None = None
    tables_total: Count | None = None
    tables: (
        Annotated[
            list[TableStatus], Field(max_length=100, json_schema_extra={"x-kubernetes-list-type": "atomic"})
        ]
        | None
    ) = None
    """At most 100: those with errors, with drift, and with most lag first."""
    handled: Handled | None = None

    def condition(self, type: ConditionType) -> Condition | None:
        """The condition of that type, if there is one."""
        return next((c for c in self.conditions or [] if c.type == type), None)
