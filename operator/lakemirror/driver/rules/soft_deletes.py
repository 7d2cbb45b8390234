"""Soft deletes: the row stays, with its last values, and shows when it was deleted."""

from __future__ import annotations

from collections.abc import Sequence

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import beside, beside_stored
from lakemirror.driver.rules.columns import kept, own_of, seq_after, wins
from lakemirror.driver.rules.positions import MISSING, Origin, own
from lakemirror.driver.rules.states import End, State, texts_of, value_of
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Row, Said


def deleted(state: State, stored: Row | None, table: Table) -> Row:
    """Return the row that a soft delete leaves: the last one before it, from the batch or as stored."""
    event = state.event
    assert event is not None
    if stored is None:
        return _deleted_alone(state, table)
    seq, is_of_batch = seq_after(state, stored), brings_row(state, stored)
    if not (stored.is_live or is_of_batch):  # it was deleted before, and stays so
        return stored._replace(seq=seq, at=event.at, origin=event.origin)
    last = _row_seq(state, stored) if is_of_batch else stored.seq
    values = {
        name: value_of(state, name) if is_of_batch else stored.values.get(name) for name in table.columns
    }
    texts = dict(state.texts if is_of_batch else stored.texts)
    said = {}
    for name, mine in state.said.items():
        at = max(own_of(state, mine, seq), beside_stored(mine, stored, name))
        is_tied = is_of_batch and last == stored.seq and at == stored.seq_of(name)
        is_newer = is_tied or wins(at, stored, name, last)
        said[name] = mine if is_newer else kept(stored, name)
        values[name] = said[name].value
    ends = [each for each in state.ends if not _is_before(each, stored)]
    when = _gone_at(ends, event, last, table)
    return Row(seq, Op.DELETE, event.at, event.origin, values, {}, texts_of(texts, said), when)


def brings_row(state: State, stored: Row) -> bool:
    """Return whether the last row that the events of a batch show is newer than the stored one.

    Of two rows at one position, the later arrival is newer.
    """
    seq = _row_seq(state, stored)
    return seq > stored.seq or (seq == stored.seq and state.row_origin.follows(stored.origin))


def _row_seq(state: State, stored: Row) -> bytes:
    return MISSING if state.row_seq is None else _beside(state.row_seq, state.row_opened, stored)


def _beside(seq: bytes, opened: Origin | None, stored: Row) -> bytes:
    """Return the sequence of a change next to the stored row, which an unanchored one may follow."""
    return beside(Said(None, seq, opened=opened), stored.seq, stored.origin)


def _is_before(end: End, stored: Row) -> bool:
    """Return whether a delete came before the row; of two changes at one position, the earlier arrival."""
    seq = _beside(end.seq, end.opened, stored)
    return seq < stored.seq or (seq == stored.seq and not end.origin.follows(stored.origin))


def forgetting(state: State, stored: Row, table: Table) -> State:
    """Return a state as it comes before the stored row: without values from before a delete or truncate.

    The row that came back after one has none of them, although a soft delete left them to the deleted row.
    """
    ends = [each for each in state.ends if _is_before(each, stored)]
    ends += [End(each.seq) for each in table.truncates if each.seq < stored.seq]
    if not ends:
        return state
    last = max(ends, key=_end)
    nothing = Said(None, own(last.seq), opened=last.opened)
    said = {name: each if each.seq > nothing.seq else nothing for name, each in state.said.items()}
    return state._replace(said=said)


def _deleted_alone(state: State, table: Table) -> Row:
    """Return the row of a soft delete of a key that the mirror has not had.

    Without any row in the batch, it shows the key alone: nothing of what the row had under a former key, and
    no value when columns are added.
    """
    event = state.event
    assert event is not None
    seen = state.row_seq is not None
    values = {name: value_of(state, name) if seen else None for name in table.columns}
    values.update(zip(table.key, event.key, strict=False))
    first = min(state.ends, key=_end, default=End(MISSING)).at if not seen else None
    when = first if first is not None else _gone_at(state.ends, event, state.row_seq or MISSING, table)
    texts = texts_of(state.texts, state.said) if seen else {}
    return Row(state.seq, Op.DELETE, event.at, event.origin, values, {}, texts, when, unseen=not seen)


def _gone_at(ends: Sequence[End], event: Event, row: bytes, table: Table) -> int | None:
    """Return when the row at a sequence was deleted: the time of the first delete or truncate after it.

    ``ends`` are the deletes after it. A truncate at its position came after it, too.
    """
    ends = [*ends, *(End(each.seq, each.at) for each in table.truncates if each.seq >= row)]
    first = min(ends, key=_end, default=End(MISSING)).at
    return next((each for each in (first, event.at, table.now) if each is not None), None)


def _end(end: End) -> tuple[bytes, int]:
    return end.seq, -1 if end.at is None else end.at
