"""What the changes of a bucket of keys make of its rows: in columns, and by the rules where not plain.

A key is plain if all of its changes are, and if what the mirror has of it is. Its newest change counts, by
its sequence, and at one place by the offset in its partition, never by the order in which changes are given.
All other keys go to `rules.batch.apply`, with all of their changes. The result is what the rules would make
of all of them (`tests/driver/columns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.codes import Op
from lakemirror.driver.columns import stored as in_columns
from lakemirror.driver.columns.alike import are_alike
from lakemirror.driver.columns.changes import Kinds, as_events, key_of
from lakemirror.driver.columns.key_codes import Codes, ends_of_runs, key_codes
from lakemirror.driver.columns.kinds import to_arrow
from lakemirror.driver.columns.masks import Indices, Mask, mask_of
from lakemirror.driver.columns.sequences import Sequences, follow, values_of
from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.moves import Image
from lakemirror.driver.rules.positions import WIDTH, own
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Key, Outcome, Tombstone

OUTCOMES: Final = (Outcome.APPLIED, Outcome.SUPERSEDED, Outcome.STALE, Outcome.DUPLICATE)
"""The outcomes of changes, by their numbers in `Folded.outcomes`."""
_APPLIED, _SUPERSEDED, _STALE, _DUPLICATE = range(4)
_NUMBERS: Final = {each: number for number, each in enumerate(OUTCOMES)}


class RepeatedKey(ValueError):
    """Several stored rows have one key: a change of it concerns all of them."""


@dataclass(frozen=True)
class Mirrored:
    """What a fold needs to know of a mirror of current rows.

    ``key`` are the columns of its key, and ``soft`` is the one with the time of a soft delete, if deletes are
    soft.
    """

    kinds: Kinds
    key: Sequence[str]
    table: Table
    soft: str | None = None


class Rows(Protocol):
    """Stored rows in columns: a `pa.RecordBatch`, or rows whose columns are read when they are asked for.

    A sequence in ``column("__seq")`` may be another one than the row's own if both are older than each of
    the changes. What `take` returns is exact.
    """

    @property
    def num_rows(self) -> int: ...

    def column(self, name: str, /) -> Any: ...

    def select(self, names: list[str], /) -> Rows:
        """Return the rows with some of their columns."""

    def take(self, numbers: Any, /) -> pa.RecordBatch:
        """Return some of the rows, in the order of their ``numbers``."""


@dataclass(frozen=True)
class Bucket:
    """All that a batch and a mirror have of some keys.

    ``changes`` are plain ones (`changes`), ``odd`` those that the rules have read; keys that a change of a
    key connects are in one bucket. ``rows`` and ``tombstones`` are stored (`stored`),
    the newest tombstone of each key; ``images`` are those of rows that were moved.
    """

    changes: pa.RecordBatch
    rows: Rows
    tombstones: pa.RecordBatch
    odd: Sequence[Event] = ()
    images: Sequence[Image] = ()


@dataclass(frozen=True)
class Folded:
    """What becomes of a bucket.

    ``rows`` are written anew, ``hidden`` are the numbers of the stored rows that are no longer there.
    ``outcomes`` has a number of `OUTCOMES` for each change, ``of_odd`` and ``of_truncates`` the outcomes of
    the others. ``by_rules`` is how many changes in columns the rules had to look at.
    """

    rows: pa.RecordBatch
    hidden: Indices
    tombstones: pa.RecordBatch
    outcomes: npt.NDArray[np.int8]
    of_odd: Sequence[Outcome] = ()
    of_truncates: Sequence[Outcome] = ()
    images: Sequence[Image] = ()
    by_rules: int = 0


def keys_of(
    changes: pa.RecordBatch, odd: Sequence[Event], images: Sequence[Image], mirrored: Mirrored
) -> dict[str, pa.Array]:
    """Return the keys of which a fold has to know the stored rows and tombstones; some more than once."""
    related = _in_columns(_related(odd, images), mirrored)
    return {
        name: pa.concat_arrays([changes.column(name), more])
        for name, more in zip(mirrored.key, related, strict=True)
    }


def fold(bucket: Bucket, mirrored: Mirrored) -> Folded:
    """Return what becomes of the rows of a bucket, and of each of its changes. Raises RepeatedKey."""
    known = _Known.of(bucket, mirrored)
    odd = _odd_keys(known, mirrored.table)
    plain = _fold_plain(known, mirrored, odd)
    return _with_rules(plain, known, mirrored, odd) if odd.any() or mirrored.table.truncates else plain


@dataclass(frozen=True)
class _Known:
    """A bucket, with the code of the key of each of its parts; -1 in ``row_of`` and ``end_of`` is none."""

    bucket: Bucket
    codes: Codes
    of_rows: Codes
    of_ends: Codes
    of_odd: Codes
    row_of: Codes
    end_of: Codes
    seqs: Sequences

    @cached_property
    def order(self) -> Indices:
        """The changes of each key in their order, key by key."""
        return self.seqs.order(self.codes)

    @cached_property
    def values_of_rows(self) -> npt.NDArray[np.bytes_]:
        """The sequences of the rows, which compare like those of changes."""
        return values_of(self.bucket.rows.column("__seq"))

    def seqs_of_rows(self, numbers: Indices) -> Sequences:
        """The sequences of some rows, and where they were read."""
        return Sequences.of_stored(self.bucket.rows.select(["__seq", "__origin"]).take(pa.array(numbers)))

    @classmethod
    def of(cls, bucket: Bucket, mirrored: Mirrored) -> _Known:
        """Give the keys of a bucket their codes."""
        parts = [
            [part.column(name) for name in mirrored.key]
            for part in (bucket.changes, bucket.rows, bucket.tombstones)
        ]
        of_odd = _in_columns(_related(bucket.odd, bucket.images), mirrored)
        (codes, of_rows, of_ends, odd), size = key_codes([*parts, of_odd])
        row_of, seqs = _by_code(of_rows, size), Sequences.of(bucket.changes)
        if np.count_nonzero(row_of >= 0) < len(of_rows):
            raise RepeatedKey("two stored rows have the same key: somebody has added one by hand")
        return cls(bucket, codes, of_rows, of_ends, odd, row_of, _by_code(of_ends, size), seqs)


def _related(odd: Sequence[Event], images: Sequence[Image]) -> list[Key]:
    """Return the keys that only the rules can look at: of odd changes, and those that moves connect."""
    keys = [each.key for each in odd]
    keys += [each for event in odd for each in (event.old_key, event.new_key) if each is not None]
    return keys + [key for each in images for key in (each.move.key, each.move.new_key)]


def _in_columns(keys: Sequence[Key], mirrored: Mirrored) -> list[pa.Array]:
    return [to_arrow([each[i] for each in keys], mirrored.kinds[name]) for i, name in enumerate(mirrored.key)]


def _by_code(codes: Codes, size: int) -> Codes:
    found = np.full(size, -1, np.int64)
    found[codes] = np.arange(len(codes))
    return found


# -- which keys are plain ---------------------------------------------------------------------------------


def _odd_keys(known: _Known, table: Table) -> Mask:
    """Return by code which keys the rules have to look at."""
    odd = np.zeros(len(known.row_of), np.bool_)
    if table.truncates or table.corrects:
        odd[:] = True
        return odd
    odd[known.of_odd] = True
    changes, rows = known.bucket.changes, known.bucket.rows
    if table.former is not None:
        below = known.seqs.values <= np.bytes_(table.former.seq)
        odd[known.codes[below]] = True
    if table.soft:
        deletes = mask_of(pc.equal(changes.column("__op"), str(Op.DELETE)))
        odd[known.codes[deletes]] = True
        odd[known.of_rows[mask_of(pc.equal(rows.column("__op"), str(Op.DELETE)).fill_null(False))]] = True
    odd[known.of_rows[~_is_of_width(rows.column("__seq"))]] = True
    odd[known.of_ends[~_is_of_width(known.bucket.tombstones.column("__seq"))]] = True
    odd[_read_before(known)] = True
    odd[_with_memory(known, odd)] = True
    return odd


def _read_before(known: _Known) -> Codes:
    """Return the keys of which a snapshot read a row before the change of the stored row, but higher up.

    That change may be one of a transaction that was open during the snapshot: its place depends on the row.
    """
    at = np.flatnonzero(known.seqs.is_snapshot & (known.row_of[known.codes] >= 0))
    codes = known.codes[at]
    if not len(at):
        return codes
    mine, theirs = known.seqs.take(at), known.seqs_of_rows(known.row_of[codes])
    is_higher = mine.values > theirs.values
    found: Codes = codes[is_higher & ~theirs.is_snapshot & follow(theirs, mine)]
    return found


def _is_of_width(seqs: pa.Array) -> Mask:
    return mask_of(pc.equal(pc.binary_length(seqs), WIDTH).fill_null(False))


def _with_memory(known: _Known, odd: Mask) -> Indices:
    """Return the keys whose row has values that are older than the row, unless all changes are newer."""
    memory = known.bucket.rows.column("__column_seq")
    lengths = pc.binary_length(memory.items) if len(memory.items) else None
    if lengths is None:
        return np.zeros(0, np.int64)
    first = _first_by_code(known)
    found = []
    for row in np.unique(np.asarray(pc.list_parent_indices(_as_list(memory)))):
        code = known.of_rows[row]
        if odd[code] or first[code] < 0:
            continue
        least = known.seqs.octets(int(first[code]))
        stored = known.bucket.rows.column("__seq")[int(row)].as_py() or b""
        if least <= stored or any(each >= own(least) for _, each in memory[int(row)].as_py()):
            found.append(code)
    return np.array(found, np.int64)


def _as_list(maps: pa.Array) -> pa.Array:
    offsets = pa.array(np.asarray(maps.offsets) - maps.offsets[0].as_py(), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.nulls(int(offsets[-1].as_py())))


def _first_by_code(known: _Known) -> Indices:
    """Return the oldest change of each key, -1 where it has none."""
    found = np.full(len(known.row_of), -1, np.int64)
    order = known.order[::-1]
    found[known.codes[order]] = order
    return found


# -- plain keys -------------------------------------------------------------------------------------------


def _fold_plain(known: _Known, mirrored: Mirrored, odd: Mask) -> Folded:
    bucket, changes = known.bucket, known.bucket.changes
    mine = known.order
    if odd.any():
        mine = mine[~odd[known.codes[mine]]]
    outcomes = np.full(changes.num_rows, _SUPERSEDED, np.int8)
    is_last = ends_of_runs(known.codes[mine])
    again = _sent_again(known, mirrored, mine)
    outcomes[mine[again]] = _DUPLICATE
    newest = mine[is_last]
    heads = np.maximum.accumulate(np.where(again, 0, np.arange(len(mine))))[is_last] if len(mine) else mine
    found = _Newest(known, mirrored, newest)
    outcomes[mine[heads]] = found.outcomes
    applied, deletes = found.outcomes == _APPLIED, found.deletes
    written = changes.take(pa.array(newest[applied & ~deletes]))
    hidden = found.rows[applied & (found.rows >= 0)]
    ends = changes.take(pa.array(newest[found.needs_tombstone]))
    return Folded(
        in_columns.of_changes(written, mirrored.kinds, soft=mirrored.soft),
        np.sort(hidden),
        in_columns.of_deletes(ends, mirrored.kinds, mirrored.key),
        outcomes,
        images=(),
        of_odd=[Outcome.SUPERSEDED] * len(bucket.odd),
    )


def _sent_again(known: _Known, mirrored: Mirrored, order: Indices) -> Mask:
    """Return which changes, in their order, are the one before them, sent again."""
    again = np.zeros(len(order), np.bool_)
    if not known.seqs.may_repeat:
        return again
    values, codes = known.seqs.values[order], known.codes[order]
    pairs = np.flatnonzero((codes[1:] == codes[:-1]) & (values[1:] == values[:-1])) + 1
    if len(pairs):
        one, other = order[pairs - 1], order[pairs]
        changes = known.bucket.changes
        mine, theirs = changes.take(pa.array(one)), changes.take(pa.array(other))
        same = mask_of(pc.equal(mine.column("__op"), theirs.column("__op")))
        logs = pc.equal(mine.column("__log"), theirs.column("__log"))
        here = known.seqs.origins_of(one) == known.seqs.origins_of(other)
        same &= np.where(
            mask_of(logs.is_null()), _both_null(mine, theirs) & here, mask_of(logs.fill_null(False))
        )
        for name in mirrored.kinds:
            same &= are_alike(mine.column(name), theirs.column(name))
        again[pairs] = same
    return again


def _both_null(mine: pa.RecordBatch, theirs: pa.RecordBatch) -> Mask:
    return mask_of(mine.column("__log").is_null()) & mask_of(theirs.column("__log").is_null())


class _Newest:
    """The newest change of each key, beside what the mirror has of the key."""

    def __init__(self, known: _Known, mirrored: Mirrored, newest: Indices) -> None:
        self._known, self._mirrored, self._newest = known, mirrored, newest
        self.rows, ends = known.row_of[known.codes[newest]], known.end_of[known.codes[newest]]
        self.deletes = mask_of(
            pc.equal(known.bucket.changes.column("__op").take(pa.array(newest)), str(Op.DELETE))
        )
        self.outcomes = np.full(len(newest), _APPLIED, np.int8)
        self.needs_tombstone = self.deletes.copy()
        if self.needs_tombstone.any() and mirrored.table.soft:
            self.needs_tombstone[:] = False
        self._beside_ends(np.flatnonzero(ends >= 0), ends)
        self._beside_rows(np.flatnonzero(self.rows >= 0))

    def _beside_ends(self, at: Indices, ends: Indices) -> None:
        """A tombstone that is newer forbids a row, and a delete that has one needs no other."""
        if not len(at):
            return
        mine = self._known.seqs.take(self._newest[at])
        theirs = Sequences.of_stored(self._known.bucket.tombstones).take(ends[at])
        renews = (mine.values == theirs.values) & follow(mine, theirs)
        buried = mine.is_snapshot & follow(theirs, mine)
        buried |= (mine.values <= theirs.values) & ~renews
        deletes = self.deletes[at]
        self.outcomes[at[buried & ~deletes]] = _STALE
        self.outcomes[at[(buried | renews) & deletes]] = _DUPLICATE  # unless there is still a row
        self.needs_tombstone[at[buried & ~renews]] = False

    def _beside_rows(self, at: Indices) -> None:
        if not len(at):
            return
        mine = self._known.seqs.take(self._newest[at])
        theirs = self._known.values_of_rows[self.rows[at]]
        is_equal, newer = mine.values == theirs, mine.values > theirs
        tied = np.flatnonzero(is_equal)
        if len(tied):
            later = follow(mine.take(tied), self._known.seqs_of_rows(self.rows[at[tied]]))
            newer[tied[later]] = self._are_others(at[tied[later]])
        forbidden = (self.outcomes[at] == _STALE) & ~self.deletes[at]
        told = np.where(newer, _APPLIED, np.where(is_equal, _DUPLICATE, _STALE))
        self.outcomes[at] = np.where(forbidden, _STALE, told)

    def _are_others(self, at: Indices) -> Mask:
        """Return which changes at the place of their row are not the one that the row is from."""
        mine = self._known.bucket.changes.take(pa.array(self._newest[at]))
        theirs = self._known.bucket.rows.take(pa.array(self.rows[at]))
        others = self.deletes[at].copy()
        for name in self._mirrored.kinds:
            others |= ~are_alike(mine.column(name), theirs.column(name))
        return others


# -- the rules --------------------------------------------------------------------------------------------


def _with_rules(plain: Folded, known: _Known, mirrored: Mirrored, odd: Mask) -> Folded:
    """Return the outcome of all keys: what the rules make of the odd ones is added."""
    bucket, kinds, key, table = known.bucket, mirrored.kinds, mirrored.key, mirrored.table
    mine = np.flatnonzero(odd[known.codes])
    of_rows, of_ends = np.flatnonzero(odd[known.of_rows]), np.flatnonzero(odd[known.of_ends])
    events = [
        each._replace(key=key_of(each.key))
        for each in as_events(bucket.changes.take(pa.array(mine)), kinds, key)
    ]
    rows = in_columns.as_rows(bucket.rows.take(pa.array(of_rows)), kinds, key, soft=mirrored.soft)
    ends = in_columns.as_tombstones(bucket.tombstones.take(pa.array(of_ends)), kinds, key)
    before = Mirror(rows, ends, bucket.images, table.former)
    applied = apply(before, [*events, *map(_with_equal_keys, bucket.odd)], table)
    after = applied.mirror
    outcomes = plain.outcomes.copy()
    outcomes[mine] = [_NUMBERS[each] for each in applied.events[: len(events)]]
    changed = {name: row for name, row in after.rows.items() if rows.get(name) != row}
    gone = [i for i, (name, row) in zip(of_rows, rows.items(), strict=True) if after.rows.get(name) != row]
    new: Mapping[Key, Tombstone] = {
        name: each for name, each in after.tombstones.items() if ends.get(name) != each
    }
    return Folded(
        _joined(plain.rows, in_columns.of_rows(changed, kinds, key, soft=mirrored.soft)),
        np.sort(np.concatenate([plain.hidden, np.array(gone, np.int64)])),
        _joined(plain.tombstones, in_columns.of_tombstones(new, kinds, key)),
        outcomes,
        applied.events[len(events) :],
        applied.truncates,
        after.images[len(bucket.images) :],
        by_rules=len(mine),
    )


def _with_equal_keys(event: Event) -> Event:
    return event._replace(
        key=key_of(event.key),
        old_key=None if event.old_key is None else key_of(event.old_key),
        new_key=None if event.new_key is None else key_of(event.new_key),
    )


def _joined(one: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    if not one.num_rows or not other.num_rows:
        return one if one.num_rows else other
    return pa.concat_batches([one, other])
