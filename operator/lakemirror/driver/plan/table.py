"""Plans what a batch does to one table, using only what is known without reading its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final

from pyspark.sql.types import DataType, StringType

from lakemirror.api.tables import Mode
from lakemirror.driver.parse.computed import Computed
from lakemirror.driver.parse.condition import Condition, WrongCondition
from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.parse.envelopes.chooser import writing
from lakemirror.driver.parse.expectations import Expected
from lakemirror.driver.plan import columns, key
from lakemirror.driver.plan.computed import computed_of
from lakemirror.driver.plan.drift import DriftPlan
from lakemirror.driver.plan.fills import Fill
from lakemirror.driver.plan.lives import Life
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.names import check_columns, check_features
from lakemirror.driver.plan.read import refuse_dropped
from lakemirror.driver.plan.refusal import Refused, left_out, new_mirror
from lakemirror.driver.plan.schemas import Schema
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.results import Drift
from lakemirror.driver.tables.columns import SHARD, metadata_of
from lakemirror.driver.tables.store import Unfit

_FULL_IDENTITY: Final = "set REPLICA IDENTITY FULL on the table"
_REMEDIES: Final = {"maxwell": "set binlog_row_image=FULL in MySQL, and output_nulls=true in Maxwell"}
"""What makes the source send whole rows, by envelope."""
_NO_COLUMNS: Final[Mapping[str, DataType]] = MappingProxyType({})


@dataclass(frozen=True)
class TablePlan:
    """How one table's part of a batch is read, and how its mirror is altered.

    - ``seen``: what the batch has for the table
    - ``alteration``: what happens to the mirror's columns
    - ``drift``: the drift that has not been reported yet
    - ``reading``: how events are read
    - ``lives``: the lives of the source's columns after the batch
    - ``fills``: what stored rows get in columns that begin a new life or are added with a default
    - ``former``: in mode scd2, what current versions have instead of values of former lives of columns
    - ``since``: in mode scd2, the positions since which columns exist that are added with a default
    - ``renamed``: columns that take the values of a former name along: new names by former ones
    - ``tracked``: the columns whose values may be older than their row
    - ``soft``: the column of a soft delete
    - ``former_floor``: the sequence of the newest truncate before the batch
    - ``compared``: in mode scd2, the columns whose changes begin versions (None: all changes do)
    - ``initial``: in mode scd2, since when rows are valid that existed before their first change
    - ``mode``: ``append`` if there is no key
    - ``comments``: the comments of columns, by mirror name
    """

    seen: TableOverview
    alteration: DriftPlan
    drift: tuple[Drift, ...]
    reading: Reading
    lives: Mapping[str, Life]
    fills: Mapping[str, Fill] = field(default_factory=dict)
    former: Mapping[str, Fill] = field(default_factory=dict)
    since: Mapping[str, bytes] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    tracked: Sequence[str] = ()
    soft: str | None = None
    former_floor: bytes | None = None
    compared: Sequence[str] | None = None
    initial: datetime | None = None
    mode: Mode = "scd1"
    comments: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, Computed] = field(default_factory=dict)
    """The columns that the manifest computes from others."""
    decoding: Reading | None = None
    """How events are decoded, or None if ``reading`` says so.

    The ``reading`` of a shard also has its name.
    """


def plan_table(table: MirroredTable, seen: TableOverview, versions: Sequence[Schema]) -> TablePlan:
    """Plan what to do with a batch's part of a table.

    ``versions`` are its schemas, oldest first. Raises Refused for a table that cannot be mirrored as
    requested, Waiting for a table about which too little is known, and SchemaDriftRefused.
    """
    mirror_key, other_key = key.key_of(table, seen, versions)
    _check_fits(table)  # first its name: a table of Lakemirror's own may stand there by now
    if table.mirror.exists:
        key.check_target(table, mirror_key)
    else:
        key.check_key(table, mirror_key)
    names = columns.names_of(table, versions)
    key.check_key_columns(table, mirror_key, names, versions)
    turns = columns.turns_of(table, versions, names, mirror_key)
    rows = bool(mirror_key) and table.mode != "scd2"  # lists and histories keep what was
    spans = columns.spans_of(versions, turns) if rows else columns.whole_spans(versions)
    alteration = columns.drift_of(table, versions, names, turns, spans)
    dropped = {names[name] for name, turn in turns.items() if turn.life.dropped}
    computed, alteration = computed_of(table, alteration, dropped)
    _check(table, versions, names, alteration, mirror_key, computed)
    reading = Reading(
        columns=alteration.columns,
        names={name: mirror for name, mirror in names.items() if mirror in alteration.columns},
        key=mirror_key,
        versions=columns.readable(table, versions, names, alteration, spans),
        defaults=columns.defaults_of(names, turns, alteration) if mirror_key else {},
        from_rows=key.from_rows(table, mirror_key, versions),
        rekeyed=bool(mirror_key) and seen.rekeyed,
        other_key=other_key,
        images=not mirror_key,
        corrects=table.of_rows,
        timed=bool(mirror_key) and table.mode == "scd2",
        partial=bool(mirror_key) and columns.is_partial(table, seen, names),
        former=not mirror_key and seen.rekeyed,
        condition=_filter(table, alteration),
        expectations=_expectations(table, alteration),
        computed=tuple(computed.values()),
        unrepresentable=table.spec.on_unrepresentable,
        placeholder=table.spec.envelope.placeholder,
        place=f"tables[{table.settings.source}].filter",
        remedy=_REMEDIES.get(table.spec.envelope.format, _FULL_IDENTITY),
        shard=table.shard,
        impossible=table.mirror.impossible,
        writing=writing(table.spec.envelope),
        encodings=(table.settings.columns and table.settings.columns.encodings) or {},
    )
    refuse_dropped(table, reading, versions, turns)
    fills, filled = columns.fills_of(table, turns, reading, alteration)
    alteration = columns.with_filled(alteration, fills, filled)
    alteration = columns.with_unfilled(table, alteration)
    return TablePlan(
        seen,
        alteration,
        table.unreported(alteration.drift),
        _with_shard(reading),
        decoding=reading,
        computed=computed,
        lives={
            name: columns.remembered(turn.life, fills.get(names[name]))
            for name, turn in turns.items()
            if names[name] in alteration.columns
        },
        fills=fills,
        since=columns.since_of(table, versions, names, reading, alteration)
        if mirror_key and table.mode == "scd2"
        else {},
        renamed=columns.renamed_of(table, alteration) if table.mirror.exists else {},
        former=columns.former_of(table, turns, reading) if mirror_key and table.mode == "scd2" else {},
        tracked=columns.tracked_in(table, reading, seen),
        soft=table.soft if mirror_key else None,
        former_floor=table.tombstone_summary.floor if mirror_key else None,
        compared=_compared(table, reading, dropped) if mirror_key and alteration.columns else None,
        initial=_initial(table) if mirror_key else None,
        mode=table.mode if mirror_key else "append",
        comments={
            **{name: f"Computed: {each.sql}" for name, each in computed.items()},
            **_docs(versions, names),
        },
    )


def _docs(versions: Sequence[Schema], names: Mapping[str, str]) -> dict[str, str]:
    """Return the source's comments on its columns, by mirror name."""
    return {
        names[each.name]: each.doc
        for version in versions
        for each in version.fields
        if each.doc and each.name in names
    }


