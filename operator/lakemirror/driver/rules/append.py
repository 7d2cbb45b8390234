"""What makes two events of a list the same (mode append): a list has every event once.

An event that was sent again has the origin of the first delivery; or its position, in the same log, and its
payload as sent. A position alone tells nothing: PostgreSQL gives all rows of a COPY one LSN, and Oracle gives
all changes of an SCN one position. All rows of a snapshot share one position and may be equal, so only their
origin tells them apart. So does that of events without a position: equal times and offsets are those of
different events.

A line of a file that is read again with other bytes is a correction: it replaces the event that it made.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.positions import NO_ORIGIN, Origin, is_snapshot, without_tie
from lakemirror.driver.rules.values import Outcome, Values, is_same


class Listed(NamedTuple):
    """An event as a list has it.

    ``payload`` is a hash of what was sent and of the log that the position is one of; None in rows of earlier
    versions, which have only their values. ``is_placed`` says that the event has a position. ``shard`` is the
    source table in a mirror of several: positions of two say nothing about each other. ``is_former`` says
    that it is no record of its own, but ends the former row of an update (`former_row`).
    """

    seq: bytes
    op: str
    origin: Origin = NO_ORIGIN
    payload: Hashable = None
    values: Values | None = None
    is_placed: bool = True
    shard: str | None = None
    is_former: bool = False

    @property
    def is_told_by_payload(self) -> bool:
        """Whether position and payload identify the event."""
        return self.is_placed and not is_snapshot(self.seq)

    @property
    def identity(self) -> Hashable:
        """What an event has in common with each delivery of it in one batch."""
        return self.seq, self.op, self.payload, None if self.is_told_by_payload else self.origin


def is_listed(event: Listed, stored: Listed, *, corrects: bool = False) -> bool:
    """Return whether an event is the one of a stored row.

    ``corrects`` says that an event of the same origin may be another one: a correction (`replaces`).
    """
    if (event.shard, event.op) != (stored.shard, stored.op):
        return False
    if without_tie(event.seq) != without_tie(stored.seq):
        return False
    if event.origin == stored.origin and not corrects:
        return True
    is_known = event.is_told_by_payload or event.origin == stored.origin
    return is_known and _is_alike(event, stored)


def replaces(event: Listed, stored: Listed) -> bool:
    """Return whether a correction that is added to a list takes the place of a stored row."""
    return event.origin == stored.origin and event.is_former == stored.is_former


def _is_alike(event: Listed, stored: Listed) -> bool:
    if stored.payload is not None:
        return event.payload == stored.payload
    mine, theirs = event.values or {}, stored.values or {}
    return all(is_same(value, theirs.get(name)) for name, value in mine.items())


def former_row(event: Listed, row: Values) -> Listed:
    """Return what ends the row that an update gave another key: a delete at its place, with the former key.

    It has no record of its own.
    """
    payload = (event.payload, str(Op.DELETE))
    return event._replace(op=Op.DELETE, values=row, payload=payload, is_former=True)


def append(events: Sequence[Listed], stored: Iterable[Listed], *, corrects: bool = False) -> list[Outcome]:
    """Return for each event whether it is added to a list (applied), or was there before (duplicate).

    ``corrects`` says that records are rows of files, which may be corrected.
    """
    by_position: dict[bytes, list[Listed]] = {}
    for each in stored:
        by_position.setdefault(without_tie(each.seq), []).append(each)
    seen: set[Hashable] = set()
    outcomes = []
    for event in events:
        before = by_position.get(without_tie(event.seq), ())
        again = event.identity in seen or any(is_listed(event, each, corrects=corrects) for each in before)
        outcomes.append(Outcome.DUPLICATE if again else Outcome.APPLIED)
        seen.add(event.identity)
    return outcomes
