"""Decimals of any precision, with Spark expressions alone.

Connect's Decimal is the unscaled value as big-endian two's complement bytes. The scale is in the schema, or
next to the value (``VariableScaleDecimal``). Bytes that fit DECIMAL(38) are framed as an Avro value and read
by ``from_avro``, which measured faster than arithmetic on their hex text, and as fast as calling BigInteger
from generated code. Larger values are converted limb by limb, which is slow but exact.
"""

from __future__ import annotations

import json

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DecimalType

from lakemirror.driver import shapes
from lakemirror.driver.parse.values.expressions import div, let

MAX_DIGITS = 38
MAX_SCALE = 20_000
"""The largest scale (of either sign) that is spelled out; PostgreSQL's own limit is 16,383."""
MAX_BYTES = 4096
"""The size of the largest unscaled value that is spelled out: 9,864 digits."""
SPECIAL = r"^(NaN|[-+]?Infinity|(POSITIVE|NEGATIVE)_INFINITY|NOT_A_NUMBER)$"
NUMBER = r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,4})?$"
"""Matches a decimal number. Java's BigDecimal writes small ones with an exponent: 0E-10."""

_LENGTHS = bytes(range(0, 34, 2))  # Avro's zigzag lengths of 0 to 16 bytes


def twos_complement(value: int) -> bytes:
    """Return the shortest big-endian two's complement, as BigInteger.toByteArray writes it."""
    return value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)


def fits(unscaled: Column, precision: int) -> Column:
    """Return whether unscaled bytes have at most ``precision`` digits (at most 38), without decoding them."""
    highest, lowest = twos_complement(10**precision - 1), twos_complement(1 - 10**precision)
    size = F.length(unscaled)
    negative = unscaled >= F.lit(b"\x80")  # bytes compare unsigned
    within = F.when(negative, unscaled >= F.lit(lowest)).otherwise(unscaled <= F.lit(highest))
    return (size < len(highest)) | ((size == len(highest)) & within)


def shortest(unscaled: Column) -> Column:
    """Return two's complement bytes without those that only pad them to a fixed length."""
    digits = F.regexp_replace(F.hex(unscaled), "^(?:(?:00)+(?=[0-7])|(?:FF)+(?=[89A-F]))", "")
    return F.unhex(digits)


def decimal(unscaled: Column, precision: int, scale: int) -> Column:
    """Convert unscaled bytes to DECIMAL(precision, scale); null if they do not fit."""
    size = F.length(unscaled)
    framed = F.concat(F.lit(_LENGTHS).substr(size + 1, F.lit(1)), unscaled)
    schema = {"type": "bytes", "logicalType": "decimal", "precision": MAX_DIGITS, "scale": scale}
    value = from_avro(framed, json.dumps(schema), {"mode": "PERMISSIVE"})
    if precision < MAX_DIGITS:
        value = value.try_cast(DecimalType(precision, scale))
    return F.when((size > 0) & fits(unscaled, precision), value)


def of_digits(text: Column, kind: DecimalType) -> Column:
    """Convert the text of a `NUMBER` to a decimal; null if the type lacks digits for it."""
    mantissa = F.substring_index(F.lower(text), "e", 1)
    exponent = F.coalesce(F.regexp_extract(text, r"[eE][-+]?\d+$", 0), F.lit(""))
    shift = F.when(exponent == "", 0).otherwise(shapes.whole(F.substr(exponent, F.lit(2)), "int"))
    digits = F.translate(mantissa, "-+.", "")
    fraction = F.length(F.regexp_extract(mantissa, r"\.(\d*)", 1))
    zeros = F.length(digits) - F.length(F.rtrim(digits, F.lit("0")))
    exact = ~digits.rlike("[1-9]") | (fraction - zeros - shift <= kind.scale)
    return F.when(exact, shapes.number(text, kind))


