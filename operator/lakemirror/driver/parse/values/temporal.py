"""Dates, times and timestamps in all of Debezium's precision modes.

Everything is proleptic Gregorian, like PostgreSQL and java.time, and independent of Spark's session
time zone. Spark's DATE, TIMESTAMP and TIMESTAMP_NTZ span the years 0001 to 9999. Values outside these years
are unrepresentable, and so are PostgreSQL's infinities, which Debezium sends as extreme numbers or years:
anything beyond the range of PostgreSQL's own type is an infinity. Nanoseconds become microseconds
(rounded down), except in times, which are text.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver.parse.values.expressions import at_least, div, floor_div, let

FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01, 9999-12-31
_PG_FIRST_DAY, _PG_LAST_DATE = -2440588, 2145031948  # 4714-11-24 BC, 5874897-12-31
_PG_FIRST_YEAR, _PG_LAST_DATE_YEAR, _PG_LAST_TIMESTAMP_YEAR = -4713, 5874897, 294276
# The last PostgreSQL timestamp that BIGINT microseconds can hold; PGStatement.DATE_POSITIVE_INFINITY.
_POSITIVE_INFINITY = 9223372036825200000
_PG_LAST_DAY = 106762940  # 294277-01-01, the first day beyond the range
_DAY = 86400


@dataclass(frozen=True)
class Unit:
    """The unit of a number that counts from the epoch or from midnight."""

    per_second: int

    @property
    def digits(self) -> int:
        return len(str(self.per_second)) - 1

    @property
    def bounds(self) -> tuple[int, int]:
        """The first and last value within the years 0001 to 9999 (nanoseconds never leave them)."""
        first = FIRST_DAY * _DAY * self.per_second
        last = (LAST_DAY + 1) * _DAY * self.per_second - 1
        return max(first, -(2**63) + 1), min(last, 2**63 - 2)

    def micros(self, value: Column) -> Column:
        """Convert a value within ``bounds`` to microseconds."""
        if self.per_second <= 1_000_000:
            return value * (1_000_000 // self.per_second)
        return floor_div(value, self.per_second // 1_000_000)


MILLIS, MICROS, NANOS = Unit(1_000), Unit(1_000_000), Unit(1_000_000_000)


def ntz(micros: Column) -> Column:
    """Convert microseconds since 1970-01-01 00:00 to TIMESTAMP_NTZ."""
    return F.lit("1970-01-01").cast("timestamp_ntz") + F.expr("INTERVAL '0.000001' SECOND") * micros


def outside(value: Column, first: int, last: int) -> Column:
    return (value < first) | (value > last)


def clock(value: Column, unit: Unit) -> Column:
    """Spell a number since midnight as ``HH:MM:SS[.f]``; any size and sign (MySQL's TIME reaches 838 h)."""
    value = value.cast("bigint")
    size = F.abs(value)
    seconds = div(size, unit.per_second)
    fraction = F.rtrim(F.lpad((size % unit.per_second).cast("string"), unit.digits, "0"), F.lit("0"))
    return F.concat(
        F.when(value < 0, "-").otherwise(""),
        at_least(2, div(seconds, 3600).cast("string")),
        F.lit(":"),
        F.lpad((div(seconds, 60) % 60).cast("string"), 2, "0"),
        F.lit(":"),
        F.lpad((seconds % 60).cast("string"), 2, "0"),
        F.when(fraction != "", F.concat(F.lit("."), fraction)).otherwise(""),
    )


def clock_of_iso(text: Column) -> Column:
    """Spell an ISO time as ``HH:MM:SS[.f]``, without the ``Z`` and without trailing zeros of the fraction."""
    return F.regexp_replace(text, r"(\.\d*[1-9])0*Z?$|(\.0+)?Z$|\.0+$", "$1")


def days_spelled(days: Column) -> Column:
    """Spell days since the epoch as PostgreSQL does (``0044-03-15 BC``), including infinities."""
    return (
        F.when(days > _PG_LAST_DATE, "infinity")
        .when(days < _PG_FIRST_DAY, "-infinity")
        .otherwise(_with_era(F.date_from_unix_date(days).cast("string")))
    )


def timestamp_spelled(value: Column, unit: Unit) -> Column:
    """Spell a number since the epoch as PostgreSQL does, including infinities."""
    if unit == NANOS:
        first, last = -(2**63) + 1, 2**63 - 2
    else:
        first = _PG_FIRST_DAY * _DAY * unit.per_second
        last = min(_PG_LAST_DAY * _DAY * unit.per_second, _POSITIVE_INFINITY) - 1
    return (
        F.when(value > last, "infinity")
        .when(value < first, "-infinity")
        .otherwise(_with_era(ntz(unit.micros(value)).cast("string")))
    )


def iso_outside(text: Column) -> Column:
    """Return whether an ISO date or timestamp is outside the years 0001 to 9999, or is ``infinity``."""
    return F.substring(text, 1, 1).isin("+", "-", "i") | text.startswith("0000")


def iso_date_spelled(text: Column) -> Column:
    """Spell an ISO date as PostgreSQL does, including infinities."""
    return _iso_spelled(text, F.rtrim(text, F.lit("Z")), _PG_LAST_DATE_YEAR)


def iso_timestamp_spelled(text: Column, *, zoned: bool) -> Column:
    """Spell an ISO timestamp in UTC as PostgreSQL does, including infinities."""
    local = clock_of_iso(F.translate(text, "T", " "))
    return _iso_spelled(text, local, _PG_LAST_TIMESTAMP_YEAR, "+00" if zoned else "")


def _iso_spelled(text: Column, local: Column, last_year: int, zone: str = "") -> Column:
    year = F.regexp_extract(text, r"^([-+]?\d+)-", 1).try_cast("bigint")
    return let(
        year,
        lambda y: (
            F.when(y > last_year, "infinity")
            .when(y < _PG_FIRST_YEAR, "-infinity")
            .when(y.isNull(), text)
            .otherwise(_with_era(local, zone))
        ),
    )


def _with_era(iso: Column, zone: str = "") -> Column:
    """Drop the sign of an ISO date's (and time's) year, and append `` BC`` before the year 1."""

    def spell(text: Column) -> Column:
        year = F.regexp_extract(text, r"^-?\d+", 0).try_cast("int")
        rest = F.regexp_extract(text, r"(?s)^-?\d+(-.*)$", 1)
        before = F.concat(F.lpad((1 - year).cast("string"), 4, "0"), rest, F.lit(zone + " BC"))
        after = F.concat(F.ltrim(text, F.lit("+")), F.lit(zone))
        return F.when(text.rlike("^(-|0000)"), before).otherwise(after)

    return let(iso, spell)
