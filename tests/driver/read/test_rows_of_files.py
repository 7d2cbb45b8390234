"""Rows of files as raw records: what they become, where they stand, what is wrong with them."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession

from lakemirror.api.source import CsvFormat, FilesSource
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.read.base import Batch
from lakemirror.driver.read.files import limits, text_rows, waiting
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.files.text_rows import csv_rows, json_rows
from lakemirror.driver.read.files.waiting import InputIncomplete


def payload(row: Row) -> Any:
    return json.loads(bytes(row.value))["payload"] if row.problem is None else (row.problem, bytes(row.value))


def csv_of(spark: SparkSession, path: Path, form: CsvFormat, optional: str | None = None) -> list[Row]:
    return csv_rows(spark, [f"file://{path}"], form, optional).orderBy("row").collect()


QUOTE = "a quote is not closed, or stands within a field that does not begin with one"


def test_csv_is_read_as_it_was_meant(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes, delimiters and line breaks in fields, empty against null, a BOM, CRLF, and bad lines."""
    lines = [
        b'\xef\xbb\xbfid,name,"no, te"\r\n',
        b'1,Ada,"said ""hi"""\r\n',
        b'2,"a\r\nb, c",\r\n',
        b"\r\n",
        b'3,"","NULL"\r\n',
        b'4,NULL,5" pipe\r\n',
        b"5,too,many,fields\r\n",
        b"6,\xff\xfe,x\r\n",
        b'7,"x"y,z\r\n',
        "8,Zoë €,x".encode(),
    ]
    path = tmp_path / "a.csv"
    path.write_bytes(b"".join(lines))
    # The stray quote of record 4 would take in what follows, up to the end: it stays a line of its own.
    read = csv_of(spark, path, CsvFormat(null_value="NULL"))
    third = "no, te"
    assert [(row.row, payload(row)) for row in read] == [
        (1, {"id": "1", "name": "Ada", third: 'said "hi"'}),
        (2, {"id": "2", "name": "a\r\nb, c", third: ""}),
        (5, {"id": "3", "name": "", third: "NULL"}),
        (6, {"id": "4", "name": None, third: '5" pipe'}),
        (7, ("the line has 4 fields instead of 3", b"5,too,many,fields\r")),
        (8, ("the line is not valid UTF-8: convert the file", b"6,\xff\xfe,x\r")),
        (9, (QUOTE, b'7,"x"y,z\r')),
        (10, {"id": "8", "name": "Zoë €", third: "x"}),
    ]
    assert {row.file for row in read} <= {f"file://{path}", f"file:{path}"}
    schema = json.loads(bytes(read[0].value))["schema"]
    assert [(each["field"], each["type"]) for each in schema["fields"]] == [
        ("id", "string"),
        ("name", "string"),
        (third, "string"),
    ]
    empty = csv_of(spark, path, CsvFormat())  # without nullValue, an empty field is null and NULL is a text
    assert payload(empty[1])[third] is None
    assert payload(empty[2])["name"] == ""
    assert payload(empty[3])["name"] == "NULL"
    monkeypatch.setattr(text_rows, "_LONGEST", 10)  # a record must not take in the whole file
    short = csv_of(spark, path, CsvFormat(null_value="NULL"))
    assert [row.row for row in short] == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    assert [row.problem for row in short][1] == QUOTE


