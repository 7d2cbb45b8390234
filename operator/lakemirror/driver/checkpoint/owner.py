"""Ensures that at most one driver uses a checkpoint.

Owner records, ``owner/<incarnation>.json``, are stored beside the checkpoint. A driver takes the checkpoint
by creating the record of the next incarnation. If several drivers try, exactly one succeeds. The owner renews
its record while it runs, and checks before every batch that no higher incarnation has appeared.

How a driver finds out whether the last owner is still alive depends on the file system. On a local one, the
owner holds a lock, which is released when its process ends, so a restart after a SIGKILL continues at once.
Elsewhere, the driver watches the owner's record for the length of a lease. Clocks are never compared.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import Enum, auto
from types import TracebackType
from typing import IO, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import SparkSession

from lakemirror.driver.checkpoint import layout
from lakemirror.driver.checkpoint.storage import FileCutOff, LocalStorage, Storage, numbered
from lakemirror.driver.document import camel, iso, to_json
from lakemirror.driver.errors import CheckpointInUse, cause_of
from lakemirror.driver.java import java_class

LEASE_SECONDS = 30.0
_FOLDER = "owner"
_KEPT = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OwnerRecord:
    """The contents of an owner record. Times are UTC in ISO 8601, for people to read."""

    holder: str
    host: str
    pid: int
    run_id: str
    acquired_at: str
    renewed_at: str
    lease_seconds: float
    released_at: str | None = None

    @classmethod
    def parse(cls, text: str) -> OwnerRecord | None:
        """Parse the text of a record file. Returns None while the file is being written."""
        try:
            document = json.loads(text)
            return cls(**{field.name: document[camel(field.name)] for field in fields(cls)})
        except (ValueError, TypeError, KeyError):
            return None


class Use(Enum):
    """What the owner records of a checkpoint say about its driver."""

    GONE = auto()
    """There are none."""
    RELEASED = auto()
    SILENT = auto()
    """It has ended without releasing the checkpoint."""
    IN_USE = auto()
    UNKNOWN = auto()
    """Only time can tell."""


class Owner:
    """Ownership of one checkpoint.

    As a context manager, it takes the checkpoint on entry and releases it on exit.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        run_id: str | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._storage = storage
        self._lease = lease_seconds
        self._lock = _ProcessLock(storage) if isinstance(storage, LocalStorage) else None
        now = _now()
        run_id = run_id or uuid.uuid4().hex
        self._record = OwnerRecord(
            uuid.uuid4().hex, socket.gethostname(), os.getpid(), run_id, now, now, lease_seconds
        )
        self._stop = threading.Event()
        self._heart: threading.Thread | None = None
        self._jvm_lock: Any = None
        self.incarnation = 0

    def acquire(self) -> Owner:
        """Take the checkpoint. Raises CheckpointInUse if another driver has it or takes it first.

        If only a lease can tell that the last owner is dead, this takes as long as that lease.
        """
        try:
            if self._lock is not None and not self._lock.take():
                raise self._in_use(self._latest()[1])
            self._take_next_incarnation()
        except BaseException:
            self._unlock()
            raise
        self._heart = threading.Thread(target=self._beat, name="lakemirror-owner", daemon=True)
        self._heart.start()
        return self

    def check(self) -> None:
        """Raise CheckpointInUse if another driver has taken the checkpoint since."""
        incarnation, record = self._latest()
        if incarnation != self.incarnation:
            raise self._in_use(record)

    def use(self) -> tuple[Use, str, float]:
        """Return what can be told at once about the driver of a checkpoint that is not to be taken.

        Also returns the text of its owner record, and its lease in seconds.
        """
        last, record = self._latest()
        text = self._read_text(last) if last else ""
        lease = record.lease_seconds if record is not None else self._lease
        if not last:
            return Use.GONE, text, lease
        if record is not None and record.released_at is not None:
            return Use.RELEASED, text, lease
        if self._lock is not None and self._lock.is_held():
            return Use.IN_USE, text, lease
        return Use.SILENT if self._is_over(record) else Use.UNKNOWN, text, lease

    def is_silent(self) -> bool:
        """Return whether the newest owner record does not change for its lease. This takes as long."""
        try:
            self._watch(self._latest()[0])
        except CheckpointInUse:
            return False
        return True

    def hold_jvm(self, spark: SparkSession) -> None:
        """Lock the checkpoint for the session's JVM too, if the file system is local.

        The JVM briefly outlives a killed Python process and might still be committing. The next driver
        therefore waits for it here. Raises CheckpointInUse if that JVM does not end.
        """
        if not isinstance(self._storage, LocalStorage):
            return
        path = java_class(spark, "java.io.File")(str(self._storage.path / _FOLDER / ".jvm-lock"))
        channel = java_class(spark, "java.io.RandomAccessFile")(path, "rw").getChannel()
        if not _until(lambda: channel.tryLock() is not None, self._lease):
            channel.close()
            raise self._in_use(None)
        self._jvm_lock = channel

    def release(self) -> None:
        """Release the checkpoint, so that the next driver does not have to wait.

        If the record cannot be written, such as on a full disk, that is only logged: what was done is done,
        and the next driver waits for the length of the lease if nothing else tells it that this one is over.
        """
        self._stop.set()
        try:
            if self._heart is not None:
                self._heart.join()
                self._heart = None
                self._write(released_at=_now())
        except Exception as error:
            _log.warning(
                "the checkpoint %s could not be marked as released, and where no lock tells that this driver "
                "is over, the next one waits for %g s: %s",
                self._storage.uri,
                self._lease,
                cause_of(error),
            )
        finally:
            self._unlock()

    def __enter__(self) -> Owner:
        """Take the checkpoint. Raises CheckpointInUse, and NewerLayout if this version does not know it."""
        self.acquire()
        try:
            layout.require_known(self._storage)
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take_next_incarnation(self) -> None:
        last, record = self._latest()
        if last and not self._is_over(record):
            self._watch(last)
        self.incarnation = last + 1
        if not self._storage.write_text_new(_name(self.incarnation), to_json(self._record)):
            raise self._in_use(self._latest()[1])
        for incarnation in self._incarnations():
            if incarnation <= self.incarnation - _KEPT:
                self._storage.delete(_name(incarnation))

    def _is_over(self, record: OwnerRecord | None) -> bool:
        """Return whether it is certain, without waiting, that the record's owner is no longer running."""
        if record is None:
            return False
        same_host = self._lock is not None and record.host == self._record.host
        return record.released_at is not None or same_host

    def _watch(self, incarnation: int) -> None:
        """Return once the record has not changed for its lease.

        Raises CheckpointInUse as soon as it changes.
        """
        seen = self._read_text(incarnation)
        record = OwnerRecord.parse(seen)
        lease = record.lease_seconds if record else self._lease
        until = time.monotonic() + lease
        while time.monotonic() < until:
            time.sleep(min(1.0, lease / 10))
            latest, now = self._latest()
            if latest == incarnation and now is not None and now.released_at is not None:
                return
            if latest != incarnation or self._read_text(incarnation) != seen:
                raise self._in_use(now)

    def _beat(self) -> None:
        while not self._stop.wait(self._lease / 3):
            try:
                if self._incarnations()[-1:] != [self.incarnation]:
                    return  # another driver has taken over: check() will report it
                self._write(renewed_at=_now())
            except (OSError, Py4JJavaError):
                continue  # the store is briefly unavailable: the next beat tries again

    def _write(self, **changes: Any) -> None:
        self._record = replace(self._record, **changes)
        self._storage.write_text(_name(self.incarnation), to_json(self._record))

    def _incarnations(self) -> list[int]:
        return sorted(numbered(self._storage, _FOLDER))

    def _latest(self) -> tuple[int, OwnerRecord | None]:
        """Return the highest incarnation (0 for none) and its record (None while it is being written)."""
        incarnations = self._incarnations()
        if not incarnations:
            return 0, None
        return incarnations[-1], OwnerRecord.parse(self._read_text(incarnations[-1]))

    def _read_text(self, incarnation: int) -> str:
        try:
            return self._storage.read_text(_name(incarnation))
        except (FileNotFoundError, FileCutOff):
            return ""

    def _unlock(self) -> None:
        channel, self._jvm_lock = self._jvm_lock, None
        try:
            if channel is not None:
                channel.close()
        except (OSError, Py4JError) as error:  # a JVM that is gone holds no lock
            _log.debug("the lock of the JVM could not be given back: %s", error)
        finally:
            if self._lock is not None:
                self._lock.give_back()

    def _in_use(self, record: OwnerRecord | None) -> CheckpointInUse:
        who = "a driver that is just starting"
        if record is not None:
            who = (
                f"process {record.pid} on host {record.host}, run {record.run_id}, since {record.acquired_at}"
            )
        return CheckpointInUse(
            f"the checkpoint {self._storage.uri} is in use by {who}. "
            "Stop that driver, or give this pipeline a checkpoint and targets of its own"
        )


class _ProcessLock:
    """A lock on a local file that is released when the process ends."""

    def __init__(self, storage: LocalStorage) -> None:
        self._path = storage.path / _FOLDER / ".lock"
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Take the lock. Returns False at once if a live process holds it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self._path, "a")  # noqa: SIM115 - held for the life of the owner
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._file = file
        return True

    def is_held(self) -> bool:
        """Return whether a live process holds the lock, or takes it just now."""
        try:
            with open(self._path) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def give_back(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def _name(incarnation: int) -> str:
    return f"{_FOLDER}/{incarnation}.json"


def _now() -> str:
    return iso(datetime.now(UTC))
