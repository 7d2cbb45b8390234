"""Decide what a batch does to a table. Reads, and materialises the state; writes nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from lakemirror.driver.apply.append import with_truncates
from lakemirror.driver.apply.scd1 import Default
from lakemirror.driver.decode import Reading, Version, decode
from lakemirror.driver.drift import DriftPlan, SchemaVersion, plan_drift
from lakemirror.driver.mirror import GAPS_PROPERTY, KEY_PROPERTY, MODE_PROPERTY, SOURCE_PROPERTY
from lakemirror.driver.overview import TableOverview
from lakemirror.driver.table.decision import Refused, StateCounts, Work
from lakemirror.driver.table.mirrored import MirroredTable
from lakemirror.driver.table.schemas import Schema
from lakemirror.driver.table.state import count, reduced
from lakemirror.driver.values.connect import Field
from lakemirror.driver.values.decode import RowDecoder


def decide(
    table: MirroredTable,
    changes: DataFrame,
    truncates: DataFrame,
    seen: TableOverview,
    versions: Sequence[Schema],
) -> Work:
    """What to write for the ``changes`` and ``truncates`` of a batch; schemas are ``versions``, oldest first.

    Raises Refused for a table that cannot be mirrored as it is asked for, and SchemaDriftRefused.
    """
    key = _key(table, versions)
    if table.mirror.exists:
        _check_target(table, key)
    else:
        _check_key(table, key)
    names = _names(table, versions)
    plan = _drift(table, versions, names)
    since = _defaults_since(table, versions, names, plan)
    reading = Reading(
        columns=plan.columns,
        names={name: mirror for name, mirror in names.items() if mirror in plan.columns},
        key=key,
        versions=_readable(versions, names, plan),
        defaults=_defaults(table, versions, names, plan, since),
        from_rows=_from_rows(table, key, versions),
        images=not key,
        unrepresentable=table.spec.on_unrepresentable,
    )
    tracked = _tracked(table, reading, seen)
    former_floor = table.tombstone_summary.floor if key else None
    work = Work(seen, plan, table.unreported(plan.drift), reading, since, tracked, former_floor)
    if not versions and key:
        return work
    events = decode(changes, reading)
    if not key:
        events = with_truncates(events, truncates) if seen.truncates else events
        return replace(work, events=events, counts=_count_events(events))
    state = reduced(table, events, seen, reading, tracked)
    return replace(work, events=events, state=state, counts=count(state, reading))


# -- key and target -------------------------------------------------------------------------------


def _key(table: MirroredTable, versions: Sequence[Schema]) -> list[str]:
    """The mirror's key columns; empty where the table is only appended to."""
    if table.settings.mode == "append":
        return []
    if table.settings.primary_key:
        names = list(table.settings.primary_key)
    elif KEY_PROPERTY in table.properties:
        return list(json.loads(table.properties[KEY_PROPERTY]))
    else:
        names = next((list(each.key) for each in versions if each.key), [])
    return [table.rename.get(name, name) for name in names]


def _from_rows(table: MirroredTable, key: Sequence[str], versions: Sequence[Schema]) -> list[str]:
    """Columns of a declared key that are not part of every record's own key."""
    if not table.settings.primary_key or not key:
        return []
    return [name for name in key if any(name not in _renamed(table, each.key) for each in versions)]


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


def _drift(table: MirroredTable, versions: Sequence[Schema], names: Mapping[str, str]) -> DriftPlan:
    declared = table.declared
    schemas = []
    for each in versions:
        types = {names[name]: declared.get(name, kind) for name, kind in each.types.items() if name in names}
        schemas.append(SchemaVersion(types, each.group.since, each.group.schema_id is not None))
    existing = None
    if table.mirror.columns is not None:
        existing = {name: kind for name, kind in table.mirror.columns.items() if name != table.soft}
    return plan_drift(str(table.name), existing, schemas, table.spec.schema_evolution)


def _readable(versions: Sequence[Schema], names: Mapping[str, str], plan: DriftPlan) -> list[Version]:
    """How each schema is read. One version a schema: the schemas of keys may differ within it."""
    found: dict[int | None, Version] = {}
    for schema, refused in zip(versions, plan.refused, strict=True):
        why = {
            names[name]: _changed(plan.columns[names[name]], kind)
            for name, kind in schema.types.items()
            if names.get(name) in refused
        }
        fields = [each for each in schema.fields if names.get(each.name) in plan.columns]
        found.setdefault(schema.group.schema_id, Version(schema.group.schema_id, fields, why))
    return list(found.values())


def _changed(before: DataType, after: DataType) -> str:
    return f"its type changed from {before.simpleString()} to {after.simpleString()}"


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


# -- defaults -----------------------------------------------------------------------------------------


def _defaults_since(
    table: MirroredTable, versions: Sequence[Schema], names: Mapping[str, str], plan: DriftPlan
) -> dict[str, bytes]:
    """For each column with a default: the sequence of the first event that had it, as far as is known."""
    known = {name: bytes.fromhex(each["since"]) for name, each in table.defaults.items()}
    for schema in versions:
        first = schema.group.first_seq
        if first is None:
            continue
        for each in schema.fields:
            name = names.get(each.name)
            if name is not None and name in plan.columns and each.default is not None:
                known[name] = min(known.get(name, first), first)
    return known


def _defaults(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    plan: DriftPlan,
    since: Mapping[str, bytes],
) -> dict[str, Default]:
    """Columns with a default, as values that older rows have."""
    found = {name: Field(name, **stored["field"]) for name, stored in table.defaults.items()}
    for schema in versions:
        for each in schema.fields:
            name = names.get(each.name)
            if name is not None and each.default is not None:
                found[name] = replace(each, name=name)
    return {
        name: Default(RowDecoder([each], {name: plan.columns[name]}).default(name), since[name])
        for name, each in found.items()
        if name in since and name in plan.columns
    }


def _count_events(events: DataFrame) -> StateCounts:
    """Of a table without key."""
    row = events.agg(F.count("*").alias("records"), F.count("problem").alias("bad")).first()
    assert row is not None
    return StateCounts(records=row["records"], bad=row["bad"], newest=row["records"] - row["bad"])
