"""Decides when to retry something that failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Delays each of several keys after a failure, twice as long after each further failure.

    ``first`` and ``most`` are delays in seconds. ``clock`` returns monotonic seconds. A key that has not
    failed is due.
    """

    def __init__(self, first: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first, self._most, self._clock = first, most, clock
        self._waits: dict[Key, tuple[int, float]] = {}

    def failed(self, key: Key) -> float:
        """Record a failure of a key. Return how many seconds the key has to wait."""
        failures = self.failures(key) + 1
        delay = min(self._most, self._first * 2.0 ** min(failures - 1, 60))
        self._waits[key] = (failures, self._clock() + delay)
        return delay

    def failures(self, key: Key) -> int:
        """Return how often a key has failed since it was last forgotten."""
        return self._waits[key][0] if key in self._waits else 0

    def is_due(self, key: Key) -> bool:
        """Return whether a key may be tried now."""
        return key not in self._waits or self._waits[key][1] <= self._clock()

    def forget(self, key: Key) -> None:
        """Forget the failures of a key that succeeded, or whose cause may be gone. The key is due again."""
        self._waits.pop(key, None)
