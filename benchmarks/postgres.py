"""A PostgreSQL table that Debezium captures, through psql and Connect's REST API."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient

NAME = "lakemirror_bench"
_SECONDS = 120.0
_SETUP = "CREATE TABLE orders (id int PRIMARY KEY, n int NOT NULL, note text)"
_STREAMING = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{NAME}' AND active"
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class SourceMissing(Exception):
    """A component of the source is missing."""


@dataclass(frozen=True)
class Source:
    """Where PostgreSQL, Kafka and Kafka Connect are, as host:port. The database user is `cdc`."""

    postgres: str
    kafka: str
    connect: str
    prefix: str = field(default_factory=lambda: f"{NAME}_{int(time.time())}")
    """The prefix of the topics. It is new for each run, so that no run reads what another one left."""

    @property
    def topic(self) -> str:
        """The topic of the table's changes."""
        return f"{self.prefix}.public.orders"

    def require(self) -> None:
        """Raise SourceMissing unless all components can be reached."""
        for name, place in (("PostgreSQL", self.postgres), ("Kafka", self.kafka), ("Connect", self.connect)):
            host, _, port = place.rpartition(":")
            try:
                socket.create_connection((host, int(port)), 3).close()
            except OSError as error:
                raise SourceMissing(f"there is no {name} at {place} ({error.strerror or error})") from None

    @contextmanager
    def table(self) -> Iterator[None]:
        """Create a database with an empty table `orders`, streamed to one partition; drop it at the end."""
        self._drop()
        self._sql(f"CREATE DATABASE {NAME}", "postgres")
        try:
            self._sql(_SETUP)
            self._call("PUT", f"/connectors/{NAME}/config", self._connector())
            self._until(lambda: self._sql(_STREAMING, "postgres") == "1", "the connector does not stream")
            yield
        finally:
            self._drop()
            self._delete_topic()

    def client(self) -> subprocess.Popen[str]:
        """Start a psql that takes statements, each a transaction, and prints what they return."""
        return subprocess.Popen(
            self._psql(NAME), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _connector(self) -> dict[str, str]:
        host, _, port = self.postgres.rpartition(":")
        converters = {f"{part}.converter": _CONVERTER for part in ("key", "value")}
        plain = {f"{part}.converter.schemas.enable": "false" for part in ("key", "value")}
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "topic.prefix": self.prefix,
            "database.hostname": host,
            "database.port": port,
            "database.user": "cdc",
            "database.password": "cdc",
            "database.dbname": NAME,
            "plugin.name": "pgoutput",
            "slot.name": NAME,
            "publication.name": NAME,
            "publication.autocreate.mode": "filtered",
            "topic.creation.enable": "true",
            "topic.creation.default.partitions": "1",
            "topic.creation.default.replication.factor": "1",
            "table.include.list": "public.orders",
            "poll.interval.ms": "50",
            **converters,
            **plain,
        }

    def _drop(self) -> None:
        """Remove the connector, slot and database, if they exist."""
        if self._call("GET", f"/connectors/{NAME}") is not None:
            self._call("PUT", f"/connectors/{NAME}/stop")
            self._until(self._is_stopped, "the connector does not stop")
            self._call("DELETE", f"/connectors/{NAME}/offsets")
            self._call("DELETE", f"/connectors/{NAME}")
        slots = f"FROM pg_replication_slots WHERE slot_name = '{NAME}'"
        self._until(
            lambda: self._sql(f"SELECT count(*) {slots} AND active", "postgres") == "0",
            "the replication slot stays active",
        )
        self._sql(f"SELECT pg_drop_replication_slot(slot_name) {slots}", "postgres")
        self._sql(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)", "postgres")

    def _delete_topic(self) -> None:
        for deleted in AdminClient({"bootstrap.servers": self.kafka}).delete_topics([self.topic]).values():
            deleted.exception(30)

    def _is_stopped(self) -> bool:
        status = self._call("GET", f"/connectors/{NAME}/status")
        return status is None or (status["connector"]["state"] == "STOPPED" and not status["tasks"])

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > _SECONDS:
                raise TimeoutError(otherwise)
            time.sleep(0.3)

    def _psql(self, database: str) -> list[str]:
        host, _, port = self.postgres.rpartition(":")
        where = ["-h", host, "-p", port, "-U", "cdc", "-d", database]
        return ["psql", "-XAtq", "-v", "ON_ERROR_STOP=1", *where]

    def _sql(self, text: str, database: str = NAME) -> str:
        command = [*self._psql(database), "-c", text]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def _call(self, method: str, path: str, body: object = None) -> dict[str, dict[str, str]] | None:
        """Send a request to Connect and return the answer, or None if it is empty or nothing is found."""
        data = None if body is None else json.dumps(body).encode()
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.connect}{path}", data, head, method=method)
        try:
            with _direct.open(request, timeout=30) as answer:
                said = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()[:300]}") from None
        return json.loads(said) if said else None
