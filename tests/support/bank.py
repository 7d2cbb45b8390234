"""A bank in PostgreSQL, and pgbench changing it: what a mirror finds hard, from clients that overlap.

Each client has accounts of its own, so that none fails for another's keys; branches are everybody's.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.databases import PASSWORD, Server

DATABASE, PUBLICATION = "bank", "mirrored"
TABLES = ("accounts", "branches", "orders", "history")
CLIENTS, ACCOUNTS = 4, 400

SETUP = f"""
CREATE TABLE accounts (
  id int PRIMARY KEY, branch int NOT NULL, balance numeric(14,2), document text, data jsonb,
  changed timestamptz
);
ALTER TABLE accounts ALTER document SET STORAGE EXTERNAL;  -- so that updates do not send it again
CREATE TABLE branches (id int PRIMARY KEY, balance bigint NOT NULL, name varchar(40));
CREATE TABLE orders (
  account int, number int, total numeric(10,2), state text, day date, lines text[],
  PRIMARY KEY (account, number)
);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE TABLE history (account int, branch int, delta bigint, at timestamp);
CREATE FUNCTION words(n int) RETURNS text LANGUAGE sql VOLATILE
  AS $$ SELECT string_agg(md5(random()::text), '') FROM generate_series(1, n) $$;
INSERT INTO branches SELECT n, 0, 'Zweigstelle ' || n || ' ✓' FROM generate_series(1, 10) n;
INSERT INTO accounts SELECT n, n % 10 + 1, n * 1.25, words(80), jsonb_build_object('n', n), now()
  FROM generate_series(1, {ACCOUNTS}) n;
INSERT INTO orders SELECT n, 1, n, 'new', '2026-01-01'::date + n, ARRAY['a', NULL, 'c']
  FROM generate_series(1, {ACCOUNTS}) n;
