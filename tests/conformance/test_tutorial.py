"""The tutorial's commands do what it says, with PostgreSQL, Kafka, registry and Kafka Connect of the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import apicurio
from tests.support.connect import start_connect
from tests.support.databases import PASSWORD, start_postgres
from tests.support.kafka_broker import Broker

pytestmark = [
    pytest.mark.sources,
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.guarantee("The commands of the tutorial do what it says"),
]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial.md"
BLOCK = re.compile(r"(<!-- test: has its own -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    """The page's blocks of code that are for the test."""
    return [code for own, kind, code in BLOCK.findall(PAGE.read_text()) if kind == language and not own]


def run(script: str, folder: Path, environment: dict[str, str]) -> str:
    """Run commands as one shell does, and give what they print; with all that they have started they end."""
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-m", "-c", script],
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=600)
    finally:
        # With job control each job has a process group of its own; all are of this session.
        end_session(shell.pid)
    driver = folder / "driver.log"
    log = driver.read_text(errors="replace")[-3000:] if driver.exists() else ""
    assert shell.returncode == 0, f"{said}\n{log}"
    return said


def end_session(session: int) -> None:
    """Kill what is left of a session."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, rest = int(status.parent.name), status.read_text().rpartition(")")[2].split()
            if int(rest[3]) == session:
                os.kill(number, signal.SIGKILL)
        except (OSError, ValueError):
            continue


def test_the_commands_lead_to_the_query(kafka: Broker, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for name in ("postgres", "registry", "connect", "shop"):
        (tmp_path / name).mkdir()
    with (
        start_postgres(tmp_path / "postgres") as server,
        apicurio.serving(tmp_path / "registry") as registry,
        start_connect(tmp_path / "connect", kafka, "shop", {}, avro=True) as connect,
    ):
        connect.until_up()
        environment = {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port),
            "PGUSER": server.user,
            "PGPASSWORD": PASSWORD,
            "KAFKA": kafka.bootstrap,
            "REGISTRY": registry.removesuffix("/apis/ccompat/v7"),
            "CONNECT": connect.url,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "operator"),
        }
        said = run("".join(blocks("sh")), tmp_path / "shop", environment)
    [expected] = blocks("text")
    assert expected in said
    assert len(re.findall(r"^shop\.public\.\w+: equal", said, re.MULTILINE)) == 2, said
