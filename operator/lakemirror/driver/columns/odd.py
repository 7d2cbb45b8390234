"""Records that are not plain, read by the rules one by one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.columns.changes import digest, key_of
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.masks import Indices
from lakemirror.driver.columns.raw_records import RawRecords, octets_of
from lakemirror.driver.rules.envelopes import debezium
from lakemirror.driver.rules.envelopes.records import Bad, Change, NoRowChange, Record, Truncate
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin, identity
from lakemirror.driver.rules.row_keys import keyed
from lakemirror.driver.rules.rows import Unrepresentable
from lakemirror.driver.rules.values import Event


class Other(NamedTuple):
    """A record of something else than is known: of another table, schema or key, or with new columns."""

    what: str


class OddChange(NamedTuple):
    """A change, as its record says it, and its events: one, or two if an update changes its row's key.

    ``rounded`` are the columns whose value has lost digits below the microsecond.
    """

    change: Change
    events: tuple[Event, ...]
    rounded: frozenset[str] = frozenset()


class Spoilt(NamedTuple):
    """A change that cannot be applied, as its record says it, and why."""

    change: Change
    reason: str


OddRecord = OddChange | Spoilt | Truncated | Bad | NoRowChange | Other
"""What a record is. One that is not even known to be a change is bad."""


def read(record: Record, facts: Facts, unrepresentable: Unrepresentable = "quarantine") -> OddRecord:
    """Return what the rules make of a record of a table."""
    found = debezium.classify(record, facts.settings)
    if isinstance(found, NoRowChange | Bad):
        return found
    if found.table != facts.table:
        return Other("of another table")
    if isinstance(found, Truncate):
        return Truncated(found.seq, origin=record.origin, at=found.at)
    if (found.schema, found.key_schema) != (facts.schema, facts.key_schema):
        return Other("of another schema")
    if _has_more(found.row, facts) or _has_other_key(found.key, facts):
        return Other("with columns that the table did not have")
    return _change(record, found, facts, unrepresentable)


def _has_more(row: Mapping[str, Any] | None, facts: Facts) -> bool:
    """Return whether a row without a schema has a value for which there is no column."""
    if row is None or facts.schema is not None:
        return False
    known = facts.left_out | {each.source for each in facts.columns.values()}
    return any(value is not None and name not in known for name, value in row.items())


def _has_other_key(key: Mapping[str, Any] | None, facts: Facts) -> bool:
    """Return whether a key without a schema has other members: rows may have a key of more columns by now."""
    if key is None or facts.key_schema is not None:
        return False
    return key.keys() != {each.source for each in facts.key.columns.values()}


def records_in(block: RawRecords, numbers: Indices) -> Iterator[Record]:
    """Yield some of the raw records of a block."""
    some = block.take(numbers)
    for each, key, value in zip(some.columns.to_pylist(), some.keys, some.values, strict=True):
        headers = tuple((header["key"], header["value"]) for header in each.get("headers") or ())
        origin = Origin(each["topic"], each["partition"], each["offset"])
        yield Record(octets_of(value), octets_of(key), headers, origin)


def _change(record: Record, change: Change, facts: Facts, unrepresentable: Unrepresentable) -> OddRecord:
    of_key = keyed(change, record.key is not None, facts.key)
    if isinstance(of_key, str):
        return Spoilt(change, of_key)
    row, gaps, texts, rounded = {}, frozenset[str](), {}, frozenset[str]()
    if change.row is not None:
        image = facts.rows.read(change.row, unrepresentable=unrepresentable)
        if isinstance(image, str):
            return Spoilt(change, image)
        row, gaps, texts, rounded = dict(image.values), image.gaps, dict(image.texts), image.rounded
    if change.op == Op.DELETE:
        row, gaps, texts, rounded = {}, frozenset(), {}, frozenset()
    log = identity(change.source, facts.settings.ordering.by)
    event = Event(
        key_of(of_key.key),
        change.op if of_key.former is None else str(Op.CREATE),
        change.seq,
        change.at,
        record.origin,
        row,
        gaps,
        texts,
        old_key=of_key.old_key or of_key.former,
        new_key=of_key.new_key,
        unanchored=change.unanchored,
        digest=digest(None if log is None else json.dumps(log), change.op, row, record.origin),
    )
    if of_key.former is None:
        return OddChange(change, (event,), rounded)
    half = event._replace(
        key=of_key.former,
        op=str(Op.DELETE),
        row={},
        gaps=frozenset(),
        old_key=None,
        new_key=of_key.key,
        is_half=True,
    )
    return OddChange(change, (event, half), rounded)
