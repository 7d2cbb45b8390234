"""Debezium's flat records: what its transformation ExtractNewRecordState leaves of an event.

A record without ``__op`` and ``__deleted`` is the newest state of its row, and therefore an update. Fields of
the source block are there as far as ``add.fields`` or ``add.headers`` name them. A null value is what
``delete.tombstone.handling.mode`` turns a delete into, unless the mode is ``rewrite``: it needs a place in
the order, from headers or (``ordering.by: offset``) from its offset.
"""

from __future__ import annotations

import re
from typing import Any, Final

from lakemirror.driver.codes import SOURCE_OPS, Op
from lakemirror.driver.rules.envelopes import records
from lakemirror.driver.rules.envelopes.debezium import OTHER_TYPE
from lakemirror.driver.rules.envelopes.own_records import changes_no_row, is_envelope
from lakemirror.driver.rules.envelopes.records import (
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
    is_object,
    key_in_header,
    key_of,
    named,
    no_integer,
    parsed,
    placed,
    quoted,
    source_of,
    unwrapped,
)
from lakemirror.driver.rules.positions import (
    Source,
    has_position,
    misplaced,
    source_micros,
    unplaced,
)
from lakemirror.driver.rules.untyped import loads

_OF_ENVELOPE: Final = ("deleted", "op", "ts_ms", "ts_us", "ts_ns")
"""Fields outside of the source block; those with ``ts_`` are times of the connector's clock."""
_BLOCK: Final = (*Source.__struct_fields__, "schema", "table")
_PLAIN: Final = tuple(name for name in _BLOCK if name not in _OF_ENVELOPE)
OTHERS: Final = (
    *("version", "ts_ns"),
    *("txId", "xmin", "origin", "origin_lsn", "ts_usec", "last_snapshot_record"),  # PostgreSQL
    *("gtid", "thread", "query", "ts_sec"),  # MySQL and MariaDB
    *("lcr_position", "rs_id", "ssn", "redo_thread", "user_name", "redo_sql", "row_id"),  # Oracle
    *("commit_ts_ms", "start_scn", "start_ts_ms", "txSeq"),  # Oracle
    "begin_lsn",  # Informix
    *("id", "total_order", "data_collection_order"),
)
"""Other fields that ``add.fields`` may take from the blocks ``source`` and ``transaction``.

They are those of the connectors whose changes have positions (``POSITIONED``), in all versions of Debezium
(its classes ``SourceInfoStructMaker`` of each connector).
"""
NAMES: Final = frozenset(
    (
        *("__deleted", "__op", "__ts_ms"),
        *(f"__{name}" for name in (*_PLAIN, *_OF_ENVELOPE, *OTHERS)),
        *(f"__source_{name}" for name in _BLOCK),
    )
)
"""Members that the transformation adds: they are no columns."""
_CALLED: Final = {name: f"__{name}" if name in _PLAIN else f"__source_{name}" for name in _BLOCK}
_POSITIONS: Final = {
    "postgresql": ("lsn",),
    "mysql": ("file",),
    "sqlserver": ("commit_lsn", "change_lsn"),
    "oracle": ("scn",),
}
"""The fields that a record has if its position was added, by kind of connector."""
_HEADER: Final = re.compile(r"__[A-Za-z0-9_]+")
INTEGERS: Final = (
    "__ts_ms",
    *(f"__{name}" for name in records.INTEGERS if name in _PLAIN),
    *(f"__source_{name}" for name in records.INTEGERS),
)
"""Members that are integers."""
_NULL: Final = (
    "a null value deletes its key's row, but nothing says when: if other records are the deletes "
    "(delete.tombstone.handling.mode rewrite-with-tombstone), set envelope.nullValue: ignore; else add op "
    "and the fields of add.fields to add.headers, or order all by Kafka's offset, ordering.by: offset, with "
    "a new spec.spark.resetToken and another spec.target"
)


def is_metadata(name: str) -> bool:
    """Return whether a member of a row is one that the transformation added."""
    return name in NAMES or name.startswith(("__source_", "__transaction_"))


def classify(record: Record, settings: Settings) -> Classified:
    """Return what a record says."""
    if record.problem is not None:
        return Bad(record.problem)
    added = _headers(record)
    try:
        key, key_schema = key_of(record)
        body, schema = (None, None) if record.value is None else _body(parsed(record.value, "value"))
    except NotReadable as error:
        return Bad(str(error))
    except (ValueError, RecursionError):
        return Bad(f"the value is not a JSON object {LIMITS}")
    if record.value is None and (record.key is None or not settings.null_deletes):
        return NoRowChange("tombstone")
    if not is_object(body):
        return Bad("the value is not a JSON object")
    is_flat = any(name in NAMES for name in (*(body or {}), *added))
    if body is not None and not is_flat:
        if changes_no_row(body, key, record.origin.topic, schema):
            return NoRowChange("one of Debezium's own records")
        if is_envelope(body, key):
            return Bad(
                "the value is a whole event of Debezium, not a flat one: set envelope.format: debezium"
            )
    misfit = _misfit(body or {}, added)
    if misfit is not None:
        return Bad(misfit)
    fields = {**added, **{name: value for name, value in (body or {}).items() if value is not None}}
    source = _source({**(body or {}), **fields})
    table, op = _table(fields, record), _op(fields, source, record)
    reason = _objection(record, key, source, table, op, settings)
    if reason is not None:
        return Bad(reason, table if table.table else None)
    return _event(record, settings, fields, source, table, op, (body, key, schema, key_schema))


