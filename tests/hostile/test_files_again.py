"""Files that come again: with known content, edited, and with lines that are no records."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api import CdcPipeline
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.orders import rows_are_dated
from lakemirror.driver.read.files.ledger import COMPACT_EVERY, InputFile, Ledger
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from tests.support.mirroring import Mirroring, at


class Folder(Mirroring):
    """A pipeline that reads JSON rows, or CSV, from a folder for each table."""

    def __init__(self, folder: Path, form: str = "json", **settings: Any) -> None:
        files = {"path": f"{folder}/input/*/*.{form}", "format": form, "maxFilesPerBatch": 2}
        target = {"path": f"{folder}/lake/{{table}}"}
        super().__init__(folder, {"source": {"files": files}, "target": target, **settings})

    def put(self, name: str, text: str) -> None:
        path = self.input / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def rows(self, spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, at(spark, f"{self.lake}/{table}").collect()))


def line(number: int, v: str, **more: Any) -> str:
    return json.dumps({"id": number, "v": v, **more}) + "\n"


TABLES = [
    {"source": "states", "primaryKey": ["id"]},
    {"source": "versions", "primaryKey": ["id"], "mode": "scd2"},
    {"source": "list", "mode": "append"},
]
ROWS = {"envelope": {"format": "custom", "fields": {"op": "op"}, "opMap": {"": "u"}}, "tables": TABLES}


@pytest.mark.guarantee(
    "Known content that comes again is applied unless its rows say when they are from or nothing came "
    "between; an edited file keeps its place"
)
@pytest.mark.thorough
def test_content_that_comes_again_counts_where_other_content_came_between(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Files of states, edited files in a resync, and all of it without a checkpoint."""
    folder = Folder(tmp_path, **ROWS)
    monday, tuesday = line(1, "a") + line(2, "a"), line(1, "b")
    for table in ("states", "versions", "list"):
        folder.put(f"{table}/1.json", monday)
        folder.put(f"{table}/2.json", monday)  # says nothing new
        folder.put(f"{table}/3.json", tuesday)
    first = folder.run(spark)
    assert sum("2.json is skipped" in each for each in first.warnings) == 3
    assert folder.rows(spark, "states") == [(1, "b"), (2, "a")]
    for table in ("states", "versions", "list"):
        folder.put(f"{table}/4.json", monday)
        folder.put(f"{table}/5.json", monday)
    folder.put("other/1.json", tuesday)  # content of another table is no content between
    second = folder.run(spark)
    assert sum("4.json has the same content as" in each for each in second.warnings) == 3
    assert sum("5.json is skipped" in each for each in second.warnings) == 3
    assert folder.rows(spark, "states") == [(1, "a"), (2, "a")]
    assert folder.rows(spark, "list") == [(1, "a"), (1, "a"), (1, "b"), (2, "a"), (2, "a")]
    versions = spark.read.format("delta").load(f"{folder.lake}/versions").where("id = 1").orderBy("__seq")
    assert [row["v"] for row in versions.collect()] == ["a", "b", "a"]
    assert versions.where("__valid_from < current_timestamp() - INTERVAL 1 DAY").isEmpty()  # not 1970

    before = folder.versions()
    shutil.rmtree(folder.checkpoint)
    (folder.input / "states/1.json").unlink()
    summary = folder.run(spark)
    assert folder.versions() == before
    assert (summary.counts.applied, summary.counts.quarantined) == (0, 0)

    for table in ("states", "versions", "list"):
        folder.put(f"{table}/6.json", tuesday)  # the list of a mirror's files knows it, the checkpoint, too
    folder.run(spark)
    assert folder.rows(spark, "states") == [(1, "b"), (2, "a")]

    folder.put("states/3.json", line(1, "edited") + line(3, "more"))
    tables = [{**TABLES[0], "resyncToken": "again"}, *TABLES[1:]]
    again = Folder(tmp_path, **{**ROWS, "tables": tables})
    summary = again.run(spark)
    assert any("states/3.json has changed since it was applied, and is read" in w for w in summary.warnings)
    assert folder.rows(spark, "states") == [(1, "b"), (2, "a"), (3, "more")]


@pytest.mark.long
@pytest.mark.guarantee(
    "Known content that comes again is applied unless its rows say when they are from or nothing came "
    "between; an edited file keeps its place"
)
def test_rows_with_a_time_of_their_own_say_nothing_new(spark: SparkSession, tmp_path: Path) -> None:
    settings = {**ROWS, "envelope": {"format": "custom", "fields": {"timestamp": "at"}}, "tables": TABLES[2:]}
    folder = Folder(tmp_path, **settings)
    folder.put("list/1.json", line(1, "a", at="2026-03-01T00:00:00Z"))
    folder.put("list/2.json", line(1, "b", at="2026-03-02T00:00:00Z"))
    folder.put("list/3.json", line(1, "a", at="2026-03-01T00:00:00Z"))
    summary = folder.run(spark)
    assert any("3.json is skipped" in each for each in summary.warnings)
    assert len(folder.rows(spark, "list")) == 2
    shutil.rmtree(folder.checkpoint)
    (folder.input / "list/1.json").unlink()
    assert folder.run(spark).counts.duplicates == 2
    assert len(folder.rows(spark, "list")) == 2


