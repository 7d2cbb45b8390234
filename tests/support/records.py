"""Debezium-shaped records, and the record lines (`format: records`) that hold them.

Modelled field by field on captures of Debezium 3.7 (PostgreSQL) and 3.5 (MariaDB), as Kafka Connect's
JsonConverter writes them, with the schema embedded or without. A record is a dict with the keys of a
record line: topic, partition, offset, timestamp (ms), key, value (text or None), headers ([name, text]).
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium puts where PostgreSQL did not send a TOASTed value that had not changed."""

Record = dict[str, Any]
Row = dict[str, Any]


def dumps(value: Any) -> str:
    """JSON as Kafka Connect prints it: no spaces, text as it is."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write(path: Path, records: Iterable[Record]) -> None:
    """Write record lines to `path`, compressed where its name ends in .gz."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def read(path: Path) -> list[Record]:
    """Read the record lines of `path` (.jsonl or .jsonl.gz)."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def payload(text: str) -> Any:
    """The payload of a key or value, with or without an embedded schema."""
    parsed = json.loads(text)
    if isinstance(parsed, dict) and parsed.keys() == {"schema", "payload"}:
        return parsed["payload"]
    return parsed


# Where a change stood in its source


@dataclass(frozen=True)
class PostgresPosition:
    """`lsn` is None in rows of an incremental snapshot; `last_commit` is None until a commit was streamed."""

    lsn: int | None
    last_commit: int | None
    tx: int | None
    ts_us: int
    snapshot: str = "false"

    def source(self, table: Table) -> Row:
        second = self.last_commit if self.lsn is None else self.lsn
        sequence = [None if self.last_commit is None else str(self.last_commit), str(second)]
        return {
            "version": "3.7.0.Final",
            "connector": "postgresql",
            "name": table.prefix,
            "ts_ms": self.ts_us // 1000,
            "snapshot": self.snapshot,
            "db": table.db,
            "sequence": dumps(sequence),
            "ts_us": self.ts_us,
            "ts_ns": self.ts_us * 1000,
            "schema": table.schema,
            "table": table.name,
            "txId": self.tx,
            "lsn": self.lsn,
            "xmin": None,
            "origin": None,
            "origin_lsn": None,
        }


@dataclass(frozen=True)
class BinlogPosition:
    """MySQL's and MariaDB's: rows of one event share `pos`; snapshot rows have no gtid and server 0."""

    file: str
    pos: int
    row: int
    gtid: str | None
    ts_us: int
    snapshot: str = "false"

    def source(self, table: Table) -> Row:
        return {
            "version": "3.5.0.Final",
            "connector": "mariadb",
            "name": table.prefix,
            "ts_ms": self.ts_us // 1000,
            "snapshot": self.snapshot,
            "db": table.db,
            "sequence": None,
            "ts_us": self.ts_us,
            "ts_ns": self.ts_us * 1000,
            "table": table.name,
            "server_id": 0 if self.gtid is None else 1,
            "gtid": self.gtid,
            "file": self.file,
            "pos": self.pos,
            "row": self.row,
            "thread": None,
            "query": None,
        }


Position = PostgresPosition | BinlogPosition


# Tables and the messages about their rows


@dataclass(frozen=True)
class Column:
    """A column by its Connect type; `default` only where the column is NOT NULL and has one."""

    name: str
    type: Literal["int16", "int32", "int64", "string", "boolean", "double"]
    optional: bool = False
    default: Any = None

    def field(self) -> Row:
        default = {} if self.default is None else {"default": self.default}
        return {"type": self.type, "optional": self.optional, **default, "field": self.name}

    @property
    def made_up(self) -> Any:
        """What a delete's before image holds for this column where the identity is the key alone."""
        if self.optional:
            return None
        zero = {"string": "", "boolean": False, "double": 0.0}
        return zero.get(self.type, 0) if self.default is None else self.default


@dataclass(frozen=True)
class Message:
    """A record that has no place in a topic yet."""

    key: str | None
    value: str | None
    headers: tuple[tuple[str, str], ...]
    ts_ms: int


