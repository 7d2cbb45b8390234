"""Builds the status of a pipeline from its health and the driver's report. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from lakemirror.api import PipelineSpec, PipelineStatus
from lakemirror.api.report import (
    MESSAGE_SHOWN,
    CheckpointReport,
    TableReport,
    Verification,
    VerifiedTable,
    cut_off,
    shown_tables,
    without_keys,
)
from lakemirror.api.status import WARNINGS_SHOWN, Condition, ConditionType, DriverStatus, Handled
from lakemirror.api.unencrypted import ADVICE, unencrypted_logins
from lakemirror.controller.decide import Verdict
from lakemirror.controller.health import Case, Health, is_of_revision
from lakemirror.controller.times import iso, moment
from lakemirror.controller.values import Event, Observed, Report, Resource

MOST_BYTES = 60_000
"""A status stays below 64 KB, so that watching thousands of pipelines is cheap."""
_WORDS_KEPT = 1024
"""How much is kept of what the API server says."""
_NAMED = 5
"""The number of tables that a condition's message names."""


def status(case: Case, health: Health) -> PipelineStatus:
    """Build the status to write. Conditions that do not change keep the time of their last transition."""
    observed = case.observed
    before, report = observed.resource.status, observed.report
    conditions = list(_conditions(case, health))
    return _small(
        PipelineStatus(
            observed_generation=observed.resource.generation,
            phase=health.phase,
            reason=main_reason(conditions),
            conditions=conditions,
            driver=_driver(case),
            checkpoint=_checkpoint(before.checkpoint, report),
            totals=report.said.totals if report is not None else before.totals,
            verified=_verified(before.verified, report),
            tables_total=report.said.tables_total if report is not None else before.tables_total,
            warnings=_warnings(case),
            handled=_handled(case),
        ),
        shown_tables(_reported(case)) if report is not None else before.tables,
    )


def _verified(before: Verification | None, report: Report | None) -> Verification | None:
    """Return the last comparison, without keys of rows, which earlier drivers tell as well."""
    verified = report.said.verified if report is not None else before
    return without_keys(verified) if verified is not None else None


def _warnings(case: Case) -> list[str] | None:
    """Return the driver's newest warnings, what the API server will refuse later, and what the spec risks."""
    observed, spec = case.observed, case.decision.spec
    before = observed.resource.status.warnings
    said = observed.report.said.warnings if observed.report is not None else before
    risks = [": ".join(each) for each in unencrypted_logins(spec)] if spec is not None else []
    added = [*observed.warnings, *risks]
    others = [text for text in said or [] if text not in added and not text.endswith(ADVICE)]
    return [*others, *added][-WARNINGS_SHOWN:] if others or added or said is not None else None


def main_reason(conditions: Iterable[Condition]) -> str:
    """Return the reason that ``kubectl get`` shows. A refused edit comes before the driver's state."""
    reasons = {condition.type: condition.reason for condition in conditions}
    return reasons.get("Stalled") or reasons["Ready"]


def failing(resource: Resource, since: datetime, words: str, now: datetime) -> PipelineStatus:
    """Build the status of a pipeline that the operator has failed to process ``since`` then.

    ``words`` say why. What was known about the pipeline stays, but its current state is unknown.
    """
    before = resource.status
    said = Verdict(
        "ReconcileError",
        f"the operator has not been able to process this pipeline since {iso(since)}. It tries again every "
        f"minute: {words}",
    )
    wanted: list[tuple[ConditionType, str, Verdict]] = [
        ("Ready", "Unknown", said),
        ("Reconciling", "True", said),
    ]
    made = list(conditions_of(resource, wanted, now))
    kept = [c for c in before.conditions or [] if c.type not in ("Ready", "Reconciling", "Stalled")]
    changes = {
        "observed_generation": resource.generation,
        "phase": before.phase or "Pending",
        "reason": said.reason,
        "conditions": [*made, *kept],
    }
    return before.model_copy(update=changes)


