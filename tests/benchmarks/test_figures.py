"""Figures on pages are those that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import named, unmarked, wrong

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
MEASURED = [
    ROOT / path
    for path in (
        *("README.md", "docs/comparison.md", "docs/scale.md", "docs/performance.md", "docs/reliability.md"),
    )
]
"""Pages whose times and sizes are measured; on others, most are settings."""
FIGURES = named()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_marked_figures_are_those_of_the_results(path: Path) -> None:
    assert wrong(path.read_text(), FIGURES) == []


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: str(path.relative_to(ROOT)))
def test_measured_figures_are_marked(path: Path) -> None:
    assert unmarked(path.read_text()) == []


def test_a_figure_is_compared_as_it_is_rounded() -> None:
    figures = {"a": 1.471, "b": 69.6, "c": 100_000_000.0, "d": 2.84}
    assert wrong("1.47 s <!-- figures: a --> and 70 s <!-- figures: b -->", figures) == []
    assert wrong("| 1.5 s, 70 s <!-- figures: a; b --> |", figures) == []
    assert wrong("100 million <!-- figures: c -->; three <!-- figures: d --> times", figures) == []
    assert wrong("1.4 s <!-- figures: a -->", figures) == ["a: is 1.471, not 1.4"]
    assert wrong("7 <!-- figures: e -->", figures) == ["e: there is no such figure"]
    assert wrong("1.47 <!-- figures: a; b -->", figures) == ["a; b: there are fewer numbers before it"]


def test_a_figure_without_a_mark_is_found() -> None:
    assert unmarked("1.5 s <!-- figures: a --> or 70 s") == ["70"]
    assert unmarked("## A\n\n1.5 s\n\n## B\n\n<!-- figures: not stored -->\n2 s\n") == ["1.5"]
    assert unmarked("<!-- figures: not stored -->\n\n## A\n\n1.5 s\n\n`interval: 5 s`") == []
