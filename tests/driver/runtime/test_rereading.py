"""When a table counts as read again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.files.waiting import InputIncomplete
from lakemirror.driver.runtime.resync import Rereading


@pytest.mark.parametrize("applied", [True, False])
def test_a_file_that_can_no_longer_be_read_leaves_its_table_unread(
    applied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The feed itself reads only files that it has not read yet."""
    warnings: list[str] = []
    feed = FilesFeed.__new__(FilesFeed)
    feed._ledger = SimpleNamespace(files={"a.csv.gz": None} if applied else {})  # type: ignore[assignment]
    monkeypatch.setattr(feed, "from_its_beginning", lambda: "the source")
    storage = LocalStorage(tmp_path)
    run: Any = SimpleNamespace(storage=storage, announcer=SimpleNamespace(warn=warnings.append))
    retries: Any = SimpleNamespace(reading=lambda read, stopping: read())
    batches: Any = None
    rereading = Rereading(run, {"t": "2"}, feed, batches, retries)

    def read(*_: Any) -> None:
        raise InputIncomplete("a.csv.gz is skipped", ["a.csv.gz"])

    monkeypatch.setattr(rereading, "_read", read)
    assert rereading._read_all(lambda: False) is not applied
    assert warnings[0] == "a.csv.gz is skipped"
    assert [each.startswith("t: not read again to the end") for each in warnings[1:]] == [True] * applied
