"""Codes that change events and states carry in ``op``.

The first five are Debezium's ("Debezium connector for PostgreSQL", change event values). All envelopes are
mapped to them, and mirrors store them in ``__op``.
"""

from __future__ import annotations

from typing import Final


class Op:
    """What an event does to its row, or the state of a key."""

    CREATE: Final = "c"
    UPDATE: Final = "u"
    DELETE: Final = "d"
    READ: Final = "r"
    """The row was read by a snapshot."""
    TRUNCATE: Final = "t"
    """All rows of the table are deleted."""
    PASSED: Final = "p"
    """State of a key that stays unchanged because a tombstone, or a change of its key, is newer."""
    TRUNCATED: Final = "x"
    """State, without a key, of events that a truncate made irrelevant."""


OWN_TOPICS: Final = "__lakemirror."
"""Prefix of the topics of events that no source sent."""

RELOAD_TOPIC: Final = f"{OWN_TOPICS}reload"
"""The topic in the origin of rows that a reload wrote.

The partition there is one plus that of the row's change before the reload, and 0 if that does not matter.
"""

WITH_ROW: Final = (Op.CREATE, Op.UPDATE, Op.READ)
"""Ops that leave a row."""

SOURCE_OPS: Final = (*WITH_ROW, Op.DELETE, Op.TRUNCATE)
"""Ops that a source's event can have; the others belong to states."""
