"""Dates, times and timestamps in all of Debezium's precision modes.

Everything is proleptic Gregorian, like PostgreSQL and java.time, and independent of Spark's session
time zone. Spark's DATE, TIMESTAMP and TIMESTAMP_NTZ span the years 0001 to 9999. Values outside these years
are unrepresentable, and so are PostgreSQL's infinities, which Debezium sends as extreme numbers or years:
anything beyond the range of PostgreSQL's own type is an infinity. Nanoseconds become microseconds
(rounded down), except in times, which are text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.driver import shapes
from lakemirror.driver.parse.values.expressions import at_least, div, floor_div, let

FIRST_DAY, LAST_DAY = -719162, 2932896  # 0001-01-01, 9999-12-31
_PG_FIRST_DAY, _PG_LAST_DATE = -2440588, 2145042905  # 4714-11-24 BC, 5874897-12-31
_PG_FIRST_YEAR, _PG_LAST_DATE_YEAR, _PG_LAST_TIMESTAMP_YEAR = -4713, 5874897, 294276
# The last PostgreSQL timestamp that BIGINT microseconds can hold; PGStatement.DATE_POSITIVE_INFINITY.
_POSITIVE_INFINITY = 9223372036825200000
_PG_LAST_DAY = 106762940  # 294277-01-01, the first day beyond the range
_DAY_SECONDS = 86400

_DAY = r"^\s*\d{4}-\d{1,2}-\d{1,2}(\s*Z)?\s*$"
_MOMENT = r"^\s*\d{4}-\d{1,2}-\d{1,2}(\s*$|[T ]\s*\d{1,2}:)"
_WITH_OFFSET = r"^\s*\d{4}-\d{1,2}-\d{1,2}[T ][^-+]*([-+]\d|[A-Za-z]{2})"
"""Matches an ISO timestamp with an offset or the name of a zone."""
_ZERO_IN_DATE = r"^\d{4}-(00-|\d{2}-00)"
_FINER = r":\d{2}\.\d{6}0*[1-9]"
_WITHOUT_SECONDS = r"^(\s*\d{4}-\d{1,2}-\d{1,2}[T ]\d{1,2}:\d{1,2})(?=\s*[-+A-Za-z])"
_NO_ZONE = (
    r"([^A-Za-z](ACT|AET|AGT|ART|AST|BET|BST|CAT|CNT|CST|CTT|EAT|ECT|IET|IST|JST|MIT|NET|NST|PLT|PNT|PRT|PST|"
    r"SST|VST)|[-+]\d{1,2}:\d)\s*$"
)
"""Abbreviations of which Java takes one zone of several (BST for Asia/Dhaka); offsets that lack a digit."""
_AT_AN_END = r"^\s*(0001-0?1-0?1|9999-12-31)[T ]"
_ZONE_IN_BRACKETS = r"(Z|[-+]\d{2}(?::?\d{2})?)\[[^\[\]]+\]\s*$"
_MAY_BE_FINER = r"[:,\[](?:(?<=:)\d{2}\.\d{6}0*[1-9]|-?\d{18,19}[,}\]])"
"""Matches a JSON row with such a text, or with a number of so many digits; each place is tried once."""


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
        first = FIRST_DAY * _DAY_SECONDS * self.per_second
        last = (LAST_DAY + 1) * _DAY_SECONDS * self.per_second - 1
        return max(first, -(2**63) + 1), min(last, 2**63 - 2)

    def micros(self, value: Column) -> Column:
        """Convert a value within ``bounds`` to microseconds."""
        if self.per_second <= 1_000_000:
            return value * (1_000_000 // self.per_second)
        return floor_div(value, self.per_second // 1_000_000)


MILLIS, MICROS, NANOS = Unit(1_000), Unit(1_000_000), Unit(1_000_000_000)

_FIRST_SECOND: Final = FIRST_DAY * _DAY_SECONDS
_AFTER_SECONDS: Final = 10**11
"""Numbers from here on (5138 as seconds, 1973 as milliseconds) are in a finer unit."""


def number_of(text: Column) -> Column:
    """Return the number since 1970 that a text is (DECIMAL(38,9)); null for other text."""
    return shapes.number(text, "decimal(38,9)")


def per_unit(number: Column, *, seconds: bool = True) -> Column:
    """Return how many microseconds the unit of a number since 1970 has, by its size (STRING).

    It is the coarsest of milli-, micro- and nanoseconds that puts the number into the years 0001 to 9999
    (nanoseconds: only after 1970). With ``seconds``, it is seconds for a number below 10^11.
    """
    of_seconds = number.between(_FIRST_SECOND, _AFTER_SECONDS - 1) & F.lit(seconds)
    return (
        F.when(of_seconds, "1000000")
        .when(~outside(number, *MILLIS.bounds), "1000")
        .when(number < MICROS.bounds[1] + 1, "1")
        .otherwise("0.001")
    )


def scaled(number: Column, factor: Column) -> Column:
    """Return the microseconds of a number in a unit of ``factor`` microseconds, with their fraction."""
    return F.try_multiply(number, factor.cast("decimal(14,3)"))


def ntz(micros: Column) -> Column:
    """Convert microseconds since 1970-01-01 00:00 to TIMESTAMP_NTZ."""
    return F.lit("1970-01-01").cast("timestamp_ntz") + F.expr("INTERVAL '0.000001' SECOND") * micros


def outside(value: Column, first: int, last: int) -> Column:
    return (value < first) | (value > last)


def clock(value: Column, unit: Unit) -> Column:
    """Spell a number since midnight as ``HH:MM:SS[.f]``; any size and sign (MySQL's TIME reaches 838 h)."""
    value = value.cast("bigint")
    seconds = F.abs(div(value, unit.per_second))  # the lowest BIGINT itself has no opposite
    finer = F.abs(value % unit.per_second).cast("string")
    fraction = F.rtrim(F.lpad(finer, unit.digits, "0"), F.lit("0"))
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
        first = _PG_FIRST_DAY * _DAY_SECONDS * unit.per_second
        last = min(_PG_LAST_DAY * _DAY_SECONDS * unit.per_second, _POSITIVE_INFINITY) - 1
    return (
        F.when(value > last, "infinity")
        .when(value < first, "-infinity")
        .otherwise(_with_era(_spelled(value, unit)))
    )


def _spelled(value: Column, unit: Unit) -> Column:
    """Spell a number since the epoch, with all its digits."""
    text = ntz(unit.micros(value)).cast("string")
    if unit.per_second <= MICROS.per_second:
        return text
    finer = F.lpad(F.pmod(value, F.lit(1000)).cast("string"), 3, "0")
    micros = F.lpad(F.pmod(unit.micros(value), F.lit(1_000_000)).cast("string"), 6, "0")
    whole = F.substring_index(text, ".", 1)
    return F.when(finer == "000", text).otherwise(
        F.concat(whole, F.lit("."), micros, F.rtrim(finer, F.lit("0")))
    )


def iso_outside(text: Column) -> Column:
    """Return whether an ISO date or timestamp has no value in Spark.

    It is outside the years 0001 to 9999, ``infinity``, or one of MySQL's with a month or day of zero.
    """
    return F.substring(text, 1, 1).isin("+", "-", "i") | text.startswith("0000") | text.rlike(_ZERO_IN_DATE)


def day_of(text: Column) -> Column:
    """Convert an ISO date to DATE; null for any other text.

    A plain cast drops whatever follows a date, and adds a month or day that is missing.
    """
    return F.when(text.rlike(_DAY), shapes.moment(F.rtrim(F.rtrim(text), F.lit("Z")), "date"))


def is_moment(text: Column) -> Column:
    """Return whether a text begins like an ISO timestamp or is an ISO date (BOOLEAN).

    A plain cast takes a time without a date for a moment of today.
    """
    return text.rlike(_MOMENT) & ~text.rlike(_NO_ZONE)


def instant_of(text: Column) -> Column:
    """Convert an ISO timestamp to TIMESTAMP; null for any other text."""
    return F.when(is_moment(text), _instant(text))


def _instant(text: Column) -> Column:
    """Return the moment that a cast reads; null if its offset takes it out of the years 0001 to 9999."""
    moment = shapes.moment(_whole(text), "timestamp")

    def within(micros: Column) -> Column:
        return F.when(~outside(micros, *MICROS.bounds), F.timestamp_micros(micros))

    return F.when(text.rlike(_AT_AN_END), let(F.unix_micros(moment), within)).otherwise(moment)


def _whole(text: Column) -> Column:
    """Return an ISO timestamp in the form that a cast reads.

    ISO 8601 allows an offset without seconds before it (``10:15+02:00``), and Java appends the name of the
    zone (``+02:00[Europe/Berlin]``).
    """
    named = F.regexp_replace(text, _ZONE_IN_BRACKETS, "$1")
    plain = F.when(text.contains("["), named).otherwise(text)  # few have a name, and a search takes longer
    return F.regexp_replace(plain, _WITHOUT_SECONDS, "$1:00")


def local_of(text: Column) -> Column:
    """Convert an ISO timestamp, in UTC unless it has a zone, to TIMESTAMP_NTZ; null for any other text."""
    shifted = ntz(F.unix_micros(_instant(text)))
    local = F.when(text.rlike(_WITH_OFFSET), shifted).otherwise(shapes.moment(_whole(text), "timestamp_ntz"))
    return F.when(is_moment(text), local)


def may_be_finer(row: Column) -> Column:
    """Return whether a JSON row may have a time with digits below the microsecond, as text or number."""
    return row.rlike(_MAY_BE_FINER)


def is_finer(text: Column) -> Column:
    """Return whether an ISO timestamp has digits below the microsecond that are not 0 (BOOLEAN)."""
    return text.rlike(_FINER)


def iso_date_spelled(text: Column) -> Column:
    """Spell an ISO date as PostgreSQL does, including infinities."""
    return _iso_spelled(text, F.rtrim(text, F.lit("Z")), _PG_LAST_DATE_YEAR)


def iso_timestamp_spelled(text: Column, *, zoned: bool) -> Column:
    """Spell an ISO timestamp in UTC as PostgreSQL does, including infinities."""
    local = clock_of_iso(F.translate(text, "T", " "))
    return _iso_spelled(text, local, _PG_LAST_TIMESTAMP_YEAR, "+00" if zoned else "")


def _iso_spelled(text: Column, local: Column, last_year: int, zone: str = "") -> Column:
    year = shapes.whole(F.regexp_extract(text, r"^([-+]?\d+)-", 1))
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
        as_sent = text.rlike(_ZERO_IN_DATE)  # no calendar has it
        year = shapes.whole(F.regexp_extract(text, r"^-?\d+", 0), "int")
        rest = F.regexp_extract(text, r"(?s)^-?\d+(-.*)$", 1)
        before = F.concat(F.lpad((1 - year).cast("string"), 4, "0"), rest, F.lit(zone + " BC"))
        after = F.concat(F.ltrim(text, F.lit("+")), F.lit(zone))
        return F.when(as_sent, text).when(text.rlike("^(-|0000)"), before).otherwise(after)

    return let(iso, spell)
