"""What the stages ask of a mirror, and of the facts beside it, wherever its rows are kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType

from lakemirror.driver.tables.names import Location


class Facts(Protocol):
    """The rows that `lakemirror.driver.tables.tombstones` keeps beside a mirror."""

    @property
    def exist(self) -> bool:
        """Whether there is a place for them yet."""
        ...

    def frame(self) -> DataFrame:
        """All of them."""
        ...

    def add(self, rows: DataFrame) -> None:
        """Add some: before the rows of the batch are committed, or with that very commit."""
        ...

    def collect(self, before: datetime, below: bytes | None, record: DataFrame | None) -> None:
        """Forget deletes that were recorded before a time and lie below a sequence, and add the ``record``
        of that.
        """
        ...


Impossible = Callable[[Column, DataType, int], list[tuple[Column, str]]]
"""Gives conditions on a value of a type, of one of so many key columns (0: of none), under which a place of
mirrors cannot hold it: with what is wrong then, as said of the column.
"""


class Store(Protocol):
    """One mirror. Its schema and properties are read once; a single driver writes it."""

    location: Location
    columns: dict[str, DataType] | None
    """Those without metadata; None where there is no mirror."""
    properties: dict[str, str]

    @property
    def features(self) -> frozenset[str]:
        """What a reader has to know beyond the plain format."""
        ...

    @property
    def exists(self) -> bool: ...

    @property
    def version(self) -> int | None:
        """How many commits it has had; None without a mirror."""
        ...

    @property
    def keeps_events(self) -> bool:
        """Whether it can be a list of events, for tables that have no key."""
        ...

    @property
    def impossible(self) -> Impossible | None:
        """Values that cannot be kept there; None where there are none."""
        ...

    def unfit(self, columns: Mapping[str, DataType], key: Sequence[str]) -> str | None:
        """Why columns cannot be kept there, for people; None where they can."""
        ...

    def needs(self, added: Mapping[str, DataType], *, wider: bool = False) -> str | None:
        """The feature that readers need once columns are added, or made ``wider``."""
        ...

    def refresh(self) -> None:
        """Read schema and properties again."""
        ...

    def create(
        self,
        columns: Mapping[str, DataType],
        properties: Mapping[str, str],
        key: Sequence[str] = (),
        *,
        avoided: Collection[str] = ...,
        comments: Mapping[str, str] = ...,
        comment: str | None = None,
        identities: Collection[str] = ...,
    ) -> None:
        """Make it, unless it is there."""
        ...

    def alter(
        self,
        add: Mapping[str, DataType],
        widen: Mapping[str, DataType],
        properties: Mapping[str, str],
        *,
        avoided: Collection[str] = ...,
        comments: Mapping[str, str] = ...,
    ) -> None:
        """Add and widen columns and set properties; doing it again changes nothing."""
        ...

    def update(self, when: Column, values: Mapping[str, Column]) -> None:
        """Give stored rows other values, outside of any batch."""
        ...

    def show_current(self) -> None:
        """Make the view of the current rows of a mirror of versions."""
        ...

    def drop(self) -> None:
        """Delete it, with all that belongs to it. Interrupted, it can be done again."""
        ...

    def frame(self, version: int | None = None) -> DataFrame:
        """The rows with metadata columns: now; or at the ``version`` before a batch, at least those that the
        batch has a state for.
        """
        ...

    def applied(self, app_id: str) -> int | None:
        """The newest batch that was committed under ``app_id``."""
        ...

    def facts(self, shard: str | None) -> Facts:
        """What is beside it, of one ``shard`` where it has several. Only of a mirror that exists."""
        ...

    def side(self, name: str) -> str:
        """The path of a Delta table that belongs to it; raises where it is in no file system."""
        ...


OpenStore = Callable[[SparkSession, Location], Store]
