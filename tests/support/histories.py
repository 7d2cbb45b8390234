"""Generated histories of a table: what a small database did, and what Debezium sent about it.

A history is played from a list of steps (plain small numbers, so that Hypothesis can shrink them and a seeded
`random.Random` can make hundreds at once). Many histories share one database and one table: the history's
number is the first part of the primary key. `play` keeps to what a real PostgreSQL or MariaDB sends through
Debezium:

- a row lock is held until commit: overlapping transactions touch different keys, a truncate overlaps nothing;
- records come in the order of commits, with the write's own lsn: overlapping transactions interleave by lsn;
- a TOASTed value is left out exactly when it did not change (and the replica identity is the default);
- one transaction can be open while the snapshot is taken: written below its lsn, sent after its rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from tests.support.records import (
    UNAVAILABLE,
    BinlogPosition,
    Column,
    Message,
    PostgresPosition,
    Record,
    Row,
    Table,
    Topic,
    payload,
)

Key = tuple[int, int]
Verb = Literal["put", "drop", "again", "move", "swap", "chain", "return", "truncate", "reread"]
VERBS: tuple[Verb, ...] = ("put", "drop", "again", "move", "swap", "chain", "return")
IDS = 4
ASIDE = -1
"""The id that a swap goes through."""

COLUMNS = (
    Column("h", "int32"),
    Column("id", "int32"),
    Column("v", "int32"),
    Column("note", "string", optional=True),
    Column("big", "string", optional=True),
)
"""`v` is the number of the change that wrote the row, growing with the source; `big` may be TOASTed."""


NO_ROWS: Mapping[Key, Row] = {}


class Step(NamedTuple):
    """One thing that happens in history `h`; what does not apply to the rows as they are does nothing."""

    h: int
    verb: Verb
    a: int = 0
    b: int = 0
    big: int = 0  # 0 keeps it, 1 a large value, 2 a small one, 3 null
    note: int = 0  # 0 keeps it, 1 null, 2 a text
    apart: bool = False  # each of its changes in a transaction of its own
    joined: bool = False  # in the transaction of the step before
    early: int = 0  # how many transactions before it are still open when its first change is written


@dataclass(frozen=True)
class Shape:
    """What kind of source plays a history.

    `snapshot`: "initial" rows are read first; "open" the same with the first transaction open meanwhile;
    "none": the rows there before show only in changes and in incremental snapshots (step `reread`).
    """

    source: Literal["postgres", "mariadb"] = "postgres"
    snapshot: Literal["initial", "open", "none"] = "initial"
    full: bool = False
    schemas: bool = True
    name: str = "items"
    before: int = 2  # rows a history has when capture begins
    seed: int = 0

    @property
    def table(self) -> Table:
        schema = "public" if self.source == "postgres" else None
        full = self.full or self.source == "mariadb"
        return Table("demo", schema, self.name, COLUMNS, ("h", "id"), "demo", full, self.schemas)


@dataclass(frozen=True)
class Change:
    """One change of a row. `before` and `row` are the source's whole rows, whatever an event shows."""

    verb: Literal["create", "update", "delete", "move", "truncate", "read"]
    before: Row | None = None
    row: Row | None = None

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset(key_of(row) for row in (self.before, self.row) if row is not None)


@dataclass
class Transaction:
    """Changes that commit together."""

    early: int = 0
    changes: list[Change] = field(default_factory=list)

    @property
    def keys(self) -> frozenset[Key]:
        return frozenset().union(*(change.keys for change in self.changes))

    @property
    def truncates(self) -> bool:
        """Whether it locks the table."""
        return any(change.verb == "truncate" for change in self.changes)

    @property
    def reads(self) -> bool:
        """Whether it stands for a chunk of an incremental snapshot, which is no transaction."""
        return any(change.verb == "read" for change in self.changes)

    def overlaps(self, other: Transaction) -> bool:
        """Whether both could have been open at once."""
        if self.truncates or other.truncates:
            return False
        return self.reads or other.reads or not self.keys & other.keys


