"""A small PostgreSQL source for tests of single behaviours: each change is later than the one before it.

Every table has one topic with one partition, so that offsets are the order of the calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tests.support.records import Column, Message, PostgresPosition, Record, Row, Table, Topic

SECOND = 1_000_000
_BEGAN = 1_700_000_000 * SECOND

ID = Column("id", "int32")


@dataclass(frozen=True)
class Special(Column):
    """A column with a semantic type: its name and parameters."""

    name_of_type: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    def field(self) -> Row:
        """Its schema, with the semantic name."""
        return {**super().field(), "name": self.name_of_type, "parameters": dict(self.parameters)}


def decimal(name: str, precision: int, scale: int) -> Column:
    """A NOT NULL numeric(precision, scale) in the precise mode: base64 of its unscaled value."""
    parameters = (("scale", str(scale)), ("connect.decimal.precision", str(precision)))
    return Special(
        name, cast(Any, "bytes"), name_of_type="org.apache.kafka.connect.data.Decimal", parameters=parameters
    )


def timestamp(name: str) -> Column:
    """A nullable timestamp without time zone, in microseconds."""
    return Special(name, "int64", optional=True, name_of_type="io.debezium.time.MicroTimestamp")


def table(name: str, *columns: Column, key: Sequence[str] = ("id",), full: bool = False) -> Table:
    """A table of database demo, schema public, whose records carry their schema."""
    return Table("demo", "public", name, (ID, *columns), tuple(key), "demo", full, True)


@dataclass
class Shop:
    """Makes records; `lsn` and `seconds` are where and when the next change happens."""

    lsn: int = 1000
    seconds: int = 0
    _topics: dict[str, Topic] = field(default_factory=dict)

    def create(self, of: Table, **row: Any) -> list[Record]:
        return self.send(of, of.create(self.next(), row))

    def update(self, of: Table, **row: Any) -> list[Record]:
        return self.send(of, of.update(self.next(), row, row))

    def delete(self, of: Table, **row: Any) -> list[Record]:
        """The delete and the Kafka tombstone after it."""
        return self.send(of, *of.delete(self.next(), row))

    def keyless(self, of: Table, **row: Any) -> list[Record]:
        """A create in a table without a primary key."""
        return self.send(of, replace(of.create(self.next(), row), key=None))

    def truncate(self, of: Table) -> list[Record]:
        return self.send(of, of.truncate(self.next()))

    def garbage(self, of: Table, value: str) -> list[Record]:
        """A record of the table's topic with any text as its value."""
        return self.send(of, Message('{"id":1}', value, (), 0))

    def next(self) -> PostgresPosition:
        """Where the next change happens."""
        self.lsn += 100
        self.seconds += 1
        return PostgresPosition(self.lsn, self.lsn - 50, self.lsn, _BEGAN + self.seconds * SECOND)

    def send(self, of: Table, *messages: Message) -> list[Record]:
        """Messages as records of the table's topic."""
        topic = self._topics.setdefault(of.topic, Topic(of.topic, partitions=1))
        return list(topic.append(messages))


def with_payload(record: Record, **changes: Any) -> Record:
    """The record with other fields in its envelope."""
    value = json.loads(record["value"])
    value["payload"].update(changes)
    return {**record, "value": json.dumps(value)}
