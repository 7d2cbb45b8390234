"""Truth values of many changes as arrays that can be combined and changed in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


def mask_of(column: Any) -> Mask:
    """Return an Arrow column of BOOLEAN, which has no nulls, as an array that may be changed."""
    found: Mask = column.to_numpy(zero_copy_only=False)
    return found.copy() if not found.flags.writeable else found
