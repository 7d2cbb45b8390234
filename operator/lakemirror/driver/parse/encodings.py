"""Encodings of record keys and values: JSON, or Avro with a schema registry.

An Avro key or value is in Avro's binary form, and the record says which schema it was written with:

- before the value, as the byte 0 and Confluent's id in four bytes ("Wire format"; Apicurio's converters with
  ``apicurio.registry.as-confluent``, and by default from version 3 on), or the byte 1 and a GUID in sixteen;
- before the value, as the byte 0 and Apicurio's id in eight bytes (its converters by default before version
  3; recognized by the first four being 0, as in its own ``OptimisticFallbackIdHandler``);
- in a header: ``__value_schema_id`` with the same bytes as Confluent's prefix, ``apicurio.value.globalId`` or
  ``apicurio.value.contentId`` with a number in eight bytes, and likewise for keys.

Numbers are big-endian. Each value is read with the schema that it was written with, and converted to the JSON
that JsonConverter would have written. A key that names no schema is text, as written by StringConverter and
JsonConverter.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from lakemirror.api.spec import PipelineSpec
from lakemirror.driver.errors import cause_of
from lakemirror.driver.java import java_class
from lakemirror.driver.parse.envelopes import embedded
from lakemirror.driver.parse.values import avro
from lakemirror.driver.parse.values.avro import AvroSchema, NotAvro, by_place, place
from lakemirror.driver.read.base import RAW_NAMES
from lakemirror.driver.read.registry import (
    CONTENT_IDS,
    GLOBAL_IDS,
    GUIDS,
    IDS,
    NotAnsweredFor,
    NotOfThisRegistry,
    Reference,
    Registered,
    RegistryClient,
)
from lakemirror.driver.read.secrets import Secrets
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.rules.schemas import SchemaError

UNKNOWN_SCHEMA: Final = "the schema is not known yet"
"""Prefix of the ``problem`` of a record whose schema has to be fetched from the registry."""

_ASK_AGAIN_SECONDS: Final = 60.0
_MOST_ASKED: Final = 100
"""How many names of unknown schemas may be of no use in one batch: whoever writes records chooses them."""
_OF_ONE_USE: Final = 10
"""How many names of schemas that are there count as much as one that is of no use."""
_MOST_IN_PLAN: Final = 2000
"""How many schemas the plan of a batch may have. Beyond that, it gets those that the batch names."""
_WHOLE: Final = 2**31 - 1
_SPACES: Final = {IDS: 0, GUIDS: 0, GLOBAL_IDS: 1 << 61, CONTENT_IDS: 1 << 62}
_OF_KEYS: Final = 1 << 60
"""A schema id is a 64-bit number in which one bit each marks the kind of name, and keys."""


@dataclass(frozen=True)
class Documents:
    """Connect schemas of values and of keys, by id, as JsonConverter writes them."""

    values: dict[int, str] = field(default_factory=dict)
    keys: dict[int, str] = field(default_factory=dict)


class Encoding(Protocol):
    """The encoding of record keys and values."""

    @property
    def revision(self) -> int:
        """A number that grows whenever the result of `split` or the documents change."""

    @property
    def documents(self) -> Documents:
        """The documents of all schemas that were fetched so far, for any query."""

    def split(self, names: Sequence[str], known: Mapping[int, str]) -> list[list[Column]]:
        """Return the columns to select, list by list; see `lakemirror.driver.parse.envelopes.embedded`."""

    def learn(self, unknown: Collection[str]) -> None:
        """Fetch schemas that records name (see `unknown_schemas`)."""

    def ask_again(self, *, at_once: bool) -> None:
        """Ask again for schemas that did not exist: they may have been registered since.

        This is not done more often than once a minute, unless ``at_once`` is set.
        """


def encoding_of(spec: PipelineSpec, secrets: Secrets, watch: SourceWatch) -> Encoding:
    """Return the encoding of a pipeline's records; ``watch`` records whether its registry answers."""
    registry = spec.envelope.schema_registry
    if spec.envelope.encoding == "json" or registry is None:
        return JsonEncoding()
    fields = spec.envelope.fields
    needs_keys = fields is None or fields.key is None
    return AvroEncoding(RegistryClient(registry, secrets, watch).schema, registry.use_id, needs_keys)


