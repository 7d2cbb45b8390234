"""The reasons why a table is not mirrored in a batch."""

from __future__ import annotations

from lakemirror.api import Table


class Refused(Exception):
    """A table cannot be mirrored as requested. Its records are held, and the other tables continue."""


class Waiting(Exception):
    """Too little is known about a table yet.

    This is not an error: its records are held until more arrives.
    """


def left_out(settings: Table, column: str = "it") -> str:
    """Return what to do so that a mirror does not have a column.

    ``include`` and ``exclude`` cannot be given together.
    """
    place, columns = f"tables[{settings.source}].columns", settings.columns
    if columns is not None and columns.include is not None:
        return f"take {column} out of {place}.include"
    return f"leave {column} out with {place}.exclude"


def new_mirror(settings: Table) -> str:
    """Return what makes the driver read a table again into a new mirror."""
    return f"tables[{settings.source}].target to a new place with a new resyncToken"
