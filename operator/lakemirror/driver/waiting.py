"""Waiting for a period of time, or until it is time to stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

LOOK_SECONDS: Final = 0.2
"""How often a waiting caller checks whether to stop."""


def pause(seconds: float, stopping: Callable[[], bool]) -> None:
    """Wait for the given number of seconds, or until ``stopping`` returns true."""
    until = time.monotonic() + seconds
    while not stopping() and (left := until - time.monotonic()) > 0:
        time.sleep(min(LOOK_SECONDS, left))
