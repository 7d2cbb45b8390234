"""Small text files under one root, on any file system that Hadoop knows: read, list, create if absent."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.api.object_stores import CONDITION, store_of
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.java import java_class

_BLOCK = 1 << 20
_NO_FILE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG)
"""How the system says that there is no file behind a name."""
_FILE_URI = re.compile(r"^file:(//[^/]*)?", re.IGNORECASE)
_READS = 5
"""How often a file is read that is replaced each time meanwhile."""
_CHANGED = "org.apache.hadoop.fs.s3a.RemoteFileChangedException"
HALF_SECONDS = 5.0
"""How long an incomplete file must stay unchanged before its writer is considered dead, in seconds."""


class StorageUnfit(LakemirrorError):
    """The file system does not provide what is needed."""


class FileCutOff(LakemirrorError):
    """A file is empty: its writer died, or is about to write it."""


@dataclass(frozen=True)
class Entry:
    """A file.

    Its name is relative to the listed folder, its size in bytes, and its modification time in ms since 1970.
    """

    name: str
    size: int
    mtime: int


class Storage(Protocol):
    """Files below ``uri``. Names are relative to it, with ``/`` between folders."""

    uri: str

    def below(self, name: str) -> Storage:
        """Return the storage of a folder.

        Its URI must not be opened instead: a local path may contain characters such as # and %, which mean
        something else in a URI.
        """

    def exists(self, name: str) -> bool: ...

    def is_folder(self, name: str) -> bool: ...

    def read_text(self, name: str) -> str:
        """Return the file's text.

        Raises FileNotFoundError if it does not exist, and FileCutOff if it is empty.
        """

    def write_text_new(self, name: str, text: str) -> bool:
        """Create the file with this text. If it already exists, change nothing and return False.

        If several writers call this at once with different texts, exactly one gets True. The text must end in
        a newline. A file without one at its end is incomplete, left by a crash, and is replaced once it has
        stayed unchanged for a while.
        """

    def write_text(self, name: str, text: str) -> None:
        """Create or replace the file."""

    def list(self, prefix: str = "") -> list[Entry]:
        """List the files directly in the folder ``prefix``, by name. Empty if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete the file, if it exists."""

    def delete_folder(self, name: str) -> None:
        """Delete the folder and everything in it, if it exists."""

    def stat(self, name: str) -> Entry:
        """Return the file as `list` does. Raises FileNotFoundError if it does not exist."""

    def sha256(self, name: str, first: int | None = None) -> str:
        """Return the SHA-256 of the file, or of its ``first`` bytes, in hex.

        Raises FileNotFoundError and PermissionError.
        """

    def ends_in_newline(self, name: str) -> bool:
        """Return whether the file's last byte is a line feed. Raises the same errors as ``sha256``."""


def open_storage(uri: str, spark: SparkSession | None = None) -> Storage:
    """Open the storage at ``uri``. Local paths (``/x``, ``file:///x``) need no session; others do.

    A path without a scheme belongs to the session's default file system, as everywhere in Spark.
    """
    scheme = urlsplit(uri).scheme
    if not scheme and spark is not None:
        scheme = urlsplit(str(_hadoop_conf(spark).get("fs.defaultFS", "file:///"))).scheme
    if scheme in ("", "file"):
        return LocalStorage(local_path(uri))
    if spark is None:
        raise StorageUnfit(f"{uri} is not a local path: it can be read only through a Spark session")
    return HadoopStorage(uri, spark)


def numbered(storage: Storage, folder: str) -> set[int]:
    """Return the numbers N of the files <N> and <N>.json in a folder."""
    stems = (entry.name.removesuffix(".json") for entry in storage.list(folder))
    return {int(stem) for stem in stems if stem.isdecimal()}


def local_path(uri: str) -> Path:
    """Return the absolute path of a local ``uri``.

    As in Hadoop's paths, # and ? belong to the path.
    """
    if urlsplit(uri).scheme != "file":
        return Path(uri).absolute()
    return Path(unquote(_FILE_URI.sub("", uri))).absolute()


