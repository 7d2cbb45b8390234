"""The row that a mirror has: whether an event is newer, and what it makes of the row."""

from __future__ import annotations

from collections.abc import Mapping

from lakemirror.driver.rules.anchors import beside_stored, outruns
from lakemirror.driver.rules.columns import kept, own_of, seq_after, wins
from lakemirror.driver.rules.positions import (
    WIDTH,
    change_of,
    epoch_of,
    is_reread,
    is_snapshot,
    major_of,
)
from lakemirror.driver.rules.soft_deletes import brings_row, deleted
from lakemirror.driver.rules.states import State, older, texts_of, value_of, without
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.truncates import truncated
from lakemirror.driver.rules.values import Row, Said, Value, is_same


def is_newer(state: State, stored: Row, table: Table) -> bool:
    """Return whether the state is newer than the stored row.

    Sequences decide, with three exceptions: an unanchored change is placed by its LSN alone; a snapshot row
    yields to a change that came after it in its partition; and of two different events at one place, the
    later arrival counts.
    """
    event = state.event
    if event is None or not state.is_written:
        return False
    if state.seq == stored.seq and event.origin.follows(stored.origin):
        return _is_another(state, stored, table)
    if table.corrects and _is_correction(state, stored, table):
        return True
    if _is_overtaken(state, stored):
        return False
    if state.unanchored and epoch_of(state.seq) == epoch_of(stored.seq):
        if is_snapshot(stored.seq):
            return state.seq > stored.seq or event.origin.follows(stored.origin)
        return outruns(state.seq, stored.seq)
    return state.seq > stored.seq


def _is_overtaken(state: State, stored: Row) -> bool:
    """Return whether a row was read by a snapshot before the change of the stored row, in its partition."""
    is_read = is_snapshot(state.seq) and not is_snapshot(stored.seq)
    return is_read and state.event is not None and stored.origin.follows(state.event.origin)


def _is_another(state: State, stored: Row, table: Table) -> bool:
    """Return whether an event at the place of the stored row makes another row of it."""
    if state.is_delete == stored.is_live:
        return True
    if state.is_delete and not brings_row(state, stored):
        return False
    return any(not is_same(value_of(state, name), stored.values.get(name)) for name in table.columns)


def _is_correction(state: State, stored: Row, table: Table) -> bool:
    """Return whether an event is the line of the stored row, read again with other bytes."""
    event = state.event
    assert event is not None
    here = event.origin == stored.origin and event.origin.offset is not None
    return here and _is_another(state, stored, table)


def met(state: State, stored: Row | None, table: Table) -> Row | None:
    """Return the row after a newer state."""
    if state.is_delete:
        return deleted(state, stored, table) if table.soft else None
    if not state.is_written:
        return None
    if stored is None:
        row = _row(state, state.seq, _values_of_new(state, table), older(state.said, state.seq), state.said)
    else:
        row = _updated(state, stored, table)
    return truncated(row, table) if table.soft else row


def _updated(state: State, stored: Row, table: Table) -> Row:
    """Return the row after an update: a tracked column keeps the stored value where that is newer."""
    seq = seq_after(state, stored)
    values = _shown(state, table)
    said = {}
    for name, mine in state.said.items():
        at = max(own_of(state, mine, seq), beside_stored(mine, stored, name))
        # Of two changes at one place, the later arrival counts.
        again = state.seq == stored.seq and at == stored.seq_of(name)
        is_newer = again or wins(at, stored, name, seq)
        said[name] = Said(mine.value, at, mine.text) if is_newer else kept(stored, name)
        values[name] = said[name].value
    return _row(state, seq, values, older(said, seq), said)


def _shown(state: State, table: Table) -> dict[str, Value]:
    """Return the values of the row that a state shows."""
    row = state.row
    return dict(row) if [*row] == table.columns else {name: row.get(name) for name in table.columns}


def _values_of_new(state: State, table: Table) -> dict[str, Value]:
    """Return the values of a row that the mirror has not had. Those of later moves are still to come."""
    values = _shown(state, table)
    for name, said in state.said.items():
        values[name] = said.value if change_of(said.seq, state.seq) <= state.seq else None
    return values


def not_newer(state: State, stored: Row, table: Table) -> Row | None:
    """Return the stored row, with what an older event still adds: values that columns are waiting for."""
    return truncated(_filled(state, stored), table) if stored.is_live else stored


def _filled(state: State, stored: Row) -> Row:
    stored = _after_read(stored, state)
    seqs = {name: beside_stored(each, stored, name) for name, each in state.said.items()}
    seqs = {name: seq for name, seq in seqs.items() if wins(seq, stored, name, stored.seq)}
    if not seqs:
        return stored
    filled = {name: state.said[name] for name in seqs}
    return stored._replace(
        values={**stored.values, **{name: each.value for name, each in filled.items()}},
        seqs=without(stored.seq, {**stored.seqs, **seqs}),
        texts=texts_of(stored.texts, filled),
    )


def _after_read(stored: Row, state: State) -> Row:
    """Return the stored row; after a row that a snapshot read before it, if that has a higher position.

    The change of the stored row is then one of a transaction that was open during the snapshot. The state is
    the row of the snapshot, or an earlier change that follows it.
    """
    read = state.seq
    if stored.seq >= read or not _is_read_before(state, stored):
        return stored

    def lift(seq: bytes) -> bytes:
        is_change = len(seq) >= WIDTH and not is_snapshot(seq) and not is_reread(seq)
        return major_of(read) + seq[12:] if is_change and epoch_of(seq) == epoch_of(read) else seq

    seqs = {name: lift(seq) for name, seq in stored.seqs.items()}
    return stored._replace(seq=lift(stored.seq), seqs=seqs)


def _is_read_before(state: State, stored: Row) -> bool:
    if is_snapshot(state.seq):
        return _is_overtaken(state, stored)
    is_one_log = epoch_of(state.seq) == epoch_of(stored.seq)
    return state.unanchored and is_one_log and not outruns(state.seq, stored.seq)


def _row(
    state: State,
    seq: bytes,
    values: Mapping[str, Value],
    seqs: Mapping[str, bytes],
    said: Mapping[str, Said],
) -> Row:
    event = state.event
    assert event is not None
    return Row(seq, state.op, event.at, event.origin, values, seqs, texts_of(state.texts, said))
