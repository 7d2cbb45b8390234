"""The rules as an engine: record lines in, mirrors out. Nothing of the driver's engine is used.

It is what a pipeline does, one batch after the other: mirrors of current rows with hard or soft deletes, of
versions, and lists of events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

from lakemirror.driver.codes import Op
from lakemirror.driver.rules import drift
from lakemirror.driver.rules.append import Listed, append, former_row
from lakemirror.driver.rules.batch import Mirror, VersionedMirror, apply, apply_versions
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
from lakemirror.driver.rules.lives import Default, Life, is_constant, with_defaults, without_former
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import By, Origin, identity, log_of, own
from lakemirror.driver.rules.row_keys import Keyed, KeyOfTable, keyed
from lakemirror.driver.rules.rows import Column, RowReader, Unrepresentable
from lakemirror.driver.rules.schemas import (
    UNREADABLE,
    Field,
    SchemaError,
    fields_of_envelope,
    fields_of_struct,
)
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.types import DEFAULT
from lakemirror.driver.rules.values import Event, Key, Outcome, Row
from lakemirror.driver.rules.versions import Tracking
from tests.support.records import Record as Line

FieldsOf = Callable[[Any], Sequence[Field]]
"""Returns the columns that a schema of a record declares."""
Classify = Callable[[Record, Settings], Classified]
Found = tuple[Record, Change | Truncate]
Mode = Literal["scd1", "scd2", "append"]


@dataclass(frozen=True)
class Asked:
    """What the manifest says of a table. Without a mode, it depends on whether records have a key."""

    mode: Mode | None = None
    primary_key: Sequence[str] = ()
    soft: bool = False
    exclude: frozenset[str] = frozenset()
    unrepresentable: Unrepresentable = "quarantine"


@dataclass
class Mirrored:
    """One table: its key, its columns, and what the rules keep of it.

    ``held`` are records that wait for the first row, ``reasons`` those of the quarantine, by the origin.
    ``since`` has the lowest sequence of a change with a column that the batch adds.
    """

    asked: Asked = field(default_factory=Asked)
    location: str = ""
    name: str = ""
    key: list[str] = field(default_factory=list)
    columns: dict[str, Kind] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    mirror: Mirror = field(default_factory=Mirror)
    versions: VersionedMirror = field(default_factory=VersionedMirror)
    listed: list[Listed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[Origin, str] = field(default_factory=dict)
    drift: list[drift.Drift] = field(default_factory=list)
    held: list[Found] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    since: dict[str, bytes] = field(default_factory=dict)
    is_made: bool = False
    is_metadata: Callable[[str], bool] = lambda _: False
    fields_of: FieldsOf = fields_of_envelope

    @property
    def defaults(self) -> dict[str, Any]:
        """What rows have in columns that were added after they were written."""
        found = {}
        for name, kind in self.columns.items():
            life = self.lives.get(name, Life())
            if life.default is not None and not life.marks.is_gone and self.mode != "append":
                found[name] = (
                    Column.of(life.default.field, kind).read(life.default.field.default, DEFAULT).value
                )
        return found

    def is_former(self, column: str, change: Change) -> bool:
        """Whether a change is from before the life of a column."""
        return self.lives.get(column, Life()).is_former(own(change.seq))

    def has(self, column: str) -> bool:
        """Whether the mirror has a column of the source."""
        return column not in self.asked.exclude and not self.is_metadata(column)

    @property
    def mode(self) -> Mode:
        if self.asked.mode is not None:
            return self.asked.mode
        return "scd1" if self.key else "append"

    @property
    def rows(self) -> dict[Key, Row]:
        return {key: row for key, row in self.mirror.rows.items() if row.is_live}

    @property
    def tombstones(self) -> dict[str, str]:
        """By the text of the key: the sequence of the newest delete."""
        return {self.text_of(key): each.seq.hex() for key, each in self.mirror.tombstones.items()}

    def text_of(self, key: Key) -> str:
        """The text of a key."""
        kinds = {name: self.columns[name] for name in self.key}
        return encode(dict(zip(self.key, key, strict=True)), kinds)


@dataclass
class Engine:
    """Mirrors of all tables, by name; ``unknown`` counts the records that belong to none.

    ``asked`` has what the manifest says of tables, ``reasons`` why records are in the quarantine whose table
    is not known. ``location`` is where a mirror stands, as messages have it.
    """

    classify: Classify = debezium.classify
    settings: Settings = field(default_factory=Settings)
    tables: dict[str, Mirrored] = field(default_factory=dict)
    unknown: Counter[str] = field(default_factory=Counter)
    reasons: dict[Origin, str] = field(default_factory=dict)
    asked: Mapping[str, Asked] = field(default_factory=dict)
    default: Asked = field(default_factory=Asked)
    location: Callable[[TableName], str] = lambda table: named(table)
    is_metadata: Callable[[str], bool] = lambda _: False
    fields_of: FieldsOf = fields_of_envelope
    topics: dict[str | None, set[str]] = field(default_factory=dict)

    def deliver(self, lines: Iterable[Line]) -> None:
        """Apply one batch."""
        by_table: dict[TableName, list[tuple[Record, Change | Truncate]]] = {}
        tombstones = []
        for line in lines:
            record = record_of(line)
            found = self.classify(record, self.settings)
            if isinstance(found, NoRowChange):
                if found.why == "tombstone":
                    tombstones.append(record.origin.topic)
                else:
                    self.unknown[str(Outcome.NO_ROW_CHANGE)] += 1
            elif (reason := _unreadable(found, self.fields_of)) is not None or isinstance(found, Bad):
                self.unknown[str(Outcome.QUARANTINED)] += 1
                self.reasons[record.origin] = found.reason if isinstance(found, Bad) else reason or ""
            else:
                by_table.setdefault(found.table, []).append((record, found))
                self.topics.setdefault(record.origin.topic, set()).add(named(found.table))
        for name, mine in by_table.items():
            self._table(name).deliver(mine)
        for topic in tombstones:
            names = self.topics.get(topic, set())
            counts = self.tables[min(names)].counts if len(names) == 1 else self.unknown
            counts[str(Outcome.NO_ROW_CHANGE)] += 1

    def _table(self, name: TableName) -> Applying:
        whole = named(name)
        if whole not in self.tables:
            short = ".".join(whole.split(".")[-2:])
            asked = self.asked.get(whole, self.asked.get(short, self.default))
            made = Mirrored(asked, self.location(name), whole)
            made.is_metadata, made.fields_of = self.is_metadata, self.fields_of
            self.tables[whole] = made
        return Applying(self.tables[whole], self.settings.ordering.by)


@dataclass
class Applying:
    """Applies batches to one table. ``by`` is what orders its changes."""

    table: Mirrored
    by: By = "auto"

    def deliver(self, found: Sequence[Found]) -> None:
        """Apply a batch. Truncates wait until there is a row; their later outcome counts for nothing."""
        table = self.table
        if not table.is_made and not any(isinstance(each, Change) for _, each in found):
            table.held += found
            table.counts["refused"] += len(found)
            table.reasons.update((record.origin, _no_row(table)) for record, _ in found)
            return
        self._apply(found)
        if table.held and table.is_made:
            held, table.held = table.held, []
            counted = Counter(table.counts)
            self._apply(held)
            table.counts = counted

    def _apply(self, found: Sequence[Found]) -> None:
        table = self.table
        changes = [(record, each) for record, each in found if isinstance(each, Change)]
        if changes:
            table.is_made = True
        planned = _plan(table, [each for _, each in changes], self.by)
        events = []
        for (record, change), refused in zip(changes, planned, strict=True):
            made = _events(table, record, change, refused)
            if isinstance(made, str):
                _refuse(table, record, made)
            else:
                events += made
        truncates = [
            Truncated(each.seq, origin=record.origin, at=each.at)
            for record, each in found
            if isinstance(each, Truncate)
        ]
        if table.mode == "append":
            self._append(changes, events, [each for each in found if isinstance(each[1], Truncate)])
        else:
            self._merge(events, truncates)

    def _merge(self, events: Sequence[Event], truncates: Sequence[Truncated]) -> None:
        table = self.table
        columns = list(table.columns)
        tracked = [name for name in columns if name not in table.key]
        settings = Table(columns, tracked, table.asked.soft, truncates=truncates, key=table.key)
        if table.mode == "scd2":
            versions = apply_versions(table.versions, events, Tracking(settings))
            table.versions = _as_of_lives(table, versions.mirror)
            table.counts.update({str(name): n for name, n in versions.counts(events).items()})
        else:
            applied = apply(table.mirror, events, settings)
            table.mirror = applied.mirror
            table.counts.update({str(name): n for name, n in applied.counts(events).items()})

    def _append(
        self, changes: Sequence[tuple[Record, Change]], events: Sequence[Event], truncates: Sequence[Found]
    ) -> None:
        table = self.table
        by_origin = {record.origin: change for record, change in changes}
        listed, is_record = [], []
        for event in events:
            change = by_origin[event.origin]
            found = self._listed(event, change)
            listed.append(found)
            is_record.append(True)
            if change.op == Op.UPDATE and change.old_key is not None:
                columns = _columns(table, change)
                former = RowReader({name: columns[name] for name in change.old_key}).read(change.old_key)
                assert not isinstance(former, str)
                listed.append(former_row(found, former.values))
                is_record.append(False)
        for record, each in truncates:
            assert isinstance(each, Truncate)
            log = identity(each.source, self.by)
            payload, is_placed = json.dumps(log), log is not None
            listed.append(Listed(each.seq, Op.TRUNCATE, record.origin, payload, {}, is_placed))
            is_record.append(True)
        outcomes = append(listed, table.listed)
        table.counts.update(str(each) for each, mine in zip(outcomes, is_record, strict=True) if mine)
        table.listed += [each for each, what in zip(listed, outcomes, strict=True) if what is Outcome.APPLIED]

    def _listed(self, event: Event, change: Change) -> Listed:
        log = identity(change.source, self.by)
        images = [change.key, change.row, change.before if change.op == Op.DELETE else None]
        payload = json.dumps([log, event.op, *images], default=str)
        return Listed(event.seq, event.op, event.origin, payload, event.row, is_placed=log is not None)


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


def _unreadable(found: Classified, fields_of: FieldsOf) -> str | None:
    """Why the schema that a change has with it cannot be read."""
    try:
        if isinstance(found, Change) and found.schema is not None:
            fields_of(found.schema)
        if isinstance(found, Change) and found.key_schema is not None:
            fields_of_struct(found.key_schema)
    except SchemaError as error:
        return f"{UNREADABLE}{error}"
    return None


def _no_row(table: Mirrored) -> str:
    return f"no row of {table.name} was seen yet, only a truncate: its mirror is made with the first"


def _refuse(table: Mirrored, record: Record, reason: str) -> None:
    table.counts[str(Outcome.QUARANTINED)] += 1
    table.reasons[record.origin] = reason


def _plan(table: Mirrored, changes: Sequence[Change], by: By) -> list[frozenset[str]]:
    """The key and the columns of a table, as its changes show them; for each change, the columns that the
    mirror cannot hold.
    """
    _key_of_table(table, changes)
    fields = [None if each.schema is None else table.fields_of(each.schema) for each in changes]
    dropped, returned = _turned(table, changes, fields, by)
    schemas: dict[str, tuple[bytes, dict[str, Kind]]] = {}
    of_change = []
    for change, mine in zip(changes, fields, strict=True):
        if mine is None:
            of_change.append("")
            for name, value in (change.row or change.before or {}).items():
                if not table.has(name):
                    continue
                table.shapes[name] = reduce(merge, [table.shapes.get(name, Shape()), shape_of(value)])
            continue
        text = repr(mine)
        of_change.append(text)
        first, kinds = schemas.get(text, (change.seq, {}))
        shown = [each for each in mine if table.has(each.name) and not table.is_former(each.name, change)]
        kinds = {**kinds, **{each.name: Column.of(each).kind for each in shown}}
        schemas[text] = (min(first, change.seq), kinds)
    shown = {name: kind_of(shape) for name, shape in table.shapes.items()}
    untyped = {
        name: kind if name not in table.columns else drift.grown(table.columns[name], kind)
        for name, kind in shown.items()
        if kind is not None
    }
    if untyped:
        schemas[""] = (min((each.seq for each in changes), default=b""), untyped)
    ordered = sorted(schemas, key=lambda text: schemas[text][0])
    planned = drift.plan(
        table.columns or None,
        [schemas[text][1] for text in ordered],
        "evolve",
        dropped=dropped,
        returned=returned,
    )
    table.columns, table.drift = planned.columns, [*table.drift, *planned.drift]
    _fill(table, planned.add, changes, fields)
    refused = dict(zip(ordered, planned.refused, strict=True))
    return [refused.get(text, frozenset()) for text in of_change]


def _turned(
    table: Mirrored, changes: Sequence[Change], fields: Sequence[Sequence[Field] | None], by: By
) -> tuple[list[str], list[str]]:
    """The columns that the streamed changes of a batch show to be gone, and those that have come back."""
    told = [
        (change, {each.name: each for each in mine})
        for change, mine in zip(changes, fields, strict=True)
        if mine
    ]
    streamed = [
        (change.seq, mine.keys())
        for change, mine in told
        if not change.is_snapshot and log_of(change.source, by) is not None
    ]
    names = {*table.columns, *(name for _, mine in told for name in mine)} - set(table.key)
    dropped, returned = [], []
    for name in sorted(names):
        before = table.lives.get(name, Life())
        after = table.lives[name] = before.after(
            _highest(*(seq for seq, mine in streamed if name not in mine)),
            _highest(*(seq for seq, mine in streamed if name in mine)),
            [
                Default(change.seq, mine[name])
                for change, mine in told
                if name in mine and is_constant(mine[name], change.source.connector)
            ],
        )
        if after.marks.is_gone and not before.marks.is_gone:
            dropped.append(name)
        elif before.marks.is_gone and not after.marks.is_gone and name in table.columns:
            returned.append(name)
    return dropped, returned


def _fill(
    table: Mirrored,
    added: Iterable[str],
    changes: Sequence[Change],
    fields: Sequence[Sequence[Field] | None],
) -> None:
    """Give the stored rows what they have in columns that are added, or that begin a new life."""
    defaults = table.defaults
    given = {name: defaults[name] for name in added if name in defaults}
    table.since = {
        name: min(change.seq for change, mine in zip(changes, fields, strict=True) if name in _names_of(mine))
        for name in given
    }
    rows = {
        key: without_former(with_defaults(row, given), table.lives, defaults)
        for key, row in table.mirror.rows.items()
    }
    table.mirror = replace(table.mirror, rows=rows)
    table.versions = _current(table.versions, lambda row: with_defaults(row, given))


def _names_of(fields: Sequence[Field] | None) -> set[str]:
    return {each.name for each in fields or ()}


def _current(mirror: VersionedMirror, change: Callable[[Row], Row]) -> VersionedMirror:
    """A mirror whose current versions are changed."""
    keys = {
        key: replace(
            stored,
            versions=[
                each._replace(row=change(each.row)) if each.is_current else each for each in stored.versions
            ],
        )
        for key, stored in mirror.keys.items()
    }
    return replace(mirror, keys=keys)


def _as_of_lives(table: Mirrored, mirror: VersionedMirror) -> VersionedMirror:
    """A mirror whose current versions have no value of a former life, and whose others have no default of a
    column that was added after they ended.
    """
    defaults = table.defaults
    mirror = _current(mirror, lambda row: without_former(row, table.lives, defaults))
    if not table.since:
        return mirror
    keys = {}
    for key, stored in mirror.keys.items():
        following = [each.row.seq for each in stored.versions[1:]]
        ends = [each.delete_seq or end for each, end in zip(stored.versions, [*following, None], strict=True)]
        keys[key] = replace(
            stored,
            versions=[
                each._replace(row=_before_added(each.row, end, table.since)) if end is not None else each
                for each, end in zip(stored.versions, ends, strict=True)
            ],
        )
    return replace(mirror, keys=keys)


def _before_added(row: Row, end: bytes, since: Mapping[str, bytes]) -> Row:
    late = [name for name, seq in since.items() if row.seq < seq and end < seq]
    return row._replace(values={**row.values, **dict.fromkeys(late)})


def _highest(*sequences: bytes | None) -> bytes | None:
    return max((each for each in sequences if each is not None), default=None)


def _key_of_table(table: Mirrored, changes: Sequence[Change]) -> None:
    """The key of a mirror: the manifest's, otherwise the one that it has, otherwise that of most records."""
    if table.asked.mode == "append" or table.key:
        return
    keys = Counter(tuple(each.key) for each in changes if each.key)
    table.key = list(table.asked.primary_key or (keys.most_common(1)[0][0] if keys else ()))


