"""Which sequences compare, and what a mirror remembers of its orders."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.codes import RELOAD_TOPIC
from lakemirror.driver.orders import Fact, Floor, Orders, Rules, kind_of, unordered
from lakemirror.driver.rules.orders import Kind, Why

pytestmark = pytest.mark.guarantee(
    "Sequences compare only inside one order: between two, a change waits, a truncate removes nothing, and a "
    "reload gives each row a place in its own"
)

Place = tuple[bytes, datetime | None, str | None, int | None, int | None]
RULES = Rules(
    {"a": "old", "a2": "old", "b": "new", "mixed": None}, {("t", 2): 1}, 5_000_000, frozenset({"timed"})
)
PLACE = "struct<seq: binary, at: timestamp, topic: string, partition: int, offset: bigint>"


def bytes_of(major: int, minor: int, tie: int = 1, epoch: int = 0) -> bytes:
    return b"".join(
        (
            epoch.to_bytes(2, "big"),
            major.to_bytes(10, "big"),
            minor.to_bytes(10, "big"),
            tie.to_bytes(4, "big"),
        )
    )


def time(seconds: float) -> datetime:
    return datetime.fromtimestamp(1_700_000_000 + seconds, UTC)


def at_offset(partition: int, offset: int, topic: str = "t", epoch: int = 0) -> Place:
    return bytes_of(0, offset + 1, epoch=epoch), None, topic, partition, offset


def at_time(seconds: float, partition: int = 0, offset: int = 7, topic: str = "t") -> Place:
    moment = time(seconds)
    micros = round(moment.timestamp() * 1_000_000)
    return bytes_of(micros, offset + 1), moment, topic, partition, offset


def truncated(seconds: float) -> Place:
    """A row of time 1 that a truncate deleted softly at a time."""
    return at_time(seconds, topic="timed")[0], time(1), "timed", 0, 3


def at_position(lsn: int, seconds: float | None, topic: str = "a", epoch: int = 0) -> Place:
    return bytes_of(lsn, lsn, epoch=epoch), None if seconds is None else time(seconds), topic, 0, 3


def nowhere(topic: str = "t") -> Place:
    return bytes(26), time(0), topic, 0, 3


def reloaded(partition: int, offset: int) -> Place:
    return bytes_of(0, offset + 2, 0), time(0), RELOAD_TOPIC, partition, 10**12


def by_columns(value: int, partition: int = 0) -> Place:
    return b"\0\0\x03" + value.to_bytes(28, "big"), None, "t", partition, 3


NOTHING: Place = (b"", None, None, None, None)
PAIRS: list[tuple[str, Place, Place, Why | None]] = [
    ("one partition", at_offset(0, 5), at_offset(0, 9), None),
    ("two partitions", at_offset(1, 5), at_offset(0, 9), Why.PARTITION),
    ("two partitions, above", at_offset(1, 50), at_offset(0, 9), Why.PARTITION),
    ("two topics", at_offset(0, 5, "u"), at_offset(0, 9), Why.PARTITION),
    ("a higher epoch", at_offset(1, 5, epoch=1), at_offset(0, 9), None),
    ("a lower epoch of the same partition", at_offset(0, 5), at_offset(0, 2, epoch=1), None),
    ("a lower epoch of a partition that is in none", at_offset(1, 5), at_offset(0, 2, epoch=1), Why.EPOCH),
    ("a lower epoch of a partition that begins it later", at_offset(2, 5), at_offset(0, 2, epoch=1), None),
    ("times that differ", at_time(1, 0), at_time(2, 1), None),
    ("equal times of two partitions", at_time(1, 0), at_time(1, 1, 8), Why.TIE),
    ("equal times of one partition", at_time(1, 0), at_time(1, 0, 8), None),
    ("positions of one log", at_position(5, 1), at_position(9, 0, "a2"), None),
    ("another log, below and later", at_position(5, 100, "b"), at_position(9, 0), Why.MOVED),
    ("another log, below and hardly later", at_position(5, 3, "b"), at_position(9, 0), Why.LOG),
    ("another log, above and later", at_position(50, 100, "b"), at_position(9, 0), None),
    ("another log, above and earlier", at_position(50, 0, "b"), at_position(9, 100), Why.LOG),
    ("another log, below and earlier", at_position(5, 0, "b"), at_position(9, 100), None),
    ("another log, the same change", at_position(9, 0, "b"), at_position(9, 0), None),
    ("another log, without a time", at_position(5, None, "b"), at_position(9, 0), Why.LOG),
    ("another log in a higher epoch", at_position(5, 100, "b", 1), at_position(9, 0), None),
    ("a topic of two logs", at_position(50, 0, "mixed"), at_position(9, 100, "mixed"), Why.LOG),
    ("an unknown topic", at_position(5, 100, "c"), at_position(9, 0), Why.MOVED),
    ("a time and an offset", at_time(1), at_offset(0, 9), Why.KIND),
    ("an offset and a time", at_offset(0, 9), at_time(1), Why.KIND),
    ("a time and a row that a truncate deleted softly", at_time(9, 0, topic="timed"), truncated(2), None),
    ("a time and a row that a truncate of then deleted", at_time(2, 1, topic="timed"), truncated(2), Why.TIE),
    ("a position and an offset", at_position(5, 1, "t"), at_offset(0, 9), Why.KIND),
    ("nothing and an offset", nowhere(), at_offset(0, 9), None),
    ("an offset and nothing", at_offset(1, 9), nowhere(), None),
    ("a reload of its partition", at_offset(1, 9), reloaded(2, 7), None),
    ("a reload of another partition", at_offset(0, 9), reloaded(2, 7), Why.PARTITION),
    ("a reload that did not note the partition", at_offset(1, 9), reloaded(0, 7), None),
    ("a reload over anything", reloaded(1, 7), at_offset(1, 9), None),
    ("a position after a reload", at_position(5, 1), (bytes_of(4, 4, 0), time(0), RELOAD_TOPIC, 0, 1), None),
    ("columns", by_columns(5, 1), by_columns(9, 0), None),
]


def test_what_compares_with_what(spark: SparkSession) -> None:
    frame = spark.createDataFrame(
        [(name, mine, other) for name, mine, other, _ in PAIRS], f"name STRING, mine {PLACE}, other {PLACE}"
    )
    why = unordered(Fact.of(F.col("mine")), Fact.of(F.col("other")), RULES)
    found = frame.select("name", why.alias("why"), kind_of(Fact.of(F.col("mine"))).alias("kind")).collect()
    assert {row["name"]: row["why"] for row in found} == {name: why for name, _, _, why in PAIRS}
    assert {row["kind"] for row in found} == set(Kind)


def test_rows_of_files_are_one_order_whatever_folder_they_are_in(spark: SparkSession) -> None:
    """Their topics are the folders."""
    pairs = [
        (at_offset(0, 9, "2026-01-02"), at_offset(0, 5, "2026-01-01"), None),
        (at_time(1, 0, 9, "2026-01-02"), at_time(1, 0, 8, "2026-01-01"), None),
        (at_position(5, 100, "2026-01-02"), at_position(9, 0, "2026-01-01"), None),
        (at_offset(0, 9), reloaded(2, 7), None),
        (at_time(1), at_offset(0, 9), Why.KIND),
    ]
    rules = Rules({"": "log"}, one=True)
    frame = spark.createDataFrame([pair[:2] for pair in pairs], f"mine {PLACE}, other {PLACE}")
    why = unordered(Fact.of(F.col("mine")), Fact.of(F.col("other")), rules)
    assert [row["why"] for row in frame.select(why.alias("why")).collect()] == [each for *_, each in pairs]
    kinds = (Kind.OFFSET, Kind.TIME, Kind.POSITION)
    for kind in kinds:
        places = (
            [(kind, "a", 0), (kind, "b", 0)]
            if kind != Kind.POSITION
            else [(kind, "a", None), (kind, "b", "x")]
        )
        orders = Orders.of(places)
        assert orders.several or orders.may_tie
        assert not orders.as_one.several
        assert not orders.as_one.may_tie
    assert Orders.of([(kind, "a", 0) for kind in kinds[:2]]).as_one.several


def test_a_floor_is_one_of_its_order(spark: SparkSession) -> None:
    floor = Floor(bytes_of(0, 1002), Kind.OFFSET, "t", 0)
    timed = Floor(at_time(1)[0], Kind.TIME, "t", 0)
    of_log = Floor(bytes_of(9, 9), Kind.POSITION, "a", 0, ("a", "a2"))
    cases = [
        (at_offset(0, 5), floor, True),
        (at_offset(1, 5), floor, False),
        (at_offset(0, 5, "u"), floor, False),
        (at_time(1), floor, False),
        (reloaded(2, 5), floor, True),
        (at_time(1, 1), timed, False),
        (at_time(0, 1), timed, True),
        (at_position(5, 1, "a2"), of_log, True),
        (at_position(5, 1, "b"), of_log, False),
    ]
    for place, each, expected in cases:
        frame = spark.createDataFrame([(place,)], f"place {PLACE}")
        row = frame.select(each.compares(Fact.of(F.col("place")))).first()
        assert row is not None
        assert row[0] is expected, (place, each)


@pytest.mark.parametrize(
    ("places", "several", "may_tie"),
    [
        ([], False, False),
        ([(Kind.OFFSET, "t", 0)], False, False),
        ([(Kind.OFFSET, "t", 0), (Kind.OFFSET, "t", 1)], True, False),
        ([(Kind.OFFSET, "t", 0), (Kind.OFFSET, "u", 0)], True, False),
        ([(Kind.TIME, "t", 0), (Kind.TIME, "t", 1)], False, True),
        ([(Kind.TIME, "t", 0), (Kind.OFFSET, "t", 0)], True, False),
        ([(Kind.POSITION, "a", "old"), (Kind.POSITION, "a2", "old")], False, False),
        ([(Kind.POSITION, "a", "old"), (Kind.POSITION, "b", "new")], True, False),
        ([(Kind.POSITION, "a", "old"), (Kind.POSITION, "a", "new")], True, False),
        ([(Kind.POSITION, "a", None), (Kind.POSITION, "a", "old")], False, False),
        ([(Kind.POSITION, "a", None), (Kind.POSITION, "b", None)], True, False),
        ([(Kind.TIME, "a", 0), (Kind.POSITION, "a", None)], False, False),
        ([(Kind.TIME, "a", 0), (Kind.POSITION, "a", "old")], True, False),
        (
            [(Kind.GIVEN, RELOAD_TOPIC, None), (Kind.NOTHING, "a", None), (Kind.POSITION, "a", "old")],
            False,
            False,
        ),
        ([(Kind.COLUMNS, "t", 0), (Kind.COLUMNS, "t", 1)], False, False),
    ],
)
def test_several_orders(places: list[tuple[str, str, object]], several: bool, may_tie: bool) -> None:
    """What is remembered as text is the same, whatever order it came in."""
    orders = Orders.of(places)
    assert (orders.several, orders.may_tie) == (several, may_tie)
    again = Orders()
    for place in reversed(places):
        again |= Orders.of([place])
    assert again == orders
    assert Orders.from_text(orders.to_text()) == orders
