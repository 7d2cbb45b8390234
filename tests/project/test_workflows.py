"""What runs on GitHub is what runs by hand, on the versions that the project names."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.guarantee(
    "Builds and releases match the documents, and use scripts that also run by hand"
)

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCRIPTS = sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file())


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())["jobs"]
    return found


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            for step in job["steps"]:
                yield f"{path.name}, {name}", step


@pytest.mark.long
def test_actionlint_has_nothing_to_say() -> None:
    done = subprocess.run([ROOT / "scripts/actionlint"], capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"actionlint cannot be had here: {done.stderr}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_step_is_a_script_that_is_there() -> None:
    runs = [(where, step["run"]) for where, step in steps() if "run" in step]
    assert len(runs) > 10
    for where, command in runs:
        [line] = command.splitlines()
        script = ROOT / line.split()[0]
        assert script in SCRIPTS, f"{where}: {line}"


def test_actions_are_pinned_by_commit_with_the_release_beside() -> None:
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    used = re.findall(r"uses: (.*)", text)
    assert len(used) == len([step for _, step in steps() if "uses" in step])
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    assert len({each.partition("@")[0] for each in used}) == len(set(used)), "one action in two versions"


def test_a_job_may_read_and_only_publishing_may_write() -> None:
    more = {"publish": {"contents", "packages", "id-token"}, "pages": {"pages", "id-token"}}
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path.name
        for name, job in jobs(path).items():
            writes = {scope for scope, access in job.get("permissions", {}).items() if access == "write"}
            assert writes == more.get(name, set()), (path.name, name)
            assert job["timeout-minutes"] <= 360


def test_nothing_is_published_that_is_not_tested_and_scanned() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    assert release["publish"]["needs"] == ["test", "scan"]
    assert release["pages"]["needs"] == "publish"
    scanned = [where for where, step in steps() if step.get("run") == "scripts/scan-images"]
    assert scanned == ["nightly.yml, scan", "release.yml, scan"]


def test_no_test_is_skipped_at_night() -> None:
    nightly = jobs(ROOT / ".github/workflows/nightly.yml")
    runs = [step for name in ("nightly", "live") for step in nightly[name]["steps"] if "run" in step]
    assert len(runs) == 2
    assert all(step["env"]["LAKEMIRROR_NO_SKIPS"] == "1" for step in runs)
    parts = [*nightly["nightly"]["strategy"]["matrix"]["part"], "live"]
    assert f"for part in {' '.join(parts)};" in (ROOT / "scripts/nightly").read_text()


def test_the_upgrade_is_tested_from_the_version_before() -> None:
    checkout = jobs(ROOT / ".github/workflows/ci.yml")["cluster"]["steps"][0]
    assert checkout["with"] == {"fetch-depth": 0}, "its tag is not there otherwise"


def test_the_versions_are_those_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    ci = jobs(ROOT / ".github/workflows/ci.yml")
    assert ci["test"]["strategy"]["matrix"]["python"] == classified
    assert project["requires-python"] == f">={classified[0]}"
    nodes = ci["cluster"]["strategy"]["matrix"]["node"]
    minors = [int(re.match(r"kindest/node:v1\.(\d+)\.", node)[1]) for node in nodes]  # type: ignore[index]
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", node) for node in nodes)
    assert minors == list(range(minors[0], minors[0] - 3, -1)), "the three newest, one after the other"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run(script: Path) -> None:
    assert os.access(script, os.X_OK)
    first = script.read_text().splitlines()[0]
    if "python" in first:
        compile(script.read_text(), str(script), "exec")
    else:
        assert first == "#!/usr/bin/env bash"
        subprocess.run(["bash", "-n", script], check=True)