def essential(after: PipelineStatus, words: str) -> PipelineStatus:
    """Return what of a status can always be written, with what the API server says about the whole."""
    lead = f"the API server refuses the whole status (is the CRD older than the operator?): {words}"
    conditions = [
        c.model_copy(update={"message": f"{c.message[: _WORDS_KEPT // 2]} [{lead[:_WORDS_KEPT]}]"})
        if c.type == "Ready"
        else c
        for c in after.conditions or []
    ]
    return PipelineStatus(
        observed_generation=after.observed_generation, phase=after.phase, conditions=conditions
    )


def unchanged(before: PipelineStatus, after: PipelineStatus) -> bool:
    """Return whether only time has passed and no renewal is due, so that the status is not written."""
    return _timeless(before) == _timeless(after) and not _due_for_renewal(before, after)


RENEWED_EVERY = timedelta(minutes=10)
"""How old ``checkpoint.observedAt`` may become while the driver keeps reporting the same."""


def _due_for_renewal(before: PipelineStatus, after: PipelineStatus) -> bool:
    due, new = renewal(before), _observed_at(after)
    return due is not None and new is not None and new >= due


def renewal(of: PipelineStatus) -> datetime | None:
    """Return from what time on a report is written even if nothing else changed; None if it never is."""
    old = _observed_at(of)
    return old + RENEWED_EVERY if old is not None else None


def _observed_at(status: PipelineStatus) -> datetime | None:
    return moment(status.checkpoint.observed_at) if status.checkpoint is not None else None


def only_figures_differ(before: PipelineStatus, after: PipelineStatus) -> bool:
    """Return whether the pipeline's state and what runs are unchanged, so that a pass would find nothing."""
    return all(getattr(before, name) == getattr(after, name) for name in _JUDGED)


_JUDGED = ("observed_generation", "phase", "reason", "conditions", "driver", "handled")


def _timeless(status: PipelineStatus) -> dict[str, Any]:
    moving = {"checkpoint": {"observed_at", "lag_seconds"}}
    return status.model_dump(exclude_none=True, exclude=moving)


def events(before: PipelineStatus, after: PipelineStatus) -> list[Event]:
    """Return an event for each condition that is new or has another reason, and for each new driver warning.

    There are no duplicates, and no events for what stays the same.
    """
    found = [_event(before.condition(c.type), c) for c in after.conditions or []]
    told = before.warnings or []
    new = [Event("Warning", "DriverWarning", text) for text in after.warnings or [] if text not in told]
    return list(dict.fromkeys([*(event for event in found if event is not None), *new]))


def _event(before: Condition | None, after: Condition) -> Event | None:
    if before is not None and (before.status, before.reason) == (after.status, after.reason):
        same_edit = before.observed_generation == after.observed_generation
        if after.type != "Stalled" or same_edit or before.message == after.message:
            return None
    if after.type == "Reconciling" or after.reason in _OF_MANY:
        return None  # Ready says as much
    good = after.status == "True" if after.type == "Ready" else False
    quiet = good or after.reason in _QUIET
    return Event("Normal" if quiet else "Warning", after.reason, after.message)


_OF_MANY = ("WaitingForTurn", "RolloutStopped")
"""Reasons that many pipelines have at once, all explained by the Event of one of them."""
_QUIET = (
    "Running",
    "Suspended",
    "Restarting",
    "DriverPending",
    "DriverStarting",
    "SourceConnecting",
    "Scheduled",
    "Deleting",
    "FormerObject",
    "RollingOut",
)
"""Reasons for not being ready that are as intended."""


def conditions_of(
    resource: Resource, wanted: Iterable[tuple[ConditionType, str, Verdict]], now: datetime
) -> Iterator[Condition]:
    """Yield the conditions, each with the time of its last transition."""
    for type, value, verdict in wanted:
        before = resource.status.condition(type)
        since = before.last_transition_time if before is not None and before.status == value else iso(now)
        yield Condition(
            type=type,
            status=_truth(value),
            observed_generation=resource.generation,
            last_transition_time=since,
            reason=verdict.reason,
            message=cut_off(verdict.message, MESSAGE_SHOWN),
        )