@dataclass(frozen=True)
class History:
    """What was played: the records in the order the connector sent them, and the source's rows at the end."""

    shape: Shape
    steps: tuple[Step, ...]
    records: list[Record]
    rows: dict[Key, Row]
    transactions: list[Transaction]

    def needs_a_reused_image(self) -> frozenset[int]:
        """Histories in which a row moved away without its TOASTed value and its old key had other lives too.

        Delivered wholly out of order and in several batches, the old row's image can be overwritten before
        anybody knows that the moved row needs it.
        """
        lives: dict[Key, int] = {}
        moved: set[Key] = set()
        for change in (c for t in self.transactions for c in t.changes):
            if change.verb in ("create", "move", "read") and change.row is not None:
                lives[key_of(change.row)] = lives.get(key_of(change.row), 0) + 1
            if change.verb == "move" and gaps(change, self.shape):
                assert change.before is not None
                moved.add(key_of(change.before))
        return frozenset(h for h, i in moved if lives.get((h, i), 0) > 1)

    def needs_the_place_of_a_value(self) -> frozenset[int]:
        """Histories in which a transaction that was open during the snapshot set a TOASTed value.

        If the row of the snapshot comes after a later change that leaves the value out, nothing that a mirror
        stores tells whether the value was set before the row was read: the later change has taken the place
        of the one that set it.
        """
        opened = self._unanchored() if self.shape.snapshot == "open" else ()
        rows = [change["after"] for change in opened if change["op"] != "d"]
        changes = [each for transaction in self.transactions for each in transaction.changes]
        waits = {each.row["h"] for each in changes if each.row is not None and gaps(each, self.shape)}
        return frozenset(row["h"] for row in rows if row["big"] != UNAVAILABLE) & waits

    def retakes_a_key_at_once(self) -> frozenset[int]:
        """Histories in which a row takes the key of another at the position in a binlog where that left it.

        If the new row comes after one half of the move and before the other, nothing tells which came first.
        """
        left: set[tuple[Any, ...]] = set()
        taken: set[tuple[Any, ...]] = set()
        for record in self.records:
            change = payload(record["value"]) if record["value"] else {}
            if change.get("op") in ("c", "d") and change["source"].get("file"):
                key = tuple(payload(record["key"]).values())
                place = (*key, change["source"]["file"], change["source"]["pos"])
                (left if change["op"] == "d" else taken).add(place)
        return frozenset(place[0] for place in left & taken)

    def repeats_a_beginning(self) -> frozenset[int]:
        """Histories whose rows were read again while no commit was known, before some changes.

        If a connector sends the first transaction again after that, its changes look as if they had been
        open during the reading, and followed it.
        """
        reads = any(each.reads for each in self.transactions[1:])
        changes = self._unanchored() if reads else ()
        return frozenset((each["after"] or each["before"])["h"] for each in changes)

    def _unanchored(self) -> Iterator[Row]:
        """The changes that do not know the last commit before them."""
        for record in self.records:
            change = payload(record["value"]) if record["value"] else {}
            is_change = change.get("op") in ("c", "u", "d")
            if is_change and str(change["source"].get("sequence")).startswith("[null"):
                yield change


def key_of(row: Row) -> Key:
    return row["h"], row["id"]


def is_large(value: str | None) -> bool:
    """Whether the generated value stands for one that PostgreSQL stores out of line."""
    return value is not None and value.startswith("large")


def gaps(change: Change, shape: Shape) -> frozenset[str]:
    """Columns whose value the event leaves out."""
    if shape.table.full or change.verb not in ("update", "move"):
        return frozenset()
    assert change.before is not None
    assert change.row is not None
    same = change.before["big"] == change.row["big"]
    return frozenset({"big"}) if same and is_large(change.row["big"]) else frozenset()


# The database


