"""Decide what a batch does to a table. Reads, and materialises the state; writes nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
)

from lakemirror.driver.parse.decode import Reading, Version, decode
from lakemirror.driver.parse.values.decode import RowDecoder
from lakemirror.driver.plan.decision import Refused, StateCounts, Waiting, Work
from lakemirror.driver.plan.drift import DriftPlan, SchemaVersion, plan_drift
from lakemirror.driver.plan.lives import Turn, together
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.names import check_columns, check_features
from lakemirror.driver.plan.schemas import Schema
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce.changes import T
from lakemirror.driver.reduce.scd1 import Fill, aged
from lakemirror.driver.reduce.state import count, reduced
from lakemirror.driver.results import Drift
from lakemirror.driver.sequence import WIDTH
from lakemirror.driver.tables.mirror import (
    GAPS_PROPERTY,
    KEY_PROPERTY,
    MAPPING,
    MODE_PROPERTY,
    SOURCE_PROPERTY,
    WIDENING,
    needs_mapping,
)
from lakemirror.driver.write.append import with_truncates

_ALL = b"\xff" * WIDTH
_SPELLED_ALIKE = (IntegralType, DecimalType, BooleanType, DateType, StringType)
"""Types whose values are the same text in Spark and in the source."""


@dataclass(frozen=True)
class Span:
    """Events of one schema between two sequences; the columns ``past`` have values of a former life there."""

    after: bytes | None
    until: bytes | None
    past: frozenset[str]


def decide(
    table: MirroredTable,
    changes: DataFrame,
    truncates: DataFrame,
    seen: TableOverview,
    versions: Sequence[Schema],
) -> Work:
    """What to write for the ``changes`` and ``truncates`` of a batch; schemas are ``versions``, oldest first.

    Raises Refused for a table that cannot be mirrored as it is asked for, Waiting for one of which too little
    is known, and SchemaDriftRefused.
    """
    key, other_key = _key(table, seen, versions)
    if table.mirror.exists:
        _check_target(table, key)
    else:
        _check_key(table, key)
    names = _names(table, versions)
    turns = _turns(table, versions, names, key)
    _check_key_columns(table, key, names, versions)
    spans = _spans(versions, names, turns if key else {})
    plan = _drift(table, versions, names, turns, spans)
    check_columns(
        table.settings.source,
        [[each.name for each in version.fields] for version in versions],
        names,
        plan.columns,
        key=key,
        soft=table.soft if key else None,
    )
    features = table.mirror.features
    check_features(table.settings.source, table.location, features, plan.columns, table.avoided)
    reading = Reading(
        columns=plan.columns,
        names={name: mirror for name, mirror in names.items() if mirror in plan.columns},
        key=key,
        versions=_readable(table, versions, names, plan, spans),
        defaults=_defaults(names, turns, plan),
        from_rows=_from_rows(table, key, versions),
        other_key=other_key,
        images=not key,
        unrepresentable=table.spec.on_unrepresentable,
    )
    tracked = _tracked(table, reading, seen)
    fills = _fills(table, turns, reading, plan)
    lives = {
        name: turn.life if names[name] in fills else replace(turn.life, fill=False)
        for name, turn in turns.items()
        if names[name] in plan.columns
    }
    former_floor = table.tombstone_summary.floor if key else None
    drift = table.unreported(plan.drift)
    work = Work(seen, plan, drift, reading, lives, fills, tracked, former_floor)
    if not versions and key:
        return work
    events = decode(changes, reading)
    if not key:
        events = with_truncates(events, truncates) if seen.truncates else events
        return replace(work, events=events, counts=_count_events(events))
    state = reduced(table, events, seen, reading, tracked)
    return replace(work, events=events, state=state, counts=count(state, reading))


# -- key and target -------------------------------------------------------------------------------


def _key(
    table: MirroredTable, seen: TableOverview, versions: Sequence[Schema]
) -> tuple[list[str], str | None]:
    """The mirror's key columns, empty where the table is only appended to; and what is wrong with records
    that have another key, None where there are none.

    A key is the manifest's, or else the mirror's, or else the one of most records. Raises Refused for a table
    whose records all have another key than its mirror, and Waiting before there is a row.
    """
    if not versions and not table.mirror.exists:
        raise Waiting(
            f"no row of {table.name} was seen yet, only a truncate: its mirror is made with the first"
        )
    if table.settings.mode == "append":
        return [], None
    rename = table.rename
    if table.settings.primary_key:
        return [rename.get(name, name) for name in table.settings.primary_key], None
    frequent = sorted(
        versions, key=lambda each: (each.group.events, each.group.last_seq or b""), reverse=True
    )
    keys = [[rename.get(name, name) for name in key] for each in frequent for key in each.keys]
    stored = table.properties.get(KEY_PROPERTY)
    if not keys and seen.keyed and stored in (None, "[]"):
        raise Refused(
            f"the keys of the records of {table.name} are not JSON objects, so that they name no columns: "
            f"set tables[{table.settings.source}].primaryKey"
        )
    key = json.loads(stored) if stored is not None else keys[0] if keys else []
    others = [each for each in keys if set(each) != set(key)]
    if not others:
        return key, None
    reason = _another_key(table, key, others[0])
    if len(others) == len(keys) and seen.keyed == seen.events:
        raise Refused(reason)
    return key, reason


def _another_key(table: MirroredTable, key: Sequence[str], other: Sequence[str]) -> str:
    """Why a record cannot be applied, and the remedy if the key of the source changed."""
    back = {mirror: source for source, mirror in table.rename.items()}
    made, found = ([back.get(name, name) for name in each] for each in (key, other))
    place = f"tables[{table.settings.source}]"
    kept = "" if made else f"; to go on as before, set {place}.mode: append"
    return (
        f"the mirror {table.mirror.location} has {_keyed(made)}, and this record has {_keyed(found)}: rows "
        f"cannot be told apart by both. If the source's key changed, set {place}.primaryKey: "
        f"[{', '.join(found)}], and {place}.target to a new place with a new resyncToken{kept}"
    )


def _keyed(key: Sequence[str]) -> str:
    return f"the key ({', '.join(key)})" if key else "no key"


def _check_key_columns(
    table: MirroredTable, key: Sequence[str], names: Mapping[str, str], versions: Sequence[Schema]
) -> None:
    """Each key column has to be a column of the rows, for the mirror has no others."""
    missing = [name for name in key if name not in names.values()]
    if not missing or not versions:
        return
    if not names:
        raise Waiting(
            f"no row of {table.name} was seen yet, only its keys: its mirror is made with the first"
        )
    columns, place = table.settings.columns, f"tables[{table.settings.source}]"
    listed = ", ".join(missing)
    back = {mirror: source for source, mirror in table.rename.items()}
    if columns is not None and not all(columns.keeps(back.get(name, name)) for name in missing):
        raise Refused(f"the key of {table.name} needs {listed}, which {place}.columns leaves out: keep it")
    raise Refused(
        f"{listed} of the key of {table.name} is not a column of its rows, which have "
        f"{', '.join(sorted(names))}: set {place}.primaryKey to columns of the rows"
    )


def _from_rows(table: MirroredTable, key: Sequence[str], versions: Sequence[Schema]) -> list[str]:
    """Columns of a declared key that are not part of every record's own key."""
    if not table.settings.primary_key or not key:
        return []
    keys = [_renamed(table, names) for each in versions for names in each.keys or [[]]]
    return [name for name in key if any(name not in each for each in keys)]


