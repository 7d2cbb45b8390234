"""Files in the order of their names, each applied once, whatever happens in between."""

from __future__ import annotations

import base64
import gzip
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import _parse_datatype_string

from lakemirror.api.source import FilesSource
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.storage import Entry, LocalStorage
from lakemirror.driver.errors import BatchMismatch, CheckpointInUse
from lakemirror.driver.read.base import RAW, Batch, Lag, Standing
from lakemirror.driver.read.files import ledger, waiting
from lakemirror.driver.read.files.feed import FilesFeed
from lakemirror.driver.read.files.listing import InputMissing, alternatives
from lakemirror.driver.read.files.records import read_records
from lakemirror.driver.read.files.waiting import InputIncomplete
from tests.support.beside import beside


def record(offset: int, value: str | None = "v", **other: Any) -> dict[str, Any]:
    given = {"topic": "t", "partition": 0, "offset": offset, "timestamp": 1_700_000_000_123, "key": "k"}
    return {**given, "value": value, "headers": [], **other}


def write(path: Path, *records: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(each) + "\n" for each in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def rows(spark: SparkSession, path: Path, **options: Any) -> list[Row]:
    return read_records(spark, [f"file://{path}"], **options).orderBy("row").collect()


class Taken:
    """An apply that keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[tuple[Batch, list[int]]] = []
        self.crash_at: int | None = None

    def __call__(self, frame: DataFrame, batch: Batch) -> None:
        if batch.batch_id == self.crash_at:
            raise OSError("the table could not be written")
        self.batches.append((batch, sorted(row.offset for row in frame.select("offset").collect())))

    @property
    def offsets(self) -> list[list[int]]:
        return [offsets for _, offsets in self.batches]


class Setup:
    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.spark, self.input, self.state = spark, path / "in", path / "state"
        self.taken = Taken()
        self.warnings: list[str] = []
        self.standing = Standing()

    def feed(self, path: str | Path | None = None, limit: int = 1000) -> FilesFeed:
        source = FilesSource(path=str(path or self.input), max_files_per_batch=limit)
        return FilesFeed(
            self.spark,
            source,
            LocalStorage(self.state),
            interval_seconds=0.1,
            warn=self.warnings.append,
            standing=self.standing,
        )

    def once(self, path: str | Path | None = None, limit: int = 1000) -> FilesFeed:
        feed = self.feed(path, limit)
        feed.run(self.taken, once=True, stopping=lambda: False)
        return feed


@pytest.fixture
def setup(spark: SparkSession, tmp_path: Path) -> Setup:
    return Setup(spark, tmp_path)


# --- reading


def test_a_record_keeps_every_byte(spark: SparkSession, tmp_path: Path) -> None:
    texts = ['{"a": "\U0001f600 ä \\u0000"}', "\x00\x01\x7f\r\n\u2028\u0085", "", None, "\\", "0" * 70_000]
    headers = [["a", "1"], ["a", None], ["ä", ""]]
    written = [record(i, text, headers=headers) for i, text in enumerate(texts)]
    write(tmp_path / "f.jsonl", *written)
    plain = json.dumps(record(9, "😀"), ensure_ascii=False)  # not escaped, and a carriage return at its end
    with open(tmp_path / "f.jsonl", "ab") as file:
        file.write(f"\n  \n{plain}\r\n".encode())
    read = rows(spark, tmp_path / "f.jsonl")
    assert [row.problem for row in read] == [None] * 7
    assert [row.value and bytes(row.value).decode() for row in read] == [
        *[text or (None if text is None else bytearray()) for text in texts],
        "😀",
    ]
    assert [row.row for row in read] == [0, 1, 2, 3, 4, 5, 8]
    assert [(h.key, h.value and bytes(h.value)) for h in read[0].headers] == [
        ("a", b"1"),
        ("a", None),
        ("ä", bytearray()),
    ]
    assert {(row.topic, row.partition, bytes(row.key)) for row in read} == {("t", 0, b"k")}
    assert read[0].file.endswith("/f.jsonl")
    stamps = (
        read_records(spark, [f"file://{tmp_path}/f.jsonl"]).selectExpr("unix_millis(timestamp)").distinct()
    )
    assert [row[0] for row in stamps.collect()] == [1_700_000_000_123]


def test_the_schema_is_the_one_of_raw_records(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "f.jsonl", record(0))
    frame = read_records(spark, [f"file://{tmp_path}/f.jsonl"])
    assert frame.schema.simpleString() == _parse_datatype_string(RAW).simpleString()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"no json", "not a JSON object"),
        (b'{"topic": "t", "partition": 0, "offset": 1, "va', "not a JSON object"),
        (b"[1]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"5", "not a JSON object"),
        (b"{}", "has no topic"),
        (b'{"topic": "t", "partition": 0, "value": "v"}', "has no offset"),
        (b'{"topic": "t", "partition": 0, "offset": "x", "value": "v"}', "not a JSON object|has no offset"),
        (
            b'{"topic": "t", "partition": 0, "offset": 1}{"topic": "t", "partition": 0, "offset": 2}',
            "not a JSON object",
        ),
        (b'[{"topic": "t", "partition": 0, "offset": 1}]', "not a JSON object"),
        (b'{"topic": "t", "partition": 0, "offset": 1, "value": "\xff\xfe"}', "not valid UTF-8"),
        (b"\xff\xfe\x00", "not valid UTF-8"),
    ],
)
def test_a_line_that_is_no_record_keeps_its_bytes(
    spark: SparkSession, tmp_path: Path, line: bytes, problem: str
) -> None:
    good = json.dumps(record(7)).encode()
    (tmp_path / "f.jsonl").write_bytes(b"\n".join([good, line, good]))
    first, bad, last = rows(spark, tmp_path / "f.jsonl")
    assert (first.problem, last.problem) == (None, None)
    assert bad.problem is not None
    assert any(part in bad.problem for part in problem.split("|"))
    assert bytes(bad.value) == line
    assert (bad.topic, bad.key, bad.row) == (None, None, 1)
    assert bad.file.endswith("/f.jsonl")


def test_base64_payloads(spark: SparkSession, tmp_path: Path) -> None:
    body = base64.b64encode(bytes(range(256))).decode()
    write(tmp_path / "f.jsonl", record(0, body, key=None), record(1, None, key=body), record(2, "no base64!"))
    first, second, bad = rows(spark, tmp_path / "f.jsonl", base64=True)
    assert (bytes(first.value), first.key) == (bytes(range(256)), None)
    assert (second.value, bytes(second.key)) == (None, bytes(range(256)))
    assert "not base64" in bad.problem


def test_lines_are_counted_in_each_file(spark: SparkSession, tmp_path: Path) -> None:
    names = ["a.jsonl", "b.jsonl.gz", "c [odd] {name} 100%.jsonl", "d*.jsonl"]
    for n, name in enumerate(names):
        write(tmp_path / name, *(record(i, f"{n}") for i in range(20)))
    frame = read_records(spark, [f"file://{tmp_path}/{name}" for name in names])
    assert frame.count() == 80
    assert frame.where("row <> offset").count() == 0
    assert frame.select("file").distinct().count() == 4


# --- batches


def test_files_come_in_the_order_of_their_names(setup: Setup) -> None:
    for offset, name in enumerate(["b", "a", "c", "10", "9"]):
        write(setup.input / f"{name}.jsonl", record(offset))
        os.utime(setup.input / f"{name}.jsonl", (2_000_000_000 - offset, 2_000_000_000 - offset))
    (setup.input / "notes.txt").write_text("left alone")
    (setup.input / "_partial.jsonl").write_text("left alone")
    feed = setup.once(limit=2)
    assert setup.taken.offsets == [[3, 4], [0, 1], [2]]
    assert [batch.batch_id for batch, _ in setup.taken.batches] == [0, 1, 2]
    names = [[name for name, _ in batch.extent["files"]] for batch, _ in setup.taken.batches]
    assert names == [["10.jsonl", "9.jsonl"], ["a.jsonl", "b.jsonl"], ["c.jsonl"]]
    assert {batch.query_id for batch, _ in setup.taken.batches} == {feed.query_id}
    assert feed.lag().caught_up


def test_a_second_run_does_nothing_and_later_files_are_added(setup: Setup) -> None:
    write(setup.input / "b.jsonl", record(0))
    first = setup.once()
    again = setup.once()
    assert again.query_id == first.query_id
    write(setup.input / "a.jsonl", record(1))
    setup.once()
    assert setup.taken.offsets == [[0], [1]]
    assert [batch.batch_id for batch, _ in setup.taken.batches] == [0, 1]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("in/a.jsonl", [0]),
        ("in/a*.jsonl", [0]),
        ("in/[a]*", [0, 0, 1]),
        ("in/", [0, 0, 1, 2]),
        ("in", [0, 0, 1, 2]),
        ("in/{a,x}.jsonl", [0]),
        ("in/{a,x}*", [0, 0, 1]),
        ("in/{b,{x,a}}.jsonl", [0, 2]),
        ("{in,other}/*.jsonl", [0, 2, 3]),
        ("{in/a,other/c}.jsonl", [0, 3]),
        ("{in,other/{more,none}}/?.jsonl", [0, 2, 4]),
        ("other/{,more/}*.jsonl", [3, 4]),
    ],
)
def test_a_file_a_pattern_or_a_directory(
    setup: Setup, tmp_path: Path, path: str, expected: list[int]
) -> None:
    write(setup.input / "a.jsonl", record(0))
    write(setup.input / "a.jsonl.gz", record(0), record(1))
    write(setup.input / "b.jsonl", record(2))
    write(tmp_path / "other" / "c.jsonl", record(3))
    write(tmp_path / "other" / "more" / "d.jsonl", record(4))
    setup.once(f"{tmp_path}/{path}")
    assert setup.taken.offsets == [expected]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a", ["a"]),
        ("{a}", ["a"]),
        ("x{a,b}y{1,2}", ["xay1", "xay2", "xby1", "xby2"]),
        ("{a,b{1,2},{c}}", ["a", "b1", "b2", "c"]),
        ("{,s}", ["", "s"]),
        ("a,b", ["a,b"]),
        ("{a,b", ["{a,b"]),
        ("a}b", ["a}b"]),
        ("[{,}]{a,b}", ["[{,}]a", "[{,}]b"]),
    ],
)
def test_braces_stand_for_alternatives(path: str, expected: list[str]) -> None:
    assert sorted(alternatives(path)) == sorted(expected)


@pytest.mark.guarantee("The same batch has the same input")
@pytest.mark.parametrize("crash", ["in apply", "before the commit"])
def test_a_batch_that_was_begun_comes_again(setup: Setup, crash: str) -> None:
    for i in range(4):
        write(setup.input / f"{i}.jsonl", record(i))
    if crash == "in apply":
        setup.taken.crash_at = 1
        with pytest.raises(OSError, match="could not be written"):
            setup.once(limit=2)
        setup.taken.crash_at = None
    else:
        faults.arm("before-checkpoint-commit", after=1)
        with pytest.raises(faults.InjectedCrash):
            setup.once(limit=2)
        setup.taken.batches.pop()
    feed = setup.feed(limit=1)  # another limit does not change the batch
    pending = list(feed.pending())
    assert [batch.batch_id for batch in pending] == [1]
    feed.run(setup.taken, once=True, stopping=lambda: False)
    assert setup.taken.offsets == [[0, 1], [2, 3]]
    assert setup.taken.batches[1][0] == pending[0]
    assert list(feed.pending()) == []


@pytest.mark.guarantee("The same batch has the same input")
@pytest.mark.parametrize("harm", ["changed", "gone"])
def test_a_batch_that_comes_again_must_have_the_same_input(setup: Setup, harm: str) -> None:
    write(setup.input / "a.jsonl", record(0))
    setup.taken.crash_at = 0
    with pytest.raises(OSError, match="could not be written"):
        setup.once()
    if harm == "changed":
        write(setup.input / "a.jsonl", record(5))
        with pytest.raises(BatchMismatch, match=r"a\.jsonl belongs to batch 0"):
            setup.once()
    else:
        (setup.input / "a.jsonl").unlink()
        with pytest.raises(InputMissing, match=r"a\.jsonl is gone"):
            setup.once()


@pytest.mark.guarantee("A batch that all tables have needs its input no more")
@pytest.mark.parametrize("harm", ["changed", "gone", "grown"])
def test_a_batch_that_all_tables_have_needs_its_input_no_more(setup: Setup, harm: str) -> None:
    """The driver died before it marked the batch as done, and the folder was cleaned."""
    write(setup.input / "a.jsonl", record(0))
    write(setup.input / "b.jsonl", record(1))
    setup.taken.crash_at = 0
    with pytest.raises(OSError, match="could not be written"):
        setup.once()
    (setup.input / "b.jsonl").unlink()
    if harm == "gone":
        (setup.input / "a.jsonl").unlink()
    else:
        write(setup.input / "a.jsonl", record(0 if harm == "grown" else 5), record(6))
    write(setup.input / "c.jsonl", record(7))
    asked: list[str] = []
    setup.standing = Standing(applied=lambda query: asked.append(query) or 0)
    feed = setup.once()
    assert asked == [feed.query_id]
    assert setup.taken.offsets == ([[0, 6, 7]] if harm == "grown" else [[7]])
    assert sum("a.jsonl has changed" in each for each in setup.warnings) == (harm == "changed")


def test_a_driver_that_has_lost_the_checkpoint_marks_nothing(setup: Setup) -> None:
    def lost() -> None:
        raise CheckpointInUse("the checkpoint is another driver's")

    write(setup.input / "a.jsonl", record(0))
    setup.standing = Standing(check=lost)
    with pytest.raises(CheckpointInUse):
        setup.once()
    assert [batch.batch_id for batch in setup.feed().pending()] == [0]


def test_new_content_under_a_known_name_is_reported_once(setup: Setup) -> None:
    write(setup.input / "a.jsonl", record(0))
    setup.once()
    write(setup.input / "a.jsonl", record(1), record(2))
    feed = setup.once()
    assert setup.taken.offsets == [[0]]
    assert feed.changed == 1
    assert ["a.jsonl has changed" in warning for warning in setup.warnings] == [True]


def test_a_file_that_has_grown_is_read_again_whole(setup: Setup) -> None:
    """Before its batch was applied, meanwhile, and afterwards."""
    name = setup.input / "a.jsonl"
    write(name, record(0))
    setup.taken.crash_at = 0
    with pytest.raises(OSError, match="could not be written"):
        setup.once()
    setup.taken.crash_at = None
    write(name, record(0), record(1))

    def growing(frame: DataFrame, batch: Batch) -> None:
        setup.taken(frame, batch)
        if batch.batch_id == 1:
            write(name, *(record(i) for i in range(3)))

    setup.feed().run(growing, once=True, stopping=lambda: False)
    assert setup.taken.offsets == [[0, 1]]
    setup.once()
    assert setup.taken.offsets == [[0, 1], [0, 1, 2]]
    write(name, *(record(i) for i in range(4)))
    setup.once()
    setup.once()
    assert setup.taken.offsets == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]
    assert [batch.batch_id for batch, _ in setup.taken.batches] == [1, 2, 3]
    assert ["a.jsonl has grown since it was read" in warning for warning in setup.warnings] == [True] * 3


def test_a_file_that_is_being_copied_is_waited_for(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that never becomes whole ends a run once, when all others are applied."""
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 600.0)
    write(tmp_path / "whole.jsonl.gz", record(0), record(1))
    whole = (tmp_path / "whole.jsonl.gz").read_bytes()
    setup.input.mkdir()
    (setup.input / "a.jsonl.gz").write_bytes(whole[:-3])
    (setup.input / "b.jsonl.gz").write_bytes(whole[:20])
    (setup.input / "c.jsonl").write_text(json.dumps(record(2)))
    write(setup.input / "d.jsonl", record(3))

    is_ready = waiting.Waiting.is_ready

    def copied_on(files: waiting.Waiting, entry: Entry) -> bool:
        """The rest of a file arrives when it was looked at, and patience ends when all others are read."""
        if sum(map(len, setup.taken.offsets)) == 4:
            monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 0.0)
        ready = is_ready(files, entry)
        if entry.name == "a.jsonl.gz" and not ready:
            (setup.input / "a.jsonl.gz").write_bytes(whole)
        return ready

    with monkeypatch.context() as copying:
        copying.setattr(waiting.Waiting, "is_ready", copied_on)
        with pytest.raises(InputIncomplete, match=r"^b\.jsonl\.gz is skipped: it is not a complete gzip"):
            setup.once()
    assert sorted(offset for offsets in setup.taken.offsets for offset in offsets) == [0, 1, 2, 3]
    assert len(setup.taken.offsets[0]) == 1
    assert [warning.split(":")[0] for warning in setup.warnings] == ["b.jsonl.gz is skipped"]
    write(setup.input / "b.jsonl.gz", record(4))
    feed = setup.once()
    assert setup.taken.offsets[-1] == [4]
    assert feed.lag().caught_up


