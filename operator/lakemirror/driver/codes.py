"""Codes that change events and states carry in ``op``.

The first five are Debezium's ("Debezium connector for PostgreSQL", change event values), which all envelopes
are read as, and which mirrors keep in ``__op``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Op(StrEnum):
    """What an event does to its row, or what has become of a key."""

    CREATE = "c"
    UPDATE = "u"
    DELETE = "d"
    READ = "r"
    """The row was read by a snapshot."""
    TRUNCATE = "t"
    """All rows of the table are deleted."""
    PASSED = "p"
    """State of a key that is to be left as it is: a tombstone, or a change of its key, is newer."""
    TRUNCATED = "x"
    """State, without key, of events that a truncate made needless."""


OWN_TOPICS: Final = "__lakemirror."
"""How the topics begin of events that no source has sent."""

WITH_ROW: Final = (Op.CREATE, Op.UPDATE, Op.READ)
"""What leaves a row."""

SOURCE_OPS: Final = (*WITH_ROW, Op.DELETE, Op.TRUNCATE)
"""What an event of a source can have; the others are of states."""
