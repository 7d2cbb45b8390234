"""Avro schemas, as the Kafka Connect schemas that they were made from.

Connect's Avro converters (Confluent's ``AvroData``, which Apicurio's follows) write a Connect schema as an
Avro schema, and keep what Avro cannot express in properties: ``connect.name``, ``connect.parameters``,
``connect.type`` and ``connect.default``. Other producers only use ``logicalType`` (Avro specification,
"Logical Types"). A record that is read with its writer's schema, without logical types, is then what
JsonConverter would have written, except that bytes are bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lakemirror.driver.rules.schemas import PADDED, SchemaError

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

_NAMED: Final = ("record", "enum", "fixed")
_Names = dict[str, tuple[Mapping[str, Any], str]]


def connect_schema(schema: Any, referenced: Sequence[Any] = ()) -> dict[str, Any]:
    """Return a writer's schema as JsonConverter would write it. ``referenced`` are schemas that it refers to.

    Raises SchemaError if Connect could not have written a record with it.
    """
    names: _Names = {}
    for each in (*referenced, schema):
        _collect(each, "", names)
    return _of(schema, "", names, ())


def _collect(schema: Any, namespace: str, names: _Names) -> None:
    """Add the named types that a schema defines to ``names``, by their full names."""
    if isinstance(schema, list):
        for each in schema:
            _collect(each, namespace, names)
    elif isinstance(schema, Mapping):
        inner = _namespace(schema, namespace)
        if "name" in schema and schema.get("type") in _NAMED:
            names[_full_name(schema["name"], inner)] = (schema, namespace)
        for part in ("type", "items", "values"):
            _collect(schema.get(part), inner, names)
        for each in schema.get("fields", ()):
            _collect(each["type"], inner, names)


def _namespace(schema: Mapping[str, Any], enclosing: str) -> str:
    name = str(schema.get("name", ""))
    if "." in name and schema.get("type") in _NAMED:
        return name.rpartition(".")[0]
    return str(schema.get("namespace", enclosing))


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _of(schema: Any, namespace: str, names: _Names, within: tuple[str, ...]) -> dict[str, Any]:
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return {"type": _PRIMITIVES[schema], "optional": False}
        return _named(schema, namespace, names, within)
    if isinstance(schema, list):
        return _union(schema, namespace, names, within)
    told = _typed(schema, namespace, names, within)
    name = schema.get("connect.name") or _LOGICAL.get(str(schema.get("logicalType")))
    parameters = schema.get("connect.parameters") or of_decimal(schema)
    default = schema.get("connect.default")
    if name is not None:
        told["name"] = name
    if parameters:
        told["parameters"] = parameters
    if default is not None:
        told["default"] = on_the_wire(default, told["type"])
    return told


def _named(name: str, namespace: str, names: _Names, within: tuple[str, ...]) -> dict[str, Any]:
    full = _full_name(name, namespace)
    full = full if full in names else name
    if full not in names:
        raise SchemaError(f"the schema refers to the type {name}, which it does not define")
    if full in within:
        raise SchemaError(f"the type {full} contains itself, which no column can hold")
    schema, enclosing = names[full]
    return _of(schema, enclosing, names, (*within, full))


def _union(members: Sequence[Any], namespace: str, names: _Names, within: tuple[str, ...]) -> dict[str, Any]:
    values = [each for each in members if each != "null"]
    if len(values) != 1:
        raise SchemaError(
            "the schema has a union of several types, which a connector writes for no column: "
            f"{json.dumps(members)[:100]}"
        )
    return {**_of(values[0], namespace, names, within), "optional": len(values) < len(members)}


def _typed(
    schema: Mapping[str, Any], namespace: str, names: _Names, within: tuple[str, ...]
) -> dict[str, Any]:
    kind, inner = schema.get("type"), _namespace(schema, namespace)
    if kind == "record":
        full = _full_name(str(schema["name"]), inner)
        if within.count(full) > 1:
            raise SchemaError(f"the type {full} contains itself, which no column can hold")
        fields = [_field(each, inner, names, (*within, full)) for each in schema["fields"]]
        return {"type": "struct", "fields": fields, "optional": False, "name": full}
    if kind == "array":
        return {"type": "array", "items": _of(schema["items"], inner, names, within), "optional": False}
    if kind == "map":
        keys = {"type": "string", "optional": False}
        values = _of(schema["values"], inner, names, within)
        return {"type": "map", "keys": keys, "values": values, "optional": False}
    if kind in ("enum", "fixed"):
        return {"type": "string" if kind == "enum" else "bytes", "optional": False}
    told = _of(kind, inner, names, within)
    return {**told, "type": schema.get("connect.type", told["type"])}


def _field(
    schema: Mapping[str, Any], namespace: str, names: _Names, within: tuple[str, ...]
) -> dict[str, Any]:
    told = _of(schema["type"], namespace, names, within)
    if schema.get("default") is not None and "default" not in told:
        told = {**told, "default": on_the_wire(schema["default"], told["type"])}
    return {**told, "field": schema["name"]}


def of_decimal(schema: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of Connect's Decimal, from a logical type."""
    if schema.get("logicalType") != "decimal":
        return {}
    precision = {"connect.decimal.precision": str(schema["precision"])} if "precision" in schema else {}
    padded = {PADDED: "true"} if schema.get("type") == "fixed" else {}
    return {"scale": str(schema.get("scale", 0)), **precision, **padded}


def on_the_wire(default: Any, kind: str) -> Any:
    """Return a default as it appears in JSON. Avro writes bytes as text, one character each ("Records")."""
    if kind == "bytes" and isinstance(default, str):
        return base64.b64encode(default.encode("latin-1", "replace")).decode()
    return default
