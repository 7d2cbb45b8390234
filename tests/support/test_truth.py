"""The comparison itself: it accepts what its table of rules says, and nothing near it."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tests.support import records, truth

CAPTURES = Path(__file__).parents[1] / "fixtures" / "debezium"
TEXT, LONG, DOUBLE, NTZ, INSTANT = StringType(), LongType(), DoubleType(), TimestampNTZType(), TimestampType()
TSTZ, TS, TIME = "timestamp with time zone", "timestamp without time zone", "time without time zone"


def problems(
    kind: str, expected: Any, actual: Any, mirror: DataType | None, *, millis: bool = False
) -> list[str]:
    schema = StructType(
        [StructField("id", LONG)] + ([StructField("c", mirror)] if mirror is not None else [])
    )
    source = {"id": "integer", "c": kind}
    rows, expected_rows = [{"id": 1, "c": actual}], {(1,): {"id": 1, "c": expected}}
    return truth.diff(rows, expected_rows, source, schema, ("id",), millis=millis)


EQUAL: list[tuple[str, Any, Any, DataType]] = [
    ("bigint", 5, 5, LONG),
    ("oid", "5", 5, LONG),
    ("tinyint(1)", 1, True, BooleanType()),
    ("tinyint(1)", 0, 0, ShortType()),
    ("real", Decimal("3.4028235e38"), 3.4028234663852886e38, FloatType()),
    ("real", "NaN", float("nan"), FloatType()),
    ("double precision", "-Infinity", float("-inf"), DOUBLE),
    ("numeric(10,2)", Decimal("0.10"), Decimal("0.10"), DecimalType(10, 2)),
    ("numeric(10,2)", Decimal("0.10"), Decimal("0.1000"), DecimalType(14, 4)),
    ("numeric", Decimal("1.10"), "1.10", TEXT),
    ("numeric(10,2)", Decimal("12345678.90"), "SZYC0g==", TEXT),
    ("numeric", Decimal("12345.6789"), '{"scale":4,"value":"B1vNFQ=="}', TEXT),
    ("numeric(38,10)", Decimal("0.1"), 0.1, DOUBLE),
    ("numeric", "NaN", None, DecimalType(10, 2)),
    ("numeric", "NaN", "NaN", TEXT),
    ("money", "$1,234.56", Decimal("1234.56"), DecimalType(38, 2)),
    ("bit(1)", "1", True, BooleanType()),
    ("bit(8)", "00001011", "00001011", TEXT),
    ("bit(8)", "10101010", "qg==", TEXT),
    ("bit varying(16)", "1011", "0000000000001011", TEXT),
    ("bytea", "\\xdeadbeef00ff", bytearray.fromhex("deadbeef00ff"), BinaryType()),
    ("bytea", "\\xdeadbeef00ff", "3q2+7wD/", TEXT),
    ("bytea", "\\xdeadbeef00ff", "3q2-7wD_", TEXT),
    ("bytea", "\\xdeadbeef00ff", "deadbeef00ff", TEXT),
    ("date", "2026-02-28", date(2026, 2, 28), DateType()),
    ("date", "2026-02-28", 20512, LONG),
    ("date", "infinity", None, DateType()),
    ("date", "0044-03-15 BC", "0044-03-15 BC", TEXT),
    (TIME, "13:14:15.5", "13:14:15.5", TEXT),
    (TIME, "13:14:15.5", 47655500000, LONG),
    ("time(3) without time zone", "13:14:15.5", 47655500, LONG),
    ("time with time zone", "13:14:15.123456+05:30", "07:44:15.123456Z", TEXT),
    ("time with time zone", "23:59:59-12", "11:59:59Z", TEXT),
    (TS, "2026-02-28T13:14:15.123456", datetime(2026, 2, 28, 13, 14, 15, 123456), NTZ),
    ("datetime(6)", "2026-01-01 21:11:54.681836", datetime(2026, 1, 1, 21, 11, 54, 681836), NTZ),
    ("timestamp(3) without time zone", "1970-01-01T00:00:01.5", 1500, LONG),
    (TS, "0044-03-15T12:00:00 BC", "0044-03-15 12:00:00 BC", TEXT),
    (TSTZ, "1970-01-01T05:30:00+05:30", datetime(1970, 1, 1), INSTANT),
    (TSTZ, "1970-01-01T00:00:00+00:00", "1970-01-01T05:30:00+05:30", TEXT),
    ("interval", "1 year 2 mons 3 days 04:05:06.789", 37091106789000, LONG),
    ("interval", "1 year 2 mons 3 days 04:05:06.789", "P1Y2M3DT4H5M6.789S", TEXT),
    ("interval", "-1 days", "P0Y0M-1DT0H0M0S", TEXT),
    ("jsonb", {"a": [1, None]}, '{"a": [1,null]}', TEXT),
    ("json", None, "null", TEXT),
    ("longtext", {"a": 1}, '{"a":1}', TEXT),
    ("longtext", "plain", "plain", TEXT),
    ("point", "(1.5,-2.5)", {"x": 1.5, "y": -2.5}, StructType()),
    ("integer[]", [1, None], [1, None], ArrayType(LONG)),
    ("date[]", ["infinity", None], [None, None], ArrayType(DateType())),
    ("date[]", ["infinity", None], None, ArrayType(DateType())),
    ("text", None, None, TEXT),
]

DIFFERENT: list[tuple[str, Any, Any, DataType | None]] = [
    ("bigint", 9007199254740993, 9007199254740992, LONG),
    ("bigint", 5, None, LONG),
    ("bigint", None, 0, LONG),
    ("tinyint(1)", 1, False, BooleanType()),
    ("real", Decimal("1.5"), 1.5000002, FloatType()),
    ("double precision", Decimal("0.1"), 0.10000000000000002, DOUBLE),
    ("numeric(10,2)", Decimal("0.10"), Decimal("0.11"), DecimalType(10, 2)),
    ("numeric", Decimal("1.10"), "1.1", TEXT),
    ("numeric(10,2)", Decimal("12345678.91"), "SZYC0g==", TEXT),
    ("numeric", "NaN", "NaN?", TEXT),
    ("money", "$1,234.56", Decimal("1234.57"), DecimalType(38, 2)),
    ("bit(8)", "00001011", "1011", TEXT),
    ("bit varying(16)", "1011", "00001010", TEXT),
    ("character(5)", "ab   ", "ab", TEXT),
    ("text", "é", "e\u0301", TEXT),
    ("bytea", "\\x00", bytearray(b"\x01"), BinaryType()),
    ("date", "2026-02-28", date(2026, 3, 1), DateType()),
    ("date", "infinity", date(9999, 12, 31), DateType()),
    ("date", "infinity", None, TEXT),
    (TIME, "13:14:15.123456", "13:14:15.123", TEXT),
    (TIME, "13:14:15.5", "13:14:15.500", TEXT),
    ("time with time zone", "13:14:15+05:30", "13:14:15Z", TEXT),
    (TS, "2026-02-28T13:14:15.123456", datetime(2026, 2, 28, 13, 14, 15, 123000), NTZ),
    (TSTZ, "1970-01-01T05:30:00+05:30", datetime(1970, 1, 1, 5, 30), INSTANT),
    ("interval", "1 mon", 30 * 86_400_000_000, LONG),
    ("interval", "1 mon", "P0Y0M30DT0H0M0S", TEXT),
    ("jsonb", {"n": Decimal("1.10")}, '{"n": 1.2}', TEXT),
    ("jsonb", {"a": 1}, "not json", TEXT),
    ("integer[]", [1, None], [1], ArrayType(LONG)),
    ("integer[]", [1, 2], [2, 1], ArrayType(LONG)),
    ("integer[]", [], None, ArrayType(LONG)),
    ("text", "x", None, None),
    ("hyperplane", "x", "x", TEXT),
]


@pytest.mark.parametrize("case", EQUAL, ids=str)
def test_equal(case: tuple[str, Any, Any, DataType]) -> None:
    assert problems(*case) == []


@pytest.mark.parametrize("case", DIFFERENT, ids=str)
def test_different(case: tuple[str, Any, Any, DataType | None]) -> None:
    (problem,) = problems(*case)
    assert problem.startswith(f"row (1,), column c ({case[0]}): ")


def test_milliseconds_are_all_that_connect_mode_sends() -> None:
    cut = datetime(2026, 2, 28, 13, 14, 15, 123000)
    assert problems(TS, "2026-02-28T13:14:15.123456", cut, NTZ, millis=True) == []
    assert problems(TIME, "13:14:15.123456", "13:14:15.123", TEXT, millis=True) == []
    assert problems(TIME, "13:14:15.123456", "13:14:15.123456", TEXT, millis=True)


def test_rows_and_columns() -> None:
    schema = StructType([StructField(n, LONG) for n in ("id", "v", "__seq", "dropped")])
    expected = {(1,): {"id": 1, "v": 1, "late": None}, (2,): {"id": 2, "v": 2, "late": None}}
    source = {"id": "integer", "v": "integer", "late": "text"}
    row = {"id": 1, "v": 1, "__seq": 9, "dropped": 7}
    assert truth.diff([row, {**row, "id": 2, "v": 2}], expected, source, schema, ("id",)) == []
    found = truth.diff([row, row, {**row, "id": 3}], expected, source, schema, ("id",))
    assert found == [
        "row (1,): twice in the mirror",
        "row (2,): missing in the mirror",
        "row (3,): not in the source",
    ]


@pytest.mark.parametrize("scenario", sorted(path.name for path in CAPTURES.iterdir() if path.is_dir()))
def test_every_capture_has_keys_and_rules(scenario: str) -> None:
    kinds = truth.source_types(CAPTURES / scenario)
    keys = truth.primary_keys(records.read(CAPTURES / scenario / "jsons.jsonl.gz"))
    for table, columns in kinds.items():
        rows = truth.load_truth(CAPTURES / scenario / "truth" / f"{table}.jsonl", keys[table])
        assert rows
        assert set(columns) == set(next(iter(rows.values())))
        for kind in columns.values():
            assert truth._rule(kind)
