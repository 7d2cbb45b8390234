"""What is believed of a table before a batch is read: enough to apply plain changes without a plan.

It is learned from a batch that was planned, and holds until a record says otherwise. A table of which the
engine cannot do everything is not believed to be plain; `reason_against` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from pyspark.sql.types import DataType

from lakemirror.driver.checkpoint.possession import is_of_another
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.fold import Mirrored
from lakemirror.driver.columns.stored import METADATA
from lakemirror.driver.engine.mirror_files import NotForEngine
from lakemirror.driver.orders import Orders
from lakemirror.driver.parse.decode import Reading, Version
from lakemirror.driver.plan.columns import tracked_in
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.results import finer
from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.envelopes.records import Document, Ordering, Settings
from lakemirror.driver.rules.envelopes.records import TableName as Named
from lakemirror.driver.rules.kinds import Kind
from lakemirror.driver.rules.orders import Kind as Order
from lakemirror.driver.rules.row_keys import KeyOfTable
from lakemirror.driver.rules.rows import Column, Unrepresentable
from lakemirror.driver.rules.schemas import Field, fields_of_envelope, fields_of_struct
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.types import Placeholder
from lakemirror.driver.rules.untyped import loads
from lakemirror.driver.tables.mirror import CHANGE_FEED_PROPERTY, CHECKPOINT_PROPERTY, GAPS_PROPERTY
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.writer import schema as of_delta
from lakemirror.driver.writer.features import may_be_written
from lakemirror.driver.writer.snapshot import Snapshot

CONNECTORS: Final = ("postgresql", "mysql", "mariadb")
"""The connectors whose positions are read in columns, by Debezium's names."""


@dataclass(frozen=True)
class Filter:
    """The filter of a table: its SQL, its place in the manifest, and the columns that it reads.

    ``remedy`` says how the source is made to send whole rows.
    """

    sql: str
    place: str
    remedy: str
    columns: tuple[tuple[str, DataType], ...]

    @property
    def reads(self) -> list[str]:
        return [name for name, _ in self.columns]


@dataclass(frozen=True)
class Believed:
    """A table whose changes are applied in columns.

    ``identity`` tells these facts from earlier ones. ``logs`` are the logs whose positions order its rows.
    ``group`` are the IDs of the schemas of its records' values and keys. ``may_have_gaps`` says that the
    mirror is marked as one whose rows may lack values. ``rounded`` are the columns of which it is reported
    that values have lost digits. ``closer`` says that the positions of its streams have to be looked at one
    by one. ``keeps_bad`` says that bad records are kept aside, and stop nothing. ``newest`` is the newest
    tombstone, ``collected`` the newest one that was collected. ``moved`` says that keys of rows have changed,
    and ``may_move`` that they may in this batch: the mirror is marked as one whose rows may lack values, has
    no filter, and all of its keys are in one bucket. ``filter`` is what rows of the mirror have to meet.
    ``may_be_open`` says that changes may be of transactions that were open while a snapshot was taken: Spark
    has judged their positions.
    """

    name: TableName
    topic: str
    identity: str
    facts: Facts
    mirrored: Mirrored
    logs: frozenset[str]
    group: tuple[int | None, int | None]
    unrepresentable: Unrepresentable = "quarantine"
    may_have_gaps: bool = False
    rounded: frozenset[str] = frozenset()
    closer: bool = False
    keeps_bad: bool = True
    newest: bytes | None = None
    collected: bytes | None = None
    moved: bool = False
    filter: Filter | None = None
    may_move: bool = False
    may_be_open: bool = False

    @cached_property
    def may_lack(self) -> frozenset[str]:
        """The columns whose values changes may lack."""
        return frozenset(self.mirrored.table.tracked) if self.may_have_gaps else frozenset()

    @property
    def kinds(self) -> Mapping[str, Kind]:
        return self.mirrored.kinds


@dataclass(frozen=True)
class Learned:
    """What a batch that was planned says about a table. ``documents`` are schemas by their ID."""

    table: MirroredTable
    plan: TablePlan
    snapshot: Snapshot
    documents: Mapping[int, str] = field(default_factory=dict)


