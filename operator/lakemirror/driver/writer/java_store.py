"""The log of a table through Delta's own log store, which commits atomically on each file system.

These are internals of delta-spark 4.4 (``org.apache.spark.sql.delta.storage.LogStore``), so check this module
when you change the version.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.java import delta_log, java_class
from lakemirror.driver.writer.entry import LOG, Listed, Stamp, bare, prefix_of
from lakemirror.driver.writer.stores import Files

_EXISTS: Final = "java.nio.file.FileAlreadyExistsException"
_MISSING: Final = "java.io.FileNotFoundException"
_WHOLE: Final = ("fs.option.openfile.read.policy", "whole-file")
"""How files are read. Otherwise Hadoop's client of S3 remembers each Parquet file (HADOOP-20058)."""


class DeltaLogStore:
    """The log of the table at a path on any file system that Delta can write to."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self._spark = spark
        # Not the log store of Delta's object for the log: that object would read the log first.
        stores = getattr(java_class(spark, "org.apache.spark.sql.delta.storage.LogStore$"), "MODULE$")
        self._store = stores.apply(spark._jsparkSession)
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._log = f"{table.rstrip('/')}/{LOG}"
        self._files = self._path("").getFileSystem(self._conf)

    def begin(self) -> None:
        self._files.mkdirs(self._path(""))

    def stamp(self, name: str) -> Stamp | None:
        try:
            found = self._files.getFileStatus(self._path(name))
        except Py4JJavaError as error:
            if _is(error, _MISSING):
                return None
            raise
        return Stamp(int(found.getLen()), self._mark(found))

    def create(self, name: str, content: bytes) -> bool:
        lines = java_class(self._spark, "java.util.ArrayList")()
        for each in content.decode().removesuffix("\n").split("\n"):
            lines.add(each)
        listed = java_class(self._spark, "org.apache.spark.api.python.PythonUtils").toSeq(lines)
        try:
            self._store.write(self._path(name), listed.iterator(), False, self._conf)
        except Py4JJavaError as error:
            if _is(error, _EXISTS):
                return False
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        target = self._path(name)
        if not self._store.isPartialWriteVisible(target, self._conf):
            return self._write(target, content)
        aside = self._path(f".{name}.{uuid.uuid4()}.tmp")
        self._write(aside, content)
        context = java_class(self._spark, "org.apache.hadoop.fs.FileContext")
        rename = java_class(self._spark, "org.apache.hadoop.fs.Options$Rename")
        gateway: Any = self._spark.sparkContext._gateway
        ways = gateway.new_array(rename, 1)
        ways[0] = rename.OVERWRITE
        context.getFileContext(target.toUri(), self._conf).rename(aside, target, ways)
        return None

    def _write(self, path: Any, content: bytes) -> None:
        opened = self._files.create(path, True)
        try:
            opened.write(content)
        finally:
            opened.close()

    def read(self, name: str) -> bytes | None:
        try:
            opened = self._files.openFile(self._path(name)).opt(*_WHOLE).build().get()
        except Py4JJavaError as error:
            if _is(error, _MISSING):
                return None
            raise
        try:
            return bytes(opened.readAllBytes())
        finally:
            opened.close()

    def list_from(self, version: int) -> list[Listed]:
        try:
            listed = self._store.listFrom(self._path(prefix_of(version)), self._conf)
            return [Listed(str(each.getPath().getName()), int(each.getLen())) for each in _each(listed)]
        except Py4JJavaError as error:
            if _is(error, _MISSING):
                return []
            raise

    def _mark(self, status: Any) -> str:
        """Return what the store says to tell contents apart: a hash, or at least the time."""
        kind = java_class(self._spark, "org.apache.hadoop.fs.EtagSource")
        hashed = java_class(self._spark, "py4j.reflection.TypeUtil").isInstanceOf(kind._fqn, status)
        tag = bare(status.getEtag()) if hashed else ""
        return tag or str(status.getModificationTime())

    def _path(self, name: str) -> Any:
        place = f"{self._log}/{name}" if name else self._log
        return java_class(self._spark, "org.apache.hadoop.fs.Path")(place)


class S3LogStore(DeltaLogStore):
    """The log of a table on S3. Files of it are looked at and read without Hadoop, by half of the requests.

    ``files`` are those of the table. They may be set anew.
    """

    def __init__(self, spark: SparkSession, table: str, files: Files) -> None:
        super().__init__(spark, table)
        self.files = files

    def begin(self) -> None:
        """Do nothing: there are no folders."""

    def stamp(self, name: str) -> Stamp | None:
        return self.files.stamp(f"{LOG}/{name}")

    def read(self, name: str) -> bytes | None:
        try:
            return self.files.read_now(f"{LOG}/{name}")
        except FileNotFoundError:
            return None

    def is_hadoops(self, name: str) -> bool:
        """Return whether Hadoop's client finds the same file."""
        return super().stamp(name) == self.stamp(name)


def checkpoint_by_delta(spark: SparkSession, table: str) -> None:
    """Make Delta write a checkpoint of a table's newest version, and clean up the table's log."""
    log = delta_log(spark, table)
    nothing = java_class(spark, "scala.Option").empty()
    log.checkpoint(log.update(False, nothing, nothing), nothing)


def _each(iterator: Any) -> Iterator[Any]:
    """Return what an iterator of Scala returns."""
    while iterator.hasNext():
        yield iterator.next()


def _is(error: Py4JJavaError, name: str) -> bool:
    """Return whether an error of Java, or what it was caused by, is of a class."""
    cause = error.java_exception
    while cause is not None:
        if cause.getClass().getName() in (name, _HADOOPS.get(name)):
            return True
        cause = cause.getCause()
    return False


_HADOOPS: Final = {_EXISTS: "org.apache.hadoop.fs.FileAlreadyExistsException"}
