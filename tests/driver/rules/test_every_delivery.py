"""Short histories, delivered in every order and in every cut, end in the rows of their source.

A history is a text: each word is a change of a row or of its table, in the order of the source.

======  ================================================================================================
``c1``  the row with the key 1 is created
``u1``  it changes, and the record leaves its large value out (PostgreSQL's TOAST)
``U1``  it changes, and the record has the value
``d1``  it is deleted
``m1``  its key becomes 2, and the record leaves the value out (and ``m2``: 2 becomes 1)
``t``   the table is truncated
======  ================================================================================================

Not all of a history need be possible: a connector begins in the middle, and a filter leaves changes out.
`tests.support.reference` says what the rows are, and `tests.support.versions` what the versions are.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, combinations, pairwise, product
from typing import Any

import pytest

from lakemirror.driver.rules.batch import Mirror, VersionedMirror, apply, apply_versions
from lakemirror.driver.rules.orders import Truncated
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event
from lakemirror.driver.rules.versions import Tracking
from tests.driver.rules.late_values import Sent
from tests.driver.rules.test_versions import shown_versions
from tests.support.histories import COLUMNS, Shape
from tests.support.records import Record, Row
from tests.support.reference import Mirror as Reference
from tests.support.reference import SoftMirror
from tests.support.rules import read
from tests.support.versions import History as Model
from tests.support.versions import of_tracked

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

SENT = Sent(replace(Shape().table, name="t", schemas=False), 0)
NAMES = [column.name for column in COLUMNS]
Part = Event | Truncated
Way = Sequence[int]
"""The batch of each part of a history."""
Values = tuple[Any, Any]
"""``v``, which every record of a row has, and ``big``."""


def records(history: Iterable[str], step: int = 10) -> list[Record]:
    """The records of a history. The nth change has n in ``v`` and in a value that it sets.

    Their positions are ``step`` apart.
    """
    sent: list[Record] = []
    for v, word in enumerate(history, 1):
        lsn, offset, id = 10 + step * (v - 1), len(sent), int(word[1:] or 0)
        last = lsn - 1
        match word[0]:
            case "c":
                sent.append(SENT.create(offset, lsn, id, v, f"big {v}", last))
            case "u":
                sent.append(SENT.update(offset, lsn, id, v, last=last))
            case "U":
                sent.append(SENT.update(offset, lsn, id, v, f"big {v}", last))
            case "d":
                sent.append(SENT.delete(offset, lsn, id, last))
            case "t":
                sent.append(SENT.truncate(offset, lsn, last))
            case "m":
                sent.append(SENT.leave(offset, lsn, id, 3 - id, last))
                sent.append(SENT.arrive(offset + 1, lsn, 3 - id, id, v, last))
    return sent


def parts_of(sent: Sequence[Record]) -> list[Part]:
    found = [read([record]) for record in sent]
    return [part for each in found for part in (*each.events, *each.truncates)]


def ways(parts: int) -> Iterator[Way]:
    """Every way to deliver the parts: in every order, and in every cut. A batch has no order."""
    for batches in range(1, parts + 1):
        yield from (way for way in product(range(batches), repeat=parts) if len({*way}) == batches)


def delivered(parts: Sequence[Part], way: Way, *, soft: bool) -> Mirror:
    mirror = Mirror()
    for batch in range(max(way) + 1):
        mine = [part for part, number in zip(parts, way, strict=True) if number == batch]
        truncates = [part for part in mine if isinstance(part, Truncated)]
        table = Table(NAMES, ("big",), soft, truncates=truncates, key=("h", "id"))
        mirror = apply(mirror, [part for part in mine if isinstance(part, Event)], table).mirror
    return mirror


def is_forgotten(parts: Sequence[Part], way: Way) -> bool:
    """Whether a key was used again, and that came in an earlier batch than the move away from it.

    The mirror no longer had the row whose value the move brings (docs/merging.md, "Key changes").
    """
    for move in (part for part in parts if isinstance(part, Event) and part.new_key is not None):
        halves = [n for part, n in zip(parts, way, strict=True) if move.key in _keys_of_move(part, move.seq)]
        for part, batch in zip(parts, way, strict=True):
            is_later = isinstance(part, Event) and part.key == move.key and part.seq > move.seq
            if is_later and batch < min(halves):
                return True
    return False


def _keys_of_move(part: Part, seq: bytes) -> list[Any]:
    if isinstance(part, Truncated) or part.seq != seq:
        return []
    return [part.key, part.old_key]


def is_late(parts: Sequence[Part], way: Way) -> bool:
    """Whether something comes in a later batch than a delete or truncate that is newer.

    What is late does not change what a softly deleted row shows.
    """
    arrived = list(zip(parts, way, strict=True))
    ends = [(part.seq, batch) for part, batch in arrived if isinstance(part, Truncated) or part.is_delete]
    return any(part.seq < seq and batch > after for part, batch in arrived for seq, after in ends)


def live(mirror: Mirror) -> dict[Any, Values]:
    return {key: _values(row.values) for key, row in mirror.rows.items() if row.is_live}


def gone(mirror: Mirror) -> dict[Any, tuple[Values, int | None]]:
    return {key: (_values(row.values), row.deleted_at) for key, row in mirror.rows.items() if not row.is_live}


def _values(row: Any) -> Values:
    return row["v"], row["big"]


def expected(sent: Sequence[Record]) -> tuple[dict[Any, Values], dict[Any, tuple[Values, int | None]]]:
    """The rows that are there after all records, and those that are softly deleted."""
    hard, soft = Reference().replay(sent), SoftMirror().replay(sent)
    rows: dict[Any, Row] = next(iter(hard.tables.values()))
    there = {key: _values(row) for key, row in rows.items()}
    left = {
        key: ((None, None) if row is None else _values(row), when)
        for key, (row, when) in next(iter(soft.shown.values())).items()
        if when is not None
    }
    return there, left


def check(history: Sequence[str], given: Iterable[Way] | None = None) -> None:
    sent = records(history)
    parts = parts_of(sent)
    there, left = expected(sent)
    for way in given or ways(len(parts)):
        if is_forgotten(parts, way):
            continue
        assert live(delivered(parts, way, soft=False)) == there, (history, way)
        mirror = delivered(parts, way, soft=True)
        assert live(mirror) == there, (history, way)
        if not is_late(parts, way):
            assert gone(mirror) == left, (history, way)


@pytest.mark.parametrize("first", ["c1", "u1", "d1", "t"])
def test_every_short_history_of_a_row_in_every_delivery(first: str) -> None:
    for length in range(4):
        for more in product(["c1", "u1", "d1", "t"], repeat=length):
            check([first, *more])


@pytest.mark.parametrize("first", ["c1", "u1", "c2", "d2", "m1", "t"])
def test_every_short_history_of_a_row_whose_key_changes_in_every_delivery(first: str) -> None:
    words = ["c1", "u1", "u2", "d2", "m1", "t"]
    for length in range(3):
        for more in product(words, repeat=length):
            if [first, *more].count("m1") < 2:  # two moves take long: `test_longer_histories` has them
                check([first, *more])


@pytest.mark.parametrize(
    "history",
    [
        "c1 t u1 d1",
        "c1 t u1 t",
        "c1 d1 u1 d1",
        "c1 d1 u1 t",
        "c1 U1 u1 t",
        "c1 t u1 m1",
        "c1 m1 u2 t",
        "c1 m1 d2 c2",
    ],
)
def test_an_odd_history_in_every_delivery(history: str) -> None:
    check(history.split())


def restarted(parts: Sequence[Part]) -> Iterator[list[list[Part]]]:
    """Batches in which a connector, or what copies its records, begins once more at an earlier record."""
    for until, back in ((n, m) for n in range(1, len(parts) + 1) for m in range(n + 1)):
        numbered = enumerate([*parts[:until], *parts[back:]])
        sent = [part._replace(origin=part.origin._replace(offset=n)) for n, part in numbered]
        for cuts in chain.from_iterable(combinations(range(1, len(sent)), n) for n in range(3)):
            bounds = [0, *cuts, len(sent)]
            yield [sent[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("soft", [False, True])
def test_every_short_history_at_one_position(soft: bool) -> None:
    """All events of a compressed transaction have one position of the binlog: their offsets order them.

    A binlog leaves no values out.
    """
    for length in range(1, 5):
        for history in product(["c1", "U1", "d1"], repeat=length):
            sent = records(history, step=0)
            there, left = expected(sent)
            for batches in restarted(parts_of(sent)):
                mirror = Mirror()
                for batch in batches:
                    mirror = apply(mirror, batch, Table(NAMES, ("big",), soft, key=("h", "id"))).mirror
                assert live(mirror) == there, (history, batches)
                if soft and len(sent) == sum(map(len, batches)):
                    assert gone(mirror) == left, (history, batches)


OPEN = ["c1", "u1", "U1", "d1", "m1"]


@pytest.mark.parametrize("later", ["", "u", "d"])
@pytest.mark.parametrize("soft", [False, True])
def test_every_short_transaction_that_was_open_during_the_snapshot(later: str, soft: bool) -> None:
    """Its changes lie below the row of the snapshot, and follow it in its partition."""
    for history in chain(product(OPEN), [] if later else product(OPEN, OPEN)):
        sent = opened(history, later)
        rows = next(iter(Reference().replay(sent).tables.values()))
        there = {key: _values(row) for key, row in rows.items()}
        for batches in restarted(parts_of(sent)):
            mirror = Mirror()
            for batch in batches:
                mirror = apply(mirror, batch, Table(NAMES, ("big",), soft, key=("h", "id"))).mirror
            assert live(mirror) == there, (history, later, batches)


def opened(history: Iterable[str], later: str) -> list[Record]:
    """The row 1 as it was read, the changes of an open transaction, and perhaps one that came later."""
    sent = [SENT.read(0, 90, 1, 0, "read")]
    for v, word in enumerate(history, 1):
        lsn, offset, id = 70 + 4 * v, len(sent), int(word[1:])
        match word[0]:
            case "c":
                sent.append(SENT.create(offset, lsn, id, v, f"big {v}"))
            case "U":
                sent.append(SENT.update(offset, lsn, id, v, f"big {v}"))
            case "u":
                sent.append(SENT.update(offset, lsn, id, v))
            case "d":
                sent.append(SENT.delete(offset, lsn, id))
            case "m":
                sent.append(SENT.leave(offset, lsn, id, 3 - id))
                sent.append(SENT.arrive(offset + 1, lsn, 3 - id, id, v))
    match later:
        case "u":
            sent.append(SENT.update(len(sent), 97, 1, 97, last=96))
        case "d":
            sent.append(SENT.delete(len(sent), 97, 1, last=96))
    return sent


def check_versions(history: Sequence[str], compared: Sequence[str] | None) -> None:
    sent = records(history)
    parts = parts_of(sent)
    expected = {key: each for key, each in Model().replay(sent).keys.items() if each}
    if compared is not None:
        expected = {key: of_tracked(each, compared) for key, each in expected.items()}
    for way in ways(len(parts)):
        mirror = VersionedMirror()
        for batch in range(max(way) + 1):
            mine = [part for part, number in zip(parts, way, strict=True) if number == batch]
            truncates = [part for part in mine if isinstance(part, Truncated)]
            tracking = Tracking(Table(NAMES, ("big",), truncates=truncates), compared)
            mirror = apply_versions(mirror, [e for e in mine if isinstance(e, Event)], tracking).mirror
        found = {key: shown_versions(each) for key, each in mirror.keys.items() if each.versions}
        assert found == expected, (history, way)


@pytest.mark.parametrize("compared", [None, ["big"]], ids=str)
def test_every_short_history_has_its_versions_in_every_delivery(compared: Sequence[str] | None) -> None:
    for length in range(1, 4):
        for history in product(["c1", "u1", "d1", "t"], repeat=length):
            check_versions(history, compared)
    for history in (["c1", "m1", "u2"], ["c1", "m1", "c1"], ["c1", "t", "m1"], ["U1", "u1", "m1", "t"]):
        check_versions(history, compared)


def test_what_a_row_had_before_a_truncate_does_not_move_with_it() -> None:
    check(["c1", "t", "u1", "m1", "t"], product(range(2), repeat=6))


WORDS = ["c1", "u1", "u1", "U1", "u2", "d1", "d2", "m1", "m2", "t"]


@pytest.mark.parametrize("seed", [0, pytest.param(range(1, 60), marks=pytest.mark.thorough)])
def test_longer_histories_in_some_deliveries(seed: int | range) -> None:
    for each in [seed] if isinstance(seed, int) else seed:
        rnd = random.Random(each)
        for _ in range(400):
            history = [rnd.choice(WORDS) for _ in range(rnd.randint(4, 7))]
            batches, count = rnd.randint(1, 4), len(parts_of(records(history)))
            check(history, [[rnd.randrange(batches) for _ in range(count)] for _ in range(5)])
