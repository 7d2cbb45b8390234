"""Raw records in blocks: where each was read, and the texts of its key and its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakemirror.driver.columns.masks import Indices, Mask
from lakemirror.driver.columns.payloads import Texts, are_utf8

_TEXTS = ("key", "value")


@dataclass(frozen=True)
class RawRecords:
    """A block of raw records.

    ``columns`` are topic, partition and offset, and as far as they are known timestamp, headers and problem.
    ``are_utf8`` says of which records the key and the value are valid UTF-8, as each ``str`` is. ``nbytes``
    is about how many bytes they take.
    """

    columns: pa.RecordBatch
    keys: Texts
    values: Texts
    are_utf8: Mask
    nbytes: int

    @classmethod
    def of(cls, block: pa.RecordBatch) -> RawRecords:
        """Return the records of a block of Arrow, whose columns ``key`` and ``value`` are BINARY."""
        keys, values = (block.column(name) for name in _TEXTS)
        rest = block.select([name for name in block.schema.names if name not in _TEXTS])
        valid = are_utf8(keys) & are_utf8(values)
        return cls(rest, keys.to_pylist(), values.to_pylist(), valid, block.nbytes)

    @property
    def num_rows(self) -> int:
        return int(self.columns.num_rows)

    def column(self, name: str) -> pa.Array:
        """Return one of the columns."""
        return self.columns.column(name)

    def take(self, numbers: Indices) -> RawRecords:
        """Return some of the records, in the order of their ``numbers``."""
        share = self.nbytes * len(numbers) // max(1, self.num_rows)
        return RawRecords(
            self.columns.take(pa.array(numbers)),
            chosen(self.keys, numbers),
            chosen(self.values, numbers),
            self.are_utf8[numbers],
            share,
        )


def joined(parts: Sequence[RawRecords]) -> RawRecords:
    """Return several blocks, of which there is at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return RawRecords(
        pa.concat_batches([each.columns for each in parts]),
        [text for each in parts for text in each.keys],
        [text for each in parts for text in each.values],
        np.concatenate([each.are_utf8 for each in parts]),
        sum(each.nbytes for each in parts),
    )


def chosen(texts: Texts, numbers: Indices) -> Texts:
    """Return some of the texts."""
    return [texts[i] for i in numbers.tolist()]


def are_none(texts: Texts) -> Mask:
    """Return which texts there are none."""
    if None not in texts:
        return np.zeros(len(texts), np.bool_)
    return np.fromiter((each is None for each in texts), np.bool_, len(texts))


def octets_of(text: bytes | str | None) -> bytes | None:
    """Return a text as the record has it."""
    return text.encode() if isinstance(text, str) else text
