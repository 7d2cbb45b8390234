"""Determines the range of positions of the changes that a batch brought to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

BEGIN: Final = ""
"""Before all positions."""
END: Final = "~"
"""After all positions."""


def after(position: str) -> str:
    """Return the position right after another one.

    Everything at that one or before it is below the result.
    """
    return position + "00"


@dataclass(frozen=True)
class Reach:
    """The range of the changes that a batch brought to a table, from position ``first`` to ``last``.

    ``log`` names the log of the source that they come from, or is None if that is unknown.
    """

    first: str
    last: str
    log: str | None = None


@dataclass(frozen=True)
class Part:
    """The changes of one table in a batch that belong to one stream (``stream``, of the log ``log``).

    ``streamed`` is the least and the greatest position of its changes. ``beside`` is the same for what is not
    in the order of a stream: rows that were read from the table (by a snapshot, a reload or a repair), and
    ``strays``, which are changes of no log.
    """

    stream: object
    log: str | None
    streamed: tuple[str, str] | None = None
    beside: tuple[str, str] | None = None
    strays: bool = False


def logs_of(parts: Iterable[Part]) -> frozenset[str] | None:
    """Return the logs that the changes of a table come from, or None if some come from no log.

    Rows that were read from the table, and whatever Lakemirror sent itself, name no log.
    """
    parts = list(parts)
    if any(part.strays for part in parts):
        return None
    return frozenset(part.log for part in parts if part.log is not None)


def reach(
    parts: Iterable[Part],
    reached: Callable[[object], str | None],
    *,
    given: bool = False,
    snapshot: str | None = None,
) -> Reach | None:
    """Return what a batch brought to a table, or None if everything in it was sent again.

    ``reached`` returns the position that a stream had reached before the batch. A stream has its changes in
    the order of their positions, so anything below that position was sent again and changes nothing.
    ``given`` says that all positions were assigned by Lakemirror, so strays have positions too. ``snapshot``
    is the position of a snapshot that is followed by changes whose own positions are too low
    (`lakemirror.driver.sequence`: unanchored).
    """
    parts = list(parts)
    logs = {part.log for part in parts if part.log is not None}
    if len(logs) > 1 or (not given and any(part.strays for part in parts)):
        return Reach(BEGIN, END)  # positions that cannot be compared
    log = next(iter(logs), None)
    ranges = [part.beside for part in parts if part.beside is not None]
    if snapshot is not None:
        ranges.append((after(snapshot), after(snapshot)))
    for part in parts:
        if part.streamed is None:
            continue
        first, last = part.streamed
        before = reached(part.stream) or BEGIN
        if last >= before:
            ranges.append((max(first, before), last))
    if not ranges:
        return None
    return Reach(min(first for first, _ in ranges), max(last for _, last in ranges), log)
