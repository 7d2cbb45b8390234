"""The fold of facts into versions, without Delta: what is stored and a batch give the history of all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, StringType

from lakemirror.driver.reduce import scd2
from lakemirror.driver.reduce.scd2 import Scd2, Truncate
from lakemirror.driver.sequence import WIDTH

pytestmark = pytest.mark.guarantee(
    "A mirror of versions has the history of the source, in any order of delivery"
)

COLUMNS: dict[str, DataType] = {"id": IntegerType(), "v": StringType(), "big": StringType()}
KEY, ROW = "STRUCT<id: INT>", "STRUCT<id: INT, v: STRING, big: STRING>"
STATE = (
    f"key {KEY}, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic STRING, "
    f"partition INT, offset BIGINT, digest BIGINT, row {ROW}, gaps ARRAY<STRING>, "
    f"texts MAP<STRING, STRING>, new_key {KEY}, old_key {KEY}, records INT"
)
STORED = (
    f"key {KEY}, row {ROW}, seq BINARY, op STRING, event_time TIMESTAMP, "
    "origin STRUCT<topic: STRING, partition: INT, offset: BIGINT>, seqs MAP<STRING, BINARY>, "
    f"texts MAP<STRING, STRING>, was {scd2.WAS}, anchored BOOLEAN"
)
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


class Event(NamedTuple):
    """`at` is its place; `big` None: the source left that out. `offset` None: as its place."""

    at: int
    op: str = "u"
    v: str = "a"
    big: str | None = "x"
    key: int = 1
    time: int | None = None
    offset: int | None = None


class Shown(NamedTuple):
    start: int
    end: int | None
    v: str
    big: str | None
    is_deleted: bool = False


def seq(number: int) -> bytes:
    return (number * 2**32 + 1).to_bytes(WIDTH, "big")


def moment(at: int) -> datetime:
    return BEGAN + timedelta(seconds=at)


class Mirror:
    """Versions that batches have been folded into, as rows of Python."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.rows: dict[tuple[int, bytes], Any] = {}
        self.deleted: list[Any] = []
        self.truncates: list[Truncate] = []
        self.counts = {"applied": 0, "stale": 0, "repeated": 0}

    def apply(self, batch: Sequence[Event]) -> Mirror:
        """Fold a batch of events, with all that is stored of its keys."""
        new = [Truncate(seq(e.at), moment(_time(e))) for e in batch if e.op == "t"]
        self.truncates += [each for each in new if each not in self.truncates]
        events = [e for e in batch if e.op != "t"]
        state = scd2.distinct(self.spark.createDataFrame([_row(e) for e in events], STATE), ["big"])
        firsts: dict[int, int] = {}
        for e in events:
            firsts[e.key] = min(firsts.get(e.key, e.at), e.at)
        stored = []
        for key in {key for key, _ in self.rows} if new else firsts:
            of_key = sorted((place, row) for (k, place), row in self.rows.items() if k == key)
            below = [place for place, _ in of_key if not new and place < seq(firsts[key])]
            for place, row in of_key:
                if not below or place >= below[-1]:
                    stored.append({**row, "anchored": bool(below) and place == below[-1]})
        facts = scd2.of_events(state, ["big"]).unionByName(
            scd2.of_versions(self.spark.createDataFrame(stored, STORED))
        )
        tombstones = self.spark.createDataFrame(
            self.deleted,
            f"key {KEY}, seq BINARY, event_time TIMESTAMP, topic STRING, partition INT, offset BIGINT, "
            "seqs MAP<STRING, BINARY>, batch BIGINT",
        )
        facts = facts.unionByName(scd2.of_tombstones(tombstones, facts))
        plan = Scd2(COLUMNS, ["id"], ["big"], self.truncates)
        self._put(scd2.fold(facts, plan, batch=1).localCheckpoint())
        return self

    def _put(self, versions: DataFrame) -> None:
        for name in self.counts:
            self.counts[name] += versions.agg(F.sum(name)).collect()[0][0] or 0
        for each in versions.where("kind = 'event' AND op = 'd'").collect():
            place = {name: each[name] for name in ("event_time", "topic", "partition", "offset", "seqs")}
            self.deleted.append({"key": each["key"], "seq": each["seq"], "batch": 0, **place})
        rows = [row.asDict() for row in scd2.puts(versions, ["id"]).collect()]
        for row in sorted(rows, key=lambda row: row["todo"]):  # what is gone first
            named = row["key"]["id"], bytes(row["key"]["__seq"])
            if row["todo"] == "gone":
                del self.rows[named]
                continue
            was = {"valid_from", "valid_to", "is_current", "is_deleted", "delete_seq", "seq", "began"}
            self.rows[named] = {
                **{name: row[name] for name in ("row", "seq", "op", "event_time", "seqs", "texts")},
                "key": {"id": row["key"]["id"]},
                "origin": {name: row[name] for name in ("topic", "partition", "offset")},
                "was": {name: row[name] for name in was},
            }

    def shown(self, key: int = 1) -> list[Shown]:
        """The versions of a key, oldest first, with times as the events have them."""
        found = []
        for (k, _), row in sorted(self.rows.items(), key=lambda item: item[0]):
            if k == key:
                was = row["was"]
                assert was["is_current"] == (was["valid_to"] is None)
                start, end = _seconds(was["valid_from"]), _seconds(was["valid_to"])
                assert start is not None
                found.append(Shown(start, end, row["row"]["v"], row["row"]["big"], was["is_deleted"]))
        return found


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else round((time.astimezone(UTC) - BEGAN).total_seconds())


