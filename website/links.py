"""Links of pages: they are written for the repository, and the site has the same pages in other places."""

from __future__ import annotations

import posixpath
import re

PROJECT = {
    "README.md": "tour.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the site that are outside docs/, by their path in the repository."""

GENERATED = {
    f"reference/{name}.md"
    for name in ("spec", "status", "conditions", "columns", "audit", "commands", "environment", "chart")
}
"""Pages that are generated when the site is built (`website.reference`)."""

_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_SOURCES = {page: source for source, page in PROJECT.items()}


def translated(markdown: str, page: str, repository: str) -> str:
    """Return the text of a page with the links that the site needs.

    Args:
        markdown: the page's text, with links as they are in the repository.
        page: the page's path on the site, like ``runbooks/x.md``.
        repository: address of the source, for what the site does not have.
    """
    here = posixpath.dirname(_SOURCES.get(page, f"docs/{page}"))

    def link(found: re.Match[str]) -> str:
        before, address, anchor = found[1], found[2], found[3] or ""
        if re.match(r"[a-z]+:", address):
            return found[0]
        path = posixpath.normpath(posixpath.join(here, address))
        place = PROJECT.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if place is None:
            return f"{before}{repository}/{path}{anchor}"
        return f"{before}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor}"

    return _LINK.sub(link, markdown)
