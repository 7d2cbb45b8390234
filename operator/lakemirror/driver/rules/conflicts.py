"""``onConflict: fail``: a create of a row that is there already, which no database makes of its own rows.

It comes from a second source that writes to the same table, from a delete that was lost, or from one that is
still to come. The table is held, and its records are tried again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Row, Tombstone


class _Known(NamedTuple):
    """Something that is known of a key: at ``seq`` it was there, or ``gone``."""

    seq: bytes
    gone: bool


def conflict(
    events: Sequence[Event], stored: Row | None, tombstone: Tombstone | None, table: Table
) -> Event | None:
    """Return the first create among the events of a key that meets a live row. None if there is none.

    The newest thing that is known from before the create says whether its row is live. A create that is not
    newer than what is known is a duplicate or stale. Where a change of a transaction is among the events that
    was open during a snapshot, their sequences tell nothing.
    """
    if any(each.unanchored for each in events):
        return None
    before: Event | None = None
    for event in _one_at_each_place(events):
        known = _known(event, before, stored, tombstone, table)
        late = any(each.seq >= event.seq for each in known)
        if event.op == Op.CREATE and known and not late and not max(known).gone:
            return event
        before = event
    return None


def _one_at_each_place(events: Sequence[Event]) -> list[Event]:
    """Return the events in their order; of several at one place, the last that arrived."""
    last: dict[bytes, Event] = {}
    for event in sorted(events, key=lambda each: -1 if each.origin.offset is None else each.origin.offset):
        last[event.seq] = event
    return [last[seq] for seq in sorted(last)]


def _known(
    event: Event, before: Event | None, stored: Row | None, tombstone: Tombstone | None, table: Table
) -> list[_Known]:
    """Return what is known of the key of an event, of which ``before`` is the one before it in the batch."""
    known = [] if before is None else [_Known(before.seq, before.is_delete)]
    if stored is not None:
        known.append(_Known(stored.seq, not stored.is_live))
    if tombstone is not None:
        known.append(_Known(tombstone.seq, True))
    floors = [each for each in (table.former, table.floor_of_batch) if each is not None]
    return known + [_Known(each.seq, True) for each in floors if each.compares(event.place)]
