"""Assigns targets to source tables, so that no two tables share one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from threading import Lock, RLock
from types import MappingProxyType
from typing import NamedTuple

from lakemirror.api.object_stores import one_spelling
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.tables.names import Location, TableName


class Fixed(NamedTuple):
    """The targets of source tables that the checkpoint does not read from the beginning again.

    They may be moved nevertheless if they are read again there because of their tokens, or were
    (``except_for``, the entries under ``tables``), or if their mirrors have transactions of the checkpoint's
    applications (``app_ids``): its query, and those that replayed, repaired or reloaded since it began.
    """

    targets: Mapping[str, str] = MappingProxyType({})
    except_for: Collection[str] = ()
    app_ids: Collection[str] = ()


class Targets:
    """The targets of a pipeline's tables. Thread-safe.

    ``known`` maps the targets that have been written so far to their source tables. ``checkpoint`` is the
    folder of the pipeline's own state. ``entry`` returns what the manifest calls a source table.
    """

    def __init__(
        self,
        known: Mapping[str, str],
        checkpoint: str | None = None,
        entry: Callable[[str], str] = str,
    ) -> None:
        self._entry = entry
        self._checkpoint = canonical(checkpoint) if checkpoint is not None else None
        self._owners: dict[str, str] = {}
        self._inside: dict[str, list[str]] = {}
        """The targets inside each folder."""
        for target, source in known.items():
            self._note(canonical(target), source)
        self._lock = Lock()
        self._writing: dict[str, RLock] = {}

    def writing(self, location: Location) -> RLock:
        """Return the lock that a shard holds while it writes to a mirror."""
        with self._lock:
            return self._writing.setdefault(canonical(str(location)), RLock())

    def claim(self, location: Location, source: str) -> None:
        """Assign a target to a source table.

        Raises Refused if it belongs to another one, or if one is inside the other: VACUUM of the outer mirror
        would delete the inner one's files. The same goes for the checkpoint.
        """
        target = canonical(str(location))
        self._require_apart(target, location, source)
        with self._lock:
            owner = self._owners.get(target, source)
            nested = self._nested(target, source)
            if owner == source and nested is None:
                self._note(target, source)
        if owner != source:
            raise Refused(
                f"the target {location} is the mirror of {owner} (names that differ only in case or in where "
                f"a dot stands count as one): give {source} a target of its own, {self._field(source)}"
            )
        if nested is not None:
            other = self._owners[nested]
            inner, outer = (target, nested) if nested in _above(target) else (nested, target)
            raise Refused(
                f"the target {location} of {source} and the mirror of {other} at {nested} are inside one "
                f"another, and cleaning {outer} would delete the files of {inner}: choose another target, "
                f"{self._field(source)}, or {self._field(other)} with a new resyncToken"
            )

    def has(self, location: Location, source: str) -> bool:
        """Return whether a target is assigned to a source table."""
        with self._lock:
            return self._owners.get(canonical(str(location))) == source

    def _require_apart(self, target: str, location: Location, source: str) -> None:
        state = self._checkpoint
        if state is None:
            return
        if target in _above(state):
            raise Refused(
                f"spec.checkpoint ({state}) lies in the target {location} of {source}, and cleaning the "
                f"mirror would delete it: choose another target, {self._field(source)} (with a new "
                "resyncToken if the table is mirrored already), or another checkpoint with a new "
                "spec.spark.resetToken"
            )
        if f"{target}/".startswith(f"{state}/"):
            raise Refused(
                f"the target {location} of {source} lies in spec.checkpoint ({state}), a folder for the "
                f"state of this pipeline alone: choose another target, {self._field(source)} (with a new "
                "resyncToken if the table is mirrored already)"
            )

    def _field(self, source: str) -> str:
        return f"tables[{self._entry(source)}].target"

    def _note(self, target: str, source: str) -> None:
        for folder in _above(target) if target not in self._owners else ():
            self._inside.setdefault(folder, []).append(target)
        self._owners[target] = source

    def _nested(self, target: str, source: str) -> str | None:
        """Return a target of another table that is inside this one, or that this one is inside of."""
        around = [folder for folder in _above(target) if folder in self._owners]
        inside = self._inside.get(target, ())
        return next((each for each in (*around, *inside) if self._owners[each] != source), None)


def _above(target: str) -> list[str]:
    """Return the folders whose cleaning would reach a target, from the outermost one.

    VACUUM passes over folders whose name begins with an underscore.
    """
    parts = target.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts)) if not parts[n].startswith("_")]


def require_same(
    fixed: Fixed, location: Location, name: TableName, source: str, applied: Callable[[str], int | None]
) -> None:
    """Raise Refused if a table, whose entry under ``tables`` is ``source``, is mirrored elsewhere.

    What was applied there is not read again, so a mirror at the new target would lack it, unless checkpoint
    and mirrors were copied to another store together: then the mirror knows the last batch that was
    ``applied`` by one of the checkpoint's applications.
    """
    target = fixed.targets.get(str(name))
    # Unlike `canonical`, this tells upper case from lower case: most stores do.
    if target is None or source in fixed.except_for or one_spelling(target) == one_spelling(str(location)):
        return
    if any(applied(each) is not None for each in fixed.app_ids):
        return
    raise Refused(
        f"{name} is mirrored at {target}, and the manifest moves it to {location}: the checkpoint cannot "
        f"follow this change. Change it back, or give tables[{source}].resyncToken a new value to read the "
        "table again (or spec.spark.resetToken, to read all tables again)"
    )


def canonical(target: str) -> str:
    """Return a form that is the same for all spellings of a target.

    Catalogs and some file systems ignore case.
    """
    return one_spelling(target).lower()
