"""A process that dies between any two steps of a commit leaves the table as it was before or after it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings

from lakemirror.driver.faults import InjectedCrash
from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import name_of
from lakemirror.driver.writer.stores import LocalFiles, LocalLogStore, discard
from tests.driver.writer.delta_tables import History, Written, histories, live_rows
from tests.driver.writer.test_readers import ONCE, require_all


class Fuse:
    """Crashes at the n-th step."""

    def __init__(self, left: int) -> None:
        self.left = left

    def burn(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise InjectedCrash("after-rows")


class CrashingFiles(LocalFiles):
    """Crashes before a file is written, when half of it is, or after it."""

    def __init__(self, table: Path, fuse: Fuse) -> None:
        super().__init__(table)
        self._fuse = fuse

    def write(self, file: File) -> None:
        self._fuse.burn()
        try:
            self._fuse.burn()
        except InjectedCrash:
            content = bytes(file.content)
            super().write(replace(file, content=content[: len(content) // 2]))
            raise
        super().write(file)


class CrashingLog(LocalLogStore):
    """Crashes before an entry is put, with half of it in a file beside, or after it."""

    def __init__(self, log: Path, fuse: Fuse) -> None:
        super().__init__(log)
        self._fuse = fuse

    def create(self, name: str, content: bytes) -> bool:
        self._fuse.burn()
        try:
            self._fuse.burn()
        except InjectedCrash:
            (self._log / f".{name}.half.tmp").write_bytes(content[: len(content) // 2])
            raise
        done = super().create(name, content)
        self._fuse.burn()
        return done


@settings(ONCE, max_examples=10)
@given(histories(mapped=False))
def test_a_crash_between_any_two_steps(history: History) -> None:
    last = history.steps[-1]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        table = Written.of(path, history)
        for step in history.steps[:-1]:
            table.apply(step)
        _, new, gone, _ = table.change(last)
        reached = 0
        while True:
            fuse = Fuse(reached)
            before = table.snapshot
            try:
                table.apply(last, CrashingFiles(path, fuse), CrashingLog(path / "_delta_log", fuse))
                break
            except InjectedCrash:
                reached += 1
            committed = (path / "_delta_log" / name_of(before.version + 1)).exists()
            if committed:  # the next process finds the batch's transaction, and does not repeat it
                rows = {**table.rows, **new}
                table.rows = {number: row for number, row in rows.items() if number not in gone}
                break
            assert live_rows(path) == before
            require_all(table)
        require_all(table)
        after = live_rows(path)
        assert after.version == before.version + 1
        assert (after.transactions or {})["lakemirror/q"].version == after.version


def test_files_of_an_attempt_that_is_known_to_have_failed_are_deleted(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path)
    file = File("p=1/a.parquet", b"x")
    files.write(file)
    assert files.exists(file.path)
    discard(files, [file.path, "never/written.parquet"])
    assert not files.exists(file.path)