@pytest.mark.guarantee(
    "Known content that comes again is applied unless its rows say when they are from or nothing came "
    "between; an edited file keeps its place"
)
def test_what_the_checkpoint_knows_of_a_content_outlives_compaction(tmp_path: Path) -> None:
    """The last file with the content counts, and what came after it."""
    storage = LocalStorage(tmp_path)
    ledger = Ledger.load(storage, lambda name: name.partition("/")[0])

    def add(name: str, sha256: str, start: int) -> InputFile:
        file = InputFile(name, 1, 1, sha256, None, start, 10)
        number = ledger.next_id
        ledger.record([file], [], "query")
        ledger.commit(number)
        return file

    monday, tuesday = add("t/1", "a", 10), add("t/2", "b", 20)
    other = add("o/3", "a", 30)
    for loaded in (ledger, Ledger.load(storage, lambda name: name.partition("/")[0])):
        assert loaded.with_content("a", "t") == monday
        assert loaded.has_others_after(monday)
        assert not loaded.has_others_after(tuesday)
        assert not loaded.has_others_after(other)
    wednesday = add("t/4", "a", 40)
    for number in range(COMPACT_EVERY):
        add(f"x/{number}", str(number), 100 + 10 * number)
    loaded = Ledger.load(storage, lambda name: name.partition("/")[0])
    assert storage.list("files/state")
    assert loaded.with_content("a", "t") == wednesday
    assert not loaded.has_others_after(wednesday)


@pytest.mark.guarantee("A version begins at the time of its record, of Kafka or of its file, or is refused")
@pytest.mark.parametrize(
    ("envelope", "by", "dated"),
    [
        ({"format": "custom", "fields": {"key": "id"}}, "auto", False),
        ({"format": "custom", "fields": {"timestamp": "at"}}, "auto", True),
        ({"format": "custom", "fields": {"timestamp": "at"}}, "offset", False),
        ({"format": "custom", "fields": {"timestamp": "at"}}, "timestamp", True),
        ({"format": "debezium"}, "auto", True),
        ({"format": "debezium"}, "offset", False),
        ({"format": "debezium-flat"}, "auto", False),  # each row of it shows whether it is
        ({"format": "maxwell"}, "auto", True),
    ],
)
def test_which_rows_say_when_they_are_from(envelope: dict[str, Any], by: str, dated: bool) -> None:
    spec = {
        "source": {"files": {"path": "/in", "format": "json"}},
        "envelope": envelope,
        "ordering": {"by": by},
        "target": {"path": "/lake/{table}"},
        "checkpoint": "/state",
    }
    head = {"apiVersion": "lakemirror.io/v1alpha1", "kind": "CdcPipeline", "metadata": {"name": "x"}}
    assert rows_are_dated(CdcPipeline.from_dict({**head, "spec": spec}).spec) is dated


@pytest.mark.long
@pytest.mark.guarantee("A line that is no record stays one when it is replayed")
def test_a_line_that_is_no_record_is_none_when_it_is_replayed(spark: SparkSession, tmp_path: Path) -> None:
    """Also one that an earlier version kept without saying so. A version without any time is refused, too."""
    bad = '{"id": 9}\n{"id": 8}\n'  # one field instead of two, though a record on its own
    folder = Folder(tmp_path / "csv", "csv", **ROWS)
    folder.put("states/1.csv", f"id,v\n1,a\n{bad}")
    records = {
        "envelope": {"format": "custom", "fields": {"table": "t"}},
        "tables": [{**TABLES[0], "mode": "scd2"}],
    }
    saved = Mirroring(tmp_path / "saved", {**records, "target": {"path": f"{tmp_path}/saved/lake/{{table}}"}})
    saved.input.mkdir(parents=True)
    value = json.dumps({"id": 1, "v": "a", "t": "states"})
    untimed = {"topic": "x", "partition": 0, "offset": 2, "value": value}
    good = {**untimed, "offset": 1, "timestamp": 1_700_000_000_000}
    none = {"id": 9, "v": "no record", "t": "states"}
    lines = [json.dumps(each) + "\n" for each in (good, none, untimed)]
    (saved.input / "1.jsonl").write_text("".join(lines))
    for mirroring, number in ((folder, 2), (saved, 2)):
        mirroring.run(spark)
        path = quarantine.path(str(mirroring.checkpoint))
        reasons = kept(spark, path)
        assert len(reasons) == number
        if mirroring is saved:
            DeltaTable.forPath(spark, path).update(set={"problem": F.lit(None).cast("string")})
        outcome = replay(mirroring.pipeline, spark=spark)
        assert (outcome.records, outcome.still_bad) == (number, number)
        assert kept(spark, path) == reasons
        assert [row["id"] for row in at(spark, f"{mirroring.lake}/states").collect()] in ([1], ["1"])
    [version] = (
        spark.read.format("delta")
        .load(f"{saved.lake}/states")
        .selectExpr("unix_seconds(__valid_from)")
        .collect()
    )
    assert version[0] == 1_700_000_000
    assert any("nothing says when its version begins" in reason for _, _, reason in reasons)


def kept(spark: SparkSession, path: str) -> list[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(path).where("state = 'open'")
    return sorted(map(tuple, rows.select("source", "row", "reason").collect()))
