"""Commits to a log on a local disk: of several writers one succeeds, and nobody writes into a gap."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakemirror.driver.writer.actions import Action, CommitInfo, Metadata, Protocol, Transaction
from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import (
    Committed,
    Conflict,
    Known,
    Outcome,
    Replaced,
    Stamp,
    begin,
    commit,
    known,
    name_of,
    text_of,
)
from lakemirror.driver.writer.stores import LocalDisk, LocalFiles, LocalLogStore

FIRST: tuple[Action, ...] = (Protocol(1, 2), Metadata({"id": "m"}))


def info(number: int) -> CommitInfo:
    return CommitInfo(str(uuid.uuid4()), "lakemirror/q", number, number - 1, 1000 + number)


class Store(LocalLogStore):
    """A local log in which a test does something before or after a file is created."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self.before: Callable[[str], object] = lambda name: None
        self.after: Callable[[str], object] = lambda name: None
        self.created: list[str] = []

    def create(self, name: str, content: bytes) -> bool:
        self.before(name)
        done = super().create(name, content)
        self.created += [name] if done else []
        self.after(name)
        return done


@pytest.fixture
def log(tmp_path: Path) -> Store:
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    made = Store(tmp_path / "t/_delta_log")
    assert made.create(name_of(0), text_of(info(0), FIRST))
    made.created.clear()
    return made


def at(store: Store, version: int) -> Known:
    found = known(store, version)
    assert found is not None
    return found


def do(store: Store, before: Known, number: int = 1) -> Outcome:
    return commit(store, before, info(number), [Transaction("lakemirror/q", number)])


def test_a_table_is_begun_in_a_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    log = LocalLogStore(tmp_path / "t/_tombstones/_delta_log", 0o640)
    begin(log, info(0), FIRST)
    assert log.read(name_of(0)) is not None
    folders = (tmp_path / "t/_tombstones", tmp_path / "t/_tombstones/_delta_log")
    assert [stat.S_IMODE(each.stat().st_mode) for each in folders] == [0o750, 0o750]


def test_a_table_that_exists_is_not_begun_again(log: Store) -> None:
    before = at(log, 0)
    begin(log, info(7), (Protocol(1, 2), Metadata({"id": "another"})))
    assert at(log, 0) == before
    assert isinstance(do(log, before), Committed)


def test_no_table_is_begun_where_the_folder_was_removed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        begin(LocalLogStore(tmp_path / "gone/_tombstones/_delta_log"), info(0), FIRST)
    assert not list(tmp_path.iterdir())


def test_the_first_entry_says_of_no_version_that_it_was_read() -> None:
    first = CommitInfo("id", "lakemirror/q", 0, None, 1000)
    assert "readVersion" not in first.action["commitInfo"]


def test_commits_follow_each_other(log: Store, tmp_path: Path) -> None:
    first = do(log, at(log, 0))
    assert isinstance(first, Committed)
    assert first.known is not None
    second = do(log, first.known, 2)
    assert isinstance(second, Committed)
    assert second.version == 2
    assert sorted(each.name for each in (tmp_path / "t/_delta_log").iterdir()) == [
        name_of(n) for n in range(3)
    ]
    assert log.read(name_of(3)) is None
    assert log.stamp(name_of(3)) is None


def test_a_foreign_commit_is_a_conflict(log: Store) -> None:
    before = at(log, 0)
    theirs = text_of(info(7), FIRST)
    log.create(name_of(1), theirs)
    assert do(log, before) == Conflict(1, theirs)
    assert log.read(name_of(1)) == theirs


def test_a_checksum_that_hadoop_left_of_an_unfinished_entry_is_removed(log: Store) -> None:
    """Hadoop compares a file with the hidden checksum beside it, and could not read the entry."""
    left = log._log / f".{name_of(1)}.crc"
    left.write_bytes(b"crc\0")
    theirs = log._log / f".{name_of(0)}.crc"
    theirs.write_bytes(b"crc\0")
    assert isinstance(do(log, at(log, 0)), Committed)
    assert not left.exists()
    assert not log.create(name_of(0), b"{}\n")
    assert theirs.exists()  # that of an entry that is there belongs to it


def test_a_foreign_entry_may_be_anything(log: Store) -> None:
    before = at(log, 0)
    for content in (b"", b"not JSON\n", b'[]\n"x"\n{"commitInfo":null}\n'):
        (log._log / name_of(1)).write_bytes(content)
        assert do(log, before) == Conflict(1, content)


def test_a_table_that_is_gone_or_another_one_gets_nothing(log: Store) -> None:
    first = do(log, at(log, 0))
    assert isinstance(first, Committed)
    assert first.known is not None
    log.created.clear()
    folder = log._log
    kept = (folder / name_of(1)).read_bytes()
    (folder / name_of(1)).unlink()
    assert do(log, first.known, 2) == Replaced(1)
    (folder / name_of(1)).write_bytes(kept)  # a copy, such as from a backup
    assert do(log, first.known, 2) == Replaced(1)
    shutil.rmtree(folder.parent)
    assert do(log, first.known, 2) == Replaced(1)
    folder.parent.write_text("a file")
    assert do(log, first.known, 2) == Replaced(1)
    assert log.created == []


