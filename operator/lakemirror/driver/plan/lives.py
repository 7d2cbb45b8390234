"""Tracks since when a source column has been what it is now.

Columns can be added, dropped, and added again. A column begins a new life when it is added (again). Rows that
were written before then have its default in the source, or null, whatever they held in an earlier life. Two
marks show where a life begins: the highest sequence of an event *without* the column, and the highest
sequence of an event *with* it. The higher mark shows whether the column exists now. Its life begins after the
mark ``absent``. Maxima do not depend on the order of delivery.

The higher mark is the highest sequence of the whole table, which is looked up only if the two marks must be
compared. So the table property holds only what is out of the ordinary: columns that were absent at some time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakemirror.driver.parse.values.connect import Field


@dataclass(frozen=True)
class Seen:
    """What events say about a column: the highest sequence of an event without it, and of one with it.

    ``alone`` is the lowest sequence of an event without it, if absence is inferred from the keys of a JSON
    object: a single such object may be broken, and says nothing. ``defaults`` are those of the events'
    schemas, each with the lowest sequence of an event of that schema. ``typed`` says that the type is known.
    For JSON without a schema, it is not if only nulls were seen.
    """

    absent: bytes | None = None
    present: bytes | None = None
    alone: bytes | None = None
    defaults: tuple[tuple[bytes, Field], ...] = ()
    typed: bool = True

    def without_absence(self) -> Seen:
        """Return the same for records that leave out nulls, where a missing key says nothing."""
        return replace(self, absent=None, alone=None)

    def __or__(self, other: Seen) -> Seen:
        return Seen(
            _highest(self.absent, other.absent),
            _highest(self.present, other.present),
            min(filter(None, (self.alone, other.alone)), default=None),
            (*self.defaults, *other.defaults),
            self.typed or other.typed,
        )


@dataclass(frozen=True)
class Life:
    """The current life of a column, or the fact that it has none (``dropped``).

    Values up to the sequence ``absent`` belong to a former life (None: as far as is known, the column always
    existed). ``default`` is what older rows have, according to the schema of the event at ``default_at``.
    ``fill`` says that stored rows may still hold values of a former life. ``alone`` is the only event so far
    whose JSON lacked the column. ``nulls`` says that the column exists but only nulls were seen in it, so it
    has no type yet and the mirror does not have it.
    """

    absent: bytes | None = None
    alone: bytes | None = None
    dropped: bool = False
    fill: bool = False
    default: Field | None = None
    default_at: bytes | None = None
    nulls: bool = False


PLAIN = Life()


@dataclass(frozen=True)
class Turn:
    """A column's life after a batch, and whether the batch shows that it was dropped or has returned."""

    life: Life
    dropped: bool = False
    returned: bool = False


@dataclass(frozen=True)
class Lives:
    """What is known about a table's columns before a batch, by source name.

    ``columns`` are those of the mirror, or None if there is no mirror yet. ``highest`` returns the highest
    sequence of the table's events (None: there was none) and may have to look it up.
    """

    stored: Mapping[str, Life]
    columns: Collection[str] | None
    highest: Callable[[], bytes | None]

    @property
    def untyped(self) -> list[str]:
        """Columns in which only nulls were seen."""
        return [name for name, life in self.stored.items() if life.nulls]

    def after(self, seen: Mapping[str, Seen]) -> dict[str, Turn]:
        """Return the state of each column after a batch."""
        return {name: self._turn(name, each) for name, each in seen.items()}

    def _turn(self, name: str, seen: Seen) -> Turn:
        before = self.stored.get(name, PLAIN)
        seen, alone = _believed(before, seen)
        if before.dropped and seen.present is None:
            return Turn(before)
        exists, there = self.columns is not None, name in (self.columns or ())
        nulls = before.nulls
        before = replace(before, nulls=not (there or seen.typed or (seen.present is None and not nulls)))
        absent, present = _highest(before.absent, seen.absent), seen.present
        if before.dropped or (exists and not there and not nulls):
            absent = _highest(absent, self.highest())
        elif exists and absent != before.absent:
            present = _highest(present, self.highest())
        begins = before.dropped or absent != before.absent
        if begins and absent is not None and (present is None or present < absent):
            gone = replace(before, absent=absent, alone=None, dropped=True, fill=False)
            return Turn(before if before.dropped else gone, dropped=there and not before.dropped)
        life = Life(absent, alone, fill=before.fill or (begins and exists), nulls=before.nulls)
        return Turn(_with_default(life, before, seen), returned=there and before.dropped)


def _believed(before: Life, seen: Seen) -> tuple[Seen, bytes | None]:
    """Return what was seen, without absence that is inferred from a single JSON object.

    Also returns the sequence of that object.
    """
    if seen.alone is None or seen.absent is None or seen.absent <= (before.absent or b""):
        return seen, before.alone
    if seen.alone == seen.absent and before.alone in (None, seen.alone):
        return replace(seen, absent=None), seen.alone
    return replace(seen, absent=_highest(seen.absent, before.alone)), None


def _with_default(life: Life, before: Life, seen: Seen) -> Life:
    """Return the life with the default of its oldest schema."""
    found = list(seen.defaults)
    if before.default is not None and before.default_at is not None:
        known = [each for each in found if each[1] == before.default and life.absent == before.absent]
        found = [each for each in found if each not in known]  # so that nothing is stored again
        found.append((before.default_at, before.default))
    if not found:
        return life
    mine = [each for each in found if life.absent is None or each[0] > life.absent]
    at, default = min(mine, key=_at) if mine else max(found, key=_at)
    return replace(life, default=default, default_at=at)


def _at(default: tuple[bytes, Field]) -> bytes:
    return default[0]


def together(told: Iterable[Mapping[str, Seen]]) -> dict[str, Seen]:
    """Combine what several groups of events say, by column."""
    found: dict[str, Seen] = {}
    for each in told:
        for name, seen in each.items():
            found[name] = found[name] | seen if name in found else seen
    return found


def to_text(lives: Mapping[str, Life]) -> str:
    """Serialize lives as the value of a table property.

    Lives without anything to remember are left out.
    """
    told = {name: _document(life) for name, life in lives.items()}
    return json.dumps({name: each for name, each in told.items() if each}, sort_keys=True)


def from_text(text: str | None) -> dict[str, Life]:
    """Parse the output of `to_text`."""
    return {name: _life(each) for name, each in json.loads(text or "{}").items()}


_SEQUENCES = ("absent", "alone", "default_at")


def _document(life: Life) -> dict[str, Any]:
    found: dict[str, Any] = {name: getattr(life, name) for name in _SEQUENCES}
    found = {name: seq.hex() for name, seq in found.items() if seq is not None}
    found |= {name: True for name in ("dropped", "fill", "nulls") if getattr(life, name)}
    if life.default is not None:
        found["default"] = {
            "name": life.default.name,
            "connect_type": life.default.connect_type,
            "semantic_name": life.default.semantic_name,
            "parameters": dict(life.default.parameters),
            "default": life.default.default,
        }
    return found


def _life(document: Mapping[str, Any]) -> Life:
    sequences = {name: bytes.fromhex(document[name]) for name in _SEQUENCES if name in document}
    default = Field(**document["default"]) if "default" in document else None
    return Life(
        dropped=bool(document.get("dropped")),
        fill=bool(document.get("fill")),
        nulls=bool(document.get("nulls")),
        default=default,
        **sequences,
    )


def _highest(*sequences: bytes | None) -> bytes | None:
    return max((each for each in sequences if each is not None), default=None)
