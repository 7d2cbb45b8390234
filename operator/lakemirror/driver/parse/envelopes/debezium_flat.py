"""Debezium's flat records: raw record -> classified change event.

Format: https://debezium.io/documentation/reference/stable/transformations/event-flattening.html. A record is
what the transformation ExtractNewRecordState leaves of a change event: the row, with the fields that
``add.fields`` and ``delete.tombstone.handling.mode`` add to it under names that begin with ``__`` (and that
``add.headers`` adds to the headers), with or without the schema that Kafka's JsonConverter embeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.source import Envelope
from lakemirror.driver.codes import SOURCE_OPS, Op
from lakemirror.driver.parse.envelopes.base import (
    HALF_CHARACTER,
    KEY,
    LIMITS,
    PLACE,
    Classifier,
    document,
    event,
    exact,
    has_half_character,
    has_schema,
    header,
    is_object,
    key_fails,
    key_text,
    kind_of,
    may_have_gaps,
    misfit,
    named,
    plain_document,
    quoted,
    schema,
    sent,
    source_block,
    unreadable,
    unsplit,
)
from lakemirror.driver.parse.envelopes.no_change import (
    changes_no_row,
    is_envelope,
    members_of,
    named_as_no_change,
)
from lakemirror.driver.parse.values.placeholder import DEFAULT, Placeholder
from lakemirror.driver.rules.envelopes.debezium import OTHER_TYPE
from lakemirror.driver.rules.envelopes.flat import INTEGERS, OTHERS
from lakemirror.driver.sequence import (
    SOURCE,
    has_position,
    identity,
    misplaced,
    sequence,
    server,
    source_micros,
    stream,
    unanchored,
    unplaced,
)

_PREFIX: Final = "__"
_NESTED: Final = ("__source_", "__transaction_")
_OF_ENVELOPE: Final = ("deleted", "op", "ts_ms", "ts_us", "ts_ns")
"""Fields outside the source block; those with ``ts_`` are times of the connector's clock."""

_SOURCE: Final = dict(
    part.split(": ") for part in SOURCE.removeprefix("STRUCT<").removesuffix(">").split(", ")
)
_PLAIN: Final = [name for name in _SOURCE if name not in _OF_ENVELOPE]
_META: Final = {
    "__deleted": "STRING",
    "__op": "STRING",
    "__ts_ms": "BIGINT",
    **{f"__{name}": _SOURCE[name] for name in _PLAIN},
    **{f"__source_{name}": kind for name, kind in _SOURCE.items()},
}
_FORM: Final = ", ".join(f"{name} {kind}" for name, kind in _META.items())
_NAMES: Final = frozenset((*_META, *(f"__{name}" for name in (*_OF_ENVELOPE, *OTHERS))))

_CALLED: Final = {name: f"__{name}" if name in _PLAIN else f"__source_{name}" for name in _SOURCE}
"""The names of the source block's fields in records."""

_POSITIONS: Final = {
    "postgresql": ("lsn",),
    "mysql": ("file",),
    "sqlserver": ("commit_lsn", "change_lsn"),
    "oracle": ("scn",),
}
"""The fields that a record has if its position was added, by kind of connector."""

_JSON: Final = (
    r"^(-?(0|[1-9]\d{0,18})|true|false|null"
    r'|"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4}){0,1000}")\z'
)
"""Matches the JSON of a plain value; a number that begins with 0 is text."""

_WRAPPED: Final = '{"type":"struct","fields":[{"field":"after",', "]}"
"""Prefix and suffix that turn a row's schema document into that of an envelope."""

_NULL: Final = (
    "a null value deletes its key's row, but nothing says when: if other records are the deletes "
    "(delete.tombstone.handling.mode rewrite-with-tombstone), set envelope.nullValue: ignore; else add op "
    "and the fields of add.fields to add.headers, or order all by Kafka's offset, ordering.by: offset, with "
    "a new spec.spark.resetToken and another spec.target"
)


