"""Documents with an embedded schema are cut in two only where that says the same as parsing them."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.parse.envelopes.embedded import schema_id, split

SCHEMA = {"type": "struct", "fields": [{"type": "int32", "optional": False, "field": "id"}], "name": "Größe"}
OTHER = {**SCHEMA, "name": "a longer name"}
PAYLOAD = {"id": 1, "note": 'he said "}}" and ,"payload":{', "größe": "日本"}


def compact(document: object) -> str:
    """As JsonConverter writes it."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def converted(schema: object, payload: object) -> bytes:
    return compact({"schema": schema, "payload": payload}).encode()


@pytest.fixture(scope="module")
def known(spark: SparkSession) -> dict[int, str]:
    texts = [compact(SCHEMA), compact(OTHER)]
    rows = spark.createDataFrame([(text,) for text in texts], "s STRING").select("s", schema_id(F.col("s")))
    return {row[1]: row[0] for row in rows.collect()}


def cut(spark: SparkSession, document: bytes | None, known: dict[int, str]) -> Row:
    frame = spark.createDataFrame([(document,)], "value BINARY")
    cut = reduce(lambda each, columns: each.select(*columns), split(["value"], known), frame)
    row = cut.select("value_payload", "value_schema_id").first()
    assert row is not None
    return row


@pytest.mark.parametrize("schema", [SCHEMA, OTHER])
@pytest.mark.parametrize("payload", [PAYLOAD, {"id": 1}])
def test_a_document_with_a_known_schema_is_cut(
    schema: dict[str, Any], payload: dict[str, Any], known: dict[int, str], spark: SparkSession
) -> None:
    row = cut(spark, converted(schema, payload), known)
    assert known[row["value_schema_id"]] == compact(schema)
    assert json.loads(row["value_payload"]) == payload


ALIKE = compact(SCHEMA).replace("int32", "int64")
assert len(ALIKE) == len(compact(SCHEMA))


@pytest.mark.parametrize(
    "document",
    [
        None,
        b"",
        b"{}",
        b"no JSON",
        compact(PAYLOAD).encode(),
        json.dumps({"schema": SCHEMA, "payload": PAYLOAD}).encode(),
        converted(None, PAYLOAD),
        converted(SCHEMA, None),
        converted({**SCHEMA, "name": "unknown"}, PAYLOAD),
        f'{{"schema":{ALIKE},"payload":{{"id":1}}}}'.encode(),
        converted(SCHEMA, PAYLOAD) + b"\n",
        converted(SCHEMA, PAYLOAD)[:-2],
    ],
    ids=range(12),
)
def test_any_other_document_is_left_whole(
    document: bytes | None, known: dict[int, str], spark: SparkSession
) -> None:
    assert tuple(cut(spark, document, known)) == (None, None)


def test_without_a_known_schema_nothing_is_cut(spark: SparkSession) -> None:
    assert tuple(cut(spark, converted(SCHEMA, PAYLOAD), {})) == (None, None)
