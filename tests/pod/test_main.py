"""What the driver's container leaves behind when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakemirror.driver.errors import LakemirrorError
from lakemirror.pod import __main__ as pod

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
