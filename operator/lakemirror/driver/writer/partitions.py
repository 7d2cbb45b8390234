"""Partition values as Delta writes them, and the folders of partitioned files.

The texts are those of PROTOCOL.md, Partition Value Serialization; instants are in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals, Plain
from lakemirror.driver.writer.moments import day_text, micro_text
from lakemirror.driver.writer.schema import Column, Type

_WHOLE: Final = (kinds.TINYINT, kinds.SMALLINT, kinds.INT, kinds.BIGINT)
DIVIDING: Final = (*_WHOLE, kinds.BOOLEAN, kinds.STRING, kinds.DATE, kinds.TIMESTAMP, kinds.TIMESTAMP_NTZ)
"""Types of partition columns that are written here; decimals are, too."""

_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_LONGEST_FOLDER: Final = 255
"""How many bytes a name has at most in many file systems."""


class NotRepresentable(ValueError):
    """A partition column cannot hold a value: the log would say something else."""


def may_divide(given: Type) -> bool:
    """Return whether a column of this type may be a partition column of a table that is written here."""
    return isinstance(given, Decimals) or given in DIVIDING


def divided(table: pa.Table, by: Sequence[Column]) -> Iterator[tuple[Mapping[str, str | None], pa.Table]]:
    """Part rows by the values of partition columns.

    Returns the values' texts by physical name, and the rows that have them, without these columns. Rows keep
    their order. Raises NotRepresentable.
    """
    if not by:
        yield {}, table
        return
    texts = [_texts(table[each.name].combine_chunks(), each) for each in by]
    rows: dict[tuple[str | None, ...], list[int]] = {}
    for index, values in enumerate(zip(*texts, strict=True)):
        rows.setdefault(values, []).append(index)
    rest = table.drop_columns([each.name for each in by])
    for values, chosen in rows.items():
        named = {each.physical: value for each, value in zip(by, values, strict=True)}
        # A table without columns does not know how many rows it has.
        yield named, rest.take(pa.array(chosen, pa.int64()))


def _texts(values: pa.Array, column: Column) -> list[str | None]:
    """Return the text of each value; each distinct one is spelled once."""
    encoded = values.dictionary_encode()
    distinct = [_text(each, column) for each in _plain(encoded.dictionary, column.type).to_pylist()]
    return [None if index is None else distinct[index] for index in encoded.indices.to_pylist()]


def _plain(values: pa.Array, given: Type) -> pa.Array:
    """Return dates and times as numbers, because Python knows fewer of them."""
    if given == kinds.DATE:
        return pc.cast(values, pa.int32())
    return pc.cast(values, pa.int64()) if given in (kinds.TIMESTAMP, kinds.TIMESTAMP_NTZ) else values


def _text(value: Any, column: Column) -> str:
    found = text_of(value, column.type)
    if not found:
        raise NotRepresentable(f"partition column {column.name} cannot hold {value!r}")
    return found


def text_of(value: Any, given: Type) -> str | None:
    """Return the text of a value, or None if there is none for it. The log has no empty text.

    A date is the number of days since 1970, and a time that of microseconds.
    """
    match given:
        case kinds.BOOLEAN:
            return "true" if value else "false"
        case kinds.STRING:
            return str(value)
        case kinds.DATE:
            return day_text(value)
        case kinds.TIMESTAMP:
            return micro_text(value, "T", "Z")
        case kinds.TIMESTAMP_NTZ:
            return micro_text(value, " ", "")
        case Decimals():
            return format(value, "f")
        case Plain() if given in _WHOLE:
            return str(value)
    raise ValueError(f"columns of type {given} do not divide tables that are written here")


def folder(values: Mapping[str, str | None]) -> str:
    """Return the folder of files with these partition values, in the manner of Hive, with a slash at the end.

    It means nothing to Delta, but Polars reads the values from it. Raises NotRepresentable if a name is too
    long for file systems.
    """
    parts = [f"{quote(name, safe='')}={_folder_value(value)}" for name, value in values.items()]
    if any(len(each) > _LONGEST_FOLDER for each in parts):
        raise NotRepresentable(f"no folder can be called {max(parts, key=len)}")
    return "".join(f"{each}/" for each in parts)


def _folder_value(value: str | None) -> str:
    return _NO_VALUE if value is None else quote(value, safe="")
