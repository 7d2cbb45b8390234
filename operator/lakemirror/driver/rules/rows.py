"""Rows: the columns of an image, each read by its field, or the reason why its record cannot be applied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from lakemirror.driver.rules import types, untyped
from lakemirror.driver.rules.conversions import Read, Reader, as_read
from lakemirror.driver.rules.kinds import Kind
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

    def read(self, value: Any, placeholder: Placeholder) -> Read:
        """Return the value of the mirror for one of the wire."""
        return Read() if value is None else as_read(self.reader(placeholder)(value))

    def reader(self, placeholder: Placeholder) -> Reader:
        """Return the function that reads values, except for null."""
        return self.as_by_default if placeholder is DEFAULT else self._reader_with(placeholder)

    @cached_property
    def as_by_default(self) -> Reader:
        """Reads values, except for null, where the placeholder is Debezium's own."""
        return self._reader_with(DEFAULT)

    def _reader_with(self, placeholder: Placeholder) -> Reader:
        if self.codec is None:
            return untyped.reader(self.kind, self.writing, placeholder)
        return types.reader(self.codec, self.kind, placeholder)


class Image(NamedTuple):
    """A row as an event shows it. ``gaps`` and ``texts`` are those of `Event`.

    ``rounded`` are the columns whose value has digits below the microsecond, which a mirror cannot hold.
    """

    values: Values = NOTHING
    gaps: frozenset[str] = frozenset()
    texts: Mapping[str, str] = NOTHING
    rounded: frozenset[str] = frozenset()


def read_row(
    row: Mapping[str, Any],
    columns: Mapping[str, Column],
    *,
    unrepresentable: Unrepresentable = "quarantine",
    placeholder: Placeholder = DEFAULT,
    may_have_gaps: bool = True,
    partial: bool = False,
    key: Sequence[str] = (),
) -> Image | str:
    """Return the row of an event, or why its record cannot be applied.

    ``columns`` are those of the mirror. With ``partial``, the members that the row lacks are as before; the
    columns of the ``key`` never are.
    """
    values: dict[str, Any] = {}
    odd: dict[str, Read] = {}
    is_default = placeholder is DEFAULT
    for name, column in columns.items():
        value = row.get(column.source)
        if value is not None:
            value = (column.as_by_default if is_default else column.reader(placeholder))(value)
            if type(value) is Read:
                if value.is_odd:
                    odd[name] = value
                value = value.value
        values[name] = value
    gaps: set[str] = set()
    if partial:
        gaps = {name for name, each in columns.items() if each.source not in row and name not in key}
    if not odd and not gaps:
        return Image(values)
    reason = _objection(odd, columns, unrepresentable)
    if reason is not None:
        return reason
    gaps |= {name for name, each in odd.items() if each.is_gap and may_have_gaps}
    lost = {name: each.text for name, each in odd.items() if each.is_lost}
    texts = {name: text for name, text in lost.items() if text is not None}
    return Image(
        {name: None if name in lost else value for name, value in values.items() if name not in gaps},
        frozenset(gaps),
        texts if unrepresentable == "text" else {},
        frozenset(name for name, each in odd.items() if each.is_rounded),
    )


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
    if unrepresentable == "quarantine":
        for name, each in found.items():
            if each.is_lost:
                return f"column {name}: Spark cannot represent {each.text or 'the value'}"
    return None


def shown(kind: Kind) -> str:
    """Return a type as messages name it."""
    return str(kind).lower()
