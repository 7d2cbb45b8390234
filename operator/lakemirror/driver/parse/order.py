"""Orders changes by the columns that the manifest names (``ordering.by: columns``).

Classified events -> events with their sequence, or with the reason why they have none.

Values are compared by what they are: numbers as numbers, dates and times as moments (in seconds since 1970;
without a zone they are UTC). The schema says what a value is; without a schema, its JSON does.
docs/ordering.md describes the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver import shapes
from lakemirror.driver.codes import Op
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.parse.encodings import UNKNOWN_SCHEMA
from lakemirror.driver.parse.values import temporal
from lakemirror.driver.parse.values.connect import Field, field_at, is_at_path, parse_envelope
from lakemirror.driver.parse.values.decode import Decoded, RowDecoder, columns_of
from lakemirror.driver.sequence import LARGE, VALUE, is_large, sequence_of_values

SET_APART: Final = "no place"
"""``kind`` of an event that has no place in the order; ``reason`` says why."""

WITHOUT_ROW: Final = "a truncate has no row"
"""How the reasons of truncates begin, which no column orders."""

GIVEN: Final = "_ordered_by"
"""The values that order an event (STRUCT of VARIANT), if its envelope takes them from outside its row."""

_NUMBERS: Final = "^(BIGINT|DECIMAL|DOUBLE|FLOAT|INT|SMALLINT|TINYINT)"
_MOMENT: Final = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?$"
_DIGITS: Final = r"^-?\d+(\.\d+)?$"
_FRACTION: Final = r"\.\d*[1-9]\d*$"
_UNREADABLE: Final = "the embedded schema cannot be read, so that nothing tells the types of its columns"
_FULL: Final = "in PostgreSQL set REPLICA IDENTITY FULL on the table"


def steps(
    envelope: Envelope, ordering: Ordering, known: Mapping[int, str], columns: Sequence[str]
) -> list[list[Column]]:
    """Return the columns to select from classified events, one list after the other.

    The result is empty for other values of ``ordering.by``. ``columns`` are those of a classified event,
    ``known`` the known schema documents by id. An event whose schema is not known is set apart, so that the
    caller learns about the schema and tries again.
    """
    if ordering.by != "columns":
        return []
    names = ordering.columns or []
    custom = envelope.format == "custom"
    # Debezium writes decimals as base64 bytes, which cannot be told from digits without a schema.
    texts = envelope.format not in ("debezium", "debezium-flat")
    declared = {each: _declared(text, names if custom else None) for each, text in known.items()}
    unreadable = [each for each, fields in declared.items() if fields is None]
    image = F.when(F.col("op") == Op.DELETE, F.col("before_text")).otherwise(F.col("row_text"))
    form = ", ".join(f"`{name.replace('`', '``')}` VARIANT" for name in names)
    values = F.col(GIVEN) if custom else F.from_json(F.col("_image"), form)
    decoders = [_decoders(name, declared) for name in names]
    wires = [
        each.decoder.parse(F.when(F.col("schema_id").isin(each.schemas), _text(name, custom=custom))).alias(
            f"_{i}_{j}"
        )
        for i, (name, found) in enumerate(zip(names, decoders, strict=True))
        for j, each in enumerate(found)
    ]
    parsed = [_value(name, i, decoders[i], texts=texts).alias(f"_value_{i}") for i, name in enumerate(names)]
    ordered = F.col("kind").isin("change", "truncate")
    reason = F.when(_is_known(list(known)), _reason(names, custom=custom)).otherwise(UNKNOWN_SCHEMA)
    reason = F.when(F.col("schema_id").isin(unreadable), _UNREADABLE).otherwise(reason)
    origin = {name: F.col(name) for name in ("topic", "partition", "offset")}
    seq = sequence_of_values(
        [F.col(f"_value_{i}.value") for i in range(len(names))],
        large=[F.col(f"_value_{i}.large") for i in range(len(names))],
        snapshot=F.col("op") == Op.READ,
        epochs=ordering.epochs,
        **origin,
    )
    return [
        [F.col("*"), image.alias("_image")],
        [F.col("*"), values.alias("_values"), *wires],
        [F.col("*"), *parsed],
        [F.col("*"), F.when(ordered, reason).alias("_reason")],
        _placed(seq, columns),
    ]


def _placed(seq: Column, columns: Sequence[str]) -> list[Column]:
    """Return the columns of a classified event."""
    apart = F.col("_reason").isNotNull()
    change = F.col("kind").isin("change", "truncate")
    changed = {
        "kind": F.when(apart, SET_APART).otherwise(F.col("kind")),
        "reason": F.coalesce("_reason", "reason"),
        "seq": F.when(change & ~apart, seq),
        "unanchored": F.lit(False),
    }
    return [changed.get(name, F.col(name)).alias(name) for name in columns]


class _Decoder:
    """Reads one column from the events of those ``schemas`` in which it has the same type."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.decoder = RowDecoder([field])
        self.schemas: list[int] = []

    @property
    def kind(self) -> DataType:
        return self.decoder.types[self.field.name]


