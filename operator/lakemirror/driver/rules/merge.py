"""What becomes of a row: the events of one key in any order, and what the mirror has of it.

The newest event decides whether there is a row. Columns are merged one by one, because an event need not
carry all of them: for each, the newest value that any event carried counts, back to the last delete, truncate
or create. So the result does not depend on the order in which events arrive, nor on how they are cut into
batches. `merge` is the rule; its steps are, from top to bottom:

1. `_placed`: a change of a transaction that was open during the snapshot takes its place after the row.
2. `_apart`: what a truncate removed is told from what came after it.
3. `newest`: the newest event, with the values that it did not carry itself.
4. `_gated`: a tombstone that is newer forbids it to write a row.
5. `_with_inherited`: values that the row had under its former key.
6. `_met`: the stored row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.orders import Place, Truncated
from lakemirror.driver.rules.positions import (
    MISSING,
    WIDTH,
    anchored_at,
    change_of,
    epoch_of,
    is_snapshot,
    major_of,
    minor_of,
    own,
)
from lakemirror.driver.rules.values import Event, Outcome, Row, Said, Tombstone, Value, is_same

Inherited = Mapping[str, Sequence[Said]]
"""By column: what rows had under former keys (`lakemirror.driver.rules.moves`), one value for each move."""

_NO_VALUES: Final[Inherited] = {}


@dataclass(frozen=True)
class Table:
    """What the rules need to know of a table.

    ``columns`` are those of the mirror. ``tracked`` are the ones that events may leave out. ``soft`` says
    that deletes are soft: the row stays and shows when it was deleted. ``former`` is the newest truncate that
    the mirror had before the batch, ``truncates`` are those of the batch. ``corrects`` says that a record
    with the origin of an earlier one is a correction of it: a line of a file that was read before it was
    complete. ``now`` stands in for the time of a soft delete whose record has none.
    """

    columns: Sequence[str] = ()
    tracked: Sequence[str] = ()
    soft: bool = False
    former: Truncated | None = None
    truncates: Sequence[Truncated] = ()
    corrects: bool = False
    now: int | None = None

    @property
    def floor(self) -> Truncated | None:
        """The newest truncate."""
        known = [*self.truncates, *([] if self.former is None else [self.former])]
        return max(known, key=lambda each: each.seq, default=None)

    @property
    def floor_of_batch(self) -> Truncated | None:
        """The newest truncate of the batch."""
        return max(self.truncates, key=lambda each: each.seq, default=None)

    @property
    def floor_before(self) -> Truncated | None:
        """The newest truncate before the batch: what is below it is stale.

        After a crash, the tombstones may have the truncate of this very batch, but not the rows that it
        leaves if deletes are soft.
        """
        again = self.soft and self.former is not None and self.floor_of_batch is not None
        if again and self.former.seq == self.floor_of_batch.seq:  # type: ignore[union-attr]
            return None
        return self.former


class Merged(NamedTuple):
    """What becomes of a key: the row that the mirror shows (None: none), and the tombstone to write.

    ``outcomes`` has one outcome for each event, in the order in which the events were given.
    """

    row: Row | None
    tombstone: Tombstone | None
    outcomes: list[Outcome]


@dataclass(frozen=True)
class State:
    """The newest event of a key, and what is known of each column as of then.

    ``row`` is the last row that events show, ``row_seq`` its sequence (None: they show none), ``texts`` those
    of the row. ``said`` has the newest value of each tracked column. ``ends`` are the deletes after the row:
    there may be several, because a filter makes deletes of events that show a row which stays outside.
    ``is_written`` says whether the event may write: no tombstone is newer. ``is_known`` says that a delete
    has its tombstone already, ``is_renewed`` that it came again at the position of that tombstone.
    """

    op: str
    seq: bytes
    event: Event | None = None
    row: Mapping[str, Value] = field(default_factory=dict)
    row_seq: bytes | None = None
    texts: Mapping[str, str] = field(default_factory=dict)
    said: Mapping[str, Said] = field(default_factory=dict)
    ends: Sequence[tuple[bytes, int | None]] = ()
    unanchored: bool = False
    is_written: bool = True
    is_known: bool = False
    is_renewed: bool = False

    @property
    def is_delete(self) -> bool:
        return self.op == Op.DELETE


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
    placed = _placed(events)
    live, outcomes = _apart(placed, table)
    state = newest(live, table)
    if state is None:
        return Merged(_without_event(stored, inherited, table), None, _in_order(events, outcomes))
    state = _with_inherited(_gated(state, tombstone, table), inherited, table)
    if stored is None or _is_newer(state, stored, table):
        row, newer = _met(state, stored, table), True
    else:
        row, newer = _not_newer(state, stored, table), False
    outcome = _outcome(state, stored, newer=newer)
    outcomes.update(_outcomes(live, outcome, table))
    return Merged(row, _new_tombstone(state, table), _in_order(events, outcomes))


def _without_event(stored: Row | None, inherited: Inherited, table: Table) -> Row | None:
    """Return what becomes of a row for which the batch has no event that counts."""
    row = _truncated(stored, table)
    if row is None or not inherited:
        return row
    nothing = State(Op.PASSED, MISSING, is_written=False)
    return _not_newer(_with_inherited(nothing, inherited, table), row, table)


def is_above(event: Event, stored: Row | None, tombstone: Tombstone | None, table: Table) -> bool:
    """Return whether an event comes after all that the mirror knows of its key."""
    if table.floor is not None and event.seq <= table.floor.seq:
        return False
    if stored is not None and event.seq <= stored.seq:
        return False
    if tombstone is None or event.seq > tombstone.seq:
        return True
    return event.seq == tombstone.seq and event.origin.follows(tombstone.origin)


def _in_order(events: Sequence[Event], outcomes: Mapping[int, Outcome]) -> list[Outcome]:
    return [outcomes[i] for i in range(len(events))]


# -- 1. the place of each event ---------------------------------------------------------------------------


Numbered = tuple[int, Event]
"""An event with its number among those that were given."""


def _placed(events: Sequence[Event]) -> list[Numbered]:
    """Return the events in the order in which the source made them, each at its place."""
    return sorted(enumerate(anchored(events)), key=lambda each: each[1].arrival)


def anchored(events: Sequence[Event], stored: Sequence[Row] = ()) -> Sequence[Event]:
    """Return the events of a key, with the changes of transactions that were open during a snapshot in place.

    An unanchored change that follows the snapshot row of its key in its partition is newer than the row, even
    if its LSN is below that of the snapshot. The row may be ``stored``.
    """
    if not any(each.unanchored for each in events):
        return events
    known: list[Event | Row] = [*events, *stored]
    reads = [each for each in known if is_snapshot(each.seq)]
    return [_anchored(each, reads) if each.unanchored else each for each in events]


def _anchored(event: Event, reads: Iterable[Event | Row]) -> Event:
    before = [each.seq for each in reads if event.origin.follows(each.origin)]
    base = max(before, default=MISSING)
    return event._replace(seq=anchored_at(event.seq, base)) if base > event.seq else event


# -- 2. truncates -----------------------------------------------------------------------------------------


def _apart(events: Sequence[Numbered], table: Table) -> tuple[list[Numbered], dict[int, Outcome]]:
    """Return the events that a truncate leaves, and the outcomes of the others.

    What is below a truncate that the mirror had before is stale. What is below one of the batch is superseded
    by it. If deletes are soft, the rows below a truncate of the batch stay, and show that they are deleted.
    """
    before, floor = table.floor_before, None if table.soft else table.floor
    if before is None and floor is None:
        return list(events), {}
    live, outcomes = [], {}
    for number, event in events:
        if before is not None and before.removes(place_of(event)):
            outcomes[number] = Outcome.STALE
        elif floor is not None and floor.removes(place_of(event)):
            outcomes[number] = Outcome.SUPERSEDED
        else:
            live.append((number, event))
    return live, outcomes


def place_of(event: Event) -> Place:
    """Return where an event stands, in the form in which `orders` compares places."""
    return Place(event.seq, event.at, event.origin)


# -- 3. the newest event and the values of each column ----------------------------------------------------


def newest(events: Sequence[Numbered], table: Table) -> State | None:
    """Return the newest of a key's events, which are in their order, with what is known of each column."""
    if not events:
        return None
    last = events[-1][1]
    shown = _last_row([each for _, each in events]) if table.soft else last
    said = {name: _newest_of([each for _, each in events], name, table) for name in table.tracked}
    return State(
        last.op,
        last.seq,
        event=last,
        row=last.row if shown is None else shown.row,
        row_seq=None if shown is None else shown.seq,
        texts=last.texts if shown is None else shown.texts,
        said=_above_floor(said, last, None if shown is None else shown.seq, table),
        ends=_ends(events, None if shown is None else shown.seq) if table.soft else (),
        unanchored=last.unanchored,
    )


