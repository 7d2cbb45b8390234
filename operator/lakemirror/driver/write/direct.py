"""Writes data files and commits them itself, where MERGE would scan the table several times.

One job looks up the key and sequence of the stored rows whose keys are in the batch, and another job writes
the batch's rows. Stored rows that go away are hidden by deletion vectors if their files are large, and left
out of new files if they are small. So a small mirror needs no feature that some readers lack, and keeps few
files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from lakemirror.driver.codes import Op
from lakemirror.driver.expressions import kept
from lakemirror.driver.joins import hinted
from lakemirror.driver.materialise import materialised
from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.mirror import CHANGE_FEED_PROPERTY, VECTORS, VECTORS_PROPERTY, Mirror
from lakemirror.driver.write import rewrite
from lakemirror.driver.write.clauses import first_of, resolved, same_key, typed, value_of
from lakemirror.driver.write.log import Attempt, Rows, TableLog, place_of, row_of, rows_in
from lakemirror.driver.write.writer import Transaction, Written

_KNOWN: Final = frozenset(
    {
        *("appendOnly", "invariants", "columnMapping", "deletionVectors", "timestampNtz", "variantType"),
        *("typeWidening", "typeWidening-preview", "clustering", "domainMetadata", "v2Checkpoint"),
        *("vacuumProtocolCheck", "inCommitTimestamp", "checkpointProtection"),
    }
)
"""Delta features that require nothing of a writer beyond what Delta's own transaction does."""

_ROWS_PER_FILE: Final = 50_000
_BYTES_PER_FILE: Final = 64 * 1024 * 1024
_SMALL, _FEW = 8 * 1024 * 1024, 24
"""Maximum size of a small file in bytes, and the maximum number of small files in a table.

When there are more, they are combined into one.
"""
_DEAD: Final = 0.5
"""Share of hidden rows above which a file is rewritten."""

_PLACE: Final = ("at_file", "at_row")
_Flags = npt.NDArray[np.bool_]


def possible(mirror: Mirror) -> bool:
    """Return whether a mirror can be written this way.

    It must not be partitioned, must have no feature that requires more of a writer, and its rows must not be
    numbered by Delta. Nobody may read its change feed, in which an update would look like a delete and an
    insert.
    """
    return (
        mirror.properties.get(CHANGE_FEED_PROPERTY, "false").lower() != "true"
        and not (mirror.partitioned or mirror.numbered)
        and mirror.writer_features <= _KNOWN
    )


@dataclass(frozen=True)
class _Places:
    """The places of stored rows.

    For each row, this is the hash of its file, its index there, and the number of its key's state.
    """

    files: Rows
    rows: Rows
    numbers: Rows

    @classmethod
    def of(cls, found: Mapping[str, Any], chosen: _Flags) -> _Places:
        """Select the ``chosen`` ones from what was looked up."""
        return cls(*[found[name][chosen] for name in (*_PLACE, "number")])

    @classmethod
    def none(cls) -> _Places:
        """Return the places of a table without rows."""
        nothing = np.empty(0, np.int64)
        return cls(nothing, nothing, nothing)

    def by_file(self) -> dict[int, Rows]:
        order = np.lexsort((self.rows, self.files))
        files, rows = self.files[order], self.rows[order]
        places, starts = np.unique(files, return_index=True)
        parts = np.split(rows, starts[1:]) if len(places) else []
        return {int(place): part for place, part in zip(places, parts, strict=True)}


@dataclass(frozen=True)
class _Outcome:
    """What must be written.

    ``rows`` are the rows to add; without them, nothing is added. ``added`` are their files if they are
    written already. ``gone`` are the stored rows that go away. ``written`` has the counts, or is None if
    everything that is added is new.
    """

    rows: DataFrame | None
    gone: _Places
    written: Written | None
    added: Sequence[Any] | None = None


