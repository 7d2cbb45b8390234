"""Files that cannot be read now, and why: being copied, truncated, of another format, or not permitted."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from lakemirror.api.shown import shown
from lakemirror.driver.checkpoint.storage import Entry
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.files.limits import BEYOND
from lakemirror.driver.read.files.listing import NO_NAME, OUTSIDE

CUT_OFF = "it is not a complete gzip stream"
NO_END = "its last line has no end"
UNREADABLE = "this user may not read it"
SETTLE_SECONDS = 5.0
"""How long a file whose last line has no end must stay unchanged before it is read, in seconds."""
PATIENCE_SECONDS, PATIENCE_ONCE_SECONDS = 60.0, 10.0
"""How long an unreadable file must stay unchanged before it is reported, in seconds.

The second value applies to a run with ``once``, which then fails.
"""


class WhyNot(Protocol):
    """Returns why a file cannot be read, or None if it can.

    The last line of a file that is ``settled`` may lack its end. Raises PermissionError.
    """

    def __call__(self, name: str, *, settled: bool = False) -> str | None: ...


class InputIncomplete(LakemirrorError):
    """Files are truncated or cannot be read. All others are applied.

    ``names`` are those of the files.
    """

    def __init__(self, message: str, names: Collection[str] = ()) -> None:
        super().__init__(message)
        self.names = frozenset(names)


@dataclass
class _Unready:
    """A file that is not read yet, and why.

    ``since`` is when it was first seen in its current state (monotonic seconds).
    """

    stamp: tuple[int, int]
    reason: str
    since: float
    told: bool = False


class Waiting:
    """The files that have to wait.

    ``why_not`` returns why a file cannot be read, or None if it can. ``warn`` is called for those that stay
    unchanged.
    """

    def __init__(self, why_not: WhyNot, warn: Callable[[str], None]) -> None:
        self._why_not, self._warn = why_not, warn
        self._files: dict[str, _Unready] = {}
        self.once = False
        """Whether this is a run with ``once``, which does not wait for long."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._files)

    @property
    def all_told(self) -> bool:
        """Whether all of them have waited so long that a run with ``once`` does not wait any longer."""
        return all(each.told for each in self._files.values())

    @property
    def said(self) -> tuple[str, ...]:
        """The files, each with the reason. May be read from any thread."""
        return tuple(shown(f"{name}: {each.reason}") for name, each in sorted(self._files.items()))

    def keep(self, names: Collection[str]) -> None:
        """Forget the files that no longer exist."""
        self._files = {name: each for name, each in self._files.items() if name in names}

    def is_ready(self, entry: Entry) -> bool:
        """Return whether a file can be read. One that cannot has to wait."""
        stamp, now = (entry.size, entry.mtime), time.monotonic()
        waiting = self._files.get(entry.name)
        # A file shows no sign of a permission that is granted, nor of a link that is replaced by a copy.
        if waiting is None or waiting.stamp != stamp or waiting.reason.startswith((UNREADABLE, OUTSIDE)):
            reason = self._reason(entry.name)
            if reason is None:
                self._files.pop(entry.name, None)
                return True
            if waiting is None or (waiting.stamp, waiting.reason) != (stamp, reason):
                self._files[entry.name] = _Unready(stamp, reason, now)
                return False
        elif waiting.reason == NO_END and now - waiting.since >= SETTLE_SECONDS:
            reason = self._reason(entry.name, settled=True)
            if reason is None:
                self._files.pop(entry.name, None)
                return True
            waiting.reason = reason
        patience = PATIENCE_ONCE_SECONDS if self.once else PATIENCE_SECONDS
        if now - waiting.since >= patience and not waiting.told:
            waiting.told = True
            self._warn(_text(entry.name, waiting.reason))
        return False

    def put(self, entry: Entry, reason: str) -> None:
        """Make a file wait that turned out to be damaged."""
        self._files[entry.name] = _Unready((entry.size, entry.mtime), reason, time.monotonic())

    def require_none(self) -> None:
        """Raise InputIncomplete at the end of a run with ``once`` if a file could not be read."""
        if self._files:
            raise InputIncomplete(
                "; ".join(_text(name, each.reason) for name, each in sorted(self._files.items())),
                self._files,
            )

    def _reason(self, name: str, *, settled: bool = False) -> str | None:
        try:
            return self._why_not(name, settled=settled)
        except PermissionError:
            return UNREADABLE


def _text(name: str, reason: str) -> str:
    return shown(_advice(name, reason))


def _advice(name: str, reason: str) -> str:
    if reason.startswith(NO_NAME):
        return f"{name} is skipped: {reason}. Give the file another name"
    if reason == UNREADABLE:
        return f"{name} is skipped: {reason}. Allow it; the file is then read by itself"
    if reason.startswith(OUTSIDE):
        return (
            f"{name} is skipped: {reason}. Copy the file into the folder, or name its own folder in "
            "spec.source.files.path"
        )
    if reason.startswith(BEYOND):
        return (
            f"{name} is set aside: {reason}. A file that takes its place is read by itself. If you do not "
            "need it, remove it"
        )
    return (
        f"{name} is skipped: {reason}, and it does not change any more. Put the complete file in its place, "
        "under the same name; it is then read by itself"
    )
