"""The quarantine without Spark: it ends as Spark would leave it, or is left to Spark."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pytest
from delta import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakemirror.driver import faults
from lakemirror.driver.engine import commits, quarantine_table
from lakemirror.driver.engine.blocks import RawRecord
from lakemirror.driver.engine.file_systems import FileSystems
from lakemirror.driver.engine.quarantine_rows import AsideRecord
from lakemirror.driver.engine.quarantine_table import QuarantineTable
from lakemirror.driver.java import java_class
from lakemirror.driver.read.base import RAW, Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.record.aside import BadRecord
from lakemirror.driver.tables import creation
from tests.support.readers import READERS, differences

pytestmark = pytest.mark.long

APP = "lakemirror/test/q"
Records = Sequence[AsideRecord]


def kafka(offset: int, *, topic: str = "demo.public.items", partition: int = 0, **more: Any) -> AsideRecord:
    """A record of Kafka, with other members than usual."""
    bad = BadRecord(topic, partition, offset, more.pop("source", topic), "the key is missing")
    raw = RawRecord(
        1_790_000_000_123_000 + offset % 1000, b'{"id":1}', f'{{"op": {offset}'.encode(), None, None, None
    )
    return AsideRecord(bad, raw._replace(**more))


def line(file: str, row: int, **more: Any) -> AsideRecord:
    return kafka(1000 + row, file=f"file:/in/{file}", row=row, **more)


ODD = [
    kafka(1, headers=[]),
    kafka(2, headers=[("__debezium.newkey", b'{"id":2}'), ("empty", None), (None, b"\xff\x00")]),
    kafka(3, headers=[None, ("a", b"")]),
    kafka(4, key=None),
    kafka(5, key=b"", value=b""),
    kafka(6, value=None),
    kafka(7, value=b"\xff\xfe{" + b"x" * 300_000),
    kafka(8, timestamp=None, source=None),
    kafka(9, timestamp=-1_000_001),
    kafka(10, topic='a"b\\é\x01\x1f\n/\u2028\U0001f600\x7f' * 8, partition=2**31 - 1),
    kafka(-(2**63), partition=-(2**31)),
    kafka(2**63 - 1),
    line("a%20b.jsonl", 0),
    line("a%20b.jsonl", 2**62, source=None),
    line("ż" * 40, 3, headers=[("ż", "ż".encode())]),
]
"""Records in which there is something of everything."""


def by_spark(spark: SparkSession, checkpoint: str, records: Records, batch: Batch) -> int:
    """Store records as the stages do."""
    rows = []
    for bad, raw in records:
        assert raw is not None
        headers = None if raw.headers is None else list(raw.headers)
        at = None if raw.timestamp is None else raw.timestamp
        rows.append((*bad, at, raw.key, raw.value, headers, raw.file, raw.row))
    names = "topic STRING, partition INT, offset BIGINT, source STRING, reason STRING, at BIGINT"
    rest = RAW.partition("timestamp TIMESTAMP, ")[2].removesuffix(", problem STRING")
    frame = spark.createDataFrame(rows, f"{names}, {rest}")
    whole = frame.withColumns(
        {
            "timestamp": F.timestamp_micros("at"),
            "scope": F.lit("record"),
            "problem": F.lit(None).cast("string"),
        }
    ).drop("at")
    return quarantine.store(whole, checkpoint, batch)


class Kept:
    """A quarantine, and what is in it."""

    def __init__(self, spark: SparkSession, checkpoint: Path, *, exists: bool = True) -> None:
        self.spark, self.checkpoint = spark, str(checkpoint)
        self.path, self.number = quarantine.path(self.checkpoint), 0
        if exists:
            quarantine._ensure(spark, self.checkpoint)
        self.table = self.opened()

    def opened(self) -> QuarantineTable:
        """What a new driver begins with."""
        return QuarantineTable(self.spark, FileSystems(self.spark), self.checkpoint)

    def keep(self, *records: AsideRecord) -> bool:
        self.number += 1
        self.table.begin()
        return self.table.keep(records, Batch("q", self.number), APP)

    def set_state(self, chosen: Column, state: str = "replayed") -> None:
        quarantine.close(self.spark, self.checkpoint, chosen, state)

    def rows(self) -> list[dict[str, Any]]:
        """The rows, but for the times at which they were stored."""
        read = quarantine.read(self.spark, self.checkpoint)
        assert read is not None
        found = read.drop("quarantined_at").toArrow().to_pylist()
        return sorted(found, key=lambda row: str(row["id"]))

    def offsets(self, state: str = "open") -> list[int]:
        return sorted(row["offset"] for row in self.rows() if row["state"] == state)

    def files(self) -> int:
        return len(deltalake.DeltaTable(self.path).file_uris())


@pytest.fixture
def kept(spark: SparkSession, tmp_path: Path) -> Kept:
    return Kept(spark, tmp_path / "checkpoint")


def test_rows_are_those_that_spark_stores(kept: Kept, tmp_path: Path) -> None:
    other = Kept(kept.spark, tmp_path / "other", exists=False)
    assert by_spark(kept.spark, other.checkpoint, ODD, Batch("q", 1)) == len(ODD)
    assert kept.keep(*ODD)
    assert kept.rows() == other.rows()
    assert not kept.keep(*ODD)
    assert by_spark(kept.spark, kept.checkpoint, ODD, Batch("q", 1)) == len(ODD)
    assert kept.rows() == other.rows()


def test_other_programs_read_them_and_filters_find_them(kept: Kept) -> None:
    """Files of which statistics say that they have no such row are passed over."""
    assert kept.keep(*ODD[:6])
    assert kept.keep(*ODD[6:])
    rows = kept.spark.read.format("delta").load(kept.path)
    assert differences(kept.path, [row.asDict(recursive=True) for row in rows.collect()]) == []
    for column in (
        "topic",
        "source",
        "id",
        "file",
        "state",
        "scope",
        "offset",
        "row",
        "quarantined_at",
        "timestamp",
    ):
        for row in rows.collect():
            chosen = F.col(column).eqNullSafe(F.lit(row[column]))
            assert row["id"] in {each["id"] for each in rows.where(chosen).select("id").collect()}
    columns = READERS["delta-rs"](kept.path)
    assert {row["state"] for row in columns} == {"open"}
    assert (
        deltalake.DeltaTable(kept.path).to_pyarrow_table(filters=[("offset", ">", 2**62 + 1000)]).num_rows
        == 1
    )


def test_records_that_are_there_in_any_state_are_left_to_spark(kept: Kept) -> None:
    assert kept.keep(kafka(1), kafka(2), line("a", 1))
    assert not kept.keep(kafka(3), kafka(2))
    assert not kept.keep(line("a", 1, value=b"the whole line"))
    assert kept.offsets() == [1, 2, 1001]
    kept.set_state(F.col("offset") == 2)
    kept.table = kept.opened()
    assert not kept.keep(kafka(2))
    assert by_spark(kept.spark, kept.checkpoint, [kafka(2)], Batch("q", 9)) == 1
    assert kept.offsets() == [1, 2, 1001]
    # The same offset elsewhere, and a record whose row was deleted, are others.
    assert kept.keep(kafka(2, partition=1), kafka(2, topic="other"), line("b", 1))
    kept.spark.sql(f"ALTER TABLE delta.`{kept.path}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    DeltaTable.forPath(kept.spark, kept.path).delete("topic = 'other'")
    assert kept.keep(kafka(2, topic="other"))
    assert kept.offsets() == [1, 2, 2, 2, 1001, 1001]


def test_records_without_their_bytes_or_that_are_the_same_are_left_to_spark(kept: Kept) -> None:
    assert not kept.keep()
    assert not kept.keep(kafka(1), kafka(2)._replace(raw=None))
    assert not kept.keep(kafka(1), kafka(1))
    assert kept.rows() == []


def _without_scope() -> str:
    return quarantine.COLUMNS.removesuffix(", scope STRING")


OTHERS: dict[str, Callable[[SparkSession, str], object]] = {
    "none": lambda spark, path: None,
    "earlier": lambda spark, path: _create(spark, path, _without_scope(), ()),
    "without files of its own": lambda spark, path: _create(spark, path, quarantine.COLUMNS, ()),
    "more columns": lambda spark, path: _create(spark, path, f"{quarantine.COLUMNS}, note STRING"),
    "another type": lambda spark, path: _create(
        spark, path, quarantine.COLUMNS.replace("row BIGINT", "row INT")
    ),
    "constraint": lambda spark, path: (
        _create(spark, path, quarantine.COLUMNS),
        spark.sql(f"ALTER TABLE delta.`{path}` ADD CONSTRAINT c CHECK (offset > 0)"),
    ),
}


def _create(spark: SparkSession, path: str, ddl: str, partitions: Sequence[str] = ("state",)) -> None:
    columns = DataType.fromDDL(ddl)
    assert isinstance(columns, StructType)
    creation.create(spark, path, columns, partitions=partitions)


@pytest.mark.parametrize("name", OTHERS)
def test_a_table_of_another_form_is_left_to_spark(name: str, spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path, exists=False)
    OTHERS[name](spark, kept.path)
    assert not kept.keep(kafka(1))
    assert kept.table.open_counts() is None
    assert kept.table.may_correct(Batch("q", 1, {"files": [["a", "sha"]]}))
    if name not in ("more columns", "another type"):  # they are no tables of ours
        assert by_spark(spark, kept.checkpoint, [kafka(1)], Batch("q", 1)) == 1
        assert kept.offsets() == [1]


def test_a_table_that_was_given_the_form_is_written(spark: SparkSession, tmp_path: Path) -> None:
    kept = Kept(spark, tmp_path, exists=False)
    OTHERS["earlier"](spark, kept.path)
    assert not kept.keep(kafka(1))
    assert by_spark(spark, kept.checkpoint, [kafka(1)], Batch("q", 1)) == 1
    assert not kept.keep(kafka(2)), "it is not divided yet"
    quarantine._divide(spark, kept.checkpoint)
    assert kept.keep(kafka(2))
    assert not kept.keep(kafka(1))
    assert kept.offsets() == [1, 2]


def test_others_write_between_the_look_and_the_commit(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked again: what is there by then is not added."""
    may_have, others = quarantine_table._may_have, list[Callable[[], object]]()

    def then_others(*given: Any) -> bool:
        found = may_have(*given)
        if others:
            others.pop(0)()
        return found

    monkeypatch.setattr(quarantine_table, "_may_have", then_others)
    others.append(lambda: by_spark(kept.spark, kept.checkpoint, [kafka(5)], Batch("r", 0)))
    assert kept.keep(kafka(1), kafka(2))
    others.append(lambda: by_spark(kept.spark, kept.checkpoint, [kafka(3)], Batch("r", 1)))
    assert not kept.keep(kafka(3), kafka(4))
    others.append(lambda: kept.spark.sql(f"OPTIMIZE delta.`{kept.path}`"))
    others.append(lambda: kept.set_state(F.col("offset") == 1))
    assert kept.keep(kafka(4))
    others += [lambda: kept.spark.sql(f"ALTER TABLE delta.`{kept.path}` SET TBLPROPERTIES (a = 'b')")] * 5
    assert not kept.keep(kafka(6))
    assert (kept.offsets(), kept.offsets("replayed")) == ([2, 3, 4, 5], [1])
    assert {Path(each).name for each in (Path(kept.path) / "state=open").glob("*.parquet")} >= {
        Path(each).name for each in deltalake.DeltaTable(kept.path).file_uris() if "state=open" in each
    }


