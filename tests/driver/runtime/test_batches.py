"""What comes after a batch that is applied."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.api.report import Counts
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.read.base import Batch
from lakemirror.driver.results import BatchResult
from lakemirror.driver.runtime import batches as module
from lakemirror.driver.runtime.announcer import Announcer
from lakemirror.driver.runtime.batches import Batches
from lakemirror.driver.runtime.retry import Retries
from lakemirror.driver.runtime.turns import Turns
from lakemirror.driver.tables.jdbc_database import DatabaseUnreachable

BATCH = Batch("query", 0, {})


class Failing:
    """An applier whose tombstones cannot be collected."""

    def __init__(self, error: Exception) -> None:
        self.error, self.applied, self.tried = error, 0, 0

    def apply(self, raw: Any, batch: Batch) -> BatchResult:
        self.applied += 1
        return BatchResult(batch.batch_id, Counts(), {})

    def collect_tombstones(self, *, caught_up: bool) -> int:
        self.tried += 1
        raise self.error

    def forget(self) -> None:
        pass


def make(applier: Failing) -> tuple[Batches, Announcer]:
    announcer = Announcer("shop", None)
    running = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    run: Any = SimpleNamespace(
        announcer=announcer,
        once=True,
        session=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=running)),
        threads=SimpleNamespace(stopping=lambda: False),
    )
    owner: Any = SimpleNamespace(check=lambda: None)
    held: Any = SimpleNamespace(batch_done=lambda result: None)
    return Batches(run, Turns(owner, applier), Retries(run), held, ()), announcer


@pytest.mark.parametrize("error", [OSError("no such file"), DatabaseUnreachable("the database is away")])
def test_tombstones_that_cannot_be_collected_do_not_fail_a_batch_that_is_applied(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    applier = Failing(error)
    batches, announcer = make(applier)
    monkeypatch.setattr(module, "_COLLECT_EVERY_SECONDS", -1.0)
    raw: Any = SimpleNamespace()
    batches.apply(raw, BATCH)
    assert (applier.applied, applier.tried, announcer.progress.batches) == (1, 1, 1)
    [warning] = announcer.progress.warnings
    assert warning.startswith("tombstones could not be collected, which is tried again later: ")
    batches.collect_tombstones(caught_up=True)  # as at the end of a run
    assert applier.tried == 2


def test_a_checkpoint_of_another_driver_ends_the_run_while_tombstones_are_collected() -> None:
    batches, announcer = make(Failing(CheckpointInUse("another driver")))
    announcer.progress.batches = 1
    with pytest.raises(CheckpointInUse):
        batches.collect_tombstones(caught_up=False)
