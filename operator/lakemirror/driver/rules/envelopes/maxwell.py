"""Maxwell's records (Maxwell, "Data format").

The order is that of the binlog: ``position``, with ``xoffset`` for the rows of one event, or else ``gtid``.
Rows of a bootstrap have neither, so they fill only what is missing. If Maxwell outputs no position, changes
are ordered by ``ts``, and within one second by offset. They are not ordered by ``xid``, which transactions
get before they are committed.
"""

from __future__ import annotations

import re
from typing import Any, Final

from lakemirror.driver.codes import Op
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
    as_text,
    is_object,
    key_of,
    no_integer,
    parsed,
    placed,
    quoted,
)
from lakemirror.driver.rules.positions import Source, misplaced, source_micros, unplaced

OPS: Final = {
    "insert": Op.CREATE,
    "update": Op.UPDATE,
    "delete": Op.DELETE,
    "bootstrap-insert": Op.READ,
}
OTHERS: Final = (
    *("bootstrap-start", "bootstrap-complete"),
    *(f"{what}-{done}" for what in ("table", "database") for done in ("create", "alter", "drop")),
)
"""Types of records that do not change a row."""

_POSITION: Final = re.compile(r"^.*\.\d{1,10}:\d{1,18}$", re.ASCII)
_GTID: Final = re.compile(r"^(?:(.*):|(\d+-\d+)-)(\d{1,18})$", re.ASCII)
"""MySQL's ``uuid:number`` or MariaDB's ``domain-server-number``."""
_LAST_OF_TRANSACTION: Final = 2**31 - 2
_CALLED: Final = {"ts_ms": "ts", "file": "position", "pos": "position", "event_serial_no": "xoffset"}
_TEXTS: Final = ("type", "database", "table", "position", "gtid", "reason")
NUMBERS: Final = ("ts", "xoffset", "server_id")
_OTHER_KINDS: Final = (("commit", bool), ("primary_key_columns", list))
OTHER_TYPE: Final = "has another type than Maxwell gives it"


def classify(record: Record, settings: Settings) -> Classified:
    """Return what a record says."""
    if record.problem is not None:
        return Bad(record.problem)
    if record.value is None:
        return NoRowChange("tombstone")
    try:
        value = parsed(record.value, "value")
        key_of(record)
    except NotReadable as error:
        return Bad(str(error))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return Bad(f"the value is not a JSON object of Maxwell {LIMITS}")
    misfit = _misfit(value)
    if misfit is not None:
        return Bad(f"{misfit} {OTHER_TYPE}")
    value = {**value, **{name: as_text(value.get(name)) for name in _TEXTS}}
    if value.get("type") in OTHERS:
        return NoRowChange(str(value["type"]))
    source, snapshot = _source(value), value.get("type") == "bootstrap-insert"
    names = _key_names(value, record)
    reason = _objection(value, names, settings) or misplaced(
        source, record.origin, by=settings.ordering.by, called=_CALLED, anywhere=snapshot
    )
    if reason is None and not snapshot:
        reason = unplaced(source, record.origin, settings.ordering.by)
    table = TableName(value.get("database"), None, value.get("table"))
    if reason is not None:
        return Bad(reason, table if table.table else None)
    return _change(value, source, table, names, record, settings)


def _misfit(value: Document) -> str | None:
    """Return the first field that has another type than Maxwell gives it. A text may be any value of JSON."""
    number = no_integer(value, NUMBERS)
    if number is not None:
        return number
    others = ((name, value.get(name), kind) for name, kind in _OTHER_KINDS)
    return next((name for name, each, kind in others if not isinstance(each, (kind, type(None)))), None)


