"""Debezium's JSON envelope: raw record -> classified change event.

Format: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events,
with or without the schema that Kafka's JsonConverter embeds (``{"schema": ..., "payload": ...}``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.spec import Ordering
from lakemirror.driver.codes import SOURCE_OPS, WITH_ROW, Op
from lakemirror.driver.parse.envelopes.base import (
    KEY,
    LIMITS,
    PLACE,
    Classifier,
    document,
    exact,
    has_many_digits,
    has_schema,
    header,
    is_object,
    key_text,
    kind_of,
    may_have_gaps,
    misfit,
    quoted,
    schema,
    sent,
    unreadable,
    unsplit,
)
from lakemirror.driver.parse.envelopes.no_change import (
    MESSAGE,
    changes_no_row,
    members_of,
    named_as_no_change,
)
from lakemirror.driver.parse.values.placeholder import DEFAULT, Placeholder
from lakemirror.driver.rules.envelopes.debezium import OTHER_TYPE
from lakemirror.driver.rules.envelopes.records import INTEGERS
from lakemirror.driver.sequence import (
    SOURCE,
    identity,
    misplaced,
    sequence,
    server,
    source_micros,
    stream,
    unanchored,
)

_FIELDS: Final = {
    "before": "STRING",
    "after": "STRING",
    "source": SOURCE,
    "op": "STRING",
    "ts_ms": "BIGINT",
}
_BODY = ", ".join(f"{name} {kind}" for name, kind in _FIELDS.items())
_VALUE = f"schema STRING, payload STRUCT<{_BODY}>, {_BODY}"


class Debezium(Classifier):
    """Debezium's envelope: raw records -> classified change events."""

    def steps(self, known: Mapping[int, str]) -> list[list[Column]]:
        split = self._encoding.split(("value", "key"), known)
        placeholder = Placeholder(self._envelope.placeholder or DEFAULT)
        return [*split, *_steps(self._ordering, known, placeholder, keep_before=self._keep_before)]


def _steps(
    ordering: Ordering, known: Mapping[int, str], placeholder: Placeholder, *, keep_before: bool
) -> list[list[Column]]:
    """Return the columns to select from records whose payloads are split off, one list after the other."""
    return [
        [F.col("*"), sent().alias("sent")],
        [
            F.col("*"),
            has_many_digits(F.col("sent")).alias("many_digits"),
            document(F.col("value_payload"), _BODY).alias("p"),
            unsplit("value", _VALUE).alias("v"),
            unsplit("key", KEY).alias("k"),
        ],
        _parsed(known),
        [F.col("*"), members_of(F.col("apart")).alias("members")],
        [
            F.col("*"),
            *_kind(ordering.by),
            F.coalesce(F.col("b.op") == Op.READ, F.lit(False)).alias("snapshot"),
        ],
        _event(ordering, placeholder, keep_before=keep_before),
    ]


def _parsed(known: Mapping[int, str]) -> list[Column]:
    """Return the envelope ``b``, however it was read, and the parts of the record.

    ``apart`` is the payload of a record that may be one of Debezium's own, and ``named`` says whether its
    schema has the name of one.
    """
    op = F.coalesce("p.it.op", "v.it.payload.op", "v.it.op")
    rare = op.isNull() | (op == MESSAGE)
    text, schema_id = schema("value", F.col("v.it.schema"), known)
    return [
        *map(F.col, (*PLACE, "problem", "key", "value", "headers", "key_payload", "value_payload")),
        _value_fails().alias("value_fails"),
        F.when(_value_fails(), _misfit(_payload())).alias("misfit"),
        F.when(F.col("value_payload").isNotNull(), _body("p.it"))
        .when(F.col("v.it.payload").isNotNull(), _body("v.it.payload", ("payload",)))
        .otherwise(_body("v.it", ()))
        .alias("b"),
        F.when(rare, _payload()).alias("apart"),
        F.when(rare, named_as_no_change(text, schema_id, known)).alias("named"),
        text,
        schema_id,
        *schema("key", F.when(has_schema(F.col("k.it")), F.col("k.it.schema")), known),
        key_text().alias("key_text"),
    ]


