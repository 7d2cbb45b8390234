"""Small histories of rows whose deletes are soft: what a deleted row shows, and what one that is back has.

Each is delivered in the batches that are told, and has a partition of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tests.driver.rules.late_values import Big, Sent
from tests.support.delivery import Batches, parts, shuffled
from tests.support.histories import Shape
from tests.support.records import UNAVAILABLE, Record

Shown = tuple[int | None, Big, int | None]
"""The values of ``v`` and ``big``, and the LSN of the delete. None: the row is there."""


@dataclass(frozen=True)
class Case:
    """A history, and by id what its rows show at the end.

    ``alone`` gives it a table of its own. If it is ``late``, only the rows that are there at the end are
    told: what is late does not change what a deleted row shows.
    """

    name: str
    batches: Callable[[Sent], Batches]
    rows: Mapping[int, Shown]
    alone: bool = False
    late: bool = False

    def sent(self, number: int) -> Batches:
        """The batches of the case with a number."""
        name = f"gone{number}" if self.alone else "gone"
        return self.batches(Sent(replace(Shape().table, name=name, schemas=False), number))


def cuts(records: Sequence[Record]) -> Iterator[Batches]:
    """The records in their order, in one batch, in two, and each in its own."""
    yield [list(records)]
    yield from ([list(records[:n]), list(records[n:])] for n in range(1, len(records)))
    yield [[each] for each in records]


def in_any_cut(name: str, records: Callable[[Sent], list[Record]], rows: Mapping[int, Shown]) -> list[Case]:
    count = len(records(Sent(Shape().table, 0)))
    return [
        Case(f"{name}, cut {n}", lambda s, n=n: list(cuts(records(s)))[n], rows) for n in range(count + 1)
    ]


def truncated(s: Sent) -> list[Record]:
    return [
        s.create(1, 10, 1, 1, "old", last=9),
        s.create(2, 11, 2, 1, "two", last=9),
        s.truncate(3, 20, 19),
        s.update(4, 30, 1, 3, last=29),
    ]


Life = Callable[[Sent, int], list[Record]]
"""The changes of the row with an id in the source, which has a value from before it was deleted or truncated.