class DebeziumFlat(Classifier):
    """Debezium's flat records: raw records -> classified change events.

    A record without ``__op`` and ``__deleted`` is the newest state of its row, and therefore an update. A
    null value is what ``delete.tombstone.handling.mode`` turns a delete into, unless the mode is ``rewrite``.
    It needs a place in the order, from headers or (``ordering.by: offset``) from its offset.
    """

    @classmethod
    def is_metadata(cls, envelope: Envelope, name: str) -> bool:
        return name in _NAMES or name.startswith(_NESTED)

    def _of_value(self, identity: int, text: str) -> dict[int, str]:
        begin, end = _WRAPPED
        return {identity: begin + text[1:] + end}

    def steps(self, known: Mapping[int, str]) -> list[list[Column]]:
        rows = {each: _unwrapped_schema(text) for each, text in known.items()}
        return [
            *self._encoding.split(("value", "key"), rows),
            [F.col("*"), sent().alias("sent")],
            [
                F.col("*"),
                unsplit("value", KEY).alias("v"),
                plain_document(F.coalesce("value_payload", "sent")).alias("whole"),
                unsplit("key", KEY).alias("k"),
                _headers().alias("added"),
            ],
            self._read(known, rows),
            [
                F.col("*"),
                document(F.col("body"), _FORM).alias("m"),
                document(F.col("added"), _FORM).alias("h"),
                members_of(F.col("body")).alias("members"),
                members_of(F.col("added")).alias("names"),
            ],
            [F.col("*"), *_meta()],
            [F.col("*"), *_parts(), _source().alias("source"), _misfit().alias("misfit")],
            [F.col("*"), *self._deletes()],
            [F.col("*"), *self._kind()],
            self._event(),
        ]

    def _read(self, known: Mapping[int, str], rows: Mapping[int, str]) -> list[Column]:
        """Return the row's text ``body``, the key's text, and the schemas of both.

        ``rows`` are the ``known`` schemas as records have them. A row may have columns called schema and
        payload, but then it has others as well.
        """
        both = F.array_sort(F.json_object_keys("whole.it")) == F.array(F.lit("payload"), F.lit("schema"))
        wrapped = has_schema(F.col("v.it")) & both
        bare = both & F.col("v.it.schema").isNull() & is_object(F.col("v.it.payload"))
        begin, end = _WRAPPED
        text, schema_id = schema("value", F.when(wrapped, F.col("v.it.schema")), known)
        return [
            *map(F.col, (*PLACE, "problem", "key", "value", "headers", "added")),
            *map(F.col, ("value_payload", "key_payload")),
            F.when(F.col("value_payload").isNotNull() | wrapped, F.coalesce("value_payload", "v.it.payload"))
            .when(bare, exact(F.col("sent"), ("payload",), F.col("v.it.payload")))
            .otherwise(exact(F.col("sent"), (), F.col("whole.it")))
            .alias("body"),
            (F.col("whole.it").isNull() | F.col("whole._corrupt").isNotNull()).alias("value_fails"),
            key_fails().alias("key_fails"),
            F.concat(F.lit(begin), F.substr(text, F.lit(2)), F.lit(end)).alias("schema_text"),
            schema_id,
            named_as_no_change(text, schema_id, rows).alias("named"),
            *schema("key", F.when(has_schema(F.col("k.it")), F.col("k.it.schema")), known),
            key_text().alias("key_text"),
        ]

    def _deletes(self) -> list[Column]:
        """Return ``null_delete`` and ``op``.

        ``null_delete`` says that a null value stands for a delete (BOOLEAN). ``op`` is null if there is no
        change.
        """
        null = F.col("value").isNull()
        deletes = null & F.col("key").isNotNull() & F.lit(self._envelope.null_value != "ignore")
        said, gone = F.col("said"), F.col("gone")
        op = (
            F.when(null, F.when(deletes, Op.DELETE))
            .when(gone, Op.DELETE)
            .when(said.isNotNull(), said)
            .when(F.col("read_in_snapshot"), Op.READ)
            .otherwise(Op.UPDATE)
        )
        return [deletes.alias("null_delete"), op.alias("op")]

    def _kind(self) -> list[Column]:
        reason = self._reason()
        op = F.col("op")
        return [
            reason.alias("reason"),
            kind_of(reason, F.col("other"), op).alias("kind"),
            F.coalesce(op == Op.READ, F.lit(False)).alias("snapshot"),
        ]

    def _reason(self) -> Column:
        by, source, op, offset = self._ordering.by, F.col("source"), F.col("op"), F.col("offset")
        placed = {
            "offset": F.lit(True),
            "columns": F.lit(False),
            "timestamp": source_micros(source).isNotNull(),
            "auto": has_position(source) | (source_micros(source).isNotNull() & source["connector"].isNull()),
        }.get(by, has_position(source))
        misfit = F.col("misfit")
        order = F.coalesce(
            misplaced(source, partition=F.col("partition"), offset=offset, by=by, called=_CALLED),
            unplaced(source, offset, by),
        )
        no_table = F.coalesce(F.col("name.table"), F.lit("")) == ""
        null = (
            F.when(~F.col("null_delete"), None)
            .when(misfit.isNotNull(), misfit)
            .when(F.col("key_fails"), "the key is not a JSON object")
            .when(no_table, "no table: neither __table nor a topic")
            .when(~F.coalesce(placed, F.lit(False)), _NULL)
            .otherwise(order)
        )
        return (
            F.when(F.col("problem").isNotNull(), F.col("problem"))
            .when(
                F.col("value").isNull(),
                F.when(~F.is_valid_utf8("key_text"), "the key is not valid UTF-8")
                .when(has_half_character(F.col("key").cast("string")), f"the key {HALF_CHARACTER}")
                .otherwise(null),
            )
            .when(unreadable(split=True).isNotNull(), unreadable(split=True))
            .when(F.col("value_fails"), f"the value is not a JSON object {LIMITS}")
            .when(~is_object(F.col("body")), "the value is not a JSON object")
            .when(~is_object(F.col("schema_text")), "the schema of the value is not a JSON object")
            .when(F.col("other"), None)
            .when(
                F.col("envelope"),
                "the value is a whole event of Debezium, not a flat one: set envelope.format: debezium",
            )
            .when(misfit.isNotNull(), misfit)
            .when(~op.isin(*SOURCE_OPS), F.concat(F.lit("unknown __op "), quoted(op)))
            .when(no_table, "no table: neither __table nor a topic")
            .otherwise(order)
        )

    def _event(self) -> list[Column]:
        ordering, source, op, body = self._ordering, F.col("source"), F.col("op"), F.col("body")
        placeholder = Placeholder(self._envelope.placeholder or DEFAULT)
        change, by = F.col("kind").isin("change", "truncate"), ordering.by
        snapshot = F.col("snapshot")
        origin = {name: F.col(name) for name in ("topic", "partition", "offset")}
        seq = sequence(source, snapshot=snapshot, by=by, epochs=ordering.epochs, **origin)
        # Without the last commit's LSN beside it, an LSN may go back even though nothing was restored.
        alone = source["lsn"].isNotNull() & source["sequence"].isNull()
        row = F.when(op != Op.DELETE, body)
        return event(
            **{part: F.col("name")[part] for part in ("database", "schema", "table")},
            op=F.when((F.col("kind") != "bad") | ~_is_guessed(), op),
            key_text=F.col("key_text"),
            row_text=row,
            # A flat record does not show its row's former key: without a key of its own, it changes none.
            before_text=F.when((op == Op.DELETE) | ((op == Op.UPDATE) & F.col("key").isNull()), body),
            new_key_text=header("__debezium.newkey"),
            old_key_text=F.when(op == Op.CREATE, header("__debezium.oldkey")),
            **{
                name: F.col(name) for name in ("schema_text", "schema_id", "key_schema_text", "key_schema_id")
            },
            seq=F.when(change, seq),
            identity=F.when(change, identity(source, by)),
            unanchored=F.coalesce(change & unanchored(source, snapshot, by), F.lit(False)),
            gaps=F.coalesce(may_have_gaps(row, placeholder), F.lit(False)),
            full_before=F.coalesce(source["connector"] != "postgresql", F.lit(False)) | F.col("key").isNull(),
            event_time=F.timestamp_micros(source_micros(source, F.col("clock"))),
            stream=F.when(change & ~alone, stream(source, by)),
            server=server(source),
            source_time=source_micros(source),
        )


