"""Rows: the columns of an image, each read by its field, or the reason why its record cannot be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from lakemirror.driver.rules import types, untyped
from lakemirror.driver.rules.conversions import Read, Reader, as_read
from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.kinds import Arrays, Kind, Maps, Structs
from lakemirror.driver.rules.schemas import Field
from lakemirror.driver.rules.texts import DEBEZIUM, Writing
from lakemirror.driver.rules.types import DEFAULT, Codec, Placeholder
from lakemirror.driver.rules.values import NOTHING, Values

Unrepresentable = Literal["quarantine", "null", "text"]
"""What becomes of a value that its column cannot hold (``onUnrepresentable``)."""

_ENCODED = "it is not known how the text is encoded in "
_SAY_HOW = (
    ": set tables[].columns.encodings of the column to text (a number as it is written), base64, base64url "
    "or hex, and run `lakemirror replay`"
)


@dataclass(frozen=True)
class Column:
    """A column of a mirror: its name in the source, its type, and how it is read (None: no schema)."""

    source: str
    kind: Kind
    codec: Codec | None = None
    writing: Writing = DEBEZIUM

    @classmethod
    def of(cls, found: Field, kind: Kind | None = None) -> Column:
        """Return the column of a field, of the type closest to the source's unless ``kind`` is given."""
        codec = types.codec_of(found)
        return cls(found.name, kind or codec.kind, codec)

    def read(self, value: Any, placeholder: Placeholder | None) -> Read:
        """Return the value of the mirror for one of the wire."""
        return Read() if value is None else as_read(self.reader(placeholder)(value))

    def reader(self, placeholder: Placeholder | None) -> Reader:
        """Return the function that reads values, except for null."""
        if self.codec is None:
            return untyped.reader(self.kind, self.writing, placeholder)
        return types.reader(self.codec, self.kind, placeholder)


class Image(Frozen, frozen=True):
    """A row as an event shows it. ``gaps`` and ``texts`` are those of `Event`.

    ``rounded`` are the columns whose value has digits below the microsecond, which a mirror cannot hold.
    """

    values: Values = NOTHING
    gaps: frozenset[str] = frozenset()
    texts: Mapping[str, str] = NOTHING
    rounded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of records with one schema. ``columns`` are those of the mirror, by their names.

    Values that were not sent have the ``placeholder``; None if the records always have them.
    """

    columns: Mapping[str, Column]
    placeholder: Placeholder | None = DEFAULT

    def read(
        self,
        row: Mapping[str, Any],
        *,
        unrepresentable: Unrepresentable = "quarantine",
        partial: bool = False,
        key: Sequence[str] = (),
    ) -> Image | str:
        """Return the row of an event, or why its record cannot be applied.

        With ``partial``, the members that the row lacks are as before; the columns of the ``key`` never are.
        """
        values = self._nulls.copy()
        odd: dict[str, Read] = {}
        for name, source, read in self._readers:
            value = row.get(source)
            if value is None:
                continue
            value = read(value)
            if type(value) is Read:
                if value.is_odd:
                    odd[name] = value
                value = value.value
            values[name] = value
        absent: set[str] = set()
        if partial:
            absent = {name for name, source, _ in self._readers if source not in row and name not in key}
        if not odd and not absent:
            return Image(values)
        reason = _objection(odd, self.columns, unrepresentable)
        if reason is not None:
            return reason
        gaps = absent | {name for name, each in odd.items() if each.is_gap}
        lost = {name: each.text for name, each in odd.items() if each.is_lost}
        texts = {name: text for name, text in lost.items() if text is not None}
        return Image(
            {name: None if name in lost else value for name, value in values.items() if name not in gaps},
            frozenset(gaps),
            texts if unrepresentable == "text" else {},
            frozenset(name for name, each in odd.items() if each.is_rounded),
        )

    def __reduce__(self) -> tuple[type[RowReader], tuple[object, ...]]:
        """Leave out the functions that read when a reader is pickled: they are made again."""
        return RowReader, (self.columns, self.placeholder)

    @cached_property
    def _nulls(self) -> dict[str, Any]:
        """A row that has null in each column."""
        return dict.fromkeys(self.columns)

    @cached_property
    def _readers(self) -> list[tuple[str, str, Reader]]:
        """Each column's name, its name in the source, and what reads its values."""
        return [(name, each.source, each.reader(self.placeholder)) for name, each in self.columns.items()]


def _objection(
    found: Mapping[str, Read], columns: Mapping[str, Column], unrepresentable: Unrepresentable
) -> str | None:
    doubtful = [columns[name].source for name, each in found.items() if each.is_doubtful]
    if doubtful:
        return f"{_ENCODED}{', '.join(doubtful)}{_SAY_HOW}"
    misfits = [
        f"{columns[name].source} ({shown(columns[name].kind)})"
        for name, each in found.items()
        if each.is_misfit
    ]
    if misfits:
        return f"the value does not fit {', '.join(misfits)}"
    for name, each in found.items():
        if each.is_lost and (unrepresentable == "quarantine" or _is_unspelled(each, unrepresentable)):
            return f"column {name}: Spark cannot represent {each.text or 'the value'}"
    return None


def _is_unspelled(found: Read, unrepresentable: Unrepresentable) -> bool:
    """Return whether the text is missing that should be kept instead of a value."""
    return unrepresentable == "text" and found.text is None


def shown(kind: Kind) -> str:
    """Return a type as messages name it: Spark's ``simpleString``."""
    if isinstance(kind, Arrays):
        return f"array<{shown(kind.item)}>"
    if isinstance(kind, Maps):
        return f"map<{shown(kind.key)},{shown(kind.value)}>"
    if isinstance(kind, Structs):
        return f"struct<{','.join(f'{name}:{shown(each)}' for name, each in kind.fields)}>"
    return str(kind).lower()
