"""The same promises on plain paths and through Hadoop's FileSystem."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint import storage as module
from lakemirror.driver.checkpoint.storage import (
    FileCutOff,
    HadoopStorage,
    LocalStorage,
    Storage,
    StorageUnfit,
    local_path,
    open_storage,
)


@pytest.fixture(params=["local", "hadoop"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return LocalStorage(tmp_path / "root")
    return HadoopStorage(f"file://{tmp_path}/root", request.getfixturevalue("spark"))


def test_reads_what_was_written(storage: Storage) -> None:
    text = "zwei\nÄäß 😀 \x00 end"
    storage.write_text("a/b.json", text)
    assert storage.read_text("a/b.json") == text
    assert storage.exists("a/b.json")
    assert storage.sha256("a/b.json") == hashlib.sha256(text.encode()).hexdigest()


def test_tells_how_a_file_ends(storage: Storage) -> None:
    storage.write_text("f/line", "a\n")
    storage.write_text("f/cut", "a\nb")
    assert [storage.ends_in_newline(f"f/{name}") for name in ("line", "cut")] == [True, False]
    assert storage.sha256("f/cut", 2) == storage.sha256("f/line")
    assert storage.stat("f/cut").size == 3
    for ask in (storage.stat, storage.sha256, storage.ends_in_newline):
        with pytest.raises(FileNotFoundError):
            ask("f/nothing")


def test_replaces_and_deletes(storage: Storage) -> None:
    storage.write_text("x", "old, and longer")
    storage.write_text("x", "new")
    assert storage.read_text("x") == "new"
    storage.delete("x")
    storage.delete("x")
    assert not storage.exists("x")
    with pytest.raises(FileNotFoundError):
        storage.read_text("x")


def test_lists_files_of_one_folder_by_name(storage: Storage) -> None:
    for name in ("f/b", "f/a", "f/deeper/c", "other"):
        storage.write_text(name, name)
    assert [(entry.name, entry.size) for entry in storage.list("f")] == [("a", 3), ("b", 3)]
    assert storage.list("nowhere") == []
    assert storage.is_folder("f")
    assert not storage.is_folder("f/a")
    assert not storage.is_folder("nowhere")


def test_modification_time_is_in_milliseconds(storage: Storage) -> None:
    storage.write_text("f/a", "a")
    assert 1_600_000_000_000 < storage.list("f")[0].mtime < 4_000_000_000_000


def test_creates_only_once(storage: Storage) -> None:
    assert storage.write_text_new("n/1", "first\n")
    assert not storage.write_text_new("n/1", "second\n")
    assert storage.read_text("n/1") == "first\n"
    assert [entry.name for entry in storage.list("n")] == ["1"]


@pytest.mark.parametrize("links", [True, False])
def test_of_many_creators_one_wins(links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not links:
        monkeypatch.setattr(os, "link", fail_with(errno.EPERM))
    storage = LocalStorage(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda i: storage.write_text_new("n/1", f"{i}" * 1000 + "\n"), range(32)))
    assert won.count(True) == 1
    assert storage.read_text("n/1") == f"{won.index(True)}" * 1000 + "\n"
    assert os.listdir(tmp_path / "n") == ["1"]


def fail_with(number: int) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("links", [True, False])
def test_a_full_disk_leaves_nothing_behind(
    links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", fail_with(errno.EOPNOTSUPP))
    storage = LocalStorage(tmp_path)
    storage.write_text("n/2", "as it was")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", fail_with(errno.ENOSPC))
        for write in (storage.write_text, storage.write_text_new):
            for name in ("n/1", "n/2"):
                with pytest.raises(OSError, match="No space left"):
                    write(name, "text\n")
        with pytest.raises(OSError, match="No space left"):
            storage._create_in_place("n/1", "text\n")
    assert os.listdir(tmp_path / "n") == ["2"]
    assert storage.read_text("n/2") == "as it was"
    assert storage.write_text_new("n/1", "text\n")


def test_what_another_container_left_blocks_nothing(tmp_path: Path) -> None:
    """Processes in containers have the same numbers; those of before left their temporary files."""
    storage = LocalStorage(tmp_path)
    (tmp_path / "n").mkdir()
    for serial in range(2000):
        (tmp_path / "n" / f".1.{os.getpid()}.{serial}").touch()
    assert storage.write_text_new("n/1", "text\n")
    storage.write_text("n/1", "other")
    assert storage.read_text("n/1") == "other"
    assert [entry.name for entry in storage.list("n")] == ["1"]


def test_half_files_are_told_and_replaced(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HALF_SECONDS", 0.2)
    for text in ("", '{"half'):
        storage.write_text("n/1", text)
        assert storage.write_text_new("n/1", "whole\n")
        assert storage.read_text("n/1") == "whole\n"
        assert not storage.write_text_new("n/1", "other\n")
    assert [entry.name for entry in storage.list("n")] == ["1"]
    storage.write_text("n/2", "")
    with pytest.raises(FileCutOff, match=r"n/2 is empty: .* spec\.spark\.resetToken"):
        storage.read_text("n/2")
    with pytest.raises(ValueError, match="has to end in a newline"):
        storage.write_text_new("n/3", "no end")


def test_a_writer_that_dies_on_hadoop_leaves_no_half_file(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = HadoopStorage(f"file://{tmp_path}/root", spark)
    storage.write_text("a/old", "as it was")

    def die(stream: Any, text: str) -> None:
        stream.write(bytearray(text.encode()[:3]))
        stream.close()
        raise OSError("killed")

    with monkeypatch.context() as dying:
        dying.setattr(storage, "_write", die)
        for write, name in ((storage.write_text_new, "a/new"), (storage.write_text, "a/old")):
            with pytest.raises(OSError, match="killed"):
                write(name, "a longer text\n")
    assert not storage.exists("a/new")
    assert storage.read_text("a/old") == "as it was"
    assert sorted(os.listdir(tmp_path / "root" / "a")) == [".old.crc", "old"]
    (tmp_path / "root" / "a" / f".new.{'0' * 32}").write_text("left by a kill")
    assert [entry.name for entry in storage.list("a")] == ["old"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    storage.write_text("x", "0" * 100_000)
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(lambda: [storage.write_text("x", f"{i % 10}" * 100_000) for i in range(100)])
        while not writing.done():
            text = storage.read_text("x")
            assert len(text) == 100_000
            assert len(set(text)) == 1


def test_paths_without_a_session_are_local(tmp_path: Path) -> None:
    assert open_storage(str(tmp_path)).uri == f"file://{tmp_path}"
    assert open_storage(f"file://{tmp_path}").uri == f"file://{tmp_path}"
    with pytest.raises(StorageUnfit, match="s3a://lake"):
        open_storage("s3a://lake/x")


@pytest.mark.parametrize("name", ["cp#1", "cp?x=1", "cp%41", "cp 1"])
def test_a_folder_of_a_local_path_with_characters_of_uris(name: str, tmp_path: Path) -> None:
    folder = open_storage(f"{tmp_path}/{name}").below("resync/a")
    assert isinstance(folder, LocalStorage)
    assert folder.path == tmp_path / name / "resync/a"


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("file:///x/cp#1", "/x/cp#1"),
        ("file:///x/cp?x=1", "/x/cp?x=1"),
        ("file:/x/cp", "/x/cp"),
        ("file://localhost/x/cp", "/x/cp"),
        ("FILE:///x/a%20b", "/x/a b"),
    ],
)
def test_the_path_of_a_file_uri(uri: str, path: str) -> None:
    assert local_path(uri) == Path(path)


def test_a_folder_of_a_storage(storage: Storage, tmp_path: Path) -> None:
    storage.below("a/b").write_text("c", "text")
    assert storage.read_text("a/b/c") == "text"
    assert (tmp_path / "root/a/b/c").read_text() == "text"


def test_a_path_without_a_scheme_follows_the_session(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(open_storage(str(tmp_path), spark), LocalStorage)
    session = spark.newSession()
    session.conf.set("fs.defaultFS", "viewfs://cluster/")
    session.conf.set("fs.viewfs.mounttable.cluster.link./data", f"file://{tmp_path}")
    storage = open_storage("/data", session)
    assert isinstance(storage, HadoopStorage)
    storage.write_text("a", "text")
    assert (tmp_path / "a").read_text() == "text"
