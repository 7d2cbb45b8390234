"""What a batch does to the rows of a table, as a value: writers carry it out, and know nothing of modes.

``t`` is a stored row, and ``s`` what the batch has for a key, a state (`lakemirror.driver.reduce.events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.tables.delta import quoted


@dataclass(frozen=True)
class Clause:
    """Rows ``when`` this holds get these values in these columns, and keep the others; without ``values``
    they are deleted. Of several clauses the first that holds counts.
    """

    when: Column
    values: Mapping[str, Column] | None = None


@dataclass(frozen=True)
class Changes:
    """What becomes of the rows of a table.

    ``matched`` are clauses for stored rows whose key is in the batch, ``untouched`` for those whose key is
    not, ``unmatched`` for keys of the batch without a stored row. There are states for so many ``keys``,
    of which ``rows`` are not deletes; ``bounds`` limit key columns to the batch's
    range. ``plain``: a state replaces a stored row with a lower sequence, whatever that holds, leaves one
    with a higher one as it is, and gives the same row as it does without one.
    """

    key: Sequence[str]
    matched: Sequence[Clause]
    unmatched: Sequence[Clause]
    untouched: Sequence[Clause] = ()
    keys: int = 0
    rows: int = 0
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    plain: bool = False


@dataclass(frozen=True)
class Transaction:
    """Whose commit it is, so that a replay can tell that it is there."""

    app_id: str
    batch: Batch


@dataclass(frozen=True)
class Written:
    """Rows that a commit inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class Writer(Protocol):
    """Brings the rows of one Delta table up to date."""

    def write(self, states: DataFrame, changes: Changes, transaction: Transaction) -> Written:
        """Carry out ``changes`` for a materialised frame of ``states``, as one commit."""


def T(name: str) -> Column:  # noqa: N802
    """A column of the stored row."""
    return F.col(f"t.{quoted(name)}")


def S(name: str) -> Column:  # noqa: N802
    """A value of the state's row."""
    return F.col("s.row")[name]
