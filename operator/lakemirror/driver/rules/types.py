"""Values of records with a schema: a field and its value on the wire, and the value of the mirror.

A field's semantic name and physical type tell what its values mean. The names are from Debezium's
documentation ("Data type mappings" of each connector) and Kafka Connect's ``org.apache.kafka.connect.data``.
An unknown name falls back to the physical type. On the wire, a value is what JSON has: bytes are base64.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, Final

from lakemirror.driver.rules import moments, numbers
from lakemirror.driver.rules.conversions import GAP, MISFIT, Read, Reader, as_read, convert, lost, or_misfit
from lakemirror.driver.rules.keys import java_text, to_json
from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BITS,
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
    Arrays,
    Decimals,
    Kind,
    Maps,
    Plain,
    Structs,
)
from lakemirror.driver.rules.members import members_of, object_of
from lakemirror.driver.rules.moments import MICROS, MILLIS, NANOS, Unit
from lakemirror.driver.rules.schemas import PADDED, Field, SchemaError
from lakemirror.driver.rules.values import Value, is_same

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's placeholder for a value that the source did not send, by default."""

_ANY_LENGTH: Final = 2**31 - 1
"""The length that Debezium gives PostgreSQL's bit varying."""

MOST_BITS: Final = 1_000_000
"""The largest number of bits in a value. A text has a character for each of them."""


@dataclass(frozen=True)
class Placeholder:
    """``unavailable.value.placeholder`` in each of the shapes that Debezium gives it."""

    text: str = UNAVAILABLE

    @cached_property
    def octets(self) -> bytes:
        return self.text.encode()

    @cached_property
    def spellings(self) -> frozenset[str]:
        """The placeholder as text: itself, its bytes in each ``binary.handling.mode``, and a JSON hstore."""
        return frozenset(
            (
                self.text,
                base64.b64encode(self.octets).decode(),
                base64.urlsafe_b64encode(self.octets).decode(),
                self.octets.hex(),
                json.dumps({self.text: self.text}, separators=(",", ":")),
            )
        )

    @cached_property
    def codes(self) -> list[int]:
        """The placeholder as an array of integers (or of days): one signed code per byte."""
        return [each - 256 if each > 127 else each for each in self.octets]

    @cached_property
    def uuid(self) -> str:
        """The placeholder as the only element of an array of UUIDs (java.util.UUID.nameUUIDFromBytes)."""
        digest = hashlib.md5(self.octets, usedforsecurity=False).digest()
        return str(uuid.UUID(bytes=digest, version=3))


DEFAULT: Final = Placeholder()


def kind_of(field: Field) -> Kind:
    """Return the type that a mirror's column gets for a field."""
    return codec_of(field).kind


def read(
    value: Any, field: Field, kind: Kind | None = None, placeholder: Placeholder | None = DEFAULT
) -> Read:
    """Return the value of the mirror for a value on the wire.

    ``kind`` is the type of the mirror's column, by default the one closest to the source's (`kind_of`).
    Without a ``placeholder``, no value stands for one that was not sent.
    """
    return read_by(codec_of(field), value, kind, placeholder)


def read_by(
    codec: Codec, value: Any, kind: Kind | None = None, placeholder: Placeholder | None = DEFAULT
) -> Read:
    """Return the value of the mirror for a value on the wire, given the codec of its field (`codec_of`)."""
    return Read() if value is None else as_read(reader(codec, kind or codec.kind, placeholder)(value))


def reader(codec: Codec, kind: Kind, placeholder: Placeholder | None = DEFAULT) -> Reader:
    """Return the function that reads the values of a field, except for null."""
    as_it_is = kind == codec.kind
    keeps, shown = type(codec).read is Codec.read and as_it_is, placeholder if codec.may_be_gap else None
    if keeps and shown is None:
        return codec.wire
    if keeps and isinstance(codec, Text) and placeholder is not None:
        return _text_reader(placeholder.spellings)
    read = codec.read if as_it_is else partial(codec.read_as, kind=kind)
    to_wire, is_placeholder = codec.wire, codec.is_placeholder

    def read_one(value: Any) -> Value | Read:
        wire = to_wire(value)
        if wire is MISFIT:
            return MISFIT
        if shown is not None and is_placeholder(wire, shown):
            return GAP
        return read(wire)

    return read_one


