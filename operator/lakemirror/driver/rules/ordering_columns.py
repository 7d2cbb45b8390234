"""The order of changes by columns of their rows (``ordering.by: columns``).

The values take the place of a position. Each takes 20 bytes, which `lakemirror.driver.sequence` documents:
whether it is null, negative or not, and then its 38 decimal digits, two per byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Final

from lakemirror.driver.rules.positions import Epoch, Origin, epoch_at

FRACTION: Final = 9
"""Number of digits after the point of a value, unless it has too many before the point."""

_DIGITS: Final = 38
_WHOLE: Final = _DIGITS - FRACTION
_EXACT: Final = Context(prec=1000, Emax=10_000, Emin=-10_000)
_NULL, _LOWEST, _NEGATIVE, _POSITIVE, _HIGHEST = b"\1", b"\1", b"\2", b"\3", b"\4"
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")


def sequence_of_values(
    values: Sequence[Decimal | int | None], origin: Origin, *, snapshot: bool, epochs: Sequence[Epoch] = ()
) -> bytes:
    """Return the sequence of a change that ``values`` order, the most significant first.

    A null comes before all other values. At equal values, a row of a snapshot comes before changes, and
    changes are in the order of their offsets. Times are seconds since 1970.
    """
    arrival = 0 if origin.offset is None else origin.offset + 1
    return b"".join(
        [
            epoch_at(origin, epochs).to_bytes(2, "big"),
            *map(_bytes_of, values),
            b"\1" if snapshot else b"\2",
            arrival.to_bytes(8, "big"),
        ]
    )


def can_order(value: Decimal | int) -> bool:
    """Return whether a number has a place in this order, exactly.

    It has at most 29 digits before the point; or at most 38, and none after it. (The number of 38 nines below
    zero is left out: its digits would be those of a null.)
    """
    number = Decimal(value)
    if number.copy_abs() < 10**_WHOLE:
        return number == _rounded(number)
    return number == number.to_integral_value(context=_EXACT) and -(10**_DIGITS) + 1 < number < 10**_DIGITS


def _bytes_of(value: Decimal | int | None) -> bytes:
    """Return twenty bytes that compare like the value. Digits after the ninth are cut off."""
    if value is None:
        return _NULL + bytes(19)
    number = Decimal(value)
    size = number.copy_abs()
    if size < 10**_WHOLE:
        below, above = _NEGATIVE, _POSITIVE
        digits = str(int(size.scaleb(FRACTION, context=_EXACT)))
    else:  # beyond all that have digits after the point, at either end
        below, above = _LOWEST, _HIGHEST
        digits = str(int(size))
    digits = digits.rjust(_DIGITS, "0")
    if number < 0:
        return below + bytes.fromhex(digits.translate(_COMPLEMENT))
    return above + bytes.fromhex(digits)


def _rounded(number: Decimal) -> Decimal:
    return number.quantize(Decimal(1).scaleb(-FRACTION), context=_EXACT)
