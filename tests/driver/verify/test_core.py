"""Narrowing and judging: what differs is found, exactly that, and what is on its way is no difference."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.verify.arrivals import Arrivals, Place, passed
from lakemirror.driver.verify.ranges import Digest, KeyRange, narrow
from lakemirror.driver.verify.repairs import epoch_for
from lakemirror.driver.verify.verdict import NOTHING, Reading, Stored, Verdict, judge, settle

Rows = dict[int, int]


@dataclass
class Memory:
    """Two sides in memory; counts what is read of them."""

    source: Rows
    mirror: Rows
    reads: list[int] = field(default_factory=list)
    compared: int = 0

    def digests(self, ranges: Sequence[KeyRange]) -> list[tuple[Digest, Digest]]:
        self.reads.append(len(ranges))
        _check_order(ranges)
        return [(_digest(self.source, each), _digest(self.mirror, each)) for each in ranges]

    def bounds(self, range_: KeyRange, parts: int) -> list[int]:
        keys = [key for key in sorted(self.mirror) if _inside(key, range_)]
        step = max(1, -(-len(keys) // parts))
        return [key for key in keys[step::step] if key != range_.low]

    def unequal(self, ranges: Sequence[KeyRange], most: int) -> list[str]:
        _check_order(ranges)
        keys = {key for key in self.source | self.mirror if any(_inside(key, each) for each in ranges)}
        self.compared += len(keys)
        return [str(key) for key in keys if self.source.get(key) != self.mirror.get(key)][:most]


def _check_order(ranges: Sequence[KeyRange]) -> None:
    """Ranges come in their order and do not meet: so the Spark side looks a row up in them."""
    for one, other in itertools.pairwise(ranges):
        assert one.high is not None
        assert other.low is not None
        assert one.high <= other.low


def _inside(key: int, range_: KeyRange) -> bool:
    return (range_.low is None or key >= range_.low) and (range_.high is None or key < range_.high)


def _digest(rows: Rows, range_: KeyRange) -> Digest:
    found = [hash((key, value)) for key, value in rows.items() if _inside(key, range_)]
    return Digest(len(found), sum(found), reduce(lambda one, other: one ^ other, found, 0))


ROWS = st.dictionaries(st.integers(0, 300), st.integers(0, 3))


@pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)
@settings(max_examples=150, deadline=None)
@given(source=ROWS, mirror=ROWS, parts=st.integers(1, 5), small=st.integers(0, 20))
def test_exactly_the_keys_that_differ_are_found(source: Rows, mirror: Rows, parts: int, small: int) -> None:
    found = narrow(Memory(source, mirror), parts=parts, small=small, most=1000)
    differing = {key for key in source | mirror if source.get(key) != mirror.get(key)}
    assert {int(key) for key in found.keys} == differing
    assert (found.source_rows, found.mirror_rows, found.complete) == (len(source), len(mirror), True)


@settings(max_examples=100, deadline=None)
@given(rows=st.dictionaries(st.integers(), st.integers(), max_size=500), changed=st.integers(0, 3))
def test_only_ranges_that_differ_are_read_further(rows: Rows, changed: int) -> None:
    mirror = dict(rows)
    for key in random.Random(1).sample(sorted(rows), min(changed, len(rows))):
        mirror[key] += 1
    sides = Memory(rows, mirror)
    narrow(sides, parts=8, small=10, most=1000)
    if rows == mirror:
        assert sides.reads == [len(sides.bounds(KeyRange(), 8)) + 1]
        assert sides.compared == 0
    else:
        assert all(level <= 8 * changed for level in sides.reads[1:])
        assert sides.compared <= 10 * changed


def test_more_keys_than_are_wanted_are_said_to_be_more() -> None:
    found = narrow(Memory(dict.fromkeys(range(50), 1), {}), parts=4, small=10, most=7)
    assert (len(found.keys), found.complete) == (7, False)


def test_a_range_that_cannot_be_cut_is_compared_whole() -> None:
    """As of a table whose rows share their first key column."""
    sides = Memory(dict.fromkeys(range(50), 1), {n: n for n in range(50)})
    sides.bounds = lambda range_, parts: []  # type: ignore[method-assign]
    assert len(narrow(sides, parts=4, small=10, most=100).keys) == 49


# -- verdicts -----------------------------------------------------------------------------------------


@pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)
@pytest.mark.parametrize(
    ("before", "source", "after", "passed", "verdict"),
    [
        (Stored(1, b"1"), 2, Stored(1, b"1"), True, Verdict.WRONG),
        (Stored(1, b"1"), None, Stored(1, b"1"), True, Verdict.WRONG),
        (NOTHING, 2, NOTHING, True, Verdict.WRONG),
        (Stored(1, b"1"), 2, Stored(1, b"1"), False, Verdict.ARRIVING),
        (Stored(1, b"1"), 2, Stored(2, b"2"), True, Verdict.EQUAL),
        (Stored(1, b"1"), 2, Stored(3, b"3"), True, Verdict.MOVING),
        # The same row at another place: it moved away and came back.
        (Stored(1, b"1"), 2, Stored(1, b"3"), True, Verdict.MOVING),
        (Stored(None, b"1"), 2, Stored(None, b"3"), True, Verdict.MOVING),
    ],
)
def test_a_row_is_wrong_only_where_it_stood_still_while_the_position_was_passed(
    before: Stored, source: int | None, after: Stored, passed: bool, verdict: Verdict
) -> None:
    assert judge(before, source, after, passed=passed) is verdict


class World:
    """A source whose changes reach the mirror after a while, in order; some are lost on the way.

    Each look lets both go on: so whatever is compared has changed since it was read.
    """

    def __init__(self, changes: Sequence[tuple[str, int | None]], lag: int, lost: Collection[int]) -> None:
        self.changes, self.lag, self.lost = changes, lag, lost
        self.now = self.applied = 0

    def _source(self) -> dict[str, int]:
        return {k: value for k, value in dict(self.changes[: self.now]).items() if value is not None}

    def _mirror(self) -> dict[str, Stored]:
        rows: dict[str, Stored] = {}
        for number, (key, value) in enumerate(self.changes[: self.applied]):
            if number not in self.lost:
                rows[key] = Stored(value, number.to_bytes(4, "big"))
        return rows

    def tick(self) -> None:
        self.now = min(self.now + 1, len(self.changes))
        self.applied = max(self.applied, self.now - self.lag)
        if self.now == len(self.changes):
            self.applied = min(self.applied + 1, self.now)

    def mirror(self, keys: Collection[str]) -> Mapping[str, Stored]:
        self.tick()
        return {key: value for key, value in self._mirror().items() if key in keys}

    def source(self, keys: Collection[str]) -> Reading:
        self.tick()
        before, rows = self.now, self._source()
        self.tick()
        return Reading({key: rows[key] for key in keys if key in rows}, b"%d" % before, b"%d" % self.now)

    def wait_for(self, reading: Reading) -> bool:
        assert reading.after is not None
        while self.applied < int(reading.after):
            self.tick()
        return True


CHANGES = st.lists(st.tuples(st.sampled_from("abcd"), st.none() | st.integers(0, 2)), min_size=1, max_size=60)


@pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)
@settings(max_examples=200, deadline=None)
@given(changes=CHANGES, lag=st.integers(0, 10), start=st.integers(0, 30))
def test_while_both_sides_change_nothing_is_called_wrong(
    changes: list[tuple[str, int | None]], lag: int, start: int
) -> None:
    world = World(changes, lag, ())
    for _ in range(start):
        world.tick()
    settled = settle(world, "abcd", over=lambda: False, rounds=50)
    assert settled.wrong == ()
    assert settled.arriving == ()


@settings(max_examples=200, deadline=None)
@given(changes=CHANGES, lag=st.integers(0, 10), data=st.data())
def test_a_change_that_was_lost_is_found_once_all_has_come(
    changes: list[tuple[str, int | None]], lag: int, data: Any
) -> None:
    lost = data.draw(st.sets(st.integers(0, len(changes) - 1)))
    world = World(changes, lag, lost)
    for _ in range(len(changes) + lag):
        world.tick()
    source = world._source()
    mirror = {key: stored.digest for key, stored in world._mirror().items() if stored.digest is not None}
    wrong = {key for key in source | mirror if source.get(key) != mirror.get(key)}
    settled = settle(world, "abcd", over=lambda: False, rounds=3)
    assert {each.key for each in settled.wrong} == wrong
    kinds = {each.key: each.what for each in settled.wrong}
    assert all((kind == "missing") == (key not in mirror) for key, kind in kinds.items())
    assert all((kind == "extra") == (key not in source) for key, kind in kinds.items())


@pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it")
def test_a_wrong_row_is_written_in_the_epoch_of_its_last_change_at_least() -> None:
    """Else it would be stale; and in a higher one than its partition's, it would never change again."""
    settled = settle(Slow([1]), "a", over=lambda: False, rounds=3)
    assert [each.seq for each in settled.wrong] == [b"2"]
    assert [epoch_for(epoch, None) for epoch in (0, 2)] == [0, 2]
    assert [epoch_for(epoch, b"\0\1\7") for epoch in (0, 1, 2)] == [1, 1, 2]


