"""Custom JSON records: the manifest says where their parts are (``envelope.fields``, ``envelope.opMap``).

A part that is not configured does not exist: without ``op``, each record is the newest state of its row;
without ``after``, the record itself is the row; without ``key``, the key is Kafka's; without ``table``, the
topic names the table.

A record may embed its schema as JsonConverter does (``{"schema": ..., "payload": ...}``). Paths then lead
into the payload, and the row and the key have the types that the schema declares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakemirror.api.source import CustomFields, Envelope
from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.parse.envelopes.base import (
    HALF_CHARACTER,
    KEY,
    LIMITS,
    Classifier,
    as_sent,
    document,
    event,
    exact,
    former_key,
    has_half_character,
    has_schema,
    is_object,
    key_text,
    kind_of,
    named,
    overlaid,
    plain_document,
    quoted,
    schema,
    source_block,
    unreadable,
    unsplit,
    values_of,
)
from lakemirror.driver.parse.order import GIVEN
from lakemirror.driver.parse.values import temporal
from lakemirror.driver.parse.values.connect import at_path, is_at_path, name_at
from lakemirror.driver.parse.values.texts import UNKNOWN
from lakemirror.driver.read.base import RAW_NAMES
from lakemirror.driver.sequence import misplaced, sequence, source_micros, unplaced

OPS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("c", "i", "create", "insert"), Op.CREATE),
    **dict.fromkeys(("u", "update"), Op.UPDATE),
    **dict.fromkeys(("d", "delete"), Op.DELETE),
    **dict.fromkeys(("r", "read", "load"), Op.READ),
    **dict.fromkeys(("t", "truncate"), Op.TRUNCATE),
}
"""The words for ops if the manifest has no ``opMap``; case is ignored."""

_IGNORED: Final = "ignore"

_OF_KEY: Final = 0x6B6579
"""Distinguishes the schema of a record's key from that of its row, which is embedded with it."""
_KEY_SCHEMA: Final = ("key_schema_text", "key_schema_id")
_RECORD: Final = '"record":'

_MICROS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("org.apache.kafka.connect.data.Date", "io.debezium.time.Date"), "86400000000"),
    **dict.fromkeys(("org.apache.kafka.connect.data.Timestamp", "io.debezium.time.Timestamp"), "1000"),
    "io.debezium.time.MicroTimestamp": "1",
    "io.debezium.time.NanoTimestamp": "0.001",
}
"""Microseconds per unit of a time, by the semantic name of its schema."""

_Tree = dict[str, Any]

_CALLED: Final = {"ts_us": "the timestamp", "ts_ms": "the timestamp"}

_NULL: Final = (
    "a null value deletes the row of its key, but nothing says when: set envelope.nullValue: ignore, or "
    "order all by Kafka's offset, ordering.by: offset, with a new spec.spark.resetToken and another "
    "spec.target"
)


