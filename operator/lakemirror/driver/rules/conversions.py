"""A value of one type as a value of another, exactly or not at all.

Numbers must keep their value: one that does not is unrepresentable in a DECIMAL, and otherwise a misfit. If
the types have nothing in common, every value is a misfit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from lakemirror.driver.rules import moments, numbers
from lakemirror.driver.rules.frozen import Frozen
from lakemirror.driver.rules.keys import exact, java_text, local_text
from lakemirror.driver.rules.kinds import (
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    Decimals,
    Kind,
)
from lakemirror.driver.rules.values import Value


class Read(Frozen, frozen=True):
    """What reading a value gave, and what else there is to tell.

    ``is_lost`` says that the source's value is valid, but the type has no equivalent: infinity, a date before
    the year 1, too many digits. ``text`` is then the source's spelling. ``is_misfit`` says that the value is
    not of the type at all, so that its record is bad. ``is_rounded`` says that the value lacks digits below
    the microsecond. ``is_gap`` says that the source did not send the value, ``is_doubtful`` that it is a
    text of which nobody knows how it is encoded.
    """

    value: Value = None
    is_lost: bool = False
    text: str | None = None
    is_misfit: bool = False
    is_rounded: bool = False
    is_gap: bool = False
    is_doubtful: bool = False

    @property
    def is_odd(self) -> bool:
        """Whether there is more to tell than a value."""
        return self._replace(value=None) != _PLAIN


Reader = Callable[[Any], Value | Read]
"""Reads a value that is not null: the value of the mirror, or a `Read` if there is more to tell."""

_PLAIN = Read()
MISFIT = Read(is_misfit=True)
GAP = Read(is_gap=True)


def as_read(found: Value | Read) -> Read:
    """Return what a reader found (`Reader`) with what there is to tell."""
    return found if type(found) is Read else Read(found)


def lost(text: str | None) -> Read:
    """Return the reading of a valid value for which the type has no equivalent."""
    return Read(is_lost=True, text=text)


def or_misfit(value: Value) -> Read:
    """Return the reading of a value that was converted; None if it could not be."""
    return MISFIT if value is None else Read(value)


def convert(value: Value, source: Kind, target: Kind) -> Read:
    """Return a value of type ``source`` as one of type ``target``. Null is null in each type."""
    if value is None or source == target:
        return Read(value)
    if isinstance(value, bool):
        return _of_boolean(value, target)
    if isinstance(value, (int, float, Decimal)):
        return _of_number(value, source, target)
    if isinstance(value, str):
        return _of_text(value, target)
    if isinstance(value, date):
        return _of_day(value, target)
    return MISFIT


def is_number(kind: Kind) -> bool:
    """Return whether a type is one of numbers."""
    return isinstance(kind, Decimals) or kind in (*BITS, FLOAT, DOUBLE)


def _of_boolean(value: bool, target: Kind) -> Read:
    if target == STRING:
        return Read("true" if value else "false")
    return _of_number(int(value), target, target) if is_number(target) else MISFIT


def _of_number(value: int | float | Decimal, source: Kind, target: Kind) -> Read:
    if target == BOOLEAN:
        return Read(value == 1) if isinstance(value, int) and value in (0, 1) else MISFIT
    if isinstance(target, Decimals):
        found = as_decimal(value, target)
        return Read(found) if found is not None else lost(text_of_number(value, source))
    if target in BITS:
        return or_misfit(_as_integer(value, BITS[target]))
    if target in (FLOAT, DOUBLE):
        return or_misfit(_as_float(value, target))
    return MISFIT


def as_decimal(value: int | float | Decimal, kind: Decimals) -> Decimal | None:
    """Return a number as a decimal; None if the type cannot hold it."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return None
        found = numbers.holds(Decimal(repr(value)), kind.precision, kind.scale)
        return found if found is not None and float(found) == value else None
    number = value if isinstance(value, Decimal) else Decimal(value)
    return numbers.holds(number, kind.precision, kind.scale)


def _as_integer(value: int | float | Decimal, bits: int) -> int | None:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    whole = int(value)
    return whole if whole == value and -(1 << (bits - 1)) <= whole < 1 << (bits - 1) else None


