"""Determines which columns a mirror has after a batch, and how the batch's events are read into them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import NoneType

from pyspark.sql import Column
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

from lakemirror.driver.parse.decode import Reading, Version, default_of
from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.parse.values.decode import can_be_left_out
from lakemirror.driver.plan import selection
from lakemirror.driver.plan.drift import DriftPlan, SchemaVersion, fits, plan_drift
from lakemirror.driver.plan.fills import Fill, aged
from lakemirror.driver.plan.lives import GIVING, SEVERAL, Life, Log, Turn, together
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import new_mirror
from lakemirror.driver.plan.schemas import Schema
from lakemirror.driver.profile.overview import Changes, TableOverview
from lakemirror.driver.results import Drift, DriftAction, DriftChange
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.mirror import GAPS_PROPERTY, KEY_PROPERTY, WIDENING

_SPELLED_ALIKE = (IntegralType, DecimalType, BooleanType, DateType, StringType)
"""Types whose values have the same text in Spark and in the source."""


@dataclass(frozen=True)
class Span:
    """Events of one schema between two sequences.

    In this span, the columns ``past`` have values of a former life.
    """

    after: bytes | None
    until: bytes | None
    past: frozenset[str]


def names_of(table: MirroredTable, versions: Sequence[Schema]) -> dict[str, str]:
    """Map source columns to mirror columns, for the batch and the mirror, without those that are left out."""
    columns, rename = table.settings.columns, table.rename
    names = [each.name for schema in versions for each in schema.fields]
    found = {name: rename.get(name, name) for name in names if columns is None or columns.keeps(name)}
    for name in table.lives.columns or ():
        found.setdefault(name, rename.get(name, name))
    return found


def turns_of(
    table: MirroredTable, versions: Sequence[Schema], names: Mapping[str, str], key: Sequence[str]
) -> dict[str, Turn]:
    """Return what the batch shows about the source's columns, except those of the key."""
    lives = table.lives
    skipped = table.spec.schema_evolution == "skip" and lives.columns is not None
    wanted = [
        name
        for name, mirror in names.items()
        if mirror not in key and not (skipped and name not in (lives.columns or ()))
    ]
    shown = [_changes(table, each) for each in versions]
    told = (
        {name: each.says(name, shows) for name in wanted} for each, shows in zip(versions, shown, strict=True)
    )
    return lives.after(together(told), _log_of(shown))


def _changes(table: MirroredTable, schema: Schema) -> list[Changes]:
    """Return the changes that may begin and end lives of columns (`lakemirror.driver.plan.lives`)."""
    return schema.changes(feed=table.is_feed) if table.is_feed or table.has_positions else []


def _log_of(shown: Sequence[Sequence[Changes]]) -> Log | None:
    """Return the log that orders changes. None if there are none."""
    changes = [each for some in shown for each in some]
    logs = {each.log for each in changes if each.log is not None}
    if len(logs) > 1:
        return Log(SEVERAL)
    return Log(logs.pop(), frozenset(each.topic for each in changes)) if logs else None


def spans_of(versions: Sequence[Schema], turns: Mapping[str, Turn]) -> dict[int | None, list[Span]]:
    """Split the events of each schema where a column begins its current life.

    Events without a schema are read with all of their columns.
    """
    groups: dict[int | None, list[Schema]] = {}
    for each in versions:
        groups.setdefault(each.group.schema_id, []).append(each)
    return {schema_id: _spans(schema_id, schemas, turns) for schema_id, schemas in groups.items()}


def whole_spans(versions: Sequence[Schema]) -> dict[int | None, list[Span]]:
    """Return spans for events that keep the values of former lives."""
    return {each.group.schema_id: [Span(None, None, frozenset())] for each in versions}


