"""A mirror's rows against the source's own, value by value, by a stated rule for each type of the source.

| source type | equal when |
|---|---|
| smallint, integer, bigint, oid, int(11), year | the numbers are equal |
| real, float | equal as 32-bit floats, NaN equal to NaN |
| double precision | equal as 64-bit floats, NaN equal to NaN |
| numeric, decimal, money (without its currency) | DECIMAL: equal numbers |
| | text: equal digits, trailing zeros included |
| | DOUBLE (decimal.handling.mode=double): the double nearest to the number |
| boolean, bit(1), MariaDB's tinyint(1) | the same truth value, 1 being true and 0 false |
| bit(n) | the same text of 0 and 1; bit varying: without leading zeros, as the connector drops its length |
| char, varchar, text, uuid, xml, enum, inet, cidr, macaddr, ranges | the same text |
| bytea, blob | the same bytes; in a text column as base64, base64url or hex (``binary.handling.mode``) |
| date | the same day |
| time | the same time, ``HH:MM:SS[.f]``; with ``millis`` (time.precision.mode=connect) cut to milliseconds |
| timetz | the same instant of a day in UTC |
| timestamp, datetime | the same local time, with ``millis`` cut to milliseconds |
| timestamptz | the same instant |
| interval | text: the same ISO fields; BIGINT: microseconds, a year being 365.25 and a month 30.4375 days |
| json, jsonb, and what MariaDB keeps as longtext | equal as parsed values; a JSON null is equal to SQL's |
| point | the same two doubles |
| T[] | equal lengths, element by element |

What Spark cannot represent (infinity, years outside 0001 to 9999, NaN in a numeric) is expected as null; in
an array the whole value or the element may be null. In a STRING column it is expected in the source's
spelling (``infinity``, ``0044-03-15 BC``).

Without schemas (``schemas.enable=false``) some values can only land in the connector's physical form; where
the mirror's column has the physical type, it is read by the source's column type: base64 of a decimal with
the column's scale, ``{"scale", "value"}`` of one beyond 38 digits, days, milli- or microseconds (by the
column's precision), base64 of little-endian bits.

Columns of the mirror whose names start with ``__`` are ours, and those that the source no longer has are
what it dropped: both are ignored. A column of the source that the mirror lacks must be null in all rows.
Anything else is a difference, an unknown source type too.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, DecimalType, StringType, StructType, TimestampType

from tests.support import records

Row = dict[str, Any]
Key = tuple[Any, ...]

_EPOCH = datetime(1970, 1, 1)


def source_types(scenario: Path) -> dict[str, dict[str, str]]:
    """Column types by table (``schema.table``), from a capture's ``scenario.json``."""
    truth = json.loads((scenario / "scenario.json").read_text(encoding="utf-8"))["truth"]
    return {table: {c["name"]: c["type"] for c in entry["columns"]} for table, entry in truth.items()}


def primary_keys(captured: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Key columns by table (``schema.table``, as in ``truth/``), from the records' keys."""
    keys: dict[str, tuple[str, ...]] = {}
    for record in captured:
        if record["key"] is None or record["value"] is None:
            continue
        change = records.payload(record["value"]) or {}
        source = change.get("source") or {}
        if change.get("op") in ("c", "r", "u", "d") and source.get("table"):
            table = f"{source.get('schema') or source['db']}.{source['table']}"
            keys.setdefault(table, tuple(records.payload(record["key"])))
    return keys


def load_truth(path: Path, key: Sequence[str]) -> dict[Key, Row]:
    """The source's rows by key; numbers keep all their digits (fractions as Decimal)."""
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line, parse_float=Decimal) for line in lines if line.strip()]
    return {_key(row, key): row for row in rows}


def collect(mirror: DataFrame) -> list[Row]:
    """A mirror's rows, instants as naive datetimes in UTC whatever the zone of this process."""
    instants = [f.name for f in mirror.schema.fields if isinstance(f.dataType, TimestampType)]
    columns = {name: F.unix_micros(F.col(f"`{name}`")) for name in instants}
    rows = [row.asDict(recursive=True) for row in mirror.withColumns(columns).collect()]
    for row in rows:
        for name in instants:
            if row[name] is not None:
                row[name] = _EPOCH + timedelta(microseconds=row[name])
    return rows


