"""Kafka Connect schemas as JsonConverter writes them (``schemas.enable=true``).

A schema document is JSON: ``{"type", "optional", "name", "parameters", "default", "field", "fields",
"items", "keys", "values"}``. ``type`` is the physical type, ``name`` the semantic one (Debezium's
``io.debezium.*`` or Connect's ``org.apache.kafka.connect.data.*``).

Whoever writes records writes these documents, too. `document` reads them, and nothing else does: it checks
the whole document, so that no part of it can surprise those who need another part.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from lakemirror.driver.rules.schemas import DEEPEST, SchemaError, check

SCHEMALESS = "json"
"""``connect_type`` of a field without a schema: its value is whatever JSON says it is."""

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

PATH = "path"
"""First member of a schema document that is not purely Connect's.

It holds the names that lead from the schema of a whole ``record`` to that of the row or key in it.
"""


LONGEST: Final = 4 * 2**20
"""The longest text of a schema, in characters."""
_DEEPEST_TEXT: Final = 4 * DEEPEST


def read(text: str) -> Any:
    """Read the JSON of a schema. Raises SchemaError if it is none, or if it is too long or too deep."""
    if len(text) > LONGEST:
        raise SchemaError(f"the schema has more than {LONGEST:,} characters")
    try:
        found = json.loads(text)
    except RecursionError:
        raise SchemaError(f"the schema is nested more than {_DEEPEST_TEXT} deep") from None
    except ValueError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    level = [found]
    for _ in range(_DEEPEST_TEXT):
        level = [inner for each in level if isinstance(each, (dict, list)) for inner in _parts(each)]
    if level:
        raise SchemaError(f"the schema is nested more than {_DEEPEST_TEXT} deep")
    if "\\ud" in text.lower():
        try:
            json.dumps(found, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise SchemaError("the schema has half of a surrogate pair, which is no character") from None
    return found


def _parts(found: dict[str, Any] | list[Any]) -> Sequence[Any]:
    return list(found.values()) if isinstance(found, dict) else found


def document(text: str) -> Mapping[str, Any]:
    """Return a schema document whose form is that of Connect's in all of its parts. Raises SchemaError."""
    found = _checked(text)
    if isinstance(found, str):
        raise SchemaError(found)
    return found


@lru_cache(maxsize=64)
def _checked(text: str) -> Mapping[str, Any] | str:
    """Return a schema document, or what is wrong with it."""
    try:
        found = read(text)
        if not isinstance(found, dict):
            raise SchemaError(f"the schema is not a JSON object: {text[:80]}")
        if PATH in found:
            if not (isinstance(found[PATH], list) and all(isinstance(each, str) for each in found[PATH])):
                raise SchemaError(f"the {PATH} of the schema is not a list of names")
            check(found.get("record"))
        else:
            check(found)
        return found
    except SchemaError as error:
        return str(error)


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
    images = {f.get("field"): f for f in _struct(document(schema_json_text), "the envelope")}
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
    return [_field(f) for f in _struct(document(schema_json_text), "the key")]


def at_path(path: Sequence[str]) -> tuple[str, str]:
    """Return the prefix and suffix that turn a record's schema into that of the row or key at ``path``."""
    return f'{{"{PATH}":{json.dumps(list(path), separators=(",", ":"))},"record":', "}"


def field_at(schema_json_text: str, path: Sequence[str]) -> Field | None:
    """Return the value at a path in a custom record (see `PATH`), with the path as its name.

    Returns None if the schema has no value there. Raises SchemaError.
    """
    found: Mapping[str, Any] | None = document(schema_json_text)["record"]
    for name in path:
        inner = _struct(found, "the record") if found and found.get("type") == "struct" else []
        found = next((each for each in inner if each.get("field") == name), None)
    return None if found is None else replace(_field(found), name=".".join(path))