@dataclass(frozen=True)
class Table:
    """A captured table: makes the messages that Debezium sends about its rows.

    `full` is REPLICA IDENTITY FULL, or a MySQL table: before images are the whole row. Without it an update
    has none and a delete's holds the key and made-up values. `schemas` is the converter's `schemas.enable`.
    """

    db: str
    schema: str | None
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    prefix: str
    full: bool = False
    schemas: bool = False

    @property
    def topic(self) -> str:
        return ".".join((self.prefix, self.schema or self.db, self.name))

    def create(self, at: Position, row: Row, *, old_key: Row | None = None) -> Message:
        headers = () if old_key is None else (("__debezium.oldkey", dumps(self._key(old_key))),)
        return self._change(at, "c", None, row, headers)

    def update(self, at: Position, row: Row, before: Row) -> Message:
        return self._change(at, "u", before if self.full else None, row)

    def read(self, at: Position, row: Row) -> Message:
        return self._change(at, "r", None, row)

    def delete(self, at: Position, row: Row, *, new_key: Row | None = None) -> tuple[Message, Message]:
        """The delete and the tombstone after it."""
        headers = () if new_key is None else (("__debezium.newkey", dumps(self._key(new_key))),)
        made_up = {c.name: row[c.name] if c.name in self.key else c.made_up for c in self.columns}
        gone = self._change(at, "d", row if self.full else made_up, None, headers)
        return gone, replace(gone, value=None)

    def move(self, at: Position, before: Row, row: Row) -> tuple[Message, Message, Message]:
        """A changed primary key: delete, tombstone and create, all at one position."""
        return (*self.delete(at, before, new_key=row), self.create(at, row, old_key=before))

    def truncate(self, at: Position) -> Message:
        return Message(None, self._value(at, "t", None, None), (), at.ts_us // 1000 + 90)

    def _key(self, row: Row) -> Row:
        return {name: row[name] for name in self.key}

    def _change(
        self,
        at: Position,
        op: str,
        before: Row | None,
        after: Row | None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Message:
        image = after if before is None else before
        assert image is not None
        key = self._with_schema(self._key_schema(), self._key(image))
        return Message(dumps(key), self._value(at, op, before, after), headers, at.ts_us // 1000 + 90)

    def _value(self, at: Position, op: str, before: Row | None, after: Row | None) -> str:
        processed = at.ts_us + 90_123
        envelope = {
            "before": before,
            "after": after,
            "source": at.source(self),
            "transaction": None,
            "op": op,
            "ts_ms": processed // 1000,
            "ts_us": processed,
            "ts_ns": processed * 1000 + 456,
        }
        return dumps(self._with_schema(self._value_schema(at), envelope))

    def _with_schema(self, schema: Row, value: Row) -> Row:
        return {"schema": schema, "payload": value} if self.schemas else value

    def _key_schema(self) -> Row:
        fields = [c.field() for name in self.key for c in self.columns if c.name == name]
        return {"type": "struct", "fields": fields, "optional": False, "name": f"{self.topic}.Key"}

    def _value_schema(self, at: Position) -> Row:
        fields = [c.field() for c in self.columns]
        image = {"type": "struct", "fields": fields, "optional": True, "name": f"{self.topic}.Value"}
        source = _POSTGRES_SOURCE if isinstance(at, PostgresPosition) else _MARIADB_SOURCE
        times = [_field(name, "int64", True) for name in ("ts_ms", "ts_us", "ts_ns")]
        return {
            "type": "struct",
            "fields": [
                {**image, "field": "before"},
                {**image, "field": "after"},
                source,
                _TRANSACTION,
                _field("op", "string"),
                *times,
            ],
            "optional": False,
            "name": f"{self.topic}.Envelope",
            "version": 2,
        }


def _field(name: str, type_: str, optional: bool = False) -> Row:
    return {"type": type_, "optional": optional, "field": name}


def _source(connector: str, fields: list[Row]) -> Row:
    name = f"io.debezium.connector.{connector}.Source"
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": name,
        "version": 1,
        "field": "source",
    }


_SNAPSHOT = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {
        "allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
    },
    "default": "false",
    "field": "snapshot",
}
_COMMON = [
    _field("version", "string"),
    _field("connector", "string"),
    _field("name", "string"),
    _field("ts_ms", "int64"),
    _SNAPSHOT,
    _field("db", "string"),
    _field("sequence", "string", True),
    _field("ts_us", "int64", True),
    _field("ts_ns", "int64", True),
]
_POSTGRES_SOURCE = _source(
    "postgresql",
    [
        *_COMMON,
        _field("schema", "string"),
        _field("table", "string"),
        *(_field(name, "int64", True) for name in ("txId", "lsn", "xmin")),
        _field("origin", "string", True),
        _field("origin_lsn", "int64", True),
    ],
)
_MARIADB_SOURCE = _source(
    "mariadb",
    [
        *_COMMON,
        _field("table", "string", True),
        _field("server_id", "int64"),
        _field("gtid", "string", True),
        _field("file", "string"),
        _field("pos", "int64"),
        _field("row", "int32"),
        _field("thread", "int64", True),
        _field("query", "string", True),
    ],
)
_TRANSACTION = {
    "type": "struct",
    "fields": [
        _field("id", "string"),
        _field("total_order", "int64"),
        _field("data_collection_order", "int64"),
    ],
    "optional": True,
    "name": "event.block",
    "version": 1,
    "field": "transaction",
}


# Topics


@dataclass
class Topic:
    """Gives messages their partition (by key) and offset, as a producer does."""

    name: str
    partitions: int = 3
    logical_name: str = "demo"
    _next: dict[int, int] = field(default_factory=dict)

    def append(self, messages: Sequence[Message]) -> Iterator[Record]:
        """The records of `messages`, in order; one without key goes to the first partition."""
        for message in messages:
            partition = zlib.crc32((message.key or "").encode()) % self.partitions if message.key else 0
            offset = self._next.get(partition, 0)
            self._next[partition] = offset + 1
            yield {
                "topic": self.name,
                "partition": partition,
                "offset": offset,
                "timestamp": message.ts_ms + 60,
                "key": message.key,
                "value": message.value,
                "headers": [list(header) for header in (*message.headers, *self._context)],
            }

    @property
    def _context(self) -> tuple[tuple[str, str], ...]:
        return (
            ("__debezium.context.connectorLogicalName", self.logical_name),
            ("__debezium.context.taskId", "0"),
        )
