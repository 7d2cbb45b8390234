"""What a batch does to the rows of a table, as a value: writers carry it out, and know nothing of modes.

Expressions name stored rows and states as `lakemirror.driver.tables.columns` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column

from lakemirror.driver.reduce.bounds import Bound


@dataclass(frozen=True, eq=False)
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
