"""The keys of a bucket, as something that finds them in columns. Nothing is read or written here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.key_codes import without_signs
from lakemirror.driver.columns.masks import Indices, Mask

Words = npt.NDArray[np.uint64]

_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""Multiplication by it spreads whole numbers over the highest bits (Knuth, TAOCP 6.4)."""
_LEAST_BITS, _MOST_BITS = 12, 22
_MOST_SORTED: Final = 10_000
"""Of more distinct values, only the least and the greatest are compared with the bounds of a file."""


class KeySearch:
    """Finds rows by their keys, in columns in which they are stored.

    NaN is the same as NaN, 0.0 as -0.0, and null as null, as in `columns.key_codes`.
    """

    def __init__(self, keys: Mapping[str, pa.Array]) -> None:
        """``keys`` has the columns of the key, in their order; keys may be repeated."""
        self.names: Final = tuple(keys)
        self._columns: Final = [_Distinct.of(each) for each in keys.values()]
        self._prefixes: Final = self._combined(list(keys.values()))

    def _combined(self, keys: Sequence[pa.Array]) -> list[pa.Array]:
        """Return for each column but the first the distinct pairs: of what is before it, and of its value."""
        found: list[pa.Array] = []
        before: Indices | None = None
        for distinct, values in zip(self._columns, keys, strict=True):
            codes = pc.index_in(without_signs(values), value_set=distinct.values).to_numpy().astype(np.int64)
            if before is not None:  # both are below the number of keys, so that the product fits
                pairs = pa.array(before * len(distinct.values) + codes)
                found.append(pairs.unique())
                codes = pc.index_in(pairs, value_set=found[-1]).to_numpy().astype(np.int64)
            before = codes
        return found

    def find(self, columns: Sequence[pa.Array]) -> Indices:
        """Return the indexes of the rows that have one of the keys, in their order."""
        rows, codes = self._columns[0].find(columns[0])
        for distinct, pairs, column in zip(self._columns[1:], self._prefixes, columns[1:], strict=True):
            at, mine = distinct.find(column.take(pa.array(rows)))
            codes = codes[at] * len(distinct.values) + mine
            among = pc.index_in(pa.array(codes), value_set=pairs)
            there = among.is_valid().to_numpy(zero_copy_only=False)
            rows, codes = rows[at][there], among.drop_null().to_numpy().astype(np.int64)
        return rows

    def may_be_within(self, name: str, least: Any, greatest: Any) -> bool:
        """Return whether a column of a key may have a value between two, as `comparable` gives them."""
        return self._columns[self.names.index(name)].may_be_within(least, greatest)

    def has_null(self, name: str) -> bool:
        """Return whether a key has null in a column."""
        return bool(self._columns[self.names.index(name)].values.null_count)


def comparable(values: pa.Array) -> Any | None:
    """Return values as an array of numbers or bytes in their order, or None for a type that has no bounds."""
    kind = values.type
    if pa.types.is_integer(kind):
        return values.cast(pa.int64()).to_numpy()
    if pa.types.is_date32(kind):
        return values.view(pa.int32()).to_numpy()
    if pa.types.is_timestamp(kind):
        return values.view(pa.int64()).to_numpy()
    if pa.types.is_string(kind):
        return np.array([*values.cast(pa.binary()).to_pylist(), None], object)[:-1]
    if pa.types.is_decimal(kind):
        return np.array([*values.to_pylist(), None], object)[:-1]
    return None


@dataclass(frozen=True)
class _Distinct:
    """The distinct values of a column of the keys."""

    values: pa.Array

    @classmethod
    def of(cls, given: pa.Array) -> _Distinct:
        return cls(without_signs(given).unique())

    def find(self, column: pa.Array) -> tuple[Indices, Indices]:
        """Return the indexes of the rows that have one of the values, and the number of the value of each."""
        column = without_signs(column)
        rows = self._likely(column)
        if rows is not None:
            column = column.take(pa.array(rows))
        there, codes = self._exactly(column)
        return there if rows is None else rows[there], codes

    def _exactly(self, column: pa.Array) -> tuple[Indices, Indices]:
        if len(column) < len(self.values) and not column.null_count and self._ordered is not None:
            words, order = self._ordered
            mine = _words(column)
            assert mine is not None
            at = np.minimum(np.searchsorted(words, mine), len(words) - 1)
            there = np.flatnonzero(words[at] == mine)
            return there, order[at[there]]
        found = pc.index_in(column, value_set=self.values)
        there = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
        return there, found.drop_null().to_numpy().astype(np.int64)

    @cached_property
    def _ordered(self) -> tuple[Words, Indices] | None:
        """The words of the values in their order, and their numbers; None if others have the same words."""
        words = (
            None if pa.types.is_decimal(self.values.type) or self.values.null_count else _words(self.values)
        )
        if words is None:
            return None
        order = np.argsort(words)
        return words[order], order

    def _likely(self, column: pa.Array) -> Indices | None:
        """Return all rows that have one of the values, and few others; None if that cannot be said."""
        words = _words(column)
        if words is None:
            return None
        table, shift = self._table
        likely: Mask = table[(words * _FACTOR) >> shift]
        if column.null_count and self.values.null_count:
            likely |= column.is_null().to_numpy(zero_copy_only=False)
        return np.flatnonzero(likely)

    @cached_property
    def _table(self) -> tuple[Mask, np.uint64]:
        """The highest bits of the products of the values, as a mask, and how far they are shifted."""
        bits = min(max(len(self.values).bit_length() + 6, _LEAST_BITS), _MOST_BITS)
        words, shift = _words(self.values), np.uint64(64 - bits)
        assert words is not None
        table = np.zeros(1 << bits, np.bool_)
        table[(words * _FACTOR) >> shift] = True
        return table, shift

    @cached_property
    def _sorted(self) -> Any | None:
        """The values in their order as `comparable` gives them; of many, the least and the greatest."""
        values = self.values.drop_null()
        if self._are_many:
            extremes = pc.min_max(values)
            values = pa.array([extremes["min"].as_py(), extremes["max"].as_py()], values.type)
        found = comparable(values)
        return None if found is None else np.sort(found)

    @property
    def _are_many(self) -> bool:
        """Whether sorting the values would take long: numbers are sorted fast."""
        is_number = pa.types.is_primitive(self.values.type)
        return len(self.values) > _MOST_SORTED and not is_number and comparable(self.values[:0]) is not None

    def may_be_within(self, least: Any, greatest: Any) -> bool:
        values = self._sorted
        if values is None:
            return True
        if self._are_many:
            return bool(values[0] <= greatest and values[-1] >= least)
        at = bisect_left(values, least)
        return at < len(values) and bool(values[at] <= greatest)


def _words(values: pa.Array) -> Words | None:
    """Return whole numbers of 64 bits that are equal where values are, or None for a type that has none."""
    kind = values.type
    if pa.types.is_decimal128(kind):
        buffer = values.buffers()[1]
        pairs = np.frombuffer(buffer, np.uint64, 2 * len(values), 16 * values.offset)
        return pairs[::2]
    if pa.types.is_date32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_integer(kind):
        return None
    if values.null_count:
        values = values.fill_null(0)
    found: Words = values.cast(pa.int64()).to_numpy().view(np.uint64)
    return found
