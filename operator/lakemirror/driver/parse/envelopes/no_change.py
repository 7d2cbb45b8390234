"""Recognizes Debezium's own records, which change no row: messages, heartbeats, transactions, schema changes.

They are recognized by what they are, not by what they resemble. Records of rows have members that a table's
owner chose, so a row may have members with these names. A record counts as one of Debezium's own if its
schema has the name that Debezium gives it. Without a schema, it must have exactly the members that Debezium
writes, with their values, and exactly the key that Debezium writes with them (`io.debezium.schema
.SchemaFactory`). A logical message must have a message and a source block.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver.parse.envelopes.base import values_of
from lakemirror.driver.parse.values.connect import name_of

MESSAGE: Final = "m"
"""The op of a logical message."""

HEARTBEAT_TOPICS: Final = "__debezium-heartbeat"
"""Debezium's default for ``topic.heartbeat.prefix``."""

_NAMES: Final = "io.debezium.connector."
_NAMED: Final = (
    r"^io\.debezium\.connector\.[^.]+\.(Heartbeat|TransactionMetadataValue|SchemaChangeValue|MessageValue)$"
)


def members_of(text: Column) -> Column:
    """Return the names of a JSON object's members (ARRAY<STRING>); empty if there is no object."""
    return F.coalesce(F.json_object_keys(text), F.array().cast("array<string>"))


def named_as_no_change(schema: Column, identity: Column, known: Mapping[int, str]) -> Column:
    """Return whether the schema of a value has the name of one of Debezium's own records (BOOLEAN).

    ``schema`` is its text if it is not among the ``known`` ones, which its ``identity`` names. Null if there
    is no schema.
    """
    ours = [each for each, text in known.items() if re.match(_NAMED, name_of(text) or "")]
    name = F.when(schema.contains(_NAMES), F.get_json_object(schema, "$.name"))
    said = F.coalesce(name.rlike(_NAMED), F.lit(False)) | identity.isin(ours)
    return F.when(identity.isNotNull(), said)


def changes_no_row(text: Column, members: Column, key_text: Column, topic: Column, named: Column) -> Column:
    """Return whether a record of Debezium is one of its own that changes no row (BOOLEAN, never null).

    ``text`` is the payload of the value, ``members`` are its members, and ``named`` is what
    `named_as_no_change` says about its schema.
    """
    key = members_of(key_text)
    plain = _is_heartbeat(text, members, key, key_text, topic) | _is_told(text, members, key, key_text)
    return F.coalesce(named, plain, F.lit(False)) | _is_message(text, members, key)


def is_message(text: Column) -> Column:
    """Return whether a payload has what a logical message has (BOOLEAN).

    These are a message, which is an object of prefix and content, and the source block of a connector.
    """
    values = values_of(text)
    message = F.json_object_keys(F.to_json(values["message"]))
    complete = F.array_contains(message, "prefix") & F.array_contains(message, "content")
    return F.coalesce(complete & _has_connector(values), F.lit(False))


def is_envelope(text: Column, members: Column, key_text: Column) -> Column:
    """Return whether a payload is a whole change event of Debezium and not a row (BOOLEAN, never null).

    A row has the columns of its key.
    """
    key, values = members_of(key_text), values_of(text)
    shaped = _has(members, "op", "source") & (_has(members, "after") | _has(members, "before"))
    keyless = (F.size(key) > 0) | _has_connector(values)
    return F.coalesce(F.when(shaped & ~_holds_key(members, key), keyless), F.lit(False))


def _is_message(text: Column, members: Column, key: Column) -> Column:
    shaped = _has(members, "op", "message", "source") & ~_holds_key(members, key)
    said = shaped & (F.get_json_object(text, "$.op") == MESSAGE)
    return F.coalesce(F.when(said, is_message(text)), F.lit(False))


def _is_heartbeat(text: Column, members: Column, key: Column, key_text: Column, topic: Column) -> Column:
    """A heartbeat has the key of its server, or is in the topic of heartbeats."""
    mine = (key == F.array(F.lit("serverName"))) & _is_text(key_text, "serverName")
    alone = members == F.array(F.lit("ts_ms"))
    by_topic = topic.startswith(HEARTBEAT_TOPICS) & ~_holds_key(members, key)
    return F.coalesce(
        (alone & mine) | (by_topic & (alone | (F.coalesce(text, F.lit("")) == "{}"))), F.lit(False)
    )


def _is_told(text: Column, members: Column, key: Column, key_text: Column) -> Column:
    """The boundary of a transaction, or a schema change: their keys are among their members.

    So their values have to be Debezium's, too.
    """
    transaction = _is_exactly(members, ("status", "id", "event_count", "data_collections"), ("ts_ms",))
    status = F.get_json_object(text, "$.status").isin("BEGIN", "END")
    change = _is_exactly(members, ("source", "databaseName", "ddl"), ("ts_ms", "schemaName", "tableChanges"))
    return F.coalesce(
        F.when(transaction, status & _same_text(text, key, key_text, "id")).when(
            change, _has_connector(values_of(text)) & _same_text(text, key, key_text, "databaseName")
        ),
        F.lit(False),
    )


def _has(members: Column, *names: str) -> Column:
    return F.size(F.array_intersect(members, F.array(*map(F.lit, names)))) == len(names)


def _holds_key(members: Column, key: Column) -> Column:
    """Return whether a column of the key is among the members (BOOLEAN)."""
    return F.arrays_overlap(members, key)


def _is_exactly(members: Column, names: tuple[str, ...], optional: tuple[str, ...]) -> Column:
    others = F.array_except(members, F.array(*map(F.lit, (*names, *optional))))
    return _has(members, *names) & (F.size(others) == 0)


def _same_text(text: Column, key: Column, key_text: Column, name: str) -> Column:
    """Return whether the key is only this member, a text, and the value has the same (BOOLEAN)."""
    same = F.get_json_object(text, f"$.{name}") == F.get_json_object(key_text, f"$.{name}")
    return (key == F.array(F.lit(name))) & _is_text(key_text, name) & same


def _is_text(document: Column, name: str) -> Column:
    return F.schema_of_variant(values_of(document)[name]) == "STRING"


def _has_connector(values: Column) -> Column:
    block = F.to_json(values["source"])
    return F.coalesce(F.get_json_object(block, "$.connector").isNotNull(), F.lit(False))
