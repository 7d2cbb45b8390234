"""Schemas of Kafka Connect: columns of rows, and documents that are none."""

from __future__ import annotations

from typing import Any

import pytest

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
from lakemirror.driver.rules.schemas import (
    DEEPEST,
    MOST_TYPES,
    PADDED,
    Field,
    SchemaError,
    check,
    field_of,
    fields_of_envelope,
    fields_of_struct,
)
from lakemirror.driver.rules.types import is_known, kind_of

pytestmark = pytest.mark.guarantee("Types are exact")


def struct(*fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), **more}


ID = {"type": "int32", "field": "id"}


def test_a_column_is_what_its_field_declares() -> None:
    found = field_of(
        {
            "type": "float32",
            "field": "v",
            "optional": True,
            "name": "a.B",
            "parameters": {"p": "1"},
            "default": 5,
        }
    )
    assert found == Field("v", "float", "a.B", {"p": "1"}, True, 5)
    assert field_of({"type": "float64"}) == Field("", "double", optional=False)
    array = field_of(
        {"type": "array", "field": "a", "items": {"type": "int32"}, "values": {"type": "string"}}
    )
    assert array.items == Field("", "int32", optional=False)
    pairs = field_of({"type": "map", "field": "m", "keys": {"type": "string"}, "values": {"type": "int64"}})
    assert (pairs.keys, pairs.items) == (
        Field("", "string", optional=False),
        Field("", "int64", optional=False),
    )
    assert field_of(struct(ID, field="s")).fields == (Field("id", "int32", optional=False),)


def test_a_parameter_is_a_number_or_named() -> None:
    field = Field("v", "bytes", parameters={"scale": "2", "odd": "x"})
    assert (field.parameter("scale", 0), field.parameter("length", 7)) == (2, 7)
    with pytest.raises(SchemaError, match="column 'v': parameter odd is 'x', not a number"):
        field.parameter("odd", 0)