def plain_text(unscaled: Column, scale: Column) -> Column:
    """Convert unscaled bytes to exact plain text with ``scale`` fraction digits; null beyond the limits."""
    small = decimal(unscaled, MAX_DIGITS, 0).cast("string")
    text = F.when(fits(unscaled, MAX_DIGITS), small).otherwise(_integer_text(unscaled))
    return _pointed(text, scale)


def small_text(unscaled: Column, scale: Column) -> Column:
    """Like `plain_text`, for at most 38 digits (null beyond); the shortest expression."""
    return _pointed(decimal(unscaled, MAX_DIGITS, 0).cast("string"), scale)


def large_text(unscaled: Column, scale: Column) -> Column:
    """Like `plain_text`, for rare values: slower, but a shorter expression, so that plans stay small."""
    return _pointed(_integer_text(unscaled), scale)


def _pointed(integer: Column, scale: Column) -> Column:
    """Put the decimal point into integer text, ``scale`` digits from the right."""

    def point(text: Column) -> Column:
        digits = F.ltrim(text, F.lit("-"))
        sign = F.when(text.startswith("-"), "-").otherwise("")
        size = F.greatest(F.length(digits), scale + 1)
        padded = F.lpad(digits, size, "0")
        pointed = F.concat(F.left(padded, size - scale), F.lit("."), F.right(padded, scale))
        zeros = F.when(digits == "0", digits).otherwise(F.concat(digits, F.repeat(F.lit("0"), -scale)))
        return F.concat(sign, F.when(scale > 0, pointed).otherwise(zeros))

    return F.when(scale.between(-MAX_SCALE, MAX_SCALE), let(integer, point))


def _integer_text(unscaled: Column) -> Column:
    """Convert two's complement bytes of any length to decimal text: base 2^28 -> base 10^9 -> text."""

    def convert(hexes: Column) -> Column:
        negative = hexes.rlike("^[89A-F]")
        magnitude = F.when(negative, _negated(hexes)).otherwise(hexes)
        limbs = let(F.lpad(magnitude, F.length(hexes) + 7 - F.length(hexes) % 7, "0"), _limbs)
        digits = F.aggregate(limbs, F.array().cast("array<bigint>"), _times_2_28_plus)
        text = F.array_join(F.transform(F.reverse(digits), lambda d: F.lpad(d.cast("string"), 9, "0")), "")
        return F.concat(F.when(negative, "-").otherwise(""), F.regexp_replace(text, "^0+(?=.)", ""))

    return F.when(F.length(unscaled).between(1, MAX_BYTES), let(F.hex(unscaled), convert))


def _limbs(hexes: Column) -> Column:
    starts = F.sequence(F.lit(1), F.length(hexes), F.lit(7))
    return F.transform(starts, lambda i: F.conv(hexes.substr(i, F.lit(7)), 16, 10).cast("bigint"))


def _times_2_28_plus(digits: Column, limb: Column) -> Column:
    """Return ``digits`` (base 10^9, least first) * 2^28 + ``limb``; the last carry is below 2^28."""
    start = F.struct(F.array().cast("array<bigint>").alias("out"), limb.alias("carry"))

    def step(state: Column, digit: Column) -> Column:
        total = digit * (1 << 28) + state["carry"]
        out = F.concat(state["out"], F.array(total % 10**9))
        return F.struct(out.alias("out"), div(total, 10**9).alias("carry"))

    return F.aggregate(digits, start, step, lambda s: F.concat(s["out"], F.array(s["carry"])))


def _negated(hexes: Column) -> Column:
    """Negate two's complement hex text: complement all digits above the last one that is not 0."""
    size = F.length(F.rtrim(hexes, F.lit("0")))
    zeros = F.repeat(F.lit("0"), F.length(hexes) - size)
    above = F.translate(hexes.substr(F.lit(1), size - 1), "0123456789ABCDEF", "FEDCBA9876543210")
    last = F.translate(hexes.substr(size, F.lit(1)), "123456789ABCDEF", "FEDCBA987654321")
    return F.concat(above, last, zeros)