def _with_shard(reading: Reading) -> Reading:
    """Add the shard's name to the columns and the key, for a mirror that has several shards."""
    if reading.shard is None:
        return reading
    key = [SHARD, *reading.key] if reading.key else []
    return replace(reading, columns={SHARD: StringType(), **reading.columns}, key=key)


def _initial(table: MirroredTable) -> datetime | None:
    said = table.settings.initial_valid_from
    return None if said is None else datetime.fromisoformat(said)


def _compared(table: MirroredTable, reading: Reading, dropped: Collection[str]) -> tuple[str, ...] | None:
    """Return the mirror's columns whose changes begin versions.

    Raises Refused for columns that it does not have, and for those that the source no longer has.
    """
    if table.settings.tracked_columns is None:
        return None
    columns = tuple(table.rename.get(name, name) for name in table.settings.tracked_columns)
    missing = [name for name in columns if name not in reading.columns]
    if missing:
        raise Refused(
            f"tables[{table.settings.source}].trackedColumns has {missing[0]}, which is not a column of the "
            f"table's rows: they have {', '.join(reading.columns)}"
        )
    gone = [name for name in columns if name in dropped]
    if gone:
        raise Refused(
            f"tables[{table.settings.source}].trackedColumns has {gone[0]}, which the source no longer has: "
            "its changes would begin no versions. Set other columns and "
            f"{new_mirror(table.settings)}, or add the column to the source again"
        )
    return columns


