"""The demo prints what the front page shows of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r"<!-- output of scripts/demo -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_demo_prints_what_the_front_page_shows(tmp_path: Path) -> None:
    demo = (ROOT / "scripts/demo").read_text("utf-8")
    run, show = (
        "lakemirror run -f examples/inventory/pipeline.yaml --once",
        "examples/show.py .build/inventory",
    )
    assert run in demo
    assert show in demo
    places = [
        "--set",
        f"target.path={tmp_path}/{{schema}}/{{table}}",
        "--set",
        f"checkpoint={tmp_path}/_checkpoint",
    ]
    lakemirror = [sys.executable, "-m", "lakemirror.cli.main", *run.split()[1:], *places]
    said = _output(lakemirror) + _output([sys.executable, "examples/show.py", str(tmp_path)])
    printed = {" ".join(line.split()) for line in said.splitlines()}
    [shown] = SHOWN.findall((ROOT / "README.md").read_text("utf-8"))
    missing = [line for line in shown.splitlines() if line != "..." and " ".join(line.split()) not in printed]
    assert missing == []


def _output(command: list[str]) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "operator"),
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
    }
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr
