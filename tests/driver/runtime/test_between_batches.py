"""What runs between batches: failures are told and retried, and the loss of the checkpoint ends the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.errors import CheckpointInUse
from lakemirror.driver.runtime.between_batches import BetweenBatches
from lakemirror.driver.runtime.replay_requests import OUTCOMES, ReplayOutcome, ReplayRequest, ReplayRequests
from lakemirror.driver.runtime.reporter import REPORT_FILE, stored_report
from lakemirror.driver.runtime.turns import Applier, Turns

TAKEN = CheckpointInUse("the checkpoint /lake/c is in use by another driver")
Work = Callable[[], object]


def failing(error: Exception) -> Work:
    def work() -> None:
        raise error

    return work


def between(warnings: list[str], held: Work = lambda: None, **more: Work) -> BetweenBatches:
    requests = SimpleNamespace(serve=lambda: [])
    return BetweenBatches(
        cast(Any, requests), cast(Any, SimpleNamespace(serve=lambda **_: held())), warnings.append, **more
    )


def test_work_that_fails_is_told_and_stops_no_other() -> None:
    warnings: list[str] = []
    done: list[str] = []
    work = between(
        warnings,
        failing(ValueError("no quarantine")),
        more=lambda: done.append("maintenance"),
        repairs=failing(ValueError("no repairs")),
    )
    work.serve()
    work.serve()  # what failed waits
    assert [each.partition(":")[0] for each in warnings] == [
        "requests for a repair could not be served",
        "held records could not be served",
    ]
    assert done == ["maintenance", "maintenance"]


@pytest.mark.parametrize("which", ["repairs", "reloads"])
def test_records_that_a_request_kept_aside_are_counted(which: str) -> None:
    """Held records are retried only if someone looks for them."""
    counted: list[str] = []
    held = SimpleNamespace(serve=lambda **_: None, recount=lambda: counted.append("again"))
    requests = SimpleNamespace(serve=lambda: [])
    outcomes: dict[str, Work] = {which: lambda: [ReplayOutcome("1")]}
    BetweenBatches(cast(Any, requests), cast(Any, held), list[str]().append, **outcomes).serve()
    assert counted == ["again"]


@pytest.mark.parametrize("which", ["held", "more", "repairs", "reloads", "collect"])
def test_a_checkpoint_that_is_taken_ends_the_run(which: str) -> None:
    warnings: list[str] = []
    with pytest.raises(CheckpointInUse):
        between(warnings, **{which: failing(TAKEN)}).serve()
    assert warnings == []


def test_a_request_is_left_to_the_driver_that_has_taken_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "replay").mkdir()
    (tmp_path / "replay" / "1.json").write_text('{"id": "1", "table": null, "reason": null}\n')
    warnings: list[str] = []

    def carry_out(request: ReplayRequest) -> ReplayOutcome:
        raise TAKEN

    with pytest.raises(CheckpointInUse):
        ReplayRequests(LocalStorage(tmp_path), carry_out, warnings.append).serve()
    assert (tmp_path / "replay" / "1.json").exists()
    assert not (tmp_path / OUTCOMES).exists()
    assert warnings == []


def test_an_applier_that_fails_takes_no_further_turns() -> None:
    first, other = cast(Applier, SimpleNamespace()), cast(Applier, SimpleNamespace())
    turns = Turns(cast(Any, None), first)

    def work() -> None:
        with turns.shared_with(other):
            assert not turns.alone
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        work()
    assert turns.alone


@pytest.mark.parametrize("text", ["", "{", "[]\n", None])
def test_a_report_that_cannot_be_read_is_none(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / REPORT_FILE).write_text(text)
    assert stored_report(LocalStorage(tmp_path)) is None