def _last_row(events: Sequence[Event]) -> Event | None:
    """Return the last event that shows a row: a soft delete leaves that row."""
    return next((each for each in reversed(events) if not each.is_delete), None)


def _newest_of(events: Sequence[Event], column: str, table: Table) -> Said | None:
    """Return the newest thing that any event said about a column."""
    for event in reversed(events):
        found = said_by(event, column)
        if found is not None and not (table.soft and event.is_delete):  # a soft delete leaves the values
            return found
    return None


def said_by(event: Event, column: str) -> Said | None:
    """Return what an event says about a column; None if it says nothing, so that older events are asked.

    After a delete there is no value. An update with a gap says nothing. A create with a gap begins a new
    life of the row, so nothing older may fill the gap, except what the row had under its former key: the
    sequence has no suffix.
    """
    if event.is_delete:
        return Said(None, own(event.seq))
    if column not in event.gaps:
        return Said(event.row.get(column), own(event.seq), event.texts.get(column))
    return Said(None, event.seq) if event.op == Op.CREATE else None


def _above_floor(
    said: Mapping[str, Said | None], last: Event, row_seq: bytes | None, table: Table
) -> dict[str, Said]:
    """Return what is said about each column. A truncate says that there is no value, either."""
    floor = table.floor
    if floor is None or not floor.compares(place_of(last)):
        return {name: each or Said() for name, each in said.items()}
    least = own(floor.seq)
    if not table.soft:
        return {name: each or Said(None, least) for name, each in said.items()}
    if row_seq is None or row_seq <= floor.seq:  # the row is one that the truncate deletes, with its values
        return {name: each or Said() for name, each in said.items()}
    return {
        name: each if each is not None and each.seq > least else Said(None, least)
        for name, each in said.items()
    }


