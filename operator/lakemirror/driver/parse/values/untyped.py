"""Values of records without a schema (``schemas.enable=false``): the target type determines their meaning.

| target | accepted values |
|---|---|
| integers | a JSON number |
| FLOAT, DOUBLE | a JSON number that equals the shortest spelling of the float; ``"NaN"`` and ``"Infinity"`` |
| BOOLEAN | true, false, 1, 0 |
| DECIMAL(p,s) | a number; text, as number or encoded (see `texts`); the pair |
| DATE | days since 1970, ISO text |
| TIMESTAMP, TIMESTAMP_NTZ | ISO text (UTC unless it says otherwise); a number since 1970 (see `temporal`) |
| BINARY | encoded text (see `texts`) |
| STRING | text as is; the pair as decimal text; any other value as JSON |
| VARIANT | any value; text that is JSON is parsed, as a database's JSON comes as text |
| ARRAY, STRUCT, MAP | element by element; a VARIANT in them is the value as it is; keys of a MAP are text |

"The pair" is ``{"scale": s, "value": base64}``, Debezium's VariableScaleDecimal, of up to 38 digits; a larger
one stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

from lakemirror.driver import shapes
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.parse.values import codecs, decimals, temporal
from lakemirror.driver.parse.values.codecs import Codec
from lakemirror.driver.parse.values.expressions import either, let
from lakemirror.driver.parse.values.fit import Parts, fit, is_exact, settled
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.parse.values.temporal import MICROS
from lakemirror.driver.parse.values.texts import DEBEZIUM, BinaryTexts, DecimalTexts, Writing

_WHOLE = r"^-?\d+$"
_NUMBERS = "^(BIGINT|DECIMAL|DOUBLE|FLOAT)"
_FLOATS_AS_TEXT = "^(NaN|[-+]?(Infinity|INF))$"
_PAIR = r'^\{"scale":(-?\d{1,9}),"value":"([A-Za-z0-9+/=]*)"\}$'
_POSITIVE_INFINITY = 9223372036825200000  # PGStatement.DATE_POSITIVE_INFINITY


def codec_of_type(target: DataType, writing: Writing = DEBEZIUM) -> Codec:
    """Return the codec of a JSON value without a schema, for a column of type ``target``.

    ``writing`` is what is known of how its producer writes values. Raises LakemirrorError if no JSON value
    can have that type.
    """
    if isinstance(target, StringType):
        return JsonText()
    if isinstance(target, IntegralType):
        return codecs.INT64 if isinstance(target, LongType) else JsonInteger(target)
    if isinstance(target, (FloatType, DoubleType)):
        return JsonFloat(target)
    if isinstance(target, ArrayType):
        return codecs.Array(_member(target.elementType, writing))
    if isinstance(target, StructType):
        return codecs.Struct(tuple((f.name, _member(f.dataType, writing)) for f in target.fields))
    if isinstance(target, MapType):
        return codecs.Map(_key(target.keyType, writing), _member(target.valueType, writing))
    if isinstance(target, DecimalType):
        return JsonDecimal(target, writing)
    if isinstance(target, (TimestampType, TimestampNTZType)):
        return JsonTimestamp(target, writing.seconds)
    if isinstance(target, VariantType):
        return JsonVariant(parsed=True)
    if isinstance(target, BinaryType):
        return JsonBinary(writing)
    for kind, codec in ((BooleanType, JsonBoolean()), (DateType, JsonDate())):
        if isinstance(target, kind):
            return codec
    raise LakemirrorError(f"no value of JSON can become a {target.simpleString()}")


def codec_of_text(target: DataType, writing: Writing) -> Codec | None:
    """Return the codec of a text with a schema, for a column of decimals or bytes; None for another one."""
    if isinstance(target, BinaryType):
        return EncodedText(BinaryType(), BinaryTexts(writing))
    if isinstance(target, DecimalType) and writing.encoding is not None:
        return EncodedText(target, DecimalTexts(target, writing))
    return None


def _member(target: DataType, writing: Writing) -> Codec:
    """Return the codec of a value inside another one."""
    if isinstance(target, VariantType):
        return JsonVariant(parsed=False)
    return codec_of_type(target, writing)


def _key(target: DataType, writing: Writing) -> Codec:
    """Return the codec of a map's key, which JSON always has as text. A decimal is the number as it reads."""
    if isinstance(target, StringType):
        return codecs.FORMATTED
    if isinstance(target, DecimalType):
        return EncodedText(target, DecimalTexts(target, replace(writing, decimals="text")))
    if isinstance(target, BinaryType):
        return EncodedText(target, BinaryTexts(writing))
    codec = codec_of_type(target, writing)
    return codec if isinstance(codec.wire, StringType) else JsonKey(target)


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
        number = F.when(exact, double).when(spelled, shapes.number(text, "double")).cast(self.natural)
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
        octets = F.try_to_binary(F.regexp_extract(value, _PAIR, 2), F.lit("base64"))
        number = decimals.small_text(octets, shapes.whole(F.regexp_extract(value, _PAIR, 1), "int"))
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


@dataclass(frozen=True)
class EncodedText(Codec):
    """A decimal or bytes as text, which may be written in several ways."""

    natural: DataType
    texts: BinaryTexts | DecimalTexts
    wire = StringType()

    def parts(self, value: Column) -> Parts:
        return self.texts.parts(value)

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value.isin(*placeholder.spellings)

    def doubt(self, value: Column) -> Column | None:
        return self.texts.doubt(value)


