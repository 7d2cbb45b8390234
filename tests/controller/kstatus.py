"""What kstatus says of a resource: the algorithm of fluxcd/cli-utils, as Flux and Helm apply it.

https://github.com/fluxcd/cli-utils/blob/v1.2.1/pkg/kstatus/status/generic.go and ``status.go``: the rules
that concern a kind of which kstatus knows nothing in particular.
"""

from __future__ import annotations

from typing import Any, Literal

KStatus = Literal["Current", "InProgress", "Failed", "Terminating"]


def kstatus(body: dict[str, Any]) -> KStatus:
    """The status of a resource, given as the API has it."""
    metadata, status = body["metadata"], body.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = status.get("conditions") or []
    for condition in conditions:
        if (condition["type"], condition["status"]) == ("Reconciling", "True"):
            return "InProgress"
        if (condition["type"], condition["status"]) == ("Stalled", "True"):
            return "Failed"
    for condition in conditions:
        if condition["type"] == "Ready":
            return "Current" if condition["status"] == "True" else "InProgress"
    return "Current"


def waits_for_ready(body: dict[str, Any]) -> bool:
    """Whether ``kubectl wait --for=condition=Ready`` goes on waiting.

    https://github.com/kubernetes/kubectl/blob/v0.34.0/pkg/cmd/wait/condition.go: a condition of an earlier
    generation does not count.
    """
    for condition in (body.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Ready":
            seen = condition.get("observedGeneration", body["status"].get("observedGeneration"))
            return condition["status"] != "True" or (seen or 0) < body["metadata"]["generation"]
    return True
