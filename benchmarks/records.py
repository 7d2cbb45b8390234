"""Kafka records as Debezium's PostgreSQL connector makes them, as lines of text.

They are put together as text, for speed. Where a docstring says that an argument is JSON, it already is JSON
text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.columns import types_of

PARTITIONS = 3
NOT_SENT = '"__debezium_unavailable_value"'
"""JSON: what stands for a value that PostgreSQL keeps apart from its row and that has not changed."""


@dataclass(frozen=True)
class Change:
    """What an event says besides its row. `at` is in microseconds; `sequence` is Debezium's text."""

    table: str
    op: str
    lsn: int
    tx: int
    at: int
    sequence: str
    snapshot: bool = False


def topic_of(table: str) -> str:
    return f"bench.public.{table}"


def image(key: object, values: Sequence[str]) -> str:
    """Return a row as JSON, from the JSON of its values after the key, in column order."""
    named = zip(types_of(len(values)), values, strict=True)
    return f'{{"id":{key},' + ",".join(f'"{name}":{value}' for name, value in named) + "}"


def value(change: Change, before: str, after: str, columns: int | None) -> str:
    """Return an event as JSON, from the JSON of its images.

    With `columns` (how many), their schema is embedded.
    """
    us, ms, later = change.at, change.at // 1000, change.at + 90_123
    payload = (
        f'{{"before":{before},"after":{after},"source":{{"version":"3.7.0.Final","connector":"postgresql",'
        f'"name":"bench","ts_ms":{ms},"snapshot":"{"true" if change.snapshot else "false"}","db":"bench",'
        f'"sequence":{json.dumps(change.sequence)},"ts_us":{us},"ts_ns":{us}000,"schema":"public",'
        f'"table":"{change.table}","txId":{change.tx},"lsn":{change.lsn},"xmin":null,"origin":null,'
        f'"origin_lsn":null}},"transaction":null,"op":"{change.op}",'
        f'"ts_ms":{later // 1000},"ts_us":{later},"ts_ns":{later}456}}'
    )
    return payload if columns is None else _with_schema(envelope_schema(change.table, columns), payload)


def key_text(table: str, key: object, schemas: bool) -> str:
    """Return a record's key as JSON."""
    text = f'{{"id":{key}}}'
    return _with_schema(key_schema(table), text) if schemas else text


def line(
    table: str,
    place: tuple[object, object],
    at: int,
    key: str,
    value: str | None,
    headers: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a record as a line of a file; `place` is its partition and offset."""
    partition, offset = place
    written = "null" if value is None else json.dumps(value, ensure_ascii=False)
    return (
        f'{{"topic":"{topic_of(table)}","partition":{partition},"offset":{offset},"timestamp":{at // 1000},'
        f'"key":{json.dumps(key)},"value":{written},"headers":{json.dumps(headers)}}}\n'
    )


def iso(us: int) -> str:
    """Format a time in microseconds as Debezium's ZonedTimestamp."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us % 1_000_000:06d}Z"


def _with_schema(schema: str, payload: str) -> str:
    return f'{{"schema":{schema},"payload":{payload}}}'


_cache: dict[tuple[str, int], str] = {}


def envelope_schema(table: str, columns: int) -> str:
    """Return the schema of a table's events as JSON. It is built once."""
    if (table, columns) not in _cache:
        _cache[table, columns] = json.dumps(_envelope(topic_of(table), columns), separators=(",", ":"))
    return _cache[table, columns]


def key_schema(table: str) -> str:
    """Return the schema of a table's keys as JSON."""
    if (table, 0) not in _cache:
        struct = _struct(f"{topic_of(table)}.Key", [_field("id", "int32", False)], optional=False)
        _cache[table, 0] = json.dumps(struct, separators=(",", ":"))
    return _cache[table, 0]


def _field(column: str, kind: str, optional: bool = True, **more: object) -> dict[str, object]:
    return {"type": kind, "optional": optional, **more, "field": column}


def _struct(name: str, fields: Sequence[object], optional: bool = True, **more: object) -> dict[str, object]:
    return {"type": "struct", "fields": list(fields), "optional": optional, "name": name, **more}


_CONNECT_TYPES = {"string": "string", "bigint": "int64"}
_NEVER_NULL = ("owner", "balance")


def _column(name: str, kind: str) -> dict[str, object]:
    if kind == "timestamp":
        return _field(name, "string", False, name="io.debezium.time.ZonedTimestamp", version=1)
    return _field(name, _CONNECT_TYPES[kind], name not in _NEVER_NULL)


def _source() -> list[dict[str, object]]:
    return [
        *(_field(name, "string", False) for name in ("version", "connector", "name")),
        _field("ts_ms", "int64", False),
        _field("snapshot", "string"),
        _field("db", "string", False),
        _field("sequence", "string"),
        *(_field(name, "int64") for name in ("ts_us", "ts_ns")),
        *(_field(name, "string", False) for name in ("schema", "table")),
        *(_field(name, "int64") for name in ("txId", "lsn", "xmin")),
        _field("origin", "string"),
        _field("origin_lsn", "int64"),
    ]


def _envelope(topic: str, columns: int) -> dict[str, object]:
    fields = [_field("id", "int32", False), *(_column(*column) for column in types_of(columns).items())]
    row = _struct(f"{topic}.Value", fields)
    order = ("total_order", "data_collection_order")
    transaction = [_field("id", "string", False), *(_field(name, "int64", False) for name in order)]
    parts = [
        {**row, "field": "before"},
        {**row, "field": "after"},
        _struct("io.debezium.connector.postgresql.Source", _source(), False, version=1, field="source"),
        _struct("event.block", transaction, version=1, field="transaction"),
        _field("op", "string", False),
        *(_field(name, "int64") for name in ("ts_ms", "ts_us", "ts_ns")),
    ]
    return _struct(f"{topic}.Envelope", parts, optional=False, version=2)
