"""Truncates: what they remove, of the events of a batch and of the rows of a mirror."""

from __future__ import annotations

from collections.abc import Sequence

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import Numbered
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Outcome, Row


def apart(events: Sequence[Numbered], table: Table) -> tuple[Sequence[Numbered], dict[int, Outcome]]:
    """Return the events that a truncate leaves, and the outcomes of the others.

    What is below a truncate that the mirror had before is stale. What is below one of the batch is superseded
    by it. If deletes are soft, the rows below a truncate of the batch stay, and show that they are deleted.
    """
    before, floor = table.floor_before, None if table.soft else table.floor
    if before is None and floor is None:
        return events, {}
    live, outcomes = [], {}
    for number, event in events:
        if before is not None and before.removes(event.place):
            outcomes[number] = Outcome.STALE
        elif floor is not None and floor.removes(event.place):
            outcomes[number] = Outcome.SUPERSEDED
        else:
            live.append((number, event))
    return live, outcomes


def truncated(row: Row, table: Table) -> Row | None:
    """Return what the truncates of a batch leave of a row that is there.

    One at the position of the row came after it. If deletes are soft, the row stays, and shows since when it
    is deleted.
    """
    later = [each for each in table.truncates if each.seq >= row.seq]
    if not later:
        return row
    if not table.soft:
        return None
    first = min(later, key=lambda each: each.seq)
    when = first.at if first.at is not None else table.now
    return row._replace(seq=first.seq, op=Op.DELETE, seqs={}, deleted_at=when)
