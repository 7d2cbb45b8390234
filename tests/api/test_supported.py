"""What is not supported, and what would have no effect, is refused by name and by nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.api import crd
from lakemirror.api.supported import GAPS, not_supported
from tests.api.not_supported import NOT_SUPPORTED
from tests.controller.builders import spec


@pytest.mark.parametrize(("change", "path", "word"), NOT_SUPPORTED)
def test_it_is_refused_with_its_path(change: dict[str, Any], path: str, word: str) -> None:
    [(found, message)] = not_supported(spec(**change))
    assert found == path
    assert word in message


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"defaults": {"mode": "append"}},
        {"defaults": {"mode": "append", "delete": {"type": "hard"}}},
        {
            "defaults": {"mode": "append", "delete": {"type": "soft", "column": "gone"}},
            "tables": [{"source": "a", "mode": "scd1"}],
        },
        {"defaults": {"mode": "append"}, "tables": [{"source": "a", "mode": "scd1", "primaryKey": ["id"]}]},
        {"ordering": {"by": "timestamp", "toleranceMs": 5000}},
        {"restart": {"resetAfter": "30m"}, "spark": {"backend": "kubeflow"}},
        {"restart": {"resetAfter": "1h"}, "spark": {"backend": "apache"}},
    ],
)
def test_what_has_an_effect_is_not_refused(change: dict[str, Any]) -> None:
    assert not_supported(spec(**change)) == []


def test_each_gap_is_a_rule_of_the_crd() -> None:
    rules = [str(rule) for rule in _rules(crd.resource_schema())]
    for gap in GAPS:
        assert any(gap.rule[0] in rule for rule in rules), gap
        assert any(
            gap.path.replace("[]", "[public.a]") == path.removeprefix("spec.") for _, path, _ in NOT_SUPPORTED
        )


def _rules(node: dict[str, Any]) -> list[dict[str, Any]]:
    found = list(node.get("x-kubernetes-validations", []))
    for child in [*node.get("properties", {}).values(), *([node["items"]] if "items" in node else [])]:
        found += _rules(child)
    return found
