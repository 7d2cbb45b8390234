"""What became of each record: every record has exactly one outcome."""

from __future__ import annotations

from collections.abc import Sequence

from lakemirror.driver.rules.anchors import Numbered
from lakemirror.driver.rules.states import State
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome, Row


def outcome_of_newest(state: State, stored: Row | None, *, newer: bool) -> Outcome:
    """Return what became of the newest event."""
    if not state.is_written:
        return Outcome.STALE
    if stored is None:
        return Outcome.DUPLICATE if state.is_repeated else Outcome.APPLIED
    if newer:
        return Outcome.APPLIED
    return Outcome.DUPLICATE if state.seq == stored.seq else Outcome.STALE


def outcomes_of(events: Sequence[Numbered], newest: Outcome, table: Table) -> dict[int, Outcome]:
    """Return the outcomes of the events that truncates left (`truncates.apart`), which are in their order.

    ``newest`` is that of the last one, unless a truncate of the batch is newer: if deletes are soft, the
    event is left to show its row, and superseded. An event that was sent twice counts once: the others are
    duplicates. All others are superseded.
    """
    found: dict[int, Outcome] = {}
    floor = table.floor_of_batch
    before: Event | None = None
    first, is_removed = None, False
    for number, event in events:
        is_removed = floor is not None and floor.removes(event.place)
        if before is not None and is_again(event, before) and not is_removed:
            found[number] = Outcome.DUPLICATE
        else:
            found[number] = Outcome.SUPERSEDED
            first = number
        before = event
    if first is not None and not is_removed:
        found[first] = newest  # where the newest event was delivered first
    return found


def is_again(event: Event, other: Event) -> bool:
    """Return whether two events of a key are one that was sent twice."""
    return event.seq == other.seq and event.digest is not None and event.digest == other.digest