def diff(
    rows: Iterable[Row],
    truth: Mapping[Key, Row],
    source: Mapping[str, str],
    mirror: StructType,
    key: Sequence[str],
    *,
    millis: bool = False,
) -> list[str]:
    """Differences between a mirror and its source, one line each; none when they are equal.

    ``rows``: of `collect`; ``mirror``: the mirror's schema; ``truth``: of `load_truth`; ``source``: the
    column types of the source; ``millis``: the connector sent times in milliseconds.
    """
    found: dict[Key, Row] = {}
    problems = []
    for row in rows:
        k = _key({n: _key_value(row[n], source[n]) for n in key}, key)
        if k in found:
            problems.append(f"row {k}: twice in the mirror")
        found[k] = row
    problems += [f"row {k}: missing in the mirror" for k in truth if k not in found]
    problems += [f"row {k}: not in the source" for k in found if k not in truth]
    types = {f.name: f.dataType for f in mirror.fields}
    for k in truth.keys() & found.keys():
        for name, kind in source.items():
            problem = _compare(kind, truth[k][name], found[k].get(name), types.get(name), millis)
            if problem:
                problems.append(f"row {k}, column {name} ({kind}): {problem}")
    return problems


def _key(row: Mapping[str, Any], key: Sequence[str]) -> Key:
    return tuple(value.isoformat() if isinstance(value, date) else value for value in (row[n] for n in key))


def _key_value(value: Any, kind: str) -> Any:
    return date(1970, 1, 1) + timedelta(days=value) if kind == "date" and isinstance(value, int) else value


def _compare(kind: str, expected: Any, actual: Any, mirror: DataType | None, millis: bool) -> str | None:
    if expected is None and actual is None:
        return None
    if mirror is None:
        return f"{expected!r} in the source, and no such column in the mirror"
    try:
        equal = _equal(kind, expected, actual, mirror, millis)
    except (ValueError, TypeError, ArithmeticError, KeyError) as error:
        return f"{actual!r} in the mirror cannot be compared with {expected!r} in the source: {error}"
    return None if equal else f"{actual!r} in the mirror, {expected!r} in the source"


def _equal(kind: str, expected: Any, actual: Any, mirror: DataType, millis: bool) -> bool:
    rule = _rule(kind)
    if kind.endswith("[]"):
        return _equal_arrays(kind[:-2], expected, actual, mirror, millis)
    if expected is None:
        return rule is _json and json.loads(actual) is None
    if _beyond(kind, expected):
        return actual == (_spelled(expected) if isinstance(mirror, StringType) else None)
    if actual is None:
        return False
    return rule(expected, actual, _Context(kind, mirror, millis))


def _equal_arrays(kind: str, expected: Any, actual: Any, mirror: DataType, millis: bool) -> bool:
    if expected is None or not isinstance(mirror, ArrayType):
        return False
    if actual is None:
        return any(_beyond(kind, e) for e in expected)
    pairs = zip(expected, actual, strict=True)
    return all((e is a is None) or _equal(kind, e, a, mirror.elementType, millis) for e, a in pairs)


def _beyond(kind: str, expected: Any) -> bool:
    """Whether Spark cannot represent it."""
    if _rule(kind) in (_date, _timestamp, _instant):
        text = str(expected)
        return "infinity" in text or text.endswith(" BC") or re.match(r"\d{5,}-", text) is not None
    return (
        _rule(kind) is _decimal and isinstance(expected, str) and expected in ("NaN", "Infinity", "-Infinity")
    )


def _spelled(expected: str) -> str:
    return expected.replace("T", " ").replace("+00:00", "+00")


@dataclass(frozen=True)
class _Context:
    kind: str
    mirror: DataType
    millis: bool

    @property
    def arguments(self) -> list[int]:
        return [int(n) for n in re.findall(r"\d+", "".join(re.findall(r"\([\d, ]*\)", self.kind)))]

    @property
    def physical_scale(self) -> int:
        """Factor from the connector's number to microseconds: up to 3 digits it sends milliseconds."""
        digits = self.arguments[0] if self.arguments else (0 if self.kind.startswith("datetime") else 6)
        return 1000 if self.millis or digits <= 3 else 1


_Rule = Callable[[Any, Any, _Context], bool]


