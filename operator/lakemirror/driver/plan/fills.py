"""Stored values of a column's former life, and the values that replace them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.sequence import OWN, own
from lakemirror.driver.tables.columns import T


@dataclass(frozen=True)
class Fill:
    """A column that begins a new life.

    Stored values up to the sequence ``until`` become ``value``.
    """

    value: Column
    until: bytes
    kind: DataType


def aged(fills: Mapping[str, Fill]) -> Column:
    """BOOLEAN: whether a stored row has a value from a former life of one of the columns."""
    old = [
        is_former(name, each) & ~same_value(T(name), each.value, each.kind) for name, each in fills.items()
    ]
    return reduce(Column.__or__, old)


def is_former(name: str, fill: Fill) -> Column:
    """BOOLEAN: whether a stored value is from the column's former life."""
    return stored_seq(name) <= F.lit(fill.until + OWN)


def stored_seq(name: str) -> Column:
    """BINARY: the sequence of a column of a stored row."""
    return F.coalesce(T("__column_seq")[F.lit(name)], own(T("__seq")))
