"""Requests to stop: from signals, and from the caller."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)


class StopRequests:
    """Combines SIGTERM, SIGINT and ``stopping``. SIGALRM says that the grace period is over.

    The first signal requests a stop. A second signal, or the end of ``grace_seconds`` after the first, raises
    KeyboardInterrupt.
    """

    def __init__(self, stopping: Callable[[], bool] | None, grace_seconds: float | None) -> None:
        self._stopping = stopping
        self._grace_seconds = grace_seconds
        self._signalled = threading.Event()

    def requested(self) -> bool:
        """Return whether the run should end after the current batch."""
        return self._signalled.is_set() or (self._stopping is not None and self._stopping())

    def install(self) -> None:
        """Install the signal handlers, which only the main thread can do."""
        if _in_main_thread():
            for number in _SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signalled.is_set():
            raise KeyboardInterrupt
        self._signalled.set()
        if self._grace_seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, self._grace_seconds)


@contextmanager
def stop_requests(stopping: Callable[[], bool] | None, grace_seconds: float | None) -> Iterator[StopRequests]:
    """Collect requests to stop while the context is active, and restore the signal handlers afterwards."""
    requests = StopRequests(stopping, grace_seconds)
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    requests.install()
    try:
        yield requests
    finally:
        if _in_main_thread():
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
