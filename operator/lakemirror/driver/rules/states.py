"""The newest event of a key in a batch, and what is known of each column as of then.

An event need not carry all columns (PostgreSQL leaves out large values that did not change). For each column,
the newest value that any event carried counts, back to the last delete, truncate or create.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import Numbered, beside, beside_stored, lifted
from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.positions import (
    MISSING,
    NO_ORIGIN,
    WIDTH,
    Origin,
    anchored_at,
    change_of,
    epoch_of,
    minor_of,
    own,
)
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import NOTHING, Event, Row, Said, Value

Inherited = Mapping[str, Sequence[Said]]
"""By column: what rows had under former keys (`lakemirror.driver.rules.moves`), one value for each move."""


class End(Frozen, frozen=True):
    """A delete or truncate that ends a row: its sequence, its time and its origin."""

    seq: bytes
    at: int | None = None
    origin: Origin = NO_ORIGIN
    unanchored: bool = False

    @property
    def opened(self) -> Origin | None:
        """The origin of an unanchored delete (`lakemirror.driver.rules.anchors`)."""
        return self.origin if self.unanchored else None


class State(Frozen, frozen=True):
    """The newest event of a key, and what is known of each column as of then.

    ``row`` is the last row that events show, ``row_seq`` its sequence (None: they show none), ``texts``
    those of the row, ``row_origin`` its origin, and ``row_opened`` the same if its event is unanchored.
    ``said`` has the newest value of each tracked column as of that row. ``ends`` are the soft deletes after
    the row: there may be several, because a filter makes deletes of events that show a row which stays
    outside. ``is_written`` says whether the event may write: no tombstone is newer. ``is_known`` says that a
    delete has a tombstone already, and ``is_repeated`` that it made the tombstone, or is older.
    ``is_renewed`` says that it has to be noted all the same: it came after the tombstone at its position, or
    the tombstone is from the other half of its change of the key.
    """

    op: str
    seq: bytes
    event: Event | None = None
    row: Mapping[str, Value] = NOTHING
    row_seq: bytes | None = None
    row_origin: Origin = NO_ORIGIN
    row_opened: Origin | None = None
    texts: Mapping[str, str] = NOTHING
    said: Mapping[str, Said] = NOTHING
    ends: Sequence[End] = ()
    unanchored: bool = False
    is_written: bool = True
    is_known: bool = False
    is_renewed: bool = False
    is_repeated: bool = False

    @property
    def is_delete(self) -> bool:
        return self.op == Op.DELETE


def newest(events: Sequence[Numbered], table: Table) -> State | None:
    """Return the newest of a key's events, which are in their order, with what is known of each column."""
    if not events:
        return None
    last = events[-1][1]
    mine = [each for _, each in reversed(events)]
    gone = list(takewhile(_is_delete, mine)) if table.soft else []
    of_row = mine[len(gone) :]  # a soft delete leaves the last row
    shown = of_row[0] if of_row else None
    row_seq = None if shown is None else shown.seq
    told = {name: _newest_of(of_row, name) for name in table.tracked}
    return State(
        last.op,
        last.seq,
        last,
        row=last.row if shown is None else shown.row,
        row_seq=row_seq,
        row_origin=NO_ORIGIN if shown is None else shown.origin,
        row_opened=shown.origin if shown is not None and shown.unanchored else None,
        texts=last.texts if shown is None else shown.texts,
        said=_above_floor(told, last, row_seq, table),
        ends=[End(each.seq, each.at, each.origin, each.unanchored) for each in gone],
        unanchored=last.unanchored,
    )


def _is_delete(event: Event) -> bool:
    return event.is_delete


def _newest_of(events: Sequence[Event], column: str) -> Said | None:
    """Return the newest thing that any event, from the newest on, said about a column."""
    for each in events:
        said = said_by(each, column)
        if said is not None:
            return said
    return None


def said_by(event: Event, column: str) -> Said | None:
    """Return what an event says about a column; None if it says nothing, so that older events are asked.

    After a delete there is no value. An update with a gap says nothing. A create with a gap begins a new
    life of the row, so nothing older may fill the gap, except what the row had under its former key: the
    sequence has no suffix.
    """
    opened = event.origin if event.unanchored else None
    if event.is_delete:
        return Said(None, own(event.seq), opened=opened)
    if column not in event.gaps:
        return Said(event.row.get(column), own(event.seq), event.texts.get(column), opened)
    return Said(None, event.seq, opened=opened) if event.op == Op.CREATE else None