def _text_reader(placeholders: frozenset[str]) -> Reader:
    """Return the function that reads most columns: text of any length."""

    def read_text(value: Any) -> Value | Read:
        text = value if isinstance(value, str) else json_of(value)
        return GAP if text in placeholders else text

    return read_text


# -- codecs -----------------------------------------------------------------------------------------------


class Codec:
    """How the values of one field are read.

    ``kind`` is the type closest to the source's. ``may_be_gap`` says that the source may leave a value out:
    Debezium then sends a placeholder.
    """

    kind: Kind
    may_be_gap: bool = False

    def wire(self, value: Any) -> Any:
        """Return a JSON value as one of the physical type; `MISFIT` if it is none."""
        return value

    def read(self, value: Any) -> Value | Read:
        """Return the value of type ``kind`` for a value of the physical type, as a `Reader` does."""
        return value

    def text(self, value: Any) -> str | None:
        """Return a value as text, spelled as in the source; None if no text says what it is."""
        return str(value)

    def read_as(self, value: Any, kind: Kind) -> Read:
        """Return the value of another type: of the one that the column had before, or that is declared."""
        if kind == self.kind:
            return as_read(self.read(value))
        if kind == STRING:
            return or_misfit(self.text(value))
        found = as_read(self.read(value))
        if found.is_lost or found.is_misfit:
            return found
        fitted = convert(found.value, self.kind, kind)
        text = self.text(value) if fitted.is_lost else None
        return fitted._replace(text=text, is_rounded=found.is_rounded or fitted.is_rounded)

    def is_gap(self, value: Any, placeholder: Placeholder) -> bool:
        """Return whether a value stands for one that the source did not send."""
        return self.may_be_gap and self.is_placeholder(value, placeholder)

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        """Return whether a value is the placeholder, if there may be one."""
        return False


class Integer(Codec):
    """A whole number of so many bits."""

    def __init__(self, kind: Plain) -> None:
        self.kind = kind
        self._least, self._most = -(1 << (BITS[kind] - 1)), (1 << (BITS[kind] - 1)) - 1

    def wire(self, value: Any) -> Any:
        if type(value) is int and self._least <= value <= self._most:
            return value
        return MISFIT


