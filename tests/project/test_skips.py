"""LAKEMIRROR_NO_SKIPS: what is skipped by hand fails where nobody would notice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skips import MAY_BE_SKIPPED, fails

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="no prometheus")
def test_by_mark(): pass

@pytest.fixture
def server(): pytest.skip("no server")

def test_by_fixture(server): pass

def test_by_itself(): pytest.skip("no tool")

def test_may_be_skipped(): pytest.skip("MySQL is not installed: a word more")

@pytest.mark.xfail(strict=True)
def test_known(): assert False

def test_good(): pass
"""


def outcomes(folder: Path, **variables: str) -> str:
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.support.skips", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-c", os.devnull, "--rootdir", str(folder), "test_it.py"],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}", **variables},
    )
    return done.stdout


def test_a_skip_fails_where_it_is_not_allowed(tmp_path: Path) -> None:
    said = outcomes(tmp_path, LAKEMIRROR_NO_SKIPS="1")
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 2 errors" in said
    for reason in ("no prometheus", "no server", "no tool"):
        assert f"this test would be skipped: {reason}" in said
    assert "1 passed, 4 skipped, 1 xfailed" in outcomes(tmp_path, LAKEMIRROR_NO_SKIPS="")


@pytest.mark.parametrize("allowed", MAY_BE_SKIPPED)
def test_what_is_allowed_is_a_reason_that_tests_give(allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEMIRROR_NO_SKIPS", "1")
    assert not fails(allowed)
    own = {Path(__file__), ROOT / "tests/support/skips.py"}
    assert any(allowed in path.read_text() for path in ROOT.glob("tests/**/*.py") if path not in own)
