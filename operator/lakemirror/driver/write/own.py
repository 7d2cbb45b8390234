"""Columns that the manifest adds to a mirror, and the values that written rows get in them.

These are ``columns.metadata``, ``rowHash``, ``keyHash`` and ``expressions``. They are computed from the
values that a row is going to have, whichever event or stored row these come from. A hash or an expression is
therefore right even if the source left out a value. A row that is not written keeps its values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.api.tables import OwnColumn
from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.parse.computed import Computed
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.changes import Changes, Clause
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.keys import canonical_row


@dataclass(frozen=True)
class Own:
    """The columns that the manifest adds.

    ``wanted`` says what each one contains, by its name; ``computed`` are those that are computed from others.
    ``columns`` are the source's columns, ``key`` those of the key.
    """

    wanted: Mapping[str, OwnColumn]
    columns: Mapping[str, DataType]
    key: Sequence[str]
    pipeline: str
    batch: int
    computed: Mapping[str, Computed]

    @classmethod
    def of(cls, table: MirroredTable, plan: TablePlan, batch: Batch) -> Own:
        """Return the added columns of a table, in a batch."""
        columns = {name: kind for name, kind in plan.reading.columns.items() if name != plan.soft}
        wanted, key = table.settings.own_columns, plan.reading.key
        return cls(wanted, columns, key, table.pipeline, batch.batch_id, plan.computed)

    def filled(self, changes: Changes) -> Changes:
        """Return changes that fill these columns as well."""
        if not self.wanted and not self.computed:
            return changes
        return replace(
            changes,
            matched=tuple(self._updated(each) for each in changes.matched),
            untouched=tuple(self._updated(each) for each in changes.untouched),
            unmatched=tuple(self._inserted(each) for each in changes.unmatched),
        )

    def values(
        self, given: Mapping[str, Column], row: Mapping[str, Column], shows: Column | None = None
    ) -> dict[str, Column]:
        """Return the values of all these columns for one row.

        ``row`` has the columns of that row, and ``given`` its metadata. ``shows`` says whether these columns
        are those of a row (None: if its operation is not a delete, whose values may be made up or missing).
        """
        shown = given["__op"].isin(*WITH_ROW) if shows is None else shows
        computed = {name: F.when(shown, each.of(row)) for name, each in self.computed.items()}
        return {**self._metadata(given), **self._hashes(row), **self._key_hash(row), **computed}

    def _inserted(self, clause: Clause) -> Clause:
        values = clause.values or {}
        own = self.values({**values, **_op(clause)}, {n: values[n] for n in self.columns}, clause.shows)
        return replace(clause, values={**values, **own})

    def _updated(self, clause: Clause) -> Clause:
        """Fill the columns of an update.

        Metadata comes from the event for which a row is written. Hashes and expressions follow any value of
        the row.
        """
        if clause.values is None:
            return clause
        values = dict(clause.values)
        if "__event_time" in values:
            values |= self._metadata({"__op": T("__op"), **values, **_op(clause)})
        if any(name in values for name in self.columns):
            row = {name: values.get(name, T(name)) for name in self.columns}
            values |= {**self._hashes(row), **{name: each.of(row) for name, each in self.computed.items()}}
        return replace(clause, values=values)

    def _metadata(self, given: Mapping[str, Column]) -> dict[str, Column]:
        origin = given["__origin"]
        made = {
            "sourceTime": given["__event_time"],
            "op": given["__op"],
            "topic": origin["topic"],
            "partition": origin["partition"],
            "offset": origin["offset"],
            "loadTime": F.current_timestamp(),
            "pipeline": F.lit(self.pipeline),
            "batch": F.lit(self.batch).cast("bigint"),
        }
        return {name: made[what] for name, what in self.wanted.items() if what in made}

    def _hashes(self, row: Mapping[str, Column]) -> dict[str, Column]:
        return {name: _hash(row, self.columns) for name, what in self.wanted.items() if what == "rowHash"}

    def _key_hash(self, row: Mapping[str, Column]) -> dict[str, Column]:
        key = {name: self.columns[name] for name in self.key}
        found = _hash(row, key) if key else F.lit(None).cast("string")
        return {name: found for name, what in self.wanted.items() if what == "keyHash"}


def _op(clause: Clause) -> dict[str, Column]:
    """Return the operation for which a row is written, as metadata, if its ``__op`` does not say."""
    return {} if clause.op is None else {"__op": clause.op}


def _hash(row: Mapping[str, Column], columns: Mapping[str, DataType]) -> Column:
    """STRING: the SHA-256 of some columns in canonical form, as 64 hexadecimal digits."""
    return F.sha2(canonical_row({name: row[name] for name in columns}, columns), 256)
