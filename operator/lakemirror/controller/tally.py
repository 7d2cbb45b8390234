"""Counts how often the driver failed and was restarted. Pure; the status carries the counts over."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from lakemirror.api import duration_seconds
from lakemirror.api.spec import Restart
from lakemirror.api.status import DriverStatus, Failure
from lakemirror.controller import causes
from lakemirror.controller.times import iso
from lakemirror.controller.values import Ending, Pod, Workload


@dataclass(frozen=True)
class Tally:
    """``exits`` of the pod so far, ``restarts`` of the revision, ``failures`` in a row, and the last one."""

    exits: int = 0
    restarts: int = 0
    failures: int = 0
    last: Failure | None = None
    forgiven_at: datetime | None = None
    """When the failures will be forgotten if the driver keeps running."""


def count(
    before: DriverStatus | None,
    revision: str,
    pod: Pod | None,
    workload: Workload | None,
    restart: Restart,
    now: datetime,
    lost: Ending | None = None,
) -> Tally:
    """Continue the counts of ``before``, the driver in the last status.

    A new revision starts from zero. The failures of a pod that ran for ``resetAfter`` are forgiven. Exit code
    0 is not a failure. Neither is a pod that had to go, but it is reported (``lost`` says how it ended).
    """
    if before is None or before.revision != revision:
        before = DriverStatus()
    failures, last, restarts = before.consecutive_failures or 0, before.last_failure, before.restarts or 0
    if lost is not None:
        last = failure(lost)
    if pod is None:
        if workload is not None and workload.kind in ("Job", "SparkApplication"):
            failures = max(failures, workload.failures)
        return Tally(before.exits or 0, restarts, failures, last)
    same = before.uid == pod.uid
    counted = (before.exits if before.exits is not None else restarts) if same else 0
    ended = max(0, pod.exits - counted)
    replaced = before.uid is not None and not same and not (workload and workload.kind == "CronJob")
    if ended and pod.ending is not None and pod.ending.code != 0:
        failures, last = failures + ended, failure(pod.ending, pod.memory_limit)
    if workload is not None and workload.kind != "StatefulSet":
        failures = workload.failures
    forgiven_at = None
    if pod.started is not None and failures:
        forgiven_at = pod.started + timedelta(seconds=duration_seconds(restart.reset_after))
        if now >= forgiven_at:
            failures, forgiven_at = 0, None
    return Tally(pod.exits, restarts + ended + replaced, failures, last, forgiven_at)


def failure(ending: Ending, memory_limit: str = "") -> Failure:
    """Convert an ending to the failure in the status."""
    at = iso(ending.at) if ending.at is not None else None
    return Failure(reason=ending.reason or "Error", message=causes.why(ending, memory_limit), at=at)
