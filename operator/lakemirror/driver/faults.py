"""Named points at which a test can make the driver crash. Nothing is armed outside of tests."""

from __future__ import annotations

from typing import Literal

Point = Literal["after-tombstones", "after-rows", "after-audit", "before-checkpoint-commit"]
JdbcPoint = Literal["in-transaction"]
AuditPoint = Literal["after-audit-commit", "after-audit-history"]
ReplayPoint = Literal["after-replay-applied", "after-replay-settled", "after-reload-part"]
EntryPoint = Literal["after-files", "before-entry", "after-entry"]
"""The steps of a commit that is an entry of the log of our own."""
AnyPoint = Point | JdbcPoint | AuditPoint | ReplayPoint | EntryPoint


class InjectedCrash(BaseException):
    """Raised at an armed point. It is a BaseException so that no retry or handler swallows it."""


_armed: dict[AnyPoint, int] = {}


def arm(point: AnyPoint, *, after: int = 0) -> None:
    """Crash once at ``point``, after it has been passed ``after`` times."""
    _armed[point] = after


def reach(point: AnyPoint) -> None:
    """Crash if ``point`` is armed. The driver calls this when it reaches the point."""
    left = _armed.get(point)
    if left is None:
        return
    if left > 0:
        _armed[point] = left - 1
        return
    del _armed[point]
    raise InjectedCrash(point)
