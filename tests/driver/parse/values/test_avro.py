"""Schemas of Avro, as schemas of Connect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.driver.parse.values.avro import parse
from lakemirror.driver.parse.values.connect import parse_key
from lakemirror.driver.rules.schemas import PADDED, SchemaError

pytestmark = pytest.mark.guarantee("Types are exact")


def record(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({"type": "record", "name": "Key", "namespace": "shop", "fields": list(fields), **more})


def of_field(kind: Any, **more: Any) -> Any:
    (found,) = parse_key(parse(record({"name": "v", "type": kind, **more})).document)
    return found


@pytest.mark.parametrize(
    ("avro", "connect", "name"),
    [
        ("int", "int32", None),
        ("long", "int64", None),
        ({"type": "int", "connect.type": "int16"}, "int16", None),
        (["null", "double"], "double", None),
        (
            [{"type": "string", "connect.name": "io.debezium.data.Json"}, "null"],
            "string",
            "io.debezium.data.Json",
        ),
        ({"type": "int", "logicalType": "date"}, "int32", "org.apache.kafka.connect.data.Date"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "int64", "io.debezium.time.MicroTimestamp"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "int64", "io.debezium.time.NanoTimestamp"),
        ({"type": {"type": "string", "logicalType": "uuid"}}, "string", "io.debezium.data.Uuid"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string", None),
        ({"type": "fixed", "name": "F", "size": 16}, "bytes", None),
        ({"type": "array", "items": ["null", "string"]}, "array", None),
        ({"type": "map", "values": "long"}, "map", None),
    ],
)
def test_a_type_is_the_one_that_the_connector_had(avro: Any, connect: str, name: str | None) -> None:
    found = of_field(avro)
    assert (found.connect_type, found.semantic_name) == (connect, name)
    assert found.optional == (isinstance(avro, list))


def test_a_decimal_of_another_producer_has_its_scale() -> None:
    found = of_field({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3})
    assert found.semantic_name == "org.apache.kafka.connect.data.Decimal"
    assert found.parameters == {"scale": "3", "connect.decimal.precision": "12"}


def test_a_decimal_may_have_a_fixed_length() -> None:
    kind = {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 9, "scale": 2}
    assert of_field(kind).parameters == {"scale": "2", "connect.decimal.precision": "9", PADDED: "true"}


def test_logical_types_are_taken_out_of_what_spark_reads() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 2}
    assert json.loads(parse(record({"name": "v", "type": kind})).reader)["fields"][0]["type"] == "bytes"


@pytest.mark.parametrize(
    ("kind", "more", "default"),
    [
        ({"type": "string", "connect.default": "new"}, {}, "new"),
        ("int", {"default": 7}, 7),
        ("bytes", {"default": "\u0000\u00ff"}, "AP8="),
        (["null", "string"], {"default": None}, None),
    ],
)
def test_a_default_stands_as_on_the_wire(kind: Any, more: dict[str, Any], default: Any) -> None:
    assert of_field(kind, **more).default == default


def test_a_type_is_found_by_its_name() -> None:
    inner = {"type": "record", "name": "Value", "fields": [{"name": "id", "type": "long"}]}
    schema = parse(
        record({"name": "before", "type": ["null", inner]}, {"name": "after", "type": ["null", "Value"]})
    )
    before, after = parse_key(schema.document)
    assert before.fields == after.fields
    assert schema.fields == ("before", "after")


def test_a_type_of_another_schema() -> None:
    other = json.dumps(
        {"type": "record", "name": "Place", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}
    )
    (place,) = parse_key(parse(record({"name": "at", "type": "geo.Place"}), [other]).document)
    assert [each.name for each in place.fields] == ["x"]


@pytest.mark.parametrize("text", ['"string"', '{"type": "long"}', '["null", "string"]'])
def test_a_plain_value_is_read_as_the_only_field_of_a_record(text: str) -> None:
    schema = parse(text)
    (field,) = json.loads(schema.reader)["fields"]
    assert (schema.plain, schema.fields) == (field["name"], (field["name"],))
    assert parse(record({"name": "v", "type": "int"})).plain is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "not JSON"),
        ('"Nowhere"', "refers to the type Nowhere"),
        (record({"name": "v", "type": ["int", "string"]}), "a union of several types"),
        (record({"name": "v", "type": "Nowhere"}), "refers to the type Nowhere"),
        (record({"name": "v", "type": ["null", "shop.Key"]}), "contains itself"),
    ],
)
def test_what_no_connector_writes_is_refused(text: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        parse(text)
