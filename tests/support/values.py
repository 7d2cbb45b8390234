"""One table of types and values: what a mirror's columns can hold, at the ends and in the middle."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

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
    Arrays,
    Decimals,
    Kind,
    Maps,
    Structs,
)

INF = float("inf")
NAN = float("nan")
TEXTS = [
    "",
    "a",
    "żółw",
    'quote " and \\ backslash',
    "\x00\x01\b\t\n\f\r\x1f\x7f",
    "\\u001f",
    "\u2028",
    "🐢",
    "a/b",
    "null",
    "[1,2]",
    " 1 ",
]
DAYS = [
    date(1, 1, 1),
    date(1582, 10, 4),
    date(1969, 12, 31),
    date(1970, 1, 1),
    date(2024, 2, 29),
    date(9999, 12, 31),
]
MOMENTS = [
    datetime(1, 1, 1),
    datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime(1970, 1, 1),
    datetime(2026, 1, 2, 3, 4, 5, 6),
    datetime(2026, 1, 2, 3, 4, 5, 600000),
    datetime(9999, 12, 31, 23, 59, 59, 999999),
]

VALUES: list[tuple[Kind, list[Any]]] = [
    (BOOLEAN, [True, False]),
    (TINYINT, [-128, 0, 127]),
    (SMALLINT, [-32768, 0, 32767]),
    (INT, [-(2**31), -1, 0, 42, 2**31 - 1]),
    (BIGINT, [-(2**63), -1, 0, 42, 2**53 + 1, 2**63 - 1]),
    (Decimals(38, 0), [Decimal(0), Decimal(10**37), Decimal(-(10**38) + 1)]),
    (Decimals(10, 2), [Decimal("0.00"), Decimal("1.10"), Decimal("100.00"), Decimal("-99999999.99")]),
    (
        Decimals(38, 18),
        [Decimal("1e-18"), Decimal("-0.1"), Decimal("12345678901234567890.123456789012345678")],
    ),
    (Decimals(38, 38), [Decimal("1e-38"), Decimal("0." + "9" * 38)]),
    (
        FLOAT,
        [
            0.0,
            -0.0,
            1.5,
            -2.0,
            0.10000000149011612,
            1.401298464324817e-45,
            3.4028234663852886e38,
            NAN,
            INF,
            -INF,
        ],
    ),
    (
        DOUBLE,
        [
            *(0.0, -0.0, 1.0, 1.5, 0.1, -1e300, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308),
            *(9007199254740993.0, 9.223372036854775e18, 9.223372036854776e18, -9.223372036854776e18),
            *(NAN, INF, -INF, 123456789.125),
        ],
    ),
    (STRING, TEXTS),
    (BINARY, [b"", b"\x00", b"\xff\x80abc"]),
    (DATE, DAYS),
    (TIMESTAMP_NTZ, MOMENTS),
    (TIMESTAMP, [each.replace(tzinfo=UTC) for each in MOMENTS]),
    (Arrays(INT), [[], [1], [1, None, 3]]),
    (Arrays(STRING), [["a", None, "ż"]]),
    (Arrays(Arrays(DOUBLE)), [[[1.0], [], None, [0.5, -0.0]]]),
    (
        Structs((("a", INT), ("b", STRING))),
        [{"a": 1, "b": "x"}, {"a": None, "b": "x"}, {"a": None, "b": None}],
    ),
    (Structs((("x", DOUBLE), ("at", TIMESTAMP_NTZ))), [{"x": 1.0, "at": MOMENTS[3]}]),
    (Maps(STRING, INT), [{}, {"b": 1, "a": 2, "c": None}]),
    (Maps(INT, Structs((("v", Decimals(5, 1)),))), [{10: {"v": Decimal("1.0")}, 9: {"v": None}}]),
    (Arrays(Maps(STRING, DATE)), [[{"d": DAYS[0]}, None]]),
]
"""By type: values that Spark, its files and the rules have to agree on. Null is one of each type."""

RECORDS: list[tuple[Any, ...]] = [
    ("t", 0, 5, None, None, b"{}", b'{"a":1}'),
    ("t", 0, 6, None, None, None, None),
    (None, None, None, 's3://b/żółw \\ ".jsonl', 7, None, b"\xff\x00"),
]
HASHED: list[list[str | int | None]] = [
    [],
    [None],
    ["", 0],
    ["a", None, 5],
    ["x" * n for n in range(1, 70, 3)],
    [2**63 - 1, -(2**63), -1],
    ["żółw" * 20, "c"],
]
