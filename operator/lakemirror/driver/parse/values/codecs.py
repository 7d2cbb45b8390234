"""A codec for each kind of column: how ``from_json`` reads it, its Spark type, and the conversion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple, cast

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.driver.parse.values import decimals, temporal
from lakemirror.driver.parse.values.expressions import either, floor_div, let, null, unless
from lakemirror.driver.parse.values.fit import Parts, fit
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.parse.values.temporal import MICROS, Unit
from lakemirror.driver.rules.types import MOST_BITS

_CORRUPT: Final = "_corrupt"


class Codec:
    """Base of all codecs.

    ``wire`` is the type that ``from_json`` reads, ``natural`` the Spark type closest to the source's.
    ``may_lack_text`` says that `text` may be null for a value, because no text says what it is.
    """

    wire: DataType
    natural: DataType
    may_lack_text: bool = False

    def parts(self, value: Column) -> Parts:
        """Convert the wire value to ``natural``."""
        return Parts(value)

    def text(self, value: Column) -> Column:
        """Return a wire value as text, spelled as in the source; null if no text says what it is."""
        return value.cast("string")

    def decode(self, value: Column, target: DataType) -> Parts:
        """Convert the wire value to ``target``, which need not be ``natural``."""
        if target == self.natural:
            return self.parts(value)
        if isinstance(target, StringType):
            return self.whole_text(value)
        parts = self.parts(value)
        fitted = fit(parts.value, self.natural, target)
        lost = either(parts.unrepresentable, fitted.unrepresentable)
        text = None if lost is None else self.text(value)
        rounded = either(parts.rounded, fitted.rounded)
        return Parts(fitted.value, lost, text, either(parts.misfit, fitted.misfit), rounded)

    def whole_text(self, value: Column) -> Parts:
        """Convert the wire value to a STRING. It is a misfit if no text says what it is."""
        text = self.text(value)
        return Parts(text, misfit=value.isNotNull() & text.isNull()) if self.may_lack_text else Parts(text)

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        """Return whether the value is the placeholder; None if the column cannot hold it."""
        return None

    def doubt(self, value: Column) -> Column | None:
        """Return whether it is not known how a text is encoded (`texts`); None if that cannot happen.

        Such a value is a misfit.
        """
        return None


@dataclass(frozen=True)
class Plain(Codec):
    """A wire value that is the Spark value: integers, floats, booleans, bytes, formatted texts."""

    natural: DataType

    @property
    def wire(self) -> DataType:  # type: ignore[override]
        return self.natural

    @property
    def may_lack_text(self) -> bool:  # type: ignore[override]
        return isinstance(self.natural, BinaryType)

    def text(self, value: Column) -> Column:
        text = value.cast("string")
        return F.try_validate_utf8(text) if isinstance(self.natural, BinaryType) else text

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value == F.lit(placeholder.octets) if isinstance(self.natural, BinaryType) else None


class Text(Codec):
    """Text of any length, which may therefore be TOASTed."""

    wire, natural = StringType(), StringType()

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value.isin(*placeholder.spellings)


class Byte(Codec):
    """int8, read as a SMALLINT because the JSON parser accepts 200 as a byte and turns it into -56."""

    wire, natural = ShortType(), ByteType()

    def parts(self, value: Column) -> Parts:
        return fit(value, self.wire, self.natural)


@dataclass(frozen=True)
class DecimalBytes(Codec):
    """Connect's Decimal of up to 38 digits.

    ``bounded`` means that the schema limits the source's values to ``precision`` digits, so that a value with
    more digits is not one of the source's. Otherwise, ``precision`` is only what Spark can hold. ``padded``
    means that values have a fixed length, as with Avro's type fixed.
    """

    precision: int
    scale: int
    bounded: bool
    padded: bool = False
    wire = BinaryType()
    may_lack_text = True

    @property
    def natural(self) -> DataType:  # type: ignore[override]
        return DecimalType(self.precision, self.scale)

    def parts(self, value: Column) -> Parts:
        value = decimals.shortest(value) if self.padded else value
        number = decimals.decimal(value, self.precision, self.scale)
        fits = decimals.fits(value, self.precision)
        if self.bounded:
            return Parts(number, misfit=~fits | (F.length(value) == 0))
        spelled = F.length(value).between(1, decimals.MAX_BYTES)
        return Parts(number, ~fits & spelled, decimals.large_text(value, F.lit(self.scale)), misfit=~spelled)

    def text(self, value: Column) -> Column:
        return decimals.plain_text(value, F.lit(self.scale))


@dataclass(frozen=True)
class DecimalText(Codec):
    """Connect's Decimal with a scale that no DECIMAL has (negative, or above 38), as plain text."""

    scale: int
    wire = BinaryType()
    natural = StringType()
    may_lack_text = True

    def parts(self, value: Column) -> Parts:
        text = self.text(value)
        return Parts(text, misfit=value.isNotNull() & text.isNull())

    def text(self, value: Column) -> Column:
        return decimals.plain_text(value, F.lit(self.scale))