class Float(Codec):
    """A number that is not exact. JSON spells what it has no number for as text."""

    _TEXTS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

    def __init__(self, kind: Plain) -> None:
        self.kind, self._is_single = kind, kind == FLOAT

    def wire(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._TEXTS.get(value, MISFIT)
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            return MISFIT
        return numbers.single(numbers.double(value)) if self._is_single else numbers.double(value)

    def text(self, value: Any) -> str | None:
        return numbers.shortest_single(value) if self._is_single else java_text(value)


class Boolean(Codec):
    kind = BOOLEAN

    def wire(self, value: Any) -> Any:
        return value if isinstance(value, bool) else MISFIT

    def text(self, value: Any) -> str | None:
        return "true" if value else "false"


class Text(Codec):
    """Text. If it ``may_be_left_out``, it has any length, so that PostgreSQL may store it out of line."""

    kind = STRING

    def __init__(self, *, may_be_left_out: bool = True) -> None:
        self.may_be_gap = may_be_left_out

    def wire(self, value: Any) -> Any:
        return value if isinstance(value, str) else json_of(value)

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        return value in placeholder.spellings


class Octets(Codec):
    """Bytes."""

    kind: Kind = BINARY
    may_be_gap = True

    def wire(self, value: Any) -> Any:
        if isinstance(value, bytes):
            return value
        found = numbers.octets_of_base64(value) if isinstance(value, str) else None
        return MISFIT if found is None else found

    def text(self, value: Any) -> str | None:
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return None  # any text would be other bytes

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        return bool(value == placeholder.octets)


class DecimalOctets(Octets):
    """Connect's Decimal of up to 38 digits.

    ``bounded`` means that the schema limits the source's values to so many digits, so that a value with more
    is not one of the source's. Otherwise the digits are only what a mirror can hold. ``padded`` means that
    values have a fixed length.
    """

    may_be_gap = False

    def __init__(self, kind: Decimals, *, bounded: bool, padded: bool) -> None:
        self.kind: Decimals = kind
        self._bounded, self._padded = bounded, padded

    def read(self, value: Any) -> Value | Read:
        octets = numbers.shortest(value) if self._padded else value
        found = numbers.decimal(octets, self.kind.precision, self.kind.scale)
        if found is not None:
            return found
        text = None if self._bounded else numbers.plain_text(octets, self.kind.scale)
        return MISFIT if text is None else lost(text)

    def text(self, value: Any) -> str | None:
        return numbers.plain_text(value, self.kind.scale)


class DecimalText(Octets):
    """Connect's Decimal with a scale that no type has (negative, or above 38), as plain text."""

    kind = STRING
    may_be_gap = False

    def __init__(self, scale: int) -> None:
        self._scale = scale

    def read(self, value: Any) -> Value | Read:
        text = self.text(value)
        return MISFIT if text is None else text

    def text(self, value: Any) -> str | None:
        return numbers.plain_text(value, self._scale)


class VariableScale(Codec):
    """``io.debezium.data.VariableScaleDecimal``, as plain text that is exact to the last digit."""

    kind = STRING
    may_be_gap = True

    def wire(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return MISFIT
        scale, octets = value.get("scale"), value.get("value")
        found = numbers.octets_of_base64(octets) if isinstance(octets, str) else octets
        return (scale, found) if type(scale) is int and isinstance(found, bytes) else MISFIT

    def read(self, value: Any) -> Value | Read:
        text = self.text(value)
        return MISFIT if text is None else text

    def text(self, value: Any) -> str | None:
        return numbers.plain_text(value[1], value[0])

    def read_as(self, value: Any, kind: Kind) -> Read:
        found = as_read(self.read(value))
        if kind == STRING or found.is_misfit:
            return found
        fitted = convert(found.value, STRING, kind)
        return fitted._replace(text=found.value if fitted.is_lost else None)

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        return bool(value[1] == placeholder.octets)


class Days(Integer):
    """A date as days since 1970."""

    def __init__(self) -> None:
        super().__init__(INT)
        self.kind = DATE

    def read(self, value: Any) -> Value | Read:
        if not moments.FIRST_DAY <= value <= moments.LAST_DAY:
            return lost(moments.days_spelled(value))
        return moments.day(value)

    def text(self, value: Any) -> str | None:
        return moments.days_spelled(value)


class IsoDate(Text):
    """A date in the form ``2026-02-28Z``."""

    kind = DATE

    def __init__(self) -> None:
        super().__init__(may_be_left_out=False)

    def read(self, value: Any) -> Value | Read:
        if moments.iso_is_outside(value):
            return lost(self.text(value))
        found = moments.day_of(value)
        return MISFIT if found is None else found

    def text(self, value: Any) -> str | None:
        return moments.iso_date_spelled(value)


class Clock(Integer):
    """A time as a number since midnight, kept as text because MySQL's may be negative or beyond 24 h."""

    def __init__(self, unit: Unit, wire: Plain) -> None:
        super().__init__(wire)
        self.kind, self._unit = STRING, unit

    def read(self, value: Any) -> Value | Read:
        return self.text(value)

    def text(self, value: Any) -> str | None:
        return moments.clock(value, self._unit)


class IsoTime(Text):
    """A time in the form ``13:14:15.123Z``."""

    def __init__(self) -> None:
        super().__init__(may_be_left_out=False)

    def read(self, value: Any) -> Value | Read:
        return self.text(value)

    def text(self, value: Any) -> str | None:
        return moments.clock_of_iso(value)


class Timestamp(Integer):
    """A timestamp without a time zone, as a number since 1970."""

    def __init__(self, unit: Unit) -> None:
        super().__init__(BIGINT)
        self.kind, self._unit = TIMESTAMP_NTZ, unit

    def read(self, value: Any) -> Value | Read:
        if moments.is_outside(value, self._unit):
            return lost(self.text(value))
        finer = self._unit == NANOS and value % 1000 != 0
        return Read(moments.moment(self._unit.micros(value)), is_rounded=finer)

    def read_as(self, value: Any, kind: Kind) -> Read:
        if kind != TIMESTAMP:
            return super().read_as(value, kind)
        found = as_read(self.read(value))
        return found if found.value is None else found._replace(value=_in_utc(found.value))

    def text(self, value: Any) -> str | None:
        return moments.timestamp_spelled(value, self._unit)


def _in_utc(moment: Value) -> Value:
    return moment.replace(tzinfo=UTC)


class IsoTimestamp(Text):
    """A timestamp as ISO text in UTC: a local one, or an instant (``zoned``)."""

    def __init__(self, *, zoned: bool) -> None:
        super().__init__(may_be_left_out=False)
        self.kind, self._zoned = (TIMESTAMP if zoned else TIMESTAMP_NTZ), zoned

    def read(self, value: Any) -> Value | Read:
        return self._moment(value, zoned=self._zoned)

    def read_as(self, value: Any, kind: Kind) -> Read:
        if kind in (TIMESTAMP, TIMESTAMP_NTZ):
            return as_read(self._moment(value, zoned=kind == TIMESTAMP))
        return super().read_as(value, kind)

    def _moment(self, value: str, *, zoned: bool) -> Value | Read:
        plain = moments.plain_instant(value)
        if plain is not None:
            return plain if zoned else plain.replace(tzinfo=None)
        if moments.iso_is_outside(value):
            return lost(self.text(value))
        found = moments.instant_of(value)
        if found is None:
            return MISFIT
        finer = moments.is_finer(value)
        return Read(found if zoned else found.replace(tzinfo=None), is_rounded=finer)

    def text(self, value: Any) -> str | None:
        return (
            moments.instant_spelled(value)
            if self._zoned
            else moments.iso_timestamp_spelled(value, zoned=False)
        )


class NanoDuration(Integer):
    """A duration in nanoseconds, kept as microseconds."""

    def __init__(self) -> None:
        super().__init__(BIGINT)

    def read(self, value: Any) -> Value | Read:
        return Read(value // 1000, is_rounded=value % 1000 != 0)

    def text(self, value: Any) -> str | None:
        whole, rest = divmod(abs(value), 1000)
        digits = f"{rest:03}".rstrip("0")
        return ("-" if value < 0 else "") + str(whole) + (f".{digits}" if digits else "")


class Bits(Octets):
    """Bits as little-endian bytes, kept as text of 0 and 1 of the column's length (None: whole bytes).

    A value that has more bits than its column, or than `MOST_BITS`, is none of the column.
    """

    kind = STRING

    def __init__(self, length: int | None) -> None:
        self._length = length

    def read(self, value: Any) -> Value | Read:
        text = self.text(value)
        return MISFIT if text is None else text

    def text(self, value: Any) -> str | None:
        if len(value) > MOST_BITS // 8:
            return None
        bits = "".join(f"{each:08b}" for each in reversed(value))
        if self._length is None:
            return bits
        bits = bits.lstrip("0")
        return None if len(bits) > self._length else bits.rjust(self._length, "0")


class Array(Codec):
    """An array; an unrepresentable element is null in it, and makes the whole value unrepresentable."""

    may_be_gap = True

    def __init__(self, item: Codec, *, uuids: bool = False) -> None:
        self._item, self._uuids = item, uuids
        self.kind = Arrays(item.kind)

    def wire(self, value: Any) -> Any:
        if not isinstance(value, list):
            return MISFIT
        items = [None if each is None else self._item.wire(each) for each in value]
        return MISFIT if any(each is MISFIT for each in items) else items

    def read(self, value: Any) -> Value | Read:
        return self._of(value, self._item.kind)

    def read_as(self, value: Any, kind: Kind) -> Read:
        return self._of(value, kind.item) if isinstance(kind, Arrays) else super().read_as(value, kind)

    def _of(self, value: list[Any], kind: Kind) -> Read:
        return together(
            [Read() if each is None else self._item.read_as(each, kind) for each in value],
            lambda items: items,
            lambda: self.text(value),
        )

    def text(self, value: Any) -> str | None:
        texts = [None if each is None else self._item.text(each) for each in value]
        return to_json(texts) if texts.count(None) == value.count(None) else None

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        if isinstance(self._item, Integer):
            return bool(value == placeholder.codes)
        if len(value) != 1 or value[0] is None:
            return False
        if self._uuids:
            return bool(value[0] == placeholder.uuid)
        if isinstance(self._item, Text):  # also a text that is not valid for the elements, such as times
            return value[0] in placeholder.spellings
        return self._item.is_gap(value[0], placeholder)


def together(
    items: list[Read], whole: Callable[[list[Value]], Value], text: Callable[[], str | None]
) -> Read:
    """Return the reading of a value made of others: what is wrong with one of them is wrong with all."""
    is_lost = any(each.is_lost for each in items)
    return Read(
        whole([each.value for each in items]),
        is_lost,
        text() if is_lost else None,
        any(each.is_misfit for each in items),
        any(each.is_rounded for each in items),
        is_doubtful=any(each.is_doubtful for each in items),
    )


class Struct(Codec):
    """A struct (points, geometries, vectors); if a field is unrepresentable, the whole value is."""

    may_be_gap = True

    def __init__(self, members: Mapping[str, Codec]) -> None:
        self._members = members
        self.kind = Structs(tuple((name, each.kind) for name, each in members.items()))

    def wire(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return MISFIT
        found = {
            name: None if value.get(name) is None else codec.wire(value[name])
            for name, codec in self._members.items()
        }
        return MISFIT if any(each is MISFIT for each in found.values()) else found

    def read(self, value: Any) -> Value | Read:
        return self.read_as(value, self.kind)

    def read_as(self, value: Any, kind: Kind) -> Read:
        if not isinstance(kind, Structs):
            return super().read_as(value, kind)
        names = [name for name, _ in kind.fields]
        items = [self._member(value.get(name), name, each) for name, each in kind.fields]
        return together(items, lambda values: dict(zip(names, values, strict=True)), lambda: self.text(value))

    def _member(self, value: Any, name: str, kind: Kind) -> Read:
        return (
            Read() if value is None or name not in self._members else self._members[name].read_as(value, kind)
        )

    def text(self, value: Any) -> str | None:
        known = {name: codec for name, codec in self._members.items() if value.get(name) is not None}
        texts = {name: codec.text(value[name]) for name, codec in known.items()}
        return None if None in texts.values() else to_json(texts)

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        return any(
            value.get(name) is not None and codec.is_gap(value[name], placeholder)
            for name, codec in self._members.items()
        )


class Map(Codec):
    """A map; in JSON it is an object if its keys are text, otherwise an array of pairs.

    Keys must differ once they are converted, and none may lose anything.
    """

    may_be_gap = True

    def __init__(self, key: Codec, item: Codec, *, of_text: bool = True) -> None:
        self._key, self._item, self._of_text = key, item, of_text
        self.kind = Maps(key.kind, item.kind)

    def wire(self, value: Any) -> Any:
        pairs = self._pairs(value)
        if pairs is None:
            return MISFIT
        found = [
            [self._key.wire(key), None if item is None else self._item.wire(item)] for key, item in pairs
        ]
        if any(key is MISFIT or item is MISFIT for key, item in found):
            return MISFIT
        return object_of([(key, item) for key, item in found]) if self._of_text else found

    def _entries(self, value: Any) -> list[tuple[Any, Any]]:
        """Return the keys and items of a value of the physical type."""
        return list(members_of(value)) if self._of_text else [(key, item) for key, item in value]

    def _pairs(self, value: Any) -> list[tuple[Any, Any]] | None:
        if self._of_text:
            return list(members_of(value)) if isinstance(value, dict) else None
        if not isinstance(value, list) or any(not isinstance(each, list) or len(each) != 2 for each in value):
            return None
        return [(key, item) for key, item in value]

    def read(self, value: Any) -> Value | Read:
        return self.read_as(value, self.kind)

    def read_as(self, value: Any, kind: Kind) -> Read:
        if not isinstance(kind, Maps):
            return super().read_as(value, kind)
        entries = self._entries(value)
        keys = [self._key.read_as(key, kind.key) for key, _ in entries]
        names = [each.value for each in keys]
        if any(each.value is None or each.is_rounded for each in keys) or has_twice(names):
            return MISFIT
        items = [Read() if item is None else self._item.read_as(item, kind.value) for _, item in entries]
        return together(items, lambda values: dict(zip(names, values, strict=True)), lambda: self.text(value))

    def text(self, value: Any) -> str | None:
        return json_of(value)

    def is_placeholder(self, value: Any, placeholder: Placeholder) -> bool:
        return self._of_text and placeholder.text in value


def has_twice(values: list[Value]) -> bool:
    """Return whether a value is there twice."""
    return any(is_same(one, other) for i, one in enumerate(values) for other in values[:i])


def json_of(value: Any) -> str:
    """Return a value of JSON that stands where a text should, as JSON; numbers as DOUBLE writes them.

    It may have values of physical types in it.
    """
    if isinstance(value, (float, Decimal)):
        text = java_text(float(value))
        return to_json(text) if isinstance(value, float) and not math.isfinite(value) else text
    if isinstance(value, bytes):
        return to_json(base64.b64encode(value).decode())
    if isinstance(value, tuple):  # of `VariableScale`
        return json_of({"scale": value[0], "value": value[1]})
    if isinstance(value, dict):
        return "{" + ",".join(f"{to_json(name)}:{json_of(each)}" for name, each in members_of(value)) + "}"
    return "[" + ",".join(map(json_of, value)) + "]" if isinstance(value, list) else to_json(value)


# -- the codec of a field ---------------------------------------------------------------------------------


def codec_of(field: Field) -> Codec:
    """Return the codec of a field. Raises SchemaError."""
    make = _SEMANTIC.get((field.physical, field.semantic or ""))
    return make(field) if make is not None else _PHYSICAL[field.physical](field)


def is_known(field: Field) -> bool:
    """Return whether this version knows the field's semantic name, if it has one."""
    name = field.semantic
    as_they_are = field.physical in ("struct", "array") and (name or "").startswith(_AS_THEY_ARE)
    return not name or (field.physical, name) in _SEMANTIC or as_they_are


_AS_THEY_ARE: Final = (
    "io.debezium.data.geometry.",
    "io.debezium.data.DoubleVector",
    "io.debezium.data.FloatVector",
    "io.debezium.data.SparseDoubleVector",
)


def _decimal(field: Field) -> Codec:
    scale = field.parameter("scale", 0)
    if not -numbers.MAX_SCALE <= scale <= numbers.MAX_SCALE:
        raise SchemaError(f"column {field.name!r}: its scale is beyond {numbers.MAX_SCALE:,} digits")
    precision = field.parameter("connect.decimal.precision", 0)
    if not 0 <= scale <= MAX_DIGITS:
        return DecimalText(scale)
    padded = PADDED in field.parameters
    if 0 < precision <= MAX_DIGITS:
        return DecimalOctets(Decimals(max(precision, scale), scale), bounded=True, padded=padded)
    return DecimalOctets(Decimals(MAX_DIGITS, scale), bounded=False, padded=padded)


def _bits(field: Field) -> Codec:
    length = field.parameter("length", _ANY_LENGTH)
    if length != _ANY_LENGTH and not 0 <= length <= MOST_BITS:
        raise SchemaError(f"column {field.name!r}: its length is not one of 0 to {MOST_BITS:,} bits")
    return Bits(None if length == _ANY_LENGTH else length)


def _array(field: Field) -> Codec:
    if field.items is None:
        raise SchemaError(f"column {field.name!r}: the schema of an array has no items")
    return Array(codec_of(field.items), uuids=field.items.semantic == "io.debezium.data.Uuid")


def _map(field: Field) -> Codec:
    if field.items is None or field.keys is None:
        raise SchemaError(f"column {field.name!r}: the schema of a map lacks its keys or values")
    return Map(codec_of(field.keys), codec_of(field.items), of_text=field.keys.physical == "string")


def _struct(field: Field) -> Codec:
    return Struct({each.name: codec_of(each) for each in field.fields})


def _always(codec: Codec) -> Callable[[Field], Codec]:
    return lambda _: codec


FORMATTED: Final = Text(may_be_left_out=False)
"""Text of bounded length with a format of its own (uuid, enum, interval)."""

_PHYSICAL: Final[Mapping[str, Callable[[Field], Codec]]] = {
    "int8": _always(Integer(TINYINT)),
    "int16": _always(Integer(SMALLINT)),
    "int32": _always(Integer(INT)),
    "int64": _always(Integer(BIGINT)),
    "float": _always(Float(FLOAT)),
    "double": _always(Float(DOUBLE)),
    "boolean": _always(Boolean()),
    "string": _always(Text()),
    "bytes": _always(Octets()),
    "array": _array,
    "map": _map,
    "struct": _struct,
}

_TIME, _DATA, _CONNECT = "io.debezium.time.", "io.debezium.data.", "org.apache.kafka.connect.data."

_SEMANTIC: Final[Mapping[tuple[str, str], Callable[[Field], Codec]]] = {
    ("bytes", _CONNECT + "Decimal"): _decimal,
    ("int32", _CONNECT + "Date"): _always(Days()),
    ("int32", _CONNECT + "Time"): _always(Clock(MILLIS, INT)),
    ("int64", _CONNECT + "Timestamp"): _always(Timestamp(MILLIS)),
    ("int32", _TIME + "Date"): _always(Days()),
    ("string", _TIME + "IsoDate"): _always(IsoDate()),
    ("int32", _TIME + "Time"): _always(Clock(MILLIS, INT)),
    ("int64", _TIME + "MicroTime"): _always(Clock(MICROS, BIGINT)),
    ("int64", _TIME + "NanoTime"): _always(Clock(NANOS, BIGINT)),
    ("string", _TIME + "IsoTime"): _always(IsoTime()),
    ("string", _TIME + "ZonedTime"): _always(FORMATTED),
    ("int64", _TIME + "Timestamp"): _always(Timestamp(MILLIS)),
    ("int64", _TIME + "MicroTimestamp"): _always(Timestamp(MICROS)),
    ("int64", _TIME + "NanoTimestamp"): _always(Timestamp(NANOS)),
    ("string", _TIME + "IsoTimestamp"): _always(IsoTimestamp(zoned=False)),
    ("string", _TIME + "ZonedTimestamp"): _always(IsoTimestamp(zoned=True)),
    ("int64", _TIME + "MicroDuration"): _always(Integer(BIGINT)),
    ("int64", _TIME + "NanoDuration"): _always(NanoDuration()),
    ("string", _TIME + "Interval"): _always(FORMATTED),
    ("int32", _TIME + "Year"): _always(Integer(INT)),
    ("struct", _DATA + "VariableScaleDecimal"): _always(VariableScale()),
    ("bytes", _DATA + "Bits"): _bits,
    ("string", _DATA + "Uuid"): _always(FORMATTED),
    ("string", _DATA + "Enum"): _always(FORMATTED),
    ("string", _DATA + "EnumSet"): _always(FORMATTED),
    ("string", _DATA + "Json"): _always(Text()),
    ("string", _DATA + "Xml"): _always(Text()),
    ("string", _DATA + "Ltree"): _always(Text()),
    ("string", _DATA + "Tsvector"): _always(Text()),
}
