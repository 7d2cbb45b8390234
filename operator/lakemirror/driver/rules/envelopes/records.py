"""Records, and what an envelope makes of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.members import members_of
from lakemirror.driver.rules.positions import NO_ORIGIN, By, Epoch, Origin, Source, is_unanchored, sequence
from lakemirror.driver.rules.schemas import PLAIN
from lakemirror.driver.rules.types import DEFAULT, Placeholder
from lakemirror.driver.rules.untyped import dumps, loads

LEVELS: Final = 100
CHARACTERS: Final = 20_000_000
LIMITS: Final = f"(of at most {LEVELS} levels, with at most {CHARACTERS:,} characters in a text)"
HALF_CHARACTER: Final = "has half of a surrogate pair, which is no character: correct it in the source"

Document = Mapping[str, Any]
_BARE_TIME: Final = re.compile(
    r"([:,\[])(\d{4}-\d{2}-\d{2}(?:T[0-9:.]+Z)?|\d{2}:\d{2}:\d{2}[0-9.]*Z?)(?=[,}\]])", re.ASCII
)


class Record(Frozen, frozen=True):
    """A record as it was read: its bytes, its headers, and where it was. ``problem`` says why it is none."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    origin: Origin = NO_ORIGIN
    problem: str | None = None

    def header(self, name: str) -> bytes | None:
        """Return the first header with a name."""
        return next((value for each, value in self.headers if each == name), None)


class TableName(NamedTuple):
    """A table as its source names it. Parts that the source does not have are None."""

    database: str | None
    schema: str | None
    table: str | None


class Change(Frozen, frozen=True):
    """A change of one row, as a record shows it.

    ``row`` is the image after the change, ``before`` the one before it. An update with ``old_key`` changes
    its row's key on its own; a create with ``old_key`` and a delete with ``new_key`` are the halves of such a
    change. A value may be the ``placeholder`` of one that was not sent (None: records of the envelope have
    none). ``partial`` says that members that the row lacks are as before,
    ``full_before`` that a before image has all columns. ``ordered_by`` are the values that order the change
    (`lakemirror.driver.rules.ordering_columns`) if they are not columns of its row.
    """

    table: TableName
    op: str
    source: Source
    seq: bytes
    at: int | None = None
    key: Document | None = None
    row: Document | None = None
    before: Document | None = None
    new_key: Document | None = None
    old_key: Document | None = None
    schema: Document | None = None
    key_schema: Document | None = None
    unanchored: bool = False
    placeholder: Placeholder | None = None
    partial: bool = False
    full_before: bool = True
    ordered_by: Document | None = None

    @property
    def is_snapshot(self) -> bool:
        """Whether the row was read by a snapshot."""
        return self.op == "r"


class Truncate(NamedTuple):
    """All rows of a table were deleted."""

    table: TableName
    source: Source
    seq: bytes
    at: int | None = None


class NoRowChange(NamedTuple):
    """A record that changes no row. ``why`` is ``tombstone`` (Kafka's, after a delete) or what else it is."""

    why: str


class Bad(NamedTuple):
    """A record that cannot be applied. ``table`` is its table, if that is known."""

    reason: str
    table: TableName | None = None


Classified = Change | Truncate | NoRowChange | Bad


@dataclass(frozen=True)
class Ordering:
    """What orders changes (``ordering`` in the manifest). ``columns`` are those that do under ``columns``."""

    by: By = "auto"
    epochs: tuple[Epoch, ...] = ()
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """How records are read (``envelope`` in the manifest).

    ``null_deletes`` says that a record without a value deletes the row of its key.
    """

    ordering: Ordering = field(default_factory=Ordering)
    placeholder: Placeholder = DEFAULT
    null_deletes: bool = True


class NotReadable(ValueError):
    """Why a value or a key cannot be read."""


# -- reading JSON -----------------------------------------------------------------------------------------


def parsed(octets: bytes, what: str) -> Any:
    """Return the JSON of a value or key, with all digits of its numbers. Raises NotReadable or ValueError."""
    head = _head_of(octets, what) if octets.startswith(_WRAPPED) else None
    if head is not None and octets.endswith(b"}"):
        payload = octets[len(head.octets) : -1]
        try:
            return {"schema": head.schema, "payload": _document(payload, what, LEVELS - 1)}
        except ValueError:
            pass  # there is more, or something that may not be: the document as a whole says what
    return _document(octets, what, LEVELS)


def _document(octets: bytes, what: str, levels: int) -> Any:
    try:
        text = octets.decode()
    except UnicodeDecodeError:
        raise NotReadable(f"the {what} is not valid UTF-8") from None
    return _read(text, what, levels)


def _read(text: str, what: str, levels: int) -> Any:
    """Return a document within the limits. Raises NotReadable, ValueError or RecursionError."""
    document = loads(text)
    if "\\" in text and "\\u" in text and _has_half_character(document):
        raise NotReadable(f"the {what} {HALF_CHARACTER}")
    if _may_exceed(text, levels) and not _is_within(document, levels):
        raise ValueError("too many levels")
    return document


class _Head(NamedTuple):
    """What a record has before its payload: its schema, which is the same for each record of a table.

    It is larger than the record. JsonConverter puts it first.
    """

    octets: bytes
    schema: Document


_WRAPPED: Final = b'{"schema":{'
_PAYLOAD: Final = b',"payload":'
_LARGEST_SCHEMA: Final = 250_000
_latest: Final[dict[str, _Head]] = {}


