"""Files that cannot be read now, and why: still being copied, cut off, of another format, not allowed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from lakemirror.driver.checkpoint.storage import Entry
from lakemirror.driver.errors import LakemirrorError

CUT_OFF = "it is not a complete gzip stream"
NO_END = "its last line has no end"
UNREADABLE = "this user may not read it"
SETTLE_SECONDS = 5.0
"""For how long a file whose last line has no end has to stay as it is until it is taken."""
PATIENCE_SECONDS, PATIENCE_ONCE_SECONDS = 60.0, 10.0
"""For how long a file that cannot be read has to stay as it is until it is reported, and a run once fails."""


class InputIncomplete(LakemirrorError):
    """Files are cut off, or cannot be read; all others are applied."""


@dataclass
class _Unready:
    """A file that is not taken yet, and why; ``since`` when it is as it is (monotonic seconds)."""

    stamp: tuple[int, int]
    reason: str
    since: float
    told: bool = False


class Waiting:
    """The files that wait. ``why_not`` says why a file cannot be read, None if it can; ``warn`` is told of
    those that stay as they are.
    """

    def __init__(self, why_not: Callable[[str], str | None], warn: Callable[[str], None]) -> None:
        self._why_not, self._warn = why_not, warn
        self._files: dict[str, _Unready] = {}
        self.once = False
        """Whether this is a run once, which does not wait for long."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def all_told(self) -> bool:
        """Whether nothing is left to wait for."""
        return all(each.told for each in self._files.values())

    def keep(self, names: Collection[str]) -> None:
        """Forget the files that are not there any more."""
        self._files = {name: each for name, each in self._files.items() if name in names}

    def is_ready(self, entry: Entry) -> bool:
        """Whether a file can be read; one that cannot waits."""
        stamp, now = (entry.size, entry.mtime), time.monotonic()
        waiting = self._files.get(entry.name)
        if waiting is None or waiting.stamp != stamp:
            reason = self._reason(entry.name)
            if reason is not None:
                self._files[entry.name] = _Unready(stamp, reason, now)
                return False
        elif waiting.reason != NO_END or now - waiting.since < SETTLE_SECONDS:
            patience = PATIENCE_ONCE_SECONDS if self.once else PATIENCE_SECONDS
            if now - waiting.since >= patience and not waiting.told:
                waiting.told = True
                self._warn(_text(entry.name, waiting.reason))
            return False
        self._files.pop(entry.name, None)
        return True

    def put(self, entry: Entry, reason: str) -> None:
        """Have a file wait that turned out to be damaged."""
        self._files[entry.name] = _Unready((entry.size, entry.mtime), reason, time.monotonic())

    def require_none(self) -> None:
        """At the end of a run once: raises InputIncomplete if there is a file that could not be read."""
        if self._files:
            raise InputIncomplete(
                "; ".join(_text(name, each.reason) for name, each in sorted(self._files.items()))
            )

    def _reason(self, name: str) -> str | None:
        try:
            return self._why_not(name)
        except PermissionError:
            return UNREADABLE


def _text(name: str, reason: str) -> str:
    if reason == UNREADABLE:
        return f"{name} is skipped: {reason}. Allow it; the file is then read by itself"
    return (
        f"{name} is skipped: {reason}, and it does not change any more. Put the complete file in its place, "
        "under the same name; it is then read by itself"
    )
