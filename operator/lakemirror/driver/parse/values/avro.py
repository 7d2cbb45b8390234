"""Converts Avro schemas to the Kafka Connect schemas that they were made from.

Connect's Avro converters (Confluent's ``AvroData``, which Apicurio's follows) write a Connect schema as an
Avro schema, and keep what Avro cannot express in properties: ``connect.name``, ``connect.parameters``,
``connect.type`` and ``connect.default``. An Avro record can therefore be converted to what JsonConverter
would have written, and is then read like any other. Producers other than Connect only use ``logicalType``
(Avro specification, "Logical Types").
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from lakemirror.driver.parse.values.connect import read
from lakemirror.driver.rules.avro import of_decimal, on_the_wire
from lakemirror.driver.rules.schemas import SchemaError, Size, check

_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "bytes",
    "string": "string",
}
_TYPES: Final[Mapping[str, DataType]] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
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

_DEFAULTS: Final[Mapping[str, Any]] = {
    "boolean": bool,
    **dict.fromkeys(("int", "long"), int),
    **dict.fromkeys(("float", "double"), (int, float, str)),
    **dict.fromkeys(("bytes", "string", "fixed", "enum"), str),
    "array": list,
    **dict.fromkeys(("map", "record"), dict),
}
"""What JSON has for a default of a type. Floats that are no numbers are texts."""

_TEXT: Final = {"type": "string", "optional": False}
_PLAIN: Final = "f0"
"""The only field of the record that a plain value is read as; such a record has the same bytes."""
_NAMED: Final = ("record", "enum", "fixed")
_COMPLEX: Final = (*_NAMED, "array", "map")
_NAME: Final = re.compile(r"[^\W\d]\w*")
"""A name of Avro, which may have letters of any language ("Names", and `NameValidator.UTF_VALIDATOR`)."""
_LARGEST_FIXED: Final = 2**20
"""In bytes, which are allocated for each value."""


class NotAvro(SchemaError):
    """A document that is not a schema of Avro at all."""


@dataclass(frozen=True)
class AvroSchema:
    """A writer's schema.

    ``reader`` is the schema with which Spark reads the bytes as plain values. Its fields are named by their
    places, so that no name means anything to Spark. ``type`` is what it reads, with the ``fields``' own
    names. ``document`` is the Connect schema as JsonConverter writes it. ``plain`` is the field of a value
    that is not a record; None for a record.
    """

    reader: str
    type: StructType
    document: str
    plain: str | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields."""
        return tuple(self.type.names)


def place(number: int) -> str:
    """Return the name of a record's field in the schema with which it is read."""
    return f"f{number}"


def by_place(type: DataType) -> DataType:
    """Return a type whose fields are named by their places."""
    if isinstance(type, StructType):
        kinds = [by_place(each.dataType) for each in type.fields]
        return StructType([StructField(place(number), kind) for number, kind in enumerate(kinds)])
    if isinstance(type, ArrayType):
        return ArrayType(by_place(type.elementType))
    if isinstance(type, MapType):
        return MapType(type.keyType, by_place(type.valueType))
    return type


def parse(text: str, referenced: Sequence[str] = ()) -> AvroSchema:
    """Parse the schema of a record or of a plain value.

    ``text`` is the schema, ``referenced`` are the texts of schemas that it refers to. Raises SchemaError if
    it is not an Avro schema, if Connect could not have written a record with it, or if it is too large.
    """
    whole, *others = (read(each) for each in (text, *referenced))
    plain = None
    if not isinstance(whole, dict) or whole.get("type") != "record":
        plain = _PLAIN
        whole = {"type": "record", "name": "lakemirror.Plain", "fields": [{"name": plain, "type": whole}]}
    names: dict[str, Any] = {}
    for each in (*others, whole):
        _collect(each, "", names)
    _Form(names).of(whole, "")
    document = _Connect(names).of(whole, "")
    check(document)
    reader, type = _Reader(names).of(whole, "")
    return AvroSchema(json.dumps(reader), cast(StructType, type), json.dumps(document), plain)


def _collect(schema: Any, namespace: str, names: dict[str, Any]) -> None:
    """Add the named types that a schema defines to ``names``, by their full names.

    What is not a schema is left for `_Form` to find.
    """
    if isinstance(schema, list):
        for each in schema:
            _collect(each, namespace, names)
    elif isinstance(schema, dict):
        inner = _namespace(schema, namespace)
        if isinstance(schema.get("name"), str) and schema.get("type") in _NAMED:
            full = _full_name(schema["name"], inner)
            if names.setdefault(full, (schema, namespace))[0] != schema:
                raise SchemaError(f"the schema defines the type {full!r} twice")
        for part in ("type", "items", "values"):
            if isinstance(schema.get(part), (dict, list)):
                _collect(schema[part], inner, names)
        fields = schema.get("fields")
        for each in fields if isinstance(fields, list) else ():
            if isinstance(each, dict):
                _collect(each.get("type"), inner, names)


