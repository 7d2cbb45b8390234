"""Schemas that anybody may have written: each is read or refused, and none raises anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakemirror.driver.parse.values import avro, connect, inference
from lakemirror.driver.parse.values.connect import (
    connector_of,
    field_at,
    name_at,
    name_of,
    parse_envelope,
    parse_key,
)
from lakemirror.driver.parse.values.decode import RowDecoder, columns_of
from lakemirror.driver.rules import schemas as rules_schemas
from lakemirror.driver.rules import types as rules
from lakemirror.driver.rules.inference import kind_of, shape_of
from lakemirror.driver.rules.schemas import SchemaError

pytestmark = pytest.mark.guarantee(
    "A schema, embedded or registered, is checked whole before anything uses it, and is read or refused"
)

TEXT = {"type": "string", "optional": True}


def struct(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields), **more}


def column(called: Any = "v", **more: Any) -> dict[str, Any]:
    return {**TEXT, "field": called, **more}


def nested(kind: str, depth: int) -> dict[str, Any]:
    part = {"array": "items", "map": "values"}[kind]
    found: dict[str, Any] = {"type": "int32"}
    for _ in range(depth):
        found = {"type": kind, "keys": TEXT, part: found}
    return found


def doubled(times: int) -> str:
    """A schema of Avro in which each type has two members of the one before."""
    kind: Any = {"type": "record", "name": "R0", "fields": [{"name": "v", "type": "int"}]}
    for number in range(1, times):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{number - 1}"}]
        kind = {"type": "record", "name": f"R{number}", "fields": fields}
    return json.dumps(kind)


def of_avro(*fields: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def avro_field(kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": "v", "type": kind, **more}


def avro_nested(depth: int) -> Any:
    kind: Any = "int"
    for _ in range(depth):
        kind = {"type": "array", "items": kind}
    return kind


AVRO = {
    "doubled": (doubled(25), "more than 30,000 types"),
    "arrays": (of_avro(avro_field(avro_nested(500))), "nested more than"),
    "arrays that cost much": (of_avro(avro_field(avro_nested(12))), "more than 30,000 types"),
    "lists of JSON": (of_avro(avro_field(json.loads("[" * 900 + "]" * 900))), "nested more than"),
    "deep JSON": ("[" * 100_000, "nested more than"),
    "a long text": (of_avro(avro_field("int", doc="x" * 2**22)), "more than 4,194,304 characters"),
    "a blank in a name": (of_avro({"name": "a b", "type": "int"}), "which is no name of Avro"),
    "a name that is a number": (of_avro({"name": 5, "type": "int"}), "which is no name of Avro"),
    "no name": (of_avro({"type": "int"}), "which is no name of Avro"),
    "a surrogate in a name": (of_avro({"name": "\ud83d", "type": "int"}), "surrogate"),
    "a surrogate in a comment": (of_avro(avro_field("int", doc="\ud83d")), "surrogate"),
    "a field that is a text": (of_avro("x"), "a field that is none"),
    "no type": (of_avro({"name": "v"}), "has no type"),
    "fields that are no list": ('{"type": "record", "name": "R", "fields": 5}', "no list of fields"),
    "fields twice": (of_avro(avro_field("int"), avro_field("int")), "two fields called 'v'"),
    "a type that is null": (of_avro(avro_field("null")), "null alone"),
    "a type that is a number": (of_avro(avro_field(5)), "is not a type of Avro"),
    "a type of a type of nothing": (of_avro(avro_field({"type": {}})), "is not a type of Avro"),
    "fixed without size": (of_avro(avro_field({"type": "fixed", "name": "F"})), "size of the fixed type F"),
    "fixed of nothing": (of_avro(avro_field({"type": "fixed", "name": "F", "size": 0})), "is 0, and not"),
    "fixed of gigabytes": (of_avro(avro_field({"type": "fixed", "name": "F", "size": 2**31})), "and not"),
    "fixed of a text": (of_avro(avro_field({"type": "fixed", "name": "F", "size": "8"})), "and not"),
    "enum without symbols": (of_avro(avro_field({"type": "enum", "name": "E"})), "no list of symbols"),
    "a symbol of two words": (
        of_avro(avro_field({"type": "enum", "name": "E", "symbols": ["a b"]})),
        "a symbol of E is called",
    ),
    "a symbol twice": (
        of_avro(avro_field({"type": "enum", "name": "E", "symbols": ["a", "a"]})),
        "a symbol twice",
    ),
    "null twice": (of_avro(avro_field(["null", "null", "int"])), "a union that is none"),
    "a union in a union": (of_avro(avro_field(["null", ["null", "int"]])), "a union that is none"),
    "items of nothing": (
        of_avro(avro_field({"type": "array", "items": {"type": "record", "name": "N", "fields": []}})),
        "take no bytes",
    ),
    "a type twice": (
        of_avro(
            avro_field({"type": "fixed", "name": "F", "size": 2}),
            {"name": "w", "type": {"type": "fixed", "name": "F", "size": 3}},
        ),
        "defines the type 'F' twice",
    ),
    "a default of another type": (of_avro(avro_field("int", default="x")), "default of 'v' of R is not"),
    "a default of no member": (of_avro(avro_field(["null", "long"], default=True)), "default of 'v' of R"),
    "a default with another item": (of_avro(avro_field(avro_nested(1), default=["x"])), "default of 'v'"),
    "a default that is no symbol": (
        of_avro(avro_field({"type": "enum", "name": "E", "symbols": ["a"]}, default="b")),
        "default of 'v' of R",
    ),
    "a semantic name that is a list": (
        of_avro(avro_field({"type": "int", "connect.name": ["x"]})),
        "its name is not a text",
    ),
    "parameters that are a list": (
        of_avro(avro_field({"type": "int", "connect.parameters": ["x"]})),
        "its parameters are not",
    ),
    "a type of Connect that is none": (
        of_avro(avro_field({"type": "int", "connect.type": {"x": 1}})),
        "is not a type of Kafka Connect",
    ),
    "a map of Connect without keys": (of_avro(avro_field({"type": "int", "connect.type": "map"})), "keys of"),
}


@pytest.mark.parametrize("name", AVRO)
def test_a_schema_of_avro_is_refused(name: str) -> None:
    text, said = AVRO[name]
    with pytest.raises(SchemaError, match=said):
        avro.parse(text)


def test_schemas_of_avro_that_are_large_for_a_reason() -> None:
    row = {"type": "record", "name": "Row", "fields": [{"name": f"c{n}", "type": "int"} for n in range(4096)]}
    schema = avro.parse(of_avro({"name": "before", "type": ["null", row]}, {"name": "after", "type": "Row"}))
    assert len(json.loads(schema.document)["fields"][1]["fields"]) == 4096
    avro.parse(of_avro(avro_field(avro_nested(4))))


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", None),
        (["null", "string"], "n/a"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001"),
        ("double", "NaN"),
        ("float", 1),
        ({"type": "map", "values": "int"}, {"a": 1}),
        ({"type": "record", "name": "I", "fields": [{"name": "a", "type": ["null", "int"]}]}, {"a": None}),
        ({"type": "enum", "name": "E", "symbols": ["a"]}, "a"),
    ],
)
def test_a_default_of_avro_that_writers_give(kind: Any, default: Any) -> None:
    avro.parse(of_avro(avro_field(kind, default=default)))


def test_columns_whose_names_differ_in_case_only_are_read_by_their_places() -> None:
    schema = avro.parse(
        of_avro({"name": "id", "type": "int"}, {"name": "ID", "type": "long"}, avro_field("int"))
    )
    assert [each["name"] for each in json.loads(schema.reader)["fields"]] == ["f0", "f1", "f2"]
    assert schema.type.names == ["id", "ID", "v"]
    assert [each.name for each in parse_key(schema.document)] == ["id", "ID", "v"]


ROW = struct(column(), field="after")
CONNECT: dict[str, tuple[Any, str]] = {
    "fields that are texts": (struct("x"), "a field that is not a JSON object"),
    "a name that is a list": (struct(column(["a"])), "whose name is not a text"),
    "an image that is a text": (struct({**ROW, "fields": ["x"]}), "a field that is not a JSON object"),
    "another part of the envelope": (struct(ROW, {"type": "struct", "field": "source"}), "without a list"),
    "a column twice": (struct({**ROW, "fields": [column(), column()]}), "two fields called 'v'"),
    "an array without items": (struct(column(type="array")), "items of column 'v' is not a JSON object"),
    "a map without keys": (struct(column(type="map", values=TEXT)), "keys of column 'v'"),
    "a type that is a list": (struct(column(type=["int32"])), "is not a type of Kafka Connect"),
    "a semantic name that is a list": (struct(column(name=["x"])), "its name is not a text"),
    "parameters that are a text": (struct(column(parameters="x")), "its parameters are not"),
    "a parameter that is a list": (struct(column(parameters={"scale": []})), "its parameters are not"),
    "deep arrays": (struct(column(**nested("array", 40))), "more than 30,000 types"),
    "deep maps": (struct(column(**nested("map", 40))), "more than 30,000 types"),
    "a surrogate": (struct(column("\ud83d")), "surrogate"),
    "a path that is none": ({"path": 5, "record": struct()}, "not a list of names"),
    "a path into nothing": ({"path": []}, "is not a JSON object"),
}


def readings(text: str) -> dict[str, Any]:
    """What each function that reads a schema document makes of it: a result or SchemaError."""
    found: dict[str, Any] = {}
    for reading in (parse_envelope, parse_key, connector_of, name_of):
        try:
            found[reading.__name__] = reading(text)
        except SchemaError as error:
            found[reading.__name__] = error
    found["name_at"] = name_at(text, ["after", "v"])
    try:
        found["field_at"] = field_at(text, ["after", "v"]) if connect.is_at_path(text) else None
    except SchemaError as error:
        found["field_at"] = error
    return found


@pytest.mark.parametrize("name", CONNECT)
def test_a_schema_of_connect_is_refused_whole(name: str) -> None:
    """Whoever reads any part of it is told, or finds nothing."""
    document, said = CONNECT[name]
    found = readings(json.dumps(document))
    for reading in ("parse_envelope", "parse_key", "connector_of"):
        assert isinstance(found[reading], SchemaError), reading
        assert said in str(found[reading])
    assert found["name_of"] is None
    assert found["name_at"] is None


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("org.apache.kafka.connect.data.Decimal", {"scale": "3000000"}, "scale is beyond"),
        ("org.apache.kafka.connect.data.Decimal", {"scale": "x" * 500}, "parameter scale"),
        ("io.debezium.data.Bits", {"length": "2000000000"}, "bits"),
        ("io.debezium.data.Bits", {"length": "-1"}, "bits"),
    ],
)
def test_what_a_type_needs_is_looked_at_before_a_plan_has_it(
    name: str, parameters: dict[str, str], said: str
) -> None:
    document = struct(column(type="bytes", name=name, parameters=parameters))
    with pytest.raises(SchemaError, match=said) as refused:
        columns_of(json.dumps(document), parse_key)
    with pytest.raises(SchemaError) as found:
        rules.codec_of(rules_schemas.fields_of_struct(document)[0])
    assert str(found.value) in str(refused.value)


def test_what_is_nested_deeply_without_a_schema_is_text() -> None:
    """The driver's types and those of the rules."""
    lists = inference._spark(inference._Parser("ARRAY<" * 30 + "BIGINT" + ">" * 30).type())
    objects = inference._spark(inference._Parser("OBJECT<a: " * 90 + "BIGINT" + ">" * 90).type())
    assert lists is not None
    assert lists.simpleString() == "array<array<array<array<string>>>>"
    assert objects is not None
    assert objects.simpleString() == "struct<a:" * 20 + "string" + ">" * 20
    for text, found in (("[" * 30 + "1" + "]" * 30, lists), ('{"a":' * 90 + "1" + "}" * 90, objects)):
        kind = kind_of(shape_of(json.loads(text)))
        assert str(kind).lower().replace("`", "").replace(" ", "") == found.simpleString()


