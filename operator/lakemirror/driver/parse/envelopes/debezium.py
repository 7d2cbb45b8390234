"""Debezium's JSON envelope: raw record -> classified change event.

Format: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events,
with or without the schema that Kafka's JsonConverter embeds (``{"schema": ..., "payload": ...}``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from types import MappingProxyType
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.api.spec import Ordering
from lakemirror.driver.parse.envelopes.embedded import schema_id, split, unless_known
from lakemirror.driver.sequence import (
    SOURCE,
    misplaced,
    sequence,
    server,
    source_micros,
    stream,
    unanchored,
)

EVENT_COLUMNS: Final = (
    "kind, reason, database, schema, table, op, key_text, row_text, before_text, new_key_text, old_key_text, "
    "schema_text, schema_id, key_schema_text, key_schema_id, seq, unanchored, gaps, full_before, event_time, "
    "stream, server, source_time, topic, partition, offset, timestamp, file, row, raw_key, raw_value, "
    "raw_headers"
)
"""Columns of a classified event.

``kind`` is ``change`` (op c, u, d, r), ``truncate``, ``tombstone`` (Kafka's null payload), ``other``
(heartbeat, transaction metadata, schema change, logical message) or ``bad``, with ``reason``. The texts are
JSON objects; ``schema_text`` is the embedded schema document, null without one or when its ``schema_id`` is
among the known. ``gaps`` says that a value may be the placeholder of one that the source did not send,
``full_before`` that a before image has all columns whatever the table's replica identity.
``stream``, ``server`` and ``source_time`` (microseconds) tell where positions start again
(`lakemirror.driver.profile.rewinds`); without ``stream`` the event says nothing of that.
``raw_*`` are set for bad records only.
"""

PLACEHOLDER: Final = "__debezium_unavailable_value"
"""Debezium's default for ``unavailable.value.placeholder``."""

_FIELDS: Final = {
    "before": "STRING",
    "after": "STRING",
    "source": SOURCE,
    "op": "STRING",
    "ts_ms": "BIGINT",
    "status": "STRING",
    "id": "STRING",
    "ddl": "STRING",
    "databaseName": "STRING",
}
_BODY = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
_VALUE = f"schema STRING, payload STRUCT<{_BODY}>, {_BODY}"
_KEY = "schema STRING, payload STRING"
_PLACE: Final = ("topic", "partition", "offset", "timestamp", "file", "row")
_LEVELS: Final = 100
_CHARACTERS: Final = 20_000_000
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    "maxNestingDepth": str(_LEVELS),
    "maxStringLen": str(_CHARACTERS),
}


class Classifier:
    """Raw records -> classified change events.

    Its expressions are two thousand calls to the JVM: they are made again only when more schemas are known.
    ``keep_before`` keeps every before image; else only those of deletes and of records without key.
    """

    def __init__(self, ordering: Ordering, *, keep_before: bool = False) -> None:
        self._ordering, self._keep_before = ordering, keep_before
        self._known: frozenset[int] | None = None
        self._steps: list[list[Column]] = []

    def classify(self, raw: DataFrame, known: Mapping[int, str] = MappingProxyType({})) -> DataFrame:
        """RAW records -> events with the columns of `EVENT_COLUMNS`.

        ``known`` are the schema documents that the caller has, by id.
        """
        ids = frozenset(known)
        if ids != self._known:
            self._steps = _steps(self._ordering, known, keep_before=self._keep_before)
            self._known = ids
        return reduce(lambda frame, columns: frame.select(*columns), self._steps, raw)


def _steps(ordering: Ordering, known: Mapping[int, str], *, keep_before: bool) -> list[list[Column]]:
    """What is selected, one list after the other."""
    return [
        *split(("value", "key"), known),
        [
            F.col("*"),
            _document(F.col("value_payload"), _BODY).alias("p"),
            _unsplit("value", _VALUE).alias("v"),
            _unsplit("key", _KEY).alias("k"),
        ],
        _parsed(known),
        [F.col("*"), *_kind(ordering.by), F.coalesce(F.col("b.op") == "r", F.lit(False)).alias("snapshot")],
        _event(ordering, keep_before=keep_before),
    ]


