"""`lakemirror status`: what is shown of a resource, and with which code it ends."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from lakemirror.api import load_documents
from lakemirror.cli.main import main
from lakemirror.cli.status import ago, view
from tests.api.manifests import FULL

NOW = datetime(2026, 3, 1, 0, 5, tzinfo=UTC)


def resource(**changes: Any) -> dict[str, Any]:
    [document] = load_documents(FULL)
    document["metadata"]["generation"] = 3
    document["status"] = document["status"] | changes
    found: dict[str, Any] = document
    return found


def shown(body: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(view(body, NOW))
    return capture.get()


def test_conditions_lag_driver_and_tables() -> None:
    text = shown(resource())
    assert "mirrors/inventory  Running" in text
    assert "Ready  Progressing, since 5m: batch 41 is committed" in text
    assert "lag 12 records; batch 41, committed 5m ago" in text
    assert "10 applied, 1 stale" in text
    assert "driver inventory-driver-0 for 5m, 1 restarts" in text
    assert "inventory.public.customers" in text
    assert "a widened (altered)" in text


def test_up_to_where_all_tables_are_complete_is_told() -> None:
    checkpoint = resource()["status"]["checkpoint"]
    told = checkpoint | {"completePosition": "24023128:24023184", "completeTime": "2026-03-01T00:00:00Z"}
    text = shown(resource(checkpoint=told))
    assert "all tables complete up to 24023128:24023184, made 5m ago" in text
    assert "complete up to" not in shown(resource(checkpoint=checkpoint | {"completePosition": None}))


def test_what_the_driver_warns_of_is_told() -> None:
    assert "warning: topic a was deleted" in shown(resource(warnings=["topic a was deleted"]))
    assert "warning" not in shown(resource())


def test_names_stay_whole_on_a_narrow_terminal() -> None:
    [table] = resource()["status"]["tables"]
    text = shown(resource(tables=[table, table | {"error": "no such column: " + "x" * 60}]), width=80)
    assert "inventory.public.customers" in text
    assert "no such column" in text


def test_what_the_last_comparison_found_is_told() -> None:
    verified = {"endedAt": "2026-03-01T00:00:00Z", "equal": True, "tables": 3}
    assert "compared with the source 5m ago: 3 tables, all equal" in shown(resource(verified=verified))
    finding = {"source": "shop.public.a", "missing": 1, "keys": ['["7"]']}
    text = shown(resource(verified=verified | {"equal": False, "unequal": 1, "findings": [finding]}))
    assert "compared with the source 5m ago: 1 of 3 tables not equal" in text
    assert "shop.public.a: 1 missing" in text
    assert (
        "7" not in text.partition("shop.public.a: 1 missing")[2].partition("\n")[0]
    )  # keys of rows stay away
    text = shown(resource(verified={"endedAt": "2026-03-01T00:00:00Z", "error": "no route to host"}))
    assert "comparison with the source failed 5m ago: no route to host" in text


def test_failures_are_told() -> None:
    driver = resource()["status"]["driver"] | {"consecutiveFailures": 2}
    assert "failed 2 times, last: OOMKilled: exit code 137" in shown(resource(driver=driver))


def test_a_change_that_nobody_has_looked_at_is_told() -> None:
    assert "has not been processed yet" in shown(resource(observedGeneration=2))
    assert "has not been processed yet" not in shown(resource())


def test_more_tables_than_are_shown() -> None:
    assert "and 213 more tables" in shown(resource(tablesTotal=214))


def test_no_status_yet() -> None:
    body = resource()
    del body["status"]
    assert "no operator has processed it yet" in shown(body)


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("2026-03-01T00:04:20Z", "40s"),
        ("2026-03-01T00:03:00Z", "2m"),
        ("2026-02-28T21:05:00Z", "3h"),
        ("2026-02-26T00:00:00Z", "3d"),
        ("2026-03-01T01:00:00Z", "0s"),
    ],
)
def test_how_long_ago(moment: str, expected: str) -> None:
    assert ago(moment, NOW) == expected


def asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, code: int = 0, *more: str
) -> tuple[Result, str]:
    """The command with a kubectl that gives this answer; and how that was called."""
    kubectl = tmp_path / "kubectl"
    (tmp_path / "answer").write_text(answer)
    stream = "" if code == 0 else " >&2"
    kubectl.write_text(
        f'#!/bin/sh\necho "$@" >{tmp_path}/asked\ncat {tmp_path}/answer{stream}\nexit {code}\n'
    )
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    result = CliRunner().invoke(main, ["status", "inventory", *more], catch_exceptions=False)
    return result, (tmp_path / "asked").read_text().strip()


def test_kubectl_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, call = asked(monkeypatch, tmp_path, json.dumps(resource()), 0, "-n", "mirrors", "--context", "c")
    assert (result.exit_code, "mirrors/inventory" in result.stdout) == (0, True)
    assert call == "get cdcpipelines.lakemirror.io inventory --output json --namespace mirrors --context c"


def test_nothing_is_folded_where_no_terminal_shows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [table] = resource()["status"]["tables"]
    name = f"inventory.public.{'long_' * 30}"
    answer = resource(tables=[table | {"source": name}])
    result, _ = asked(monkeypatch, tmp_path, json.dumps(answer))
    assert name in result.stdout


def test_what_is_not_ready_ends_with_1(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    conditions = resource()["status"]["conditions"]
    conditions[0]["status"] = "False"
    result, _ = asked(monkeypatch, tmp_path, json.dumps(resource(conditions=conditions)))
    assert result.exit_code == 1


def test_kubectl_s_own_words_are_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    result, _ = asked(monkeypatch, tmp_path, 'Error from server (NotFound): "inventory" not found', 1)
    assert (result.exit_code, result.stderr) == (
        1,
        'lakemirror: Error from server (NotFound): "inventory" not found\n',
    )


def test_without_kubectl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = CliRunner().invoke(main, ["status", "inventory"], catch_exceptions=False)
    assert result.exit_code == 1
    assert "kubectl is not on the PATH" in result.stderr