class Slow:
    """A source whose rows show a change later than its log, and so later than the mirror."""

    def __init__(self, shows: Sequence[int]) -> None:
        self._shows = list(shows)

    def mirror(self, keys: Collection[str]) -> Mapping[str, Stored]:
        return {"a": Stored(2, b"2")}

    def source(self, keys: Collection[str]) -> Reading:
        assert list(keys) == ["a"]
        shown = self._shows.pop(0) if len(self._shows) > 1 else self._shows[0]
        return Reading({"a": shown}, b"3", b"3")

    def wait_for(self, reading: Reading) -> bool:
        return True


def test_a_row_is_not_wrong_that_the_source_shows_later_than_its_log() -> None:
    settled = settle(Slow([1, 2]), "a", over=lambda: False, rounds=3)
    assert (settled.wrong, settled.arriving, settled.moving) == ((), (), ())
    assert [each.key for each in settle(Slow([1]), "a", over=lambda: False, rounds=3).wrong] == ["a"]


@pytest.mark.guarantee(
    "A comparison finds the keys that differ and no others; a change that has not arrived yet is not a "
    "difference"
)
def test_where_the_position_is_not_passed_in_time_nothing_is_wrong_yet() -> None:
    world = World([("a", 1)], 0, {0})
    world.tick()
    never: Callable[[Reading], bool] = lambda reading: False  # noqa: E731
    world.wait_for = never  # type: ignore[method-assign]
    settled = settle(world, "a", over=lambda: True, rounds=5)
    assert (settled.wrong, settled.arriving, settled.moving) == ((), ("a",), ())