def _ends(events: Sequence[Numbered], row_seq: bytes | None) -> list[tuple[bytes, int | None]]:
    return [(each.seq, each.at) for _, each in events if each.is_delete and each.seq > (row_seq or MISSING)]


# -- 4. the tombstone -------------------------------------------------------------------------------------


def _gated(state: State, tombstone: Tombstone | None, table: Table) -> State:
    """Return the state as a tombstone leaves it: an older event writes no row, and brings no older value.

    Deletes pass: only the stored row gates them, so that a batch that failed after it wrote its tombstones
    still deletes its rows when it runs again.
    """
    if tombstone is None or state.event is None:
        return state
    stale, again = _is_buried(state, tombstone), _follows(state, tombstone)
    state = state if stale else _after(state, tombstone.seq)
    oldest = tombstone.seq if again else own(tombstone.seq)
    forgotten = Said(None, own(tombstone.seq))
    return replace(
        state,
        op=state.op if state.is_delete or not stale else Op.PASSED,
        is_written=state.is_delete or not stale,
        is_known=state.is_delete and (stale or again),
        is_renewed=state.is_delete and again,
        said={name: forgotten if each.seq < oldest else each for name, each in state.said.items()},
    )


def _after(state: State, seq: bytes) -> State:
    """Return the state of an unanchored change after something at a sequence that is higher than its own."""
    if not state.unanchored or state.seq > seq:
        return state
    said = {name: each._replace(seq=_lifted(each.seq, state, seq)) for name, each in state.said.items()}
    row_seq = None if state.row_seq is None else _lifted(state.row_seq, state, seq)
    return replace(state, seq=anchored_at(state.seq, seq), row_seq=row_seq, said=said)