def _event(ordering: Ordering, placeholder: Placeholder, *, keep_before: bool) -> list[Column]:
    """Return the columns of `EVENT_COLUMNS`."""
    change, bad = F.col("kind").isin("change", "truncate"), F.col("kind") == "bad"
    wanted = F.lit(True) if keep_before else (F.col("b.op") == Op.DELETE) | F.col("key").isNull()
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
        header("__debezium.newkey").alias("new_key_text"),
        F.when(F.col("b.op") != Op.UPDATE, header("__debezium.oldkey")).alias("old_key_text"),
        *map(F.col, schemas),
        F.when(change, seq).alias("seq"),
        F.when(change, identity(source, ordering.by, F.col("b.before"))).alias("identity"),
        F.coalesce(change & unanchored(source, snapshot, ordering.by), F.lit(False)).alias("unanchored"),
        F.coalesce(may_have_gaps(F.col("b.after"), placeholder), F.lit(False)).alias("gaps"),
        F.lit(False).alias("partial"),
        (F.coalesce(F.col("b.source.connector"), F.lit("")) != "postgresql").alias("full_before"),
        F.timestamp_micros(source_micros(source, F.col("b.ts_ms"))).alias("event_time"),
        F.when(change, stream(source, ordering.by)).alias("stream"),
        server(source).alias("server"),
        source_micros(source).alias("source_time"),
        *map(F.col, PLACE),
        *[F.when(bad, F.col(name)).alias(f"raw_{name}") for name in ("key", "value", "headers")],
    ]


def _payload() -> Column:
    """Return the text of the value, without its schema (STRING)."""
    whole = F.col("value").cast("string")
    return F.coalesce(
        "value_payload",
        F.when(F.col("v.it.payload").isNotNull(), F.get_json_object(whole, "$.payload")),
        whole,
    )


def _body(parsed: str, path: Sequence[str] | None = None) -> Column:
    """Return the envelope; without a schema, it is at a ``path``, and its images keep all digits."""
    fields = {name: F.col(f"{parsed}.{name}") for name in _FIELDS}
    if path is not None:
        text, asked, plain = F.col("sent"), F.col("many_digits"), F.col("v.it.schema").isNull()
        for name in ("before", "after"):
            whole = exact(text, (*path, name), fields[name], asked)
            fields[name] = F.when(plain, whole).otherwise(fields[name])
    return F.struct(*[each.alias(name) for name, each in fields.items()])


def _value_fails() -> Column:
    """Return whether the value is not a JSON object (BOOLEAN)."""
    split = F.when(F.col("value_payload").isNotNull(), F.col("p._corrupt").isNotNull())
    return split.otherwise(F.col("v.it").isNull() | F.col("v._corrupt").isNotNull())


def _misfit(text: Column) -> Column:
    """Return the first field of an envelope that has another type than Debezium gives it (STRING)."""
    return F.coalesce(
        misfit(text, {"source": "OBJECT"}),
        misfit(text, dict.fromkeys(INTEGERS, "BIGINT"), ("source",)),
        misfit(text, {"ts_ms": "BIGINT"}),
    )


def _kind(by: str) -> tuple[Column, Column]:
    """Return ``kind`` and, for a bad record, ``reason``."""
    op, after, before = F.col("b.op"), F.col("b.after"), F.col("b.before")
    table = F.col("b.source.table")
    other = changes_no_row(*map(F.col, ("apart", "members", "key_text", "topic", "named")))
    reason = (
        unreadable(split=True)
        .when(F.col("misfit").isNotNull(), F.concat(F.col("misfit"), F.lit(f" {OTHER_TYPE}")))
        .when(F.col("value_fails"), f"the value is not a Debezium JSON object {LIMITS}")
        .when(~is_object(F.col("schema_text")), "the schema of the value is not a JSON object")
        .when(other, None)
        .when(op.isNull(), "the value has no op: it is not a Debezium change event")
        .when(op == MESSAGE, "op m without a message of prefix and content, or without a source block")
        .when(
            ~op.isin(*SOURCE_OPS),
            F.concat(F.lit("unknown op "), quoted(op)),
        )
        .when(
            F.col("b.source.connector") == "mongodb",
            "changes of MongoDB are not supported: its documents have no columns",
        )
        .when(F.coalesce(table, F.lit("")) == "", "source.table is missing")
        .when(
            op.isin(*WITH_ROW) & after.isNull(),
            F.concat(F.lit("op "), op, F.lit(" without an after image")),
        )
        .when(~is_object(after), "the after image is not a JSON object")
        .when(~is_object(before), "the before image is not a JSON object")
        .when(
            (op == Op.DELETE) & F.col("key").isNull() & before.isNull(),
            "op d with neither key nor before image",
        )
        .otherwise(misplaced(F.col("b.source"), partition=F.col("partition"), offset=F.col("offset"), by=by))
    )
    kind = kind_of(reason, other, op)
    return kind.alias("kind"), reason.alias("reason")
