"""Conditions of Spark SQL, and the same in Python, for rows as the rules have them.

In SQL, a comparison with null is null, NaN is greater than all other numbers and equal to itself, and what
is divided by zero fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lakemirror.driver.rules.conditions import Fails
from lakemirror.driver.rules.values import Values

Truth = bool | None
Evaluate = Callable[[Values], Truth]


def compares(column: str, holds: Callable[[Any], bool]) -> Evaluate:
    """Whether something holds for a value; null if that is null."""
    return lambda row: None if row.get(column) is None else holds(row[column])


def both(*parts: Evaluate) -> Evaluate:
    """AND: false if a part is, otherwise null if a part is."""

    def evaluate(row: Values) -> Truth:
        found = [each(row) for each in parts]
        return False if False in found else None if None in found else True

    return evaluate


def either(*parts: Evaluate) -> Evaluate:
    """OR: true if a part is, otherwise null if a part is."""

    def evaluate(row: Values) -> Truth:
        found = [each(row) for each in parts]
        return True if True in found else None if None in found else False

    return evaluate


def is_nan(value: float) -> bool:
    """Whether a float is no number."""
    return value != value


def quotient(row: Values) -> Truth:
    """100 / v > 10, which fails for zero."""
    if row.get("v") is None:
        return None
    if row["v"] == 0:
        raise Fails
    return bool(100 / row["v"] > 10)


CONDITIONS: Mapping[str, tuple[Sequence[str], Evaluate]] = {
    "v % 3 <> 0": (("v",), compares("v", lambda v: v % 3 != 0)),
    "v % 3 <> 0 AND (note LIKE 'note%' OR big > '')": (
        ("v", "note", "big"),
        both(
            compares("v", lambda v: v % 3 != 0),
            either(
                compares("note", lambda note: note.startswith("note")),
                compares("big", lambda big: big > ""),
            ),
        ),
    ),
    "note IS NULL": (("note",), lambda row: row.get("note") is None),
    "v >= 0": (("v",), compares("v", lambda v: v >= 0)),
    "v IS NOT NULL": (("v",), lambda row: row.get("v") is not None),
    "v % 4 <> 1": (("v",), compares("v", lambda v: v % 4 != 1)),
    "v % 5 <> 2 OR big > ''": (
        ("v", "big"),
        either(compares("v", lambda v: v % 5 != 2), compares("big", lambda big: big > "")),
    ),
    "big > ''": (("big",), compares("big", lambda big: big > "")),
    "100 / v > 10": (("v",), quotient),
    "d > 1.5": (("d",), compares("d", lambda d: is_nan(d) or d > 1.5)),
    "d = d": (("d",), compares("d", lambda d: True)),
    "NOT (s = '')": (("s",), compares("s", lambda s: s != "")),
    "true": ((), lambda row: True),
}
"""By the SQL: the columns that a condition reads, and what it is for a row."""
