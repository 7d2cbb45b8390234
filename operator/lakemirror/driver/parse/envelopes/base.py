"""What all envelopes share: the interface, the columns of a classified event, and the problems of records.

An envelope is a module with a subclass of `Classifier`; `chooser` selects it by the manifest's
``envelope.format``. docs/envelopes.md describes how to add one.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import ClassVar, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

from lakemirror.api.source import Envelope
from lakemirror.api.spec import Ordering
from lakemirror.driver import shapes
from lakemirror.driver.codes import Op
from lakemirror.driver.parse import lengths, order
from lakemirror.driver.parse.encodings import Encoding, JsonEncoding
from lakemirror.driver.parse.envelopes.embedded import schema_id, unless_known
from lakemirror.driver.parse.values.fit import is_exact
from lakemirror.driver.parse.values.placeholder import Placeholder
from lakemirror.driver.parse.values.texts import DEBEZIUM, Writing
from lakemirror.driver.rules.schemas import PLAIN
from lakemirror.driver.sequence import SOURCE
from lakemirror.driver.tables import delta

EVENT_COLUMNS: Final = (
    "kind, reason, database, schema, table, op, key_text, row_text, before_text, new_key_text, old_key_text, "
    "schema_text, schema_id, key_schema_text, key_schema_id, seq, identity, unanchored, gaps, partial, "
    "full_before, event_time, stream, server, source_time, topic, partition, offset, timestamp, file, row, "
    "raw_key, raw_value, raw_headers"
)
"""Columns of a classified event.