def test_csv_without_header_may_lack_the_op(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("I;1;x\n2;y\n3\n")
    form = CsvFormat(delimiter=";", header=False, columns=["Op", "id", "t"])
    read = [payload(row) for row in csv_of(spark, path, form, "Op")]
    assert read[:2] == [{"Op": "I", "id": "1", "t": "x"}, {"id": "2", "t": "y"}]
    assert read[2] == ("the line has 1 fields instead of 3 or 2", b"3")
    assert [row.problem is None for row in csv_of(spark, path, form)] == [True, False, False]


def test_files_of_csv_have_headers_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    for name, text in {"a": "id,v\n1,x\n", "b": "v,w,id\ny,z,2\n", "c": "id,id\n3,3\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    uris = [f"file://{tmp_path}/{name}.csv" for name in "abc"]
    read = csv_rows(spark, uris, CsvFormat()).orderBy("file").collect()
    assert [payload(row) for row in read] == [
        {"id": "1", "v": "x"},
        {"v": "y", "w": "z", "id": "2"},
        ("the file's header has the column id twice", b"3,3"),
    ]


def test_json_lines_are_taken_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n\n  \n{"id": \xff}\n[1]\n')
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"id": 2}'))
    uris = [f"file://{tmp_path}/{name}" for name in ("a.json", "b.json.gz")]
    read = json_rows(spark, uris).orderBy("file", "row").collect()
    assert [(row.row, bytes(row.value)) for row in read] == [
        (0, b'{"id": 1}\r'),
        (3, b'{"id": \xff}'),
        (4, b"[1]"),
        (0, b'{"id": 2}'),
    ]


class Taken:
    """Feeds of one folder, and what they handed over."""

    def __init__(self, spark: SparkSession, tmp_path: Path, **source: Any) -> None:
        self.spark, self.folder, self.state = spark, tmp_path, tmp_path / "state"
        self.source = FilesSource(**{"path": str(tmp_path / "in"), **source})
        self.batches: list[Batch] = []
        self.rows: list[Row] = []
        self.warnings: list[str] = []
        (tmp_path / "in").mkdir(exist_ok=True)

    def once(self, **more: Any) -> FilesFeed:
        feed = FilesFeed(self.spark, self.source, LocalStorage(self.state), warn=self.warnings.append, **more)

        def apply(frame: Any, batch: Batch) -> None:
            self.batches.append(batch)
            self.rows += frame.orderBy("offset").collect()

        feed.run(apply, once=True, stopping=lambda: False)
        return feed


def ids(taken: Taken) -> list[int]:
    return [json.loads(bytes(row.value))["id"] for row in sorted(taken.rows, key=lambda row: row.offset)]


def test_offsets_follow_names_or_times_and_go_on_without_the_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    taken = Taken(spark, tmp_path, format="json", order="time", path=f"{tmp_path}/in/*/*/*.json")
    for name, text, at in (("b", '{"id": 2}\n{"id": 3}\n', 20), ("c", '{"id": 1}\n', 10)):
        path = tmp_path / "in" / "hr" / "x.y" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at, at))
    taken.once()
    assert ids(taken) == [1, 2, 3]
    assert {(row.topic, row.partition, row.key) for row in taken.rows} == {("hr.x.y", 0, None)}
    assert [each.sha256 for each in taken.batches[0].files] == [
        sha for _, sha in taken.batches[0].extent["files"]
    ]
    assert {each.place for each in taken.batches[0].files} == {row.file for row in taken.rows}
    # The same content for another table is no copy; for the same one it is. A late file is told.
    other = tmp_path / "in" / "hr" / "z" / "c.json"
    other.parent.mkdir()
    for path in (other, tmp_path / "in" / "hr" / "x.y" / "copy.json"):
        path.write_text('{"id": 1}\n')
    (tmp_path / "in" / "hr" / "x.y" / "late.json").write_text('{"id": 4}\n')
    os.utime(tmp_path / "in" / "hr" / "x.y" / "late.json", (5, 5))
    first = max(row.offset for row in taken.rows)
    feed = taken.once()
    assert feed.skipped == 1
    assert any("copy.json is skipped: hr/x.y/c.json has the same content" in each for each in taken.warnings)
    assert any("hr/x.y/late.json was read after hr/x.y/b.json" in each for each in taken.warnings)
    assert sorted((row.topic, row.offset > first) for row in taken.rows[3:]) == [
        ("hr.x.y", True),
        ("hr.z", True),
    ]
    before, taken.rows = max(row.offset for row in taken.rows), []
    again = Taken(spark, tmp_path, format="json", path=f"{tmp_path}/in/*/*/*.json")
    again.state = tmp_path / "another"
    again.once()
    assert min(row.offset for row in again.rows) > before
    reread = Taken(spark, tmp_path, format="json", path=f"{tmp_path}/in/*/*/*.json")
    reread.state = tmp_path / "resync"
    reread.once(rereads=again.once())
    assert {(row.file, row.row, row.offset) for row in reread.rows} == {
        (row.file, row.row, row.offset) for row in again.rows
    }
    assert all(file.again for batch in reread.batches for file in batch.files)


