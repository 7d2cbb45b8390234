"""Columns that are added, dropped and added again: what rows have in them that were written before.

A record that is the whole row has null in a column that it lacks. It says nothing about other rows: another
producer, or an older schema, may have written it. Only the log of a database shows that a column was dropped,
by a streamed change whose schema lacks it (`ColumnMarks`). All positions here are those of one log.

A column that is added again begins a new *life*, after the highest position of a change without it. In the
source, rows that were written before have the default of the column, or null, whatever they held in its
former life:

1. `Life.is_former`: a change from before the life is read as if it did not have the column, and a value from
   there is replaced once where it is stored (`without_former`). Of versions, only those that are current lose
   such a value: a history shows what was.
2. `constant`: the default is one that the source gave to the rows that were there. They get it when the
   column is added (`with_defaults`), and so do changes whose schema lacks the column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from lakemirror.driver.rules.drift import ColumnMarks
from lakemirror.driver.rules.positions import NOWHERE, epoch_of, own
from lakemirror.driver.rules.schemas import Field
from lakemirror.driver.rules.values import Row, Value

_DAYS: Final = (
    "io.debezium.time.Date",
    "io.debezium.time.IsoDate",
    "org.apache.kafka.connect.data.Date",
)
_MOMENTS: Final = (
    "io.debezium.time.Timestamp",
    "io.debezium.time.MicroTimestamp",
    "io.debezium.time.NanoTimestamp",
    "io.debezium.time.IsoTimestamp",
    "io.debezium.time.ZonedTimestamp",
    "org.apache.kafka.connect.data.Timestamp",
)
_UUID: Final = "io.debezium.data.Uuid"
_NO_UUID: Final = "00000000-0000-0000-0000-000000000000"


class Default(NamedTuple):
    """A column with a default, as a schema declares it. ``seq`` is the lowest one of a change with it."""

    seq: bytes
    field: Field


class Life(NamedTuple):
    """What is known of a column: where changes lack and have it, and the default that rows have."""

    marks: ColumnMarks = ColumnMarks()
    default: Default | None = None

    @property
    def begins(self) -> bytes | None:
        """The position after which the life begins. None: the column was always there, or is gone."""
        return None if self.marks.is_gone else self.marks.absent

    def is_former(self, value: bytes) -> bool:
        """Return whether the sequence of a value is one of a former life.

        A row of a load that has no position is as the source was when it was read, and positions of another
        epoch do not compare.
        """
        if self.begins is None:
            return False
        return own(epoch_of(self.begins) + NOWHERE) < value <= own(self.begins)

    def after(self, absent: bytes | None, present: bytes | None, defaults: Iterable[Default] = ()) -> Life:
        """Return the life after a batch. It has the highest positions of changes without and with the column.

        Maxima do not depend on the order of delivery. Two changes at one position are copies of one, and
        begin nothing. ``defaults`` are the constant ones of its schemas: the oldest of the life counts.
        """
        absent, present = _highest(self.marks.absent, absent), _highest(self.marks.present, present)
        marks = ColumnMarks(self.marks.absent if absent == present else absent, present)
        known = [*defaults, *([] if self.default is None else [self.default])]
        mine = [each for each in known if marks.absent is None or each.seq > marks.absent]
        default = min(mine, key=_seq, default=None) or max(known, key=_seq, default=None)
        return Life(marks, default)


def _seq(default: Default) -> bytes:
    return default.seq


def _highest(*positions: bytes | None) -> bytes | None:
    return max((each for each in positions if each is not None), default=None)


def is_constant(field: Field, connector: str | None) -> bool:
    """Return whether a field has a default that the rows have that were there when the column was added.

    Connectors do not evaluate functions, but write a placeholder in their place: PostgreSQL's writes zeros,
    empty texts, 1970-01-01 and a UUID of zeros, those of MySQL and MariaDB 1970-01-01 00:00:00. Nobody
    chooses such a moment or UUID as a constant; the others cannot be told apart from constants. SQL Server
    leaves null in the rows that are there if the column is nullable. ``connector`` wrote the schema; if it is
    unknown (None), any may have.
    """
    if field.items is not None or field.fields:
        return False
    return is_constant_default(field.default, field.semantic, connector, optional=field.optional)


def is_constant_default(
    default: Value, semantic: str | None, connector: str | None, *, optional: bool
) -> bool:
    """Return the same for the default of a column that is no list, map or struct.

    ``semantic`` is the name that gives its type a meaning; without a ``default``, there is none.
    """
    if default is None or (connector == "sqlserver" and optional):
        return False
    return not _is_placeholder(default, semantic, connector)


def _is_placeholder(default: Value, semantic: str | None, connector: str | None) -> bool:
    if connector in (None, "postgresql"):
        is_time = semantic in (*_DAYS, *_MOMENTS) and _is_zero(default)
        return is_time or (semantic == _UUID and default == _NO_UUID)
    return connector in ("mysql", "mariadb") and semantic in _MOMENTS and _is_zero(default)


def _is_zero(default: Value) -> bool:
    """Return whether a date or time is the beginning of 1970."""
    if isinstance(default, str):
        day, _, time = default.rstrip("Z").partition("T")
        return day == "1970-01-01" and not time.strip("0:.")
    return bool(default == 0)


def with_defaults(row: Row, added: Mapping[str, Value]) -> Row:
    """Return a stored row with the defaults of columns that are ``added``.

    A row of which only the delete is known gets none.
    """
    return row if row.unseen or not added else row._replace(values={**row.values, **added})


def without_former(row: Row, lives: Mapping[str, Life], defaults: Mapping[str, Value]) -> Row:
    """Return a stored row with the defaults of columns, or null, in place of values of former lives."""
    former = [name for name, life in lives.items() if life.is_former(row.seq_of(name))]
    if row.unseen or not former:
        return row
    return row._replace(values={**row.values, **{name: defaults.get(name) for name in former}})