CREATE PUBLICATION {PUBLICATION} FOR TABLE {", ".join(TABLES)};
"""

_OWN = f"""
\\set id {CLIENTS} * random(0, {ACCOUNTS // CLIENTS - 1}) + :client_id + 1
\\set branch random(1, 10)
\\set delta random(-5000, 5000)
\\set number random(1, 30)
\\set far 100000 * random(0, 1)
"""
"""Values of a transaction; accounts that moved away have numbers above 100000, and may come back."""

_BOOK = """
UPDATE branches SET balance = balance + :delta WHERE id = :branch;
INSERT INTO history VALUES (:id, :branch, :delta, clock_timestamp());
"""

SCRIPTS = {
    "transfer": (
        6,
        f"""BEGIN;
UPDATE accounts SET balance = balance + :delta / 100.0, changed = now() WHERE id = :id;
{_BOOK}END;""",
    ),
    "document": (2, "UPDATE accounts SET document = words(80) || :delta WHERE id = :id + :far;"),
    "null": (1, "UPDATE accounts SET document = NULL, data = NULL WHERE id = :id;"),
    "move": (
        3,
        """UPDATE accounts SET id = id + 100000 - 2 * :far
WHERE id = :id + :far AND NOT EXISTS (SELECT FROM accounts WHERE id = :id + 100000 - :far);""",
    ),
    "change and move": (
        1,
        """BEGIN;
UPDATE accounts SET balance = balance - 1 WHERE id = :id + :far;
UPDATE accounts SET id = id + 100000 - 2 * :far
WHERE id = :id + :far AND NOT EXISTS (SELECT FROM accounts WHERE id = :id + 100000 - :far);
UPDATE accounts SET data = '{"moved": true}' WHERE id = :id + 100000 - :far;
END;""",
    ),
    "delete": (1, "DELETE FROM accounts WHERE id = :id + :far;"),
    "open": (
        2,
        """INSERT INTO accounts VALUES (:id, :branch, :delta, words(80), '{"s": "\\u00fc"}', now())
ON CONFLICT (id) DO UPDATE SET balance = excluded.balance;""",
    ),
    "reborn": (
        1,
        """BEGIN;
DELETE FROM accounts WHERE id = :id;
INSERT INTO accounts VALUES (:id, :branch, 0, NULL, NULL, now());
UPDATE accounts SET balance = 1 WHERE id = :id;
END;""",
    ),
    "order": (
        4,
        """INSERT INTO orders
VALUES (:id, :number, :delta / 100.0, 'new', '2026-01-01'::date + :number, '{x}')
ON CONFLICT (account, number) DO UPDATE SET total = excluded.total, state = 'changed', lines = NULL;""",
    ),
    "cancel": (1, "DELETE FROM orders WHERE account = :id AND number > :number;"),
    "renumber": (
        1,
        """UPDATE orders SET number = number + 1 WHERE account = :id AND number = :number
AND NOT EXISTS (SELECT FROM orders WHERE account = :id AND number = :number + 1);""",
    ),
    "many": (
        1,
        f"""BEGIN;
UPDATE accounts SET balance = balance * 1.01
WHERE id BETWEEN :id AND :id + 80 AND id % {CLIENTS} = (:client_id + 1) % {CLIENTS} AND id <= {ACCOUNTS};
UPDATE orders SET state = 'many' WHERE account = :id;
{_BOOK}END;""",
    ),
    "long": (
        1,
        f"""BEGIN;
UPDATE accounts SET balance = balance + 1, document = document || 'x' WHERE id = :id;
\\sleep 300 ms
{_BOOK}END;""",
    ),
    "back": (
        1,
        f"""BEGIN;
DELETE FROM accounts WHERE id = :id;
SAVEPOINT here;
UPDATE accounts SET id = -id WHERE id % {CLIENTS} = (:client_id + 1) % {CLIENTS} AND id <= 40;
ROLLBACK TO here;
{_BOOK}ROLLBACK;""",
    ),
}
"""What clients do, each with its weight. Branches are locked last, so that no two wait for each other."""


def create(server: Server) -> None:
    """Make the bank, as it is when it opens."""
    server.sql(f"CREATE DATABASE {DATABASE}", "postgres")
    server.sql(SETUP, DATABASE)


def connector(server: Server) -> dict[str, object]:
    """The settings of a Debezium connector for it, with three partitions a topic."""
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": server.port,
        "database.user": server.user,
        "database.password": PASSWORD,
        "database.dbname": DATABASE,
        "topic.prefix": DATABASE,
        "plugin.name": "pgoutput",
        "slot.name": DATABASE,
        "publication.name": PUBLICATION,
        "publication.autocreate.mode": "disabled",
        "heartbeat.interval.ms": 1000,
        # Else the slot stands still while nothing changes.
        "heartbeat.action.query": "SELECT pg_logical_emit_message(false, 'heartbeat', '')",
        "topic.creation.default.partitions": 3,
        "topic.creation.default.replication.factor": 1,
    }


@contextmanager
def changing(server: Server, folder: Path, *, a_second: int) -> Iterator[None]:
    """Clients that change the bank with so many transactions a second, until the end of the block."""
    assert server.binaries is not None
    folder.mkdir(exist_ok=True)
    files = []
    for name, (weight, script) in SCRIPTS.items():
        path = folder / f"{name.replace(' ', '-')}.sql"
        path.write_text(_OWN + script + "\n")
        files.append(f"--file={path}@{weight}")
    command = [
        *(str(server.binaries / "pgbench"), "--no-vacuum", *files, "-h", "127.0.0.1", "-p", str(server.port)),
        *("-U", server.user, "-c", str(CLIENTS), "-T", str(24 * 3600), "-R", str(a_second), DATABASE),
    ]
    with open(folder / "log", "ab") as log:
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        yield
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        process.wait(30)


def until_streamed(server: Server, seconds: float = 120) -> None:
    """Wait until the connector has passed on all that is committed by now."""
    [at] = server.sql("SELECT pg_logical_emit_message(true, 'mark', '')", DATABASE).split()
    until = time.monotonic() + seconds
    asked = f"SELECT confirmed_flush_lsn >= '{at}' FROM pg_replication_slots WHERE slot_name = '{DATABASE}'"
    while server.sql(asked, DATABASE).strip() != "t":
        assert time.monotonic() < until, f"the connector has not passed {at} on in time"
        time.sleep(0.5)
