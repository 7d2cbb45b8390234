"""Texts that stand for bytes, or for numbers as their bytes: how they are written, and whether that is known.

A text such as ``1500`` is a decimal number, and base64 of three bytes; ``deadbeef`` is hexadecimal, and
base64 of six. A text is read in one way only if the manifest says so, if the kind of source has but one, or
if no other way fits (`Writing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DecimalType

from lakemirror.api.tables import TextEncoding
from lakemirror.driver.parse.values import decimals
from lakemirror.driver.parse.values.decimals import NUMBER, SPECIAL
from lakemirror.driver.parse.values.expressions import let
from lakemirror.driver.parse.values.fit import Parts

_CANONICAL: Final = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==)$"
_URL_SAFE: Final = r"^([A-Za-z0-9_-]{4})*([A-Za-z0-9_-]{4}|[A-Za-z0-9_-]{3}=|[A-Za-z0-9_-]{2}==)$"
_HEX: Final = r"^(\\x|0[xX])?([0-9A-Fa-f]{2})*$"
_LOWER_HEX: Final = r"^\\x([0-9A-Fa-f]{2})*$|^([0-9a-f]{2})*$"
_HEX_PREFIX: Final = r"^(\\x|0[xX])"


@dataclass(frozen=True)
class Writing:
    """How records without a schema write what JSON has no form for, as far as the kind of source tells.

    ``encoding`` is what the manifest says of a column; the rest applies if it says nothing. ``decimals`` is
    the encoding of a decimal that is a text: ``text``, ``connect`` (what Kafka Connect's JsonConverter
    writes: base64, or text with Debezium's ``decimal.handling.mode=string``), or None if nothing is known.
    ``base64`` says that bytes are always base64, and ``lower_hex`` that hexadecimal digits are lower case.
    ``seconds`` says that a time may be a number of seconds.
    """

    encoding: TextEncoding | None = None
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


def octets_of(text: Column, encoding: TextEncoding) -> Column:
    r"""Return the bytes that a text stands for (BINARY); null if it is no text of this encoding.

    Base64 may lack its padding and may have line breaks, and hexadecimal digits may begin with ``0x`` or
    ``\x``.
    """
    if encoding == "text":
        return text.cast("binary")
    if encoding == "hex":
        return F.when(text.rlike(_HEX), F.unhex(F.regexp_replace(text, _HEX_PREFIX, "")))
    plain = F.regexp_replace(text, r"[\r\n]", "")
    if encoding == "base64url":
        plain = F.translate(plain, "-_", "+/")
    return let(plain, _of_base64)


def _of_base64(text: Column) -> Column:
    octets, padding = F.try_to_binary(text, F.lit("base64")), F.lit("=")
    return F.when(F.rtrim(F.base64(octets), padding) == F.rtrim(text, padding), octets)


def canonical(text: Column) -> Column:
    """Return the bytes of a text in the one form of base64 that they have (BINARY); null for other text."""
    octets = F.try_to_binary(F.when(text.rlike(_CANONICAL), text), F.lit("base64"))
    return let(octets, lambda each: F.when(F.base64(each) == text, each))


@dataclass(frozen=True)
class DecimalTexts:
    """The texts of a column of type ``kind``, which is a decimal."""

    kind: DecimalType
    writing: Writing

    def parts(self, text: Column) -> Parts:
        """Convert a text. What cannot be a decimal, or may be another one, is a misfit."""
        octets, doubt = self._octets(text), self.doubt(text)
        plain = text.rlike(NUMBER) if self._has_numbers else F.lit(False)
        special = text.rlike(SPECIAL) if self._has_numbers else F.lit(False)
        sure = F.lit(True) if doubt is None else ~doubt
        digits = decimals.of_digits(text, self.kind)
        number, encoded, shown = F.when(plain & sure, digits), F.lit(False), text
        if octets is not None:
            other = F.when(~plain & ~special, octets)
            number = F.coalesce(number, let(other, self._of_octets))
            encoded, shown = F.coalesce(F.length(other) > 0, F.lit(False)), self._shown(other, text)
        readable = ((plain | special) & sure) | encoded
        none = text.isNotNull() & number.isNull()
        return Parts(number, none & readable, shown, none & ~readable)

    def doubt(self, text: Column) -> Column | None:
        """Return whether a text may be base64 while nothing says so (BOOLEAN); None if that is known.

        With Kafka Connect, only a number may be one of two; otherwise any text that base64 may be.
        """
        if self.writing.encoding is not None or self.writing.decimals == "text":
            return None
        may_be = let(canonical(text), lambda each: decimals.fits(each, decimals.MAX_DIGITS))
        asked = text.rlike(NUMBER) if self.writing.decimals == "connect" else ~text.rlike(SPECIAL)
        return F.coalesce(asked & may_be, F.lit(False))

    @property
    def _has_numbers(self) -> bool:
        return self.writing.encoding in (None, "text")

    def _octets(self, text: Column) -> Column | None:
        """Return the bytes of the unscaled value (BINARY). None if no text stands for bytes."""
        encoding = self.writing.encoding
        if encoding is not None:
            return None if encoding == "text" else octets_of(text, encoding)
        return canonical(text) if self.writing.decimals == "connect" else None

    def _of_octets(self, octets: Column) -> Column:
        return decimals.decimal(octets, self.kind.precision, self.kind.scale)

    def _shown(self, octets: Column, text: Column) -> Column:
        return F.coalesce(let(octets, lambda each: decimals.small_text(each, F.lit(self.kind.scale))), text)


@dataclass(frozen=True)
class BinaryTexts:
    """The texts of a column of bytes."""

    writing: Writing

    def parts(self, text: Column) -> Parts:
        """Convert a text. What has no bytes, or may have others, is a misfit."""
        octets, doubt = self._octets(text), self.doubt(text)
        octets = octets if doubt is None else F.when(~doubt, octets)
        return Parts(octets, misfit=text.isNotNull() & octets.isNull())

    def doubt(self, text: Column) -> Column | None:
        """Return whether a text may be hexadecimal as well as base64 (BOOLEAN); None if that is known."""
        if self._encoding is not None:
            return None
        both = self._is_hex(text) & text.rlike(_CANONICAL)
        return F.coalesce(both, F.lit(False))

    def _octets(self, text: Column) -> Column:
        if self._encoding is not None:
            return octets_of(text, self._encoding)
        url_safe = F.when(text.rlike(_URL_SAFE), F.translate(text, "-_", "+/"))
        of_hex = F.when(self._is_hex(text), octets_of(text, "hex"))
        return F.coalesce(of_hex, canonical(text), let(url_safe, canonical))

    @property
    def _encoding(self) -> TextEncoding | None:
        return self.writing.encoding or ("base64" if self.writing.base64 else None)

    def _is_hex(self, text: Column) -> Column:
        return text.rlike(_LOWER_HEX if self.writing.lower_hex else _HEX)
