"""Processes several tables in parallel."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

_SIDE_BY_SIDE: Final = min(16, max(4, 2 * (os.cpu_count() or 1)))
"""Maximum number of tables that are processed in parallel.

While one waits for its job or a store, others are planned.
"""

In = TypeVar("In")
Out = TypeVar("Out")


def side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """Return the result of ``do`` for each item, in order.

    Waits for all of them before it raises the first error.
    """
    listed = list(items)
    if len(listed) < 2:
        return [do(each) for each in listed]
    with ThreadPoolExecutor(min(len(listed), _SIDE_BY_SIDE)) as pool:
        futures = [pool.submit(do, each) for each in listed]
    return [future.result() for future in futures]


class LookAhead:
    """Reads in the background what the next batch will need, while the current batch is finished.

    A failed read is left to the next batch, which runs into the same error and reports it.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lakemirror-look-ahead")
        self._waiting: list[Future[None]] = []

    def begin(self, reads: Iterable[Callable[[], None]]) -> None:
        """Start ``reads``, and cancel earlier ones that have not started yet."""
        for read in self._waiting:
            read.cancel()
        self._waiting = [self._thread.submit(read) for read in reads]