class DirectWriter:
    """Changes the rows of one mirror.

    It handles only changes to keys of the batch (none ``untouched``).
    """

    def __init__(self, mirror: Mirror, avoided: Collection[str] = ()) -> None:
        """Create a writer for a mirror.

        ``avoided`` are Delta features that the mirror must not have. The mirror's properties may exclude
        features, too.
        """
        self._mirror = mirror
        self._may_hide = VECTORS not in avoided
        self._log: TableLog | None = None
        self._in_order = False
        """Whether the previous batch had no late events and hid rows.

        If so, the rows of the next batch are written without waiting for the lookup.
        """

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """See `lakemirror.driver.write.writer.Writer`."""
        if self._log is None:
            self._log = TableLog(states.sparkSession, self._mirror.required_path)
        attempt = self._log.begin(transaction)
        files = attempt.files_within(changes.bounds)
        if files and rewrite.is_little(files.values(), changes):
            return _rewrite(attempt, files, states, changes, transaction, first)
        with ThreadPoolExecutor(2) as pool:
            standing = pool.submit(first)
            outcome = self._outcome(attempt, states, changes)
            told = pool.submit(transaction.told, outcome.written) if outcome.written is not None else None
            gone = outcome.gone.by_file()
            large = sum(attempt.data.files[place].size() for place in gone) > rewrite.BYTES
            hides = large and self._may_hide and attempt.vectors is not False
            if hides and attempt.vectors is None:
                self._log.discard(outcome.added or ())
                standing.result()
                self._mirror.alter({}, {}, {VECTORS_PROPERTY: "true"})
                return self.write(states, changes, transaction, _nothing)
            anew = _worn(attempt, gone) if hides else set(gone)
            added = outcome.added
            if added is None or (anew and not hides):
                self._log.discard(added or ())
                added = _written(attempt, outcome, anew, states, changes)
            elif anew:
                added = [*added, *_written(attempt, replace(outcome, rows=None), anew, states, changes)]
            standing.result()
            if told is not None:
                written = told.result()
            else:
                written = transaction.told(Written(inserted=_count(added, outcome)))
        attempt.commit(added, gone, written, anew=anew)
        self._in_order = hides and self._in_order
        return written

    def _outcome(self, attempt: Attempt, states: DataFrame, changes: Changes) -> _Outcome:
        """Determine what must be written. Looks up the stored rows of the batch's keys."""
        if not attempt.files_within(changes.bounds):
            return _Outcome(_as_stored(attempt, states.alias("s"), changes), _Places.none(), None)
        plain = self._plain(attempt, states, changes) if changes.plain else None
        return plain or _full(attempt, states, changes)

    def _plain(self, attempt: Attempt, states: DataFrame, changes: Changes) -> _Outcome | None:
        """Let the newer of state and row win.

        Returns None if some are equally new, because then they must be compared.
        """
        assert self._log is not None
        rows = _as_stored(attempt, states.alias("s"), changes)
        with ThreadPoolExecutor(1) as pool:
            early: Future[list[Any]] | None = None
            if self._in_order and attempt.vectors:
                early = pool.submit(attempt.write, rows)
            found = _lookup(attempt, states, changes)
            added = early.result() if early else None
        newer, later, gone = found["newer"], found["later"], found["gone"]
        self._in_order = bool(newer.all())
        if not self._in_order:
            self._log.discard(added or ())
            added = None
        if (~newer & ~later).any():
            return None
        if not self._in_order:
            passed = states.sparkSession.createDataFrame(pa.table({"number": found["number"][~newer]}))
            kept = states.join(F.broadcast(passed), "number", "left_anti")
            rows = _as_stored(attempt, kept.alias("s"), changes)
        deleted = int((gone & newer).sum())
        updated = int(newer.sum()) - deleted
        inserted = changes.rows - int((~gone).sum())
        return _Outcome(
            rows,
            _Places.of(found, newer),
            Written(inserted, updated, deleted),
            added,
        )


def _rewrite(
    attempt: Attempt,
    files: Mapping[int, Any],
    states: DataFrame,
    changes: Changes,
    transaction: Transaction,
    first: Callable[[], None],
) -> Written:
    """Rewrite small files, with the changes applied."""
    with ThreadPoolExecutor(1) as pool:
        standing = pool.submit(first)
        added, written = rewrite.rewritten(attempt, files.values(), states, changes)
        written = transaction.told(written)
        standing.result()
    if written == Written():
        attempt.discard(added)
        attempt.commit((), {}, written)
    else:
        attempt.commit(added, {}, written, anew=files)
    return written


def _nothing() -> None:
    """Do nothing, because what must come first has been done already."""


def _count(added: Sequence[Any], outcome: _Outcome) -> int:
    """Return how many rows were added."""
    count = rows_in(added)
    if count is None:
        assert outcome.rows is not None
        count = outcome.rows.count()
    return count


def _lookup(attempt: Attempt, states: DataFrame, changes: Changes) -> dict[str, Any]:
    """Return the stored rows of the batch's keys, as arrays.

    These are at_file, at_row, the number of the state, whether the state is newer (newer), whether the row is
    later (later), and whether the state deletes the row (gone).
    """
    stored = attempt.rows(attempt.files_within(changes.bounds).values()).alias("t")
    stored = stored.select(
        *[T(name).alias(f"k{i}") for i, name in enumerate(changes.key)],
        T("__seq").alias("stored"),
        *_place(attempt, stored),
    )
    keys = states.select(
        *[F.col("key")[name].alias(f"s{i}") for i, name in enumerate(changes.key)],
        "seq",
        "number",
        (F.col("op") == Op.DELETE).alias("gone"),
    )
    same = [F.col(f"k{i}") == F.col(f"s{i}") for i in range(len(changes.key))]
    found = stored.join(hinted(keys, changes.keys), reduce(Column.__and__, same)).select(
        *_PLACE,
        "number",
        (F.col("seq") > F.col("stored")).alias("newer"),
        (F.col("seq") < F.col("stored")).alias("later"),
        "gone",
    )
    return _arrays(found)


