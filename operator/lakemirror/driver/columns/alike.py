"""Which values of two columns are the same (`rules.values.is_same`): also NaN and NaN, 0.0 and -0.0."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakemirror.driver.columns.changes import alike


def are_alike(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return where two columns of one type and length have the same values. Null is the same as null."""
    if pa.types.is_nested(one.type):
        found = [
            alike(mine) == alike(theirs)
            for mine, theirs in zip(one.to_pylist(), other.to_pylist(), strict=True)
        ]
        return np.array(found, np.bool_)
    same = pc.equal(one, other).fill_null(False)
    same = pc.or_(same, pc.and_(one.is_null(), other.is_null()))
    if pa.types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)).fill_null(False))
    mask: npt.NDArray[np.bool_] = same.to_numpy(zero_copy_only=False)
    return mask