def _follows(state: State, tombstone: Tombstone) -> bool:
    """Return whether an event came after a delete at its own position, in the same partition.

    Of two changes at one position, the later arrival counts.
    """
    later = state.event is not None and state.event.origin.follows(tombstone.origin)
    return later and state.seq == tombstone.seq


def _is_buried(state: State, tombstone: Tombstone) -> bool:
    """Return whether the tombstone is newer than the event."""
    event = state.event
    assert event is not None
    if tombstone.origin.follows(event.origin) and is_snapshot(state.seq):
        return True  # the row was read before the delete, however high the position of the snapshot is
    if state.unanchored and epoch_of(state.seq) == epoch_of(tombstone.seq):
        after = event.origin.follows(tombstone.origin)
        return not _outruns(state, tombstone.seq) or (is_snapshot(tombstone.seq) and not after)
    return state.seq <= tombstone.seq and not _follows(state, tombstone)


def _outruns(state: State, seq: bytes) -> bool:
    """Return whether an unanchored change, which its LSN alone places, has a higher one than another."""
    return epoch_of(state.seq) == epoch_of(seq) and minor_of(state.seq) > minor_of(seq)


def _new_tombstone(state: State, table: Table) -> Tombstone | None:
    """Return the tombstone to write: of a delete that has none yet. A row that stays needs none."""
    event = state.event
    if event is None or table.soft or not state.is_delete or (state.is_known and not state.is_renewed):
        return None
    return Tombstone(state.seq, event.at, event.origin)


# -- 5. the former key ------------------------------------------------------------------------------------


def _with_inherited(state: State, inherited: Inherited, table: Table) -> State:
    """Return the state with values of the row's former key where they are newer.

    A value that a later move brings waits for the create at the new key; until then the row keeps its own. A
    softly deleted row gets none from after its last event with a row.
    """
    if not inherited:
        return state
    last = state.seq if state.row_seq is None else state.row_seq
    said = {name: state.said.get(name, Said()) for name in table.tracked}
    for name, values in inherited.items():
        for theirs in (each._replace(seq=_beside(each.seq, state)) for each in values):
            is_due = state.event is None or change_of(theirs.seq, state.seq) <= last
            if is_due and theirs.seq > said[name].seq:
                said[name] = said[name]._replace(value=theirs.value, seq=theirs.seq)
    return replace(state, said=said)


def _beside(value: bytes, state: State) -> bytes:
    """Return the sequence of an inherited value; of a move in a transaction that was open during the snapshot
    it takes the place of the create at the new key, if that follows a row of the snapshot.
    """
    was_lifted = state.unanchored and state.seq[2:12] != minor_of(state.seq)
    return _lifted(value, state, major_of(state.seq) + bytes(WIDTH - 12)) if was_lifted else value


# -- 6. the stored row ------------------------------------------------------------------------------------


def _is_newer(state: State, stored: Row, table: Table) -> bool:
    """Return whether the state is newer than the stored row.

    Sequences decide, with three exceptions: an unanchored change is placed by its LSN alone; a snapshot row
    yields to a change that came after it in its partition; and of two different events at one place, the
    later arrival counts.
    """
    event = state.event
    if event is None or not state.is_written:
        return False
    later = event.origin.follows(stored.origin)
    if state.seq == stored.seq and later:
        return _is_another(state, stored, table)
    if table.corrects and _is_correction(state, stored, table):
        return True
    if _is_overtaken(state, stored):
        return False
    if state.unanchored and epoch_of(state.seq) == epoch_of(stored.seq):
        return state.seq > stored.seq or later if is_snapshot(stored.seq) else _outruns(state, stored.seq)
    return state.seq > stored.seq


