"""Which columns a mirror was written with, and what becomes of its rows when the manifest chooses others.

A mirror notes the settings ``columns.include``, ``columns.exclude`` and ``columns.rename`` that its rows were
written with. When they change:

- A column that the mirror has cannot be left out from then on: rows that change would lose their value, and
  all others would keep it. The table is refused.
- A column that gets another name takes its stored values along (`Renaming`), unless the mirror has one of
  the new name already. Then the table is refused.
- A column that was left out and no longer is gets its values with the next change of each row. The rows that
  the mirror has until then are reported with the drift (`missed`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

from lakemirror.api.tables import Columns


@dataclass(frozen=True)
class Selection:
    """The columns that a mirror takes from its source, and what it calls them.

    ``include`` is None if it takes all but those in ``exclude``.
    """

    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, columns: Columns | None) -> Self:
        """Return the selection that a manifest makes."""
        if columns is None:
            return cls()
        include = None if columns.include is None else frozenset(columns.include)
        return cls(include, frozenset(columns.exclude or ()), columns.rename or {})

    def keeps(self, source: str) -> bool:
        """Return whether a column of the source is part of the mirror."""
        return source not in self.exclude if self.include is None else source in self.include

    def called(self, source: str) -> str:
        """Return the mirror's name for a column of the source."""
        return self.rename.get(source, source)

    def to_document(self) -> dict[str, Any]:
        """Return the selection as a JSON object."""
        document = {
            "include": None if self.include is None else sorted(self.include),
            "exclude": sorted(self.exclude),
            "rename": dict(self.rename),
        }
        return {name: each for name, each in document.items() if each}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Parse the output of `to_document`."""
        include = document.get("include")
        return cls(
            None if include is None else frozenset(include),
            frozenset(document.get("exclude", ())),
            document.get("rename", {}),
        )


@dataclass(frozen=True)
class Renaming:
    """A column of the source that the mirror has under the name ``before`` and is to have as ``after``."""

    source: str
    before: str
    after: str


def sources_of(made: Selection | None, now: Selection, columns: Collection[str]) -> dict[str, str]:
    """Return the source's name of each of the mirror's ``columns``, by the names that it was written with.

    ``made`` is None for a mirror that was made before selections were noted.
    """
    back = {mirror: source for source, mirror in (made or now).rename.items()}
    return {name: back.get(name, name) for name in columns}


def lost(made: Selection | None, now: Selection, columns: Collection[str]) -> list[str]:
    """Return the source's names of mirrored ``columns`` that the manifest leaves out now.

    Of a mirror that did not note its selection, only those are known that the manifest names.
    """
    sources = sources_of(made, now, columns)
    known = made if made is not None else Selection()
    asked = now if made is not None else Selection(exclude=now.exclude)
    return sorted(s for s in sources.values() if known.keeps(s) and not asked.keeps(s))


def missed(made: Sequence[Selection], source: str) -> bool:
    """Return whether rows were written while the manifest left out a column of the source."""
    return not all(each.keeps(source) for each in made)


def after(
    made: Sequence[Selection], now: Selection, columns: Collection[str], added: Collection[str]
) -> tuple[Selection, ...]:
    """Return the selections to note, oldest first, once a batch was written that ``added`` columns.

    A column without an event so far that has its new name keeps the former one.
    """
    last = made[-1] if made else None
    waiting = [each for each in renamings(last, now, columns) if each.after not in added]
    rename = {**now.rename, **{each.source: each.before for each in waiting}}
    noted = replace(now, rename={source: name for source, name in rename.items() if source != name})
    return tuple(made) if noted == last else (*made, noted)


def to_text(made: Sequence[Selection]) -> str:
    """Serialize the selections that a mirror was written with as the value of a table property."""
    return json.dumps([each.to_document() for each in made], sort_keys=True)


def from_text(text: str | None) -> tuple[Selection, ...]:
    """Parse the output of `to_text`. Empty for a mirror that was made before selections were noted."""
    return tuple(map(Selection.from_document, json.loads(text or "[]")))


def renamings(made: Selection | None, now: Selection, columns: Collection[str]) -> Iterator[Renaming]:
    """Yield the mirrored ``columns`` that the manifest calls otherwise than when rows were written.

    For a mirror that did not note its selection, a name that it has already is not new.
    """
    if made is None:
        found = (Renaming(source, source, after) for source, after in now.rename.items())
        yield from (each for each in found if each.before in columns and each.after not in columns)
        return
    for before, source in sources_of(made, now, columns).items():
        after = now.called(source)
        if made.keeps(source) and now.keeps(source) and before == made.called(source) != after:
            yield Renaming(source, before, after)
