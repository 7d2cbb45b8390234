"""Writes pending audit rows to the audit table behind the batches, so that no batch waits for that commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.errors import cause_of
from lakemirror.driver.record import audit, history, pending
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.record.pending import Pending

AT_ONCE = 20
"""The number of pending batches that triggers a commit, and the maximum in one commit."""
AT_LATEST_SECONDS = 30.0
"""How long a batch stays pending if there are fewer, in seconds."""
LOOK_SECONDS = 5.0

_log = logging.getLogger(__name__)


class WriteBehind:
    """Writes several batches with one commit in a thread, and then deletes their files.

    The owner of a checkpoint uses it as a context manager around its run. The thread starts with what an
    earlier run left. At the end of a run that did not fail, the rest is written.

    Failures are reported to ``warn`` and retried. In the meantime, and after a crash at any moment, the rows
    stay pending. ``check`` is called before each commit, and raises if another driver has taken the
    checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        checkpoint: str,
        warn: Callable[[str], None] = _log.warning,
        check: Callable[[], None] = lambda: None,
        *,
        look_seconds: float = LOOK_SECONDS,
        at_latest_seconds: float = AT_LATEST_SECONDS,
    ) -> None:
        self._session = spark.newSession()  # other sessions have settings for the commits of their batches
        self._checkpoint = checkpoint
        self._storage = open_storage(checkpoint, self._session)
        self._warn, self._check = warn, check
        self._look_seconds, self._at_latest_seconds = look_seconds, at_latest_seconds
        # What the table has, at a version. Another driver may have written any other version.
        self._told: AuditHistory | None = None
        self._since: float | None = None  # when something pending was first seen
        self._failure: str | None = None
        self._damaged: set[str] = set()
        self._crash: BaseException | None = None
        self._writing = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lakemirror-audit", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._crash is not None:
            raise self._crash
        if error is None:
            self._attempt(self.flush)

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Pause writing for the duration of the context. New batches stay pending."""
        with self._writing:
            yield

    def flush(self) -> None:
        """Write everything that is pending. Must not be called while the thread runs."""
        with self._writing:
            self._flush()

    def _flush(self) -> None:
        waiting, damaged = pending.read(self._storage)
        for message in damaged:
            if message not in self._damaged:
                self._warn(message)
        self._damaged = set(damaged)
        for first in range(0, len(waiting), AT_ONCE):
            self._write(waiting[first : first + AT_ONCE])
        self._since = None

    def _work(self) -> None:
        try:
            self._attempt(self.flush)
            while not self._over.wait(self._look_seconds):
                self._attempt(self._flush_if_due)
        except BaseException as crash:  # a crash injected by a test
            self._crash = crash

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
            self._failure = None
        except Exception as error:
            self._told = None  # the commit may have succeeded
            message = (
                f"the audit could not be written and is tried again: {cause_of(error)}. No row is lost: what "
                f"is missing in {audit.path(self._checkpoint)} stands in {self._storage.uri}/{pending.FOLDER}"
            )
            if message != self._failure:
                self._warn(message)
            self._failure = message

    def _flush_if_due(self) -> None:
        number, now = pending.count(self._storage), time.monotonic()
        if not number:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if number >= AT_ONCE or now - self._since >= self._at_latest_seconds:
            self.flush()

    def _write(self, waiting: Sequence[Pending]) -> None:
        """Write batches to the table, then what all batches did to its file, and then delete their files."""
        self._check()
        version = audit.version(self._session, self._checkpoint)
        told = self._told
        if told is None or told.version != version:
            told = audit.told_until(self._session, self._checkpoint)
        new = self._new(waiting, told)
        if new:
            at = audit.append(self._session, self._checkpoint, new, version)
            faults.reach("after-audit-commit")
            told = told.after((row for each in new for row in each.rows), at)
        if told is not self._told:
            history.write(self._storage, told)
            faults.reach("after-audit-history")
        self._told = told
        for each in waiting:
            self._storage.delete(each.name)

    def _new(self, waiting: Sequence[Pending], told: AuditHistory) -> list[Pending]:
        """Return the batches that are not in the table.

        Only batches after the last one of their query are known to be new. For the others, the table is
        queried.
        """
        unknown = [each for each in waiting if told.has(each.query_id, each.batch_id, each.committed_at)]
        stored = audit.stored(self._session, self._checkpoint, unknown)
        return [each for each in waiting if (each.query_id, each.batch_id) not in stored]
