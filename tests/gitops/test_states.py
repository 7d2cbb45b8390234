"""The list of states is whole: each verdict of the operator's code is reached by one of them."""

from __future__ import annotations

import ast
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from lakemirror.controller import decide, health, plan, status
from lakemirror.controller.decide import Verdict
from lakemirror.controller.health import Health
from tests.gitops.states import STATES

pytestmark = pytest.mark.guarantee(
    "Argo CD, Flux, kstatus and `kubectl wait` judge every state correctly; no verdict of the operator is "
    "missing from these states"
)

Site = tuple[str, int]
"""A module and the line on which it makes a verdict."""


def sites(module: ModuleType) -> set[Site]:
    """Where a module's code makes a ``Health`` or a ``Verdict``."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    made = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id in ("Health", "Verdict")]
    return {(module.__name__, call.lineno) for call in made}


def test_every_verdict_of_the_operator_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[Site] = set()

    def noting(kind: Any) -> Any:
        def made(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1)
            seen.add((caller.f_globals["__name__"], caller.f_lineno))
            return kind(*args, **kwargs)

        return made

    modules = (decide, health, plan, status)
    for module in modules:
        for name, kind in (("Health", Health), ("Verdict", Verdict)):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, noting(kind))
    for state in STATES.values():
        state.made()
    known = set().union(*map(sites, modules))
    assert len(known) > 50
    assert known - seen == set(), "a verdict that no state of tests/gitops/states.py has"