def is_at_path(text: str) -> bool:
    """Return whether a document says where in a record's schema a row or key is."""
    return text.startswith(f'{{"{PATH}":')


def _path(text: str) -> list[str] | None:
    return list(document(text)[PATH]) if is_at_path(text) else None


def _columns_at(text: str, what: str) -> list[Field]:
    """Return the columns at a document's `PATH`: those of a struct, or the single one of a plain value."""
    whole = document(text)
    found: Mapping[str, Any] = whole["record"]
    for name in whole[PATH]:
        inner = next((each for each in _struct(found, what) if each.get("field") == name), None)
        if inner is None:
            raise SchemaError(f"the schema has no {'.'.join(whole[PATH])}: {what} should stand there")
        found = inner
    if found.get("type") == "struct" or not whole[PATH]:
        return [_field(each) for each in _struct(found, what)]
    return [_field(found)]


def connector_of(schema_json_text: str) -> str | None:
    """Return the connector that wrote a row's schema document, such as ``postgresql``; None if it is unknown.

    An envelope names it in the schema of its ``source``. A flat record shows it by the position that
    ``add.fields`` adds. A custom record shows nothing. Raises SchemaError.
    """
    whole = document(schema_json_text)
    if whole.get(PATH):
        return None
    fields = {each.get("field"): each for each in _struct(_record(whole), "the record")}
    if "source" in fields:
        named = _SOURCE.fullmatch(str(fields["source"].get("name")))
        return named[1] if named is not None else None
    row = fields.get("after")
    added = _struct(row, "the row image") if row is not None and row.get("type") == "struct" else ()
    names = {str(each.get("field")) for each in added}
    names = {each.removeprefix("__").removeprefix("source_") for each in names if each.startswith("__")}
    return next((connector for position, connector in _POSITIONS.items() if position in names), None)


def name_of(schema_json_text: str) -> str | None:
    """Return the semantic name of a schema document; None if it has none, or cannot be read."""
    try:
        name = document(schema_json_text).get("name")
    except SchemaError:
        return None
    return name if isinstance(name, str) else None


def name_at(schema_json_text: str, path: Sequence[str]) -> str | None:
    """Return the semantic name of the value at a path in a record's schema, which may lack the value.

    Returns None also if the schema cannot be read.
    """
    try:
        found = document(schema_json_text)
    except SchemaError:
        return None
    found = _record(found)
    for part in path:
        fields = found["fields"] if found.get("type") == "struct" else ()
        found = next((each for each in fields if each.get("field", "") == part), {})
    name = found.get("name")
    return name if isinstance(name, str) else None


def schemaless(name: str) -> Field:
    """Return a column whose records carry no schema."""
    return Field(name, SCHEMALESS)


def _record(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the record that a row's schema document is a part of, or is."""
    found: Mapping[str, Any] = whole["record"] if PATH in whole else whole
    return found


def _struct(schema: Mapping[str, Any], what: str) -> list[Mapping[str, Any]]:
    if schema.get("type") != "struct" or not isinstance(schema.get("fields"), list):
        raise SchemaError(f"the schema of {what} is of type {schema.get('type')!r}; a struct is needed")
    return list(schema["fields"])


def _field(schema: Mapping[str, Any]) -> Field:
    physical = schema["type"]
    element = schema.get({"array": "items", "map": "values"}.get(physical, ""))
    return Field(
        name=schema.get("field", ""),
        connect_type={"float32": "float", "float64": "double"}.get(physical, physical),
        semantic_name=schema.get("name"),
        parameters={name: str(value) for name, value in (schema.get("parameters") or {}).items()},
        optional=bool(schema.get("optional")),
        default=schema.get("default"),
        items=_field(element) if element else None,
        keys=_field(schema["keys"]) if physical == "map" else None,
        fields=tuple(_field(f) for f in schema["fields"]) if physical == "struct" else (),
        doc=schema.get("doc") if isinstance(schema.get("doc"), str) else None,
    )
