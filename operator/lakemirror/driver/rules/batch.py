"""What becomes of a table: all events of a batch, in any order, and the mirror as it was.

This is `merge` for each key, with what keys pass on to each other when rows change theirs, and with the
truncates, which have no key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakemirror.driver.rules import moves
from lakemirror.driver.rules.merge import merge
from lakemirror.driver.rules.moves import Image
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import NO_ORIGIN
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Outcome, Row, Tombstone
from lakemirror.driver.rules.versions import Stored, Tracking, beside, history


@dataclass(frozen=True)
class Mirror:
    """A mirror of current rows: its rows, and what is known about rows that are gone.

    ``tombstones`` has the newest tombstone of each key, ``images`` the rows as they were when their key
    changed, ``truncated`` the newest truncate.
    """

    rows: Mapping[Key, Row] = field(default_factory=dict)
    tombstones: Mapping[Key, Tombstone] = field(default_factory=dict)
    images: Sequence[Image] = ()
    truncated: Truncated | None = None


@dataclass(frozen=True)
class Applied:
    """A mirror after a batch, and what became of each event and truncate, in the order they were given."""

    mirror: Mirror
    events: Sequence[Outcome]
    truncates: Sequence[Outcome]

    def counts(self, events: Sequence[Event]) -> Counter[Outcome]:
        """Return the number of records with each outcome. A half of a change of a key is no record."""
        records = [each for each, event in zip(self.events, events, strict=True) if not event.is_half]
        return Counter([*records, *self.truncates])


def apply(mirror: Mirror, events: Sequence[Event], table: Table) -> Applied:
    """Apply a batch to a mirror. ``table.truncates`` are those of the batch."""
    table = replace(table, former=mirror.truncated)
    numbers: dict[Key, list[int]] = {}
    for number, event in enumerate(events):
        numbers.setdefault(event.key, []).append(number)
    by_key = {key: [events[i] for i in mine] for key, mine in numbers.items()}
    gone = gone_of(mirror.tombstones, mirror.images, events)
    found = _images(by_key, mirror, gone, table)
    passed = moves.inherited(found.values())
    gating = mirror.tombstones if table.soft else gone
    rows, tombstones = dict(mirror.rows), dict(mirror.tombstones)
    outcomes: dict[int, Outcome] = {}
    for key in {**numbers, **passed, **(mirror.rows if table.truncates else {})}:
        merged = merge(by_key.get(key, ()), mirror.rows.get(key), gating.get(key), table, passed.get(key, {}))
        _put(rows, key, merged.row)
        if merged.tombstone is not None:
            tombstones[key] = _newer(tombstones.get(key), merged.tombstone)
        outcomes.update(zip(numbers.get(key, ()), merged.outcomes, strict=True))
    kept = [*mirror.images, *moves.improved(found.values(), mirror.images)]
    after = Mirror(rows, tombstones, kept, table.floor)
    return Applied(after, [outcomes[i] for i in range(len(events))], _of_truncates(table))


def _images(
    events: Mapping[Key, Sequence[Event]], mirror: Mirror, gone: Mapping[Key, Tombstone], table: Table
) -> dict[tuple[Key, bytes], Image]:
    if not table.tracked:
        return {}
    rows = {key: (row,) for key, row in mirror.rows.items()}
    return moves.images(events, mirror.images, rows, {key: (each,) for key, each in gone.items()}, table)


def _put(rows: dict[Key, Row], key: Key, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _newer(one: Tombstone | None, other: Tombstone) -> Tombstone:
    """Return the newer of two tombstones; of two at one place, the one that arrived last."""
    return other if one is None else max((one, other), key=lambda each: _place(each.seq, each))


def _place(seq: bytes, tombstone: Tombstone) -> tuple[bytes, str, int, int, bool]:
    topic, partition, offset = tombstone.origin
    place = -1 if partition is None else partition, -1 if offset is None else offset
    return seq, topic or "", *place, tombstone.by_delete


def gone_of(
    tombstones: Mapping[Key, Tombstone], images: Iterable[Image], events: Iterable[Event]
) -> dict[Key, Tombstone]:
    """Return the newest fact of each key that says that its row is gone: a delete, or a change of the key.

    Where a change of the key was read is known once its delete has come, at the latest in this batch.
    """
    origins = {(each.key, each.seq): each.origin for each in events if each.new_key is not None}
    found = dict(tombstones)
    for image in images:
        move = image.move
        known = found.get(move.key)
        if known is None or known.seq < move.seq or not known.by_delete:
            origin = origins.get((move.key, move.seq), NO_ORIGIN)
            found[move.key] = _newer(known, Tombstone(move.seq, None, origin, by_delete=False))
    return found


def _of_truncates(table: Table) -> list[Outcome]:
    """Return the outcomes of the truncates of a batch: the newest counts, unless the mirror had it before.

    One that was sent twice counts once.
    """
    floor, former = table.floor_of_batch, table.former
    if floor is None:
        return []
    newest = Outcome.APPLIED
    if former is not None and floor.seq <= former.seq:
        newest = Outcome.DUPLICATE if floor.seq == former.seq else Outcome.STALE
    outcomes: list[Outcome] = []
    seen: set[bytes] = set()
    for each in table.truncates:
        first = newest if each.seq == floor.seq else Outcome.SUPERSEDED
        outcomes.append(Outcome.DUPLICATE if each.seq in seen else first)
        seen.add(each.seq)
    return outcomes


# -- versions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class VersionedMirror:
    """A mirror of versions: what it has of each key, the images of moved rows, and all truncates."""

    keys: Mapping[Key, Stored] = field(default_factory=dict)
    images: Sequence[Image] = ()
    truncates: Sequence[Truncated] = ()


@dataclass(frozen=True)
class AppliedVersions:
    """A mirror of versions after a batch, and what became of each event and truncate, as they were given."""

    mirror: VersionedMirror
    events: Sequence[Outcome]
    truncates: Sequence[Outcome]

    def counts(self, events: Sequence[Event]) -> Counter[Outcome]:
        """Return the number of records with each outcome. A half of a change of a key is no record."""
        records = [each for each, event in zip(self.events, events, strict=True) if not event.is_half]
        return Counter([*records, *self.truncates])


def apply_versions(mirror: VersionedMirror, events: Sequence[Event], tracking: Tracking) -> AppliedVersions:
    """Apply a batch to a mirror of versions. ``tracking.table.truncates`` are those of the batch."""
    of_truncates = _of_ends(mirror.truncates, tracking.table.truncates)
    truncates = {each.seq: each for each in (*tracking.table.truncates, *mirror.truncates)}
    table = replace(tracking.table, truncates=tuple(truncates.values()))
    tracking = replace(tracking, table=table)
    numbers: dict[Key, list[int]] = {}
    for number, event in enumerate(events):
        numbers.setdefault(event.key, []).append(number)
    by_key = {key: [events[i] for i in mine] for key, mine in numbers.items()}
    found = _images_of_versions(by_key, mirror, table)
    passed = moves.inherited(found.values())
    keys = dict(mirror.keys)
    outcomes: dict[int, Outcome] = {}
    for key in {**mirror.keys, **numbers}:
        mine = numbers.get(key, ())
        told = history(by_key.get(key, ()), keys.get(key, Stored()), tracking, passed.get(key, {}))
        keys[key] = Stored(told.versions, told.merged, told.ends)
        outcomes.update(zip(mine, told.outcomes, strict=True))
    kept = [*mirror.images, *moves.improved(found.values(), mirror.images)]
    after = VersionedMirror(keys, kept, table.truncates)
    return AppliedVersions(after, [outcomes[i] for i in range(len(events))], of_truncates)


def _images_of_versions(
    events: Mapping[Key, Sequence[Event]], mirror: VersionedMirror, table: Table
) -> dict[tuple[Key, bytes], Image]:
    if not table.tracked:
        return {}
    keys = {key: beside(stored, events.get(key, ())) for key, stored in mirror.keys.items()}
    rows = {
        key: [*(each.row for each in stored.versions), *(each.row for each in stored.merged)]
        for key, stored in keys.items()
    }
    gone = {key: [each.tombstone for each in stored.ends] for key, stored in keys.items()}
    return moves.images(events, mirror.images, rows, gone, table)


def _of_ends(known: Iterable[Truncated], truncates: Iterable[Truncated]) -> list[Outcome]:
    """Return the outcomes of the truncates of a batch: each counts once."""
    seqs, outcomes = {each.seq for each in known}, []
    for each in truncates:
        outcomes.append(Outcome.DUPLICATE if each.seq in seqs else Outcome.APPLIED)
        seqs.add(each.seq)
    return outcomes
