"""Which two sequences may be compared. `lakemirror.driver.rules.orders` has the same rule over plain values.

Every sequence (`lakemirror.driver.sequence`) is a place in one *order*:

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

Bytes decide between two sequences of one order. Between two orders they say nothing, with two exceptions:

- A higher epoch is later, because the manifest says so. A sequence of a lower epoch is earlier only if its
  partition is said to have reached the higher one, too (or is the same).
- Positions of two logs compare where the source's times agree with them. A lower position at a later time is
  evidence that a database was moved to another server.

Whatever compares sequences asks here first. Between changes of one row, a change of another order waits
(`lakemirror.driver.reduce.waiting`). Between rows, nothing may be removed without an order: a truncate that
has none waits, and an event is below a former truncate only in that one's order (`Floor`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.codes import OWN_TOPICS, RELOAD_TOPIC
from lakemirror.driver.rules.orders import Kind, Why
from lakemirror.driver.sequence import WIDTH


def rows_are_dated(spec: PipelineSpec) -> bool:
    """Return whether each row of files says when it is from, or where in a log.

    Otherwise, rows are as new as their files, unless a row of ``debezium-flat`` says something
    (`is_dated`).
    """
    by, envelope = spec.order.by, spec.envelope
    if by != "auto":
        return by != "offset"
    fields = envelope.fields
    return envelope.format in ("debezium", "maxwell") or (fields is not None and fields.timestamp is not None)


def is_dated(seq: Column) -> Column:
    """BOOLEAN: whether a sequence has a position or a time, not only an offset."""
    return F.substring(seq, 3, 10) != F.lit(bytes(10))


def names_tables_by_folder(spec: PipelineSpec) -> bool:
    """Return whether the folder of a file names the table of its rows."""
    files, fields = spec.source.files, spec.envelope.fields
    by_row = spec.envelope.format != "custom" or (fields is not None and fields.table is not None)
    return files is not None and files.table is None and not by_row


class Fact(NamedTuple):
    """Columns that tell where a change stands in the order: those of an event, a row or a tombstone."""

    seq: Column
    at: Column
    topic: Column
    partition: Column
    offset: Column

    @classmethod
    def of(cls, struct: Column) -> Fact:
        """Return the fields of a struct with these names."""
        return cls(*[struct[name] for name in cls._fields])

    @classmethod
    def of_event(cls) -> Fact:
        """Return the columns of an event."""
        return cls(*map(F.col, ("seq", "event_time", "topic", "partition", "offset")))

    def struct(self) -> Column:
        """Return a struct of the columns."""
        return F.struct(*[column.alias(name) for name, column in zip(self._fields, self, strict=True)])


Place = tuple[str, str, object]
"""A kind, a topic, and the log (position) or the partition (offset, time) that changes came from."""


@dataclass(frozen=True)
class Orders:
    """The orders of a set of changes: ``places`` has the topics of each kind, with their logs or partitions.

    A topic of positions whose log is not known has none.
    """

    places: Mapping[str, Mapping[str, frozenset[str | int]]] = field(default_factory=dict)

    def __or__(self, other: Orders) -> Orders:
        kinds = sorted({*self.places, *other.places})
        return Orders({kind: _both(self.places.get(kind, {}), other.places.get(kind, {})) for kind in kinds})

    @classmethod
    def of(cls, places: Iterable[Place]) -> Orders:
        """Return the orders of these places."""
        found: dict[str, dict[str, frozenset[str | int]]] = {}
        for kind, topic, where in places:
            mine = found.setdefault(kind, {}).setdefault(topic, frozenset())
            if isinstance(where, (str, int)):
                found[kind][topic] = mine | {where}
        return cls(found)

    @property
    def logs(self) -> dict[str, str | None]:
        """The log of each topic with positions; None if it has several.

        A topic whose changes name no log is a log of its own.
        """
        topics, timed = self.places.get(Kind.POSITION, {}), self.timed
        return {
            topic: None if len(names) > 1 else str(next(iter(names), f"topic {topic}"))
            for topic, names in topics.items()
            if topic not in timed
        }

    @property
    def timed(self) -> frozenset[str]:
        """The topics that times order, although rows of them may look as if they had a position.

        A row that a truncate deleted softly has the sequence of the truncate beside its own time. No change
        of these topics names a log, so that none has a position.
        """
        logs = self.places.get(Kind.POSITION, {})
        return frozenset(topic for topic in self.places.get(Kind.TIME, {}) if not logs.get(topic))

    @property
    def only_tie(self) -> bool:
        """Whether all changes are ordered by times."""
        return {kind for kind, *_ in self.classes} == {Kind.TIME}

    @property
    def classes(self) -> set[tuple[object, ...]]:
        """The orders within which sequences compare. Places that hold for one key each are none."""
        found: set[tuple[object, ...]] = set()
        for topic, log in self.logs.items():
            found |= (
                {(Kind.POSITION, log)} if log is not None else {(Kind.POSITION, topic, n) for n in (1, 2)}
            )
        for topic, partitions in self.places.get(Kind.OFFSET, {}).items():
            found |= {(Kind.OFFSET, topic, partition) for partition in partitions or {None}}
        return found | {(kind,) for kind in (Kind.TIME, Kind.COLUMNS) if self.places.get(kind)}

    @property
    def several(self) -> bool:
        """Whether some of the sequences do not compare, apart from equal times."""
        return len(self.classes) > 1

    @property
    def may_tie(self) -> bool:
        """Whether equal times may come from two partitions."""
        times = self.places.get(Kind.TIME, {})
        return sum(max(1, len(partitions)) for partitions in times.values()) > 1

    @property
    def has_nothing(self) -> bool:
        """Whether some rows have no place."""
        return Kind.NOTHING in self.places

    @property
    def as_one(self) -> Orders:
        """The same for rows of files, which are one order of each kind: no place in it is a topic."""
        return Orders(
            {
                kind: {"": frozenset().union(*topics.values()) if kind == Kind.POSITION else frozenset()}
                for kind, topics in self.places.items()
            }
        )

    @property
    def remembered(self) -> Orders:
        """What a mirror remembers: not the places that hold for one key each."""
        return Orders({kind: topics for kind, topics in self.places.items() if kind != Kind.GIVEN})

    def to_text(self) -> str:
        """Return the orders as JSON."""
        named = {
            kind: {topic: sorted(where, key=str) for topic, where in sorted(topics.items())}
            for kind, topics in sorted(self.places.items())
        }
        return json.dumps(named, ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """Read what `to_text` wrote."""
        document = json.loads(text)
        return cls(
            {
                kind: {topic: frozenset(where) for topic, where in topics.items()}
                for kind, topics in document.items()
            }
        )


NO_ORDERS = Orders()


def _both(
    some: Mapping[str, frozenset[str | int]], others: Mapping[str, frozenset[str | int]]
) -> dict[str, frozenset[str | int]]:
    topics = sorted({*some, *others})
    return {topic: some.get(topic, frozenset()) | others.get(topic, frozenset()) for topic in topics}


@dataclass(frozen=True)
class Rules:
    """What comparing changes of one row takes besides the changes themselves.

    ``logs`` is the log of each topic. ``one`` says that all changes are rows of files, so that topics do not
    matter, and the only log is that of "" (`Orders.as_one`). ``reached`` has the highest epoch that is
    declared for each topic and partition. ``tolerance`` (microseconds) is how far clocks may differ.
    ``timed`` are the topics that times order (`Orders.timed`).
    """

    logs: Mapping[str, str | None] = field(default_factory=dict)
    reached: Mapping[tuple[str, int], int] = field(default_factory=dict)
    tolerance: int = 0
    timed: frozenset[str] = frozenset()
    one: bool = False


def kind_of(fact: Fact) -> Column:
    """Return the `Kind` of a sequence (STRING).

    The bytes of a time and of an offset repeat what the change itself says, which no position does.
    """
    seq = fact.seq
    major, minor = F.substring(seq, 3, 10), F.substring(seq, 13, 10)
    none = F.lit(bytes(10))
    offset = F.coalesce(fact.offset + 1, F.lit(0))
    timed = (major == _ten_bytes(F.unix_micros(fact.at))) & (minor == _ten_bytes(offset))
    nowhere = (F.substring(seq, 3, 1 << 20) == F.lit(bytes(WIDTH - 2))) | (
        (major == none) & (minor == none) & (F.length(seq) == WIDTH)
    )
    return (
        F.when(nowhere, Kind.NOTHING)
        .when(F.coalesce(F.startswith(fact.topic, F.lit(OWN_TOPICS)), F.lit(False)), Kind.GIVEN)
        .when(F.length(seq) != WIDTH, Kind.COLUMNS)
        .when(major == none, Kind.OFFSET)
        .when(F.coalesce(timed, F.lit(False)), Kind.TIME)
        .otherwise(Kind.POSITION)
    )


def _ten_bytes(number: Column) -> Column:
    return F.unhex(F.lpad(F.hex(number.cast("bigint")), 20, "0"))


def epoch_of(seq: Column) -> Column:
    """Return the first two bytes of a sequence (BINARY), which compare like its epoch."""
    return F.substring(seq, 1, 2)


def unordered(mine: Fact, other: Fact, rules: Rules) -> Column:
    """Return why the sequence of a change does not compare with ``other``, of the same row.

    STRING (`Why`), null if it does, or if there is no other.
    """
    kind, stood = kind_of(mine), kind_of(other)
    if rules.timed:
        timed = F.lit(True) if rules.one else other.topic.isin(*rules.timed)
        stood = F.when((stood == Kind.POSITION) & timed, Kind.TIME).otherwise(stood)
    here = mine.topic.eqNullSafe(other.topic) & mine.partition.eqNullSafe(other.partition)
    here = F.lit(True) if rules.one else here
    # The place that a reload gave to a row is one in the partition that the row was from before.
    elsewhere = (
        (other.topic == RELOAD_TOPIC) & (other.partition > 0) & (mine.partition + 1 != other.partition)
    )
    given = F.when((kind == Kind.OFFSET) & elsewhere & (not rules.one), Why.PARTITION)
    log, formerly = _log(mine.topic, rules), _log(other.topic, rules)
    of_position = F.when(~F.coalesce(log == formerly, F.lit(False)), _of_two_logs(mine, other, rules))
    of_time = F.when((major_of(mine.seq) == major_of(other.seq)) & ~here, Why.TIE)
    earlier = F.when(~here & ~(_reached(mine, rules) >= epoch_of(other.seq)), Why.EPOCH)
    in_one_epoch = (
        F.when(kind != stood, Why.KIND)
        .when(kind == Kind.OFFSET, F.when(~here, Why.PARTITION))
        .when(kind == Kind.TIME, of_time)
        .when(kind == Kind.POSITION, of_position)
    )
    return (
        F.when(other.seq.isNull(), None)
        .when(kind.isin(Kind.NOTHING, Kind.GIVEN, Kind.COLUMNS) | (stood == Kind.NOTHING), None)
        .when(epoch_of(mine.seq) > epoch_of(other.seq), None)
        .when(stood == Kind.GIVEN, given)
        .when(epoch_of(mine.seq) < epoch_of(other.seq), earlier)
        .otherwise(in_one_epoch)
        .cast("string")
    )


def major_of(seq: Column) -> Column:
    """Return the epoch and the major part of a sequence (BINARY): of a time, all but the offset."""
    return F.substring(seq, 1, 12)


def _of_two_logs(mine: Fact, other: Fact, rules: Rules) -> Column:
    """Return why the positions of two logs do not compare: their times do not agree with them."""
    later = F.unix_micros(mine.at) - F.unix_micros(other.at)
    agrees = (
        F.when(mine.seq > other.seq, later >= 0).when(mine.seq < other.seq, later <= 0).otherwise(F.lit(True))
    )
    moved = (mine.seq < other.seq) & (later > rules.tolerance)
    return F.when(moved, Why.MOVED).when(~F.coalesce(agrees, F.lit(False)), Why.LOG)


def _log(topic: Column, rules: Rules) -> Column:
    """Return the log of a topic (STRING), null if it has several."""
    if rules.one:
        return F.lit(rules.logs.get("")).cast("string")
    found = F.concat(F.lit("topic "), F.coalesce(topic, F.lit("")))
    for name, log in rules.logs.items():
        found = F.when(topic == name, F.lit(log)).otherwise(found)
    return found


def _reached(mine: Fact, rules: Rules) -> Column:
    """Return the highest epoch that is declared for the change's partition (BINARY)."""
    found = F.lit(bytes(2))
    for (topic, partition), epoch in rules.reached.items():
        here = (mine.topic == topic) & (mine.partition == partition)
        found = F.when(here, F.lit(epoch.to_bytes(2, "big"))).otherwise(found)
    return found