def _unwrapped_schema(text: str) -> str:
    """Return a row's schema document as records have it; that of a key is returned unchanged."""
    begin, end = _WRAPPED
    return "{" + text.removeprefix(begin).removesuffix(end) if text.startswith(begin) else text


def _headers() -> Column:
    """Return what ``add.headers`` added, as the JSON object that ``add.fields`` would create (STRING)."""
    ours = F.filter(
        "headers", lambda each: each["key"].rlike(r"^__[A-Za-z0-9_]+$") & each["value"].isNotNull()
    )
    members = F.transform(
        ours,
        lambda each: F.concat(
            F.lit('"'), each["key"], F.lit('":'), _json(_unwrapped(each["value"].cast("string")))
        ),
    )
    return F.when(F.size(ours) > 0, F.concat(F.lit("{"), F.array_join(members, ","), F.lit("}")))


def _unwrapped(text: Column) -> Column:
    """Return a header's text, without the schema if JsonConverter wrote it with one."""
    payload = F.get_json_object(text, "$.payload")
    return F.when(is_object(text) & text.contains('"schema"') & payload.isNotNull(), payload).otherwise(text)


def _json(text: Column) -> Column:
    """Return a header's text as JSON: numbers, booleans, null and quoted text as is, other text quoted."""
    encoded = F.to_json(F.array(text))
    plain = text.rlike(_JSON)
    return F.when(plain, text).otherwise(F.substr(encoded, F.lit(2), F.length(encoded) - 2))


