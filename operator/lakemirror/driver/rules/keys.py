"""Keys and rows as text: what tombstones store, and what hashes are made of.

`lakemirror.driver.tables.keys` has the table of the texts of each type. Two keys have the same text exactly
if they are equal, before and after every widening of a key column. Texts that are stored have to stay what
they are: a golden file holds those of each type.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final

from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    MAX_DIGITS,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)
from lakemirror.driver.rules.numbers import spelled
from lakemirror.driver.rules.values import Value

Kinds = Mapping[str, Kind]
_NO_DIGITS: Final = str.maketrans("", "", "-.")
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DIGITS: Final = Context(prec=MAX_DIGITS)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_BIGINT: Final = range(-(2**63), 2**63)
_LOWER_CASE: Final = {f"\\u{code:04x}": f"\\u{code:04X}" for code in range(0x20)}


def can_be_key(kind: Kind) -> bool:
    """Return whether values of a type can identify rows: types that ``=`` compares, not maps or variants."""
    if isinstance(kind, Arrays):
        return can_be_key(kind.item)
    if isinstance(kind, Structs):
        return all(can_be_key(each) for _, each in kind.fields)
    return not isinstance(kind, Maps) and kind != VARIANT


def encode(key: Mapping[str, Value], kinds: Kinds) -> str:
    """Return the canonical text of a key: a JSON array of its parts, in the order of their names.

    Raises TypeError for a type that no key can have (`can_be_key`).
    """
    for name, kind in kinds.items():
        if not can_be_key(kind):
            raise TypeError(f"column {name} of type {kind} cannot be a key")
    return to_json([_part(key.get(name), kinds[name]) for name in sorted(kinds)])


def decode(text: str, kinds: Kinds) -> dict[str, Value]:
    """Return the key that `encode` made a text of. Its types may have been widened since.

    Raises ValueError or ArithmeticError if a value does not fit.
    """
    parts = zip(sorted(kinds), json.loads(text), strict=True)
    return {name: _of_part(part, kinds[name]) for name, part in parts}


def encode_row(row: Mapping[str, Value], kinds: Kinds) -> str:
    """Return a row as JSON, with all that its values are."""
    return to_json({name: texts(row.get(name), kind, exact) for name, kind in kinds.items()})


def decode_row(text: str, kinds: Kinds) -> dict[str, Value]:
    """Return the row that `encode_row` made JSON of; members that it lacks are null.

    Raises TypeError for a VARIANT, of which nobody asks, and as `decode` does.
    """
    found = json.loads(text)
    return {name: value_of(found.get(name), kind) for name, kind in kinds.items()}


def canonical_row(row: Mapping[str, Value], kinds: Kinds) -> str:
    """Return a row as JSON in canonical form: the same for equal rows, whatever was added or widened since.

    Members are in the order of their names, and those that are null are left out.
    """
    members = {name: texts(row.get(name), kinds[name], canonical, in_order=True) for name in sorted(kinds)}
    return to_json(members)


def row_hash(row: Mapping[str, Value], kinds: Kinds) -> str:
    """Return the SHA-256 of a row, or of a key, in canonical form: the columns rowHash and keyHash."""
    return sha256(canonical_row(row, kinds))


def quarantine_id(
    topic: str | None,
    partition: int | None,
    offset: int | None,
    file: str | None,
    row: int | None,
    key: bytes | None,
    value: bytes | None,
) -> str:
    """Return the identity of a record in the quarantine: the hash of its origin, its key and its value.

    A record that arrives again gets no second row.
    """
    place = {"topic": topic, "partition": partition, "offset": offset, "file": file, "row": row}
    body = {"key": None if key is None else sha256(key), "value": None if value is None else sha256(value)}
    return sha256(to_json({**place, **body}))


def sha256(data: str | bytes) -> str:
    """Return the SHA-256 of a text or bytes as 64 hexadecimal digits."""
    return hashlib.sha256(data.encode() if isinstance(data, str) else data).hexdigest()


# -- JSON -------------------------------------------------------------------------------------------------


def to_json(value: Any) -> str:
    """Return JSON as Spark's ``to_json`` writes it: no spaces, and no members that are null."""
    text = json.dumps(_without_nulls(value), ensure_ascii=False, separators=(",", ":"))
    if "\\u00" not in text:
        return text
    parts = text.split("\\\\")  # a backslash that is one itself begins no escape
    for lower, upper in _LOWER_CASE.items():
        parts = [part.replace(lower, upper) for part in parts]
    return "\\\\".join(parts)


def _without_nulls(value: Any) -> Any:
    """Return a value without null members; the elements of arrays stay."""
    if isinstance(value, Mapping):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    return value


# -- values as texts --------------------------------------------------------------------------------------

Leaf = Callable[[Value, Kind], str]


def _part(value: Value, kind: Kind) -> str | None:
    found = texts(value, kind, canonical, in_order=True)
    return to_json(found) if isinstance(found, (list, dict)) else found


def _of_part(text: str | None, kind: Kind) -> Value:
    if text is not None and isinstance(kind, Arrays | Structs):
        return value_of(json.loads(text), kind)
    return value_of(text, kind)


