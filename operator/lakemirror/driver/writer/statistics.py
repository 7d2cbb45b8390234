"""The statistics of a data file, for readers that skip files (PROTOCOL.md, Per-file Statistics).

They are valid for every reader: no value of a column is below its minimum or above its maximum, in whatever
order the reader sorts special numbers. Where that cannot be said of a column, it has no bounds, and its file
is read. Bounds of numbers and days are values of the file, because Delta answers ``MIN`` and ``MAX`` from
them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals
from lakemirror.driver.writer import exact_json
from lakemirror.driver.writer.exact_json import Number
from lakemirror.driver.writer.moments import day_text, milli_text
from lakemirror.driver.writer.schema import Column, Group, ListOf, MapOf, Type

NUMBER_PROPERTY: Final = "delta.dataSkippingNumIndexedCols"
COLUMNS_PROPERTY: Final = "delta.dataSkippingStatsColumns"
_DEFAULT_NUMBER: Final = 32
_NAME: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,.]+?))\s*(?:,|$)")

_WHOLE: Final = (kinds.TINYINT, kinds.SMALLINT, kinds.INT, kinds.BIGINT)
LONGEST_TEXT: Final = 32
"""Longer texts are cut off after this many characters, as Delta cuts them off."""
_LAST_ASCII, _LAST = "\x7f", "\U0010ffff"

Bounds = tuple[Number | str, Number | str]
"""The least and the greatest value of a column, as values for `exact_json`."""


def indexed(
    columns: Sequence[Column],
    partitions: Collection[str],
    properties: Mapping[str, str],
    clustered: Iterable[str] = (),
) -> frozenset[str]:
    """Return the names of the columns that get statistics, as Delta chooses them.

    ``partitions`` are the names of partition columns, which get none, and ``clustered`` the physical names of
    clustering columns, which always do (PROTOCOL.md, Writer Requirements for Clustered Table).
    """
    data = [each for each in columns if each.name not in partitions]
    chosen = _named(data, properties) if COLUMNS_PROPERTY in properties else _first(data, properties)
    always = set(clustered)
    return frozenset(chosen) | {each.name for each in data if each.physical in always}


def _named(columns: Sequence[Column], properties: Mapping[str, str]) -> set[str]:
    names = {_unquoted(match).lower() for match in _NAME.finditer(properties[COLUMNS_PROPERTY])}
    return {each.name for each in columns if each.name.lower() in names}


def _unquoted(match: re.Match[str]) -> str:
    return match[2] if match[1] is None else match[1].replace("``", "`")


def _first(columns: Sequence[Column], properties: Mapping[str, str]) -> set[str]:
    left = int(properties.get(NUMBER_PROPERTY, _DEFAULT_NUMBER))
    if left < 0:
        return {each.name for each in columns}
    found = set()
    for each in columns:
        if left >= each.leaves:
            found.add(each.name)
        left -= each.leaves
    return found


def of_rows(table: pa.Table, columns: Iterable[Column], indexed: Collection[str]) -> str:
    """Return the statistics of a file with the rows of ``table``, as the JSON text of an ``add``.

    The table has the columns' logical names and the types of `schema.arrow_schema`.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for column in columns:
        if column.name not in indexed or isinstance(column.type, Group):
            continue
        values = table[column.name]
        nulls[column.physical] = values.null_count
        found = bounds(values, column.type)
        if found is not None:
            least[column.physical], greatest[column.physical] = found
    told = {"minValues": least, "maxValues": greatest, "nullCount": nulls}
    return exact_json.dumps({"numRecords": table.num_rows, **told, "tightBounds": True})


def of_parsed(parsed: pa.StructArray, columns: Iterable[Column]) -> list[str | None]:
    """Return the statistics of files that a checkpoint has in columns (PROTOCOL.md, Checkpoint Schema).

    ``parsed`` has an element for each file, and None is returned for one without a number of rows. Fields of
    structs get no statistics.
    """
    rows, tight = (_within(parsed, name).to_pylist() for name in ("numRecords", "tightBounds"))
    known = [each for each in columns if not isinstance(each.type, Group)]
    nulls = {each.physical: _within(parsed, "nullCount", each.physical).to_pylist() for each in known}
    bounds = {each.physical: _bounds_within(parsed, each) for each in known}
    found: list[str | None] = []
    for index, count in enumerate(rows):
        there = {name: pair for name, each in bounds.items() if (pair := each[index]) is not None}
        told = {
            "minValues": {name: least for name, (least, _) in there.items()},
            "maxValues": {name: greatest for name, (_, greatest) in there.items()},
            "nullCount": {name: each[index] for name, each in nulls.items() if each[index] is not None},
            **({} if tight[index] is None else {"tightBounds": tight[index]}),
        }
        found.append(None if count is None else exact_json.dumps({"numRecords": count, **told}))
    return found


