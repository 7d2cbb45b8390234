"""Which row a change is of: its key, from the key of its record, or from its images.

The key of a mirror is that of the records, unless the manifest declares another one (``primaryKey``). Columns
of a declared key that the records' own keys lack are taken from the rows. An update may then change the key
of its row: it is a create at the new key, and a delete at the former one that has no record of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.conversions import Read
from lakemirror.driver.rules.envelopes.records import Change, Document
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.types import DEFAULT, Placeholder
from lakemirror.driver.rules.values import Key, Value, is_same

_ZEROS: Final = (0, Decimal(0), "", False, date(1970, 1, 1))


@dataclass(frozen=True)
class KeyOfTable:
    """The key of a mirror: the ``names`` of its columns, and how they are read from records of one schema.

    ``columns`` lacks those that the schema does not have. ``from_rows`` are columns of a declared key that
    not all records have in their own keys; the key is then taken from the rows. ``defaults`` are the defaults
    that the schema declares for key columns. ``other`` is what is wrong with records whose keys have other
    columns.
    """

    names: Sequence[str]
    columns: Mapping[str, Column]
    from_rows: Sequence[str] = ()
    defaults: Mapping[str, Value] = field(default_factory=dict)
    other: str | None = None
    placeholder: Placeholder | None = DEFAULT

    def of(self, document: Document | None) -> Key | None:
        """Return the key in a document. None if a part of it is missing or does not fit."""
        if document is None or any(name not in self.columns for name in self.names):
            return None
        reads = [self._read(name, document) for name in self.names]
        if any(each.is_odd or each.value is None for each in reads):
            return None
        return tuple(each.value for each in reads)

    def in_header(self, document: Document | None) -> Key | None:
        """Return the key in a header, which Connect's SimpleHeaderConverter writes without its schema.

        It has numbers where other keys have bytes.
        """
        found = self.of(document)
        return self._schemaless.of(document) if found is None else found

    @cached_property
    def _schemaless(self) -> KeyOfTable:
        columns = {name: replace(each, codec=None) for name, each in self.columns.items()}
        return replace(self, columns=columns)

    def _read(self, name: str, document: Document) -> Read:
        column = self.columns[name]
        return column.read(document.get(column.source), self.placeholder)

    @property
    def listed(self) -> str:
        return ", ".join(self.names)


class Keyed(NamedTuple):
    """The key of a change, and the other one if its row changes its key.

    ``former`` is the key that the row of an update had before: the mirror gets a delete of it.
    """

    key: Key
    new_key: Key | None = None
    old_key: Key | None = None
    former: Key | None = None


def keyed(change: Change, has_key: bool, table: KeyOfTable) -> Keyed | str:
    """Return the key of a change, or why its record cannot be applied.

    ``has_key`` says whether its record has a key, which need not be a JSON object.
    """
    image = change.before if change.op == Op.DELETE else change.row
    holder = image if table.from_rows else change.key
    key = table.of(holder)
    reason = _objection(change, has_key, holder, key, table)
    if reason is not None:
        return reason
    assert key is not None  # or there would be a reason
    if table.from_rows:
        former = table.of(change.before) if change.op == Op.UPDATE else None
        return Keyed(key, former=None if former == key else former)
    if change.op != Op.UPDATE:
        return Keyed(key, table.in_header(change.new_key), table.in_header(change.old_key))
    former = table.of(change.old_key)
    if change.old_key is not None and former is None:
        return f"the row's former key does not fit (key columns: {table.listed})"
    return Keyed(key, former=None if former == key else former)


class Left(NamedTuple):
    """A row has left the key ``former``. ``to`` is its key now; None if the mirror cannot have it."""

    former: Key
    to: Key | None


def left(change: Change, table: KeyOfTable) -> Left | None:
    """Return the key that the row of an update has left, whatever becomes of its record; None if it has not.

    The delete of the former key does not wait for an image that goes to the quarantine. A key that is not
    certain proves nothing: that of a record with other columns, one that its row does not have, or one of
    which a part is missing. A declared key may become null in the source, others may not.
    """
    if change.op != Op.UPDATE:
        return None
    holder = (change.row if table.from_rows else change.key) or {}
    key, former = table.of(holder), table.of(change.before if table.from_rows else change.old_key)
    if former is None or former == key or _may_be_of_another(change, table):
        return None
    if key is None:
        there = {name for name, value in holder.items() if table.from_rows or value is not None}
        return Left(former, None) if there >= {each.source for each in table.columns.values()} else None
    is_same = table.from_rows or not _differs(key, change.row or {}, table)
    return Left(former, key) if is_same else None


def _may_be_of_another(change: Change, table: KeyOfTable) -> bool:
    """Return whether the key of a record may have other columns than the mirror's."""
    sources = sorted(each.source for each in table.columns.values())
    return table.other is not None and sorted(change.key or ()) != sources


