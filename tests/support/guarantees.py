"""What the tests say that users may rely on, and the page that lists it.

A test, a class of tests or a module says so with ``@pytest.mark.guarantee("...")``. The marks are read from
the source, so that nothing needs to be imported, and tests that cannot run here are listed as well.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PAGE = ROOT / "docs" / "guarantees.md"

AREAS = {
    "Mirrors equal their source": ("conformance", "hostile", "properties", "driver"),
    "Records and values": ("driver/parse",),
    "Sources": ("driver/read",),
    "Columns, tables and targets": ("driver/plan", "driver/tables", "driver/write"),
    "Checkpoints, crashes and storage": (
        *("driver/checkpoint", "driver/record", "driver/runtime", "objectstore", "conformance/test_crashes"),
        *("conformance/test_layouts", "hostile/test_states"),
    ),
    "Comparisons, repairs and reloads": ("driver/verify", "driver/reload"),
    "Manifests": ("api", "hostile/test_manifests"),
    "Kubernetes": ("chart", "cluster", "controller", "gitops", "pod", "scheduling"),
    "Alerts, reports and documents": ("monitoring", "report", "project", "conformance/test_tutorial"),
}
"""The sections of the page, and whose tests are in them: a longer path counts before a shorter one."""

_HEAD = """\
# Guarantees and their tests

What you can rely on, and the test modules that show it. [The limits](limits.md) say what cannot be
guaranteed, and [how it works](how-it-works.md) says why the rest can be.

`scripts/guarantees` makes this page from the tests, which name what they show with
`@pytest.mark.guarantee("...")`.
"""


def page() -> str:
    """Return the page of all guarantees that the tests name."""
    by_area: dict[str, list[str]] = {title: [] for title in AREAS}
    for guarantee, tests in sorted(guarantees().items()):
        links = ", ".join(f"[`{module}`](../tests/{module}.py)" for module in tests)
        by_area[_area(tests)].append(f"| {guarantee} | {links} |")
    sections = [
        "\n".join([f"## {title}", "", "| Guarantee | Tests |", "|---|---|", *rows])
        for title, rows in by_area.items()
        if rows
    ]
    return "\n\n".join([_HEAD.strip(), *sections]) + "\n"


def guarantees() -> dict[str, list[str]]:
    """Return, for each guarantee, the modules that show it, relative to tests/."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        module = path.relative_to(TESTS).with_suffix("").as_posix()
        source = path.read_text(encoding="utf-8")
        for guarantee in dict.fromkeys(marks(source) if "mark.guarantee(" in source else ()):
            found.setdefault(guarantee, []).append(module)
    return found


def marks(source: str) -> Iterator[str]:
    """Yield the guarantees that a module, its classes and its tests name.

    Raises ``ValueError`` for a mark whose text is not written in place.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "guarantee":
            text = node.args[0] if len(node.args) == 1 else None
            if not (isinstance(text, ast.Constant) and isinstance(text.value, str)):
                raise ValueError(f"line {node.lineno}: a guarantee is one literal text")
            yield text.value


def _area(modules: list[str]) -> str:
    """The section that most of the modules belong to; of equals, the first in the order of the page."""
    counted = Counter(_area_of(module) for module in modules)
    return max(AREAS, key=lambda title: counted[title])


def _area_of(module: str) -> str:
    prefixes = {prefix: title for title, found in AREAS.items() for prefix in found}
    matching = [prefix for prefix in prefixes if module == prefix or module.startswith(f"{prefix}/")]
    return prefixes[max(matching, key=len)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
