"""A soak: a bank that changes all the time, while whatever brings its changes is killed at random.

Length and seed (`tests.support.soak`) are printed, with all figures, at the end. `scripts/live-test soak`
runs it; `cluster/test_soak` does the same on a cluster.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import bank
from tests.support.connect import start_connect
from tests.support.databases import start_postgres
from tests.support.kafka_broker import start_broker
from tests.support.live import Live
from tests.support.memory import growth, sampled, slope
from tests.support.soak import (
    CALM,
    GROWTH,
    HEAP,
    MINUTES,
    SEED,
    TABLES,
    VISITS,
    WARMING,
    WHOLE_HEAP,
    Kinds,
    Trouble,
    Visits,
    changing,
    require_conserved,
    require_equal,
)

CONF = {"spark.driver.memory": HEAP, "spark.driver.extraJavaOptions": WHOLE_HEAP}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(MINUTES * 60 + 1800),
    pytest.mark.guarantee(
        "A mirror still equals a live database after hours of load and kills, with the same memory"
    ),
]


class Process(Trouble):
    """Of a driver that is a process."""

    mirror: Live

    def kinds(self, *, spare_driver: bool) -> Kinds:
        """What may happen."""
        beside: Kinds = {"broker killed": (2, self.broker), "connector killed": (2, self.connector)}
        if spare_driver:
            return beside
        return {
            **beside,
            "driver killed": (4, self._driver),
            "driver paused": (2, self._pause),
            "driver stopped": (1, self._stop),
            "all killed": (1, self._all),
        }

    def _driver(self) -> None:
        self.mirror.kill()
        self.mirror.start()

    def _stop(self) -> None:
        self.mirror.stop()
        self.mirror.start()

    def _pause(self) -> None:
        assert self.mirror.process is not None
        os.killpg(self.mirror.process.pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(5, 45))
        os.killpg(self.mirror.process.pid, signal.SIGCONT)

    def _all(self) -> None:
        self.mirror.kill()
        self.mirror.connect.kill()
        self.broker()
        self.mirror.connect.start()
        self.mirror.start()


def heap_in_use(mirror: Live) -> float | None:
    """MiB that the driver's JVM holds after a full collection; None where there is no jcmd to ask it."""
    assert mirror.process is not None
    jcmd = shutil.which("jcmd")
    if jcmd is None:
        return None
    asked = ["pgrep", "-g", str(mirror.process.pid), "java"]
    [jvm] = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    subprocess.run([jcmd, jvm, "GC.run"], capture_output=True, check=True, timeout=120)
    said = subprocess.run(
        [jcmd, jvm, "GC.heap_info"], capture_output=True, text=True, check=True, timeout=120
    )
    used = [line.partition("used ")[2] for line in said.stdout.splitlines() if "total" in line]
    return sum(int(each.partition("K")[0]) for each in used) / 1024


def test_a_mirror_equals_its_database_after_whatever_happened(tmp_path: Path) -> None:
    print(f"LAKEMIRROR_SOAK_MINUTES={MINUTES:g} LAKEMIRROR_SOAK_SEED={SEED}", flush=True)
    with start_postgres(tmp_path) as server, start_broker(tmp_path) as broker:
        bank.create(server)
        server.sql(VISITS, bank.DATABASE)
        worker = tmp_path / "connect"
        worker.mkdir()
        settings = {**bank.connector(server), "skipped.operations": "none"}
        with start_connect(worker, broker, bank.DATABASE, settings) as connect:
            mirror = Live(tmp_path, server, broker, connect, CONF, TABLES)
            mirror.start()
            try:
                connect.until_running()
                soak(mirror, Visits(server, random.Random(SEED)), Process(mirror, random.Random(SEED)))
            finally:
                mirror.end()


def soak(mirror: Live, visits: Visits, trouble: Process) -> None:
    """All of it, and its figures."""
    with sampled(lambda: mirror.process.pid if mirror.process else None) as samples:
        with changing(mirror, visits):
            mirror.wait_for("the first rows", mirror.has_all)
            began = time.monotonic()
            trouble.until(began + MINUTES * 60 * (1 - CALM), trouble.kinds(spare_driver=False))
            calm = began + MINUTES * 60 * (1 - CALM * (1 - WARMING))
            trouble.until(calm, trouble.kinds(spare_driver=True))
            heap = [heap_in_use(mirror)]
            trouble.until(began + MINUTES * 60, trouble.kinds(spare_driver=True))
            heap.append(heap_in_use(mirror))
            ended = time.monotonic()
        equal = require_equal(mirror)
        mirror.stop()
    looked_at = [sample for sample in samples if calm <= sample[0] <= ended]
    figures = {
        "minutes": round((ended - began) / 60, 1),
        "seed": SEED,
        "trouble": dict(sorted(trouble.done.items())),
        "load": dict(sorted(visits.done.items())),
        "audit": require_conserved(mirror),
        "verify": equal,
        "resident MiB": {"first": round(looked_at[0][1]), "last": round(looked_at[-1][1])},
        "resident MiB an hour": round(slope(looked_at), 1),
        "minutes looked at": round((looked_at[-1][0] - looked_at[0][0]) / 60, 1),
        "heap in use MiB": [None if each is None else round(each) for each in heap],
    }
    print(json.dumps(figures, indent=2), flush=True)
    assert growth(looked_at) <= GROWTH, figures
