"""Tracks since when a source column has been what it is now: **absence is no evidence about other rows**.

A record that is the whole row replaces its row, and a column that it lacks is null there. This says nothing
about other rows, and nothing about the column. It may be a record of another producer or of an older schema,
or a change of a table whose snapshot reads more columns than are streamed.

Columns can be dropped and added again. Rows that were written before then have the column's default in the
source, or null, whatever they held before: the column begins a new *life*. A mirror follows only if the log
of the database shows this. A life begins and ends by events that

- are streamed changes (c, u, d), never rows of a snapshot, a reload or a repair,
- show their columns in a schema, in the formats ``debezium`` and ``debezium-flat`` or in a change feed, so
  that a delete without a schema says nothing,
- are ordered by positions of *one* connector in one epoch (`lakemirror.driver.profile.overview.Changes`).
  Times, offsets and columns of rows are no such order, and positions of another connector or epoch do not
  compare with these.

Two marks show where a life begins: the highest position of an event *without* the column, and the highest
position of an event *with* it. The higher mark shows whether the column exists now. Its life begins after the
mark ``absent``. Maxima do not depend on the order of delivery. Two events at the same position are copies of
one change, and begin nothing.

The higher mark is the highest position of the table's events, which is looked up only if the two marks must
be compared. So the table property holds only what is out of the ordinary: columns that were absent at some
time.

A constant default of a column that is added is not part of a life. It goes to all rows that are there, and to
events of schemas without the column, under every order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lakemirror.driver.parse.values.connect import Field
from lakemirror.driver.sequence import beginning_of, epoch_of

SEVERAL: Final = "*"
"""Stands for the log of a column that events of several logs show differently: nothing orders these."""


GIVING: Final = "?"
"""Stands for the batch that is being planned, in `Life.given`."""


@dataclass(frozen=True)
class Seen:
    """What events say about a column: the highest position of an event without it, and of one with it.

    ``defaults`` are the constant defaults of the events' schemas, each with the lowest sequence of an event
    of that schema.
    """

    absent: bytes | None = None
    present: bytes | None = None
    defaults: tuple[tuple[bytes, Field], ...] = ()

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            _highest(self.absent, other.absent),
            _highest(self.present, other.present),
            (*self.defaults, *other.defaults),
        )


@dataclass(frozen=True)
class Log:
    """The log whose positions order the marks of a batch, and the ``topics`` that have its events."""

    name: str
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Life:
    """The current life of a column, or the fact that it has none (``dropped``).

    Values up to the position ``absent`` in the log named ``log`` belong to a former life, if they came from
    the log's ``topics`` (None: as far as is known, the column always existed). ``default`` is what older rows
    have, according to the schema of the event at ``default_at``. ``fill`` says that stored rows may still
    hold values of a former life. Marks without a ``log`` were stored by an older version, for any source.
    ``given`` is the batch that gives the default to the rows that were there before the column (`GIVING`).
    """

    absent: bytes | None = None
    dropped: bool = False
    fill: bool = False
    default: Field | None = None
    default_at: bytes | None = None
    log: str | None = None
    topics: frozenset[str] = frozenset()
    given: str | None = None

    @property
    def begins(self) -> bytes | None:
        """The position after which the life begins, if values of a former life do not count.

        None if there is no former life, or if nothing says in which log it was.
        """
        return None if self.dropped or self.log in (None, SEVERAL) else self.absent

    @property
    def first(self) -> bytes:
        """The position after which the former life is known: positions of other epochs do not compare."""
        return beginning_of(epoch_of(self.absent or b"\0\0"))

    def without_marks(self) -> Life:
        """Return only what every order has: the default."""
        return Life(default=self.default, default_at=self.default_at, given=self.given)


PLAIN = Life()


@dataclass(frozen=True)
class Turn:
    """A column's life after a batch, and whether the batch shows that it was dropped or has returned."""

    life: Life
    dropped: bool = False
    returned: bool = False