def _time(event: Event) -> int:
    return event.at if event.time is None else event.time


def _row(e: Event) -> tuple[Any, ...]:
    row = None if e.op == "d" else (e.key, e.v, e.big)
    gaps = ["big"] if e.op != "d" and e.big is None else []
    offset = e.at if e.offset is None else e.offset
    place = (e.op, seq(e.at), False, moment(_time(e)), "topic", 0, offset)
    return ((e.key,), *place, hash((e.op, e.v, e.big)) % 2**31, row, gaps, None, None, None, 1)


def folded(spark: SparkSession, *batches: Sequence[Event]) -> Mirror:
    mirror = Mirror(spark)
    for batch in batches:
        mirror.apply(batch)
    return mirror


INSERT, UPDATE = Event(10, "c", "a"), Event(30, "u", "c")


CASES: list[tuple[str, Sequence[Sequence[Event]], list[Shown]]] = [
    (
        "a late update parts a version",
        ([INSERT, UPDATE], [Event(20, "u", "b")]),
        [Shown(10, 20, "a", "x"), Shown(20, 30, "b", "x"), Shown(30, None, "c", "x")],
    ),
    (
        "a late delete leaves a gap",
        ([INSERT, UPDATE], [Event(20, "d")]),
        [Shown(10, 20, "a", "x"), Shown(30, None, "c", "x")],
    ),
    (
        "a row that is inserted again is deleted no more",
        ([INSERT], [Event(20, "d")], [Event(30, "c", "b")]),
        [Shown(10, 20, "a", "x"), Shown(30, None, "b", "x")],
    ),
    ("a delete", ([INSERT], [Event(20, "d")]), [Shown(10, 20, "a", "x", is_deleted=True)]),
    (
        "a delete before its insert",
        ([Event(20, "d")], [INSERT]),
        [Shown(10, 20, "a", "x", is_deleted=True)],
    ),
    (
        "the second of two deletes counts for what comes between them",
        ([INSERT, Event(20, "d")], [Event(40, "d")], [Event(30, "c", "b")]),
        [Shown(10, 20, "a", "x"), Shown(30, 40, "b", "x", is_deleted=True)],
    ),
    (
        "a truncate, and a late one before it",
        ([INSERT], [Event(40, "t")], [UPDATE], [Event(20, "t")]),
        [Shown(10, 20, "a", "x"), Shown(30, 40, "c", "x", is_deleted=True)],
    ),
    (
        "an insert older than a truncate",
        ([Event(20, "t", key=2)], [INSERT]),
        [Shown(10, 20, "a", "x", is_deleted=True)],
    ),
    (
        "a value that was left out is that of the version before",
        ([INSERT], [Event(30, "u", "c", big=None)], [Event(40, "u", "d", big=None)]),
        [Shown(10, 30, "a", "x"), Shown(30, 40, "c", "x"), Shown(40, None, "d", "x")],
    ),
    (
        "and corrected when that comes late",
        (
            [INSERT, Event(30, "u", "c", big=None), Event(40, "u", "d", big=None)],
            [Event(20, "u", "b", big="y")],
        ),
        [
            Shown(10, 20, "a", "x"),
            Shown(20, 30, "b", "y"),
            Shown(30, 40, "c", "y"),
            Shown(40, None, "d", "y"),
        ],
    ),
    (
        "no value passes a delete",
        ([INSERT, Event(30, "u", "c", big=None)], [Event(20, "d")]),
        [Shown(10, 20, "a", "x"), Shown(30, None, "c", None)],
    ),
    (
        "changes of one time are versions without length",
        ([Event(10, "c", "a", time=5), Event(20, "u", "b", time=5), Event(30, "u", "c", time=9)],),
        [Shown(5, 5, "a", "x"), Shown(5, 9, "b", "x"), Shown(9, None, "c", "x")],
    ),
    (
        "a clock that goes back does not make versions overlap",
        ([Event(10, "c", "a", time=50)], [Event(20, "u", "b", time=40)], [Event(30, "u", "c", time=60)]),
        [Shown(50, 50, "a", "x"), Shown(50, 60, "b", "x"), Shown(60, None, "c", "x")],
    ),
    (
        "of two changes at one place the later arrival counts",
        (
            [Event(10, "c", "a", offset=7)],
            [Event(10, "c", "b", offset=9)],
            [Event(10, "c", "z", offset=8)],
        ),
        [Shown(10, None, "b", "x")],
    ),
    (
        "a value that a change left out is that of the change before it at its place",
        (
            [INSERT],
            [Event(30, "u", "b", big="y", offset=1), Event(30, "u", "c", big=None, offset=2)],
            [Event(40, "u", "d", big=None)],
        ),
        [Shown(10, 30, "a", "x"), Shown(30, 40, "c", "y"), Shown(40, None, "d", "y")],
    ),
    *(
        (
            f"and also if that comes {when}",
            (
                [INSERT],
                [Event(30, "u", *first)],
                [Event(40, "u", "d", big=None)],
                [Event(30, "u", *then)],
            ),
            [Shown(10, 30, "a", "x"), Shown(30, 40, "c", "y"), Shown(40, None, "d", "y")],
        )
        for when, first, then in (
            ("in a batch before", ("b", "y", 1, None, 1), ("c", None, 1, None, 2)),
            ("late", ("c", None, 1, None, 2), ("b", "y", 1, None, 1)),
        )
    ),
    (
        "a create that left a value out begins a new life also if it changes at its place",
        ([INSERT], [Event(20, "c", "b", big=None, offset=1), Event(20, "u", "c", big=None, offset=2)]),
        [Shown(10, 20, "a", "x"), Shown(20, None, "c", None)],
    ),
    (
        "a row that is created and deleted at one place is gone after both are sent again",
        (
            [Event(10, "c", "a", offset=1), Event(10, "d", offset=2)],
            [Event(10, "c", "a", offset=3)],
            [Event(10, "d", offset=4)],
        ),
        [],
    ),
    (
        "a row that was read after it was changed",
        ([Event(20, "u", "b")], [Event(15, "r", "a")]),
        [Shown(15, 20, "a", "x"), Shown(20, None, "b", "x")],
    ),
]