def _is_overtaken(state: State, stored: Row) -> bool:
    """Return whether a row was read by a snapshot before the change of the stored row, in its partition."""
    is_read = is_snapshot(state.seq) and not is_snapshot(stored.seq)
    return is_read and state.event is not None and stored.origin.follows(state.event.origin)


def _is_another(state: State, stored: Row, table: Table) -> bool:
    """Return whether an event at the place of the stored row is not the one that the row is from."""
    if state.is_delete or not stored.is_live:
        return True
    return any(not is_same(value_of(state, name), stored.values.get(name)) for name in table.columns)


def _is_correction(state: State, stored: Row, table: Table) -> bool:
    """Return whether an event is the line of the stored row, read again with other bytes."""
    event = state.event
    assert event is not None
    here = event.origin == stored.origin and event.origin.offset is not None
    both_deleted = state.is_delete and not stored.is_live
    return here and not both_deleted and _is_another(state, stored, table)


def value_of(state: State, column: str) -> Value:
    """Return the value that a state has in a column."""
    said = state.said.get(column)
    return state.row.get(column) if said is None else said.value


def _met(state: State, stored: Row | None, table: Table) -> Row | None:
    """Return the row after a newer state."""
    if state.is_delete:
        return _deleted(state, stored, table) if table.soft else None
    if not state.is_written:
        return None
    if stored is None:
        row = _row(state, state.seq, _values_of_new(state, table), _older(state.said, state.seq), state.texts)
    else:
        row = _updated(state, stored, table)
    floor = table.floor_of_batch
    if table.soft and floor is not None and row.seq <= floor.seq:
        return _truncated_at(row, row.seq, table)
    return row


def _not_newer(state: State, stored: Row, table: Table) -> Row | None:
    """Return the stored row, with what an older event still adds: values that columns are waiting for."""
    floor = table.floor_of_batch
    if floor is not None and stored.seq < floor.seq and (stored.is_live or not table.soft):
        return _truncated_at(stored, stored.seq, table) if table.soft else None
    if not stored.is_live:
        return stored
    stored = _after_read(stored, state)
    filled = {name: each for name, each in state.said.items() if _wins(each.seq, stored, name, stored.seq)}
    if not filled:
        return stored
    seqs = {name: each.seq for name, each in filled.items()}
    return stored._replace(
        values={**stored.values, **{name: each.value for name, each in filled.items()}},
        seqs=_without(stored.seq, {**stored.seqs, **seqs}),
        texts=_texts(stored.texts, filled),
    )


def _after_read(stored: Row, state: State) -> Row:
    """Return the stored row; after a row that a snapshot read before it, if that has a higher position.

    The change of the stored row is then one of a transaction that was open during the snapshot.
    """
    read = state.seq
    if (
        not is_snapshot(read)
        or is_snapshot(stored.seq)
        or stored.seq > read
        or not _is_overtaken(state, stored)
    ):
        return stored

    def lift(seq: bytes) -> bytes:
        is_older = len(seq) >= WIDTH and not is_snapshot(seq) and seq < read
        return major_of(read) + seq[12:] if is_older else seq

    seqs = {name: lift(seq) for name, seq in stored.seqs.items()}
    return stored._replace(seq=lift(stored.seq), seqs=seqs)


def _row(
    state: State,
    seq: bytes,
    values: Mapping[str, Value],
    seqs: Mapping[str, bytes],
    texts: Mapping[str, str],
) -> Row:
    event = state.event
    assert event is not None
    return Row(seq, state.op, event.at, event.origin, values, seqs, _texts(texts, state.said))


def _values_of_new(state: State, table: Table) -> dict[str, Value]:
    """Return the values of a row that the mirror has not had. Those of later moves are still to come."""
    values = {name: state.row.get(name) for name in table.columns}
    for name, said in state.said.items():
        values[name] = said.value if change_of(said.seq, state.seq) <= state.seq else None
    return values