def unknown_schemas(reason: str) -> set[str]:
    """Return the schemas that a reason with the prefix `UNKNOWN_SCHEMA` lists."""
    return set(reason.removeprefix(UNKNOWN_SCHEMA).removeprefix(": ").split(", "))


class JsonEncoding:
    """JSON documents, with or without an embedded schema."""

    revision = 0
    documents = Documents()

    def split(self, names: Sequence[str], known: Mapping[int, str]) -> list[list[Column]]:
        return embedded.split(names, known)

    def learn(self, unknown: Collection[str]) -> None:
        pass

    def ask_again(self, *, at_once: bool) -> None:
        pass


@dataclass(frozen=True)
class _Name:
    """One way in which a record may name the schema of its key or value.

    ``there`` says whether the record does. ``kind`` is the kind of the name, ``raw`` holds its bytes, and
    ``before`` is the number of bytes in front of the value.
    """

    there: Column
    kind: str
    raw: Column
    before: int = 0


class AvroEncoding:
    """Avro with a schema registry, which ``schema`` queries.

    ``use_id`` is what Apicurio's converters wrote before values (``apicurio.registry.use-id``). By default,
    four bytes are an id of Confluent's API, and eight a globalId. Without ``needs_keys``, the keys of records
    with a value are ignored.
    """

    def __init__(
        self,
        schema: Callable[[Reference], Registered | None],
        use_id: str | None = None,
        needs_keys: bool = True,
    ) -> None:
        self._ask, self._use_id = schema, f"{use_id}s" if use_id else None
        self._needs_keys = needs_keys
        self._asked: dict[Reference, AvroSchema | str] = {}
        self._schemas: dict[str, dict[int, AvroSchema | str]] = {"value": {}, "key": {}}
        self._missing: dict[Reference, float] = {}
        """Schemas that the registry lacked, and when it was last asked for them, as monotonic seconds."""
        self._left = _MOST_ASKED * _OF_ONE_USE
        """How many schemas that are there may still be asked for in this batch."""
        self._passed_over = False
        """Whether a schema was not asked for in this batch."""
        self.revision = 0
        self.documents = Documents()

    def learn(self, unknown: Collection[str]) -> None:
        """Fetch schemas that records name.

        Raises RegistryUnreachable. A problem with a schema is reported on the records that use it, and so is
        that too many were named. Which ones are then asked for differs from batch to batch, so that no name
        keeps others from being asked for.
        """
        documents = {"value": self.documents.values, "key": self.documents.keys}
        named = sorted(filter(None, unknown))
        random.Random(self.revision).shuffle(named)
        for each in named:
            name, _, text = each.partition(" ")
            kind, _, raw = text.partition("/")
            reference = Reference(kind, bytes.fromhex(raw))
            if reference not in self._asked:
                if self._left < _OF_ONE_USE:
                    self._passed_over = True
                    continue
                found = self._asked[reference] = self._schema(reference)
                self._left -= 1 if isinstance(found, AvroSchema) else _OF_ONE_USE
            schema, identity = self._asked[reference], _identity(name, reference)
            if name == "value" and isinstance(schema, AvroSchema) and schema.plain:
                schema = f"{reference} of the registry is not one of a record"
            self._schemas[name][identity] = schema
            if isinstance(schema, AvroSchema) and not schema.plain:
                documents[name][identity] = schema.document
        self.revision += 1

    def ask_again(self, *, at_once: bool) -> None:
        until = time.monotonic() - (0 if at_once else _ASK_AGAIN_SECONDS)
        if self._passed_over or sum(map(len, self._schemas.values())) > _MOST_IN_PLAN:
            self.revision += 1
        if sum(map(len, self._schemas.values())) > _MOST_IN_PLAN:
            self._schemas = {"value": {}, "key": {}}
        self._left, self._passed_over = _MOST_ASKED * _OF_ONE_USE, False
        oldest = list(self._missing)[:-_MOST_ASKED]  # or the plan of each batch grows with them
        again = [each for each, asked in self._missing.items() if asked <= until or each in oldest]
        for reference in again:
            del self._missing[reference], self._asked[reference]
            for name, schemas in self._schemas.items():
                schemas.pop(_identity(name, reference), None)
            self.revision += 1

    def split(self, names: Sequence[str], known: Mapping[int, str]) -> list[list[Column]]:
        """Select the payload and schema id of each name, and a record's problem as ``problem``."""
        ids, read, told = [F.col("*")], [F.col("*")], []
        for name in names:
            ways = self._names(name)
            ids += [
                _schema_id(name, ways).alias(f"{name}_schema_id"),
                _body(name, ways).alias(f"{name}_body"),
            ]
            good = self._good(name)
            read += [_decoded(name, each, schema).alias(_column(name, each)) for each, schema in good.items()]
            told += [
                _json(name, good).alias(f"{name}_payload"),
                _of_record(name, good).alias(f"{name}_schema_id"),
            ]
        problem = F.coalesce("problem", *map(self._problem, names), self._unknown(names))
        raw = [F.col(name) for name in RAW_NAMES if name != "problem"]
        return [
            [F.col("*"), *[_in_headers(name).alias(f"{name}_header") for name in names]],
            ids,
            read,
            [*raw, problem.alias("problem"), *told],
        ]

    def _good(self, name: str) -> dict[int, AvroSchema]:
        schemas = self._schemas[name].items()
        return {identity: schema for identity, schema in schemas if isinstance(schema, AvroSchema)}

    def _names(self, name: str) -> list[_Name]:
        """Return the ways in which a record may name a schema; the first that is present applies.

        A header always wins, even if the value begins as if it had an id.
        """
        document, header, size = F.col(name), F.col(f"{name}_header.value"), F.octet_length(name)
        confluents = F.col(f"{name}_header.key") == f"__{name}_schema_id"
        eight = F.octet_length(header) == 8
        none, first = F.col(f"{name}_header").isNull(), F.substring(document, 1, 1)
        zero, one = F.lit(b"\x00"), F.lit(b"\x01")
        eighth = (size >= 9) & (F.substring(document, 1, 5) == F.lit(bytes(5)))
        return [
            _Name(confluents & _begins(header, zero, 5), IDS, F.substring(header, 2, 4)),
            _Name(confluents & _begins(header, one, 17), GUIDS, F.substring(header, 2, 16)),
            _Name((F.col(f"{name}_header.key") == f"apicurio.{name}.globalId") & eight, GLOBAL_IDS, header),
            _Name((F.col(f"{name}_header.key") == f"apicurio.{name}.contentId") & eight, CONTENT_IDS, header),
            _Name(none & eighth, self._use_id or GLOBAL_IDS, F.substring(document, 2, 8), 9),
            _Name(none & (size >= 5) & (first == zero), self._use_id or IDS, F.substring(document, 2, 4), 5),
            _Name(none & (size >= 17) & (first == one), GUIDS, F.substring(document, 2, 16), 17),
        ]

    def _schema(self, reference: Reference) -> AvroSchema | str:
        try:
            found = self._ask(reference)
        except NotOfThisRegistry as error:
            return f"{reference} cannot be asked for: {error}"
        except NotAnsweredFor as error:
            self._missing[reference] = time.monotonic()
            return f"{reference} cannot be fetched, while the registry answers otherwise: {error}"
        if found is None:
            self._missing[reference] = time.monotonic()
            return f"{reference} is not in the registry: register it there, and replay the record"
        if found.kind != "AVRO":
            return (
                f"{reference} of the registry is of kind {found.kind}, and not Avro: have the connector "
                "write with an Avro or a JSON converter"
            )
        try:
            schema = avro.parse(found.text, found.referenced)
            _try(schema)
        except NotAvro:
            return f"{reference} of the registry is not a schema of Avro"
        except SchemaError as error:
            return f"{reference} of the registry cannot be used: {error}"
        return schema

    def _problem(self, name: str) -> Column:
        """Return the problem of a key or value (STRING); null if it has none or if its schema is unknown."""
        identity, body = F.col(f"{name}_schema_id"), F.col(f"{name}_body")
        wrong = F.when(~self._is_read(name), None).when(
            identity.isNull() & F.lit(name == "value"),
            f"the {name} names no schema: it does not begin with the byte 0 and a schema's id, as "
            "Confluent's wire format does, and no header has one",
        )
        for each, schema in self._schemas[name].items():
            if isinstance(schema, str):
                wrong = wrong.when(identity == each, f"the {name}: {schema}")
        as_json = F.exists(
            "headers",
            lambda header: (
                (header["key"] == f"apicurio.{name}.encoding") & (header["value"] == F.lit(b"JSON"))
            ),
        )
        for each, schema in self._good(name).items():
            unreadable = (identity == each) & _unreadable(body, F.col(_column(name, each)), schema)
            wrong = wrong.when(
                unreadable,
                F.when(
                    as_json,
                    f"the {name} is Avro in its JSON form: have the converter write it in binary form",
                ).otherwise(f"the {name} is not Avro of {self._called(name, each)}"),
            )
        return wrong

    def _is_read(self, name: str) -> Column:
        """Return whether a key or value is present and needed (BOOLEAN)."""
        needed = F.lit(True) if name == "value" or self._needs_keys else F.col("value").isNull()
        return F.col(name).isNotNull() & needed

    def _called(self, name: str, identity: int) -> str:
        return next(str(each) for each in self._asked if _identity(name, each) == identity)

    def _unknown(self, names: Sequence[str]) -> Column:
        """Return which schemas have to be fetched (STRING); null if all are known."""
        found = []
        for name in names:
            identity = F.col(f"{name}_schema_id")
            known = identity.isin(list(self._schemas[name]))
            text = F.coalesce(
                *[
                    F.when(way.there, F.concat(F.lit(f"{name} {way.kind}/"), F.hex(way.raw)))
                    for way in self._names(name)
                ]
            )
            found.append(F.when(self._is_read(name) & identity.isNotNull() & ~known, text))
        listed = F.concat_ws(", ", *found)
        if self._passed_over:
            why = (
                f"the schema was not asked for, because the batch names more than {_MOST_ASKED} unknown "
                "ones: replay the record"
            )
            return F.when(listed != "", why)
        return F.when(listed != "", F.concat(F.lit(f"{UNKNOWN_SCHEMA}: "), listed))


