"""Which files of a table's log make its newest version (PROTOCOL.md, Delta Log Entries and Checkpoints).

These are the files of a checkpoint, or of none, and the entries that come after it, one by one. Files that
sum up several entries ("compacted") are passed over: they may be read, but never have to be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lakemirror.driver.raised import LakemirrorError
from lakemirror.driver.writer.entry import Listed, name_of, prefix_of

LAST_CHECKPOINT: Final = "_last_checkpoint"
_ENTRY: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(?P<version>\d{20})\.checkpoint"
    r"(?:\.(?P<part>\d{10})\.(?P<parts>\d{10})\.parquet|\.parquet|\.[^.]+\.(?:json|parquet))"
)


class Damaged(LakemirrorError):
    """A file of the log is missing, or is not what its name says. ``name`` is its name in the log."""

    def __init__(self, name: str, cause: object) -> None:
        super().__init__(f"{name} in the table's log {cause}")
        self.name = name


class Missing(Damaged):
    """A file of the log is missing. It may have been deleted, or not been listed, a moment ago."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "is missing")


@dataclass(frozen=True)
class Segment:
    """The files that make a version.

    ``checkpoint`` are the names of those of the checkpoint of the version ``begins``, or none with -1. All
    entries of the versions after that belong to it.
    """

    version: int
    begins: int = -1
    checkpoint: tuple[str, ...] = ()

    @property
    def entries(self) -> range:
        """The versions of the entries."""
        return range(self.begins + 1, self.version + 1)


@dataclass
class _Checkpoints:
    """The checkpoint files of one version."""

    single: list[str] = field(default_factory=list)
    parts: dict[int, list[str]] = field(default_factory=dict)

    def complete(self) -> tuple[str, ...]:
        """Return the files of one that has all of its parts."""
        if self.single:
            return (min(self.single, key=len),)  # those with an ID in their names refer to further files
        return next((tuple(sorted(each)) for count, each in self.parts.items() if len(each) == count), ())


def segment_of(listed: Iterable[Listed]) -> Segment | None:
    """Return the files of the newest version in a listing, or None if there is no version.

    Checkpoints that are empty, or lack a part, are passed over, as Delta does. Raises Missing if an entry is
    missing.
    """
    entries, checkpoints = _sorted(listed)
    complete = ((version, checkpoints[version].complete()) for version in sorted(checkpoints, reverse=True))
    begins, files = next(((version, names) for version, names in complete if names), (-1, ()))
    version = max(entries, default=-1)
    if version < begins:
        raise Missing(name_of(begins))  # nothing may be added after it
    _require_all(entries, begins, version)
    return None if version < 0 else Segment(version, begins, files)


def _sorted(listed: Iterable[Listed]) -> tuple[set[int], Mapping[int, _Checkpoints]]:
    entries: set[int] = set()
    checkpoints: dict[int, _Checkpoints] = {}
    for each in listed:
        if entry := _ENTRY.fullmatch(each.name):
            entries.add(int(entry[1]))
        elif (named := _CHECKPOINT.fullmatch(each.name)) and each.size > 0:
            found = checkpoints.setdefault(int(named["version"]), _Checkpoints())
            if named["parts"] is None:
                found.single.append(each.name)
            else:
                found.parts.setdefault(int(named["parts"]), []).append(each.name)
    return entries, checkpoints


def _require_all(entries: Collection[int], begins: int, version: int) -> None:
    for each in range(begins + 1, version + 1):
        if each not in entries:
            raise Missing(name_of(each))


def checkpoint_of(version: int) -> str:
    """Return the name of a classic checkpoint."""
    return f"{prefix_of(version)}checkpoint.parquet"


def hint_of(version: int, rows: int, files: int, size: int) -> bytes:
    """Return the content of `LAST_CHECKPOINT` for a checkpoint with this many actions, files and bytes."""
    told = {"version": version, "size": rows, "sizeInBytes": size, "numOfAddFiles": files}
    return f"{json.dumps(told)}\n".encode()


def hinted(content: bytes | None) -> int:
    """Return the version from which a log has to be listed, from the content of `LAST_CHECKPOINT`.

    It is a hint: without one, or with a wrong one, the whole log is listed.
    """
    try:
        found: Any = json.loads(content or b"{}").get("version", 0)
    except (ValueError, AttributeError):
        return 0
    return found if isinstance(found, int) and found > 0 else 0
