"""Avro schemas are the Connect schemas that they were made from (Avro specification, Connect's AvroData)."""

from __future__ import annotations

from typing import Any

import pytest

from lakemirror.driver.rules.avro import connect_schema, of_decimal, on_the_wire
from lakemirror.driver.rules.schemas import PADDED, SchemaError

pytestmark = pytest.mark.guarantee("Types are exact")


def record(kind: Any, name: str = "shop.Row", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "v", "type": kind, **more}]}


def of_field(kind: Any, referenced: tuple[Any, ...] = (), **more: Any) -> dict[str, Any]:
    found = connect_schema(record(kind, **more), referenced)
    assert (found["type"], found["name"], found["optional"]) == ("struct", "shop.Row", False)
    [field] = found["fields"]
    assert field.pop("field") == "v"
    return dict(field)


def told(kind: str, *, optional: bool = False, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": optional, **more}


CONNECT = "org.apache.kafka.connect.data."


@pytest.mark.parametrize(
    ("avro", "connect"),
    [
        ("boolean", told("boolean")),
        ("int", told("int32")),
        ("long", told("int64")),
        ("float", told("float")),
        ("double", told("double")),
        ("bytes", told("bytes")),
        ("string", told("string")),
        (["null", "int"], told("int32", optional=True)),
        (["int", "null"], told("int32", optional=True)),
        (["int"], told("int32")),
        ({"type": "int"}, told("int32")),
        ({"type": "int", "connect.type": "int8"}, told("int8")),
        ({"type": "int", "connect.name": "a.B"}, told("int32", name="a.B")),
        ({"type": "int", "connect.parameters": {"x": "1"}}, told("int32", parameters={"x": "1"})),
        ({"type": "int", "connect.default": 5}, told("int32", default=5)),
        ({"type": "array", "items": ["null", "long"]}, told("array", items=told("int64", optional=True))),
        ({"type": "map", "values": "long"}, told("map", keys=told("string"), values=told("int64"))),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, told("string")),
        ({"type": "fixed", "name": "F", "size": 2}, told("bytes")),
        ({"type": "int", "logicalType": "date"}, told("int32", name=CONNECT + "Date")),
        ({"type": "int", "logicalType": "time-millis"}, told("int32", name=CONNECT + "Time")),
        ({"type": "long", "logicalType": "time-micros"}, told("int64", name="io.debezium.time.MicroTime")),
        ({"type": "long", "logicalType": "timestamp-millis"}, told("int64", name=CONNECT + "Timestamp")),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            told("int64", name="io.debezium.time.Timestamp"),
        ),
        ({"type": "long", "logicalType": "unknown"}, told("int64")),
        (
            {"type": "long", "logicalType": "date", "connect.name": "a.B"},
            told("int64", name="a.B"),
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            told(
                "bytes",
                name=CONNECT + "Decimal",
                parameters={"scale": "2", "connect.decimal.precision": "9"},
            ),
        ),
    ],
)
def test_a_type_is_the_one_that_the_connector_had(avro: Any, connect: dict[str, Any]) -> None:
    assert of_field(avro) == connect


def test_a_decimal_may_have_no_scale_no_precision_or_a_fixed_length() -> None:
    assert of_decimal({"type": "bytes", "logicalType": "decimal"}) == {"scale": "0"}
    fixed = {"type": "fixed", "name": "F", "size": 8, "logicalType": "decimal", "precision": 18}
    assert of_decimal(fixed) == {"scale": "0", "connect.decimal.precision": "18", PADDED: "true"}
    assert of_decimal({"type": "bytes", "precision": 5}) == {}


def test_a_default_is_what_json_would_have() -> None:
    assert of_field("int", default=5) == told("int32", default=5)
    assert of_field({"type": "int", "connect.default": 7}, default=5) == told("int32", default=7)
    assert of_field(["null", "int"], default=None) == told("int32", optional=True)
    assert of_field("bytes", default="\u00ff") == told("bytes", default="/w==")
    assert of_field({"type": "bytes", "connect.default": "a"}) == told("bytes", default="YQ==")
    assert on_the_wire("a", "string") == "a"
    assert on_the_wire(5, "bytes") == 5


INNER = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}


def point(name: str) -> dict[str, Any]:
    return told("struct", fields=[told("int32", field="x")], name=name)


def test_a_type_has_the_namespace_that_encloses_it() -> None:
    assert of_field(INNER) == point("shop.Point")
    assert of_field({**INNER, "name": "other.Point"}) == point("other.Point")
    assert of_field({**INNER, "namespace": "own"}) == point("own.Point")
    assert of_field({**INNER, "name": "other.Point", "namespace": "own"}) == point("other.Point")
    bare = connect_schema({**record(INNER), "name": "Row"})
    assert (bare["name"], bare["fields"][0]["name"]) == ("Row", "Point")
    named = connect_schema({**record(INNER), "name": "Row", "namespace": "a.b"})
    assert (named["name"], named["fields"][0]["name"]) == ("a.b.Row", "a.b.Point")


def test_a_type_that_was_defined_before_is_the_same_again() -> None:
    pair = {
        "type": "record",
        "name": "shop.Row",
        "fields": [
            {"name": "a", "type": ["null", INNER]},
            {"name": "b", "type": "Point"},
            {"name": "c", "type": {"type": "array", "items": "shop.Point"}},
            {"name": "d", "type": {"type": "map", "values": ["null", "Point"]}},
        ],
    }
    a, b, c, d = connect_schema(pair)["fields"]
    assert (a["optional"], b["optional"]) == (True, False)
    plain = point("shop.Point")
    assert {**a, "optional": False} == {**plain, "field": "a"}
    assert {**b} == {**plain, "field": "b"}
    assert c["items"] == plain
    assert d["values"] == {**plain, "optional": True}


@pytest.mark.parametrize("where", ["array", "map", "union", "field"])
def test_a_type_is_found_wherever_it_was_defined(where: str) -> None:
    defined = {
        "array": {"type": "array", "items": INNER},
        "map": {"type": "map", "values": INNER},
        "union": ["null", INNER],
        "field": {"type": INNER},
    }[where]
    fields = [{"name": "a", "type": defined}, {"name": "b", "type": "Point"}]
    found = connect_schema({"type": "record", "name": "Row", "fields": fields})["fields"][1]
    assert found == {**point("Point"), "field": "b"}


def test_a_schema_may_refer_to_others() -> None:
    assert of_field("shop.Point", ({**INNER, "name": "shop.Point"},)) == point("shop.Point")
    assert of_field("Point", ({**INNER, "namespace": "shop"},)) == point("shop.Point")
    assert of_field("Point", (INNER,)) == point("Point"), "a type without a namespace"
    enum = {"type": "enum", "name": "shop.E", "symbols": ["A"]}
    assert of_field("E", (enum,)) == told("string")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Nowhere", "refers to the type Nowhere, which it does not define"),
        ("shop.Row", "the type shop.Row contains itself"),
        (["null", "Row"], "the type shop.Row contains itself"),
        ({"type": "array", "items": "Row"}, "the type shop.Row contains itself"),
        (["int", "string"], "a union of several types"),
        (["null", "int", "string"], "a union of several types"),
        (["null"], "a union of several types"),
    ],
)
def test_what_no_connector_writes_is_refused(kind: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        connect_schema(record(kind))
