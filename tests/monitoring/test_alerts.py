"""Alerts fire when they should (`alerts.yaml`), on metrics that there are; each has a runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring import metrics

pytestmark = pytest.mark.guarantee("An alert fires when it should, and links to a page that says what to do")

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "lakemirror" / "files" / "alerts.yaml"
CASES = Path(__file__).parent / "alerts.yaml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments: str) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_the_rules_are_valid() -> None:
    promtool("check", "rules", str(RULES))


@needs_promtool
def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    promtool("test", "rules", str(CASES))


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    firing = {
        name
        for case in cases
        for each in case.get("promql_expr_test", [])
        for sample in each.get("exp_samples", [])
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    assert firing == {rule["alert"] for rule in rules()}


def test_each_alert_has_a_runbook_and_is_listed() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    pages = {page.stem for page in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert pages == set(names)
    listed = (ROOT / "docs" / "monitoring.md").read_text()
    for rule in rules():
        name, severity = rule["alert"], rule["labels"]["severity"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
        assert {"summary", "description"} <= set(rule["annotations"])
        assert f"| [{name}](runbooks/{name}.md) | {severity} |" in listed
        page = (ROOT / "docs" / "runbooks" / f"{name}.md").read_text()
        assert re.findall("^#+ .*$", page, re.MULTILINE) == [
            f"# {name}",
            "## What to look at",
            "## What to do",
        ]


def test_alerts_ask_for_metrics_that_there_are() -> None:
    known = {n for each in (*metrics.of_driver(), *metrics.of_operator()) for n in metrics.names(each)}
    for rule in rules():
        asked = set(re.findall(r"lakemirror_\w+", rule["expr"]))
        assert asked, rule["alert"]
        assert asked <= known, rule["alert"]


def test_runbooks_link_pages_that_there_are() -> None:
    """The pages of the reference are made when the site is, which looks at its links itself."""
    for page in (ROOT / "docs").rglob("*.md"):
        for link in re.findall(r"\]\(([^)#:]+\.(?:md|yaml))[^)]*\)", page.read_text()):
            made = link.removeprefix("../").startswith("reference/")
            assert made or (page.parent / link).exists(), f"{page.name}: {link}"