class VariableScale(Codec):
    """``io.debezium.data.VariableScaleDecimal``, as plain text that is exact to the last digit."""

    wire = StructType([StructField("scale", IntegerType()), StructField("value", BinaryType())])
    natural = StringType()
    may_lack_text = True

    def parts(self, value: Column) -> Parts:
        text = self.text(value)
        return Parts(text, misfit=value.isNotNull() & text.isNull())

    def decode(self, value: Column, target: DataType) -> Parts:
        parts = self.parts(value)
        if isinstance(target, StringType):
            return parts
        fitted = fit(parts.value, self.natural, target)
        return Parts(fitted.value, fitted.unrepresentable, parts.value, either(parts.misfit, fitted.misfit))

    def text(self, value: Column) -> Column:
        return decimals.plain_text(value["value"], value["scale"])

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value["value"] == F.lit(placeholder.octets)


class Days(Codec):
    """A date as days since the epoch."""

    wire, natural = IntegerType(), DateType()

    def parts(self, value: Column) -> Parts:
        lost = temporal.outside(value, temporal.FIRST_DAY, temporal.LAST_DAY)
        return Parts(F.when(~lost, F.date_from_unix_date(value)), lost, temporal.days_spelled(value))

    def text(self, value: Column) -> Column:
        return temporal.days_spelled(value)


class IsoDate(Codec):
    """A date in the form ``2026-02-28Z``."""

    wire, natural = StringType(), DateType()

    def parts(self, value: Column) -> Parts:
        lost = temporal.iso_outside(value)
        date = F.when(~lost, temporal.day_of(value))
        return Parts(date, lost, self.text(value), misfit=~lost & date.isNull())

    def text(self, value: Column) -> Column:
        return temporal.iso_date_spelled(value)


@dataclass(frozen=True)
class Clock(Codec):
    """A time as a number since midnight, kept as text because MySQL's may be negative or beyond 24 h."""

    unit: Unit
    wire: DataType
    natural = StringType()

    def parts(self, value: Column) -> Parts:
        return Parts(temporal.clock(value, self.unit))

    def text(self, value: Column) -> Column:
        return temporal.clock(value, self.unit)


class IsoTime(Codec):
    """A time in the form ``13:14:15.123Z``."""

    wire, natural = StringType(), StringType()

    def parts(self, value: Column) -> Parts:
        return Parts(self.text(value))

    def text(self, value: Column) -> Column:
        return temporal.clock_of_iso(value)


@dataclass(frozen=True)
class Timestamp(Codec):
    """A timestamp without a time zone, as a number since the epoch."""

    unit: Unit
    wire = LongType()
    natural = TimestampNTZType()

    def decode(self, value: Column, target: DataType) -> Parts:
        if not isinstance(target, TimestampType):
            return super().decode(value, target)
        parts = self.parts(value)
        instant = F.when(~cast(Column, parts.unrepresentable), F.timestamp_micros(self.unit.micros(value)))
        return Parts(instant, parts.unrepresentable, parts.text, rounded=parts.rounded)

    def parts(self, value: Column) -> Parts:
        lost = temporal.outside(value, *self.unit.bounds)
        moment = F.when(~lost, temporal.ntz(self.unit.micros(value)))
        finer = self.unit.per_second > MICROS.per_second
        return Parts(moment, lost, self.text(value), rounded=value % 1000 != 0 if finer else None)

    def text(self, value: Column) -> Column:
        return temporal.timestamp_spelled(value, self.unit)


