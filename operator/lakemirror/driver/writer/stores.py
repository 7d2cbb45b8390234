"""Where files and log entries are put: the interface, and a local disk."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import Listed, Stamp, prefix_of


class Files(Protocol):
    """The files of one table. Paths are relative to its folder, and not encoded."""

    def write(self, file: File) -> None:
        """Store a file durably. Nothing reads it before a log entry names it."""

    def read(self, path: str) -> bytes:
        """Return the content of a file. Raises FileNotFoundError."""

    def open(self, path: str) -> pa.NativeFile:
        """Open a file, to read parts of it. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool: ...

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""


def discard(files: Files, paths: Iterable[str]) -> None:
    """Delete the files of a commit that is known not to be in the log, and never to be.

    What cannot be deleted stays until VACUUM: no error of the storage hides what became of the commit.
    """
    for each in paths:
        with contextlib.suppress(Exception):
            files.delete(each)


class LocalFiles:
    """The files of a table on a local disk."""

    def __init__(self, table: Path) -> None:
        self._table = table

    def write(self, file: File) -> None:
        path = self._table / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, file.content)
        _settle(path.parent)

    def read(self, path: str) -> bytes:
        return (self._table / path).read_bytes()

    def open(self, path: str) -> pa.NativeFile:
        return pa.OSFile(str(self._table / path))

    def exists(self, path: str) -> bool:
        return (self._table / path).exists()

    def delete(self, path: str) -> None:
        (self._table / path).unlink(missing_ok=True)


class LocalLogStore:
    """The log of a table on a local disk, which must know hard links.

    An entry appears with all of its content, or not at all.
    """

    def __init__(self, log: Path) -> None:
        self._log = log

    def stamp(self, name: str) -> Stamp | None:
        try:
            found = (self._log / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stamp(found.st_size, f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}")

    def create(self, name: str, content: bytes) -> bool:
        if (self._log / name).exists():
            return False
        aside = self._aside(name, content)
        try:
            os.link(aside, self._log / name)
        except FileExistsError:
            return False
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
        _settle(self._log)
        return True

    def replace(self, name: str, content: bytes) -> None:
        os.replace(self._aside(name, content), self._log / name)
        _settle(self._log)

    def _aside(self, name: str, content: bytes) -> Path:
        """Store what is to become a file. Delta and its VACUUM pass over it."""
        aside = self._log / f".{name}.{uuid.uuid4()}.tmp"
        _write(aside, content)
        # What a writer of Hadoop left of a file that is another one now: Hadoop would compare with it.
        (self._log / f".{name}.crc").unlink(missing_ok=True)
        return aside

    def read(self, name: str) -> bytes | None:
        try:
            return (self._log / name).read_bytes()
        except FileNotFoundError:
            return None

    def list_from(self, version: int) -> list[Listed]:
        start = prefix_of(version)
        try:
            names = [each for each in os.listdir(self._log) if each >= start]
        except (FileNotFoundError, NotADirectoryError):
            return []
        stamps = ((name, self.stamp(name)) for name in names)
        return [Listed(name, stamp.size) for name, stamp in stamps if stamp is not None]


def _write(path: Path, content: object) -> None:
    with path.open("xb") as out:
        out.write(content)  # type: ignore[arg-type]  # bytes, or a buffer of Arrow's, which has no types
        out.flush()
        os.fsync(out.fileno())


def _settle(folder: Path) -> None:
    """Make the names in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
