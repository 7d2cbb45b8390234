"""What the statistics of the log and of Parquet footers say about keys, sequences and maps.

Statistics may be missing, and may be of any writer: what they do not say is possible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from lakemirror.driver.engine.file_rows import FileRows
from lakemirror.driver.engine.key_search import KeySearch
from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals
from lakemirror.driver.writer.actions import Add
from lakemirror.driver.writer.schema import Column, Type

Bounds = tuple[Any, Any]
_WHOLE: Final = (kinds.TINYINT, kinds.SMALLINT, kinds.INT, kinds.BIGINT)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI: Final = 1_000
"""Delta cuts times off after the millisecond, the greatest as well: in microseconds."""
_SHARE: Final = Decimal("1e-14")
"""How far values may be beyond the bounds of decimals: delta-rs 1.6 calculates these as DOUBLEs.

Some of its numbers are cut off at the end of BIGINT.
"""
_END: Final = 2**63 - 1


def file_may_have(add: Add, search: KeySearch, columns: Sequence[Column]) -> bool:
    """Return whether a file may have one of the keys, whose columns are ``columns``, by the log."""
    told = json.loads(add.statistics or "{}", parse_float=Decimal)
    least, greatest, nulls = (told.get(each) or {} for each in ("minValues", "maxValues", "nullCount"))
    for each in columns:
        may_be_null = nulls.get(each.physical) != 0
        found = _parsed(least.get(each.physical), greatest.get(each.physical), each.type)
        if not _may_have(search, each.name, found, may_be_null=may_be_null):
            return False
    return True


def group_may_have(file: FileRows, group: int, search: KeySearch, columns: Sequence[Column]) -> bool:
    """Return whether a row group may have one of the keys, by the footer."""
    for each in columns:
        chunk = file.chunk(group, each.physical)
        told = chunk.statistics if chunk is not None else None
        if told is None:
            continue
        may_be_null = not (told.has_null_count and told.null_count == 0)
        found = _raw(file, told, each) if told.has_min_max else None
        if not _may_have(search, each.name, found, may_be_null=may_be_null):
            return False
    return True


def greatest(file: FileRows, group: int, column: Column) -> bytes | None:
    """Return a value of BINARY that no value of a row group is above, or None. None of them is null."""
    chunk = file.chunk(group, column.physical)
    told = chunk.statistics if chunk is not None else None
    if told is None or not (told.has_min_max and told.has_null_count and told.null_count == 0):
        return None
    return told.max if isinstance(told.max, bytes) else None


def has_no_entries(file: FileRows, group: int, column: Column) -> bool:
    """Return whether all maps of a row group are known to be empty or null."""
    leaves = [leaf for leaf in file.leaves if leaf.startswith(f"{column.physical}.")]
    chunks = [file.chunk(group, leaf) for leaf in leaves]
    return bool(chunks) and all(each is not None and _are_null(each) for each in chunks)


def _are_null(chunk: Any) -> bool:
    told = chunk.statistics
    return told is not None and told.has_null_count and told.null_count == chunk.num_values


def _may_have(search: KeySearch, name: str, found: Bounds | None, *, may_be_null: bool) -> bool:
    if found is None or search.may_be_within(name, *found):
        return True
    return may_be_null and search.has_null(name)


def _raw(file: FileRows, told: Any, column: Column) -> Bounds | None:
    """Return the bounds in a footer, if they are stored as `key_search.comparable` has values."""
    kind = file.stored_type(column)
    if column.type == kinds.STRING and pa.types.is_string(kind):
        return told.min_raw, told.max_raw
    is_day = column.type == kinds.DATE and pa.types.is_date32(kind)
    is_whole = column.type in _WHOLE and pa.types.is_signed_integer(kind)
    is_moment = column.type in (kinds.TIMESTAMP, kinds.TIMESTAMP_NTZ) and kind in _MICROS
    if file.is_hybrid and not is_whole:
        return None
    if (is_day or is_whole or is_moment) and isinstance(told.min_raw, int):
        return told.min_raw, told.max_raw
    return None


_MICROS: Final = (pa.timestamp("us"), pa.timestamp("us", "UTC"))


def _parsed(least: Any, most: Any, given: Type) -> Bounds | None:
    """Return the bounds in the log as `key_search.comparable` has values, or None if they say nothing."""
    read = Decimal if isinstance(given, Decimals) else _READ.get(given)
    if least is None or most is None or read is None:
        return None
    try:
        found = read(least), read(most)
    except (ValueError, TypeError, ArithmeticError):
        return None
    if given in (kinds.TIMESTAMP, kinds.TIMESTAMP_NTZ):
        return found[0] - _MILLI, found[1] + _MILLI
    return _widened(*found) if isinstance(given, Decimals) else found


def _widened(least: Decimal, most: Decimal) -> Bounds | None:
    """Return bounds of decimals that hold for whoever has written them, or None if they say nothing."""
    if max(abs(least), abs(most)) >= _END:
        return None
    return least - abs(least) * _SHARE, most + abs(most) * _SHARE


def _octets(text: str) -> bytes:
    return text.encode()


def _days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - _EPOCH.toordinal()


def _micros(text: str) -> int:
    found = datetime.fromisoformat(text)
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


_READ: Final[Mapping[Type, Callable[[Any], Any]]] = {
    **dict.fromkeys(_WHOLE, int),
    kinds.STRING: _octets,
    kinds.DATE: _days,
    kinds.TIMESTAMP: _micros,
    kinds.TIMESTAMP_NTZ: _micros,
}
