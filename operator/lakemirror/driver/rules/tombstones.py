"""Tombstones: a delete that is newer than an event forbids it to write a row."""

from __future__ import annotations

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import beside, outruns
from lakemirror.driver.rules.positions import epoch_of, is_snapshot, minor_of, own
from lakemirror.driver.rules.states import State, after
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Said, Tombstone


def gated(state: State, tombstone: Tombstone | None, table: Table) -> State:
    """Return the state as a tombstone leaves it: an older event writes no row, and brings no older value.

    Deletes pass: only the stored row gates them, so that a batch that failed after it wrote its tombstones
    still deletes its rows when it runs again.
    """
    if tombstone is None or state.event is None:
        return state
    stale, again = _is_buried(state, tombstone), _follows(state, tombstone)
    state = state if stale else after(state, tombstone.seq)
    oldest = tombstone.seq if again else own(tombstone.seq)
    forgotten = Said(None, own(tombstone.seq))
    said = {
        name: each._replace(seq=beside(each, tombstone.seq, tombstone.origin))
        for name, each in state.said.items()
    }
    is_known = state.is_delete and (stale or again)
    is_first = not tombstone.by_delete and _is_of_its_move(state, tombstone)
    return state._replace(
        op=state.op if state.is_delete or not stale else Op.PASSED,
        is_written=state.is_delete or not stale,
        is_known=is_known,
        is_renewed=again or is_first,
        is_repeated=is_known and not is_first,
        said={name: forgotten if each.seq < oldest else each for name, each in said.items()},
    )


def _is_buried(state: State, tombstone: Tombstone) -> bool:
    """Return whether the tombstone is newer than the event."""
    event = state.event
    assert event is not None
    if tombstone.origin.follows(event.origin) and is_snapshot(state.seq):
        return True  # the row was read before the delete, however high the position of the snapshot is
    if state.unanchored and epoch_of(state.seq) == epoch_of(tombstone.seq):
        after = event.origin.follows(tombstone.origin)
        return not outruns(state.seq, tombstone.seq) or (is_snapshot(tombstone.seq) and not after)
    return state.seq <= tombstone.seq and not _follows(state, tombstone)


def _follows(state: State, tombstone: Tombstone) -> bool:
    """Return whether an event came after a delete at its own position, in the same partition.

    Of two changes at one position, the later arrival counts.
    """
    later = state.event is not None and state.event.origin.follows(tombstone.origin)
    return later and state.seq == tombstone.seq


def _is_of_its_move(state: State, tombstone: Tombstone) -> bool:
    """Return whether a delete is the other half of the change of the key that the tombstone is from.

    If the transaction was open during the snapshot, the delete may have its place after a row that was read.
    """
    is_one_log = state.unanchored and epoch_of(state.seq) == epoch_of(tombstone.seq)
    return state.seq == tombstone.seq or (is_one_log and minor_of(state.seq) == minor_of(tombstone.seq))


def new_tombstone(state: State, table: Table) -> Tombstone | None:
    """Return the tombstone to write: of a delete that has none yet. A row that stays needs none."""
    event = state.event
    if event is None or table.soft or not state.is_delete or (state.is_known and not state.is_renewed):
        return None
    return Tombstone(state.seq, event.at, event.origin)