def _truth(value: str) -> Literal["True", "False", "Unknown"]:
    return "True" if value == "True" else "False" if value == "False" else "Unknown"


def _conditions(case: Case, health: Health) -> Iterator[Condition]:
    said = Verdict(health.reason, health.message)
    wanted: list[tuple[ConditionType, str, Verdict]] = [("Ready", health.ready, said)]
    stalled = _stalled(case, health)
    if stalled is not None:
        wanted.append(("Stalled", "True", stalled))
    elif health.reconciling:  # kstatus wants one of the two: what waits for a person is not in progress
        wanted.append(("Reconciling", "True", said))
    for type, look in _FINDINGS:
        found = look(case)
        if found is not None:
            wanted.append((type, "True", found))
    for condition in conditions_of(case.observed.resource, wanted, case.now):
        yield _of_last_good(case, condition) if condition.type == "Ready" else condition


def _of_last_good(case: Case, ready: Condition) -> Condition:
    """Return Ready with an earlier generation while an edit is refused.

    Otherwise, whoever waits for the edit to become ready would be told that it is.
    """
    if case.decision.refusal is None or case.decision.spec is None:
        return ready
    before = case.observed.resource.status.condition("Ready")
    known = (before.observed_generation if before is not None else None) or 0
    earlier = min(known, case.observed.resource.generation - 1)
    return ready.model_copy(update={"observed_generation": earlier})


def _stalled(case: Case, health: Health) -> Verdict | None:
    """Return what a person has to resolve, even if the last good spec stays in effect in the meantime."""
    if case.decision.refusal is not None:
        return case.decision.refusal
    if health.stalled:
        return Verdict(health.reason, health.message)
    obstacles = [o for o in case.observed.obstacles if o.reason in _NEED_SOMEONE]
    return Verdict(obstacles[0].reason, obstacles[0].message) if obstacles else _ended_by_positions(case)


def _ended_by_positions(case: Case) -> Verdict | None:
    """Report positions that start again if they have ended the driver. Newer ones go on with other tables."""
    report, before = case.observed.report, case.observed.resource.status.condition("Stalled")
    if report is None or report.said.positions_restarted:
        return None
    return _source_restarted(case) if report.said.source_restarted or before is not None else None


_NEED_SOMEONE = ("ForeignObject", "Refused", "InvalidSpec", "PodRefused", "QuotaExceeded")
"""Obstacles that do not go away on their own."""


def _schema_drift(case: Case) -> Verdict | None:
    """Report column changes until they are acknowledged."""
    drift = [(table.source, each) for table in _reported(case) for each in table.drift]
    if not drift:
        return None
    text = _enumerated([f"{source}.{d.column} {d.change}: {d.done}" for source, d in drift])
    newest = max((d.seen for _, d in drift if d.seen is not None), default=iso(case.now))
    return Verdict("ColumnsChanged", f"{text}. To acknowledge, set spec.driftAcknowledgedUntil: {newest}")


def _data_quality(case: Case) -> Verdict | None:
    """Report records in quarantine, or else mirrors that were found to differ from their source."""
    report = case.observed.report
    number = report.said.totals.quarantined_open if report is not None else 0
    if not number:
        return _differs(report.said.verified) if report is not None else None
    tables = [f"{t.source}: {t.quarantined_open}" for t in _reported(case) if t.quarantined_open]
    where = f" ({_enumerated(tables)})" if tables else ""
    return Verdict(
        "RecordsQuarantined",
        f"{number} records{where} are in quarantine: fix the cause, then run `lakemirror replay`",
    )


