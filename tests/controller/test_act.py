"""What counts as applied already: what the API server returns is not what was written, letter by letter."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lakemirror.controller import names
from lakemirror.controller.act import is_applied


def workload(amount: Any, applied: str = "1") -> dict[str, Any]:
    resources = {"limits": {"memory": amount}, "requests": {"memory": amount}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "shop-driver", "annotations": {names.APPLIED: applied}},
        "spec": {"template": {"spec": {"containers": [{"name": "driver", "resources": resources}]}}},
    }


@pytest.mark.parametrize(
    ("wanted", "returned"),
    [
        ("3072Mi", "3Gi"),
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        (0.5, "500m"),
        (1, "1"),
        ("1000m", "1"),
        ("2Gi", "2Gi"),
    ],
)
def test_a_quantity_that_is_written_in_another_way_is_applied(wanted: Any, returned: str) -> None:
    assert is_applied(workload(wanted), workload(returned))


@pytest.mark.parametrize(
    ("wanted", "returned"), [("3072Mi", "3072M"), ("2Gi", "2"), (1, "1m"), ("2Gi", None)]
)
def test_another_quantity_is_not_applied(wanted: Any, returned: Any) -> None:
    assert not is_applied(workload(wanted), workload(returned))


def test_what_the_server_fills_in_does_not_count_and_what_somebody_changed_does() -> None:
    wanted, there = workload("2Gi"), workload("2Gi")
    there["spec"]["podManagementPolicy"] = "OrderedReady"
    assert is_applied(wanted, there)
    changed = copy.deepcopy(there)
    changed["spec"]["template"]["spec"]["containers"][0]["name"] = "other"
    assert not is_applied(wanted, changed)
    assert not is_applied(wanted, workload("2Gi", applied="2"))
