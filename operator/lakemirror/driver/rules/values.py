"""The plain values that the rules take and return: change events, rows of a mirror, tombstones, outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.orders import Place
from lakemirror.driver.rules.positions import MISSING, NO_ORIGIN, Origin, own

Value = Any
"""A column's value: None, bool, int, float, Decimal, str, bytes, date, datetime; lists and dicts of these."""

Key = tuple[Value, ...]
"""The values of the key columns of a row."""

Values = Mapping[str, Value]
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Event(Frozen, frozen=True):
    """A change of one row: what a record says, in the mirror's columns.

    ``op`` is what it does (`lakemirror.driver.codes.Op`), ``seq`` its place in the order of its source
    (`positions`, `orders`), ``origin`` where its record was read. It is ``unanchored`` if only its LSN places
    it (`anchors`). ``at`` is when the source made the change, in microseconds since 1970. ``row`` has a value
    for each column of the mirror, except for the ``gaps``: columns whose value the source did not send,
    because it is as before (PostgreSQL's TOAST). ``texts`` are the source's texts of values that their column
    cannot hold.

    A change of a row's key is two events at one position: a delete with ``new_key`` and a create with
    ``old_key``. ``is_half`` is the half that has no record of its own.

    ``digest`` is the same for two events at one position if they are one event that was sent twice.
    ``violates`` are the expectations that the row does not meet.
    """

    key: Key
    op: str
    seq: bytes
    at: int | None = None
    origin: Origin = NO_ORIGIN
    row: Values = NOTHING
    gaps: frozenset[str] = frozenset()
    texts: Mapping[str, str] = NOTHING
    old_key: Key | None = None
    new_key: Key | None = None
    unanchored: bool = False
    digest: object = None
    violates: tuple[str, ...] = ()
    is_half: bool = False

    @property
    def is_delete(self) -> bool:
        return self.op == Op.DELETE

    @property
    def place(self) -> Place:
        """Where the event stands, as `orders` compares places."""
        return Place(self.seq, self.at, self.origin)

    @property
    def arrival(self) -> tuple[bytes, str, int, int]:
        """Sorts the events of a key: by sequence, and at one place in the order in which they arrived."""
        topic, partition, offset = self.origin
        return (
            self.seq,
            topic or "",
            -1 if partition is None else partition,
            -1 if offset is None else offset,
        )


class Row(Frozen, frozen=True):
    """A row of a mirror, with its metadata columns.

    ``seqs`` (``__column_seq``) is the memory of each column: the sequence of a value that is older than the
    row, because later changes did not carry it. A value that is not in it is as new as the row.
    ``deleted_at`` is the column of a soft delete. A row that the mirror never had has the mark ``unseen``:
    only its delete is known.
    """

    seq: bytes
    op: str = "c"
    at: int | None = None
    origin: Origin = NO_ORIGIN
    values: Values = NOTHING
    seqs: Mapping[str, bytes] = NOTHING
    texts: Mapping[str, str] = NOTHING
    deleted_at: int | None = None
    unseen: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the row is there, and not softly deleted."""
        return self.op != Op.DELETE

    def seq_of(self, column: str) -> bytes:
        """Return the sequence of a column's value: the lowest one in a row that was added by hand."""
        return self.seqs.get(column, own(self.seq) if self.seq else b"")


class Tombstone(NamedTuple):
    """What remains of a deleted row: older events do not write it again.

    ``by_delete`` says that the delete came, not only the other half of a change of the key.
    """

    seq: bytes
    at: int | None = None
    origin: Origin = NO_ORIGIN
    by_delete: bool = True


class Said(Frozen, frozen=True):
    """What is known about a column of a row: its value, the sequence of that value, and the source's text.

    ``opened`` is the origin of an unanchored event that said it (`lakemirror.driver.rules.anchors`).
    """

    value: Value = None
    seq: bytes = MISSING
    text: str | None = None
    opened: Origin | None = None


class Outcome(StrEnum):
    """What became of a record. Every record has exactly one."""

    APPLIED = "applied"
    SUPERSEDED = "superseded"
    """A newer change of its row, or a truncate, came in the same batch."""
    STALE = "stale"
    """The mirror knows something newer: a change of the row, its delete or a truncate."""
    DUPLICATE = "duplicates"
    """The change was sent before."""
    NO_ROW_CHANGE = "no_row_change"
    """The record changes no row of a mirror: a heartbeat, a schema change, a row that a filter leaves out."""
    QUARANTINED = "quarantined"


def is_same(one: Value, other: Value) -> bool:
    """Return whether two values of one column are the same. NaN is the same as NaN, and 0.0 as -0.0."""
    if one is other:
        return True
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (one != one and other != other)  # NaN differs from itself
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return _are_same(one, other)
    return bool(one == other)


def _are_same(some: Sequence[Value], others: Sequence[Value]) -> bool:
    return len(some) == len(others) and all(map(is_same, some, others))
