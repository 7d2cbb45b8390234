"""What a writer is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

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


class Writer(Protocol):
    """Brings the rows of one Delta table up to date."""

    def write(
        self, states: DataFrame, changes: Changes, transaction: Transaction, first: Callable[[], None]
    ) -> Written:
        """Carry out ``changes`` for a materialised frame of ``states``, as one commit. ``first`` is to be
        done before that, but may be while rows are looked up and written.
        """
