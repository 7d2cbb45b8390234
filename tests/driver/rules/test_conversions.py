"""A value of one type as one of another: exactly, with its text, or not at all."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from lakemirror.driver.rules import numbers
from lakemirror.driver.rules.conversions import MISFIT, Read, convert
from lakemirror.driver.rules.keys import encode_row
from lakemirror.driver.rules.kinds import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    VARIANT,
    Arrays,
    Decimals,
    Kind,
)

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

MONEY = Decimals(5, 2)
INFINITE = float("inf")
NOON = datetime(2024, 2, 29, 12, 0, 0, 500_000)


def lost(text: str) -> Read:
    return Read(is_lost=True, text=text)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (None, STRING, INT, Read(None)),
        ("same", STRING, STRING, Read("same")),
        # truth values
        (True, BOOLEAN, STRING, Read("true")),
        (False, BOOLEAN, STRING, Read("false")),
        (True, BOOLEAN, INT, Read(1)),
        (True, BOOLEAN, MONEY, Read(Decimal("1.00"))),
        (True, BOOLEAN, DOUBLE, Read(1.0)),
        (True, BOOLEAN, DATE, MISFIT),
        (1, INT, BOOLEAN, Read(True)),
        (0, INT, BOOLEAN, Read(False)),
        (2, INT, BOOLEAN, MISFIT),
        (1.0, DOUBLE, BOOLEAN, MISFIT),
        # whole numbers
        (127, INT, TINYINT, Read(127)),
        (128, INT, TINYINT, MISFIT),
        (-128, INT, TINYINT, Read(-128)),
        (-129, INT, TINYINT, MISFIT),
        (2**15, INT, SMALLINT, MISFIT),
        (2**63 - 1, Decimals(38, 0), BIGINT, Read(2**63 - 1)),
        (2**63, Decimals(38, 0), BIGINT, MISFIT),
        (2.0, DOUBLE, INT, Read(2)),
        (2.5, DOUBLE, INT, MISFIT),
        (INFINITE, DOUBLE, INT, MISFIT),
        (-INFINITE, DOUBLE, INT, MISFIT),
        (math.nan, DOUBLE, INT, MISFIT),
        (5, INT, DATE, MISFIT),
        (5, INT, Arrays(INT), MISFIT),
        # decimals
        (5, INT, MONEY, Read(Decimal("5.00"))),
        (999, INT, MONEY, Read(Decimal("999.00"))),
        (1000, INT, MONEY, lost("1000")),
        (0.1, DOUBLE, MONEY, Read(Decimal("0.10"))),
        (0.125, DOUBLE, MONEY, lost("0.125")),
        (1e300, DOUBLE, MONEY, lost("1.0E300")),
        (math.nan, DOUBLE, MONEY, lost("NaN")),
        (INFINITE, DOUBLE, MONEY, lost("Infinity")),
        (-INFINITE, DOUBLE, MONEY, lost("-Infinity")),
        (Decimal("1.10"), Decimals(4, 2), Decimals(4, 1), Read(Decimal("1.1"))),
        (Decimal("1.50"), Decimals(4, 2), Decimals(4, 0), lost("1.50")),
        # floats
        (16_777_216, INT, FLOAT, Read(16_777_216.0)),
        (16_777_217, INT, FLOAT, MISFIT),
        (2**53 + 1, BIGINT, DOUBLE, MISFIT),
        (16_777_217, INT, DOUBLE, Read(16_777_217.0)),
        (Decimal("0.5"), MONEY, DOUBLE, Read(0.5)),
        (Decimal("0.1"), MONEY, DOUBLE, MISFIT),
        (0.5, DOUBLE, FLOAT, Read(0.5)),
        (0.1, DOUBLE, FLOAT, MISFIT),
        (INFINITE, DOUBLE, FLOAT, Read(INFINITE)),
        (10**400, Decimals(38, 0), DOUBLE, MISFIT),
        # texts of numbers
        ("1.5", STRING, MONEY, Read(Decimal("1.50"))),
        ("1.555", STRING, MONEY, lost("1.555")),
        ("NaN", STRING, MONEY, lost("NaN")),
        ("-Infinity", STRING, MONEY, lost("-Infinity")),
        ("1,5", STRING, MONEY, MISFIT),
        ("1.5", STRING, DOUBLE, Read(1.5)),
        ("Infinity", STRING, DOUBLE, Read(INFINITE)),
        ("+Infinity", STRING, DOUBLE, Read(INFINITE)),
        ("-Infinity", STRING, FLOAT, Read(-INFINITE)),
        ("POSITIVE_INFINITY", STRING, DOUBLE, MISFIT),
        ("0.123456789012345678", STRING, DOUBLE, MISFIT),
        (" 12 ", STRING, INT, Read(12)),
        ("1.0", STRING, INT, MISFIT),
        ("128", STRING, TINYINT, MISFIT),
        ("\uff11\uff12", STRING, INT, MISFIT),  # digits, but not those of ASCII
        ("0" * (numbers.LONGEST - 1), STRING, INT, Read(0)),
        ("0" * numbers.LONGEST, STRING, INT, MISFIT),
        # other texts
        (" Yes", STRING, BOOLEAN, Read(True)),
        ("t", STRING, BOOLEAN, Read(True)),
        ("0", STRING, BOOLEAN, Read(False)),
        ("NO", STRING, BOOLEAN, Read(False)),
        ("on", STRING, BOOLEAN, MISFIT),
        ("2024-02-29", STRING, DATE, Read(date(2024, 2, 29))),
        ("2023-02-29", STRING, DATE, MISFIT),
        ("2024-02-29T12:00:00.5", STRING, TIMESTAMP_NTZ, Read(NOON)),
        ("2024-02-29T14:00:00.5+02:00", STRING, TIMESTAMP, Read(NOON.replace(tzinfo=UTC))),
        ("2024-02-29T12:00:00.5000001", STRING, TIMESTAMP_NTZ, Read(NOON, is_rounded=True)),
        ("noon", STRING, TIMESTAMP, MISFIT),
        ('{"a":[1.5]}', STRING, VARIANT, Read({"a": [Decimal("1.5")]})),
        ("1e308", STRING, VARIANT, Read(Decimal("1e308"))),
        ("1e309", STRING, VARIANT, MISFIT),
        ("{", STRING, VARIANT, MISFIT),
        ('[{"a":1e309}]', STRING, VARIANT, MISFIT),
        ("9" * 400, STRING, VARIANT, MISFIT),
        ("9" * 5000, STRING, VARIANT, MISFIT),
        ("1e99999999999999999999", STRING, VARIANT, MISFIT),
        ("1e-99999999999999999999", STRING, VARIANT, Read(Decimal(0))),
        ("NaN", STRING, VARIANT, MISFIT),
        ("[-Infinity]", STRING, VARIANT, MISFIT),
        ('{"a":1,"a":2}', STRING, VARIANT, MISFIT),
        ('[{"a":{"b":1,"b":1}}]', STRING, VARIANT, MISFIT),
        ('{"a":{"a":1}}', STRING, VARIANT, Read({"a": {"a": 1}})),
        ("AA==", STRING, BINARY, MISFIT),
        # days and moments
        (date(2024, 2, 29), DATE, STRING, Read("2024-02-29")),
        (date(5, 1, 2), DATE, STRING, Read("0005-01-02")),
        (date(2024, 2, 29), DATE, TIMESTAMP_NTZ, Read(datetime(2024, 2, 29))),
        (date(2024, 2, 29), DATE, TIMESTAMP, Read(datetime(2024, 2, 29, tzinfo=UTC))),
        (date(2024, 2, 29), DATE, INT, MISFIT),
        (NOON, TIMESTAMP_NTZ, STRING, Read("2024-02-29 12:00:00.5")),
        (NOON, TIMESTAMP_NTZ, DATE, MISFIT),
        (b"\0", BINARY, STRING, MISFIT),
    ],
)
def test_a_value_keeps_what_it_is_or_is_refused(
    value: Any, source: Kind, target: Kind, expected: Read
) -> None:
    found = convert(value, source, target)
    assert found == expected
    assert type(found.value) is type(expected.value)
    if isinstance(target, Decimals) and found.value is not None:
        assert encode_row({"v": found.value}, {"v": target}) == f'{{"v":"{expected.value}"}}'


@pytest.mark.parametrize("target", [FLOAT, DOUBLE])
def test_what_is_no_number_stays_what_it_is(target: Kind) -> None:
    for value in ("NaN", math.nan):
        found = convert(value, STRING if value == "NaN" else TIMESTAMP, target).value
        assert math.isnan(found)
