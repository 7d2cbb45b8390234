"""Control characters in names are escapes wherever names are shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

import lakemirror.cli
from lakemirror.api.logs import OneLine
from lakemirror.api.report import CompleteReport, DriftReport, Report, TableReport
from lakemirror.api.shown import shown
from lakemirror.api.status import Condition, Handled
from lakemirror.cli.common import say
from lakemirror.driver.runtime.display import Display
from lakemirror.driver.runtime.events import Warned
from lakemirror.driver.runtime.metrics import ReportCollector

pytestmark = pytest.mark.guarantee(
    "Control characters of names are escapes in logs, commands, reports, conditions and metrics"
)

FORGED = (
    "a\n2026-01-01T00:00:00Z ERROR the mirror is gone\r\t"
    "\x1b[2J\x1b]0;x\x07\x9b31m\x7f\u2028\u2029\u202egpj.exe\u2066"
)
HIDDEN = [c for c in FORGED if not c.isprintable() or c in "\u202e\u2066"]


def is_plain(text: str) -> bool:
    return not any(character in text for character in HIDDEN)


def test_each_hidden_character_is_an_escape_of_json() -> None:
    assert shown("a\nb\r\t\x1b\x9b\u202e\ud800") == r"a\nb\r\t\u001b\u009b\u202e\ud800"
    assert json.loads(f'"{shown(FORGED)}"') == FORGED
    assert is_plain(shown(FORGED))


@pytest.mark.parametrize("text", ["", "Ünïcode 😀 日本語", "a\u200db", r"C:\new\table", 'it\'s "q"', "a  b"])
def test_other_text_stays(text: str) -> None:
    assert shown(text) == text


def test_text_may_be_shown_twice() -> None:
    assert shown(shown(FORGED)) == shown(FORGED)


def test_a_message_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    formatter = OneLine("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def line(error: BaseException | None = None) -> str:
        info = (type(error), error, None) if error is not None else None
        record = logging.LogRecord("x", logging.INFO, "", 0, "table %s is refused", (FORGED,), info)
        record.created = 0.0
        return formatter.format(record)

    assert line() == f"1970-01-01T00:00:00Z INFO table {shown(FORGED)} is refused"
    first, *trace = line(ValueError(FORGED)).split("\n")
    assert first == line()
    assert trace
    assert all(each.startswith("  ") and is_plain(each) for each in trace)


def test_the_driver_and_the_operator_log_like_that(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(logging, "basicConfig", lambda **options: found.append(options))
    OneLine.begin("%(message)s", "INFO")
    [handler] = found[0]["handlers"]
    assert isinstance(handler.formatter, OneLine)
    folder = Path(lakemirror.cli.__file__).parents[1]
    others = [path for path in folder.rglob("*.py") if "basicConfig" in path.read_text(encoding="utf-8")]
    assert [path.name for path in others] == ["logs.py"]


def test_commands_print_escapes() -> None:
    @click.command()
    def command() -> None:
        say(f"table {FORGED}", "second")

    assert CliRunner().invoke(command).output == f"table {shown(FORGED)}\nsecond\n"
    for path in Path(lakemirror.cli.__file__).parent.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name not in ("common.py", "crd.py", "render.py"):  # the last two print YAML of their own
            assert "click.echo" not in text, path.name


def test_a_run_on_a_terminal_prints_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    Display(Console(width=500))(Warned(f"{FORGED}\nmore"))
    assert capsys.readouterr().out == f"warning: {shown(FORGED)}\\nmore\n"


def test_reports_conditions_and_metrics_have_escapes_and_tokens_stay() -> None:
    table = TableReport(
        source=FORGED, error=FORGED, target=FORGED, drift=[DriftReport(column=FORGED, change="x")]
    )
    report = Report(
        pipeline="p",
        tables=[table],
        failure=FORGED,
        warnings=[FORGED],
        complete=[CompleteReport(log=FORGED, below="00")],
    )
    assert (report.failure, report.warnings, table.source) == (shown(FORGED), [shown(FORGED)], shown(FORGED))
    assert is_plain(TableReport.model_dump_json(table))
    condition = Condition(
        type="Ready", status="True", last_transition_time="2026-01-01T00:00:00Z", reason="X", message=FORGED
    )
    assert condition.message == shown(FORGED)
    assert Handled(reset_token=FORGED).reset_token == FORGED
    collector = ReportCollector()
    collector.report = report
    labels = [
        value
        for family in collector.collect()
        for sample in family.samples
        for value in sample.labels.values()
    ]
    assert shown(FORGED) in labels
    assert all(map(is_plain, labels))
    assert report.complete[0].log == FORGED  # positions are looked up by it
