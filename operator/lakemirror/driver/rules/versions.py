"""What becomes of the versions of a row (mode scd2): all facts about a key, in any order.

What happened to a key is a set of *facts*, each at a place in the source's order: the events of the batch,
and what is stored, that is the images of the versions, the deletes that ended them, and changes that no
version shows. The history is a function of this set alone:

1. `_placed`: facts of transactions that were open during a snapshot take their place.
2. `_settled`: of the facts at one place, one counts. An event that says what is stored is a duplicate;
   otherwise the later arrival counts. Values that it did not carry are those of the arrival before it.
3. `_filled`: values that a fact did not carry are those of the fact before it.
4. `_begins` and `_timed`: which facts begin a version, and since when they hold: never from before the
   version before them.
5. `_versions`: a version is valid until the next fact or truncate, [from, to).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import takewhile
from typing import Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.outcomes import is_again
from lakemirror.driver.rules.positions import (
    MISSING,
    NO_ORIGIN,
    anchored_at,
    change_of,
    epoch_of,
    is_snapshot,
    minor_of,
    own,
)
from lakemirror.driver.rules.states import Inherited
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import NOTHING, Event, Outcome, Row, Said, Tombstone, is_same

BEGINNING: Final = 0
"""Since when a version without any time is valid, if no version before it has one: 1970."""
NO_TIME: Final = (
    "nothing says when its version begins: neither the record nor Kafka or its file gives a time (for custom "
    "records, set envelope.fields.timestamp)"
)
"""Why a change without a time cannot be applied to a mirror of versions."""


def time_of(at: int | None, arrived: int | None) -> int | None:
    """Return when a change was made: at its own time, or else when its record came to Kafka or its file.

    A time at or before the beginning of 1970 is none. All are in microseconds since then.
    """
    return at if at is not None or arrived is None or arrived <= 0 else arrived


class Version(NamedTuple):
    """A row as it was from ``valid_from`` until before ``valid_to`` (None: until now), in microseconds.

    A version that is ``is_deleted`` is the last one of a row that is gone. ``delete_seq`` is the sequence of
    the delete or truncate that ended it, None if another version or nothing did. ``began`` is the sequence of
    the change that began it: further changes may have been merged into it. ``sent`` is its own sequence as it
    was sent, if the change is unanchored (`anchors`), so that a row of a snapshot may raise its place.
    """

    row: Row
    valid_from: int
    valid_to: int | None = None
    is_current: bool = True
    is_deleted: bool = False
    delete_seq: bytes | None = None
    began: bytes = MISSING
    sent: bytes | None = None


class Merged(NamedTuple):
    """A stored change that no version shows: the next one was merged into its version (``trackedColumns``).

    It is remembered because a late change may split that version. ``batch`` is the one that wrote it.
    """

    row: Row
    sent: bytes | None = None
    batch: int | None = None


class Ended(NamedTuple):
    """A stored delete. ``batch`` is the one that wrote it."""

    tombstone: Tombstone
    sent: bytes | None = None
    batch: int | None = None


@dataclass(frozen=True)
class Stored:
    """What a mirror has of a key: its versions, changes that none of them shows, and deletes."""

    versions: Sequence[Version] = ()
    merged: Sequence[Merged] = ()
    ends: Sequence[Ended] = ()


@dataclass(frozen=True)
class Tracking:
    """How versions are made. ``table.truncates`` are all truncates of the table, the stored ones, too.

    ``compared`` are the columns whose changes begin versions (``trackedColumns``), None if every change does.
    ``initial`` is since when a row is valid that was there before its first fact.
    """

    table: Table
    compared: Sequence[str] | None = None
    initial: int | None = None


class History(NamedTuple):
    """What becomes of a key: its versions, what else is to be remembered, and an outcome for each event."""

    versions: list[Version]
    merged: list[Merged]
    ends: list[Ended]
    outcomes: list[Outcome]


class Kind(IntEnum):
    """What a fact is; of several at one place that arrived alike, the highest counts."""

    BEGAN = 0
    """The beginning of a version whose first change is forgotten."""
    END = 1
    EVENT = 2
    IMAGE = 3
    MERGED = 4


@dataclass(frozen=True)
class Fact:
    """Something that happened to a key. ``base`` is its sequence as it was given, before it was placed.

    ``number`` is that of an event among those that were given, ``batch`` the one that wrote a stored fact.
    """

    kind: Kind
    row: Row
    unanchored: bool = False
    base: bytes = MISSING
    version: Version | None = None
    number: int | None = None
    batch: int | None = None
    digest: object = None

    @property
    def seq(self) -> bytes:
        return self.row.seq

    @property
    def is_delete(self) -> bool:
        return self.row.op == Op.DELETE

    def carries(self, column: str) -> bool:
        """Return whether the fact has the value itself, or its move brought it; else it is from before."""
        return change_of(self.row.seq_of(column), self.seq) == self.seq


def history(
    events: Sequence[Event],
    stored: Stored,
    tracking: Tracking,
    inherited: Inherited | None = None,
    batch: int | None = None,
) -> History:
    """Return what becomes of a key. ``events`` are all that the batch has of it, in any order.

    ``stored`` is everything that the mirror has of the key, ``inherited`` what its row had under former keys.
    ``batch`` is the number of the batch: what it wrote itself before it failed makes no event a duplicate.
    """
    given, outcomes = _distinct(events, tracking.table)
    facts = _placed([*given, *_stored_facts(stored, tracking)])
    settled, more = _settled(facts, tracking.table, batch)
    outcomes.update(more)
    patched = [_patched(each, inherited or {}, tracking.table) for each in settled]
    filled = _filled(patched, tracking.table)
    begins = _begins(filled, tracking)
    versions, merged = _versions(filled, begins, _timed(filled, begins, tracking), tracking)
    ends = [
        Ended(Tombstone(each.seq, each.row.at, each.row.origin), _sent(each), batch)
        for each in filled
        if each.kind is Kind.EVENT and each.is_delete
    ]
    kept = [Merged(each.row, _sent(each), batch) for each in merged if each.kind in (Kind.EVENT, Kind.IMAGE)]
    return History(
        versions,
        [*(each for each in stored.merged if _is_still(each.row.seq, merged)), *kept],
        [*stored.ends, *ends],
        [outcomes[i] for i in range(len(events))],
    )


def _is_still(seq: bytes, merged: Iterable[Fact]) -> bool:
    return any(each.kind is Kind.MERGED and each.base == seq for each in merged)


# -- facts ------------------------------------------------------------------------------------------------


def _distinct(events: Sequence[Event], table: Table) -> tuple[list[Fact], dict[int, Outcome]]:
    """Return the facts of a batch: one event at each place, the last that arrived; outcomes of the others.

    Of an event that was sent twice in a row, the first delivery stands.
    """
    outcomes: dict[int, Outcome] = {}
    found: dict[bytes, tuple[int, Event, Fact]] = {}
    for number, event in sorted(enumerate(events), key=lambda each: each[1].arrival):
        before, fact = found.get(event.seq), _fact_of(event, number, table)
        if before is not None and is_again(event, before[1]):
            outcomes[number] = Outcome.DUPLICATE
            continue
        if before is not None:
            outcomes[before[0]] = Outcome.SUPERSEDED
            fact = _completed(fact, before[2], table)
        found[event.seq] = (number, event, fact)
    return [fact for _, _, fact in found.values()], outcomes


def _fact_of(event: Event, number: int, table: Table) -> Fact:
    # A create begins a new life: nothing older fills it, except what its row had under another key.
    nothing = event.seq if event.op == Op.CREATE else MISSING
    gaps = [] if event.is_delete else [name for name in table.tracked if name in event.gaps]
    values = {name: event.row.get(name) for name in table.columns}
    row = Row(event.seq, event.op, event.at, event.origin, values, dict.fromkeys(gaps, nothing), event.texts)
    return Fact(Kind.EVENT, row, event.unanchored, event.seq, number=number, digest=event.digest)


def _completed(fact: Fact, former: Fact, table: Table) -> Fact:
    """Return a fact with values that it did not carry, but the one that arrived before it at its place."""
    if fact.is_delete or former.is_delete:
        return fact
    missing = [name for name in table.tracked if former.carries(name) and not fact.carries(name)]
    if not missing:
        return fact
    values, seqs, texts = dict(fact.row.values), dict(fact.row.seqs), dict(fact.row.texts)
    for name in missing:
        values[name], seqs[name] = former.row.values.get(name), former.row.seq_of(name)
        if name in former.row.texts:
            texts[name] = former.row.texts[name]
    seqs = {name: each for name, each in seqs.items() if each != own(fact.seq)}
    return replace(fact, row=fact.row._replace(values=values, seqs=seqs, texts=texts))


def _stored_facts(stored: Stored, tracking: Tracking) -> list[Fact]:
    facts = []
    merged = {each.row.seq for each in stored.merged}
    ends = {each.tombstone.seq: each for each in stored.ends}
    for each in stored.versions:
        facts.append(_of_stored(Kind.IMAGE, each.row, each.sent, version=each))
        if each.delete_seq is not None:
            # While the delete itself is known, it tells whether a row of a snapshot raises its place.
            end = ends.get(each.delete_seq, Ended(Tombstone(each.delete_seq, each.valid_to)))
            facts.append(_end(end.tombstone, end.sent, None))
        if tracking.compared is not None and each.began < each.row.seq and each.began not in merged:
            began = each.row._replace(seq=each.began, at=each.valid_from, origin=NO_ORIGIN, seqs=NOTHING)
            facts.append(Fact(Kind.BEGAN, began, base=each.began))
    if tracking.compared is not None:
        facts += [_of_stored(Kind.MERGED, each.row, each.sent, batch=each.batch) for each in stored.merged]
    return facts + [_end(each.tombstone, each.sent, each.batch) for each in stored.ends]


def _of_stored(
    kind: Kind, row: Row, sent: bytes | None, *, version: Version | None = None, batch: int | None = None
) -> Fact:
    return Fact(kind, row, sent is not None, row.seq, version=version, batch=batch)


def _end(tombstone: Tombstone, sent: bytes | None, batch: int | None) -> Fact:
    row = Row(tombstone.seq, Op.DELETE, tombstone.at, tombstone.origin)
    return Fact(Kind.END, row, sent is not None, tombstone.seq, batch=batch)


# -- 1. the place of each fact ----------------------------------------------------------------------------


def _placed(facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts, each at its place. Sequences of values that were set at a fact move along with it.

    A change that is sent again takes the place of its first delivery. What is stored has its place, which
    only a later row of a snapshot raises.
    """
    reads = [each for each in facts if is_snapshot(each.seq)]
    first = {_sent(each) or each.seq: each for each in facts if each.number is None}
    return [_at_place(each, first.get(each.seq, each), reads) for each in facts]


