"""How long batches are left to Spark after the job of the engine has failed. Without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from lakemirror.driver.engine.pauses import Pauses


def tried(pauses: Pauses, batches: Iterable[int], *, fails: bool) -> list[int]:
    """The batches in which the job was tried."""
    found = []
    for batch in batches:
        pauses.begin()
        if not pauses.active:
            found.append(batch)
            if fails:
                pauses.failed()
            else:
                pauses.succeeded()
    return found


def test_a_job_that_fails_each_time_is_tried_ever_more_rarely() -> None:
    found = tried(Pauses(), range(330), fails=True)
    paused = [after - before - 1 for before, after in pairwise(found)]
    assert paused == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]


def test_a_job_that_succeeds_ends_the_pauses() -> None:
    pauses = Pauses()
    assert tried(pauses, range(6), fails=True) == [0, 2, 5]
    assert tried(pauses, range(6, 13), fails=False) == [10, 11, 12]
    assert tried(pauses, range(13, 16), fails=True) == [13, 15]


def test_a_batch_of_which_one_job_fails_ends_no_pause() -> None:
    """What is known of some tables is applied first, and then what is planned of others."""
    pauses, tries = Pauses(), []
    for batch in range(11):
        pauses.begin()
        if not pauses.active:
            tries.append(batch)
            pauses.succeeded()
            more = pauses.failed()
            assert pauses.active, "nothing else is tried in this batch"
    assert tries == [0, 2, 5, 10]
    assert more == 8


def test_batches_without_a_job_say_nothing() -> None:
    pauses = Pauses()
    assert tried(pauses, range(3), fails=True) == [0, 2]
    for _ in range(5):
        pauses.begin()
    assert pauses.failed() == 4
