"""A live bank and its pipeline: drivers, as `lakemirror run` or others, and `lakemirror verify`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.conftest import INTERPRETED
from tests.support import bank
from tests.support.connect import Connect, start_connect
from tests.support.databases import PASSWORD, Server, start_postgres
from tests.support.kafka_broker import NOTHING, Broker, start_broker
from tests.support.mirroring import Mirroring, Settings

ROOT = Path(__file__).parents[2]
CONF = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1500m"}


class Banking:
    """A bank, its connector, and the pipeline that mirrors it, whoever runs that; ``spark`` is a part of its
    manifest.
    """

    def __init__(
        self,
        folder: Path,
        server: Server,
        broker: Broker,
        connect: Connect,
        spark: Settings,
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
                # Who is killed every other minute never runs for long enough to be forgiven.
                "restart": {"backoffLimit": 1000},
                "spark": spark,
            },
            name=bank.DATABASE,
        )
        self._asked: datetime | None = None
        self.verifying: list[subprocess.Popen[str]] = []

    def require_driver(self) -> None:
        """Fail if the driver has ended by itself."""
        raise NotImplementedError

    def said(self) -> str:
        """The end of what the drivers have printed."""
        raise NotImplementedError

    def command(self, *arguments: str) -> dict[str, Any]:
        """What starts `lakemirror`, in a process group of its own."""
        return {
            "args": [sys.executable, "-m", "lakemirror.cli.main", *arguments],
            "cwd": self.folder,
            "env": {**os.environ, "PYTHONPATH": str(ROOT / "operator"), "BANK": PASSWORD},
            "start_new_session": True,
        }

    def verify(self, *options: str) -> subprocess.Popen[str]:
        """Begin a comparison."""
        source = ("--source", f"{self.server.url}{bank.DATABASE}", "--user", self.server.user)
        login = (*source, "--password-env", "BANK", "--slot", bank.DATABASE)
        command = self.command("verify", "-f", str(self.mirroring.manifest), *login, *options)
        begun = subprocess.Popen(**command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.verifying.append(begun)
        return begun

    def end(self) -> None:
        """Kill whatever still runs of it."""
        for process in self.verifying:
            kill_group(process)

    def wait_for(self, what: str, happened: Callable[[], bool], seconds: float = 400) -> None:
        """Wait while the driver works."""
        until = time.monotonic() + seconds
        while not happened():
            self.require_driver()
            assert time.monotonic() < until, f"not in time: {what}\n{self.said()}\n{self.connect.log}"
            time.sleep(0.5)

    def has_all(self) -> bool:
        """Whether the driver says that it has mirrored each table."""
        return bool(self._report().get("tablesTotal") == len(self._tables))

    def caught_up(self) -> bool:
        """Whether the driver says that Kafka has no more for it, and said so after this was asked first.

        Once it has, the next question is a new one.
        """
        report = self._report()
        self._asked = self._asked or datetime.now(UTC)
        caught_up = bool(report["caughtUp"]) and datetime.fromisoformat(report["observedAt"]) > self._asked
        if caught_up:
            self._asked = None
        return caught_up

    def _report(self) -> dict[str, Any]:
        report = self.mirroring.checkpoint / "progress.json"
        return dict(json.loads(report.read_text())) if report.exists() else {}


class Live(Banking):
    """One whose drivers are processes of this machine."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        broker: Broker,
        connect: Connect,
        conf: Mapping[str, str] = NOTHING,
        tables: Collection[str] = bank.TABLES,
    ) -> None:
        spark = {"conf": {**CONF, **INTERPRETED, **conf}}
        super().__init__(folder, server, broker, connect, spark, tables)
        self._drivers = 0
        self.process: subprocess.Popen[bytes] | None = None

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
        super().end()
        if self.process is not None:
            kill_group(self.process)

    def require_driver(self) -> None:
        assert self.process is not None
        assert self.process.poll() is None, f"the driver ended by itself:\n{self.said()}"

    def said(self) -> str:
        return "\n".join(
            path.read_text(errors="replace")[-3000:] for path in self.folder.glob("driver-*.log")
        )


@contextmanager
def live(folder: Path) -> Iterator[Live]:
    """A bank that opens, with a broker, a connector and a driver, until the end of the block.

    The broker is its own: the next bank's topics have the same names, and its positions begin anew.
    """
    with ExitStack() as stack:
        worker, log = folder / "connect", folder / "kafka"
        for each in (worker, log):
            each.mkdir()
        server = stack.enter_context(start_postgres(folder))
        broker = stack.enter_context(start_broker(log))
        bank.create(server)
        settings = bank.connector(server)
        connect = stack.enter_context(start_connect(worker, broker, bank.DATABASE, settings))
        made = Live(folder, server, broker, connect)
        made.start()
        try:
            connect.until_running()
            yield made
        finally:
            made.end()


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process group, if it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


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
