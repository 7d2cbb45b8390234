"""Soft deletes: the row stays, with its last values, and shows when it was deleted."""

from __future__ import annotations

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import beside
from lakemirror.driver.rules.columns import beside_stored, kept, own_of, seq_after, wins
from lakemirror.driver.rules.positions import MISSING, Origin, own
from lakemirror.driver.rules.states import End, State, texts_of, value_of
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Row, Said


def deleted(state: State, stored: Row | None, table: Table) -> Row:
    """Return the row that a soft delete leaves: the last one before it, from the batch or as stored."""
    event = state.event
    assert event is not None
    if stored is None:
        return _deleted_alone(state, table)
    seq = seq_after(state, stored)
    row_seq = None if state.row_seq is None else _beside(state.row_seq, state.row_opened, stored)
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
    ends = [each._replace(seq=_beside(each.seq, each.opened, stored)) for each in state.ends]
    when = _gone_at(state._replace(ends=ends), after, table)
    return Row(seq, Op.DELETE, event.at, event.origin, values, {}, texts_of(texts, said), when)


def _beside(seq: bytes, opened: Origin | None, stored: Row) -> bytes:
    """Return the sequence of a change next to the stored row, which an unanchored one may follow."""
    return beside(Said(None, seq, opened=opened), stored.seq, stored.origin)


def forgetting(state: State, table: Table) -> State:
    """Return a state as it comes before a row that is back, if a soft delete or a truncate was between them.

    The row has none of the values that were left to the deleted one.
    """
    event, floor = state.event, table.floor_of_batch
    if event is None or not table.soft:
        return state
    if floor is not None and floor.removes(event.place):  # of a delete, too: the truncate ends what is later
        nothing = Said(None, own(floor.seq))
    elif state.is_delete:
        nothing = Said(None, own(state.seq), opened=event.origin if state.unanchored else None)
    else:
        return state
    return state._replace(said=dict.fromkeys(state.said, nothing))


def _deleted_alone(state: State, table: Table) -> Row:
    """Return the row of a soft delete of a key that the mirror has not had.

    Without any row in the batch, it shows the key alone, and gets no value when columns are added.
    """
    event = state.event
    assert event is not None
    values = {name: value_of(state, name) for name in table.columns}
    values.update(zip(table.key, event.key, strict=False))
    seen = state.row_seq is not None
    first = min(state.ends, key=_end, default=End(MISSING)).at if not seen else None
    when = first if first is not None else _gone_at(state, state.row_seq or MISSING, table)
    texts = texts_of(state.texts, state.said)
    return Row(state.seq, Op.DELETE, event.at, event.origin, values, {}, texts, when, unseen=not seen)


def _gone_at(state: State, after: bytes, table: Table) -> int | None:
    """Return when a row was deleted: the time of its first delete or truncate after a sequence."""
    ends = [each for each in state.ends if each.seq > after]
    ends += [End(each.seq, each.at) for each in table.truncates if each.seq > after]
    first = min(ends, key=_end, default=End(MISSING)).at
    times = (first, None if state.event is None else state.event.at, table.now)
    return next((each for each in times if each is not None), None)


def _end(end: End) -> tuple[bytes, int]:
    return end.seq, -1 if end.at is None else end.at
