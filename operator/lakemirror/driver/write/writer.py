"""The input and the output of a writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from delta.tables import DeltaMergeBuilder
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.errors import CommittedBefore
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.changes import Changes


@dataclass(frozen=True)
class Transaction:
    """Identifies the owner of a commit, so that a replay can tell that the commit exists."""

    app_id: str
    batch: Batch
    shard: str | None = None
    session: SparkSession | None = None
    """A session of its own, for a shard: a batch makes several commits to the same mirror."""
    outcomes: Callable[[Written], Mapping[str, int]] | None = None
    """Returns the outcomes of the batch's records.

    Called once it is known which rows change, and before any has.
    """

    def told(self, written: Written) -> Written:
        """Return what a commit is about to do, with the outcomes of the batch's records."""
        if self.outcomes is None:
            return written
        return replace(written, outcomes=self.outcomes(written))

    @property
    def note(self) -> dict[str, Any]:
        """What the commit records about itself."""
        return self.batch.note if self.shard is None else {**self.batch.note, "source": self.shard}


@dataclass(frozen=True)
class Written:
    """The numbers of rows that a commit inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    outcomes: Mapping[str, int] | None = field(default=None, compare=False)
    """The outcomes of the records, if the commit stores them (`Transaction.outcomes`)."""


def merged(builder: DeltaMergeBuilder, location: object) -> Written:
    """Carry out a MERGE into the mirror at ``location``.

    Raises CommittedBefore if its log has the batch of the session's transaction. Then Delta does nothing and
    returns no numbers.
    """
    counts = builder.execute().first()
    if counts is None:
        raise CommittedBefore(f"{location} has the batch already")
    return Written(counts["num_inserted_rows"], counts["num_updated_rows"], counts["num_deleted_rows"])


@dataclass(frozen=True)
class Done:
    """An earlier commit: its version, what it says about its batch, and the rows that it changed."""

    version: int
    note: Mapping[str, Any]
    rows: Written


class Writer(Protocol):
    """Brings the rows of one mirror up to date."""

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """Carry out ``changes`` for a materialized frame of ``states``, in one commit.

        ``first`` must be done before the commit, but may run while rows are looked up and written.
        """


class Writers(Protocol):
    """The writers of one mirror."""

    @property
    def merged(self) -> bool:
        """Whether the previous batch was written with MERGE."""
        ...

    def for_changes(self, changes: Changes) -> Writer:
        """Return the writer that carries out ``changes`` fastest."""
        ...

    def append(
        self, events: DataFrame, plan: TablePlan, batch: Batch, session: SparkSession | None
    ) -> Written:
        """Add the rows of an event frame that are not there yet, to a mirror that keeps events."""
        ...

    def done(self, transaction: Transaction) -> Done | None:
        """Return the commit of a batch that was written before, or None if it is no longer known."""
        ...