def _bounds_within(parsed: pa.StructArray, column: Column) -> list[Bounds | None]:
    """Return the bounds of a column in each file, or None where there are none."""
    least, greatest = (
        _numbers(_within(parsed, name, column.physical), column.type).to_pylist()
        for name in ("minValues", "maxValues")
    )
    spelled = _both if column.type == kinds.STRING else partial(_spelled, given=column.type)  # texts are cut
    return [
        spelled(*pair) if all(map(_is_there, pair)) else None for pair in zip(least, greatest, strict=True)
    ]


def _is_there(value: Any) -> bool:
    return math.isfinite(value) if isinstance(value, float) else value is not None


def _within(structs: pa.StructArray, *path: str) -> pa.Array:
    """Return a member of each struct; nulls if the structs have none of this name."""
    found: pa.Array = structs
    for name in path:
        index = found.type.get_field_index(name)
        if index < 0:
            return pa.nulls(len(structs))
        found = pc.struct_field(found, index)
    return found


def of_count(rows: int) -> str:
    """Return the statistics of a file of which only the number of rows is known, as from its footer."""
    return json.dumps({"numRecords": rows})


def widened(statistics: str | None) -> str:
    """Return the statistics of a file some of whose rows are hidden: bounds need not be values any more.

    Raises ValueError without the number of rows, which such a file must have.
    """
    told = exact_json.loads(statistics or "{}")
    if "numRecords" not in told:
        raise ValueError("the number of rows of the file is not known")
    return exact_json.dumps({**told, "tightBounds": False})


def bounds(values: pa.ChunkedArray, given: Type) -> Bounds | None:
    """Return the least and the greatest of a column's values, or None if that is not to be said."""
    if isinstance(given, (Group, ListOf, MapOf)) or given in (kinds.BOOLEAN, kinds.BINARY):
        return None
    if given in (kinds.FLOAT, kinds.DOUBLE) and not pc.all(pc.is_finite(values)).as_py():
        return None  # readers do not agree on where NaN stands, and JSON has no infinity
    least, greatest = _extremes(values, given)
    return None if least is None else _spelled(least, greatest, given)


def _extremes(values: pa.ChunkedArray, given: Type) -> tuple[Any, Any]:
    found = pc.min_max(_numbers(values, given)).as_py()
    return found["min"], found["max"]


def _numbers(values: Any, given: Type) -> Any:
    """Return an array with days as days, and times as microseconds since 1970: Python knows fewer of them."""
    if given == kinds.DATE:
        return pc.cast(values, pa.int32())
    if given in (kinds.TIMESTAMP, kinds.TIMESTAMP_NTZ):
        zone = values.type.tz if pa.types.is_timestamp(values.type) else None
        return pc.cast(pc.cast(values, pa.timestamp("us", zone)), pa.int64())
    return values


def _spelled(least: Any, greatest: Any, given: Type) -> Bounds | None:
    match given:
        case Decimals():
            return Number(format(least, "f")), Number(format(greatest, "f"))
        case kinds.FLOAT | kinds.DOUBLE:
            # DuckDB and delta-rs skip files as if -0.0 were less than 0.0, and find both equal in rows: with
            # exact bounds, `x = 0.0` would miss rows. So MIN may be -0.0 although all rows have 0.0.
            return Number(repr(least or -0.0)), Number(repr(greatest or 0.0))
        case kinds.DATE:
            return _both(day_text(least), day_text(greatest))
        case kinds.TIMESTAMP | kinds.TIMESTAMP_NTZ:
            zone = "Z" if given == kinds.TIMESTAMP else ""
            return _both(milli_text(least // 1_000, zone), milli_text(-(-greatest // 1_000), zone))
        case kinds.STRING:
            return _both(least[:LONGEST_TEXT], _text_above(greatest))
    return (Number(least), Number(greatest)) if given in _WHOLE else None


def _both(least: str | None, greatest: str | None) -> Bounds | None:
    return None if least is None or greatest is None else (least, greatest)


def _text_above(text: str) -> str | None:
    """Return a text of limited length that is not below ``text``, or None if there is none.

    What is cut off is replaced by a character that comes after it: the last of ASCII if possible, as in
    Delta, or else the last of all. It does if texts are compared by their UTF-8.
    """
    if len(text) <= LONGEST_TEXT:
        return text
    for end in range(LONGEST_TEXT, min(len(text), 2 * LONGEST_TEXT)):
        if text[end] < _LAST_ASCII:
            return text[:end] + _LAST_ASCII
        if text[end] != _LAST:
            return text[:end] + _LAST
    return text if len(text) <= 2 * LONGEST_TEXT else None