def _head_of(octets: bytes, what: str) -> _Head | None:
    """Return what is before the payload, if that is a schema and nothing else, so that it is read only once.

    What comes before the first ``,"payload":`` is an object of nothing but a schema, once it is closed: so
    this is where the payload begins. If what comes after it is one value, it is the payload and all there is.
    """
    latest = _latest.get(what)
    if latest is not None and octets.startswith(latest.octets):
        return latest
    begin = octets.find(_PAYLOAD, 0, _LARGEST_SCHEMA)
    head = _head(octets[: begin + len(_PAYLOAD)]) if begin > 0 else None
    if head is not None:
        _latest[what] = head
    return head


@lru_cache(maxsize=64)
def _head(octets: bytes) -> _Head | None:
    try:
        found = _document(octets.removesuffix(_PAYLOAD) + b"}", "schema", LEVELS)
    except (ValueError, RecursionError):
        return None
    return _Head(octets, found["schema"]) if found.keys() == {"schema"} else None


def _has_half_character(value: Any) -> bool:
    if isinstance(value, str):
        return any("\ud800" <= each <= "\udfff" for each in value)
    if isinstance(value, dict):
        return any(_has_half_character(each) for pair in members_of(value) for each in pair)
    return isinstance(value, list) and any(map(_has_half_character, value))


def _may_exceed(text: str, levels: int) -> bool:
    is_deep = len(text) > levels and text.count("{") + text.count("[") > levels
    return is_deep or len(text) > CHARACTERS


def _is_within(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        return levels > 0 and all(_is_within(each, levels - 1) for _, each in members_of(value))
    if isinstance(value, list):
        return levels > 0 and all(_is_within(each, levels - 1) for each in value)
    return not isinstance(value, str) or len(value) <= CHARACTERS


def is_object(value: Any) -> bool:
    """Return whether a value is a JSON object, or there is none."""
    return value is None or isinstance(value, dict)


def unwrapped(document: Any) -> tuple[Any, Document | None]:
    """Return what a document says and its schema, if JsonConverter wrapped it: {"schema", "payload"}."""
    if not isinstance(document, dict) or document.get("payload") is None:
        return document, None
    schema = document.get("schema")
    has_fields = isinstance(schema, dict) and "fields" in schema
    return (document["payload"], schema) if has_fields else (document, None)


def key_of(record: Record) -> tuple[Document | None, Document | None]:
    """Return the columns of a record's key and their schema. Raises NotReadable."""
    if record.key is None:
        return None, None
    try:
        document = parsed(record.key, "key")
    except NotReadable:
        raise
    except ValueError:
        return None, None
    key, schema = unwrapped(document)
    return (key if isinstance(key, dict) and not _is_plain(document) else None), schema


_PARTS: Final = frozenset(("schema", "payload"))


def _is_plain(document: Any) -> bool:
    """Return whether JsonConverter wrapped a value that is no struct, such as a key of one column."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, dict) or schema.get("type") not in PLAIN:
        return False
    return bool(document.keys() == _PARTS)


def key_in_header(record: Record, name: str) -> Document | None:
    """Return the key in a header; None if it is none that can be read.

    Connect's SimpleHeaderConverter writes dates and times without quotes.
    """
    octets = record.header(name)
    if octets is None:
        return None
    text = octets.decode(errors="replace")
    for each in (text, _BARE_TIME.sub(r'\1"\2"', text)):
        try:
            key, _ = unwrapped(_read(each, "header", LEVELS))
        except (ValueError, RecursionError):
            continue
        return key if isinstance(key, dict) else None
    return None


def quoted(word: Any) -> str:
    """Quote a word from a record for a message, cut after 50 characters."""
    return f"'{str(word)[:50]}'"


def named(dotted: str | None) -> TableName:
    """Split a dotted name, such as a topic's: the table is the last part, the schema the one before it."""
    if not dotted:
        return TableName(None, None, None)
    *rest, table = dotted.split(".")
    schema = rest.pop() if rest else None
    return TableName(".".join(rest) or None, schema or None, table or None)


# -- positions --------------------------------------------------------------------------------------------


def placed(source: Source, origin: Origin, ordering: Ordering, *, snapshot: bool) -> tuple[bytes, bool]:
    """Return the sequence of a change, and whether its place depends on the snapshot (`positions`)."""
    seq = sequence(source, origin, snapshot=snapshot, by=ordering.by, epochs=ordering.epochs)
    return seq, is_unanchored(source, snapshot=snapshot, by=ordering.by)


def source_of(block: Document) -> Source | None:
    """Return the source block; None if a field has another type than Debezium gives it (`no_integer`)."""
    try:
        return msgspec.convert(block, Source)
    except msgspec.ValidationError:  # an integer, or a text, is another value
        if no_integer(block, INTEGERS) is not None:
            return None
    fields: dict[str, Any] = {name: block.get(name) for name in Source.__struct_fields__}
    fields.update({name: as_text(each) for name, each in fields.items() if name not in INTEGERS})
    return Source(**fields)


def is_integer(value: Any) -> bool:
    """Return whether a value of JSON is an integer of 64 bits."""
    return type(value) is int and -(2**63) <= value < 2**63


def no_integer(block: Document, names: Iterable[str]) -> str | None:
    """Return the first member with one of the names that is there and no integer of 64 bits."""
    values = ((name, block.get(name)) for name in names)
    return next((name for name, value in values if value is not None and not is_integer(value)), None)


def as_text(value: Any) -> str | None:
    """Return a field that is a text in the envelope; what is another value there, as its JSON."""
    if value is None or isinstance(value, str):
        return value
    return dumps(value)


INTEGERS: Final = ("ts_us", "ts_ms", "lsn", "pos", "row", "event_serial_no", "server_id")
"""The fields of the source block that are integers."""