def texts(value: Value, kind: Kind, leaf: Leaf, *, in_order: bool = False) -> Any:
    """Return a value with texts in the place of its parts, and with lists of entries in that of its maps.

    ``in_order`` says whether these are sorted, because the entries of a map have no order of their own.
    """
    if value is None:
        return None
    if isinstance(kind, Arrays):
        return [texts(each, kind.item, leaf, in_order=in_order) for each in value]
    if isinstance(kind, Structs):
        return {name: texts(value.get(name), each, leaf, in_order=in_order) for name, each in kind.fields}
    if isinstance(kind, Maps):
        entries = [
            {
                "k": texts(key, kind.key, leaf, in_order=in_order),
                "v": texts(each, kind.value, leaf, in_order=in_order),
            }
            for key, each in value.items()
        ]
        return sorted(entries, key=lambda entry: str(entry["k"])) if in_order else entries
    return leaf(value, kind)


def canonical(value: Value, kind: Kind) -> str:
    """Return the same text for all equal values, of this type and of those that it may be widened to."""
    if isinstance(kind, Decimals) and kind.scale:
        return exact(value, kind).rstrip("0").rstrip(".")
    if kind in (FLOAT, DOUBLE) and value == value and abs(value) < 2**64:  # not NaN, not infinite
        whole = min(int(value), _BIGINT[-1])  # 2^63 counts as the largest BIGINT, which equals it as a DOUBLE
        if whole in _BIGINT and float(whole) == value:
            return str(whole)
    return exact(value, kind)


def exact(value: Value, kind: Kind) -> str:
    """Return the text of a value, from which the same value can be made."""
    if isinstance(kind, Decimals):
        return f"{Decimal(value):.{kind.scale}f}"
    if kind in (FLOAT, DOUBLE):
        return java_hex(value)
    if kind == BOOLEAN:
        return "true" if value else "false"
    if kind == BINARY:
        return bytes(value).hex().upper()
    if kind == DATE:
        return f"{_day(value)} 00:00:00"
    if kind == TIMESTAMP:
        return str(micros_of(value))
    if isinstance(value, datetime):
        return local_text(value)
    return variant_json(value) if kind == VARIANT else str(value)


def value_of(found: Any, kind: Kind) -> Value:
    """Return the value that `texts` made texts of."""
    if found is None:
        return None
    if isinstance(kind, Arrays):
        return [value_of(each, kind.item) for each in found]
    if isinstance(kind, Structs):
        return {name: value_of(found.get(name), each) for name, each in kind.fields}
    if isinstance(kind, Maps):
        return {value_of(each["k"], kind.key): value_of(each.get("v"), kind.value) for each in found}
    if isinstance(kind, Decimals):
        return Decimal(found).quantize(Decimal((0, (1,), -kind.scale)), context=_DIGITS)
    return _READ[kind](found)


def _instant(text: str) -> datetime:
    return _EPOCH + timedelta(microseconds=int(text))


def _day_of(text: str) -> date:
    return datetime.fromisoformat(text).date()


def _number(text: str) -> float:
    return float.fromhex(text) if "x" in text else float(text)


_READ: Final[Mapping[Kind, Callable[[str], Value]]] = {
    **dict.fromkeys((TINYINT, SMALLINT, INT, BIGINT), int),
    **dict.fromkeys((FLOAT, DOUBLE), _number),
    STRING: str,
    BINARY: bytes.fromhex,
    BOOLEAN: "true".__eq__,
    DATE: _day_of,
    TIMESTAMP: _instant,
    TIMESTAMP_NTZ: datetime.fromisoformat,
}


def variant_json(value: Any) -> str:
    """Return a VARIANT as JSON: members in the order of their names, numbers without needless exponents."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{to_json(name)}:{variant_json(value[name])}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(variant_json, value)) + "]"
    if isinstance(value, Decimal):
        plain = f"{value.normalize(_EXACT) or Decimal():f}"  # zero has no sign
        return plain if len(plain.translate(_NO_DIGITS)) <= MAX_DIGITS else java_text(float(value))
    return to_json(value)


def micros_of(moment: datetime) -> int:
    """Return microseconds since 1970-01-01 UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // timedelta(microseconds=1)


def local_text(moment: datetime) -> str:
    """Return ``2026-01-02 03:04:05.000006``, without trailing zeros in the fraction."""
    text = f"{_day(moment.date())} {moment.hour:02}:{moment.minute:02}:{moment.second:02}"
    return f"{text}.{moment.microsecond:06}".rstrip("0") if moment.microsecond else text


def _day(day: date) -> str:
    return f"{day.year:04}-{day.month:02}-{day.day:02}"


def java_hex(number: float) -> str:
    """Return a number as Java's ``Double.toHexString`` writes it, such as ``0x1.8p0``."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    bits = struct.unpack(">Q", struct.pack(">d", number))[0]
    sign, exponent, fraction = "-" if bits >> 63 else "", bits >> 52 & 0x7FF, bits & (2**52 - 1)
    digits = f"{fraction:013x}".rstrip("0") or "0"
    if exponent == 0:
        return f"{sign}0x0.{digits}p-1022" if fraction else f"{sign}0x0.0p0"
    return f"{sign}0x1.{digits}p{exponent - 1023}"


def java_text(number: float) -> str:
    """Return a DOUBLE as Java writes it, such as ``1.0E10``."""
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return format(Decimal(repr(number)), "f")
    sign, digits, exponent = Decimal(spelled(number)).as_tuple()
    written = "".join(map(str, digits)).rstrip("0")
    power = int(exponent) + len(digits) - 1
    return f"{'-' if sign else ''}{written[0]}.{written[1:] or '0'}E{power}"
