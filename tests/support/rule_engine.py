"""The rules as an engine: record lines in, mirrors out. Nothing of the driver's engine is used.

It is what a pipeline of current rows does with default settings, one batch after the other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from lakemirror.driver.rules import drift
from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.envelopes import debezium
from lakemirror.driver.rules.envelopes.records import (
    Bad,
    Change,
    Classified,
    NoRowChange,
    Record,
    Settings,
    TableName,
    Truncate,
)
from lakemirror.driver.rules.inference import Shape, kind_of, merge, shape_of
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import STRING, Kind
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.rows import Column, read_row
from lakemirror.driver.rules.schemas import fields_of_envelope, fields_of_struct
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Outcome, Row
from tests.support.records import Record as Line

Classify = Callable[[Record, Settings], Classified]


@dataclass
class Mirrored:
    """One table: its key, its columns, and what the rules keep of it."""

    key: list[str] = field(default_factory=list)
    columns: dict[str, Kind] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    mirror: Mirror = field(default_factory=Mirror)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: list[tuple[str | None, int | None, int | None, str]] = field(default_factory=list)
    drift: list[drift.Drift] = field(default_factory=list)

    @property
    def rows(self) -> dict[Key, Row]:
        return {key: row for key, row in self.mirror.rows.items() if row.is_live}

    @property
    def tombstones(self) -> dict[str, str]:
        """By the text of the key: the sequence of the newest delete."""
        kinds = {name: self.columns[name] for name in self.key}
        return {
            encode(dict(zip(self.key, key, strict=True)), kinds): each.seq.hex()
            for key, each in self.mirror.tombstones.items()
        }


@dataclass
class Engine:
    """Mirrors of all tables, by name; ``unknown`` counts the records that belong to none."""

    classify: Classify = debezium.classify
    settings: Settings = field(default_factory=Settings)
    tables: dict[str, Mirrored] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)

    def deliver(self, lines: Iterable[Line]) -> None:
        """Apply one batch."""
        by_table: dict[str, list[tuple[Record, Change | Truncate | Bad]]] = {}
        for line in lines:
            record = record_of(line)
            found = self.classify(record, self.settings)
            if isinstance(found, NoRowChange):
                self.unknown["no_row_change"] += 1
            elif found.table is None:
                assert isinstance(found, Bad)
                self.unknown["quarantined"] += 1
                self.reasons.append(found.reason)
            else:
                by_table.setdefault(named(found.table), []).append((record, found))
        for name, mine in by_table.items():
            self._apply(self.tables.setdefault(name, Mirrored()), mine)

    def _apply(self, table: Mirrored, found: list[tuple[Record, Change | Truncate | Bad]]) -> None:
        changes = [(record, each) for record, each in found if isinstance(each, Change)]
        _plan(table, [each for _, each in changes])
        events = []
        for record, change in changes:
            event = _event(table, record, change)
            if isinstance(event, Event):
                events.append(event)
            else:
                _refuse(table, record, event)
        for record, each in found:
            if isinstance(each, Bad):
                _refuse(table, record, each.reason)
        truncates = [
            Truncated(each.seq, origin=record.origin, at=each.at)
            for record, each in found
            if isinstance(each, Truncate)
        ]
        columns = list(table.columns)
        tracked = [name for name in columns if name not in table.key]
        applied = apply(table.mirror, events, Table(columns, tracked, truncates=truncates))
        table.mirror = applied.mirror
        table.counts.update({str(name): n for name, n in applied.counts(events).items()})


def record_of(line: Line) -> Record:
    """A record line as a record."""
    headers = tuple((name, None if text is None else _bytes(text)) for name, text in line["headers"])
    origin = Origin(line["topic"], line["partition"], line["offset"])
    value, key = (None if line[name] is None else _bytes(line[name]) for name in ("value", "key"))
    return Record(value, key, headers, origin)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def named(table: TableName) -> str:
    """The name of a table as the audit has it."""
    return ".".join(each for each in table if each)


def _refuse(table: Mirrored, record: Record, reason: str) -> None:
    table.counts[str(Outcome.QUARANTINED)] += 1
    table.reasons.append((*record.origin, reason))


def _plan(table: Mirrored, changes: list[Change]) -> None:
    """The columns and the key of a table, as its changes show them."""
    schemas = []
    for change in changes:
        if not table.key and change.key:
            table.key = list(change.key)
        if change.schema is not None:
            fields = {each.name: Column.of(each).kind for each in fields_of_envelope(change.schema)}
            if fields not in schemas:
                schemas.append(fields)
        elif change.row is not None:
            for name, value in change.row.items():
                table.shapes[name] = reduce(merge, [table.shapes.get(name, Shape()), shape_of(value)])
    untyped = {name: kind for name, shape in table.shapes.items() if (kind := kind_of(shape)) is not None}
    if untyped:
        schemas.append(untyped)
    planned = drift.plan(table.columns or None, schemas, "evolve")
    table.columns, table.drift = planned.columns, [*table.drift, *planned.drift]


def _event(table: Mirrored, record: Record, change: Change) -> Event | str:
    """A change as an event, or why its record cannot be applied."""
    columns = _columns(table, change)
    key = _key(table, change.key, change)
    if key is None:
        return f"the key is missing or does not fit (key columns: {', '.join(table.key)})"
    found = read_row(
        change.row or {}, columns, may_have_gaps=change.may_have_gaps, partial=change.partial, key=table.key
    )
    if isinstance(found, str) and change.row is not None:
        return found
    image = None if isinstance(found, str) or change.row is None else found
    return Event(
        key,
        change.op,
        change.seq,
        change.at,
        record.origin,
        {} if image is None else image.values,
        frozenset() if image is None else image.gaps,
        old_key=_key(table, change.old_key, change),
        new_key=_key(table, change.new_key, change),
        unanchored=change.unanchored,
        digest=json.dumps([change.op, change.row, change.before, change.source.row], default=str),
    )


def _columns(table: Mirrored, change: Change) -> dict[str, Column]:
    if change.schema is None:
        return {name: Column(name, kind) for name, kind in table.columns.items()}
    fields = {each.name: each for each in fields_of_envelope(change.schema)}
    return {
        name: Column.of(fields[name], kind) if name in fields else Column(name, STRING)
        for name, kind in table.columns.items()
    }


def _key(table: Mirrored, key: Any, change: Change) -> Key | None:
    if key is None:
        return None
    if change.key_schema is None:
        columns = {name: Column(name, table.columns[name]) for name in table.key}
    else:
        fields = {each.name: each for each in fields_of_struct(change.key_schema)}
        columns = {name: Column.of(fields[name], table.columns[name]) for name in table.key}
    found = read_row(key, columns, may_have_gaps=False)
    if isinstance(found, str) or any(found.values.get(name) is None for name in table.key):
        return None
    return tuple(found.values[name] for name in table.key)
