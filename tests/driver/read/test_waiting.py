"""Files that cannot be read yet wait, and are read once they can be."""

from __future__ import annotations

import pytest

from lakemirror.driver.checkpoint.storage import Entry
from lakemirror.driver.read.files import waiting
from lakemirror.driver.read.files.limits import BEYOND
from lakemirror.driver.read.files.listing import OUTSIDE
from lakemirror.driver.read.files.waiting import CUT_OFF, NO_END, InputIncomplete, Waiting

FILE = Entry("a.jsonl", 10, 1)


class Readable:
    """What keeps a file from being read; None: nothing."""

    def __init__(self, reason: str | type[PermissionError] | None, settled: str | None = None) -> None:
        self.reason = reason
        self.settled = settled
        self.asked = 0

    def __call__(self, name: str, *, settled: bool = False) -> str | None:
        self.asked += 1
        if settled:
            return self.settled
        if self.reason is PermissionError:
            raise PermissionError(name)
        assert self.reason is None or isinstance(self.reason, str)
        return self.reason


def test_a_file_that_may_not_be_read_is_read_once_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission that is granted changes neither its size nor its time."""
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    warnings: list[str] = []
    readable = Readable(PermissionError)
    files = Waiting(readable, warnings.append)
    assert [files.is_ready(FILE) for _ in range(3)] == [False] * 3
    assert [each.partition(":")[0] for each in warnings] == ["a.jsonl is skipped"]
    with pytest.raises(InputIncomplete, match="this user may not read it"):
        files.require_none()
    readable.reason = None
    assert files.is_ready(FILE)
    files.require_none()


def test_a_file_that_is_cut_off_is_looked_at_again_only_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    warnings: list[str] = []
    readable = Readable(CUT_OFF)
    files = Waiting(readable, warnings.append)
    assert [files.is_ready(FILE) for _ in range(3)] == [False] * 3
    assert (readable.asked, len(warnings)) == (1, 1)
    readable.reason = None
    assert not files.is_ready(FILE)
    assert files.is_ready(Entry("a.jsonl", 20, 2))


def test_another_reason_is_told_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    warnings: list[str] = []
    readable = Readable(PermissionError)
    files = Waiting(readable, warnings.append)
    assert [files.is_ready(FILE) for _ in range(2)] == [False] * 2
    readable.reason = CUT_OFF
    assert [files.is_ready(FILE) for _ in range(2)] == [False] * 2
    assert len(warnings) == 2


def test_a_file_whose_last_line_has_no_end_is_looked_at_again_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be one line that never ends."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    warnings: list[str] = []
    files = Waiting(Readable(NO_END, settled=f"{BEYOND}a line"), warnings.append)
    assert [files.is_ready(FILE) for _ in range(3)] == [False] * 3
    assert [each.partition(": ")[0] for each in warnings] == ["a.jsonl is set aside"]
    assert files.said == (f"a.jsonl: {BEYOND}a line",)
    files = Waiting(Readable(NO_END), warnings.append)
    assert [files.is_ready(FILE) for _ in range(2)] == [False, True]


def test_a_link_that_leads_out_is_read_once_a_file_takes_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy may have the size and the time of what the link led to."""
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.0)
    warnings: list[str] = []
    readable = Readable(f"{OUTSIDE}/etc/passwd, which is not in /in")
    files = Waiting(readable, warnings.append)
    assert [files.is_ready(FILE) for _ in range(3)] == [False] * 3
    assert len(warnings) == 1
    assert "Copy the file into the folder" in warnings[0]
    readable.reason = None
    assert files.is_ready(FILE)
