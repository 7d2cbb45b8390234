"""The page of conditions and their reasons.

Which reasons there are comes from the states that the operator can report: its own plans wrote them into the
test data of the health check for Argo CD. What a reason means is in the tables of ``docs/conditions``, which
link the page that says what to do: one of ``docs/conditions/reasons``, or the runbook of the reason's alert.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import get_args

import yaml

from lakemirror.api.status import ConditionType
from website.tables import table

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "conditions"
STATES = ROOT / "examples/gitops/argocd/resource_customizations/lakemirror.io/CdcPipeline/testdata"

_REASON = r"[A-Z]+[a-z]+[A-Za-z]*"
_ROW = re.compile(rf"^\| \[`({_REASON})`\]\(([^)]+)\) \|(?:.*\|)? (.+) \|$", re.MULTILINE)
_BESIDE = re.compile(rf"\]\((?=(?:reasons/)?{_REASON}\.md)")


def conditions_page() -> str:
    """Return the page of all conditions, each with its reasons and what they mean."""
    reported, told = statuses(), meanings()
    parts = []
    for type in get_args(ConditionType):
        rows = [
            (_link(reason, told[reason][0]), " or ".join(sorted(found)), _sentence(told[reason][1]))
            for (of, reason), found in sorted(reported.items())
            if of == type
        ]
        lead = _beside((PAGES / f"{type}.md").read_text().strip().split("\n\n")[1])
        parts.append(f"## {type}\n\n{lead}\n\n{table(('reason', 'status', 'meaning'), rows)}")
    body = "\n\n".join(parts)
    return f"""# Conditions and their reasons

Every condition of a pipeline, and every reason that it can have. A reason leads to the page that says what
to do. `Ready` is always present, and the other conditions only while they are True. Where Kubernetes says why
a pod was removed or cannot start, its word is the reason, and it has more such words than are listed here.

{body}
"""


def statuses() -> dict[tuple[str, str], set[str]]:
    """Return the statuses that occur for each condition and reason, in all states of a pipeline."""
    found: dict[tuple[str, str], set[str]] = {}
    for path in STATES.glob("*.yaml"):
        for each in yaml.safe_load(path.read_text())["status"]["conditions"]:
            found.setdefault((each["type"], each["reason"]), set()).add(each["status"])
    return found


def meanings() -> dict[str, tuple[str, str]]:
    """Return the page of each reason, from ``docs/conditions``, and its meaning."""
    found: dict[str, tuple[str, str]] = {}
    for type in get_args(ConditionType):
        for reason, page, meaning in _ROW.findall((PAGES / f"{type}.md").read_text()):
            found.setdefault(reason, (page, _beside(meaning)))
    return found


def _link(reason: str, place: str) -> str:
    return f"[`{reason}`]({posixpath.normpath(f'../conditions/{place}')})"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def _beside(text: str) -> str:
    """Return a text of a page in ``docs/conditions`` with its links to other pages there."""
    return _BESIDE.sub("](../conditions/", text)