def _in_headers(name: str) -> Column:
    """Return the last header that names the schema of a key or value (STRUCT); null if none does."""
    known = (f"__{name}_schema_id", f"apicurio.{name}.globalId", f"apicurio.{name}.contentId")
    found = F.filter("headers", lambda header: header["key"].isin(*known) & header["value"].isNotNull())
    return F.when(F.size("headers") > 0, F.get(found, F.size(found) - 1))


def _begins(raw: Column, byte: Column, size: int) -> Column:
    return (F.octet_length(raw) >= size) & (F.substring(raw, 1, 1) == byte)


def _number(raw: Column) -> Column:
    """Return the first eight bytes as a BIGINT."""
    return F.conv(F.hex(F.substring(raw, 1, 8)), 16, -10).cast("bigint")


def _space(name: str, kind: str) -> int:
    return _SPACES[kind] ^ (_OF_KEYS if name == "key" else 0)


def _schema_id(name: str, ways: Sequence[_Name]) -> Column:
    """Return an id that identifies the schema of a key or value (BIGINT); null if it names none."""
    return F.coalesce(
        *[F.when(way.there, _number(way.raw).bitwiseXOR(F.lit(_space(name, way.kind)))) for way in ways]
    )


def _identity(name: str, reference: Reference) -> int:
    """Return the id that `_schema_id` computes for a name."""
    raw = reference.raw[:8]
    return int.from_bytes(raw, "big", signed=len(raw) == 8) ^ _space(name, reference.kind)


