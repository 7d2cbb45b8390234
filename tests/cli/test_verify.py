"""``lakemirror verify``: what it asks for, and what is a mistake in its command line."""

from __future__ import annotations

import importlib
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.cli.main import main
from lakemirror.driver.runtime import verifier
from lakemirror.driver.runtime.replay_requests import ReplayOutcome, StillBad
from lakemirror.driver.runtime.verifier import DatabaseWanted, Login, Patience, Repaired, Verified
from lakemirror.driver.verify.table import Checked
from lakemirror.driver.verify.verdict import Difference, Settled
from tests.api.manifests import changed

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
WRONG = Settled(wrong=(Difference('["1"]', True, True), Difference('["2"]', True, False)))
ROWS = "(%s rows in the mirror, %s in the source, 0.0 s)"
ASKED = {
    "jdbc": {"url": "jdbc:postgresql://db/shop", "secret": "reader"},
    "wait": "7s",
    "tables": ["public.a"],
}


def invoke(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str, done: Verified | None = None, **spec: Any
) -> tuple[Result, list[tuple[Any, dict[str, Any]]]]:
    """Run the command with a stand-in for the driver; gives what it was asked, too."""
    calls: list[tuple[Any, dict[str, Any]]] = []
    outcome = done or Verified((), MOMENT, MOMENT)

    def verify(pipeline: Any, wanted: Any, **options: Any) -> Verified:
        calls.append((wanted, options))
        for table in outcome.tables:
            options["told"](table)
        return outcome

    fake = ModuleType(verifier.__name__)
    fake.__dict__.update(verifier.__dict__ | {"verify": verify})
    monkeypatch.setitem(sys.modules, verifier.__name__, fake)
    manifest = folder / "pipeline.yaml"
    manifest.write_text(yaml.safe_dump(changed(**spec)), "utf-8")
    return CliRunner().invoke(main, ["verify", "-f", str(manifest), *arguments]), calls


def test_the_login_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("se cret\n")
    password.chmod(0o600)
    url = "jdbc:mariadb://db:3306/"
    result, calls = invoke(
        monkeypatch,
        tmp_path,
        *("--source", url, "--user", "me", "--password-file", str(password), "--table", "a", "--wait", "3"),
        *("--settled", "--limit", "5", "--repair"),
    )
    assert result.exit_code == 0, result.output
    [(wanted, options)] = calls
    assert wanted == DatabaseWanted(Login(url, "me", "se cret"))
    assert (options["tables"], options["most"], options["repair"]) == (("a",), 5, True)
    assert options["patience"] == Patience(wait=3.0, settled=True)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_a_password_that_others_may_read_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int
) -> None:
    password = tmp_path / "pass word"
    password.write_text("se cret\n")
    password.chmod(mode)
    arguments = ("--source", "jdbc:mariadb://db:3306/", "--user", "me", "--password-file", str(password))
    result, calls = invoke(monkeypatch, tmp_path, *arguments)
    assert (result.exit_code, calls) == (2, [])
    assert f"chmod 600 '{password}'" in " ".join(result.output.split())
    assert "se cret" not in result.output
    # As with the keys of ssh: what belongs to somebody else, such as a mounted Secret, is not ours to judge.
    monkeypatch.setattr(os, "getuid", lambda: password.stat().st_uid + 1)
    assert importlib.import_module("lakemirror.cli.verify").password_of(str(password), None) == "se cret"


def test_the_manifest_says_what_the_command_line_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "reader"
    secret.mkdir()
    (secret / "username").write_text("me\n")
    (secret / "password").write_text("x")
    result, calls = invoke(monkeypatch, tmp_path, "--secret", f"reader={secret}", verify=ASKED)
    assert result.exit_code == 0, result.output
    [(wanted, options)] = calls
    assert wanted == DatabaseWanted(Login("jdbc:postgresql://db/shop", "me", "x"))
    assert options["tables"] == ("public.a",)
    assert options["patience"] == Patience(wait=7.0, settle=30.0)


@pytest.mark.parametrize(
    ("arguments", "spec", "said"),
    [
        ((), {}, "--source is missing"),
        (("--source", "jdbc:oracle:thin:@x?password=s3cret"), {}, "must begin with one of"),
        (("--source", "delta:/x", "--user", "me"), {}, "--user has no effect with a snapshot"),
        (("--user", "me"), {"verify": ASKED}, "--user belongs to --source"),
        ((), {"verify": ASKED}, "say where it is with --secret reader=DIR"),
        (("--source", "jdbc:mariadb://x/", "--password-env", "NOT_THERE"), {}, "no environment variable"),
    ],
)
def test_mistakes_of_the_command_line(
    arguments: tuple[str, ...],
    spec: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    result, calls = invoke(monkeypatch, tmp_path, *arguments, **spec)
    assert (result.exit_code, calls) == (2, [])
    assert said in " ".join(result.stderr.split())
    assert "s3cret" not in result.stderr


def test_what_became_of_each_table_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = (
        Checked("db.a", settled=WRONG, mirror_rows=1000, source_rows=1001),
        Checked("db.b", error="db.b: there is no mirror yet"),
        Checked(
            "db.c", settled=Settled(arriving=('["3"]',), moving=('["4"]',)), left_out={"p": "no such way"}
        ),
    )
    newer = StillBad("db.a", "the mirror has a newer change", 1)
    repairs = (Repaired("db.a", 2, ReplayOutcome("x", 2, 1, bad=(newer,))),)
    done = Verified(tables, MOMENT, MOMENT, driver=False, repairs=repairs)
    result, _ = invoke(monkeypatch, tmp_path, "--source", "delta:/x/{table}", "--repair", done=done)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"db.a: 2 keys are wrong: 1 differs, 1 missing {ROWS % ('1,000', '1,001')}",
        '  differs ["1"]',
        '  missing ["2"]',
        "db.b: not compared: db.b: there is no mirror yet",
        f"db.c: 1 keys differ, perhaps because changes have not arrived {ROWS % (0, 0)}",
        '  not arrived ["3"]',
        "  1 keys changed each time they were looked at, and were left alone",
        "  column p is not compared: no such way",
        "No driver is running, so missing changes cannot be told from wrong rows: run "
        "the pipeline, or say --settled if the mirrors have all changes",
        "db.a: 1 of 2 rows repaired; 1 left alone: the mirror has a newer change",
        "3 of 3 tables not equal",
    ]
    whole = Verified(tables[:1], MOMENT, MOMENT, repairs=(Repaired("db.a", 2, ReplayOutcome("x", 2)),))
    result, _ = invoke(monkeypatch, tmp_path, "--source", "delta:/x", "--repair", done=whole)
    assert (result.exit_code, result.stdout.splitlines()[-2:]) == (
        0,
        ["db.a: 2 of 2 rows repaired", "1 table, 1 of them repaired"],
    )