@dataclass(frozen=True)
class IsoTimestamp(Codec):
    """A timestamp as ISO text in UTC: a local one, or an instant (``zoned``)."""

    zoned: bool
    wire = StringType()

    @property
    def natural(self) -> DataType:  # type: ignore[override]
        return TimestampType() if self.zoned else TimestampNTZType()

    def decode(self, value: Column, target: DataType) -> Parts:
        if isinstance(target, (TimestampType, TimestampNTZType)):
            return self._moment(value, target)
        return super().decode(value, target)

    def parts(self, value: Column) -> Parts:
        return self._moment(value, self.natural)

    def _moment(self, value: Column, target: DataType) -> Parts:
        lost = temporal.iso_outside(value)
        moment = F.when(
            ~lost, self._instant(value) if isinstance(target, TimestampType) else self._local(value)
        )
        return Parts(moment, lost, self.text(value), ~lost & moment.isNull(), temporal.is_finer(value))

    def _instant(self, value: Column) -> Column:
        zoned = value if self.zoned else F.concat(F.rtrim(value, F.lit("Z")), F.lit("Z"))
        return temporal.instant_of(zoned)

    def _local(self, value: Column) -> Column:
        if self.zoned:
            return temporal.ntz(F.unix_micros(self._instant(value)))
        return temporal.local_of(value)

    def text(self, value: Column) -> Column:
        spelled = temporal.iso_timestamp_spelled(value, zoned=self.zoned)
        if not self.zoned:
            return spelled
        local = self._local(value).cast("string")
        digits = F.rtrim(F.regexp_extract(value, r":\d{2}(\.\d+)", 1), F.lit("0"))
        exact = F.concat(F.substring_index(local, ".", 1), digits)
        utc = F.concat(F.when(temporal.is_finer(value), exact).otherwise(local), F.lit("+00"))
        return F.when(temporal.iso_outside(value), spelled).otherwise(F.coalesce(utc, value))


class NanoDuration(Codec):
    """A duration in nanoseconds, kept as microseconds."""

    wire, natural = LongType(), LongType()

    def parts(self, value: Column) -> Parts:
        return Parts(floor_div(value, 1000), rounded=value % 1000 != 0)

    def text(self, value: Column) -> Column:
        exact = (value.cast("decimal(19,0)") * F.lit(Decimal("0.001"))).cast("string")
        return F.when(value % 1000 == 0, floor_div(value, 1000).cast("string")).otherwise(
            F.rtrim(exact, F.lit("0"))
        )


