"""Why a table is not mirrored in a batch."""

from __future__ import annotations


class Refused(Exception):
    """A table that cannot be mirrored as it is asked for: its records are held, and the others go on."""


class Waiting(Exception):
    """A table of which too little is known yet. No error: its records are held until more has come."""
