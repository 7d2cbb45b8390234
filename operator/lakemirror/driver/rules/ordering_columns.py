"""The order of changes by columns of their rows (``ordering.by: columns``).

The values take the place of a position. They are numbers, dates or times, and are compared as such: dates
and times are seconds since 1970. The schema says what a value is; without a schema, its JSON does
(docs/ordering.md). Each value takes 20 bytes, which `lakemirror.driver.sequence` documents: whether it is
null, negative or not, and then its 38 decimal digits, two per byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from lakemirror.driver.codes import Op
from lakemirror.driver.rules import moments, numbers
from lakemirror.driver.rules.envelopes.records import Change, Truncate
from lakemirror.driver.rules.keys import java_text, micros_of
from lakemirror.driver.rules.kinds import DOUBLE, STRING
from lakemirror.driver.rules.positions import Epoch, Origin, epoch_at
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.schemas import Field
from lakemirror.driver.rules.types import DEFAULT
from lakemirror.driver.rules.untyped import Number, dumps
from lakemirror.driver.rules.values import Value

FRACTION: Final = 9
"""Number of digits after the point of a value, unless it has too many before the point."""
NO_TYPES: Final = "the embedded schema cannot be read, so that nothing tells the types of its columns"
"""Why a change whose schema cannot be read has no place."""

_DIGITS: Final = 38
_WHOLE: Final = _DIGITS - FRACTION
_EXACT: Final = Context(prec=1000, Emax=10_000, Emin=-10_000)
_NULL, _LOWEST, _NEGATIVE, _POSITIVE, _HIGHEST = b"\1", b"\1", b"\2", b"\3", b"\4"
_COMPLEMENT: Final = str.maketrans("0123456789", "9876543210")
_PLAIN: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?", re.ASCII)
_FULL: Final = "in PostgreSQL set REPLICA IDENTITY FULL on the table"


# -- the place of a change --------------------------------------------------------------------------------


def in_order(
    change: Change | Truncate,
    origin: Origin,
    names: Sequence[str],
    fields: Mapping[str, Field],
    *,
    epochs: Sequence[Epoch] = (),
    texts: bool = True,
) -> Change | str:
    """Return a change at its place in the order of the columns ``names``, or why it has none.

    ``fields`` are the columns that its schema declares, by name (by path in custom records); there are none
    without a schema. ``texts`` says that digits in a text without a schema are a number: Debezium's could be
    a decimal in base64.
    """
    because = f"ordering.columns ({', '.join(names)})"
    if isinstance(change, Truncate):
        return (
            f"a truncate has no row, so that {because} cannot order it. The mirror keeps its rows: to begin "
            "anew, give the table a new target and a new resyncToken once the source has no older records of "
            "it any more"
        )
    deletes, is_path = change.op == Op.DELETE, change.ordered_by is not None
    shown = change.ordered_by if is_path else change.before if deletes else change.row
    found = []
    for name in names:
        if name not in (shown or {}):
            lacks = f"has no {name}, by which {because} orders it"
            of_delete = f"a delete whose before image {lacks}: {_FULL}"
            return of_delete if deletes and not is_path else f"the record {lacks}"
        value = _place_of((shown or {})[name], fields.get(name), texts=texts)
        if value.is_odd:
            return f"{name} of {because} is neither a number nor a time: {value.shown[:50]}"
        found.append(value)
    if deletes and not change.full_before and _are_made_up(names, found, change):
        return f"a delete whose before image may lack {because}: {_FULL}"
    values = [each.number for each in found]
    seq = sequence_of_values(values, origin, snapshot=change.op == Op.READ, epochs=epochs)
    return change._replace(seq=seq, unanchored=False)


class _Place(NamedTuple):
    """A value that orders a change: its ``number``, None for null. ``is_odd`` says that it has no order.

    ``is_empty`` says that it could stand for a value that was not sent.
    """

    number: Decimal | None = None
    is_odd: bool = False
    is_empty: bool = False
    shown: str = ""


def _place_of(value: Any, field: Field | None, *, texts: bool) -> _Place:
    """Return the place of a value of a record in the order."""
    if value is None:
        return _Place(is_empty=True)
    number = _typed(value, field) if field is not None else _untyped(value, texts=texts)
    default = None if field is None or field.default is None else _typed(field.default, field)
    return _Place(number, number is None, number is None or number in (0, default), _text_of(value))


def _are_made_up(names: Sequence[str], found: Sequence[_Place], change: Change) -> bool:
    """Return whether all values could stand for such as PostgreSQL did not send; those of the key do."""
    key = change.key or {}
    return all(name in key or each.is_empty for name, each in zip(names, found, strict=True))


def _untyped(value: Any, *, texts: bool) -> Decimal | None:
    """Return the number that a value without a schema is, or the seconds since 1970 of a moment."""
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)):
        return None
    text, is_number = _text_of(value), not isinstance(value, str) and _is_exact(value)
    if is_number:
        return _of_number(text)
    return None if _PLAIN.fullmatch(text) and not texts else _of_text(text)


def _typed(value: Any, field: Field) -> Decimal | None:
    """Return the same of a value whose schema tells what it is."""
    column = Column.of(field)
    read = column.read(value, DEFAULT)
    found: Value = read.value
    if read.is_gap or read.is_lost or read.is_misfit or isinstance(found, bool):
        return None
    if column.kind == STRING:
        return _of_text(found)
    if isinstance(found, float):
        return _rounded_or_none(Decimal(repr(found))) if found - found == 0 else None
    if isinstance(found, (int, Decimal)):
        return _of_number(format(Decimal(found), "f"))
    if isinstance(found, datetime):
        return Decimal(micros_of(found)).scaleb(-6)
    return Decimal((found - date(1970, 1, 1)).days * 86400) if isinstance(found, date) else None


def _is_exact(number: int | Decimal) -> bool:
    """Return whether a number of JSON is one of a type. Otherwise it is a text."""
    text = _sent(number)
    return numbers.is_plain(text) or numbers.float_of(text, DOUBLE) is not None


def _sent(number: int | Decimal) -> str:
    return number.sent if isinstance(number, Number) else str(number)


def _text_of(value: Any) -> str:
    """Return the text of a value. A number with an exponent, or many digits, is a DOUBLE if it is one."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, Decimal)):
        return dumps(value)
    text = _sent(value)
    double = None if numbers.is_plain(text) else numbers.float_of(text, DOUBLE)
    return text if double is None else java_text(double)


def _of_text(text: str) -> Decimal | None:
    if _PLAIN.fullmatch(text):
        return _of_number(text)
    moment = moments.instant_of(text) if _MOMENT.fullmatch(text) else None
    return None if moment is None else Decimal(micros_of(moment)).scaleb(-6)


def _of_number(text: str) -> Decimal | None:
    """Return a number as it is compared: rounded to nine digits after the point, or whole; None if neither.

    A number that has more digits before the point than others has none after it.
    """
    if len(text) > numbers.LONGEST or not numbers.NUMBER.fullmatch(text):
        return None
    number = Decimal(text)
    rounded = _rounded_or_none(number)
    if rounded is not None:
        return rounded
    return number if number.copy_abs() >= 10**_WHOLE and can_order(number) else None


def _rounded_or_none(number: Decimal) -> Decimal | None:
    """Return a number with nine digits after the point; None if it has too many before the point."""
    try:
        found = number.quantize(Decimal(1).scaleb(-FRACTION), rounding=ROUND_HALF_UP, context=_EXACT)
    except InvalidOperation:
        return None
    return found if found.copy_abs() < 10**_WHOLE else None


# -- its sequence -----------------------------------------------------------------------------------------


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
