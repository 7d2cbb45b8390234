"""Which sequences compare: every pair of kinds, and the changes of one key in a batch."""

from __future__ import annotations

import pytest

from lakemirror.driver.codes import RELOAD_TOPIC
from lakemirror.driver.rules.orders import (
    Change,
    Kind,
    Orders,
    Place,
    Truncated,
    Why,
    kind_of,
    unordered,
    waiting,
)
from lakemirror.driver.rules.positions import Origin, Source, sequence

pytestmark = pytest.mark.guarantee(
    "The rules of a mirror need no Spark, and do not depend on the order in which changes, blocks or batches "
    "arrive"
)


def position(lsn: int, at: int = 0, topic: str = "a", partition: int = 0, epoch: int = 0) -> Place:
    source = Source("postgresql", lsn=lsn)
    seq = sequence(source, Origin(topic, partition, 1), snapshot=False)
    return Place(epoch.to_bytes(2, "big") + seq[2:], at, Origin(topic, partition, 1))


def offset(number: int, topic: str = "a", partition: int = 0) -> Place:
    origin = Origin(topic, partition, number)
    return Place(sequence(Source(), origin, snapshot=False, by="offset"), None, origin)


def time(micros: int, partition: int = 0, number: int = 5) -> Place:
    origin = Origin("a", partition, number)
    return Place(sequence(Source(ts_us=micros), origin, snapshot=False), micros, origin)


NOTHING = Place(bytes(26), None, Origin("a", 0, 3))
COLUMNS = Place(bytes(2) + b"\3" * 29, None, Origin("a", 0, 3))
GIVEN = Place(b"\0\0" + b"\1" * 24, None, Origin("__lakemirror.repair", 0, 3))
LOGS = Orders(logs={"a": "shop", "b": "shop", "c": "other"}, tolerance=5)


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (position(5), Kind.POSITION),
        (offset(5), Kind.OFFSET),
        (time(5), Kind.TIME),
        (NOTHING, Kind.NOTHING),
        (NOTHING._replace(seq=bytes(25) + b"\1"), Kind.NOTHING),  # a change without a place, after a row
        (COLUMNS, Kind.COLUMNS),
        (COLUMNS._replace(seq=bytes(24)), Kind.COLUMNS),  # of another length than all other sequences
        (COLUMNS._replace(seq=bytes(31)), Kind.COLUMNS),
        (GIVEN, Kind.GIVEN),
        (time(5)._replace(at=6), Kind.POSITION),  # the bytes of a time repeat what the change says
        (time(5)._replace(at=4), Kind.POSITION),
        (Place(bytes(2) + (5).to_bytes(10, "big") + bytes(14), 5, Origin()), Kind.TIME),  # without an offset
    ],
)
def test_the_bytes_tell_what_a_sequence_is_made_of(place: Place, kind: Kind) -> None:
    assert kind_of(place) is kind


@pytest.mark.parametrize(
    ("mine", "other", "why"),
    [
        (position(5), None, None),
        (position(5), position(9), None),
        (position(5), position(9, topic="b"), None),  # two topics of one log
        (position(5, at=3), position(9, at=4, topic="c"), None),  # two logs, and times agree
        (position(5, at=5), position(9, at=4, topic="c"), Why.LOG),
        (position(5, at=20), position(9, at=4, topic="c"), Why.MOVED),
        (position(9, at=3), position(5, at=4, topic="c"), Why.LOG),
        (position(9, at=4), position(9, at=4, topic="c"), None),
        (position(5, topic="x"), position(9, topic="y"), None),
        (position(5, at=1, topic="x"), position(9, topic="y"), Why.LOG),
        (position(5, at=20), position(9, at=4, topic="b"), None),  # within a log, only positions count
        (position(5, at=20, topic="x"), position(9, at=4, topic="x"), None),
        (position(5, at=9), position(9, at=4, topic="c"), Why.LOG),  # clocks may differ by so much
        (position(5, at=10), position(9, at=4, topic="c"), Why.MOVED),
        (position(9, at=5), position(5, at=4, topic="c"), None),
        (position(9, at=4), position(5, at=4, topic="c"), None),
        (position(5, at=4), position(9, at=4, topic="c"), None),
        (position(5, at=3), position(9, topic="c")._replace(at=None), Why.LOG),
        (position(5, topic="c")._replace(at=None), position(9, at=3), Why.LOG),
        (offset(5), offset(9), None),
        (offset(5), offset(9, partition=1), Why.PARTITION),
        (offset(5), offset(9, topic="b"), Why.PARTITION),
        (time(5), time(6, partition=1), None),
        (time(5), time(5, number=9), None),
        (time(5), time(5, partition=1), Why.TIE),
        (time(5), position(5), Why.KIND),
        (offset(5), time(5), Why.KIND),
        (NOTHING, position(5), None),
        (position(5), NOTHING, None),
        (GIVEN, offset(5, topic="z"), None),
        (COLUMNS, position(5), None),
        (position(5), GIVEN, None),
        (position(5, epoch=1), offset(5, topic="z"), None),  # a higher epoch is later
        (position(5, partition=1), position(9, epoch=1), Why.EPOCH),
        (position(5), position(9, epoch=1), None),  # the same partition has reached it
    ],
)
def test_two_sequences_compare_or_it_is_said_why_not(
    mine: Place, other: Place | None, why: Why | None
) -> None:
    assert unordered(mine, other, LOGS) is why


