"""The command line: what it prints, and with which code it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.api import CdcPipeline, crd
from lakemirror.api.supported import not_supported
from lakemirror.cli.main import main
from lakemirror.driver.errors import CheckpointInUse
from tests.api.manifests import FULL, SMALL, changed


def lakemirror(*arguments: str, input: str | None = None) -> Result:
    return CliRunner().invoke(main, arguments, input=input, catch_exceptions=False)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(SMALL), "utf-8")
    return str(path)


def write(path: Path, *documents: Any) -> str:
    path.write_text(yaml.safe_dump_all(documents), "utf-8")
    return str(path)


class TestValidate:
    def test_a_good_file(self, manifest: str) -> None:
        result = lakemirror("validate", "-f", manifest)
        assert (result.exit_code, result.stdout) == (0, f"{manifest}: inventory is valid\n")

    def test_a_login_without_encryption_is_a_warning(self, tmp_path: Path) -> None:
        security = {"protocol": "SASL_PLAINTEXT", "mechanism": "PLAIN", "secret": "kafka"}
        kafka = {"bootstrapServers": "kafka:9092", "topics": ["a.b.c"], "security": security}
        file = write(tmp_path / "pipeline.yaml", changed(source={"kafka": kafka}))
        result = lakemirror("validate", "-f", file)
        assert (result.exit_code, result.stdout) == (0, f"{file}: inventory is valid\n")
        assert result.stderr.startswith(f"{file}: warning: spec.source.kafka.security.protocol: ")

    def test_the_manifest_with_everything(self) -> None:
        """Each field is understood; what is not supported, or without effect, is named, one line each."""
        result = lakemirror("validate", "-f", "-", input=FULL)
        assert (result.exit_code, result.stdout) == (2, "")
        refused = not_supported(CdcPipeline.from_yaml(FULL).spec)
        assert refused
        assert result.stderr.splitlines() == [f"-: {path}: {message}" for path, message in refused]

    def test_one_line_an_error(self, tmp_path: Path) -> None:
        file = write(tmp_path / "bad.yaml", changed(unlisted="no", trigger={"interval": "5"}))
        result = lakemirror("validate", "-f", file)
        assert result.exit_code == 2
        assert result.stdout == ""
        assert [text.split(": ")[:2] for text in result.stderr.splitlines()] == [
            [file, "spec.unlisted"],
            [file, "spec.trigger.interval"],
        ]

    def test_documents_are_told_apart_and_foreign_ones_left_alone(self, tmp_path: Path) -> None:
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "a"}}
        file = write(tmp_path / "several.yaml", namespace, SMALL, changed(checkpoint=None))
        result = lakemirror("validate", "-f", file)
        assert result.exit_code == 2
        assert result.stdout == f"{file}#2: inventory is valid\n"
        assert result.stderr == f"{file}#3: spec.checkpoint: is required\n"

    @pytest.mark.parametrize(
        ("document", "error"),
        [
            ({"apiVersion": "v1", "kind": "Namespace"}, "holds no CdcPipeline"),
            ({**SMALL, "kind": "CdcPipelin"}, "kind: must be CdcPipeline"),
            ({**SMALL, "apiVersion": "lakemirror/v1"}, "apiVersion: must be lakemirror.io/v1alpha1"),
        ],
    )
    def test_a_misspelt_kind_is_not_foreign(self, tmp_path: Path, document: Any, error: str) -> None:
        result = lakemirror("validate", "-f", write(tmp_path / "kind.yaml", document))
        assert result.exit_code == 2
        assert error in result.stderr

    def test_each_file_is_checked(self, tmp_path: Path, manifest: str) -> None:
        result = lakemirror("validate", "-f", str(tmp_path / "none.yaml"), "-f", manifest)
        assert result.exit_code == 2
        assert result.stderr == f"{tmp_path}/none.yaml: cannot be read: No such file or directory\n"
        assert "inventory is valid" in result.stdout

    @pytest.mark.parametrize(
        ("text", "error"), [("", "holds no document"), ("a: [", "line 1"), ("a\n", "mapping")]
    )
    def test_what_is_no_manifest(self, text: str, error: str) -> None:
        result = lakemirror("validate", "-f", "-", input=text)
        assert result.exit_code == 2
        assert error in result.stderr


@pytest.mark.parametrize("command", ["validate", "render", "run", "replay"])
def test_what_is_not_supported_is_refused_by_all_commands_alike(command: str, tmp_path: Path) -> None:
    file = write(tmp_path / "pipeline.yaml", changed(maintenance={}))
    result = lakemirror(command, "-f", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{file}: spec.maintenance: has no effect without")


def test_crd_prints_the_definition() -> None:
    result = lakemirror("crd")
    assert (result.exit_code, result.stdout) == (0, crd.to_yaml())


class Driver:
    """Stands in for a module of the driver, and remembers how it was called."""

    def __init__(self, error: BaseException | None = None, held: Mapping[str, str] | None = None) -> None:
        self.error = error
        self.summary = SimpleNamespace(status="completed", held=held or {})
        self.calls: list[tuple[CdcPipeline, dict[str, Any]]] = []
        self.started: list[tuple[Any, ...]] = []
        """The JVMs that were started in advance."""

    def __call__(self, pipeline: CdcPipeline, **options: Any) -> Any:
        self.calls.append((pipeline, options))
        if self.error is not None:
            raise self.error
        return self.summary


def install(monkeypatch: pytest.MonkeyPatch, module: str, driver: Driver) -> Driver:
    name = f"lakemirror.driver.runtime.{module}"
    fake = ModuleType(name)
    setattr(fake, "run" if module == "runner" else module, driver)
    monkeypatch.setitem(sys.modules, name, fake)
    screen = ModuleType("lakemirror.driver.runtime.display")
    screen.Display = lambda: nullcontext("display")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, screen.__name__, screen)
    session = ModuleType("lakemirror.driver.runtime.session")
    session.start_jvm = lambda *about: driver.started.append(about)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, session.__name__, session)
    return driver


class TestRun:
    def test_the_driver_gets_the_manifest_with_what_was_set(
        self, monkeypatch: pytest.MonkeyPatch, manifest: str
    ) -> None:
        driver = install(monkeypatch, "runner", Driver())
        result = lakemirror(
            "run", "-f", manifest, "--once", "--set", "target.path=/x/{table}", "--set", "suspend=true"
        )
        assert result.exit_code == 0, result.stderr
        [(pipeline, options)] = driver.calls
        assert options == {"once": True, "secrets": {}, "on_event": "display"}
        assert pipeline == CdcPipeline.from_dict(changed(target={"path": "/x/{table}"}, suspend=True))
        about = (pipeline.spec.spark.conf, pipeline.spec.java_properties)
        assert driver.started == [(f"lakemirror-{pipeline.name}", *about)]

    def test_a_held_table_is_not_all_that_was_there(
        self, monkeypatch: pytest.MonkeyPatch, manifest: str
    ) -> None:
        install(monkeypatch, "runner", Driver(held={"demo.public.items": "it has no key"}))
        assert lakemirror("run", "-f", manifest, "--once").exit_code == 1

    def test_a_wrong_manifest_ends_with_2(self, monkeypatch: pytest.MonkeyPatch, manifest: str) -> None:
        driver = install(monkeypatch, "runner", Driver())
        result = lakemirror("run", "-f", manifest, "--set", "target.pth=x")
        assert result.exit_code == 2
        assert result.stderr == f"{manifest}: spec.target.pth: unknown field; did you mean path?\n"
        assert driver.calls == []

    def test_one_pipeline_is_run_at_a_time(self, tmp_path: Path) -> None:
        result = lakemirror("run", "-f", write(tmp_path / "two.yaml", SMALL, SMALL))
        assert result.exit_code == 2
        assert "one CdcPipeline is expected, found 2" in result.stderr

    def test_an_error_on_purpose_is_one_line(self, monkeypatch: pytest.MonkeyPatch, manifest: str) -> None:
        install(monkeypatch, "runner", Driver(CheckpointInUse("another driver\nowns state")))
        result = lakemirror("run", "-f", manifest)
        assert (result.exit_code, result.stderr) == (1, "lakemirror: another driver owns state\n")

    def test_another_error_shows_its_place_with_debug_only(
        self, monkeypatch: pytest.MonkeyPatch, manifest: str
    ) -> None:
        install(monkeypatch, "runner", Driver(KeyError("x")))
        result = lakemirror("run", "-f", manifest)
        assert (result.exit_code, result.stderr) == (1, "lakemirror: KeyError: 'x' (--debug shows where)\n")
        assert "Traceback" in lakemirror("run", "-f", manifest, "--debug").stderr

    def test_without_spark_it_says_what_to_install(self, manifest: str) -> None:
        # In a process of its own: modules that failed to load must not stay behind for other tests.
        code = "import sys; sys.modules['pyspark'] = None; from lakemirror.cli.main import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", code, "run", "-f", manifest],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 1
        assert result.stderr == (
            "lakemirror: pyspark is not installed. It belongs to the extra spark of Lakemirror: "
            "in a clone, run pip install '.[spark]'\n"
        )

    def test_secrets_are_directories_that_the_manifest_names(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, manifest: str
    ) -> None:
        driver = install(monkeypatch, "runner", Driver())
        full = tmp_path / "full.yaml"
        spec = CdcPipeline.from_yaml(FULL).to_dict()["spec"]
        secrets = {"source": spec["source"], "envelope": {**spec["envelope"], "format": "debezium"}}
        for name in ("fields", "opMap"):
            secrets["envelope"].pop(name)
        secrets["envelope"]["schemaRegistry"].pop("useId")  # for Apicurio alone, which the address is not
        write(full, changed(**secrets))
        given = ["--secret", f"kafka-auth={tmp_path}", "--secret", f"registry-auth={tmp_path}"]
        assert lakemirror("run", "-f", str(full), *given).exit_code == 0
        assert driver.calls[0][1]["secrets"] == {"kafka-auth": str(tmp_path), "registry-auth": str(tmp_path)}
        for arguments, error in (
            ([str(full), *given[:2]], "spec.envelope.schemaRegistry.secret names the secret registry-auth"),
            ([manifest, "--secret", f"a={tmp_path}"], "does not read such a Secret"),
            ([manifest, "--secret", "a"], "NAME=DIR"),
            ([manifest, "--secret", f"a={tmp_path}/none"], "is not a directory"),
        ):
            result = lakemirror("run", "-f", *arguments)
            assert result.exit_code == 2
            assert error in result.stderr
