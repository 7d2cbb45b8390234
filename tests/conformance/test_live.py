"""A live database: PostgreSQL under load, Debezium in Kafka Connect, Kafka, a driver, `lakemirror verify`.

Nothing here is recorded or made up: the events are those that the connector sends, whenever it sends them.
"""

from __future__ import annotations

import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from tests.support import bank
from tests.support.live import Live, came_of, live, wrong

pytestmark = [
    pytest.mark.sources,
    pytest.mark.timeout(1500),
    pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it"),
    pytest.mark.guarantee(
        "A mirror equals a live database under load, while driver and connector are killed"
    ),
]


@pytest.mark.thorough
def test_a_mirror_equals_a_database_that_changes_all_the_time(tmp_path: Path) -> None:
    """Through a SIGKILL of the driver and one of the connector, no row is ever called wrong, and in the end
    none differs. Rows that are damaged then are found and repaired, while the driver goes on.
    """
    with live(tmp_path) as mirror:
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