@pytest.mark.guarantee("A file that cannot be read keeps the pipeline behind, and is named")
def test_a_broken_file_does_not_keep_a_running_feed_from_others(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 0.3)
    setup.input.mkdir()
    (setup.input / "a.jsonl.gz").write_bytes(b"no gzip at all")
    feed = setup.feed()
    with beside(lambda stop: feed.run(setup.taken, once=False, stopping=stop.is_set)):
        until(lambda: bool(setup.warnings))
        write(setup.input / "b.jsonl", record(1))
        until(lambda: len(setup.taken.batches) == 1)
        lag = feed.lag()
        assert (lag.caught_up, lag.records, lag.had_all_at) == (False, None, None), "it is behind"
        assert lag.waiting == ("a.jsonl.gz: it is not a complete gzip stream",)
        write(setup.input / "a.jsonl.gz", record(0))
        until(lambda: len(setup.taken.batches) == 2)
        until(lambda: feed.lag().caught_up)
        assert feed.lag().waiting == ()
    assert setup.taken.offsets == [[1], [0]]
    assert len(setup.warnings) == 1


@pytest.mark.parametrize("pattern", ["", "*", "*.jsonl*", "_*", "[_a]*"])
def test_files_that_spark_takes_for_hidden_are_not_taken_for_applied(setup: Setup, pattern: str) -> None:
    """They are names of files that are still being written, and are read under their final ones."""
    for name in ("_a.jsonl", ".a.jsonl", "a.jsonl._COPYING_"):
        write(setup.input / name, record(0))
    setup.once(f"{setup.input}/{pattern}")
    assert setup.taken.offsets == []
    (setup.input / "_a.jsonl").rename(setup.input / "a.jsonl")
    setup.once(f"{setup.input}/{pattern}")
    assert setup.taken.offsets == ([] if pattern == "_*" else [[0]])