def _at_place(fact: Fact, first: Fact, reads: Iterable[Fact]) -> Fact:
    """Return a fact at its place. ``first`` is its first delivery, the fact itself if there is no other."""
    if not fact.unanchored:
        return fact
    before = [first.seq, *(each.seq for each in reads if first.row.origin.follows(each.row.origin))]
    seq = anchored_at(fact.seq, max(before))
    seqs = {
        name: seq + each[len(seq) :] if change_of(each, seq) == fact.seq else each
        for name, each in fact.row.seqs.items()
    }
    return replace(fact, row=fact.row._replace(seq=seq, seqs=seqs))


def _sent(fact: Fact) -> bytes | None:
    """Return the sequence of a fact as it was sent. An unanchored change has only its LSN, as both parts."""
    lsn = minor_of(fact.seq)
    return epoch_of(fact.seq) + lsn + lsn + fact.seq[22:] if fact.unanchored else None


def beside(stored: Stored, events: Iterable[Event]) -> Stored:
    """Return what is stored of a key, each change in its place beside rows of snapshots among some events."""
    reads = [
        Fact(Kind.EVENT, Row(each.seq, each.op, each.at, each.origin))
        for each in events
        if is_snapshot(each.seq)
    ]
    if not reads:
        return stored

    def at(fact: Fact) -> Row:
        return _at_place(fact, fact, reads).row

    versions = [
        each._replace(row=at(_of_stored(Kind.IMAGE, each.row, each.sent))) for each in stored.versions
    ]
    merged = [each._replace(row=at(_of_stored(Kind.MERGED, each.row, each.sent))) for each in stored.merged]
    ends = [
        each._replace(tombstone=each.tombstone._replace(seq=at(_end(each.tombstone, each.sent, None)).seq))
        for each in stored.ends
    ]
    return Stored(versions, merged, ends)


