"""Turns records of JSON with their schemas embedded into records of Avro, and the schemas that they name; and
records of Avro into what Connect's JSON converter would have written.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import fastavro

from lakemirror.driver.rules.avro import connect_schema
from tests.support.records import Record, Row

_PLAIN = {
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    **{each: each for each in ("boolean", "string", "bytes", "float", "double")},
}


@dataclass
class AvroWriter:
    """Writes records as Connect's Avro converter does; ``schemas`` are those it has registered, by id.

    Unlike the converter, it takes any name.
    """

    schemas: dict[int, str] = field(default_factory=dict)
    _ids: dict[str, int] = field(default_factory=dict)

    def record(self, record: Record) -> Record:
        """The record with its key and value in Avro. What has no schema stays as it is."""
        return {**record, **{name: self._encoded(record[name]) for name in ("key", "value")}}

    def _encoded(self, text: str | None) -> str | None:
        if text is None:
            return None
        document = json.loads(text)
        schema = json.dumps(_Types().of(document["schema"]))
        identity = self._ids.setdefault(schema, len(self._ids) + 1)
        self.schemas[identity] = schema
        body = b"\x00" + identity.to_bytes(4, "big") + encoded(document["schema"], document["payload"])
        return base64.b64encode(body).decode()


class _Types:
    """The schemas of Avro for those of Connect; each record has a name of its own."""

    _records = 0

    def of(self, schema: Row) -> Any:
        told: Any = self._typed(schema)
        if "name" in schema and schema["type"] != "struct":
            named = {"connect.name": schema["name"], "connect.parameters": schema.get("parameters") or {}}
            told = {**(told if isinstance(told, dict) else {"type": told}), **named}
        return ["null", told] if schema.get("optional") else told

    def _typed(self, schema: Row) -> Any:
        kind = schema["type"]
        if kind == "array":
            return {"type": "array", "items": self.of(schema["items"])}
        if kind == "map":
            return {"type": "map", "values": self.of(schema["values"])}
        if kind != "struct":
            return _PLAIN[kind]
        self._records += 1
        name = f"R{self._records}"
        fields = [{"name": each["field"], **self._default(each)} for each in schema["fields"]]
        return {"type": "record", "name": name, "fields": fields}

    def _default(self, schema: Row) -> Row:
        default = {"default": schema["default"]} if "default" in schema else {}
        return {"type": self.of(schema), **default}


def schema_without_defaults(schema: Row) -> Any:
    """The schema of Avro for one of Connect, without defaults: a default is of the first type of a union."""
    return _Types().of(_undefaulted(schema))


def _undefaulted(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_undefaulted(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _undefaulted(each) for name, each in schema.items() if name != "default"}


def encoded(schema: Row, value: Any) -> bytes:
    """The bytes of a value as it stands in JSON, with its schema of Connect."""
    if schema.get("optional"):
        return b"\x00" if value is None else b"\x02" + encoded({**schema, "optional": False}, value)
    kind = schema["type"]
    if kind == "boolean":
        return bytes([value])
    if kind in ("float", "double"):
        return struct.pack("<f" if kind == "float" else "<d", value)
    if kind in ("string", "bytes"):
        octets = value.encode() if kind == "string" else base64.b64decode(value)
        return number(len(octets)) + octets
    if kind == "struct":
        return b"".join(encoded(each, value.get(each["field"])) for each in schema["fields"])
    if kind == "array":
        items = [encoded(schema["items"], each) for each in value]
        return (number(len(items)) + b"".join(items) if items else b"") + b"\x00"
    if kind == "map":
        text = {"type": "string"}
        pairs = [encoded(text, name) + encoded(schema["values"], each) for name, each in value.items()]
        return (number(len(pairs)) + b"".join(pairs) if pairs else b"") + b"\x00"
    return number(value)


def number(value: int) -> bytes:
    """A number as Avro writes it: zigzag, seven bits a byte, the lowest first."""
    rest = (value << 1) ^ (value >> 63)
    found = bytearray()
    while rest > 0x7F:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*found, rest])


def as_json(record: Record, schemas: Mapping[int, str]) -> Record:
    """A record of Avro as Connect's JSON converter would have written it, with the schemas of a registry."""
    return {**record, **{name: _as_json(record[name], schemas) for name in ("key", "value")}}


def _as_json(text: str | None, schemas: Mapping[int, str]) -> str | None:
    if text is None:
        return None
    octets = base64.b64decode(text)
    schema = schemas[int.from_bytes(octets[1:5], "big")]
    read, told = _parsed(schema)
    payload = fastavro.schemaless_reader(io.BytesIO(octets[5:]), read, None)
    return json.dumps({"schema": told, "payload": _plain(payload)}, ensure_ascii=False)


@cache
def _parsed(schema: str) -> tuple[Any, Row]:
    """The schema for the reader, in which nothing has a logical type, and as one of Connect."""
    document = json.loads(schema)
    return fastavro.parse_schema(_physical(document)), connect_schema(document)


def _physical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_physical(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: each if name == "default" else _physical(each)
        for name, each in schema.items()
        if name != "logicalType"
    }


def _plain(value: Any) -> Any:
    """A value of Avro in JSON: bytes are base64, and what is no number of JSON is its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value
