"""The statistics of files: their texts, and that they are valid."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakemirror.driver.rules import kinds
from lakemirror.driver.rules.kinds import Decimals
from lakemirror.driver.writer.schema import Column, Group, ListOf, Type, arrow_schema
from lakemirror.driver.writer.statistics import indexed, of_count, of_rows, widened

_DAY = 86_400_000_000
_YEAR_10000 = 253_402_300_800_000_000
_YEAR_1 = -62_135_596_800_000_000


def bounds(kind: Type, *values: Any) -> tuple[Any, Any] | None:
    """The bounds of a column as the text has them."""
    column = Column("c", kind, metadata={"delta.columnMapping.physicalName": "p"})
    [field] = arrow_schema([column])
    plain = pa.int64() if pa.types.is_timestamp(field.type) else None
    plain = pa.int32() if pa.types.is_date(field.type) else plain
    array = pa.array(values, plain).cast(field.type) if plain else pa.array(values, field.type)
    told = json.loads(of_rows(pa.table({"c": array}), [column], {"c"}), parse_float=str)
    assert told["numRecords"] == len(values)
    assert told["nullCount"] == {"p": values.count(None)}
    assert told["minValues"].keys() == told["maxValues"].keys()
    return (told["minValues"]["p"], told["maxValues"]["p"]) if told["minValues"] else None


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (kinds.BIGINT, (3, None, -(2**63)), (-(2**63), 3)),
        (kinds.TINYINT, (-128, 127), (-128, 127)),
        (kinds.DOUBLE, (0.1, 1e300), ("0.1", "1e+300")),
        (kinds.DOUBLE, (0.0,), ("-0.0", "0.0")),
        (kinds.DOUBLE, (-0.0, 5.0), ("-0.0", "5.0")),
        (kinds.DOUBLE, (1.0, float("nan")), None),
        (kinds.DOUBLE, (1.0, float("inf")), None),
        (kinds.FLOAT, (float("nan"), None), None),
        (kinds.FLOAT, (0.5, 16777216.0), ("0.5", "16777216.0")),
        (Decimals(38, 2), (Decimal("9" * 36 + ".99"), Decimal("-0.01")), ("-0.01", "9" * 36 + ".99")),
        (Decimals(38, 38), (Decimal("1e-38"),), ("0." + "0" * 37 + "1",) * 2),
        (kinds.DATE, (0, -1, None), ("1969-12-31", "1970-01-01")),
        (kinds.DATE, (_YEAR_1 // _DAY, _YEAR_10000 // _DAY - 1), ("0001-01-01", "9999-12-31")),
        (kinds.DATE, (0, _YEAR_10000 // _DAY), None),
        (kinds.DATE, (_YEAR_1 // _DAY - 1, 0), None),
        (kinds.TIMESTAMP, (1, 1_001), ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.002Z")),
        (kinds.TIMESTAMP, (-1,), ("1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")),
        (kinds.TIMESTAMP, (2_000,), ("1970-01-01T00:00:00.002Z",) * 2),
        (kinds.TIMESTAMP, (_YEAR_10000 - 1,), None),
        (kinds.TIMESTAMP_NTZ, (-1_000,), ("1969-12-31T23:59:59.999",) * 2),
        (kinds.TIMESTAMP_NTZ, (2**63 - 1, -(2**63)), None),
        (kinds.STRING, ("b", "", None), ("", "b")),
        (kinds.STRING, ("\uffff", "\U0001f600"), ("\uffff", "\U0001f600")),
        (kinds.STRING, ("a" * 32,), ("a" * 32,) * 2),
        (kinds.STRING, ("a" * 33,), ("a" * 32, "a" * 32 + "\x7f")),
        (kinds.STRING, ("a" * 32 + "\x7f",), ("a" * 32, "a" * 32 + "\U0010ffff")),
        (kinds.STRING, ("a" * 32 + "\U0010ffff" + "b",), ("a" * 32, "a" * 32 + "\U0010ffff\x7f")),
        (kinds.STRING, ("\U0010ffff" * 40,), ("\U0010ffff" * 32, "\U0010ffff" * 40)),
        (kinds.STRING, ("\U0010ffff" * 65,), None),
        (kinds.STRING, (None,), None),
        (kinds.BINARY, (b"a",), None),
        (kinds.BOOLEAN, (True,), None),
        (ListOf(kinds.INT), ([1],), None),
    ],
)
def test_bounds(kind: Type, values: tuple[Any, ...], expected: tuple[Any, Any] | None) -> None:
    assert bounds(kind, *values) == expected


def test_the_text() -> None:
    columns = [Column("a", kinds.INT), Column("s", Group((Column("x", kinds.INT),))), Column("b", kinds.INT)]
    table = pa.Table.from_pylist([{"a": 1, "s": None, "b": 2}], arrow_schema(columns))
    assert of_rows(table, columns, {"a", "s"}) == (
        '{"numRecords":1,"minValues":{"a":1},"maxValues":{"a":1},"nullCount":{"a":0},"tightBounds":true}'
    )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, {"a", "s", "b", "odd, `name`"}),
        ({"delta.dataSkippingNumIndexedCols": "-1"}, {"a", "s", "b", "odd, `name`"}),
        ({"delta.dataSkippingNumIndexedCols": "0"}, set()),
        ({"delta.dataSkippingNumIndexedCols": "2"}, {"a"}),  # a struct has two
        ({"delta.dataSkippingNumIndexedCols": "3"}, {"a", "s"}),
        ({"delta.dataSkippingStatsColumns": "A, `odd, ``name```"}, {"a", "odd, `name`"}),
        (
            {"delta.dataSkippingStatsColumns": "b,`p`", "delta.dataSkippingNumIndexedCols": "0"},
            {"b"},
        ),
    ],
)
def test_which_columns(properties: dict[str, str], expected: set[str]) -> None:
    columns = [
        Column("p", kinds.INT),
        Column("a", kinds.INT),
        Column("s", Group((Column("x", kinds.INT), Column("y", kinds.INT)))),
        Column("b", kinds.INT, metadata={"delta.columnMapping.physicalName": "col-b"}),
        Column("odd, `name`", kinds.INT),
    ]
    assert indexed(columns, {"p"}, properties) == expected
    assert indexed(columns, {"p"}, properties, ["col-b"]) == expected | {"b"}


def test_bounds_of_hidden_rows_keep_their_digits() -> None:
    digits = "9" * 36 + ".99"
    text = f'{{"numRecords":3,"maxValues":{{"tightBounds":{digits}}},"tightBounds":true}}'
    assert widened(text) == text.replace(":true", ":false")
    assert widened(of_count(7)) == '{"numRecords":7,"tightBounds":false}'
    with pytest.raises(ValueError, match="number of rows"):
        widened(None)
