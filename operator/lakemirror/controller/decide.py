"""Decides what should run: the newest spec, the last good one, or nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from lakemirror.api import ManifestError, PipelineSpec
from lakemirror.api.errors import line
from lakemirror.api.supported import not_supported, wrong_sql
from lakemirror.controller import fields, places, podtemplate
from lakemirror.controller.claims import claims
from lakemirror.controller.values import DeletionPolicy, Observed, Rival, Settings, Stated


@dataclass(frozen=True)
class Verdict:
    """The reason and message of a condition."""

    reason: str
    message: str


@dataclass(frozen=True)
class Decision:
    """The spec that should run, and why it is not the newest one or may not run now.

    ``spec`` is None if nothing can run. ``refusal`` says why it is not the newest spec. ``hold`` says why no
    driver may run now.
    """

    spec: PipelineSpec | None
    revision: str = ""
    image: str = ""
    refusal: Verdict | None = None
    hold: Verdict | None = None

    @property
    def suspended(self) -> bool:
        return self.hold is not None and self.hold.reason == "Suspended"

    @property
    def conflicts(self) -> bool:
        return self.hold is not None and self.hold.reason == "Conflict"


def decide(spec: PipelineSpec | ManifestError, observed: Observed, settings: Settings) -> Decision:
    """Choose the newest spec if it is valid and the checkpoint can follow it, otherwise the last good one."""
    if observed.resource.deleting:
        spec = _to_delete(spec, observed)
    refusal = _refusal(spec, observed) or _taken(spec, observed) or _refused_by_api(spec, observed)
    chosen = _last_good(spec, observed) if refusal is not None else spec
    if chosen is None or isinstance(chosen, ManifestError):
        return Decision(None, refusal=refusal)
    if refusal is not None:
        goes_on = "Until this is resolved, the last good spec stays in effect"
        refusal = Verdict(refusal.reason, f"{refusal.message.rstrip('.')}. {goes_on}")
    default = observed.turn.image if observed.turn is not None else settings.driver_image
    image = chosen.spark.image or default
    revision = fields.revision(chosen, image)
    return Decision(chosen, revision, image, refusal, _hold(chosen, observed, revision))


def _to_delete(spec: PipelineSpec | ManifestError, observed: Observed) -> PipelineSpec | ManifestError:
    """Return the spec whose data goes with the pipeline: what it has, and not what it would get."""
    before, namespace = observed.accepted, observed.resource.namespace
    if before is None or isinstance(spec, ManifestError):
        return spec
    if claims(spec, namespace) == claims(before.spec, namespace):
        return spec
    return before.spec.model_copy(update={"deletion_policy": spec.deletion_policy})


def _refusal(spec: PipelineSpec | ManifestError, observed: Observed) -> Verdict | None:
    if isinstance(spec, ManifestError):
        return Verdict("InvalidSpec", str(spec).replace("\n", "; "))
    before = observed.accepted.spec if observed.accepted is not None else None
    return wrong_in_itself(spec, before) or _cannot_follow(spec, observed) or _on_no_volume(spec, before)


def wrong_in_itself(spec: PipelineSpec, before: PipelineSpec | None = None) -> Verdict | None:
    """Return what is wrong with a spec, wherever it runs.

    SQL that ran ``before`` is not refused: the driver holds the table for it, and the others continue.
    """
    unsupported = not_supported(spec)
    if unsupported:
        return Verdict("NotSupported", _joined(line(path, message) for path, message in unsupported))
    known = wrong_sql(before) if before is not None else []
    template = podtemplate.wrong_in(spec.spark)
    return _invalid(line(*found) for found in wrong_sql(spec) if found not in known) or _invalid(
        [f"spec.spark.{template}"] if template is not None else []
    )


def _on_no_volume(spec: PipelineSpec, before: PipelineSpec | None) -> Verdict | None:
    """Return which paths are on the disk of a pod. One that was there ``before`` is left alone."""
    known = places.wrong(before) if before is not None else []
    return _invalid(wrong for wrong in places.wrong(spec) if wrong not in known)


def _invalid(messages: Iterable[str]) -> Verdict | None:
    joined = _joined(messages)
    return Verdict("InvalidSpec", joined) if joined else None


def _joined(messages: Iterable[str]) -> str:
    return "; ".join(messages)


def _cannot_follow(spec: PipelineSpec, observed: Observed) -> Verdict | None:
    """Return what the checkpoint or a mirror cannot follow."""
    before = observed.accepted
    if before is None or not begun(observed) or fields.accepts(before.spec, spec):
        return None
    changed = fields.incompatible(before.spec, spec, observed.mirrored, observed.refused)
    if not changed:
        return None
    why = f"{_listed(changed)}: the checkpoint cannot follow this change"
    return Verdict("ResetNeeded", f"{why}. Change it back{''.join(_alternatives(changed))}")


def _alternatives(changed: Sequence[str]) -> Iterator[str]:
    """Yield what else to do about a change that the checkpoint cannot follow, as parts of a sentence."""
    kept = [path for path in changed if fields.kept_by_mirrors(path)]
    if all(fields.is_of_table(path) for path in changed):
        yield ", or give each table another target and a new resyncToken"
        if kept:
            return
    yield ", or give spec.spark.resetToken a new value, to read everything again that the source still has"
    if kept:
        yield f". With another {_listed(kept)}, the target has to change, too: a mirror stays as it was made"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(f"spec.{path}" for path in paths[:10])


def _taken(spec: PipelineSpec | ManifestError, observed: Observed) -> Verdict | None:
    """Return why an edit leads to what another pipeline has, if there is an earlier spec to fall back on."""
    last = _last_good(spec, observed)
    if last is None or isinstance(spec, ManifestError):
        return None
    rival = _rival(spec, observed, but=last)
    if rival is None:
        return None
    return Verdict("Conflict", f"{_belongs(rival, observed)}: change it back, or {_move_one(observed)}")


def _rival(spec: PipelineSpec, observed: Observed, but: PipelineSpec | None = None) -> Rival | None:
    """Return the first rival that claims what ``spec`` does, ``but`` not that spec."""
    if not observed.rivals:
        return None
    namespace = observed.resource.namespace
    claimed = claims(spec, namespace) - (claims(but, namespace) if but is not None else frozenset())
    return next((rival for rival in observed.rivals if rival.claim in claimed), None)


def _belongs(rival: Rival, observed: Observed) -> str:
    """Say whose a place is. Who guesses a place of another namespace learns nothing of that namespace."""
    namespace = rival.pipeline.partition("/")[0]
    same = namespace == observed.resource.namespace
    whose = f"pipeline {rival.pipeline}" if same else "a pipeline of another namespace"
    why = "which has it already" if rival.has else "which is older"
    return f"{rival.claim} belongs to {whose}, {why}"


def _move_one(observed: Observed) -> str:
    return f"give one of them another{_MOVED if begun(observed) else ''}"


def _refused_by_api(spec: PipelineSpec | ManifestError, observed: Observed) -> Verdict | None:
    """Return why an edit was refused when it was tried, if there is an earlier spec to fall back on."""
    if spec == _last_good(spec, observed) or observed.accepted is None:
        return None
    refused = [o for o in observed.obstacles if o.reason not in ("FormerObject", "NamespaceTerminating")]
    return Verdict(refused[0].reason, refused[0].message) if refused else None


def _last_good(spec: PipelineSpec | ManifestError, observed: Observed) -> PipelineSpec | None:
    """Return the spec that has run so far, changed by what counts even if the rest of an edit is refused.

    It can be suspended, and its deletion policy can be replaced by one that deletes less.
    """
    if observed.accepted is None:
        return None
    before, stated = observed.accepted.spec, _stated(spec, observed)
    suspend = before.suspend if stated.suspend is None else stated.suspend
    policies = (before.deletion_policy, stated.deletion_policy or before.deletion_policy)
    policy = min(policies, key=get_args(DeletionPolicy).index)
    if (suspend, policy) == (before.suspend, before.deletion_policy):
        return before  # as it was written: a copy would name the two fields, even with their defaults
    return before.model_copy(update={"suspend": suspend, "deletion_policy": policy})


def _stated(spec: PipelineSpec | ManifestError, observed: Observed) -> Stated:
    if isinstance(spec, PipelineSpec):
        return Stated(spec.suspend, spec.deletion_policy)
    return observed.resource.stated


def begun(observed: Observed) -> bool:
    """Return whether anything has been mirrored, so that there is a checkpoint to follow."""
    checkpoint, totals = observed.resource.status.checkpoint, observed.resource.status.totals
    report = observed.report
    return (
        (checkpoint is not None and checkpoint.batch_id is not None)
        or (totals is not None and bool(totals.applied))
        or (report is not None and report.said.batch_id is not None)
    )


_MOVED = ", with a new spec.spark.resetToken, or a new resyncToken where it is the target of a single table"
"""What a pipeline that has begun needs besides to be moved."""


def _hold(spec: PipelineSpec, observed: Observed, revision: str) -> Verdict | None:
    """Return why no driver may run; the first reason counts."""
    rival = _rival(spec, observed)
    if rival is not None:
        return Verdict("Conflict", f"{_belongs(rival, observed)}: {_move_one(observed)}")
    if spec.suspend:
        return Verdict("Suspended", "spec.suspend is true: no driver runs, and everything stays as it is")
    driver, ready = observed.resource.status.driver, observed.resource.status.condition("Ready")
    if driver is None or driver.revision != revision:
        return None
    # With a schedule, the next run tries again, as after any other failure.
    if ready is not None and ready.reason in _SOURCE_STOPS and spec.trigger.schedule is None:
        return Verdict(ready.reason, ready.message)
    if (driver.consecutive_failures or 0) > spec.restart.backoff_limit:
        last = driver.last_failure.message if driver.last_failure is not None else None
        return Verdict(
            "BackoffLimitExceeded",
            f"the driver failed {driver.consecutive_failures} times in a row: fix the cause and give "
            f"spec.restartToken a new value{f'. The last failure: {last}' if last else ''}",
        )
    return None


_SOURCE_STOPS = ("SourceRestarted", "SourceLost")
"""Reasons of Ready for which another run of the same revision would end like the last one."""
