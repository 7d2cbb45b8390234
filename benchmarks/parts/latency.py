"""How long a row takes from its commit in PostgreSQL to the mirror."""

from __future__ import annotations

from typing import Any

from benchmarks.options import Options

TITLE = "Latency"


def run(options: Options) -> dict[str, Any]:
    return {"skipped": "not written yet."}


def text(figures: dict[str, Any]) -> str:
    return ""


def plots(figures: dict[str, Any]) -> dict[str, str]:
    return {}
