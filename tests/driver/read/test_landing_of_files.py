"""Which of the files in a folder get into a batch, decided without Spark: a stand-in reads them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lakemirror.api.source import FilesSource
from lakemirror.driver.checkpoint.storage import Entry, LocalStorage
from lakemirror.driver.read.base import Batch
from lakemirror.driver.read.files import feed, limits, waiting
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.files.ledger import InputFile, Ledger
from lakemirror.driver.read.files.limits import BEYOND
from lakemirror.driver.read.files.waiting import InputIncomplete

BOMB = f"{BEYOND}it is a bomb"


class Reader:
    """Reads names. A file with the text ``bomb`` is beyond a limit; its text names its columns otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has_limits = True

    def why_not(self, name: str, *, settled: bool = False) -> str | None:
        return BOMB if self.has_limits and (self.folder / name).read_text() == "bomb" else None

    def layout(self, entry: Entry) -> str:
        return (self.folder / entry.name).read_text().partition(":")[0]

    def room(self, entry: Entry) -> int | None:
        return None

    def lines(self, files: Sequence[InputFile]) -> None:
        return None

    def read(self, files: Sequence[InputFile]) -> Any:
        return [(each.name, (self.folder / each.name).read_text()) for each in files]

    def damage(self, file: InputFile) -> str | None:
        return self.why_not(file.name)


class Landing:
    """A folder and its feeds; ``batches`` has what they handed over."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.input, self.state = folder / "in", folder / "state"
        self.input.mkdir()
        self.reader = Reader(self.input)
        self.batches: list[list[str]] = []
        self.texts: list[str] = []
        self.warnings: list[str] = []
        monkeypatch.setattr(feed, "reader_of", lambda *_, **__: self.reader)
        monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.0)
        monkeypatch.setattr(feed, "LOOK_SECONDS", 0.01)

    def put(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.input / f"{name}.jsonl").write_text(text)

    def once(self, dies: bool = False) -> None:
        source = FilesSource(path=str(self.input))
        feed = FilesFeed(None, source, LocalStorage(self.state), warn=self.warnings.append)  # type: ignore[arg-type]

        def apply(frame: Any, batch: Batch) -> None:
            if dies:
                raise KeyboardInterrupt
            self.batches.append([name.partition(".")[0] for name, _ in frame])
            self.texts += [text for _, text in frame]

        feed.run(apply, once=True, stopping=lambda: False)


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Landing:
    return Landing(tmp_path, monkeypatch)


@pytest.mark.guarantee("A link out of the folder of a source is not read")
def test_a_link_out_of_the_folder_is_named_and_the_others_are_read(landing: Landing, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("se cret")
    landing.put(a="one", c="two")
    (landing.input / "b.jsonl").symlink_to("../password")
    (landing.input / "d.jsonl").symlink_to("c.jsonl")  # the same content under another name
    with pytest.raises(InputIncomplete, match=r"^b\.jsonl is skipped: it is a link to .*/password, which is"):
        landing.once()
    assert landing.texts == ["one", "two"]
    assert any("Copy the file into the folder" in each for each in landing.warnings)
    (landing.input / "b.jsonl").unlink()
    landing.put(b="three")
    landing.once()
    assert landing.texts == ["one", "two", "three"]


@pytest.mark.guarantee("A link out of the folder of a source is not read")
@pytest.mark.parametrize("dies", [False, True])
def test_a_link_that_takes_the_place_of_a_file_is_not_read(
    landing: Landing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """After its batch was recorded, in the same run or before the next one."""
    (tmp_path / "password").write_text("one")
    landing.put(a="one", b="two")
    record = Ledger.record

    def swap(*arguments: Any) -> None:
        record(*arguments)
        (landing.input / "a.jsonl").unlink()
        (landing.input / "a.jsonl").symlink_to("../password")

    with monkeypatch.context() as swapping:
        if dies:
            with pytest.raises(KeyboardInterrupt):
                landing.once(dies=True)
            (landing.input / "a.jsonl").unlink()
            (landing.input / "a.jsonl").symlink_to("../password")
        else:
            swapping.setattr(Ledger, "record", swap)
        with pytest.raises(InputIncomplete, match=r"^a\.jsonl is skipped: it is a link to "):
            landing.once()
    assert landing.texts == ["two"]


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also if a "
    "batch of an earlier run has it"
)
def test_a_batch_of_an_earlier_run_is_set_aside_with_the_file_that_ended_it(landing: Landing) -> None:
    landing.put(a="bomb", b="two")
    landing.reader.has_limits = False  # as in an earlier version
    with pytest.raises(KeyboardInterrupt):
        landing.once(dies=True)
    landing.reader.has_limits = True
    for _ in range(2):
        with pytest.raises(
            InputIncomplete, match=r"^a\.jsonl is set aside: it exceeds a limit: it is a bomb"
        ):
            landing.once()
    assert landing.batches == [["b"]]
    landing.put(a="one of a size that it can have")
    landing.once()
    assert landing.batches == [["b"], ["a"]]


def test_files_with_many_sets_of_columns_come_in_several_batches(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, none of them twice, and what waits or is a copy counts for none."""
    monkeypatch.setattr(limits, "MOST_LAYOUTS", 2)
    landing.put(**{f"f{n}": f"{columns}:{n}" for n, columns in enumerate("aabacdbe")})
    landing.put(f0a="bomb", f0b="a:0")
    with pytest.raises(InputIncomplete):
        landing.once()
    assert landing.batches == [["f0", "f1", "f2", "f3"], ["f4", "f5"], ["f6", "f7"]]


def test_a_file_whose_name_is_no_text_waits_by_name(landing: Landing) -> None:
    landing.put(a="one", c="two")
    odd = f"b{os.fsdecode(bytes([0xFF]))}\n\x1b[2J"
    landing.put(**{odd: "three"})
    with pytest.raises(
        InputIncomplete, match=r"^b\\udcff\\n\\u001b\[2J\.jsonl is skipped: its name is not valid"
    ):
        landing.once()
    assert landing.texts == ["one", "two"]
    assert any("Give the file another name" in each for each in landing.warnings)
    assert all(each.isprintable() for each in landing.warnings)
    (landing.input / f"{odd}.jsonl").rename(landing.input / "b.jsonl")
    landing.once()
    assert landing.texts == ["one", "two", "three"]
