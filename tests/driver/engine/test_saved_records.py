"""Lines of saved records are read as Spark reads them, or are left for it."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.columns.raw_records import RawRecords, octets_of
from lakemirror.driver.engine.blocks import RAW
from lakemirror.driver.engine.saved_files import Piece, lines_of, rows_at
from lakemirror.driver.engine.saved_records import Lines, NotRecords, lines_in, records_of
from lakemirror.driver.read.files import records
from lakemirror.driver.read.files.records import read_lines, read_records
from lakemirror.driver.read.files.rows import _file_of

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
    """The records of lines, without their places."""
    some = Lines(lines, pa.nulls(len(lines), pa.string()), pa.array(range(len(lines)), pa.int64()))
    return [without_place(row) for each in records_of([some]) for row in rows_of(each)]


def rows_of(given: RawRecords) -> list[dict[str, Any]]:
    texts = zip(map(octets_of, given.keys), map(octets_of, given.values), strict=True)
    rows = zip(given.columns.to_pylist(), texts, strict=True)
    return [{**row, "key": key, "value": value} for row, (key, value) in rows]


def without_place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("file", "row")}


def by_spark(spark: SparkSession, lines: Sequence[bytes], folder: Path) -> list[dict[str, Any]]:
    path = folder / "records.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    rows, mine = both(spark, [path])
    assert mine["line"].null_count == mine.num_rows - len(rows) <= 1
    return [without_place(row) for row in rows]


def both(spark: SparkSession, files: Sequence[Path]) -> tuple[list[dict[str, Any]], pa.Table]:
    """The records of files as Spark reads them, and their lines."""
    uris, size = [f"file://{each}" for each in files], sum(each.stat().st_size for each in files)
    found = read_records(spark, uris, size=size).orderBy("file", "row").select(*RAW)
    return found.toArrow().to_pylist(), read_lines(spark, uris, size=size).toArrow()


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


@pytest.mark.parametrize("block", [1 << 24, 1_000])
def test_places_are_those_that_spark_tells(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Of files with odd names and blank lines, read in one block each or in several."""
    monkeypatch.setattr(records, "_LEAST_BLOCK", block)
    monkeypatch.setattr(records, "BLOCK", block)
    folder = tmp_path / "ä b%20;#+,="
    folder.mkdir()
    lines = [changed(offset=n).encode() for n in range(20)]
    contents = {
        "a.jsonl": b"\n".join(lines),
        "b%41 (1)&é\u0301.jsonl": b" \n\n" + b"\n\n".join(lines) + b"\n\n",
        "c.jsonl": b"\r\n",
        "d.jsonl": lines[0],
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    files = sorted(folder.iterdir())
    rows, read = both(spark, files)
    found = [row for each in records_of(lines_in(read.to_batches(max_chunksize=3))) for row in rows_of(each)]
    assert sorted(found, key=lambda row: (row["file"], row["row"])) == rows
    assert len({row["file"] for row in rows}) == 3
    size = sum(map(len, contents.values()))
    told = [place for each in files for place in places_of(spark, each, records.block_of(size))]
    assert sorted(told) == [(row["file"], row["row"]) for row in rows]


def places_of(spark: SparkSession, path: Path, block: int) -> list[tuple[str, int]]:
    """The places of the lines of a file, which a task has read itself."""
    size = path.stat().st_size
    starts = [start for _, each in lines_of(Piece(str(path), 0, size, size)) for start in each.tolist()]
    found = rows_at(str(path), starts, block)
    return [(_file_of(spark, str(path)), found[start]) for start in starts]


def test_a_setting_that_packs_files_together_is_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    """A task would read lines of several files, of which only the first is named."""
    for number in range(5):
        (tmp_path / f"{number}.jsonl").write_text(f"{changed(offset=number)}\n" * 3, "utf-8")
    told: Any = spark.sparkContext._jsc.sc().conf()  # type: ignore[union-attr]
    told.set("spark.sql.files.maxPartitionNum", "1")
    try:
        rows, read = both(spark, sorted(tmp_path.iterdir()))
    finally:
        told.remove("spark.sql.files.maxPartitionNum")
    found = [row for each in records_of(lines_in(read.to_batches())) for row in rows_of(each)]
    assert sorted(found, key=lambda row: (row["file"], row["row"])) == rows
    assert [row["row"] for row in rows] == [0, 1, 2] * 5


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
