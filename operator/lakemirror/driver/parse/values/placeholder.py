"""Debezium's placeholder for a value that the source did not send (an unchanged TOAST column)."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from dataclasses import dataclass
from functools import cached_property

from lakemirror.api.source import PLACEHOLDER

DEFAULT = PLACEHOLDER


@dataclass(frozen=True)
class Placeholder:
    """``unavailable.value.placeholder`` in each of the shapes that Debezium gives it."""

    text: str = DEFAULT

    @cached_property
    def octets(self) -> bytes:
        return self.text.encode()

    @cached_property
    def spellings(self) -> tuple[str, ...]:
        """The placeholder as text: itself, its bytes in each ``binary.handling.mode``, and a JSON hstore."""
        shapes = (
            self.text,
            base64.b64encode(self.octets).decode(),
            base64.urlsafe_b64encode(self.octets).decode(),
            self.octets.hex(),
            json.dumps({self.text: self.text}, separators=(",", ":")),
        )
        return tuple(dict.fromkeys(shapes))

    @cached_property
    def codes(self) -> list[int]:
        """The placeholder as an array of integers (or of days): one signed code per byte."""
        return [b - 256 if b > 127 else b for b in self.octets]

    @cached_property
    def uuid(self) -> str:
        """The placeholder as the only element of a UUID array (java.util.UUID.nameUUIDFromBytes)."""
        return str(uuid.UUID(bytes=hashlib.md5(self.octets, usedforsecurity=False).digest(), version=3))
