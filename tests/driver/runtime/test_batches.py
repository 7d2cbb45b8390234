"""What comes after a batch that is applied."""

from __future__ import annotations

from datetime import UTC, datetime
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
NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Failing:
    """An applier whose tombstones cannot be collected."""

    def __init__(self, error: Exception) -> None:
        self.error, self.applied, self.tried = error, 0, 0
        self.given: list[datetime | None] = []

    def apply(self, raw: Any, batch: Batch) -> BatchResult:
        self.applied += 1
        return BatchResult(batch.batch_id, Counts(), {})

    def collect_tombstones(self, *, had_all_at: datetime | None) -> int:
        self.tried += 1
        self.given.append(had_all_at)
        raise self.error

    def forget(self) -> None:
        pass


def make(applier: Failing, taken: Exception | None = None) -> tuple[Batches, Announcer]:
    def check() -> None:
        if taken is not None:
            raise taken

    announcer = Announcer("shop", None)
    running = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    run: Any = SimpleNamespace(
        announcer=announcer,
        once=True,
        session=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=running)),
        threads=SimpleNamespace(stopping=lambda: False),
    )
    owner: Any = SimpleNamespace(check=check)
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
    batches.collect_tombstones(had_all_at=NOW)  # as at the end of a run
    assert applier.tried == 2


def test_a_checkpoint_of_another_driver_ends_the_run_while_tombstones_are_collected() -> None:
    batches, announcer = make(Failing(CheckpointInUse("another driver")))
    announcer.progress.batches = 1
    with pytest.raises(CheckpointInUse):
        batches.collect_tombstones(had_all_at=None)


@pytest.mark.guarantee(
    "A quiet partition or another source does not keep all tombstones alive; an idle driver collects them"
)
def test_an_idle_driver_collects_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before a first batch, not more often, and only if it is known what it has read of the source."""
    applier = Failing(OSError("no such file"))
    batches, announcer = make(applier)
    announcer.progress.had_all_at = NOW
    batches.collect_while_idle()
    assert applier.given == []
    monkeypatch.setattr(module, "_COLLECT_EVERY_SECONDS", -1.0)
    batches.collect_while_idle()
    assert applier.given == [], "its tables are not known yet"
    announcer.progress.batches = 1
    announcer.progress.had_all_at = None
    batches.collect_while_idle()
    assert applier.given == []
    announcer.progress.had_all_at = NOW
    batches.collect_while_idle()
    monkeypatch.setattr(module, "_COLLECT_EVERY_SECONDS", 600.0)
    batches.collect_while_idle()
    assert applier.given == [NOW]
    with batches.turns.shared_with(Failing(OSError())):
        monkeypatch.setattr(module, "_COLLECT_EVERY_SECONDS", -1.0)
        batches.collect_while_idle()
    assert applier.given == [NOW], "old events are being read again"


def test_an_idle_driver_leaves_the_tombstones_to_the_one_that_has_taken_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    applier = Failing(OSError("no such file"))
    batches, announcer = make(applier, taken=CheckpointInUse("another driver"))
    announcer.progress.batches, announcer.progress.had_all_at = 1, NOW
    monkeypatch.setattr(module, "_COLLECT_EVERY_SECONDS", -1.0)
    with pytest.raises(CheckpointInUse):
        batches.collect_while_idle()
    assert applier.given == []