def _body(value: Any) -> tuple[Any, Document | None]:
    """Return the row and its schema. A row with columns called schema and payload has others, too."""
    if not isinstance(value, dict) or value.keys() != {"schema", "payload"}:
        return value, None
    payload, schema = unwrapped(value)
    bare = schema is None and value["schema"] is None and isinstance(value["payload"], dict)
    return (value["payload"], None) if bare else (payload, schema)


def _headers(record: Record) -> dict[str, Any]:
    """Return what ``add.headers`` added, as ``add.fields`` would."""
    found = {}
    for name, octets in record.headers:
        if octets is not None and _HEADER.fullmatch(name):
            text = octets.decode(errors="replace")
            try:
                found[name] = _without_schema(loads(text))
            except (ValueError, RecursionError):
                found[name] = text
    return found


def _without_schema(value: Any) -> Any:
    """Return what a header says, without the schema if JsonConverter wrote it with one."""
    is_wrapped = isinstance(value, dict) and "schema" in value and value.get("payload") is not None
    return value["payload"] if is_wrapped else value


def _field(fields: Document, name: str) -> Any:
    """Return a field of the source block, however it was added."""
    plain = fields.get(f"__{name}") if name in _PLAIN else None
    return fields.get(f"__source_{name}") if plain is None else plain


def _misfit(body: Document, headers: Document) -> str | None:
    """Return why what the transformation added cannot be read, naming the member or the header."""
    name = no_integer(body, INTEGERS)
    if name is None:
        header = no_integer(headers, INTEGERS)
        name = None if header is None else f"the header {header}"
    return None if name is None else f"{name} {OTHER_TYPE}"


def _source(fields: Document) -> Source:
    """Return the source block as far as it was added, given that each field has its type (`_misfit`).

    The names of positions identify the connector. They also show that a record without a position must not be
    ordered by its time.
    """
    found = source_of({name: _field(fields, name) for name in Source.__struct_fields__})
    assert found is not None
    connector = found.connector or next(
        (
            kind
            for kind, names in _POSITIONS.items()
            if any(f"__{name}" in fields or f"__source_{name}" in fields for name in names)
        ),
        None,
    )
    return found._replace(connector=connector, name=found.name or "debezium")


def _table(fields: Document, record: Record) -> TableName:
    """Return the table that a record names. Parts that it leaves out come from its topic, if that fits."""
    by_topic = named(record.origin.topic)
    database, schema, table = (as_text(_field(fields, name)) for name in ("db", "schema", "table"))
    if database is None and schema is None and table in (None, by_topic.table):
        return TableName(by_topic.database, by_topic.schema, table or by_topic.table)
    return TableName(database, schema, by_topic.table if table is None else table)


def _op(fields: Document, source: Source, record: Record) -> str:
    if record.value is None or str(fields.get("__deleted")).lower() == "true":
        return Op.DELETE
    if fields.get("__op") is not None:
        return str(fields["__op"])
    return Op.UPDATE if (source.snapshot or "").lower() in ("false", "null", "") else Op.READ


def _objection(
    record: Record, key: Document | None, source: Source, table: TableName, op: str, settings: Settings
) -> str | None:
    by = settings.ordering.by
    no_table = None if table.table else "no table: neither __table nor a topic"
    order = misplaced(source, record.origin, by=by, called=_CALLED) or unplaced(source, record.origin, by)
    if record.value is None:
        if key is None:
            return "the key is not a JSON object"
        return no_table or (order if _says_when(source, by) else _NULL)
    if op not in SOURCE_OPS:
        return f"unknown __op {quoted(op)}"
    return no_table or order


def _says_when(source: Source, by: str) -> bool:
    """Return whether a null value has a place in the order."""
    timed = source_micros(source) is not None
    places = {
        "offset": True,
        "columns": False,
        "timestamp": timed,
        "auto": has_position(source) or (timed and source.connector is None),
    }
    return places.get(by, has_position(source))


def _event(
    record: Record,
    settings: Settings,
    fields: Document,
    source: Source,
    table: TableName,
    op: str,
    parts: tuple[Document | None, Document | None, Document | None, Document | None],
) -> Classified:
    body, key, schema, key_schema = parts
    seq, unanchored = placed(source, record.origin, settings.ordering, snapshot=op == Op.READ)
    at = source_micros(source, fields.get("__ts_ms"))
    if op == Op.TRUNCATE:
        return Truncate(table, source, seq, at)
    # A flat record does not show its row's former key: without a key of its own, it changes none.
    shows_before = op == Op.DELETE or (op == Op.UPDATE and record.key is None)
    return Change(
        table,
        op,
        source,
        seq,
        at,
        key,
        row=None if op == Op.DELETE else body,
        before=body if shows_before else None,
        new_key=key_in_header(record, "__debezium.newkey"),
        old_key=key_in_header(record, "__debezium.oldkey") if op == Op.CREATE else None,
        schema=schema,
        key_schema=key_schema,
        unanchored=unanchored,
        placeholder=settings.placeholder,
        full_before=record.key is None or source.connector not in (None, "postgresql"),
    )
