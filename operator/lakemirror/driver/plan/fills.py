"""Values that stored rows get in columns that begin a new life, or that are added with a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.codes import OWN_TOPICS
from lakemirror.driver.parse.values.expressions import same_value
from lakemirror.driver.plan.lives import Life
from lakemirror.driver.sequence import OWN, own
from lakemirror.driver.tables.columns import T, is_unseen


@dataclass(frozen=True)
class Fill:
    """A column in which stored values become ``value``.

    With a ``life``, these are only the values of a former life (`is_former`). ``current`` says that versions
    that have ended keep what they have.
    """

    value: Column
    kind: DataType
    life: Life | None = None
    current: bool = False


def aged(fills: Mapping[str, Fill]) -> Column:
    """BOOLEAN: whether a stored row has a value that one of the ``fills`` replaces."""
    old = [
        is_former(name, each) & ~same_value(T(name), each.value, each.kind) for name, each in fills.items()
    ]
    return reduce(Column.__or__, old)


def is_former(name: str, fill: Fill) -> Column:
    """BOOLEAN: whether a stored value is one that the fill replaces."""
    found = of_former_life(fill, stored_seq(name), T("__origin")["topic"])
    return found & (T("__is_current") if fill.current else ~is_unseen())


def of_former_life(fill: Fill, seq: Column, topic: Column) -> Column:
    """BOOLEAN: whether a value with the column sequence ``seq`` in a row from a ``topic`` is to be replaced.

    A value of a former life came from the same log, from the same epoch, and from a position up to the one
    after which the life begins. A row of a load that has no position is as the source was when it was read.
    """
    life = fill.life
    if life is None or life.absent is None:
        return F.lit(True)
    placed = (seq > F.lit(life.first + OWN)) & (seq <= F.lit(life.absent + OWN))
    here = topic.isin(*sorted(life.topics)) | topic.startswith(OWN_TOPICS)
    return placed & F.coalesce(here, F.lit(False))


def stored_seq(name: str) -> Column:
    """BINARY: the sequence of a column of a stored row: the lowest one in a row that was added by hand."""
    return F.coalesce(T("__column_seq")[F.lit(name)], own(T("__seq")), F.lit(b""))