def _declared(document: str, paths: Sequence[str] | None) -> dict[str, Field] | None:
    """Return the columns of a schema document by name, or what it has at the ``paths`` of a custom record.

    Returns None if the document cannot be read.
    """
    try:
        if paths is None:
            return {each.name: each for each in columns_of(document, parse_envelope)}
        found = {path: field_at(document, path.split(".")) for path in paths} if is_at_path(document) else {}
        declared = {path: each for path, each in found.items() if each is not None}
        RowDecoder(list(declared.values()))
        return declared
    except LakemirrorError:
        return None


def _text(name: str, *, custom: bool) -> Column:
    """Return a JSON object with the value of a column (STRING)."""
    return F.to_json(F.struct(F.col(GIVEN)[name].alias(name))) if custom else F.col("_image")


def _decoders(name: str, declared: Mapping[int, Mapping[str, Field] | None]) -> list[_Decoder]:
    """Return one decoder for each type that a column has in the known schemas."""
    found: dict[str, _Decoder] = {}
    for identity, fields in declared.items():
        if fields and name in fields:
            found.setdefault(repr(fields[name]), _Decoder(fields[name])).schemas.append(identity)
    return list(found.values())


def _value(name: str, index: int, decoders: Sequence[_Decoder], *, texts: bool) -> Column:
    """Return what an event has in a column (STRUCT).

    The fields are ``there``, ``null``, ``value`` (of type `VALUE`), ``large`` (of type `LARGE`; both are null
    if it is neither a number nor a moment), ``placeholder`` (whether it could stand for a value that was not
    sent) and ``shown``.
    """
    variant = F.col("_values")[name]
    text = variant.cast("string")
    number = F.schema_of_variant(variant).rlike(_NUMBERS)
    plain = F.when(number, shapes.number(text, VALUE)).otherwise(_of_text(text, digits=texts))
    written = number | text.rlike(_DIGITS) if texts else number
    large, sent = _large(F.when(written & ~text.rlike(_FRACTION), text)), F.lit(None)
    value = plain
    for j, each in enumerate(decoders):
        decoded = each.decoder.project(F.col(f"_{index}_{j}"))[name]
        mine = F.col("schema_id").isin(each.schemas)
        value = F.when(mine, _of(decoded, each.kind)).otherwise(value)
        large = F.when(mine, _large_of(decoded, each.kind)).otherwise(large)
        default = RowDecoder([each.field]).default(name)
        sent = F.when(mine, _of(Decoded(default), each.kind)).otherwise(sent)
    return F.struct(
        variant.isNotNull().alias("there"),
        F.coalesce(F.is_variant_null(variant), F.lit(False)).alias("null"),
        value.cast(VALUE).alias("value"),
        large.alias("large"),
        F.coalesce((value.isNull() & large.isNull()) | (value == 0) | (value == sent), F.lit(False)).alias(
            "placeholder"
        ),
        F.substring(text, 1, 50).alias("shown"),
    )


def _large(text: Column) -> Column:
    """Return the text of a whole number as `LARGE`; null for one that is a `VALUE`."""
    number = shapes.number(text, LARGE)
    return F.when(is_large(number), number)