def _objection(
    change: Change, has_key: bool, holder: Document | None, key: Key | None, table: KeyOfTable
) -> str | None:
    """Return why a record cannot be applied. ``holder`` is what its ``key`` was taken from."""
    if table.from_rows:
        doubt = _doubt(change, has_key, key, table)
        if doubt is not None:
            return doubt
    sources = sorted(each.source for each in table.columns.values())
    if table.other is not None and change.key is not None and sorted(change.key) != sources:
        return table.other
    if key is None and not table.from_rows and has_key and change.key is None:
        return "the key is not a JSON object"
    if key is None:
        wrong = _wrong_part(holder, table)
        return f"the key is missing or does not fit (key columns: {table.listed}){wrong}"
    if not table.from_rows and change.op != Op.DELETE and _differs(key, change.row or {}, table):
        return f"key and row differ in {table.listed}"
    return None


def _differs(key: Key, row: Mapping[str, Any], table: KeyOfTable) -> bool:
    """Return whether a row and its record have different keys: it is then unclear which row it is."""
    mine = [table._read(name, row).value for name in table.names]
    return not all(is_same(one, other) for one, other in zip(key, mine, strict=True))


def _wrong_part(document: Document | None, table: KeyOfTable) -> str:
    """Return what is wrong with the first part of a key that is not one, as the end of a sentence."""
    if document is None:
        return ""
    reads = {name: table._read(name, document) for name in table.names if name in table.columns}
    misfits = any(each.is_misfit for each in reads.values())
    for name, read in reads.items():
        if read.is_lost:
            return f": Spark cannot represent {name}, which is {read.text or 'the value'}"
        if read.is_rounded:
            return (
                f": {name} has digits below the microsecond, without which keys would be equal. To keep "
                f"them, set columns.types: {{{table.columns[name].source}: string}}, with a new target and a "
                "new resyncToken"
            )
        if read.value is None and not misfits:
            return f": {name} is null or missing, so that nothing identifies the row"
    return ""


def _doubt(change: Change, has_key: bool, key: Key | None, table: KeyOfTable) -> str | None:
    """Return why a declared key cannot be taken from the images of a change.

    Under REPLICA IDENTITY DEFAULT, PostgreSQL sends only the columns of its own key. An update then has no
    before image, and that of a delete has nulls, zeros and defaults in all other columns (Debezium,
    PostgreSQL connector, "replica identity"). A value that could be such a placeholder is not trusted.
    """
    remedy = (
        f"primaryKey has {', '.join(table.from_rows)}, which the record's own key does not have: set REPLICA "
        "IDENTITY FULL on the table, or declare the record's key with a new target and a new resyncToken"
    )
    if change.op == Op.UPDATE and change.before is None:
        return f"an update without a before image, but {remedy}"
    if change.op != Op.DELETE:
        return None
    if change.before is None:
        return f"a delete without a before image, but {remedy}"
    parts = dict(zip(table.names, key or [None] * len(table.names), strict=True))
    is_made_up = any(_may_be_made_up(parts[name], table.defaults.get(name)) for name in table.from_rows)
    if not change.full_before and has_key and is_made_up:
        return f"a delete with an incomplete before image: {remedy}"
    return None


def _may_be_made_up(value: Value, default: Value) -> bool:
    """Return whether a value is null, the default, or what Debezium puts into a column that was not sent."""
    if value is None or (default is not None and is_same(value, default)):
        return True
    if isinstance(value, bytes):
        return not any(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=None) == datetime(1970, 1, 1)
    return any(type(value) is type(zero) and value == zero for zero in (*_ZEROS, 0.0))
