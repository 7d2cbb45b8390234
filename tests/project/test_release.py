"""The scripts of a release, with stand-ins for the tools that reach a registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from hashlib import sha256
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
if [ "$3" = inspect ]; then echo {DIGEST}; fi
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


REGISTRY = "registry.example.org/data"


def test_images_are_built_once_for_both_architectures_and_have_no_tag(project: Path, calls: Path) -> None:
    output = project / "output"
    for _ in range(2):  # what an earlier build has left does not count
        done = run(project, "build-images", REGISTRY, GITHUB_OUTPUT=str(output))
        assert done.returncode == 0, done.stderr
    said = calls.read_text().splitlines()
    built = [line for line in said if line.startswith("docker buildx build ")]
    assert len(built) == 4
    for name, line in zip(("operator", "driver"), built[2:], strict=True):
        image = f"{REGISTRY}/lakemirror-{name}"
        assert "--platform linux/amd64,linux/arm64" in line
        assert "--sbom=true --provenance=mode=max" in line
        assert f"--output type=image,name={image},push=true,push-by-digest=true" in line
        assert f"--target {name}" in line
        assert "--tag" not in line
    assert not [line for line in said if line.startswith("cosign")]
    outputs = [f"{name}={REGISTRY}/lakemirror-{name}@{DIGEST}" for name in ("operator", "driver")]
    assert output.read_text().splitlines()[-2:] == outputs
    assert (project / ".build/images").read_text().splitlines() == [o.partition("=")[2] for o in outputs]


def test_what_was_scanned_is_signed_by_digest_and_then_gets_its_tag(project: Path, calls: Path) -> None:
    images = [f"{REGISTRY}/lakemirror-{name}@{DIGEST}" for name in ("operator", "driver")]
    done = run(project, "publish-images", "v0.1.0", *images)
    assert done.returncode == 0, done.stderr
    inspect = "--format {{ .Manifest.Digest }}"
    expected = []
    for image in images:
        tagged = f"{image.partition('@')[0]}:0.1.0"
        expected.append(f"cosign sign --yes --recursive {image}")
        expected.append(f"docker buildx imagetools create --tag {tagged} {image}")
        expected.append(f"docker buildx imagetools inspect {tagged} {inspect}")
    assert calls.read_text().splitlines() == expected


def test_a_tag_that_leads_elsewhere_fails(project: Path, calls: Path) -> None:
    image = f"{REGISTRY}/lakemirror-operator@sha256:{'f' * 64}"
    done = run(project, "publish-images", "v0.1.0", image)
    assert done.returncode == 1
    assert f"lakemirror-operator:0.1.0 is {DIGEST}, not sha256:ffff" in done.stderr


@pytest.mark.parametrize("images", [(), (f"{REGISTRY}/lakemirror-operator:0.1.0",)])
def test_an_image_without_a_digest_is_not_published(
    project: Path, calls: Path, images: tuple[str, ...]
) -> None:
    assert run(project, "publish-images", "v0.1.0", *images).returncode == 1
    assert not calls.exists()


class TestDist:
    """What another job has built is taken by its hash."""

    @pytest.fixture
    def hash(self, project: Path) -> str:
        (project / "dist").mkdir()
        (project / "dist/lakemirror-0.1.0.tgz").write_text("chart")
        sums = f"{sha256(b'chart').hexdigest()}  lakemirror-0.1.0.tgz\n"
        (project / "dist/SHA256SUMS").write_text(sums)
        return sha256(sums.encode()).hexdigest()

    def test_the_same_files_pass(self, project: Path, hash: str) -> None:
        done = run(project, "check-dist", hash)
        assert (done.returncode, done.stderr) == (0, "")

    @pytest.mark.parametrize("file", ["lakemirror-0.1.0.tgz", "SHA256SUMS", "another.tgz"])
    def test_another_or_a_changed_file_does_not(self, project: Path, hash: str, file: str) -> None:
        with (project / "dist" / file).open("a") as changed:
            changed.write("x")
        assert run(project, "check-dist", hash).returncode == 1

    def test_without_a_hash_nothing_passes(self, project: Path, hash: str) -> None:
        assert run(project, "check-dist").returncode == 1
        assert run(project, "check-dist", "").returncode == 1


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

    def test_each_architecture_of_a_published_image_is_scanned(self, project: Path, calls: Path) -> None:
        self.scanner(project, "grype")
        platforms = ["linux/amd64", "linux/arm64"]
        done = run(project, "scan-images", f"a@{DIGEST}", LAKEMIRROR_PLATFORMS=" ".join(platforms))
        assert done.returncode == 0
        asked = f"grype a@{DIGEST} --only-fixed --fail-on high --platform"
        assert calls.read_text().splitlines() == [f"{asked} {platform}" for platform in platforms]

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