def _renamed(table: MirroredTable, names: Sequence[str]) -> list[str]:
    return [table.rename.get(name, name) for name in names]


def _check_key(table: MirroredTable, key: Sequence[str]) -> None:
    """A table without key is appended to, unless the manifest itself asks for rows by key."""
    if not key and table.asks_for_key:
        raise Refused(
            f"mode scd1 needs a key, but records of {table.name} have none: "
            f"set tables[{table.settings.source}].primaryKey, or mode: append"
        )


def _check_target(table: MirroredTable, key: Sequence[str]) -> None:
    """A mirror belongs to one source table of one pipeline; its mode and key cannot change, for its rows
    would mean something else.
    """
    what = f"the target {table.mirror.location}"
    owner = table.properties.get(SOURCE_PROPERTY)
    if owner is None:
        raise Refused(f"{what} is a table that Lakemirror did not make: choose another target")
    if owner != table.source:
        raise Refused(f"{what} is the mirror of {owner}: choose another target")
    mode = table.properties.get(MODE_PROPERTY)
    wanted = "scd1" if key or table.asks_for_key else "append"
    if mode != wanted:
        raise Refused(
            f"{what} was made with mode {mode}, and {wanted} is asked for now: choose another target"
        )
    stored = json.loads(table.properties.get(KEY_PROPERTY, "null"))
    if key and stored is not None and set(stored) != set(key):
        raise Refused(
            f"{what} has the key {', '.join(stored)}, and {', '.join(key)} is asked for now: "
            "choose another target"
        )


