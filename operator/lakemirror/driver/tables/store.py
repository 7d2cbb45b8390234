"""The interface of a mirror, and of the facts beside it, independent of where its rows are stored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType

from lakemirror.driver.tables.commits import Commit
from lakemirror.driver.tables.names import Location


class Facts(Protocol):
    """The rows that `lakemirror.driver.tables.tombstones` keeps beside a mirror."""

    @property
    def exist(self) -> bool:
        """Whether the place that holds them exists yet."""
        ...

    @property
    def apart(self) -> bool:
        """Whether that place may be lost without the mirror, unnoticed."""
        ...

    def frame(self) -> DataFrame:
        """Return all facts."""
        ...

    def add(self, rows: DataFrame) -> None:
        """Add facts, either before the rows of the batch are committed or in the same commit."""
        ...

    def collect(self, before: datetime, below: bytes | None, record: DataFrame | None) -> None:
        """Forget deletes that were recorded before a time and are below a sequence.

        Also adds the ``record`` of that.
        """
        ...


Impossible = Callable[[Column, DataType, int], list[tuple[Column, str]]]
"""Returns the conditions under which a mirror cannot hold a value, each with what is then wrong.

The arguments are the value, its type, and the number of key columns if it is one of them (otherwise 0). The
reason is phrased as a statement about the column.
"""


class Unfit(NamedTuple):
    """What a mirror cannot have, and what has to change: the target, the name of a column, the key columns,
    or which columns there are.
    """

    what: str
    change: Literal["target", "name", "key", "columns"]


class Store(Protocol):
    """A mirror. Its schema and properties are read once. Only one driver writes it."""

    location: Location
    columns: dict[str, DataType] | None
    """The columns without metadata, or None if there is no mirror."""
    properties: dict[str, str]

    @property
    def features(self) -> frozenset[str]:
        """The features that a reader needs beyond the plain format."""
        ...

    @property
    def exists(self) -> bool: ...

    @property
    def version(self) -> int | None:
        """The number of commits so far, or None without a mirror."""
        ...

    @property
    def version_seen(self) -> int | None:
        """The number of commits that this process knows of: at least its own ones."""
        ...

    @property
    def keeps_events(self) -> bool:
        """Whether it can store a list of events, for tables without a key."""
        ...

    @property
    def updates(self) -> bool:
        """Whether stored rows can be changed outside of any batch (`update`)."""
        ...

    @property
    def impossible(self) -> Impossible | None:
        """The values that cannot be stored, or None if all can."""
        ...

    def unfit(self, columns: Mapping[str, DataType], key: Sequence[str]) -> Unfit | None:
        """Return what of these columns or of the target's name cannot be, or None if all can."""
        ...

    def needs(self, added: Mapping[str, DataType], *, wider: bool = False) -> str | None:
        """Return the feature that readers need once columns are added, or made ``wider``."""
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
        """Create the mirror, unless it exists."""
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
        """Add and widen columns and set properties. Repeating this changes nothing."""
        ...

    def update(self, when: Column, values: Mapping[str, Column]) -> None:
        """Change values of stored rows, outside of any batch."""
        ...

    def show_current(self) -> None:
        """Create the view of the current rows of a mirror of versions."""
        ...

    def drop(self) -> None:
        """Delete the mirror and everything that belongs to it. This can be repeated if it is interrupted."""
        ...

    def frame(self, version: int | None = None) -> DataFrame:
        """Return the rows with metadata columns.

        These are the current rows, or those at the ``version`` before a batch. The latter include at least
        the rows that the batch has a state for.
        """
        ...

    def commits(self, after: int, until: int) -> Sequence[Commit]:
        """Return the commits after one version, up to another, as far as they are known."""
        ...

    def applied(self, app_id: str) -> int | None:
        """Return the newest batch that was committed under ``app_id``."""
        ...

    def applied_seen(self, app_id: str) -> int | None:
        """Return the newest batch under ``app_id`` of which this process knows: look at `version` before."""
        ...

    def facts(self, shard: str | None) -> Facts:
        """Return the facts beside the mirror, of one ``shard`` if it has several. The mirror must exist."""
        ...

    def side(self, name: str) -> str:
        """Return the path of a Delta table that belongs to it. Raises if it is not in a file system."""
        ...


OpenStore = Callable[[SparkSession, Location], Store]
