"""A queue of keys, each processed by one worker at a time, now or later, as in Kubernetes' controllers."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import Generic, TypeVar

K = TypeVar("K")
_OUTDATED_KEPT = 1_000
"""How many outdated entries may wait for their time before they are removed."""


class Queue(Generic[K]):
    """``add`` says that something may have changed; ``get`` and ``done`` frame the work on a key.

    A key that is added several times is processed once. If it is added while it is processed, it is processed
    once more afterwards.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        """Holds every entry of ``_due``, and some that are outdated."""
        self._order = count()
        self._working: set[K] = set()
        self._changed = asyncio.Event()

    def add(self, key: K, after: float = 0.0) -> None:
        """Ask for work on ``key`` in ``after`` seconds, unless it is due sooner already."""
        when = self._now() + after
        if when < self._due.get(key, float("inf")):
            self._due[key] = when
            self._push(key)

    async def get(self) -> K:
        """Return the next key that is due. The caller must call ``done`` for it."""
        while True:
            self._drop_outdated()
            wait = self._heap[0][0] - self._now() if self._heap else None
            if wait is not None and wait <= 0:
                _, _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._working.add(key)
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def done(self, key: K) -> None:
        """Note that the work on ``key`` is over."""
        self._working.discard(key)
        if key in self._due:
            self._push(key)

    def forget(self, key: K) -> None:
        """Drop ``key``: there is nothing left to do for it."""
        self._due.pop(key, None)

    def __len__(self) -> int:
        """Return how many keys are due."""
        now = self._now()
        return sum(1 for due in self._due.values() if due <= now)

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (self._due[key], next(self._order), key))
        if len(self._heap) > 2 * len(self._due) + _OUTDATED_KEPT:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._changed.set()

    def _drop_outdated(self) -> None:
        """Drop entries whose key is due at another time or is being processed.

        For the latter, ``done`` pushes the key again.
        """
        while self._heap:
            due, _, key = self._heap[0]
            if self._due.get(key) == due and key not in self._working:
                return
            heapq.heappop(self._heap)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
