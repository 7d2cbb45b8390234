"""Converts Avro schemas to the Kafka Connect schemas that they were made from.

Connect's Avro converters (Confluent's ``AvroData``, which Apicurio's follows) write a Connect schema as an
Avro schema, and keep what Avro cannot express in properties: ``connect.name``, ``connect.parameters``,
``connect.type`` and ``connect.default``. An Avro record can therefore be converted to what JsonConverter
would have written, and is then read like any other. Producers other than Connect only use ``logicalType``
(Avro specification, "Logical Types").
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lakemirror.driver.parse.values.connect import PADDED, SchemaError

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
_LOGICAL: Final = {
    "date": "org.apache.kafka.connect.data.Date",
    "time-millis": "org.apache.kafka.connect.data.Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": "org.apache.kafka.connect.data.Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "local-timestamp-millis": "io.debezium.time.Timestamp",
    "local-timestamp-micros": "io.debezium.time.MicroTimestamp",
    "timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "local-timestamp-nanos": "io.debezium.time.NanoTimestamp",
    "decimal": "org.apache.kafka.connect.data.Decimal",
    "uuid": "io.debezium.data.Uuid",
}
"""Connect's name for a logical type, if the schema itself gives none."""

_TEXT: Final = {"type": "string", "optional": False}
_PLAIN: Final = "value"
"""The only field of the record that a plain value is read as; such a record has the same bytes."""
_STRUCTURE: Final = ("type", "name", "namespace", "items", "values", "symbols", "size")
"""The parts of an Avro schema that determine how bytes are read."""


@dataclass(frozen=True)
class AvroSchema:
    """A writer's schema.

    ``reader`` is the schema with which Spark reads the bytes as plain values, ``fields`` are the names of the
    fields, and ``document`` is the Connect schema as JsonConverter writes it. ``plain`` is the field of a
    value that is not a record; None for a record.
    """

    reader: str
    fields: tuple[str, ...]
    document: str
    plain: str | None = None


def parse(text: str, referenced: Sequence[str] = ()) -> AvroSchema:
    """Parse the schema of a record or of a plain value.

    ``text`` is the schema, ``referenced`` are the texts of schemas that it refers to. Raises SchemaError if
    it is not an Avro schema, or if Connect could not have written a record with it.
    """
    try:
        whole, *others = (json.loads(each) for each in (text, *referenced))
    except ValueError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from error
    plain = None
    if not isinstance(whole, dict) or whole.get("type") != "record":
        plain = _PLAIN
        whole = {"type": "record", "name": "lakemirror.Plain", "fields": [{"name": plain, "type": whole}]}
    names: dict[str, Any] = {}
    for each in (*others, whole):
        _collect(each, "", names)
    document = _Connect(names).of(whole, "")
    reader = _Reader(names).of(whole, "")
    fields = tuple(each["name"] for each in whole["fields"])
    return AvroSchema(json.dumps(reader), fields, json.dumps(document), plain)


def _collect(schema: Any, namespace: str, names: dict[str, Any]) -> None:
    """Add the named types that a schema defines to ``names``, by their full names."""
    if isinstance(schema, list):
        for each in schema:
            _collect(each, namespace, names)
    elif isinstance(schema, dict):
        inner = _namespace(schema, namespace)
        if "name" in schema and schema.get("type") in ("record", "enum", "fixed"):
            names[_full_name(schema["name"], inner)] = (schema, namespace)
        for part in ("type", "items", "values"):
            if isinstance(schema.get(part), (dict, list)):
                _collect(schema[part], inner, names)
        for each in schema.get("fields", ()):
            _collect(each["type"], inner, names)


def _namespace(schema: Mapping[str, Any], enclosing: str) -> str:
    name = str(schema.get("name", ""))
    if "." in name and schema.get("type") in ("record", "enum", "fixed"):
        return name.rpartition(".")[0]
    return str(schema.get("namespace", enclosing))


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


@dataclass
class _Named:
    """Finds types by name; refuses a type that contains itself."""

    names: Mapping[str, Any]
    _open: list[str] = field(default_factory=list)

    def of(self, schema: Any, namespace: str) -> Any:
        raise NotImplementedError

    def named(self, name: str, namespace: str) -> Any:
        full = _full_name(name, namespace)
        if full not in self.names:
            full = name
        if full not in self.names:
            raise SchemaError(f"the schema refers to the type {name}, which it does not define")
        if full in self._open:
            raise SchemaError(f"the type {full} contains itself, which no column can hold")
        self._open.append(full)
        try:
            return self.of(*self.names[full])
        finally:
            self._open.pop()


