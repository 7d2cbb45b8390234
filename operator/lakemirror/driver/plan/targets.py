"""Assigns targets to source tables, so that no two tables share one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from threading import Lock, RLock

from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.tables.names import Location


class Targets:
    """The targets of a pipeline's tables. Thread-safe.

    ``known`` maps the targets that have been written so far to their source tables.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self._owners = {canonical(target): source for target, source in known.items()}
        self._lock = Lock()
        self._writing: dict[str, RLock] = {}

    def writing(self, location: Location) -> RLock:
        """Return the lock that a shard holds while it writes to a mirror."""
        with self._lock:
            return self._writing.setdefault(canonical(str(location)), RLock())

    def claim(self, location: Location, source: str) -> None:
        """Assign a target to a source table. Raises Refused if it belongs to another one."""
        with self._lock:
            owner = self._owners.setdefault(canonical(str(location)), source)
        if owner != source:
            raise Refused(
                f"the target {location} is the mirror of {owner} (names that differ only in case or in where "
                f"a dot stands count as one): give {source} a target of its own, tables[{source}].target"
            )


def canonical(target: str) -> str:
    """Return a form that is the same for all spellings of a target.

    Catalogs and some file systems ignore case.
    """
    path = re.sub(r"^file:/*(?=/)", "", target)
    scheme, separator, rest = path.rpartition("://")
    return (scheme + separator + re.sub(r"/+", "/", rest).rstrip("/")).lower()
