"""The rules as an engine: record lines in, mirrors out. Nothing of the driver's engine is used.

It is what a pipeline does, one batch after the other: mirrors of current rows with hard or soft deletes, of
versions, and lists of events.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lakemirror.api.tables import match_table
from lakemirror.driver.codes import Op
from lakemirror.driver.rules import drift, row_keys
from lakemirror.driver.rules.append import Listed, append, former_row, replaces
from lakemirror.driver.rules.batch import Mirror, VersionedMirror, apply, apply_versions, gone_of
from lakemirror.driver.rules.conditions import (
    Condition,
    Evidence,
    Expected,
    filtered_or_why,
    shown_violation,
    verdict,
)
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
from lakemirror.driver.rules.inference import Shape, kind_of, merge, shape_of, with_members
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import STRING, Kind
from lakemirror.driver.rules.lives import Default, Life, is_constant, with_defaults, without_former
from lakemirror.driver.rules.ordering_columns import NO_TYPES, in_order
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import By, Origin, identity, log_of, own
from lakemirror.driver.rules.row_keys import Keyed, KeyOfTable, Left
from lakemirror.driver.rules.rows import Column, Image, RowReader, Unrepresentable
from lakemirror.driver.rules.schemas import (
    UNREADABLE,
    Field,
    SchemaError,
    fields_of_envelope,
    fields_of_struct,
)
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.texts import DEBEZIUM, Encoding, Writing
from lakemirror.driver.rules.types import DEFAULT
from lakemirror.driver.rules.values import Event, Key, Outcome, Row
from lakemirror.driver.rules.versions import NO_TIME, Tracking, time_of
from tests.support.records import Record as Line

FieldsOf = Callable[[Any], Sequence[Field]]
"""Returns the columns that a schema of a record declares."""
DeclaredIn = Callable[[Any], Mapping[str, Field]]
"""Returns what a schema of a record declares of the columns that order changes."""
Classify = Callable[[Record, Settings], Classified]
Found = tuple[Record, Change | Truncate]
Mode = Literal["scd1", "scd2", "append"]


@dataclass(frozen=True)
class Asked:
    """What the manifest says of a table. Without a mode, it depends on whether records have a key.

    ``deleted_at`` is the column of soft deletes, ``rename`` has names in the mirror by those in the source.
    """

    mode: Mode | None = None
    primary_key: Sequence[str] = ()
    soft: bool = False
    deleted_at: str = "deleted_at"
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    unrepresentable: Unrepresentable = "quarantine"
    filter: Condition | None = None
    expectations: Sequence[Expected] = ()
    types: Mapping[str, Kind] = field(default_factory=dict)
    encodings: Mapping[str, Encoding] = field(default_factory=dict)


@dataclass
class Mirrored:
    """One table: its key, its columns, and what the rules keep of it.

    ``held`` are records that wait for the first row, ``stopped`` those that an expectation holds,
    ``reasons`` those of the quarantine, by the origin.
    ``since`` has the lowest sequence of a change with a column that the batch adds, ``from_rows`` the columns
    of a declared key that not all records of the batch have in their own keys.
    """

    asked: Asked = field(default_factory=Asked)
    location: str = ""
    name: str = ""
    key: list[str] = field(default_factory=list)
    columns: dict[str, Kind] = field(default_factory=dict)
    mirror: Mirror = field(default_factory=Mirror)
    versions: VersionedMirror = field(default_factory=VersionedMirror)
    listed: list[Listed] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[Origin, str] = field(default_factory=dict)
    drift: list[drift.Drift] = field(default_factory=list)
    violations: Counter[str] = field(default_factory=Counter)
    held: list[Found] = field(default_factory=list)
    stopped: list[Found] = field(default_factory=list)
    was_stopped: bool = False
    lives: dict[str, Life] = field(default_factory=dict)
    since: dict[str, bytes] = field(default_factory=dict)
    from_rows: Sequence[str] = ()
    is_made: bool = False
    is_metadata: Callable[[str], bool] = lambda _: False
    fields_of: FieldsOf = fields_of_envelope
    writing: Writing = DEBEZIUM
    corrects: bool = False
    arrived: dict[Origin, int] = field(default_factory=dict)

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
        asked = self.asked
        kept = column not in asked.exclude if asked.include is None else column in asked.include
        return kept and not self.is_metadata(column)

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
        """The text of a key, which has the names of the mirror."""
        names = [self.asked.rename.get(name, name) for name in self.key]
        kinds = {name: self.columns[column] for name, column in zip(names, self.key, strict=True)}
        return encode(dict(zip(names, key, strict=True)), kinds)


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
    declared_in: DeclaredIn = lambda schema: {each.name: each for each in fields_of_envelope(schema)}
    writing: Writing = DEBEZIUM
    corrects: bool = False
    topics: dict[str | None, set[str]] = field(default_factory=dict)

    def deliver(self, lines: Iterable[Line]) -> None:
        """Apply one batch."""
        by_table: dict[TableName, list[tuple[Record, Change | Truncate]]] = {}
        tombstones = []
        for line in lines:
            record = record_of(line)
            found = self.classified(record)
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
                self._table(found.table).table.arrived[record.origin] = line["timestamp"] * 1000
                self.topics.setdefault(record.origin.topic, set()).add(named(found.table))
        for name, mine in by_table.items():
            self._table(name).deliver(mine)
        for topic in tombstones:
            names = self.topics.get(topic, set())
            counts = self.tables[min(names)].counts if len(names) == 1 else self.unknown
            counts[str(Outcome.NO_ROW_CHANGE)] += 1

    def retry(self) -> None:
        """Try again what expectations have held."""
        for table in self.tables.values():
            Applying(table, self.settings.ordering.by).retry()

    def classified(self, record: Record) -> Classified:
        """What a record says, with its place in the order."""
        found, ordering = self.classify(record, self.settings), self.settings.ordering
        if ordering.by != "columns" or not isinstance(found, (Change, Truncate)):
            return found
        schema = None if isinstance(found, Truncate) else found.schema
        try:
            declared = {} if schema is None else self.declared_in(schema)
        except SchemaError:
            return Bad(NO_TYPES, found.table)
        texts = self.writing.decimals != "connect"
        placed = in_order(found, record.origin, ordering.columns, declared, texts=texts)
        return Bad(placed, found.table) if isinstance(placed, str) else placed

    def _table(self, name: TableName) -> Applying:
        whole = named(name)
        if whole not in self.tables:
            listed = match_table(self.asked, whole)
            asked = self.default if listed is None else self.asked[listed]
            made = Mirrored(asked, self.location(name), whole)
            made.is_metadata, made.fields_of = self.is_metadata, self.fields_of
            made.writing, made.corrects = self.writing, self.corrects
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
        if table.asked.mode == "scd2":
            found = [(record, _timed(each, table.arrived[record.origin])) for record, each in found]
        if not table.is_made and not any(isinstance(each, Change) for _, each in found):
            table.held += found
            table.counts["refused"] += len(found)
            table.reasons.update((record.origin, _no_row(table)) for record, _ in found)
            return
        if not self._apply(found):
            table.stopped += found
            table.was_stopped = True
            return
        if table.held and table.is_made:
            held, table.held = table.held, []
            counted = Counter(table.counts)
            self._apply(held)
            table.counts = counted
        self.retry()

    def retry(self) -> None:
        """Try again what expectations have held, all of it at once."""
        again, self.table.stopped = self.table.stopped, []
        if again and not self._apply(again):
            self.table.stopped = again

    def _apply(self, found: Sequence[Found]) -> bool:
        """Apply changes, unless an expectation holds them."""
        table = self.table
        changes = [(record, each) for record, each in found if isinstance(each, Change)]
        if changes:
            table.is_made = True
        planned = _plan(table, [each for _, each in changes], self.by)
        told = [
            (record, change, _events(table, record, change, refused))
            for (record, change), refused in zip(changes, planned, strict=True)
        ]
        truncates = [
            Truncated(each.seq, origin=record.origin, at=each.at)
            for record, each in found
            if isinstance(each, Truncate)
        ]
        events = [event for *_, mine in told for event in mine.events]
        failing = [each.name for each in table.asked.expectations if each.on_violation == "fail"]
        if self._are_held(events, truncates, failing):
            return False
        for record, _, mine in told:
            table.violations.update(name for name in mine.violates if name not in failing)
            if mine.problem is not None:
                _refuse(table, record, mine.problem)
            elif mine.is_left_out:
                table.counts[str(Outcome.NO_ROW_CHANGE)] += 1
        if table.mode == "append":
            self._append(told, [each for each in found if isinstance(each[1], Truncate)])
        else:
            self._merge(events, truncates)
        return True

    def _are_held(
        self, events: Sequence[Event], truncates: Sequence[Truncated], failing: Sequence[str]
    ) -> bool:
        """Whether a row that would be shown violates an expectation that holds its table."""
        table = self.table
        bad = [each for each in events if any(name in failing for name in each.violates)]
        if table.mode != "scd1" or not bad:
            return bool(bad)
        mirror, settings = table.mirror, replace(self._settings(truncates), former=table.mirror.truncated)
        gone = mirror.tombstones if settings.soft else gone_of(mirror.tombstones, mirror.images, events)
        of_key = {key: [each for each in events if each.key == key] for key in {each.key for each in bad}}
        return any(
            shown_violation(mine, mirror.rows.get(key), gone.get(key), settings, failing)
            for key, mine in of_key.items()
        )

    def _settings(self, truncates: Sequence[Truncated]) -> Table:
        """What the rules need to know of the table, with the truncates of a batch."""
        table = self.table
        columns = list(table.columns)
        tracked = [name for name in columns if name not in table.key]
        return Table(
            columns,
            tracked,
            table.asked.soft,
            truncates=truncates,
            key=table.key,
            corrects=table.corrects,
            now=0,
        )

    def _merge(self, events: Sequence[Event], truncates: Sequence[Truncated]) -> None:
        table, settings = self.table, self._settings(truncates)
        if table.mode == "scd2":
            versions = apply_versions(table.versions, events, Tracking(settings))
            table.versions = _as_of_lives(table, versions.mirror)
            table.counts.update({str(name): n for name, n in versions.counts(events).items()})
        else:
            applied = apply(table.mirror, events, settings)
            table.mirror = applied.mirror
            table.counts.update({str(name): n for name, n in applied.counts(events).items()})

    def _append(self, told: Sequence[tuple[Record, Change, Told]], truncates: Sequence[Found]) -> None:
        """Add events to a list. An update that gives its row another key also ends the former row."""
        table = self.table
        listed, is_record = [], []
        for record, change, mine in told:
            found = self._listed(record, change)
            listed += [found._replace(values=each.row) for each in mine.events]
            is_record += [True] * len(mine.events)
            former = _former_row(table, change)
            if isinstance(former, Image):
                listed.append(former_row(found, former.values))
                is_record.append(False)
        for record, each in truncates:
            assert isinstance(each, Truncate)
            log = identity(each.source, self.by)
            payload, is_placed = json.dumps(log), log is not None
            listed.append(Listed(each.seq, Op.TRUNCATE, record.origin, payload, {}, is_placed))
            is_record.append(True)
        outcomes = append(listed, table.listed, corrects=table.corrects)
        table.counts.update(str(each) for each, mine in zip(outcomes, is_record, strict=True) if mine)
        added = [each for each, what in zip(listed, outcomes, strict=True) if what is Outcome.APPLIED]
        kept = table.listed
        if table.corrects:
            kept = [each for each in kept if not any(replaces(event, each) for event in added)]
        table.listed = [*kept, *added]

    def _listed(self, record: Record, change: Change) -> Listed:
        log = identity(change.source, self.by)
        images = [change.key, change.row, change.before if change.op == Op.DELETE else None]
        payload = json.dumps([log, change.op, *images], default=str)
        return Listed(change.seq, change.op, record.origin, payload, is_placed=log is not None)


def record_of(line: Line) -> Record:
    """A record line as a record."""
    headers = tuple((name, None if text is None else _bytes(text)) for name, text in line["headers"])
    origin = Origin(line["topic"], line["partition"], line["offset"])
    value, key = (None if line[name] is None else _bytes(line[name]) for name in ("value", "key"))
    return Record(value, key, headers, origin, line.get("problem"))


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


def _timed(change: Change | Truncate, arrived: int) -> Change | Truncate:
    return change._replace(at=time_of(change.at, arrived))


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
    table.from_rows = _from_rows(table, changes)
    declared = table.asked.types
    fields = [None if each.schema is None else table.fields_of(each.schema) for each in changes]
    dropped, returned = _turned(table, changes, fields, by)
    schemas: dict[str, tuple[bytes, dict[str, Kind]]] = {}
    shapes: dict[str, Shape] = {}
    of_change = []
    for change, mine in zip(changes, fields, strict=True):
        if mine is None:
            of_change.append("")
            for name, value in _image(table, change).items():
                if table.has(name):
                    shapes[name] = merge(shapes.get(name, Shape()), shape_of(value))
            continue
        text = repr(mine)
        of_change.append(text)
        first, kinds = schemas.get(text, (change.seq, {}))
        shown = [each for each in mine if table.has(each.name) and not table.is_former(each.name, change)]
        kinds = {**kinds, **{each.name: declared.get(each.name, Column.of(each).kind) for each in shown}}
        schemas[text] = (min(first, change.seq), kinds)
    found = {name: _inferred(table, name, shape) for name, shape in shapes.items()}
    untyped = {name: kind for name, kind in found.items() if kind is not None}
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


def _image(table: Mirrored, change: Change) -> Mapping[str, Any]:
    """What a change without a schema shows of the columns."""
    if change.row is not None:
        return change.row
    if change.before is not None:
        return change.before
    return change.key or {} if table.mode == "append" else {}


def _inferred(table: Mirrored, name: str, shape: Shape) -> Kind | None:
    """The type of a column of records without a schema: the mirror's, the manifest's, or that of its values.

    Objects of the mirror may have new members.
    """
    there, declared = table.columns.get(name), table.asked.types.get(name)
    if there is None or declared is not None:
        return there or declared or kind_of(shape)
    return with_members(there, shape)


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


@dataclass(frozen=True)
class Told:
    """What a record brings: its events (with a delete of its row's former key), or why it cannot be applied.

    A row leaves its former key even if its record cannot be applied. ``is_left_out`` says that a filter
    leaves the record out of a list.
    """

    events: Sequence[Event] = ()
    problem: str | None = None
    violates: tuple[str, ...] = ()
    is_left_out: bool = False


def _from_rows(table: Mirrored, changes: Sequence[Change]) -> list[str]:
    """The columns of a declared key that are taken from the rows of a batch."""
    of_schema: dict[str, set[tuple[str, ...]]] = {}
    for change in changes:
        keys = of_schema.setdefault(repr(change.schema), set())
        if change.key_schema is not None:
            keys.add(tuple(_names(change.key_schema)))
        elif change.key is not None:
            keys.add(tuple(change.key))
    own = [names for keys in of_schema.values() for names in keys or {()}]
    return [name for name in table.asked.primary_key if any(name not in names for names in own)]


def _events(table: Mirrored, record: Record, change: Change, refused: frozenset[str]) -> Told:
    """What a change brings."""
    if table.mode == "scd2" and change.at is None:
        return Told(problem=NO_TIME)
    columns = _columns(table, change)
    of_table = _key(table, change, columns)
    moved = row_keys.left(change, of_table) if table.key else None
    image = _image_of(table, change, columns, refused)
    gaps = image.gaps if isinstance(image, Image) else frozenset()
    halves = [] if moved is None or (moved.to is None and gaps) else [_half(record, change, moved)]
    found = row_keys.keyed(change, record.key is not None, of_table) if table.key else Keyed(())
    former = _former_row(table, change)
    for problem in (found, "the row's former key does not fit" if isinstance(former, str) else None, image):
        if isinstance(problem, str):
            return Told(halves, problem)
    assert isinstance(found, Keyed)
    assert isinstance(image, Image)
    event = Event(
        found.key,
        change.op if found.former is None else Op.CREATE,
        change.seq,
        change.at,
        record.origin,
        image.values,
        image.gaps,
        image.texts,
        old_key=found.old_key or found.former,
        new_key=found.new_key,
        unanchored=change.unanchored,
        digest=_digest(change, record.origin),
    )
    return _conditional(table, change, event, halves)


def _former_row(table: Mirrored, change: Change) -> Image | str | None:
    """The former key of a row in a list, if an update changes it; a text if it cannot be read."""
    if table.mode != "append" or change.op != Op.UPDATE or change.old_key is None:
        return None
    columns = _columns(table, change)
    return RowReader({name: columns[name] for name in change.old_key}, change.placeholder).read(
        change.old_key
    )


def _half(record: Record, change: Change, moved: Left) -> Event:
    """The delete of the key that a row has left, which has no record of its own."""
    return Event(
        moved.former,
        Op.DELETE,
        change.seq,
        change.at,
        record.origin,
        new_key=moved.to,
        unanchored=change.unanchored,
        digest=_digest(change, record.origin),
        is_half=True,
    )


def _image_of(
    table: Mirrored, change: Change, columns: Mapping[str, Column], refused: frozenset[str]
) -> Image | str:
    """The row that a change shows, or why it cannot be applied."""
    row = change.row
    if row is None and table.mode == "append":
        row = {**(change.key or {}), **(change.before or {})}
    if refused and (change.op != Op.DELETE or table.mode == "append"):
        return f"column {min(refused)}: its type changed"
    if row is None:
        return Image()
    image = RowReader(columns, change.placeholder).read(
        {name: value for name, value in row.items() if not table.is_former(name, change)},
        unrepresentable=table.asked.unrepresentable,
        partial=change.partial,
        key=table.key,
    )
    if isinstance(image, str) or change.schema is None:
        return image
    lacking = table.columns.keys() - _fields_of(table, change).keys()
    defaults = {name: value for name, value in table.defaults.items() if name in lacking}
    return image._replace(values={**image.values, **defaults})


def _conditional(table: Mirrored, change: Change, event: Event, halves: Sequence[Event]) -> Told:
    """What conditions of the manifest leave of an event."""
    keyed = bool(table.key)
    evidence = _evidence(table, change, event)
    if table.asked.filter is not None:
        kept = filtered_or_why(event, table.asked.filter, evidence, keyed=keyed)
        if isinstance(kept, str):
            return Told(halves, kept)
        if kept is None:
            return Told(halves, is_left_out=True)
        if kept is not event:
            return Told([kept, *halves])
    found = verdict(event, table.asked.expectations, evidence)
    if found.problem is not None:
        return Told(halves, found.problem, found.violates)
    return Told([event._replace(violates=found.violates), *halves], violates=found.violates)


def _evidence(table: Mirrored, change: Change, event: Event) -> Evidence:
    """What is known of the row of an event."""
    gaps = [name for name in table.columns if name in event.gaps]
    if change.schema is not None or change.partial:
        return Evidence(gaps)
    return Evidence(gaps, [name for name in table.columns if name not in (change.row or {})])


def _digest(change: Change, origin: Origin) -> str:
    """What two events at one position share if they are one event that was sent twice."""
    before = change.before if change.op == Op.DELETE else None
    return json.dumps([identity(change.source, "auto") or origin, change.op, change.row, before], default=str)


def _columns(table: Mirrored, change: Change) -> dict[str, Column]:
    if change.schema is None:
        return {name: _untyped(table, name, kind) for name, kind in table.columns.items()}
    fields = _fields_of(table, change)
    return {
        name: Column.of(fields[name], kind) if name in fields else Column(name, STRING)
        for name, kind in table.columns.items()
    }


def _untyped(table: Mirrored, name: str, kind: Kind) -> Column:
    encoding = table.asked.encodings.get(name)
    writing = table.writing if encoding is None else replace(table.writing, encoding=encoding)
    return Column(name, kind, writing=writing)


def _fields_of(table: Mirrored, change: Change) -> dict[str, Field]:
    """The columns that a change has in their current life, by name."""
    assert change.schema is not None
    fields = table.fields_of(change.schema)
    return {each.name: each for each in fields if not table.is_former(each.name, change)}


def _key(table: Mirrored, change: Change, columns: Mapping[str, Column]) -> KeyOfTable:
    there = {name: columns[name] for name in table.key if name in columns}
    declared, from_rows = table.asked.primary_key, table.from_rows
    own = list(change.key or {}) if change.key_schema is None else _names(change.key_schema)
    other = None
    if change.key is not None and not declared and sorted(own) != sorted(table.key):
        other = another_key(table, own)
    return KeyOfTable(table.key, there, from_rows, other=other)


def _names(schema: Any) -> list[str]:
    return [each.name for each in fields_of_struct(schema)]


def another_key(table: Mirrored, other: Sequence[str]) -> str:
    """Why a record with another key cannot be applied."""
    names = ", ".join(other)
    found = f"the key ({names})" if other else "no key"
    return (
        f"the mirror {table.location} has the key ({', '.join(table.key)}), and this record has {found}: "
        "rows cannot be told apart by both. If the source's key changed, set "
        f"tables[{table.name}].primaryKey: [{names}], and tables[{table.name}].target to a new place with a "
        "new resyncToken"
    )
