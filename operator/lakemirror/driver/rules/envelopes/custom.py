"""Custom JSON records: the manifest says where their parts are (``envelope.fields``, ``envelope.opMap``).

A part that is not configured does not exist: without ``op``, each record is the newest state of its row;
without ``after``, the record itself is the row; without ``key``, the key is Kafka's; without ``table``, the
topic names the table. The order is that of ``timestamp``, and of the offset at equal times; without
``timestamp``, it is that of the offset.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.rules import moments, numbers
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
    is_object,
    key_of,
    named,
    parsed,
    placed,
    quoted,
    unwrapped,
)
from lakemirror.driver.rules.keys import micros_of
from lakemirror.driver.rules.positions import Source, misplaced, source_micros, unplaced
from lakemirror.driver.rules.untyped import dumps, micros_per_unit

OPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("c", "i", "create", "insert"), Op.CREATE),
    **dict.fromkeys(("u", "update"), Op.UPDATE),
    **dict.fromkeys(("d", "delete"), Op.DELETE),
    **dict.fromkeys(("r", "read", "load"), Op.READ),
    **dict.fromkeys(("t", "truncate"), Op.TRUNCATE),
}
"""The words for ops if the manifest has no ``opMap``; case is ignored."""
IGNORED: Final = "ignore"
_CALLED: Final = {"ts_us": "the timestamp", "ts_ms": "the timestamp"}
_NULL: Final = (
    "a null value deletes the row of its key, but nothing says when: set envelope.nullValue: ignore, or "
    "order all by Kafka's offset, ordering.by: offset, with a new spec.spark.resetToken and another "
    "spec.target"
)
_MICROS: Final[Mapping[str, Decimal]] = {
    **dict.fromkeys(("org.apache.kafka.connect.data.Date", "io.debezium.time.Date"), Decimal(86_400_000_000)),
    **dict.fromkeys(("org.apache.kafka.connect.data.Timestamp", "io.debezium.time.Timestamp"), Decimal(1000)),
    "io.debezium.time.MicroTimestamp": Decimal(1),
    "io.debezium.time.NanoTimestamp": Decimal("0.001"),
}
"""Microseconds per unit of a time, by the semantic name of its schema."""


@dataclass(frozen=True)
class Fields:
    """The dotted paths of the parts in a record, and the words for ops (``opMap``; None: `OPS`)."""

    op: str | None = None
    after: str | None = None
    before: str | None = None
    key: str | None = None
    table: str | None = None
    timestamp: str | None = None
    op_map: Mapping[str, str] | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of all parts."""
        found = (self.op, self.after, self.before, self.key, self.table, self.timestamp)
        return [each for each in found if each is not None]

    def is_metadata(self, name: str) -> bool:
        """Return whether a member is the op, before image or table of a record that is itself the row.

        The key and the time are also columns of the row.
        """
        return self.after is None and name in (self.op, self.before, self.table)

    def former(self, path: str) -> str | None:
        """Return where a value of the row is in the before image; None if the two have no such place."""
        if self.before is None or self.after is None or not path.startswith(f"{self.after}."):
            return None
        return self.before + path.removeprefix(self.after)


DMS: Final = Fields(op="Op", op_map={"I": "c", "U": "u", "D": "d", "": "r"})
"""Files of AWS DMS: flat rows with a column Op, which the rows of a full load do not have."""


def classify(record: Record, settings: Settings, fields: Fields) -> Classified:
    """Return what a record says."""
    if record.problem is not None:
        return Bad(record.problem)
    try:
        record_key, key_schema = (
            key_of(record) if fields.key is None or record.value is None else (None, None)
        )
        if record.value is None:
            return _of_null(record, record_key, key_schema, settings, fields)
        paths = _paths(settings, fields)
        value, schema = _unwrapped(parsed(record.value, "value"), paths)
    except NotReadable as error:
        return Bad(str(error))
    except (ValueError, RecursionError):
        return Bad(f"the value is not a JSON object {LIMITS}")
    if not isinstance(value, dict):
        return Bad(f"the value is not a JSON object {LIMITS}")
    word = _at(value, fields.op)
    op = _op(word, fields)
    if op == IGNORED:
        return NoRowChange("opMap ignores it")
    table = named(record.origin.topic if fields.table is None else _text(_at(value, fields.table)))
    key = record_key if fields.key is None else _key(_at(value, fields.key), fields.key)
    source = Source(ts_us=_micros(_at(value, fields.timestamp), fields.timestamp, schema))
    reason = _objection(record, value, word, op, table, key, source, settings, fields)
    if reason is not None or op is None:
        return Bad(reason or "unknown op", table if table.table else None)
    return _event(record, settings, fields, value, op, table, key, source, (schema, key_schema))