def test_the_columns_of_an_event_are_those_of_its_images() -> None:
    after, before = struct(ID, field="after"), struct({"type": "string", "field": "v"}, field="before")
    assert [each.name for each in fields_of_envelope(struct(before, after))] == ["id"]
    assert [each.name for each in fields_of_envelope(struct(before))] == ["v"]
    assert [each.name for each in fields_of_struct(struct(ID))] == ["id"]


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (struct(ID), "the schema has neither 'after' nor 'before'"),
        ({"type": "int32"}, "the schema of the envelope is of type 'int32'; a struct is needed"),
        (struct({"type": "int32", "field": "after"}), "the schema of the row image is of type 'int32'"),
        ([1], r"the schema is not a JSON object: \[1\]"),
        ("x" * 100, 'the schema is not a JSON object: "' + "x" * 79 + "$"),
        ({"type": "int128"}, "the schema: 'int128' is not a type of Kafka Connect"),
        ({"type": ["int32"]}, "is not a type of Kafka Connect"),
        ({"type": "int32", "name": 5}, "the schema: its name is not a text: 5"),
        ({"type": "int32", "parameters": [1]}, "the schema: its parameters are not an object of texts"),
        (
            {"type": "int32", "parameters": {"a": None}},
            "the schema: its parameters are not an object of texts",
        ),
        ({"type": "struct"}, "the schema is a struct without a list of fields"),
        ({"type": "struct", "fields": {}}, "the schema is a struct without a list of fields"),
        (struct(5), "the schema has a field that is not a JSON object: 5"),  # type: ignore[arg-type]
        (struct({"type": "int32", "field": 5}), "the schema has a field whose name is not a text: 5"),
        (struct(ID, ID), "the schema has two fields called 'id'"),
        (struct({"type": "x", "field": "id"}), "column 'id': 'x' is not a type of Kafka Connect"),
        ({"type": "array"}, "items of the schema is not a JSON object: null"),
        ({"type": "map", "keys": {"type": "string"}}, "values of the schema is not a JSON object: null"),
        ({"type": "map", "values": {"type": "string"}}, "keys of the schema is not a JSON object: null"),
    ],
)
def test_a_document_that_is_no_schema_of_a_row_is_named(document: Any, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        fields_of_envelope(document)


def test_parameters_may_be_numbers() -> None:
    check({"type": "int32", "parameters": {"a": "1", "b": 1}})
    check({"type": "int32", "parameters": None, "name": None})


def nested(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "int32"}
    for _ in range(levels - 1):
        found = struct({**found, "field": "v"})
    return found


def test_a_schema_is_not_nested_too_deep() -> None:
    check(nested(DEEPEST))
    with pytest.raises(SchemaError, match=f"nested more than {DEEPEST} deep"):
        check(nested(DEEPEST + 1))
    check(struct({**nested(DEEPEST - 1), "field": "a"}, {**nested(DEEPEST - 1), "field": "b"}))


def test_a_schema_has_no_more_types_than_can_be_read() -> None:
    def of(count: int) -> dict[str, Any]:
        return struct(*[{"type": "int32", "field": str(n)} for n in range(count - 1)])

    check(of(MOST_TYPES))
    with pytest.raises(SchemaError, match="more than 30,000 types"):
        check(of(MOST_TYPES + 1))
    check(struct({"type": "array", "items": of(MOST_TYPES // 8 - 1), "field": "a"}))
    with pytest.raises(SchemaError, match="more than 30,000 types"):
        check(struct({"type": "array", "items": of(MOST_TYPES // 8), "field": "a"}))
    check(struct({"type": "array", "items": {"type": "int32"}, "field": "x"}, *of(MOST_TYPES - 9)["fields"]))


# -- the type of a column ---------------------------------------------------------------------------------

CONNECT, TIME, DATA = "org.apache.kafka.connect.data.", "io.debezium.time.", "io.debezium.data."


def decimal(**parameters: str) -> dict[str, Any]:
    return {"type": "bytes", "name": CONNECT + "Decimal", "parameters": parameters}


PRECISION = "connect.decimal.precision"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "int8"}, TINYINT),
        ({"type": "int16"}, SMALLINT),
        ({"type": "int32"}, INT),
        ({"type": "int64"}, BIGINT),
        ({"type": "float"}, FLOAT),
        ({"type": "double"}, DOUBLE),
        ({"type": "boolean"}, BOOLEAN),
        ({"type": "string"}, STRING),
        ({"type": "bytes"}, BINARY),
        (decimal(scale="2", **{PRECISION: "9"}), Decimals(9, 2)),
        (decimal(scale="5", **{PRECISION: "3"}), Decimals(5, 5)),
        (decimal(scale="2"), Decimals(38, 2)),
        (decimal(scale="2", **{PRECISION: "0"}), Decimals(38, 2)),
        (decimal(scale="2", **{PRECISION: "1"}), Decimals(2, 2)),
        (decimal(scale="0", **{PRECISION: "38"}), Decimals(38, 0)),
        (decimal(scale="0", **{PRECISION: "39"}), Decimals(38, 0)),
        (decimal(scale="38"), Decimals(38, 38)),
        (decimal(scale="39"), STRING),
        (decimal(scale="-1"), STRING),
        (decimal(), Decimals(38, 0)),
        ({"type": "int32", "name": CONNECT + "Date"}, DATE),
        ({"type": "int32", "name": TIME + "Date"}, DATE),
        ({"type": "string", "name": TIME + "IsoDate"}, DATE),
        ({"type": "int64", "name": TIME + "MicroTime"}, STRING),
        ({"type": "int64", "name": CONNECT + "Timestamp"}, TIMESTAMP_NTZ),
        ({"type": "int64", "name": TIME + "NanoTimestamp"}, TIMESTAMP_NTZ),
        ({"type": "string", "name": TIME + "IsoTimestamp"}, TIMESTAMP_NTZ),
        ({"type": "string", "name": TIME + "ZonedTimestamp"}, TIMESTAMP),
        ({"type": "int64", "name": TIME + "NanoDuration"}, BIGINT),
        ({"type": "int32", "name": TIME + "Year"}, INT),
        ({"type": "bytes", "name": DATA + "Bits"}, STRING),
        ({"type": "string", "name": DATA + "Json"}, STRING),
        ({"type": "int64", "name": "unknown"}, BIGINT),
        ({"type": "array", "items": {"type": "int64"}}, Arrays(BIGINT)),
        ({"type": "map", "keys": {"type": "string"}, "values": {"type": "int32"}}, Maps(STRING, INT)),
        (struct(ID), Structs((("id", INT),))),
        (struct(ID, name=DATA + "VariableScaleDecimal"), STRING),
    ],
)
def test_a_column_has_the_type_closest_to_the_sources(schema: dict[str, Any], kind: Kind) -> None:
    assert kind_of(field_of({**schema, "field": "v"})) == kind


def test_a_list_without_its_parts_has_no_type() -> None:
    with pytest.raises(SchemaError, match="column 'v': the schema of an array has no items"):
        kind_of(Field("v", "array"))
    for part in ({"items": Field("", "int32")}, {"keys": Field("", "string")}):
        with pytest.raises(SchemaError, match="column 'v': the schema of a map lacks its keys or values"):
            kind_of(Field("v", "map", **part))


def test_a_meaning_that_nobody_knows_is_told() -> None:
    assert is_known(Field("v", "int32"))
    assert is_known(Field("v", "int32", TIME + "Date"))
    assert not is_known(Field("v", "string", TIME + "Date"))
    assert not is_known(Field("v", "int32", "a.B"))
    assert is_known(Field("v", "struct", DATA + "geometry.Point"))
    assert is_known(Field("v", "array", DATA + "DoubleVector"))
    assert not is_known(Field("v", "struct", "a.B"))
    assert not is_known(Field("v", "bytes", DATA + "geometry.Point"))


def test_a_padded_decimal_is_known_by_its_parameter() -> None:
    field = field_of({**decimal(scale="0", **{PRECISION: "3", PADDED: "true"}), "field": "v"})
    assert kind_of(field) == Decimals(3, 0)