def _body(name: str, ways: Sequence[_Name]) -> Column:
    """Return the value without the bytes that name its schema (BINARY)."""
    before = [way for way in ways if way.before]
    cut = [F.when(way.there, F.substring(name, way.before + 1, _WHOLE)) for way in before]
    return F.when(F.col(f"{name}_header").isNotNull(), F.col(name)).otherwise(F.coalesce(*cut))


def _column(name: str, identity: int) -> str:
    """Return the name of the column for values read with a schema."""
    return f"{name}_{identity % 2**64:x}"


def _try(schema: AvroSchema) -> None:
    """Let Spark make a type of a schema before it is part of a plan. Raises SchemaError.

    In a plan, a schema that Spark refuses would fail for all records. Nothing is tried without Spark.
    """
    context = SparkContext._active_spark_context
    if context is None:
        return
    try:
        parsed = java_class(context, "org.apache.avro.Schema$Parser")().parse(schema.reader)
        converters = java_class(context, "org.apache.spark.sql.avro.SchemaConverters")
        found = converters.toSqlType(parsed).dataType().catalogString()
    except (Py4JJavaError, PySparkException) as error:
        raise SchemaError(f"Spark refuses it: {cause_of(error)}") from None
    if found != by_place(schema.type).simpleString():
        raise SchemaError(f"Spark reads it as {found[:100]}")


