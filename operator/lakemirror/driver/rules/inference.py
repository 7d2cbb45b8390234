"""Types of columns whose records carry no schema, from their values.

A whole number is BIGINT (DECIMAL(38,0) if it does not fit), a number with a fraction is DOUBLE, and text is
STRING. So is a number that no type holds exactly. Arrays and objects are inferred element by element. An
object without a known shape, and values of several kinds, are STRING (as JSON), and so is what is nested too
deeply. A column in which only nulls were seen has no type yet.

What was seen is a `Shape`. Shapes merge in any order, so that each block of a batch can infer its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import reduce
from typing import Any, Final

from lakemirror.driver.rules.drift import grown
from lakemirror.driver.rules.kinds import BIGINT, BOOLEAN, DOUBLE, STRING, Arrays, Decimals, Kind, Structs
from lakemirror.driver.rules.members import has_repeated
from lakemirror.driver.rules.numbers import float_of, is_plain
from lakemirror.driver.rules.untyped import Number

DEEPEST: Final = 20
"""How many arrays and objects are nested in a column. What is deeper is a STRING (as JSON)."""
MOST_LISTS: Final = 4
"""How many of them are arrays: their values are converted one by one, at each level."""

_FLOATS = ("NaN", "Infinity", "-Infinity")
"""Floats that JSON has no numbers for, and spells as text. Beside numbers, they are numbers."""


@dataclass(frozen=True)
class Shape:
    """What was seen of a value: ``kinds`` are names of JSON's kinds of values."""

    kinds: frozenset[str] = frozenset()
    items: Shape | None = None
    members: Mapping[str, Shape] = field(default_factory=dict)


def shape_of(value: Any) -> Shape:
    """Return what one value shows. With an object that has a member twice, it is a text, which takes both."""
    return Shape(frozenset({"text"})) if has_repeated(value) else _shape_of(value)


def _shape_of(value: Any) -> Shape:
    if value is None:
        return Shape()
    if isinstance(value, list):
        return Shape(frozenset({"array"}), reduce(merge, map(_shape_of, value), Shape()))
    if isinstance(value, dict):
        return Shape(frozenset({"object"}), members={name: _shape_of(each) for name, each in value.items()})
    return Shape(frozenset({_name(value)}))


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer" if -(2**63) <= value < 2**63 else _name_of_number(str(value), "large")
    if isinstance(value, Number):
        return _name_of_number(value.sent, "fraction")
    if isinstance(value, (float, Decimal)):
        return "fraction"
    return "float" if value in _FLOATS else "text"


def _name_of_number(text: str, name: str) -> str:
    """Return the kind of a number. One that has too many digits is a DOUBLE if it is one, and else a text."""
    if is_plain(text):
        return name
    return "text" if float_of(text, DOUBLE) is None else "fraction"


def merge(one: Shape, other: Shape) -> Shape:
    """Return what both values show together; in any order, and in any grouping with others."""
    items = (
        one.items
        if other.items is None
        else other.items
        if one.items is None
        else merge(one.items, other.items)
    )
    members = {**one.members, **other.members}
    both = {
        name: merge(one.members[name], other.members[name])
        for name in one.members.keys() & other.members.keys()
    }
    return Shape(one.kinds | other.kinds, items, {**members, **both})


def kind_of(shape: Shape, levels: int = DEEPEST, lists: int = MOST_LISTS) -> Kind | None:
    """Return the type of a column that shows this; None if it is not known yet.

    ``levels`` and ``lists`` are how many arrays and objects, and how many arrays, may be nested in it.
    """
    kinds = shape.kinds
    if not kinds:
        return None
    if kinds == {"array"} and levels and lists:
        items = kind_of(shape.items, levels - 1, lists - 1) if shape.items is not None else None
        return Arrays(items or STRING)
    if kinds == {"object"} and levels:
        return _struct(shape, levels - 1, lists)
    if kinds == {"boolean"}:
        return BOOLEAN
    numbers = kinds - {"float"}
    if numbers and numbers <= {"integer", "large", "fraction"}:
        if kinds == {"integer"}:
            return BIGINT
        return Decimals(38, 0) if kinds <= {"integer", "large"} else DOUBLE
    return STRING


def _struct(shape: Shape, levels: int, lists: int) -> Kind:
    if _is_pair(shape):
        return STRING  # Debezium's VariableScaleDecimal, as text
    known = {name: kind_of(each, levels, lists) for name, each in shape.members.items()}
    mixed = any(len(_families(each.kinds)) > 1 for each in shape.members.values())
    fields = tuple((name, kind) for name, kind in sorted(known.items()) if kind is not None)
    return Structs(fields) if fields and not mixed else STRING


def _is_pair(shape: Shape) -> bool:
    """Return whether these are objects of a scale and a value, Debezium's VariableScaleDecimal."""
    scale, value = shape.members.get("scale"), shape.members.get("value")
    are_pair = len(shape.members) == 2 and scale is not None and value is not None
    return are_pair and scale.kinds == {"integer"} and value.kinds == {"text"}  # type: ignore[union-attr]


def with_members(there: Kind, shape: Shape) -> Kind:
    """Return the type of a column, with the new members of its objects in values that show ``shape``."""
    if isinstance(there, Arrays):
        return Arrays(with_members(there.item, shape.items or Shape()))
    if not isinstance(there, Structs):
        return there
    known = dict(there.fields)
    old = [(name, with_members(kind, shape.members.get(name, Shape()))) for name, kind in known.items()]
    new = {name: kind_of(each) for name, each in sorted(shape.members.items()) if name not in known}
    return grown(there, Structs((*old, *((name, kind) for name, kind in new.items() if kind is not None))))


def _families(kinds: frozenset[str]) -> set[str]:
    """Return the kinds of values that have no type in common."""
    numbers = {"integer", "large", "fraction"}
    family = {each: "number" if each in numbers else each for each in kinds}
    if "float" in kinds:
        family["float"] = "number" if kinds & numbers else "text"
    return set(family.values())
