"""The site has every page, and its links lead where those of the repository lead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website.links import PROJECT, translated

ROOT = Path(__file__).parents[2]
SOURCE = "https://example.org/source"


def test_pages_of_the_project_are_there() -> None:
    assert [path for path in PROJECT if not (ROOT / path).is_file()] == []


def test_the_navigation_has_every_page_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r": ([\w/.-]+\.md)$", text, re.MULTILINE)
    pages = [str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")]
    assert sorted(named) == sorted([*pages, *PROJECT.values()])


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
        ("jdbc.md", "#below", "#below"),
    ],
)
def test_links_of_the_repository_become_those_of_the_site(page: str, link: str, expected: str) -> None:
    assert translated(f"see [this]({link}).", page, SOURCE) == f"see [this]({expected})."