def _source(value: Document) -> Source:
    """Return the change's position in the binlog, in the form of Debezium's source block.

    The last row of a transaction has ``commit`` instead of ``xoffset``. A GTID counts transactions in the way
    that the numbers of binlog files count files.
    """
    position, gtid = value.get("position"), value.get("gtid")
    counted = _GTID.match(gtid) if gtid is not None else None
    is_positioned = position is not None or gtid is not None or value.get("type") == "bootstrap-insert"
    file, _, pos = (position or "").rpartition(":")
    whose = (counted[1] or "") + (counted[2] or "") if counted is not None else ""
    is_last = value.get("commit") is True and value.get("xoffset") is None
    return Source(
        connector="mysql" if is_positioned else None,
        name="maxwell",
        db=value.get("database"),
        ts_ms=None if value.get("ts") is None else value["ts"] * 1000,
        server_id=value.get("server_id"),
        system_identifier=(whose or None) if position is None else None,
        file=file if position is not None else None if counted is None else f"gtid.{counted[3]}",
        pos=int(pos) if pos.isdigit() and len(pos) <= 18 else None,
        event_serial_no=_LAST_OF_TRANSACTION if is_last else value.get("xoffset"),
    )


def _key_columns(value: Document, record: Record) -> list[str] | None:
    """Return the primary key's columns in lower case, as in Kafka's key. None if nothing names them."""
    names = value.get("primary_key_columns")
    if isinstance(names, list):
        return [str(each).lower() for each in names]
    if record.key is None:
        return None
    try:
        key = parsed(record.key, "key")
    except ValueError:
        return None
    if isinstance(key, list):  # producer.kafka_key_format: array
        listed = key[2] if len(key) > 2 and isinstance(key[2], list) else []
        return [name for each in listed if isinstance(each, dict) for name in each]
    return [name[3:] for name in key if name.startswith("pk.")] if isinstance(key, dict) else None


def _key_names(value: Document, record: Record) -> tuple[list[str] | None, list[str]]:
    """Return the primary key's columns, and how the row spells those that it has."""
    columns, data = _key_columns(value, record), value.get("data")
    spelled = [name for name in data if name.lower() in (columns or ())] if isinstance(data, dict) else []
    return columns, spelled


def _objection(value: Document, names: tuple[list[str] | None, list[str]], settings: Settings) -> str | None:
    kind, data, old = value.get("type"), value.get("data"), value.get("old")
    if kind is None:
        return "the value has no type: it is not a record of Maxwell"
    if kind not in OPS:
        return f"unknown type {quoted(kind)}"
    for name in ("database", "table"):
        if not value.get(name):
            return f"{name} is missing"
    if value.get("reason") is not None:
        return f"Maxwell could not send the row, only its key: {quoted(value['reason'])}"
    if data is None:
        return f"type {kind} without data"
    if not is_object(data):
        return "data is not a JSON object"
    if not is_object(old):
        return "old is not a JSON object"
    lacking = [name for name in names[0] or () if name not in {each.lower() for each in names[1]}]
    if lacking:
        return f"data lacks the primary key's column {', '.join(lacking)}"
    return _wrong_position(value) if settings.ordering.by in ("auto", "binlog") else None


def _wrong_position(value: Document) -> str | None:
    position, gtid = value.get("position"), value.get("gtid")
    if position is not None:
        return None if _POSITION.match(position) else f"position is not valid: {quoted(position)}"
    return None if gtid is None or _GTID.match(gtid) else f"gtid is not valid: {quoted(gtid)}"


def _change(
    value: Document,
    source: Source,
    table: TableName,
    names: tuple[list[str] | None, list[str]],
    record: Record,
    settings: Settings,
) -> Change:
    op: str = OPS[value["type"]]
    data, old, spelled = value["data"], value.get("old") or {}, names[1]
    key = {name: data[name] for name in spelled} if spelled else None
    changed = op == Op.UPDATE and any(name in old for name in spelled)
    seq, _ = placed(source, record.origin, settings.ordering, snapshot=op == Op.READ)
    return Change(
        table,
        op,
        source,
        seq,
        source_micros(source),
        key,
        row=None if op == Op.DELETE else _with_nulls(data, old) if op == Op.UPDATE else data,
        before=data if op == Op.DELETE else {**data, **old} if op == Op.UPDATE else None,
        old_key={**(key or {}), **{name: old[name] for name in spelled if name in old}} if changed else None,
        partial=op == Op.UPDATE,
    )


def _with_nulls(data: Document, old: Document) -> dict[str, Any]:
    """Return an update's row, with nulls for the members that only its old values have.

    Such a value is null now: with ``output_nulls=false``, Maxwell leaves out nulls. A value that neither has
    is as before (``binlog_row_image=MINIMAL``).
    """
    return {**data, **{name: None for name in old if name not in data}}