def _spans(schema_id: int | None, schemas: Sequence[Schema], turns: Mapping[str, Turn]) -> list[Span]:
    first = min(each.group.first_seq or b"" for each in schemas)
    last = max(each.group.last_seq or b"" for each in schemas)
    fields = schemas[0].fields if schema_id is not None else ()
    former = {
        each.name: (turn.life.first, absent)
        for each in fields
        if (turn := turns.get(each.name)) and (absent := turn.life.begins) is not None
    }
    cuts = sorted({end for ends in former.values() for end in ends if first <= end < last})
    limits = [None, *cuts, None]
    return [
        Span(
            after,
            until,
            frozenset(
                name
                for name, (begin, end) in former.items()
                if (begin < first if after is None else begin <= after) and (until or last) <= end
            ),
        )
        for after, until in itertools.pairwise(limits)
    ]


def drift_of(
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
        sent = {name.lower() for each in schemas for name in each.columns}
        by_hand = {name for name in table.users if name.lower() not in sent}
        added = {table.soft, *table.own, *table.settings.expressions, *by_hand}
        existing = {name: kind for name, kind in table.mirror.columns.items() if name not in added}
    plan = plan_drift(
        str(table.name),
        existing,
        schemas,
        table.spec.schema_evolution,
        dropped={names[name] for name, turn in turns.items() if turn.dropped},
        returned={names[name] for name, turn in turns.items() if turn.returned},
        past={names[name] for name, turn in turns.items() if turn.life.dropped},
    )
    return replace(plan, drift=tuple(with_consequence(table, plan, each) for each in plan.drift))


def with_consequence(table: MirroredTable, plan: DriftPlan, drift: Drift) -> Drift:
    """Return a drift with the reader feature that it requires, or with how that feature is avoided."""
    altered = plan.alter.get(drift.column)
    if drift.action is DriftAction.ALTERED and not isinstance(altered, (NoneType, StructType, ArrayType)):
        return (
            replace(drift, action=DriftAction.REWRITTEN)
            if WIDENING in table.avoided
            else replace(drift, feature=table.mirror.needs({}, wider=True))
        )
    grown = drift.action in (DriftAction.ADDED, DriftAction.ALTERED)
    added = {drift.column: plan.columns[drift.column]} if grown else {}
    feature = table.mirror.needs(added)
    return drift if feature is None else replace(drift, feature=feature)


def readable(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    plan: DriftPlan,
    spans: Mapping[int | None, Sequence[Span]],
) -> list[Version]:
    """Return how the events of each schema are read. Within one schema, the schemas of keys may differ."""
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
        remedy = None if schema_id is not None else f". {_to_keep_both(table, 'COLUMN', as_text=True)}"
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


def _to_keep_both(table: MirroredTable, name: str, *, as_text: bool = False) -> str:
    """Return the remedy for values of a type that the mirror's column cannot hold.

    ``as_text``: the new column must not get the type of the former one, neither declared nor inferred.
    """
    stored = json.loads(table.properties.get(KEY_PROPERTY, "[]"))
    if table.rename.get(name, name) in stored:  # under another name, it would be another key
        return (
            f"To take them, set tables[{table.settings.source}].columns.types: {{{name}: TYPE}}, and "
            f"{new_mirror(table.settings)}"
        )
    text = f", columns.types: {{{name}: string}}" if as_text else ""
    return (
        f"To write them to a new column, set tables[{table.settings.source}].columns.rename: "
        f"{{{name}: NEW_NAME}}{text} and run `lakemirror replay`"
    )


def tracked_in(table: MirroredTable, reading: Reading, seen: TableOverview) -> list[str]:
    """Return the columns whose values may be older than their row.

    There are none until the source leaves out a value for the first time. A column of a declared type is one
    of them even if the batch cannot lack its values, because stored rows may lack one from another batch.
    """
    stored = table.properties.get(GAPS_PROPERTY) == "true"
    if not (stored or seen.gaps or seen.moves or reading.partial):
        return []
    if table.spec.envelope.format == "maxwell":  # its records leave out values of any type
        return [name for name in reading.columns if name not in reading.key]
    lacked = {table.rename.get(name, name) for name in table.declared} | _lacked(reading)
    return [
        name
        for name, kind in reading.columns.items()
        if name not in reading.key and (name in lacked or _may_be_left_out(kind))
    ]


def is_partial(table: MirroredTable, seen: TableOverview, names: Mapping[str, str]) -> bool:
    """Return whether a row of the batch may lack a member whose value is as before.

    Only Maxwell leaves out members of updates: those that did not change, with ``binlog_row_image=MINIMAL``,
    and nulls, with ``output_nulls=false``.
    """
    if table.spec.envelope.format != "maxwell":
        return False
    for group in seen.groups.values():
        if group.shapes is None:
            return True
        if any(names.keys() - set(each.names or ()) for each in group.shapes if each.row):
            return True
    return False


def _lacked(reading: Reading) -> set[str]:
    """Return the columns whose values some event of the batch can lack, whatever their types."""
    return {
        column
        for version in reading.versions
        for field in version.fields
        if (column := reading.names.get(field.name)) is not None
        and column not in version.refused
        and can_be_left_out(field, reading.columns[column])
    }


def _may_be_left_out(kind: DataType) -> bool:
    """Return whether the source may leave out values of a column that has its natural type.

    PostgreSQL leaves out only large values: text, bytes, arrays and the like.
    """
    return isinstance(kind, (StringType, BinaryType, ArrayType, MapType, StructType))


# -- columns that begin a new life or are added ------------------------------------------------------


def defaults_of(names: Mapping[str, str], turns: Mapping[str, Turn], plan: DriftPlan) -> dict[str, Field]:
    """Return, by mirror name, the fields whose defaults rows get in columns that were added after them."""
    found = {}
    for name, turn in turns.items():
        column, default = names[name], turn.life.default
        if default is not None and not turn.life.dropped and column in plan.columns:
            found[column] = default
    return found


def since_of(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    reading: Reading,
    plan: DriftPlan,
) -> dict[str, bytes]:
    """Return since when added columns with a default exist: the position of the first event that has them."""
    added = _added(table, plan) & reading.defaults.keys()
    found: dict[str, bytes] = {}
    for schema in versions:
        first = schema.group.first_seq
        for column in {names.get(each.name) for each in schema.fields} & added if first is not None else ():
            assert column is not None
            assert first is not None
            found[column] = min(found.get(column, first), first)
    return found


def _added(table: MirroredTable, plan: DriftPlan) -> set[str]:
    """Return the columns that this batch adds, or added before it was interrupted."""
    if not table.mirror.exists:
        return {*plan.add}
    due = {table.rename.get(name, name) for name in table.awaiting_default()}
    return plan.add.keys() | (due & (table.mirror.columns or {}).keys())


def fills_of(
    table: MirroredTable, turns: Mapping[str, Turn], reading: Reading, plan: DriftPlan
) -> tuple[dict[str, Fill], dict[str, int]]:
    """Return the values that stored rows must get in columns that begin a new life or are added.

    Also returns how many rows get them, by column. Checks whether the mirror has such rows.
    """
    if not table.mirror.exists or not reading.key:
        return {}, {}
    found, rows, current = {}, {}, table.mode == "scd2"
    added = _added(table, plan)
    added -= unfilled(table, plan).keys() | {*renamed_of(table, plan).values()}
    for column in added & reading.defaults.keys():
        found[column] = Fill(_default(reading, column), reading.columns[column], current=current)
        rows[column] = _count(table, T("__is_current") if current else F.lit(True))
    for before, column in _renamed_by_batch(table, plan).items():
        kind = reading.columns[column]
        found[column] = Fill(T(before).cast(kind), kind)
    begun = {table.rename.get(name, name) for name, turn in turns.items() if turn.life.fill}
    begun -= added | plan.add.keys()
    for column, fill in former_of(table, turns, reading).items():
        if column in begun:
            former = _count(table, aged({column: fill}))
            if former:
                found[column], rows[column] = fill, former
    return found, rows


def remembered(life: Life, fill: Fill | None) -> Life:
    """Return what the mirror remembers of a life until the ``fill`` of its column is seen to be done."""
    cleared = fill is not None and fill.life is not None
    given = GIVING if fill is not None and fill.life is None else None
    return replace(life, fill=cleared, given=given)


def former_of(table: MirroredTable, turns: Mapping[str, Turn], reading: Reading) -> dict[str, Fill]:
    """Return what replaces the values of former lives, for each column that has had one."""
    current = table.mode == "scd2"
    lives = {table.rename.get(name, name): turn.life for name, turn in turns.items()}
    return {
        column: Fill(_default(reading, column), reading.columns[column], life, current=current)
        for column, life in lives.items()
        if column in reading.columns and life.begins is not None
    }


def _default(reading: Reading, column: str) -> Column:
    """Return what a column has in rows that were written before it was added: its default, or null."""
    kind, default = reading.columns[column], reading.defaults.get(column)
    return (F.lit(None) if default is None else default_of(default, kind)).cast(kind)


def with_filled(plan: DriftPlan, fills: Mapping[str, Fill], rows: Mapping[str, int]) -> DriftPlan:
    """Return the plan with the numbers of ``rows`` that get a default or lose a value of a former life."""
    given = {column for column in rows if fills[column].life is None}
    drift = [
        replace(each, rows=rows[each.column])
        if each.action is DriftAction.ADDED and each.column in given
        else each
        for each in plan.drift
    ]
    for column in sorted(rows.keys() - given):
        kind = plan.columns[column].simpleString()
        since = next((each.since for each in plan.drift if each.column == column), None)
        drift.append(
            Drift(column, DriftChange.RETURNED, kind, kind, DriftAction.CLEARED, since, rows=rows[column])
        )
    return replace(plan, drift=tuple(drift))


def with_unfilled(table: MirroredTable, plan: DriftPlan) -> DriftPlan:
    """Return the plan with the numbers of rows that lack values in columns that are added only now."""
    lacking = unfilled(table, plan)
    rows = _count(table, F.lit(True)) if lacking else 0
    if not rows:
        return plan
    told = [
        replace(each, change=lacking[each.column], action=DriftAction.ADDED_WITHOUT_VALUES, rows=rows)
        if each.action is DriftAction.ADDED and each.column in lacking
        else each
        for each in plan.drift
    ]
    return replace(plan, drift=tuple(told))


def unfilled(table: MirroredTable, plan: DriftPlan) -> dict[str, DriftChange]:
    """Return the added columns in which stored rows get no value before they change, and why.

    Until now the manifest left them out, or they had another name and a type whose values do not fit.
    """
    if not table.mirror.exists or not plan.add:
        return {}
    back, taken = {mirror: source for source, mirror in table.rename.items()}, renamed_of(table, plan)
    found = {
        column: DriftChange.TAKEN_IN for column in plan.add if table.was_left_out(back.get(column, column))
    }
    renamed = selection.renamings(table.selection_as_made, table.selection, table.mirrored_columns)
    kept = (each.after for each in renamed if each.before not in taken)
    return found | {column: DriftChange.RENAMED for column in kept if column in plan.add}


def _count(table: MirroredTable, when: Column) -> int:
    return table.rows().where(when).count()


def renamed_of(table: MirroredTable, plan: DriftPlan) -> dict[str, str]:
    """Return the columns that take the stored values of a former name along: new names by former ones.

    Rows of others, whose new type cannot hold these values exactly, have them under the former name only.
    """
    stored = table.mirror.columns or {}
    found: dict[str, str] = {}
    if not plan.add:
        return found
    for each in selection.renamings(table.selection_as_made, table.selection, table.mirrored_columns):
        kind = plan.add.get(each.after)
        if kind is not None and _takes(kind, stored[each.before]):
            found[each.before] = each.after
    return found


def _renamed_by_batch(table: MirroredTable, plan: DriftPlan) -> dict[str, str]:
    """Return those of the `renamed_of` whose values the batch writes, as only batches change stored rows.

    Among them are those of a batch that was not committed.
    """
    if table.mirror.updates:
        return {}
    due = {table.rename.get(name, name) for name in table.awaiting_default()}
    again = {before: column for before, column in table.renaming.items() if column in due}
    return {**again, **renamed_of(table, plan)}


def _takes(kind: DataType, former: DataType) -> bool:
    """Return whether a column of type ``kind`` can have all values of a ``former`` type, exactly."""
    return fits(former, kind) or (isinstance(kind, StringType) and isinstance(former, _SPELLED_ALIKE))
