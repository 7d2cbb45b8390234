"""A log entry, and its commit: an entry that is put only if it is absent.

That the next entry is absent does not show that the last one is there: the table may have been removed, or
made again. So each commit first looks whether the entry that it builds on is still the one that is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from lakemirror.driver import faults
from lakemirror.driver.writer.actions import Action, CommitInfo, Creation, line

LOG: Final = "_delta_log"


@dataclass(frozen=True)
class Stamp:
    """What tells a stored entry from another of its name, without reading it.

    ``size`` is in bytes, and ``mark`` is the store's: an ETag, an inode, a time.
    """

    size: int
    mark: str


def bare(tag: object) -> str:
    """Return an ETag without its quotes, which not every client leaves."""
    return str(tag or "").strip('"')


@dataclass(frozen=True)
class Listed:
    """A file of a log in a listing. Its size is in bytes."""

    name: str
    size: int


class LogStore(Protocol):
    """The log of one table. Names are those of files in it."""

    def begin(self) -> None:
        """Make room for the log of a new table, in a folder that exists."""

    def stamp(self, name: str) -> Stamp | None:
        """Return the stamp of a file, or None if there is none."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with all of its content, durably. Returns False if there is one already."""

    def replace(self, name: str, content: bytes) -> None:
        """Create a file, or put it in the place of another one, with all of its content."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""

    def list_from(self, version: int) -> list[Listed]:
        """Return the files of versions, from this one on. Others may be among them. Empty without a log."""


@dataclass(frozen=True)
class Known:
    """A version of a table that is known, and the stamp of its entry."""

    version: int
    stamp: Stamp


@dataclass(frozen=True)
class Committed:
    """The commit is in the log, as this version. Without ``known``, the entry was gone a moment later."""

    version: int
    known: Known | None


@dataclass(frozen=True)
class Conflict:
    """Somebody else has made this version. ``content`` is their entry."""

    version: int
    content: bytes = field(repr=False)  # it has values of rows, which must not be in a log


@dataclass(frozen=True)
class Replaced:
    """The entry that the commit builds on is gone, or another one. Nothing was written."""

    version: int


Outcome = Committed | Conflict | Replaced


def name_of(version: int) -> str:
    """Return the name of the entry of a version."""
    return f"{prefix_of(version)}json"


def prefix_of(version: int) -> str:
    """Return what the names of all files of a version begin with. They sort as the versions do."""
    return f"{version:020d}."


def text_of(info: CommitInfo | Creation, actions: Iterable[Action]) -> bytes:
    """Return an entry. Information about the commit comes first (PROTOCOL.md, In-Commit Timestamps)."""
    return "".join(f"{line(each)}\n" for each in (info, *actions)).encode()


def known(log: LogStore, version: int) -> Known | None:
    """Return what a log has as a version, or None if it does not have it.

    Take it before the state of that version is read, so that a table which is made again while it is read
    does not pass for the one that was read.
    """
    stamp = log.stamp(name_of(version))
    return None if stamp is None else Known(version, stamp)


def begin(log: LogStore, info: CommitInfo | Creation, actions: Iterable[Action]) -> None:
    """Make a table with these actions, unless it exists. The folder that it is in has to exist.

    Raises the store's error if it is not known whether the table will appear.
    """
    log.begin()
    faults.reach("before-entry")
    _put(log, name_of(0), text_of(info, actions))
    faults.reach("after-entry")


def commit(log: LogStore, before: Known, info: CommitInfo, actions: Iterable[Action]) -> Outcome:
    """Add an entry after a known version. The files that it names must be stored.

    A put whose answer is lost is decided by what stands there. Raises the store's error if it says neither
    that the entry was written nor that there is one; then it is not known whether it will appear.
    """
    version = before.version + 1
    if log.stamp(name_of(before.version)) != before.stamp:
        return Replaced(before.version)
    content = text_of(info, actions)
    faults.reach("before-entry")
    found = _put(log, name_of(version), content)
    faults.reach("after-entry")
    if found is None or _id_of(found) == info.id:
        return Committed(version, known(log, version))
    return Conflict(version, found)


def _put(log: LogStore, name: str, content: bytes) -> bytes | None:
    """Put an entry. Returns None if that is known to have been done now, or else the entry that is there."""
    try:
        if log.create(name, content):
            return None
    except Exception:
        found = log.read(name)
        if found is None:
            raise
        return found
    found = log.read(name)
    if found is None:
        raise FileNotFoundError(f"{name} could not be created because it was there, and is gone")
    return found


def _id_of(content: bytes) -> Any:
    """Return the ID of the commit that an entry is from, or None if it has none."""
    for each in content.splitlines():
        try:
            given = json.loads(each)
        except ValueError:
            return None
        if isinstance(given, dict) and isinstance(given.get("commitInfo"), dict):
            return given["commitInfo"].get("txnId")
    return None