@pytest.mark.parametrize("name", ["_a.jsonl", ".a.jsonl", "a.jsonl._COPYING_"])
def test_a_path_to_a_hidden_file_is_refused(setup: Setup, name: str) -> None:
    write(setup.input / name, record(0))
    with pytest.raises(InputMissing, match=f"{name} is a hidden file, which Spark does not read"):
        setup.once(setup.input / name)


def test_a_touched_file_is_the_same_file(setup: Setup) -> None:
    write(setup.input / "a.jsonl", record(0))
    setup.once()
    os.utime(setup.input / "a.jsonl", (1, 1))
    setup.once()
    assert (setup.taken.offsets, setup.warnings) == ([[0]], [])


def test_known_content_under_a_new_name_is_skipped(setup: Setup) -> None:
    write(setup.input / "a.jsonl", record(0))
    write(setup.input / "b.jsonl", record(0))
    feed = setup.once()
    write(setup.input / "c.jsonl", record(0))
    write(setup.input / "d.jsonl", record(1))
    setup.once()
    setup.once()
    assert setup.taken.offsets == [[0], [1]]
    assert feed.skipped == 1
    assert [w.split(":")[0] for w in setup.warnings] == ["b.jsonl is skipped", "c.jsonl is skipped"]


def test_an_empty_file_waits_until_it_has_content(setup: Setup) -> None:
    write(setup.input / "a.jsonl")
    write(setup.input / "b.jsonl", record(1))
    setup.once()
    write(setup.input / "a.jsonl", record(0))
    setup.once()
    assert (setup.taken.offsets, setup.warnings) == ([[1], [0]], [])