def _above_floor(
    said: Mapping[str, Said | None], last: Event, row_seq: bytes | None, table: Table
) -> dict[str, Said]:
    """Return what is said about each column as of the row. A truncate before it says: there is no value."""
    before = [
        each.seq
        for each in table.known_truncates
        if row_seq is not None and each.seq < row_seq and each.compares(last.place)
    ]
    nothing = Said(None, own(max(before))) if before else Said()
    return {
        name: each if each is not None and each.seq > nothing.seq else nothing for name, each in said.items()
    }


def value_of(state: State, column: str) -> Value:
    """Return the value that a state has in a column."""
    said = state.said.get(column)
    return state.row.get(column) if said is None else said.value


def after(state: State, seq: bytes) -> State:
    """Return the state of an unanchored change after something at a sequence that is higher than its own."""
    if not state.unanchored or state.seq > seq:
        return state
    said = {name: each._replace(seq=lifted(each.seq, seq)) for name, each in state.said.items()}
    row_seq = None if state.row_seq is None else lifted(state.row_seq, seq)
    return state._replace(seq=anchored_at(state.seq, seq), row_seq=row_seq, said=said)


def with_inherited(
    state: State, inherited: Inherited, table: Table, stored: Row | None, row: bytes | None = None
) -> State:
    """Return the state with values of the row's former key where they are newer.

    A value that a later move brings waits for the create at the new key; until then the row keeps its own. A
    softly deleted row gets none from after its last event with a row. ``row`` is the sequence of the row that
    gets the values, if that is not the state's. What unanchored changes say is compared in its place beside
    the stored row.
    """
    if not inherited:
        return state
    last = row or _row_beside(state, stored)
    said = {name: state.said.get(name, Said()) for name in table.tracked}
    for name, values in inherited.items():
        known = said[name].seq if stored is None else beside_stored(said[name], stored, name)
        creates = (known, MISSING if stored is None else stored.seq_of(name))
        for theirs in values:
            seq = max(at_create(theirs.seq, each) for each in creates)
            if change_of(seq, last) <= last and seq > known:
                said[name], known = Said(theirs.value, seq), seq
    return state._replace(said=said)


def _row_beside(state: State, stored: Row | None) -> bytes:
    """Return the sequence of the row that a state shows, which an unanchored change has beside the stored."""
    seq, opened = state.seq, state.event.origin if state.unanchored and state.event is not None else None
    if state.row_seq is not None:
        seq, opened = state.row_seq, state.row_opened
    return seq if stored is None else beside(Said(None, seq, opened=opened), stored.seq, stored.origin)


def at_create(value: bytes, create: bytes) -> bytes:
    """Return the sequence of an inherited value, in the place of the ``create`` if that is of the same move.

    The create of an unanchored move may have its place after a row of the snapshot. It keeps its LSN.
    """
    is_unanchored = len(value) > WIDTH and value[2:12] == minor_of(value)
    if not (is_unanchored and epoch_of(create) == epoch_of(value) and minor_of(create) == minor_of(value)):
        return value
    return max(value, create[:WIDTH] + value[WIDTH:])


def older(said: Mapping[str, Said], seq: bytes) -> dict[str, bytes]:
    """Return the memory of the columns whose value is older than the row at ``seq``."""
    mine = own(seq)
    return {name: each.seq for name, each in said.items() if each.seq != mine}


def without(seq: bytes, seqs: Mapping[str, bytes]) -> dict[str, bytes]:
    mine = own(seq)
    return {name: each for name, each in seqs.items() if each != mine}


def texts_of(others: Mapping[str, str], said: Mapping[str, Said]) -> Mapping[str, str]:
    """Return the texts of values that their columns cannot hold: each from where its value is from."""
    newer = {name: each.text for name, each in said.items() if each.text is not None}
    if not others:
        return newer
    return {**{name: text for name, text in others.items() if name not in said}, **newer}