class LocalStorage:
    """Plain local files.

    Readers never see an incomplete file: it is written under a temporary name, then linked or renamed.

    If links are not supported (many network and FUSE volumes), a new file is created under its own name with
    O_EXCL, which lets only one writer succeed on any file system. Such a file is complete once it ends in a
    newline. Anyone who reads it earlier gets truncated text and reports it.
    """

    def __init__(self, root: str | Path) -> None:
        self.path = Path(root)
        self.uri = f"file://{self.path}"

    def below(self, name: str) -> LocalStorage:
        return LocalStorage(self.path / name)

    def exists(self, name: str) -> bool:
        return (self.path / name).is_file()

    def is_folder(self, name: str) -> bool:
        return (self.path / name).is_dir()

    def read_text(self, name: str) -> str:
        return _whole((self.path / name).read_text("utf-8"), f"{self.uri}/{name}")

    def write_text_new(self, name: str, text: str) -> bool:
        return _create(self, name, text)

    def create(self, name: str, text: str) -> bool:
        """Create the file. Returns False if its name is already taken by anything."""
        aside = self._aside(name, text)
        try:
            os.link(aside, self.path / name)  # unlike rename, fails if the name is taken
            return True
        except FileExistsError:
            return False
        except OSError:  # links are not supported; any other cause fails again below
            return self._create_in_place(name, text)
        finally:
            aside.unlink(missing_ok=True)

    def set_aside(self, name: str) -> None:
        """Free the file's name, if the file exists."""
        hidden = (self.path / name).with_name(f".{Path(name).name}.{uuid.uuid4().hex}")
        try:
            os.replace(self.path / name, hidden)
        except FileNotFoundError:
            return
        hidden.unlink(missing_ok=True)

    def write_text(self, name: str, text: str) -> None:
        aside = self._aside(name, text)
        try:
            os.replace(aside, self.path / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def list(self, prefix: str = "") -> list[Entry]:
        try:
            names = [name for name in os.listdir(self.path / prefix) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [entry for name in sorted(names) if (entry := self._entry(prefix, name)) is not None]

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def delete_folder(self, name: str) -> None:
        if (self.path / name).exists():
            shutil.rmtree(self.path / name)

    def stat(self, name: str) -> Entry:
        entry = self._entry("", name)
        if entry is None:
            raise FileNotFoundError(f"{self.uri}/{name}")
        return entry

    def sha256(self, name: str, first: int | None = None) -> str:
        digest, left = hashlib.sha256(), first
        with open(self.path / name, "rb") as file:
            while block := file.read(_BLOCK if left is None else min(_BLOCK, left)):
                digest.update(block)
                left = None if left is None else left - len(block)
        return digest.hexdigest()

    def ends_in_newline(self, name: str) -> bool:
        with open(self.path / name, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read(1) == b"\n"

    def _entry(self, prefix: str, name: str) -> Entry | None:
        """Return the entry, or None for a folder, a link to nothing or a file that has just been deleted."""
        try:
            status = os.stat(self.path / prefix / name)
        except PermissionError:  # a link to where this user may not look; whoever reads it is told
            status = os.stat(self.path / prefix / name, follow_symlinks=False)
            return Entry(name, status.st_size, status.st_mtime_ns // 1_000_000)
        except OSError as error:
            if error.errno in _NO_FILE:
                return None
            raise
        if not stat.S_ISREG(status.st_mode):
            return None
        return Entry(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _aside(self, name: str, text: str) -> Path:
        """Write a complete file, flushed to disk, in the same folder under a unique temporary name."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        _write_file(aside, text)
        return aside

    def _create_in_place(self, name: str, text: str) -> bool:
        try:
            _write_file(self.path / name, text)
        except FileExistsError:
            return False
        # False if this writer was so slow that another one considered it dead.
        return (self.path / name).read_text("utf-8") == text


def _write_file(path: Path, text: str) -> None:
    """Create a file and flush it to disk. If that fails, nothing is left of the file."""
    with open(path, "xb") as file:
        try:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


class _Creating(Protocol):
    """What `_create` needs from a storage."""

    def exists(self, name: str) -> bool: ...

    def read_text(self, name: str) -> str: ...

    def create(self, name: str, text: str) -> bool: ...

    def set_aside(self, name: str) -> None: ...


def _create(storage: _Creating, name: str, text: str) -> bool:
    """See `Storage.write_text_new`."""
    if not text.endswith("\n"):
        raise ValueError(f"{name}: the text has to end in a newline, by which it is known to be complete")
    if storage.create(name, text):
        return True
    if not _stays_half(storage, name):
        return False
    storage.set_aside(name)
    return storage.create(name, text)


def _stays_half(storage: _Creating, name: str) -> bool:
    """Return whether a file lacks its final newline and stays unchanged for `HALF_SECONDS`."""
    until = time.monotonic() + HALF_SECONDS
    first: str | None = None
    while True:
        try:
            text = storage.read_text(name)
        except FileNotFoundError:
            return False
        except FileCutOff:
            text = ""
        if text.endswith("\n") or (first is not None and text != first):
            return False
        first = text
        if time.monotonic() >= until:
            return True
        time.sleep(HALF_SECONDS / 20)


def _whole(text: str, where: str) -> str:
    if not text:
        raise FileCutOff(
            f"{where} is empty: its writer was cut off. Restore it from a copy, or set a new "
            "spec.spark.resetToken, so that the source is read anew"
        )
    return text


class HadoopStorage:
    """Files on any file system that Hadoop knows, accessed through the session's JVM.

    S3 and Google Cloud Storage show a file only once it is complete. Elsewhere, the file is written under a
    temporary name and renamed with `FileContext.rename`. That is atomic on HDFS and Azure, and fails there if
    the new name is taken, unless overwriting is requested.
    """

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.uri = root.rstrip("/")
        self._spark = spark
        self._java = partial(java_class, spark)
        self._fs, _ = file_system(spark, self.uri)
        self._store = store_of(str(self._fs.getUri()))

    def below(self, name: str) -> HadoopStorage:
        return HadoopStorage(f"{self.uri}/{name}", self._spark)

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def is_folder(self, name: str) -> bool:
        return self.exists(name) and bool(self._fs.getFileStatus(self._path(name)).isDirectory())

    def read_text(self, name: str) -> str:
        for _ in range(_READS - 1):
            try:
                return self._read_text(name)
            except Py4JJavaError as error:
                if not _tells_of_change(error):
                    raise
        return self._read_text(name)

    def _read_text(self, name: str) -> str:
        stream = self._open(name)
        try:
            text = str(self._java("org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()
        return _whole(text, f"{self.uri}/{name}")

    def write_text_new(self, name: str, text: str) -> bool:
        return _create(self, name, text)

    def create(self, name: str, text: str) -> bool:
        """Create the file. Returns False if another one has its name."""
        path = self._path(name)
        try:
            if self._shows_only_whole_files():
                builder = self._fs.createFile(path).recursive().overwrite(False)
                self._write(self._conditional(builder, path).build(), text)
            else:
                self._rename(self._aside(name, text), path, replace=False)
            return True
        except Py4JJavaError as error:
            if not self._lost_the_race(error):
                raise
            return self._shows_only_whole_files() and self._put_before(name, text, error)

    def set_aside(self, name: str) -> None:
        """Free the file's name, if the file exists."""
        self.delete(name)

    def write_text(self, name: str, text: str) -> None:
        if self._shows_only_whole_files():
            self._write(self._fs.create(self._path(name), True), text)
        else:
            self._rename(self._aside(name, text), self._path(name), replace=True)

    def list(self, prefix: str = "") -> list[Entry]:
        try:
            statuses: Iterable[Any] = self._fs.listStatus(self._path(prefix))
        except Py4JJavaError as error:
            if _is_java(error, "java.io.FileNotFoundException"):
                return []
            raise
        found = [
            Entry(status.getPath().getName(), status.getLen(), status.getModificationTime())
            for status in statuses
            if status.isFile() and not status.getPath().getName().startswith(".")
        ]
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), False)

    def delete_folder(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def stat(self, name: str) -> Entry:
        try:
            status = self._fs.getFileStatus(self._path(name))
        except Py4JJavaError as error:
            raise _as_os_error(error, f"{self.uri}/{name}") from None
        return Entry(name, status.getLen(), status.getModificationTime())

    def sha256(self, name: str, first: int | None = None) -> str:
        stream = self._open(name)
        try:
            bounded = self._java("org.apache.commons.io.input.BoundedInputStream")
            part = stream if first is None else bounded(stream, first)
            return str(self._java("org.apache.commons.codec.digest.DigestUtils").sha256Hex(part))
        finally:
            stream.close()

    def ends_in_newline(self, name: str) -> bool:
        stream = self._open(name)
        try:
            stream.seek(max(0, self.stat(name).size - 1))
            return bool(stream.read() == ord("\n"))
        finally:
            stream.close()

    def setting(self, name: str) -> str | None:
        """Return a setting of the file system, as it applies to this root."""
        value = self._fs.getConf().get(name)
        return None if value is None else str(value)

    def _shows_only_whole_files(self) -> bool:
        return self._store is not None and self._store.creates_by != "rename"

    def _put_before(self, name: str, text: str, refused: Py4JJavaError) -> bool:
        """Return whether a put was refused only because an earlier attempt of it succeeded.

        A client that gets no answer retries. Raises ``refused`` if the file does not exist.
        """
        try:
            return self.read_text(name) == text
        except FileCutOff:
            return False
        except FileNotFoundError:
            raise refused from None

    def _aside(self, name: str, text: str) -> Any:
        """Write a complete file in the same folder under a unique temporary name, and return its path."""
        folder, _, last = name.rpartition("/")
        aside = self._path(f"{folder}/.{last}.{uuid.uuid4().hex}".lstrip("/"))
        try:
            self._write(self._fs.create(aside, False), text)
        except BaseException:
            self._fs.delete(aside, False)
            raise
        return aside

    def _rename(self, aside: Any, path: Any, *, replace: bool) -> None:
        options: Any = self._java("org.apache.hadoop.fs.Options$Rename")
        chosen = self._spark.sparkContext._gateway.new_array(options, 1)  # type: ignore[union-attr]
        chosen[0] = options.OVERWRITE if replace else options.NONE
        try:
            self._context().rename(aside, path, chosen)
        except BaseException:
            self._fs.delete(aside, False)
            raise

    def _context(self) -> Any:
        context: Any = self._java("org.apache.hadoop.fs.FileContext")
        return context.getFileContext(self._fs.getUri(), self._fs.getConf())

    def _conditional(self, builder: Any, path: Any) -> Any:
        # S3A's plain create(overwrite=false) checks first and writes later: two writers can both succeed.
        if self._store is not None and self._store.creates_by == "create":
            return builder
        if not self._fs.hasPathCapability(path, CONDITION):
            raise StorageUnfit(
                f"{self.uri}: S3 conditional writes are off or unknown here, so that two drivers could own "
                "one checkpoint. Use hadoop-aws 3.4.2 or newer and leave fs.s3a.create.conditional.enabled on"
            )
        return builder.must(CONDITION, "true")

    def _lost_the_race(self, error: Py4JJavaError) -> bool:
        known = ("org.apache.hadoop.fs.FileAlreadyExistsException", _CHANGED)
        return _is_java(error, *known) or "already exists" in str(error.java_exception.getMessage())

    def _write(self, stream: Any, text: str) -> None:
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def _open(self, name: str) -> Any:
        try:
            return self._fs.open(self._path(name))
        except Py4JJavaError as error:
            raise _as_os_error(error, f"{self.uri}/{name}") from None

    def _path(self, name: str) -> Any:
        return self._java("org.apache.hadoop.fs.Path")(f"{self.uri}/{name}" if name else self.uri)


def _is_java(error: Any, *classes: str) -> bool:
    return error.java_exception.getClass().getName() in classes


def _tells_of_change(error: Py4JJavaError) -> bool:
    """Return whether a file was replaced after it was opened: S3's client reads it only as it was then."""
    return _is_java(error, _CHANGED) or "Status Code: 412" in str(error)


def _as_os_error(error: Exception, where: str) -> Exception:
    """Return Python's equivalent of a Hadoop error, or the error itself if it has none."""
    if _is_java(error, "java.io.FileNotFoundException"):
        return FileNotFoundError(where)
    if _is_java(error, "org.apache.hadoop.security.AccessControlException"):
        return PermissionError(where)
    return error


def file_system(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Return Hadoop's file system for ``uri``, and its path there."""
    path = java_class(spark, "org.apache.hadoop.fs.Path")(uri)
    return path.getFileSystem(_hadoop_conf(spark)), path


def delete_folder(spark: SparkSession, uri: str) -> None:
    """Delete a folder and everything in it, if it exists."""
    files, path = file_system(spark, uri)
    files.delete(path, True)


def _hadoop_conf(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()
