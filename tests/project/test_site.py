"""The site has every page, and its links lead where those of the repository lead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from lakemirror.api import crd
from lakemirror.api.status import ConditionType
from website.links import GENERATED, PROJECT, translated
from website.reference import fields, pages

ROOT = Path(__file__).parents[2]
SOURCE = "https://example.org/source"


def test_pages_of_the_project_are_there() -> None:
    assert [path for path in PROJECT if not (ROOT / path).is_file()] == []


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r": ([\w/.-]+\.md)$", text, re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert sorted(named) == sorted([*pages, *PROJECT.values(), *GENERATED])


def test_the_index_leads_to_every_page() -> None:
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)", (docs / "index.md").read_text()))
    pages = {str(path.relative_to(docs)) for path in docs.glob("**/*.md")} | GENERATED
    assert pages - linked - {"index.md"} == set()


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("tour.md", "docs/jdbc.md#x", "jdbc.md#x"),
        ("tour.md", "SECURITY.md", "security.md"),
        ("tour.md", "charts/lakemirror/values.yaml", f"{SOURCE}/charts/lakemirror/values.yaml"),
        ("jdbc.md", "../README.md#types", "tour.md#types"),
        ("jdbc.md", "runbooks/A.md", "runbooks/A.md"),
        ("runbooks/A.md", "../kafka.md", "../kafka.md"),
        ("runbooks/A.md", "../../examples/gitops", f"{SOURCE}/examples/gitops"),
        ("jdbc.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("index.md", "reference/spec.md", "reference/spec.md"),
        ("jdbc.md", "#below", "#below"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(page: str, link: str, expected: str) -> None:
    assert translated(f"see [this]({link}).", page, SOURCE) == f"see [this]({expected})."


def test_the_reference_has_its_pages_and_each_field() -> None:
    made = pages()
    assert made.keys() == GENERATED
    schema = crd.resource_schema()["properties"]
    for name in ("spec", "status"):
        told = [path for path, node, _ in fields(schema[name]) if node.get("description")]
        assert len(told) > 50
        assert all(f"| `{path}` |" in made[f"reference/{name}.md"] for path in told)
    assert "## lakemirror verify" in made["reference/commands.md"]
    assert "| `late_after_collection` | BIGINT |" in made["reference/audit.md"]
    assert "`__delete_seq`" in made["reference/columns.md"]


CONTROLLER = ROOT / "operator/lakemirror/controller"
CONDITIONS = ROOT / "docs/conditions"
REASON = re.compile(r"[A-Z]+[a-z]+[A-Za-z]*")


def reasons() -> Iterator[str]:
    """The reasons of conditions, as they stand in the operator's code."""
    places = {"Health": 1, "Verdict": 0}
    for path in CONTROLLER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in places:
                yield from words(node.args[places[node.func.id] :][:1])
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "reason":
                yield from words([node.value])
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "reason":
                yield from words([node.annotation])


def words(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        for each in ast.walk(node):
            value = each.value if isinstance(each, ast.Constant) else None
            if isinstance(value, str) and REASON.fullmatch(value):
                yield value


def test_each_condition_has_a_page() -> None:
    assert {path.stem for path in CONDITIONS.glob("*.md")} == set(get_args(ConditionType))


def test_each_reason_is_told_on_the_page_of_a_condition() -> None:
    found = set(reasons())
    assert len(found) > 35
    text = "\n".join(path.read_text() for path in CONDITIONS.glob("*.md"))
    told = set(re.findall(r"^## (\w+)$|^\| `(\w+)` \|", text, re.MULTILINE))
    assert found - {name for pair in told for name in pair} == set()
