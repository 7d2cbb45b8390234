"""Dates, times and timestamps in all of Debezium's precision modes.

Everything is proleptic Gregorian, like PostgreSQL and java.time. A mirror's types span the years 0001 to
9999. Values outside of these years are unrepresentable, and so are PostgreSQL's infinities, which Debezium
sends as extreme numbers or years: anything beyond the range of PostgreSQL's own type is an infinity.
Nanoseconds become microseconds (rounded down), except in times of day, which are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakemirror.driver.rules.keys import local_text

FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01, 9999-12-31
DAY_SECONDS: Final = 86400

# PostgreSQL's own ranges: of DATE 4714-11-24 BC to 5874897-12-31, of TIMESTAMP the same to 294276-12-31.
_FIRST_DAY, _LAST_DATE = -2440588, 2145042905
_FIRST_YEAR, _LAST_DATE_YEAR, _LAST_TIMESTAMP_YEAR = -4713, 5874897, 294276
_AFTER_LAST_DAY: Final = 106762940
_POSITIVE_INFINITY: Final = 9223372036825200000  # PGStatement.DATE_POSITIVE_INFINITY

_EPOCH: Final = datetime(1970, 1, 1)
_PLAIN: Final = re.compile(r"\d{4}-\d\d-\d\dT[01]\d:\d\d:\d\d(?:\.(?:\d{3}|\d{6}))?Z", re.ASCII)
_DAY: Final = re.compile(r"\s*(\d{4})-(\d{1,2})-(\d{1,2})\s*Z?\s*", re.ASCII)
_MOMENT: Final = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*(.*?))?\s*",
    re.ASCII,
)
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?([-+])(?:(\d{1,2})(?::([0-5]\d)(?::([0-5]\d))?)?|(\d{2})([0-5]\d)([0-5]\d)?)", re.ASCII
)
_OF_THIS_MACHINE: Final = ("Factory", "localtime", "posixrules")
"""Files beside those of zones, which say what a machine is set to."""
_ZONE_IN_BRACKETS: Final = re.compile(r"(Z|[-+]\d{2}(?::?\d{2})?)\[[^\[\]]+\]\s*$", re.ASCII)
_ZERO_IN_DATE: Final = re.compile(r"\d{4}-(00-|\d{2}-00)", re.ASCII)
_FINER: Final = re.compile(r":\d{2}\.\d{6}0*[1-9]", re.ASCII)
_YEAR: Final = re.compile(r"([-+]?\d+)-", re.ASCII)


@dataclass(frozen=True)
class Unit:
    """The unit of a number that counts from 1970 or from midnight."""

    per_second: int

    @property
    def digits(self) -> int:
        return len(str(self.per_second)) - 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and last value within the years 0001 to 9999 (nanoseconds never leave them)."""
        first = FIRST_DAY * DAY_SECONDS * self.per_second
        last = (LAST_DAY + 1) * DAY_SECONDS * self.per_second - 1
        return max(first, -(2**63) + 1), min(last, 2**63 - 2)

    def micros(self, value: int) -> int:
        """Return microseconds, rounded down."""
        return value * 1_000_000 // self.per_second


MILLIS, MICROS, NANOS = Unit(1_000), Unit(1_000_000), Unit(1_000_000_000)


def moment(micros: int) -> datetime:
    """Return the moment at microseconds since 1970, without a zone."""
    return _EPOCH + timedelta(microseconds=micros)


def day(days: int) -> date:
    """Return the day at a number of days since 1970."""
    return date.fromordinal(days + 719163)


def is_outside(value: int, unit: Unit) -> bool:
    """Return whether a number since 1970 is outside of the years 0001 to 9999."""
    first, last = unit.bounds
    return not first <= value <= last


# -- texts of numbers -------------------------------------------------------------------------------------


def clock(value: int, unit: Unit) -> str:
    """Spell a number since midnight as ``HH:MM:SS[.f]``; any size and sign (MySQL's TIME reaches 838 h)."""
    seconds, fraction = divmod(abs(value), unit.per_second)
    digits = str(fraction).rjust(unit.digits, "0").rstrip("0")
    text = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return ("-" if value < 0 else "") + text + (f".{digits}" if digits else "")


def clock_of_iso(text: str) -> str:
    """Spell an ISO time as ``HH:MM:SS[.f]``, without the ``Z`` and without trailing zeros of the fraction."""
    return re.sub(r"(\.\d*[1-9])0*Z?$|(\.0+)?Z$|\.0+$", lambda found: found[1] or "", text, count=1)


def days_spelled(days: int) -> str:
    """Spell days since 1970 as PostgreSQL does (``0044-03-15 BC``), including infinities."""
    if days > _LAST_DATE:
        return "infinity"
    return "-infinity" if days < _FIRST_DAY else _with_era(*_civil(days))


def timestamp_spelled(value: int, unit: Unit) -> str:
    """Spell a number since 1970 as PostgreSQL does, including infinities."""
    if unit == NANOS:
        first, last = -(2**63) + 1, 2**63 - 2
    else:
        first = _FIRST_DAY * DAY_SECONDS * unit.per_second
        last = min(_AFTER_LAST_DAY * DAY_SECONDS * unit.per_second, _POSITIVE_INFINITY) - 1
    if value > last:
        return "infinity"
    return "-infinity" if value < first else _spelled(value, unit)


def _spelled(value: int, unit: Unit) -> str:
    days, rest = divmod(value, DAY_SECONDS * unit.per_second)
    return _with_era(*_civil(days), " " + clock(rest, unit))


