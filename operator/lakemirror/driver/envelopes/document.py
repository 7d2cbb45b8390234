"""A JSON document that embeds its schema, cut in two without parsing the schema.

Kafka Connect's JsonConverter (``schemas.enable``) writes ``{"schema":{...},"payload":{...}}``. The schema is
most of the document and the same in all records of a table. So once it is known, it is told by its length and
its hash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

_BEFORE: Final = b'{"schema":'
_BETWEEN: Final = b',"payload":'
_AFTER: Final = b"}"


def schema_id(schema: Column) -> Column:
    """BIGINT: what tells a schema document from others, from its text or its bytes."""
    return F.xxhash64(schema)


def split(frame: DataFrame, names: Sequence[str], known: Mapping[int, str]) -> DataFrame:
    """Add for each name ``<name>_payload``, the text of a document's payload, and ``<name>_schema_id``.

    The names are columns with the bytes of a document; ``known`` are schema documents by id. What is added is
    null unless the document has exactly the form that the converter writes, with a known schema and a payload
    that is an object: any other has to be parsed whole.
    """
    sizes = sorted({len(text.encode()) for text in known.values()})
    if not sizes:
        nothing = F.lit(None)
        none = {"payload": nothing.cast("string"), "schema_id": nothing.cast("bigint")}
        return frame.withColumns({f"{name}_{part}": none[part] for name in names for part in none})
    cut = frame.withColumns({f"{name}_size": _size(F.col(name), sizes) for name in names})
    first = len(_BEFORE) + 1
    told = cut.withColumns(
        {f"{name}_schema_id": schema_id(F.substring(name, first, F.col(f"{name}_size"))) for name in names}
    )
    ids = list(known)
    return told.select(
        *frame.columns,
        *[
            F.when(F.col(f"{name}_schema_id").isin(ids), column).alias(f"{name}_{part}")
            for name in names
            for part, column in (
                ("payload", _payload(F.col(name), F.col(f"{name}_size"))),
                ("schema_id", F.col(f"{name}_schema_id")),
            )
        ],
    )


def _size(document: Column, sizes: Sequence[int]) -> Column:
    """INT: bytes of the document's schema, if it is as long as one of those that are known."""
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
    """The schema, null when its id is among the ``known``."""
    return F.when(~identity.isin(list(known)), schema) if known else schema