def _updated(state: State, stored: Row, table: Table) -> Row:
    """Return the row after an update: a tracked column keeps the stored value where that is newer."""
    seq = _seq_after(state, stored)
    values = {name: state.row.get(name) for name in table.columns}
    said = {}
    for name, mine in state.said.items():
        at = _lifted(_own_of(state, mine, seq), state, stored.seq)
        again = state.seq == stored.seq and at == stored.seq_of(
            name
        )  # of two at one place, the later arrival
        wins = again or _wins(at, stored, name, seq)
        said[name] = Said(mine.value, at, mine.text) if wins else _kept(stored, name)
        values[name] = said[name].value
    return _row(replace(state, said=said), seq, values, _older(said, seq), state.texts)


def _kept(stored: Row, column: str) -> Said:
    """Return what the mirror has in a column. The values of a deleted row are of a former life."""
    if not stored.is_live:
        return Said(None, stored.seq_of(column))
    return Said(stored.values.get(column), stored.seq_of(column), stored.texts.get(column))


def _wins(value: bytes, stored: Row, column: str, row: bytes) -> bool:
    """Return whether a value is newer than the stored one, and no newer than the row, which is at ``row``."""
    return value > stored.seq_of(column) and change_of(value, row) <= row


def _seq_after(state: State, stored: Row) -> bytes:
    """Return the sequence of the row after an update by a state that is newer."""
    if state.unanchored and state.seq < stored.seq:
        return anchored_at(state.seq, stored.seq)
    return state.seq


def _own_of(state: State, said: Said, seq: bytes) -> bytes:
    """Return the sequence of a value. What the newest event carried itself is as new as the row."""
    return own(seq) if said.seq == own(state.seq) else said.seq


def _lifted(value: bytes, state: State, base: bytes) -> bytes:
    """Return the sequence of a value of an unanchored change that follows what is at ``base``."""
    if not state.unanchored or len(value) < WIDTH or is_snapshot(value) or value >= own(base):
        return value
    above = is_snapshot(base) or minor_of(value) > minor_of(base)
    return base[:12] + value[12:] if above else value


def _older(said: Mapping[str, Said], seq: bytes) -> dict[str, bytes]:
    """Return the memory of the columns whose value is older than the row at ``seq``."""
    return _without(seq, {name: each.seq for name, each in said.items()})


def _without(seq: bytes, seqs: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: each for name, each in seqs.items() if each != own(seq)}


def _texts(others: Mapping[str, str], said: Mapping[str, Said]) -> Mapping[str, str]:
    """Return the texts of values that their columns cannot hold: each from where its value is from."""
    if not said:
        return others
    texts = {name: text for name, text in others.items() if name not in said}
    return {**texts, **{name: each.text for name, each in said.items() if each.text is not None}}


# -- soft deletes -----------------------------------------------------------------------------------------


def _deleted(state: State, stored: Row | None, table: Table) -> Row:
    """Return the row that a soft delete leaves: the last one before it, from the batch or as stored."""
    event = state.event
    assert event is not None
    if stored is None:
        return _deleted_alone(state, table)
    lift = _lifting(state, stored)
    seq = _seq_after(state, stored)
    row_seq = None if state.row_seq is None else lift(state.row_seq)
    shows_row = row_seq is not None and row_seq > stored.seq
    if not (stored.is_live or shows_row):  # it was deleted before, and stays so
        return stored._replace(seq=seq, at=event.at, origin=event.origin)
    last = seq if row_seq is None else row_seq
    values = {name: value_of(state, name) if shows_row else stored.values.get(name) for name in table.columns}
    texts = dict(state.texts if shows_row else stored.texts)
    said = {}
    for name, mine in state.said.items():
        wins = _wins(lift(_own_of(state, mine, seq)), stored, name, last)
        said[name] = mine if wins else _kept(stored, name)
        values[name] = said[name].value
    after = stored.seq if row_seq is None else max(stored.seq, row_seq)
    when = _gone_at(state, after, table, lift)
    return Row(seq, Op.DELETE, event.at, event.origin, values, {}, _texts(texts, said), when)


