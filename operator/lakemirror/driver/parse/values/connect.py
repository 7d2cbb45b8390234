"""Kafka Connect schemas as JsonConverter writes them (``schemas.enable=true``).

A schema document is JSON: ``{"type", "optional", "name", "parameters", "default", "field", "fields",
"items", "keys", "values"}``. ``type`` is the physical type, ``name`` the semantic one (Debezium's
``io.debezium.*`` or Connect's ``org.apache.kafka.connect.data.*``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakemirror.driver.errors import LakemirrorError

SCHEMALESS = "json"
"""``connect_type`` of a field without a schema: its value is whatever JSON says it is."""

PADDED = "lakemirror.padded"
"""The parameter of a decimal whose bytes have a fixed length; Connect itself has no such decimals."""

_SOURCE = re.compile(r"io\.debezium\.connector\.(\w+)\.Source")
"""The name of the schema of Debezium's source block."""

_POSITIONS = {
    "commit_lsn": "sqlserver",
    "change_lsn": "sqlserver",
    "lsn": "postgresql",
    "file": "mysql",
    "pos": "mysql",
    "scn": "oracle",
}
"""Fields of Debezium's source block that only one connector has."""

_NUMBERS = ("int8", "int16", "int32", "int64", "float", "double", "float32", "float64")
PHYSICAL = frozenset((*_NUMBERS, "boolean", "string", "bytes", "array", "map", "struct"))


PATH = "path"
"""First member of a schema document that is not purely Connect's.

It holds the names that lead from the schema of a whole ``record`` to that of the row or key in it.
"""


class SchemaError(LakemirrorError):
    """A schema document that is not a Connect schema of a row."""


@dataclass(frozen=True)
class Field:
    """One column as the connector declares it.

    ``connect_type`` is the physical type (int8 to int64, float, double, boolean, string, bytes,
    array, map, struct, or ``SCHEMALESS``), ``semantic_name`` the name that gives it a meaning.
    ``items`` is the element of an array or the value of a map, ``keys`` the key of a map.
    ``default`` is the default in its wire form, ``doc`` the column's comment in its database (Debezium's
    ``include.schema.comments``).
    """

    name: str
    connect_type: str
    semantic_name: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True
    default: Any = None
    items: Field | None = None
    keys: Field | None = None
    fields: tuple[Field, ...] = ()
    doc: str | None = field(default=None, compare=False)


def parse_envelope(schema_json_text: str) -> list[Field]:
    """Return the columns of a row, from the schema document of a Debezium envelope or a custom record.

    For an envelope, they are those of its ``after`` or ``before``; for a custom record, see `PATH`. Raises
    SchemaError.
    """
    if _path(schema_json_text) is not None:
        return _columns_at(schema_json_text, "the row image")
    images = {f.get("field"): f for f in _struct(_document(schema_json_text), "the envelope")}
    image = images.get("after") or images.get("before")
    if image is None:
        raise SchemaError(
            "the schema has neither 'after' nor 'before': it is not the schema of a Debezium envelope"
        )
    return [_field(f) for f in _struct(image, "the row image")]


def parse_key(schema_json_text: str) -> list[Field]:
    """Return the key columns, from the schema document of a record's key or a custom record (see `PATH`).

    Raises SchemaError.
    """
    if _path(schema_json_text) is not None:
        return _columns_at(schema_json_text, "the key")
    return [_field(f) for f in _struct(_document(schema_json_text), "the key")]


def at_path(path: Sequence[str]) -> tuple[str, str]:
    """Return the prefix and suffix that turn a record's schema into that of the row or key at ``path``."""
    return f'{{"{PATH}":{json.dumps(list(path), separators=(",", ":"))},"record":', "}"


def field_at(schema_json_text: str, path: Sequence[str]) -> Field | None:
    """Return the value at a path in a custom record (see `PATH`), with the path as its name.

    Returns None if the schema has no value there. Raises SchemaError.
    """
    found: Mapping[str, Any] | None = _document(schema_json_text)["record"]
    for name in path:
        inner = _struct(found, "the record") if found and found.get("type") == "struct" else []
        found = next((each for each in inner if each.get("field") == name), None)
    return None if found is None else replace(_field(found), name=".".join(path))


def is_at_path(text: str) -> bool:
    """Return whether a document says where in a record's schema a row or key is."""
    return text.startswith(f'{{"{PATH}":')


def _path(text: str) -> list[str] | None:
    return list(_document(text)[PATH]) if is_at_path(text) else None


def _columns_at(text: str, what: str) -> list[Field]:
    """Return the columns at a document's `PATH`: those of a struct, or the single one of a plain value."""
    document = _document(text)
    found: Mapping[str, Any] = document["record"]
    for name in document[PATH]:
        inner = next((each for each in _struct(found, what) if each.get("field") == name), None)
        if inner is None:
            raise SchemaError(f"the schema has no {'.'.join(document[PATH])}: {what} should stand there")
        found = inner
    if found.get("type") == "struct" or not document[PATH]:
        return [_field(each) for each in _struct(found, what)]
    return [_field(found)]


def connector_of(schema_json_text: str) -> str | None:
    """Return the connector that wrote a row's schema document, such as ``postgresql``; None if it is unknown.

    An envelope names it in the schema of its ``source``. A flat record shows it by the position that
    ``add.fields`` adds. A custom record shows nothing. Raises SchemaError.
    """
    document = _document(schema_json_text)
    if document.get(PATH):
        return None
    fields = {each.get("field"): each for each in _struct(document.get("record", document), "the record")}
    if "source" in fields:
        named = _SOURCE.fullmatch(str(fields["source"].get("name")))
        return named[1] if named is not None else None
    row = fields.get("after")
    added = _struct(row, "the row image") if row is not None and row.get("type") == "struct" else ()
    names = {str(each.get("field")) for each in added}
    names = {each.removeprefix("__").removeprefix("source_") for each in names if each.startswith("__")}
    return next((connector for position, connector in _POSITIONS.items() if position in names), None)


def schemaless(name: str) -> Field:
    """Return a column whose records carry no schema."""
    return Field(name, SCHEMALESS)


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise SchemaError(f"the schema is not a JSON object: {text[:80]}")
    return document


def _struct(schema: Mapping[str, Any], what: str) -> list[Mapping[str, Any]]:
    if schema.get("type") != "struct" or not isinstance(schema.get("fields"), list):
        raise SchemaError(f"the schema of {what} is of type {schema.get('type')!r}; a struct is needed")
    return list(schema["fields"])


def _field(schema: Mapping[str, Any]) -> Field:
    name = schema.get("field", "")
    physical = schema.get("type")
    if physical not in PHYSICAL:
        raise SchemaError(f"column {name!r}: {physical!r} is not a type of Kafka Connect")
    element = schema.get("items") if physical == "array" else schema.get("values")
    return Field(
        name=name,
        connect_type={"float32": "float", "float64": "double"}.get(physical, physical),
        semantic_name=schema.get("name"),
        parameters=schema.get("parameters") or {},
        optional=bool(schema.get("optional")),
        default=schema.get("default"),
        items=_field(element) if element else None,
        keys=_field(schema["keys"]) if schema.get("keys") else None,
        fields=tuple(_field(f) for f in schema.get("fields") or ()),
        doc=schema.get("doc") if isinstance(schema.get("doc"), str) else None,
    )
