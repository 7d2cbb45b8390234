"""What a writer is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.changes import Changes


@dataclass(frozen=True)
class Transaction:
    """Whose commit it is, so that a replay can tell that it is there."""

    app_id: str
    batch: Batch
    shard: str | None = None
    session: SparkSession | None = None
    """A session of its own, for a shard: of one mirror's commits each batch has several."""
    outcomes: Callable[[Written], Mapping[str, int]] | None = None
    """What the records of the batch come to, when it is known which rows change and none has changed yet."""

    @property
    def note(self) -> dict[str, Any]:
        """What the commit says of itself."""
        return self.batch.note if self.shard is None else {**self.batch.note, "source": self.shard}


@dataclass(frozen=True)
class Written:
    """Rows that a commit inserted, updated and deleted."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    outcomes: Mapping[str, int] | None = field(default=None, compare=False)
    """What the records came to, where the commit keeps that (`Transaction.outcomes`)."""


@dataclass(frozen=True)
class Done:
    """A commit of before: its version, what it says of its batch, and the rows that it changed."""

    version: int
    note: Mapping[str, Any]
    rows: Written


class Writer(Protocol):
    """Brings the rows of one mirror up to date."""

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """Carry out ``changes`` for a materialised frame of ``states``, as one commit. ``first`` is to be
        done before that, but may be while rows are looked up and written.
        """


class Writers(Protocol):
    """The writers of one mirror."""

    @property
    def merged(self) -> bool:
        """Whether the batch before was written with MERGE."""
        ...

    def for_changes(self, changes: Changes) -> Writer:
        """The writer that carries out ``changes`` fastest."""
        ...

    def append(
        self, events: DataFrame, plan: TablePlan, batch: Batch, session: SparkSession | None
    ) -> Written:
        """Add an event frame's rows that are not there yet, to a mirror that keeps events."""
        ...

    def done(self, transaction: Transaction) -> Done | None:
        """The commit of a batch that was written before; None where it is not known any more."""
        ...
