"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table. Cells may contain any text, even several lines of it."""
    heads = list(heads)
    return "\n".join(_row(cells) for cells in (heads, ["---"] * len(heads), *rows))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
