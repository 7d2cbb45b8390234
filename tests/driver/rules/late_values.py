"""Small histories whose values come late, by another key, or from a transaction that was open.

Each is delivered in the batches that are told, and ends in the rows that the source has. They share a table
and have partitions of their own, but for those that change a whole table or come from a binlog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.support.delivery import Batches
from tests.support.histories import Shape
from tests.support.records import UNAVAILABLE, BinlogPosition, Message, PostgresPosition, Record, Row, Table

Big = str | None
"""The value of the column that a change may leave out."""


@dataclass(frozen=True)
class Case:
    """A history, and by id the values of ``v`` and ``big`` that its rows have at the end."""

    name: str
    batches: Callable[[Sent], Batches]
    rows: Mapping[int, tuple[int, Big]]
    alone: bool = False

    def sent(self, number: int) -> Batches:
        """The batches of the case with a number."""
        name = f"late{number}" if self.alone else "late"
        return self.batches(Sent(replace(Shape().table, name=name, schemas=False), number))


@dataclass(frozen=True)
class Sent:
    """Makes the records of one table. Each has its offset told: it shows where in its partition it stood.

    A position is an LSN; with ``last``, the last commit before it is known.
    """

    table: Table
    number: int

    def read(self, offset: int, lsn: int, id: int, v: int, big: Big) -> Record:
        return self._record(offset, self.table.read(_at(lsn, None, "true"), self.row(id, v, big)))

    def reread(self, offset: int, last: int, id: int, v: int, big: Big) -> Record:
        """A row of an incremental snapshot, after the commit at ``last``."""
        return self._record(offset, self.table.read(_at(None, last, "incremental"), self.row(id, v, big)))

    def create(self, offset: int, lsn: int, id: int, v: int, big: Big, last: int | None = None) -> Record:
        return self._record(offset, self.table.create(_at(lsn, last), self.row(id, v, big)))

    def update(
        self, offset: int, lsn: int, id: int, v: int, big: Big = UNAVAILABLE, last: int | None = None
    ) -> Record:
        return self._record(
            offset, self.table.update(_at(lsn, last), self.row(id, v, big), self.row(id, 0, None))
        )

    def delete(self, offset: int, lsn: int, id: int, last: int | None = None) -> Record:
        return self._record(offset, self.table.delete(_at(lsn, last), self.row(id, 0, None))[0])

    def truncate(self, offset: int, lsn: int, last: int) -> Record:
        return self._record(offset, self.table.truncate(_at(lsn, last)))

    def leave(self, offset: int, lsn: int, id: int, new: int, last: int | None = None) -> Record:
        """The delete of a row that got another key."""
        gone = self.table.delete(_at(lsn, last), self.row(id, 0, None), new_key=self.row(new, 0, None))[0]
        return self._record(offset, gone)

    def arrive(
        self, offset: int, lsn: int, id: int, old: int, v: int, last: int | None = None, partition: int = 0
    ) -> Record:
        """The create of a row that had another key, without the value."""
        row = self.row(id, v, UNAVAILABLE)
        message = self.table.create(_at(lsn, last), row, old_key=self.row(old, 0, None))
        return self._record(offset, message, partition)

    def row(self, id: int, v: int, big: Big) -> Row:
        return {"h": self.number, "id": id, "v": v, "note": None, "big": big}

    def statement(self, offset: int, partition: int, message: Message) -> Record:
        """A message of a statement that changed several rows."""
        return self._record(offset, message, partition)

    def _record(self, offset: int, message: Message, partition: int = 0) -> Record:
        return {
            "topic": self.table.topic,
            "partition": 2 * self.number + partition,
            "offset": offset,
            "timestamp": message.ts_ms + 60,
            "key": message.key,
            "value": message.value,
            "headers": [list(header) for header in message.headers],
        }


def _at(lsn: int | None, last: int | None, snapshot: str = "false") -> PostgresPosition:
    return PostgresPosition(lsn, last, 7, 10**15 + (lsn or last or 0) * 1000, snapshot)


# -- changes of keys ----------------------------------------------------------------------------------------


def moved_while_open(s: Sent) -> list[Record]:
    """The row 1 was read, and then became 2 below the position of the snapshot."""
    return [
        s.read(1, 90, 1, 0, "read"),
        s.leave(2, 70, 1, 2),
        s.arrive(0, 70, 2, 1, 7, partition=1),
    ]


def moved_and_changed(s: Sent) -> list[Record]:
    """The row that was there before is deleted, another one takes its key, and changes again."""
    return [
        s.read(0, 90, 2, 1, "other"),
        s.read(1, 90, 1, 0, "read"),
        s.delete(2, 60, 2),
        s.leave(3, 70, 1, 2),
        s.arrive(4, 70, 2, 1, 7),
        s.update(5, 95, 2, 8, last=94),
    ]


def moved_again(s: Sent) -> list[Record]:
    return [s.leave(6, 97, 2, 3, last=96), s.arrive(7, 97, 3, 2, 9, last=96)]


def waiting_for_a_move(s: Sent) -> Batches:
    """Of a second move to the key, only the delete has come."""
    return [
        [
            s.create(1, 10, 1, 1, "first", last=9),
            s.create(2, 20, 3, 2, "second", last=19),
            s.leave(3, 50, 1, 2, last=49),
            s.arrive(4, 50, 2, 1, 5, last=49),
            s.leave(6, 90, 3, 2, last=89),
        ]
    ]


def waiting_in_the_mirror(s: Sent) -> Batches:
    """The same, after the create of the first move was stored without its value."""
    return [
        [s.arrive(4, 50, 2, 1, 5, last=49)],
        [
            s.create(1, 10, 1, 1, "first", last=9),
            s.create(2, 20, 3, 2, "second", last=19),
            s.leave(3, 50, 1, 2, last=49),
            s.leave(6, 90, 3, 2, last=89),
        ],
    ]


def shifted(s: Sent) -> list[Record]:
    """One statement made the row 1 to 2 and the row 3 to 1: all of it has one position of a binlog."""

    def at(row: int) -> BinlogPosition:
        return BinlogPosition("binlog.000001", 70, row, "0-1-1", 10**15 + 70_000)

    start = BinlogPosition("binlog.000001", 60, 0, "0-1-0", 10**15 + 60_000)
    table = s.table
    return [
        s.statement(1, 0, table.create(start, s.row(1, 6, "a"))),
        s.statement(0, 1, table.create(at(0), s.row(2, 7, "a"), old_key=s.row(1, 0, None))),
        s.statement(2, 0, table.delete(at(0), s.row(1, 0, None), new_key=s.row(2, 0, None))[0]),
        s.statement(3, 0, table.create(at(1), s.row(1, 8, "b"), old_key=s.row(3, 0, None))),
    ]


def sent_again(s: Sent) -> list[Record]:
    """The first transaction is sent again after an incremental snapshot, which a restart does not repeat."""
    return [
        s.delete(1, 70, 1),
        s.create(2, 80, 1, 8, "new"),
        s.reread(3, 90, 1, 8, "new"),
        s.delete(4, 70, 1),
        s.create(5, 97, 2, 9, "later", last=96),
    ]


def sent_again_and_changed(s: Sent) -> list[Record]:
    return [
        s.update(1, 70, 1, 7, "seven"),
        s.update(2, 80, 1, 8, "eight"),
        s.reread(3, 90, 1, 8, "eight"),
        s.update(4, 70, 1, 7, "seven"),
        s.update(5, 85, 1, 9, last=90),
    ]


def created_again(s: Sent) -> list[Record]:
    """An open transaction deletes the row and creates it. Then its delete is sent again."""
    sent = [s.delete(2, 70, 1), s.create(3, 80, 1, 8, "new"), s.delete(4, 70, 1)]
    return [s.read(1, 90, 1, 0, "read"), *sent, s.create(5, 97, 2, 9, "later", last=96)]


CASES: Sequence[Case] = (
    *(
        Case(
            f"a row that moved while the snapshot was taken, cut {cut}",
            lambda s, cut=cut: [(r := moved_while_open(s))[: cut[0]], r[cut[0] : cut[1]], r[cut[1] :]],
            {2: (7, "read")},
        )
        for cut in ((3, 3), (1, 3), (1, 2), (2, 3))
    ),
    Case(
        "a row that moved while the snapshot was taken, and that is read again",
        lambda s: [
            [s.arrive(3, 70, 2, 1, 7)],
            [s.read(1, 90, 1, 0, "read"), s.leave(2, 70, 1, 2)],
            [s.read(1, 90, 1, 0, "read")],
        ],
        {2: (7, "read")},
    ),
    *(
        Case(
            f"a row that moved while the snapshot was taken and changed again, cut {cut}",
            lambda s, cut=cut: [(r := moved_and_changed(s))[:cut], r[cut:], []],
            {2: (8, "read")},
        )
        for cut in (0, 4, 5)
    ),
    *(
        Case(
            f"a row that moved while the snapshot was taken and moved again, cut {cut}",
            lambda s, cut=cut: [(r := moved_and_changed(s))[:cut], r[cut:], moved_again(s)],
            {3: (9, "read")},
        )
        for cut in (3, 5)
    ),
    Case(
        "a row that was read under a key after another one had moved away",
        lambda s: [
            [s.leave(2, 70, 1, 2)],
            [s.arrive(0, 70, 2, 1, 7, partition=1), s.read(3, 90, 1, 9, "of another row")],
        ],
        {1: (9, "of another row"), 2: (7, None)},
    ),
    Case("a move whose value a later one must not keep away", waiting_for_a_move, {2: (5, "first")}),
    Case(
        "a stored move whose value a later one must not keep away",
        waiting_in_the_mirror,
        {2: (5, "first")},
    ),
    *(
        Case(
            f"a row that takes the place of a moved one at its position, cut {cut}",
            lambda s, cut=cut: [(r := shifted(s))[:1], r[1:2], r[2:cut], r[cut:]],
            {1: (8, "b"), 2: (7, "a")},
            alone=True,
        )
        for cut in (3, 4)
    ),
    Case(
        "a row of a snapshot that comes after the change that follows it",
        lambda s: [[s.update(2, 70, 1, 7)], [s.read(1, 90, 1, 0, "read")]],
        {1: (7, "read")},
    ),
    Case(
        "a value of an open transaction that comes late",
        lambda s: [
            [s.read(1, 90, 1, 0, "read"), s.update(2, 72, 1, 2, "two"), s.update(4, 80, 1, 4)],
            [s.update(3, 75, 1, 3, "three")],
        ],
        {1: (4, "three")},
    ),
    Case(
        "a value of an open transaction from before the stored row, with a later change",
        lambda s: [
            [s.read(1, 90, 1, 0, "read"), s.update(2, 72, 1, 2, "two"), s.update(4, 80, 1, 4)],
            [s.update(3, 75, 1, 3, "three"), s.update(5, 82, 1, 5)],
        ],
        {1: (5, "three")},
    ),
    Case(
        "a truncate at the position of a row, which came before",
        lambda s: [
            [s.create(1, 50, 1, 5, "a", last=49), s.create(3, 60, 2, 6, "b", last=59)],
            [s.truncate(2, 50, 49)],
        ],
        {2: (6, "b")},
        alone=True,
    ),
    Case(
        "a truncate before the snapshot takes no value of its rows",
        lambda s: [
            [s.create(1, 40, 1, 4, "old", last=39), s.truncate(2, 50, 49)],
            [s.read(3, 90, 1, 0, "read")],
            [s.update(4, 70, 1, 7)],
        ],
        {1: (7, "read")},
        alone=True,
    ),
    Case(
        "a delete before the snapshot takes no value of its rows",
        lambda s: [
            [s.create(1, 40, 1, 4, "old", last=39), s.delete(2, 50, 1, last=49)],
            [s.read(3, 90, 1, 0, "read")],
            [s.update(4, 70, 1, 7)],
        ],
        {1: (7, "read")},
    ),
    Case(
        "a value of an open transaction, and a later change that leaves it out",
        lambda s: [
            [s.read(1, 90, 1, 0, "read")],
            [s.update(2, 70, 1, 7, "new"), s.update(3, 95, 1, 9, last=94)],
        ],
        {1: (9, "new")},
    ),
    Case(
        "a row that an open transaction creates again, and a later change that leaves a value out",
        lambda s: [
            [s.read(1, 90, 1, 0, "read"), s.delete(2, 70, 1)],
            [s.create(3, 80, 1, 8, "new"), s.update(4, 95, 1, 9, last=94)],
        ],
        {1: (9, "new")},
    ),
    *(
        Case(
            f"a row that an open transaction creates again, whose delete is sent again, {place}",
            lambda s, cut=cut: cut(created_again(s)),
            {1: (8, "new"), 2: (9, "later")},
        )
        for place, cut in (
            ("together", lambda r: [r]),
            ("after that", lambda r: [r[:3], r[3:]]),
            ("which comes first", lambda r: [[r[0], r[3]], [*r[1:3], r[4]]]),
        )
    ),
    Case(
        "a value of an open transaction, and a move that leaves it out",
        lambda s: [
            [s.read(1, 90, 1, 0, "read")],
            [s.update(2, 70, 1, 7, "new"), s.leave(3, 75, 1, 2), s.arrive(4, 75, 2, 1, 8)],
        ],
        {2: (8, "new")},
    ),
    *(
        Case(
            f"an open transaction that is sent again after an incremental snapshot, cut {cut}",
            lambda s, cut=cut: [(r := sent_again(s))[: cut[0]], r[cut[0] : cut[1]], r[cut[1] :]],
            {1: (8, "new"), 2: (9, "later")},
        )
        for cut in ((5, 5), (3, 5), (2, 3))
    ),
    *(
        Case(
            f"an open transaction that is sent again, and a change after that, cut {cut}",
            lambda s, cut=cut: [(r := sent_again_and_changed(s))[:cut], r[cut:]],
            {1: (9, "eight")},
        )
        for cut in (2, 3, 4, 5)
    ),
    Case(
        "a row of an incremental snapshot that comes after an open transaction that is sent again",
        lambda s: [[s.delete(4, 70, 1)], [s.reread(3, 90, 1, 8, "new")]],
        {1: (8, "new")},
    ),
    Case(
        "a value of an open transaction, after a change of it that was stored without one",
        lambda s: [
            [s.read(1, 90, 1, 0, "read"), s.update(2, 68, 1, 2)],
            [s.update(3, 72, 1, 3, "three"), s.update(4, 76, 1, 4)],
        ],
        {1: (4, "three")},
    ),
    Case(
        "a value of an open transaction, after a change of it that was stored without one, and a move",
        lambda s: [
            [s.read(1, 90, 1, 0, "read"), s.update(2, 68, 1, 2)],
            [s.update(3, 72, 1, 3, "three"), s.leave(4, 75, 1, 2), s.arrive(5, 75, 2, 1, 8)],
        ],
        {2: (8, "three")},
    ),
    Case(
        "a row that an open transaction deletes, creates again and moves, whose new key comes first",
        lambda s: [
            [s.arrive(0, 75, 3, 1, 75, partition=1), s.read(1, 90, 1, 0, "read"), s.update(2, 55, 1, 55)],
            [s.delete(3, 60, 1)],
            [s.create(4, 65, 1, 65, "set"), s.update(5, 70, 1, 70)],
            [s.leave(6, 75, 1, 3)],
        ],
        {3: (75, "set")},
    ),
    Case(
        "a truncate between a change of an open transaction and the row that it follows",
        lambda s: [[s.update(2, 70, 1, 7)], [s.read(1, 90, 1, 0, "read"), s.truncate(9, 80, 79)]],
        {1: (7, "read")},
        alone=True,
    ),
    Case(
        "a value from before the snapshot does not outrun it",
        lambda s: [
            [s.read(5, 90, 1, 0, "read")],
            [s.update(4, 60, 1, 4, "old"), s.update(6, 70, 1, 7)],
        ],
        {1: (7, "read")},
    ),
)


def batches() -> Batches:
    """All cases, delivered together."""
    sent = [case.sent(number) for number, case in enumerate(CASES)]
    return [
        [record for each in sent if n < len(each) for record in each[n]] for n in range(max(map(len, sent)))
    ]


def rows() -> dict[tuple[int, int], tuple[int, Big]]:
    """The rows at the end, by the case's number and the id."""
    return {(number, id): row for number, case in enumerate(CASES) for id, row in case.rows.items()}
