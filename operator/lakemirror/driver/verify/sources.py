"""The source that a mirror is compared with: its rows, converted to the columns and types of the mirror."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.parse.attempt import attempted
from lakemirror.driver.parse.condition import Condition, WrongCondition
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.verify.ranges import KeyRange

UNFIT = "__lakemirror_unfit"
"""STRING: values of the source that the mirror's types cannot hold, as text; null if there are none.

A value that a type would cut is one of them: it has to come back from the mirror as it was.
"""
UNFIT_COLUMNS = "__lakemirror_unfit_columns"
"""ARRAY<STRING>: the mirror's columns with such values."""
_MET, _UNREAD = "__lakemirror_met", "__lakemirror_unread"

Same = Callable[[Column], Column]
"""Converts a value of either side to the text (STRING) that is compared."""


class SourceUnfit(LakemirrorError):
    """A table cannot be compared with the given source. The message says what to do."""


@dataclass(frozen=True)
class Wanted:
    """The rows that are wanted.

    These are the rows in some ranges of keys, or those with some ``keys`` (the values of their columns, by
    the mirror's names), or all rows if both are None. A source may return more rows. With ``strict``, values
    that Spark cannot represent count as unfit, too.
    """

    ranges: Sequence[KeyRange] | None = None
    keys: Sequence[Mapping[str, Any]] | None = None
    strict: bool = False


ALL = Wanted()


@dataclass(frozen=True)
class Compared:
    """What is compared of a table: the mirror's ``columns``, with the names in the source, and its ``key``.

    ``same`` has columns whose values are not compared directly. ``left_out`` says why a column is not
    compared, by its name in the source.
    """

    columns: Mapping[str, DataType]
    names: Mapping[str, str]
    """Mirror column -> source column."""
    key: Sequence[str]
    same: Mapping[str, Same] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    excluded: Callable[[str], bool] = lambda source: False
    """Returns whether the manifest keeps a source column out of the mirror."""
    unread: tuple[str, ...] = ()
    """Source columns that the mirror has, but that cannot be read exactly as the mirror stores them."""


@dataclass(frozen=True)
class Described:
    """The columns of a source table, and its primary key as far as the source knows it.

    Each column has the type that a mirror would use, or None if the column cannot be read exactly, and the
    source's name of the type.
    """

    columns: Mapping[str, tuple[DataType | None, str]]
    key: Sequence[str] = ()


class SourceTable(Protocol):
    """One table of the source."""

    compared: Compared

    def rows(self, wanted: Wanted = ALL) -> DataFrame:
        """Return its current rows, with the mirror's compared columns, `UNFIT` and `UNFIT_COLUMNS`."""

    def position(self) -> bytes | None:
        """Return the source's current position as a sequence, or None if there are no positions.

        Every committed change is below it.
        """

    def position_below(self) -> bytes | None:
        """Return a position for rows that are read from now on.

        Every change that they do not show is above it, except changes of transactions that `unfinished`
        marks.
        """

    def unfinished(self) -> int | None:
        """Return a mark of the open transactions that may have changes with earlier positions.

        The mark is for `SourceTables.finished`. It is None if a change gets its position when it is
        committed.
        """


class SourceTables(Protocol):
    """All tables of the source. ``ordered`` says that its positions compare with the sequences of mirrors."""

    ordered: bool

    def source_block(self, position: bytes) -> dict[str, Any]:
        """Return a position as the fields of Debezium's source block. Not for sources without positions."""

    def table(self, name: TableName, wanted: Compared) -> SourceTable:
        """Return a table with those of the ``wanted`` columns that it has. Raises SourceUnfit."""

    def position(self) -> bytes | None:
        """Return the source's current position; see `SourceTable.position`."""

    def finished(self, unfinished: int) -> bool:
        """Return whether the transactions of a mark have ended."""

    def described(self, name: TableName) -> Described:
        """Return what a mirror of a table would have. Raises SourceUnfit if there is no such table."""

    def sent(self, position: bytes) -> bool:
        """Return whether the source knows that all changes up to a position have left it."""

    def close(self) -> None:
        """Close connections."""


def conditional(table: MirroredTable, compared: Compared) -> Condition | None:
    """Return the manifest's filter for rows of a source. Raises SourceUnfit if it does not fit them."""
    sql = table.settings.filter
    if sql is None:
        return None
    try:
        return table.condition(sql, compared.columns)
    except WrongCondition as error:
        raise SourceUnfit(f"{table.name}: tables[{table.settings.source}].filter {error}") from None


def meeting(rows: DataFrame, condition: Condition | None) -> DataFrame:
    """Return the rows of a source that the manifest's filter accepts or cannot judge.

    It cannot judge a row of which it reads a value that does not fit, nor one for which it fails. Both are
    unfit.
    """
    if condition is None:
        return rows
    read = F.array(*map(F.lit, condition.columns)).cast("array<string>")
    unread = F.coalesce(F.arrays_overlap(UNFIT_COLUMNS, read), F.lit(False))
    met = attempted(F.coalesce(F.expr(condition.sql), F.lit(False)), F.lit(True))
    judged = rows.withColumns({_MET: met, _UNREAD: unread})
    fails = F.when(F.col(_MET).isNull(), F.lit(f"the filter fails: {condition.sql}"))
    kept = judged.where(F.col(_UNREAD) | F.col(_MET).isNull() | F.col(f"{_MET}.value"))
    return kept.withColumn(UNFIT, F.coalesce(UNFIT, fails)).drop(_MET, _UNREAD)


def marked(
    rows: DataFrame, values: Sequence[Column], unfit: Mapping[str, tuple[Column, Column]]
) -> DataFrame:
    """Return the ``values`` of rows with `UNFIT` and `UNFIT_COLUMNS`.

    ``unfit`` has, by column, whether its value does not come back from the mirror's type, and it as text.
    """
    told = [F.when(lost, F.concat(F.lit(f"{name}="), text)) for name, (lost, text) in unfit.items()]
    named = [F.when(lost, F.lit(name)) for name, (lost, _) in unfit.items()]
    nothing, none = F.lit(None).cast("string"), F.array().cast("array<string>")
    return rows.select(
        *values,
        (F.nullif(F.concat_ws(", ", *told), F.lit("")) if told else nothing).alias(UNFIT),
        (F.array_compact(F.array(*named)) if named else none).alias(UNFIT_COLUMNS),
    )


def with_known(wanted: Compared, known: Mapping[str, str], same: Mapping[str, Same], where: str) -> Compared:
    """Return which of the ``wanted`` columns can be compared.

    ``known`` says for each source column why it cannot be compared ("" if it can). Columns that are missing
    there do not exist in the source. Raises SourceUnfit if a key column cannot be compared.
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
