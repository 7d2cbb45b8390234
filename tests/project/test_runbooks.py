"""What pages send a reader to is there: commands with options, metrics, panels, fields of the status."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from lakemirror.api import crd
from lakemirror.cli.main import main
from monitoring import dashboards, metrics
from website.reference import fields

ROOT = Path(__file__).parents[2]
PAGES = [
    path
    for path in [
        ROOT / "README.md",
        *sorted(ROOT.glob("docs/**/*.md")),
        *sorted(ROOT.glob("examples/**/*.yaml")),
    ]
    if path.name != "guarantees.md"
]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
CODE = re.compile(r"^ *```.*?^ *```|^ {4,}[^\n]*|`[^`\n]+`", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:^|[`$\n]) *lakemirror ((?!\\)[^`\n|]+(?:\\\n[^`\n|]+)*)")


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """The commands that a page shows, with their options."""
    for code in CODE.findall(text):
        for line in COMMAND.findall(code):
            name, *words = re.split(r"[\s\[\]]+", line.strip())
            if name in main.commands or words[:1] == ["-f"]:
                yield name, [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]


def options(name: str) -> set[str]:
    command = main.commands[name]
    with click.Context(command) as context:
        return {option for each in command.get_params(context) for option in each.opts}


def strange(text: str) -> list[str]:
    """The commands and options of a page that there are not."""
    found = []
    for name, given in commands(text):
        if name in main.commands:
            found += [f"lakemirror {name} {each}" for each in given if each not in options(name)]
        else:
            found.append(f"lakemirror {name}")
    return found


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_commands_and_options_are_there(path: Path) -> None:
    assert strange(path.read_text()) == []


def test_a_command_that_is_not_there_is_seen() -> None:
    assert strange("Run `lakemirror repair -f FILE` or\n\n    lakemirror verify -f FILE --fix\n") == [
        "lakemirror repair",
        "lakemirror verify --fix",
    ]
    assert len([each for path in PAGES for each in commands(path.read_text())]) > 30


SERIES = {
    name
    for family in (*metrics.of_driver(), *metrics.of_operator())
    for name in (family.name, *metrics.names(family))
}
NO_SERIES = {"lakemirror_batches", "lakemirror_mirrors", "lakemirror_probe"}
"""Tables in databases and in examples."""


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_metrics_are_there(path: Path) -> None:
    named = re.findall(r"\blakemirror_[a-z_]*[a-z]\b(?!_)", path.read_text())
    assert set(named) - SERIES - NO_SERIES == set()


TITLES = {
    title
    for made in (dashboards.fleet(), dashboards.pipeline())
    for title in (made.title, *(panel.title for panel in made.panels or ()))
}


def panels(text: str) -> Iterator[str]:
    """The titles in quotation marks in a line about a dashboard, and the names of dashboards."""
    for line in text.splitlines():
        if re.search(r"\bdashboard\b|\bpanel\b", line):
            yield from re.findall(r'"([A-Z][^"]+)"', line)
        yield from re.findall(r"Lakemirror / \w+", line)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_panels_are_there(path: Path) -> None:
    assert set(panels(path.read_text())) - TITLES == set()


def test_pages_name_panels_and_fields_of_the_status() -> None:
    named = [each for path in PAGES for each in panels(path.read_text())]
    assert "Average batch duration" in named
    assert len([each for path in PAGES for each in asked(path.read_text())]) > 3


def asked(text: str) -> Iterator[str]:
    """The fields that ``kubectl -o jsonpath`` and ``kubectl explain`` ask for."""
    yield from re.findall(r"\{\.((?:spec|status)\.[\w.]+)\}", text)
    yield from re.findall(r"kubectl explain cdc\.((?:spec|status)[\w.]*)", text)


@pytest.mark.parametrize("path", PAGES, ids=NAMES)
def test_fields_that_are_asked_for_are_there(path: Path) -> None:
    schema: dict[str, Any] = crd.resource_schema()["properties"]
    known = {f"{root}.{path}" for root in ("spec", "status") for path, _, _ in fields(schema[root])}
    known |= {"spec", "status"}
    assert {field.replace("[]", "") for field in asked(path.read_text())} - known == set()
