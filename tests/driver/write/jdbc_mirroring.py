"""Pipelines whose mirrors are tables of a database, and those tables as a source's rows are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakemirror.driver.jdbc import Login
from lakemirror.driver.runtime.events import Event
from lakemirror.driver.runtime.runner import run
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.jdbc import JdbcMirror
from lakemirror.driver.tables.jdbc_database import Database
from lakemirror.driver.tables.names import Location
from tests.conformance.captures import FOLDER, Capture, _records
from tests.support import truth
from tests.support.databases import PASSWORD, Server
from tests.support.mirroring import Mirroring, rows


class JdbcMirroring(Mirroring):
    """A pipeline that writes to the database ``mirrors`` of a server, into a schema of its own."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        schema: str,
        settings: Mapping[str, Any] | None = None,
        name: str = "test",
    ) -> None:
        self.server, self.schema = server, schema
        self.url = f"{server.url}{DATABASE}"
        self.secret = folder / "secret"
        self.secret.mkdir(parents=True, exist_ok=True)
        (self.secret / "username").write_text(server.user)
        (self.secret / "password").write_text(PASSWORD)
        target = {"table": f"{schema}.{{table}}", "jdbc": {"url": self.url, "secret": "mirrors"}}
        super().__init__(folder, {"target": target, **(settings or {})}, name=name)

    def run(self, spark: SparkSession, on_event: Callable[[Event], None] = lambda event: None) -> RunSummary:
        secrets = {"mirrors": self.secret}
        return run(self.pipeline, once=True, spark=spark, secrets=secrets, on_event=on_event)

    def mirror(self, spark: SparkSession, table: str) -> JdbcMirror:
        """A mirror, with the types that it remembers."""
        database = Database(Login(self.url, self.server.user, PASSWORD), "test")
        return JdbcMirror(spark, database, Location(name=f"{self.schema}.{table}"))

    def sql(self, text: str) -> list[str]:
        """What SQL prints, by lines."""
        return self.server.sql(text, DATABASE).splitlines()

    def marks(self) -> list[str]:
        """The version of each mirror, and its batches."""
        return [
            *self.sql(f"SELECT name, version FROM {self.schema}.lakemirror_mirrors ORDER BY name"),
            *self.sql(
                f"SELECT name, batch FROM {self.schema}.lakemirror_batches ORDER BY name, app_id, batch"
            ),
        ]

    def staging(self) -> list[str]:
        """Staging tables that are left."""
        return self.sql(
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = '{self.schema}' AND table_name LIKE 'lakemirror!_stage%' ESCAPE '!'"
        )


DATABASE = "mirrors"


def differences(spark: SparkSession, capture: Capture, mirroring: JdbcMirroring) -> dict[str, list[str]]:
    """What is wrong in each mirrored table; empty lists where nothing is."""
    keys = truth.primary_keys(_records(capture.scenario, capture.variant))
    found = {}
    for table in capture.tables:
        mirror = rows(mirroring.mirror(spark, table.rpartition(".")[2]).frame())
        found[table] = truth.diff(
            truth.collect(mirror),
            truth.load_truth(FOLDER / capture.scenario / capture.about["truth"][table]["file"], keys[table]),
            truth.source_types(FOLDER / capture.scenario)[table],
            mirror.schema,
            keys[table],
        )
    return found