def test_running_on_it_takes_files_as_they_come(setup: Setup) -> None:
    write(setup.input / "a.jsonl", record(0))
    feed = setup.feed()
    with beside(lambda stop: feed.run(setup.taken, once=False, stopping=stop.is_set)):
        until(lambda: len(setup.taken.batches) == 1)
        write(setup.input / "0.jsonl", record(1))
        until(lambda: len(setup.taken.batches) == 2)
    assert setup.taken.offsets == [[0], [1]]


def test_what_is_there_is_known_as_of_the_last_look(setup: Setup) -> None:
    """A file that has come since then may be old."""
    write(setup.input / "a.jsonl", record(0))
    feed, lags = setup.feed(), list[Lag]()

    def apply(frame: DataFrame, batch: Batch) -> None:
        lags.append(feed.lag())
        setup.taken(frame, batch)

    with beside(lambda stop: feed.run(apply, once=False, stopping=stop.is_set)):
        until(lambda: feed.lag().had_all_at is not None)
        came = time.monotonic()
        write(setup.input / "b.jsonl", record(1))
        until(lambda: len(setup.taken.batches) == 2)
        until(lambda: (feed.lag().had_all_at or 0) > came)
    assert lags[0].had_all_at is None
    assert lags[1].had_all_at is not None
    assert lags[1].had_all_at < came + 0.1  # the look may have found no file yet that was being written
    assert setup.once().lag().had_all_at is None