# -- anything at all ---------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    (
        *("record", "enum", "fixed", "array", "map", "struct", "int", "int32", "string", "bytes", "null"),
        *("type", "name", "fields", "field", "items", "values", "keys", "symbols", "size", "default", "R"),
        *("connect.name", "connect.type", "connect.parameters", "logicalType", "decimal", "scale", "after"),
        *("org.apache.kafka.connect.data.Decimal", "io.debezium.data.Bits", "length", "é", "\ud83d", "x.y"),
        *("a b", "", "n.R"),
    )
)
KEYS = (
    *("type", "name", "namespace", "fields", "field", "items", "values", "keys", "symbols", "size"),
    *("default", "doc", "parameters", "connect.name", "connect.type", "connect.parameters", "logicalType"),
    *("precision", "scale", "path", "record", "optional"),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), WORDS, st.just(10**400))
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
    ),
    max_leaves=20,
)


@st.composite
def almost_schemas(draw: st.DrawFn, kinds: tuple[str, ...], member: str) -> Any:
    """Schemas with some parts that are anything."""

    def part(usual: Any) -> Any:
        return draw(ANYTHING) if draw(st.integers(0, 9)) == 0 else usual

    def kind(depth: int) -> Any:
        chosen = draw(st.sampled_from(kinds if depth else kinds[5:]))
        found: dict[str, Any] = {"type": part(chosen)}
        if chosen in ("record", "struct", "enum", "fixed"):
            found["name"] = part(draw(st.sampled_from(["R", "S", "n.T", "U"])))
        if chosen in ("record", "struct"):
            names = draw(st.lists(st.sampled_from(["v", "V", "after", "source", "id"]), max_size=4))
            found["fields"] = part([part(field(name, depth - 1)) for name in names])
        for name in ("items", "values", "keys"):
            if chosen in ("array", "map"):
                found[name] = part(kind(depth - 1))
        if chosen == "enum":
            found["symbols"] = part(["a", part("b")])
        if chosen == "fixed":
            found["size"] = part(8)
        if draw(st.integers(0, 3)) == 0:
            found |= draw(st.dictionaries(st.sampled_from(KEYS), SCALARS, max_size=2))
        return found

    def field(name: str, depth: int) -> Any:
        inner = kind(depth)
        if member == "name":
            return {"name": part(name), "type": part(draw(st.sampled_from([inner, ["null", inner]])))}
        return {**inner, "field": part(name)}

    return part(kind(3))


AVROS = ("record", "array", "map", "enum", "fixed", "int", "long", "string", "bytes", "double", "R")
CONNECTS = ("struct", "array", "map", "struct", "struct", "int32", "int64", "string", "bytes", "double")


@given(st.one_of(ANYTHING, almost_schemas(AVROS, "name")))
@settings(max_examples=100, deadline=None)
def test_any_schema_of_avro_is_read_or_refused(document: Any) -> None:
    try:
        schema = avro.parse(json.dumps(document))
    except SchemaError:
        return
    assert len(json.loads(schema.reader)["fields"]) == len(schema.fields)
    readings(schema.document)
    connect.document(schema.document)


@given(st.one_of(ANYTHING, almost_schemas(CONNECTS, "field")))
@example({"type": "int32", "name": None, "record": None})
@settings(max_examples=100, deadline=None)
def test_any_schema_of_connect_is_read_or_refused(document: Any) -> None:
    text = json.dumps(document)
    readings(text)
    for parse in (parse_envelope, parse_key):
        try:
            RowDecoder(columns_of(text, parse)).wire_schema.json()
        except SchemaError:
            continue