def _paths(settings: Settings, fields: Fields) -> list[str]:
    """Return all paths into a record: those of its parts, and of the values that order changes."""
    ordered = settings.ordering.columns
    former = [path for each in ordered if (path := fields.former(each)) is not None]
    return [*fields.paths, *ordered, *former]


def _unwrapped(value: Any, paths: Sequence[str]) -> tuple[Any, Document | None]:
    """Return the record without its schema, unless paths lead into the wrapper itself."""
    into_wrapper = any(each.split(".")[0] in ("schema", "payload") for each in paths)
    both = isinstance(value, dict) and value.keys() == {"schema", "payload"}
    return unwrapped(value) if both and not into_wrapper else (value, None)


def _at(value: Any, path: str | None) -> Any:
    """Return what is at a path; None if nothing is."""
    if path is None:
        return None
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _has(value: Any, path: str) -> bool:
    """Return whether there is something at a path, which may be null."""
    *parts, name = path.split(".")
    inner = _at(value, ".".join(parts)) if parts else value
    return isinstance(inner, dict) and name in inner


def _leads_through_others(value: Any, path: str) -> bool:
    """Return whether a path leads through something that is not an object."""
    for name in path.split(".")[:-1]:
        value = value.get(name) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, dict):
            return True
    return False


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else dumps(value)


def _op(word: Any, fields: Fields) -> str | None:
    """Return the op that a word stands for: None if it stands for none, `IGNORED` for a record to ignore."""
    if fields.op is None:
        return Op.UPDATE
    text = _text(word)
    if fields.op_map is not None:
        return fields.op_map.get(text or "")
    return None if text is None else OPS.get(text.lower())


def _key(value: Any, path: str) -> Document | None:
    """Return the key as an object of its columns; a plain value has the last name of its path."""
    if isinstance(value, dict):
        return value
    return None if value is None or isinstance(value, list) else {path.rpartition(".")[2]: value}


def _micros(value: Any, path: str | None, schema: Document | None) -> int | None:
    """Return the time in microseconds, from ISO text or a number.

    Text without a zone is UTC. The unit of a number is the one that its schema declares, or else seconds,
    milli-, micro- or nanoseconds, depending on its size.
    """
    if path is None or value is None:
        return None
    text = _text(value) or ""
    number = numbers.of_digits(text.strip(), 38, 9) if numbers.NUMBER.fullmatch(text.strip()) else None
    if number is None:
        moment = moments.instant_of(text)
        return None if moment is None else micros_of(moment)
    unit = _MICROS.get(_semantic(schema, path) or "", micros_per_unit(number))
    micros = math.floor(number * unit)
    return micros if -(2**63) <= micros < 2**63 else None


def _semantic(schema: Document | None, path: str) -> str | None:
    """Return the semantic name of the value at a path in a Connect schema, which may not be a valid one."""
    found: Any = schema or {}
    for part in path.split("."):
        fields = found.get("fields")
        known = [each for each in fields if isinstance(each, dict)] if isinstance(fields, list) else []
        found = next((each for each in known if each.get("field") == part), {})
    name = found.get("name")
    return name if isinstance(name, str) else None


def _of_null(
    record: Record,
    key: Document | None,
    key_schema: Document | None,
    settings: Settings,
    fields: Fields,
) -> Classified:
    """Return what a record without a value says: Kafka's tombstone, or the delete of its key's row."""
    if record.key is None or not settings.null_deletes:
        return NoRowChange("tombstone")
    by, table = settings.ordering.by, named(record.origin.topic)
    reason = unplaced(Source(), record.origin, by)
    if key is None:
        reason = "a null value, and the key is not a JSON object"
    elif fields.table is not None:
        reason = f"a null value names no table (it stands in {fields.table}): set envelope.nullValue: ignore"
    elif by == "columns" or (by != "offset" and fields.timestamp is not None):
        reason = _NULL
    elif not table.table:
        reason = "no table: no topic"
    if reason is not None:
        return Bad(reason, table if table.table and fields.table is None else None)
    seq, _ = placed(Source(), record.origin, settings.ordering, snapshot=False)
    return Change(table, Op.DELETE, Source(), seq, key=key, key_schema=key_schema)


