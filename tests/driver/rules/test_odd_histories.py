"""Odd histories of a few rows, written out by hand, delivered in every order and cut in every way.

Each shows what the source did, in its order, and the rows that it ends with.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise, permutations
from typing import Any, NamedTuple

import pytest

from lakemirror.driver.rules.batch import Mirror, VersionedMirror, apply, apply_versions
from lakemirror.driver.rules.conditions import filtered
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.positions import Origin
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import NOTHING, Event, Key, Row
from lakemirror.driver.rules.versions import Tracking

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

COLUMNS = ("id", "v", "note")
Change = Event | Truncated
Shown = dict[str, tuple[Any, Any]]
"""The ``v`` and the ``note`` of each row that is there, by key."""


def seq_at(lsn: int, *, read: bool = False, epoch: int = 0) -> bytes:
    tie = 0 if read else 1
    return (
        epoch.to_bytes(2, "big")
        + lsn.to_bytes(10, "big")
        + (lsn * tie).to_bytes(10, "big")
        + bytes([0, 0, 0, tie])
    )


def change(op: str, key: str, lsn: int, v: Any = None, *, epoch: int = 0, **given: Any) -> Event:
    """A change of one row; its note is a gap (TOAST) where it is not given. Its offset is its LSN."""
    row = {} if op == "d" else {"id": key, "v": v}
    gaps = frozenset() if op == "d" or "note" in given else frozenset({"note"})
    if "note" in given:
        row["note"] = given.pop("note")
    origin = Origin("t", 0, given.pop("offset", lsn))
    seq = seq_at(lsn, read=op == "r", epoch=epoch)
    return Event((key,), op, seq, lsn, origin, row, gaps, digest=(op, key, str(row)), **given)


def created(key: str, lsn: int, v: Any, note: Any, **given: Any) -> Event:
    return change("c", key, lsn, v, note=note, **given)


def updated(key: str, lsn: int, v: Any, **given: Any) -> Event:
    return change("u", key, lsn, v, **given)


def deleted(key: str, lsn: int, **given: Any) -> Event:
    return change("d", key, lsn, **given)


def was_read(key: str, lsn: int, v: Any, note: Any, offset: int) -> Event:
    return change("r", key, lsn, v, note=note, offset=offset)


def moved(old: str, new: str, lsn: int, v: Any, **given: Any) -> tuple[Event, Event]:
    """A change of a key: a delete and a create at one position, without the large value."""
    return deleted(old, lsn, new_key=(new,)), change("c", new, lsn, v, old_key=(old,), **given)


def truncated(lsn: int, *, epoch: int = 0, offset: int | None = None) -> Truncated:
    origin = Origin("t", 0, lsn if offset is None else offset)
    return Truncated(seq_at(lsn, epoch=epoch), origin=origin, at=origin.offset)


def reread(key: str, commit: int, v: Any, note: Any, offset: int) -> Event:
    """A row that an incremental snapshot read after a commit that its record knows: it has no LSN."""
    seq = seq_at(commit)[:12] + bytes(13) + b"\1"
    return change("r", key, commit, v, note=note, offset=offset)._replace(seq=seq)


def again(event: Event, partition: int, offset: int) -> Event:
    """The same change, sent again to another partition."""
    return event._replace(origin=Origin("t", partition, offset))


def left_out(event: Event) -> Event:
    """The event as a filter leaves it, whose condition its row does not meet."""
    found = filtered(event, meets=False, keyed=True)
    assert found is not None
    return found


class Odd(NamedTuple):
    """What happened in the source, in its order, the rows it ends with, and when others were deleted.

    Where a key that a row left is used again, the events of each key have to arrive in their order, as they
    do in their partition (``keyed``): a mirror of current rows does not keep what the row had before.
    """

    name: str
    changes: Sequence[Change]
    rows: Shown
    gone: Mapping[str, int] = NOTHING
    keyed: bool = False


HISTORIES = [
    Odd(
        "A row goes to two other keys and back to its own.",
        [
            created("a", 1, 1, "big"),
            *moved("a", "b", 10, 2),
            *moved("b", "c", 11, 3),
            *moved("c", "a", 12, 4),
        ],
        {"a": (4, "big")},
        {"b": 11, "c": 12},
        keyed=True,
    ),
    Odd(
        "Two rows swap their keys through a third.",
        [
            created("a", 1, 1, "of a"),
            created("b", 2, 2, "of b"),
            *moved("a", "x", 10, 3),
            *moved("b", "a", 11, 4),
            *moved("x", "b", 12, 5),
        ],
        {"a": (4, "of b"), "b": (5, "of a")},
        {"x": 12},
        keyed=True,
    ),
    Odd(
        "A table is truncated after a change of a key, and the key comes back.",
        [created("a", 1, 1, "big"), *moved("a", "b", 5, 2), truncated(7), created("a", 9, 3, "new")],
        {"a": (3, "new")},
        {"b": 7},
    ),
    Odd(
        "A row that was created after a truncate gets another key.",
        [created("a", 1, 1, "old"), truncated(3), created("a", 4, 2, "new"), *moved("a", "b", 5, 3)],
        {"b": (3, "new")},
        {"a": 5},
    ),
    Odd(
        "A row gets another key, a new large value, and another key again.",
        [
            created("a", 1, 1, "big"),
            *moved("a", "b", 5, 2),
            updated("b", 6, 3, note="newer"),
            *moved("b", "c", 7, 4),
        ],
        {"c": (4, "newer")},
        {"a": 5, "b": 7},
    ),
    Odd(
        "Two updates leave the large value out.",
        [created("a", 1, 1, "big"), updated("a", 2, 2), updated("a", 3, 3)],
        {"a": (3, "big")},
    ),
    Odd(
        "The large value is set, and left out, and set to null.",
        [created("a", 1, 1, "x"), updated("a", 2, 2), updated("a", 3, 3, note=None), updated("a", 4, 4)],
        {"a": (4, None)},
    ),
    Odd(
        "A row is deleted and created again in one transaction, then loses its large value.",
        [created("a", 1, 1, "old"), deleted("a", 10), created("a", 11, 2, None), updated("a", 12, 3)],
        {"a": (3, None)},
    ),
    Odd(
        "A row is created, deleted, and created again twice.",
        [
            created("a", 1, 1, "one"),
            deleted("a", 2),
            created("a", 3, 3, "three"),
            deleted("a", 4),
            created("a", 5, 5, "five"),
        ],
        {"a": (5, "five")},
    ),
    Odd(
        "A row that a snapshot read is deleted.",
        [was_read("a", 50, 1, "read", 1), updated("a", 60, 2, offset=2), deleted("a", 70, offset=3)],
        {},
        {"a": 70},
    ),
    Odd(
        "An incremental snapshot reads a row at the position of its last change, which it shows.",
        [created("a", 50, 1, "big"), updated("a", 60, 2), was_read("a", 60, 2, "big", 100)],
        {"a": (2, "big")},
    ),
    Odd(
        "An incremental snapshot reads a row between its changes.",
        [
            updated("a", 50, 1),
            was_read("a", 60, 1, "read", 61),
            updated("a", 70, 2),
            deleted("b", 55),
        ],
        {"a": (2, "read")},
        {"b": 55},
    ),
    Odd(
        "A database was restored: positions begin again, and the manifest says so.",
        [
            created("a", 500, 1, "before"),
            updated("a", 510, 2),
            updated("a", 5, 3, epoch=1, offset=600),
            updated("a", 6, 4, epoch=1, offset=601),
        ],
        {"a": (4, "before")},
    ),
    Odd(
        "A row is deleted after its database was restored.",
        [
            created("a", 500, 1, "before"),
            deleted("a", 5, epoch=1, offset=600),
            created("a", 7, 2, None, epoch=1, offset=601),
        ],
        {"a": (2, None)},
    ),
    Odd(
        "A row stops meeting a filter, and meets it again.",
        [
            created("a", 1, 1, "in"),
            left_out(updated("a", 2, -1, note="out")),
            left_out(updated("a", 3, -2, note="out")),
            updated("a", 4, 4, note="back"),
        ],
        {"a": (4, "back")},
    ),
    Odd(
        "A row stops meeting a filter, and is then deleted.",
        [created("a", 1, 1, "in"), left_out(updated("a", 2, -1, note="out")), deleted("a", 3)],
        {},
        {"a": 2},
    ),
    Odd(
        "A row never meets a filter under its first key, and does under its second.",
        [left_out(created("a", 1, -1, "big")), *moved("a", "b", 5, 2, note="big")],
        {"b": (2, "big")},
        {"a": 1},
    ),
    Odd(
        "Two updates of one row have one position (statement of a binlog), and arrived one after the other.",
        [
            created("a", 1, 1, "one"),
            updated("a", 5, 2, note="first", offset=5),
            updated("a", 5, 3, note="second", offset=6),
        ],
        {"a": (3, "second")},
    ),
    Odd(
        "A row is deleted and comes back, and its large value does not change any more.",
        [
            created("a", 1, 1, "old"),
            deleted("a", 2),
            created("a", 3, 3, "new"),
            updated("a", 4, 4),
            updated("a", 5, 5),
        ],
        {"a": (5, "new")},
    ),
    Odd(
        "A row is deleted after an update that left its large value out.",
        [created("a", 1, 1, "big"), updated("a", 2, 2), deleted("a", 3), deleted("b", 4)],
        {},
        {"a": 3, "b": 4},
    ),
    Odd(
        "A table is truncated twice; one row came between.",
        [
            created("a", 1, 1, "old"),
            truncated(3),
            created("b", 4, 2, "mid"),
            truncated(5),
            created("c", 6, 3, "x"),
        ],
        {"c": (3, "x")},
        {"a": 3, "b": 5},
    ),
    Odd(
        "A table is truncated twice, and the create of a row that is back is still to come.",
        [
            created("a", 1, 1, "old"),
            truncated(3),
            created("a", 4, 2, "mid"),
            truncated(5),
            updated("a", 7, 3),
        ],
        {"a": (3, None)},
    ),
    Odd(
        "A row is created anew, loses its large value, and gets another key.",
        [
            created("a", 1, 1, "old"),
            deleted("a", 2),
            created("a", 3, 3, "new"),
            updated("a", 4, 4),
            *moved("a", "b", 5, 5),
            updated("b", 6, 6),
        ],
        {"b": (6, "new")},
        {"a": 5},
    ),
    Odd(
        "A row is deleted, and gets another key before the create of its next life has come.",
        [created("a", 1, 1, "old"), deleted("a", 2), *moved("a", "b", 5, 5)],
        {"b": (5, None)},
        {"a": 2},
    ),
    Odd(
        "A table is truncated, and a row gets another key before its create has come.",
        [created("a", 1, 1, "old"), truncated(3), *moved("a", "b", 5, 5)],
        {"b": (5, None)},
        {"a": 3},
    ),
    Odd(
        "A table is truncated between rows that a snapshot reads.",
        [
            was_read("a", 50, 1, "read", 1),
            truncated(60),
            was_read("b", 70, 2, "read", 71),
            updated("b", 80, 3),
        ],
        {"b": (3, "read")},
        {"a": 60},
    ),
    Odd(
        "An incremental snapshot reads a row of which only an update was known, and it is deleted.",
        [updated("a", 50, 1), reread("a", 55, 1, "big", 56), updated("b", 60, 2), deleted("a", 70)],
        {"b": (2, None)},
        {"a": 70},
    ),
    Odd(
        "An incremental snapshot reads a row, and the change after it leaves the large value out.",
        [created("a", 50, 1, "old"), reread("a", 55, 1, "big", 56), updated("a", 55, 2, offset=57)],
        {"a": (2, "big")},
    ),
    Odd(
        "Changes are sent again to another partition, after the row is gone and back.",
        [
            created("a", 1, 1, "one"),
            deleted("a", 2),
            again(created("a", 1, 1, "one"), 1, 90),
            created("a", 3, 3, "three"),
            again(deleted("a", 2), 1, 91),
        ],
        {"a": (3, "three")},
    ),
    Odd(
        "A database was restored, and its table truncated.",
        [
            created("a", 500, 1, "before"),
            truncated(3, epoch=1, offset=600),
            updated("a", 510, 2),
            created("b", 5, 3, "after", epoch=1, offset=601),
        ],
        {"b": (3, "after")},
        {"a": 600},
    ),
    Odd(
        "A row is deleted, comes back, and is deleted again.",
        [created("a", 1, 1, "one"), deleted("a", 2), created("a", 3, 3, "three"), deleted("a", 4)],
        {},
        {"a": 4},
    ),
    Odd(
        "A row that a filter leaves out gets another key, under which it is left out, too.",
        [
            created("a", 1, 1, "in"),
            left_out(updated("a", 2, -1, note="out")),
            deleted("a", 3, new_key=("b",)),
            left_out(change("c", "b", 3, -2, note="out", old_key=("a",))),
            updated("b", 4, 4, note="back"),
        ],
        {"b": (4, "back")},
        {"a": 2},
    ),
    Odd(
        "A row is deleted before the table is truncated.",
        [created("a", 1, 1, "old"), deleted("a", 2), truncated(3)],
        {},
        {"a": 2},
    ),
]
NAMES = [each.name for each in HISTORIES]


ALL = 4
"""The greatest number of changes that are delivered in all ways; of more, some are drawn."""

DRAWN = 100


def deliveries(odd: Odd) -> Iterator[list[list[Change]]]:
    """Every order, cut in every way; many changes in orders and cuts that are drawn."""
    changes, count = odd.changes, len(odd.changes)
    if count <= ALL:
        places = [each for number in range(count) for each in combinations(range(1, count), number)]
        yield from (_cut(_in_order(order, odd), each) for order in permutations(changes) for each in places)
        return
    rnd = random.Random(count)
    yield [list(changes)]
    yield [[each] for each in _in_order(changes[::-1], odd)]
    for _ in range(DRAWN):
        order = _in_order(rnd.sample(changes, count), odd)
        yield _cut(order, sorted(rnd.sample(range(1, count), rnd.randrange(count))))


def _in_order(changes: Sequence[Change], odd: Odd) -> list[Change]:
    """The changes; if it has to be, those of each key in their order."""
    if not odd.keyed:
        return list(changes)
    mine = {key: iter([each for each in odd.changes if _key(each) == key]) for key in map(_key, changes)}
    return [next(mine[_key(each)]) for each in changes]


def _key(change: Change) -> Key | None:
    return change.key if isinstance(change, Event) else None


def _cut(changes: Sequence[Change], places: Sequence[int]) -> list[list[Change]]:
    ends = [0, *places, len(changes)]
    return [list(changes[start:end]) for start, end in pairwise(ends)]


def _parts(batch: Sequence[Change]) -> tuple[list[Event], list[Truncated]]:
    events = [each for each in batch if isinstance(each, Event)]
    return events, [each for each in batch if isinstance(each, Truncated)]


def current(batches: Sequence[Sequence[Change]], tracked: Sequence[str], *, soft: bool = False) -> Mirror:
    mirror = Mirror()
    for batch in batches:
        events, truncates = _parts(batch)
        applied = apply(mirror, events, Table(COLUMNS, tracked, soft, truncates=truncates))
        assert len(applied.events) + len(applied.truncates) == len(batch), "each record has one outcome"
        mirror = applied.mirror
    return mirror


def shown(mirror: Mirror) -> Shown:
    return {key[0]: (row.values["v"], row.values["note"]) for key, row in mirror.rows.items() if row.is_live}


@pytest.mark.parametrize("tracked", [("note",), ("v", "note")], ids=["some columns", "all columns"])
@pytest.mark.parametrize("odd", HISTORIES, ids=NAMES)
def test_current_rows_are_those_of_the_source(odd: Odd, tracked: Sequence[str]) -> None:
    for batches in deliveries(odd):
        assert shown(current(batches, tracked)) == odd.rows, batches


@pytest.mark.parametrize("odd", HISTORIES, ids=NAMES)
def test_rows_that_stay_after_soft_deletes_are_those_of_the_source(odd: Odd) -> None:
    for batches in deliveries(odd):
        assert shown(current(batches, ("note",), soft=True)) == odd.rows, batches


@pytest.mark.parametrize("odd", HISTORIES, ids=NAMES)
def test_rows_that_are_deleted_softly_show_when_they_went(odd: Odd) -> None:
    """In the source's order. What is late does not change what a deleted row shows."""
    count = len(odd.changes)
    for places in (each for number in range(count) for each in combinations(range(1, count), number)):
        mirror = current(_cut(odd.changes, places), ("note",), soft=True)
        gone = {key[0]: row.deleted_at for key, row in mirror.rows.items() if not row.is_live}
        assert gone == odd.gone, places