@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
def test_a_file_that_grew_keeps_the_offsets_of_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    taken = Taken(spark, tmp_path, format="json")
    path = tmp_path / "in" / "a.json"
    path.write_text('{"id": 1}\n')
    (tmp_path / "in" / "b.json").write_text('{"id": 3}\n')
    taken.once()
    with path.open("a") as file:
        file.write('{"id": 2}\n')
    taken.once()
    assert [row.offset for row in taken.rows if b"1" in row.value][0:1] * 2 == [
        row.offset for row in taken.rows if b"1" in row.value
    ]
    assert sorted({(row.offset, bytes(row.value)) for row in taken.rows}) == [
        (row.offset, bytes(row.value)) for row in (taken.rows[0], taken.rows[3], taken.rows[1])
    ]
    path.write_text('{"id": 9}\n')
    os.utime(path, (2_000_000_000, 2_000_000_000))
    feed = taken.once()
    assert feed.changed == 1
    assert len(taken.rows) == 4
    reread = Taken(spark, tmp_path, format="json")
    reread.state = tmp_path / "resync"
    reread.once(rereads=feed)
    edited = next(row for row in reread.rows if b"9" in row.value)
    assert (edited.offset, edited.timestamp) == (taken.rows[2].offset, taken.rows[2].timestamp)
    assert "has changed since it was applied; the new content is not applied" in taken.warnings[-1]


TYPES = (
    "b BOOLEAN, i8 TINYINT, i64 BIGINT, f FLOAT, d DOUBLE, num DECIMAL(38,10), t STRING, raw BINARY, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, list ARRAY<DECIMAL(5,2)>, "
    "inner STRUCT<x: INT, y: ARRAY<STRING>>, "
    "m MAP<STRING, BIGINT>"
)


