"""How the driver's container ends, and what it leaves behind when it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakemirror.api import CdcPipeline
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.pod import __main__ as pod
from tests.controller.builders import document

KEPT = 4096
"""Bytes of a termination message that Kubernetes keeps (Container.terminationMessagePath)."""


@pytest.mark.parametrize("message", ["short", "x" * 5000, "ä" * 3000, "x" + "日" * 2000])
def test_why_it_ended_fits_into_the_termination_message(
    message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    monkeypatch.setattr(pod, "TERMINATION_LOG", log)

    def drive() -> None:
        raise LakemirrorError(message)

    monkeypatch.setattr(pod, "drive", drive)
    assert pod.main([]) == 1
    written = log.read_bytes()
    assert len(written) <= KEPT
    assert message.startswith(written.decode())
    assert len(written) > KEPT - 4 or written.decode() == message


ENVIRONMENT = {
    "POD_NAME": "shop-driver-0",
    "POD_IP": "10.0.0.1",
    "POD_NAMESPACE": "mirrors",
    "LAKEMIRROR_PROGRESS_CONFIGMAP": "shop-progress",
    "LAKEMIRROR_GRACE_SECONDS": "90",
    "KUBERNETES_SERVICE_HOST": "10.0.0.2",
    "KUBERNETES_SERVICE_PORT": "443",
}
STREAM: dict[str, Any] = {"interval": "10s"}
ONCE: dict[str, Any] = {"availableNow": True}
SCHEDULED = {**ONCE, "schedule": "@hourly"}


class TestEnd:
    """Kubernetes takes the exit code 0 for the end of a Job, and does not run it again."""

    @pytest.fixture(autouse=True)
    def log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setattr(pod, "TERMINATION_LOG", tmp_path / "termination-log")
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        return tmp_path / "termination-log"

    def ends(
        self,
        monkeypatch: pytest.MonkeyPatch,
        trigger: dict[str, Any],
        how: RunSummary | BaseException,
        *arguments: str,
    ) -> int:
        def work(*_: Any, **__: Any) -> Any:
            if isinstance(how, BaseException):
                raise how
            return how

        manifest = CdcPipeline.from_dict(document(trigger=trigger))
        monkeypatch.setattr(pod, "pipeline", lambda _: manifest)
        monkeypatch.setattr(pod.runner, "run", work)
        monkeypatch.setattr(pod.cleanup, "delete_data", work)
        return pod.main([*arguments])

    @pytest.mark.parametrize("trigger", [STREAM, ONCE, SCHEDULED])
    def test_a_run_that_has_applied_everything_ends_well(
        self, trigger: dict[str, Any], log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.ends(monkeypatch, trigger, RunSummary("shop", "completed")) == 0
        assert not log.exists()

    @pytest.mark.parametrize("how", [RunSummary("shop", "stopped"), KeyboardInterrupt()])
    def test_a_stream_that_is_told_to_stop_ends_well(
        self, how: RunSummary | BaseException, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.ends(monkeypatch, STREAM, how) == 0
        assert not log.exists()

    @pytest.mark.parametrize("trigger", [ONCE, SCHEDULED])
    @pytest.mark.parametrize("how", [RunSummary("shop", "stopped"), KeyboardInterrupt()])
    def test_a_run_that_is_told_to_stop_is_repeated(
        self,
        trigger: dict[str, Any],
        how: RunSummary | BaseException,
        log: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """As when its node is drained."""
        assert self.ends(monkeypatch, trigger, how) == 1
        assert log.read_text() == "the run was stopped before everything was applied; it is repeated"

    def test_a_cleanup_that_is_told_to_stop_is_repeated(
        self, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.ends(monkeypatch, STREAM, KeyboardInterrupt(), "cleanup") == 1
        assert "is repeated" in log.read_text()
