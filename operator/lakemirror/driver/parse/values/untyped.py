"""Values of records without a schema (``schemas.enable=false``): the target type determines their meaning.

| target | accepted values |
|---|---|
| integers | a JSON number |
| FLOAT, DOUBLE | a JSON number that equals the shortest spelling of the float; ``"NaN"`` and ``"Infinity"`` |
| BOOLEAN | true, false, 1, 0 |
| DECIMAL(p,s) | a number; decimal text; base64 of the unscaled value with scale ``s``; the pair |
| DATE | days since 1970, ISO text |
| TIMESTAMP, TIMESTAMP_NTZ | ISO text (UTC unless it says otherwise); a whole number since 1970, see below |
| BINARY | base64 |
| STRING | text as is; the pair as decimal text; any other value as JSON |
| VARIANT | any value; text that is JSON is parsed, as a database's JSON comes as text |
| ARRAY, STRUCT, MAP | element by element; a VARIANT in them is the value as it is |

"The pair" is ``{"scale": s, "value": base64}``, Debezium's VariableScaleDecimal, of up to 38 digits; a larger
one stays as it is.

The unit of a timestamp's number is the coarsest of milliseconds, microseconds and nanoseconds that puts it
into the years 0001 to 9999 (nanoseconds: only after 1970). Microseconds between 1968-01-12 and 1978-01-12 are
therefore taken for milliseconds, and nanoseconds before 1978 for one of the others. If such values matter,
enable schemas. Text that consists only of digits is both a decimal and base64 if its length is a multiple of
4: with a scale above 0 it is base64 (a decimal text would show its fraction); with scale 0 it is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.parse.values import codecs, decimals, temporal
from lakemirror.driver.parse.values.codecs import Codec
from lakemirror.driver.parse.values.expressions import as_decimal, either, let
from lakemirror.driver.parse.values.fit import Parts, fit, is_exact, settled
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.parse.values.temporal import MICROS, MILLIS

_WHOLE = r"^-?\d+$"
_NUMBERS = "^(BIGINT|DECIMAL|DOUBLE|FLOAT)"
_FLOATS_AS_TEXT = "^(NaN|[-+]?(Infinity|INF))$"
_PAIR = r'^\{"scale":(-?\d{1,9}),"value":"([A-Za-z0-9+/=]*)"\}$'
_POSITIVE_INFINITY = 9223372036825200000  # PGStatement.DATE_POSITIVE_INFINITY


def codec_of_type(target: DataType) -> Codec:
    """Return the codec of a JSON value without a schema, for a column of type ``target``.

    Raises LakemirrorError if no JSON value can have that type.
    """
    if isinstance(target, StringType):
        return JsonText()
    if isinstance(target, IntegralType):
        return codecs.INT64 if isinstance(target, LongType) else JsonInteger(target)
    if isinstance(target, (FloatType, DoubleType)):
        return JsonFloat(target)
    if isinstance(target, ArrayType):
        return codecs.Array(_member(target.elementType))
    if isinstance(target, StructType):
        return codecs.Struct(tuple((f.name, _member(f.dataType)) for f in target.fields))
    if isinstance(target, MapType):
        return codecs.Map(codecs.FORMATTED, _member(target.valueType))
    if isinstance(target, DecimalType):
        return JsonDecimal(target)
    if isinstance(target, (TimestampType, TimestampNTZType)):
        return JsonTimestamp(target)
    if isinstance(target, VariantType):
        return JsonVariant(parsed=True)
    for kind, codec in ((BooleanType, JsonBoolean()), (DateType, JsonDate()), (BinaryType, JsonBinary())):
        if isinstance(target, kind):
            return codec
    raise LakemirrorError(f"no value of JSON can become a {target.simpleString()}")


def _member(target: DataType) -> Codec:
    """Return the codec of a value inside another one."""
    return JsonVariant(parsed=False) if isinstance(target, VariantType) else codec_of_type(target)


def has_others(text: Column, kind: DataType) -> Column | None:
    """Return whether objects in a JSON text have non-null members that the type has no place for (BOOLEAN).

    Returns None for a type without structs.
    """
    if isinstance(kind, StructType):
        members = F.map_filter(F.from_json(text, "map<string,string>"), lambda _, value: value.isNotNull())
        known = F.array(*(F.lit(name) for name in kind.names))
        others = F.size(F.array_except(F.map_keys(members), known)) > 0
        return either(others, *(has_others(members[f.name], f.dataType) for f in kind.fields))
    if isinstance(kind, ArrayType):
        each, inner = F.from_json(text, "array<string>"), kind.elementType
    elif isinstance(kind, MapType):
        each, inner = F.map_values(F.from_json(text, "map<string,string>")), kind.valueType
    else:
        return None
    if has_others(text, inner) is None:
        return None
    return F.exists(each, lambda value: _in_it(value, inner))


def _in_it(text: Column, kind: DataType) -> Column:
    found = has_others(text, kind)
    return F.lit(False) if found is None else F.coalesce(found, F.lit(False))


@dataclass(frozen=True)
class JsonInteger(Codec):
    """A whole number for one of the smaller integer types."""

    natural: DataType
    wire = LongType()

    def parts(self, value: Column) -> Parts:
        return fit(value, self.wire, self.natural)


@dataclass(frozen=True)
class JsonFloat(Codec):
    """A number that the type holds exactly, or the text of a float that JSON has no number for."""

    natural: DataType
    wire = VariantType()

    def parts(self, value: Column) -> Parts:
        kind, text = F.schema_of_variant(value), self.text(value)
        double = F.try_variant_get(value, "$", "double")
        exact = kind.rlike(_NUMBERS) & is_exact(text, double, self.natural)
        spelled = (kind == "STRING") & text.rlike(_FLOATS_AS_TEXT)
        number = F.when(exact, double).when(spelled, text.try_cast("double")).cast(self.natural)
        return Parts(number, misfit=value.isNotNull() & (kind != "VOID") & number.isNull())

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")


AS_TEXT = "\x01"
"""Stands before a text that looks like the pair, so that it is not taken for it (see `marked`)."""


def marked(row: Column) -> Column:
    """Mark the texts in a JSON row that look like the pair; once parsed, nothing else tells them apart."""
    look_alike = r'(?<!\\)"\{\\"scale\\":'
    replaced = F.regexp_replace(row, look_alike, r'"\\u0001{\\"scale\\":')
    return F.when(row.contains('"{\\"scale\\":'), replaced).otherwise(row)


class JsonText(codecs.Text):
    """Text, or any other value as JSON."""

    def parts(self, value: Column) -> Parts:
        return Parts(self.text(value))

    def text(self, value: Column) -> Column:
        is_text = value.startswith(AS_TEXT + '{"scale":')
        return F.when(is_text, F.substr(value, F.lit(2))).otherwise(self._unless_text(value))

    def _unless_text(self, value: Column) -> Column:
        octets = F.unbase64(F.regexp_extract(value, _PAIR, 2))
        number = decimals.small_text(octets, F.regexp_extract(value, _PAIR, 1).cast("int"))
        is_pair = value.startswith('{"scale":') & value.rlike(_PAIR)
        return F.when(is_pair, F.coalesce(number, value)).otherwise(value)


@dataclass(frozen=True)
class JsonVariant(Codec):
    """Any value; ``parsed`` says that text is JSON, if it can be parsed."""

    parsed: bool
    wire = natural = VariantType()

    def parts(self, value: Column) -> Parts:
        there = F.when(~F.is_variant_null(value), value)
        if not self.parsed:
            return settled(there, there)
        text = F.when(F.schema_of_variant(value) == "STRING", self.text(value))
        return settled(F.coalesce(F.try_parse_json(text), there), there)

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return self.text(value).isin(*placeholder.spellings)


class JsonBoolean(Codec):
    wire, natural = StringType(), BooleanType()

    def parts(self, value: Column) -> Parts:
        known = value.isin("true", "false", "1", "0")
        return Parts(F.when(known, value.isin("true", "1")), misfit=~known)


class JsonBinary(Codec):
    wire, natural = StringType(), BinaryType()

    def parts(self, value: Column) -> Parts:
        octets = F.try_to_binary(value, F.lit("base64"))
        return Parts(octets, misfit=value.isNotNull() & octets.isNull())

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value.isin(*placeholder.spellings)


class JsonDate(Codec):
    wire, natural = StringType(), DateType()

    def parts(self, value: Column) -> Parts:
        whole = value.rlike(_WHOLE)
        number = codecs.Days().parts(F.when(whole, value.try_cast("int")))
        text = codecs.IsoDate().parts(F.when(~whole, value))
        return _first_of(value, number, text)


@dataclass(frozen=True)
class JsonTimestamp(Codec):
    natural: DataType
    wire = StringType()

    def parts(self, value: Column) -> Parts:
        whole = value.rlike(_WHOLE)
        number = self._number(F.when(whole, value.try_cast("bigint")))
        zoneless = value.rlike(r"\d:\d\d:\d\d(\.\d+)?$")
        iso = F.when(~whole, F.when(zoneless, F.concat(value, F.lit("Z"))).otherwise(value))
        zoned = codecs.IsoTimestamp(zoned=isinstance(self.natural, TimestampType))
        return _first_of(value, number, zoned.decode(iso, self.natural))

    def _number(self, value: Column) -> Parts:
        first, last = MICROS.bounds
        lost = (value < first) | (value >= _POSITIVE_INFINITY)
        micros = (
            F.when(~temporal.outside(value, *MILLIS.bounds), MILLIS.micros(value))
            .when(value <= last, value)
            .otherwise(temporal.NANOS.micros(value))
        )
        moment = (
            F.timestamp_micros(micros) if isinstance(self.natural, TimestampType) else temporal.ntz(micros)
        )
        nanos = temporal.outside(value, *MILLIS.bounds) & (value > last)
        finer = F.coalesce(nanos & (value % 1000 != 0), F.lit(False))
        return Parts(F.when(~lost, moment), lost, temporal.timestamp_spelled(value, MICROS), rounded=finer)


@dataclass(frozen=True)
class JsonDecimal(Codec):
    """A decimal; text and bytes are exact, and a JSON number is as exact as a double."""

    natural: DecimalType
    wire = VariantType()

    def parts(self, value: Column) -> Parts:
        kind, text = F.schema_of_variant(value), self.text(value)
        is_text, digits = kind == "STRING", text.rlike(r"^(\d{4})+$")
        special = text.rlike(decimals.SPECIAL)
        plain = text.rlike(decimals.NUMBER) & ~digits
        encoded = F.when(~plain & ~special & self._is_base64(digits), F.try_to_binary(text, F.lit("base64")))
        number = (
            F.when(is_text & plain, self._of_text(text))
            .when(is_text, let(encoded, self._of_octets))
            .when(kind.startswith("OBJECT"), self._of_pair(value))
            .otherwise(self._of_number(value))
        )
        readable = F.when(is_text, plain | special | encoded.isNotNull()).otherwise(
            kind.rlike("^(BIGINT|DECIMAL|DOUBLE|OBJECT)")
        )
        none = value.isNotNull() & (kind != "VOID") & number.isNull()
        shown = F.coalesce(let(encoded, self._spelled), text)
        return Parts(number, none & readable, shown, none & ~readable)

    def _is_base64(self, digits: Column) -> Column:
        """Return whether text can be taken for base64, given whether it is all ``digits``.

        With a scale, a decimal text would show its fraction; without one, the two cannot be told apart.
        """
        return F.lit(True) if self.natural.scale > 0 else ~digits

    def _of_octets(self, octets: Column) -> Column:
        return decimals.decimal(octets, self.natural.precision, self.natural.scale)

    def _spelled(self, octets: Column) -> Column:
        return decimals.small_text(octets, F.lit(self.natural.scale))

    def _of_text(self, text: Column) -> Column:
        return F.when(~text.rlike(rf"\.\d{{{self.natural.scale}}}\d*[1-9]"), as_decimal(text, self.natural))

    def _of_pair(self, pair: Column) -> Column:
        octets = F.try_to_binary(F.try_variant_get(pair, "$.value", "string"), F.lit("base64"))
        unscaled = let(octets, lambda o: decimals.decimal(o, decimals.MAX_DIGITS, 0)).cast("string")
        text = F.concat(unscaled, F.lit("E"), -F.try_variant_get(pair, "$.scale", "int"))
        number = text.try_cast(self.natural)
        return F.when(number == text.try_cast(DecimalType(decimals.MAX_DIGITS, 18)), number)

    def _of_number(self, value: Column) -> Column:
        number = F.try_variant_get(value, "$", self.natural.simpleString())
        return F.when(number.cast("double") == F.try_variant_get(value, "$", "double"), number)

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return self.text(value).isin(*placeholder.spellings)


def _first_of(given: Column, *readings: Parts) -> Parts:
    """Return the one reading that has the value; a given value that no reading has is a misfit."""
    value = F.coalesce(*(r.value for r in readings))
    lost = either(
        *(F.coalesce(r.unrepresentable, F.lit(False)) for r in readings if r.unrepresentable is not None)
    )
    assert lost is not None
    texts = [F.when(r.unrepresentable, r.text) for r in readings if r.unrepresentable is not None]
    misfit = given.isNotNull() & value.isNull() & ~lost
    rounded = either(*(F.coalesce(r.rounded, F.lit(False)) for r in readings if r.rounded is not None))
    return Parts(value, lost, F.coalesce(*texts), misfit, rounded)
