"""Columns of events and of a mirror that differ: which types can be widened, and what becomes of the others.

Widening follows Delta's list ("Delta type widening"); integers become decimals or doubles by an explicit
ALTER. Structs get the members that they lack. A STRING takes any later value as its text.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from lakemirror.driver.rules.kinds import (
    BIGINT,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    MAX_DIGITS,
    SMALLINT,
    STRING,
    TIMESTAMP_NTZ,
    TINYINT,
    Arrays,
    Decimals,
    Kind,
    Structs,
)

Policy = Literal["evolve", "skip", "fail"]
_DIGITS: Final[Mapping[Kind, int]] = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 19}


class Change(StrEnum):
    """What happened to a column."""

    ADDED = "added"
    DROPPED = "dropped"
    WIDENED = "widened"
    INCOMPATIBLE = "incompatible"


class Action(StrEnum):
    """What was done about it."""

    ADDED = "added"
    ALTERED = "altered"
    KEPT = "kept"
    SKIPPED = "skipped"
    STORED_AS_TEXT = "stored-as-text"
    QUARANTINED = "quarantined"
    REFUSED = "refused"


class Drift(NamedTuple):
    """A change of a column's type (None: the column is not there)."""

    column: str
    change: Change
    before: Kind | None
    after: Kind | None
    action: Action


