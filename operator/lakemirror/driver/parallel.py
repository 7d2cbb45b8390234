"""Work on several tables at the same time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

_SIDE_BY_SIDE: Final = min(16, max(4, 2 * (os.cpu_count() or 1)))
"""Tables that are worked on at the same time: while one waits for its job or a store, others are planned."""

In = TypeVar("In")
Out = TypeVar("Out")


def side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """What ``do`` gives for each of the items, in order; waits for all before the first error is raised."""
    listed = list(items)
    if len(listed) < 2:
        return [do(each) for each in listed]
    with ThreadPoolExecutor(min(len(listed), _SIDE_BY_SIDE)) as pool:
        futures = [pool.submit(do, each) for each in listed]
    return [future.result() for future in futures]


class LookAhead:
    """Reads in the background what the next batch is going to ask for, while this one is brought to its
    end.

    What fails is left to the next batch, which meets it again and tells.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lakemirror-look-ahead")
        self._waiting: list[Future[None]] = []

    def begin(self, reads: Iterable[Callable[[], None]]) -> None:
        """Start with ``reads``, and forget those of before that did not have their turn."""
        for read in self._waiting:
            read.cancel()
        self._waiting = [self._thread.submit(read) for read in reads]