def _full(attempt: Attempt, states: DataFrame, changes: Changes) -> _Outcome:
    """Carry out clauses of any kind.

    Whole rows are looked up, and what happens to them is computed once.
    """
    stored = attempt.rows(attempt.files_within(changes.bounds).values()).alias("t")
    keys = states.select("key", "number")
    wanted = stored.join(hinted(keys, changes.keys).alias("s"), same_key(changes)).select(
        F.struct("t.*").alias("t"), F.col("s.number").alias("of"), *_place(attempt, stored)
    )
    wanted = materialised(wanted)
    joined = states.alias("s").join(hinted(wanted, changes.keys), F.col("s.number") == F.col("of"), "left")
    matched = F.col("at_file").isNotNull()
    outcome = materialised(resolved(joined, attempt.schema.fields, changes, matched, *_PLACE, "number"))
    found = _arrays(outcome.select(F.col("at_file").isNotNull().alias("matched"), "gone", "number", *_PLACE))
    hit, gone = found["matched"], found["gone"]
    rows = outcome.where(~F.col("gone")).select("n.*") if not gone.all() else None
    written = Written(int((~hit).sum()), int((hit & ~gone).sum()), int(gone.sum()))
    return _Outcome(rows, _Places.of(found, hit), written)


def _worn(attempt: Attempt, gone: Mapping[int, Rows]) -> set[int]:
    """Return the files to rewrite although their rows could be hidden.

    These are the files with more dead rows than live ones, and the small files if there are many.
    """
    files = attempt.data.files
    small = {place for place, add in files.items() if add.size() < _SMALL}
    dead = {place for place, rows in gone.items() if _dead_share(files[place], len(rows)) > _DEAD}
    return dead | small if len(small) > _FEW else dead


def _dead_share(add: Any, more: int) -> float:
    """Return the share of a file's rows that are hidden once ``more`` rows are.

    Returns 0 if the number of its rows is unknown.
    """
    live = rows_in([add])
    before = add.deletionVector()
    hidden = int(before.cardinality()) if before is not None else 0
    return (hidden + more) / (hidden + live) if live else 0.0


def _written(
    attempt: Attempt, outcome: _Outcome, anew: Collection[int], states: DataFrame, changes: Changes
) -> list[Any]:
    """Write new files with an outcome's rows, and with what remains of the files to rewrite (``anew``)."""
    frames = [outcome.rows] if outcome.rows is not None else []
    rows, size = changes.rows, 0
    if anew:
        files = [attempt.data.files[place] for place in anew]
        size = sum(each.size() for each in files)
        frames.append(_remaining(attempt, files, outcome.gone, states, changes))
    if not frames:
        return []
    parts = 1 + max(rows // _ROWS_PER_FILE, size // _BYTES_PER_FILE)
    parallel = states.sparkSession.sparkContext.defaultParallelism
    return attempt.write(reduce(DataFrame.unionAll, frames).coalesce(min(parts, parallel)))


def _remaining(
    attempt: Attempt, files: Sequence[Any], gone: _Places, states: DataFrame, changes: Changes
) -> DataFrame:
    """Return the rows of some files, except those that go away."""
    numbers = states.sparkSession.createDataFrame(pa.table({"number": np.unique(gone.numbers)}))
    keys = states.join(F.broadcast(numbers), "number", "left_semi").select("key")
    stored = attempt.rows(files).alias("t")
    return stored.join(hinted(keys, changes.keys).alias("s"), same_key(changes), "left_anti")


def _as_stored(attempt: Attempt, states: DataFrame, changes: Changes) -> DataFrame:
    """Return the rows that states produce without looking at stored rows."""
    choice, columns = _stored_columns(tuple(attempt.schema.fields), tuple(changes.unmatched))
    return states.select("*", choice).where("choice IS NOT NULL").select(*columns)


@kept
def _stored_columns(
    fields: tuple[StructField, ...], clauses: tuple[Clause, ...]
) -> tuple[Column, list[Column]]:
    """Return which clause applies to a state, as ``choice``, and the columns that the state then produces."""
    values = [typed(value_of(each.name, clauses, F.lit(None)), each) for each in fields]
    return first_of(clauses).alias("choice"), values


def _place(attempt: Attempt, stored: DataFrame) -> list[Column]:
    """Return where stored rows are. Delta gives their index only in a table with deletion vectors."""
    row = row_of(stored) if attempt.vectors else F.lit(0).cast("bigint")
    return [place_of(stored).alias("at_file"), row.alias("at_row")]


def _arrays(frame: DataFrame) -> dict[str, Any]:
    """Return the columns of a narrow frame as arrays."""
    table = frame.toArrow()
    found = {}
    for name in table.column_names:
        column = table[name]
        nothing = False if pa.types.is_boolean(column.type) else 0
        found[name] = column.fill_null(nothing).to_numpy()
    return found
