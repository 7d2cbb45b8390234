"""The place of a snapshot in the order of changes: pure functions on sequences."""

from __future__ import annotations

from lakemirror.driver.sequence import WIDTH

NOWHERE = bytes(WIDTH)
"""The place of a snapshot whose place is unknown.

Its rows fill only keys that are absent and have no tombstone, and it deletes nothing.
"""


def after(newest: bytes) -> bytes:
    """Return the place of a snapshot that shows the change at ``newest`` and none that comes later.

    It is above all changes at that position, because the tie of their sequences
    (`lakemirror.driver.sequence`) no longer counts. It is below every change at a later position, because a
    snapshot row yields to a change at its own position.
    """
    minor = int.from_bytes(newest[12:22], "big") + 1
    return newest[:12] + minor.to_bytes(10, "big") + bytes(4)
