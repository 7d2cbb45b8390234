"""Values of records without a schema (``schemas.enable=false``): the column's type says what they mean.

| type | accepted values |
|---|---|
| integers | a JSON number |
| FLOAT, DOUBLE | a JSON number that equals the shortest spelling of the float; ``"NaN"`` and ``"Infinity"`` |
| BOOLEAN | true, false, 1, 0 |
| DECIMAL(p,s) | a number; text, as number or encoded (`texts`); the pair |
| DATE | days since 1970, ISO text |
| TIMESTAMP, TIMESTAMP_NTZ | ISO text (UTC unless it says otherwise); a number since 1970 |
| BINARY | encoded text (`texts`) |
| STRING | text as is; the pair as decimal text; any other value as JSON |
| VARIANT | any value; text that is JSON is parsed, as a database's JSON comes as text |
| ARRAY, STRUCT, MAP | element by element; a VARIANT in them is the value as it is; keys of a MAP are text |

"The pair" is ``{"scale": s, "value": base64}``, Debezium's VariableScaleDecimal. JSON is read so that a
number with a fraction or an exponent is a Decimal, and that no member of an object is lost (`loads`,
`members`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import msgspec

from lakemirror.driver.rules import moments, numbers
from lakemirror.driver.rules.conversions import (
    GAP,
    MISFIT,
    Read,
    Reader,
    as_decimal,
    as_read,
    convert,
    distinct,
    lost,
    or_misfit,
    refuse,
)
from lakemirror.driver.rules.keys import java_text, to_json
from lakemirror.driver.rules.kinds import (
    BINARY,
    BITS,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    MAX_DIGITS,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.members import Repeated, has_repeated, members_of, object_of
from lakemirror.driver.rules.moments import MICROS, MILLIS
from lakemirror.driver.rules.texts import DEBEZIUM, Writing, binary_text, decimal_text
from lakemirror.driver.rules.types import DEFAULT, Placeholder, has_twice, together
from lakemirror.driver.rules.values import Value

_AFTER_SECONDS: Final = 10**11
"""Numbers from here on (5138 as seconds, 1973 as milliseconds) are in a finer unit."""
_POSITIVE_INFINITY: Final = 9223372036825200000  # PGStatement.DATE_POSITIVE_INFINITY
_NUMBER: Final = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_WHOLE: Final = re.compile(r"-?\d+", re.ASCII)
_ZONELESS: Final = re.compile(r"\d:\d\d:\d\d(\.\d+)?$", re.ASCII)
_FLOATS: Final = {
    "NaN": float("nan"),
    **dict.fromkeys(("Infinity", "+Infinity", "INF", "+INF"), float("inf")),
    **dict.fromkeys(("-Infinity", "-INF"), float("-inf")),
}


class Number(Decimal):
    """A number of JSON with a fraction or an exponent; ``sent`` is its text."""

    __slots__ = ("sent",)

    def __init__(self, text: str) -> None:
        self.sent = text


def loads(text: str) -> Any:
    """Return a JSON document, in which no number has lost a digit and no object a member (`Repeated`).

    Raises ValueError, and RecursionError if it is nested too deeply.
    """
    try:
        document = _FAST.decode(text)
        if _has_all(document, text):
            return document
    except (msgspec.MsgspecError, ValueError, RecursionError, InvalidOperation):
        pass  # a mistake, or half of a surrogate pair, which only the other one reads
    try:
        return _THOROUGH.decode(text)
    except InvalidOperation:
        raise ValueError("the exponent of a number has too many digits") from None


_FAST: Final = msgspec.json.Decoder(float_hook=Number)
_FAST_BACK: Final = msgspec.json.Encoder(enc_hook=lambda number: msgspec.Raw(number.sent))
_THOROUGH: Final = json.JSONDecoder(parse_float=Number, parse_constant=refuse, object_pairs_hook=object_of)
_DISTINCT: Final = json.JSONDecoder(parse_float=Number, parse_constant=refuse, object_pairs_hook=distinct)


def _has_all(document: Any, text: str) -> bool:
    r"""Return whether a document surely has all members of its text, of which the fast decoder drops some.

    Written without spaces, as most are, it is its text again. In other texts, a member that was dropped took
    its quotes with it, and only an escaped one (``\u0022``) adds any.
    """
    if "{" not in text:
        return True
    again = _FAST_BACK.encode(document)
    if again == text.encode():
        return True
    return "\\u0022" not in text and again.count(b'"') == text.count('"')


def dumps(value: Any) -> str:
    """Return a value of `loads` as JSON. A number that is a DOUBLE is written as one: 1.50 is 1.5."""
    if isinstance(value, Number):
        double = numbers.float_of(value.sent, DOUBLE)
        return value.sent if double is None else java_text(double)
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(name)}:{dumps(each)}" for name, each in members_of(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dumps, value)) + "]"
    return to_json(value)


def read(
    value: Any, kind: Kind, writing: Writing = DEBEZIUM, placeholder: Placeholder | None = DEFAULT
) -> Read:
    """Return a JSON value as one of a type. Without a ``placeholder``, no value stands for one not sent."""
    return Read() if value is None else as_read(reader(kind, writing, placeholder)(value))


@lru_cache(maxsize=4096)
def reader(kind: Kind, writing: Writing = DEBEZIUM, placeholder: Placeholder | None = DEFAULT) -> Reader:
    """Return the function that reads the values of a type, except for null."""
    if isinstance(kind, Arrays):
        return lambda value: _array(value, kind, writing, placeholder)
    if isinstance(kind, Structs):
        return lambda value: _struct(value, kind, writing, placeholder)
    if isinstance(kind, Maps):
        return lambda value: _map(value, kind, writing, placeholder)
    if kind in (TIMESTAMP, TIMESTAMP_NTZ):
        zoned = kind == TIMESTAMP
        return lambda value: _timestamp(value, zoned=zoned, seconds=writing.seconds)
    if kind in BITS:
        half = 1 << (BITS[kind] - 1)
        return lambda value: value if type(value) is int and -half <= value < half else MISFIT
    if kind in (FLOAT, DOUBLE):
        of_text = numbers.double_of if kind == DOUBLE else numbers.single_of
        return lambda value: _float(value, of_text)
    if kind in (BOOLEAN, DATE):
        return _boolean if kind == BOOLEAN else lambda value: _date(_as_text(value))
    spellings = frozenset[str]() if placeholder is None else placeholder.spellings
    return _unless_gap(*_readers_of_text(kind, writing), spellings)


def _unless_gap(of_text: Reader | None, of_others: Reader, spellings: frozenset[str]) -> Reader:
    """Return the function for values that PostgreSQL may store out of line. None reads a text as it is."""

    def read_unless_gap(value: Any) -> Value | Read:
        if not isinstance(value, str):
            return of_others(value)
        if value in spellings:
            return GAP
        return value if of_text is None else of_text(value)

    return read_unless_gap


def _readers_of_text(kind: Kind, writing: Writing) -> tuple[Reader | None, Reader]:
    """Return the functions for texts (None: they stay as they are) and for other values."""
    if kind == STRING:
        return None, _text
    if isinstance(kind, Decimals):
        return lambda text: decimal_text(text, kind, writing), lambda value: _decimal(value, kind)
    if kind == BINARY:
        return lambda text: binary_text(text, writing), lambda _: MISFIT
    return _variant_of_text, _variant


def _boolean(value: Any) -> Value | Read:
    if value is True or value is False:
        return value
    known = {"true": True, "1": True, "false": False, "0": False}
    return or_misfit(known.get(_as_text(value)))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _float(value: Any, of_text: Callable[[str], float | None]) -> float | Read:
    if isinstance(value, Number):
        found = of_text(value.sent)
    elif isinstance(value, str):
        found = _FLOATS.get(value)
    elif isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        found = of_text(str(value))
    else:
        found = None
    return MISFIT if found is None else found


def _date(text: str) -> Read:
    if _WHOLE.fullmatch(text):
        days = int(text) if len(text) < 12 else 2**31
        if not -(2**31) <= days < 2**31:
            return MISFIT
        is_day = moments.FIRST_DAY <= days <= moments.LAST_DAY
        return Read(moments.day(days)) if is_day else lost(moments.days_spelled(days))
    if moments.iso_is_outside(text):
        return lost(moments.iso_date_spelled(text))
    return or_misfit(moments.day_of(text))


# -- text, variants and decimals --------------------------------------------------------------------------


def _text(value: Any) -> str:
    pair = _pair(value)
    return dumps(value) if pair is None else pair


def _pair(value: Any) -> str | None:
    """Return the decimal text of ``{"scale": s, "value": base64}``, of up to 38 digits; None for others."""
    if not isinstance(value, dict) or list(value) != ["scale", "value"] or isinstance(value, Repeated):
        return None
    scale, text = value["scale"], value["value"]
    octets = numbers.octets_of_base64(text) if isinstance(text, str) else None
    if type(scale) is not int or not octets or not numbers.fits(octets, MAX_DIGITS):
        return None
    return numbers.plain_text(octets, scale)


def _variant(value: Any) -> Any:
    return MISFIT if has_repeated(value) else value


def _variant_of_text(text: str) -> Any:
    """Return a text as the JSON that it is, or as it is: also if it has an object with a member twice."""
    try:
        return _DISTINCT.decode(text) if "{" in text else loads(text)
    except (ValueError, RecursionError, InvalidOperation):
        return text


def _decimal(value: Any, kind: Decimals) -> Value | Read:
    if isinstance(value, dict):
        return MISFIT if has_repeated(value) else _decimal_of_pair(value, kind)
    if isinstance(value, (bool, list)):
        return MISFIT
    found = as_decimal(value, kind)
    return lost(_as_text(value)) if found is None else found


def _decimal_of_pair(value: Mapping[str, Any], kind: Decimals) -> Read:
    text = _pair({"scale": value.get("scale"), "value": value.get("value")})
    found = None if text is None else as_decimal(Decimal(text), kind)
    return Read(found) if found is not None else lost(dumps(value))


# -- moments ----------------------------------------------------------------------------------------------


def _timestamp(value: Any, *, zoned: bool, seconds: bool) -> Value | Read:
    text = _as_text(value)
    plain = moments.plain_instant(text)
    if plain is not None:
        return plain if zoned else plain.replace(tzinfo=None)
    if _NUMBER.fullmatch(text):
        return _moment_of_number(text, zoned=zoned, seconds=seconds)
    iso = text + "Z" if _ZONELESS.search(text) else text
    if moments.iso_is_outside(iso):
        return lost(
            moments.instant_spelled(iso) if zoned else moments.iso_timestamp_spelled(iso, zoned=False)
        )
    found = moments.instant_of(iso)
    if found is None:
        return MISFIT
    return Read(found if zoned else found.replace(tzinfo=None), is_rounded=moments.is_finer(iso))


def _moment_of_number(text: str, *, zoned: bool, seconds: bool) -> Read:
    number = numbers.of_digits(text.strip(), 38, 9)
    if number is None:
        return MISFIT
    if number < MICROS.bounds[0] or number >= _POSITIVE_INFINITY:
        return lost(moments.timestamp_spelled(int(number), MICROS))
    exact = number * micros_per_unit(number, seconds=seconds)
    micros = math.floor(exact)
    found = moments.moment(micros)
    return Read(found.replace(tzinfo=UTC) if zoned else found, is_rounded=micros != exact)


def micros_per_unit(number: Decimal, *, seconds: bool = True) -> Decimal:
    """Return how many microseconds the unit of a number since 1970 has, by its size.

    It is the coarsest of milli-, micro- and nanoseconds that puts the number into the years 0001 to 9999
    (nanoseconds: only after 1970). With ``seconds``, it is seconds for a number below 10^11.
    """
    if seconds and moments.FIRST_DAY * moments.DAY_SECONDS <= number <= _AFTER_SECONDS - 1:
        return Decimal(1_000_000)
    if MILLIS.bounds[0] <= number <= MILLIS.bounds[1]:
        return Decimal(1000)
    return Decimal(1) if number < MICROS.bounds[1] + 1 else Decimal("0.001")


# -- values made of others --------------------------------------------------------------------------------


_SPELLED: Final = (STRING, BINARY, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ, VARIANT)
"""Types whose values may be texts."""


def _member(value: Any, kind: Kind, writing: Writing, placeholder: Placeholder | None = None) -> Read:
    """Return a value inside another one. A VARIANT there is the value as it is."""
    return as_read(_variant(value)) if kind == VARIANT else read(value, kind, writing, placeholder)


def _array(value: Any, kind: Arrays, writing: Writing, placeholder: Placeholder | None) -> Read:
    if not isinstance(value, list):
        return MISFIT
    if placeholder is not None and _is_gap(value, kind.item, writing, placeholder):
        return GAP
    items = [_member(each, kind.item, writing) for each in value]
    return together(
        items, list, lambda: to_json([None if each is None else _as_text(each) for each in value])
    )


def _is_gap(value: list[Any], kind: Kind, writing: Writing, placeholder: Placeholder) -> bool:
    """Return whether an array of values of a type is the placeholder, or has it as its only element."""
    if kind in BITS:
        return bool(value == placeholder.codes)
    if len(value) != 1 or value[0] is None:
        return False
    if isinstance(kind, Arrays | Structs | Maps):
        return read(value[0], kind, writing, placeholder).is_gap
    is_spelled = kind in _SPELLED or isinstance(kind, Decimals)
    return is_spelled and isinstance(value[0], str) and value[0] in placeholder.spellings


def _struct(value: Any, kind: Structs, writing: Writing, placeholder: Placeholder | None) -> Read:
    names = [name for name, _ in kind.fields]
    if not isinstance(value, dict):
        return MISFIT
    if any(each is not None and name not in names for name, each in value.items()):
        return MISFIT  # a member that the column has no place for
    items = [_member(value.get(name), each, writing, placeholder) for name, each in kind.fields]
    if any(each.is_gap for each in items):
        return Read(is_gap=True)
    return together(items, lambda values: dict(zip(names, values, strict=True)), lambda: dumps(value))


def _map(value: Any, kind: Maps, writing: Writing, placeholder: Placeholder | None) -> Read:
    if not isinstance(value, dict):
        return MISFIT
    if placeholder is not None and placeholder.text in value:
        return GAP
    keys = [_map_key(key, kind.key, writing) for key, _ in members_of(value)]
    names = [each.value for each in keys]
    if any(each.value is None or each.is_rounded for each in keys) or has_twice(names):
        return MISFIT
    items = [_member(each, kind.value, writing) for _, each in members_of(value)]
    return together(items, lambda values: dict(zip(names, values, strict=True)), lambda: dumps(value))


def _map_key(key: str, kind: Kind, writing: Writing) -> Read:
    """Return the key of a map, which JSON always has as text. A decimal is the number as it reads."""
    if kind == STRING:
        return Read(key)
    if isinstance(kind, Decimals):
        return decimal_text(key, kind, replace(writing, decimals="text"))
    if kind in (BINARY, BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return read(key, kind, writing, None)
    return convert(key, STRING, kind)