def _events(table: Mirrored, record: Record, change: Change, refused: frozenset[str]) -> list[Event] | str:
    """A change as an event, and the delete of its row's former key; or why its record cannot be applied."""
    columns = _columns(table, change)
    found = Keyed(())
    if table.key:
        of_key = keyed(change, record.key is not None, _key(table, change, columns))
        if isinstance(of_key, str):
            return of_key
        found = of_key
    row = change.row
    if row is None and table.mode == "append":
        row = {**(change.key or {}), **(change.before or {})}
    if refused and change.op != Op.DELETE:
        return f"column {min(refused)}: its type changed"
    image = RowReader(columns).read(
        {name: value for name, value in (row or {}).items() if not table.is_former(name, change)},
        unrepresentable=table.asked.unrepresentable,
        may_have_gaps=change.may_have_gaps,
        partial=change.partial,
        key=table.key,
    )
    if isinstance(image, str):
        if row is not None:
            return image
        image = None
    if image is not None and row is not None and change.schema is not None:
        lacking = table.columns.keys() - _fields_of(table, change).keys()
        defaults = {name: value for name, value in table.defaults.items() if name in lacking}
        image = image._replace(values={**image.values, **defaults})
    event = Event(
        found.key,
        change.op if found.former is None else Op.CREATE,
        change.seq,
        change.at,
        record.origin,
        {} if image is None or row is None else image.values,
        frozenset() if image is None or row is None else image.gaps,
        {} if image is None or row is None else image.texts,
        old_key=found.old_key or found.former,
        new_key=found.new_key,
        unanchored=change.unanchored,
        digest=_digest(change, record.origin),
    )
    if found.former is None:
        return [event]
    half = event._replace(
        key=found.former,
        op=Op.DELETE,
        row={},
        gaps=frozenset(),
        texts={},
        old_key=None,
        new_key=found.key,
        is_half=True,
    )
    return [event, half]