# -- columns ------------------------------------------------------------------------------------------


def _names(table: MirroredTable, versions: Sequence[Schema]) -> dict[str, str]:
    """Source column -> mirror column, without those that are left out."""
    columns, rename = table.settings.columns, table.rename
    names = [each.name for schema in versions for each in schema.fields]
    return {name: rename.get(name, name) for name in names if columns is None or columns.keeps(name)}


def _turns(
    table: MirroredTable, versions: Sequence[Schema], names: dict[str, str], key: Sequence[str]
) -> dict[str, Turn]:
    """What the batch shows of the source's columns, those of the key aside; completes ``names``."""
    lives = table.lives
    skipped = table.spec.schema_evolution == "skip" and lives.columns is not None
    for name in lives.columns or ():
        names.setdefault(name, table.rename.get(name, name))
    wanted = [
        name
        for name, mirror in names.items()
        if mirror not in key and not (skipped and name not in (lives.columns or ()))
    ]
    return lives.after(together({name: each.says(name) for name in wanted} for each in versions))


def _spans(
    versions: Sequence[Schema], names: Mapping[str, str], turns: Mapping[str, Turn]
) -> dict[int | None, list[Span]]:
    """The events of each schema, cut where a column begins its present life."""
    groups: dict[int | None, list[Schema]] = {}
    for each in versions:
        groups.setdefault(each.group.schema_id, []).append(each)
    found = {}
    for schema_id, schemas in groups.items():
        first = min(each.group.first_seq or b"" for each in schemas)
        last = max(each.group.last_seq or b"" for each in schemas)
        begins = {
            name: turn.life.absent
            for name in (each.name for each in schemas[0].fields)
            if (turn := turns.get(name)) and turn.life.absent and not turn.life.dropped
        }
        cuts = sorted({absent for absent in begins.values() if first <= absent < last})
        limits = [None, *cuts, None]
        found[schema_id] = [
            Span(
                after,
                until,
                frozenset(name for name, absent in begins.items() if absent >= (until or last)),
            )
            for after, until in itertools.pairwise(limits)
        ]
    return found


def _drift(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    turns: Mapping[str, Turn],
    spans: Mapping[int | None, Sequence[Span]],
) -> DriftPlan:
    declared = table.declared
    schemas = []
    for each in versions:
        past = frozenset.intersection(*(span.past for span in spans[each.group.schema_id]))
        types = {
            names[name]: declared.get(name, kind)
            for name, kind in each.types.items()
            if name in names and name not in past
        }
        schemas.append(SchemaVersion(types, each.group.since))
    existing = None
    if table.mirror.columns is not None:
        existing = {name: kind for name, kind in table.mirror.columns.items() if name != table.soft}
    plan = plan_drift(
        str(table.name),
        existing,
        schemas,
        table.spec.schema_evolution,
        dropped={names[name] for name, turn in turns.items() if turn.dropped},
        returned={names[name] for name, turn in turns.items() if turn.returned},
        past={names[name] for name, turn in turns.items() if turn.life.dropped},
    )
    return replace(plan, drift=tuple(_with_consequence(table, plan, each) for each in plan.drift))


def _with_consequence(table: MirroredTable, plan: DriftPlan, drift: Drift) -> Drift:
    """A changed column with the feature of Delta that readers need for it, or how that is avoided."""
    if drift.column in plan.alter and drift.action == "altered":
        return (
            replace(drift, action="rewritten")
            if WIDENING in table.avoided
            else replace(drift, feature=WIDENING)
        )
    added = {drift.column: plan.columns[drift.column]} if drift.action == "added" else {}
    return replace(drift, feature=MAPPING) if needs_mapping(added) else drift


