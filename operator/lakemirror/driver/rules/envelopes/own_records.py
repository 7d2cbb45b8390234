"""Debezium's own records, which change no row: messages, heartbeats, transactions and schema changes.

They are recognized by what they are, not by what they resemble: a row may have members with their names. A
record is one of Debezium's own if its schema has the name that Debezium gives it. Without a schema, it must
have exactly the members that Debezium writes, with their values, and exactly the key that Debezium writes
with them (``io.debezium.schema.SchemaFactory``). A logical message must have a message and a source block.
"""

from __future__ import annotations

import re
from typing import Any, Final

from lakemirror.driver.rules.envelopes.records import Document

MESSAGE: Final = "m"
"""The op of a logical message."""

HEARTBEAT_TOPICS: Final = "__debezium-heartbeat"
"""Debezium's default for ``topic.heartbeat.prefix``."""

_NAMED: Final = re.compile(
    r"io\.debezium\.connector\.[^.]+\.(Heartbeat|TransactionMetadataValue|SchemaChangeValue|MessageValue)"
)


def changes_no_row(value: Document, key: Document | None, topic: str | None, schema: Document | None) -> bool:
    """Return whether a record is one of Debezium's own.

    ``value`` is its payload, ``schema`` the schema that it has with it.
    """
    key = key or {}
    if _is_message(value, key):
        return True
    if schema is not None:
        return _NAMED.fullmatch(str(schema.get("name"))) is not None
    return _is_heartbeat(value, key, topic) or _is_transaction(value, key) or _is_schema_change(value, key)


def is_message(value: Document) -> bool:
    """Return whether a payload has what a logical message has: prefix and content, and a source block."""
    message = value.get("message")
    return isinstance(message, dict) and {"prefix", "content"} <= message.keys() and _has_connector(value)


def is_envelope(value: Document, key: Document | None) -> bool:
    """Return whether a payload is a whole event of Debezium, not a row, which has its key's columns."""
    shaped = {"op", "source"} <= value.keys() and bool({"after", "before"} & value.keys())
    return shaped and not _holds(value, key or {}) and (bool(key) or _has_connector(value))


def _is_message(value: Document, key: Document) -> bool:
    shaped = {"op", "message", "source"} <= value.keys() and not _holds(value, key)
    return shaped and value["op"] == MESSAGE and is_message(value)


def _is_heartbeat(value: Document, key: Document, topic: str | None) -> bool:
    """A heartbeat has the key of its server, or is in the topic of heartbeats."""
    mine = list(key) == ["serverName"] and isinstance(key["serverName"], str)
    alone = list(value) == ["ts_ms"]
    by_topic = (topic or "").startswith(HEARTBEAT_TOPICS) and not _holds(value, key)
    return (alone and mine) or (by_topic and (alone or not value))


def _is_transaction(value: Document, key: Document) -> bool:
    exact = _is_exactly(value, {"status", "id", "event_count", "data_collections"}, {"ts_ms"})
    return exact and value["status"] in ("BEGIN", "END") and _same_text(value, key, "id")


def _is_schema_change(value: Document, key: Document) -> bool:
    exact = _is_exactly(value, {"source", "databaseName", "ddl"}, {"ts_ms", "schemaName", "tableChanges"})
    return exact and _has_connector(value) and _same_text(value, key, "databaseName")


def _holds(value: Document, key: Document) -> bool:
    """Return whether a column of the key is among the members."""
    return not key.keys().isdisjoint(value.keys())


def _is_exactly(value: Document, names: set[str], optional: set[str]) -> bool:
    return names <= value.keys() <= names | optional


def _same_text(value: Document, key: Document, name: str) -> bool:
    """Return whether the key is only this member, a text, and the value has the same."""
    return list(key) == [name] and isinstance(key[name], str) and value.get(name) == key[name]


def _has_connector(value: Document) -> bool:
    block: Any = value.get("source")
    return isinstance(block, dict) and block.get("connector") is not None