def _namespace(schema: Mapping[str, Any], enclosing: str) -> str:
    name = str(schema.get("name", ""))
    if "." in name and schema.get("type") in _NAMED:
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
            raise SchemaError(f"the schema refers to the type {name[:100]}, which it does not define")
        if full in self._open:
            raise SchemaError(f"the type {full} contains itself, which no column can hold")
        self._open.append(full)
        try:
            return self.of(*self.names[full])
        finally:
            self._open.pop()


@dataclass
class _Form(_Named):
    """Checks the form of a schema, and its size where each use of a named type counts.

    Returns the fewest bytes that a value takes.
    """

    size: Size = field(default_factory=Size)

    def of(self, schema: Any, namespace: str) -> int:
        with self.size.of_a_type():
            if isinstance(schema, str):
                return self._word(schema, namespace)
            if isinstance(schema, list):
                return self._union(schema, namespace)
            if not isinstance(schema, dict):
                raise NotAvro(f"{_shown(schema)} is not a type of Avro")
            kind, inner = schema.get("type"), _namespace(schema, namespace)
            if not isinstance(kind, str) or kind not in _COMPLEX:
                return self.of(kind, namespace if isinstance(kind, (dict, list)) else inner)
            if kind in _NAMED:
                if "name" not in schema:
                    raise NotAvro(f"a type of kind {kind} has no name")
                _check_name(schema.get("name"), f"a type of kind {kind}", dotted=True)
            return int(getattr(self, f"_{kind}")(schema, inner))

    def _word(self, name: str, namespace: str) -> int:
        if name in _PRIMITIVES:
            return {"float": 4, "double": 8}.get(name, 1)
        if name == "null":
            raise SchemaError("null alone is the type of no column")
        return int(self.named(name, namespace))

    def _union(self, members: Sequence[Any], namespace: str) -> int:
        values = [each for each in members if each != "null"]
        if len(values) != 1:
            raise SchemaError(
                "the schema has a union of several types, which a connector writes for no column: "
                f"{_shown(members)}"
            )
        if isinstance(values[0], list) or len(members) > 2:
            raise SchemaError(f"the schema has a union that is none: {_shown(members)}")
        self.of(values[0], namespace)
        return 1

    def _record(self, schema: Mapping[str, Any], namespace: str) -> int:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise SchemaError(f"the record {schema['name']} has no list of fields")
        least, names = 0, set()
        for each in fields:
            if not isinstance(each, dict):
                raise SchemaError(f"the record {schema['name']} has a field that is none: {_shown(each)}")
            name = _check_name(each.get("name"), f"a field of {schema['name']}")
            if name in names:
                raise SchemaError(f"the record {schema['name']} has two fields called {name!r}")
            names.add(name)
            if "type" not in each:
                raise SchemaError(f"the field {name!r} of {schema['name']} has no type")
            least += self.of(each["type"], namespace)
            default = each.get("default")
            if default is not None and not self._fits(default, each["type"], namespace):
                raise SchemaError(
                    f"the default of {name!r} of {schema['name']} is not of its type: {_shown(default)}"
                )
        return least

    def _fits(self, default: Any, schema: Any, namespace: str) -> bool:
        """Return whether a default has a type, which was checked; of a union, any member will do.

        A null always has: old writers gave columns without a default that one.
        """
        if default is None:
            return True
        if isinstance(schema, list):
            return any(self._fits(default, each, namespace) for each in schema if each != "null")
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            full = _full_name(schema, namespace)
            return self._fits(default, *self.names[full if full in self.names else schema])
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind not in (*_PRIMITIVES, *_COMPLEX):
            return self._fits(default, kind, namespace)
        if not isinstance(default, _DEFAULTS[kind]) or isinstance(default, bool) != (kind == "boolean"):
            return False
        inner = namespace if isinstance(schema, str) else _namespace(schema, namespace)
        if kind == "record":
            fields = {each["name"]: each["type"] for each in schema["fields"]}
            return all(n in fields and self._fits(v, fields[n], inner) for n, v in default.items())
        if kind == "enum":
            return default in schema["symbols"]
        if kind == "array":
            return all(self._fits(each, schema["items"], inner) for each in default)
        if kind == "map":
            return all(self._fits(each, schema["values"], inner) for each in default.values())
        return True

    def _enum(self, schema: Mapping[str, Any], namespace: str) -> int:
        symbols = schema.get("symbols")
        if not isinstance(symbols, list):
            raise SchemaError(f"the enum {schema['name']} has no list of symbols")
        for each in symbols:
            _check_name(each, f"a symbol of {schema['name']}")
        if len(set(symbols)) < len(symbols):
            raise SchemaError(f"the enum {schema['name']} has a symbol twice")
        return 1

    def _fixed(self, schema: Mapping[str, Any], namespace: str) -> int:
        size = schema.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= _LARGEST_FIXED:
            raise SchemaError(
                f"the size of the fixed type {schema['name']} is {_shown(size)}, and not a number of 1 to "
                f"{_LARGEST_FIXED:,} bytes"
            )
        return size

    def _array(self, schema: Mapping[str, Any], namespace: str) -> int:
        with self.size.of_a_list():
            if self.of(schema.get("items"), namespace) == 0:
                raise SchemaError("the items of an array take no bytes, so that nothing limits their number")
        return 1

    def _map(self, schema: Mapping[str, Any], namespace: str) -> int:
        with self.size.of_a_list():
            self.of(schema.get("values"), namespace)
        return 1


