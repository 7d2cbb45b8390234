"""Up to where everything is applied, and what a batch brought."""

from __future__ import annotations

from lakemirror.driver.consistent.complete import Mark, Top, Watch
from lakemirror.driver.consistent.reach import BEGIN, END, Part, Reach, after, logs_of, reach


def test_a_position_settles_when_nothing_is_left_to_read_long_enough_after_it() -> None:
    watch = Watch().reaching([Top("db", "10", 1)], 100).reaching([Top("db", "20", 2)], 110)
    assert watch.had_all(129, 30).settled.below == BEGIN
    watch = watch.had_all(130, 30)
    assert watch.settled == Mark(after("10"), 1)
    assert watch.reaching([Top("db", "20", 2)], 500) == watch, "seen before"
    assert watch.had_all(140, 30).settled == Mark(after("20"), 2)


def test_what_is_remembered_stays_small_and_settles_late_rather_than_early() -> None:
    watch = Watch()
    for second in range(1000):
        watch = watch.reaching([Top("db", f"{second:04}", None)], second)
    assert len(watch.seen) <= 64
    assert watch.had_all(700, 0).settled.below <= after("0700")
    assert watch.had_all(1000, 0).settled.below == after("0999")


def test_what_is_sent_again_is_not_new() -> None:
    part = Part("s", "db", ("10", "30"))
    assert reach([part], lambda stream: None) == Reach("10", "30", "db")
    assert reach([part], lambda stream: "20") == Reach("20", "30", "db")
    assert reach([part], lambda stream: "31") is None


def test_rows_that_were_read_are_new_wherever_they_stand() -> None:
    parts = [Part("s", "db", ("40", "50"), beside=("05", "05"))]
    assert reach(parts, lambda stream: "60") == Reach("05", "05", "db")


def test_changes_without_a_position_are_anywhere_unless_it_was_given() -> None:
    parts = [Part(None, None, beside=("05", "07"), strays=True)]
    assert reach(parts, lambda stream: None) == Reach(BEGIN, END)
    assert reach(parts, lambda stream: None, given=True) == Reach("05", "07")
    two = [Part("a", "one", ("10", "20")), Part("b", "other", ("10", "20"))]
    assert reach(two, lambda stream: None) == Reach(BEGIN, END)


def test_changes_that_follow_a_snapshot_lie_after_it() -> None:
    part = Part("s", "db", ("90", "95"), beside=("aa", "aa"))
    assert reach([part], lambda stream: None, snapshot="aa") == Reach("90", after("aa"), "db")


def test_the_logs_of_a_table_are_those_of_its_changes() -> None:
    one, other = Part("a", "one", ("10", "20")), Part("b", "other", ("10", "20"))
    read = Part(None, None, beside=("05", "05"))
    assert logs_of([one, other, read]) == {"one", "other"}
    assert logs_of([read]) == frozenset()
    assert logs_of([one, Part(None, None, beside=("05", "07"), strays=True)]) is None