def _large_of(decoded: Decoded, kind: DataType) -> Column:
    """Return a decoded value as `LARGE`; null if it has a fraction, or is a `VALUE`."""
    if not isinstance(kind, (NumericType, StringType)):
        return F.lit(None).cast(LARGE)
    text = _whole(decoded).cast("string")
    return _large(F.when(text.rlike(_DIGITS) & ~text.rlike(_FRACTION), text))


def _whole(decoded: Decoded) -> Column:
    """Return a decoded value; null if the record does not have all of it."""
    value = decoded.value
    for lost in (decoded.gap, decoded.unrepresentable, decoded.misfit):
        if lost is not None:
            value = F.when(~lost, value)
    return value


def _of(decoded: Decoded, kind: DataType) -> Column:
    """Return a decoded value as `VALUE`; null if it has none."""
    value = _whole(decoded)
    if isinstance(kind, NumericType):
        return value.try_cast(VALUE)
    if isinstance(kind, DateType):
        return (F.unix_date(value).cast("bigint") * 86400).cast(VALUE)
    if isinstance(kind, (TimestampType, TimestampNTZType)):
        return _seconds(value)
    if isinstance(kind, StringType):
        return _of_text(value, digits=True)
    return F.lit(None).cast(VALUE)


def _of_text(text: Column, *, digits: bool) -> Column:
    """Return ISO text of a moment as `VALUE`, and with ``digits`` also a number; null for other text."""
    moment = F.when(text.rlike(_MOMENT), _seconds(temporal.instant_of(text)))
    return F.when(text.rlike(_DIGITS), shapes.number(text, VALUE)).otherwise(moment) if digits else moment


def _seconds(moment: Column) -> Column:
    micros = F.unix_micros(moment.cast("timestamp")).cast("decimal(20,0)")
    return (micros * F.lit(Decimal("0.000001"))).cast(VALUE)


def _is_known(schemas: list[int]) -> Column:
    """Return whether an event has no schema, or one of these (BOOLEAN)."""
    return F.col("schema_id").isNull() | F.col("schema_id").isin(schemas)


def _reason(names: Sequence[str], *, custom: bool) -> Column:
    """Return why an event has no place in the order."""
    op, listed = F.col("op"), ", ".join(names)
    because = f"ordering.columns ({listed})"
    reasons = [
        F.when(
            op == Op.TRUNCATE,
            f"{WITHOUT_ROW}, so that {because} cannot order it. The mirror keeps its rows: to begin "
            "anew, give the table a new target and a new resyncToken once the source has no older records of "
            "it any more",
        )
    ]
    made_up = reduce(
        Column.__and__, [_may_be_made_up(name, F.col(f"_value_{i}")) for i, name in enumerate(names)]
    )
    for i, name in enumerate(names):
        part, deletes = F.col(f"_value_{i}"), op == Op.DELETE
        lacks = f"the record has no {name}, by which {because} orders it"
        of_delete = f"a delete whose before image has no {name}, by which {because} orders it"
        remedy = "" if custom else f": {_FULL}"
        reasons += [
            F.when(~part["there"], lacks if custom else F.when(deletes, of_delete + remedy).otherwise(lacks)),
            F.when(
                ~part["null"] & part["value"].isNull() & part["large"].isNull(),
                F.concat(
                    F.lit(f"{name} of {because} is neither a number nor a time: "),
                    F.coalesce(part["shown"], F.lit("its type has no order")),
                ),
            ),
        ]
    doubtful = (op == Op.DELETE) & ~F.col("full_before") & made_up
    reasons.append(F.when(doubtful, f"a delete whose before image may lack {because}: {_FULL}"))
    return F.coalesce(*reasons)


def _may_be_made_up(name: str, part: Column) -> Column:
    """Return whether a value could stand for one that PostgreSQL did not send (BOOLEAN).

    Key columns always count as such.
    """
    keys = F.coalesce(F.json_object_keys("key_text"), F.array())
    return F.array_contains(keys, name) | part["null"] | part["placeholder"]