@dataclass(frozen=True)
class JsonBinary(Codec):
    """Bytes as text. A number is none, although its digits could be read as one."""

    writing: Writing
    wire, natural = VariantType(), BinaryType()

    def parts(self, value: Column) -> Parts:
        kind = F.schema_of_variant(value)
        told = self._texts.parts(self._text(value))
        other = value.isNotNull() & ~kind.isin("STRING", "VOID")
        return Parts(told.value, misfit=either(other, _or_false(told.misfit)))

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return self._text(value).isin(*placeholder.spellings)

    def doubt(self, value: Column) -> Column | None:
        return self._texts.doubt(self._text(value))

    @property
    def _texts(self) -> BinaryTexts:
        return BinaryTexts(self.writing)

    def _text(self, value: Column) -> Column:
        return F.when(F.schema_of_variant(value) == "STRING", self.text(value))


@dataclass(frozen=True)
class JsonKey(Codec):
    """The key of a map, which is not text there."""

    natural: DataType
    wire = StringType()

    def parts(self, value: Column) -> Parts:
        return fit(value, self.wire, self.natural)


class JsonDate(Codec):
    wire, natural = StringType(), DateType()

    def parts(self, value: Column) -> Parts:
        whole = value.rlike(_WHOLE)
        number = codecs.Days().parts(F.when(whole, shapes.whole(value, "int")))
        text = codecs.IsoDate().parts(F.when(~whole, value))
        return _first_of(value, number, text)


@dataclass(frozen=True)
class JsonTimestamp(Codec):
    """A timestamp; ``seconds`` says that its number may be one of seconds."""

    natural: DataType
    seconds: bool
    wire = StringType()

    def parts(self, value: Column) -> Parts:
        is_number = shapes.is_number(value)
        number = self._number(temporal.number_of(value))
        zoneless = value.rlike(r"\d:\d\d:\d\d(\.\d+)?$")
        iso = F.when(~is_number, F.when(zoneless, F.concat(value, F.lit("Z"))).otherwise(value))
        zoned = codecs.IsoTimestamp(zoned=isinstance(self.natural, TimestampType))
        return _first_of(value, number, zoned.decode(iso, self.natural))

    def _number(self, value: Column) -> Parts:
        lost = (value < MICROS.bounds[0]) | (value >= _POSITIVE_INFINITY)
        exact = temporal.scaled(value, temporal.per_unit(value, seconds=self.seconds))
        micros = F.floor(exact).try_cast("bigint")
        moment = (
            F.timestamp_micros(micros) if isinstance(self.natural, TimestampType) else temporal.ntz(micros)
        )
        finer = F.coalesce(exact != F.floor(exact), F.lit(False))
        spelled = temporal.timestamp_spelled(value.try_cast("bigint"), MICROS)
        return Parts(F.when(~lost, moment), lost, spelled, rounded=finer)


@dataclass(frozen=True)
class JsonDecimal(Codec):
    """A decimal: a number of JSON, Debezium's pair, or a text."""

    natural: DecimalType
    writing: Writing
    wire = VariantType()

    def parts(self, value: Column) -> Parts:
        kind, text = F.schema_of_variant(value), self.text(value)
        is_text = kind == "STRING"
        of_text = self._texts.parts(F.when(is_text, text))
        number = (
            F.when(is_text, of_text.value)
            .when(kind.startswith("OBJECT"), self._of_pair(value))
            .when(kind.startswith("DOUBLE"), self._of_double(value))
            .when(kind.rlike("^(BIGINT|DECIMAL)"), decimals.of_digits(text, self.natural))
        )
        none = value.isNotNull() & (kind != "VOID") & number.isNull() & ~is_text
        readable = kind.rlike("^(BIGINT|DECIMAL|DOUBLE|OBJECT)")
        shown = text if of_text.text is None else F.coalesce(of_text.text, text)
        lost = either(none & readable, _or_false(of_text.unrepresentable))
        return Parts(number, lost, shown, either(none & ~readable, _or_false(of_text.misfit)))

    @property
    def _texts(self) -> DecimalTexts:
        return DecimalTexts(self.natural, self.writing)

    def doubt(self, value: Column) -> Column | None:
        return self._texts.doubt(F.when(F.schema_of_variant(value) == "STRING", self.text(value)))

    def _of_pair(self, pair: Column) -> Column:
        octets = F.try_to_binary(F.try_variant_get(pair, "$.value", "string"), F.lit("base64"))
        unscaled = let(octets, lambda o: decimals.decimal(o, decimals.MAX_DIGITS, 0)).cast("string")
        scale = F.when(unscaled != "0", F.try_variant_get(pair, "$.scale", "bigint")).otherwise(0)
        exponent = F.when(scale.between(-decimals.MAX_SCALE, decimals.MAX_SCALE), -scale)
        return decimals.of_digits(F.concat(unscaled, F.lit("E"), exponent), self.natural)

    def _of_double(self, value: Column) -> Column:
        number = F.try_variant_get(value, "$", self.natural.simpleString())
        return F.when(number.cast("double") == F.try_variant_get(value, "$", "double"), number)

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return self.text(value).isin(*placeholder.spellings)


def _or_false(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))


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
