"""The example that loads tables from their database, with a PostgreSQL server and a Kafka broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.cli.common import read_pipeline
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.runtime.verifier import Patience, source_of, verify
from tests.support.databases import PASSWORD, Server, start_postgres
from tests.support.kafka_broker import Broker
from tests.support.mirroring import at
from tests.support.records import Column, Message, PostgresPosition, Row, Table

pytestmark = [
    pytest.mark.sources,
    pytest.mark.guarantee(
        "Loading a table from its database while it changes loses and duplicates no change"
    ),
]
ROOT = Path(__file__).parents[2]
ID, TEXT = Column("id", "int32"), Column("text", "string")
CUSTOMERS, ORDERS = (
    Table("shop", "public", name, (ID, TEXT), ("id",), "shop", True, True) for name in ("customers", "orders")
)


class Shop:
    """The example, with a database and a broker of its own."""

    def __init__(self, spark: SparkSession, server: Server, broker: Broker, folder: Path) -> None:
        self.spark, self.server, self.broker, self.folder = spark, server, broker, folder
        server.sql("CREATE DATABASE shop", "postgres")
        secret = folder / "reader"
        secret.mkdir()
        (secret / "username").write_text(server.user)
        (secret / "password").write_text(PASSWORD)
        self.secrets = {"shop-reader": secret}
        for table in (CUSTOMERS, ORDERS):
            server.sql(f"CREATE TABLE {table.name} (id int PRIMARY KEY, text text)", "shop")

    def position(self) -> PostgresPosition:
        """Where the next change stands."""
        lsn = int(self.server.sql("SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint", "shop"))
        return PostgresPosition(lsn, lsn - 1, lsn, 1_700_000_000_000_000)

    def change(self, table: Table, sql: str, op: str, row: Row) -> None:
        """A change in the database, which the connector sends."""
        position = self.position()
        self.server.sql(sql, "shop")
        made: dict[str, Any] = {"c": table.create, "u": lambda at, row: table.update(at, row, row)}
        found = table.delete(position, row) if op == "d" else (made[op](position, row),)
        messages: tuple[Message, ...] = found
        for message in messages:
            self.broker.send(table.topic, message.value, key=message.key)
        self.broker.flush()

    def run(self, *settings: str) -> RunSummary:
        """Run it once, with the settings that its first lines name."""
        named = {
            "source.kafka.bootstrapServers": self.broker.bootstrap,
            "verify.jdbc.url": f"{self.server.url}shop",
            "target.path": f"{self.folder}/lake/{{schema}}/{{table}}",
            "checkpoint": f"{self.folder}/checkpoint",
        }
        manifest = ROOT / "examples/bootstrap/pipeline.yaml"
        assert all(f"--set {name}=" in manifest.read_text("utf-8") for name in named)
        given = [*(f"{name}={value}" for name, value in named.items()), *settings]
        self.pipeline = read_pipeline(str(manifest), given)
        return run(self.pipeline, once=True, spark=self.spark, secrets=self.secrets)

    def rows(self, table: Table) -> dict[int, str]:
        """What the mirror has."""
        mirror = at(self.spark, f"{self.folder}/lake/public/{table.name}")
        return {row["id"]: row["text"] for row in mirror.collect()}

    def is_equal(self) -> bool:
        """Whether the mirrors equal the database, by the manifest's own settings."""
        asked = self.pipeline.spec.verify
        assert asked is not None
        wanted = source_of(asked, self.secrets)
        done = verify(self.pipeline, wanted, spark=self.spark, patience=Patience(settled=True))
        assert len(done.tables) == 2
        return done.equal


@pytest.fixture
def shop(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Iterator[Shop]:
    with start_postgres(tmp_path) as server:
        for table in (CUSTOMERS, ORDERS):
            kafka.create_named(table.topic)
        try:
            yield Shop(spark, server, kafka, tmp_path)
        finally:
            for table in (CUSTOMERS, ORDERS):
                kafka.delete(table.topic)


@pytest.mark.thorough
def test_tables_are_loaded_from_the_database_and_follow_the_stream(shop: Shop) -> None:
    shop.server.sql("INSERT INTO customers VALUES (1, 'Ada'), (2, 'Ben'), (3, 'Cleo')", "shop")
    shop.server.sql("INSERT INTO orders VALUES (7, 'Lamp')", "shop")
    # What is in the topics already is older than the rows that are read.
    shop.change(CUSTOMERS, "UPDATE customers SET text = 'Bea' WHERE id = 2", "u", {"id": 2, "text": "Bea"})
    shop.change(CUSTOMERS, "DELETE FROM customers WHERE id = 3", "d", {"id": 3, "text": "Cleo"})
    shop.server.sql("UPDATE customers SET text = 'Bob' WHERE id = 2", "shop")
    shop.run()
    assert (shop.rows(CUSTOMERS), shop.rows(ORDERS)) == ({1: "Ada", 2: "Bob"}, {7: "Lamp"})
    shop.change(ORDERS, "INSERT INTO orders VALUES (8, 'Rope')", "c", {"id": 8, "text": "Rope"})
    shop.change(CUSTOMERS, "DELETE FROM customers WHERE id = 1", "d", {"id": 1, "text": "Ada"})
    shop.run()
    assert (shop.rows(CUSTOMERS), shop.rows(ORDERS)) == ({2: "Bob"}, {7: "Lamp", 8: "Rope"})
    assert shop.is_equal()
    shop.server.sql("DELETE FROM orders WHERE id = 7; DELETE FROM customers WHERE id = 2", "shop")
    shop.run("tables[public.orders].resyncToken=again")
    assert (shop.rows(CUSTOMERS), shop.rows(ORDERS)) == ({2: "Bob"}, {8: "Rope"})
    assert not shop.is_equal()


@pytest.mark.thorough
def test_a_stream_that_begins_at_its_end_has_all_that_was_there_before_from_the_database(shop: Shop) -> None:
    """Also where nothing comes by the stream while the tables are loaded."""
    latest = "source.kafka.startingOffsets=latest"
    shop.change(CUSTOMERS, "INSERT INTO customers VALUES (1, 'Ada')", "c", {"id": 1, "text": "Ada"})
    shop.change(CUSTOMERS, "SELECT 1", "c", {"id": 9, "text": "of another database"})
    shop.server.sql("INSERT INTO customers VALUES (2, 'Ben'); INSERT INTO orders VALUES (7, 'Lamp')", "shop")
    shop.run(latest)
    assert (shop.rows(CUSTOMERS), shop.rows(ORDERS)) == ({1: "Ada", 2: "Ben"}, {7: "Lamp"})
    shop.change(CUSTOMERS, "UPDATE customers SET text = 'Bea' WHERE id = 2", "u", {"id": 2, "text": "Bea"})
    shop.change(ORDERS, "DELETE FROM orders WHERE id = 7", "d", {"id": 7, "text": "Lamp"})
    shop.change(ORDERS, "INSERT INTO orders VALUES (8, 'Rope')", "c", {"id": 8, "text": "Rope"})
    shop.run(latest)
    assert (shop.rows(CUSTOMERS), shop.rows(ORDERS)) == ({1: "Ada", 2: "Bea"}, {8: "Rope"})
    assert shop.is_equal()
