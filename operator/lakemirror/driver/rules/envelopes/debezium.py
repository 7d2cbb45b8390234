"""Debezium's envelope, with or without the schema that Kafka's JsonConverter embeds.

(Debezium, PostgreSQL connector, "change event values".)
"""

from __future__ import annotations

from typing import Any, Final

from lakemirror.driver.codes import SOURCE_OPS, WITH_ROW, Op
from lakemirror.driver.rules.envelopes.own_records import MESSAGE, changes_no_row
from lakemirror.driver.rules.envelopes.records import (
    INTEGERS,
    LIMITS,
    Bad,
    Change,
    Classified,
    Document,
    NoRowChange,
    NotReadable,
    Record,
    Settings,
    TableName,
    Truncate,
    as_text,
    is_integer,
    is_object,
    key_in_header,
    key_of,
    no_integer,
    parsed,
    placed,
    quoted,
    source_of,
    unwrapped,
)
from lakemirror.driver.rules.positions import Source, misplaced, source_micros

_NO_ENVELOPE: Final = f"the value is not a Debezium JSON object {LIMITS}"
OTHER_TYPE: Final = "has another type than Debezium gives it"
_MEMBERS: Final = frozenset(("op", "after", "before", "source"))


def classify(record: Record, settings: Settings) -> Classified:
    """Return what a record says. A record without a value is Kafka's tombstone after a delete."""
    if record.problem is not None:
        return Bad(record.problem)
    if record.value is None:
        return NoRowChange("tombstone")
    try:
        value, schema = unwrapped(parsed(record.value, "value"))
        key, key_schema = key_of(record)
    except NotReadable as error:
        return Bad(str(error))
    except (ValueError, RecursionError):
        return Bad(_NO_ENVELOPE)
    if not isinstance(value, dict):
        return Bad(_NO_ENVELOPE)
    schema = schema if schema is not None else value.get("schema")
    if not is_object(schema):
        return Bad("the schema of the value is not a JSON object")
    body = _body(value)
    block = body.get("source")
    source, clock = _source(block), body.get("ts_ms")
    if source is None or not (clock is None or is_integer(clock)):
        return Bad(f"{_misfit(body)} {OTHER_TYPE}")
    op = as_text(body.get("op"))
    if (op is None or op == MESSAGE) and changes_no_row(body, key, record.origin.topic, schema):
        return NoRowChange("one of Debezium's own records")
    table = TableName(source.db, _text(block, "schema"), _text(block, "table"))
    reason = _objection(body, op, source, table, record) or misplaced(
        source, record.origin, by=settings.ordering.by
    )
    if reason is not None:
        return Bad(reason, table if table.table else None)
    return _event(record, settings, body, source, table, op, (key, schema, key_schema))


def _body(value: dict[str, Any]) -> dict[str, Any]:
    """Return the envelope; without its fields, it may still be wrapped in a payload without a schema."""
    payload = value.get("payload")
    return payload if isinstance(payload, dict) and not _MEMBERS & value.keys() else value


def _source(block: Any) -> Source | None:
    if block is None:
        return Source()
    return source_of(block) if isinstance(block, dict) else None


def _misfit(body: Document) -> str:
    """Return the first field of an envelope that has another type than Debezium gives it."""
    block = body.get("source")
    if not is_object(block):
        return "source"
    name = no_integer(block or {}, INTEGERS)
    return "ts_ms" if name is None else f"source.{name}"


def _text(block: Document | None, name: str) -> str | None:
    found = None if block is None else block.get(name)
    return None if found is None else str(found)


def _objection(body: Document, op: Any, source: Source, table: TableName, record: Record) -> str | None:
    """Return why an envelope is not that of a change that can be applied."""
    after, before = body.get("after"), body.get("before")
    if op is None:
        return "the value has no op: it is not a Debezium change event"
    if op == MESSAGE:
        return "op m without a message of prefix and content, or without a source block"
    if op not in SOURCE_OPS:
        return f"unknown op {quoted(op)}"
    if source.connector == "mongodb":
        return "changes of MongoDB are not supported: its documents have no columns"
    if not table.table:
        return "source.table is missing"
    if op in WITH_ROW and after is None:
        return f"op {op} without an after image"
    if not is_object(after):
        return "the after image is not a JSON object"
    if not is_object(before):
        return "the before image is not a JSON object"
    if op == Op.DELETE and record.key is None and before is None:
        return "op d with neither key nor before image"
    return None


def _event(
    record: Record,
    settings: Settings,
    body: Document,
    source: Source,
    table: TableName,
    op: Any,
    parts: tuple[Document | None, Document | None, Document | None],
) -> Classified:
    key, schema, key_schema = parts
    at = source_micros(source, body.get("ts_ms"))
    seq, unanchored = placed(source, record.origin, settings.ordering, snapshot=op == Op.READ)
    if op == Op.TRUNCATE:
        return Truncate(table, source, seq, at)
    new_key = key_in_header(record, "__debezium.newkey") if record.headers else None
    old_key = key_in_header(record, "__debezium.oldkey") if record.headers and op != Op.UPDATE else None
    return Change(
        table,
        op,
        source,
        seq,
        at,
        key,
        row=body.get("after"),
        before=body.get("before"),
        new_key=new_key,
        old_key=old_key,
        schema=schema,
        key_schema=key_schema,
        unanchored=unanchored,
        placeholder=settings.placeholder,
        full_before=source.connector != "postgresql",
    )
