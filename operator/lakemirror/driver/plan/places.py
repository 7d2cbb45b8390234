"""Remembers how the driver left each mirror, and notices what was done to it since (`left`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final

from lakemirror.driver.plan import left
from lakemirror.driver.plan.left import Found
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.targets import canonical
from lakemirror.driver.results import Drift, Left, TableResult

_MOST: Final = 2_000
"""Maximum number of commits that are read, the newest ones: a reading of the log that takes no time."""


@dataclass
class _Place:
    """How a mirror was left: at version ``after``. Up to version ``checked``, all commits are known."""

    checked: int | None = None
    after: int | None = None
    noticed: tuple[Drift, ...] = ()
    """What was done by hand, until a batch records it."""


class Places:
    """How the mirrors of a pipeline were left. Thread-safe.

    ``known`` says how earlier batches left them, by target, and ``again`` looks that up anew: other batches
    may have written since, such as those of a reload. The mirrors of the tables ``anew``
    (entries of the manifest, or source tables) are read again or reloaded, and may be in any state until this
    pipeline has written them. ``warn`` receives messages about changes by hand.
    """

    def __init__(
        self,
        known: Mapping[str, Left],
        again: Callable[[], Mapping[str, Left]],
        anew: Collection[str] = (),
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        self._places = {
            canonical(target): _Place(each.checked, each.version) for target, each in known.items()
        }
        self._again, self._anew, self._warn = again, frozenset(anew), warn
        self._written: set[str] = set()
        self._renewed: set[str] = set()
        """The mirrors that are read again or reloaded, which brings their tombstones again."""
        self._locks: dict[str, Lock] = {}
        """By target. Shards share a mirror, of which one is looked at after the other."""

    def look(self, table: MirroredTable) -> str | None:
        """Look at a mirror. Returns why its table has to be held, or None.

        Changes by hand are remembered as drift.
        """
        target = canonical(str(table.location))
        with self._locks.setdefault(target, Lock()):
            place = self._places.setdefault(target, _Place())
            newest = _version(table)
            if target not in self._written and {table.settings.source, str(table.name)} & self._anew:
                table.checked = place.checked = place.after = newest
                self._renewed.add(target)
                return None
            found = _compared(table, place, newest)
            if found.lost is not None:
                found = self._confirmed(table, place, newest, found)
            if found.lost is not None:
                return left.lost(table.kept_as, table.location, table.settings.source, found.lost)
            if target not in self._renewed and table.lacks_tombstones():
                return left.lost_tombstones(table.kept_as, table.location, table.settings.source)
            table.checked = place.checked = place.after = newest
            place.noticed += found.drift
        for each in found.by_hand:
            self._warn(left.warning(table.kept_as, table.location, each))
        return None

    def _confirmed(self, table: MirroredTable, place: _Place, newest: int | None, found: Found) -> Found:
        """Compare again with how the mirror was left according to the audit, if others have left it so."""
        known = {canonical(target): each for target, each in self._again().items()}
        at = known.get(canonical(str(table.location)))
        if at is None or (at.checked, at.version) == (place.checked, place.after):
            return found
        place.checked, place.after = at.checked, at.version
        return _compared(table, place, newest)

    def written(self, table: MirroredTable, done: TableResult, since: int | None = None) -> TableResult:
        """Record how a batch left a mirror. Returns the result of the batch as the audit has to know it.

        That includes what was done by hand before, and up to which version all commits are known: a later
        driver has to look at the others. ``since`` is a version since which nobody else can have committed
        (None: unknown). Such commits need not be read: there are many, if only the engine has written for a
        long time.
        """
        target = canonical(str(table.location))
        with self._locks.setdefault(target, Lock()):
            place = self._places.setdefault(target, _Place())
            self._written.add(target)
            place.after = done.version
            if place.checked in (None, since):
                place.checked = done.version
            table.checked = checked = place.checked
            noticed, place.noticed = place.noticed, ()
        drift = *done.drift, *noticed
        return replace(done, drift=drift, checked=None if checked == done.version else checked)


def alone_since(before: int | None, after: int | None) -> int | None:
    """Return a version since which nobody but a batch has committed, or None if somebody else may have.

    The batch has made one commit at most. It found the mirror at ``before``, and left it at ``after``.
    """
    return before if before is not None and after in (before, before + 1) else None


def _compared(table: MirroredTable, place: _Place, newest: int | None) -> Found:
    """Compare a mirror with how it was left. The log is read only if others may have committed."""
    checked, after = place.checked, place.after
    if checked is None or newest is None or after is None:
        return left.judge(checked, newest, ())
    if newest < max(checked, after):
        return left.judge(max(checked, after), newest, ())
    if newest == after == checked:
        return Found()
    return left.judge(checked, newest, table.mirror.commits(max(checked, newest - _MOST), newest))


def _version(table: MirroredTable) -> int | None:
    version = table.mirror.version
    return None if version is None or version < 0 else version
