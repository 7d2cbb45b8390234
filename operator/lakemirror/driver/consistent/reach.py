"""Between which positions the changes lie that a batch brought to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

BEGIN: Final = ""
"""Before all positions."""
END: Final = "~"
"""After all positions."""


def after(position: str) -> str:
    """What lies next after a position: all that is at it or before lies below."""
    return position + "00"


@dataclass(frozen=True)
class Reach:
    """All changes that a batch brought to a table lie from position ``first`` to ``last``. ``log`` names the
    log of the source that they come from; None where that is not known.
    """

    first: str
    last: str
    log: str | None = None


@dataclass(frozen=True)
class Part:
    """What a batch has of one table in one stream of changes (``stream``, of the log ``log``).

    ``streamed`` are the least and the greatest position of its changes, ``beside`` those of what does not
    stand in the order of a stream: rows that were read from the table (by a snapshot, a reload or a repair),
    and ``strays``, which are changes of no log.
    """

    stream: object
    log: str | None
    streamed: tuple[str, str] | None = None
    beside: tuple[str, str] | None = None
    strays: bool = False


def reach(
    parts: Iterable[Part],
    reached: Callable[[object], str | None],
    *,
    given: bool = False,
    snapshot: str | None = None,
) -> Reach | None:
    """What a batch brought to a table; None if only what was sent again.

    ``reached`` tells which position a stream had reached before the batch. A stream has its changes in the
    order of their positions, so what lies below was sent again and changes nothing. ``given``: all positions
    were made here, so that strays have theirs, too. ``snapshot`` is the position of a snapshot after which
    changes come whose own positions are too low (`lakemirror.driver.sequence`: unanchored).
    """
    parts = list(parts)
    logs = {part.log for part in parts if part.log is not None}
    if len(logs) > 1 or (not given and any(part.strays for part in parts)):
        return Reach(BEGIN, END)  # positions that mean nothing to each other
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