def test_a_partition_that_is_declared_to_be_in_the_epoch_compares() -> None:
    orders = Orders(reached={("a", 1): 1})
    assert unordered(position(5, partition=1), position(9, epoch=1), orders) is None


def test_rows_of_files_are_one_order() -> None:
    files = Orders(of_files=True)
    assert unordered(offset(5), offset(9, partition=1), files) is None
    assert unordered(time(5), time(5, partition=1), files) is None


def test_a_reload_notes_the_partition_that_a_row_was_from() -> None:
    seq = offset(50).seq
    row = Place(seq, None, Origin(RELOAD_TOPIC, 1 + 2, 0))
    assert unordered(offset(60, partition=2), row, LOGS) is None
    assert unordered(offset(60, partition=3), row, LOGS) is Why.PARTITION
    assert unordered(offset(60, partition=3), Place(seq, None, Origin(RELOAD_TOPIC, 0, 0)), LOGS) is None
    assert unordered(position(60, partition=3), row, LOGS) is None
    assert unordered(Place(seq, None, Origin("a", None, 60)), row, LOGS) is None


def test_rows_of_topics_that_times_order_are_compared_as_times() -> None:
    truncated = position(7)
    assert unordered(time(9), truncated, Orders()) is Why.KIND
    assert unordered(time(9), truncated, Orders(timed=frozenset({"a"}))) is None
    assert unordered(time(9), truncated, Orders(timed=frozenset({"b"}))) is Why.KIND
    assert unordered(time(9), offset(3), Orders(timed=frozenset({"a"}))) is Why.KIND
    assert unordered(time(9), truncated, Orders(timed=frozenset({"b"}), of_files=True)) is None


def test_in_a_batch_the_order_of_a_create_stands_for_a_row_that_is_new() -> None:
    changes = [Change("u", offset(5, partition=0)), Change("c", offset(3, partition=1))]
    assert waiting(changes, None, Orders()) == [Why.PARTITION, None]
    assert waiting(changes[::-1], None, Orders()) == [None, Why.PARTITION]
    assert waiting(changes, offset(1, partition=0), Orders()) == [None, Why.PARTITION]


def test_changes_of_a_batch_have_to_compare_with_each_other() -> None:
    changes = [Change("u", time(5, partition=0)), Change("u", time(5, partition=1))]
    assert waiting(changes, time(1), Orders()) == [None, Why.TIE]
    assert waiting(changes[::-1], time(1), Orders()) == [Why.TIE, None]
    logs = [
        Change("u", position(10, at=10)),
        Change("u", position(20, at=5, topic="c")),
        Change("u", position(30, at=30)),
    ]
    assert waiting(logs, position(1, at=1), LOGS) == [None, Why.LOG, None]
    latest = [
        Change("u", position(5, at=1, topic="c")),
        Change("u", position(20, at=50, topic="c")),
        Change("u", position(30, at=40)),
    ]
    assert waiting(latest, position(1, topic="c"), LOGS) == [None, None, Why.LOG]


def test_of_changes_in_several_topics_the_first_topic_stands_for_a_row_that_is_new() -> None:
    creates = [Change("c", offset(3, topic="b")), Change("c", offset(5, partition=1))]
    assert waiting(creates, None, Orders()) == [Why.PARTITION, None]
    ties = [Change("u", time(5, partition=0)), Change("u", time(5, partition=1))]
    ties[0] = Change("u", ties[0].place._replace(origin=Origin("b", 0, 5)))
    assert waiting(ties, time(1), Orders()) == [Why.TIE, None]
    nowhere = Change("c", Place(offset(3).seq, None, Origin(None, None, 3)))
    assert waiting([nowhere, creates[1]], None, Orders()) == [None, Why.PARTITION]