def _parsed(known: Mapping[int, str]) -> list[Column]:
    """The envelope ``b``, however it was read, and the parts of the record."""
    return [
        *map(F.col, (*_PLACE, "problem", "key", "value", "headers")),
        *_failures(),
        F.when(F.col("value_payload").isNotNull(), _body("p.it"))
        .when(F.col("v.it.payload").isNotNull(), F.col("v.it.payload"))
        .otherwise(_body("v.it"))
        .alias("b"),
        *_schema("value", F.col("v.it.schema"), known),
        *_schema("key", F.when(_has_schema(F.col("k.it")), F.col("k.it.schema")), known),
        _key_text().alias("key_text"),
    ]


def _event(ordering: Ordering, *, keep_before: bool) -> list[Column]:
    """The columns of `EVENT_COLUMNS`."""
    change, bad = F.col("kind").isin("change", "truncate"), F.col("kind") == "bad"
    wanted = F.lit(True) if keep_before else (F.col("b.op") == "d") | F.col("key").isNull()
    source, snapshot = F.col("b.source"), F.col("snapshot")
    origin = {name: F.col(name) for name in ("topic", "partition", "offset")}
    seq = sequence(source, snapshot=snapshot, by=ordering.by, epochs=ordering.epochs, **origin)
    schemas = ("schema_text", "schema_id", "key_schema_text", "key_schema_id")
    return [
        *map(F.col, ("kind", "reason")),
        F.col("b.source.db").alias("database"),
        F.col("b.source.schema").alias("schema"),
        F.col("b.source.table").alias("table"),
        F.col("b.op").alias("op"),
        F.col("key_text"),
        F.col("b.after").alias("row_text"),
        F.when(wanted, F.col("b.before")).alias("before_text"),
        _header("__debezium.newkey").alias("new_key_text"),
        _header("__debezium.oldkey").alias("old_key_text"),
        *map(F.col, schemas),
        F.when(change, seq).alias("seq"),
        F.coalesce(change & unanchored(source, snapshot), F.lit(False)).alias("unanchored"),
        F.coalesce(_may_have_gaps(F.col("b.after")), F.lit(False)).alias("gaps"),
        (F.coalesce(F.col("b.source.connector"), F.lit("")) != "postgresql").alias("full_before"),
        F.timestamp_micros(source_micros(source, F.col("b.ts_ms"))).alias("event_time"),
        F.when(change, stream(source, ordering.by)).alias("stream"),
        server(source).alias("server"),
        source_micros(source).alias("source_time"),
        *map(F.col, _PLACE),
        *[F.when(bad, F.col(name)).alias(f"raw_{name}") for name in ("key", "value", "headers")],
    ]


def _unsplit(name: str, form: str) -> Column:
    """The document read whole, where it could not be split."""
    return F.when(F.col(f"{name}_payload").isNull(), _document(F.col(name).cast("string"), form))


def _document(text: Column, form: str) -> Column:
    """The only object of a text, as ``it``; wrapped in another, so that text after it is an error too."""
    return F.from_json(
        F.concat(F.lit('{"it":'), text, F.lit("}")), f"it STRUCT<{form}>, _corrupt STRING", _OPTIONS
    )


def _body(parsed: str) -> Column:
    return F.struct(*[F.col(f"{parsed}.{name}").alias(name) for name in _FIELDS])


def _failures() -> tuple[Column, Column]:
    """BOOLEAN: the value or the key is not a JSON object."""
    value = F.when(F.col("value_payload").isNotNull(), F.col("p._corrupt").isNotNull())
    key = F.when(F.col("key_payload").isNotNull(), F.json_object_keys("key_payload").isNull())
    return (
        value.otherwise(F.col("v.it").isNull() | F.col("v._corrupt").isNotNull()).alias("value_fails"),
        key.otherwise(F.col("k._corrupt").isNotNull()).alias("key_fails"),
    )


def _schema(name: str, whole: Column, known: Mapping[int, str]) -> tuple[Column, Column]:
    """Text and id of the schema of a split document, or of one read ``whole``."""
    prefix = "" if name == "value" else "key_"
    read = F.when(whole.isNotNull(), schema_id(whole))
    return (
        unless_known(whole, read, known).alias(f"{prefix}schema_text"),
        F.coalesce(f"{name}_schema_id", read).alias(f"{prefix}schema_id"),
    )


