"""The second stage of a batch's job: what the changes of a bucket of keys make of its mirror.

A task gets the parcels of its buckets. For each, it looks up the stored rows, folds, and stores new files,
which no reader sees before the driver commits them. What goes wrong with a bucket is its outcome; it does not
touch the others.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.codes import Op
from lakemirror.driver.columns import stored as in_columns
from lakemirror.driver.columns.changes import METADATA, none
from lakemirror.driver.columns.fold import OUTCOMES, Bucket, fold, keys_of
from lakemirror.driver.columns.key_codes import ends_of_runs, key_codes
from lakemirror.driver.columns.kinds import to_arrow
from lakemirror.driver.columns.masks import Indices, Mask, mask_of
from lakemirror.driver.columns.sequences import Sequences, follow
from lakemirror.driver.columns.stored import tombstones_schema
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import CHANGES, ODD, REPORT, unpacked
from lakemirror.driver.engine.filters import (
    ODD_ROW,
    PLAIN_ROW,
    Answers,
    FilterFails,
    Parcelled,
    as_filtered,
    show_rows,
    shown_by,
)
from lakemirror.driver.engine.mirror_files import MirrorFiles
from lakemirror.driver.engine.stored_ends import TOMBSTONES, TombstoneFiles, stored_ends
from lakemirror.driver.engine.stored_moves import as_facts, stored_images
from lakemirror.driver.engine.stored_rows import StoredRows, look_up, oldest
from lakemirror.driver.engine.table_change import NeedsVectors, TableChange, change_of, discard
from lakemirror.driver.rules.batch import gone_of
from lakemirror.driver.rules.moves import Image
from lakemirror.driver.rules.values import Event, Outcome
from lakemirror.driver.times import AHEAD
from lakemirror.driver.writer.stores import Files, FileSystem

log = logging.getLogger(__name__)

FOUND: Final = "what STRING, number INT, content BINARY"
"""The schema of what the job returns: reports of the first stage, and outcomes of buckets."""
OUTCOME: Final = "outcome"
_STALE: Final = OUTCOMES.index(Outcome.STALE)
_NEVER: Final = 2**63 - 1
"""Stands for the time of a change that says none: nothing was made long after it."""
_SCHEMA: Final = pa.schema([("what", pa.string()), ("number", pa.int32()), ("content", pa.binary())])


@dataclass(frozen=True)
class StoredMirror:
    """A mirror as the tasks have to know it: where it is, its files and its tombstones.

    ``tolerance`` is how much later than a change its stored row may be before the change counts as out of
    order, in microseconds.
    """

    system: FileSystem
    folder: str
    files: MirrorFiles
    ends: TombstoneFiles
    tolerance: int

    @property
    def store(self) -> Files:
        return self.system.files(self.folder)

    @property
    def store_of_ends(self) -> Files:
        return self.system.files(f"{self.folder}/{TOMBSTONES}")


@dataclass(frozen=True)
class Counted:
    """The numbers of records with each outcome, and of keys and rows (`reduce.table.StateCounts`).

    ``keys`` are those whose newest change is not forbidden, ``deletes`` those of them that get no row (none
    if deletes are soft), and ``unborn`` those that are updated and that no change of the batch created.
    """

    outcomes: Mapping[Outcome, int]
    keys: int = 0
    deletes: int = 0
    unborn: int = 0
    out_of_order: int = 0


@dataclass(frozen=True)
class Done:
    """What becomes of a bucket: what happens to its table, and the tombstones (`columns.stored`).

    ``again`` is how many of these are of keys that were known to be gone. ``moved`` are images of rows that
    changed their keys, as facts, ``moves`` how many of them are of moves that had none. ``begun`` is when
    that was begun, in ms since 1970. ``error`` says why nothing was done; then there is no change. If the
    table ``lacks_vectors``, that is the reason.
    """

    change: TableChange | None = None
    tombstones: pa.RecordBatch | None = None
    again: int = 0
    moved: pa.RecordBatch | None = None
    moves: int = 0
    counted: Counted = field(default_factory=lambda: Counted({}))
    begun: int = 0
    error: str | None = None
    lacks_vectors: bool = False


def folded(
    parcels: Iterator[pa.RecordBatch],
    tables: Sequence[Believed],
    places: Sequence[StoredMirror],
    buckets: Sequence[int],
) -> Iterator[pa.RecordBatch]:
    """Return the reports that a task was given, and the outcome of each of its buckets."""
    found: dict[tuple[int, int], list[_Content]] = {}
    answers = Answers()
    for block in parcels:
        for each in answers.taken(block).to_pylist():
            if each["what"] == REPORT:
                yield _row(REPORT, each["number"], each["content"])
            else:
                of = Parcelled(each["number"], each["bucket"], each["task"])
                found.setdefault(of[:2], []).append(_Content(each["what"], of, each["content"]))
    for number, bucket in sorted(found):
        contents = found.pop((number, bucket))
        whole = buckets[number] == 1
        done = _done(contents, answers, tables[number], places[number], whole=whole)
        yield _row(OUTCOME, number, pickle.dumps(done))


class _Content(NamedTuple):
    """What a parcel contains."""

    what: str
    of: Parcelled
    packed: bytes


def _row(what: str, number: int, content: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"what": what, "number": number, "content": content}], _SCHEMA)


def _done(
    contents: Sequence[_Content], answers: Answers, table: Believed, place: StoredMirror, *, whole: bool
) -> Done:
    """Return the outcome of a bucket, which may be that it failed."""
    try:
        changes, events = _given(contents, answers, table)
        return _of_bucket(changes, events, table, place, whole=whole)
    except (NeedsVectors, FilterFails) as reason:  # Spark says why a filter fails
        log.debug("table %s: %s", table.name, reason)
        return Done(error=str(reason), lacks_vectors=isinstance(reason, NeedsVectors))
    except Exception as error:  # whatever it is, Spark takes the table
        log.warning("table %s: %s", table.name, error, exc_info=True)
        return Done(error=f"{type(error).__name__}: {error}")


def _given(
    contents: Sequence[_Content], answers: Answers, table: Believed
) -> tuple[pa.RecordBatch, Sequence[Event]]:
    """Return the plain changes of a bucket and the events of odd records, as a filter leaves them."""
    plain = [(each.of, unpacked(each.packed)) for each in contents if each.what == CHANGES]
    odd = [(each.of, pickle.loads(each.packed)) for each in contents if each.what == ODD]
    blocks = [block for _, mine in plain for block in mine]
    changes = pa.concat_batches(blocks) if blocks else none(table.kinds)
    events = [event for _, mine in odd for event in mine]
    if table.filter is None:
        return changes, events
    out = [answers.left_out(PLAIN_ROW, of, _joined(list(map(show_rows, mine)))) for of, mine in plain]
    out_of_events = [answers.left_out(ODD_ROW, of, shown_by(mine)) for of, mine in odd]
    return as_filtered(changes, _joined(out), events, _joined(out_of_events), table)


def _joined(masks: Sequence[Mask]) -> Mask:
    return np.concatenate(masks) if masks else np.zeros(0, np.bool_)


def _of_bucket(
    changes: pa.RecordBatch,
    events: Sequence[Event],
    table: Believed,
    place: StoredMirror,
    *,
    whole: bool,
) -> Done:
    store, mirrored = place.store, table.mirrored
    stood = _stood(changes, events, table)
    late = _late(stood, table)
    asked = late if table.may_move else changes
    images = _images(keys_of(asked, events, (), mirrored), table, place)
    if images and not table.may_move:
        return Done(error="the key of a row of its batch has changed before")
    keys = keys_of(changes, events, images, mirrored)
    stored = look_up(store, place.files, keys, oldest(stood), store.threads)
    ends = _ends(late, events, images, stored, table, place)
    result = fold(Bucket(changes, stored, ends, events, images), mirrored)
    now = time.time_ns() // 1_000_000
    change = change_of(store, place.files, stored, result, mirrored.key, now, whole=whole)
    records = [outcome for outcome, event in zip(result.of_odd, events, strict=True) if not event.is_half]
    try:
        gone = _gone(ends, images, events, table)
        outcomes = Outcomes(result.outcomes, records)
        counted = _counted(stood, outcomes, stored, gone, table, place, change.inserted)
        again = _known(result.tombstones, gone, table)
        moved = as_facts(result.images, mirrored.kinds, mirrored.key) if result.images else None
    except BaseException:
        discard(store, [change])
        raise
    moves = sum(each.is_new for each in result.images)
    return Done(change, result.tombstones, again, moved, moves, counted, now)


def _stood(changes: pa.RecordBatch, events: Sequence[Event], table: Believed) -> pa.RecordBatch:
    """Return the keys and the metadata of all changes, plain ones first. Halves of changes are none."""
    key, names = table.mirrored.key, [name for name, _ in METADATA]
    plain = changes.select([*key, *names])
    records = [each for each in events if not each.is_half]
    if not records:
        return plain
    columns = [to_arrow([each.key[i] for each in records], table.kinds[name]) for i, name in enumerate(key)]
    given = {
        "__seq": [each.seq for each in records],
        "__op": [str(each.op) for each in records],
        "__event_time": [each.at for each in records],
        "__topic": [each.origin.topic for each in records],
        "__partition": [each.origin.partition for each in records],
        "__offset": [each.origin.offset for each in records],
        "__log": [None] * len(records),
    }
    columns += [pa.array(given[name], kind) for name, kind in METADATA]
    return pa.concat_batches([plain, pa.RecordBatch.from_arrays(columns, schema=plain.schema)])


def _late(changes: pa.RecordBatch, table: Believed) -> pa.RecordBatch:
    """Return the changes that are not newer than all tombstones and changes of keys before the batch.

    A row of a snapshot never is: it may have been read before a delete whose position is lower.
    """
    if table.newest is None:
        return changes.slice(0, 0)
    places = Sequences.of(changes)
    late = (places.values <= np.bytes_(table.newest)) | places.is_snapshot
    return changes.take(pa.array(np.flatnonzero(late)))


def _images(keys: Mapping[str, pa.Array], table: Believed, place: StoredMirror) -> Sequence[Image]:
    """Return the stored images of rows that came to one of the keys, or left it.

    What a row had under another key means nothing to a change that has a value for each column and came
    after the change of the key: ``keys`` are those of others.
    """
    if not table.moved:
        return ()
    mirrored = table.mirrored
    of = pa.RecordBatch.from_pydict(dict(keys))
    tracked = mirrored.table.tracked
    return stored_images(place.store_of_ends, place.ends, of, mirrored.kinds, mirrored.key, tracked)


def _ends(
    late: pa.RecordBatch,
    events: Sequence[Event],
    images: Sequence[Image],
    stored: StoredRows,
    table: Believed,
    place: StoredMirror,
) -> pa.RecordBatch:
    """Return the newest tombstones of the keys of late changes, and of rows whose key changes or has changed.

    What such a row had under another key may be older than a tombstone, whatever brings it. A tombstone also
    says since when a value has been null that a change of a row lacks which is not there.
    """
    mirrored = table.mirrored
    if table.newest is None:
        return pa.RecordBatch.from_pylist([], tombstones_schema(mirrored.kinds, mirrored.key))
    moving = [each for each in events if _moves(each)]
    asked = [*moving, *_of_no_row(events, stored, table)]
    keys = pa.RecordBatch.from_pydict(keys_of(late, asked, images, mirrored))
    return stored_ends(place.store_of_ends, place.ends, keys, mirrored.kinds, mirrored.key)


def _moves(event: Event) -> bool:
    return event.old_key is not None or event.new_key is not None


def _of_no_row(events: Sequence[Event], stored: StoredRows, table: Believed) -> list[Event]:
    """Return the events that lack values of a row that is not stored, and do not change its key."""
    lacking = [each for each in events if each.gaps and not _moves(each)]
    if not lacking:
        return []
    keys = keys_of(none(table.kinds), lacking, (), table.mirrored)
    _, numbers = _beside(pa.RecordBatch.from_pydict(keys), stored, table)
    return [each for each, number in zip(lacking, numbers, strict=True) if number < 0]


def _gone(
    ends: pa.RecordBatch, images: Sequence[Image], events: Sequence[Event], table: Believed
) -> pa.RecordBatch:
    """Return tombstones, together with changes of keys that say as much (`rules.batch`)."""
    kinds, key = table.mirrored.kinds, table.mirrored.key
    if not images or table.mirrored.soft:
        return ends
    return in_columns.of_tombstones(
        gone_of(in_columns.as_tombstones(ends, kinds, key), images, events), kinds, key
    )


def _known(tombstones: pa.RecordBatch, gone: pa.RecordBatch, table: Believed) -> int:
    """Return how many tombstones are of keys that were gone already, at the same place or a later one."""
    if not tombstones.num_rows or not gone.num_rows:
        return 0
    _, theirs = _beside(tombstones, gone, table)
    at = np.flatnonzero(theirs >= 0)
    own, known = Sequences.of_stored(tombstones).take(at), Sequences.of_stored(gone).take(theirs[at])
    return int((own.values <= known.values).sum())


class Outcomes(NamedTuple):
    """The outcomes of the changes of a bucket: numbers of plain ones (`OUTCOMES`), then those of others."""

    plain: npt.NDArray[np.int8]
    others: Sequence[Outcome]

    @property
    def numbers(self) -> Mapping[Outcome, int]:
        """How many changes have each outcome."""
        counts = np.bincount(self.plain, minlength=len(OUTCOMES)).tolist()
        return Counter(dict(zip(OUTCOMES, counts, strict=True))) + Counter(self.others)

    @property
    def stale(self) -> Indices:
        """The places of those that are stale."""
        others = [len(self.plain) + i for i, each in enumerate(self.others) if each is Outcome.STALE]
        return np.concatenate([np.flatnonzero(self.plain == _STALE), np.array(others, np.int64)])


def _counted(
    changes: pa.RecordBatch,
    outcomes: Outcomes,
    stored: StoredRows,
    ends: pa.RecordBatch,
    table: Believed,
    place: StoredMirror,
    inserted: int,
) -> Counted:
    stale = outcomes.stale
    late = _out_of_order(changes, stored, ends, stale, table, place.tolerance) if len(stale) else 0
    numbers, ops = outcomes.numbers, changes.column("__op")
    if table.filter is not None:  # a row may have been outside before
        return Counted(numbers, out_of_order=late)
    if not inserted or not pc.any(pc.equal(ops, str(Op.UPDATE))).as_py():
        return Counted(numbers, out_of_order=late)
    keys, deletes, unborn = _of_keys(changes, ops, ends, table)
    return Counted(numbers, keys, deletes, unborn, late)


def _of_keys(
    changes: pa.RecordBatch, ops: pa.Array, ends: pa.RecordBatch, table: Believed
) -> tuple[int, int, int]:
    """Return how many keys may change a row, how many get none, and how many are updated, not created."""
    key = table.mirrored.key
    (codes,), _ = key_codes([[changes.column(name) for name in key]])
    order = Sequences.of(changes).order(codes)
    last = ends_of_runs(codes[order])
    first = np.ones(len(order), np.bool_)
    first[1:] = last[:-1]
    is_delete = mask_of(pc.equal(ops, str(Op.DELETE)))
    is_update = mask_of(pc.equal(ops, str(Op.UPDATE)))
    creates = mask_of(pc.is_in(ops, pa.array([str(Op.CREATE), str(Op.READ)])))
    newest, oldest = order[last], order[first]
    forbidden = _forbidden(changes, newest, ends, table)
    deletes = is_delete[newest]
    unborn = is_update[newest] & ~creates[oldest] & ~forbidden
    gone = 0 if table.mirrored.soft else int(deletes.sum())
    return int((~forbidden | deletes).sum()), gone, int(unborn.sum())


def _forbidden(changes: pa.RecordBatch, newest: Indices, ends: pa.RecordBatch, table: Believed) -> Any:
    """Return which changes, other than deletes, a tombstone forbids (`rules.tombstones`)."""
    found = np.zeros(len(newest), np.bool_)
    if not ends.num_rows:
        return found
    mine, theirs = _beside(changes.take(pa.array(newest)), ends, table)
    at = np.flatnonzero(theirs >= 0)
    own, gone = Sequences.of(changes).take(newest[at]), Sequences.of_stored(ends).take(theirs[at])
    renews = (own.values == gone.values) & follow(own, gone)
    found[at] = ((own.values <= gone.values) & ~renews) | (own.is_snapshot & follow(gone, own))
    return found & (mine >= 0)


def _beside(changes: pa.RecordBatch, others: Any, table: Believed) -> tuple[Indices, Indices]:
    """Return the code of the key of each change, and the number of the other thing that has it, or -1."""
    key = table.mirrored.key
    parts = [[each.column(name) for name in key] for each in (changes, others)]
    (mine, theirs), size = key_codes(parts)
    numbers = np.full(size, -1, np.int64)
    numbers[theirs] = np.arange(len(theirs))
    return mine, numbers[mine]


def _out_of_order(
    changes: pa.RecordBatch,
    stored: StoredRows,
    ends: pa.RecordBatch,
    stale: Indices,
    table: Believed,
    tolerance: int,
) -> int:
    """Return how many changes were made more than the tolerance before what stands in their place."""
    late = changes.take(pa.array(stale))
    made = late.column("__event_time").view(pa.int64()).fill_null(_NEVER).to_numpy()
    latest = time.time_ns() // 1000 + AHEAD.total_seconds() * 1_000_000
    found = np.zeros(len(stale), np.bool_)
    for others in (stored, ends):
        _, numbers = _beside(late, others, table)
        at = np.flatnonzero(numbers >= 0)
        if len(at):
            times = others.column("__event_time").take(pa.array(numbers[at])).view(pa.int64())
            stood = times.fill_null(-1).to_numpy()
            found[at] |= (stood >= 0) & (stood <= latest) & (stood - made[at] > tolerance)
    return int(found.sum())
