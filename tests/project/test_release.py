"""The scripts of a release, with stand-ins for the tools that reach a registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.guarantee(
    "Builds and releases match the documents, and use scripts that also run by hand"
)

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the scripts read."""
    for name in ("pyproject.toml", "CHANGELOG.md", "Dockerfile"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("scripts", "charts", "kustomize"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("__init__.py", "controller/values.py"):
        copy = tmp_path / "operator/lakemirror" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "operator/lakemirror" / name, copy)
    layouts = tmp_path / "tests/fixtures/layouts"
    layouts.mkdir(parents=True)
    (layouts / "0.1.0.tar.xz").touch()
    return tmp_path


@pytest.fixture
def calls(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where docker, helm, cosign and gh write how they were called, instead of doing anything."""
    log, tools = project / "calls", project / "tools"
    tools.mkdir()
    stand_ins = {
        "docker": f"""
if [ "$1" = login ]; then cat >{log}.password; fi
while [ $# -gt 0 ]; do
  if [ "$1" = --metadata-file ]; then echo '{{"containerimage.digest": "{DIGEST}"}}' >"$2"; fi
  shift
done""",
        "helm": f"echo 'Pushed: registry.example.org/data/charts/lakemirror:0.1.0'; echo 'Digest: {DIGEST}'",
        "cosign": "",
        "gh": "",
    }
    for name, does in stand_ins.items():
        tool = tools / name
        tool.write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"{name} $*\" >>{log}\n{does}\n")
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return log


def run(project: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = (str(project / "scripts" / command[0]), *command[1:])
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **env}, cwd=project
    )


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


class TestCheck:
    def test_the_versions_agree(self) -> None:
        done = subprocess.run([ROOT / "scripts/release-check"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")

    def released(self, project: Path) -> None:
        edit(project / "CHANGELOG.md", "## 0.1.0 (unreleased)", "## 0.1.0 (2026-12-01)")

    def test_a_release_has_notes(self, project: Path) -> None:
        self.released(project)
        done = run(project, "release-check", "v0.1.0")
        assert done.returncode == 0
        assert done.stdout.startswith("### Mirrors")
        assert "## 0.1.0" not in done.stdout

    def test_what_is_not_released_yet_is_refused(self, project: Path) -> None:
        done = run(project, "release-check", "v0.1.0")
        assert (done.returncode, done.stdout) == (1, "")
        assert "unreleased" in done.stderr

    def test_what_the_version_stores_is_kept(self, project: Path) -> None:
        self.released(project)
        (project / "tests/fixtures/layouts/0.1.0.tar.xz").unlink()
        done = run(project, "release-check", "v0.1.0")
        assert (done.returncode, done.stdout) == (1, "")
        assert "python -m tests.support.layouts 0.1.0" in done.stderr

    @pytest.mark.parametrize(
        ("file", "before", "after"),
        [
            ("pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"'),
            ("operator/lakemirror/__init__.py", '__version__ = "0.1.0"', '__version__ = "0.2.0"'),
            ("kustomize/base/operator.yaml", "lakemirror-operator:0.1.0", "lakemirror-operator:0.2.0"),
            ("charts/lakemirror/Chart.yaml", "\nversion: 0.1.0", "\nversion: 0.2.0"),
            ("charts/lakemirror/Chart.yaml", "appVersion: 0.1.0", "appVersion: 0.2.0"),
            (
                "operator/lakemirror/controller/values.py",
                "lakemirror-driver:0.1.0",
                "lakemirror-driver:latest",
            ),
        ],
    )
    def test_one_that_differs_is_named(self, project: Path, file: str, before: str, after: str) -> None:
        self.released(project)
        edit(project / file, before, after)
        done = run(project, "release-check", "v0.1.0")
        assert done.returncode == 1
        assert Path(file).name in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_images_are_built_for_both_architectures_and_signed_by_digest(project: Path, calls: Path) -> None:
    done = run(project, "publish-images", "registry.example.org/data")
    assert done.returncode == 0, done.stderr
    said = calls.read_text().splitlines()
    for name in ("operator", "driver"):
        image = f"registry.example.org/data/lakemirror-{name}"
        [built] = [line for line in said if f"--tag {image}:0.1.0 " in line]
        assert "--platform linux/amd64,linux/arm64" in built
        assert "--sbom=true --provenance=mode=max" in built
        assert f"--push --target {name}" in built
        assert f"cosign sign --yes --recursive {image}@{DIGEST}" in said


class TestScan:
    """What the scanners are asked for; another tool's answer is a stand-in's exit code."""

    @pytest.fixture(autouse=True)
    def only_stand_ins(self, project: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("bash", "dirname", "sed"):
            (project / "tools" / name).symlink_to(str(shutil.which(name)))
        monkeypatch.setenv("PATH", str(project / "tools"))

    def scanner(self, project: Path, name: str, code: int = 0) -> None:
        tool = project / "tools" / name
        tool.write_text(f"#!/usr/bin/env bash\nprintf '%s\\n' \"{name} $*\" >>{project}/calls\nexit {code}\n")
        tool.chmod(0o755)

    @pytest.mark.parametrize(
        ("name", "asked"),
        [
            ("grype", "grype {} --only-fixed --fail-on high"),
            ("trivy", "trivy image --ignore-unfixed --severity HIGH,CRITICAL --exit-code 1 {}"),
        ],
    )
    def test_both_images_are_scanned(self, project: Path, calls: Path, name: str, asked: str) -> None:
        self.scanner(project, name)
        assert run(project, "scan-images").returncode == 0
        images = ("lakemirror-operator:0.1.0", "lakemirror-driver:0.1.0")
        assert calls.read_text().splitlines() == [asked.format(image) for image in images]

    def test_one_that_is_vulnerable_fails_after_all_are_scanned(self, project: Path, calls: Path) -> None:
        self.scanner(project, "grype", 2)
        done = run(project, "scan-images", "a:1", "b:1")
        assert done.returncode == 1
        assert "a:1 b:1" in done.stderr
        assert len(calls.read_text().splitlines()) == 2

    def test_without_a_scanner_it_says_how_to_get_one(self, project: Path) -> None:
        done = run(project, "scan-images")
        assert done.returncode == 3
        assert "Install grype (https://github.com/anchore/grype) or Trivy" in done.stderr

    def test_a_scanner_that_cannot_be_built_is_no_success(self, project: Path) -> None:
        self.scanner(project, "go", 1)
        done = run(project, "scan-images")
        assert done.returncode == 3
        assert "Go cannot build grype" in done.stderr


def test_the_chart_is_pushed_and_signed_by_digest(project: Path, calls: Path) -> None:
    (project / "dist").mkdir()
    (project / "dist/lakemirror-0.1.0.tgz").touch()
    done = run(project, "publish-chart", "registry.example.org/data")
    assert done.returncode == 0, done.stderr
    assert calls.read_text().splitlines() == [
        "helm push dist/lakemirror-0.1.0.tgz oci://registry.example.org/data/charts",
        f"cosign sign --yes registry.example.org/data/charts/lakemirror@{DIGEST}",
    ]


def test_nothing_is_signed_whose_digest_is_not_known(project: Path, calls: Path) -> None:
    helm = project / "tools/helm"
    helm.write_text("#!/usr/bin/env bash\necho pushed\n")
    (project / "dist").mkdir()
    (project / "dist/lakemirror-0.1.0.tgz").touch()
    assert run(project, "publish-chart", "registry.example.org/data").returncode == 1
    assert not calls.exists()


def test_a_release_is_made_of_what_was_built_with_its_notes(project: Path, calls: Path) -> None:
    (project / "dist").mkdir()
    (project / "dist/SHA256SUMS").touch()
    assert run(project, "publish-release", "v0.1.0").returncode == 1
    assert not calls.exists(), "a release without notes"
    edit(project / "CHANGELOG.md", "## 0.1.0 (unreleased)", "## 0.1.0 (2026-12-01)")
    assert run(project, "publish-release", "v0.1.0").returncode == 0
    said = calls.read_text()
    assert said.startswith("gh release create v0.1.0 --verify-tag --title v0.1.0 --notes ### Mirrors")
    assert said.rstrip().endswith("dist/SHA256SUMS")


def test_the_password_of_a_registry_is_no_argument(project: Path, calls: Path) -> None:
    done = run(project, "registry-login", "registry.example.org", "somebody", REGISTRY_PASSWORD="secret-word")
    assert done.returncode == 0
    assert calls.read_text() == "docker login registry.example.org --username somebody --password-stdin\n"
    assert calls.with_name("calls.password").read_text() == "secret-word"
    assert run(project, "registry-login", "registry.example.org", "somebody").returncode != 0
