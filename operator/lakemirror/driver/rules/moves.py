"""Changes of keys: values that the row under its new key is missing come from the row under its former key.

Debezium sends a change of a key as a delete (with the new key) and a create (with the old key), both at one
position. The create need not carry all columns (PostgreSQL's TOAST): only the former row has those values.

An *image* is the row under its former key just before the move. Late events of the former key still improve
it, and what it gains is passed on to the new key, through any number of further moves. What is passed on only
fills columns; it never creates a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules.anchors import anchored, beside, beside_stored
from lakemirror.driver.rules.positions import (
    MISSING,
    NO_ORIGIN,
    WIDTH,
    Origin,
    epoch_of,
    is_reread,
    is_snapshot,
    minor_of,
    moved,
    own,
)
from lakemirror.driver.rules.states import at_create, said_by
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Row, Said, Tombstone

HOPS: Final = 64
"""Maximum number of moves that one value is passed through in a batch."""


class Move(NamedTuple):
    """The row with ``key`` got ``new_key`` at ``seq``. ``origin`` is that of the delete, if it came."""

    key: Key
    seq: bytes
    new_key: Key
    unanchored: bool = False
    origin: Origin = NO_ORIGIN

    def follows(self, value: bytes, origin: Origin = NO_ORIGIN) -> bool:
        """Return whether the move comes after a value with this sequence, from a record at this origin.

        A move in a transaction that was open during the snapshot comes after the row that the snapshot read,
        and has only its LSN to compare with other changes.
        """
        by_lsn = self.unanchored and len(value) >= WIDTH and epoch_of(value) == epoch_of(self.seq)
        if not by_lsn or is_reread(value):
            return value < self.seq
        if is_snapshot(value):
            return not origin.follows(self.origin)
        return minor_of(value) < minor_of(self.seq)


class _Fact(NamedTuple):
    """What a record at an origin said about a column."""

    column: str
    said: Said
    origin: Origin = NO_ORIGIN


@dataclass(frozen=True)
class Image:
    """The tracked columns of a row just before its move. ``is_new`` says that none of the move is stored."""

    move: Move
    said: Mapping[str, Said] = field(default_factory=dict)
    is_new: bool = True


def images(
    events: Mapping[Key, Sequence[Event]],
    stored: Sequence[Image],
    rows: Mapping[Key, Sequence[Row]],
    tombstones: Mapping[Key, Sequence[Tombstone]],
    table: Table,
) -> dict[tuple[Key, bytes], Image]:
    """Return the image of every known move, by the former key and the position of the move.

    ``events`` are those of a batch by key, ``stored`` the images that are stored. ``rows`` and ``tombstones``
    are what the mirror has of each key: the row, or all of its versions, and deletes.
    """
    told = [*(each.move for each in stored), *moves(each for mine in events.values() for each in mine)]
    known = {(move.key, move.seq): move for move in sorted(told, key=lambda each: each.origin != NO_ORIGIN)}
    kept: dict[tuple[Key, bytes], list[Image]] = {}
    of_key: dict[Key, list[Image]] = {}
    for each in stored:
        kept.setdefault((each.move.key, each.move.seq), []).append(each)
        of_key.setdefault(each.move.key, []).append(each)
    facts = {
        key: _facts(
            events.get(key, ()), rows.get(key, ()), tombstones.get(key, ()), of_key.get(key, ()), table
        )
        for key in {each.key for each in told}
    }
    found = {at: _image(move, facts[move.key], kept.get(at, ()), table) for at, move in known.items()}
    for _ in range(HOPS):
        passed = inherited(found.values())
        more = {at: _improved(image, passed.get(image.move.key, {})) for at, image in found.items()}
        if more == found:
            break
        found = more
    return found


def moves(events: Iterable[Event]) -> list[Move]:
    """Return the moves that events tell of, from whichever half; those of deletes last."""
    creates, deletes = [], []
    for event in events:
        if event.op == Op.DELETE and event.new_key is not None:
            deletes.append(Move(event.key, event.seq, event.new_key, event.unanchored, event.origin))
        elif event.op != Op.DELETE and event.old_key is not None:
            creates.append(Move(event.old_key, event.seq, event.key, event.unanchored))
    return [*creates, *deletes]


def inherited(found: Iterable[Image]) -> dict[Key, dict[str, list[Said]]]:
    """Return what images pass on to new keys: for each column, a value for each move.

    A value that a move brought is newer than what the row had under that key before, and older than what the
    event of the move carried itself.
    """
    passed: dict[Key, dict[str, list[Said]]] = {}
    for image in found:
        mine = passed.setdefault(image.move.new_key, {})
        for name, said in image.said.items():
            if said.seq != MISSING:
                mine.setdefault(name, []).append(Said(said.value, moved(image.move.seq, said.seq)))
    return passed


def improved(found: Iterable[Image], stored: Sequence[Image]) -> list[Image]:
    """Return the images to store: new ones, and those with a newer value than all stored ones."""
    known: dict[tuple[Key, bytes], dict[str, bytes]] = {}
    for image in stored:
        mine = known.setdefault((image.move.key, image.move.seq), {})
        mine.update({name: max(said.seq, mine.get(name, MISSING)) for name, said in image.said.items()})
    return [each for each in found if each.is_new or _is_improved(each, known)]


def _is_improved(image: Image, known: Mapping[tuple[Key, bytes], Mapping[str, bytes]]) -> bool:
    before = known.get((image.move.key, image.move.seq), {})
    return any(said.seq > before.get(name, MISSING) for name, said in image.said.items())


def _facts(
    events: Sequence[Event],
    stored: Sequence[Row],
    gone: Sequence[Tombstone],
    known: Sequence[Image],
    table: Table,
) -> list[_Fact]:
    """Return all that is said about the columns of a key, whenever it was, except by the images themselves.

    A row that is softly deleted says what a tombstone does. What images have that are ``known`` tells where a
    change of an open transaction has its place.
    """
    rows = [each for each in stored if each.is_live]
    gone = [*gone, *(Tombstone(each.seq, each.at, each.origin) for each in stored if not each.is_live)]
    facts = [
        _Fact(name, _beside(said, name, rows, gone, known), event.origin)
        for event in anchored(events, stored)
        for name in table.tracked
        if (said := said_by(event, name)) is not None
    ]
    facts += [
        _Fact(name, Said(row.values.get(name), row.seq_of(name)), row.origin)
        for row in rows
        for name in table.tracked
    ]
    ends = [(each.seq, each.origin) for each in gone]
    ends += [(each.seq, NO_ORIGIN) for each in table.known_truncates]
    return facts + [
        _Fact(name, Said(None, own(end)), origin) for end, origin in ends for name in table.tracked
    ]


def _beside(
    said: Said, column: str, rows: Iterable[Row], gone: Iterable[Tombstone], known: Iterable[Image]
) -> Said:
    """Return what an event says about a column, in its place among all else that is known of the key."""
    if said.opened is None:
        return said
    seqs = [beside(said, each.seq, each.origin) for each in gone]
    seqs += [beside_stored(said, each, column) for each in rows]
    seqs += [beside(said, each.said[column].seq[:WIDTH], NO_ORIGIN) for each in known if column in each.said]
    return said._replace(seq=max([said.seq, *seqs]), opened=None)


def _image(move: Move, facts: Iterable[_Fact], stored: Sequence[Image], table: Table) -> Image:
    """Return the newest of what is said about each column from before the move, of which ``stored`` are."""
    said = {name: Said() for name in table.tracked}
    for image in stored:
        said.update(
            {name: each for name, each in image.said.items() if name in said and each.seq > said[name].seq}
        )
    newest = {name: _Fact(name, each) for name, each in said.items()}
    for fact in facts:
        name, each, origin = fact
        if name in newest and _place(fact) > _place(newest[name]) and move.follows(each.seq, origin):
            newest[name] = fact
    return Image(move, {name: each.said for name, each in newest.items()}, is_new=not stored)


def _place(fact: _Fact) -> tuple[bytes, int, str, int, int]:
    """Return what orders the facts about a column: their places, and at one place their arrival.

    If several rows exchange their keys at one position, a key has a delete and a create there. Where it is
    not known when one of them arrived, a value counts for more than the delete.
    """
    topic, partition, offset = fact.origin
    is_placed, is_there = fact.origin != NO_ORIGIN, fact.said.value is not None
    known = 1 if is_placed else 2 if is_there else 0
    place = -1 if partition is None else partition, -1 if offset is None else offset
    return (fact.said.seq, known, topic or "", *place)


def _improved(image: Image, passed: Mapping[str, Sequence[Said]]) -> Image:
    """Return an image with what earlier moves passed on to its row."""
    said = dict(image.said)
    for name, values in passed.items():
        for each in values:
            seq = at_create(each.seq, said[name].seq)
            if said[name].seq < seq and image.move.follows(seq):
                said[name] = each._replace(seq=seq)
    return Image(image.move, said, image.is_new)