def _objection(
    record: Record,
    value: Document,
    word: Any,
    op: str | None,
    table: TableName,
    key: Document | None,
    source: Source,
    settings: Settings,
    fields: Fields,
) -> str | None:
    after = value if fields.after is None else _at(value, fields.after)
    before = _at(value, fields.before)
    if op is None:
        return _unknown_op(word, fields)
    if not table.table:
        return f"no table: the record has no {fields.table}" if fields.table else "no table: no topic"
    if fields.after is not None and op in WITH_ROW and after is None:
        return f"op {op} without {fields.after}"
    if not is_object(after):
        return f"{fields.after or 'the record'} is not a JSON object"
    if not is_object(before):
        return f"{fields.before} is not a JSON object"
    if any(_leads_through_others(value, path) for path in _paths(settings, fields)):
        return "a part that a path into the record leads through is not an object"
    if fields.key is not None and op != Op.TRUNCATE and key is None:
        is_list = isinstance(_at(value, fields.key), list)
        missing = f"the record has no key: {fields.key} is missing"
        return f"{fields.key} is a list, which names no columns" if is_list else missing
    if op == Op.DELETE and key is None and after is None and before is None:
        return "a delete with neither key nor row"
    return _wrong_time(record, value, source, settings, fields)


def _unknown_op(word: Any, fields: Fields) -> str:
    if word is None:
        return f"the record has no op: {fields.op} is missing"
    remedy = "it is not in envelope.opMap" if fields.op_map is not None else "set envelope.opMap"
    return f"unknown op {quoted(_text(word))}: {remedy}"


def _wrong_time(
    record: Record, value: Document, source: Source, settings: Settings, fields: Fields
) -> str | None:
    by = settings.ordering.by
    if fields.timestamp is not None and by not in ("offset", "columns"):
        found = _at(value, fields.timestamp)
        if found is None:
            return f"the record has no time: {fields.timestamp} is missing"
        if source_micros(source) is None:
            return f"{fields.timestamp} is not a time: {quoted(_text(found))}"
    return misplaced(source, record.origin, by=by, called=_CALLED) or unplaced(source, record.origin, by)


def _event(
    record: Record,
    settings: Settings,
    fields: Fields,
    value: Document,
    op: str,
    table: TableName,
    key: Document | None,
    source: Source,
    schemas: tuple[Document | None, Document | None],
) -> Classified:
    seq, unanchored = placed(source, record.origin, settings.ordering, snapshot=op == Op.READ)
    at = source_micros(source)
    if op == Op.TRUNCATE:
        return Truncate(table, source, seq, at)
    after = value if fields.after is None else _at(value, fields.after)
    before = _at(value, fields.before)
    former = {**key, **{name: before[name] for name in key if name in before}} if key and before else None
    return Change(
        table,
        op,
        source,
        seq,
        at,
        key,
        row=after if op in WITH_ROW else None,
        before=_before(op, after, before),
        old_key=former if op == Op.UPDATE and former is not None and former != key else None,
        schema=schemas[0],
        key_schema=schemas[1],
        unanchored=unanchored,
        ordered_by=_ordered_by(value, op, settings, fields),
    )


def _ordered_by(value: Document, op: str, settings: Settings, fields: Fields) -> Document | None:
    """Return the values that order a change, by their paths. A delete may have them in its before image."""
    names = settings.ordering.columns
    if not names:
        return None
    found = {path: path for path in names if _has(value, path)}
    if op == Op.DELETE:
        former = {path: fields.former(path) for path in names if path not in found}
        found |= {path: other for path, other in former.items() if other is not None and _has(value, other)}
    return {path: _at(value, found[path]) for path in names if path in found}


def _before(op: str, after: Document | None, before: Document | None) -> Document | None:
    """Return the image before a change. It may have all columns, or only those that changed."""
    if op == Op.DELETE:
        return after if before is None else before
    if op != Op.UPDATE:
        return None
    return after if before is None else {**(after or {}), **before}