def _civil(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of days since 1970, for any year (0 is 1 BC)."""
    era, rest = divmod(days + 719468, 146097)
    year = (rest - rest // 1460 + rest // 36524 - rest // 146096) // 365
    of_year = rest - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day_of_month = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    return year + era * 400 + (month <= 2), month, day_of_month


def _with_era(year: int, month: int, day_of_month: int, rest: str = "") -> str:
    shown = year if year > 0 else 1 - year
    return f"{shown:04}-{month:02}-{day_of_month:02}{rest}" + ("" if year > 0 else " BC")


# -- ISO texts --------------------------------------------------------------------------------------------


def iso_is_outside(text: str) -> bool:
    """Return whether an ISO date or timestamp has no value in a mirror.

    It is outside of the years 0001 to 9999, ``infinity``, or one of MySQL's with a month or day of zero.
    """
    return text[:1] in ("+", "-", "i") or text.startswith("0000") or _ZERO_IN_DATE.match(text) is not None


def day_of(text: str) -> date | None:
    """Return the day of an ISO date; None for any other text."""
    found = _DAY.fullmatch(text)
    try:
        return None if found is None else date(int(found[1]), int(found[2]), int(found[3]))
    except ValueError:
        return None


def instant_of(text: str) -> datetime | None:
    """Return the moment in UTC of an ISO timestamp, in UTC unless it has a zone; None for any other text."""
    found = _parsed(text)
    if found is None:
        return None
    local, zone = found
    try:
        return (
            (local if zone is None else local.replace(tzinfo=zone)).astimezone(UTC)
            if zone
            else local.replace(tzinfo=UTC)
        )
    except OverflowError:
        return None


def plain_instant(text: str) -> datetime | None:
    """Return the moment of an ISO timestamp as connectors write it, fast; None for any other text."""
    try:
        return datetime.fromisoformat(text) if _PLAIN.fullmatch(text) else None
    except ValueError:
        return None


def local_of(text: str) -> datetime | None:
    """Return the same moment without a zone."""
    found = instant_of(text)
    return None if found is None else found.replace(tzinfo=None)


def _parsed(text: str) -> tuple[datetime, timezone | ZoneInfo | None] | None:
    """Return the local time and the zone of an ISO timestamp.

    An offset may have no seconds before it (``10:15+02:00``), and Java appends the name of the zone
    (``+02:00[Europe/Berlin]``). Digits below the microsecond are cut off.
    """
    found = _MOMENT.fullmatch(_ZONE_IN_BRACKETS.sub(r"\1", text))
    if found is None:
        return None
    year, month, day_of_month, hour, minute, second, fraction, zone = found.groups()
    micros = int((fraction or "").ljust(6, "0")[:6])
    try:
        local = datetime(
            int(year),
            int(month),
            int(day_of_month),
            int(hour or 0),
            int(minute or 0),
            int(second or 0),
            micros,
        )
        return local, _zone(zone) if zone else None
    except (ValueError, ZoneInfoNotFoundError, OSError):
        return None


def _zone(name: str) -> timezone | ZoneInfo:
    """Return a zone. Raises ValueError, ZoneInfoNotFoundError or, as zones are files, OSError.

    An abbreviation such as BST or CST is that of several zones, and names none.
    """
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is None:
        if name in _OF_THIS_MACHINE:
            raise ValueError(name)
        return ZoneInfo(name)
    hours, minutes, seconds = (int(each or 0) for each in found.groups()[1 if found[2] else 4 :][:3])
    offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if offset > timedelta(hours=18):
        raise ValueError(name)
    return timezone(-offset if found[1] == "-" else offset)


def is_finer(text: str) -> bool:
    """Return whether an ISO timestamp has digits below the microsecond that are not 0."""
    return _FINER.search(text) is not None


def iso_date_spelled(text: str) -> str:
    """Spell an ISO date as PostgreSQL does, including infinities."""
    return _iso_spelled(text, text.rstrip("Z"), _LAST_DATE_YEAR)


def iso_timestamp_spelled(text: str, *, zoned: bool) -> str:
    """Spell an ISO timestamp in UTC as PostgreSQL does, including infinities."""
    local = clock_of_iso(text.replace("T", " "))
    return _iso_spelled(text, local, _LAST_TIMESTAMP_YEAR, "+00" if zoned else "")


def _iso_spelled(text: str, local: str, last_year: int, zone: str = "") -> str:
    found = _YEAR.match(text)
    if found is None:
        return text
    year = int(found[1])
    if year > last_year:
        return "infinity"
    if year < _FIRST_YEAR:
        return "-infinity"
    if _ZERO_IN_DATE.match(local):
        return local  # no calendar has it
    if local.startswith(("-", "0000")):
        return f"{1 - year:04}{local[len(found[1]) :]}{zone} BC"
    return local.lstrip("+") + zone


def instant_spelled(text: str) -> str:
    """Spell an ISO timestamp with a zone in UTC, with all its digits."""
    local = local_of(text)
    if iso_is_outside(text) or local is None:
        return iso_timestamp_spelled(text, zoned=True) if iso_is_outside(text) else text
    spelled = local_text(local)
    if is_finer(text):
        digits = re.search(r":\d{2}(\.\d+)", text)
        spelled = spelled.partition(".")[0] + (digits[1].rstrip("0") if digits else "")
    return spelled + "+00"
