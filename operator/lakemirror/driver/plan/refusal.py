"""The reasons why a table is not mirrored in a batch."""

from __future__ import annotations


class Refused(Exception):
    """A table cannot be mirrored as requested. Its records are held, and the other tables continue."""


class Waiting(Exception):
    """Too little is known about a table yet.

    This is not an error: its records are held until more arrives.
    """
