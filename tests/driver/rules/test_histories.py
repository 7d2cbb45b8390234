"""Generated histories, delivered in every way there is, end in the rows of their source.

Each is played against a small database that sends what Debezium sends (`tests.support.histories`), and given
to the rules shuffled, cut and doubled. `tests.support.reference`, which replays the same records in the
source's order and knows no lateness, says what the mirror has to hold.

To look into a failure: its number makes the same history again (`history`, `check`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest

from tests.support.delivery import Batches, cut, doubled, interleaved, parts, restarted, shuffled, whole
from tests.support.histories import COLUMNS, History, Key, Shape, Step, many, play
from tests.support.records import Record, Row, payload
from tests.support.reference import Mirror
from tests.support.rules import Replayed

pytestmark = pytest.mark.guarantee(
    "What becomes of a row depends on what happened to it, not on the order in which its events "
    "arrive or how they are cut into batches"
)

NAMES = [column.name for column in COLUMNS]
Deliver = Callable[[list[Record], random.Random], Batches]
TRACKED = [name for name in NAMES if name not in ("h", "id")]


def history(number: int) -> History:
    """One or two histories of one table, by number."""
    rnd = random.Random(number)
    source = rnd.choice(("postgres", "postgres", "mariadb"))
    snapshot = rnd.choice(("initial", "open", "none"))
    shape = Shape(source, snapshot, full=rnd.random() < 0.3, schemas=False, seed=number)
    histories = rnd.choice((1, 1, 2))
    steps = many(range(histories), rnd, truncates=rnd.choice((0, 0, 0, 1, 2)))
    if snapshot == "none" and source == "postgres" and rnd.random() < 0.7:
        steps.insert(rnd.randint(1, len(steps)), Step(0, "reread"))
    return play(steps, shape)


def over_partitions(records: Iterable[Record], number: int) -> list[Record]:
    """Spread records over partitions as a producer does: each key in one."""
    offsets: dict[int, int] = {}
    spread = []
    for record in records:
        ids = payload(record["key"])["id"] if record["key"] else 0
        partition = ids % number
        offsets[partition] = offsets.get(partition, -1) + 1
        spread.append({**record, "partition": partition, "offset": offsets[partition]})
    return spread


COMPLETE: dict[str, Deliver] = {
    "whole": lambda records, rnd: whole(records),
    "cut": lambda records, rnd: cut(records, rnd.randint(1, 9)),
    "doubled": lambda records, rnd: cut(doubled(records), rnd.randint(2, 9)),
    "again": lambda records, rnd: cut([*records, *records], rnd.randint(2, 9)),
    "restarted": lambda records, rnd: cut(
        restarted(records, back=rnd.randint(1, 9), every=rnd.randint(2, 9)), rnd.randint(1, 9)
    ),
    "shuffled in one batch": lambda records, rnd: whole(shuffled(records, rnd.randrange(99))),
}
ANYHOW: dict[str, Deliver] = {
    "partitions": lambda records, rnd: parts(interleaved(records, rnd.randrange(99)), rnd.randint(1, 4)),
    "shuffled": lambda records, rnd: parts(shuffled(records, rnd.randrange(99)), rnd.randint(2, 6)),
    "shuffled and doubled": lambda records, rnd: parts(
        shuffled(doubled(records), rnd.randrange(99)), rnd.randint(2, 6)
    ),
}
"""Deliveries in which the old image of a moved row can be overwritten before the move is known
(`History.needs_a_reused_image`)."""


ORDERED = ("whole", "cut", "doubled")
"""Each batch continues the source's order, so that no value is on its way."""

SENT_AGAIN = ("again", "restarted")
"""What comes again may show a former row until the rest of it has come: changes that share a position of a
binlog, and a snapshot's row before the changes that were open meanwhile."""

SHUFFLED = ("shuffled", "shuffled and doubled")
"""A row of a snapshot may come in a later batch than what follows it in its partition."""


def check(number: int, *, soft: bool = False) -> None:
    played, rnd = history(number), random.Random(-number - 1)
    name = rnd.choice(sorted({**COMPLETE, **ANYHOW}))
    records = over_partitions(played.records, random.Random(number).choice((1, 1, 2, 3)))
    batches = {**COMPLETE, **ANYHOW}[name](records, rnd)
    left_out = _left_out(played, name)
    replayed = Replayed(NAMES, () if played.shape.table.full else TRACKED, soft)
    reference = Mirror().replay(played.records)
    had, rows = (next(iter(each.values()), {}) for each in (reference.states, reference.tables))
    newest: dict[Key, int] = {}
    for batch in batches:
        replayed.deliver(batch)
        if name not in SENT_AGAIN or (played.shape.source, played.shape.snapshot) == ("postgres", "initial"):
            shown = _without(replayed.rows, left_out)
            _never_backwards(shown, newest, had, () if name in ORDERED else ("big",))
    assert _without(replayed.rows, left_out) == _without(rows, left_out)
    assert replayed.counts.total() == sum(map(len, batches))


def _left_out(played: History, name: str) -> frozenset[int]:
    """Return the histories that nothing could tell from others that end otherwise."""
    left_out = frozenset() if name in COMPLETE else played.needs_a_reused_image()
    if name in SHUFFLED:
        left_out |= played.needs_the_place_of_a_value()
    return left_out | played.repeats_a_beginning() if name in SENT_AGAIN else left_out


def _without(rows: Mapping[Key, Row], left_out: frozenset[int]) -> dict[Key, Row]:
    return {key: row for key, row in rows.items() if key[0] not in left_out}


def _never_backwards(
    rows: Mapping[Key, Row], newest: dict[Key, int], had: Mapping[Key, list[Row]], waits: Sequence[str]
) -> None:
    """Each batch shows newer rows than the one before, and only rows that the source once had.

    A value that was not sent may be on its way.
    """
    for key, row in rows.items():
        assert row["v"] >= newest.get(key, 0), key
        newest[key] = row["v"]
        assert any(_is_same(row, each, waits) for each in had[key]), (key, row)


def _is_same(row: Row, source: Row, waits: Sequence[str]) -> bool:
    return all(row[name] == value for name, value in source.items() if name not in waits)


BLOCK = 250


@pytest.mark.parametrize("first", range(0, 2000, BLOCK))
def test_histories_end_in_the_rows_of_their_source(first: int) -> None:
    for number in range(first, first + BLOCK):
        check(number)


@pytest.mark.parametrize("first", range(0, 500, BLOCK))
def test_histories_with_soft_deletes_end_in_the_rows_of_their_source(first: int) -> None:
    for number in range(first, first + BLOCK):
        check(number, soft=True)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(2000, 102_000, 5000))
def test_very_many_histories_end_in_the_rows_of_their_source(first: int) -> None:
    for number in range(first, first + 5000):
        check(number)


def test_the_reference_agrees_with_the_database() -> None:
    for number in range(200):
        played = history(number)
        if played.shape.snapshot != "none":  # else nobody tells of the rows that were there before
            [rows] = Mirror().replay(played.records).tables.values()
            assert rows == played.rows