class Floor(NamedTuple):
    """The order of a truncate that stands among several: no event of another order is below it.

    ``log`` are the topics of its log if it has a position.
    """

    seq: bytes
    kind: str
    topic: str | None
    partition: int | None
    log: tuple[str, ...] = ()

    def compares(self, fact: Fact) -> Column:
        """Return whether an event's sequence compares with that of the truncate (BOOLEAN, never null)."""
        here = fact.topic.eqNullSafe(F.lit(self.topic)) & fact.partition.eqNullSafe(F.lit(self.partition))
        lower = epoch_of(fact.seq) < F.lit(self.seq[:2])
        same = {
            Kind.OFFSET: here,
            Kind.TIME: here | (major_of(fact.seq) != F.lit(self.seq[:12])),
            Kind.POSITION: fact.topic.isin(*self.log) if self.log else here,
        }.get(Kind(self.kind), F.lit(True))
        kind = kind_of(fact)
        alike = (kind == self.kind) & same
        return F.coalesce(lower | alike | kind.isin(Kind.GIVEN, Kind.COLUMNS), F.lit(False))


def any_of(conditions: Iterable[Column]) -> Column:
    """Return whether one of the conditions holds (BOOLEAN)."""
    return reduce(Column.__or__, conditions, F.lit(False))
