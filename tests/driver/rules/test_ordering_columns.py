"""The order of changes by columns: which value comes before which, and what has no place."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from lakemirror.driver.rules.envelopes.custom import Fields, classify
from lakemirror.driver.rules.envelopes.records import Change, Ordering, Record, Settings, TableName, Truncate
from lakemirror.driver.rules.ordering_columns import in_order
from lakemirror.driver.rules.positions import Epoch, Origin, Source
from lakemirror.driver.rules.schemas import field_at, field_of
from lakemirror.driver.rules.untyped import loads
from tests.support.ordered_values import IN_ORDER

pytestmark = pytest.mark.guarantee(
    "A mirror equals its source after any delivery, also when columns of the rows define the order"
)

HERE = Origin("t", 0, 7)
TABLE = TableName(None, "s", "t")
BECAUSE = "ordering.columns (v)"


def change(value: Any, op: str = "u", **more: Any) -> Change:
    row = {"id": 1, "v": value}
    images = {"before": row} if op == "d" else {"row": row}
    return Change(TABLE, op, Source(), b"", **{"key": {"id": 1}, **images, **more})


def placed(value: Any, op: str = "u", field: Any = None, *, texts: bool = True, **more: Any) -> Change | str:
    fields = {} if field is None else {"v": field_of({"field": "v", "optional": True, **field})}
    return in_order(change(value, op, **more), HERE, ["v"], fields, texts=texts)


def seq(value: Any, op: str = "u", field: Any = None, **more: Any) -> bytes:
    found = placed(value, op, field, **more)
    assert isinstance(found, Change), found
    return found.seq


def why(value: Any, op: str = "u", field: Any = None, **more: Any) -> str:
    found = placed(value, op, field, **more)
    assert isinstance(found, str)
    return found


def test_values_without_a_schema_are_compared_as_what_they_are() -> None:
    seqs = [seq(loads(text)) for text in IN_ORDER]
    assert seqs == sorted(set(seqs))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.1234567895", "0.123456790"),  # rounded to nine digits
        ("0.12345678949", "0.123456789"),
        ("-0.00000000004", "0"),
        ("1e3", "1000"),
        ('"2026-01-01T02:00:00+02:00"', '"2026-01-01"'),
        ('"1970-01-02"', "86400"),
        ("12345678901234567890.1234567890123456789012", "12345678901234567890.123456789"),
    ],
)
def test_different_spellings_of_a_value_have_one_place(one: str, other: str) -> None:
    assert seq(loads(one)) == seq(loads(other))


@pytest.mark.parametrize(
    "text",
    [
        *('"abc"', '"T12:00"', '"10:15"', '"2024-01"', '"2024-01-02 junk"', '"2024-1-2"', '""', '" 1"'),
        *("true", "[1]", "{}", "1e40", "1" * 39, "1" * 33 + ".5", f'"{"1" * 39}"', f"-{'9' * 38}", "1e400"),
    ],
)
def test_what_is_neither_a_number_nor_a_time_is_named(text: str) -> None:
    assert why(loads(text)).startswith(f"v of {BECAUSE} is neither a number nor a time: ")


def test_digits_in_a_text_of_debezium_could_be_base64() -> None:
    assert why("1234", texts=False).endswith("a time: 1234")
    assert seq("2026-01-01", texts=False) == seq("2026-01-01")
    assert seq(5, texts=False) == seq("5")
    assert why(loads("12345678901234567890.1234567890123456789012"), texts=False).endswith("9012")
    assert why(loads("1e400")).endswith("a time: 1e400"), "no type holds it: it is a text"


def test_a_schema_tells_what_a_value_is() -> None:
    decimal = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}
    decimal["parameters"] = {"scale": "2", "connect.decimal.precision": "20"}  # type: ignore[assignment]
    low, high = (base64.b64encode(n.to_bytes(4, "big", signed=True)).decode() for n in (-327_680, 65_536))
    assert seq(low, field=decimal) < seq(high, field=decimal)
    assert seq(high, field=decimal) == seq("655.36")
    assert seq(1, field={"type": "int32", "name": "io.debezium.time.Date"}) == seq(86_400)
    assert seq(5, field={"type": "int64", "name": "io.debezium.time.MicroTimestamp"}) == seq("0.000005")
    assert seq(1.5, field={"type": "double"}) == seq("1.5")
    assert seq("7", field={"type": "string"}) == seq(7)
    for value, kind in (
        (True, "boolean"),
        ("x", "string"),
        ("NaN", "double"),
        ("x", "int32"),
        ([1], "string"),
    ):
        assert "neither a number nor a time" in why(value, field={"type": kind})


def test_null_and_rows_of_a_snapshot_and_offsets_break_ties() -> None:
    assert seq(None) < seq("-1")
    assert seq(1, "r") < seq(1) < seq(2, "r")
    later = in_order(change(1), HERE._replace(offset=8), ["v"], {})
    assert isinstance(later, Change)
    assert seq(1) < later.seq
    restarted = in_order(change(0), HERE, ["v"], {}, epochs=[Epoch(1, {("t", 0): 7})])
    assert isinstance(restarted, Change)
    assert restarted.seq > seq(99)


def test_the_first_column_counts_most() -> None:
    def both(a: int, b: int) -> bytes:
        found = in_order(change(0, row={"a": a, "b": b}), HERE, ["a", "b"], {})
        assert isinstance(found, Change)
        return found.seq

    assert both(1, 9) < both(2, 1) < both(2, 2)


def test_what_is_not_there_has_no_place() -> None:
    lacks = f"has no v, by which {BECAUSE} orders it"
    assert why(0, row={"id": 1}) == f"the record {lacks}"
    full = "in PostgreSQL set REPLICA IDENTITY FULL on the table"
    assert why(0, "d", before={"id": 1}) == f"a delete whose before image {lacks}: {full}"
    assert why(0, "d", before=None).startswith("a delete whose before image has no v")
    found = in_order(Truncate(TABLE, Source(), b""), HERE, ["v"], {})
    assert isinstance(found, str)
    assert found.startswith(f"a truncate has no row, so that {BECAUSE} cannot order it.")


def test_a_value_that_postgresql_may_have_made_up_orders_no_delete() -> None:
    made_up = "a delete whose before image may lack"
    number = {"type": "int32", "default": 5}
    for value in (None, 0, 5):
        assert why(value, "d", number, full_before=False).startswith(made_up)
        assert seq(value, "d", number)
        assert seq(value, "u", number, full_before=False)
    assert seq(6, "d", number, full_before=False)
    assert why(6, "d", number, full_before=False, key={"id": 1, "v": 6}).startswith(made_up)


# -- custom records ---------------------------------------------------------------------------------------


def told(value: Any, names: tuple[str, ...] = ("new.v",), **fields: str) -> Change | str:
    settings = Settings(Ordering("columns", columns=names))
    found = classify(
        Record(json.dumps(value).encode(), b'{"id":1}', origin=HERE),
        settings,
        Fields(op="op", after="new", before="old", **fields),
    )
    if not isinstance(found, Change):
        return str(found)
    return in_order(found, HERE, names, {})


def test_custom_records_are_ordered_by_what_is_at_a_path() -> None:
    found = told({"op": "u", "new": {"v": 5}, "m": {"v": 1}}, ("m.v", "new.v"))
    assert isinstance(found, Change)
    assert found.ordered_by == {"m.v": 1, "new.v": 5}
    assert told({"op": "u", "new": {"v": 5}}, ("m.v",)) == (
        "the record has no m.v, by which ordering.columns (m.v) orders it"
    )
    assert "leads through is not an object" in str(told({"op": "u", "new": {"v": 5}, "m": 1}, ("m.v",)))


def test_a_custom_delete_has_the_value_of_its_before_image_unless_it_has_one_itself() -> None:
    def number(value: Any) -> Any:
        found = told(value)
        assert isinstance(found, Change), found
        return (found.ordered_by or {})["new.v"]

    assert number({"op": "d", "old": {"v": 4}}) == 4
    assert number({"op": "d", "old": {"v": 4}, "new": {"v": None}}) is None
    assert number({"op": "d", "old": {"v": 4}, "new": {"w": 1}}) == 4
    assert number({"op": "d", "old": {"v": 4}, "new": {"v": 5}}) == 5
    assert told({"op": "u", "old": {"v": 4}, "new": {"w": 1}}) == (
        "the record has no new.v, by which ordering.columns (new.v) orders it"
    )
    assert (
        told({"op": "d", "old": {}}) == "the record has no new.v, by which ordering.columns (new.v) orders it"
    )


def test_a_schema_of_a_custom_record_is_looked_at_along_the_path() -> None:
    date = {"field": "v", "type": "int32", "name": "io.debezium.time.Date"}
    schema = {"type": "struct", "fields": [{"field": "new", "type": "struct", "fields": [date]}]}
    assert field_at(schema, ["new", "v"]) == field_of(date)
    assert field_at(schema, ["new", "w"]) is None
    assert field_at(schema, ["new", "v", "w"]) is None
    found = in_order(
        change(0, ordered_by={"new.v": 1}), HERE, ["new.v"], {"new.v": field_of({**date, "field": "new.v"})}
    )
    assert isinstance(found, Change)
    assert found.seq == seq(86_400)
