"""Schemas of rows, as Kafka Connect writes them (``schemas.enable=true``).

A schema document is JSON: ``{"type", "optional", "name", "parameters", "default", "field", "fields",
"items", "keys", "values"}``. ``type`` is the physical type, ``name`` the semantic one (Debezium's
``io.debezium.*`` or Connect's ``org.apache.kafka.connect.data.*``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from lakemirror.driver.raised import LakemirrorError

PADDED: Final = "lakemirror.padded"
"""The parameter of a decimal whose bytes have a fixed length (Avro's type fixed); Connect has none."""

_NUMBERS: Final = ("int8", "int16", "int32", "int64", "float", "double", "float32", "float64")
PLAIN: Final = (*_NUMBERS, "boolean", "string", "bytes", "array", "map")
"""The physical types of values that are no rows."""
PHYSICAL: Final = frozenset((*PLAIN, "struct"))

UNREADABLE: Final = "the embedded schema cannot be read: "
"""The beginning of the reason of a record with a schema that raises SchemaError."""

MOST_TYPES: Final = 30_000
"""The largest number of types in a schema, where each use of a named type counts."""
DEEPEST: Final = 50
"""How deep types may be nested."""
_OF_LISTS: Final = 8
"""How many times as much a type counts in an array or a map: its values are converted one by one."""


class SchemaError(LakemirrorError):
    """A schema document that is not a Connect schema of a row."""


@dataclass(frozen=True)
class Field:
    """One column as the connector declares it.

    ``physical`` is its type on the wire, ``semantic`` the name that gives it a meaning. ``items`` is the
    element of an array or the value of a map, ``keys`` the key of a map. ``default`` is in its wire form.
    """

    name: str
    physical: str
    semantic: str | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = True
    default: Any = None
    items: Field | None = None
    keys: Field | None = None
    fields: tuple[Field, ...] = ()

    def parameter(self, name: str, default: int) -> int:
        """Return a parameter that is a number. Raises SchemaError."""
        text = self.parameters.get(name, default)
        try:
            return int(text)
        except ValueError as error:
            raise SchemaError(
                f"column {self.name!r}: parameter {name} is {str(text)[:80]!r}, not a number"
            ) from error


def fields_of_envelope(document: Any) -> list[Field]:
    """Return the columns of a row, from the schema of a Debezium envelope: of its ``after`` or ``before``.

    Raises SchemaError.
    """
    check(document)
    images = {each.get("field"): each for each in _members(document, "the envelope")}
    image = images.get("after") or images.get("before")
    if image is None:
        raise SchemaError(
            "the schema has neither 'after' nor 'before': it is not the schema of a Debezium envelope"
        )
    return [field_of(each) for each in _members(image, "the row image")]


def fields_of_struct(document: Any, what: str = "the key") -> list[Field]:
    """Return the columns of the schema of a key, or of a flattened row. Raises SchemaError."""
    check(document)
    return [field_of(each) for each in _members(document, what)]


def fields_at(document: Any, path: Sequence[str], what: str = "the row image") -> list[Field]:
    """Return the columns at a path in the schema of a record: those of a struct, or that of a plain value.

    Raises SchemaError.
    """
    check(document)
    found: Mapping[str, Any] = document
    for name in path:
        inner = next((each for each in _members(found, what) if each.get("field") == name), None)
        if inner is None:
            raise SchemaError(f"the schema has no {'.'.join(path)}: {what} should stand there")
        found = inner
    if path and found.get("type") != "struct":
        return [field_of(found)]
    return [field_of(each) for each in _members(found, what)]


def field_at(document: Any, path: Sequence[str]) -> Field | None:
    """Return the value at a path in the schema of a record; None if it has none. Raises SchemaError."""
    check(document)
    found: Mapping[str, Any] | None = document
    for name in path:
        inner = _members(found, "the record") if found is not None and found.get("type") == "struct" else []
        found = next((each for each in inner if each.get("field") == name), None)
    return None if found is None else field_of(found)


def _members(schema: Mapping[str, Any], what: str) -> list[Mapping[str, Any]]:
    if schema.get("type") != "struct" or not isinstance(schema.get("fields"), list):
        raise SchemaError(f"the schema of {what} is of type {schema.get('type')!r}; a struct is needed")
    return list(schema["fields"])


def field_of(schema: Mapping[str, Any]) -> Field:
    """Return a column of its schema. Raises SchemaError."""
    name, physical = schema.get("field", ""), schema.get("type")
    if not isinstance(physical, str) or physical not in PHYSICAL:
        raise SchemaError(f"column {name!r}: {physical!r} is not a type of Kafka Connect")
    element = schema.get("items") if physical == "array" else schema.get("values")
    return Field(
        name=name,
        physical={"float32": "float", "float64": "double"}.get(physical, physical),
        semantic=schema.get("name"),
        parameters=schema.get("parameters") or {},
        optional=bool(schema.get("optional")),
        default=schema.get("default"),
        items=field_of(element) if element else None,
        keys=field_of(schema["keys"]) if schema.get("keys") else None,
        fields=tuple(field_of(each) for each in schema.get("fields") or ()),
    )


# -- the size and the form of a document ------------------------------------------------------------------


@dataclass
class Size:
    """The size of a schema that is being walked. Raises SchemaError once it is too large."""

    types: int = 0
    _depth: int = 0
    _weight: int = 1

    @contextmanager
    def of_a_type(self) -> Iterator[None]:
        """Count a type, with all that is nested in it."""
        self.types += self._weight
        self._depth += 1
        if self._depth > DEEPEST:
            raise SchemaError(f"the schema has types that are nested more than {DEEPEST} deep")
        if self.types > MOST_TYPES:
            raise SchemaError(
                f"the schema has more than {MOST_TYPES:,} types (each one in an array or a map counts as "
                f"{_OF_LISTS})"
            )
        yield
        self._depth -= 1

    @contextmanager
    def of_a_list(self) -> Iterator[None]:
        """Count what is in an array or a map."""
        self._weight *= _OF_LISTS
        yield
        self._weight //= _OF_LISTS


def check(schema: Any) -> None:
    """Check the size and the form of a Connect schema in all of its parts. Raises SchemaError."""
    _Form().of(schema, "the schema")


class _Form:
    """Checks the form of a Connect schema."""

    def __init__(self) -> None:
        self._size = Size()

    def of(self, schema: Any, what: str) -> None:
        with self._size.of_a_type():
            if not isinstance(schema, dict):
                raise SchemaError(f"{what} is not a JSON object: {_shown(schema)}")
            physical = schema.get("type")
            if not isinstance(physical, str) or physical not in PHYSICAL:
                raise SchemaError(f"{what}: {physical!r} is not a type of Kafka Connect")
            if not isinstance(schema.get("name"), str | None):
                raise SchemaError(f"{what}: its name is not a text: {_shown(schema['name'])}")
            parameters = schema.get("parameters")
            if not isinstance(parameters, dict | None) or not all(
                isinstance(each, str | int) for each in (parameters or {}).values()
            ):
                raise SchemaError(f"{what}: its parameters are not an object of texts: {_shown(parameters)}")
            if physical == "struct":
                self._fields(schema.get("fields"), what)
            parts = {"array": ("items",), "map": ("keys", "values")}.get(physical, ())
            for part in parts:
                with self._size.of_a_list():
                    self.of(schema.get(part), f"{part} of {what}")

    def _fields(self, fields: Any, what: str) -> None:
        if not isinstance(fields, list):
            raise SchemaError(f"{what} is a struct without a list of fields")
        names = set()
        for each in fields:
            if not isinstance(each, dict):
                raise SchemaError(f"{what} has a field that is not a JSON object: {_shown(each)}")
            name = each.get("field", "")
            if not isinstance(name, str):
                raise SchemaError(f"{what} has a field whose name is not a text: {_shown(name)}")
            if name in names:
                raise SchemaError(f"{what} has two fields called {name!r}")
            names.add(name)
            self.of(each, f"column {name!r}")


def _shown(part: Any) -> str:
    return json.dumps(part, default=str)[:80]