class Database:
    """Rows of all histories; every change is numbered within its history."""

    def __init__(self, rows: Mapping[Key, Row] = NO_ROWS) -> None:
        self.rows: dict[Key, Row] = dict(rows)
        self._numbers: dict[int, int] = {}
        for (h, _), row in rows.items():
            self._numbers[h] = max(self._numbers.get(h, 0), row["v"])

    def perform(self, step: Step) -> list[Change]:
        """What the step changes, in order."""
        return list(getattr(self, f"_{step.verb}")(step, (step.h, step.a), (step.h, step.b)))

    def _put(self, step: Step, a: Key, _: Key) -> Iterator[Change]:
        yield self._update(step, a) if a in self.rows else self._create(step, a)

    def _drop(self, _: Step, a: Key, __: Key) -> Iterator[Change]:
        if a in self.rows:
            yield self._delete(a)

    def _again(self, step: Step, a: Key, _: Key) -> Iterator[Change]:
        if a in self.rows:
            yield self._delete(a)
        yield self._create(step, a)

    def _move(self, step: Step, a: Key, b: Key) -> Iterator[Change]:
        if a in self.rows and a != b:
            if b in self.rows:
                yield self._delete(b)
            yield self._rename(step, a, b)

    def _swap(self, step: Step, a: Key, b: Key) -> Iterator[Change]:
        if a in self.rows and b in self.rows and a != b:
            aside = (step.h, ASIDE)
            for old, new in ((a, aside), (b, a), (aside, b)):
                yield self._rename(step, old, new)

    def _chain(self, step: Step, a: Key, b: Key) -> Iterator[Change]:
        if a in self.rows and b not in self.rows:
            aside = (step.h, ASIDE)
            yield self._rename(step, a, aside)
            yield self._rename(step, aside, b)
            yield self._update(step, b)

    def _return(self, step: Step, a: Key, b: Key) -> Iterator[Change]:
        if a in self.rows and b not in self.rows:
            yield self._rename(step, a, b)
            yield self._rename(step, b, a)

    def _truncate(self, _: Step, __: Key, ___: Key) -> Iterator[Change]:
        self.rows.clear()
        yield Change("truncate")

    def _reread(self, _: Step, __: Key, ___: Key) -> Iterator[Change]:
        """An incremental snapshot of the whole table."""
        yield from (Change("read", row=dict(row)) for _, row in sorted(self.rows.items()))

    def _create(self, step: Step, key: Key) -> Change:
        row = self._written(step, key, {"note": None, "big": None})
        self.rows[key] = row
        return Change("create", row=row)

    def _update(self, step: Step, key: Key) -> Change:
        before = self.rows[key]
        self.rows[key] = row = self._written(step, key, before)
        return Change("update", before, row)

    def _delete(self, key: Key) -> Change:
        self._number(key[0])
        return Change("delete", self.rows.pop(key))

    def _rename(self, step: Step, old: Key, new: Key) -> Change:
        before = self.rows.pop(old)
        self.rows[new] = row = self._written(step, new, before)
        return Change("move", before, row)

    def _written(self, step: Step, key: Key, before: Row) -> Row:
        v = self._number(key[0])
        big = (before["big"], f"large {v} of {key}", f"small {v}", None)[step.big]
        note = (before["note"], None, f"note {v} żółw")[step.note]
        return {"h": key[0], "id": key[1], "v": v, "note": note, "big": big}

    def _number(self, h: int) -> int:
        self._numbers[h] = self._numbers.get(h, 0) + 1
        return self._numbers[h]


# From steps to records


def play(steps: Sequence[Step], shape: Shape, rows: Mapping[Key, Row] = NO_ROWS) -> History:
    """Play the steps of one or many histories, merged as they stand, against one source.

    A MariaDB plays changes of rows alone: truncates and incremental snapshots are left out. With ``rows``,
    the source has these already.
    """
    if shape.source == "mariadb":
        steps = [step for step in steps if step.verb in VERBS]
    database, rnd = Database(rows), random.Random(shape.seed)
    for h in [] if rows else sorted({step.h for step in steps}):
        for i in range(shape.before):
            database.perform(Step(h, "put", i, big=1 + (h + i) % 3, note=h % 3))
    snapshot = [] if shape.snapshot == "none" else [dict(row) for _, row in sorted(database.rows.items())]
    transactions = list(_transactions(database, steps))
    render = _postgres if shape.source == "postgres" else _mariadb
    messages = render(shape, snapshot, transactions, rnd)
    records = list(Topic(shape.table.topic).append(list(messages)))
    reads = Transaction(changes=[Change("read", row=row) for row in snapshot])
    return History(shape, tuple(steps), records, database.rows, [reads, *transactions])