It ends with 3 in ``v``. Under its second key, it has 1000 more as its id.
"""
FIRST, SECOND = 100, 200
"""The LSNs of truncates."""
AGAIN = 999
"""The id of a row that is sent again in each batch."""
PARTS = 3
"""The batches that the changes of a row are spread over in all ways."""


def at(lsn: int, id: int) -> tuple[int, int, int]:
    """The offset, LSN and id of a change. A partition has the changes in the order of their positions."""
    return lsn * 10_000 + id, lsn, id


def moved(s: Sent, lsn: int, id: int, v: int) -> list[Record]:
    new = id + 1000
    return [s.leave(*at(lsn, id), new, lsn - 1), s.arrive(*at(lsn, new), id, v, lsn - 1)]


DELETED: Sequence[tuple[Life, int, Big]] = (
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            s.delete(*at(20, id), 19),
            s.update(*at(30, id), 3, last=29),
        ],
        0,
        None,
    ),
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            s.delete(*at(20, id), 19),
            *moved(s, 30, id, 3),
        ],
        1000,
        None,
    ),
)
"""Lives of rows that are deleted: each with what its row has added to its id at the end, and its value."""

TRUNCATED: Sequence[tuple[Life, int, Big]] = (
    (lambda s, id: [s.create(*at(10, id), 1, "old", 9), s.update(*at(110, id), 3, last=109)], 0, None),
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            s.create(*at(110, id), 2, "new", 109),
            s.update(*at(120, id), 3, last=119),
        ],
        0,
        "new",
    ),
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            s.delete(*at(20, id), 19),
            s.create(*at(30, id), 2, "back", 29),
            s.update(*at(110, id), 3, last=109),
        ],
        0,
        None,
    ),
    (lambda s, id: [s.create(*at(10, id), 1, "old", 9), *moved(s, 110, id, 3)], 1000, None),
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            *moved(s, 20, id, 2),
            s.update(*at(110, id + 1000), 3, last=109),
        ],
        1000,
        None,
    ),
)
"""Lives of rows whose table is truncated at `FIRST`."""

TRUNCATED_TWICE: Sequence[tuple[Life, int, Big]] = (
    (
        lambda s, id: [
            s.create(*at(10, id), 1, "old", 9),
            s.create(*at(110, id), 2, "mid", 109),
            s.update(*at(210, id), 3, last=209),
        ],
        0,
        None,
    ),
)
"""Lives of rows whose table is truncated at `FIRST` and at `SECOND`."""


def in_all_parts(
    name: str, lives: Sequence[tuple[Life, int, Big]], truncates: Sequence[int] = ()
) -> Iterator[Case]:
    """Rows whose changes come in all ways in three batches, for each way in which the truncates come.

    One more row is sent again in each batch. Without a record that changes nothing, the engine does not ask
    which were late, and counts one that only fills a value as applied, which the rules count as stale.
    """
    probe = Sent(Shape().table, 0)
    ways = [
        (life, more, big, way)
        for life, more, big in lives
        for way in product(range(PARTS), repeat=len(life(probe, 0)))
    ]
    rows: dict[int, Shown] = {id + more: (3, big, None) for id, (_, more, big, _) in enumerate(ways)}
    rows[AGAIN] = (3, "again", None)

    def batches(s: Sent, places: Sequence[int]) -> Batches:
        sent: Batches = [[s.create(*at(300, AGAIN), 3, "again", 299)] for _ in range(PARTS)]
        for lsn, place in zip(truncates, places, strict=True):
            sent[place].append(s.truncate(at(lsn, 0)[0], lsn, lsn - 1))
        for id, (life, _, _, way) in enumerate(ways):
            for record, place in zip(life(s, id), way, strict=True):
                sent[place].append(record)
        return sent

    for places in product(range(PARTS), repeat=len(truncates)):
        told = f"{name}, in batch {', '.join(map(str, places))}" if places else name
        yield Case(told, lambda s, places=places: batches(s, places), rows, alone=bool(truncates), late=True)


WITH_TRUNCATE: Sequence[tuple[str, Callable[[Sent], Batches], Mapping[int, Shown]]] = (
    (
        "a value",
        lambda s: [
            [s.update(2, 30, 1, 3, last=29)],
            [s.create(1, 10, 1, 1, "old", last=9), s.truncate(3, 50, 49)],
        ],
        {1: (3, "old", 50)},
    ),
    (
        "a value and a delete before the row",
        lambda s: [
            [s.update(3, 30, 1, 3, last=29)],
            [s.create(1, 10, 1, 1, "old", last=9), s.delete(2, 20, 1, last=19), s.truncate(4, 50, 49)],
        ],
        {1: (3, None, 50)},
    ),
    (
        "a value from before an earlier truncate",
        lambda s: [
            [s.update(3, 30, 1, 3, last=29)],
            [s.create(1, 10, 1, 1, "old", last=9), s.truncate(2, 20, 19), s.truncate(4, 50, 49)],
        ],
        {1: (3, None, 50)},
    ),
    (
        "a value from after an earlier truncate",
        lambda s: [
            [s.update(3, 30, 1, 3, last=29)],
            [s.truncate(1, 20, 19), s.create(2, 25, 1, 2, "new", last=24), s.truncate(4, 50, 49)],
        ],
        {1: (3, "new", 50)},
    ),
    (
        "the value of a former key",
        lambda s: [
            [s.arrive(3, 30, 2, 1, 3, last=29)],
            [
                s.create(1, 10, 1, 1, "old", last=9),
                s.leave(2, 30, 1, 2, last=29),
                s.truncate(4, 50, 49),
            ],
        ],
        {1: (1, "old", 30), 2: (3, "old", 50)},
    ),
    (
        "an earlier truncate, which the value of the row came before",
        lambda s: [
            [s.create(1, 10, 1, 1, "old", last=9), s.update(3, 30, 1, 3, last=29)],
            [s.truncate(2, 20, 19), s.truncate(4, 50, 49)],
        ],
        {1: (3, None, 50)},
    ),
    (
        "the row at its position, which came before",
        lambda s: [
            [s.create(1, 40, 1, 4, "a", last=39), s.create(2, 50, 2, 5, "b", last=49)],
            [s.update(3, 50, 1, 5, last=49)],
            [s.create(1, 40, 1, 4, "a", last=39), s.truncate(4, 50, 49)],
        ],
        {1: (5, "a", 50), 2: (5, "b", 50)},
    ),
    (
        "an earlier truncate, and all that the row was",
        lambda s: [
            [
                s.create(1, 10, 1, 1, "old", last=9),
                s.truncate(2, 20, 19),
                s.update(3, 30, 1, 3, last=29),
                s.truncate(4, 50, 49),
            ]
        ],
        {1: (3, None, 50)},
    ),
)
"""What comes late together with a truncate: each with the rows that are left."""

CASES: Sequence[Case] = (
    Case(
        "a delete that is sent again",
        lambda s: [[s.create(1, 10, 1, 1, "a", last=9), s.delete(2, 20, 1, 19)], [s.delete(3, 20, 1, 19)]],
        {1: (1, "a", 20)},
    ),
    Case(
        "a delete of a row that the mirror never had, sent again",
        lambda s: [[s.delete(2, 20, 1, 19)], [s.delete(3, 20, 1, 19)]],
        {1: (None, None, 20)},
    ),
    Case(
        "an update of an open transaction, and a delete after that",
        lambda s: [
            [s.read(1, 90, 1, 0, "read")],
            [s.update(2, 70, 1, 7), s.delete(4, 97, 1, last=96)],
        ],
        {1: (7, "read", 97)},
    ),
    Case(
        "an update of an open transaction that the row was read after, and a delete",
        lambda s: [
            [s.read(5, 90, 1, 0, "read")],
            [s.update(2, 70, 1, 7), s.delete(9, 97, 1, last=96)],
        ],
        {1: (0, "read", 97)},
    ),
    Case(
        "a delete of an open transaction, and one of a later row that never came",
        lambda s: [
            [s.read(1, 90, 1, 0, "read")],
            [s.delete(2, 70, 1), s.delete(4, 97, 1, last=96)],
        ],
        {1: (0, "read", 70)},
    ),
    Case(
        "an earlier change of an open transaction that comes with the row it follows",
        lambda s: [
            [s.update(3, 85, 1, 8, "eight")],
            [s.read(1, 90, 1, 0, "read"), s.update(2, 80, 1, 7, "seven")],
        ],
        {1: (8, "eight", None)},
    ),
    *in_any_cut(
        "an update and a delete of an open transaction",
        lambda s: [s.read(1, 90, 1, 0, "read"), s.update(2, 70, 1, 7), s.delete(3, 75, 1)],
        {1: (7, "read", 75)},
    ),
    *in_any_cut(
        "a row that comes and goes twice in an open transaction",
        lambda s: [
            s.read(1, 90, 1, 0, "read"),
            s.delete(2, 70, 1),
            s.create(3, 75, 1, 7, "new"),
            s.update(4, 80, 1, 8),
            s.delete(5, 85, 1),
        ],
        {1: (8, "new", 85)},
    ),
    *in_any_cut(
        "an update without a value after a delete: the create did not come",
        lambda s: [
            s.create(1, 10, 1, 1, "old", last=9),
            s.delete(2, 20, 1, last=19),
            s.update(3, 30, 1, 3, last=29),
        ],
        {1: (3, None, None)},
    ),
    *in_any_cut(
        "an update without a value between deletes",
        lambda s: [
            s.create(1, 10, 1, 1, "old", last=9),
            s.delete(2, 20, 1, last=19),
            s.update(3, 30, 1, 3, last=29),
            s.delete(4, 40, 1, last=39),
        ],
        {1: (3, None, 40)},
    ),
    *in_any_cut(
        "an update without a value after a delete of an open transaction",
        lambda s: [s.read(1, 90, 1, 0, "read"), s.delete(2, 70, 1), s.update(3, 80, 1, 8)],
        {1: (8, None, None)},
    ),
    *(
        Case(
            f"a delete that comes after the update that followed it, {place}",
            lambda s, more=more: [
                [s.create(1, 10, 1, 1, "old", last=9), s.update(4, 30, 1, 3, last=29)],
                [s.delete(2, 20, 1, last=19)],
                *more(s),
            ],
            {1: (3, big, None)},
        )
        for place, more, big in (
            ("alone", lambda s: [], None),
            ("before the create", lambda s: [[s.create(3, 25, 1, 2, "new", last=24)]], "new"),
        )
    ),
    Case(
        "a late delete, and the value of a row that moved to the key after that",
        lambda s: [
            [s.arrive(4, 50, 2, 1, 5, last=49)],
            [
                s.create(1, 10, 1, 1, "first", last=9),
                s.delete(2, 20, 2, last=19),
                s.leave(3, 50, 1, 2, last=49),
            ],
        ],
        {1: (1, "first", 50), 2: (5, "first", None)},
    ),
    Case(
        "a row whose key changes, and a value from before it was deleted, sent again",
        lambda s: [
            [s.create(1, 10, 1, 1, "old", last=9), s.delete(2, 20, 1, last=19)],
            [s.leave(6, 50, 1, 4, last=49), s.arrive(7, 50, 4, 1, 5, last=49)],
            [s.create(1, 10, 1, 1, "old", last=9)],
        ],
        {1: (1, "old", 20), 4: (5, None, None)},
    ),
    *(
        Case(
            f"an update without a value after a truncate: the create did not come, cut {cut}",
            lambda s, cut=cut: [(r := truncated(s))[:cut], r[cut:]],
            {1: (3, None, None), 2: (1, "two", 20)},
            alone=True,
        )
        for cut in (2, 4)
    ),
    Case(
        "a row at the position of a truncate",
        lambda s: [[s.create(1, 50, 1, 5, "a", last=49), s.truncate(2, 50, 49)]],
        {1: (5, "a", 50)},
        alone=True,
    ),
    Case(
        "a stored row that changes at the position of a truncate",
        lambda s: [
            [s.create(1, 40, 1, 4, "a", last=39), s.create(2, 41, 2, 4, "a", last=39)],
            [s.update(3, 50, 1, 5, last=49), s.truncate(4, 50, 49)],
        ],
        {1: (5, "a", 50), 2: (4, "a", 50)},
        alone=True,
    ),
    *(
        Case(f"late records that come with a truncate of their row, {name}", sent, rows, alone=True)
        for name, sent, rows in WITH_TRUNCATE
    ),
    *(
        Case(
            f"a create that comes with the delete of a later row, {name}",
            lambda s, first=first: [
                [first(s)],
                [
                    s.create(1, 10, 1, 1, "old", last=9),
                    s.delete(2, 20, 1, last=19),
                    s.delete(5, 40, 1, last=39),
                ],
            ],
            {1: (3, big, 40)},
        )
        for name, first, big in (
            ("which lacks the value", lambda s: s.update(4, 30, 1, 3, last=29), None),
            ("which has it", lambda s: s.update(4, 30, 1, 3, "new", last=29), "new"),
        )
    ),
    Case(
        "a row that moves between two truncates, without a value from before the first",
        lambda s: [
            [
                s.create(1, 10, 1, 1, "old", last=9),
                s.truncate(2, 20, 19),
                s.update(3, 25, 1, 2, last=24),
                s.leave(4, 30, 1, 2, last=29),
                s.arrive(5, 30, 2, 1, 3, last=29),
                s.truncate(6, 40, 39),
            ]
        ],
        {1: (2, None, 30), 2: (3, None, 40)},
        alone=True,
    ),
    Case(
        "a row that changes at its position, and is deleted",
        lambda s: [
            [s.create(1, 40, 1, 0, "old", last=39), s.update(2, 50, 1, 1, "one", last=49)],
            [s.update(3, 50, 1, 2, "two", last=49), s.delete(4, 50, 1, last=49)],
        ],
        {1: (2, "two", 50)},
    ),
    Case(
        "a row that comes and goes twice at one position",
        lambda s: [
            [s.create(1, 50, 1, 1, "one", last=49), s.delete(2, 50, 1, last=49)],
            [s.create(3, 50, 1, 2, "two", last=49), s.delete(4, 50, 1, last=49)],
        ],
        {1: (2, "two", 50)},
    ),
    *in_any_cut(
        "a delete at the position of the row, and one of a later row that never came",
        lambda s: [
            s.create(1, 50, 1, 1, "one", last=49),
            s.delete(2, 50, 1, last=49),
            s.delete(3, 60, 1, last=59),
        ],
        {1: (1, "one", 50)},
    ),
    *in_all_parts("rows that are deleted, and changed before their create comes", DELETED),
    *in_all_parts("rows of a table that is truncated", TRUNCATED, [FIRST]),
    *in_all_parts("rows of a table that is truncated twice", TRUNCATED_TWICE, [FIRST, SECOND]),
)


def drawn(number: int) -> Batches:
    """A row with changes of an open transaction and later ones, of which some are missing, in any order."""
    rnd = random.Random(number)
    s = Sent(replace(Shape().table, name="drawn", schemas=False), number)
    sent = [s.read(1, 90, 1, 0, "read")] if rnd.random() < 0.8 else []
    offset, there = 1, bool(sent)
    for _ in range(rnd.randint(2, 6)):
        offset += 1
        opened = offset <= 4
        lsn, last = (60 + 4 * offset, None) if opened else (100 + 4 * offset, 98 + 4 * offset)
        if there and rnd.random() < 0.4:
            change, there = s.delete(offset, lsn, 1, last), False
        elif there:
            change = s.update(offset, lsn, 1, offset, rnd.choice((UNAVAILABLE, f"big {offset}")), last)
        else:
            change, there = s.create(offset, lsn, 1, offset, f"new {offset}", last), True
        if rnd.random() < 0.8:
            sent.append(change)
    if rnd.random() < 0.6:
        sent = shuffled(sent, number)
    return parts(sent, rnd.randint(1, 4))


def batches(numbers: Sequence[int], draws: int) -> Batches:
    """The cases with these numbers and some drawn histories, delivered together."""
    sent = [*(CASES[number].sent(number) for number in numbers), *map(drawn, range(draws))]
    return [
        [record for each in sent if n < len(each) for record in each[n]] for n in range(max(map(len, sent)))
    ]


def rows(numbers: Sequence[int]) -> dict[tuple[int, int], Shown]:
    """What the rows of these cases show at the end, by the case's number and the id."""
    return {(number, id): row for number in numbers for id, row in CASES[number].rows.items()}