def test_a_table_that_vanishes_during_the_put(log: Store) -> None:
    log.before = lambda name: shutil.rmtree(log._log)
    with pytest.raises(FileNotFoundError):
        do(log, at(log, 0))
    assert not log._log.exists()


def test_a_table_that_vanishes_after_the_put_is_found_by_the_next_commit(log: Store) -> None:
    log.after = lambda name: shutil.rmtree(log._log)
    assert do(log, at(log, 0)) == Committed(1, None)


def fail(name: str) -> None:
    raise TimeoutError(name)


def test_an_answer_that_is_lost(log: Store) -> None:
    log.after = fail
    found = do(log, at(log, 0))
    assert isinstance(found, Committed)
    assert found.known == known(log, 1)


def test_a_put_that_was_sent_twice(log: Store) -> None:
    """The first was answered by nobody, so the client sent it again."""
    mine = info(1)
    log.create(name_of(1), text_of(mine, []))
    assert isinstance(commit(log, at(log, 0), mine, []), Committed)


def test_a_put_that_fails(log: Store) -> None:
    log.before = fail
    with pytest.raises(TimeoutError):
        do(log, at(log, 0))
    assert log.read(name_of(1)) is None


def test_a_put_that_fails_where_there_is_another_entry(log: Store) -> None:
    before = at(log, 0)
    theirs = text_of(info(7), FIRST)
    log.create(name_of(1), theirs)
    log.before = fail
    assert do(log, before) == Conflict(1, theirs)


def test_an_entry_that_was_there_and_is_gone(log: Store) -> None:
    log.create(name_of(1), b"theirs")
    log.after = lambda name: (log._log / name).unlink()
    with pytest.raises(FileNotFoundError):
        do(log, at(log, 0))


@pytest.mark.parametrize("mode", [0o644, 0o640])
@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_permissions_do_not_depend_on_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    """Those of Spark's files do not, either."""
    before, disk = os.umask(umask), LocalDisk(mode)
    try:
        disk.files(str(tmp_path)).write(File("part-1.parquet", b"rows"))
        made = LocalLogStore(tmp_path, disk.mode)
        assert made.create(name_of(0), b"{}")
        made.replace("_last_checkpoint", b"{}")
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {mode}


@pytest.mark.parametrize("path", ["part-1.parquet", "day=1/part-1.parquet"])
def test_a_table_that_was_removed_is_not_begun_again(tmp_path: Path, path: str) -> None:
    """Delta makes no table in a folder with other files."""
    with pytest.raises(FileNotFoundError):
        LocalFiles(tmp_path / "t").write(File(path, b"rows"))
    assert not (tmp_path / "t").exists()
    (tmp_path / "t").mkdir()
    LocalFiles(tmp_path / "t").write(File(path, b"rows"))
    assert (tmp_path / "t" / path).read_bytes() == b"rows"


def test_a_full_disk_gets_no_files_that_nobody_deletes(log: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be one more in each attempt of each batch."""

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = at(log, 0)
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="space"):
        do(log, before)
    with pytest.raises(OSError, match="space"):
        log.replace("_last_checkpoint", b"{}")
    assert [each.name for each in log._log.iterdir()] == [name_of(0)]


@pytest.mark.parametrize(("why", "is_known"), [(errno.EINVAL, True), (errno.EIO, False)])
def test_a_file_system_may_not_sync_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int, is_known: bool
) -> None:
    sync = os.fsync

    def fails(opened: int) -> None:
        if stat.S_ISDIR(os.fstat(opened).st_mode):
            raise OSError(why, os.strerror(why))
        sync(opened)

    monkeypatch.setattr(os, "fsync", fails)
    files, file = LocalFiles(tmp_path), File("part-1.parquet", b"rows")
    if not is_known:
        with pytest.raises(OSError, match="error"):
            files.write(file)
        return
    files.write(file)
    assert files.read("part-1.parquet") == b"rows"


def test_one_of_many_writers_succeeds(log: Store) -> None:
    for version in range(20):
        before = at(log, version)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda n, before=before: do(log, before, n), range(8)))
        assert [type(each) for each in found].count(Committed) == 1
        assert [type(each) for each in found].count(Conflict) == 7
        assert {each.content for each in found if isinstance(each, Conflict)} == {
            log.read(name_of(version + 1))
        }


def test_stamps_tell_contents_of_equal_size_apart(log: Store) -> None:
    before = log.stamp(name_of(0))
    assert isinstance(before, Stamp)
    content = log.read(name_of(0))
    assert content is not None
    (log._log / name_of(0)).unlink()
    log.create(name_of(0), content)
    assert log.stamp(name_of(0)) != before
