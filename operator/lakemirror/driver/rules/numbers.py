"""Numbers, exactly or not at all: decimals as bytes and as text, floats, and conversions between types."""

from __future__ import annotations

import binascii
import re
import struct
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from math import isfinite, isinf
from typing import Final

from lakemirror.driver.rules.kinds import DOUBLE, MAX_DIGITS, Kind

MAX_SCALE: Final = 20_000
"""The largest scale (of either sign) that is spelled out; PostgreSQL's own limit is 16,383."""
MAX_BYTES: Final = 4096
"""The size of the largest unscaled value that is spelled out: 9,864 digits."""
LONGEST: Final = 1000
"""The longest text that is read as a decimal."""

NUMBER: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,4})?", re.ASCII)
"""A decimal number. Java's BigDecimal writes small ones with an exponent: 0E-10."""
SPECIAL: Final = re.compile(r"NaN|[-+]?Infinity|(POSITIVE|NEGATIVE)_INFINITY|NOT_A_NUMBER")
_SMALLEST: Final = 2.2250738585072014e-308
"""The smallest number that has all bits of a DOUBLE."""
_NO_DIGITS: Final = str.maketrans("", "", "-.")
_FLOAT: Final = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_EMAX: Final = 999_999
_TRAPS: Final = [Inexact, InvalidOperation]
_EXACT: Final = Context(MAX_SCALE * 2, Emax=_EMAX, Emin=-_EMAX, traps=_TRAPS)


def octets_of_base64(text: str) -> bytes | None:
    """Return the bytes that a text of base64 stands for; None if it is none."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        return None


# -- decimals as bytes ------------------------------------------------------------------------------------


def unscaled(octets: bytes) -> int:
    """Return the number of big-endian two's complement bytes, as BigInteger writes them."""
    return int.from_bytes(octets, "big", signed=True)


def shortest(octets: bytes) -> bytes:
    """Return two's complement bytes without those that only pad them to a fixed length."""
    number = unscaled(octets)
    return (
        number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True) if octets else b""
    )


def fits(octets: bytes, precision: int) -> bool:
    """Return whether unscaled bytes have at most ``precision`` digits. Bytes that pad the number count."""
    most, limit = _size(precision)
    return len(octets) <= most and -limit < unscaled(octets) < limit


@lru_cache(maxsize=256)
def _size(precision: int) -> tuple[int, int]:
    """Return the most bytes of a number of so many digits, and the first number with more digits."""
    limit: int = 10**precision
    return limit.bit_length() // 8 + 1, limit


def decimal(octets: bytes, precision: int, scale: int) -> Decimal | None:
    """Return the number of unscaled bytes; None if it has too many digits, or there are no bytes."""
    most, limit = _size(precision)
    if not 1 <= len(octets) <= most:
        return None
    number = unscaled(octets)
    return Decimal(number).scaleb(-scale, _EXACT) if -limit < number < limit else None


def plain_text(octets: bytes, scale: int) -> str | None:
    """Return exact plain text with ``scale`` digits after the point; None beyond the limits."""
    if not 1 <= len(octets) <= MAX_BYTES or abs(scale) > MAX_SCALE:
        return None
    number = unscaled(octets)
    digits, sign = str_of(abs(number)), "-" if number < 0 else ""
    if scale <= 0:
        return sign + (digits if digits == "0" else digits + "0" * -scale)
    digits = digits.rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}"


def str_of(number: int) -> str:
    """Return the digits of a number of any size; Python refuses those of more than 4,300 digits."""
    if number < 10**4000:
        return str(number)
    head, tail = divmod(number, 10**4000)
    return str_of(head) + str(tail).rjust(4000, "0")


# -- decimals as text -------------------------------------------------------------------------------------


def of_digits(text: str, precision: int, scale: int) -> Decimal | None:
    """Return the decimal of the text of a `NUMBER`; None if the type lacks digits for it."""
    return None if len(text) > LONGEST else holds(Decimal(text), precision, scale)


def is_plain(text: str) -> bool:
    """Return whether a number of JSON is read with all its digits: it has few, and no exponent."""
    return "e" not in text.lower() and len(text.translate(_NO_DIGITS)) <= MAX_DIGITS


def holds(number: Decimal, precision: int, scale: int) -> Decimal | None:
    """Return a number with ``scale`` digits after the point; None if the type cannot hold it exactly.

    Zero has no sign, as in Spark: the text of a key would have it.
    """
    quantum, context = _digits(precision, scale)
    try:
        found = number.quantize(quantum, context=context)
    except (Inexact, InvalidOperation):
        return None
    return found if found else found.copy_abs()


@lru_cache(maxsize=1024)
def _digits(precision: int, scale: int) -> tuple[Decimal, Context]:
    """Return the last digit of a type, and the context in which no number has more digits than the type."""
    return Decimal(1).scaleb(-scale), Context(precision, Emax=_EMAX, Emin=-_EMAX, traps=_TRAPS)


# -- floats -----------------------------------------------------------------------------------------------


def double(number: int | float | Decimal) -> float:
    """Return the nearest number that 64 bits hold."""
    try:
        return float(number)
    except OverflowError:  # of an integer
        return float("inf") if number > 0 else float("-inf")


def single(number: float) -> float:
    """Return the nearest number that 32 bits hold."""
    try:
        return float(struct.unpack(">f", struct.pack(">f", number))[0])
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def float_of(text: str, kind: Kind) -> float | None:
    """Return the float that a decimal number is; None if its digits are not those of a float of the type.

    They are if the float's shortest spelling has them.
    """
    return double_of(text) if kind == DOUBLE else single_of(text)


def double_of(text: str) -> float | None:
    """Return the float of 64 bits that a decimal number is (`float_of`)."""
    try:
        number = float(text)
    except ValueError:
        return None
    if repr(number) == text and abs(number) >= _SMALLEST and isfinite(number):
        return number
    if _FLOAT.fullmatch(text) is None:
        return None
    if len(text) <= 15 and "e" not in text and "E" not in text:
        return number  # up to 15 digits always survive
    if isinf(number):
        return None
    few = len(digits_of(text)) <= 15 and _SMALLEST <= abs(number) <= 1.7976931348623157e308
    return number if few or digits_of(text) == digits_of(spelled(number)) else None


def single_of(text: str) -> float | None:
    """Return the float of 32 bits that a decimal number is (`float_of`). Java writes two digits at least."""
    if _FLOAT.fullmatch(text) is None:
        return None
    number = float(text)
    short = single(number)
    alike = digits_of(text) in (digits_of(shortest_single(short)), digits_of(f"{short:.1e}"))
    return short if alike or (short == number and digits_of(text) == digits_of(repr(number))) else None


def spelled(number: float) -> str:
    """Return the shortest text of a number that 64 bits hold, with two digits at least, as Java does.

    It matters for the smallest numbers only: with one digit, 5e-324 would be the shortest text of 4.9e-324.
    """
    return repr(number) if abs(number) >= _SMALLEST or number == 0 else _of_two_digits(number)


def _of_two_digits(number: float) -> str:
    text = repr(number)
    return f"{number:.1e}" if len(digits_of(text)) == 1 else text


def digits_of(text: str) -> str:
    """Return the significant digits of a number's text."""
    return text.lower().partition("e")[0].translate(str.maketrans("", "", "-+. ")).strip("0")


def shortest_single(number: float) -> str:
    """Return the shortest text of a number that 32 bits hold."""
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if single(float(text)) == number:
            return text
    return repr(number)
