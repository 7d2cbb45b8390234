"""The file systems of mirrors: what the driver and its tasks read and write their files with."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from lakemirror.api.object_stores import one_spelling
from lakemirror.driver.engine.commits import DeltaTable
from lakemirror.driver.engine.mirror_files import NotForEngine
from lakemirror.driver.java import java_class
from lakemirror.driver.writer.entry import LOG, name_of
from lakemirror.driver.writer.java_s3 import Client
from lakemirror.driver.writer.java_store import S3LogStore, checkpoint_by_delta
from lakemirror.driver.writer.log_files import LAST_CHECKPOINT
from lakemirror.driver.writer.s3_access import S3, SCHEME, NotTranslated
from lakemirror.driver.writer.stores import FileSystem, LocalDisk, has_hard_links

log = logging.getLogger(__name__)

_LOCAL: Final = "/"
_FILE: Final = "file:"
_DEFAULT: Final = "fs.defaultFS"
_FEW_ATTEMPTS: Final = 2
"""How often the first request to a bucket is sent again. Those that follow may be sent again for minutes."""
_FIRST_DELAY, _LONGEST_DELAY = 60.0, 3600.0
"""After how many seconds a bucket is tried again that tasks cannot reach: at first, and at most."""


def reason_against_place(path: str) -> str | None:
    """Return why the engine does not write the mirror at a path, as far as the path shows, or None."""
    return None if path.startswith((_LOCAL, SCHEME)) else "its mirror is neither on a local disk nor on S3"


class FileSystems:
    """Finds the file system of a mirror. What is found holds for one batch."""

    def __init__(self, spark: SparkSession, clock: Callable[[], float] = time.monotonic) -> None:
        self._spark, self._clock = spark, clock
        self._clients: dict[str, Client] = {}
        """Hadoop's clients, by their bucket."""
        self._buckets: dict[str, S3] = {}
        """The buckets of this batch, by their name."""
        self._with_links: set[int] = set()
        """The local file systems that have hard links, by their number."""
        self._reached: set[str] = set()
        """The buckets that the client of tasks is known to reach."""
        self._waiting: dict[str, tuple[float, float]] = {}
        """When to try other buckets again, and after which delay that is."""
        self._lock = Lock()

    def renew(self) -> None:
        """Begin a batch: keys may have changed."""
        self._buckets = {}

    def folder(self, path: str) -> str:
        """Return the path of a mirror as it is used here: of one on a local disk, without a scheme.

        A path without a scheme belongs to the default file system, as everywhere in Spark.
        """
        if path.startswith(_FILE):
            return one_spelling(path)
        return f"{self._default}{path}" if path.startswith(_LOCAL) else path

    @cached_property
    def _conf(self) -> Any:
        return self._spark._jsparkSession.sessionState().newHadoopConf()

    @cached_property
    def _disk(self) -> LocalDisk:
        """The local disk, on which files get the permissions that Hadoop gives them."""
        permissions = java_class(self._spark, "org.apache.hadoop.fs.permission.FsPermission")
        return LocalDisk(0o666 & ~int(permissions.getUMask(self._conf).toShort()))

    @cached_property
    def _default(self) -> str:
        """The default file system; nothing for the local disk."""
        found = str(self._conf.get(_DEFAULT, _FILE)).rstrip("/")
        return "" if urlsplit(found).scheme in ("", "file") else found

    def of(self, path: str) -> FileSystem:
        """Return the file system that a path is on. Raises NotForEngine, and errors of Hadoop's client."""
        reason = reason_against_place(path)
        if reason is not None:
            raise NotForEngine(reason)
        return self._disk if path.startswith(_LOCAL) else self._bucket(path)

    def table(self, path: str) -> DeltaTable:
        """Return the table at a path. Raises as `of` does."""
        by_delta = partial(checkpoint_by_delta, self._spark, path)
        if path.startswith(_LOCAL):
            self._require_links(Path(path) / LOG)
            return DeltaTable.on_disk(Path(path), by_delta, self._disk)
        files = self.of(path).files(path)
        return DeltaTable(path, files, S3LogStore(self._spark, path, files), by_delta)

    def _require_links(self, log: Path) -> None:
        """Raise NotForEngine if the file system of a log that is there cannot link files, as commits do.

        Some volumes that the pods of a cluster share have no hard links.
        """
        if not log.is_dir() or log.stat().st_dev in self._with_links:
            return
        if not has_hard_links(log):
            raise NotForEngine("its file system has no hard links")
        self._with_links.add(log.stat().st_dev)

    def renew_table(self, table: DeltaTable) -> None:
        """Have a table reached with what holds for this batch. Raises as `of` does."""
        table.files = self.of(table.folder).files(table.folder)
        if isinstance(table.log, S3LogStore):
            table.log.files = table.files

    def require_same(self, table: DeltaTable) -> None:
        """Raise NotForEngine if Hadoop's client does not find the newest entry of a table where we do."""
        assert table.state is not None
        newest = name_of(table.state.known.version)
        if isinstance(table.log, S3LogStore) and not table.log.is_hadoops(newest):
            raise NotForEngine("tasks would not find its mirror, or would find another one")

    def _bucket(self, path: str) -> S3:
        name = path.removeprefix(SCHEME).partition("/")[0]
        try:
            with self._lock:  # many tables are looked at side by side, and keys are asked for once
                if name not in self._clients:
                    self._clients[name] = Client(self._spark, path)
                if name not in self._buckets:
                    found = S3(self._clients[name].access())
                    self._require_reached(name, found, path)
                    self._buckets[name] = found
                return self._buckets[name]
        except NotTranslated as reason:
            raise NotForEngine(f"tasks cannot reach its mirror: {reason}") from None

    def doubt(self, path: str) -> None:
        """Find out anew whether tasks reach the bucket of a path, after a request has failed."""
        name = path.removeprefix(SCHEME).partition("/")[0]
        with self._lock:
            self._reached.discard(name)
            self._buckets.pop(name, None)

    def _require_reached(self, name: str, found: S3, path: str) -> None:
        """Raise NotForEngine if the client of tasks does not reach a bucket.

        Hadoop's client may reach it in ways that no setting tells, such as by a certificate among those of
        the JVM. Otherwise each look at a table would take as long as its requests are sent again.
        """
        if name in self._reached:
            return
        due, delay = self._waiting.get(name, (0.0, _FIRST_DELAY))
        if self._clock() < due:
            raise NotForEngine("tasks could not reach its bucket")
        try:
            quickly = S3(replace(found.access, attempts=_FEW_ATTEMPTS))
            quickly.files(path).stamp(f"{LOG}/{LAST_CHECKPOINT}")
        except OSError as error:
            self._waiting[name] = self._clock() + delay, min(2 * delay, _LONGEST_DELAY)
            log.warning(
                "tables in the bucket %s are applied by Spark's plans, because tasks do not reach it, which "
                "is tried again in %d s: %s",
                *(name, delay, error),
            )
            raise NotForEngine("tasks could not reach its bucket") from None
        self._reached.add(name)
        self._waiting.pop(name, None)