class _Reader(_Named):
    """Builds a schema without logical types, which would change what is read.

    A decimal of more than 38 digits, for example, makes Spark refuse the whole schema. Each use of a named
    type gets a definition of its own.
    """

    _uses = 0

    def of(self, schema: Any, namespace: str) -> Any:
        if isinstance(schema, str):
            return schema if schema in (*_PRIMITIVES, "null") else self.named(schema, namespace)
        if isinstance(schema, list):
            return [self.of(each, namespace) for each in schema]
        kind = schema.get("type")
        if isinstance(kind, (dict, list)):
            return self.of(kind, namespace)
        inner = _namespace(schema, namespace)
        if kind not in ("record", "enum", "fixed", "array", "map"):
            return self.of(kind, inner)
        plain = {part: schema[part] for part in _STRUCTURE if part in schema}
        if "name" in plain:
            self._uses += 1
            plain |= {"name": f"t{self._uses}", "namespace": "lakemirror"}
        for part in ("items", "values"):
            if part in plain:
                plain[part] = self.of(plain[part], inner)
        if kind == "record":
            plain["fields"] = [
                {"name": each["name"], "type": self.of(each["type"], inner)} for each in schema["fields"]
            ]
        return plain


class _Connect(_Named):
    """Builds a schema as JsonConverter writes it."""

    def of(self, schema: Any, namespace: str) -> dict[str, Any]:
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": _PRIMITIVES[schema], "optional": False}
            found: dict[str, Any] = self.named(schema, namespace)
            return found
        if isinstance(schema, list):
            return self._union(schema, namespace)
        told = self._typed(schema, namespace)
        name = schema.get("connect.name") or _LOGICAL.get(str(schema.get("logicalType")))
        if name is not None:
            told["name"] = name
        parameters = schema.get("connect.parameters") or _of_decimal(schema)
        if parameters:
            told["parameters"] = parameters
        if schema.get("connect.default") is not None:
            told["default"] = _on_the_wire(schema["connect.default"], told["type"])
        if schema.get("connect.doc"):
            told["doc"] = schema["connect.doc"]
        return told

    def _union(self, members: Sequence[Any], namespace: str) -> dict[str, Any]:
        values = [each for each in members if each != "null"]
        if len(values) != 1:
            raise SchemaError(
                "the schema has a union of several types, which a connector writes for no column: "
                f"{json.dumps(members)[:100]}"
            )
        return {**self.of(values[0], namespace), "optional": len(values) < len(members)}

    def _typed(self, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        kind, inner = schema.get("type"), _namespace(schema, namespace)
        if kind == "record":
            fields = [self._field(each, inner) for each in schema["fields"]]
            full = _full_name(str(schema["name"]), inner)
            return {"type": "struct", "fields": fields, "optional": False, "name": full}
        if kind == "array":
            return {"type": "array", "items": self.of(schema["items"], inner), "optional": False}
        if kind == "map":
            values = self.of(schema["values"], inner)
            return {"type": "map", "keys": _TEXT, "values": values, "optional": False}
        if kind in ("enum", "fixed"):
            return {"type": "string" if kind == "enum" else "bytes", "optional": False}
        told = dict(self.of(kind, inner))
        return {**told, "type": schema.get("connect.type", told["type"])}

    def _field(self, schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
        told = self.of(schema["type"], namespace)
        if schema.get("default") is not None and "default" not in told:
            told = {**told, "default": _on_the_wire(schema["default"], told["type"])}
        doc = schema.get("doc") or told.get("doc")
        return {**told, "field": schema["name"], **({"doc": doc} if doc else {})}


def _of_decimal(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of Connect's Decimal, from a logical type."""
    if schema.get("logicalType") != "decimal":
        return {}
    precision = {"connect.decimal.precision": str(schema["precision"])} if "precision" in schema else {}
    padded = {PADDED: "true"} if schema.get("type") == "fixed" else {}
    return {"scale": str(schema.get("scale", 0)), **precision, **padded}


def _on_the_wire(default: Any, kind: str) -> Any:
    """Return a default as it appears in JSON. Avro writes bytes as text, one character each ("Records")."""
    if kind == "bytes" and isinstance(default, str):
        return base64.b64encode(default.encode("latin-1", "replace")).decode()
    return default
