"""How often the driver failed in a row. Pure; the status carries the count from one pass to the next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lakemirror.api import duration_seconds
from lakemirror.api.spec import Restart
from lakemirror.api.status import DriverStatus, Failure
from lakemirror.controller.values import Ending, Pod, Workload

_MESSAGE_KEPT = 1024


@dataclass(frozen=True)
class Tally:
    """``exits`` of the pod so far, ``failures`` in a row, and the last of them."""

    exits: int = 0
    failures: int = 0
    last: Failure | None = None
    forgiven_at: datetime | None = None
    """When the failures will be forgotten if the driver goes on running."""


def count(
    before: DriverStatus | None,
    revision: str,
    pod: Pod | None,
    workload: Workload | None,
    restart: Restart,
    now: datetime,
) -> Tally:
    """Carry on the count of ``before``, the driver in the last status.

    A new revision begins at none; a pod that ran for ``resetAfter`` is forgiven; exit code 0 is not a
    failure.
    """
    if before is None or before.revision != revision:
        before = DriverStatus()
    failures, last = before.consecutive_failures or 0, before.last_failure
    if pod is None:
        if workload is not None and workload.kind in ("Job", "SparkApplication"):
            failures = max(failures, workload.failures)
        return Tally(0, failures, last)
    counted = (before.restarts or 0) if before.uid == pod.uid else 0
    ended = max(0, pod.exits - counted)
    if ended and pod.ending is not None and pod.ending.code != 0:
        failures, last = failures + ended, failure(pod.ending)
    if workload is not None and workload.kind != "StatefulSet":
        failures = workload.failures
    forgiven_at = None
    if pod.started is not None and failures:
        forgiven_at = pod.started + timedelta(seconds=duration_seconds(restart.reset_after))
        if now >= forgiven_at:
            failures, forgiven_at = 0, None
    return Tally(pod.exits, failures, last, forgiven_at)


def failure(ending: Ending) -> Failure:
    """A container's end as the status tells it: of a long message its end, where the error stands."""
    message = ending.message.strip()
    said = message[-_MESSAGE_KEPT:] or f"exit code {ending.code}"
    at = ending.at.isoformat().replace("+00:00", "Z") if ending.at is not None else None
    return Failure(reason=ending.reason or "Error", message=said, at=at)
