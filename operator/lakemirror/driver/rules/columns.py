"""The memory of each column of a row: whether what an event says about it is newer."""

from __future__ import annotations

from lakemirror.driver.rules.positions import anchored_at, change_of, own
from lakemirror.driver.rules.states import State
from lakemirror.driver.rules.values import Row, Said


def wins(value: bytes, stored: Row, column: str, row: bytes) -> bool:
    """Return whether a value is newer than the stored one, and no newer than the row, which is at ``row``."""
    return value > stored.seq_of(column) and change_of(value, row) <= row


def kept(stored: Row, column: str) -> Said:
    """Return what the mirror has in a column. The values of a deleted row are of a former life."""
    if not stored.is_live:
        return Said(None, stored.seq_of(column))
    return Said(stored.values.get(column), stored.seq_of(column), stored.texts.get(column))


def own_of(state: State, said: Said, seq: bytes) -> bytes:
    """Return the sequence of a value. What the newest event carried itself is as new as the row."""
    return own(seq) if said.seq == own(state.seq) else said.seq


def seq_after(state: State, stored: Row) -> bytes:
    """Return the sequence of the row after an update by a state that is newer."""
    if state.unanchored and state.seq < stored.seq:
        return anchored_at(state.seq, stored.seq)
    return state.seq
