"""Below which sequence no stream brings anything any more."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lakemirror.driver.profile.positions import (
    At,
    Former,
    Place,
    Stream,
    Stretch,
    committed_by_all,
    from_json,
    of_logs,
    to_json,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WEEK = timedelta(days=7)


def place(seq: str, days_ago: float | None, **more: object) -> Place:
    moment = None if days_ago is None else int((NOW - timedelta(days=days_ago)).timestamp() * 1e6)
    return Place(At(seq, 5), time=moment, **more)  # type: ignore[arg-type]


def below(*places: Place) -> str:
    memory = {Stream("t", n, "db"): each for n, each in enumerate(places)}
    return committed_by_all(memory, NOW, WEEK).hex()


def test_times_that_were_still_to_come_when_they_were_stored_are_none() -> None:
    """Nothing would ever be later than them."""
    until, year_2100 = datetime(2026, 3, 1, tzinfo=UTC), 4_102_444_800_000_000
    past = int(until.timestamp() * 1e6) - 5
    stretches = tuple(Stretch(1, 2, "00", "01", time) for time in (past, year_2100))
    formers = {"a": Former("01", past), "b": Former("01", year_2100)}
    stored = {
        Stream("t", 0, "s"): Place(At("01", 1), time=year_2100, tail=stretches, former=formers),
        Stream("t", 1, "s"): Place(At("01", 1), time=past),
    }
    first, second = from_json(to_json(stored), until=until).values()
    assert (first.time, [each.time for each in first.tail]) == (None, [past, None])
    assert first.former.keys() == {"a"}
    assert second == stored[Stream("t", 1, "s")]
    assert from_json(to_json(stored)) == stored


def test_nothing_is_known() -> None:
    assert below() == ""


@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_the_least_of_those_that_are_not_quiet() -> None:
    assert below(place("30", 0), place("20", 6.9)) == "20"
    assert below(place("30", 0), place("20", 7.1), place("25", 3)) == "25"


@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_none_is_quiet_for_having_been_read_late() -> None:
    """A driver that was away for a month: what it has read is old, what it has not may be older still."""
    assert below(place("30", 30), place("20", 33)) == "20"


@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_a_clock_that_runs_ahead_makes_nobody_quiet_early() -> None:
    assert below(place("30", -5), place("20", 6)) == "20"


def test_what_is_undecided_or_without_a_time_is_waited_for() -> None:
    tail = (Stretch(6, 7, "10", "15"),)
    assert below(place("30", 0), place("20", 90, tail=tail)) == "20"
    assert below(place("30", 0), place("20", None)) == "20"
    assert below(place("30", None)) == "30"


@pytest.mark.guarantee(
    "A record whose table is unknown keeps the tombstones of the tables that it may belong to"
)
def test_only_the_logs_of_a_table_matter_to_it() -> None:
    """Positions of other logs may be lower for good, and other sources have other clocks."""
    memory = {
        Stream("a", 0, "large"): place("30", 30),
        Stream("a", 1, "large"): place("20", 33),
        Stream("b", 0, "small"): place("02", 0),
        Stream("b", 1, "small"): place("03", 0),
    }

    def bound(*logs: str) -> str:
        return committed_by_all(of_logs(memory, logs), NOW, WEEK).hex()

    assert bound("large") == "20"
    assert bound("small") == "02"
    assert bound("large", "small") == "02", "either may still bring something"
    assert bound("gone") == bound() == "", "nothing is known"
    memory[Stream("c", 0, "former")] = place("01", 90)
    assert bound("former", "small") == "02", "a log that is quiet is not waited for"