``kind`` is ``change`` (op c, u, d, r), ``truncate``, ``tombstone`` (Kafka's null payload), ``other``
(heartbeat, transaction metadata, schema change, logical message), or, with a ``reason``, ``bad``,
``no place`` (`lakemirror.driver.parse.order`) or ``not admitted`` (`lakemirror.driver.parse.lengths`).
The texts are JSON objects. ``schema_text`` is the embedded schema document; it is null if there is none or if
its ``schema_id`` is among the known ones.
An update with ``old_key_text`` changes its row's key on its own. A create with ``old_key_text`` is one half
of such a change, and the delete with ``new_key_text`` is the other half.
``identity`` belongs to the position (`lakemirror.driver.sequence.identity`).
``gaps`` says that a value may be the placeholder of one that the source did not send, ``partial`` that the
values of members that an update's row lacks are as before, and ``full_before`` that a before image has all
columns regardless of the table's replica identity.
``stream``, ``server`` and ``source_time`` (microseconds) show where positions start again
(`lakemirror.driver.profile.rewinds`); an event without ``stream`` says nothing about that.
``raw_*`` are set for bad records only. A bad record without ``op`` may have a guess for a table.
"""

PLACE: Final = ("topic", "partition", "offset", "timestamp", "file", "row")
"""The columns that locate a record in its source."""

LEVELS: Final = 100
CHARACTERS: Final = 20_000_000
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "_corrupt",
    "maxNestingDepth": str(LEVELS),
    "maxStringLen": str(CHARACTERS),
}
LIMITS: Final = f"(of at most {LEVELS} levels, with at most {CHARACTERS:,} characters in a text)"

KEY: Final = "schema STRING, payload STRING"
"""A key that may be wrapped with its schema."""

_DIGIT, _OF_NUMBER = "[0123456789]", "[0123456789.]"
"""Classes that Java looks up in a table. It asks about each part of ``[\\d.]`` in turn."""
_MANY_DIGITS: Final = (
    rf"{_DIGIT}(?<!{_DIGIT}{{2}})(?={_OF_NUMBER}{{16}}){_DIGIT}*+\.{_DIGIT}"  # more than 16, with a fraction
)
"""Matches a text that contains a number with more digits than a double holds.

It is tried once for each run of digits, so that its time is linear.
"""

_SUSPECT: Final = (
    rf"{_OF_NUMBER}(?<!{_OF_NUMBER}{{2}}){_OF_NUMBER}*+(?:(?<={_OF_NUMBER}{{39}})|"
    rf"(?<={_OF_NUMBER}{{16}})[eE]|(?<={_DIGIT})[eE][-+]?{_DIGIT}{{3}})"
)
"""Matches a text that may contain a number that neither 38 digits nor a double can hold.

It is tried once for each run of digits and points, at whose end it is decided.
"""
_NUMBER: Final = r"^-?\d+(\.\d+)?([eE][-+]?\d+)?$"

_SURROGATE: Final = r"\\u[dD][89a-fA-F]"
_PAIR_OF_SURROGATES: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
HALF_CHARACTER: Final = "has half of a surrogate pair, which is no character: correct it in the source"

_BARE_TIME: Final = r"([:,\[])(\d{4}-\d{2}-\d{2}(?:T[0-9:.]+Z)?|\d{2}:\d{2}:\d{2}[0-9.]*Z?)(?=[,}\]])"

_VALUES = "map<string,variant>"
_TYPES: Final = {
    "schema_id": "bigint",
    "key_schema_id": "bigint",
    "seq": "binary",
    "identity": "bigint",
    "event_time": "timestamp",
    "source_time": "bigint",
}


class Classifier(ABC):
    """Raw records -> classified change events, for one envelope.

    Building its expressions takes two thousand JVM calls, so they are rebuilt only when more schemas become
    known. ``keep_before`` keeps every before image; otherwise only those of deletes and of records without a
    key are kept. ``encoding`` is the encoding of records (default: JSON).

    ``writing`` is how records of the envelope write values if they have no schema.
    """

    writing: ClassVar[Writing] = DEBEZIUM

    def __init__(
        self,
        envelope: Envelope,
        ordering: Ordering,
        *,
        keep_before: bool = False,
        encoding: Encoding | None = None,
    ) -> None:
        self._envelope, self._ordering, self._keep_before = envelope, ordering, keep_before
        self._encoding = encoding or JsonEncoding()
        self._known: tuple[frozenset[int], int] | None = None
        self._made: list[list[Column]] = []
        self._fetched: tuple[int, dict[int, str]] = (0, {})

    def classify(self, raw: DataFrame, known: Mapping[int, str] = MappingProxyType({})) -> DataFrame:
        """Classify RAW records into events with the columns of `EVENT_COLUMNS`.

        ``known`` are the schema documents that the caller has, by id.
        """
        given = frozenset(known), self._encoding.revision
        if given != self._known:
            self._made = [*self.steps(known), *self._order(known), lengths.step(EVENT_COLUMNS.split(", "))]
            self._known = given
        return reduce(lambda frame, columns: frame.select(*columns), self._made, raw)

    def learn(self, unknown: Collection[str]) -> None:
        """Fetch schemas that records name (see `Encoding.learn`)."""
        self._encoding.learn(unknown)

    def documents(self) -> dict[int, str]:
        """Return the schema documents that events have beside those that they contain, by id.

        They include those that other queries with the same encoding have fetched.
        """
        if self._fetched[0] != self._encoding.revision:
            found = self._encoding.documents
            documents = dict(found.keys)
            for identity, text in found.values.items():
                documents |= self._of_value(identity, text)
            self._fetched = self._encoding.revision, documents
        return self._fetched[1]

    def ask_again(self, *, at_once: bool) -> None:
        """Ask again for schemas that did not exist (see `Encoding.ask_again`)."""
        self._encoding.ask_again(at_once=at_once)

    def _of_value(self, identity: int, text: str) -> dict[int, str]:
        """Return the documents, by id, that events have for the schema of a value."""
        return {identity: text}

    def _order(self, known: Mapping[int, str]) -> list[list[Column]]:
        return order.steps(self._envelope, self._ordering, known, EVENT_COLUMNS.split(", "))

    @abstractmethod
    def steps(self, known: Mapping[int, str]) -> list[list[Column]]:
        """Return the columns to select from RAW records, one list after the other.

        The last list is `EVENT_COLUMNS`, plus `lakemirror.driver.parse.order.GIVEN` for custom records that
        are ordered by columns.
        """

    @classmethod
    def is_metadata(cls, envelope: Envelope, name: str) -> bool:
        """Return whether a member of a row's JSON object belongs to the envelope and is not a column."""
        return False


# -- reading JSON -------------------------------------------------------------------------------------


def document(text: Column, form: str) -> Column:
    """Parse a text that consists of a single object, as ``it``.

    The text is wrapped in another object, so that anything after its object is an error, too.
    """
    return F.from_json(
        F.concat(F.lit('{"it":'), text, F.lit("}")), f"it STRUCT<{form}>, _corrupt STRING", _OPTIONS
    )


def plain_document(text: Column) -> Column:
    """Parse a text that consists of a single value, as the text ``it``."""
    return F.from_json(F.concat(F.lit('{"it":'), text, F.lit("}")), "it STRING, _corrupt STRING", _OPTIONS)


def misfit(text: Column, names: Mapping[str, str], path: Sequence[str] = ()) -> Column:
    """Return the first member of a JSON object that has another type than it should (STRING), or null.

    ``names`` are types as `schema_of_variant` names them, by member. The object is at a ``path`` in the text.
    The path is part of the result.
    """
    form = ", ".join(f"{delta.quoted(name)} VARIANT" for name in names)
    for part in reversed(path):
        form = f"{delta.quoted(part)} STRUCT<{form}>"
    it = document(text, form)["it"]
    for part in path:
        it = it[part]
    found = []
    for name, kind in names.items():
        is_kind = F.startswith(F.schema_of_variant(it[name]), F.lit(kind))
        wrong = ~is_kind & ~F.is_variant_null(it[name])
        found.append(F.when(wrong, ".".join((*path, name))))
    return F.coalesce(*found)


def has_many_digits(text: Column) -> Column:
    """Return whether JSON may have a number with more digits than a double holds (BOOLEAN)."""
    return text.rlike(_MANY_DIGITS)


def exact(text: Column, path: Sequence[str], read: Column, many_digits: Column | None = None) -> Column:
    """Return the value at a path in a JSON text, with all digits of its numbers (STRING).

    ``read`` is that value as read by `document`. There, ``from_json`` treats numbers with a fraction as
    doubles, even in values that it extracts as text. ``many_digits`` is `has_many_digits` of the text, if
    that is known: asking takes as long as reading the text.
    """
    form = _VALUES
    for name in reversed(path):
        form = f"STRUCT<{delta.quoted(name)}: {form}>"
    whole = F.from_json(text, form, _OPTIONS)
    for name in path:
        whole = whole[name]
    asked = has_many_digits(text) if many_digits is None else many_digits
    return F.when(asked, F.coalesce(F.to_json(whole), read)).otherwise(read)


def as_sent(text: Column) -> Column:
    """Return JSON in which each number that Spark's parsers would change is a text instead.

    They read up to 38 digits exactly, and other numbers as doubles. A double is exact if its shortest
    spelling has the same digits. Documents with a schema are left alone: it says what their numbers are.
    """
    changed = ~text.startswith('{"schema":{') & text.rlike(_SUSPECT)
    return F.when(changed, _with_texts(text)).otherwise(text)


def _with_texts(text: Column) -> Column:
    """Quote the numbers of a JSON text that no type of Spark's parsers holds.

    The text is split at its quotes, so that each second part is outside of strings. Control characters, which
    no valid JSON contains, stand for escaped backslashes and quotes meanwhile.
    """
    plain = F.replace(F.replace(text, F.lit("\\\\"), F.lit("\x01")), F.lit('\\"'), F.lit("\x02"))
    parts = F.transform(
        F.split(plain, '"'), lambda part, i: F.when(i % 2 == 0, _quoted_numbers(part)).otherwise(part)
    )
    joined = F.array_join(parts, '"')
    return F.replace(F.replace(joined, F.lit("\x02"), F.lit('\\"')), F.lit("\x01"), F.lit("\\\\"))


def _quoted_numbers(part: Column) -> Column:
    def quoted(token: Column) -> Column:
        few = ~F.lower(token).contains("e") & (F.length(F.translate(token, "-.", "")) <= 38)
        exact = few | is_exact(token, shapes.number(token, "double"), DoubleType())
        return F.when(token.rlike(_NUMBER) & ~exact, F.concat(F.lit('"'), token, F.lit('"'))).otherwise(token)

    tokens = F.split(part, r"(?<=[,:\[\]{}\s])|(?=[,:\[\]{}\s])")
    return F.when(part.rlike(_SUSPECT), F.array_join(F.transform(tokens, quoted), "")).otherwise(part)


def has_half_character(text: Column) -> Column:
    r"""Return whether JSON has an escape such as ``\ud83d`` without its other half (BOOLEAN).

    Spark reads each of them as ``?``, so that different texts would become equal.
    """
    escapes = F.replace(text, F.lit("\\\\"), F.lit(""))
    alone = F.regexp_replace(escapes, _PAIR_OF_SURROGATES, "").rlike(_SURROGATE)
    return (text.contains("\\ud") | text.contains("\\uD")) & alone


def is_object(text: Column) -> Column:
    """Return whether JSON, as printed by Spark, is an object (BOOLEAN); null if there is no JSON."""
    return text.startswith("{")


def values_of(text: Column) -> Column:
    """Return the members of a JSON object (MAP<STRING, VARIANT>)."""
    return F.from_json(text, _VALUES)


def overlaid(values: Column, changed: Column) -> Column:
    """Return ``values`` with those that are in ``changed`` replaced by the value there (MAP)."""
    return F.transform_values(
        values, lambda name, value: F.when(F.map_contains_key(changed, name), changed[name]).otherwise(value)
    )


def former_key(key_text: Column, before_text: Column) -> Column:
    """Return the key that an update's row had before; null if the key is the same.

    The before image has either all columns or those that changed.
    """
    values = values_of(key_text)
    names = F.json_object_keys(before_text)
    former = F.to_json(overlaid(values, values_of(before_text)))
    touched = F.exists(F.json_object_keys(key_text), lambda name: F.array_contains(names, name))
    return F.when(touched, F.when(former != F.to_json(values), former))


def has_schema(wrapped: Column) -> Column:
    """Return whether a document is wrapped (BOOLEAN).

    The wrapped form is ``{"schema": {"type": "struct", ...}, "payload": ...}``.
    """
    return F.coalesce(wrapped["schema"].contains('"fields"') & wrapped["payload"].isNotNull(), F.lit(False))


def sent() -> Column:
    """Return the value of a record as `as_sent` has it, if `embedded.split` could not split it (STRING).

    It takes as long as reading the text, and is used several times, so that it is a column: ``sent``.
    """
    return F.when(F.col("value_payload").isNull(), as_sent(F.col("value").cast("string")))


def unsplit(name: str, form: str) -> Column:
    """Read a document as a whole if `embedded.split` could not split it. The value is that of `sent`."""
    text = F.col("sent") if name == "value" else as_sent(F.col(name).cast("string"))
    return F.when(F.col(f"{name}_payload").isNull(), document(text, form))


def key_text() -> Column:
    """Return the payload of a key that was split, or else read as `KEY` into ``k``.

    A key that is not wrapped is its own payload.
    """
    wrapped = F.when(has_schema(F.col("k.it")), F.col("k.it.payload"))
    plain = F.when(_has_plain_key(), F.to_json(F.array("k.it.payload")))
    return F.coalesce("key_payload", wrapped, plain, as_sent(F.col("key").cast("string")))


def _has_plain_key() -> Column:
    """Return whether JsonConverter wrapped a key that is no struct, such as one of a single column."""
    schema, text = F.col("k.it.schema"), F.col("key").cast("string")
    typed = schema.contains('"type"') & ~schema.contains('"fields"')
    names = F.array_sort(F.json_object_keys(text)) == F.array(F.lit("payload"), F.lit("schema"))
    return F.coalesce(typed & F.get_json_object(schema, "$.type").isin(*PLAIN) & names, F.lit(False))


def key_fails() -> Column:
    """Return whether a key that was split or read as for `key_text` is not a JSON object (BOOLEAN)."""
    split = F.when(F.col("key_payload").isNotNull(), F.json_object_keys("key_payload").isNull())
    return split.otherwise(F.col("k._corrupt").isNotNull() | _has_plain_key())


def schema(name: str, whole: Column, known: Mapping[int, str]) -> tuple[Column, Column]:
    """Return the text and id of the schema of a split document, or of one read ``whole``."""
    prefix = "" if name == "value" else "key_"
    read = F.when(whole.isNotNull(), schema_id(whole))
    return (
        unless_known(whole, read, known).alias(f"{prefix}schema_text"),
        F.coalesce(f"{name}_schema_id", read).alias(f"{prefix}schema_id"),
    )


def header(name: str) -> Column:
    """Return the unwrapped key in a header of a key change; it comes with its schema if record keys do."""
    first = F.get(F.filter("headers", lambda each: each["key"] == name), 0)["value"].cast("string")
    payload = F.get_json_object(first, "$.payload")
    # Connect's SimpleHeaderConverter writes dates and times without quotes.
    plain = F.when(F.json_object_keys(first).isNull(), F.regexp_replace(first, _BARE_TIME, '$1"$2"'))
    plain = F.coalesce(plain, first)
    return F.when(
        F.size(F.col("headers")) > 0,
        F.when(payload.isNotNull() & first.contains('"schema"'), payload).otherwise(plain),
    )


def may_have_gaps(text: Column, placeholder: Placeholder) -> Column:
    """Return whether JSON contains the placeholder in any of its forms (BOOLEAN).

    It may be text, base64 of its bytes, their hexadecimal form, or an array of its codes.
    """
    codes = ",".join(str(code) for code in placeholder.codes)
    texts = {json.dumps(each, ensure_ascii=False)[1:-1] for each in placeholder.spellings}
    forms = [*texts, placeholder.uuid, codes]
    found = text.contains(forms[0])
    for form in forms[1:]:
        found = found | text.contains(form)
    return found


# -- what is wrong with a record ----------------------------------------------------------------------


def unreadable(*, split: bool = False, key: bool = True) -> Column:
    """Return why a record of any envelope cannot be read, as the first branches of a longer condition.

    A record without a value has no reason. ``split`` says that payloads are split off if possible, ``key``
    that the key must be text.
    """
    texts = {name: F.col(name).cast("string") for name in ("value", "key")}
    if split:
        texts = {name: F.coalesce(f"{name}_payload", text) for name, text in texts.items()}
    return (
        F.when(F.col("problem").isNotNull(), F.col("problem"))
        .when(F.col("value").isNull(), None)
        .when(~F.is_valid_utf8(texts["value"]), "the value is not valid UTF-8")
        .when(F.lit(key) & ~F.is_valid_utf8(texts["key"]), "the key is not valid UTF-8")
        .when(has_half_character(texts["value"]), f"the value {HALF_CHARACTER}")
        .when(F.lit(key) & has_half_character(texts["key"]), f"the key {HALF_CHARACTER}")
    )


def quoted(text: Column) -> Column:
    """Quote a word from a record for a message, cut after 50 characters."""
    return F.concat(F.lit("'"), F.substring(text, 1, 50), F.lit("'"))


def kind_of(reason: Column, other: Column, op: Column) -> Column:
    """Return the ``kind`` of a record; without an op, it is a tombstone."""
    return (
        F.when(reason.isNotNull(), "bad")
        .when(F.coalesce(other, F.lit(False)), "other")
        .when(op.isNull(), "tombstone")
        .when(op == Op.TRUNCATE, "truncate")
        .otherwise("change")
    )


# -- events -------------------------------------------------------------------------------------------


def source_block(**fields: Column) -> Column:
    """Return a struct of type `lakemirror.driver.sequence.SOURCE`; fields that are not given are null."""
    declared = dict(part.split(": ") for part in SOURCE.removeprefix("STRUCT<").removesuffix(">").split(", "))
    return F.struct(
        *[fields.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in declared.items()]
    )


def event(**given: Column) -> list[Column]:
    """Return the columns of `EVENT_COLUMNS`.

    They come from the columns ``kind`` and ``reason``, the record's place and what is ``given``. The rest is
    null, except for the flags, which have defaults.
    """
    bad = F.col("kind") == "bad"
    columns = {
        "kind": F.col("kind"),
        "reason": F.col("reason"),
        "unanchored": F.lit(False),
        "gaps": F.lit(False),
        "partial": F.lit(False),
        "full_before": F.lit(True),
        **{name: F.col(name) for name in PLACE},
        **{f"raw_{name}": F.when(bad, F.col(name)) for name in ("key", "value", "headers")},
        **given,
    }
    return [
        columns.get(name, F.lit(None).cast(_TYPES.get(name, "string"))).alias(name)
        for name in EVENT_COLUMNS.split(", ")
    ]


def named(dotted: Column) -> dict[str, Column]:
    """Split a dotted name, such as a topic's, into database, schema and table.

    The table is the last part, the schema the part before it, and the database the rest; missing parts are
    null.
    """
    parts = F.split(dotted, r"\.")
    size = F.size(parts)
    rest = F.array_join(F.slice(parts, 1, F.greatest(size - 2, F.lit(0))), ".")
    return {
        "database": F.nullif(rest, F.lit("")),
        "schema": F.when(size > 1, F.nullif(F.element_at(parts, -2), F.lit(""))),
        "table": F.nullif(F.element_at(parts, -1), F.lit("")),
    }
