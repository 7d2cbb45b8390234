"""Which two sequences may be compared. `lakemirror.driver.orders` has the same rule over columns of Spark.

Every sequence is a place in one *order*:

=========  ===========================================================================================
kind       an order is
=========  ===========================================================================================
position   the positions of one log (``source.name``) in one epoch
offset     the offsets of one partition of one topic; all rows of files; the versions of a change feed
time       the source's times: they compare everywhere where they differ, and in one partition where not
columns    the values of one row
given      the places that Lakemirror gave to rows of a reload or a repair, one for each key
nothing    no place (a bootstrap, a load into a new mirror): below all sequences of its own key
=========  ===========================================================================================

Within one order, bytes decide. Between two orders they say nothing, with two exceptions:

- A higher epoch is later, because the manifest says so. A sequence of a lower epoch is earlier only if its
  partition is said to have reached the higher one, too (or is the same).
- Positions of two logs compare where the source's times agree with them. A lower position at a later time is
  evidence that a database was moved to another server.

What does not compare waits: a change until a person says what is later, a truncate until a reload.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from lakemirror.driver.codes import OWN_TOPICS, RELOAD_TOPIC, Op
from lakemirror.driver.rules.positions import NO_ORIGIN, WIDTH, Origin, epoch_of, major_of

_NO_MAJOR: Final = bytes(10)


class Kind(StrEnum):
    """What an order is made of."""

    POSITION = "position"
    OFFSET = "offset"
    TIME = "time"
    COLUMNS = "columns"
    GIVEN = "given"
    NOTHING = "nothing"


class Why(StrEnum):
    """Why two sequences of one row do not compare."""

    PARTITION = "partition"
    """Offsets of two partitions."""
    TIE = "tie"
    """Equal times in two partitions."""
    LOG = "log"
    """Positions of two logs, and the times do not agree with them."""
    EPOCH = "epoch"
    """The change's partition is in a lower epoch, and nothing says that it has reached the higher one."""
    KIND = "kind"
    """A position and a time, or any other two kinds."""
    MOVED = "moved"
    """Of another log, below and later by more than the tolerance: its database was moved."""


class Place(NamedTuple):
    """Where a change stands: its sequence, the source's time in microseconds, and where it was read."""

    seq: bytes
    at: int | None
    origin: Origin


@dataclass(frozen=True)
class Orders:
    """What comparing two changes of one row takes besides the changes themselves.

    ``logs`` is the log of each topic, None for a topic of several; a topic that is not in it is a log of its
    own. ``reached`` is the highest epoch that is declared for each partition. ``tolerance`` (microseconds) is
    how far the clocks of two logs may differ. ``timed`` are topics whose changes times order, although rows
    of them may look as if they had positions. ``of_files`` says that all changes are rows of files, so that
    topics do not matter; the only log is that of the topic "".
    """

    logs: Mapping[str, str | None] = field(default_factory=dict)
    reached: Mapping[tuple[str, int], int] = field(default_factory=dict)
    tolerance: int = 0
    timed: frozenset[str] = frozenset()
    of_files: bool = False

    def log_of(self, topic: str | None) -> str | None:
        """Return the log of a topic, None if it has several."""
        if self.of_files:
            return self.logs.get("")
        return self.logs.get(topic or "", f"topic {topic or ''}")


def kind_of(place: Place) -> Kind:
    """Return what a sequence is made of. The bytes of a time and of an offset repeat what the change says."""
    seq, origin = place.seq, place.origin
    major, minor = seq[2:12], seq[12:22]
    if len(seq) == WIDTH and major == minor == _NO_MAJOR:
        return Kind.NOTHING
    if origin.topic is not None and origin.topic.startswith(OWN_TOPICS):
        return Kind.GIVEN
    if len(seq) != WIDTH:
        return Kind.COLUMNS
    if major == _NO_MAJOR:
        return Kind.OFFSET
    return Kind.TIME if _is_of_time(major, minor, place) else Kind.POSITION


def _is_of_time(major: bytes, minor: bytes, place: Place) -> bool:
    arrival = 0 if place.origin.offset is None else place.origin.offset + 1
    return place.at is not None and _bytes(place.at) == major and _bytes(arrival) == minor


def _bytes(number: int) -> bytes:
    return (number % 2**64).to_bytes(10, "big")


# -- two changes of one row -------------------------------------------------------------------------------


def unordered(mine: Place, other: Place | None, orders: Orders) -> Why | None:
    """Return why a change does not compare with what its row has, ``other``. None if it does."""
    if other is None:
        return None
    kind, stood = kind_of(mine), _as_timed(kind_of(other), other, orders)
    if kind in (Kind.NOTHING, Kind.GIVEN, Kind.COLUMNS) or stood is Kind.NOTHING:
        return None
    if epoch_of(mine.seq) > epoch_of(other.seq):
        return None
    here = orders.of_files or _are_of_one_partition(mine.origin, other.origin)
    if stood is Kind.GIVEN:
        return _after_reload(kind, mine.origin, other.origin, orders)
    if epoch_of(mine.seq) < epoch_of(other.seq):
        return None if here or _has_reached(mine.origin, epoch_of(other.seq), orders) else Why.EPOCH
    return Why.KIND if kind is not stood else _in_one_epoch(kind, mine, other, orders, here=here)


def _as_timed(kind: Kind, place: Place, orders: Orders) -> Kind:
    timed = bool(orders.timed) and (orders.of_files or place.origin.topic in orders.timed)
    return Kind.TIME if kind is Kind.POSITION and timed else kind


