"""Work that goes on beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def beside(work: Callable[[threading.Event], object], seconds: float = 120) -> Iterator[Callable[[], bool]]:
    """``work`` in a thread until the end of the block; gives whether it still goes on.

    It is handed the event that tells it to stop, and has so many ``seconds`` to do so. What it raised fails
    the test at the end of the block, unless that has failed already.
    """
    stop, failed = threading.Event(), list[BaseException]()

    def guarded() -> None:
        try:
            work(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        stop.set()
        thread.join(seconds)
    assert (failed, thread.is_alive()) == ([], False)