def believed(learned: Learned, identity: str) -> Believed:
    """Return what is believed of a table. Raises NotForEngine."""
    table, plan, reading = learned.table, learned.plan, learned.plan.reading
    reason = reason_against(learned)
    if reason is not None:
        raise NotForEngine(reason)
    found = _kinds(learned)
    facts = _facts(learned, found)
    if not facts.are_plain:
        raise NotForEngine("its key or its columns are not plain")
    # All columns that Spark would track if a value was left out, or a key changed (`reduce.moves`).
    tracked = tracked_in(table, reading, replace(plan.seen, moves=True))
    key, soft = list(reading.key), table.soft
    summary = table.tombstone_summary
    may_have_gaps = table.properties.get(GAPS_PROPERTY) == "true"
    return Believed(
        table.name,
        next(iter(plan.seen.topics)),
        identity,
        facts,
        Mirrored(found, key, Table(list(found), tracked, soft is not None, key=key), soft),
        _logs(table.orders),
        next(iter(plan.seen.groups)),
        reading.unrepresentable,
        may_have_gaps,
        _rounded(table, reading),
        keeps_bad=table.spec.on_bad_record == "quarantine",
        newest=summary.newest,
        collected=summary.collected,
        filter=_filter(reading),
        may_move=(may_have_gaps or not tracked) and reading.condition is None,
    )


def _filter(reading: Reading) -> Filter | None:
    condition = reading.condition
    if condition is None:
        return None
    columns = tuple((name, reading.columns[name]) for name in condition.columns)
    return Filter(condition.sql, reading.place, reading.remedy, columns)


def reason_against(learned: Learned) -> str | None:
    """Return why the changes of a table are not applied in columns, or None."""
    table, plan = learned.table, learned.plan
    return reason_of_batch(table, plan) or _of_mirror(table, learned.snapshot)


def reason_of_batch(table: MirroredTable, plan: TablePlan) -> str | None:
    """Return the same as far as it shows without the log of the mirror, which takes time to read."""
    return _of_manifest(table) or _of_plan(plan) or _of_batch(table, plan)


def _of_manifest(table: MirroredTable) -> str | None:
    spec, settings = table.spec, table.settings
    reasons = {
        "its records are not Debezium's JSON": spec.envelope.format != "debezium"
        or spec.envelope.encoding != "json",
        "columns or times order its changes": spec.order.by not in ("auto", "lsn", "binlog"),
        "epochs are declared": bool(spec.order.epochs),
        "it is a shard": table.shard is not None,
        "its mode is not scd1": table.mode != "scd1",
        "it has expectations": bool(settings.expectations),
        "columns are computed": bool(settings.expressions),
        "the manifest adds columns": bool(settings.own_columns),
        "onConflict is fail": settings.on_conflict == "fail",
        "its source is a change feed": spec.source.change_feed is not None or table.of_rows,
    }
    return _first(reasons)


def _of_plan(plan: TablePlan) -> str | None:
    reading, change = plan.reading, plan.alteration
    reasons = {
        "it has no key": not reading.key or plan.mode != "scd1",
        "its key is taken from rows": bool(reading.from_rows) or reading.other_key is not None,
        "its columns change": bool(change.add or change.alter or plan.drift or plan.fills or plan.renamed),
        "its rows are partial": reading.partial,
        "its records have several schemas": len(plan.seen.groups) != 1 or len(reading.versions) != 1,
        "texts stand for other types": bool(reading.encodings),
        "its mirror cannot hold all values": reading.impossible is not None,
    }
    return _first(reasons) or _of_version(reading.versions[0])


def _of_version(version: Version) -> str | None:
    reasons = {
        "columns began a new life": version.after is not None or version.until is not None,
        "types of columns changed": bool(version.refused),
    }
    return _first(reasons)


def _of_mirror(table: MirroredTable, snapshot: Snapshot) -> str | None:
    summary, reading, possession = table.tombstone_summary, snapshot.metadata, table.possession
    possessor = reading.properties.get(CHECKPOINT_PROPERTY)
    reasons = {
        "another checkpoint has taken its mirror over": possession is not None
        and is_of_another(possessor, possession.ours),
        "its mirror had versions": summary.merged,
        "its mirror is partitioned": bool(reading.partitions),
        "its mirror has a change feed": reading.properties.get(CHANGE_FEED_PROPERTY, "").lower() == "true",
        "its mirror has columns of its users": bool(table.users),
    }
    return _first(reasons) or may_be_written(snapshot)


