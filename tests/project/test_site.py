"""The site has every page, and its links lead where those of the repository lead."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lakemirror.api import crd
from lakemirror.api.status import ConditionType
from lakemirror.cli.main import EXIT_CODES, main
from website.conditions import meanings, statuses
from website.links import GENERATED, PROJECT, translated
from website.reference import fields, pages
from website.settings import ENVIRONMENT, values, variables

ROOT = Path(__file__).parents[2]
SOURCE = "https://example.org/source"


def test_pages_of_the_project_are_there() -> None:
    assert [path for path in PROJECT if not (ROOT / path).is_file()] == []


def test_the_configuration_can_be_read() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert len(list(yaml.parse(text))) > 100
    assert "name: mermaid" in text


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
        ("jdbc.md", "../README.md#try-it", "tour.md#try-it"),
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


@pytest.mark.guarantee(
    "The reference leaves out no field, reason, exit code, environment variable or value of the chart"
)
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


OPERATOR = ROOT / "operator/lakemirror"
CONTROLLER = OPERATOR / "controller"
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


@pytest.mark.guarantee("Each condition and each of its reasons has a page that says what to do")
def test_each_condition_has_a_page() -> None:
    assert {path.stem for path in CONDITIONS.glob("*.md")} == set(get_args(ConditionType))


@pytest.mark.guarantee("Each condition and each of its reasons has a page that says what to do")
@pytest.mark.guarantee(
    "The reference leaves out no field, reason, exit code, environment variable or value of the chart"
)
def test_each_reason_of_the_code_is_in_the_reference() -> None:
    found = set(reasons())
    assert len(found) > 35
    page = pages()["reference/conditions.md"]
    assert [reason for reason in sorted(found) if f"| [`{reason}`]" not in page] == []


def test_each_reason_that_a_page_tells_is_one_that_occurs() -> None:
    assert set(meanings()) == {reason for _, reason in statuses()}


@pytest.mark.guarantee(
    "The reference leaves out no field, reason, exit code, environment variable or value of the chart"
)
def test_each_value_of_the_chart_is_told() -> None:
    told = {path: said for path, _, said in values()}
    page = pages()["reference/chart.md"]
    for path in leaves(yaml.safe_load((ROOT / "charts/lakemirror/values.yaml").read_text())):
        group = path.rpartition(".")[0]
        assert f"| `{path}` |" in page or f"| `{group}` |" in page
        assert told.get(path) or told[group], f"{path} has no comment"
    assert "| `driverRollout.maxConcurrent` | `1` | how many drivers at a time |" in page


def leaves(found: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of values that are not mappings with further values."""
    for name, value in found.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


VARIABLE = re.compile(r"[\"'](LAKEMIRROR_[A-Z_]+)[\"']")


@pytest.mark.guarantee(
    "The reference leaves out no field, reason, exit code, environment variable or value of the chart"
)
def test_each_environment_variable_is_told() -> None:
    assert variables().keys() == ENVIRONMENT.keys()
    named = {name for path in OPERATOR.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    page = pages()["reference/environment.md"]
    assert [name for name in sorted(named | ENVIRONMENT.keys()) if f"| `{name}` |" not in page] == []
    assert len(named) >= 8


def test_each_read_of_the_environment_is_found() -> None:
    """By another search than that of the reference: names that are not literal are those of options.

    What clients of object stores read, which the JVM is asked for, is theirs.
    """
    text = "\n".join(path.read_text() for path in OPERATOR.rglob("*.py"))
    read = re.findall(r"(?:environ\.get\(|environ\[|environment\[|(?<!system\.)getenv\()([^\]),]+)", text)
    read += re.findall(r"(\S+) (?:not )?in os\.environ", text)
    assert len(read) > 15
    constants = dict(re.findall(r"^([A-Z_]+) = \"([A-Z_]+)\"$", text, re.MULTILINE))
    names = {constants.get(name, name.strip('"')) for name in read}
    assert names - ENVIRONMENT.keys() == {"variable"}, "--password-env names it"


ENDS = {"FAILED": 1, "fail": 1, "call": 1, "driver_module": 1, "WRONG": 2, "read_pipeline": 2}
"""The names by which the code of a command ends it, and the exit codes."""


@pytest.mark.guarantee(
    "The reference leaves out no field, reason, exit code, environment variable or value of the chart"
)
@pytest.mark.parametrize("name", main.commands)
def test_each_exit_code_is_told(name: str) -> None:
    told = EXIT_CODES[name]
    module = ast.parse((OPERATOR / "cli" / f"{name.replace('-', '_')}.py").read_text())
    used = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    assert told.keys() >= {0, 2} | {code for word, code in ENDS.items() if word in used}
    page = pages()["reference/commands.md"]
    assert all(f"| `{name}` | {code} | {meaning} |" in page for code, meaning in told.items())


def test_the_exit_codes_are_those_of_the_commands() -> None:
    assert EXIT_CODES.keys() == main.commands.keys()
    assert "repeats the run after anything else" in pages()["reference/commands.md"]


def test_the_settings_of_the_site_can_be_read() -> None:
    class Loader(yaml.SafeLoader):
        """Reads what names an object of Python as nothing."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    assert {"nav", "markdown_extensions", "validation"} <= settings.keys()
