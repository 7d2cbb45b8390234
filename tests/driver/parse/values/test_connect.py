"""Connect schema documents -> fields."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakemirror.driver.parse.values import Field, parse_envelope, parse_key
from lakemirror.driver.rules.schemas import SchemaError

pytestmark = pytest.mark.guarantee("Types are exact")

ROW = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": False, "default": "n/a", "field": "note"},
    {
        "type": "array",
        "items": {"type": "int32", "optional": True, "name": "io.debezium.time.Date"},
        "optional": True,
        "field": "days",
    },
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
        "field": "price",
    },
    {
        "type": "map",
        "keys": {"type": "string"},
        "values": {"type": "float32"},
        "optional": True,
        "field": "m",
    },
]
FIELDS = [
    Field("id", "int32", optional=False),
    Field("note", "string", optional=False, default="n/a"),
    Field("days", "array", items=Field("", "int32", "io.debezium.time.Date")),
    Field("price", "bytes", "org.apache.kafka.connect.data.Decimal", {"scale": "2"}),
    Field("m", "map", keys=Field("", "string", optional=False), items=Field("", "float", optional=False)),
]


def envelope(**images: Any) -> str:
    fields = [{"type": "struct", "field": name, "fields": row} for name, row in images.items()]
    return json.dumps({"type": "struct", "fields": [*fields, {"type": "string", "field": "op"}]})


def test_an_envelope_gives_the_columns_of_its_row() -> None:
    assert parse_envelope(envelope(before=[], after=ROW)) == FIELDS
    assert parse_envelope(envelope(before=ROW)) == FIELDS


def test_a_key_gives_its_columns() -> None:
    assert parse_key(json.dumps({"type": "struct", "fields": ROW[:1]})) == FIELDS[:1]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"type": "int32"}', "a struct is needed"),
        (envelope(), "neither 'after' nor 'before'"),
        (envelope(after=[{"type": "int128", "field": "x"}]), "column 'x': 'int128'"),
    ],
)
def test_what_is_no_schema_is_refused(document: str, said: str) -> None:
    with pytest.raises(SchemaError, match=said):
        parse_envelope(document)