def test_many_batches_are_compacted(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "COMPACT_EVERY", every := 4)
    for i in range(every + 3):
        write(setup.input / f"{i:03}.jsonl", record(i))

    def apply(frame: DataFrame, batch: Batch) -> None:
        setup.taken.batches.append((batch, []))

    setup.feed(limit=1).run(apply, once=True, stopping=lambda: False)
    assert len(setup.taken.batches) == every + 3
    assert [f.name for f in (setup.state / "files" / "state").iterdir()] == [f"{every - 1}.json"]
    assert len(list((setup.state / "files" / "offsets").iterdir())) == 3
    write(setup.input / "000-copy.jsonl", record(0))
    write(setup.input / "new.jsonl", record(900))
    feed = setup.feed()
    feed.run(apply, once=True, stopping=lambda: False)
    assert [batch.batch_id for batch, _ in setup.taken.batches][-2:] == [every + 2, every + 3]
    assert [n for n, _ in setup.taken.batches[-1][0].extent["files"]] == ["new.jsonl"]
    assert feed.skipped == 1


def test_looking_again_at_thousands_of_files_reads_none(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(1000):
        write(setup.input / f"{i:05}.jsonl", record(i))
    setup.feed().run(lambda frame, batch: None, once=True, stopping=lambda: False)

    def refuse(self: LocalStorage, name: str, first: int | None = None) -> str:
        raise AssertionError(f"{name} was read again")

    monkeypatch.setattr(LocalStorage, "sha256", refuse)
    began = time.monotonic()
    setup.feed().run(setup.taken, once=True, stopping=lambda: False)
    assert setup.taken.batches == []
    assert time.monotonic() - began < 20


def test_a_checkpoint_without_batches_gets_a_new_query(setup: Setup) -> None:
    write(setup.input / "a.jsonl", record(0))
    first = setup.once().query_id
    for file in (setup.state / "files").rglob("*.json"):
        file.unlink()
    assert setup.once().query_id != first
    assert [batch.batch_id for batch, _ in setup.taken.batches] == [0, 0]


def test_a_folder_that_is_away_is_not_applied(setup: Setup) -> None:
    """Nobody knows what it has meanwhile."""
    setup.input.mkdir()
    feed = setup.feed()
    with beside(lambda stop: feed.run(setup.taken, once=False, stopping=stop.is_set)):
        until(lambda: feed.lag().caught_up)
        setup.input.rmdir()
        until(lambda: not feed.lag().caught_up)
        at = feed.lag().had_all_at
        setup.input.mkdir()
        until(lambda: feed.lag().caught_up)
        assert at is not None
        assert at < (feed.lag().had_all_at or 0)


def test_a_missing_path_is_an_error(setup: Setup) -> None:
    with pytest.raises(InputMissing, match=r"spec\.source\.files\.path: there is no file or directory"):
        setup.once(setup.input / "nothing.jsonl")
    with pytest.raises(InputMissing, match=r"there is no directory .*/nothing"):
        setup.once(setup.input / "nothing" / "*" / "x.jsonl")


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