def _decoded(name: str, identity: int, schema: AvroSchema) -> Column:
    """Return the value if it was written with this schema (STRUCT), with fields named by their places.

    If it cannot be read, all its fields are null.
    """
    mine = F.when(F.col(f"{name}_schema_id") == identity, F.col(f"{name}_body"))
    return from_avro(mine, schema.reader, {"mode": "PERMISSIVE"})


def _unreadable(body: Column, decoded: Column, schema: AvroSchema) -> Column:
    """Return whether a value could not be read (BOOLEAN).

    Then all its fields are null, but not because that many nulls were written, of one byte each.
    """
    nothing = reduce(
        Column.__and__,
        [decoded.getField(place(number)).isNull() for number in range(len(schema.fields))],
        F.lit(True),
    )
    return nothing & (F.octet_length(body) != len(schema.fields))


def _json(name: str, schemas: Mapping[int, AvroSchema]) -> Column:
    texts = [_text(F.col(_column(name, each)), schema) for each, schema in schemas.items()]
    return F.coalesce(*texts, F.lit(None).cast("string"))


def _text(decoded: Column, schema: AvroSchema) -> Column:
    named = decoded.cast(schema.type)
    if schema.plain is None:
        return F.to_json(named, {"ignoreNullFields": "false"})
    listed = F.to_json(F.array(named[schema.plain]))
    return F.when(decoded.isNotNull(), F.substr(listed, F.lit(2), F.length(listed) - 2))


def _of_record(name: str, schemas: Mapping[int, AvroSchema]) -> Column:
    """Return the id of a schema (BIGINT); null for the schema of a plain value, which has no columns."""
    identity = F.col(f"{name}_schema_id")
    plain = [each for each, schema in schemas.items() if schema.plain]
    return F.when(~identity.isin(plain), identity) if plain else identity
