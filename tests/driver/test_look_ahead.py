"""What is read ahead of the next batch never decides how this one ends."""

from __future__ import annotations

from threading import Event

from lakemirror.driver.parallel import LookAhead

PATIENCE_SECONDS = 120


def test_a_read_that_fails_is_left_to_the_next_batch() -> None:
    ahead, read = LookAhead(), Event()

    def fail() -> None:
        raise OSError("the store does not answer")

    ahead.begin([fail, read.set])
    assert read.wait(PATIENCE_SECONDS)


def test_reads_that_did_not_have_their_turn_are_forgotten() -> None:
    """A batch never works off what is left of an earlier one."""
    ahead, begun, go_on, last = LookAhead(), Event(), Event(), Event()
    late: list[str] = []

    def slow() -> None:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)

    ahead.begin([slow, lambda: late.append("of the first batch")])
    assert begun.wait(PATIENCE_SECONDS)
    ahead.begin([last.set])
    go_on.set()
    assert last.wait(PATIENCE_SECONDS)
    assert late == []