def test_a_change_may_be_on_its_way_in_a_partition_that_shows_nothing_later() -> None:
    """Also where the mirror has no row from that partition, or only rows of a snapshot."""
    newest: dict[Place, bytes | None] = {("t", 0): b"5", ("t", 1): b"6"}
    assert passed(newest, b"5", {})
    assert passed(newest, b"5", {"t": [0, 1], "u": [0]})
    assert not passed(newest, b"6", {"t": [0, 1]})
    assert not passed(newest, b"5", {"t": [0, 1, 2]})
    assert not passed({**newest, ("t", 2): None}, b"5", {})
    assert not passed({}, b"5", {"t": [0]})
    assert passed({(None, None): b"5"}, b"5", {})


def test_a_comparison_that_takes_longer_than_the_wait_still_finds_what_is_wrong() -> None:
    """The time to wait begins when there is something to wait for."""
    log: Any = Log([])
    waited: Any = {"caught_up": lambda: datetime.now(UTC), "alive": lambda: True, "settle": 60, "poll": 0.001}
    arrivals = Arrivals(log, dict, wait=0.2, **waited)
    time.sleep(0.3)
    assert not arrivals.over()
    assert arrivals.wait_for(Reading({}, b"before", b"after"))
    time.sleep(0.3)
    assert arrivals.over()


class Log:
    """A source of which transactions end, and which tells what it has sent."""

    ordered = False

    def __init__(self, open_: Sequence[bool]) -> None:
        self._open = list(open_)
        self.asked: list[bytes] = []

    def finished(self, unfinished: int) -> bool:
        assert unfinished == 7
        return not (self._open and self._open.pop(0))

    def position(self) -> bytes:
        return b"later"

    def sent(self, position: bytes) -> bool:
        self.asked.append(position)
        return True


@pytest.mark.guarantee("A repair overwrites no newer change, and no older change overwrites it")
@pytest.mark.parametrize(
    ("unfinished", "open_", "asked"),
    [(None, [], [b"after"]), (7, [], [b"later"]), (7, [True, True], [b"later"])],
)
def test_before_a_repair_open_transactions_end_and_what_they_changed_arrives(
    unfinished: int | None, open_: list[bool], asked: list[bytes]
) -> None:
    """Their changes have positions from before the reading, and would come too late after it was applied."""
    log, polls = Log(open_), [0]

    def caught_up() -> datetime:
        polls[0] += 1
        return datetime.now(UTC)

    waited: Any = {"caught_up": caught_up, "alive": lambda: True, "settle": 60, "poll": 0.001}
    reading = Reading({}, b"before", b"after", unfinished=unfinished)
    assert Arrivals(log, dict, wait=60, **waited).wait_for(reading)  # type: ignore[arg-type]
    assert log.asked == asked
    assert polls[0] > len(open_)
    for_ever = Log([True] * 10_000)
    reading = Reading({}, b"before", b"after", unfinished=7)
    assert not Arrivals(for_ever, dict, wait=0.05, **waited).wait_for(reading)  # type: ignore[arg-type]
    assert for_ever.asked == []