@dataclass(frozen=True)
class Lives:
    """What is known about a table's columns before a batch, by source name.

    ``columns`` are those of the mirror, or None if there is no mirror yet. ``highest`` returns the highest
    position of the table's streamed events in a log and an epoch (None: there was none) and may have to look
    it up.
    """

    stored: Mapping[str, Life]
    columns: Collection[str] | None
    highest: Callable[[Log, int], bytes | None]
    holds: Callable[[Log, bytes], bool] = lambda _log, _position: False
    """Whether a row is at a position of a log, so that an event there is a copy of one that was applied."""

    def after(self, seen: Mapping[str, Seen], log: Log | None) -> dict[str, Turn]:
        """Return the state of each column after a batch.

        ``log`` orders what was seen of absence and presence. None if the batch has no such events.
        """
        return {name: self._turn(name, each, log) for name, each in seen.items()}

    def _turn(self, name: str, seen: Seen, log: Log | None) -> Turn:
        before = self.stored.get(name, PLAIN)
        turn = Turn(before) if log is None else self._judged(name, before, seen, log)
        ordered = log is not None and log.name != SEVERAL
        return replace(turn, life=_with_default(turn.life, before, seen, ordered=ordered))

    def _judged(self, name: str, before: Life, seen: Seen, log: Log) -> Turn:
        """Compare the marks. ``seen`` has those of the batch."""
        there = name in (self.columns or ())
        if before.log == SEVERAL:
            return Turn(before)
        if log.name == SEVERAL:
            differ = seen.absent is not None and (there or seen.present is not None)
            return Turn(replace(before.without_marks(), log=SEVERAL) if differ else before)
        if before.log not in (None, log.name):
            before = before.without_marks()
        if before.dropped and seen.present is None:
            return Turn(before)
        absent, present = self._marks(before, seen, log, there=there)
        if absent is None or (absent == before.absent and not before.dropped):
            return Turn(before if before.absent is None else _in(before, log))
        if present is None or present < absent:
            gone = Life(absent, dropped=True, topics=before.topics)
            return Turn(before if before.dropped else _in(gone, log), dropped=not before.dropped)
        if present == absent:
            return Turn(before)
        begun = _in(Life(absent, fill=self.columns is not None, topics=before.topics), log)
        return Turn(begun, returned=there and before.dropped)

    def _marks(self, before: Life, seen: Seen, log: Log, *, there: bool) -> tuple[bytes | None, bytes | None]:
        """Return the highest position without the column and the highest one with it, of the newest epoch."""
        absent, present = _highest(before.absent, seen.absent), seen.present
        newest = _highest(absent, present)
        if newest is None:
            return None, None
        epoch = epoch_of(newest)
        exists = self.columns is not None
        if before.dropped or (exists and not there):
            absent = _highest(absent, self.highest(log, epoch))
        elif exists and absent is not None and absent != before.absent:
            if self.holds(log, absent):
                absent = before.absent
            present = _highest(present, self.highest(log, epoch))
        return _of(epoch, absent), _of(epoch, present)


def _in(life: Life, log: Log) -> Life:
    """Return a life whose marks are positions in a log."""
    return replace(life, log=log.name, topics=life.topics | log.topics)


def _of(epoch: int, position: bytes | None) -> bytes | None:
    return position if position is not None and epoch_of(position) == epoch else None


def _with_default(life: Life, before: Life, seen: Seen, *, ordered: bool) -> Life:
    """Return the life with the default of its oldest schema.

    If the batch is not ``ordered`` by a log, nothing shows which schema is the oldest, and the first one that
    was seen counts.
    """
    found = list(seen.defaults)
    if before.default is not None and before.default_at is not None:
        if not ordered:
            return replace(life, default=before.default, default_at=before.default_at)
        known = [each for each in found if each[1] == before.default and life.absent == before.absent]
        found = [each for each in found if each not in known]  # so that nothing is stored again
        found.append((before.default_at, before.default))
    if not found:
        return life
    mine = [each for each in found if life.absent is None or each[0] > life.absent]
    at, default = min(mine, key=_at) if mine else max(found, key=_at)
    return replace(life, default=default, default_at=at)


def _at(default: tuple[bytes, Field]) -> bytes:
    return default[0]


def together(told: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """Combine what several groups of events say, by column."""
    found: dict[str, Seen] = {}
    for each in told:
        for name, seen in each.items():
            found[name] = found[name] | seen if name in found else seen
    return found


def to_text(lives: Mapping[str, Life], batch: str = GIVING) -> str:
    """Serialize lives as the value of a table property.

    ``batch`` takes the place of `GIVING`. Lives without anything to remember are left out.
    """
    told = {
        name: _document(replace(life, given=batch) if life.given == GIVING else life)
        for name, life in lives.items()
    }
    return json.dumps({name: each for name, each in told.items() if each}, sort_keys=True)


def from_text(text: str | None) -> dict[str, Life]:
    """Parse the output of `to_text`."""
    return {name: _life(each) for name, each in json.loads(text or "{}").items()}


_SEQUENCES = ("absent", "default_at")


def _document(life: Life) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(life, name) for name in _SEQUENCES}
    found = {name: seq.hex() for name, seq in found.items() if seq is not None}
    found |= {name: True for name in ("dropped", "fill") if getattr(life, name)}
    found |= {name: text for name in ("log", "given") if (text := getattr(life, name)) is not None}
    if life.topics:
        found["topics"] = sorted(life.topics)
    if life.default is not None:
        found["default"] = {
            "name": life.default.name,
            "connect_type": life.default.connect_type,
            "semantic_name": life.default.semantic_name,
            "parameters": dict(life.default.parameters),
            "default": life.default.default,
        }
    return found


def _life(document: Mapping[str, Any]) -> Life:
    sequences = {name: bytes.fromhex(document[name]) for name in _SEQUENCES if name in document}
    default = Field(**document["default"]) if "default" in document else None
    return Life(
        dropped=bool(document.get("dropped")),
        fill=bool(document.get("fill")),
        default=default,
        log=document.get("log"),
        given=document.get("given"),
        topics=frozenset(document.get("topics", ())),
        **sequences,
    )


def _highest(*sequences: bytes | None) -> bytes | None:
    return max((each for each in sequences if each is not None), default=None)