def _are_of_one_partition(mine: Origin, other: Origin) -> bool:
    return mine.topic == other.topic and mine.partition == other.partition


def _after_reload(kind: Kind, mine: Origin, row: Origin, orders: Orders) -> Why | None:
    """The place that a reload gave to a row is one in the partition that the row was from before.

    A reload notes that partition, plus one, as that of the row; 0 where it does not matter.
    """
    noted = row.topic == RELOAD_TOPIC and row.partition is not None and row.partition > 0
    elsewhere = noted and mine.partition is not None and mine.partition + 1 != row.partition
    return Why.PARTITION if kind is Kind.OFFSET and elsewhere and not orders.of_files else None


def _has_reached(mine: Origin, epoch: bytes, orders: Orders) -> bool:
    where = (mine.topic or "", mine.partition if mine.partition is not None else -1)
    return orders.reached.get(where, 0).to_bytes(2, "big") >= epoch


def _in_one_epoch(kind: Kind, mine: Place, other: Place, orders: Orders, *, here: bool) -> Why | None:
    if kind is Kind.OFFSET:
        return None if here else Why.PARTITION
    if kind is Kind.TIME:
        return Why.TIE if major_of(mine.seq) == major_of(other.seq) and not here else None
    log, formerly = orders.log_of(mine.origin.topic), orders.log_of(other.origin.topic)
    return None if log is not None and log == formerly else _of_two_logs(mine, other, orders.tolerance)


def _of_two_logs(mine: Place, other: Place, tolerance: int) -> Why | None:
    """Positions of two logs compare where the source's times agree with them."""
    if mine.seq == other.seq:
        return None
    if mine.at is None or other.at is None:
        return Why.LOG
    later = mine.at - other.at
    if mine.seq < other.seq and later > tolerance:
        return Why.MOVED
    agrees = later >= 0 if mine.seq > other.seq else later <= 0
    return None if agrees else Why.LOG


# -- the changes of one key in a batch --------------------------------------------------------------------


class Change(NamedTuple):
    """A change of a key: what it does, and where it stands."""

    op: str
    place: Place


def waiting(changes: Sequence[Change], stored: Place | None, orders: Orders) -> list[Why | None]:
    """Return for each change of one key why it waits, None if it does not; in any order.

    ``stored`` is the newest change of the key that the mirror has, of its row or its delete. A change has to
    compare with that, and with the changes of the batch that do not wait. Where the mirror has nothing, the
    first of the batch's orders stands for it: that of a create, if there is one.
    """
    if not changes:
        return []
    stood = stored if stored is not None else min(changes, key=_first).place
    whys = [unordered(each.place, stood, orders) for each in changes]
    before: list[Place] = []
    for i in sorted(range(len(changes)), key=lambda i: _arrival(changes[i].place)):
        if whys[i] is None:
            whys[i] = _among(changes[i].place, before, orders)
            before.append(changes[i].place)
    return whys


def _among(place: Place, before: Sequence[Place], orders: Orders) -> Why | None:
    """Return why a change does not compare with the earlier ones of its key in the batch.

    If it compares with two of them, it compares with all: with the first of its epoch and, where times order,
    the first of its time; where positions do, with the one that has the latest time, because within a log
    times do not go back.
    """
    for other in _peers(place, before):
        why = unordered(place, other, orders)
        if why is not None:
            return Why.LOG if why is Why.MOVED else why
    return None


def _peers(place: Place, before: Sequence[Place]) -> Iterable[Place]:
    yield from [each for each in before if epoch_of(each.seq) == epoch_of(place.seq)][:1]
    kind = kind_of(place)
    if kind is Kind.TIME:
        yield from [each for each in before if major_of(each.seq) == major_of(place.seq)][:1]
    if kind is Kind.POSITION and before:
        yield max(before, key=lambda each: (_or(each.at), _arrival(each)))


def _first(change: Change) -> tuple[object, ...]:
    topic, partition, offset = change.place.origin
    is_begun = change.op not in (Op.CREATE, Op.READ)  # the row was there before: creates come first
    return (is_begun, topic or "", _or(partition), change.place.seq, _or(offset))


def _arrival(place: Place) -> tuple[bytes, str, int, int]:
    topic, partition, offset = place.origin
    return (place.seq, topic or "", _or(partition), _or(offset))


def _or(number: int | None) -> int:
    return -1 if number is None else number


# -- a truncate -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truncated:
    """A truncate: all rows of a table up to ``seq`` are gone.

    ``kind`` and ``origin`` are those of its order, ``log`` the topics of its log if it has a position. With
    ``kind`` None, the mirror has only one order, in which every change compares with it.
    """

    seq: bytes
    kind: Kind | None = None
    origin: Origin = NO_ORIGIN
    log: frozenset[str] = frozenset()
    at: int | None = None

    def compares(self, place: Place) -> bool:
        """Return whether a change compares with the truncate."""
        kind = kind_of(place)
        if self.kind is None or kind in (Kind.GIVEN, Kind.COLUMNS):
            return True
        if epoch_of(place.seq) < epoch_of(self.seq):
            return True
        return kind is self.kind and self._is_alike(place)

    def removes(self, place: Place) -> bool:
        """Return whether a change came before the truncate, so that its row is gone."""
        return place.seq <= self.seq and self.compares(place)

    def _is_alike(self, place: Place) -> bool:
        here = _are_of_one_partition(place.origin, self.origin)
        if self.kind is Kind.OFFSET:
            return here
        if self.kind is Kind.TIME:
            return here or major_of(place.seq) != major_of(self.seq)
        if self.kind is Kind.POSITION:
            return place.origin.topic in self.log if self.log else here
        return True