def truncated(batches: Sequence[Sequence[Event]]) -> bool:
    return any(event.op == "t" for batch in batches for event in batch)


@pytest.fixture(scope="module")
def beside_each_other(spark: SparkSession) -> Mirror:
    """The cases without truncates, which are of a whole table, each as the row with the key of its number."""
    moved = [
        [[event._replace(key=number) for event in batch] for batch in batches]
        for number, (_, batches, _) in enumerate(CASES)
        if not truncated(batches)
    ]
    rounds = zip_longest(*moved, fillvalue=())
    return folded(spark, *([event for batch in round_ for event in batch] for round_ in rounds))


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, _, _ in CASES])
def test_a_hard_case(number: int, spark: SparkSession, beside_each_other: Mirror) -> None:
    what, batches, expected = CASES[number]
    found = folded(spark, *batches).shown() if truncated(batches) else beside_each_other.shown(number)
    assert found == expected, what


def test_every_event_is_counted_once(spark: SparkSession) -> None:
    batches = [
        [INSERT, INSERT._replace(offset=11), UPDATE],
        [INSERT._replace(offset=12), Event(30, "u", "z", offset=1), Event(20, "d"), Event(50, "d")],
        [Event(20, "d", offset=99), Event(50, "d")],
    ]
    mirror = folded(spark, *batches)
    assert mirror.counts == {"applied": 4, "stale": 1, "repeated": 3}
    assert mirror.shown() == [Shown(10, 20, "a", "x"), Shown(30, 50, "c", "x", is_deleted=True)]


