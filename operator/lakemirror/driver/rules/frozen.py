"""Values with named fields that do not change, like a NamedTuple, but much faster to make and to read."""

from __future__ import annotations

from typing import Any, Self

import msgspec


class Frozen(msgspec.Struct, frozen=True, gc=False):
    """A value with named fields. It is part of no cycle, so the garbage collector need not look at it."""

    def _replace(self, **changes: Any) -> Self:
        """Return the same value with other fields, as a NamedTuple does."""
        return msgspec.structs.replace(self, **changes)