class ColumnMarks(NamedTuple):
    """The highest position of a change whose schema lacks a column, and of one whose schema has it.

    Only changes that were streamed from one log say this (`positions.log_of`): neither rows of a snapshot nor
    records without a schema.
    """

    absent: bytes | None = None
    present: bytes | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the source no longer has the column."""
        return self.absent is not None and (self.present is None or self.present < self.absent)


@dataclass
class Plan:
    """What to alter before a table is written, and what can be written of the events of each schema.

    ``refused`` has, for each schema, the columns whose values the mirror cannot store: their records go to
    the quarantine. Under the policy ``fail``, the first drift is ``REFUSED``, and nothing is written.
    """

    columns: dict[str, Kind]
    add: dict[str, Kind] = field(default_factory=dict)
    alter: dict[str, Kind] = field(default_factory=dict)
    refused: list[frozenset[str]] = field(default_factory=list)
    drift: list[Drift] = field(default_factory=list)


def plan(
    existing: Mapping[str, Kind] | None,
    schemas: Sequence[Mapping[str, Kind]],
    policy: Policy,
    *,
    dropped: Collection[str] = (),
    returned: Collection[str] = (),
    past: Collection[str] = (),
) -> Plan:
    """Compare a mirror's columns (None: there is no table) with those of each schema, the oldest first.

    ``dropped`` are the columns that the schemas show to be gone, ``returned`` those that have come back.
    ``past`` are columns that the source no longer has; only ``evolve`` adds them, for the sake of old events.
    """
    found, again = Plan(dict(existing or {})), set(returned)
    for number, schema in enumerate(schemas):
        bad: set[str] = set()
        for name, wanted in schema.items():
            present = found.columns.get(name)
            if present is None and existing is None and number == 0:
                found.columns[name] = wanted
            elif present is None and not (policy != "evolve" and name in past):
                _add(found, name, wanted, policy)
            elif present is not None and fits(wanted, present):
                if name in again:
                    _note(found, Drift(name, Change.ADDED, None, wanted, Action.ADDED), policy)
                    again.discard(name)
            elif present is not None and not _widen(found, name, present, wanted, policy, existing):
                bad.add(name)
        found.refused.append(frozenset(bad))
    for name in sorted(found.columns.keys() & set(dropped)):
        _note(found, Drift(name, Change.DROPPED, found.columns[name], None, Action.KEPT), policy)
    return found


def _note(found: Plan, drift: Drift, policy: Policy) -> None:
    found.drift.append(drift._replace(action=Action.REFUSED) if policy == "fail" else drift)


def _add(found: Plan, name: str, wanted: Kind, policy: Policy) -> None:
    action = Action.SKIPPED if policy == "skip" else Action.ADDED
    _note(found, Drift(name, Change.ADDED, None, wanted, action), policy)
    if action is Action.ADDED:
        found.columns[name] = found.add[name] = wanted


def _widen(
    found: Plan,
    name: str,
    present: Kind,
    wanted: Kind,
    policy: Policy,
    existing: Mapping[str, Kind] | None,
) -> bool:
    """Alter a column so that it holds values of another type, and return whether they can be written."""
    common = widened(present, wanted)
    if common is None:
        text = present == STRING
        action = Action.STORED_AS_TEXT if text else Action.QUARANTINED
        _note(found, Drift(name, Change.INCOMPATIBLE, present, wanted, action), policy)
        return text
    action = Action.SKIPPED if policy == "skip" else Action.ALTERED
    _note(found, Drift(name, Change.WIDENED, present, wanted, action), policy)
    if action is Action.ALTERED:
        found.columns[name] = common
        if existing is not None and name in existing:
            found.alter[name] = common
        elif name in found.add:
            found.add[name] = common
    return True


def fits(value: Kind, stored: Kind) -> bool:
    """Return whether every value of type ``value`` can be stored exactly as ``stored``."""
    if isinstance(value, Structs) and isinstance(stored, Structs):
        kinds = dict(stored.fields)
        return all(name in kinds and fits(kind, kinds[name]) for name, kind in value.fields)
    if isinstance(value, Arrays) and isinstance(stored, Arrays):
        return fits(value.item, stored.item)
    if isinstance(value, (Structs, Arrays)):
        return value == stored
    return value == stored or widened(value, stored) == stored


def widened(present: Kind, wanted: Kind) -> Kind | None:
    """Return the type to which ``present`` can be altered so that it holds both; None if there is none."""
    if present == wanted:
        return present
    if isinstance(present, (Structs, Arrays)):
        common = grown(present, wanted)
        return common if fits(wanted, common) else None
    if isinstance(present, Decimals) or (present in _DIGITS and isinstance(wanted, Decimals)):
        return _widened_decimal(present, wanted)
    if present in _DIGITS and wanted in _DIGITS:
        return max(present, wanted, key=_DIGITS.__getitem__)
    if present in (TINYINT, SMALLINT, INT, FLOAT) and wanted == DOUBLE:
        return DOUBLE
    if present == DOUBLE and wanted in (FLOAT, TINYINT, SMALLINT, INT):
        return DOUBLE
    return TIMESTAMP_NTZ if {present, wanted} == {DATE, TIMESTAMP_NTZ} else None


def _widened_decimal(present: Kind, wanted: Kind) -> Kind | None:
    one, other = _digits(present), _digits(wanted)
    if one is None or other is None:
        return None
    whole, scale = max(one[0], other[0]), max(one[1], other[1])
    return Decimals(whole + scale, scale) if whole + scale <= MAX_DIGITS else None


def _digits(kind: Kind) -> tuple[int, int] | None:
    """Return the number of digits before and after the point of an exact number."""
    if isinstance(kind, Decimals):
        return kind.precision - kind.scale, kind.scale
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def grown(present: Kind, wanted: Kind) -> Kind:
    """Return ``present`` with the members that only ``wanted`` has; case does not tell names apart."""
    if isinstance(present, Structs) and isinstance(wanted, Structs):
        kinds, taken = dict(wanted.fields), {name.lower() for name, _ in present.fields}
        there = [(name, grown(kind, kinds.get(name, kind))) for name, kind in present.fields]
        new = [(name, kind) for name, kind in wanted.fields if name.lower() not in taken]
        return Structs((*there, *new))
    if isinstance(present, Arrays) and isinstance(wanted, Arrays):
        return Arrays(grown(present.item, wanted.item))
    return present
