"""The JSON of keys and values as `msgspec` gets it: without its schema, and within the limits of the rules.

`msgspec` is as strict as the rules, but for three things, which are looked for here: it does not look at the
characters of members that it skips, it lets values nest deeper than the rules do, and it reads numbers of any
length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemirror.driver.rules.envelopes.records import CHARACTERS, LEVELS, Document
from lakemirror.driver.rules.untyped import loads

_MARK: Final = b',"payload":'
_WRAPPED: Final = b'{"schema":{'
_LONG_NUMBER: Final = re.compile(rb"\d{4001}")
"""Python reads no whole number of more than 4,300 digits."""

Texts = list[bytes | None]
"""JSON texts of records, None for those that the rules read."""


class Payloads:
    """Takes the payload of documents that have a known schema, or none, before it.

    JsonConverter writes the same schema in the same way each time, so that its text is read once.
    """

    def __init__(self, schema: Document | None) -> None:
        self._schema = schema
        self._head = b""

    def of(self, texts: Sequence[bytes | None]) -> Texts:
        """Return the payload of each document; None where the schema is another one, or the limits are."""
        found = list(texts) if self._schema is None else [self._payload(each) for each in texts]
        return _within_limits(found)

    def _payload(self, text: bytes | None) -> bytes | None:
        if text is None:
            return None
        head = self._head
        if not (head and text.startswith(head)):
            head = self._head_of(text)
        return text[len(head) : -1] if head and text.endswith(b"}") else None

    def _head_of(self, text: bytes) -> bytes:
        """Return what is before the payload; nothing if that is not the schema.

        What comes before the first ``,"payload":`` is the schema and nothing else, if it is an object of
        nothing else once it is closed.
        """
        end = text.find(_MARK) + len(_MARK) if text.startswith(_WRAPPED) else 0
        if end < len(_MARK):
            return b""
        try:
            document = loads(text[: end - len(_MARK)].decode() + "}")
        except (ValueError, RecursionError):
            return b""
        if document != {"schema": self._schema}:
            return b""
        self._head = text[:end]
        return self._head


def _within_limits(texts: Texts) -> Texts:
    there = [each for each in texts if each is not None]
    longest = max(map(len, there), default=0)
    if longest <= _FEW or (longest <= _SHORT and _are_shallow(there)):
        return texts
    return [None if each is None or _exceeds(each) else each for each in texts]


_FEW: Final = LEVELS - 2
_SHORT: Final = 4000


def _are_shallow(texts: Sequence[bytes]) -> bool:
    """Return whether a few texts together have no more objects and lists than one may have."""
    few = (b"".join(texts[begin : begin + _TOGETHER]) for begin in range(0, len(texts), _TOGETHER))
    octets = (np.frombuffer(each, np.uint8) for each in few)
    return all(np.count_nonzero((each | _ONE_BIT) == _OPENING) <= _FEW for each in octets)


_TOGETHER: Final = 16
_OPENING, _ONE_BIT = np.uint8(ord("{")), np.uint8(ord("{") ^ ord("["))
"""Only these two characters are the first, once they have the bit in which they differ."""


def _exceeds(text: bytes) -> bool:
    """Return whether a text may be beyond the limits of the rules."""
    if text.count(b"{") + text.count(b"[") > _FEW:
        return True
    return len(text) > _SHORT and (len(text) > CHARACTERS or _LONG_NUMBER.search(text) is not None)


def are_utf8(texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Return which texts are valid UTF-8; null is."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.fromiter((_is_utf8(each) for each in texts.to_pylist()), np.bool_, len(texts))
    return np.ones(len(texts), np.bool_)


def _is_utf8(text: bytes | None) -> bool:
    try:
        (text or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def decoded(texts: Texts, read: Callable[[bytes], Any]) -> list[Any]:
    """Return what is read of each text; None for those that cannot be read."""
    found: list[Any] = []
    rest = iter(texts)
    while True:
        try:
            found.extend(map(read, rest))  # type: ignore[arg-type]
            return found
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            found.append(None)  # what was read before it is there, and the rest begins after it
