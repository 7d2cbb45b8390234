"""Sequences and origins of many changes, as arrays that compare."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.masks import Indices, Mask
from lakemirror.driver.rules.positions import WIDTH

_TIE: int = 22


@dataclass(frozen=True)
class Sequences:
    """Where changes, rows or tombstones stand, and where they were read. -1 is no partition, or no offset.

    ``values`` compare like the sequences: they have one width, so that zeros at their ends do not count.
    A row whose sequence has another width has one of zeros here.
    """

    values: npt.NDArray[np.bytes_]
    topics: pa.Array
    partitions: Indices
    offsets: Indices

    @classmethod
    def of(cls, changes: pa.RecordBatch) -> Sequences:
        """Return the sequences of changes."""
        parts = (changes.column(name) for name in ("__topic", "__partition", "__offset"))
        return cls(values_of(changes.column("__seq")), *_origin(*parts))

    @classmethod
    def of_stored(cls, found: pa.RecordBatch) -> Sequences:
        """Return the sequences of stored rows, or of tombstones."""
        parts = found.column("__origin").flatten()
        return cls(values_of(found.column("__seq")), *_origin(*parts))

    def take(self, numbers: Indices) -> Sequences:
        """Return some of them."""
        topics = self.topics.take(pa.array(numbers))
        return Sequences(self.values[numbers], topics, self.partitions[numbers], self.offsets[numbers])

    def octets(self, number: int) -> bytes:
        """Return a sequence with all of its bytes."""
        return whole(self.values[number])

    def origins_of(self, numbers: Indices) -> Any:
        """Return where changes were read, as numbers that are equal where the places are."""
        topics = self._topic_codes[numbers]
        return np.rec.fromarrays([topics, self.partitions[numbers], self.offsets[numbers]])

    @property
    def is_snapshot(self) -> Mask:
        """Which are sequences of rows of a snapshot (`rules.positions.is_snapshot`)."""
        octets = np.ascontiguousarray(self.values).view(np.uint8).reshape(-1, WIDTH)
        found: Mask = np.logical_not(octets[:, _TIE:].any(axis=1))
        return found

    @cached_property
    def may_repeat(self) -> bool:
        """Whether two may be equal."""
        return not self._is_ascending

    @cached_property
    def _is_ascending(self) -> bool:
        return bool((self.values[1:] > self.values[:-1]).all())

    @cached_property
    def _topic_codes(self) -> Indices:
        """The topics as numbers in the order of their names; none comes first."""
        encoded = self.topics.fill_null("").dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        ranks = pc.rank(encoded.dictionary).to_numpy()
        codes: Indices = ranks[encoded.indices.to_numpy()].astype(np.int64)
        return codes

    def order(self, codes: Indices) -> Indices:
        """Return the changes of each key in their order, key by key.

        It is that of their sequences, and at one place that of their arrival (`rules.values.Event.arrival`).
        """
        if self._is_ascending:
            return np.argsort(codes, kind="stable")
        octets = np.ascontiguousarray(self.values).view(np.uint8).reshape(-1, WIDTH)
        padded = np.zeros((len(octets), 32), np.uint8)
        padded[:, :WIDTH] = octets
        words = padded.view(">u8").astype(np.uint64)
        keys = [self.offsets, self.partitions, self._topic_codes, *(words[:, i] for i in (3, 2, 1, 0)), codes]
        varying = [each for each in keys if len(each) and each.min() != each.max()]
        return np.lexsort(varying) if varying else np.arange(len(codes))


def whole(value: np.bytes_ | bytes) -> bytes:
    """Return a sequence with the zeros at its end, which numpy leaves out."""
    return bytes(value).ljust(WIDTH, b"\0")


def follow(mine: Sequences, theirs: Sequences) -> Mask:
    """Return which of the first came after those of the second in the same partition (`Origin.follows`)."""
    same = pc.equal(mine.topics, theirs.topics).fill_null(False).to_numpy(zero_copy_only=False)
    here = (mine.partitions == theirs.partitions) & (mine.partitions >= 0)
    after = (mine.offsets > theirs.offsets) & (theirs.offsets >= 0)
    found: Mask = same & here & after
    return found


def values_of(column: pa.Array) -> npt.NDArray[np.bytes_]:
    """Return sequences as an array in which they compare (see `Sequences.values`)."""
    if not len(column):
        return np.zeros(0, f"S{WIDTH}")
    if not pa.types.is_fixed_size_binary(column.type):
        fits = pc.equal(pc.binary_length(column), WIDTH).fill_null(False)
        column = pc.if_else(fits, column, bytes(WIDTH)).cast(pa.binary(WIDTH))
    found: npt.NDArray[np.bytes_] = np.frombuffer(
        column.buffers()[1], f"S{WIDTH}", len(column), column.offset * WIDTH
    )
    return found


def _origin(topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> tuple[pa.Array, Indices, Indices]:
    numbers = [each.cast(pa.int64()).fill_null(-1).to_numpy() for each in (partitions, offsets)]
    return topics, numbers[0], numbers[1]
