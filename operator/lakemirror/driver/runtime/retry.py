"""Decides which failures are retried, for how long, and after which delays."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TypeVar

from pyspark.sql import SparkSession

from lakemirror.driver.errors import (
    LakemirrorError,
    NotAnswered,
    SourceUnreachable,
    cause_of,
    is_alive,
    stops_pipeline,
)
from lakemirror.driver.runtime.context import RunContext
from lakemirror.driver.waiting import pause

RETRY_SECONDS = (1.0, 5.0, 25.0)
"""The delays in seconds after which a failed batch is retried, before the driver gives up."""
AWAY_SECONDS, AWAY_RETRY_SECONDS = 600.0, 30.0
"""How long to wait for a store that is away, and how long between retries, in seconds.

After the delays above, the store or the source is asked again at this interval.
"""
_AWAY = re.compile(
    r"TimeoutException|DisconnectException|ConnectException|NetworkException|UnknownHostException|NotAvailable|"
    r"NotLeaderOrFollower|Connection (refused|reset)|timed out",
    re.IGNORECASE,
)
Got = TypeVar("Got")


class Retries:
    """Retries what failed for a reason that may pass, because restarting a driver takes much longer.

    Each failure is reported as a warning. A run with ``once`` gives up where any other run waits.
    """

    def __init__(self, run: RunContext) -> None:
        self._run = run
        self._source, self._progress = run.announcer.source, run.announcer.progress
        self._warn = run.announcer.warn
        self._gave_up: BaseException | None = None

    def batch(self, batch_id: int, apply: Callable[[], None], before_again: Callable[[], None]) -> None:
        """Apply a batch, with a few retries if needed, and ``before_again`` before each retry.

        While the source, the schema registry or the database of the mirrors is away, the number of retries is
        unlimited, unless the run is ``once``.
        """
        delays = iter(RETRY_SECONDS)
        while True:
            try:
                apply()
                return
            except Exception as error:
                waits = not self._run.once and (
                    isinstance(error, NotAnswered) or self._source.lost is not None
                )
                delay = next(delays, AWAY_RETRY_SECONDS if waits else None)
                if delay is None or not _may_pass(error, self._run.session) or self._run.threads.stopping():
                    self._gave_up = error
                    raise
                self._warn(f"batch {batch_id} failed and is tried again in {delay:g} s: {cause_of(error)}")
            pause(delay, self._run.threads.stopping)
            before_again()

    def reading(self, read: Callable[[], Got], stopping: Callable[[], bool]) -> Got | None:
        """Return the result of ``read``, retrying it while the source or a store is away.

        Returns None if it is time to stop. A source that cannot be reached is waited for without a limit,
        because a restarted driver could not reach it either. A run with ``once`` gives up and raises
        SourceUnreachable.
        """
        failures, since = 0, time.monotonic()
        while True:
            done = self._progress.batches
            try:
                return read()
            except Exception as error:
                if self._progress.batches > done:
                    failures, since = 0, time.monotonic()
                delay = self._delay(error, failures, time.monotonic() - since)
                failures += 1
            pause(delay, stopping)
            if stopping():
                return None

    def _delay(self, error: Exception, failures: int, lasting: float) -> float:
        """Return the delay in seconds before reading again. Raises the error if a retry would not help.

        ``failures`` is the number of failures before this one, and ``lasting`` for how many seconds they have
        lasted.
        """
        if error is self._gave_up or not _may_pass(error, self._run.session):
            raise error
        lost = self._source.lost
        away = lost or (_is_away(error) and lasting < AWAY_SECONDS)
        if failures >= len(RETRY_SECONDS) and (self._run.once or not away):
            if lost:
                raise SourceUnreachable(f"the source cannot be reached: {lost}") from error
            raise error
        delay = RETRY_SECONDS[failures] if failures < len(RETRY_SECONDS) else AWAY_RETRY_SECONDS
        if not lost:  # otherwise it was reported when the source was lost
            self._warn(f"the source could not be read, and is read again in {delay:g} s: {cause_of(error)}")
        return delay


def _may_pass(error: Exception, session: SparkSession) -> bool:
    """Return whether the cause of an error may pass and the session is still alive."""
    if isinstance(error, NotAnswered):
        return is_alive(session)
    return not isinstance(error, LakemirrorError) and not stops_pipeline(error, session)


def _is_away(error: Exception) -> bool:
    """Return whether an error says that something cannot be reached."""
    return _AWAY.search(str(error)) is not None
