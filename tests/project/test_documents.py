"""What a stranger reads first: it is there, it agrees with the project, and its links lead somewhere."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from lakemirror.api import CdcPipeline, crd
from lakemirror.api.supported import not_supported
from tests.support import apicurio, connect, kafka_broker
from website.links import GENERATED

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE = {ROOT / "docs" / page for page in GENERATED}
"""Pages that only the site has."""
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as they are made where Markdown is shown."""
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(path.read_text())]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(path.read_text()):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if target in MADE:
            assert not anchor, link
            continue
        assert target.exists(), link
        assert ROOT in target.parents, link
        assert not (target.is_dir() and ROOT / "docs" in target.parents), f"the site has no page of {link}"
        assert not anchor or anchor in anchors(target), link


SMALL = {
    "source": {"kafka": {"bootstrapServers": "kafka:9092", "topicPattern": "shop"}},
    "target": {"path": "/lake/{schema}/{table}"},
    "checkpoint": "/lake/_checkpoint",
}


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """The manifests that documents show; `SMALL` completes those of which they show a part of the spec."""
    fields = crd.resource_schema()["properties"]["spec"]["properties"].keys()
    for path in DOCUMENTS:
        for number, code in enumerate(re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.M | re.S), 1):
            shown = yaml.safe_load(code)
            if not isinstance(shown, dict):
                continue
            spec = shown.get("spec", shown) if "kind" not in shown else {}
            whole = {
                "apiVersion": "lakemirror.io/v1alpha1",
                "kind": "CdcPipeline",
                "metadata": {"name": "shop"},
            }
            if shown.get("kind") == "CdcPipeline":
                yield f"{path.name}-{number}", shown
            elif spec and spec.keys() <= fields:
                yield f"{path.name}-{number}", {**whole, "spec": {**SMALL, **spec}}


MANIFESTS = dict(manifests())


@pytest.mark.parametrize("name", MANIFESTS)
def test_what_documents_show_is_valid(name: str) -> None:
    assert not_supported(CdcPipeline.from_yaml(yaml.safe_dump(MANIFESTS[name])).spec) == []


def test_documents_show_manifests() -> None:
    assert len(MANIFESTS) > 20


def test_the_tutorial_installs_the_versions_that_its_test_runs() -> None:
    text = (ROOT / "docs/tutorial.md").read_text()
    told = {
        r"\bkafka_2\.13-(\d+(?:\.\d+)+)": kafka_broker.VERSION,
        r"/dist/kafka/([^/]+)/": kafka_broker.VERSION,
        r"\bdebezium-connector-[\w-]+ (\S+)": connect.DEBEZIUM,
        r"\bapicurio-registry-app[:-]([\w.]+)": apicurio.VERSION,
        r"\bapicurio-registry-utils-converter (\S+)": apicurio.VERSION,
    }
    assert {pattern: set(re.findall(pattern, text)) for pattern in told} == {
        pattern: {version} for pattern, version in told.items()
    }


def test_the_licence_is_apaches_and_the_package_says_so() -> None:
    words = " ".join((ROOT / "LICENSE").read_text().split())
    # Of https://www.apache.org/licenses/LICENSE-2.0.txt, white space made even.
    assert hashlib.sha256(words.encode()).hexdigest().startswith(APACHE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert {"Documentation", "Source", "Issues", "Changelog"} <= project["urls"].keys()
    assert (ROOT / project["readme"]).is_file()


APACHE = "0ffddef9e48f8a09aed5caf2d44f7ba1"


def test_what_the_package_is_built_of_is_in_the_images_context() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    dockerfile = (ROOT / "Dockerfile").read_text()
    for name in (project["readme"], *project["license-files"]):
        assert f"!{name}" in ignored
        assert re.search(rf"^COPY .*\b{re.escape(name)}\b", dockerfile, re.MULTILINE), name


def test_commands_of_the_guide_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for script in set(re.findall(r"\bscripts/[\w-]+", text)):
        assert (ROOT / script).is_file(), script
    for path in set(re.findall(r"`((?:tests|operator|docs|charts|docker)/[\w/.-]+)`", text)):
        assert (ROOT / path).exists(), path


def test_security_names_tests_that_are_there() -> None:
    named = set(re.findall(r"`(tests/[\w/.-]+)`", (ROOT / "SECURITY.md").read_text()))
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_map_of_owners_has_no_place_that_is_not_there() -> None:
    lines = [line.split() for line in (ROOT / ".github/CODEOWNERS").read_text().splitlines()]
    rules = [line for line in lines if line and not line[0].startswith("#")]
    assert rules[0][0] == "*", "somebody is asked about everything"
    for pattern, *owners in rules:
        assert owners, pattern
        assert all(fnmatch(owner, "@*/*") for owner in owners), pattern
        if pattern != "*":
            path = ROOT / pattern.strip("/")
            assert path.is_dir() if pattern.endswith("/") else path.is_file(), pattern


def test_hooks_run_what_is_there() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for repository in config["repos"]:
        assert repository["repo"] == "local", "another one would have to be pinned"
        for hook in repository["hooks"]:
            words = [word for word in hook["entry"].split() if word != "env" and "=" not in word]
            program = words[0]
            development = (ROOT / "pyproject.toml").read_text().partition("dev = [")[2]
            packaged = {"lint-imports": "import-linter"}
            if program.startswith(".venv/bin/"):
                name = program.removeprefix(".venv/bin/")
                assert f'"{packaged.get(name, name)}>=' in development, program
            else:
                assert (ROOT / program).is_file(), program
            if "files" in hook:
                assert re.compile(hook["files"])


def test_the_front_page_can_be_read_in_a_minute() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 8 * 1024


def test_twelve_questions_are_answered_two_clicks_from_the_front_page() -> None:
    assert "(docs/index.md#questions)" in (ROOT / "README.md").read_text()
    section = (ROOT / "docs/index.md").read_text().partition("\n## Questions\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+\?.*) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) >= 12
    assert [question for question, answer in rows if not LINK.findall(answer)] == []


def test_pictures_are_small_and_shown() -> None:
    pictures = sorted((ROOT / "docs/images").iterdir())
    text = "".join(page.read_text() for page in DOCUMENTS)
    assert pictures
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 100_000
        assert f"images/{picture.name})" in text
