"""How values of a database are converted to those of the mirror: as text, and then to the mirror's type.

The database writes each value as text, in one exact format for each of its types. Spark converts this to what
the mirror has, so a single engine hashes both sides. The forms that a mirror may have for a type are those of
Debezium's documentation ("Data type mappings"), with and without schemas. A pair of types that is not listed
here cannot be compared exactly, and the column is reported and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

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
    IntegerType,
    IntegralType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from lakemirror.driver import shapes
from lakemirror.driver.parse.values import temporal
from lakemirror.driver.parse.values.decimals import NUMBER, SPECIAL, plain_text
from lakemirror.driver.parse.values.fit import fit
from lakemirror.driver.verify.sources import Same

Family = Literal[
    "integer",
    "decimal",
    "float",
    "boolean",
    "bit",
    "bits",
    "text",
    "json",
    "bytes",
    "date",
    "time",
    "timetz",
    "timestamp",
    "timestamptz",
    "interval",
]

_SINGLES: Final = ("real", "float")
"""The names of types whose values have the precision of FLOAT."""

Parse = Callable[[Column], Column]

_DAY: Final = r"^\d{4}-\d\d-\d\d$"
_MOMENT: Final = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?$"


@dataclass(frozen=True)
class SourceType:
    """A type of the source: its ``family``, and its ``name`` as the source writes it.

    ``digits`` is the number of digits in a fraction of a second, and ``scale`` that of a decimal after its
    point. ``variable`` says of bits and decimals that their number of digits is not fixed. ``size`` is what
    the type has in parentheses. ``element`` is the type of an array's elements.
    """

    name: str
    family: Family | None
    digits: int = 6
    variable: bool = False
    element: SourceType | None = None
    scale: int = 0
    size: tuple[int, ...] = ()
    unsigned: bool = False


@dataclass(frozen=True)
class Rule:
    """How to convert a source's text to the mirror's value.

    ``parse`` gives null for a value that does not come back from the mirror's type as it was: none is cut.
    ``lost`` says that Spark cannot represent the value, so it is null in the mirror. ``same`` is the text
    that is compared on both sides, if the value itself is not. ``written`` says that the mirror would have
    written the value in the same form, and not in another form of the same value. ``element`` is the rule of
    the elements if the text is a JSON array of texts.
    """

    parse: Parse
    lost: Parse | None = None
    same: Same | None = None
    written: bool = True
    element: Rule | None = None

    def unfit(self, text: Column, *, strict: bool) -> Column:
        """Return whether the mirror's type cannot hold a value (BOOLEAN).

        With ``strict``, it cannot hold one that is lost, either.
        """
        found = text.isNotNull() & self.parse(text).isNull()
        if self.lost is not None and not strict:
            found = found & ~F.coalesce(self.lost(text), F.lit(False))
        if self.element is None:
            return found
        inner = self.element
        some = F.exists(_texts(text), lambda each: inner.unfit(each, strict=strict))
        return found | F.coalesce(some, F.lit(False))


def rule_of(source: SourceType, kind: DataType) -> Rule | None:
    """Return how to compare a source column with a mirror column, or None if that is not exact."""
    if source.element is not None:
        return _array(source.element, kind)
    if source.family is None:
        return None
    return _RULES[source.family](source, kind)


def natural_of(source: SourceType) -> DataType | None:
    """Return the type that a mirror has for a source column by default, or None if it cannot be read exactly.

    This holds if the connector sends schemas and nothing else is set.
    """
    if source.element is not None:
        element = natural_of(source.element)
        kind: DataType | None = None if element is None else ArrayType(element)
    elif source.family == "integer":
        kind = _integer(source)
    elif source.family == "decimal":
        kind = _decimal(source)
    elif source.family == "float":
        kind = FloatType() if source.name in _SINGLES else DoubleType()
    else:
        kind = _NATURAL.get(source.family or "")
    return kind if kind is not None and rule_of(source, kind) is not None else None


def _integer(source: SourceType) -> DataType:
    if source.name in ("tinyint", "smallint"):
        return IntegerType() if source.unsigned and source.name == "smallint" else ShortType()
    wide = source.name in ("bigint", "oid") or (source.unsigned and source.name in ("int", "integer"))
    return LongType() if wide else IntegerType()


def _decimal(source: SourceType) -> DataType | None:
    if source.name == "money":
        return DecimalType(38, 2)
    if source.variable:
        return StringType()
    precision, scale = (*source.size, 0)[:2] if source.size else (10, 0)
    return DecimalType(precision, scale) if scale <= precision <= 38 else None


def _plain(value: Column) -> Column:
    return value


def _number(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, BooleanType):
        return Rule(lambda text: F.when(text.rlike(r"^[01](\.0*)?$"), text.startswith("1")))
    if isinstance(kind, IntegralType):
        return Rule(_whole(kind), _is_special)
    if isinstance(kind, (DecimalType, FloatType, DoubleType)):
        return Rule(lambda text: fit(text, StringType(), kind).value, _is_special)
    if not isinstance(kind, StringType):
        return None
    if source.family == "integer" or source.variable:
        return Rule(_plain)
    # Without schemas, a decimal is base64 of its bytes, or text with a point. If there are no digits after
    # the point, base64 may look like a number.
    same = partial(_decimal_text, scale=source.scale)
    return Rule(_plain, same=same, written=False) if source.scale > 0 else None


def _whole(kind: DataType) -> Parse:
    """Return how to read a whole number. Text with other digits after its point would be cut by a cast."""
    return lambda text: F.when(
        text.rlike(r"^[-+]?\d+(\.0*)?$"), shapes.whole(F.substring_index(text, ".", 1), kind)
    )


def _is_special(text: Column) -> Column:
    return text.isin("NaN", "Infinity", "-Infinity")


def _decimal_text(text: Column, scale: int) -> Column:
    """STRING: a decimal with digits after its point as plain text, from base64 of its bytes or text.

    It has all its digits, but no zeros at its ends, which say nothing of its value. It is null if the value
    is not a number.
    """
    is_text = text.contains(".") | text.contains("-")
    plain = F.when(text.rlike(NUMBER), text)
    of_bytes = plain_text(F.try_to_binary(text, F.lit("base64")), F.lit(scale))
    told = _significant(F.when(is_text, plain).otherwise(of_bytes))
    return F.when(~text.rlike(SPECIAL), F.coalesce(told, text))


def _significant(number: Column) -> Column:
    """STRING: a plain number without a plus sign, and without zeros at its ends."""
    whole = F.ltrim(F.ltrim(F.substring_index(number, ".", 1), F.lit("+-")), F.lit("0"))
    part = F.when(number.contains("."), F.rtrim(F.substring_index(number, ".", -1), F.lit("0"))).otherwise("")
    digits = F.concat(whole, F.lit("."), part)
    return F.when(number.startswith("-") & (digits != "."), F.concat(F.lit("-"), digits)).otherwise(digits)


def _float(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, DoubleType):
        return Rule(_double)
    if not isinstance(kind, FloatType):
        return None
    return Rule(_nearest if source.name in _SINGLES else _single)


def _double(text: Column) -> Column:
    return shapes.number(text, "double")


def _nearest(text: Column) -> Column:
    """FLOAT: a number whose text has the digits of the float, or of the double that it equals."""
    return _double(text).cast("float")


def _single(text: Column) -> Column:
    """FLOAT: a double, if a float has its value or its digits."""
    double, found = _double(text), _nearest(text)
    comes_back = (found.cast("double") == double) | (_double(found.cast("string")) == double)
    return F.when(comes_back, found)


def _boolean(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, BooleanType):
        return Rule(lambda text: text.isin("true", "1"))
    if isinstance(kind, IntegralType):
        return Rule(lambda text: text.isin("true", "1").cast(kind))
    return Rule(_plain) if isinstance(kind, StringType) else None


def _bits(source: SourceType, kind: DataType) -> Rule | None:
    if not isinstance(kind, StringType):
        return None
    # The connector does not send the length of a varying one.
    return Rule(_plain, same=(lambda text: F.ltrim(text, F.lit("0"))) if source.variable else None)


def _text(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, VariantType):
        return Rule(lambda text: fit(text, StringType(), kind).value, same=F.to_json)
    return Rule(_plain) if isinstance(kind, StringType) else None


def _json(source: SourceType, kind: DataType) -> Rule | None:
    """Compare JSON as values, because each program that writes it has its own spaces and order."""
    if not isinstance(kind, StringType):
        return _text(source, kind)
    return Rule(_plain, same=lambda text: F.coalesce(F.to_json(F.try_parse_json(text)), text))


def _bytes(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, BinaryType):
        return Rule(F.unhex)
    return Rule(lambda text: F.base64(F.unhex(text))) if isinstance(kind, StringType) else None


def _date(source: SourceType, kind: DataType) -> Rule | None:
    def lost(text: Column) -> Column:
        return ~text.rlike(_DAY) | (text < "0001")

    def day(text: Column) -> Column:
        return F.when(~lost(text), shapes.moment(text, "date"))

    if isinstance(kind, DateType):
        return Rule(day, lost)
    if isinstance(kind, TimestampNTZType):
        return Rule(lambda text: day(text).cast("timestamp_ntz"), lost)
    if isinstance(kind, IntegralType):  # days, as the connector sends them if records have no schema
        return Rule(lambda text: F.unix_date(day(text)).try_cast(kind), lost)
    return None


def _timestamp(source: SourceType, kind: DataType) -> Rule | None:
    def lost(text: Column) -> Column:
        return ~text.rlike(_MOMENT) | (text < "0001")

    def moment(text: Column) -> Column:
        return F.when(~lost(text), shapes.moment(text, "timestamp_ntz"))

    if isinstance(kind, TimestampNTZType):
        return Rule(moment, lost)
    if isinstance(kind, LongType):  # as the connector sends it if records have no schema
        unit = 1000 if source.digits <= 3 else 1

        def number(text: Column) -> Column:
            return F.floor(_micros(moment(text)) / unit).cast("bigint") if unit > 1 else _micros(moment(text))

        return Rule(number, lost)
    return None


def _micros(moment: Column) -> Column:
    return F.timestamp_diff("MICROSECOND", F.lit("1970-01-01").cast("timestamp_ntz"), moment)


def _timestamptz(source: SourceType, kind: DataType) -> Rule | None:
    def lost(text: Column) -> Column:
        return ~text.rlike(_MOMENT) | (text < "0001")

    def instant(text: Column) -> Column:
        return F.when(~lost(text), shapes.moment(F.concat(text, F.lit("Z")), "timestamp"))

    if isinstance(kind, TimestampType):
        return Rule(instant, lost)
    if isinstance(kind, StringType):  # ISO text, as the connector sends it if records have no schema
        return Rule(
            lambda text: F.when(~lost(text), F.concat(F.translate(text, " ", "T"), F.lit("Z"))),
            lost,
            lambda text: F.coalesce(F.unix_micros(shapes.moment(text, "timestamp")).cast("string"), text),
        )
    return None


def _time(source: SourceType, kind: DataType) -> Rule | None:
    if isinstance(kind, StringType):
        return Rule(temporal.clock_of_iso)
    if isinstance(kind, IntegralType):
        unit = 1000 if source.digits <= 3 else 1
        return Rule(lambda text: F.floor(_micros_of_day(text) / unit).try_cast(kind))
    return None


def _micros_of_day(text: Column) -> Column:
    parts = F.split(F.ltrim(text, F.lit("-")), ":")
    hours, minutes = (shapes.whole(F.get(parts, at)) for at in (0, 1))
    seconds = shapes.number(F.get(parts, 2), "decimal(12,6)")
    micros = (hours * 3600 + minutes * 60) * 1_000_000 + (seconds * 1_000_000).cast("bigint")
    return F.when(text.startswith("-"), -micros).otherwise(micros)


def _timetz(source: SourceType, kind: DataType) -> Rule | None:
    if not isinstance(kind, StringType):
        return None

    def same(text: Column) -> Column:
        return temporal.clock_of_iso(F.regexp_replace(text, r"(Z|[+-]00(:00)?)$", ""))

    return Rule(_plain, same=same)


def _interval(source: SourceType, kind: DataType) -> Rule | None:
    return Rule(shapes.whole) if isinstance(kind, LongType) else None


def _array(element: SourceType, kind: DataType) -> Rule | None:
    """Return the rule for a text that is a JSON array of the texts of the elements."""
    if not isinstance(kind, ArrayType):
        return None
    inner = rule_of(element, kind.elementType)
    if inner is None or inner.same is not None:
        return None
    found = inner
    return Rule(lambda text: F.transform(_texts(text), lambda each: found.parse(each)), element=found)


def _texts(text: Column) -> Column:
    return F.from_json(text, ArrayType(StringType()))


_RULES: Final[dict[str, Callable[[SourceType, DataType], Rule | None]]] = {
    "integer": _number,
    "decimal": _number,
    "float": _float,
    "boolean": _boolean,
    "bit": _boolean,
    "bits": _bits,
    "text": _text,
    "json": _json,
    "bytes": _bytes,
    "date": _date,
    "time": _time,
    "timetz": _timetz,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "interval": _interval,
}

_NATURAL: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "bit": BooleanType(),
    **dict.fromkeys(("bits", "text", "json", "time", "timetz"), StringType()),
    "bytes": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampNTZType(),
    "timestamptz": TimestampType(),
    "interval": LongType(),
}
"""The type that `lakemirror.driver.parse.values` produces from Debezium's values, by family."""
