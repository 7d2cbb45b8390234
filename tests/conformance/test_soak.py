"""A soak: a bank that changes all the time, while whatever brings its changes is killed at random.

LAKEMIRROR_SOAK_MINUTES says for how long (10), and LAKEMIRROR_SOAK_SEED chooses the moments; both are
printed, with all figures, at the end. `scripts/live-test soak` runs it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import pytest

from lakemirror.api.report import OUTCOMES
from tests.support import bank
from tests.support.connect import start_connect
from tests.support.databases import Server, start_postgres
from tests.support.kafka_broker import start_broker
from tests.support.live import Live, came_of
from tests.support.memory import growth, sampled, slope

MINUTES = float(os.environ.get("LAKEMIRROR_SOAK_MINUTES", "10"))
SEED = int(os.environ.get("LAKEMIRROR_SOAK_SEED") or random.randrange(10**6))
TRANSACTIONS_A_SECOND = 6
CALM = 0.35
"""The last part of the time, in which the driver is left alone and its memory is looked at."""
WARMING = 0.3
"""Of that part, what the driver is given to fill its caches."""
GROWTH = 0.05
"""By what part its memory may grow in the rest."""
PATIENCE_SECONDS = 900
"""How long it may take until all is applied, once the load has ended."""
HEAP = "1200m"
CONF = {
    "spark.driver.memory": HEAP,
    # All of the heap is there from the beginning, so that only what lies beside it can grow.
    "spark.driver.extraJavaOptions": f"-Xms{HEAP} -XX:+AlwaysPreTouch",
}
VISITS = f"""
CREATE TABLE visits (id bigserial PRIMARY KEY, who text, note text, at timestamptz DEFAULT now());
ALTER TABLE visits ALTER note SET STORAGE EXTERNAL;
ALTER PUBLICATION {bank.PUBLICATION} ADD TABLE visits;
"""
TABLES = (*bank.TABLES, "visits")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(MINUTES * 60 + 1800)]


# -- the load ------------------------------------------------------------------------------------------


class Visits:
    """A table beside the bank that is truncated and altered while it changes."""

    _CHANGES = (
        "INSERT INTO visits (who, note) SELECT md5(random()::text), words(80) FROM generate_series(1, 5);",
        "UPDATE visits SET who = 'u' || random() WHERE id % 7 = {n} % 7;",
        "UPDATE visits SET note = NULL WHERE id % 11 = {n} % 11;",
        "DELETE FROM visits WHERE id % 13 = {n} % 13;",
        "UPDATE visits SET id = id + 1000000 WHERE id % 17 = {n} % 17 AND id < 1000000;",
    )
    _COLUMNS = 4

    def __init__(self, server: Server, chance: random.Random) -> None:
        self._server, self._chance = server, chance
        self._added: set[str] = set()
        self.done: Counter[str] = Counter()

    def change(self) -> None:
        """Some statements; now and then a truncate, or another column or one less."""
        self._run("changes", " ".join([*self._chance.sample(self._CHANGES, 3), self._CHANGES[0]]))
        self._touch()
        dice = self._chance.random()
        if dice < 0.05:
            self._run("truncates", "TRUNCATE visits;")
        elif dice < 0.12:
            self._alter()

    def _alter(self) -> None:
        column = f"extra_{self._chance.randrange(self._COLUMNS)}"
        if column in self._added:
            self._run("columns dropped", f"ALTER TABLE visits DROP COLUMN {column};")
        else:
            self._run("columns added", f"ALTER TABLE visits ADD COLUMN {column} text;")
        self._added ^= {column}
        # Debezium asks the catalogue how a table is now: an event of each form, before the next one.
        self._touch()
        time.sleep(1.5)

    def _touch(self) -> None:
        filled = "".join(f", {column} = 'filled {self._chance.random()}'" for column in sorted(self._added))
        self._run("changes", f"UPDATE visits SET who = 'touched'{filled} WHERE id % 5 = {{n}} % 5;")

    def _run(self, what: str, sql: str) -> None:
        self._server.sql(sql.replace("{n}", str(self._chance.randrange(1000))), bank.DATABASE)
        self.done[what] += 1


@contextmanager
def going_on(step: Callable[[], None], pause: Callable[[], float]) -> Iterator[None]:
    """Steps in a thread, with pauses of so many seconds, until the end of the block."""
    done, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        try:
            while not done.wait(pause()):
                step()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(120)
    assert (failed, thread.is_alive()) == ([], False)


# -- what is done to it --------------------------------------------------------------------------------


@dataclass
class Trouble:
    """Kills and pauses, which it counts."""

    mirror: Live
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def make(self, *, spare_driver: bool) -> None:
        """One of them, or two at once."""
        kinds = {
            "broker killed": (2, self._broker),
            "connector killed": (2, self._connector),
            "driver killed": (4, self._driver),
            "driver paused": (2, self._pause),
            "driver stopped": (1, self._stop),
            "all killed": (1, self._all),
        }
        if spare_driver:
            kinds = {
                name: kind for name, kind in kinds.items() if name in ("broker killed", "connector killed")
            }
        [name] = self.chance.choices([*kinds], [weight for weight, _ in kinds.values()])
        self.done[name] += 1
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        kinds[name][1]()

    def _away(self) -> None:
        time.sleep(self.chance.uniform(0, 15))

    def _broker(self) -> None:
        self.mirror.broker.kill()
        self._away()
        self.mirror.broker.start()

    def _connector(self) -> None:
        self.mirror.connect.kill()
        self._away()
        self.mirror.connect.start()

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
        self._broker()
        self.mirror.connect.start()
        self.mirror.start()


def trouble_until(moment: float, trouble: Trouble, *, spare_driver: bool) -> None:
    """Make trouble until then, and see the driver alive before each."""
    while (left := moment - time.monotonic()) > 0:
        time.sleep(min(left, trouble.chance.uniform(10, 150)))
        assert trouble.mirror.process is not None
        assert trouble.mirror.process.poll() is None, f"the driver ended by itself:\n{trouble.mirror.said()}"
        if time.monotonic() < moment:
            trouble.make(spare_driver=spare_driver)
        mend(trouble)


def mend(trouble: Trouble) -> None:
    """A task of Kafka Connect that gave up while the broker was away is started again, as its owner would."""
    if trouble.mirror.connect.restart_failed():
        trouble.done["connector's task restarted"] += 1


# -- what came of it -----------------------------------------------------------------------------------


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


def require_conserved(mirror: Live) -> dict[str, int]:
    """Each record that Kafka has was read once and has one outcome, and none is kept aside; gives how many
    batches the audit has, and their sums.
    """
    names = ["records", *OUTCOMES]
    rows = audit_of(mirror, names)
    for row in rows:
        assert row["records"] == sum(row[name] for name in OUTCOMES), row
    sums = {name: sum(row[name] for row in rows) for name in names}
    assert sums["records"] == mirror.broker.records(f"{bank.DATABASE}.public."), sums
    assert (sums["quarantined"], sums["refused"]) == (0, 0), sums
    return {"batches": len(rows), **sums}


def audit_of(mirror: Live, names: list[str]) -> list[dict[str, Any]]:
    """What each batch did, of all its tables together."""
    assert not [*(mirror.mirroring.checkpoint / "audit-pending").glob("*.json")]
    table = deltalake.DeltaTable(mirror.mirroring.checkpoint / "audit")
    found = table.to_pyarrow_table(columns=["source", *names]).to_pylist()
    return [row for row in found if row["source"] is None]


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
                soak(mirror, Visits(server, random.Random(SEED)), Trouble(mirror, random.Random(SEED)))
            finally:
                mirror.end()


def soak(mirror: Live, visits: Visits, trouble: Trouble) -> None:
    """All of it, and its figures."""
    with sampled(lambda: mirror.process.pid if mirror.process else None) as samples:
        with (
            bank.changing(mirror.server, mirror.folder / "load", a_second=TRANSACTIONS_A_SECOND),
            going_on(visits.change, lambda: random.uniform(2, 6)),
        ):
            mirror.wait_for("the first rows", mirror.has_all)
            began = time.monotonic()
            trouble_until(began + MINUTES * 60 * (1 - CALM), trouble, spare_driver=False)
            calm = began + MINUTES * 60 * (1 - CALM * (1 - WARMING))
            trouble_until(calm, trouble, spare_driver=True)
            heap = [heap_in_use(mirror)]
            trouble_until(began + MINUTES * 60, trouble, spare_driver=True)
            heap.append(heap_in_use(mirror))
            ended = time.monotonic()
        mirror.connect.until_running()
        bank.until_streamed(mirror.server, PATIENCE_SECONDS)
        mirror.wait_for("all of it applied", mirror.caught_up, PATIENCE_SECONDS)
        code, text = came_of(mirror.verify("--wait", f"{PATIENCE_SECONDS}"))
        assert code == 0, f"{text}\n{mirror.said()}"
        assert f"{len(TABLES)} tables, all equal" in text
        mirror.stop()
    sums = require_conserved(mirror)
    looked_at = [sample for sample in samples if calm <= sample[0] <= ended]
    figures = {
        "minutes": round((ended - began) / 60, 1),
        "seed": SEED,
        "trouble": dict(sorted(trouble.done.items())),
        "load": dict(sorted(visits.done.items())),
        "audit": sums,
        "verify": [line for line in text.splitlines() if "equal" in line],
        "resident MiB": {"first": round(looked_at[0][1]), "last": round(looked_at[-1][1])},
        "resident MiB an hour": round(slope(looked_at), 1),
        "minutes looked at": round((looked_at[-1][0] - looked_at[0][0]) / 60, 1),
        "heap in use MiB": [None if each is None else round(each) for each in heap],
    }
    print(json.dumps(figures, indent=2), flush=True)
    assert growth(looked_at) <= GROWTH, figures