def _differs(verified: Verification | None) -> Verdict | None:
    """Report what the last comparison with the source found, but not what it could not compare."""
    found = [each for each in verified.findings if _wrong(each)] if verified is not None else []
    if verified is None or not found:
        return None
    texts = [
        f"{each.source}: {each.missing} missing, {each.extra} extra, {each.differing} differing"
        for each in found
    ]
    return Verdict(
        "MirrorDiffers",
        f"compared with its source at {verified.ended_at}: {_enumerated(texts)}. The first keys are in "
        "verified.json beside the checkpoint; `lakemirror verify` lists all of them, and with --repair has "
        "them read again",
    )


def _wrong(table: VerifiedTable) -> int:
    return table.missing + table.extra + table.differing


def _source_restarted(case: Case) -> Verdict | None:
    """Report that the source has restarted.

    The next run of a schedule does not report it until it encounters it again.
    """
    report, before = case.observed.report, case.observed.resource.status.condition("SourceRestarted")
    if report is None:
        return None
    told = report.said.source_restarted or report.said.positions_restarted
    if told:
        if not is_of_revision(case.observed, case.decision.revision):
            return None  # the edit since may have mended it
        return Verdict("PositionsStartAgain", told)
    if before is None or case.decision.revision != _ran(case.observed):
        return None
    known = case.observed.resource.status.checkpoint
    if report.said.batch_id in (None, known.batch_id if known is not None else None):
        return Verdict(before.reason, before.message)
    return None


def _table_failed(case: Case) -> Verdict | None:
    report = case.observed.report
    failed = [f"{t.source}: {t.error}" for t in _reported(case) if t.error]
    if report is not None and report.said.table_failed:
        failed.insert(0, report.said.table_failed)
    return Verdict("NotWritten", _enumerated(failed)) if failed else None


def _image_rollout(case: Case) -> Verdict | None:
    """Report a new default image that the driver does not run yet, or is not Ready on yet."""
    turn = case.observed.turn
    if turn is None or not turn.state or turn.image != case.decision.image:
        return None
    kept, new = f"the driver stays on {turn.image}", f"the new default image {turn.default}"
    if turn.state == "Waiting":
        return Verdict("WaitingForTurn", f"{kept} until it is its turn to be restarted on {new}")
    if turn.state == "Stopped":
        # Nobody learns the names of pipelines in other namespaces.
        same = turn.stopped_by.partition("/")[0] == case.observed.resource.namespace
        whose = f"pipeline {turn.stopped_by}" if same else "a pipeline of another namespace"
        return Verdict(
            "RolloutStopped",
            f"{kept}: {whose} is not Ready on {new}, so the rollout has stopped. It goes on when that "
            "pipeline is Ready, or when the operator gets another driverImage",
        )
    assert turn.moved is not None
    done = f"the driver was restarted on {new} at {iso(turn.moved.at)} (before: {turn.moved.before})"
    if turn.state == "Moving":
        follow = ". Others follow when it is Ready" if turn.moved.ready else ""
        return Verdict("RollingOut", f"{done}{follow}")
    return Verdict(
        "RolloutFailed",
        f"{done} and has not been Ready since. The rollout has stopped: other drivers stay on their image. "
        "If the image is at fault, give the operator another driverImage; the former one brings this "
        "pipeline back. Otherwise correct what Ready says, or name an image in spec.spark.image: then the "
        "rollout goes on",
    )


_FINDINGS: tuple[tuple[ConditionType, Callable[[Case], Verdict | None]], ...] = (
    ("SchemaDrift", _schema_drift),
    ("DataQuality", _data_quality),
    ("SourceRestarted", _source_restarted),
    ("TableFailed", _table_failed),
    ("ImageRollout", _image_rollout),
)


def _ran(observed: Observed) -> str | None:
    return observed.resource.status.driver.revision if observed.resource.status.driver is not None else None


def _reported(case: Case) -> list[TableReport]:
    """Return the tables of the report without acknowledged drift."""
    report, spec = case.observed.report, case.decision.spec
    tables = report.said.tables if report is not None else []
    if spec is None or spec.drift_acknowledged_until is None:
        return tables
    until = datetime.fromisoformat(spec.drift_acknowledged_until)
    return [
        table.model_copy(update={"drift": [each for each in table.drift if _later(each.seen, until)]})
        for table in tables
    ]


