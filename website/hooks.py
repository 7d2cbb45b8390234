"""Hooks of MkDocs: pages that are not in docs/, and links that are right both there and on the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "operator")]

from website import reference  # noqa: E402
from website.links import PROJECT, translated  # noqa: E402


def on_files(files: Files, *, config: Any) -> Files:
    """Adds the pages of the project and the reference."""
    made = {page: (ROOT / source).read_text() for source, page in PROJECT.items()} | reference.pages()
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Turns links within the repository into links of the site."""
    return translated(markdown, page.file.src_uri, config.repo_url)
