"""Decodes rows from the JSON text of an image to Spark values, with Column expressions alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from pyspark import SparkContext
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from lakemirror.api.tables import TextEncoding
from lakemirror.driver.parse.values import codecs
from lakemirror.driver.parse.values import placeholder as placeholders
from lakemirror.driver.parse.values.codecs import Codec
from lakemirror.driver.parse.values.connect import SCHEMALESS, Field
from lakemirror.driver.parse.values.expressions import either, null, unless
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.parse.values.semantics import codec_of, is_known
from lakemirror.driver.parse.values.texts import DEBEZIUM, Writing
from lakemirror.driver.parse.values.untyped import codec_of_text, codec_of_type, has_others, marked


@dataclass(frozen=True)
class Decoded:
    """One column of a decoded row. A condition that cannot occur is None; one that can occur is never null.

    - ``value``: the value in the target type; null if one of the conditions below is true (in an array: the
      element that is unrepresentable).
    - ``gap``: the source did not send the value (Debezium's placeholder).
    - ``unrepresentable``: the type has no equivalent for the source's value: infinity, a date before
      year 1, NaN in a decimal, too many digits. ``text`` is then its spelling, and otherwise null. It is
      also null if ``may_lack_text`` and no text says what the value is.
    - ``misfit``: the value is not of the type, so that the record is bad.
    - ``rounded``: the value lacks digits below the microsecond that the source's has.
    """

    value: Column
    gap: Column | None = None
    unrepresentable: Column | None = None
    text: Column | None = None
    misfit: Column | None = None
    rounded: Column | None = None
    may_lack_text: bool = False


# Building expressions takes a JVM call for each of their nodes: seconds for a wide table, which a stream
# would spend on every batch. They depend only on the key.
_PROJECTED: dict[tuple[object, ...], dict[str, Decoded]] = {}
_PROJECTED_AT_MOST = 1000

_CORRUPT = "_corrupt"

_ENCODED: Final = "it is not known how the text is encoded in "
_SAY_HOW: Final = (
    ": set tables[].columns.encodings of the column to text (a number as it is written), base64, base64url "
    "or hex, and run `lakemirror replay`"
)


def spark_type(field: Field) -> DataType:
    """Return the Spark type closest to the column's; STRING for a field without a schema."""
    return _codec(field, None).natural


def wire_type(field: Field, target: DataType | None = None, writing: Writing = DEBEZIUM) -> DataType:
    """Return the type that ``from_json`` has to read the column as."""
    return _codec(field, target, writing).wire


def decode(
    column: Column,
    field: Field,
    target: DataType | None = None,
    *,
    placeholder: str | None = placeholders.DEFAULT,
    writing: Writing = DEBEZIUM,
) -> Decoded:
    """Decode a wire value (of ``wire_type``) to ``target``, by default to ``spark_type``."""
    codec = _codec(field, target, writing)
    parts = codec.decode(column, target or codec.natural)
    gap = _sure(_gap(codec, column, placeholder))
    lost, misfit = _sure(parts.unrepresentable), _sure(parts.misfit)
    if gap is not None:
        lost = None if lost is None else lost & ~gap
        misfit = None if misfit is None else misfit & ~gap
    text = None if lost is None or parts.text is None else F.when(lost, parts.text)
    unspelled = codec.may_lack_text and isinstance(codec, (codecs.Array, codecs.Struct))
    return Decoded(unless(gap, parts.value), gap, lost, text, misfit, _sure(parts.rounded), unspelled)


def _gap(codec: Codec, value: Column, placeholder: str | None) -> Column | None:
    return None if placeholder is None else codec.gap(value, Placeholder(placeholder))


def can_be_left_out(field: Field, target: DataType) -> bool:
    """Return whether the source may leave out the column's value, and send the placeholder for it."""
    return _codec(field, target).gap(F.lit(None), Placeholder()) is not None


def columns_of(schema_json_text: str, parse: Callable[[str], Sequence[Field]]) -> Sequence[Field]:
    """Return the columns in a schema document, as ``parse`` finds them, if values can be decoded with them.

    Raises SchemaError.
    """
    fields = parse(schema_json_text)
    RowDecoder(fields)
    return fields


class RowDecoder:
    """Decodes the rows of one table that share a schema.

    ``fields``: the columns, from ``connect.parse_envelope``, ``parse_key`` or ``connect.schemaless``.
    ``columns``: target types by name, if they are not the natural ones.
    ``placeholder``: the connector's ``unavailable.value.placeholder``; None if records have no such text.
    ``writing``: how the producer of records without a schema writes values, and ``encodings``, by name, what
    the manifest says of a column.

    ``types`` are the resulting types by name, ``unknown`` the unknown semantic names (such a column has its
    physical type), and ``wire_schema`` is what ``parse`` reads.
    """

    def __init__(
        self,
        fields: Sequence[Field],
        columns: Mapping[str, DataType] | None = None,
        *,
        placeholder: str | None = placeholders.DEFAULT,
        writing: Writing = DEBEZIUM,
        encodings: Mapping[str, TextEncoding] = MappingProxyType({}),
    ) -> None:
        self._fields = list(fields)
        self._placeholder = placeholder
        self._writings = {f.name: replace(writing, encoding=encodings.get(f.name)) for f in fields}
        self._targets = dict(columns or {})
        self.corrupt = _free_name(_CORRUPT, {f.name for f in fields})
        self.types: dict[str, DataType] = {
            f.name: self._targets.get(f.name) or spark_type(f) for f in self._fields
        }
        self._wire_names = _unambiguous([*(f.name for f in self._fields), self.corrupt])
        self.unknown = {f.name: str(f.semantic_name) for f in self._fields if not is_known(f)}

    @property
    def wire_schema(self) -> StructType:
        wires = [StructField(f.name, self._wire_type(f)) for f in self._fields]
        return StructType([*wires, StructField(self.corrupt, StringType())])

    def parse(self, text: Column) -> Column:
        """Parse an image's JSON text to a wire struct.

        Its field ``corrupt`` is null unless something did not fit.
        """
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": self.corrupt}
        wire = F.from_json(self._marked(text), self.wire_schema, options)
        if all(name == wire_name for name, wire_name in self._wire_names.items()):
            return wire
        fields = [StructField(self._wire_names[f.name], f.dataType) for f in self.wire_schema.fields]
        return wire.cast(StructType(fields))

    def project(self, wire: Column) -> dict[str, Decoded]:
        """Decode each column from the wire struct."""
        targets = [self._targets.get(f.name) for f in self._fields]
        kinds = repr(self._fields), repr(targets), repr(self._writings)
        key = (id(SparkContext._gateway), str(wire), *kinds, self._placeholder)
        if key not in _PROJECTED:
            if len(_PROJECTED) >= _PROJECTED_AT_MOST:
                _PROJECTED.clear()
            _PROJECTED[key] = {
                f.name: decode(
                    wire.getField(self._wire_names[f.name]),
                    f,
                    target,
                    placeholder=self._placeholder,
                    writing=self._writings[f.name],
                )
                for f, target in zip(self._fields, targets, strict=True)
            }
        return dict(_PROJECTED[key])

    def problem(self, text: Column, wire: Column) -> Column:
        """Return why the row cannot be decoded, naming the columns; null if it can."""
        tokens = F.from_json(text, "map<string,string>")
        decoded = self.project(wire)
        strange = {f.name: self._strange(f, tokens) for f in self._fields}
        names = [
            F.when(
                self._unread(wire, f, tokens)
                | _or_false(either(decoded[f.name].misfit, strange[f.name], self._broken(f, tokens))),
                self._shown(f),
            )
            for f in self._fields
        ]
        listed = F.array_join(F.array_compact(F.array(*names)), ", ") if names else F.lit("")
        reason = F.when(listed != "", F.concat(F.lit("the value does not fit "), listed)).otherwise(
            "the row is not a JSON object of the table's schema"
        )
        corrupt = wire.isNull() | wire.getField(self.corrupt).isNotNull()
        misfit = either(*(d.misfit for d in decoded.values()), *strange.values())
        return F.when(text.isNotNull() & (corrupt if misfit is None else corrupt | misfit), reason)

    def doubt(self, wire: Column) -> Column | None:
        """Return which columns have texts of which it is not known how they are encoded (STRING).

        It is the reason why the row cannot be decoded, and null if there are none; None if there cannot be.
        """
        names = []
        for each in self._fields:
            value, kind = wire.getField(self._wire_names[each.name]), self._targets.get(each.name)
            codec = _codec(each, kind, self._writings[each.name])
            doubt, gap = codec.doubt(value), _gap(codec, value, self._placeholder)
            if doubt is not None:
                names.append(F.when(unless(_sure(gap), doubt), each.name))
        if not names:
            return None
        listed = F.array_join(F.array_compact(F.array(*names)), ", ")
        return F.when(listed != "", F.concat(F.lit(_ENCODED), listed, F.lit(_SAY_HOW)))

    def default(self, name: str) -> Column:
        """Return the default in the column's schema, as a constant of its target type, or null."""
        field = next(f for f in self._fields if f.name == name)
        if field.default is None:
            return null(self.types[name])
        wire = StructType([StructField(name, self._wire_type(field))])
        constant = F.from_json(F.lit(json.dumps({name: field.default})), wire).getField(name)
        return decode(constant, field, self._targets.get(name), writing=self._writings[name]).value

    def _wire_type(self, field: Field) -> DataType:
        return wire_type(field, self._targets.get(field.name), self._writings[field.name])

    def _unread(self, wire: Column, field: Field, tokens: Column) -> Column:
        return wire.getField(self._wire_names[field.name]).isNull() & tokens.getItem(field.name).isNotNull()

    def _marked(self, text: Column) -> Column:
        untyped = any(field.connect_type == SCHEMALESS for field in self._fields)
        texts = any(map(_has_text, self.types.values())) and not any(map(_has_variant, self.types.values()))
        return marked(text) if untyped and texts else text

    def _broken(self, field: Field, tokens: Column) -> Column | None:
        """Return whether something in a nested value could not be read."""
        wire = self._wire_type(field)
        if not isinstance(wire, (ArrayType, MapType, StructType)):
            return None
        schema = StructType([StructField("it", wire), StructField(_CORRUPT, StringType())])
        whole = F.concat(F.lit('{"it":'), tokens.getItem(field.name), F.lit("}"))
        found = F.from_json(whole, schema, {"columnNameOfCorruptRecord": _CORRUPT})
        return _sure(found.getField(_CORRUPT).isNotNull())

    def _strange(self, field: Field, tokens: Column) -> Column | None:
        """Return whether a value without a schema has members that its column has no place for."""
        if field.connect_type != SCHEMALESS:
            return None
        return _sure(has_others(tokens.getItem(field.name), self.types[field.name]))

    def _shown(self, field: Field) -> str:
        return f"{field.name} ({self.types[field.name].simpleString()})"


def _codec(field: Field, target: DataType | None, writing: Writing = DEBEZIUM) -> Codec:
    if field.connect_type == SCHEMALESS:
        return codec_of_type(target or StringType(), writing)
    of_texts = None if target is None else _of_texts(field, target, writing)
    return of_texts or codec_of(field)


def _of_texts(field: Field, target: DataType, writing: Writing) -> Codec | None:
    """Return the codec of texts with a schema for decimals or bytes, also within arrays, maps and structs.

    Returns None if nothing in the column is such a text.
    """
    if field.connect_type == "string":
        return codec_of_text(target, writing)
    if isinstance(target, StructType):
        kinds = {each.name: each.dataType for each in target.fields}
        found = {f.name: _of_texts(f, kinds[f.name], writing) for f in field.fields if f.name in kinds}
        members = tuple((f.name, found.get(f.name) or codec_of(f)) for f in field.fields)
        return codecs.Struct(members) if any(found.values()) else None
    if field.items is None:
        return None
    if isinstance(target, ArrayType):
        item = _of_texts(field.items, target.elementType, writing)
        return None if item is None else codecs.Array(item)
    if isinstance(target, MapType) and field.keys is not None:
        item = _of_texts(field.items, target.valueType, writing)
        return None if item is None else codecs.Map(codec_of(field.keys), item)
    return None


def _has_text(kind: DataType) -> bool:
    return "string" in kind.simpleString()


def _has_variant(kind: DataType) -> bool:
    return "variant" in kind.simpleString()


def _sure(condition: Column | None) -> Column | None:
    return None if condition is None else F.coalesce(condition, F.lit(False))


def _or_false(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else condition


def _unambiguous(names: Sequence[str]) -> dict[str, str]:
    """Return names by which Spark, which ignores case, can tell the fields apart."""
    lowered = [name.lower() for name in names]
    if len(set(lowered)) == len(names):
        return {name: name for name in names}
    corrupt = names[-1]
    return {**{name: f"{corrupt}_{i}" for i, name in enumerate(names)}, corrupt: corrupt}


def _free_name(name: str, taken: set[str]) -> str:
    taken = {each.lower() for each in taken}
    while name in taken:
        name = "_" + name
    return name