def test_a_batch_that_comes_again_changes_nothing(spark: SparkSession) -> None:
    batch = [INSERT, Event(20, "u", "b", big=None), Event(25, "d"), UPDATE, Event(35, "u", "d", big=None)]
    mirror = folded(spark, batch)
    before = dict(mirror.rows)
    state = mirror.apply(batch)
    assert state.rows == before
    assert state.counts == {"applied": 5, "stale": 0, "repeated": 5}


# -- any delivery -------------------------------------------------------------------------------------


def reference(events: Iterable[Event], key: int) -> list[Shown]:
    """The history that the events of a key make, in their order; a model without batches."""
    found: list[Shown] = []
    latest, big, is_open = 0, None, False
    for e in sorted(set(events)):
        if e.op != "t" and e.key != key:
            continue
        latest = max(latest, _time(e))
        if is_open:
            found[-1] = found[-1]._replace(end=latest, is_deleted=e.op in "dt")
        if e.op in "dt":
            big, is_open = None, False
            continue
        big = e.big if e.big is not None else None if e.op == "c" else big
        found = [each._replace(is_deleted=False) for each in found]
        found.append(Shown(latest, None, e.v, big))
        is_open = True
    return found


@st.composite
def deliveries(draw: st.DrawFn) -> list[list[Event]]:
    """Events at places of their own, some twice, in any order and batches; times nearly go with places."""
    count = draw(st.integers(3, 14))
    events = [
        Event(
            at,
            draw(st.sampled_from("ccuuuudr" + ("t" if draw(st.booleans()) else ""))),
            draw(st.sampled_from("abc")),
            draw(st.sampled_from([None, "x", "y"])),
            draw(st.integers(1, 3)),
            at + draw(st.sampled_from([0, 0, 0, -3, 3])),
        )
        for at in range(10, 10 + count)
    ]
    events = [e._replace(v="", big=None, key=0) if e.op == "t" else e for e in events]
    sent = draw(st.permutations([*events, *draw(st.lists(st.sampled_from(events), max_size=4))]))
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True) if start < end]


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(batches=deliveries())
def test_any_delivery_gives_the_history_of_one_in_order(
    spark: SparkSession, batches: list[list[Event]]
) -> None:
    mirror = folded(spark, *batches)
    sent = [event for batch in batches for event in batch]
    for key in (1, 2, 3):
        assert mirror.shown(key) == reference(sent, key)
