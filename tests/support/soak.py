"""What soaks have in common: a table beside the bank, trouble at random moments, what has to hold in the end.

LAKEMIRROR_SOAK_MINUTES says how long a soak takes (10), and LAKEMIRROR_SOAK_SEED chooses its moments.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import deltalake

from lakemirror.api.report import OUTCOMES
from tests.support import bank
from tests.support.beside import beside
from tests.support.databases import Server
from tests.support.live import Banking, came_of

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
WHOLE_HEAP = f"-Xms{HEAP} -XX:+AlwaysPreTouch"
"""All of the heap is there from the beginning, so that only what lies beside it can grow."""
VISITS = f"""
CREATE TABLE visits (id bigserial PRIMARY KEY, who text, note text, at timestamptz DEFAULT now());
ALTER TABLE visits ALTER note SET STORAGE EXTERNAL;
ALTER PUBLICATION {bank.PUBLICATION} ADD TABLE visits;
"""
TABLES = (*bank.TABLES, "visits")


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

    def work(stop: threading.Event) -> None:
        while not stop.wait(pause()):
            step()

    with beside(work):
        yield


Kinds = Mapping[str, tuple[int, Callable[[], None]]]
"""Kinds of trouble: how often, beside the others, and what makes it."""


@dataclass
class Trouble:
    """Makes trouble, and counts it."""

    mirror: Banking
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def until(self, moment: float, kinds: Kinds) -> None:
        """Make trouble until then, and see the driver alive before each."""
        while (left := moment - time.monotonic()) > 0:
            time.sleep(min(left, self.chance.uniform(10, 150)))
            self.mirror.require_driver()
            if time.monotonic() < moment:
                self._make(kinds)
            self._mend()

    def _make(self, kinds: Kinds) -> None:
        [name] = self.chance.choices([*kinds], [weight for weight, _ in kinds.values()])
        self.done[name] += 1
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        kinds[name][1]()

    def _mend(self) -> None:
        """Start a task of Kafka Connect again that gave up while the broker was away, as its owner would."""
        if self.mirror.connect.restart_failed():
            self.done["connector's task restarted"] += 1

    def away(self) -> None:
        """Let a while pass."""
        time.sleep(self.chance.uniform(0, 15))

    def broker(self) -> None:
        """Kill the broker, and start it again."""
        self.mirror.broker.kill()
        self.away()
        self.mirror.broker.start()

    def connector(self) -> None:
        """Kill Kafka Connect, and start it again."""
        self.mirror.connect.kill()
        self.away()
        self.mirror.connect.start()


def changing(mirror: Banking, visits: Visits) -> ExitStack:
    """The load, until the end of the block."""
    stack = ExitStack()
    stack.enter_context(bank.changing(mirror.server, mirror.folder / "load", a_second=TRANSACTIONS_A_SECOND))
    stack.enter_context(going_on(visits.change, lambda: random.uniform(2, 6)))
    return stack


def require_equal(mirror: Banking) -> list[str]:
    """All that the database has is applied, and equal; gives what was said of each table."""
    mirror.connect.until_running()
    bank.until_streamed(mirror.server, PATIENCE_SECONDS)
    mirror.wait_for("all of it applied", mirror.caught_up, PATIENCE_SECONDS)
    code, text = came_of(mirror.verify("--wait", f"{PATIENCE_SECONDS}"))
    assert code == 0, f"{text}\n{mirror.said()}"
    assert f"{len(TABLES)} tables, all equal" in text
    return [line for line in text.splitlines() if "equal" in line]


def require_conserved(mirror: Banking) -> dict[str, int]:
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


def audit_of(mirror: Banking, names: list[str]) -> list[dict[str, Any]]:
    """What each batch did, of all its tables together."""
    assert not [*(mirror.mirroring.checkpoint / "audit-pending").glob("*.json")]
    table = deltalake.DeltaTable(mirror.mirroring.checkpoint / "audit")
    found = table.to_pyarrow_table(columns=["source", *names]).to_pylist()
    return [row for row in found if row["source"] is None]