class Custom(Classifier):
    """Custom records: raw records -> classified change events.

    The order is that of ``timestamp``, and of the offset at equal times; without ``timestamp``, it is that of
    the offset. A before image may have all columns or only those that changed; the others are as after the
    change.
    """

    writing = UNKNOWN

    @property
    def _fields(self) -> CustomFields:
        assert self._envelope.fields is not None  # the model requires it
        return self._envelope.fields

    @classmethod
    def is_metadata(cls, envelope: Envelope, name: str) -> bool:
        """Return whether a member is the op, before image or table of a record that is itself the row.

        The key and the time are also columns of the row.
        """
        fields = envelope.fields
        if fields is None or fields.after is not None:
            return False
        return name in (fields.op, fields.before, fields.table)

    def _of_value(self, identity: int, text: str) -> dict[int, str]:
        image, end = self._image
        documents = {identity: image + text + end}
        if self._fields.key is not None:
            before, after = at_path(self._fields.key.split("."))
            documents[identity ^ _OF_KEY] = before + text + after
        return documents

    def steps(self, known: Mapping[int, str]) -> list[list[Column]]:
        found, parts = _parsed(self._paths())
        return [
            *self._encoding.split(("value", "key"), self._embedded(known)),
            [F.col("*"), as_sent(F.col("value").cast("string")).alias("sent")],
            [
                F.col("*"),
                plain_document(F.coalesce("value_payload", "sent")).alias("v"),
                unsplit("value", KEY).alias("w"),
                unsplit("key", KEY).alias("k"),
            ],
            [*map(F.col, (*RAW_NAMES, "v", "value_payload", "key_payload")), *self._body(known)],
            [F.col("*"), *(document(F.col("body"), form).alias(name) for name, form in found.items())],
            [
                F.col("*"),
                *(F.col(path).alias(f"f_{part}") for part, path in parts.items()),
                _fit(found).alias("fits"),
            ],
            [F.col("*"), *self._read()],
            [F.col("*"), *self._keys()],
            [F.col("*"), self._reason().alias("reason")],
            [F.col("*"), kind_of(F.col("reason"), F.col("said") == _IGNORED, F.col("op")).alias("kind")],
            self._event(),
        ]

    def _embedded(self, known: Mapping[int, str]) -> dict[int, str]:
        """Return the documents as records have them: whole, not of a row or a key inside a record."""
        found = {}
        for identity, text in known.items():
            if text.startswith(self._image[0]):
                found[identity] = _of_record(text)
            elif not is_at_path(text):
                found[identity] = text
        return found

    def _paths(self) -> dict[str, str]:
        """Return the paths by part.

        These are the paths of the fields, and those of the values that order changes (``order_0`` and so on).
        A value of the row is also in its before image (``former_0``).
        """
        fields, paths = self._fields, self._fields.model_dump(exclude_none=True)
        for i, path in enumerate(self._ordering.columns or ()):
            paths[f"order_{i}"] = path
            if fields.before and fields.after and path.startswith(f"{fields.after}."):
                paths[f"former_{i}"] = f"{fields.before}{path.removeprefix(fields.after)}"
        return paths

    def _ordered_by(self) -> list[Column]:
        """Return the values that order a change; a delete without them has those of its before image."""
        names, paths = self._ordering.columns or (), self._paths()
        values = [
            F.coalesce(F.col(f"f_order_{i}"), F.when(F.col("op") == Op.DELETE, F.col(f"f_former_{i}")))
            if f"former_{i}" in paths
            else F.col(f"f_order_{i}")
            for i in range(len(names))
        ]
        given = [value.alias(name) for name, value in zip(names, values, strict=True)]
        return [F.struct(*given).alias(GIVEN)] if given else []

    @cached_property
    def _image(self) -> tuple[str, str]:
        """Prefix and suffix that turn a record's schema into that of its row."""
        return at_path(self._fields.after.split(".") if self._fields.after else ())

    def _body(self, known: Mapping[int, str]) -> list[Column]:
        """Return ``body``, ``record_key``, and the schemas of row and key.

        ``body`` is the record without its schema, ``record_key`` is Kafka's key without its schema.
        """
        into_wrapper = any(path.split(".")[0] in ("schema", "payload") for path in self._paths().values())
        both = F.array_sort(F.json_object_keys("v.it")) == F.array(F.lit("payload"), F.lit("schema"))
        wrapped = F.lit(False) if into_wrapper else has_schema(F.col("w.it")) & both
        payload = F.lit(None).cast("string") if into_wrapper else F.col("value_payload")
        text, identity = schema("value", F.when(wrapped, F.col("w.it.schema")), known)
        time = self._fields.timestamp
        times = [] if time is None else [_time_name(time.split("."), text, identity, known)]
        own = schema("key", F.when(has_schema(F.col("k.it")), F.col("k.it.schema")), known)
        key_schema: tuple[Column, ...] = own
        if self._fields.key is not None:
            key = at_path(self._fields.key.split("."))
            named_key = (_framed(key, text), identity.bitwiseXOR(F.lit(_OF_KEY)))
            null = F.col("value").isNull()
            key_schema = tuple(
                F.when(null, mine).otherwise(other) for mine, other in zip(own, named_key, strict=True)
            )
        return [
            F.coalesce(payload, F.when(wrapped, F.col("w.it.payload")), _whole()).alias("body"),
            key_text().alias("record_key"),
            _framed(self._image, text).alias("schema_text"),
            identity.alias("schema_id"),
            *(each.alias(name) for each, name in zip(key_schema, _KEY_SCHEMA, strict=True)),
            *times,
        ]

    def _part(self, name: str) -> Column | None:
        return None if getattr(self._fields, name) is None else F.col(f"f_{name}")

    def _exact(self, name: str) -> Column | None:
        """Return an image with all digits of its numbers."""
        path, read = getattr(self._fields, name), self._part(name)
        return None if read is None else exact(F.col("body"), path.split("."), read)

    def _read(self) -> list[Column]:
        """Return ``op``, the images, the table's name and the time."""
        null, word = F.col("value").isNull(), self._part("op")
        if word is None:
            said = F.lit(Op.UPDATE)
        elif self._envelope.op_map is None:
            said = _word(F.lower(word), OPS)
        else:
            said = _word(F.coalesce(word, F.lit("")), self._envelope.op_map)
        deletes = F.col("key").isNotNull() & F.lit(self._envelope.null_value != "ignore")
        image, before, table = self._exact("after"), self._exact("before"), self._part("table")
        after = F.col("body") if image is None else image
        name = named(F.col("topic") if table is None else table)
        return [
            F.when(null, F.when(deletes, Op.DELETE)).otherwise(said).alias("said"),
            F.when(null, F.when(deletes, Op.DELETE)).otherwise(F.nullif(said, F.lit(_IGNORED))).alias("op"),
            after.alias("after"),
            (F.lit(None).cast("string") if before is None else before).alias("before"),
            F.struct(*[part.alias(each) for each, part in name.items()]).alias("name"),
            source_block(ts_us=self._micros()).alias("source"),
        ]

    def _micros(self) -> Column:
        """Return the time in microseconds, from ISO text or a number (BIGINT).

        Text without a zone is UTC. The unit of a number is the one that its schema declares, or else seconds,
        milli-, micro- or nanoseconds, depending on its size.
        """
        text = self._part("timestamp")
        if text is None:
            return F.lit(None).cast("bigint")
        number = temporal.number_of(text)
        declared = [F.when(F.col("time_name") == name, F.lit(micros)) for name, micros in _MICROS.items()]
        factor = F.coalesce(*declared, temporal.per_unit(number))
        whole = F.floor(temporal.scaled(number, factor)).try_cast("bigint")
        moment = F.unix_micros(temporal.instant_of(text))
        return F.when(number.isNotNull(), whole).otherwise(moment)

    def _keys(self) -> list[Column]:
        """Return ``key_text``, ``old_key_text`` and ``key_kind``.

        ``key_text`` is the key as an object of its columns, ``old_key_text`` the key before an update that
        changed it, and ``key_kind`` the type of the key that the manifest names.
        """
        named_key, null = self._part("key"), F.col("value").isNull()
        record = F.col("record_key")
        recorded = F.when(F.json_object_keys(record).isNotNull(), record)
        kind = F.lit(None).cast("string")
        if named_key is None:
            key = recorded
        else:
            kind = F.schema_of_variant(named_key)
            name = F.lit((self._fields.key or "").rpartition(".")[2])
            one = F.to_json(F.create_map(name, named_key))
            of_value = F.when(kind.startswith("OBJECT"), F.to_json(named_key)).when(
                ~kind.startswith("ARRAY") & (kind != "VOID"), one
            )
            key = F.when(null, recorded).otherwise(of_value)
        former = F.when(
            (F.col("op") == Op.UPDATE) & is_object(F.col("before")) & is_object(key),
            former_key(key, F.col("before")),
        )
        return [
            key.alias("key_text"),
            (former if self._fields.before is not None else F.lit(None).cast("string")).alias("old_key_text"),
            kind.alias("key_kind"),
        ]

    def _reason(self) -> Column:
        by, op, source, null = self._ordering.by, F.col("op"), F.col("source"), F.col("value").isNull()
        fields, after, before = self._fields, F.col("after"), F.col("before")
        nowhere = F.coalesce(F.col("name.table"), F.lit("")) == ""
        no_table = f"no table: the record has no {fields.table}" if fields.table else "no table: no topic"
        of_null = (
            F.when(op.isNull(), None)
            .when(has_half_character(F.col("key").cast("string")), f"the key {HALF_CHARACTER}")
            .when(F.col("key_text").isNull(), "a null value, and the key is not a JSON object")
            .when(
                F.lit(fields.table is not None),
                f"a null value names no table (it stands in {fields.table}): set envelope.nullValue: ignore",
            )
            .when(F.lit(by == "columns" or (by != "offset" and fields.timestamp is not None)), _NULL)
            .when(nowhere, no_table)
            .otherwise(unplaced(source, F.col("offset"), by))
        )
        reason = (
            F.when(F.col("problem").isNotNull(), F.col("problem"))
            .when(null, of_null)
            .when(unreadable(split=True, key=False).isNotNull(), unreadable(split=True, key=False))
            .when(
                F.lit(fields.key is None) & has_half_character(F.col("key").cast("string")),
                f"the key {HALF_CHARACTER}",
            )
            .when(
                F.col("body").isNull() | F.col("v._corrupt").isNotNull() | ~is_object(F.col("body")),
                f"the value is not a JSON object {LIMITS}",
            )
        )
        if fields.op is not None:
            word = F.col("f_op")
            mapped = self._envelope.op_map is not None
            remedy = "it is not in envelope.opMap" if mapped else "set envelope.opMap"
            reason = (
                reason.when(
                    word.isNull() & F.col("said").isNull(), f"the record has no op: {fields.op} is missing"
                )
                .when(F.col("said") == _IGNORED, None)
                .when(
                    op.isNull(),
                    F.concat(F.lit("unknown op "), quoted(word), F.lit(f": {remedy}")),
                )
            )
        image = fields.after or "the record"
        reason = reason.when(nowhere, no_table)
        if fields.after is not None:
            reason = reason.when(
                op.isin(*WITH_ROW) & after.isNull(),
                F.concat(F.lit("op "), op, F.lit(f" without {image}")),
            )
        reason = (
            reason.when(~is_object(after), f"{image} is not a JSON object")
            .when(~is_object(before), f"{fields.before} is not a JSON object")
            .when(~F.col("fits"), "a part that a path into the record leads through is not an object")
        )
        if fields.key is not None:
            reason = reason.when(
                (op != Op.TRUNCATE) & F.col("key_text").isNull(),
                F.when(
                    F.col("key_kind").startswith("ARRAY"), f"{fields.key} is a list, which names no columns"
                ).otherwise(f"the record has no key: {fields.key} is missing"),
            )
        reason = reason.when(
            (op == Op.DELETE) & F.col("key_text").isNull() & after.isNull() & before.isNull(),
            "a delete with neither key nor row",
        )
        if fields.timestamp is not None and by not in ("offset", "columns"):
            text = F.col("f_timestamp")
            reason = reason.when(
                text.isNull(), f"the record has no time: {fields.timestamp} is missing"
            ).when(
                source_micros(source).isNull(),
                F.concat(F.lit(f"{fields.timestamp} is not a time: "), quoted(text)),
            )
        where = {"partition": F.col("partition"), "offset": F.col("offset")}
        return reason.otherwise(
            F.coalesce(
                misplaced(source, by=by, called=_CALLED, **where), unplaced(source, F.col("offset"), by)
            )
        )

    def _event(self) -> list[Column]:
        ordering, source, op = self._ordering, F.col("source"), F.col("op")
        change = F.col("kind").isin("change", "truncate")
        origin = {name: F.col(name) for name in ("topic", "partition", "offset")}
        seq = sequence(source, snapshot=op == Op.READ, by=ordering.by, epochs=ordering.epochs, **origin)
        after, before = F.col("after"), F.col("before")
        whole = F.when(
            after.isNotNull() & before.isNotNull(),
            F.to_json(overlaid(values_of(after), values_of(before))),
        ).otherwise(F.coalesce(before, after))
        columns = event(
            **{part: F.col("name")[part] for part in ("database", "schema", "table")},
            op=op,
            key_text=F.col("key_text"),
            row_text=F.when(op.isin(*WITH_ROW), after),
            before_text=F.when(
                change, F.when(op == Op.DELETE, F.coalesce(before, after)).when(op == Op.UPDATE, whole)
            ),
            old_key_text=F.when(change, F.col("old_key_text")),
            seq=F.when(change, seq),
            event_time=F.timestamp_micros(source_micros(source)),
            source_time=source_micros(source),
            **{name: F.col(name) for name in ("schema_text", "schema_id", *_KEY_SCHEMA)},
        )
        return [*columns, *self._ordered_by()]