def failed_over(former: History, later: History) -> History:
    """The history of a source whose positions start again with ``later``, in the same partitions."""
    counts: dict[int, int] = {}
    for record in former.records:
        counts[record["partition"]] = max(counts.get(record["partition"], 0), record["offset"] + 1)
    moved = [{**each, "offset": each["offset"] + counts.get(each["partition"], 0)} for each in later.records]
    return replace(
        later,
        steps=(*former.steps, *later.steps),
        records=[*former.records, *moved],
        transactions=[*former.transactions, *later.transactions],
    )


def _transactions(database: Database, steps: Sequence[Step]) -> Iterator[Transaction]:
    current: Transaction | None = None
    for step in steps:
        changes = database.perform(step)
        if not changes:
            continue
        reread = step.verb == "reread"
        if reread and current is None:
            continue  # its position is the last commit: there has to be one
        if current is None or not step.joined or reread or current.reads:
            if current is not None:
                yield current
            current = Transaction(step.early)
        for n, change in enumerate(changes):
            if n and step.apart and not reread:
                yield current
                current = Transaction(step.early)
            current.changes.append(change)
    if current is not None:
        yield current


def _written_order(transactions: Sequence[Transaction], rnd: random.Random) -> list[list[tuple[int, int]]]:
    """The write-ahead log in segments, each ending with the commit of its transaction: (transaction, change).

    A transaction's first changes may stand in the segments of those that commit before it. Reads write none.
    """
    segments: list[list[tuple[int, int]]] = []
    for t, transaction in enumerate(transactions):
        own = [(t, n) for n in range(len(transaction.changes)) if not transaction.reads]
        earliest = t
        while earliest > max(0, t - transaction.early) and transaction.overlaps(transactions[earliest - 1]):
            earliest -= 1
        for segment in segments[earliest:t]:
            count = rnd.randint(0, len(own))
            _insert_in_order(segment, own[:count], rnd)
            own = own[count:]
        segments.append(own)
    return segments


def _insert_in_order(
    segment: list[tuple[int, int]], items: list[tuple[int, int]], rnd: random.Random
) -> None:
    places = sorted(rnd.randint(0, len(segment)) for _ in items)
    for shift, (place, item) in enumerate(zip(places, items, strict=True)):
        segment.insert(place + shift, item)


def _postgres(
    shape: Shape, snapshot: Sequence[Row], transactions: Sequence[Transaction], rnd: random.Random
) -> Iterator[Message]:
    taken = 26_000_000
    lsn = taken + 264
    lsns: dict[tuple[int, int], int] = {}
    commits: list[int] = []
    segments = _written_order(transactions, rnd)
    straddles = shape.snapshot == "open" and transactions and not transactions[0].truncates
    open_for = rnd.randint(1, len(segments[0])) if straddles else 0
    for t, segment in enumerate(segments):
        for n, item in enumerate(segment):
            lsns[item] = lsn
            lsn += 8 * rnd.randint(4, 40)
            if t == 0 and n + 1 == open_for:
                taken, lsn = lsn, lsn + 8 * rnd.randint(4, 40)
        if transactions[t].reads:
            commits.append(commits[-1])
            continue
        lsn += 48  # the commit's own record
        commits.append(lsn)
        lsn += rnd.choice((0, 0, 0, 56, 280))
    us = 1_795_202_045_759_405
    for marker, row in zip(_markers(len(snapshot)), snapshot, strict=True):
        yield shape.table.read(PostgresPosition(taken, None, 781, us, marker), row)
    written = {
        t: order for order, t in enumerate(dict.fromkeys(t for segment in segments for t, _ in segment))
    }
    for t, transaction in enumerate(transactions):
        us += rnd.choice((0, 0, 40, 300, 2000, 900_000))
        last = commits[t - 1] if t else None
        at = PostgresPosition(None, last, 800 + written.get(t, 0), us)
        for n, change in enumerate(transaction.changes):
            if change.verb == "read":
                assert change.row is not None
                yield shape.table.read(replace(at, tx=None, snapshot="incremental"), change.row)
            else:
                yield from _messages(shape, replace(at, lsn=lsns[t, n]), change)


