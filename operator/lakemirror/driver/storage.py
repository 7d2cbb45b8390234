"""Small text files under one root, on any file system that Hadoop knows: read, list, create if absent."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.errors import LakemirrorError


class StorageUnfit(LakemirrorError):
    """The file system cannot give what is asked of it."""


@dataclass(frozen=True)
class Entry:
    """A file: name relative to what was listed, size in bytes, modification time in ms since 1970."""

    name: str
    size: int
    mtime: int


class Storage(Protocol):
    """Files below ``uri``; names are relative to it, with ``/`` between folders."""

    uri: str

    def exists(self, name: str) -> bool: ...

    def is_folder(self, name: str) -> bool: ...

    def read_text(self, name: str) -> str:
        """The file's text; FileNotFoundError when it is not there."""

    def write_text_new(self, name: str, text: str) -> bool:
        """Create the file with this text, or change nothing and return False when it is there already.

        Of several writers at once exactly one gets True.
        """

    def write_text(self, name: str, text: str) -> None:
        """Create or replace the file."""

    def list(self, prefix: str = "") -> list[Entry]:
        """Files directly in the folder ``prefix``, by name; empty when there is no such folder."""

    def delete(self, name: str) -> None:
        """Remove the file; nothing happens when it is not there."""

    def delete_folder(self, name: str) -> None:
        """Remove the folder and all in it; nothing happens when it is not there."""

    def sha256(self, name: str) -> str:
        """The hash of the file's bytes, in hex."""


def open_storage(uri: str, spark: SparkSession | None = None) -> Storage:
    """The storage at ``uri``. Local paths (``/x``, ``file:///x``) need no session; others do.

    A path without a scheme belongs to the session's default file system, as everywhere in Spark.
    """
    scheme = urlsplit(uri).scheme
    if not scheme and spark is not None:
        scheme = urlsplit(str(_hadoop_conf(spark).get("fs.defaultFS", "file:///"))).scheme
    if scheme in ("", "file"):
        return LocalStorage(local_path(uri))
    if spark is None:
        raise StorageUnfit(f"{uri} is no local path: it can be read through a Spark session only")
    return HadoopStorage(uri, spark)


def local_path(uri: str) -> Path:
    """The path of a local ``uri``, absolute."""
    parts = urlsplit(uri)
    return Path(unquote(parts.path) if parts.scheme == "file" else uri).absolute()


class LocalStorage:
    """Plain files. Readers never see half a file: it is written aside, then linked or renamed."""

    _serial = itertools.count()

    def __init__(self, root: str | Path) -> None:
        self.path = Path(root)
        self.uri = f"file://{self.path}"

    def exists(self, name: str) -> bool:
        return (self.path / name).is_file()

    def is_folder(self, name: str) -> bool:
        return (self.path / name).is_dir()

    def read_text(self, name: str) -> str:
        return (self.path / name).read_text("utf-8")

    def write_text_new(self, name: str, text: str) -> bool:
        aside = self._aside(name, text)
        try:
            os.link(aside, self.path / name)  # fails when the name is taken, unlike rename
            return True
        except FileExistsError:
            return False
        finally:
            aside.unlink()

    def write_text(self, name: str, text: str) -> None:
        os.replace(self._aside(name, text), self.path / name)

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

    def sha256(self, name: str) -> str:
        with open(self.path / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _entry(self, prefix: str, name: str) -> Entry | None:
        """What stands there; None for a folder, and for a file that was deleted a moment ago."""
        try:
            status = os.stat(self.path / prefix / name)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        return Entry(name, status.st_size, status.st_mtime_ns // 1_000_000)

    def _aside(self, name: str, text: str) -> Path:
        """A finished file in the same folder, on disk, under a name of its own."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{os.getpid()}.{next(self._serial)}")
        with open(aside, "x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return aside


class HadoopStorage:
    """Files of any file system that Hadoop knows, through the session's JVM."""

    _CONDITIONAL = "fs.option.create.conditional.overwrite"  # Hadoop 3.4.2 and later

    def __init__(self, root: str, spark: SparkSession) -> None:
        self.uri = root.rstrip("/")
        self._jvm: Any = spark._jvm
        self._fs, _ = file_system(spark, self.uri)

    def exists(self, name: str) -> bool:
        return bool(self._fs.exists(self._path(name)))

    def is_folder(self, name: str) -> bool:
        return self.exists(name) and bool(self._fs.getFileStatus(self._path(name)).isDirectory())

    def read_text(self, name: str) -> str:
        stream = self._open(name)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text_new(self, name: str, text: str) -> bool:
        path = self._path(name)
        builder = self._fs.createFile(path).recursive().overwrite(False)
        if self._fs.getScheme() == "s3a":
            builder = self._conditional(builder, path)
        try:
            self._write(builder.build(), text)
            return True
        except Py4JJavaError as error:
            if self._lost_the_race(error):
                return False
            raise

    def write_text(self, name: str, text: str) -> None:
        self._write(self._fs.create(self._path(name), True), text)

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
            if status.isFile()
        ]
        return sorted(found, key=lambda entry: entry.name)

    def delete(self, name: str) -> None:
        self._fs.delete(self._path(name), False)

    def delete_folder(self, name: str) -> None:
        self._fs.delete(self._path(name), True)

    def sha256(self, name: str) -> str:
        stream = self._open(name)
        try:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
        finally:
            stream.close()

    def _conditional(self, builder: Any, path: Any) -> Any:
        # S3A's plain create(overwrite=false) looks first and writes later: two writers can both succeed.
        if not self._fs.hasPathCapability(path, self._CONDITIONAL):
            raise StorageUnfit(
                f"{self.uri}: S3 conditional writes are off or unknown here, so that two drivers could own "
                "one checkpoint. Use hadoop-aws 3.4.2 or newer and leave fs.s3a.create.conditional.enabled on"
            )
        return builder.must(self._CONDITIONAL, "true")

    def _lost_the_race(self, error: Py4JJavaError) -> bool:
        known = (
            "org.apache.hadoop.fs.FileAlreadyExistsException",
            "org.apache.hadoop.fs.s3a.RemoteFileChangedException",
        )
        return _is_java(error, *known) or "already exists" in str(error.java_exception.getMessage())

    def _write(self, stream: Any, text: str) -> None:
        stream.write(bytearray(text.encode("utf-8")))
        stream.close()

    def _open(self, name: str) -> Any:
        try:
            return self._fs.open(self._path(name))
        except Py4JJavaError as error:
            if _is_java(error, "java.io.FileNotFoundException"):
                raise FileNotFoundError(f"{self.uri}/{name}") from None
            raise

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}" if name else self.uri)


def _is_java(error: Py4JJavaError, *classes: str) -> bool:
    return error.java_exception.getClass().getName() in classes


def file_system(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Hadoop's file system for ``uri``, and the path in it."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(_hadoop_conf(spark)), path


def _hadoop_conf(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().newHadoopConf()