def _whole() -> Column:
    """Return a record without a schema."""
    return exact(F.col("sent"), (), F.col("v.it"))


def _time_name(path: Sequence[str], text: Column, identity: Column, known: Mapping[int, str]) -> Column:
    """Return ``time_name``, the semantic name of the schema of the value at ``path`` (STRING).

    It comes from the ``text`` of the record's schema, or from the schema that is ``known`` by its id. Null if
    the schema has no name.
    """
    names = {each: name_at(whole, path) for each, whole in known.items()}
    form = "field: STRING, name: STRING"
    for _ in path[1:]:
        form = f"field: STRING, name: STRING, fields: ARRAY<STRUCT<{form}>>"
    found = F.from_json(text, f"STRUCT<fields: ARRAY<STRUCT<{form}>>>")
    for name in path:
        found = F.get(F.filter(found["fields"], partial(_is_field, name)), F.lit(0))
    by_id = [F.when(identity == each, F.lit(name)) for each, name in names.items() if name is not None]
    return F.coalesce(found["name"], *by_id).alias("time_name")


def _is_field(name: str, field: Column) -> Column:
    return field["field"] == name


def _of_record(text: str) -> str:
    """Return a record's schema, extracted from the document of its row."""
    return text[text.index(_RECORD) + len(_RECORD) : -1]