def _readable(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    plan: DriftPlan,
    spans: Mapping[int | None, Sequence[Span]],
) -> list[Version]:
    """How the events of each schema are read. The schemas of keys may differ within one."""
    found: dict[int | None, list[Version]] = {}
    for schema, refused in zip(versions, plan.refused, strict=True):
        schema_id = schema.group.schema_id
        if schema_id in found:
            continue
        why = {
            names[name]: _changed(table, name, plan.columns[names[name]], kind)
            for name, kind in schema.types.items()
            if names.get(name) in refused
        }
        remedy = None if schema_id is not None else f". {_to_keep_both(table, 'COLUMN')}"
        found[schema_id] = [
            Version(
                schema_id,
                [
                    each
                    for each in schema.fields
                    if names.get(each.name) in plan.columns and each.name not in span.past
                ],
                {column: reason for column, reason in why.items() if column not in map(names.get, span.past)},
                span.after,
                span.until,
                remedy,
            )
            for span in spans[schema_id]
        ]
    return [version for each in found.values() for version in each]


def _changed(table: MirroredTable, name: str, before: DataType, after: DataType) -> str:
    return (
        f"its type changed from {before.simpleString()} to {after.simpleString()}, which the mirror's column "
        f"cannot hold. {_to_keep_both(table, name)}"
    )


def _to_keep_both(table: MirroredTable, name: str) -> str:
    """The remedy for values of a type that the mirror's column cannot hold."""
    return (
        f"To write them to a new column, set tables[{table.settings.source}].columns.rename: "
        f"{{{name}: NEW_NAME}} and run `lakemirror replay`"
    )


def _tracked(table: MirroredTable, reading: Reading, seen: TableOverview) -> list[str]:
    """Columns whose values may be older than their row: none, until the source leaves out a value once."""
    stored = table.properties.get(GAPS_PROPERTY) == "true"
    if not (stored or seen.gaps or seen.moves):
        return []
    return [
        name for name, kind in reading.columns.items() if name not in reading.key and _may_be_left_out(kind)
    ]


def _may_be_left_out(kind: DataType) -> bool:
    """PostgreSQL leaves out large values only: text, bytes, arrays and the like."""
    return isinstance(kind, (StringType, BinaryType, ArrayType, MapType, StructType))


# -- new lives of columns ---------------------------------------------------------------------------


def _defaults(names: Mapping[str, str], turns: Mapping[str, Turn], plan: DriftPlan) -> dict[str, Column]:
    """What rows have in a column that was added after them, by mirror name."""
    found = {}
    for name, turn in turns.items():
        column, default = names[name], turn.life.default
        if default is not None and not turn.life.dropped and column in plan.columns:
            found[column] = RowDecoder([default], {default.name: plan.columns[column]}).default(default.name)
    return found


def _fills(
    table: MirroredTable, turns: Mapping[str, Turn], reading: Reading, plan: DriftPlan
) -> dict[str, Fill]:
    """What stored rows are to have in columns that begin a new life; looks into the mirror for such rows."""
    if not table.mirror.exists or not reading.key:
        return {}
    names = {name: table.rename.get(name, name) for name in turns}
    found = {}
    for name, turn in turns.items():
        column, absent = names[name], turn.life.absent
        if not turn.life.fill or absent is None or column not in plan.columns:
            continue
        kind = plan.columns[column]
        value = reading.defaults.get(column, F.lit(None)).cast(kind)
        fill = Fill(value, absent, kind)
        if column in plan.add:
            if column in reading.defaults:
                found[column] = fill
        elif not table.mirror.frame().alias("t").where(aged({column: fill})).isEmpty():
            found[column] = fill
    return {**found, **_taken_over(table, plan)}


def _taken_over(table: MirroredTable, plan: DriftPlan) -> dict[str, Fill]:
    """Columns of text that the manifest gives another name: rows keep what they had under the first."""
    found = {}
    for before, column in table.rename.items():
        kind = (table.mirror.columns or {}).get(before)
        if isinstance(plan.add.get(column), StringType) and isinstance(kind, _SPELLED_ALIKE):
            found[column] = Fill(T(before).cast("string"), _ALL, StringType())
    return found


def _count_events(events: DataFrame) -> StateCounts:
    """Of a table without key."""
    row = events.agg(F.count("*").alias("records"), F.count("problem").alias("bad")).first()
    assert row is not None
    return StateCounts(records=row["records"], bad=row["bad"], newest=row["records"] - row["bad"])
