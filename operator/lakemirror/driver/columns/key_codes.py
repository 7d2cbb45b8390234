"""Numbers that stand for keys: the same number for equal keys, also across blocks, rows and tombstones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.masks import Mask

Codes = npt.NDArray[np.int64]


def key_codes(parts: Sequence[Sequence[pa.Array]]) -> tuple[list[Codes], int]:
    """Return for each part the code of each of its keys, and how many codes there are.

    A part has an array for each column of the key. NaN is the same as NaN, and 0.0 as -0.0.
    """
    codes: Codes | None = None
    size = 1
    for columns in zip(*parts, strict=True):
        more, number = _codes(pa.chunked_array(list(columns)).combine_chunks())
        if codes is None:
            codes, size = more, number
        else:  # both are below the number of keys, so that their product fits
            _, codes = np.unique(codes * max(number, 1) + more, return_inverse=True)
            size = int(codes.max()) + 1 if len(codes) else 0
    assert codes is not None
    ends = np.cumsum([len(each[0]) for each in parts])
    return [each.astype(np.int64) for each in np.split(codes, ends[:-1])], size


def ends_of_runs(codes: Codes) -> Mask:
    """Return where the next code is another one, or there is none."""
    found = np.ones(len(codes), np.bool_)
    found[:-1] = codes[1:] != codes[:-1]
    return found


def _codes(column: pa.Array) -> tuple[Codes, int]:
    """Return the codes of one column; null has one of its own."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    encoded = without_signs(column).dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def without_signs(column: pa.Array) -> pa.Array:
    """Return a column of a key in which the same values are equal: floating-point numbers as their 64 bits.

    Zero and NaN have no signs there, and NaN equals NaN. Other columns stay as they are.
    """
    if not pa.types.is_floating(column.type):
        return column
    numbers = pc.if_else(pc.is_nan(column), float("nan"), pc.add(column, 0.0))  # -0.0 + 0.0 is 0.0
    return numbers.cast(pa.float64()).view(pa.int64())