@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_typed_files_that_cannot_be_read_wait_and_others_go_on(
    form: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.5)
    spark.range(3).coalesce(1).write.format(form).save(str(tmp_path / "w"))
    whole = next((tmp_path / "w").glob(f"*.{form}")).read_bytes()
    taken = Taken(spark, tmp_path, format=form)
    for name, content in (("good", whole), ("half", whole[: len(whole) * 2 // 3]), ("none", b"id\n1\n")):
        (tmp_path / "in" / f"{name}.{form}").write_bytes(content)
    with pytest.raises(InputIncomplete, match=rf"half\.{form} is skipped: it cannot be read: .+none\.{form}"):
        taken.once()
    assert [(row.row, json.loads(bytes(row.value))["payload"]["id"]) for row in taken.rows] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    for name in ("none", "half"):
        (tmp_path / "in" / f"{name}.{form}").unlink()
    # Damaged within: that is seen when a batch reads it, which then goes on without it.
    (tmp_path / "in" / f"damaged.{form}").write_bytes(whole[:20] + bytes(20) + whole[40:])
    spark.range(3, 5).coalesce(1).write.format(form).save(str(tmp_path / "more"))
    more = next((tmp_path / "more").glob(f"*.{form}")).read_bytes()
    (tmp_path / "in" / f"fresh.{form}").write_bytes(more)
    with pytest.raises(InputIncomplete, match=rf"^damaged\.{form} is skipped: it "):
        taken.once()
    assert [json.loads(bytes(row.value))["payload"]["id"] for row in taken.rows] == [0, 1, 2, 3, 4]


def typed_row() -> tuple[Any, ...]:
    return (
        *(
            True,
            -128,
            2**63 - 1,
            0.5,
            float("nan"),
            Decimal("1234567890123456789012345678.0123456789"),
            "Zoë",
        ),
        *(bytearray(b"\x00\xff"), dt.date(1969, 12, 31)),
        dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=dt.UTC),
        dt.datetime(1900, 1, 1, 0, 0, 0, 1),
        [Decimal("1.25"), None],
        (7, ["a", None]),
        {"k": 1},
    )


NOON = dt.time(12, 0, 0, 7000)
AVRO_TIMES = {
    "ms": ["null", {"type": "int", "logicalType": "time-millis"}],
    "us": ["null", {"type": "long", "logicalType": "time-micros"}],
    "listed": ["null", {"type": "array", "items": {"type": "long", "logicalType": "time-micros"}}],
    "either": ["null", "string", {"type": "long", "logicalType": "time-micros"}],
    "plain": ["null", "long"],
}
PARQUET_TIMES = {
    "ms": pa.time32("ms"),
    "us": pa.time64("us"),
    "ns": pa.time64("ns"),
    "listed": pa.list_(pa.time64("us")),
    "inner": pa.struct([("my time", pa.time32("ms"))]),
    "plain": pa.int64(),
}
MILLIS, MICROS = 43_200_007, 43_200_007_000


def write_times(form: str, path: Path) -> None:
    """A row with times of day beside a number, and a row of nulls."""
    row: dict[str, Any] = {"id": 1, "ms": NOON, "us": NOON, "listed": [NOON], "plain": 5}
    if form == "parquet":
        rows = [{**row, "ns": MICROS * 1000 + 1, "inner": {"my time": NOON}}, {"id": 2}]
        kinds = {"id": pa.int64(), **PARQUET_TIMES}
        values = {name: pa.array([each.get(name) for each in rows], kind) for name, kind in kinds.items()}
        pq.write_table(pa.table(values), path)
        return
    fields = [{"name": name, "type": kind} for name, kind in {"id": "long", **AVRO_TIMES}.items()]
    schema = {"type": "record", "name": "r", "fields": fields}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [{**row, "either": "x"}, {"id": 2}])


@pytest.mark.guarantee("A time of day in a Parquet file, in any unit, is text with all its digits")
@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_times_of_day_are_those_that_a_database_would_send(
    form: str, spark: SparkSession, tmp_path: Path
) -> None:
    """In each unit, in lists and in structs. A number beside them stays one, as do milliseconds in Avro."""
    taken = Taken(spark, tmp_path, format=form)
    write_times(form, tmp_path / "in" / f"a.{form}")
    taken.once()
    [first, second] = [json.loads(bytes(row.value)) for row in taken.rows]
    kinds = {each["field"]: each for each in first["schema"]["fields"]}
    times = {
        "ms": ("int32", "Time" if form == "parquet" else None),
        "us": ("int64", "MicroTime"),
        "plain": ("int64", None),
    }
    wanted: dict[str, Any] = {"id": 1, "ms": MILLIS, "us": MICROS, "listed": [MICROS], "plain": 5}
    if form == "parquet":
        times["ns"] = ("int64", "NanoTime")
        wanted |= {"ns": MICROS * 1000 + 1, "inner": {"my time": MILLIS}}
        assert kinds["inner"]["fields"][0]["name"] == "io.debezium.time.Time"
    else:
        wanted["either"] = {"member0": "x", "member1": None}
    for name, (kind, semantic) in times.items():
        told = kinds[name]
        assert (told["type"], told.get("name")) == (kind, semantic and f"io.debezium.time.{semantic}")
    assert kinds["listed"]["items"]["name"] == "io.debezium.time.MicroTime"
    assert first["payload"] == wanted
    assert second["payload"] == {**dict.fromkeys(wanted), "id": 2}


def zipped(line: bytes, megabytes: int) -> bytes:
    """A gzip file of so many MiB of a line, in little time: a member for each."""
    return gzip.compress((line * (2**20 // len(line) + 1))[: 2**20]) * megabytes


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
def test_files_that_take_memory_or_time_or_lead_elsewhere_are_set_aside(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its name, with what to do; the others are read, and so is what takes their place."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.5)
    taken, folder = Taken(spark, tmp_path, format="csv", path=f"{tmp_path}/in/*"), tmp_path / "in"
    (tmp_path / "password").write_text("id\n666\n")
    good = {
        "good.csv": b"id\n1\n",
        "good.csv.bz2": bz2.compress(b"id\n2\n"),
        "good.csv.gz": gzip.compress(b"id\n") + gzip.compress(b"3\n"),
    }
    bad = {
        "columns.csv": (b"c," * 10_000 + b"c\n", "more than 10,000 columns"),
        "cut.csv.bz2": (bz2.compress(b"id\n5\n" * 1000)[:30], "it cannot be decompressed"),
        "endless.csv": (b"id\n" + b"5" * (33 * 2**20), "one of its lines has more than 32 MiB"),
        "header.csv": (b"a" * (2**20 + 1) + b"\n1\n", "its header has more than 1 MiB"),
        "huge.csv.gz": (zipped(b"1\n", 300), "more than 200 times its own size"),
        "line.csv.gz": (zipped(b"1", 40), "one of its lines has more than 32 MiB"),
        "link.csv": (b"", f"it is a link to {tmp_path}/password, which is not in {folder}"),
        "unknown.csv.zst": (b"no frame of this format", "it cannot be decompressed"),
    }
    for name, content in [*good.items(), *((name, content) for name, (content, _) in bad.items())]:
        (folder / name).write_bytes(content)
    (folder / "link.csv").unlink()
    (folder / "link.csv").symlink_to(tmp_path / "password")
    with pytest.raises(InputIncomplete) as told:
        taken.once()
    assert sorted(told.value.names) == sorted(bad)
    for name, (_, reason) in bad.items():
        assert any(each.startswith(f"{name} is s") and reason in each for each in taken.warnings), name
    assert sorted(payload(row)["id"] for row in taken.rows) == ["1", "2", "3"]

    # A batch that an earlier version began, and did not survive.
    for name in bad:
        (folder / name).unlink()
    with monkeypatch.context() as former:
        for name in ("beyond", "beyond_header"):
            former.setattr(limits, name, lambda *_, **__: None)
        (folder / "line.csv.gz").write_bytes(bad["line.csv.gz"][0])
        (folder / "next.csv").write_text("id\n4\n")
        feed = FilesFeed(spark, taken.source, LocalStorage(taken.state))

        def die(frame: Any, batch: Batch) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            feed.run(die, once=True, stopping=lambda: False)
    taken.rows, before = [], len(taken.batches)
    with pytest.raises(InputIncomplete, match=r"^line\.csv\.gz is set aside: it exceeds a limit: one of its"):
        taken.once()
    assert [payload(row)["id"] for row in taken.rows] == ["4"]
    assert [[file.name for file in batch.files] for batch in taken.batches[before:]] == [["next.csv"]]
    (folder / "line.csv.gz").write_bytes(gzip.compress(b"id\n5\n"))
    taken.once()
    assert [payload(row)["id"] for row in taken.rows] == ["4", "5"]


@pytest.mark.long
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_with_many_sets_of_columns_come_in_several_batches(
    form: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In their order, and none of them twice."""
    monkeypatch.setattr(limits, "MOST_LAYOUTS", 2)
    taken = Taken(spark, tmp_path, format=form)
    for number, name in enumerate("aabacdbe"):
        path = tmp_path / "in" / f"{number}.{form}"
        if form == "csv":
            path.write_text(f"id,{name}\n{number},x\n")
        else:
            pq.write_table(pa.table({"id": [number], name: ["x"]}), path)
    taken.once()
    batches = [[file.name.partition(".")[0] for file in batch.files] for batch in taken.batches]
    assert batches == [list("0123"), list("45"), list("67")]
    assert [int(payload(row)["id"]) for row in taken.rows] == list(range(8))


@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
@pytest.mark.parametrize("form", ["parquet", "avro"])
def test_files_whose_parts_hold_too_much_are_set_aside(
    form: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader takes the memory that a page or a block asks for."""
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.2)
    taken, folder = Taken(spark, tmp_path, format=form), tmp_path / "in"
    zeros = "0" * (100 * 2**20)
    if form == "parquet":
        pq.write_table(pa.table({"id": [1, 2]}), folder / "good.parquet", compression="zstd")
        pq.write_table(pa.table({"id": [zeros]}), folder / "part.parquet", compression="zstd")
        repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000), ["0" * 900_000])
        pq.write_table(pa.table({"id": repeated}), folder / "rows.parquet", compression="zstd")
        bad = {"part": "one of its pages holds more than 200 times", "rows": "its rows hold more than 64 GiB"}
    else:
        for number, codec in enumerate(("snappy", "zstandard", "bzip2", "xz"), start=1):
            written = str(tmp_path / codec)
            spark.range(number, number + 1).coalesce(1).write.format(form).save(written, compression=codec)
            next(Path(written).glob("*.avro")).rename(folder / f"{codec}.avro")
        for name, kind, values, codec in (
            ("deflate", "long", [5], "deflate"),
            ("part", "string", [zeros], "deflate"),
            ("rows", "null", [None] * 1000, "null"),
        ):
            schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": kind}]}
            with (folder / f"{name}.avro").open("wb") as file:
                fastavro.writer(file, schema, [{"id": value} for value in values], codec=codec)
        size = "one of its blocks holds more than 200 times"
        bad = {"part": size, "rows": "one of its blocks has more rows than bytes"}
    with pytest.raises(InputIncomplete) as told:
        taken.once()
    assert sorted(told.value.names) == sorted(f"{name}.{form}" for name in bad)
    for name, reason in bad.items():
        assert any(
            each.startswith(f"{name}.{form} is set aside: ") and reason in each for each in taken.warnings
        )
    found = [payload(row)["id"] for row in taken.rows]
    assert sorted(found) == ([1, 2] if form == "parquet" else [1, 2, 3, 4, 5])


ODD_NAMES = (
    *(
        "a b",
        " a ",
        "a[1]",
        "b{c}",
        "a\nb",
        "a\rb",
        "a\tb",
        "a\\b",
        "a\\",
        "{a,b}",
        "a{b",
        "a*b?c[d",
        "-",
        "~",
    ),
    *(
        "a%20b",
        "%",
        "a#b",
        "a?b=c",
        "a'b\"c",
        "$x ${env.HOME}",
        "é😀",
        "e\u0301",
        "\u202ea",
        "\x1b[2Ja",
        "a;b&c",
    ),
    *("x" * 240, "file.c,d", "a=b", "@"),
)
IMPOSSIBLE_NAMES = (*("a:b", "2026-11-27T10:00:00[1]", "file:", "a:..:b"), os.fsdecode(b"a\xffb"))


@pytest.mark.guarantee("A file in a landing folder is read, or named, whatever its name, and harms no other")
@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "csv", "parquet", "records"])
def test_files_have_any_names(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.0)
    taken = Taken(spark, tmp_path, format=form)
    suffix = ".jsonl" if form == "records" else f".{form}"
    for number, name in enumerate((*ODD_NAMES, *IMPOSSIBLE_NAMES)):
        path = tmp_path / "in" / f"{name}{suffix}"
        if form == "parquet":
            pq.write_table(pa.table({"id": [number]}), tmp_path / "new")
            os.rename(tmp_path / "new", path)
            continue
        text = {"json": f'{{"id": {number}}}\n', "csv": f"id\n{number}\n"}.get(form)
        record = {"topic": "t", "partition": 0, "offset": number, "value": "v"}
        path.write_text(text or json.dumps(record) + "\n")
    for name in ("folder", "ends"):
        (tmp_path / "in" / f"{name}{suffix}").mkdir()
    os.mkfifo(tmp_path / "in" / f"fifo{suffix}")
    with pytest.raises(InputIncomplete) as raised:
        taken.once()
    assert raised.value.names == {f"{name}{suffix}" for name in IMPOSSIBLE_NAMES}
    assert str(raised.value).isprintable()
    if form == "records":
        found = [row.offset for row in taken.rows]
    else:
        documents = [json.loads(bytes(row.value)) for row in taken.rows]
        found = [int(each.get("payload", each)["id"]) for each in documents]
    assert sorted(found) == list(range(len(ODD_NAMES)))
