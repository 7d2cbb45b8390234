"""What a mirror is compared with: a source's rows, brought to the columns and types of the mirror."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import DataType

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.ranges import KeyRange

UNFIT = "__lakemirror_unfit"
"""STRING: values of the source that the mirror's types cannot hold, as text; null where there are none."""

Same = Callable[[Column], Column]
"""Brings a value of either side to the text (STRING) by which it is compared."""


class SourceUnfit(LakemirrorError):
    """A table cannot be compared with the source that was named; says what to do."""


@dataclass(frozen=True)
class Wanted:
    """Which rows are wanted: of some ranges of keys, or of some ``keys`` (the values of their columns, by the
    mirror's names); all where both are None. A source may give more than that. ``strict``: values that Spark
    has none for count as unfit, too.
    """

    ranges: Sequence[KeyRange] | None = None
    keys: Sequence[Mapping[str, Any]] | None = None
    strict: bool = False


ALL = Wanted()


@dataclass(frozen=True)
class Compared:
    """What is compared of a table: the mirror's ``columns``, with the names of the source, and its ``key``.

    ``same`` has columns whose values are not compared as they are; ``left_out`` says why a column is not
    compared, by the name in the source.
    """

    columns: Mapping[str, DataType]
    names: Mapping[str, str]
    """Mirror column -> source column."""
    key: Sequence[str]
    same: Mapping[str, Same] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    excluded: Callable[[str], bool] = lambda source: False
    """Whether the manifest keeps a source column out of the mirror."""
    unread: tuple[str, ...] = ()
    """Columns of the source that the mirror has, and that cannot be read exactly as the mirror has them."""


@dataclass(frozen=True)
class Described:
    """The columns of a table of the source: the type that a mirror has of each, None where it cannot be read
    exactly, with the source's name of it; and its primary key, as far as the source knows.
    """

    columns: Mapping[str, tuple[DataType | None, str]]
    key: Sequence[str] = ()


class SourceTable(Protocol):
    """One table of the source."""

    compared: Compared

    def rows(self, wanted: Wanted = ALL) -> DataFrame:
        """Its rows as they are now, with the mirror's columns that are compared and `UNFIT`."""

    def position(self) -> bytes | None:
        """The source's position now, as a sequence below which every committed change lies; None where there
        are no positions.
        """

    def position_below(self) -> bytes | None:
        """A position for rows that are read from now on: each change that they do not show lies above it, but
        for changes of transactions that `unfinished` marks.
        """

    def unfinished(self) -> int | None:
        """A mark of the transactions that are open now and may have changes with earlier positions, for
        `SourceTables.finished`; None where a change's position is that of its commit.
        """


class SourceTables(Protocol):
    """All tables of the source. ``ordered``: its positions compare with the sequences of the mirrors."""

    ordered: bool

    def source_block(self, position: bytes) -> dict[str, Any]:
        """A position as the fields of Debezium's source block; not of sources without positions."""

    def table(self, name: TableName, wanted: Compared) -> SourceTable:
        """A table, with what of ``wanted`` it has. Raises SourceUnfit."""

    def position(self) -> bytes | None:
        """The source's position now; see `SourceTable.position`."""

    def finished(self, unfinished: int) -> bool:
        """Whether the transactions of a mark have ended."""

    def described(self, name: TableName) -> Described:
        """What a mirror of a table would have. Raises SourceUnfit where there is no such table."""

    def sent(self, position: bytes) -> bool:
        """Whether the source knows that all changes up to a position have left it."""

    def close(self) -> None:
        """Give back connections."""


def with_known(wanted: Compared, known: Mapping[str, str], same: Mapping[str, Same], where: str) -> Compared:
    """What of ``wanted`` can be compared. ``known`` says of source columns why one cannot be ("": it can);
    columns that are not in it are not in the source. Raises SourceUnfit where a key column cannot be.
    """
    columns, left_out, unread = {}, dict(wanted.left_out), []
    for name, kind in wanted.columns.items():
        source = wanted.names[name]
        why = known.get(source, f"{where} has no such column")
        if why and name in wanted.key:
            raise SourceUnfit(f"{where}: the key column {source} cannot be compared: {why}")
        if why:
            left_out[source] = why
            unread += [source] if source in known else []
        else:
            columns[name] = kind
    fed = set(wanted.names.values())
    lacking = [name for name in known if name not in fed | left_out.keys() and not wanted.excluded(name)]
    left_out |= dict.fromkeys(lacking, "the mirror has no such column")
    return Compared(
        columns,
        {name: wanted.names[name] for name in columns},
        wanted.key,
        {name: each for name, each in same.items() if name in columns},
        left_out,
        wanted.excluded,
        tuple(unread),
    )