def _misfit() -> Column:
    """Return why what the transformation added cannot be read, naming the member or the header (STRING)."""
    in_body, in_headers = (F.col(f"{each}._corrupt").isNotNull() for each in ("m", "h"))
    kinds = dict.fromkeys(INTEGERS, "BIGINT")
    name = F.coalesce(
        F.when(in_body, misfit(F.col("body"), kinds)),
        F.when(in_headers, F.concat(F.lit("the header "), misfit(F.col("added"), kinds))),
        F.lit("a field that begins with __"),
    )
    return F.when(in_body | in_headers, F.concat(name, F.lit(f" {OTHER_TYPE}")))


def _of(name: str) -> Column:
    return F.coalesce(F.col(f"m.it.{name}"), F.col(f"h.it.{name}"))


def _field(name: str) -> Column:
    """Return a field of the source block, however it was added."""
    plain = [_of(f"__{name}")] if name in _PLAIN else []
    return F.coalesce(*plain, _of(f"__source_{name}"))


def _meta() -> list[Column]:
    """Return ``s`` (the source block's fields), ``said`` (the op), ``gone`` and the connector's ``clock``."""
    return [
        F.struct(*[_field(name).alias(name) for name in _SOURCE]).alias("s"),
        _of("__op").alias("said"),
        F.coalesce(F.lower(_of("__deleted")) == "true", F.lit(False)).alias("gone"),
        _of("__ts_ms").alias("clock"),
    ]


def _parts() -> list[Column]:
    """Return whether a record is no row change or a whole event, whether a snapshot read it, and its table.

    What the transformation added shows that a record is a row.
    """
    body, members, key, topic, named = map(F.col, ("body", "members", "key_text", "topic", "named"))
    added = F.array(*map(F.lit, sorted(_NAMES)))
    flat = F.arrays_overlap("members", added) | F.arrays_overlap("names", added)
    own = F.col("value").isNotNull() & ~flat & changes_no_row(body, members, key, topic, named)
    snapshot = F.lower(F.col("s.snapshot"))
    return [
        F.coalesce(own, F.lit(False)).alias("other"),
        (~flat & is_envelope(body, members, key)).alias("envelope"),
        F.coalesce(~snapshot.isin("false", "null", ""), F.lit(False)).alias("read_in_snapshot"),
        _name().alias("name"),
    ]


def _name() -> Column:
    """Return the table's name from the record's fields.

    Parts that they leave out come from the topic if it ends with the table.
    """
    by_topic = named(F.col("topic"))
    given = {"database": F.col("s.db"), "schema": F.col("s.schema"), "table": F.col("s.table")}
    none = given["database"].isNull() & given["schema"].isNull()
    same = given["table"].isNull() | (given["table"] == by_topic["table"])
    parts = {
        part: F.when(none & same, by_topic[part]).otherwise(given[part]) for part in ("database", "schema")
    }
    table = F.coalesce(given["table"], by_topic["table"])
    return F.struct(*[each.alias(part) for part, each in parts.items()], table.alias("table"))


def _is_guessed() -> Column:
    """Return whether a bad record's table may be wrong, because what it says could not be read (BOOLEAN).

    The topic then names the table, although other records of the topic may name it otherwise.
    """
    misfits = F.col("m._corrupt").isNotNull() | F.col("h._corrupt").isNotNull()
    plain = F.col("value").isNull() | (is_object(F.col("body")) & ~F.col("envelope"))
    read = F.col("problem").isNull() & ~misfits & plain & ~(F.col("value_fails") & F.col("value").isNotNull())
    return F.col("s.table").isNull() & ~F.coalesce(read, F.lit(False))


def _source() -> Column:
    """Return the source block as far as it was added.

    The names of position fields identify the connector. They also show that a record without a position must
    not be ordered by its time.
    """
    connector = F.col("s.connector")
    for kind, fields in _POSITIONS.items():
        added = F.lit(False)
        for field in fields:
            for name in (f"__{field}", f"__source_{field}"):
                added = added | F.array_contains("members", name) | F.array_contains("names", name)
        connector = F.coalesce(connector, F.when(added, kind))
    given = {name: F.col("s")[name] for name in _SOURCE if name not in ("connector", "name")}
    return source_block(connector=connector, name=F.coalesce("s.name", F.lit("debezium")), **given)
