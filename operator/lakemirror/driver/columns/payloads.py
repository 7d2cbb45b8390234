"""The JSON of keys and values as `msgspec` gets it: without its schema, and within the limits of the rules.

`msgspec` is as strict as the rules, but for three things, which are looked for here: it does not look at the
characters of members that it skips, it lets values nest deeper than the rules do, and it reads numbers of any
length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakemirror.driver.rules.envelopes.records import CHARACTERS, LEVELS, Document
from lakemirror.driver.rules.untyped import loads

Text = bytes | str
Texts = Sequence[Text | None]
"""JSON texts of records, of one type; None where there is none, or where the rules read it.

A ``str`` is valid UTF-8.
"""

_MARK: Final = b',"payload":'
_WRAPPED: Final = b'{"schema":{'
_LONG_NUMBER: Final[Mapping[type, re.Pattern[Any]]] = {
    bytes: re.compile(rb"[0-9]{4001}"),
    str: re.compile("[0-9]{4001}"),
}
"""Python reads no whole number of more than 4,300 digits."""
_OPENING: Final[Mapping[type, tuple[Any, Any]]] = {bytes: (b"{", b"["), str: ("{", "[")}
_CLOSING: Final[Mapping[type, Any]] = {bytes: b"}", str: "}"}


class Payloads:
    """Takes the payload of documents that have a known schema, or none, before it.

    JsonConverter writes the same schema in the same way each time, so that its text is read once.
    """

    def __init__(self, schema: Document | None) -> None:
        self._schema = schema
        self._heads: dict[type, Any] = {}
        """What is before the payload, as octets and as a text."""

    def of(self, texts: Texts) -> Texts:
        """Return the payload of each document; None where the schema is another one, or the limits are."""
        found = texts if self._schema is None else [self._payload(each) for each in texts]
        return _within_limits(found)

    def _payload(self, text: Any) -> Text | None:
        if text is None:
            return None
        kind = type(text)
        head = self._heads.get(kind)
        if head is None or not text.startswith(head):
            head = self._head_of(text)
        return text[len(head) : -1] if head and text.endswith(_CLOSING[kind]) else None

    def _head_of(self, text: Text) -> Text:
        """Return what is before the payload; nothing if that is not the schema.

        What comes before the first ``,"payload":`` is the schema and nothing else, if it is an object of
        nothing else once it is closed.
        """
        octets = text.encode() if isinstance(text, str) else text
        end = octets.find(_MARK) + len(_MARK) if octets.startswith(_WRAPPED) else 0
        if end < len(_MARK):
            return b""
        try:
            head = octets[:end].decode()
            document = loads(head[: -len(_MARK)] + "}")
        except (ValueError, RecursionError):
            return b""
        if document != {"schema": self._schema}:
            return b""
        self._heads = {bytes: octets[:end], str: head}
        found: Text = self._heads[type(text)]
        return found


def _within_limits(texts: Texts) -> Texts:
    kind = next((type(each) for each in texts if each is not None), str)
    longest = max(map(len, filter(None, texts)), default=0)
    if longest <= _FEW:
        return texts
    an_object, a_list = _OPENING[kind]
    opened = [0 if each is None else each.count(an_object) + each.count(a_list) for each in texts]
    if longest <= _SHORT and max(opened) <= _FEW:
        return texts
    return [
        None if each is None or number > _FEW or _has_long_parts(each) else each
        for each, number in zip(texts, opened, strict=True)
    ]


_FEW: Final = LEVELS - 2
_SHORT: Final = 4000


def _has_long_parts(text: Any) -> bool:
    """Return whether a text may have a text or a number that is beyond the limits of the rules."""
    found = _LONG_NUMBER[type(text)].search
    return len(text) > _SHORT and (len(text) > CHARACTERS or found(text) is not None)


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


def decoded(texts: Texts, read: Callable[[Text], Any]) -> list[Any]:
    """Return what is read of each text; None for those that cannot be read."""
    found: list[Any] = []
    rest = iter(texts)
    while True:
        try:
            found.extend(map(read, rest))  # type: ignore[arg-type]
            return found
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            found.append(None)  # what was read before it is there, and the rest begins after it
