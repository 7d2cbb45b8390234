"""Where files and log entries are put: the interface, and a local disk."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import Listed, Stamp, prefix_of

_NOT_SYNCED: Final = frozenset({errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.ENOSYS})
"""What file systems say that do not sync folders: their names are as durable as they make them."""
_MODE: Final = 0o644
"""The permissions of files as Hadoop gives them by default, whatever the umask of the process is."""
_MOST_FOOTERS: Final = 16 * 1024 * 1024
"""Maximum size of the footers that are kept, in bytes as they are stored."""

Kept = TypeVar("Kept")


class Recent(Generic[Kept]):
    """Things by their name. Those that were used last are kept, up to ``most`` bytes in all."""

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[str, tuple[Kept, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str) -> Kept | None:
        with self._lock:
            if name not in self._kept:
                return None
            self._kept.move_to_end(name)
            return self._kept[name][0]

    def keep(self, name: str, thing: Kept, size: int) -> None:
        """Keep a thing that takes ``size`` bytes, perhaps in the place of others."""
        with self._lock:
            self._remove(name)
            self._kept[name] = thing, size
            self._size += size
            while self._size > self._most:
                self._remove(next(iter(self._kept)))

    def forget(self, name: str) -> None:
        with self._lock:
            self._remove(name)

    def _remove(self, name: str) -> None:
        _, size = self._kept.pop(name, (None, 0))
        self._size -= size


def recent_footers() -> Recent[pq.FileMetaData]:
    """Return what keeps footers of files."""
    return Recent(_MOST_FOOTERS)


class Opened(Protocol):
    """A file that is open."""

    @property
    def source(self) -> pa.NativeFile:
        """The file, to read any part of it."""

    def fetch(self, parts: Sequence[tuple[int, int]]) -> None:
        """Get parts that are about to be read, with few requests. Each has a start and an end."""


class Files(Protocol):
    """The files of one table. Paths are relative to its folder, and not encoded.

    The path of a data file has the same content for ever. ``threads`` files are read at a time, which saves
    time where each request takes some.
    """

    @property
    def threads(self) -> int: ...

    def footer(self, path: str) -> pq.FileMetaData | None:
        """Return the footer of a Parquet file, if it is known."""

    def keep_footer(self, path: str, footer: pq.FileMetaData) -> None:
        """Know the footer of a Parquet file from now on."""

    def write(self, file: File) -> None:
        """Store a file durably. Nothing reads it before a log entry names it."""

    def read(self, path: str) -> bytes:
        """Return the content of a file that has the same for ever. Raises FileNotFoundError."""

    def read_now(self, path: str) -> bytes:
        """Return the content that a file has by now. Raises FileNotFoundError."""

    def open(self, path: str, size: int) -> AbstractContextManager[Opened]:
        """Open a file of a size in bytes, to read parts of it. Raises FileNotFoundError, or a read does."""

    def stamp(self, path: str) -> Stamp | None:
        """Return what tells a file from another one at its place, or None if there is none.

        It is the same that a `LogStore` says of a file of the log.
        """

    def exists(self, path: str) -> bool: ...

    def delete(self, path: str) -> None:
        """Delete a file, if it is there."""


class FileSystem(Protocol):
    """Where tables are. It can be pickled, and sent to the machines that read and write their files."""

    def files(self, table: str) -> Files:
        """Return the files of the table with this path."""


def discard(files: Files, paths: Iterable[str]) -> None:
    """Delete the files of a commit that is known not to be in the log, and never to be.

    What cannot be deleted stays until VACUUM: no error of the storage hides what became of the commit.
    """
    for each in paths:
        with contextlib.suppress(Exception):
            files.delete(each)


@dataclass(frozen=True)
class LocalDisk:
    """A local disk, or one that all machines have at the same place. ``mode`` says who may use new files."""

    mode: int = _MODE

    def files(self, table: str) -> Files:
        return LocalFiles(Path(table), self.mode)


@dataclass(frozen=True)
class _OpenedLocally:
    source: pa.NativeFile

    def fetch(self, parts: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the disk is near."""


