"""Texts that stand for bytes, or for numbers as their bytes: how they are written, and whether that is known.

A text such as ``1500`` is a decimal number, and base64 of three bytes; ``deadbeef`` is hexadecimal, and
base64 of six. A text is read in one way only if the manifest says so, if the kind of source has but one, or
if no other way fits. Otherwise its record waits until the manifest says how it is meant.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Final, Literal

from lakemirror.driver.rules import numbers
from lakemirror.driver.rules.conversions import MISFIT, Read, decimal_of_text, lost
from lakemirror.driver.rules.kinds import MAX_DIGITS, Decimals

Encoding = Literal["text", "base64", "base64url", "hex"]

_BASE64: Final = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)")
_URL_SAFE: Final = re.compile(r"([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{4}|[A-Za-z0-9_-]{3}=|[A-Za-z0-9_-]{2}==)")
_HEX: Final = re.compile(r"(\\x|0[xX])?([0-9A-Fa-f]{2})*")
_LOWER_HEX: Final = re.compile(r"\\x([0-9A-Fa-f]{2})*|([0-9a-f]{2})*")


@dataclass(frozen=True)
class Writing:
    """How records without a schema write what JSON has no form for, as far as the kind of source tells.

    ``encoding`` is what the manifest says of a column (``tables[].columns.encodings``); the rest applies if
    it says nothing. ``decimals`` is the encoding of a decimal that is a text: ``text``, ``connect`` (what
    Kafka Connect's JsonConverter writes: base64, or text with ``decimal.handling.mode=string``), or None if
    nothing is known. ``base64`` says that bytes are always base64, ``lower_hex`` that hexadecimal digits are
    lower case, ``seconds`` that a time may be a number of seconds.
    """

    encoding: Encoding | None = None
    decimals: Literal["text", "connect"] | None = None
    base64: bool = False
    lower_hex: bool = False
    seconds: bool = True


DEBEZIUM: Final = Writing(decimals="connect", lower_hex=True, seconds=False)
"""Connectors of Debezium: times are numbers of milli-, micro- or nanoseconds."""
MAXWELL: Final = Writing(decimals="text", base64=True)
"""Maxwell's daemon: decimals are JSON numbers, and bytes are base64 (Maxwell, "Data types")."""
UNKNOWN: Final = Writing()
"""Any other producer."""


def octets_of(text: str, encoding: Encoding) -> bytes | None:
    r"""Return the bytes that a text stands for; None if it is no text of this encoding.

    Base64 may lack its padding and may have line breaks, and hexadecimal digits may begin with ``0x`` or
    ``\x``.
    """
    if encoding == "text":
        return text.encode()
    if encoding == "hex":
        return bytes.fromhex(re.sub(r"^(\\x|0[xX])", "", text)) if _HEX.fullmatch(text) else None
    plain = text.replace("\r", "").replace("\n", "")
    if encoding == "base64url":
        plain = plain.replace("-", "+").replace("_", "/")
    bare = plain.rstrip("=")
    try:
        octets = base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
    return octets if base64.b64encode(octets).decode().rstrip("=") == bare else None


def canonical(text: str) -> bytes | None:
    """Return the bytes of a text in the one form of base64 that they have; None for other text."""
    octets = numbers.octets_of_base64(text) if _BASE64.fullmatch(text) else None
    return octets if octets is not None and base64.b64encode(octets).decode() == text else None


def decimal_text(text: str, kind: Decimals, writing: Writing) -> Read:
    """Return the decimal that a text is. What cannot be a decimal, or may be another one, is a misfit."""
    if writing.encoding not in (None, "text"):
        return _of_octets(octets_of(text, writing.encoding), text, kind)
    plain, special = numbers.NUMBER.fullmatch(text) is not None, numbers.SPECIAL.fullmatch(text) is not None
    if _may_be_base64(text, writing, plain=plain, special=special):
        return Read(is_misfit=True, is_doubtful=True)
    if plain or special:
        return decimal_of_text(text, kind)
    is_encoded = writing.encoding is None and writing.decimals == "connect"
    return _of_octets(canonical(text) if is_encoded else None, text, kind)


def _may_be_base64(text: str, writing: Writing, *, plain: bool, special: bool) -> bool:
    """Return whether a text may be base64 while nothing says so.

    With Kafka Connect, only a number may be one of two; otherwise any text that base64 may be.
    """
    if writing.encoding is not None or writing.decimals == "text":
        return False
    octets = canonical(text)
    asked = plain if writing.decimals == "connect" else not special
    return asked and octets is not None and numbers.fits(octets, MAX_DIGITS)


def _of_octets(octets: bytes | None, text: str, kind: Decimals) -> Read:
    if not octets:
        return MISFIT
    found = numbers.decimal(octets, kind.precision, kind.scale)
    if found is not None:
        return Read(found)
    shown = numbers.plain_text(octets, kind.scale) if numbers.fits(octets, MAX_DIGITS) else None
    return lost(shown or text)


def binary_text(text: str, writing: Writing) -> Read:
    """Return the bytes that a text stands for. What has no bytes, or may have others, is a misfit."""
    encoding: Encoding | None = writing.encoding or ("base64" if writing.base64 else None)
    if encoding is not None:
        octets = octets_of(text, encoding)
        return MISFIT if octets is None else Read(octets)
    is_hex = (_LOWER_HEX if writing.lower_hex else _HEX).fullmatch(text) is not None
    if is_hex and _BASE64.fullmatch(text):
        return Read(is_misfit=True, is_doubtful=True)
    octets = octets_of(text, "hex") if is_hex else canonical(text)
    if octets is None and _URL_SAFE.fullmatch(text):
        octets = canonical(text.replace("-", "+").replace("_", "/"))
    return MISFIT if octets is None else Read(octets)
