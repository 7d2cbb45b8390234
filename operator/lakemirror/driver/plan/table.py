"""What a batch asks of one table, decided from what is known without reading its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan import columns, key
from lakemirror.driver.plan.drift import DriftPlan
from lakemirror.driver.plan.fills import Fill
from lakemirror.driver.plan.lives import Life
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.names import check_columns, check_features
from lakemirror.driver.plan.schemas import Schema
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.results import Drift


@dataclass(frozen=True)
class TablePlan:
    """How one table's part of a batch is read, and what becomes of its mirror's form.

    ``seen`` is what the batch has of the table, ``alteration`` what becomes of the mirror's columns, and
    ``drift`` what nobody was told of yet. ``reading`` says how events are read; ``lives`` are the source's
    columns after the batch, ``fills`` what stored rows have in columns that begin a new life. ``tracked``
    are the columns whose values may be older than their row, ``soft`` the column of a soft delete,
    ``former_floor`` the sequence of the newest truncate before the batch.
    """

    seen: TableOverview
    alteration: DriftPlan
    drift: tuple[Drift, ...]
    reading: Reading
    lives: Mapping[str, Life]
    fills: Mapping[str, Fill] = field(default_factory=dict)
    tracked: Sequence[str] = ()
    soft: str | None = None
    former_floor: bytes | None = None


def plan_table(table: MirroredTable, seen: TableOverview, versions: Sequence[Schema]) -> TablePlan:
    """The plan for what a batch has of a table; its schemas are ``versions``, oldest first.

    Raises Refused for a table that cannot be mirrored as it is asked for, Waiting for one of which too little
    is known, and SchemaDriftRefused.
    """
    mirror_key, other_key = key.key_of(table, seen, versions)
    if table.mirror.exists:
        key.check_target(table, mirror_key)
    else:
        key.check_key(table, mirror_key)
    names = columns.names_of(table, versions)
    turns = columns.turns_of(table, versions, names, mirror_key)
    key.check_key_columns(table, mirror_key, names, versions)
    spans = columns.spans_of(versions, names, turns if mirror_key else {})
    alteration = columns.drift_of(table, versions, names, turns, spans)
    _check(table, versions, names, alteration, mirror_key)
    reading = Reading(
        columns=alteration.columns,
        names={name: mirror for name, mirror in names.items() if mirror in alteration.columns},
        key=mirror_key,
        versions=columns.readable(table, versions, names, alteration, spans),
        defaults=columns.defaults_of(names, turns, alteration),
        from_rows=key.from_rows(table, mirror_key, versions),
        other_key=other_key,
        images=not mirror_key,
        unrepresentable=table.spec.on_unrepresentable,
    )
    fills = columns.fills_of(table, turns, reading, alteration)
    return TablePlan(
        seen,
        alteration,
        table.unreported(alteration.drift),
        reading,
        lives={
            name: turn.life if names[name] in fills else replace(turn.life, fill=False)
            for name, turn in turns.items()
            if names[name] in alteration.columns
        },
        fills=fills,
        tracked=columns.tracked_in(table, reading, seen),
        soft=table.soft if mirror_key else None,
        former_floor=table.tombstone_summary.floor if mirror_key else None,
    )


def _check(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    alteration: DriftPlan,
    mirror_key: Sequence[str],
) -> None:
    """Raise Refused for names and types that the mirror cannot have."""
    check_columns(
        table.settings.source,
        [[each.name for each in version.fields] for version in versions],
        names,
        alteration.columns,
        key=mirror_key,
        soft=table.soft if mirror_key else None,
    )
    features = table.mirror.features
    check_features(table.settings.source, table.location, features, alteration.columns, table.avoided)
