"""Values on the wire become the values of the mirror that the driver makes of them, or are named.

The golden files are what the driver made of each value with Spark (`tests.support.golden`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakemirror.driver.rules import texts, types, untyped
from lakemirror.driver.rules.conversions import Read
from lakemirror.driver.rules.keys import encode, encode_row
from lakemirror.driver.rules.kinds import TIMESTAMP, Decimals, Kind
from lakemirror.driver.rules.schemas import Field, field_of
from lakemirror.driver.rules.types import kind_of
from tests.support.wires import FIELDS, UNTYPED

pytestmark = pytest.mark.guarantee(
    "A value of each type of Debezium is the same in the rules and in the driver: exact, text, or refused"
)

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> Any:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def shown(found: Read, kind: Kind) -> list[Any]:
    """What a reading gave, as the golden files hold it."""
    refused = found.is_misfit or found.is_doubtful
    value = None if refused else encode_row({"v": found.value}, {"v": kind})
    return [value, found.is_gap, found.is_lost, found.text, refused, found.is_rounded, found.is_doubtful]


def expected(row: list[Any]) -> list[Any]:
    """The value of a record that is refused is nobody's."""
    value, gap, lost, text, refused, rounded, doubt = row
    refused = refused or doubt
    return [
        None if refused else value,
        gap,
        lost and not refused,
        None if refused else text,
        refused,
        rounded and not refused and not lost,
        doubt,
    ]


OF_FIELDS = [(i, j) for i, (_, _, each) in enumerate(FIELDS) for j in range(len(each) + 1)]
UNLIKE: dict[tuple[int, str], str] = {}


def wire_of(texts: list[str], j: int) -> str:
    return ["null", *texts][j]


def field(i: int) -> tuple[Field, Kind]:
    schema, kind, _ = FIELDS[i]
    found = field_of(schema)
    return found, kind or kind_of(found)


@pytest.mark.parametrize(
    "i",
    range(len(FIELDS)),
    ids=[f"{s['type']} {s.get('name', '').rpartition('.')[2]} {k or ''}" for s, k, _ in FIELDS],
)
def test_a_value_of_a_field_is_read_as_the_driver_reads_it(i: int) -> None:
    found, kind = field(i)
    rows = golden("fields")[i]["rows"]
    for j, row in enumerate(rows):
        text = wire_of(FIELDS[i][2], j)
        assert shown(types.read(untyped.loads(text), found, kind), kind) == expected(row), text


@pytest.mark.parametrize("i", range(len(UNTYPED)), ids=[f"{kind} {writing}" for kind, writing, _ in UNTYPED])
def test_a_value_without_a_schema_is_read_as_the_driver_reads_it(i: int) -> None:
    kind, writing, wires = UNTYPED[i]
    rows = golden("untyped")[i]["rows"]
    for j, row in enumerate(rows):
        text = wire_of(wires, j)
        assert shown(untyped.read(untyped.loads(text), kind, getattr(texts, writing)), kind) == expected(
            row
        ), text


@pytest.mark.parametrize("kind", ["float", "double"])
def test_an_integer_beyond_all_floats_is_infinite(kind: str) -> None:
    """Spark reads it so (`from_json`)."""
    field = field_of({"type": kind, "field": "v"})
    found = [types.read(value, field).value for value in (10**900, -(10**900))]
    assert found == [float("inf"), float("-inf")]


@pytest.mark.parametrize("zone", ["America", "x" * 300])
def test_a_zone_that_is_a_folder_or_no_name_of_a_file_is_none(zone: str) -> None:
    assert untyped.read(f"2024-01-01T00:00:00 {zone}", TIMESTAMP).is_misfit


def test_a_decimal_of_zero_has_no_sign() -> None:
    kind = Decimals(10, 2)
    for text in ("-0", "-0.0", '"-0.00"'):
        found = untyped.read(untyped.loads(text), kind).value
        assert repr(found) == "Decimal('0.00')", text
        assert encode({"k": found}, {"k": kind}) == '["0"]'
