"""Lines of saved records are read as Spark reads them, or are left for it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.columns.raw_records import RawRecords, octets_of
from lakemirror.driver.engine.blocks import RAW
from lakemirror.driver.engine.saved_records import NotRecords, records_of
from lakemirror.driver.read.files.records import read_lines, read_records

USUAL = {
    "topic": "demo.public.items",
    "partition": 1,
    "offset": 7,
    "timestamp": 1_790_000_000_123,
    "key": '{"id": 1}',
    "value": '{"op": "c", "after": {"id": 1, "name": "żółw \\u0000 \U0001f422"}}',
    "headers": [["__debezium.newkey", '{"id": 2}'], ["empty", None]],
}


def changed(**members: Any) -> str:
    return json.dumps({**USUAL, **members}, ensure_ascii=False)


def without(*names: str) -> str:
    return json.dumps({name: value for name, value in USUAL.items() if name not in names})


READ = {
    "a usual record": changed(),
    "escaped": json.dumps(USUAL),
    "a tombstone": changed(value=None),
    "no optional member": without("timestamp", "key", "value", "headers"),
    "nulls": changed(timestamp=None, key=None, value=None, headers=None),
    "blanks around it": f"  \t{changed()} \r",
    "extremes": changed(partition=2**31 - 1, offset=2**63 - 1),
    "negative": changed(partition=-(2**31), offset=-(2**63)),
    "an early time": changed(timestamp=-1),
    "a late time": changed(timestamp=253_370_764_800_000),
    "the last time": changed(timestamp=253_370_764_799_999),
    "the first time": changed(timestamp=0),
    "no headers": changed(headers=[]),
    "odd headers": changed(headers=[None, [], ["a"], [None, "b"], ["c", "d", "e"]]),
    "a header that names a schema": changed(headers=[["__value_schema_id", "AAAAAAE="]]),
    "empty texts": changed(topic="", key="", value=""),
    "a member twice": changed()[:-1] + ', "topic": "other", "value": null}',
}
LEFT = {
    "no object": "[1]",
    "text": "hello",
    "a part": changed()[:-3],
    "two records": changed() + changed(),
    "no topic": without("topic"),
    "no offset": changed(offset=None),
    "a number as a text": changed(offset="7"),
    "a fraction": changed(offset=7.0),
    "a text as a number": changed(topic=7),
    "an object as a value": changed(value={"op": "c"}),
    "a large partition": changed(partition=2**31),
    "a large offset": changed(offset=2**63),
    "a large time": changed(timestamp=2**63),
    "an unknown member": changed(tstype="create"),
    "another case": changed(Topic="x"),
    "a number in a header": changed(headers=[["a", 1]]),
    "half of a character": changed()[:-1] + ', "key": "\\ud800"}',
}


def read(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    return [row for each in records_of([lines]) for row in rows_of(each)]


def rows_of(records: RawRecords) -> list[dict[str, Any]]:
    texts = zip(map(octets_of, records.keys), map(octets_of, records.values), strict=True)
    rows = zip(records.columns.to_pylist(), texts, strict=True)
    return [{**row, "key": key, "value": value} for row, (key, value) in rows]


def by_spark(spark: SparkSession, lines: Sequence[bytes], folder: Path) -> list[dict[str, Any]]:
    path = folder / "records.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    size = path.stat().st_size
    found = read_records(spark, [path.as_uri()], size=size).orderBy("row").select(*RAW)
    rows = found.toArrow().to_pylist()
    kept = read_lines(spark, [path.as_uri()], size=size).select(F.count("*")).collect()[0][0]
    assert kept == len(rows)
    return rows


@pytest.mark.parametrize("line", [*LEFT.values(), "\ufeff" + changed()], ids=[*LEFT, "a byte order mark"])
def test_what_is_not_exactly_a_record_is_left_for_spark(line: str) -> None:
    with pytest.raises(NotRecords):
        read([changed().encode(), line.encode("utf-8", "surrogatepass")])


@pytest.mark.parametrize("octets", [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"\x1f"])
def test_octets_that_are_no_text_are_left_for_spark(octets: bytes) -> None:
    with pytest.raises(NotRecords):
        read([changed(key="@").encode().replace(b"@", octets)])


def test_very_long_lines_are_left_for_spark() -> None:
    assert read([changed(value="x" * 1_000_000).encode()])
    with pytest.raises(NotRecords, match="a line has more than"):
        read([changed(value="x" * 11_000_000).encode()])


def test_records_are_those_that_spark_reads(spark: SparkSession, tmp_path: Path) -> None:
    lines = [line.encode() for line in READ.values()]
    rows = by_spark(spark, lines, tmp_path)
    assert [row["problem"] for row in rows] == [None] * len(lines)
    assert read(lines) == rows


def damaged(rnd: random.Random) -> bytes:
    """A record in which a few bytes are other ones."""
    line = bytearray(json.dumps(USUAL, ensure_ascii=rnd.random() < 0.5).encode())
    for _ in range(rnd.choice((1, 1, 2, 4))):
        at = rnd.randrange(len(line))
        piece = rnd.choice((b"", b'"', b"\\", b"{", b"]", b",", b"0", b"-", b"e1", b" ", b"null", b"\xc5"))
        line[at : at + rnd.choice((0, 1, 1, 3))] = piece
    return bytes(line).replace(b"\n", b"")


def test_damaged_records_that_are_read_are_those_that_spark_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    rnd = random.Random(5)
    lines = [line for line in (damaged(rnd) for _ in range(5000)) if line.strip()]
    accepted = []
    for line, row in zip(lines, by_spark(spark, lines, tmp_path), strict=True):
        try:
            (mine,) = read([line])
        except NotRecords:
            continue
        assert mine == row
        accepted.append(line)
    assert len(accepted) > 500