def _mariadb(
    shape: Shape, snapshot: Sequence[Row], transactions: Sequence[Transaction], rnd: random.Random
) -> Iterator[Message]:
    file, pos, us = 999_999, 20_255, 1_795_202_006_000_000  # the file after this one has a longer number
    for marker, row in zip(_markers(len(snapshot)), snapshot, strict=True):
        yield shape.table.read(BinlogPosition(f"binlog.{file:06}", pos, 0, None, us, marker), row)
    for t, transaction in enumerate(transactions):
        us += rnd.choice((0, 0, 0, 1_000_000))
        pos += 42
        if rnd.random() < 0.05:
            file, pos = file + 1, 256
        nth = 0
        for n, change in enumerate(transaction.changes):
            together = n > 0 and transaction.changes[n - 1].verb == change.verb and rnd.random() < 0.4
            nth = nth + 1 if together else 0
            pos += 0 if together else rnd.randint(150, 900)
            yield from _messages(
                shape, BinlogPosition(f"binlog.{file:06}", pos, nth, f"0-1-{54 + t}", us), change
            )
        pos += 31


def _markers(rows: int) -> Iterator[str]:
    """`source.snapshot` of the rows of a snapshot of one table."""
    for n in range(rows):
        yield "last" if n == rows - 1 else "first" if n == 0 else "true"


def _messages(shape: Shape, at: PostgresPosition | BinlogPosition, change: Change) -> Iterator[Message]:
    table, before = shape.table, change.before
    row = None if change.row is None else change.row | dict.fromkeys(gaps(change, shape), UNAVAILABLE)
    match change.verb, before, row:
        case "truncate", _, _:
            yield table.truncate(at)
        case "create", _, dict():
            yield table.create(at, row)
        case "update", dict(), dict():
            yield table.update(at, row, before)
        case "delete", dict(), _:
            yield from table.delete(at, before)
        case "move", dict(), dict():
            yield from table.move(at, before, row)
        case _:
            raise AssertionError(change)


# Where steps come from


def steps(histories: int, *, verbs: Sequence[Verb] = VERBS, most: int = 12) -> st.SearchStrategy[list[Step]]:
    """Hypothesis: the steps of some histories, merged."""
    ids = st.integers(0, IDS - 1)
    step = st.builds(
        Step,
        h=st.integers(0, histories - 1),
        verb=st.sampled_from(verbs),
        a=ids,
        b=ids,
        big=st.integers(0, 3),
        note=st.integers(0, 2),
        apart=st.booleans(),
        joined=st.booleans(),
        early=st.integers(0, 2),
    )
    return st.lists(step, max_size=most * histories)


def shapes() -> st.SearchStrategy[Shape]:
    """Hypothesis: kinds of sources."""
    postgres = st.builds(
        Shape, snapshot=st.sampled_from(("initial", "open")), full=st.booleans(), seed=st.integers(0, 999)
    )
    return postgres | st.builds(Shape, source=st.just("mariadb"), seed=st.integers(0, 999))


def many(
    histories: range, rnd: random.Random, *, least: int = 2, most: int = 12, truncates: int = 0
) -> list[Step]:
    """The steps of many histories, each of `least` to `most`, merged at random; truncates of the table."""
    hs = [h for h in histories for _ in range(rnd.randint(least, most))]
    rnd.shuffle(hs)
    steps = [_random_step(h, rnd) for h in hs]
    for _ in range(truncates):
        joined = rnd.random() < 0.5
        steps.insert(rnd.randint(1, len(steps)), Step(histories[0], "truncate", joined=joined))
    return steps


def _random_step(h: int, rnd: random.Random) -> Step:
    return Step(
        h,
        rnd.choice(("put", "put", *VERBS)),
        rnd.randrange(IDS),
        rnd.randrange(IDS),
        big=rnd.choice((0, 0, 0, 1, 1, 2, 3)),
        note=rnd.randrange(3),
        apart=rnd.random() < 0.5,
        joined=rnd.random() < 0.5,
        early=rnd.choice((0, 0, 1, 2)),
    )
