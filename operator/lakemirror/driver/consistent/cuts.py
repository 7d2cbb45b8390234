"""Determines which versions of mirrors show the source as it was at one position.

A version of a mirror shows the rows at a position if it contains all changes up to that position and no
others. A version is therefore valid from the newest change that it contains to the oldest change that it
lacks. If it lacks a change that is older than one that it contains, it is valid for no position. Several
mirrors show one state of the source at the positions for which each of them has a valid version.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakemirror.driver.consistent.reach import BEGIN, END


@dataclass(frozen=True)
class Commit:
    """A version of a mirror, and the first and last positions of the changes that are new in it.

    If it has none (``first`` after ``last``), it shows what the previous version shows.
    """

    version: int
    first: str = END
    last: str = BEGIN


@dataclass(frozen=True)
class Span:
    """A version that shows the rows at each position from ``since`` to before ``until``."""

    since: str
    until: str
    version: int


@dataclass(frozen=True)
class Cut:
    """Versions, by table, that all show the source at each position from ``since`` to before ``until``."""

    since: str
    until: str
    versions: Mapping[str, int]


def spans(commits: Iterable[Commit], below: str = END) -> list[Span]:
    """Return the positions for which a mirror has a version, in order.

    All changes before the position ``below`` are applied.
    """
    every = _by_version(commits)
    missing, until = below, []
    for commit in reversed(every):
        until.append(missing)
        missing = min(missing, commit.first)
    found: list[Span] = []
    newest = BEGIN
    for commit, end in zip(every, reversed(until), strict=True):
        newest = max(newest, commit.last)
        if newest != BEGIN and newest < end:
            if found and found[-1].since == newest:
                found.pop()  # the previous version shows the same
            found.append(Span(newest, end, commit.version))
    return found


def _by_version(commits: Iterable[Commit]) -> list[Commit]:
    """Return one commit per version, in order."""
    found: dict[int, Commit] = {}
    for each in commits:
        known = found.get(each.version, Commit(each.version))
        found[each.version] = Commit(each.version, min(known.first, each.first), max(known.last, each.last))
    return [found[version] for version in sorted(found)]


def always(version: int, below: str, since: str) -> list[Span]:
    """Return the newest version as valid for all positions from ``since``.

    This is for a mirror whose rows record when they were valid.
    """
    return [Span(since, below, version)] if since < below else []


def cuts(tables: Mapping[str, Sequence[Span]]) -> list[Cut]:
    """Return the positions for which all tables have a version, in order."""
    found: list[Cut] | None = None
    for name, each in sorted(tables.items()):
        own = [Cut(span.since, span.until, {name: span.version}) for span in each]
        found = own if found is None else _both(found, own)
    return found or []


def _both(one: Sequence[Cut], other: Sequence[Cut]) -> list[Cut]:
    found, i, j = [], 0, 0
    while i < len(one) and j < len(other):
        a, b = one[i], other[j]
        since, until = max(a.since, b.since), min(a.until, b.until)
        if since < until:
            found.append(Cut(since, until, {**a.versions, **b.versions}))
        if a.until <= b.until:
            i += 1
        else:
            j += 1
    return found


@dataclass(frozen=True)
class Nearest:
    """The last cut before a position, and the first one after it."""

    before: Cut | None = None
    after: Cut | None = None


@dataclass(frozen=True)
class Found:
    """The answer for a position: a ``cut``, or the tables that lack a version and the nearest cuts."""

    cut: Cut | None
    lacking: Sequence[str] = ()
    nearest: Nearest = field(default_factory=Nearest)


def at(tables: Mapping[str, Sequence[Span]], position: str) -> Found:
    """Return the cut at a position, or the tables that lack a version there."""
    every = cuts(tables)
    index = bisect_right([cut.since for cut in every], position) - 1
    if index >= 0 and position < every[index].until:
        return Found(every[index])
    lacking = [
        name
        for name, each in sorted(tables.items())
        if not any(span.since <= position < span.until for span in each)
    ]
    before = every[index] if index >= 0 else None
    after = every[index + 1] if index + 1 < len(every) else None
    return Found(None, lacking, Nearest(before, after))