def _digest(change: Change, origin: Origin) -> str:
    """What two events at one position share if they are one event that was sent twice."""
    before = change.before if change.op == Op.DELETE else None
    return json.dumps([identity(change.source, "auto") or origin, change.op, change.row, before], default=str)


def _columns(table: Mirrored, change: Change) -> dict[str, Column]:
    if change.schema is None:
        return {name: Column(name, kind) for name, kind in table.columns.items()}
    fields = _fields_of(table, change)
    return {
        name: Column.of(fields[name], kind) if name in fields else Column(name, STRING)
        for name, kind in table.columns.items()
    }


def _fields_of(table: Mirrored, change: Change) -> dict[str, Field]:
    """The columns that a change has in their current life, by name."""
    assert change.schema is not None
    fields = table.fields_of(change.schema)
    return {each.name: each for each in fields if not table.is_former(each.name, change)}


def _key(table: Mirrored, change: Change, columns: Mapping[str, Column]) -> KeyOfTable:
    there = {name: columns[name] for name in table.key if name in columns}
    declared = table.asked.primary_key
    from_rows = [name for name in declared if name not in (change.key or {})]
    own = list(change.key or {}) if change.key_schema is None else _names(change.key_schema)
    other = None
    if change.key is not None and not declared and sorted(own) != sorted(table.key):
        other = another_key(table, own)
    return KeyOfTable(table.key, there, from_rows, other=other)


def _names(schema: Any) -> list[str]:
    return [each.name for each in fields_of_struct(schema)]


def another_key(table: Mirrored, other: Sequence[str]) -> str:
    """Why a record with another key cannot be applied."""
    return (
        f"the mirror {table.location} has the key ({', '.join(table.key)}), and this record has "
        f"the key ({', '.join(other)}): rows cannot be told apart by both. If the source's key changed, set "
        f"tables[{table.name}].primaryKey: [{', '.join(other)}], and tables[{table.name}].target to a new "
        "place with a new resyncToken"
    )
