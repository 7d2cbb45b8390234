"""Transactions that were open while the snapshot was taken (PostgreSQL).

Such a change was written below the position of the snapshot, although the snapshot does not show it, and its
record does not know the last commit before it: it is *unanchored*. Its LSN alone places it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter, lt
from typing import Final

from lakemirror.driver.rules.positions import (
    NO_ORIGIN,
    WIDTH,
    Origin,
    anchored_at,
    change_of,
    epoch_of,
    is_reread,
    is_snapshot,
    major_of,
    minor_of,
    own,
)
from lakemirror.driver.rules.values import Event, Row, Said

Numbered = tuple[int, Event]
"""An event with its number among those that were given."""

_seq: Final = attrgetter("seq")
_is_unanchored: Final = attrgetter("unanchored")


def placed(events: Sequence[Event], stored: Sequence[Row] = ()) -> list[Numbered]:
    """Return the events in the order in which the source made them, each at its place."""
    placed = anchored(events, stored)
    seqs = list(map(_seq, placed))
    are_in_order = all(map(lt, seqs, seqs[1:]))  # as they mostly arrive
    numbered = list(enumerate(placed))
    return numbered if are_in_order else sorted(numbered, key=_arrival)


def _arrival(numbered: Numbered) -> tuple[bytes, str, int, int]:
    return numbered[1].arrival


def anchored(events: Sequence[Event], stored: Sequence[Row] = ()) -> Sequence[Event]:
    """Return the events of a key, with the changes of transactions that were open during a snapshot in place.

    An unanchored change that follows the snapshot row of its key in its partition is newer than the row, even
    if its LSN is below that of the snapshot. The row may be ``stored``.
    """
    if not any(map(_is_unanchored, events)):
        return events
    known: list[Event | Row] = [*events, *stored]
    reads = [each for each in known if is_snapshot(each.seq)]
    return [_anchored(each, reads) if each.unanchored else each for each in events]


def _anchored(event: Event, reads: Iterable[Event | Row]) -> Event:
    """Return a change at its place: after the rows of the snapshot that precede it in its partition."""
    before = [each.seq for each in reads if event.origin.follows(each.origin)]
    base = max([event.seq, *(seq for seq in before if epoch_of(seq) == epoch_of(event.seq))])
    return event._replace(seq=anchored_at(event.seq, base))


def is_derived(seq: bytes, read: bytes) -> bool:
    """Return whether a sequence is that of an unanchored change that follows the snapshot row at ``read``."""
    return is_snapshot(read) and not is_snapshot(seq) and major_of(seq) == major_of(read)


def outruns(seq: bytes, other: bytes) -> bool:
    """Return whether an unanchored change, which its LSN alone places, has a higher one than another.

    A row of an incremental snapshot shows all transactions up to a commit, so it has a place among changes.
    """
    if epoch_of(seq) != epoch_of(other):
        return False
    return seq > other if is_reread(other) else minor_of(seq) > minor_of(other)


def beside(said: Said, base: bytes, origin: Origin) -> bytes:
    """Return the sequence of a value next to what is known at ``base``, which is from ``origin``.

    A value that an unanchored change carried takes its place behind that if it has a higher LSN, or follows
    it in its partition if that is a row of a snapshot. On one row, LSNs are in the order of its changes.
    """
    if said.opened is None or len(base) < WIDTH or epoch_of(said.seq) != epoch_of(base):
        return said.seq
    if is_snapshot(base) and not said.opened.follows(origin):
        return said.seq
    return lifted(said.seq, base)


def beside_stored(said: Said, stored: Row, column: str) -> bytes:
    """Return the sequence of a value next to the stored one of its column.

    Where the stored value was read by a snapshot, it is no longer known where it came in its partition if the
    row is from a change that followed it. What has a higher LSN than that change follows both.
    """
    if said.opened is None:
        return said.seq
    base = change_of(stored.seq_of(column), stored.seq)
    if base != stored.seq and is_derived(stored.seq, base):
        return lifted(said.seq, base) if outruns(said.seq, stored.seq) else said.seq
    return beside(said, base, stored.origin if base == stored.seq else NO_ORIGIN)


def lifted(value: bytes, base: bytes) -> bytes:
    """Return the sequence of a value of an unanchored change that follows what is at ``base``."""
    if len(value) < WIDTH or is_snapshot(value) or is_reread(value) or value >= own(base):
        return value
    if is_reread(base):
        return value
    above = is_snapshot(base) or minor_of(value) > minor_of(base)
    return base[:12] + value[12:] if above else value