def _filter(table: MirroredTable, alteration: DriftPlan) -> Condition | None:
    """Return the condition that rows must meet."""
    sql = table.settings.filter
    if sql is None or not alteration.columns:
        return None
    return _condition(table, alteration, sql, f"tables[{table.settings.source}].filter")


def _expectations(table: MirroredTable, alteration: DriftPlan) -> tuple[Expected, ...]:
    """Return the conditions that rows should meet."""
    listed = table.settings.expectations or ()
    found = []
    for each in listed if alteration.columns else ():
        place = f"tables[{table.settings.source}].expectations[{each.name}]"
        condition = _condition(table, alteration, each.condition, f"{place}.condition")
        found.append(Expected(each.name, condition, each.on_violation, place))
    return tuple(found)


def _condition(table: MirroredTable, alteration: DriftPlan, sql: str, place: str) -> Condition:
    """Return a checked condition. Raises Refused if it does not fit these columns."""
    try:
        return table.condition(sql, alteration.columns)
    except WrongCondition as error:
        raise Refused(
            f"{place} {error}. It is a condition on one row of the "
            f"mirror, which has the columns {', '.join(alteration.columns)}"
        ) from None


def _check(
    table: MirroredTable,
    versions: Sequence[Schema],
    names: Mapping[str, str],
    alteration: DriftPlan,
    mirror_key: Sequence[str],
    computed: Mapping[str, Computed],
) -> None:
    """Raise Refused for names and types that the mirror cannot have."""
    check_columns(
        table.settings,
        [[each.name for each in version.fields] for version in versions],
        names,
        alteration.columns,
        key=mirror_key,
        soft=table.soft if mirror_key else None,
        own=[*table.own, *computed],
        metadata=(
            *metadata_of(table.mode if mirror_key else "append"),
            *([SHARD] if table.shard is not None else []),
        ),
        made=table.mirror.exists,
        keeps_events=table.mirror.keeps_events,
    )
    features = table.mirror.features
    columns_ = {**alteration.columns, **table.own, **{name: each.kind for name, each in computed.items()}}
    check_features(table.settings, table.location, features, columns_, table.avoided)
    _check_fits(table, columns_, mirror_key)


def _check_fits(
    table: MirroredTable, columns_: Mapping[str, DataType] = _NO_COLUMNS, mirror_key: Sequence[str] = ()
) -> None:
    """Raise Refused if the target cannot have its name or one of these columns."""
    unfit = table.mirror.unfit(columns_, mirror_key)
    if unfit is not None:
        raise Refused(f"the target {table.location} cannot have {unfit.what}: {_fitting(table, unfit)}")


def _fitting(table: MirroredTable, unfit: Unfit) -> str:
    """Return what to do about something that the target cannot have."""
    place = f"tables[{table.settings.source}]"
    if unfit.change == "target":
        return f"set {place}.target to another one"
    if unfit.change == "name":
        return f"rename it with {place}.columns.rename"
    return f"set {place}.primaryKey to other columns" if unfit.change == "key" else left_out(table.settings)