# -- 2. the fact that counts at each place ----------------------------------------------------------------


def _settled(facts: Iterable[Fact], table: Table, batch: int | None) -> tuple[list[Fact], dict[int, Outcome]]:
    """Return the fact that counts at each place, in their order, and the outcomes of the events."""
    places: dict[bytes, list[Fact]] = {}
    for fact in facts:
        places.setdefault(fact.seq, []).append(fact)
    settled, outcomes = [], {}
    for _, here in sorted(places.items()):
        image = next((each for each in here if each.kind is Kind.IMAGE), None)
        stored = image or next((each for each in here if each.kind is Kind.MERGED), None)
        again = {
            each.number: _is_stored(each, stored, here, table) for each in here if each.number is not None
        }
        repeated = [number for number, stands in again.items() if stands]
        first = max(here, key=lambda each: (each.number not in repeated, *_rank(each, table)))
        settled.append(_completed_by(here, first, table))
        for each in here:
            if each.number is not None:
                known = again[each.number] and _is_known(each, stored, here, batch)
                lost = each is not first and not again[each.number]
                outcomes[each.number] = (
                    Outcome.STALE if lost else Outcome.DUPLICATE if known else Outcome.APPLIED
                )
    return settled, outcomes


def _completed_by(here: Iterable[Fact], fact: Fact, table: Table) -> Fact:
    """Return the fact that counts at a place with values that it did not carry, but earlier arrivals did.

    They are those since the last delete there.
    """
    rank = _rank(fact, table)
    earlier = [each for each in here if _rank(each, table) < rank and each.kind is not Kind.BEGAN]
    arrived = sorted(earlier, key=lambda each: _rank(each, table), reverse=True)
    for each in takewhile(lambda each: not each.is_delete, arrived):
        fact = _completed(fact, each, table)
    return fact


