"""What a batch is going to do to one table, as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.decode import Reading
from lakemirror.driver.drift import DriftPlan
from lakemirror.driver.mirror import TableName
from lakemirror.driver.overview import TableOverview
from lakemirror.driver.results import Drift


class Refused(Exception):
    """A table that cannot be mirrored as it is asked for; its records go to quarantine and the others go
    on.
    """


@dataclass(frozen=True)
class StateCounts:
    """What a materialised state frame holds. ``bad``, ``duplicates`` and ``stale`` count records, the others
    keys: to be merged, deleted, deleted before (``known``), and to be seen as a changed row (``expected``).

    ``bounds`` are the least and greatest value of key columns, ``first_seq`` the lowest sequence of a live
    key, ``last_delete`` the highest of a delete.
    """

    keys: int = 0
    bad: int = 0
    duplicates: int = 0
    deletes: int = 0
    stale: int = 0
    known: int = 0
    expected: int = 0
    first_seq: bytes | None = None
    last_delete: bytes | None = None
    bounds: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """One state a key (`lakemirror.driver.apply.reduce`), materialised.

    ``images`` are the rows that changed their key in the batch, None when there are none.
    """

    frame: DataFrame
    images: DataFrame | None = None


@dataclass(frozen=True)
class Work:
    """What is written to a table.

    ``seen`` is what the batch has of it, ``events`` the decoded event frame, None for a batch that only
    truncates; ``state`` is made of it where the table has a key. ``since`` has the sequence from which on a
    column's default holds, ``drift`` what nobody was told of yet. ``tracked`` are the columns whose values
    may be older than their row.
    """

    seen: TableOverview
    plan: DriftPlan
    drift: tuple[Drift, ...]
    reading: Reading
    since: Mapping[str, bytes]
    tracked: Sequence[str] = ()
    events: DataFrame | None = None
    state: State | None = None
    counts: StateCounts = StateCounts()


@dataclass(frozen=True)
class Decision:
    """What a batch does to one table: its ``work``; or quarantine, where it is ``refused`` for a reason, of
    its classified events ``changes``; or nothing.
    """

    name: TableName
    overview: TableOverview
    refused: str | None = None
    changes: DataFrame | None = None
    work: Work | None = None

    @property
    def left_out(self) -> bool:
        """The manifest leaves the table out."""
        return self.work is None and self.refused is None

    @property
    def events(self) -> int:
        return self.overview.events + self.overview.truncates

    @property
    def bad(self) -> int:
        """Records of the table that go to quarantine."""
        if self.refused:
            return self.events
        return self.work.counts.bad if self.work else 0

    def example(self) -> str:
        """The first reason why a record is bad."""
        if self.refused:
            return f"table {self.name}: {self.refused}"
        row = self.bad_records().first()
        assert row is not None
        return f"{row['topic']}/{row['partition']}/{row['offset']}: {row['reason']}"

    def bad_records(self) -> DataFrame:
        """source, reason, topic, partition, offset of each bad record."""
        frame = self.work.events if self.work else self.changes
        assert frame is not None
        reason = F.lit(self.refused) if self.refused else F.col("problem")
        return frame.where(reason.isNotNull()).select(
            F.lit(str(self.name)).alias("source"), reason.alias("reason"), "topic", "partition", "offset"
        )