def _lifting(state: State, stored: Row) -> Callable[[bytes], bytes]:
    return lambda value: _lifted(value, state, stored.seq)


def _deleted_alone(state: State, table: Table) -> Row:
    """Return the row of a soft delete of a key that the mirror has not had.

    Without any row in the batch, it shows the key alone, and gets no value when columns are added.
    """
    event = state.event
    assert event is not None
    values = {name: value_of(state, name) for name in table.columns}
    for name, said in state.said.items():
        values[name] = said.value if change_of(said.seq, state.seq) <= state.seq else None
    seen = state.row_seq is not None
    first = min(state.ends, key=_end, default=(MISSING, None))[1] if not seen else None
    when = first if first is not None else _gone_at(state, state.row_seq or MISSING, table, lambda seq: seq)
    texts = _texts(state.texts, state.said)
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


# -- rows and truncates -----------------------------------------------------------------------------------


def _truncated_at(row: Row, seq: bytes, table: Table) -> Row:
    """Return what the first truncate after ``seq`` makes of a row, if deletes are soft."""
    first = min((each for each in table.truncates if each.seq > seq), key=lambda each: each.seq)
    when = first.at if first.at is not None else table.now
    return row._replace(seq=first.seq, op=Op.DELETE, seqs={}, deleted_at=when)


def _truncated(stored: Row | None, table: Table) -> Row | None:
    """Return what the truncates of a batch leave of a row for which it has nothing else.

    A row that came after the truncate stays, but no value of it that is from before.
    """
    floor = table.floor_of_batch
    if stored is None or floor is None:
        return stored
    if stored.seq < floor.seq:
        if not table.soft:
            return None
        return _truncated_at(stored, stored.seq, table) if stored.is_live else stored
    if table.soft and not stored.is_live:
        return stored
    old = [name for name in table.tracked if stored.seq_of(name) < own(floor.seq)]
    if not old:
        return stored
    seqs = _without(stored.seq, {**stored.seqs, **dict.fromkeys(old, own(floor.seq))})
    return stored._replace(values={**stored.values, **dict.fromkeys(old)}, seqs=seqs)


# -- outcomes ---------------------------------------------------------------------------------------------


def _outcome(state: State, stored: Row | None, *, newer: bool) -> Outcome:
    """Return what became of the newest event."""
    if not state.is_written:
        return Outcome.STALE
    if stored is None:
        return Outcome.DUPLICATE if state.is_known else Outcome.APPLIED
    if newer:
        return Outcome.APPLIED
    return Outcome.DUPLICATE if state.seq == stored.seq else Outcome.STALE


def _outcomes(events: Sequence[Numbered], newest: Outcome, table: Table) -> dict[int, Outcome]:
    """Return the outcomes of the events that no truncate was newer than, which are in their order.

    The newest has its own. An event that was sent twice counts once: the others are duplicates. All others
    are superseded.
    """
    found: dict[int, Outcome] = {}
    floor = table.floor_of_batch
    before: Event | None = None
    for number, event in events:
        below = floor is not None and floor.removes(place_of(event))
        again = before is not None and is_again(event, before)
        found[number] = Outcome.DUPLICATE if again and not below else Outcome.SUPERSEDED
        before = event
    if events:
        found.update(_of_newest(events, newest, found, table))
    return found


def is_again(event: Event, other: Event) -> bool:
    """Return whether two events of a key are one that was sent twice."""
    return event.digest is not None and (event.seq, event.digest) == (other.seq, other.digest)


def _of_newest(
    events: Sequence[Numbered], newest: Outcome, found: Mapping[int, Outcome], table: Table
) -> dict[int, Outcome]:
    """Return the outcome of the newest event, at the first of its deliveries."""
    floor = table.floor_of_batch
    if floor is not None and floor.removes(place_of(events[-1][1])):
        return {}  # a truncate of the batch is newer
    first = next(number for number, _ in reversed(events) if found[number] is not Outcome.DUPLICATE)
    return {first: newest}