def _rank(fact: Fact, table: Table) -> tuple[object, ...]:
    """Return what decides between facts at one place: the later arrival, then what they are."""
    topic, partition, offset = fact.row.origin
    arrival = (topic or "", -1 if partition is None else partition, -1 if offset is None else offset)
    corrects = table.corrects and fact.kind is Kind.EVENT
    return arrival, corrects, fact.kind


def _is_stored(event: Fact, stored: Fact | None, here: Iterable[Fact], table: Table) -> bool:
    """Return whether an event says what is stored at its place.

    A delete that is stored does not count any more if the row came back there after it.
    """
    if event.is_delete:
        known = max(
            (each for each in here if each.number is None), key=lambda each: _rank(each, table), default=None
        )
        return known is not None and known.kind is Kind.END
    if stored is None or stored.row.op != event.row.op:
        return False
    left_out = [name for name in table.tracked if not _is_own(event, name)]
    if any(_is_own(stored, name) == (name in left_out) for name in table.tracked):
        return False
    mine, theirs = event.row.values, stored.row.values
    return all(name in left_out or is_same(mine.get(name), theirs.get(name)) for name in table.columns)


def _is_own(fact: Fact, column: str) -> bool:
    """Return whether a fact carried a column itself."""
    return fact.row.seq_of(column) == own(fact.seq)


def _is_known(event: Fact, stored: Fact | None, here: Iterable[Fact], batch: int | None) -> bool:
    """Return whether what is stored was there before the batch, and was not written by the batch itself."""
    if event.is_delete:
        ends = [each for each in here if each.kind is Kind.END]
        return any(not (_is_of(each, batch) and each.row.origin == event.row.origin) for each in ends)
    assert stored is not None
    return not (_is_of(stored, batch) and stored.row.origin == event.row.origin)


def _is_of(fact: Fact, batch: int | None) -> bool:
    return batch is not None and fact.batch == batch


# -- 3. values --------------------------------------------------------------------------------------------


def _patched(fact: Fact, inherited: Inherited, table: Table) -> Fact:
    """Return a fact with the values that its row had under its former key."""
    if not inherited:
        return fact
    values, seqs = dict(fact.row.values), dict(fact.row.seqs)
    for name in table.tracked:
        mine = [each for each in inherited.get(name, ()) if _is_brought(each, fact)]
        best = max(mine, key=lambda each: each.seq, default=None)
        if best is not None and fact.seq + best.seq[len(fact.seq) :] > fact.row.seq_of(name):
            values[name], seqs[name] = best.value, fact.seq + best.seq[len(fact.seq) :]
    return replace(fact, row=fact.row._replace(values=values, seqs=seqs))


def _is_brought(said: Said, fact: Fact) -> bool:
    """Return whether a value was brought by the move that the fact is the create of."""
    return change_of(said.seq, fact.seq) in (fact.seq, _sent(fact))


def _filled(facts: Sequence[Fact], table: Table) -> list[Fact]:
    """Return the facts, which are in their order, with the values that they did not carry themselves."""
    if not table.tracked:
        return list(facts)
    known: dict[str, Said] = {}
    filled = []
    for fact in facts:
        for name in table.tracked:
            if fact.is_delete:
                known[name] = Said(None, own(fact.seq))
            elif fact.carries(name):
                known[name] = Said(fact.row.values.get(name), fact.row.seq_of(name), fact.row.texts.get(name))
        filled.append(fact if fact.is_delete else _with(fact, known, _truncated_before(fact, table)))
    return filled


