"""What a batch does to the rows of a table, as a value. Writers carry it out and know nothing about modes.

Expressions refer to stored rows and states as described in `lakemirror.driver.tables.columns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column

from lakemirror.driver.reduce.bounds import Bound


@dataclass(frozen=True, eq=False)
class Clause:
    """Rows for which ``when`` holds get these values in these columns and keep the others.

    Without ``values``, the rows are deleted. If several clauses hold, the first one counts. ``op`` is the
    operation for which the rows are written, if it is not their ``__op``. ``shows`` says whether a row that
    is inserted shows a row of the source, and not only its key (None: if its operation is not a delete).
    """

    when: Column
    values: Mapping[str, Column] | None = None
    op: Column | None = None
    shows: Column | None = None


@dataclass(frozen=True)
class Changes:
    """What happens to the rows of a table.

    ``matched`` are clauses for stored rows whose key is in the batch, ``untouched`` for stored rows whose key
    is not, and ``unmatched`` for keys of the batch without a stored row. ``keys`` is the number of states, of
    which ``rows`` are not deletes. ``bounds`` limit key columns to the batch's range. ``plain`` says that a
    state replaces a stored row with a lower sequence whatever that row holds, leaves a row with a higher
    sequence unchanged, and gives the same row as it does without a stored one.
    """

    key: Sequence[str]
    matched: Sequence[Clause]
    unmatched: Sequence[Clause]
    untouched: Sequence[Clause] = ()
    keys: int = 0
    rows: int = 0
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    plain: bool = False
