"""For how many batches the engine leaves all changes to Spark after its job has failed. Pure.

A job that fails has cost its time and its retries. Its cause, such as a record that kills Python workers, may
be there in the next batch again.
"""

from __future__ import annotations

from typing import Final

_MOST: Final = 64


class Pauses:
    """The pauses of one engine, each of a number of batches.

    It is 1 after a job that failed, and doubles with each further job that fails, up to 64. After a batch
    whose jobs have all succeeded, it begins with 1 again.
    """

    def __init__(self) -> None:
        self._next, self._left = 1, 0
        self._succeeded = self._failed = False
        self.active = False
        """Whether this batch is left to Spark."""

    def begin(self) -> None:
        """Begin a batch."""
        if self._succeeded and not self._failed:
            self._next = 1
        self._succeeded = self._failed = False
        self.active = self._left > 0
        self._left = max(0, self._left - 1)

    def succeeded(self) -> None:
        """Note that a job of the batch has succeeded."""
        self._succeeded = True

    def failed(self) -> int:
        """Note that a job of the batch has failed. Returns how many batches after it are left to Spark."""
        self._failed = self.active = True
        self._left, self._next = self._next, min(2 * self._next, _MOST)
        return self._left