def _as_float(value: int | float | Decimal, kind: Kind) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        return None
    if kind == FLOAT:
        number = numbers.single(number)
    if isinstance(value, float):
        return number if number == value or value != value else None
    return number if Decimal(number) == Decimal(value) else None


def text_of_number(value: int | float | Decimal, kind: Kind) -> str:
    """Return the text of a number."""
    if isinstance(kind, Decimals):
        return exact(value, kind)
    return java_text(value) if isinstance(value, float) else str(value)


def _of_text(text: str, target: Kind) -> Read:
    if isinstance(target, Decimals):
        return decimal_of_text(text, target)
    if target == DATE:
        return or_misfit(moments.day_of(text))
    if target in (TIMESTAMP, TIMESTAMP_NTZ):
        found = moments.instant_of(text) if target == TIMESTAMP else moments.local_of(text)
        return MISFIT if found is None else Read(found, is_rounded=moments.is_finer(text))
    if target in (FLOAT, DOUBLE):
        return or_misfit(_float_of_text(text, target))
    if target in BITS:
        return or_misfit(_integer_of_text(text, BITS[target]))
    if target == VARIANT:
        return _variant_of_text(text)
    if target == BOOLEAN:
        known = {"t": True, "true": True, "y": True, "yes": True, "1": True}
        known |= {"f": False, "false": False, "n": False, "no": False, "0": False}
        return or_misfit(known.get(text.strip().lower()))
    return MISFIT


def _variant_of_text(text: str) -> Read:
    """Return the value of a text of JSON.

    A number beyond DOUBLE is a misfit, wherever it stands, and so is an object with a member twice, of which
    a VARIANT would lose one.
    """
    try:
        return Read(_JSON.decode(text))
    except (ValueError, RecursionError):
        return MISFIT


def _integer(digits: str) -> int:
    _number(digits)
    return int(digits)


def _number(digits: str) -> Decimal:
    double = float(digits)
    if math.isinf(double):
        raise ValueError("a number is beyond DOUBLE")
    try:
        return Decimal(digits)
    except InvalidOperation:  # the exponent has too many digits: it is next to zero
        return Decimal(double)


def distinct(members: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """Return an object of JSON. Raises ValueError if it has a member twice."""
    found = dict(members)
    if len(found) < len(members):
        raise ValueError("an object has a member twice")
    return found


def refuse(name: str) -> Value:
    """Raise ValueError: NaN and infinity are no values of JSON."""
    raise ValueError(f"{name} is no value of JSON")


_JSON: Final = json.JSONDecoder(
    parse_float=_number, parse_int=_integer, parse_constant=refuse, object_pairs_hook=distinct
)


def decimal_of_text(text: str, kind: Decimals) -> Read:
    """Return the decimal that a text is. NaN and infinity are lost, other texts are misfits."""
    number = numbers.NUMBER.fullmatch(text) is not None
    found = numbers.of_digits(text, kind.precision, kind.scale) if number else None
    if found is not None:
        return Read(found)
    return lost(text) if number or numbers.SPECIAL.fullmatch(text) else MISFIT


def _float_of_text(text: str, kind: Kind) -> float | None:
    if numbers.SPECIAL.fullmatch(text):
        return {"NaN": float("nan"), "Infinity": float("inf"), "+Infinity": float("inf")}.get(
            text, float("-inf") if text == "-Infinity" else None
        )
    return numbers.float_of(text, kind)


def _integer_of_text(text: str, bits: int) -> int | None:
    try:
        return (
            _as_integer(int(text.strip()), bits) if len(text) < numbers.LONGEST and text.isascii() else None
        )
    except ValueError:
        return None


def _of_day(value: date, target: Kind) -> Read:
    if isinstance(value, datetime):
        return Read(local_text(value)) if target == STRING else MISFIT
    if target == STRING:
        return Read(exact(value, DATE)[:10])
    midnight = datetime.combine(value, time())
    if target == TIMESTAMP_NTZ:
        return Read(midnight)
    return Read(midnight.replace(tzinfo=UTC)) if target == TIMESTAMP else MISFIT
