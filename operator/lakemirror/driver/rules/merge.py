"""What becomes of a row: the events of one key in any order, and what the mirror has of it.

The newest event decides whether there is a row. Columns are merged one by one, because an event need not
carry all of them. The result depends neither on the order in which events arrive, nor on how they are cut
into batches. `merge` is the rule; each of its steps is a page:

1. `anchors`: a change of a transaction that was open during the snapshot takes its place after the row.
2. `truncates`: what a truncate removed is told from what came after it.
3. `states`: the newest event, with the values that it did not carry itself, also from its former key.
4. `tombstones`: a delete that is newer forbids the event to write a row.
5. `stored`, with `columns` and `soft_deletes`: what the event makes of the row that the mirror has.
6. `outcomes`: what became of each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import placed
from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.outcomes import outcome_of_newest, outcomes_of
from lakemirror.driver.rules.positions import MISSING
from lakemirror.driver.rules.soft_deletes import brings_row, forgetting
from lakemirror.driver.rules.states import Inherited, State, newest, with_inherited
from lakemirror.driver.rules.stored import is_newer, met, not_newer
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.tombstones import gated, new_tombstone
from lakemirror.driver.rules.truncates import apart
from lakemirror.driver.rules.values import Event, Outcome, Row, Said, Tombstone

_NO_VALUES: Final[Inherited] = {}


class Merged(Frozen, frozen=True):
    """What becomes of a key: the row that the mirror shows (None: none), and the tombstone to write.

    ``outcomes`` has one outcome for each event, in the order in which the events were given.
    """

    row: Row | None
    tombstone: Tombstone | None
    outcomes: list[Outcome]


def merge(
    events: Sequence[Event],
    stored: Row | None,
    tombstone: Tombstone | None,
    table: Table,
    inherited: Inherited = _NO_VALUES,
) -> Merged:
    """Return what becomes of a key. ``events`` are all that the batch has of it, in any order.

    ``stored`` is its row in the mirror, ``tombstone`` its newest tombstone, ``inherited`` what its row had
    under former keys.
    """
    live, outcomes = apart(placed(events, () if stored is None else (stored,)), table)
    state = newest(live, table)
    if state is None:
        return Merged(_without_event(stored, inherited, table), None, _in_order(events, outcomes))
    known = gated(state, tombstone, table)
    state = with_inherited(known, inherited, table, stored)
    newer = stored is None or is_newer(state, stored, table)
    if stored is not None and (not newer or (state.is_delete and not brings_row(state, stored))):
        state = _before_stored(known, stored, inherited, table)
    row = met(state, stored, table) if stored is None or newer else not_newer(state, stored, table)
    outcome = outcome_of_newest(state, stored, newer=newer)
    outcomes.update(outcomes_of(live, outcome, table))
    return Merged(row, new_tombstone(state, table), _in_order(events, outcomes))


def _without_event(stored: Row | None, inherited: Inherited, table: Table) -> Row | None:
    """Return what becomes of a row for which the batch has no event that counts."""
    if stored is None or not (inherited or table.truncates):
        return stored
    nothing = State(Op.PASSED, MISSING, said=dict.fromkeys(table.tracked, Said()))
    return not_newer(_before_stored(nothing, stored, inherited, table), stored, table)


def _before_stored(state: State, stored: Row, inherited: Inherited, table: Table) -> State:
    """Return what a batch says about the columns of the stored row, of which it has no newer image."""
    return with_inherited(forgetting(state, stored, table), inherited, table, stored, stored.seq)


def shown(
    events: Sequence[Event], stored: Row | None, tombstone: Tombstone | None, table: Table
) -> Event | None:
    """Return the event of a key whose row the mirror shows after a batch, None if it shows that of none."""
    live, _ = apart(placed(events, () if stored is None else (stored,)), table)
    state = newest(live, table)
    if state is None or state.is_delete:
        return None
    number, event = live[-1]
    floor = table.floor_of_batch
    if floor is not None and floor.removes(event.place):  # if deletes are soft, it leaves a deleted row
        return None
    state = gated(state, tombstone, table)
    is_shown = state.is_written and (stored is None or is_newer(state, stored, table))
    return events[number] if is_shown else None


def _in_order(events: Sequence[Event], outcomes: Mapping[int, Outcome]) -> list[Outcome]:
    return [outcomes[i] for i in range(len(events))]