class LocalFiles:
    """The files of a table on a local disk."""

    threads = 1

    def __init__(self, table: Path, mode: int = _MODE) -> None:
        self._table, self._mode = table, mode
        self._footers = recent_footers()

    def footer(self, path: str) -> pq.FileMetaData | None:
        return self._footers.get(path)

    def keep_footer(self, path: str, footer: pq.FileMetaData) -> None:
        self._footers.keep(path, footer, footer.serialized_size)

    def write(self, file: File) -> None:
        path = self._table / file.path
        if self._table.exists():  # a table that was removed stays so
            for each in reversed(path.relative_to(self._table).parents[:-1]):
                _make_folder(self._table / each, self._mode)
        _write(path, file.content, self._mode)
        _settle(path.parent)

    def read(self, path: str) -> bytes:
        return (self._table / path).read_bytes()

    def read_now(self, path: str) -> bytes:
        return self.read(path)

    @contextmanager
    def open(self, path: str, size: int) -> Iterator[Opened]:
        with pa.OSFile(str(self._table / path)) as source:
            yield _OpenedLocally(source)

    def stamp(self, path: str) -> Stamp | None:
        return _stamp(self._table / path)

    def exists(self, path: str) -> bool:
        return (self._table / path).exists()

    def delete(self, path: str) -> None:
        (self._table / path).unlink(missing_ok=True)


class LocalLogStore:
    """The log of a table on a local disk, which must know hard links.

    An entry appears with all of its content, or not at all.
    """

    def __init__(self, log: Path, mode: int = _MODE) -> None:
        self._log, self._mode = log, mode

    def begin(self) -> None:
        """Make the folder of the log and that of its table, in one that exists: what was removed stays so."""
        for folder in (self._log.parent, self._log):
            _make_folder(folder, self._mode)

    def stamp(self, name: str) -> Stamp | None:
        return _stamp(self._log / name)

    def create(self, name: str, content: bytes) -> bool:
        if (self._log / name).exists():
            return False
        with self._aside(name, content) as aside:
            try:
                os.link(aside, self._log / name)
            except FileExistsError:
                return False
        _settle(self._log)
        return True

    def replace(self, name: str, content: bytes) -> None:
        with self._aside(name, content) as aside:
            os.replace(aside, self._log / name)
        _settle(self._log)

    @contextmanager
    def _aside(self, name: str, content: bytes) -> Iterator[Path]:
        """Store what is to become a file, under another name until then, which nothing else ever deletes."""
        aside = self._log / f".{name}.{uuid.uuid4()}.tmp"
        try:
            _write(aside, content, self._mode)
            # What a writer of Hadoop left of a file that is another one now: Hadoop would compare with it.
            (self._log / f".{name}.crc").unlink(missing_ok=True)
            yield aside
        finally:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()

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


def has_hard_links(folder: Path) -> bool:
    """Return whether files can be linked in the folder of a log. Delta passes over what is tried."""
    file, link = (folder / f".{uuid.uuid4()}.tmp" for _ in range(2))
    try:
        file.touch(exist_ok=False)
        os.link(file, link)
        return True
    except OSError:
        return False
    finally:
        for each in (file, link):
            with contextlib.suppress(OSError):
                each.unlink()


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Stamp(found.st_size, f"{found.st_dev}:{found.st_ino}:{found.st_mtime_ns}")


def _make_folder(folder: Path, mode: int) -> None:
    """Make a folder durably, unless it exists. ``mode`` is that of the files in it."""
    try:
        folder.mkdir()
    except FileExistsError:
        return
    folder.chmod(mode | (mode & 0o444) >> 2)  # whoever may read files may enter
    _settle(folder.parent)


def _write(path: Path, content: object, mode: int) -> None:
    with path.open("xb") as out:
        if stat.S_IMODE(os.fstat(out.fileno()).st_mode) != mode:
            os.fchmod(out.fileno(), mode)
        out.write(content)  # type: ignore[arg-type]  # bytes, or a buffer of Arrow's, which has no types
        out.flush()
        os.fsync(out.fileno())


def _settle(folder: Path) -> None:
    """Make the names in a folder durable, if its file system has a way to do so."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(opened)
