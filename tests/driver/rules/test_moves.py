"""What a change of a key finds of the row under its former key, and what of it is stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.moves import Image, Move, images, improved, moves
from lakemirror.driver.rules.positions import MISSING, NO_ORIGIN, Origin, own
from lakemirror.driver.rules.values import Event, Said
from tests.driver.rules.test_merge import TABLE, at, delivered, event

MOVE = Move((1,), at(70), (2,))
OPENED = Move((1,), at(70), (2,), unanchored=True, origin=Origin("t", 0, 5))
"""Of a transaction that was open during the snapshot: its LSN alone places it."""


def in_epoch(number: int, seq: bytes) -> bytes:
    return number.to_bytes(2, "big") + seq[2:]


@pytest.mark.parametrize(
    ("move", "value", "origin", "follows"),
    [
        (MOVE, own(at(69)), NO_ORIGIN, True),
        (MOVE, at(70), NO_ORIGIN, False),  # the gap of a create at its own position
        (MOVE, own(at(60, major=90)), NO_ORIGIN, False),
        (MOVE, own(at(90, 0)), Origin("t", 0, 4), False),  # a row of a later snapshot
        (OPENED, MISSING, NO_ORIGIN, True),
        (OPENED, own(at(69)), NO_ORIGIN, True),
        (OPENED, own(at(70)), NO_ORIGIN, False),
        (OPENED, own(at(60, major=90)), NO_ORIGIN, True),  # open, too, and placed after the row
        (OPENED, own(at(80, major=90)), NO_ORIGIN, False),
        (OPENED, own(at(90, 0)), Origin("t", 0, 4), True),
        (OPENED, own(at(90, 0)), Origin("t", 0, 6), False),  # read after it
        (OPENED, own(in_epoch(1, at(60))), NO_ORIGIN, False),
        (OPENED._replace(seq=in_epoch(1, at(70))), own(at(99)), NO_ORIGIN, True),
    ],
)
def test_a_move_comes_after_a_value(move: Move, value: bytes, origin: Origin, follows: bool) -> None:
    assert move.follows(value, origin) == follows


def image(lsn: int, value: str = "x", *, new: bool = False) -> Image:
    return Image(MOVE, {"note": Said(value, own(at(lsn)))}, new)


def test_an_image_is_stored_if_it_is_new_or_has_a_newer_value_than_all_that_are() -> None:
    assert improved([image(5, new=True)], []) == [image(5, new=True)]
    assert improved([image(5)], [image(5)]) == []
    assert improved([image(6)], [image(5)]) == [image(6)]
    assert improved([image(6)], [image(5), image(6)]) == []
    assert improved([image(6)], [image(6), image(5)]) == []
    two = Image(MOVE, {**image(6).said, "v": Said(1, own(at(3)))}, is_new=False)
    assert improved([two], [Image(MOVE, {**image(5).said, "v": Said(1, own(at(3)))})]) == [two]
    other = Image(MOVE._replace(key=(3,)), image(9).said, is_new=False)
    assert improved([image(6)], [image(5), other]) == [image(6)]


def test_a_stored_image_has_nothing_of_a_column_that_every_event_carries_now() -> None:
    said = {"former": Said("old", own(at(5))), "note": Said("x", own(at(5)))}
    found = images({}, [Image(MOVE, said, is_new=False)], {}, {}, TABLE)
    assert found[(1,), at(70)].said == {"v": Said(), "note": Said("x", own(at(5)))}


def test_a_move_brings_what_an_open_transaction_set_after_the_row_was_read() -> None:
    read = event("r", 90, 1, v=0, note="read")
    change = event("u", 65, 2, v=6, note="set", unanchored=True)
    gone = Event((1,), "d", at(97), 9700, Origin("t", 0, 3), new_key=(2,), digest=1)
    row = {"id": 2, "v": 7}
    there = Event(
        *((2,), "c", at(97), 9700, Origin("t", 0, 4), row, frozenset({"note"})), old_key=(1,), digest=2
    )
    for batches in (
        [[read], [change, gone, there]],
        [[read, change], [gone, there]],
        [[read, change, gone, there]],
    ):
        assert delivered(batches) == {(2,): {**row, "note": "set"}}


def halves(old: int, new: int, lsn: int, v: int) -> list[Event]:
    """A change of a key, without the note."""
    row = {"id": new, "v": v}
    origin = Origin("t", 0, 2 * lsn)
    return [
        Event((old,), "d", at(lsn), lsn, origin, new_key=(new,), digest=1),
        Event((new,), "c", at(lsn), lsn, origin, row, frozenset({"note"}), old_key=(old,), digest=2),
    ]


def test_a_move_brings_the_newest_of_several_open_changes() -> None:
    read, first = event("r", 90, 1, v=0, note="read"), event("u", 70, 2, v=6, note="first", unanchored=True)
    more = event("u", 80, 3, v=7, note="more", unanchored=True)
    assert delivered([[read], [first], [more, *halves(1, 2, 97, 8)]])[2,]["note"] == "more"


def test_a_move_brings_nothing_older_than_what_its_row_got_under_its_former_key() -> None:
    between = Event((2,), "u", at(6), 6, Origin("t", 0, 13), {"id": 2, "v": 6, "note": "newer"}, digest=3)
    batch = [event("c", 1, v=1, note="old"), *halves(1, 2, 5, 5), between, *halves(2, 3, 7, 7)]
    assert delivered([batch]) == {(3,): {"id": 3, "v": 7, "note": "newer"}}


def test_a_move_brings_nothing_of_a_row_that_took_the_key_after_it() -> None:
    other = Event((4,), "c", at(2), 2, Origin("t", 0, 3), {"id": 4, "v": 2, "note": "other"}, digest=3)
    batch = [
        event("c", 1, v=1, note="mine"),
        other,
        *halves(1, 2, 5, 5),
        *halves(2, 3, 7, 7),
        *halves(4, 2, 9, 9),
    ]
    expected = {(3,): {"id": 3, "v": 7, "note": "mine"}, (2,): {"id": 2, "v": 9, "note": "other"}}
    assert delivered([batch]) == expected


def test_rows_that_exchange_their_keys_at_one_position_pass_on_what_the_last_of_them_has() -> None:
    """A key then has a delete and a create at one position: the later one of the partition counts."""
    there = event("c", 1, v=1, note="mine")
    gone = event("d", 5, 50, new_key=(4,))
    came = event("c", 5, 51, v=5, note="other", old_key=(4,))
    leaves = event("d", 7, 70, new_key=(3,))
    taken = Event((3,), "c", at(7), 7, Origin("t", 0, 71), {"id": 3, "v": 7}, frozenset({"note"}), digest=3)
    taken = taken._replace(old_key=(1,))
    for batch in permutations([there, gone, came, leaves, taken]):
        assert delivered([batch])[3,] == {"id": 3, "v": 7, "note": "other"}


def test_of_the_changes_at_one_position_the_last_counts_in_whatever_order_they_come() -> None:
    """The move from before them left a stored image, and nothing tells when that arrived."""
    stored = Image(MOVE, {"note": Said(None, own(at(5)))}, is_new=False)
    came, gone = event("c", 5, 50, v=5, note="mine"), event("d", 5, 51)
    for events in permutations([came, gone]):
        found = images({(1,): events}, [stored], {}, {}, TABLE)
        assert found[(1,), at(70)].said["note"] == Said(None, own(at(5)))


def test_of_the_stored_images_of_a_move_the_newest_value_counts() -> None:
    stored = [
        Image(MOVE, image(6, "new").said, is_new=False),
        Image(MOVE, image(5, "old").said, is_new=False),
    ]
    for each in (stored, stored[::-1]):
        assert images({}, each, {}, {}, TABLE)[(1,), at(70)].said["note"] == Said("new", own(at(6)))


def test_only_changes_of_a_key_are_moves() -> None:
    gone, there = halves(1, 2, 5, 5)
    assert moves([event("c", 1, v=1), event("u", 2, v=2), event("d", 3)]) == []
    created, deleted = Move((1,), at(5), (2,)), Move((1,), at(5), (2,), origin=gone.origin)
    assert moves([gone, there]) == [created, deleted]


@pytest.mark.parametrize("soft", [False, True], ids=["hard deletes", "soft deletes"])
def test_a_key_that_is_left_and_taken_again_in_an_open_transaction_passes_on_what_it_got(soft: bool) -> None:
    """The first row goes to 3, the second one takes its key, and then goes to 4."""

    def opened(key: int, op: str, lsn: int, offset: int, **more: Any) -> Event:
        row = {"id": key, "v": lsn} if op == "c" else {}
        gaps = frozenset({"note"} if op == "c" else ())
        origin = Origin("t", key, offset)
        return Event((key,), op, at(lsn), lsn, origin, row, gaps, unanchored=True, digest=(key, lsn), **more)

    reads = [
        Event((key,), "r", at(90, 0), 90, Origin("t", key, 1), {"id": key, "v": 0, "note": note}, digest=key)
        for key, note in ((1, None), (2, "of the second"))
    ]
    first = [opened(1, "d", 60, 2, new_key=(3,)), opened(3, "c", 60, 1, old_key=(1,))]
    second = [opened(2, "d", 70, 2, new_key=(1,)), opened(1, "c", 70, 3, old_key=(2,))]
    gone, there = halves(1, 4, 97, 9)
    batches = [[reads[1]], [reads[0]], first, second[:1], [second[1], gone], [there]]
    for each in (batches, [[one for batch in batches for one in batch]]):
        mirror = Mirror()
        for batch in each:
            mirror = apply(mirror, batch, replace(TABLE, soft=soft)).mirror
        rows = {key[0]: row.values["note"] for key, row in mirror.rows.items() if row.is_live}
        assert rows == {3: None, 4: "of the second"}


@pytest.mark.parametrize("half", [0, 1], ids=["delete", "create"])
def test_a_row_that_is_known_to_have_left_its_key_is_not_shown_there(half: int) -> None:
    """Only one half of the change has come when its former state comes late."""
    former, move = event("c", 1, v=1, note="big"), halves(1, 2, 5, 5)
    shown = {(2,): {"id": 2, "v": 5, "note": "big"}} if half else {}
    assert delivered([[move[half]], [former]]) == shown


def opened(key: int, op: str, lsn: int, offset: int, note: str | None = None, **more: Any) -> Event:
    """A change of a transaction that was open during the snapshot; without a ``note`` it leaves it out."""
    row = {} if op == "d" else {"id": key, "v": lsn} if note is None else {"id": key, "v": lsn, "note": note}
    gaps = frozenset() if op == "d" or note is not None else frozenset({"note"})
    origin = Origin("t", key, offset)
    return Event((key,), op, at(lsn), lsn, origin, row, gaps, unanchored=True, digest=(key, lsn), **more)


def was_read(key: int, offset: int, note: str) -> Event:
    row = {"id": key, "v": 0, "note": note}
    return Event((key,), "r", at(90, 0), 90, Origin("t", key, offset), row, digest=key)


def there_and_back() -> list[list[Event]]:
    """An open transaction makes the row 1 to 2 and to 1 again, and sets its value after that."""
    moved = [
        opened(1, "d", 50, 2, new_key=(2,)),
        opened(2, "c", 50, 3, old_key=(1,)),
        opened(2, "d", 60, 4, new_key=(1,)),
        opened(1, "c", 60, 5, old_key=(2,)),
    ]
    later = Event(
        *((1,), "u", at(97), 97, Origin("t", 0, 7), {"id": 1, "v": 97}, frozenset({"note"})), digest=97
    )
    return [[was_read(1, 1, "read")], moved, [opened(1, "u", 70, 6, "set"), later]]


def taken_after_a_delete() -> list[list[Event]]:
    """An open transaction deletes the row 1, makes the row 2 to 1 and changes it. The key 2 lags."""
    return [
        [was_read(1, 1, "of the first"), opened(1, "d", 50, 2)],
        [opened(1, "c", 60, 3, old_key=(2,))],
        [was_read(2, 1, "of the second"), opened(2, "d", 60, 2, new_key=(1,)), opened(1, "u", 70, 4)],
    ]


@pytest.mark.parametrize("soft", [False, True], ids=["hard deletes", "soft deletes"])
@pytest.mark.parametrize(
    ("sent", "note"),
    [(there_and_back, "set"), (taken_after_a_delete, "of the second")],
    ids=["there and back", "after a delete"],
)
def test_what_an_open_transaction_does_to_a_moved_row_has_its_place_beside_the_stored_row(
    sent: Callable[[], list[list[Event]]], note: str, soft: bool
) -> None:
    mirror = Mirror()
    for batch in sent():
        mirror = apply(mirror, batch, replace(TABLE, soft=soft)).mirror
    assert mirror.rows[1,].values["note"] == note


def test_a_value_of_a_former_key_does_not_have_the_text_of_another_value() -> None:
    """The key had a value that its column cannot hold, which comes late."""
    gone, there = halves(1, 2, 50, 50)
    former = Event(
        *((2,), "c", at(10), 10, Origin("t", 0, 10), {"id": 2, "v": 1, "note": None}),
        texts={"note": "infinity"},
    )
    later = Event(*((2,), "u", at(60), 60, Origin("t", 0, 60), {"id": 2, "v": 6}, frozenset({"note"})))
    mirror = Mirror()
    for batch in ([there], [event("c", 1, v=1, note="mine"), gone, former, later]):
        mirror = apply(mirror, batch, TABLE).mirror
    assert mirror.rows[2,].values["note"] == "mine"
    assert mirror.rows[2,].texts == {}
