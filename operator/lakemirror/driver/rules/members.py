"""Objects of JSON that have a member twice.

JSON allows them, and names no meaning (RFC 8259, section 4). Where an object is an envelope, a row or a
STRUCT, the last one of such members counts. A text keeps them all, and a MAP or a VARIANT has no place for
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


class Repeated(dict[str, Any]):
    """An object that has a member twice: a mapping with the last of each. ``members`` are all of them."""

    def __init__(self, members: Sequence[tuple[str, Any]]) -> None:
        super().__init__(members)
        self.members = tuple(members)


def object_of(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object that has these members."""
    found = dict(members)
    return found if len(found) == len(members) else Repeated(members)


def members_of(value: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Return all members of an object, in their order."""
    return value.members if isinstance(value, Repeated) else value.items()


def has_repeated(value: Any) -> bool:
    """Return whether a value of JSON is, or has within it, an object that has a member twice."""
    if isinstance(value, dict):
        return isinstance(value, Repeated) or any(map(has_repeated, value.values()))
    return isinstance(value, list) and any(map(has_repeated, value))