@pytest.mark.parametrize("written", [False, True])
def test_an_error_of_the_storage_leaves_it_to_spark(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Whether the rows are there by then or not, they are there once in the end."""
    commit = commits.DeltaTable.commit

    def fails(self: commits.DeltaTable, *given: Any) -> int:
        if written:
            commit(self, *given)
        raise OSError("there was no answer")

    with monkeypatch.context() as patch:
        patch.setattr(commits.DeltaTable, "commit", fails)
        assert not kept.keep(kafka(1), kafka(2))
    assert by_spark(kept.spark, kept.checkpoint, [kafka(1), kafka(2)], Batch("q", 1)) == 2
    assert kept.offsets() == [1, 2]
    assert kept.keep(kafka(3))
    assert kept.table.open_counts() == {"demo.public.items": {"record": 3}}


@pytest.mark.parametrize("point", ["after-files", "before-entry", "after-entry"])
def test_a_crash_at_any_point_and_the_batch_again_leave_one_row(kept: Kept, point: faults.EntryPoint) -> None:
    assert kept.keep(kafka(1))
    faults.arm(point)
    with pytest.raises(faults.InjectedCrash):
        kept.keep(kafka(2), kafka(3))
    kept.table = kept.opened()
    again = [kafka(2), kafka(3)]
    assert kept.keep(*again) == (point != "after-entry")
    assert not kept.keep(*again)
    assert by_spark(kept.spark, kept.checkpoint, again, Batch("q", 2)) == 2
    assert kept.offsets() == [1, 2, 3]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files of which what is open is read."""
    found, of_file = list[str](), quarantine_table.stored_rows_of

    def noted(store: Any, add: Any, *given: Any) -> Any:
        found.append(add.path)
        return of_file(store, add, *given)

    monkeypatch.setattr(quarantine_table, "stored_rows_of", noted)
    return found


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_what_is_open_is_counted_as_by_spark_and_read_once(kept: Kept, read: list[str], seed: int) -> None:
    rnd, sources = random.Random(seed), ["a", "b", "", None]
    steps: list[Callable[[int], object]] = [
        lambda n: kept.keep(*(kafka(100 * n + i, source=rnd.choice(sources)) for i in range(20))),
        lambda n: by_spark(kept.spark, kept.checkpoint, [kafka(-n, source="a")], Batch("q", n)),
        lambda n: kept.set_state(F.col("offset") % 7 == rnd.randrange(7)),
        lambda n: DeltaTable.forPath(kept.spark, kept.path).update(
            F.col("offset") % 5 == rnd.randrange(5), {"scope": F.lit(rnd.choice(["order", "table", None]))}
        ),
        lambda n: kept.spark.sql(f"OPTIMIZE delta.`{kept.path}`"),
        lambda n: kept.spark.sql(
            f"ALTER TABLE delta.`{kept.path}` SET TBLPROPERTIES (delta.enableDeletionVectors = {n % 2 == 1})"
        ),
    ]
    kept.keep(kafka(0))
    other = kept.opened()
    for number in range(1, 13):
        rnd.choice(steps)(number)
        expected = quarantine.open_counts(kept.spark, kept.checkpoint)
        assert kept.table.open_counts() == expected
        assert other.open_counts() == expected
        read.clear()
        assert kept.table.open_counts() == other.open_counts() == expected
        assert read == []


def test_what_was_added_here_need_not_be_read(kept: Kept, read: list[str]) -> None:
    assert kept.keep(kafka(1), line("a%20b.jsonl", 1))
    assert kept.table.open_counts() == {"demo.public.items": {"record": 2}}
    assert read == []
    assert kept.opened().open_counts() == {"demo.public.items": {"record": 2}}
    assert len(read) == 1


def test_very_many_records_are_left_to_spark(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept.keep(*(kafka(2 * n) for n in range(10)))
    monkeypatch.setattr(quarantine_table, "_MOST_ROWS", 9)
    other = kept.opened()
    assert other.open_counts() is None
    assert kept.table.open_counts() == {"demo.public.items": {"record": 10}}
    assert not kept.keep(kafka(5)), "the file may have its place"
    assert kept.keep(kafka(21))


def test_which_batches_may_have_corrected_lines(kept: Kept) -> None:
    def of(number: int, *names: str) -> bool:
        return kept.table.may_correct(Batch("q", number, {"files": [[each, "sha"] for each in names]}))

    assert not of(0, "a b.jsonl")
    assert kept.keep(kafka(1))
    assert not of(1, "a b.jsonl")
    kept.number = 1
    assert kept.keep(line("in/a%20b.jsonl", 3))
    assert not of(2, "a b.jsonl"), "the batch has just kept it"
    kept.table.begin()
    assert of(2, "a b.jsonl"), "the file may be another one by now"
    assert kept.keep(line("c.jsonl", 3))
    assert of(3, "other.jsonl", "in/a b.jsonl")
    assert not of(3, "c.jsonl", "d.jsonl", "a%20b.jsonl", "b.jsonl")
    assert of(4), "it is not known of which files it is"
    kept.set_state(F.col("file").isNotNull())
    kept.table.begin()
    assert not of(5, "a b.jsonl", "c.jsonl")


def test_the_number_of_files_stays_bounded(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside checkpoints of the log, which the engine writes."""
    properties = "SET TBLPROPERTIES (delta.checkpointInterval = 3)"
    kept.spark.sql(f"ALTER TABLE delta.`{kept.path}` {properties}")
    monkeypatch.setattr(quarantine_table, "_MANY_FILES", 4)
    most = 0
    for number in range(11):
        assert kept.keep(kafka(number))
        most = max(most, kept.files())
    assert most <= 5
    java_class(kept.spark, "org.apache.spark.sql.delta.DeltaLog").clearCache()
    assert kept.offsets() == list(range(11))
    assert kept.opened().open_counts() == {"demo.public.items": {"record": 11}}
    assert kept.table.open_counts() == {"demo.public.items": {"record": 11}}


def test_a_failure_to_combine_files_is_told_and_stops_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> str:
        raise RuntimeError("no room")

    monkeypatch.setattr(quarantine_table, "_MANY_FILES", 2)
    monkeypatch.setattr(quarantine_table.housekeeping, "optimize", fails)
    assert all(kept.keep(kafka(number)) for number in range(3))
    assert caplog.text.count("files of the quarantine could not be combined: RuntimeError: no room") == 1
    assert kept.offsets() == [0, 1, 2]
