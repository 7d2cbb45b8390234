"""How Argo CD and Flux run what a project gives them to judge its resources."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import cel
import lupa.lua51

ROOT = Path(__file__).parents[2]
ARGO = ROOT / "examples/gitops/argocd"
FLUX = ROOT / "examples/gitops/flux"
CUSTOMIZATION = ARGO / "resource_customizations/lakemirror.io/CdcPipeline"
SCRIPT = (CUSTOMIZATION / "health.lua").read_text()


class Verdict(NamedTuple):
    status: str
    message: str


def argo(body: Mapping[str, Any], script: str = SCRIPT) -> Verdict:
    """What Argo CD shows: argoproj/argo-cd, ``GetResourceHealth`` and ``util/lua``.

    Lua 5.1, as its interpreter has it, and nothing of the standard library but what it gives to scripts of
    argocd-cm: the base and table libraries, and of os the clock.
    """
    if "deletionTimestamp" in body["metadata"]:
        return Verdict("Progressing", "Pending deletion")
    lua = lupa.lua51.LuaRuntime(unpack_returned_tuples=True, register_eval=False)
    for library in ("string", "math", "io", "debug", "coroutine", "python"):
        lua.globals()[library] = None
    lua.execute("os = {date = os.date, time = os.time}")
    lua.globals()["obj"] = lua.table_from(body, recursive=True)
    returned = lua.execute(script)
    assert set(returned.keys()) <= {"status", "message"}
    assert returned["status"] in ("Healthy", "Progressing", "Suspended", "Degraded")
    return Verdict(returned["status"], returned["message"])


def flux(body: Mapping[str, Any], expressions: Mapping[str, str]) -> str:
    """What Flux makes of ``healthCheckExprs``: fluxcd/pkg, ``runtime/cel/status_evaluator.go``.

    It deletes nothing while it waits, so that a resource that is being deleted is not among the states here.
    An expression that meets a field which is not there is an error, for the whole check.
    """
    seen = body.get("status", {}).get("observedGeneration")
    if seen is not None and seen != body["metadata"]["generation"]:
        return "InProgress"
    for name, status in (("inProgress", "InProgress"), ("failed", "Failed"), ("current", "Current")):
        if name in expressions:
            found = cel.evaluate(expressions[name], dict(body))
            assert isinstance(found, bool)
            if found:
                return status
    return "InProgress"