def _with(fact: Fact, known: Mapping[str, Said], floor: bytes | None) -> Fact:
    values, seqs = dict(fact.row.values), {}
    texts = {name: text for name, text in fact.row.texts.items() if name not in known}
    for name, each in known.items():
        said = Said(None, own(floor)) if floor is not None and each.seq <= own(floor) else each
        values[name] = said.value
        if said.seq != own(fact.seq):
            seqs[name] = said.seq
        if said.text is not None:
            texts[name] = said.text
    missing = {
        name: own(floor) if floor is not None else MISSING for name in fact.row.seqs if name not in known
    }
    return replace(fact, row=fact.row._replace(values=values, seqs={**missing, **seqs}, texts=texts))


def _truncated_before(fact: Fact, table: Table) -> bytes | None:
    return max((each.seq for each in table.truncates if each.seq < fact.seq), default=None)


# -- 4. where versions begin, and when --------------------------------------------------------------------


def _begins(facts: Sequence[Fact], tracking: Tracking) -> list[bool]:
    """Return for each fact whether it begins a version: not if all compared columns are as before."""
    found = []
    before: Fact | None = None
    for i, fact in enumerate(facts):
        goes_on = (
            tracking.compared is not None
            and before is not None
            and not before.is_delete
            and _cut(facts, i - 1, tracking.table) is None
            and _is_alike(before, fact, tracking.compared)
        )
        found.append(not fact.is_delete and not goes_on)
        before = fact
    return found


def _is_alike(one: Fact, other: Fact, columns: Iterable[str]) -> bool:
    return all(is_same(one.row.values.get(name), other.row.values.get(name)) for name in columns)


def _cut(facts: Sequence[Fact], i: int, table: Table) -> Truncated | None:
    """Return the truncate that comes between a fact and the next one."""
    later = [each for each in table.truncates if each.seq >= facts[i].seq]
    first = min(later, key=lambda each: each.seq, default=None)
    is_next = first is not None and (i + 1 == len(facts) or first.seq < facts[i + 1].seq)
    return first if is_next else None


class _Time(NamedTuple):
    """Since when a fact holds, and since when its version is valid."""

    since: int
    valid: int


def _timed(facts: Sequence[Fact], begins: Sequence[bool], tracking: Tracking) -> list[_Time]:
    """Return since when each fact holds: never from before the fact before it, or a truncate before it.

    A change that is merged into a version moves no beginning.
    """
    found: list[_Time] = []
    latest: int | None = None
    for i, fact in enumerate(facts):
        is_initial = i == 0 and _was_there_before(fact, tracking)
        at = fact.row.at
        if tracking.compared is not None:
            at = at if begins[i] or fact.is_delete else None
            if is_initial:
                at = min(_or(tracking.initial), _or(fact.row.at))
        ended = [each.at for each in tracking.table.truncates if each.seq < fact.seq]
        times = [each for each in (latest, at, *ended) if each is not None]
        latest = max(times, default=None)
        since = _or(latest)
        first = is_initial and tracking.compared is None
        found.append(_Time(since, min(_or(tracking.initial), since) if first else since))
    return found


def _was_there_before(fact: Fact, tracking: Tracking) -> bool:
    """Return whether a row was there before the first fact about it."""
    known = tracking.initial is not None and _truncated_before(fact, tracking.table) is None
    return known and fact.row.op in (Op.READ, Op.UPDATE) and fact.kind is not Kind.BEGAN


def _or(time: int | None) -> int:
    return BEGINNING if time is None else time


# -- 5. versions ------------------------------------------------------------------------------------------


def _versions(
    facts: Sequence[Fact], begins: Sequence[bool], times: Sequence[_Time], tracking: Tracking
) -> tuple[list[Version], list[Fact]]:
    """Return the versions, and the changes that are merged into them.

    A version has the values of the last of its changes, and begins with the first.
    """
    versions, merged = [], []
    newest = max((each.seq for each in facts if not each.is_delete), default=MISSING)
    run = (MISSING, BEGINNING)
    for i, fact in enumerate(facts):
        if fact.is_delete:
            continue
        if begins[i]:
            run = (fact.seq, times[i].valid)
        cut, following = _cut(facts, i, tracking.table), facts[i + 1] if i + 1 < len(facts) else None
        if cut is None and following is not None and not following.is_delete and not begins[i + 1]:
            merged.append(fact)
            continue
        ended = cut.seq if cut is not None else None if following is None else following.seq
        is_gone = cut is not None or (following is not None and following.is_delete)
        end = None if following is None else times[i + 1].since
        if cut is not None:
            end = max(times[i].since, times[i].since if cut.at is None else cut.at)
        versions.append(
            Version(
                fact.row,
                run[1],
                end,
                is_current=cut is None and following is None,
                is_deleted=is_gone and fact.seq == newest,
                delete_seq=ended if is_gone else None,
                began=run[0],
                sent=_sent(fact),
            )
        )
    return versions, merged
