"""Statuses of other operators' SparkApplications, in the order in which they write them."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.controller.backends import APACHE, KUBEFLOW, application


def kubeflow(state: str, attempts: int = 1, error: str = "") -> dict[str, Any]:
    return {"applicationState": {"state": state, "errorMessage": error}, "executionAttempts": attempts}


KUBEFLOW_RUNS: dict[str, list[tuple[dict[str, Any], tuple[str, int]]]] = {
    "succeeds": [
        ({}, ("Active", 0)),
        (kubeflow("SUBMITTED"), ("Active", 0)),
        (kubeflow("RUNNING"), ("Active", 0)),
        (kubeflow("SUCCEEDING"), ("Active", 0)),
        (kubeflow("COMPLETED"), ("Succeeded", 0)),
    ],
    "fails, is repeated, is given up": [
        (kubeflow("RUNNING"), ("Active", 0)),
        (kubeflow("FAILING", error="driver container failed"), ("Active", 1)),
        (kubeflow("PENDING_RERUN"), ("Active", 1)),
        (kubeflow("SUBMITTED", 2), ("Active", 1)),
        (kubeflow("RUNNING", 2), ("Active", 1)),
        (kubeflow("FAILING", 2), ("Active", 2)),
        (kubeflow("FAILED", 2, "driver container failed"), ("Failed", 2)),
    ],
    "cannot be submitted": [
        (kubeflow("SUBMISSION_FAILED", 0, "no rights"), ("Active", 0)),
        (kubeflow("FAILED", 0, "no rights"), ("Failed", 0)),
    ],
    "a state of the future": [(kubeflow("HIBERNATING"), ("Active", 0))],
}


@pytest.mark.parametrize("run", KUBEFLOW_RUNS)
def test_kubeflow(run: str) -> None:
    for status, expected in KUBEFLOW_RUNS[run]:
        found = application(KUBEFLOW, status)
        assert (found.state, found.failures) == expected, status
    if run.endswith("given up"):
        assert found.message == "driver container failed"


def apache(*states: str, restarts: int = 0, message: str = "") -> dict[str, Any]:
    """The status after these states, of which the last is the current one."""
    history = {str(number): {"currentStateSummary": state} for number, state in enumerate(states)}
    history[str(len(states) - 1)]["message"] = message
    return {
        "currentState": history[str(len(states) - 1)],
        "stateTransitionHistory": history,
        "currentAttemptSummary": {"attemptInfo": {"id": restarts, "restartCounter": restarts}},
    }


STARTED = ("Submitted", "DriverRequested", "DriverStarted", "DriverReady", "RunningHealthy")


@pytest.mark.parametrize(
    ("status", "state", "failures"),
    [
        ({}, "Active", 0),
        (apache(*STARTED), "Active", 0),
        (apache(*STARTED, "Succeeded"), "Active", 0),
        (apache(*STARTED, "Succeeded", "ResourceReleased"), "Succeeded", 0),
        (apache(*STARTED, "Failed"), "Active", 0),
        (apache(*STARTED, "Failed", "ScheduledToRestart", restarts=1), "Active", 1),
        (apache(*STARTED, "Failed", "ResourceReleased", restarts=2, message="exceeded"), "Failed", 3),
        (apache("Submitted", "SchedulingFailure", "TerminatedWithoutReleaseResources"), "Failed", 1),
        (apache(*STARTED, "DriverEvicted", "ResourceReleased"), "Failed", 1),
    ],
)
def test_apache(status: dict[str, Any], state: str, failures: int) -> None:
    found = application(APACHE, status)
    assert (found.state, found.failures) == (state, failures)
    if state == "Failed":
        assert found.message


def test_the_history_of_an_apache_application_is_in_the_order_of_its_numbers() -> None:
    many = apache(
        *(["RunningHealthy", "RunningWithBelowThresholdExecutors"] * 6), "Succeeded", "ResourceReleased"
    )
    assert application(APACHE, many).state == "Succeeded"
