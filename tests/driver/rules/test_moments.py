"""Days, times and moments as numbers and as text, and what PostgreSQL spells that no mirror has."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from lakemirror.driver.rules import moments
from lakemirror.driver.rules.moments import MICROS, MILLIS, NANOS, Unit

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)


def test_every_day_of_the_calendar_is_spelled_as_it_is() -> None:
    first, last = date.min.toordinal() - 719163, date.max.toordinal() - 719163
    assert (first, last) == (moments.FIRST_DAY, moments.LAST_DAY)
    centuries = [date(year, 3, 1).toordinal() - 719163 for year in range(100, 10_000, 100)]
    ends_of_february = [days - before for days in centuries for before in range(3)]
    ends_of_years = [date(year, 12, 31).toordinal() - 719163 for year in range(100, 10_000, 100)]
    some = (*range(first, last, 367), *range(-1000, 40_000, 11), first, last)
    for days in (*some, *ends_of_february, *ends_of_years):
        expected = date.fromordinal(days + 719163)
        assert moments.days_spelled(days) == f"{expected.year:04}-{expected.month:02}-{expected.day:02}"
        assert moments.day(days) == expected


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (-719163, "0001-12-31 BC"),
        (-719528, "0001-01-01 BC"),
        (-719529, "0002-12-31 BC"),
        (2932897, "10000-01-01"),
        (-2440588, "4714-11-24 BC"),
        (-2440589, "-infinity"),
        (2145042905, "5874897-12-31"),
        (2145042906, "infinity"),
    ],
)
def test_days_beyond_a_mirrors_years_are_spelled_as_postgresql_does(days: int, text: str) -> None:
    assert moments.days_spelled(days) == text


DAY = 86400


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, MILLIS, "1970-01-01 00:00:00"),
        (-1, MILLIS, "1969-12-31 23:59:59.999"),
        (1_500_000, MICROS, "1970-01-01 00:00:01.5"),
        (1, NANOS, "1970-01-01 00:00:00.000000001"),
        (-62135596800000, MILLIS, "0001-01-01 00:00:00"),
        (-62135596800001, MILLIS, "0001-12-31 23:59:59.999 BC"),
        (-2440588 * DAY * 1000, MILLIS, "4714-11-24 00:00:00 BC"),
        (-2440588 * DAY * 1000 - 1, MILLIS, "-infinity"),
        (-2440588 * DAY * 1_000_000, MICROS, "4714-11-24 00:00:00 BC"),
        (106762940 * DAY * 1000 - 1, MILLIS, "294276-12-31 23:59:59.999"),
        (106762940 * DAY * 1000, MILLIS, "infinity"),
        (9223372036825199999, MICROS, "294247-01-10 04:00:25.199999"),
        (9223372036825200000, MICROS, "infinity"),  # PGStatement.DATE_POSITIVE_INFINITY
        (2**63 - 2, NANOS, "2262-04-11 23:47:16.854775806"),
        (2**63 - 1, NANOS, "infinity"),
        (-(2**63) + 1, NANOS, "1677-09-21 00:12:43.145224193"),
        (-(2**63), NANOS, "-infinity"),
    ],
)
def test_moments_are_spelled_as_postgresql_does(number: int, unit: Unit, text: str) -> None:
    assert moments.timestamp_spelled(number, unit) == text


@pytest.mark.parametrize(
    ("number", "unit", "text"),
    [
        (0, MILLIS, "00:00:00"),
        (86_399_999, MILLIS, "23:59:59.999"),
        (3_600_000, MILLIS, "01:00:00"),
        (60_000, MILLIS, "00:01:00"),
        (1, MICROS, "00:00:00.000001"),
        (1500, NANOS, "00:00:00.0000015"),
        (-3_020_399_000_000, MICROS, "-838:59:59"),  # MySQL's TIME
        (-1, MICROS, "-00:00:00.000001"),
    ],
)
def test_a_time_of_day_has_the_digits_that_it_needs(number: int, unit: Unit, text: str) -> None:
    assert moments.clock(number, unit) == text


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("13:14:15Z", "13:14:15"),
        ("13:14:15.120Z", "13:14:15.12"),
        ("13:14:15.000Z", "13:14:15"),
        ("13:14:15.000", "13:14:15"),
        ("13:14:15.100", "13:14:15.1"),
        ("13:14:15", "13:14:15"),
        ("10:20:30Z", "10:20:30"),
    ],
)
def test_an_iso_time_loses_its_zeros_and_its_zone(sent: str, text: str) -> None:
    assert moments.clock_of_iso(sent) == text


def test_a_number_is_within_a_mirrors_years_or_not() -> None:
    for unit in (MILLIS, MICROS):
        first = (datetime(1, 1, 1) - datetime(1970, 1, 1)) // timedelta(
            microseconds=1_000_000 // unit.per_second
        )
        last = 253402300800 * unit.per_second - 1
        assert unit.bounds == (first, last)
        assert [moments.is_outside(each, unit) for each in (first - 1, first, last, last + 1)] == [
            *(True, False),
            *(False, True),
        ]
    assert NANOS.bounds == (-(2**63) + 1, 2**63 - 2), "the ends are PostgreSQL's infinities"


def test_what_is_finer_than_a_microsecond_is_rounded_down() -> None:
    assert [NANOS.micros(each) for each in (1999, 1000, 999, -1)] == [1, 1, 0, -1]
    assert (MILLIS.micros(5), MICROS.micros(5)) == (5000, 5)
    assert moments.moment(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999)


@pytest.mark.parametrize(
    ("text", "is_outside"),
    [
        ("2024-02-29", False),
        ("2024-10-10", False),
        ("0001-01-01", False),
        ("0000-12-31", True),
        ("+10000-01-01", True),
        ("-0001-01-01", True),
        ("infinity", True),
        ("-infinity", True),
        ("2024-00-10", True),
        ("2024-10-00", True),
        ("", False),
    ],
)
def test_an_iso_text_may_have_no_value_in_a_mirror(text: str, is_outside: bool) -> None:
    assert moments.iso_is_outside(text) == is_outside


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2024-02-29", date(2024, 2, 29)),
        (" 2024-2-9 Z ", date(2024, 2, 9)),
        ("2023-02-29", None),
        ("2024-13-01", None),
        ("24-01-01", None),
        ("2024-02-29T00:00:00", None),
        ("today", None),
    ],
)
def test_a_day_is_an_iso_date_and_nothing_else(text: str, day: date | None) -> None:
    assert moments.day_of(text) == day


@pytest.mark.parametrize(
    "text",
    [
        "2024-02-29T12:00:00Z",
        "2024-02-29T12:00:00",
        "2024-02-29 12:00",
        "2024-02-29T12:00:00.000000999Z",
        "2024-2-29T12:0:0 UTC",
        "2024-02-29T12:00:00 UT",
        "2024-02-29T14:00:00+02:00",
        "2024-02-29T14:00+02:00",
        "2024-02-29T14:00:00+0200",
        "2024-02-29T14:00:00+2",
        "2024-02-29T14:00:00 GMT+2",
        "2024-02-29T06:29:15-05:30:45",
        "2024-02-29T13:00:00+01:00[Europe/Berlin]",
        "2024-02-29T12:00:00Z[UTC]",
        "2024-02-29T13:00:00 Europe/Berlin",
        "2024-02-29 13:00 Europe/Berlin",
        "2024-02-29 13:0 GMT+1:00",
        "2024-03-01T06:00:00+18:00",
        "2024-02-28T18:00:00-18:00",
    ],
)
def test_an_instant_is_in_utc_unless_it_has_a_zone(text: str) -> None:
    assert moments.instant_of(text) == NOON
    assert moments.local_of(text) == NOON.replace(tzinfo=None)


@pytest.mark.parametrize(
    "text",
    [
        "noon",
        "12:00:00",
        "2023-02-29T12:00:00Z",
        "2024-02-29T25:00:00Z",
        "2024-02-29T12:60:00Z",
        "2024-02-29T12:00:00+18:01",
        "2024-02-29T12:00:00+19",
        "2024-02-29T12:00:00+01:60",
        "2024-02-29T12:00:00+01:5",
        "2024-02-29T12:00:00+12345",
        "2024-02-29T12:00:00 Nowhere/None",
        "2024-02-29T12:00:00 BST",
        "2024-02-29T12:00:00 CST",
        "2024-02-29T12:00:00 localtime",
        "2024-02-29T 12:00:00",
        "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00",
    ],
)
def test_what_is_no_instant_has_none(text: str) -> None:
    assert moments.instant_of(text) is None
    assert moments.local_of(text) is None


def test_a_date_alone_is_its_midnight_and_digits_below_the_microsecond_are_cut() -> None:
    assert moments.instant_of("2024-02-29") == datetime(2024, 2, 29, tzinfo=UTC)
    for digits, micros in (("5", 500_000), ("123456", 123_456), ("1234569", 123_456), ("", 0)):
        found = moments.instant_of(f"2024-02-29T12:00:00.{digits}Z")
        assert found == NOON.replace(microsecond=micros)


def test_instants_as_connectors_write_them_are_the_same_read_fast() -> None:
    for text in ("2024-02-29T12:00:00Z", "2024-02-29T12:00:00.500Z", "2024-02-29T12:00:00.000001Z"):
        assert moments.plain_instant(text) == moments.instant_of(text)
    for text in (
        "2024-02-29T12:00:00",
        "2024-02-29T12:00:00.5Z",
        "2023-02-29T12:00:00Z",
        "2024-02-29T12:00:61Z",
    ):
        assert moments.plain_instant(text) is None


@pytest.mark.parametrize(
    ("text", "is_finer"),
    [
        ("2024-02-29T12:00:00.123456Z", False),
        ("2024-02-29T12:00:00.123456000Z", False),
        ("2024-02-29T12:00:00.1234567Z", True),
        ("2024-02-29T12:00:00.123456001Z", True),
        ("2024-02-29", False),
    ],
)
def test_digits_below_the_microsecond_count_if_they_are_not_zero(text: str, is_finer: bool) -> None:
    assert moments.is_finer(text) == is_finer


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("2024-02-29Z", "2024-02-29"),
        ("+10000-01-01Z", "10000-01-01"),
        ("+5874897-12-31Z", "5874897-12-31"),
        ("+5874898-01-01Z", "infinity"),
        ("0000-03-01Z", "0001-03-01 BC"),
        ("-0043-03-15Z", "0044-03-15 BC"),
        ("-4713-11-24Z", "4714-11-24 BC"),
        ("-4714-01-01Z", "-infinity"),
        ("2024-00-10Z", "2024-00-10"),
        ("infinity", "infinity"),
    ],
)
def test_iso_dates_are_spelled_as_postgresql_does(sent: str, text: str) -> None:
    assert moments.iso_date_spelled(sent) == text


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("2024-02-29T12:00:00.500Z", "2024-02-29 12:00:00.5"),
        ("+294276-12-31T00:00:00Z", "294276-12-31 00:00:00"),
        ("+294277-01-01T00:00:00Z", "infinity"),
        ("-0043-03-15T00:00:00Z", "0044-03-15 00:00:00 BC"),
        ("-4714-01-01T00:00:00Z", "-infinity"),
        ("2024-00-10T00:00:00Z", "2024-00-10 00:00:00"),
    ],
)
def test_iso_moments_are_spelled_as_postgresql_does(sent: str, text: str) -> None:
    assert moments.iso_timestamp_spelled(sent, zoned=False) == text
    if text[0].isdigit() and "-00-" not in text:
        first, bc, _ = text.partition(" BC")
        assert moments.iso_timestamp_spelled(sent, zoned=True) == f"{first}+00{bc}"


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("2024-02-29T14:00:00.5+02:00", "2024-02-29 12:00:00.5+00"),
        ("2024-02-29T12:00:00.123456700Z", "2024-02-29 12:00:00.1234567+00"),
        ("2024-02-29T12:00:00Z", "2024-02-29 12:00:00+00"),
        ("+10000-01-01T00:00:00Z", "10000-01-01 00:00:00+00"),
        ("noon", "noon"),
    ],
)
def test_an_instant_is_spelled_in_utc_with_all_its_digits(sent: str, text: str) -> None:
    assert moments.instant_spelled(sent) == text
