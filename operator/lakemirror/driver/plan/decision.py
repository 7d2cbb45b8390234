"""What a batch is going to do to one table, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.decode import Reading
from lakemirror.driver.plan.drift import DriftPlan
from lakemirror.driver.plan.lives import Life
from lakemirror.driver.profile.overview import TableOverview
from lakemirror.driver.reduce.scd1 import Fill
from lakemirror.driver.results import Drift
from lakemirror.driver.tables.mirror import TableName


class Refused(Exception):
    """A table that cannot be mirrored as it is asked for: its records are held, and the others go on."""


class Waiting(Exception):
    """A table of which too little is known yet. No error: its records are held until more has come."""


@dataclass(frozen=True)
class StateCounts:
    """What a materialised state frame holds.

    Records: ``bad`` (they go to quarantine), ``superseded`` by a newer event or a truncate of the batch,
    ``duplicates`` in the batch, ``stale`` (older than a tombstone or a former truncate), ``newest`` (those
    that are their key's state and not stale), and ``records``, all of these counted independently.
    Keys: to be merged (``keys``), deleted (``deletes``), deleted before (``known``), and to be seen as a
    changed row (``expected``).

    ``bounds`` are the least and greatest value of key columns, ``first_seq`` the lowest sequence of a live
    key, ``last_delete`` the highest of a delete.
    """

    records: int = 0
    bad: int = 0
    superseded: int = 0
    duplicates: int = 0
    stale: int = 0
    newest: int = 0
    keys: int = 0
    deletes: int = 0
    known: int = 0
    expected: int = 0
    first_seq: bytes | None = None
    last_delete: bytes | None = None
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """One state a key (`lakemirror.driver.reduce.events`), materialised.

    ``images`` are the rows that changed their key in the batch, None when there are none.
    """

    frame: DataFrame
    images: DataFrame | None = None


@dataclass(frozen=True)
class Work:
    """What is written to a table.

    ``seen`` is what the batch has of it, ``events`` the decoded event frame, None for a batch that only
    truncates; ``state`` is made of it where the table has a key. ``lives`` are the source's columns after the
    batch, ``fills`` what stored rows have in columns that begin a new life. ``drift`` is what nobody was told
    of yet. ``tracked`` are the columns whose values may be older than their row, ``former_floor`` is the
    sequence of the newest truncate before the batch.
    """

    seen: TableOverview
    plan: DriftPlan
    drift: tuple[Drift, ...]
    reading: Reading
    lives: Mapping[str, Life]
    fills: Mapping[str, Fill] = field(default_factory=dict)
    tracked: Sequence[str] = ()
    former_floor: bytes | None = None
    events: DataFrame | None = None
    state: State | None = None
    counts: StateCounts = StateCounts()


@dataclass(frozen=True)
class Held:
    """Why all records of a table are held in this batch; ``error`` tells that something is wrong."""

    reason: str
    error: bool = True


@dataclass(frozen=True)
class Decision:
    """What a batch does to one table: its ``work``; or its classified events ``changes`` are ``held`` for a
    reason; or, where the manifest leaves the table out, nothing.
    """

    name: TableName
    overview: TableOverview
    work: Work | None = None
    held: Held | None = None
    changes: DataFrame | None = None
    poison: Mapping[int, str] = field(default_factory=dict)
    """Reasons of records that make Spark throw, by `lakemirror.driver.parse.isolate.origin`."""

    @property
    def left_out(self) -> bool:
        """The manifest leaves the table out."""
        return self.work is None and self.held is None

    @property
    def records(self) -> int:
        """Records of the table in the batch."""
        return self.overview.events + self.overview.truncates

    @property
    def bad(self) -> int:
        """Records of the table that cannot be applied themselves."""
        return len(self.poison) + (self.work.counts.bad if self.work else 0)

    @property
    def refused(self) -> int:
        """Records that are held with their table."""
        return self.records if self.held else 0

    @property
    def error(self) -> str | None:
        """Why the table is refused."""
        return self.held.reason if self.held and self.held.error else None

    def example(self) -> str:
        """The first reason why a record is bad."""
        if self.held:
            return f"table {self.name}: {self.held.reason}"
        row = self.kept_aside().first()
        assert row is not None
        return f"{row['topic']}/{row['partition']}/{row['offset']}: {row['reason']}"

    def kept_aside(self) -> DataFrame:
        """What goes to quarantine: source, scope, reason, topic, partition, offset, file, row."""
        if self.held is not None:
            return self._aside(self.changes, F.lit(self.held.reason), "table")
        events = self.work.events if self.work else None
        aside = self._aside(events and events.withColumn("row", F.col("line")), F.col("problem"), "record")
        if not self.poison:
            return aside
        reason = isolate.reason(self.poison)
        return aside.unionByName(self._aside(self.changes, reason, "record"))

    def _aside(self, frame: DataFrame | None, reason: Column, scope: str) -> DataFrame:
        assert frame is not None
        return frame.select(
            F.lit(str(self.name)).alias("source"),
            F.lit(scope).alias("scope"),
            reason.alias("reason"),
            *("topic", "partition", "offset", "file", "row"),
        ).where("reason IS NOT NULL")
