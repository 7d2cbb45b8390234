"""Values of records without a schema (``schemas.enable=false``): the target type says what they mean.

| target | what is understood |
|---|---|
| integers, FLOAT, DOUBLE | a JSON number (``"NaN"`` and ``"Infinity"`` for the latter) |
| BOOLEAN | true, false, 1, 0 |
| DECIMAL(p,s) | a number; decimal text; base64 of the unscaled value, its scale being ``s``; the pair |
| DATE | days since 1970, ISO text |
| TIMESTAMP, TIMESTAMP_NTZ | ISO text (UTC unless it says otherwise); a whole number since 1970, see below |
| BINARY | base64 |
| STRING | text as is; the pair as decimal text; any other value as JSON |
| ARRAY, STRUCT, MAP | element by element |

"The pair" is ``{"scale": s, "value": base64}``, Debezium's VariableScaleDecimal.

The unit of a timestamp's number is the coarsest of milliseconds, microseconds and nanoseconds that puts it
into the years 0001 to 9999 (nanoseconds: only after 1970). So microseconds between 1968-01-12 and
1978-01-12 are taken for milliseconds, and nanoseconds before 1978 for one of the others: where such values
matter, switch schemas on. Text of digits alone is both a decimal and base64 when its length is a multiple of
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
from lakemirror.driver.values import codecs, decimals, temporal
from lakemirror.driver.values.codecs import Codec
from lakemirror.driver.values.expressions import either
from lakemirror.driver.values.fit import Parts, fit
from lakemirror.driver.values.placeholder import Placeholder
from lakemirror.driver.values.temporal import MICROS, MILLIS

_WHOLE = r"^-?\d+$"
_SCALED = r'^\{"scale":(-?\d{1,9}),"value":"([A-Za-z0-9+/=]*)"\}$'
_NEGATIVE_INFINITY, _POSITIVE_INFINITY = -9223372036832400000, 9223372036825200000  # PGStatement's


def codec_of_type(target: DataType) -> Codec:
    """The codec of a JSON value without schema whose column is of type ``target``."""
    if isinstance(target, StringType):
        return JsonText()
    if isinstance(target, IntegralType):
        return codecs.INT64 if isinstance(target, LongType) else JsonInteger(target)
    if isinstance(target, (FloatType, DoubleType)):
        return codecs.Plain(target)
    if isinstance(target, ArrayType):
        return codecs.Array(codec_of_type(target.elementType))
    if isinstance(target, StructType):
        return codecs.Struct(tuple((f.name, codec_of_type(f.dataType)) for f in target.fields))
    if isinstance(target, MapType):
        return codecs.Map(codecs.FORMATTED, codec_of_type(target.valueType))
    if isinstance(target, DecimalType):
        return JsonDecimal(target)
    if isinstance(target, (TimestampType, TimestampNTZType)):
        return JsonTimestamp(target)
    for kind, codec in ((BooleanType, JsonBoolean()), (DateType, JsonDate()), (BinaryType, JsonBinary())):
        if isinstance(target, kind):
            return codec
    raise LakemirrorError(f"no value of JSON can become a {target.simpleString()}")


@dataclass(frozen=True)
class JsonInteger(Codec):
    """A whole number for one of the smaller integer types."""

    natural: DataType
    wire = LongType()

    def parts(self, value: Column) -> Parts:
        return fit(value, self.wire, self.natural)


class JsonText(codecs.Text):
    """Text, or any other value as JSON."""

    def parts(self, value: Column) -> Parts:
        return Parts(self.text(value))

    def text(self, value: Column) -> Column:
        octets = F.unbase64(F.regexp_extract(value, _SCALED, 2))
        scale = F.regexp_extract(value, _SCALED, 1).cast("int")
        scaled = value.startswith('{"scale":') & value.rlike(_SCALED)
        return F.when(scaled, F.coalesce(decimals.plain_text(octets, scale), value)).otherwise(value)


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
        zoneless = value.rlike(r":\d\d(\.\d+)?$")
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
        return Parts(F.when(~lost, moment), lost, temporal.timestamp_spelled(value, MICROS))


@dataclass(frozen=True)
class JsonDecimal(Codec):
    natural: DecimalType
    wire = VariantType()

    def parts(self, value: Column) -> Parts:
        kind = F.schema_of_variant(value)
        text = F.try_variant_get(value, "$", "string")
        is_text = kind == "STRING"
        plain = (~is_text) | text.rlike(decimals.SPECIAL) | text.rlike(r"^-|\.")
        digits = text.rlike(r"^\d+$")
        readable = plain | (digits & (F.length(text) % 4 != 0))
        number = fit(
            F.when(is_text & readable | kind.rlike("^(BIGINT|DECIMAL)"), text), StringType(), self.natural
        )
        double = fit(
            F.when(kind == "DOUBLE", F.try_variant_get(value, "$", "double")), DoubleType(), self.natural
        )
        octets = F.when(
            is_text & ~readable & self._unambiguous(digits), F.try_to_binary(text, F.lit("base64"))
        )
        unscaled = codecs.DecimalBytes(self.natural.precision, self.natural.scale).parts(octets)
        scaled = fit(F.when(kind.startswith("OBJECT"), _scaled_text(value)), StringType(), self.natural)
        given = value.isNotNull() & (kind != "VOID")
        return _first_of(F.when(given, kind), number, double, unscaled, scaled)

    def _unambiguous(self, digits: Column) -> Column:
        return ~digits if self.natural.scale == 0 else F.lit(True)

    def text(self, value: Column) -> Column:
        return F.try_variant_get(value, "$", "string")

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return self.text(value).isin(*placeholder.spellings)


def _scaled_text(value: Column) -> Column:
    octets = F.try_to_binary(F.try_variant_get(value, "$.value", "string"), F.lit("base64"))
    return decimals.plain_text(octets, F.try_variant_get(value, "$.scale", "int"))


def _first_of(given: Column, *readings: Parts) -> Parts:
    """The one reading that has the value; a misfit where it was given and none has."""
    value = F.coalesce(*(r.value for r in readings))
    lost = either(
        *(F.coalesce(r.unrepresentable, F.lit(False)) for r in readings if r.unrepresentable is not None)
    )
    assert lost is not None
    texts = [F.when(r.unrepresentable, r.text) for r in readings if r.unrepresentable is not None]
    return Parts(value, lost, F.coalesce(*texts), misfit=given.isNotNull() & value.isNull() & ~lost)
