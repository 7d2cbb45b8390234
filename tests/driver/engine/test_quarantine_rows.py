"""Rows of the quarantine as the engine makes them: columns, ids, and what is remembered of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from lakemirror.driver.engine.blocks import RawRecord
from lakemirror.driver.engine.quarantine_rows import ROWS as SCHEMA
from lakemirror.driver.engine.quarantine_rows import OpenRows, added_up, identity, rows_of
from lakemirror.driver.record import quarantine
from lakemirror.driver.record.aside import BadRecord
from lakemirror.driver.writer.schema import arrow_schema, parse

BAD = BadRecord("demo.public.items", 0, 7, "demo.public.items", "the key is missing")
OF_KAFKA = RawRecord(1_790_000_000_123_000, b'{"id":1}', b"{", None, None, None)
OF_A_FILE = OF_KAFKA._replace(file="file:/in/a%20b.jsonl", row=12)

IDS = {
    "a record of Kafka": (BAD, OF_KAFKA, "fbe7d884e1e96f28b910dabec492ea50ff79f0c01e8bb637ddadf3b7e60ba7ae"),
    "a line": (BAD, OF_A_FILE, "632a6ffedbef60cad806138e1f165ec3a1c43d0d6bccfaf64cb19c6eb23e46f6"),
    "no key": (
        BAD,
        OF_KAFKA._replace(key=None),
        "a3fd2aee3de2b60ef5ba046724a9dcf05bffe728f2bdb907e9d6cd782269352a",
    ),
    "a topic that JSON escapes": (
        BAD._replace(topic='a"b\\u00e9\x01\x1f\n/é\u2028\U0001f600\x7f'),
        OF_KAFKA,
        "0bb5e32906606a25a5b16a357aaa3628c98c70d135f27379aad5fe2a8708cc94",
    ),
}


@pytest.mark.parametrize("name", IDS)
def test_ids_stay_what_they_are(name: str) -> None:
    """With others, records that come again would be in the quarantine twice."""
    bad, raw, expected = IDS[name]
    assert identity(bad, raw) == expected


def test_an_id_is_of_origin_and_bytes_alone() -> None:
    first = identity(BAD, OF_A_FILE)
    others = OF_A_FILE._replace(timestamp=None, headers=[("a", b"b")])
    assert identity(BAD._replace(source=None, reason="another"), others) == first
    assert identity(BAD._replace(partition=1), OF_A_FILE) != first
    assert identity(BAD, OF_A_FILE._replace(row=13)) != first
    assert identity(BAD, OF_A_FILE._replace(value=b"{ ")) != first


def test_the_columns_are_those_of_the_table(spark: SparkSession) -> None:
    columns = DataType.fromDDL(quarantine.COLUMNS)
    assert isinstance(columns, StructType)
    assert arrow_schema(parse(columns.json())).equals(SCHEMA)


def test_what_is_remembered_of_open_rows() -> None:
    lines = [(BAD._replace(offset=n, source=source), OF_A_FILE) for n, source in enumerate(("t", "t", None))]
    kafka = [(BAD._replace(source="t"), OF_KAFKA)]
    first = rows_of([*lines, *kafka], "q", 0, 0).to_batches()
    older = pa.RecordBatch.from_pydict(
        {"source": ["t", None], "scope": ["order", None], "file": pa.nulls(2, pa.string())}
    )
    mine, others = OpenRows.of([*first, older]), OpenRows.of([])
    assert mine.names == {"a b.jsonl"}
    assert others == OpenRows({}, frozenset())
    assert added_up([mine, others, mine]) == {"t": {"record": 6, "order": 2}, "": {"record": 4}}
