"""A pipeline that mirrors a live bank: drivers as `lakemirror run`, and `lakemirror verify`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conftest import INTERPRETED
from tests.support import bank
from tests.support.connect import Connect
from tests.support.databases import PASSWORD, Server
from tests.support.kafka_broker import NOTHING, Broker
from tests.support.mirroring import Mirroring

ROOT = Path(__file__).parents[2]
CONF = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1500m"}


class Live:
    """A bank, its connector, and the pipeline that mirrors it."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        broker: Broker,
        connect: Connect,
        conf: Mapping[str, str] = NOTHING,
        tables: Collection[str] = bank.TABLES,
    ) -> None:
        self.folder, self.server, self.broker, self.connect = folder, server, broker, connect
        self._tables = tables
        self.mirroring = Mirroring(
            folder / "pipeline",
            {
                "source": {
                    "kafka": {
                        "bootstrapServers": broker.bootstrap,
                        "topicPattern": rf"{bank.DATABASE}\.public\..*",
                        "startingOffsets": "earliest",
                    }
                },
                "tables": [
                    {"source": "orders", "mode": "scd2"},
                    {"source": "branches", "delete": {"type": "soft", "column": "deleted_at"}},
                    {"source": "history", "mode": "append"},
                ],
                "trigger": {"interval": "1s"},
                "spark": {"conf": {**CONF, **INTERPRETED, **conf}},
            },
            name=bank.DATABASE,
        )
        self._drivers = 0
        self._asked: datetime | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.verifying: list[subprocess.Popen[str]] = []

    def command(self, *arguments: str) -> dict[str, Any]:
        """What starts `lakemirror`, in a process group of its own."""
        return {
            "args": [sys.executable, "-m", "lakemirror.cli.main", *arguments],
            "cwd": self.folder,
            "env": {**os.environ, "PYTHONPATH": str(ROOT / "operator"), "BANK": PASSWORD},
            "start_new_session": True,
        }

    def start(self) -> None:
        """Start a driver."""
        self._drivers += 1
        with open(self.folder / f"driver-{self._drivers}.log", "wb") as log:
            command = self.command("run", "-f", str(self.mirroring.manifest))
            self.process = subprocess.Popen(**command, stdout=log, stderr=log)

    def kill(self) -> None:
        """SIGKILL, to the driver's Python and its JVM."""
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        """Ask the driver to stop, and wait until it has."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(120) == 0, self.said()

    def end(self) -> None:
        """Kill whatever still runs of it."""
        for process in (self.process, *self.verifying):
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(30)

    def said(self) -> str:
        """The end of what the drivers have printed."""
        return "\n".join(
            path.read_text(errors="replace")[-3000:] for path in self.folder.glob("driver-*.log")
        )

    def verify(self, *options: str) -> subprocess.Popen[str]:
        """Begin a comparison."""
        source = ("--source", f"{self.server.url}{bank.DATABASE}", "--user", self.server.user)
        login = (*source, "--password-env", "BANK", "--slot", bank.DATABASE)
        command = self.command("verify", "-f", str(self.mirroring.manifest), *login, *options)
        begun = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.verifying.append(begun)
        return begun

    def wait_for(self, what: str, happened: Callable[[], bool], seconds: float = 400) -> None:
        """Wait while the driver works."""
        until = time.monotonic() + seconds
        while not happened():
            assert self.process is not None
            assert self.process.poll() is None, f"the driver ended:\n{self.said()}"
            assert time.monotonic() < until, f"not in time: {what}\n{self.said()}\n{self.connect.log}"
            time.sleep(0.5)

    def has_all(self) -> bool:
        """Whether the driver says that it has mirrored each table."""
        return bool(self._report().get("tablesTotal") == len(self._tables))

    def caught_up(self) -> bool:
        """Whether the driver says that Kafka has no more for it, and said so after this was asked first."""
        report = self._report()
        self._asked = self._asked or datetime.now(UTC)
        return bool(report["caughtUp"]) and datetime.fromisoformat(report["observedAt"]) > self._asked

    def _report(self) -> dict[str, Any]:
        report = self.mirroring.checkpoint / "progress.json"
        return dict(json.loads(report.read_text())) if report.exists() else {}


def came_of(verify: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a comparison, and what it printed."""
    out, errors = verify.communicate(timeout=1200)
    return verify.returncode, out + errors


def wrong(text: str) -> dict[str, set[str]]:
    """What a comparison calls wrong, by table; where it names no keys, that something is."""
    found: dict[str, set[str]] = {}
    table = ""
    for line in text.splitlines():
        if match := re.match(r"bank\.public\.(\w+): (.*)", line):
            table = match[1]
            if "wrong" in match[2] or "not compared" in match[2] or match[2].startswith("the rows differ ("):
                found[table] = set()
        elif re.match(r"  (differs|extra|missing) ", line):
            found[table].add(line.strip())
    return found
