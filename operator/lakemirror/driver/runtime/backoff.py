"""When something that failed is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Backoff(Generic[Key]):
    """Each of several things waits after a failure, twice as long after each further one.

    ``first`` and ``most`` are seconds; ``clock`` gives monotonic seconds. What has not failed is due.
    """

    def __init__(self, first: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first, self._most, self._clock = first, most, clock
        self._waits: dict[Key, tuple[int, float]] = {}

    def failed(self, key: Key) -> float:
        """Take in a failure; returns for how many seconds the thing waits."""
        failures = self.failures(key) + 1
        delay = min(self._most, self._first * 2.0 ** min(failures - 1, 60))
        self._waits[key] = (failures, self._clock() + delay)
        return delay

    def failures(self, key: Key) -> int:
        """How often it failed since it was forgotten."""
        return self._waits[key][0] if key in self._waits else 0

    def is_due(self, key: Key) -> bool:
        """Whether it may be tried now."""
        return key not in self._waits or self._waits[key][1] <= self._clock()

    def forget(self, key: Key) -> None:
        """It succeeded, or its cause may be gone: it is due again."""
        self._waits.pop(key, None)