@pytest.mark.parametrize("odd", HISTORIES, ids=NAMES)
def test_the_current_versions_are_those_of_the_source(odd: Odd) -> None:
    for batches in deliveries(odd):
        mirror = VersionedMirror()
        for batch in batches:
            events, truncates = _parts(batch)
            tracking = Tracking(Table(COLUMNS, ("note",), truncates=truncates))
            mirror = apply_versions(mirror, events, tracking).mirror
        now = {
            key[0]: (each.row.values["v"], each.row.values["note"])
            for key, stored in mirror.keys.items()
            for each in stored.versions
            if each.is_current
        }
        assert now == odd.rows, batches


class OddVersions(NamedTuple):
    """What happened in the source, and since when until when a key had which ``v`` and ``note``."""

    name: str
    changes: Sequence[Change]
    spans: Mapping[str, Sequence[tuple[int, int | None, Any, Any]]]
    compared: Sequence[str] | None = None
    """The columns that begin a version when they change; None: every change begins one."""
    keyed: bool = False


VERSIONS = [
    OddVersions(
        "A row goes to two other keys and back to its own.",
        [
            created("a", 1, 1, "big"),
            *moved("a", "b", 10, 2),
            *moved("b", "c", 11, 3),
            *moved("c", "a", 12, 4),
        ],
        {
            "a": [(1, 10, 1, "big"), (12, None, 4, "big")],
            "b": [(10, 11, 2, "big")],
            "c": [(11, 12, 3, "big")],
        },
    ),
    OddVersions(
        "A row is deleted and created again in one transaction, at one time.",
        [
            created("a", 1, 1, "x"),
            deleted("a", 10),
            created("a", 11, 2, None)._replace(at=10),
            updated("a", 12, 3),
        ],
        {"a": [(1, 10, 1, "x"), (10, 12, 2, None), (12, None, 3, None)]},
    ),
    OddVersions(
        "A row that was created after a truncate gets another key.",
        [created("a", 1, 1, "old"), truncated(3), created("a", 4, 2, "new"), *moved("a", "b", 5, 3)],
        {"a": [(1, 3, 1, "old"), (4, 5, 2, "new")], "b": [(5, None, 3, "new")]},
    ),
    OddVersions(
        "A row stops meeting a filter, and meets it again.",
        [
            created("a", 1, 1, "in"),
            left_out(updated("a", 2, -1, note="out")),
            left_out(updated("a", 3, -2, note="out")),
            updated("a", 4, 4, note="back"),
        ],
        {"a": [(1, 2, 1, "in"), (4, None, 4, "back")]},
    ),
    OddVersions(
        "A row that a snapshot read is deleted.",
        [was_read("a", 50, 1, "read", 1), updated("a", 60, 2, offset=2), deleted("a", 70, offset=3)],
        {"a": [(50, 60, 1, "read"), (60, 70, 2, "read")]},
    ),
    OddVersions(
        "Two updates of one row have one position, and arrived one after the other.",
        [
            created("a", 1, 1, "one"),
            updated("a", 5, 2, note="first", offset=5),
            updated("a", 5, 3, note="second", offset=6),
        ],
        {"a": [(1, 5, 1, "one"), (5, None, 3, "second")]},
        keyed=True,
    ),
    OddVersions(
        "A table is truncated twice, and the create of a row that is back is still to come.",
        [
            created("a", 1, 1, "old"),
            truncated(3),
            created("a", 4, 2, "mid"),
            truncated(5),
            updated("a", 7, 3),
        ],
        {"a": [(1, 3, 1, "old"), (4, 5, 2, "mid"), (7, None, 3, None)]},
    ),
    OddVersions(
        "A row is deleted twice, and the update between has an earlier time.",
        [
            created("a", 1, 1, "x"),
            deleted("a", 2),
            created("a", 3, 3, "y")._replace(at=1),
            deleted("a", 4),
        ],
        {"a": [(1, 2, 1, "x"), (2, 4, 3, "y")]},
    ),
    OddVersions(
        "A row is deleted while only a column changed that begins no version.",
        [created("a", 1, 1, "x"), updated("a", 2, 1, note="y"), truncated(3), created("a", 4, 1, "y")],
        {"a": [(1, 3, 1, "y"), (4, None, 1, "y")]},
        compared=("v",),
    ),
    OddVersions(
        "Only a column changes that begins no version.",
        [created("a", 1, 1, "x"), updated("a", 2, 1, note="y"), updated("a", 3, 1), updated("a", 4, 2)],
        {"a": [(1, 4, 1, "y"), (4, None, 2, "y")]},
        compared=("v",),
    ),
    OddVersions(
        "A value changes, and changes back.",
        [created("a", 1, 1, "x"), updated("a", 2, 2), updated("a", 3, 1), updated("a", 4, 1, note="y")],
        {"a": [(1, 2, 1, "x"), (2, 3, 2, "x"), (3, None, 1, "y")]},
        compared=("v",),
    ),
    OddVersions(
        "A row is deleted, and comes back as it was.",
        [created("a", 1, 1, "x"), updated("a", 2, 1, note="y"), deleted("a", 3), created("a", 4, 1, "y")],
        {"a": [(1, 3, 1, "y"), (4, None, 1, "y")]},
        compared=("v",),
    ),
]


@pytest.mark.parametrize("odd", VERSIONS, ids=[each.name for each in VERSIONS])
def test_the_versions_are_those_of_the_source(odd: OddVersions) -> None:
    for batches in deliveries(Odd(odd.name, odd.changes, {}, keyed=odd.keyed)):
        found = versions(batches, odd.compared)
        assert found == {key: list(spans) for key, spans in odd.spans.items()}, batches


def versions(
    batches: Sequence[Sequence[Change]], compared: Sequence[str] | None
) -> dict[str, list[tuple[int, int | None, Any, Any]]]:
    mirror = VersionedMirror()
    for batch in batches:
        events, truncates = _parts(batch)
        tracking = Tracking(Table(COLUMNS, ("note",), truncates=truncates), compared)
        mirror = apply_versions(mirror, events, tracking).mirror
    return {
        key[0]: [(each.valid_from, each.valid_to, *_shown(each.row)) for each in stored.versions]
        for key, stored in mirror.keys.items()
        if stored.versions
    }


def _shown(row: Row) -> tuple[Any, Any]:
    return row.values["v"], row.values["note"]
