"""``lakemirror replay``: what it asks for, what it prints, and with which code it ends."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.api import CdcPipeline
from lakemirror.cli.main import main
from lakemirror.driver.runtime.replay_requests import ReplayOutcome, StillBad
from tests.api.manifests import SMALL


class Replayer:
    """Stands in for the driver: gives an outcome, and remembers how it was called."""

    def __init__(self, outcome: ReplayOutcome) -> None:
        self.outcome = outcome
        self.calls: list[tuple[CdcPipeline, dict[str, Any]]] = []

    def __call__(self, pipeline: CdcPipeline, **options: Any) -> ReplayOutcome:
        self.calls.append((pipeline, options))
        return self.outcome


def invoke(
    monkeypatch: pytest.MonkeyPatch, folder: Path, outcome: ReplayOutcome, *arguments: str
) -> tuple[Result, Replayer]:
    replayer, fake = Replayer(outcome), ModuleType("lakemirror.driver.runtime.replayer")
    fake.replay = replayer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    manifest = folder / "pipeline.yaml"
    manifest.write_text(yaml.safe_dump(SMALL), "utf-8")
    return CliRunner().invoke(main, ["replay", "-f", str(manifest), *arguments]), replayer


def test_it_passes_on_what_to_replay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("--table", "public.a", "--reason", "bad-json", "--timeout", "7")
    result, replayer = invoke(monkeypatch, tmp_path, ReplayOutcome("r"), *options)
    assert (result.exit_code, result.stdout) == (0, "no open records in quarantine match\n")
    [(pipeline, given)] = replayer.calls
    assert pipeline == CdcPipeline.from_dict(SMALL)
    chosen = {"table": "public.a", "reason": "bad-json", "discard": False}
    assert given == {**chosen, "timeout": 7.0, "secrets": {}}


@pytest.mark.parametrize(
    ("outcome", "code", "told"),
    [
        (
            ReplayOutcome("r", 3, taken={"db.public.a": 2, "": 1}),
            0,
            [
                "3 records taken from quarantine: 3 applied, 0 still bad",
                "  unknown table: 1 taken",
                "  db.public.a: 2 taken",
            ],
        ),
        (
            ReplayOutcome(
                "r",
                9,
                4,
                taken={"a": 9},
                bad=(StillBad("a", "v does not fit", 2, ("t/0/5", "t/0/9")), StillBad("", "no JSON", 1)),
            ),
            1,
            [
                "9 records taken from quarantine: 5 applied, 4 still bad",
                "  a: 9 taken",
                "still bad:",
                "  a: 2 records: v does not fit",
                "    at t/0/5",
                "    at t/0/9",
                "  unknown table: 1 record: no JSON",
                "  and 1 record for other reasons",
            ],
        ),
        (
            ReplayOutcome("r", filed=True),
            1,
            ["request r is filed, but the running driver did not finish it within 300 s"],
        ),
        (
            ReplayOutcome("r", error="disk full"),
            1,
            ["request r failed: disk full", "tries it again", "replay/outcomes/r"],
        ),
    ],
)
def test_it_tells_what_came_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: ReplayOutcome, code: int, told: list[str]
) -> None:
    result, _ = invoke(monkeypatch, tmp_path, outcome)
    assert result.exit_code == code
    for text in told:
        assert text in result.stdout


def test_a_wrong_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("kind: CdcPipeline")
    assert CliRunner().invoke(main, ["replay", "-f", str(tmp_path / "p.yaml")]).exit_code == 2
