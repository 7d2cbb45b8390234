"""Soft deletes: the row stays, with its last values, and shows when it was deleted."""

from __future__ import annotations

from collections.abc import Callable

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import beside, lifted
from lakemirror.driver.rules.columns import beside_stored, kept, own_of, seq_after, wins
from lakemirror.driver.rules.positions import MISSING
from lakemirror.driver.rules.states import State, texts_of, value_of
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Row, Said


def deleted(state: State, stored: Row | None, table: Table) -> Row:
    """Return the row that a soft delete leaves: the last one before it, from the batch or as stored."""
    event = state.event
    assert event is not None
    if stored is None:
        return _deleted_alone(state, table)
    lift = _lifting(state, stored)
    seq = seq_after(state, stored)
    row_seq = _row_beside(state, stored)
    shows_row = row_seq is not None and row_seq > stored.seq
    if not (stored.is_live or shows_row):  # it was deleted before, and stays so
        return stored._replace(seq=seq, at=event.at, origin=event.origin)
    last = seq if row_seq is None else row_seq
    values = {name: value_of(state, name) if shows_row else stored.values.get(name) for name in table.columns}
    texts = dict(state.texts if shows_row else stored.texts)
    said = {}
    for name, mine in state.said.items():
        at = max(own_of(state, mine, seq), beside_stored(mine, stored, name))
        is_newer = wins(at, stored, name, last)
        said[name] = mine if is_newer else kept(stored, name)
        values[name] = said[name].value
    after = stored.seq if row_seq is None else max(stored.seq, row_seq)
    when = _gone_at(state, after, table, lift)
    return Row(seq, Op.DELETE, event.at, event.origin, values, {}, texts_of(texts, said), when)


def _row_beside(state: State, stored: Row) -> bytes | None:
    """Return the sequence of the state's last row next to the stored one, which it may follow by its LSN."""
    if state.row_seq is None:
        return None
    return beside(Said(None, state.row_seq, opened=state.row_opened), stored.seq, stored.origin)


def _lifting(state: State, stored: Row) -> Callable[[bytes], bytes]:
    return lambda value: lifted(value, stored.seq) if state.unanchored else value


def _deleted_alone(state: State, table: Table) -> Row:
    """Return the row of a soft delete of a key that the mirror has not had.

    Without any row in the batch, it shows the key alone, and gets no value when columns are added.
    """
    event = state.event
    assert event is not None
    values = {name: value_of(state, name) for name in table.columns}
    seen = state.row_seq is not None
    first = min(state.ends, key=_end, default=(MISSING, None))[1] if not seen else None
    when = first if first is not None else _gone_at(state, state.row_seq or MISSING, table, lambda seq: seq)
    texts = texts_of(state.texts, state.said)
    return Row(state.seq, Op.DELETE, event.at, event.origin, values, {}, texts, when, unseen=not seen)


def _gone_at(state: State, after: bytes, table: Table, lift: Callable[[bytes], bytes]) -> int | None:
    """Return when a row was deleted: the time of its first delete or truncate after a sequence."""
    ends = [each for each in state.ends if lift(each[0]) > after]
    ends += [(each.seq, each.at) for each in table.truncates if each.seq > after]
    first = min(ends, key=_end, default=(MISSING, None))[1]
    times = (first, None if state.event is None else state.event.at, table.now)
    return next((each for each in times if each is not None), None)


def _end(end: tuple[bytes, int | None]) -> tuple[bytes, int]:
    return end[0], -1 if end[1] is None else end[1]