def _check_name(name: Any, what: str, *, dotted: bool = False) -> str:
    parts = name.split(".") if isinstance(name, str) and dotted else [name]
    if not all(isinstance(each, str) and _NAME.fullmatch(each) for each in parts):
        raise SchemaError(f"{what} is called {_shown(name)}, which is no name of Avro")
    return str(name)


def _shown(part: Any) -> str:
    return json.dumps(part)[:100]


class _Reader(_Named):
    """Builds a schema without logical types, which would change what is read, and the type that it reads.

    A decimal of more than 38 digits, for example, makes Spark refuse the whole schema. Each use of a named
    type gets a definition of its own.
    """

    _uses = 0

    def of(self, schema: Any, namespace: str) -> tuple[Any, DataType]:
        if isinstance(schema, str):
            return (schema, _TYPES[schema]) if schema in _TYPES else self.named(schema, namespace)
        if isinstance(schema, list):
            [value] = [each for each in schema if each != "null"]
            reader, type = self.of(value, namespace)
            return [each if each == "null" else reader for each in schema], type
        kind, inner = schema.get("type"), _namespace(schema, namespace)
        if kind not in _COMPLEX:
            return self.of(kind, namespace if isinstance(kind, (dict, list)) else inner)
        if kind == "array":
            reader, type = self.of(schema["items"], inner)
            return {"type": kind, "items": reader}, ArrayType(type)
        if kind == "map":
            reader, type = self.of(schema["values"], inner)
            return {"type": kind, "values": reader}, MapType(StringType(), type)
        self._uses += 1
        named = {"type": kind, "name": f"t{self._uses}", "namespace": "lakemirror"}
        if kind == "enum":
            return {**named, "symbols": schema["symbols"]}, StringType()
        if kind == "fixed":
            return {**named, "size": schema["size"]}, BinaryType()
        fields = [(each["name"], *self.of(each["type"], inner)) for each in schema["fields"]]
        listed = [{"name": place(number), "type": reader} for number, (_, reader, _) in enumerate(fields)]
        return {**named, "fields": listed}, StructType([StructField(name, type) for name, _, type in fields])


class _Connect(_Named):
    """Builds a schema as JsonConverter writes it."""

    def of(self, schema: Any, namespace: str) -> dict[str, Any]:
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return {"type": _PRIMITIVES[schema], "optional": False}
            found: dict[str, Any] = self.named(schema, namespace)
            return found
        if isinstance(schema, list):
            [value] = [each for each in schema if each != "null"]
            return {**self.of(value, namespace), "optional": len(schema) > 1}
        told = self._typed(schema, namespace)
        name = schema.get("connect.name") or _LOGICAL.get(str(schema.get("logicalType")))
        if name is not None:
            told["name"] = name
        parameters = schema.get("connect.parameters") or of_decimal(schema)
        if parameters:
            told["parameters"] = parameters
        if schema.get("connect.default") is not None:
            told["default"] = on_the_wire(schema["connect.default"], told["type"])
        if schema.get("connect.doc"):
            told["doc"] = schema["connect.doc"]
        return told

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
            told = {**told, "default": on_the_wire(schema["default"], told["type"])}
        doc = schema.get("doc") or told.get("doc")
        return {**told, "field": schema["name"], **({"doc": doc} if doc else {})}
