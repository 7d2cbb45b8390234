"""What a batch is about to do to one table, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.attempt import explained
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce.table import NOTHING, Reduced
from lakemirror.driver.reduce.waiting import WAITS
from lakemirror.driver.results import Violated
from lakemirror.driver.tables.names import TableName

NO_POISON: Final = isolate.Poison()


@dataclass(frozen=True)
class Held:
    """Why all records of a table are held in this batch. ``error`` says whether something is wrong."""

    reason: str
    error: bool = True


@dataclass(frozen=True)
class Decision:
    """What a batch does to one table.

    One of three cases applies: there is a ``plan`` with its ``reduced`` events; the table's classified
    events, ``changes``, are ``held`` for a reason; or the manifest leaves the table out and nothing is done.
    With ``in_columns``, nothing is reduced: the engine applies the events as planned (`engine`).
    """

    name: TableName
    overview: TableOverview
    plan: TablePlan | None = None
    reduced: Reduced = NOTHING
    held: Held | None = None
    changes: DataFrame | None = None
    poison: isolate.Poison = NO_POISON
    """The records that make Spark throw. No part of them is undecided."""
    violated: Sequence[Violated] = ()
    """Expectations that rows of the batch violate."""
    causes: Mapping[str, str] = field(default_factory=dict)
    """What Spark says of expressions that fail for rows (`lakemirror.driver.parse.attempt.causes`)."""
    in_columns: bool = False

    @property
    def left_out(self) -> bool:
        """Whether the manifest leaves the table out."""
        return self.plan is None and self.held is None

    @property
    def records(self) -> int:
        """The number of the table's records in the batch."""
        return self.overview.events + self.overview.truncates

    @property
    def bad(self) -> int:
        """The number of the table's records that cannot be applied themselves."""
        return len(self.poison.records) + self.reduced.counts.bad

    @property
    def waiting(self) -> int:
        """How many of them have no place in the order yet. Nothing is wrong with them."""
        return self.reduced.counts.waiting

    @property
    def refused(self) -> int:
        """The number of records that are held with their table."""
        return self.records if self.held else 0

    @property
    def error(self) -> str | None:
        """Why the table is refused, or None."""
        return self.held.reason if self.held and self.held.error else None

    def example(self) -> str:
        """Return the first reason why a record is bad."""
        if self.held:
            return f"table {self.name}: {self.held.reason}"
        row = self.kept_aside().first()
        assert row is not None
        return f"{row['topic']}/{row['partition']}/{row['offset']}: {row['reason']}"

    def kept_aside(self) -> DataFrame:
        """Return the records that go to the quarantine.

        Columns: source, scope, reason, topic, partition, offset, file, row.
        """
        if self.held is not None:
            return self._aside(self.changes, F.lit(self.held.reason), "table")
        events, apart = self.reduced.events, self.reduced.apart
        parts = []
        if events is not None:
            waits = F.col(WAITS).isNotNull() if WAITS in events.columns else F.lit(False)
            scope = F.when(waits, "order").otherwise("record")
            parts.append(self._aside(events.withColumn("row", F.col("line")), explained(self.causes), scope))
        if apart.records is not None:
            parts.append(self._aside(apart.records, F.lit(apart.reason), "order"))
        aside = reduce(DataFrame.unionByName, parts)
        if not self.poison.records:
            return aside
        reason = isolate.reason(self.poison)
        return aside.unionByName(self._aside(self.changes, reason, "record"))

    def _aside(self, frame: DataFrame | None, reason: Column, scope: Column | str) -> DataFrame:
        assert frame is not None
        return frame.select(
            F.lit(str(self.name)).alias("source"),
            (F.lit(scope) if isinstance(scope, str) else scope).alias("scope"),
            reason.alias("reason"),
            *("topic", "partition", "offset", "file", "row"),
        ).where("reason IS NOT NULL")
