"""Files and folders of a table on a local disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lakemirror.driver.writer import stores
from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.stores import LocalFiles


def test_folders_of_partitions_are_durable_and_for_whoever_may_read_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = list[Path]()
    monkeypatch.setattr(stores, "_settle", settled.append)
    former, files = os.umask(0o077), LocalFiles(tmp_path, 0o640)
    try:
        files.write(File("a=1/b=2/x.parquet", b"x"))
    finally:
        os.umask(former)
    outer, inner = tmp_path / "a=1", tmp_path / "a=1" / "b=2"
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (outer, inner, inner / "x.parquet")]
    assert modes == [0o750, 0o750, 0o640]
    assert settled == [tmp_path, outer, inner]
    files.write(File("a=1/b=2/y.parquet", b"y"))
    assert settled[3:] == [inner]


def test_the_folder_of_a_table_that_was_removed_stays_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalFiles(tmp_path / "t").write(File("a=1/x.parquet", b"x"))
    assert not (tmp_path / "t").exists()
