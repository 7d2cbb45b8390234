"""Schema drift: what to do when the columns of events and of the mirror differ.

Pure functions over Spark types.

Widening follows Delta's list (https://docs.delta.io/latest/delta-type-widening.html). Integers become
decimals or doubles by an explicit ALTER. Structs get the members that they lack, including structs inside
other structs and in arrays. Members that exist already keep their types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from lakemirror.driver.errors import SchemaDriftRefused
from lakemirror.driver.results import Drift, DriftAction, DriftChange

Policy = Literal["evolve", "skip", "fail"]

_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}


@dataclass(frozen=True)
class SchemaVersion:
    """The columns (name -> Spark type) of the events of one schema, and the time of the first such event."""

    columns: Mapping[str, DataType]
    since: datetime | None = None


@dataclass(frozen=True)
class DriftPlan:
    """What to alter before a table is written, and what can be written of each version.

    ``columns`` are the mirror's columns afterwards. ``refused[i]`` are the columns of version ``i`` whose
    type cannot be stored: its records go to the quarantine.
    """

    columns: dict[str, DataType]
    add: dict[str, DataType] = field(default_factory=dict)
    alter: dict[str, DataType] = field(default_factory=dict)
    refused: tuple[frozenset[str], ...] = ()
    drift: tuple[Drift, ...] = ()


def plan_drift(
    table: str,
    existing: Mapping[str, DataType] | None,
    versions: Sequence[SchemaVersion],
    policy: Policy,
    *,
    dropped: Collection[str] = (),
    returned: Collection[str] = (),
    past: Collection[str] = (),
) -> DriftPlan:
    """Compare the mirror's columns with those of each schema version, oldest first.

    ``existing`` is None if there is no table yet. ``dropped`` are the columns that the versions show to be
    gone, and ``returned`` those that have come back. ``past`` are the columns that the source no longer has;
    only ``evolve`` adds them, for the sake of old events.

    Raises SchemaDriftRefused under the policy ``fail``, naming the column, the policy and the remedy.
    """
    columns = dict(existing or {})
    add: dict[str, DataType] = {}
    alter: dict[str, DataType] = {}
    refused: list[frozenset[str]] = []
    drift: list[Drift] = []

    def note(
        column: str,
        change: DriftChange,
        before: DataType | None,
        after: DataType | None,
        action: DriftAction,
        version: SchemaVersion,
    ) -> None:
        if policy == "fail":
            raise SchemaDriftRefused(_refusal(table, column, change, before, after))
        drift.append(Drift(column, change, _name(before), _name(after), action, version.since))

    again = set(returned)
    for number, version in enumerate(versions):
        bad: set[str] = set()
        creating = existing is None and number == 0
        for name, wanted in version.columns.items():
            present = columns.get(name)
            if present is None:
                if policy != "evolve" and name in past:
                    continue
                if creating:
                    columns[name] = wanted
                elif policy == "skip":
                    note(name, DriftChange.ADDED, None, wanted, DriftAction.SKIPPED, version)
                else:
                    note(name, DriftChange.ADDED, None, wanted, DriftAction.ADDED, version)
                    columns[name] = add[name] = wanted
                continue
            if fits(wanted, present):
                if name in again:
                    note(name, DriftChange.ADDED, None, wanted, DriftAction.ADDED, version)
                    again.discard(name)
                continue
            common = widened(present, wanted)
            if common is None and isinstance(present, StringType):
                note(name, DriftChange.INCOMPATIBLE, present, wanted, DriftAction.STORED_AS_TEXT, version)
            elif common is None:
                note(name, DriftChange.INCOMPATIBLE, present, wanted, DriftAction.QUARANTINED, version)
                bad.add(name)
            elif policy == "skip":
                note(name, DriftChange.WIDENED, present, wanted, DriftAction.SKIPPED, version)
            else:
                note(name, DriftChange.WIDENED, present, wanted, DriftAction.ALTERED, version)
                columns[name] = common
                if existing is not None and name in existing:
                    alter[name] = common
                elif name in add:
                    add[name] = common
        refused.append(frozenset(bad))
    for name in sorted(columns.keys() & set(dropped)):
        note(name, DriftChange.DROPPED, columns[name], None, DriftAction.KEPT, versions[-1])
    return DriftPlan(columns, add, alter, tuple(refused), tuple(drift))


def fits(value: DataType, stored: DataType) -> bool:
    """Return whether every value of type ``value`` can be stored exactly as ``stored``."""
    if isinstance(value, StructType) and isinstance(stored, StructType):
        kinds = {each.name: each.dataType for each in stored.fields}
        return all(each.name in kinds and fits(each.dataType, kinds[each.name]) for each in value.fields)
    if isinstance(value, ArrayType) and isinstance(stored, ArrayType):
        return fits(value.elementType, stored.elementType)
    if isinstance(value, (StructType, ArrayType)):
        return value == stored
    return value == stored or widened(value, stored) == stored


def widened(present: DataType, wanted: DataType) -> DataType | None:
    """Return the type to which ``present`` can be altered so that it holds both, or None if there is none."""
    if present == wanted:
        return present
    if isinstance(present, (StructType, ArrayType)):
        common = grown(present, wanted)
        return common if fits(wanted, common) else None
    if isinstance(present, _INTEGERS):
        if isinstance(wanted, _INTEGERS):
            return max(present, wanted, key=lambda each: _DIGITS[type(each)])
        if isinstance(wanted, DoubleType):
            return wanted if not isinstance(present, LongType) else None
        if isinstance(wanted, DecimalType):
            return _decimal(max(wanted.precision - wanted.scale, _DIGITS[type(present)]), wanted.scale)
    if isinstance(present, DecimalType) and isinstance(wanted, _INTEGERS):
        return _decimal(max(present.precision - present.scale, _DIGITS[type(wanted)]), present.scale)
    if isinstance(present, DecimalType) and isinstance(wanted, DecimalType):
        whole = max(present.precision - present.scale, wanted.precision - wanted.scale)
        return _decimal(whole, max(present.scale, wanted.scale))
    if isinstance(present, FloatType) and isinstance(wanted, DoubleType):
        return wanted
    if isinstance(present, DoubleType) and isinstance(wanted, (FloatType, ByteType, ShortType, IntegerType)):
        return present
    if isinstance(present, DateType) and isinstance(wanted, TimestampNTZType):
        return wanted
    if isinstance(present, TimestampNTZType) and isinstance(wanted, DateType):
        return present
    return None


def grown(present: DataType, wanted: DataType) -> DataType:
    """Return ``present`` with the struct members that only ``wanted`` has.

    No struct in Spark has two members whose names differ only in case.
    """
    if isinstance(present, StructType) and isinstance(wanted, StructType):
        kinds = {each.name: each.dataType for each in wanted.fields}
        taken = {name.lower() for name in present.names}
        there = [
            StructField(each.name, grown(each.dataType, kinds.get(each.name, each.dataType)))
            for each in present.fields
        ]
        new = [StructField(name, kind) for name, kind in kinds.items() if name.lower() not in taken]
        return StructType(there + new)
    if isinstance(present, ArrayType) and isinstance(wanted, ArrayType):
        return ArrayType(grown(present.elementType, wanted.elementType))
    return present


def _decimal(whole: int, scale: int) -> DecimalType | None:
    return DecimalType(whole + scale, scale) if whole + scale <= 38 else None


def _name(kind: DataType | None) -> str | None:
    return None if kind is None else kind.simpleString()


def _refusal(
    table: str, column: str, change: DriftChange, before: DataType | None, after: DataType | None
) -> str:
    what = {
        DriftChange.ADDED: f"is new ({_name(after)})",
        DriftChange.DROPPED: f"({_name(before)}) is gone",
        DriftChange.WIDENED: f"changed from {_name(before)} to {_name(after)}",
        DriftChange.INCOMPATIBLE: f"changed from {_name(before)} to {_name(after)}",
    }[change]
    return (
        f"table {table}: column {column} {what}, and schemaEvolution is 'fail': nothing was written. "
        f"Set spec.schemaEvolution to 'evolve' or 'skip', or change the source back."
    )