def _of_batch(table: MirroredTable, plan: TablePlan) -> str | None:
    seen = plan.seen
    known = table.orders | seen.orders
    reasons = {
        "its records come from several topics": len(seen.topics) != 1,
        "its changes have no positions": set(known.places) != {str(Order.POSITION)} or not _logs(known),
        "its changes come from several logs": len(_logs(known)) > 1,
        "its filter is not known": table.settings.filter is not None and plan.reading.condition is None,
    }
    return _first(reasons)


def _first(reasons: Mapping[str, bool]) -> str | None:
    return next((reason for reason, applies in reasons.items() if applies), None)


def _logs(orders: Orders) -> frozenset[str]:
    named = orders.places.get(str(Order.POSITION), {})
    return frozenset(str(each) for logs in named.values() for each in logs)


def _kinds(learned: Learned) -> dict[str, Kind]:
    """Return the types of the mirror's columns, which are those of the batch and the metadata."""
    columns = of_delta.parse(learned.snapshot.metadata.schema)
    soft = learned.table.soft
    metadata = [*(name for name, _ in METADATA), *([soft] if soft else ())]
    found = {each.name: _kind(each.type) for each in columns if each.name not in metadata}
    if set(found) != set(learned.plan.reading.columns) or len(columns) != len(found) + len(metadata):
        raise NotForEngine("its mirror has other columns than its records")
    return found


def _rounded(table: MirroredTable, reading: Reading) -> frozenset[str]:
    drift = [finer(name, kind.simpleString()) for name, kind in reading.columns.items()]
    return frozenset(reading.columns) - {each.column for each in table.unreported(drift)}


def _kind(given: of_delta.Type) -> Kind:
    match given:
        case of_delta.ListOf():
            return kinds.Arrays(_kind(given.item))
        case of_delta.MapOf():
            return kinds.Maps(_kind(given.key), _kind(given.value))
        case of_delta.Group():
            return kinds.Structs(tuple((each.name, _kind(each.type)) for each in given.fields))
        case of_delta.Unknown():
            raise NotForEngine(f"it has a column of type {given.name}")
    return given


def _facts(learned: Learned, found: Mapping[str, Kind]) -> Facts:
    table, reading = learned.table, learned.plan.reading
    schema, key_schema = (_document(learned, each) for each in next(iter(learned.plan.seen.groups)))
    columns = _columns(reading, found, None if schema is None else fields_of_envelope(schema))
    of_key = _columns(reading, found, None if key_schema is None else fields_of_struct(key_schema))
    if columns.keys() != found.keys():
        raise NotForEngine("its records lack columns of its mirror")
    assert reading.placeholder is not None  # it is Debezium's envelope
    placeholder = Placeholder(reading.placeholder)
    left_out = frozenset[str]()
    if schema is not None:
        left_out = frozenset(each.name for each in fields_of_envelope(schema)) - reading.names.keys()
    elif _leaves_out(table):
        raise NotForEngine("columns are left out, and its records have no schema")
    name = table.name
    return Facts(
        Named(name.database, name.schema, name.table),
        columns,
        KeyOfTable(
            list(reading.key),
            {each: of_key[each] for each in reading.key if each in of_key},
            placeholder=placeholder,
        ),
        settings=Settings(Ordering(table.spec.order.by), placeholder),
        schema=schema,
        key_schema=key_schema,
        left_out=left_out,
    )


def _leaves_out(table: MirroredTable) -> bool:
    columns = table.settings.columns
    return columns is not None and (columns.include is not None or columns.exclude is not None)


def _document(learned: Learned, identity: int | None) -> Document | None:
    return None if identity is None else document(learned.documents[identity])


def document(text: str) -> Document:
    """Return a schema as the rules read that of a record, which it has to be equal to."""
    found: Document = loads(text)
    return found


def _columns(
    reading: Reading, found: Mapping[str, Kind], fields: Sequence[Field] | None
) -> dict[str, Column]:
    """Return the mirror's columns as records have them, with the fields of their schema (None: no schema)."""
    if fields is None:
        return {mirror: Column(source, found[mirror]) for source, mirror in reading.names.items()}
    names = reading.names
    return {
        names[each.name]: Column.of(each, found[names[each.name]]) for each in fields if each.name in names
    }