def _later(seen: str | None, until: datetime) -> bool:
    return seen is not None and datetime.fromisoformat(seen) > until


def _enumerated(texts: list[str]) -> str:
    more = len(texts) - _NAMED
    return "; ".join(texts[:_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _driver(case: Case) -> DriverStatus | None:
    before, pod, tally = case.observed.resource.status.driver, case.pod, case.tally
    if pod is None and before is None:
        return None
    suspended = case.decision.suspended
    former = before.uid if before is not None and case.decision.hold is None else None
    return DriverStatus(
        pod=pod.name if pod is not None else None,
        uid=pod.uid if pod is not None else former,
        revision=(pod.revision if pod is not None else None) or case.decision.revision or None,
        run_id=case.report.said.run_id if case.report is not None else None,
        started_at=iso(pod.started) if pod is not None and pod.started is not None else None,
        image=pod.image if pod is not None else None,
        restarts=tally.restarts,
        exits=tally.exits,
        consecutive_failures=0 if suspended else tally.failures,
        last_failure=tally.last,
    )


def _checkpoint(before: CheckpointReport | None, report: Report | None) -> CheckpointReport | None:
    """Return the driver's progress. What a new run does not know yet is kept from the previous run."""
    if report is None:
        return before
    now = CheckpointReport(**{name: getattr(report.said, name) for name in CheckpointReport.model_fields})
    if before is None or now.batch_id is not None:
        return now
    return now.model_copy(update={"batch_id": before.batch_id, "committed_at": before.committed_at})


def _handled(case: Case) -> Handled | None:
    """Return the tokens that were handled.

    A token counts as handled once a driver runs with it and has read again what it asks for.
    """
    before, spec, revision = case.observed.resource.status.handled, case.decision.spec, case.decision.revision
    runs = case.pod is not None and case.pod.started is not None and case.pod.revision == revision
    if spec is None or not (runs or _ended(case)):
        return before
    return Handled(
        restart_token=spec.restart_token,
        reset_token=spec.spark.reset_token,
        resync=_resynced(case, spec, (before.resync if before is not None else None) or {}) or None,
    )


def _resynced(case: Case, spec: PipelineSpec, before: Mapping[str, str]) -> dict[str, str]:
    """Return each table's newest token that was acted on, ``before`` or by now.

    The token of a suspended table waits.
    """
    asked = {table.source: table.resync_token for table in spec.tables if table.resync_token}
    parked = {table.source for table in spec.tables if table.suspend}
    if _ended(case):
        under_way = parked
    elif case.report is None:
        under_way = set(asked)
    else:
        under_way = parked | set(case.report.said.resyncing)
    former = {source: before[source] for source in asked if source in before}
    return former | {source: token for source, token in asked.items() if source not in under_way}


def _ended(case: Case) -> bool:
    """Return whether a run of the wanted revision succeeded: all was read, and its pod may be gone."""
    spec, revision = case.decision.spec, case.decision.revision
    if spec is None or spec.trigger.available_now is None:
        return False
    return any(w.state == "Succeeded" and w.revision == revision for w in case.observed.workloads)


def _small(status: PipelineStatus, tables: list[TableReport] | None) -> PipelineStatus:
    """Return the status with as many of the tables as fit."""
    while True:
        whole = status.model_copy(update={"tables": tables})
        if not tables or len(json.dumps(document(whole)).encode()) <= MOST_BYTES:
            return whole
        tables = tables[: len(tables) * 3 // 4]


def document(status: PipelineStatus) -> dict[str, Any]:
    """Return the status as the API takes it. In tables, fields with default values are left out."""
    found = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    if status.tables is not None:
        found["tables"] = [
            table.model_dump(mode="json", by_alias=True, exclude_defaults=True) for table in status.tables
        ]
    return found