def _framed(frame: tuple[str, str], text: Column) -> Column:
    return F.concat(F.lit(frame[0]), text, F.lit(frame[1]))


def _word(word: Column, ops: Mapping[str, str]) -> Column:
    return F.coalesce(*[F.when(word == each, op) for each, op in ops.items()])


def _parsed(paths: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the forms in which to read the value, by name, and the column that then holds each part.

    A path that leads into the value at another path needs a form of its own, because that value is read as
    text.
    """
    trees: list[_Tree] = []
    found = {}
    for part, path in paths.items():
        kind = "VARIANT" if part == "key" or part.startswith(("order_", "former_")) else "STRING"
        names = path.split(".")
        number = next((i for i, tree in enumerate(trees) if _fits_in(tree, names, kind)), len(trees))
        if number == len(trees):
            trees.append({})
        _add(trees[number], names, kind)
        found[part] = ".".join((f"d{number}", "it", *(f"`{name.replace('`', '``')}`" for name in names)))
    return {f"d{number}": _form(tree) for number, tree in enumerate(trees)}, found


def _fits_in(tree: _Tree, names: list[str], kind: str) -> bool:
    first, rest = names[0], names[1:]
    alike = [name for name in tree if name.lower() == first.lower()]
    if alike != [first]:
        return not alike
    inner = tree[first]
    if isinstance(inner, dict):
        return bool(rest) and _fits_in(inner, rest, kind)
    return not rest and inner == kind


def _add(tree: _Tree, names: list[str], kind: str) -> None:
    if len(names) == 1:
        tree[names[0]] = kind
    else:
        _add(tree.setdefault(names[0], {}), names[1:], kind)


def _form(tree: _Tree) -> str:
    parts = []
    for name, inner in tree.items():
        kind = f"STRUCT<{_form(inner)}>" if isinstance(inner, dict) else inner
        parts.append(f"`{name.replace('`', '``')}`: {kind}")
    return ", ".join(parts)


def _fit(forms: Mapping[str, str]) -> Column:
    """Return whether the value could be read in all forms (BOOLEAN)."""
    fits = F.lit(True)
    for name in forms:
        fits = fits & F.col(f"{name}._corrupt").isNull()
    return fits
