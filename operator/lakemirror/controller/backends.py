"""Interprets the status of other operators' SparkApplications.

Sources, both as of August 2026: ``api/v1beta2/sparkapplication_types.go`` (Kubeflow);
``ApplicationStateSummary.java`` and ``ApplicationStatus.terminateOrRestart`` (Apache). States that are not
named here, including future ones, count as Active; the driver's pod and its report then tell more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lakemirror.controller.values import State

KUBEFLOW = "sparkoperator.k8s.io/v1beta2"
APACHE = "spark.apache.org/v1"


class Application(NamedTuple):
    """An application's state, the reason for it, and the number of failed runs."""

    state: State
    message: str
    failures: int


def application(api_version: str, status: Mapping[str, Any]) -> Application:
    """Return the state of a SparkApplication of either operator."""
    return _kubeflow(status) if api_version.startswith("sparkoperator.k8s.io/") else _apache(status)


_KUBEFLOW_ENDS: dict[str, State] = {"COMPLETED": "Succeeded", "FAILED": "Failed"}
"""SUCCEEDING, FAILING, SUBMISSION_FAILED and PENDING_RERUN are transitional and may lead to another run."""


def _kubeflow(status: Mapping[str, Any]) -> Application:
    current = status.get("applicationState") or {}
    state = _KUBEFLOW_ENDS.get(current.get("state", ""), "Active")
    failed = current.get("state") in ("FAILED", "FAILING", "PENDING_RERUN")
    attempts = status.get("executionAttempts") or 0
    return Application(state, current.get("errorMessage", ""), attempts if failed else max(0, attempts - 1))


_APACHE_ENDS = ("ResourceReleased", "TerminatedWithoutReleaseResources")
"""Succeeded and the failure states are transitional: one of these or ScheduledToRestart follows."""


def _apache(status: Mapping[str, Any]) -> Application:
    current = status.get("currentState") or {}
    attempt = (status.get("currentAttemptSummary") or {}).get("attemptInfo") or {}
    failures = attempt.get("restartCounter", 0)
    if current.get("currentStateSummary") not in _APACHE_ENDS:
        return Application("Active", "", failures)
    history = status.get("stateTransitionHistory") or {}
    past = [history[number] for number in sorted(history, key=int)]
    before = [s for s in past if s.get("currentStateSummary") not in _APACHE_ENDS]
    last = before[-1] if before else current
    if last.get("currentStateSummary") == "Succeeded":
        return Application("Succeeded", "", failures)
    message = current.get("message") or last.get("message") or last.get("currentStateSummary", "")
    return Application("Failed", message, failures + 1)