def _kind(by: str) -> tuple[Column, Column]:
    """``kind`` and, for a bad record, ``reason``."""
    op, after, before = F.col("b.op"), F.col("b.after"), F.col("b.before")
    table = F.col("b.source.table")
    other = (
        (op == "m")
        | (op.isNull() & F.col("b.status").isNotNull() & F.col("b.id").isNotNull())
        | (op.isNull() & (F.col("b.ddl").isNotNull() | F.col("b.databaseName").isNotNull()))
        | (
            op.isNull()
            & F.col("b.ts_ms").isNotNull()
            & F.col("b.source").isNull()
            & after.isNull()
            & before.isNull()
        )
    )
    reason = (
        F.when(F.col("problem").isNotNull(), F.col("problem"))
        .when(F.col("value").isNull(), None)
        .when(~F.is_valid_utf8(F.col("value").cast("string")), "the value is not valid UTF-8")
        .when(~F.is_valid_utf8(F.col("key").cast("string")), "the key is not valid UTF-8")
        .when(F.col("value_fails"), _unreadable())
        .when(F.col("key_fails"), "the key is not a JSON object")
        .when(~_is_object(F.col("schema_text")), "the schema of the value is not a JSON object")
        .when(other, None)
        .when(op.isNull(), "the value has no op: it is not a Debezium change event")
        .when(
            ~op.isin("c", "u", "d", "r", "t"),
            F.concat(F.lit("unknown op '"), F.substring(op, 1, 50), F.lit("'")),
        )
        .when(F.coalesce(table, F.lit("")) == "", "source.table is missing")
        .when(
            op.isin("c", "u", "r") & after.isNull(),
            F.concat(F.lit("op "), op, F.lit(" without an after image")),
        )
        .when(~_is_object(after), "the after image is not a JSON object")
        .when(~_is_object(before), "the before image is not a JSON object")
        .when((op == "d") & F.col("key").isNull() & before.isNull(), "op d with neither key nor before image")
        .otherwise(misplaced(F.col("b.source"), partition=F.col("partition"), offset=F.col("offset"), by=by))
    )
    kind = (
        F.when(reason.isNotNull(), "bad")
        .when(F.col("value").isNull(), "tombstone")
        .when(other, "other")
        .when(op == "t", "truncate")
        .otherwise("change")
    )
    return kind.alias("kind"), reason.alias("reason")


def _unreadable() -> Column:
    """Why the envelope could not be read, or not all of it."""
    return F.when(
        F.coalesce("b.op", "b.source.table", "b.after", "b.before").isNotNull(),
        "a field of the envelope or of its source block has another type than Debezium gives it",
    ).otherwise(
        f"the value is not a Debezium JSON object (of at most {_LEVELS} levels, with at most {_CHARACTERS:,} "
        "characters in a text)"
    )


def _is_object(text: Column) -> Column:
    """BOOLEAN: JSON, as Spark prints it again, is an object; null where there is none."""
    return text.startswith("{")


def _has_schema(document: Column) -> Column:
    """BOOLEAN: a key document is wrapped as ``{"schema": {"type": "struct", ...}, "payload": ...}``."""
    return F.coalesce(document["schema"].contains('"fields"') & document["payload"].isNotNull(), F.lit(False))


def _key_text() -> Column:
    """The key's payload; a key without schema is its own."""
    wrapped = F.when(_has_schema(F.col("k.it")), F.col("k.it.payload"))
    return F.coalesce("key_payload", wrapped, F.col("key").cast("string"))


def _header(name: str) -> Column:
    """The key in a header of a key change; it is wrapped with its schema when record keys are."""
    first = F.get(F.filter("headers", lambda header: header["key"] == name), 0)["value"].cast("string")
    payload = F.get_json_object(first, "$.payload")
    return F.when(
        F.size(F.col("headers")) > 0,
        F.when(payload.isNotNull() & first.contains('"schema"'), payload).otherwise(first),
    )


def _may_have_gaps(text: Column) -> Column:
    """The placeholder as text, as base64 of its bytes, as their hexadecimal form, or as an array of its
    codes.
    """
    import base64

    raw = PLACEHOLDER.encode()
    codes = ",".join(str(code) for code in raw)
    forms = [PLACEHOLDER, base64.b64encode(raw).decode().rstrip("="), raw.hex(), codes]
    found = text.contains(forms[0])
    for form in forms[1:]:
        found = found | text.contains(form)
    return found