@dataclass(frozen=True)
class Bits(Codec):
    """Bits as little-endian bytes, kept as text of 0 and 1 of the column's length (None: whole bytes).

    A value that has more bits than its column, or than `MOST_BITS`, is none of the column.
    """

    length: int | None
    wire = BinaryType()
    natural = StringType()
    may_lack_text = True

    def parts(self, value: Column) -> Parts:
        text = self.text(value)
        return Parts(text, misfit=value.isNotNull() & text.isNull())

    def text(self, value: Column) -> Column:
        size = F.length(value)
        some = size.between(1, MOST_BITS // 8)
        octets = F.transform(
            F.when(some, F.sequence(size, F.lit(1), F.lit(-1))),
            lambda i: F.lpad(F.conv(F.hex(value.substr(i, F.lit(1))), 16, 2), 8, "0"),
        )
        bits = F.when(some, F.array_join(octets, "")).when(size == 0, "")
        if self.length is None:
            return bits
        length = self.length
        return let(
            F.ltrim(bits, F.lit("0")),
            lambda some: F.when(F.length(some) <= length, F.lpad(some, length, "0")),
        )

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return value == F.lit(placeholder.octets)


@dataclass(frozen=True)
class Array(Codec):
    """An array; an unrepresentable element is null in it and makes the whole value unrepresentable."""

    item: Codec
    uuids: bool = False

    @property
    def wire(self) -> DataType:  # type: ignore[override]
        return ArrayType(self.item.wire)

    @property
    def natural(self) -> DataType:  # type: ignore[override]
        return ArrayType(self.item.natural)

    def parts(self, value: Column) -> Parts:
        return self._of(value, self.item.natural)

    def decode(self, value: Column, target: DataType) -> Parts:
        return (
            self._of(value, target.elementType)
            if isinstance(target, ArrayType)
            else super().decode(value, target)
        )

    def _of(self, value: Column, element: DataType) -> Parts:
        can = _possible(self.item, element)
        if self.item.wire == element and not can.be_lost and type(self.item) in (Plain, Text):
            return Parts(value)
        lost = misfit = rounded = None
        if can.be_rounded:
            rounded = F.exists(value, lambda x: _or_false(self.item.decode(x, element).rounded))
        if can.be_lost:
            lost = F.exists(value, lambda x: _or_false(self.item.decode(x, element).unrepresentable))
        if can.misfit:
            misfit = F.exists(value, lambda x: _or_false(self.item.decode(x, element).misfit))
        text = None if lost is None else self.text(value)
        return Parts(
            F.transform(value, lambda x: self.item.decode(x, element).value), lost, text, misfit, rounded
        )

    @property
    def may_lack_text(self) -> bool:  # type: ignore[override]
        return self.item.may_lack_text

    def text(self, value: Column) -> Column:
        texts = F.to_json(F.transform(value, self.item.text))
        if not self.may_lack_text:
            return texts
        return F.when(~F.exists(value, lambda x: _lacks_text(self.item, x)), texts)

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        if isinstance(self.item.wire, IntegralType):
            codes = F.lit(placeholder.codes).cast(self.wire)
            return value == codes
        first = value.getItem(0)
        if self.uuids:
            return (F.size(value) == 1) & (first == placeholder.uuid)
        # Also as text that is not valid for the elements, such as times.
        of_text = isinstance(self.item.wire, StringType)
        inner = first.isin(*placeholder.spellings) if of_text else self.item.gap(first, placeholder)
        return None if inner is None else (F.size(value) == 1) & inner

    def doubt(self, value: Column) -> Column | None:
        return _exists(_can_be_in_doubt(self.item), value, self.item.doubt)


@dataclass(frozen=True)
class Struct(Codec):
    """A struct (points, geometries, vectors); if a field is unrepresentable, the whole value is."""

    members: tuple[tuple[str, Codec], ...]

    @property
    def wire(self) -> DataType:  # type: ignore[override]
        return StructType([StructField(name, codec.wire) for name, codec in self.members])

    @property
    def natural(self) -> DataType:  # type: ignore[override]
        return StructType([StructField(name, codec.natural) for name, codec in self.members])

    def parts(self, value: Column) -> Parts:
        return self._of(value, cast(StructType, self.natural))

    def decode(self, value: Column, target: DataType) -> Parts:
        return self._of(value, target) if isinstance(target, StructType) else super().decode(value, target)

    def _of(self, value: Column, target: StructType) -> Parts:
        codecs = dict(self.members)
        parts = {
            field.name: codecs[field.name].decode(value[field.name], field.dataType)
            if field.name in codecs
            else Parts(null(field.dataType))
            for field in target.fields
        }
        whole = F.struct(*(part.value.alias(name) for name, part in parts.items()))
        lost = either(*(part.unrepresentable for part in parts.values()))
        misfit = either(*(_known(part.misfit) for part in parts.values()))
        rounded = either(*(_known(part.rounded) for part in parts.values()))
        text = None if lost is None else self.text(value)
        return Parts(F.when(value.isNotNull(), whole), _known(lost), text, misfit, rounded)

    @property
    def may_lack_text(self) -> bool:  # type: ignore[override]
        return any(codec.may_lack_text for _, codec in self.members)

    def text(self, value: Column) -> Column:
        texts = F.to_json(F.struct(*(codec.text(value[name]).alias(name) for name, codec in self.members)))
        lacks = [_lacks_text(codec, value[name]) for name, codec in self.members if codec.may_lack_text]
        return unless(either(value.isNull(), *lacks), texts)

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        gaps = (codec.gap(value[name], placeholder) for name, codec in self.members)
        return either(*(_known(g) for g in gaps))

    def doubt(self, value: Column) -> Column | None:
        return either(*(_known(codec.doubt(value[name])) for name, codec in self.members))


@dataclass(frozen=True)
class Map(Codec):
    """A map; in JSON it is an object if its keys are text, otherwise an array of pairs.

    An unrepresentable value in it makes the whole map unrepresentable. Keys must differ once they are
    converted, and none may lose anything.
    """

    key: Codec
    item: Codec

    @property
    def _object(self) -> bool:
        return isinstance(self.key.wire, StringType)

    @property
    def wire(self) -> DataType:  # type: ignore[override]
        if self._object:
            return MapType(StringType(), self.item.wire)
        return ArrayType(ArrayType(VariantType()))

    @property
    def natural(self) -> DataType:  # type: ignore[override]
        return MapType(self.key.natural, self.item.natural)

    def parts(self, value: Column) -> Parts:
        return self._of(value, cast(MapType, self.natural))

    def decode(self, value: Column, target: DataType) -> Parts:
        return self._of(value, target) if isinstance(target, MapType) else super().decode(value, target)

    def _of(self, value: Column, target: MapType) -> Parts:
        entries = self._entries(value)

        def of_key(entry: Column) -> Column:
            parts = self.key.decode(entry["key"], target.keyType)
            return unless(parts.rounded, _one_zero(parts.value, target.keyType))

        def of_value(entry: Column) -> Parts:
            return self.item.decode(entry["value"], target.valueType)

        keys = F.transform(entries, of_key)
        wrong = F.exists(keys, lambda each: each.isNull()) | (F.size(F.array_distinct(keys)) < F.size(keys))
        can = _possible(self.item, target.valueType)
        misfit = either(
            wrong,
            _exists(can.misfit, entries, lambda each: of_value(each).misfit),
            None if self._object else F.exists(entries, lambda each: each["broken"]),
        )
        assert misfit is not None
        whole = F.map_from_arrays(keys, F.transform(entries, lambda each: of_value(each).value))
        lost = _exists(can.be_lost, entries, lambda each: of_value(each).unrepresentable)
        rounded = _exists(can.be_rounded, entries, lambda each: of_value(each).rounded)
        text = None if lost is None else self.text(value)
        return Parts(F.when(~wrong, whole), lost, text, _or_false(misfit), rounded)

    def _entries(self, value: Column) -> Column:
        """Return the entries in their wire types; ``broken`` says that one of an array of pairs is none."""
        if self._object:
            return F.map_entries(value)

        def entry(pair: Column) -> Column:
            key, item = (_reread(F.get(pair, F.lit(at)), of) for at, of in enumerate((self.key, self.item)))
            broken = (F.size(pair) != 2) | key["broken"] | item["broken"]
            return F.struct(
                key["it"].alias("key"), item["it"].alias("value"), _or_false(broken).alias("broken")
            )

        return F.transform(value, entry)

    def text(self, value: Column) -> Column:
        return F.to_json(value)

    def gap(self, value: Column, placeholder: Placeholder) -> Column | None:
        return F.map_contains_key(value, placeholder.text) if self._object else None

    def doubt(self, value: Column) -> Column | None:
        entries = self._entries(value)
        found = [
            _exists(_can_be_in_doubt(self.key), entries, lambda each: self.key.doubt(each["key"])),
            _exists(_can_be_in_doubt(self.item), entries, lambda each: self.item.doubt(each["value"])),
        ]
        return either(*found)


def _lacks_text(codec: Codec, value: Column) -> Column:
    """Return whether no text says what a wire value is (BOOLEAN, never null)."""
    return value.isNotNull() & codec.text(value).isNull()


def _one_zero(value: Column, kind: DataType) -> Column:
    """Return a map's key with a single zero: to Spark, -0.0 is the same key as 0.0, but another value."""
    is_float = isinstance(kind, (FloatType, DoubleType))
    return F.when(value == 0, F.lit(0).cast(kind)).otherwise(value) if is_float else value


def _reread(value: Column, codec: Codec) -> Column:
    """Return a VARIANT as the wire type of a codec (``it``), and whether that is impossible (``broken``)."""
    schema = StructType([StructField("it", codec.wire), StructField(_CORRUPT, StringType())])
    whole = F.concat(F.lit('{"it":'), F.to_json(value), F.lit("}"))
    read = F.from_json(whole, schema, {"columnNameOfCorruptRecord": _CORRUPT})
    return F.struct(read["it"].alias("it"), read[_CORRUPT].isNotNull().alias("broken"))


TEXT = Text()
BOOLEAN, INT16, INT32, INT64 = (
    Plain(BooleanType()),
    Plain(ShortType()),
    Plain(IntegerType()),
    Plain(LongType()),
)
FLOAT, DOUBLE, BYTES = Plain(FloatType()), Plain(DoubleType()), Plain(BinaryType())
FORMATTED = Plain(StringType())
"""Text of bounded length with a format of its own (uuid, enum, interval), never TOASTed."""


class _Possible(NamedTuple):
    """What can happen to values of a codec that are decoded to a type (`Parts`)."""

    be_lost: bool
    misfit: bool
    be_rounded: bool


@lru_cache(maxsize=10_000)
def _possible(codec: Codec, target: DataType) -> _Possible:
    """Return what can happen to a value. It is found once: a codec of nested arrays asks at each level."""
    parts = codec.decode(F.lit(None).cast(codec.wire), target)
    return _Possible(parts.unrepresentable is not None, parts.misfit is not None, parts.rounded is not None)


@lru_cache(maxsize=10_000)
def _can_be_in_doubt(codec: Codec) -> bool:
    return codec.doubt(F.lit(None).cast(codec.wire)) is not None


def _exists(possible: bool, values: Column, condition: Callable[[Column], Column | None]) -> Column | None:
    """Return whether a condition holds for one of the values (BOOLEAN); None if that is not possible."""
    return F.exists(values, lambda each: _or_false(condition(each))) if possible else None


def _or_false(condition: Column | None) -> Column:
    return F.lit(False) if condition is None else F.coalesce(condition, F.lit(False))


def _known(condition: Column | None) -> Column | None:
    return None if condition is None else _or_false(condition)
