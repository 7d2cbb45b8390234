"""Splits a JSON document that embeds its schema, without parsing the schema.

Kafka Connect's JsonConverter (``schemas.enable``) writes ``{"schema":{...},"payload":{...}}``. The schema is
most of the document and the same in all records of a table. Once it is known, it is therefore recognized by
its length and its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

_BEFORE: Final = b'{"schema":'
_BETWEEN: Final = b',"payload":'
_AFTER: Final = b"}"


def schema_id(schema: Column) -> Column:
    """Return the hash that identifies a schema document, from its text or its bytes (BIGINT)."""
    return F.xxhash64(schema)


def split(names: Sequence[str], known: Mapping[int, str]) -> list[list[Column]]:
    """Return the columns to select, one list after the other, to split the documents in ``names``.

    The named columns hold the bytes of a document; ``known`` are schema documents by id. For each name, the
    columns ``<name>_payload``, the text of the document's payload, and ``<name>_schema_id`` are added. These
    are null unless the document has exactly the form that the converter writes, with a known schema and a
    payload that is an object. Any other document has to be parsed as a whole.
    """
    sizes = sorted({len(text.encode()) for text in known.values()})
    if not sizes:
        nothing = F.lit(None)
        none = {"payload": nothing.cast("string"), "schema_id": nothing.cast("bigint")}
        return [[F.col("*"), *(none[part].alias(f"{name}_{part}") for name in names for part in none)]]
    first, ids = len(_BEFORE) + 1, list(known)
    measured, told, cut = [F.col("*")], [F.col("*")], [F.col("*")]
    for name in names:
        document, size, identity = F.col(name), F.col(f"{name}_size"), F.col(f"{name}_hash")
        measured.append(_size(document, sizes).alias(f"{name}_size"))
        told.append(schema_id(F.substring(document, first, size)).alias(f"{name}_hash"))
        cut.append(F.when(identity.isin(ids), _payload(document, size)).alias(f"{name}_payload"))
        cut.append(F.when(identity.isin(ids), identity).alias(f"{name}_schema_id"))
    return [measured, told, cut]


def _size(document: Column, sizes: Sequence[int]) -> Column:
    """Return the length of the document's schema in bytes, if a known schema has that length (INT)."""
    marker, first = _BETWEEN + b"{", len(_BEFORE) + 1

    def ends_there(size: Column) -> Column:
        return F.substring(document, size + first, F.lit(len(marker))) == F.lit(marker)

    fitting = F.get(F.filter(F.array(*map(F.lit, sizes)), ends_there), F.lit(0))
    whole = F.startswith(document, F.lit(_BEFORE)) & F.endswith(document, F.lit(_AFTER))
    return F.when(whole, fitting)


def _payload(document: Column, size: Column) -> Column:
    begin = size + len(_BEFORE + _BETWEEN) + 1
    length = F.octet_length(document) - size - len(_BEFORE + _BETWEEN + _AFTER)
    return F.substring(document, begin, length).cast("string")


def unless_known(schema: Column, identity: Column, known: Mapping[int, str]) -> Column:
    """Return the schema, or null if its id is in ``known``."""
    return F.when(~identity.isin(list(known)), schema) if known else schema