def test_a_truncate_removes_only_what_compares_with_it() -> None:
    by_offset = Truncated(offset(50).seq, Kind.OFFSET, Origin("a", 0, 50))
    assert by_offset.removes(offset(49))
    assert not by_offset.removes(offset(51))
    assert not by_offset.removes(offset(49, partition=1))
    by_time = Truncated(time(50).seq, Kind.TIME, Origin("a", 0, 5))
    assert by_time.removes(time(49, partition=1))
    assert not by_time.removes(time(50, partition=1, number=2))
    by_position = Truncated(position(50).seq, Kind.POSITION, Origin("a", 0, 1), frozenset({"a", "b"}))
    assert by_position.removes(position(49, topic="b"))
    assert not by_position.removes(position(49, topic="c"))
    assert not by_position.removes(offset(1))
    assert by_position.compares(GIVEN)
    assert by_position.compares(COLUMNS)
    above = Truncated(position(50, epoch=1).seq, Kind.POSITION, Origin("a", 0, 1), frozenset({"a"}))
    assert above.removes(position(99, topic="c"))
    assert Truncated(position(50).seq).removes(offset(1, partition=7))


def in_epoch(number: int, place: Place) -> Place:
    return place._replace(seq=number.to_bytes(2, "big") + place.seq[2:])


def test_an_epoch_does_not_change_what_a_sequence_is_made_of() -> None:
    for place in (position(5), offset(5), time(5), NOTHING, COLUMNS, GIVEN):
        assert kind_of(in_epoch(3, place)) is kind_of(place)
    nowhere = Place(bytes(26), 0, Origin())
    assert kind_of(nowhere) is Kind.NOTHING
    assert kind_of(time(5)._replace(origin=Origin("a", 0))) is Kind.POSITION


def test_a_topic_of_several_logs_is_compared_by_the_times_of_its_changes() -> None:
    several = Orders(logs={"a": None}, tolerance=5)
    assert unordered(position(5, at=1), position(9, at=4), several) is None
    assert unordered(position(5, at=5), position(9, at=4), several) is Why.LOG
    assert [several.log_of(each) for each in ("a", "b", None)] == [None, "topic b", "topic "]
    files = Orders(logs={"": "shop", "a": None}, of_files=True)
    assert [files.log_of(each) for each in ("a", None)] == ["shop", "shop"]
    assert unordered(position(5, at=5), position(9, at=4), files) is None
    assert Orders(of_files=True).log_of("a") is None


def test_only_a_reload_notes_a_partition() -> None:
    repaired = Place(offset(50).seq, None, Origin("__lakemirror.repair", 3, 0))
    assert unordered(offset(60, partition=7), repaired, LOGS) is None
    row = Place(offset(50).seq, None, Origin(RELOAD_TOPIC, 3, 0))
    assert unordered(offset(60, partition=7), row, LOGS) is Why.PARTITION
    assert unordered(offset(60, partition=7), row, Orders(of_files=True)) is None
    first = row._replace(origin=Origin(RELOAD_TOPIC, 1, 0))
    assert unordered(offset(60, partition=7), first, LOGS) is Why.PARTITION
    assert (
        unordered(offset(60, partition=7), row._replace(origin=Origin(RELOAD_TOPIC, None, 0)), LOGS) is None
    )


def test_a_partition_has_reached_an_epoch_if_the_manifest_says_so() -> None:
    mine, other = in_epoch(1, position(5, partition=1)), in_epoch(2, position(9))
    assert unordered(mine, other, Orders(reached={("a", 1): 1})) is Why.EPOCH
    assert unordered(mine, other, Orders(reached={("a", 1): 2})) is None
    assert unordered(mine, other, Orders(reached={("a", 1): 3})) is None
    assert unordered(mine, other, Orders(reached={("b", 1): 2})) is Why.EPOCH
    assert unordered(mine, other, Orders(of_files=True)) is None
    nowhere = mine._replace(origin=Origin())
    assert unordered(nowhere, other, Orders(reached={("a", 1): 2})) is Why.EPOCH
    unnumbered = mine._replace(origin=Origin("a"))
    assert unordered(unnumbered, other, Orders(reached={("a", 0): 2})) is Why.EPOCH


def test_a_truncate_in_a_lower_epoch_removes_nothing_of_a_higher_one() -> None:
    below = Truncated(position(50).seq, Kind.POSITION, Origin("a", 0, 1), frozenset({"a"}))
    assert not below.removes(in_epoch(1, position(3)))
    assert not below.compares(in_epoch(1, offset(3)))
    alone = Truncated(position(50).seq, Kind.POSITION, Origin("a", 0, 1))
    assert alone.removes(position(49))
    assert not alone.removes(position(49, topic="b"))
    assert below.removes(position(50))
    nothing = Truncated(bytes(26), Kind.NOTHING)
    assert nothing.compares(NOTHING)


def test_after_a_reload_the_changes_of_a_batch_have_to_compare_with_each_other() -> None:
    changes = [Change("u", offset(5)), Change("u", offset(6, partition=1)), Change("u", offset(7))]
    assert waiting(changes, GIVEN, Orders()) == [None, Why.PARTITION, None]
