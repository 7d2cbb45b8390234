"""Where a snapshot stands in the order of changes: plain functions over sequences."""

from __future__ import annotations

from lakemirror.driver.sequence import WIDTH

NOWHERE = bytes(WIDTH)
"""The place of a snapshot of which nothing tells where it stands: its rows fill only keys that are absent and
have no tombstone, and it deletes nothing.
"""


def after(newest: bytes) -> bytes:
    """The place of a snapshot that shows the change at ``newest`` and none that comes later.

    It lies above all changes at that position, for their last part (`lakemirror.driver.sequence`) does not
    count any more, and below each one at a later position, for a snapshot row yields to a change at its own.
    """
    minor = int.from_bytes(newest[12:22], "big") + 1
    return newest[:12] + minor.to_bytes(10, "big") + bytes(4)
