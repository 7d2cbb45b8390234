"""A live database: PostgreSQL under load, Debezium in Kafka Connect, Kafka, a driver, `lakemirror verify`.

Nothing here is recorded or made up: the events are those that the connector sends, whenever it sends them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.conftest import INTERPRETED
from tests.support import bank
from tests.support.connect import Connect, start_connect
from tests.support.databases import PASSWORD, Server, start_postgres
from tests.support.kafka_broker import Broker
from tests.support.mirroring import Mirroring

pytestmark = [pytest.mark.sources, pytest.mark.timeout(1500)]
ROOT = Path(__file__).parents[2]
CONF = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1500m"}


class Live:
    """A bank, its connector, and the pipeline that mirrors it."""

    def __init__(self, folder: Path, server: Server, broker: Broker, connect: Connect) -> None:
        self.folder, self.server, self.connect = folder, server, connect
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
                "spark": {"conf": {**CONF, **INTERPRETED}},
            },
            name=bank.DATABASE,
        )
        self._drivers = 0
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
        report = self.mirroring.checkpoint / "progress.json"
        return report.exists() and json.loads(report.read_text())["tablesTotal"] == len(bank.TABLES)


def came_of(verify: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code of a comparison, and what it printed."""
    out, errors = verify.communicate(timeout=400)
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


@contextmanager
def live(folder: Path, broker: Broker) -> Iterator[Live]:
    """All of it, until the end of the block."""
    with ExitStack() as stack:
        server = stack.enter_context(start_postgres(folder))
        bank.create(server)
        worker = folder / "connect"
        worker.mkdir()
        settings = bank.connector(server)
        connect = stack.enter_context(start_connect(worker, broker, bank.DATABASE, settings))
        made = Live(folder, server, broker, connect)
        made.start()
        try:
            connect.until_running()
            yield made
        finally:
            for process in (made.process, *made.verifying):
                if process is not None and process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(30)


def test_a_mirror_equals_a_database_that_changes_all_the_time(kafka: Broker, tmp_path: Path) -> None:
    """Through a SIGKILL of the driver and one of the connector, no row is ever called wrong, and in the end
    none differs. Rows that are damaged then are found and repaired, while the driver goes on.
    """
    with live(tmp_path, kafka) as mirror:
        load = tmp_path / "load"
        with bank.changing(mirror.server, load, a_second=20):
            mirror.wait_for("the first rows", mirror.has_all)
            first = mirror.verify("--wait", "20", "--settle", "20")
            time.sleep(8)
            mirror.kill()
            mirror.connect.kill()
            mirror.connect.start()
            mirror.start()
            code, text = came_of(first)
            assert wrong(text) == {}, text
            assert code in (0, 1), text
            assert text.count("rows in the mirror") == len(bank.TABLES), text
        bank.until_streamed(mirror.server)
        equal(mirror)
        repaired(mirror)


def equal(mirror: Live) -> None:
    """What the connector has sent arrives, and then nothing differs."""
    code, text = came_of(mirror.verify())
    assert code == 0, f"{text}\n{mirror.said()}"
    assert "4 tables, all equal" in text


def damage(mirror: Live) -> dict[str, set[str]]:
    """Change a row of a mirror, remove one and add one behind the driver's back; gives what a comparison has
    to say.
    """
    accounts = deltalake.DeltaTable(mirror.mirroring.path(bank.DATABASE, "public", "accounts"))
    there = mirror.server.sql("SELECT id FROM accounts WHERE balance IS NOT NULL LIMIT 2", bank.DATABASE)
    changed, removed = there.split()
    accounts.update(updates={"balance": "balance + 1"}, predicate=f"id = {changed}")
    accounts.delete(f"id = {removed}")
    row = accounts.to_pyarrow_table().slice(0, 1)
    at = row.schema.get_field_index("id")
    extra = row.set_column(at, row.schema.field(at), pa.array([-1], row.schema.field(at).type))
    deltalake.write_deltalake(accounts, extra, mode="append")
    return {"accounts": {f'differs ["{changed}"]', f'missing ["{removed}"]', 'extra ["-1"]'}}


def repaired(mirror: Live) -> None:
    """Rows that are damaged are found, and no others; the driver that runs makes them right."""
    damaged = damage(mirror)
    code, text = came_of(mirror.verify())
    assert (code, wrong(text)) == (1, damaged), f"{text}\n{mirror.said()}"
    code, text = came_of(mirror.verify("--repair"))
    assert (code, wrong(text)) == (0, damaged), f"{text}\n{mirror.said()}"
    assert "accounts: 3 of 3 rows repaired" in text
    outcomes = mirror.mirroring.checkpoint / "repair/outcomes"
    assert len(list(outcomes.iterdir())) == 1, "the driver has done it, not the command"
    equal(mirror)