def _integer(expected: Any, actual: Any, context: _Context) -> bool:
    if isinstance(context.mirror, StringType):  # the column held text in a former life
        return str(expected) == actual
    return int(expected) == actual


def _real(expected: Any, actual: Any, _: _Context) -> bool:
    narrowed, other = (struct.unpack("f", struct.pack("f", float(n)))[0] for n in (expected, actual))
    return _same_float(narrowed, other)


def _double(expected: Any, actual: Any, _: _Context) -> bool:
    return _same_float(float(expected), actual)


def _same_float(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _decimal(expected: Any, actual: Any, context: _Context) -> bool:
    number = Decimal(re.sub(r"[$,]", "", str(expected)))
    if isinstance(actual, Decimal):
        return isinstance(context.mirror, DecimalType) and actual == number
    if isinstance(actual, float):
        return _same_float(float(number), actual)
    if actual.startswith("{"):
        pair = json.loads(actual)
        return _unscaled(pair["value"], pair["scale"]).as_tuple() == number.as_tuple()
    if re.fullmatch(r"-?\d+(\.\d+)?", actual) and Decimal(actual).as_tuple() == number.as_tuple():
        return True
    arguments = context.arguments or [0, 2]  # money
    return _unscaled(actual, [*arguments, 0][1]) == number


def _unscaled(text: str, scale: int) -> Decimal:
    return Decimal(f"{int.from_bytes(base64.b64decode(text, validate=True), 'big', signed=True)}E-{scale}")


def _boolean(expected: Any, actual: Any, _: _Context) -> bool:
    return (expected in (True, 1, "1")) == (actual in (True, 1))


def _bits(expected: str, actual: str, context: _Context) -> bool:
    if context.arguments == [1]:
        return _boolean(expected, actual, context)
    if not re.fullmatch("[01]*", actual):
        octets = base64.b64decode(actual, validate=True)
        return int(expected or "0", 2) == int.from_bytes(octets, "little")
    return expected == actual or ("varying" in context.kind and expected.lstrip("0") == actual.lstrip("0"))


def _text(expected: str, actual: Any, _: _Context) -> bool:
    return expected == actual


def _bytes(expected: str, actual: Any, _: _Context) -> bool:
    octets = binascii.unhexlify(expected.removeprefix("\\x"))
    if isinstance(actual, (bytes, bytearray)):
        return bytes(actual) == octets
    shapes = base64.b64encode(octets).decode(), base64.urlsafe_b64encode(octets).decode(), octets.hex()
    return actual in shapes


def _date(expected: str, actual: Any, _: _Context) -> bool:
    day = date.fromisoformat(expected)
    if isinstance(actual, int):
        return (day - date(1970, 1, 1)).days == actual
    return actual == (expected if isinstance(actual, str) else day)


def _time(expected: str, actual: Any, context: _Context) -> bool:
    micros = _micros_of_day(expected)
    if context.millis:
        micros -= micros % 1000
    if isinstance(actual, int) or re.fullmatch(r"-?\d+", actual):
        return int(actual) * context.physical_scale == micros
    canonical = re.fullmatch(r"-?\d{2,3}:\d\d:\d\d(\.\d{0,8}[1-9])?", actual)
    return canonical is not None and _micros_of_day(actual) == micros


def _time_with_zone(expected: str, actual: str, _: _Context) -> bool:
    return _utc_micros_of_day(expected) == _utc_micros_of_day(actual)


def _timestamp(expected: str, actual: Any, context: _Context) -> bool:
    moment = datetime.fromisoformat(expected)
    if context.millis:
        moment -= timedelta(microseconds=moment.microsecond % 1000)
    return _same_moment(moment, actual, context)


def _instant(expected: str, actual: Any, context: _Context) -> bool:
    moment = datetime.fromisoformat(expected)
    utc = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    return _same_moment(utc, actual, context)


def _same_moment(moment: datetime, actual: Any, context: _Context) -> bool:
    if isinstance(actual, int):
        return (moment - _EPOCH) // timedelta(microseconds=1) == actual * context.physical_scale
    if isinstance(actual, str):
        parsed = datetime.fromisoformat(actual)
        actual = parsed.astimezone(UTC).replace(tzinfo=None) if parsed.tzinfo else parsed
    return bool(moment == actual)


def _interval(expected: str, actual: Any, _: _Context) -> bool:
    months, days, micros = _interval_fields(expected)
    if isinstance(actual, int):
        return months * Decimal("30.4375") * 86_400_000_000 + days * 86_400_000_000 + micros == actual
    return (months, days, micros) == _iso_interval_fields(actual)


def _json(expected: Any, actual: str, _: _Context) -> bool:
    return bool(json.loads(actual, parse_float=Decimal) == expected)


def _maybe_json(expected: Any, actual: Any, context: _Context) -> bool:
    return (_text if isinstance(expected, str) else _json)(expected, actual, context)


def _point(expected: str, actual: Any, _: _Context) -> bool:
    x, y = (float(n) for n in expected.strip("()").split(","))
    return (actual["x"], actual["y"]) == (x, y)


def _micros_of_day(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    return sign * int((int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds)) * 1_000_000)


def _utc_micros_of_day(text: str) -> int:
    match = re.fullmatch(r"([\d:.]+)(Z|[-+]\d\d(?::\d\d)*)", text)
    if match is None:
        raise ValueError(f"{text!r} is no time with a zone")
    offset = 0
    if match[2] != "Z":
        parts = [int(n) for n in match[2][1:].split(":")] + [0, 0]
        offset = (parts[0] * 3600 + parts[1] * 60 + parts[2]) * (-1 if match[2][0] == "-" else 1)
    return (_micros_of_day(match[1]) - offset * 1_000_000) % 86_400_000_000


def _interval_fields(text: str) -> tuple[int, int, int]:
    """PostgreSQL's ``1 year 2 mons 3 days 04:05:06.789`` -> months, days, microseconds."""
    months = days = micros = 0
    for number, unit in re.findall(r"([-+]?\d+) (year|mon|day)s?", text):
        months += int(number) * {"year": 12, "mon": 1, "day": 0}[unit]
        days += int(number) if unit == "day" else 0
    clock = re.search(r"-?\d+:\d\d:\d\d(\.\d+)?", text)
    if clock:
        micros = _micros_of_day(clock[0])
    return months, days, micros


def _iso_interval_fields(text: str) -> tuple[int, int, int]:
    """``P1Y2M3DT4H5M6.789S`` -> months, days, microseconds."""
    number = r"(-?[\d.]+)"
    match = re.fullmatch(rf"P{number}Y{number}M{number}DT{number}H{number}M{number}S", text)
    if match is None:
        raise ValueError(f"{text!r} is no ISO interval")
    years, months, days, hours, minutes = (int(n) for n in match.groups()[:5])
    seconds = hours * 3600 + minutes * 60 + Decimal(match[6])
    return years * 12 + months, days, int(seconds * 1_000_000)


_RULES: list[tuple[str, _Rule]] = [
    (r"tinyint\(1\)|boolean|bool", _boolean),
    (r"(tiny|small|medium|big)?int(eger)?(\(\d+\))?( unsigned)?|oid|year(\(4\))?", _integer),
    (r"real|float", _real),
    (r"double( precision)?", _double),
    (r"(numeric|decimal)(\(.*\))?|money", _decimal),
    (r"bit( varying)?(\(\d+\))?", _bits),
    (r"char(acter)?( varying)?(\(\d+\))?|varchar(\(\d+\))?|(tiny|medium)?text|uuid|xml", _text),
    (r"enum\(.*\)|mood", _text),  # mood: PostgreSQL names an enum's own type, this one is the captures'
    (r"inet|cidr|macaddr8?|(int4|int8|num|ts|tstz|date)range", _text),
    (r"longtext", _maybe_json),
    (r"bytea|(tiny|medium|long)?blob|(var)?binary(\(\d+\))?", _bytes),
    (r"date", _date),
    (r"time(\(\d\))?( without time zone)?", _time),
    (r"time(\(\d\))? with time zone", _time_with_zone),
    (r"timestamp(\(\d\))? with time zone", _instant),
    (r"timestamp(\(\d\))?( without time zone)?|datetime(\(\d\))?", _timestamp),
    (r"interval", _interval),
    (r"jsonb?", _json),
    (r"point", _point),
]


def _rule(kind: str) -> _Rule:
    kind = kind.removesuffix("[]")
    for pattern, rule in _RULES:
        if re.fullmatch(pattern, kind):
            return rule
    raise KeyError(f"there is no rule for the source type {kind!r}")
