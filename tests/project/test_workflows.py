"""What runs on GitHub is what runs by hand, on the versions that the project names."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from packaging.requirements import Requirement

from lakemirror.api.object_stores import STORES
from lakemirror.driver.runtime import jars

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
    more = {
        "images": {"packages"},
        "publish": {"contents", "packages", "id-token"},
        "pages": {"pages", "id-token"},
    }
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}, path.name
        for name, job in jobs(path).items():
            writes = {scope for scope, access in job.get("permissions", {}).items() if access == "write"}
            assert writes == more.get(name, set()), (path.name, name)
            assert job["timeout-minutes"] <= 360


def test_nothing_is_published_that_is_not_tested_and_scanned() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    assert release["publish"]["needs"] == ["test", "dist", "images", "scan"]
    assert release["pages"]["needs"] == ["publish", "site"]
    scanned = [where for where, step in steps() if step.get("run", "").startswith("scripts/scan-images")]
    assert scanned == ["nightly.yml, scan", "release.yml, scan"]


@pytest.mark.guarantee("What is published was built once, and scanned before it was signed and tagged")
def test_what_is_published_was_built_once_and_is_named_by_its_hash() -> None:
    release = jobs(ROOT / ".github/workflows/release.yml")
    outputs = {"OPERATOR": "needs.images.outputs.operator", "DRIVER": "needs.images.outputs.driver"}
    wanted = {name: f"${{{{ {output} }}}}" for name, output in outputs.items()}
    built = [
        (name, step["run"].split()[0])
        for name, job in release.items()
        for step in job["steps"]
        if step.get("run", "").startswith(("scripts/build-images", "scripts/images", "scripts/dist"))
    ]
    assert built == [("dist", "scripts/dist"), ("images", "scripts/build-images")]
    for job, script in (("scan", "scripts/scan-images"), ("publish", "scripts/publish-images")):
        [step] = [step for step in release[job]["steps"] if step.get("run", "").startswith(script)]
        assert step["run"].endswith('"$OPERATOR" "$DRIVER"')
        assert step["env"].items() >= wanted.items()
    runs = [step["run"] for step in release["publish"]["steps"] if "run" in step]
    assert runs[0] == 'scripts/check-dist "$SUMS"', "before anything is published"


@pytest.mark.guarantee("A job that may sign or publish builds nothing")
def test_whoever_may_sign_or_publish_builds_nothing() -> None:
    """What is installed to build with could use these rights."""
    building = ("dist", "images", "build-images", "site", "setup", "test")
    for path in WORKFLOWS:
        for name, job in jobs(path).items():
            if "id-token" in job.get("permissions", {}):
                uses = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
                assert "actions/setup-python" not in uses, (path.name, name)
                for step in job["steps"]:
                    script = step.get("run", "scripts/").split()[0].removeprefix("scripts/")
                    assert script not in building, (path.name, name, script)


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


def test_every_python_package_of_the_images_has_hashes_and_fits_the_project() -> None:
    names: dict[str, set[str]] = {}
    for file in ("operator", "driver", "build"):
        text = (ROOT / f"docker/{file}.txt").read_text().replace("\\\n", " ")
        lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
        assert lines
        for version, *hashes in lines:
            assert re.fullmatch(r"[\w.-]+==[\w.]+", version), version
            assert hashes, version
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), version
        names[file] = {version.lower().replace("_", "-") for version, *_ in lines}
    both = {version.partition("==")[0]: version for version in names["operator"]}
    assert all(both.get(version.partition("==")[0], version) == version for version in names["driver"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for file, extra in (("operator", "operator"), ("driver", "spark")):
        locked = {version.partition("==")[0]: version.partition("==")[2] for version in names[file]}
        for wanted in map(Requirement, [*project["dependencies"], *project["optional-dependencies"][extra]]):
            assert wanted.specifier.contains(locked[wanted.name.lower()]), f"{wanted}: run scripts/lock"


def test_every_jar_of_the_images_has_a_hash() -> None:
    poms = [jars.POM, *(jars.store_pom(store) for store in STORES)]
    for pom in poms:
        named = jars.hashes(pom)
        assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in named.values()), pom.name
        for jar in jars.declared(pom):  # its version may be a property of the POM
            assert any(name.startswith(f"{jar.artifact}-") for name in named), (
                f"{jar.artifact}: run scripts/lock jars"
            )
    assert set(jars.hashes(jars.POM)) == {jar.file for jar in jars.declared()}


@pytest.mark.guarantee("Images consist of what is named by hash: base image, Python packages, jars")
def test_images_start_from_a_base_by_its_digest_and_install_by_hashes() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    assert re.search(r"^ARG BASE=debian:bookworm-slim@sha256:[0-9a-f]{64}$", dockerfile, re.MULTILINE)
    bases = re.findall(r"^FROM (\S+)(?: AS (\S+))?", dockerfile, re.MULTILINE)
    stages = {stage for _, stage in bases}
    assert [base for base, _ in bases if base not in stages] == ["${BASE}"]
    fetching = re.findall(r"pip (?:install|wheel) [^&|;]*", dockerfile)
    assert fetching
    assert all("--require-hashes" in each or "--no-index" in each for each in fetching), fetching
    assert "sha256sum --check --strict" in dockerfile
    for path in SCRIPTS:
        for line in path.read_text().splitlines():
            if "pip install" in line and path.name not in ("setup", "lock"):
                assert "--require-hashes" in line, f"{path.name}: {line}"


def test_jars_that_are_left_out_of_the_image_are_those_of_a_metastore() -> None:
    """CVE-2022-46337 is in derby 10.16.1.1, which pip's pyspark brings."""
    listed = (ROOT / "docker/hive-jars.txt").read_text().splitlines()[1:]
    folder = Path(pyspark.__file__).parent / "jars"
    for jar in listed:
        assert (folder / jar).exists(), f"{jar}: the Dockerfile would fail to remove it"
    left = {jar.name for jar in folder.glob("*.jar")} - set(listed)
    hive = {
        jar for jar in left if re.match(r"derby|datanucleus|hive-|spark-hive|libthrift|jdo|javax\.jdo", jar)
    }
    assert {re.sub(r"-\d.*", "", jar) for jar in hive} == {"hive-storage-api"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run(script: Path) -> None:
    assert os.access(script, os.X_OK)
    first = script.read_text().splitlines()[0]
    if "python" in first:
        compile(script.read_text(), str(script), "exec")
    else:
        assert first == "#!/usr/bin/env bash"
        subprocess.run(["bash", "-n", script], check=True)
