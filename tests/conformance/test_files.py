"""Files of rows, as AWS DMS and others write them: each row once, with its types, whatever happens.

Layout of DMS: https://docs.aws.amazon.com/dms/latest/userguide/CHAP_Target.S3.html
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.read.files import feed
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime import retry
from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.applied_files import AppliedFiles
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.write import writers
from tests.driver.read.test_rows_of_files import TYPES, typed_row
from tests.support.mirroring import Mirroring, at

OPS = {"I": "c", "U": "u", "D": "d", "": "r"}
DMS = {"format": "custom", "fields": {"op": "Op"}, "opMap": OPS}


class Files(Mirroring):
    """A pipeline that reads files of rows from ``input``."""

    def __init__(self, folder: Path, source: Mapping[str, Any], **settings: Any) -> None:
        target = {"path": f"{folder}/lake/{{schema}}/{{table}}"}
        path = {"path": str(folder / "input"), "maxFilesPerBatch": 1}
        super().__init__(folder, {"source": {"files": {**path, **source}}, "target": target, **settings})

    def put(self, name: str, text: str | bytes, at: int | None = None) -> Path:
        path = self.input / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        if at is not None:
            os.utime(path, (at, at))
        return path

    def anew(self, spark: SparkSession) -> RunSummary:
        """A run with the checkpoint gone."""
        shutil.rmtree(self.checkpoint)
        return self.run(spark)

    def rows(self, spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, at(spark, f"{self.lake}/{table}").collect()))


@pytest.mark.long
@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
def test_csv_of_dms_is_mirrored_once(spark: SparkSession, tmp_path: Path) -> None:
    """A full load without op, then changes; the checkpoint is deleted, and files are copied."""
    columns = ["Op", "EMP_ID", "LAST", "FIRST", "HIRED", "OFFICE"]
    files = Files(
        tmp_path,
        {
            "format": "csv",
            "path": f"{tmp_path}/input/*/*/*.csv",
            "order": "time",
            "maxFilesPerBatch": 3,
            "csv": {"header": False, "columns": columns, "nullValue": "NULL"},
        },
        envelope=DMS,
        tables=[
            {
                "source": "hr.employees",
                "primaryKey": ["EMP_ID"],
                "columns": {"types": {"EMP_ID": "int", "HIRED": "date"}},
            }
        ],
    )
    files.put("hr/employees/LOAD00000001.csv", '101,Smith,Bob,2014-06-04,"New ""York"""\n102,A,,NULL,x\n', 1)
    files.put("hr/employees/LOAD0000000A.csv", '103,Lopez,"a\nb",2014-10-08,NULL\n104,bad\n', 2)
    changes = "I,105,Adams,Al,2015-01-01,Rome\nU,101,Smith,Bob,2015-10-08,Paris\n"
    changes += "D,102,A,,NULL,x\nU,106,x,x,soon,x\n"
    files.put("hr/employees/20141029-1134010000.csv", changes, 3)
    summary = files.run(spark)
    assert summary.counts.records == 8
    wanted = [
        "(101, 'Smith', 'Bob', datetime.date(2015, 10, 8), 'Paris')",
        "(103, 'Lopez', 'a\\nb', datetime.date(2014, 10, 8), None)",
        "(105, 'Adams', 'Al', datetime.date(2015, 1, 1), 'Rome')",
    ]
    assert [repr(row) for row in files.rows(spark, "hr/employees")] == wanted
    kept = spark.read.format("delta").load(f"{files.checkpoint}/quarantine").orderBy("file", "row")
    bad = [(row.file.rpartition("/")[2], row.row, row.reason) for row in kept.collect()]
    assert bad[0] == ("20141029-1134010000.csv", 3, "the value does not fit HIRED (date)")
    assert bad[1] == ("LOAD0000000A.csv", 2, "the line has 2 fields instead of 6 or 5")

    before = files.versions()
    load = (files.input / "hr/employees/LOAD00000001.csv").read_bytes()
    files.put("hr/employees/LOAD00000002.csv", load, 1)  # nothing came between the two
    summary = files.anew(spark)
    assert files.versions() == before
    assert [repr(row) for row in files.rows(spark, "hr/employees")] == wanted
    assert summary.counts.duplicates == 7  # and the line that is none is quarantined again
    said = " ".join(summary.warnings)
    assert "hr/employees/LOAD00000001.csv is not applied to hr.employees again" in said
    assert "LOAD00000002.csv is skipped: hr/employees/LOAD00000001.csv has the same content" in said


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No clock decides: not whether a target may move, which rows of files are newer, how far the source is "
    "applied, or when the next comparison is due"
)
def test_a_clock_that_was_ahead_makes_no_file_old(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even without the checkpoint, and if the row was deleted: tables tell which offsets they have."""
    files = Files(tmp_path, LINES, **{**KEYED, "envelope": DMS})
    with monkeypatch.context() as ahead:
        ahead.setattr(feed, "_clock", lambda: 2**60)
        files.put("a.json", '{"Op": "I", "id": 1, "v": "a"}\n{"Op": "I", "id": 2, "v": "a"}\n')
        files.put("b.json", '{"Op": "D", "id": 2, "v": "a"}\n')
        files.run(spark)
    assert files.rows(spark, "default/t") == [(1, "a")]
    later = '{"Op": "U", "id": 1, "v": "c"}\n{"Op": "I", "id": 2, "v": "c"}\n'
    files.put("c.json", later)
    summary = files.anew(spark)
    assert (summary.counts.applied, summary.counts.stale) == (2, 0)
    assert files.rows(spark, "default/t") == [(1, "c"), (2, "c")]
    files.put("d.json", '{"Op": "U", "id": 1, "v": "d"}\n')
    assert files.run(spark).counts.applied == 1
    # A file keeps its offsets when it grows: its rows are no newer than those of later files.
    files.put("c.json", later + '{"Op": "I", "id": 3, "v": "c"}\n')
    files.run(spark)
    assert files.rows(spark, "default/t") == [(1, "d"), (2, "c"), (3, "c")]


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
def test_nothing_is_appended_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Rows without key, time and position, equal ones too, in two tables; crashes, and no checkpoint."""
    files = Files(
        tmp_path,
        {"format": "json", "path": f"{tmp_path}/input/*/*.json"},
        envelope={"format": "custom", "fields": {"after": "row"}},
        defaults={"mode": "append"},
    )
    rows = '{"row": {"v": 1}}\n{"row": {"v": 1}}\n'
    files.put("one/a.json", rows)
    files.put("two/a.json", rows)
    assert files.run(spark).counts.applied == 4
    files.put("one/b.json", '{"row": {"v": 2}}\n')
    for point in ("after-tombstones", "after-rows"):  # its files are noted, and then its rows are there
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            files.anew(spark)
    summary = files.anew(spark)
    assert summary.counts.duplicates == 5
    assert files.rows(spark, "default/one") == [(1,), (1,), (2,)]
    assert files.rows(spark, "default/two") == [(1,), (1,)]


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
def test_a_batch_that_was_not_written_leaves_no_mark(spark: SparkSession, tmp_path: Path) -> None:
    """A table that is held: its file is noted, never committed, and a later batch of the table does not
    vouch for it.
    """
    files = Files(
        tmp_path,
        {"format": "json", "table": "t"},
        envelope={"format": "custom", "fields": {"after": "row"}},
        defaults={"mode": "append"},
    )
    files.put("a.json", '{"row": {"v": 1}}\n')
    files.run(spark)
    files.put("b.json", '{"row": {"v": 2}}\n')

    def refuse(*given: Any) -> Any:
        raise ValueError("the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "append", refuse)
        summary = files.run(spark)
    assert summary.counts.refused == 1
    shutil.rmtree(files.checkpoint / "quarantine")  # so that held records do not come back by themselves
    files.put("c.json", '{"row": {"v": 3}}\n')
    files.run(spark)
    assert files.rows(spark, "default/t") == [(1,), (3,)]
    assert files.anew(spark).counts.applied == 1
    assert files.rows(spark, "default/t") == [(1,), (2,), (3,)]


@pytest.mark.thorough
def test_rows_that_were_held_are_known_once_they_are_applied(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(
        tmp_path,
        {"format": "json", "table": "t"},
        envelope={"format": "custom", "fields": {"after": "row"}},
        defaults={"mode": "append"},
    )
    files.put("a.json", '{"row": {"v": 1}}\n{"row": {"v": 2}}\n')

    def refuse(*given: Any) -> Any:
        raise ValueError("the disk is full")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writers, "append", refuse)
        assert files.run(spark).counts.refused == 2
    files.run(spark)
    assert files.rows(spark, "default/t") == [(1,), (2,)]
    assert files.anew(spark).counts.duplicates == 2
    assert files.rows(spark, "default/t") == [(1,), (2,)]


@pytest.mark.long
@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
@pytest.mark.parametrize("times", [1, pytest.param(99, marks=pytest.mark.thorough)])
def test_a_list_of_files_that_cannot_be_read_does_not_count_as_empty(
    times: int, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the rows of an old file would be applied again as the newest ones."""
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.1,))
    files = Files(
        tmp_path,
        {"format": "json", "table": "t"},
        envelope={"format": "custom", "fields": {"after": "row"}},
        tables=[{"source": "t", "primaryKey": ["id"]}],
    )
    files.put("a.json", '{"row": {"id": 1, "v": "old"}}\n')
    files.put("b.json", '{"row": {"id": 1, "v": "new"}}\n')
    files.run(spark)
    (files.input / "b.json").unlink()
    whole, left = AppliedFiles.among, [times]

    def among(*given: Any) -> set[str]:
        if left[0]:
            left[0] -= 1
            raise OSError("503 Slow Down")
        return whole(*given)

    with monkeypatch.context() as broken:
        broken.setattr(AppliedFiles, "among", among)
        if times > 1:
            with pytest.raises(OSError, match="503 Slow Down"):
                files.anew(spark)
        else:
            assert files.anew(spark).counts.duplicates == 1
    files.run(spark)
    assert files.rows(spark, "default/t") == [(1, "new")]


KEYED: Mapping[str, Any] = {
    "envelope": {"format": "custom", "fields": {"after": "row"}},
    "tables": [{"source": "t", "primaryKey": ["id"]}],
}
LINES: Mapping[str, Any] = {"format": "json", "table": "t"}


def without_reading_mirrors(broken: pytest.MonkeyPatch) -> None:
    """Makes every attempt fail to look at a mirror, not at the tables beside it."""
    refresh = Mirror.refresh

    def fails(self: Mirror) -> None:
        refresh(self)
        raise OSError("503 Slow Down")

    broken.setattr(Mirror, "refresh", fails)


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No file of rows is applied to a table twice, even without a checkpoint or while its mirror cannot be "
    "read, and none is lost"
)
@pytest.mark.parametrize(
    "why",
    [
        pytest.param("unreadable", marks=pytest.mark.long),
        pytest.param("suspended", marks=pytest.mark.thorough),
    ],
)
def test_a_table_that_cannot_be_asked_for_its_files_is_asked_later(
    why: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of an old file are held without a checkpoint. Applied, they would be the newest ones."""
    files = Files(tmp_path, LINES, **KEYED)
    files.put("a.json", '{"row": {"id": 1, "v": "old"}}\n{"row": {"id": 2, "v": "old"}}\n')
    files.put("b.json", '{"row": {"id": 1, "v": "new"}}\n')
    files.run(spark)
    (files.input / "b.json").unlink()
    if why == "suspended":
        parked = Files(tmp_path, LINES, **{**KEYED, "tables": [{**KEYED["tables"][0], "suspend": True}]})
        assert parked.anew(spark).counts.refused == 2
        files = Files(tmp_path, LINES, **KEYED)
    else:
        with monkeypatch.context() as broken:
            without_reading_mirrors(broken)
            assert files.anew(spark).counts.refused == 2
    files.put("c.json", '{"row": {"id": 3, "v": "new"}}\n')
    with monkeypatch.context() as broken:  # the mirror can be read now, but not the list of its files
        whole = AppliedFiles.among

        def among(self: AppliedFiles, hashes: Iterable[str], app_id: str, batch_id: int) -> set[str]:
            if "/replay-" in app_id:
                raise OSError("503 Slow Down")
            return whole(self, hashes, app_id, batch_id)

        broken.setattr(AppliedFiles, "among", among)
        summary = files.run(spark)
    assert any("t could not be applied: OSError: 503 Slow Down" in each for each in summary.warnings)
    rows = [(1, "new"), (2, "old"), (3, "new")]
    assert files.rows(spark, "default/t") == rows
    assert quarantine.open_counts(spark, str(files.checkpoint)) == {"t": {"table": 2}}
    assert files.run(spark).counts.duplicates == 2
    assert files.rows(spark, "default/t") == rows
    assert quarantine.open_counts(spark, str(files.checkpoint)) == {}


@pytest.mark.thorough
def test_rows_that_a_resync_reads_again_are_applied_although_the_table_has_their_file(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also if they are held first: a row is gone that somebody has deleted from the mirror."""
    files = Files(tmp_path, LINES, **KEYED)
    files.put("a.json", '{"row": {"id": 1, "v": "a"}}\n{"row": {"id": 2, "v": "a"}}\n')
    files.run(spark)
    DeltaTable.forPath(spark, f"{files.lake}/default/t").delete("id = 1")
    again = Files(tmp_path, LINES, **{**KEYED, "tables": [{**KEYED["tables"][0], "resyncToken": "1"}]})
    with pytest.MonkeyPatch.context() as broken:
        without_reading_mirrors(broken)
        assert again.run(spark).counts.refused == 2
    assert again.run(spark).counts.refused == 0
    assert again.rows(spark, "default/t") == [(1, "a"), (2, "a")]


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["parquet", pytest.param("avro", marks=pytest.mark.thorough)])
def test_typed_rows_keep_their_types(form: str, spark: SparkSession, tmp_path: Path) -> None:
    """A row with op and key, and its next version in a file with one column more."""
    files = Files(
        tmp_path,
        {"format": form, "table": "lab.all_types"},
        envelope={"format": "custom", "fields": {"op": "Op", "key": "num"}, "opMap": OPS},
    )
    old = spark.createDataFrame([("I", *typed_row())], f"Op STRING, {TYPES}")
    new = spark.createDataFrame([("U", *typed_row(), 5)], f"Op STRING, {TYPES}, more SMALLINT")
    for name, frame in (("a", old), ("b", new)):
        frame.coalesce(1).write.format(form).save(str(tmp_path / name))
        written = next((tmp_path / name).glob(f"*.{form}"))
        files.put(f"{name}.{form}", written.read_bytes())
    summary = files.run(spark)
    assert summary.counts.applied == 2
    mirror = at(spark, f"{files.lake}/lab/all_types")
    kinds = dict(new.drop("Op").dtypes)
    if form == "avro":  # which has no integers below 32 bits
        kinds |= {"i8": "int", "more": "int"}
    assert dict(mirror.dtypes) == kinds
    [row] = mirror.select(*new.drop("Op").columns).collect()
    [wanted] = new.drop("Op").collect()
    assert repr(row) == repr(wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["parquet", pytest.param("avro", marks=pytest.mark.thorough)])
def test_typed_rows_are_ordered_by_their_columns(form: str, spark: SparkSession, tmp_path: Path) -> None:
    """By a decimal, and then a time: newer rows come in earlier files and later ones, and so do deletes. Two
    files have columns of other types.
    """
    files = Files(
        tmp_path,
        {"format": form, "table": "lab.t"},
        envelope={"format": "custom", "fields": {"op": "Op", "key": "id"}, "opMap": OPS},
        ordering={"by": "columns", "columns": ["version", "changed"]},
    )
    day, other = "DATE'2026-01-0{}'", "TIMESTAMP_NTZ'2026-01-0{} 12:00:00'"
    contents = [
        [(1, "U", "655.36", day.format(1), "new"), (2, "I", "-3276.80", day.format(1), "old")],
        [(1, "U", "-3276.80", day.format(9), "old"), (2, "U", "655.36", day.format(1), "new")],
        [(3, "D", "655.36", day.format(2), "gone"), (4, "U", "1.00", day.format(3), "new")],
        [(3, "U", "655.36", day.format(1), "late"), (4, "I", "1.00", day.format(2), "old")],
        [(1, "U", "655.36", other.format(1), "newest"), (4, "U", "1.00", other.format(2), "old")],
    ]
    for number, changes in enumerate(contents):
        values = ", ".join(
            f"({key}, '{op}', CAST({version} AS DECIMAL(20,2)), {changed}, '{text}')"
            for key, op, version, changed, text in changes
        )
        made = spark.sql(f"SELECT * FROM VALUES {values} AS t(id, Op, version, changed, text)")
        made.coalesce(1).write.format(form).save(str(tmp_path / str(number)))
        files.put(f"{number}.{form}", next((tmp_path / str(number)).glob(f"*.{form}")).read_bytes())
    summary = files.run(spark)
    assert summary.counts.quarantined == summary.counts.refused == 0
    mirror = at(spark, f"{files.lake}/lab/t")
    assert sorted((row.id, row.text) for row in mirror.collect()) == [(1, "newest"), (2, "new"), (4, "new")]


def test_envelopes_of_debezium_in_parquet_keep_the_types_of_rows(spark: SparkSession, tmp_path: Path) -> None:
    files = Files(tmp_path, {"format": "parquet"}, envelope={"format": "debezium"})
    row = "STRUCT<id: INT, price: DECIMAL(10,2), at: TIMESTAMP_NTZ>"
    source = "STRUCT<connector: STRING, name: STRING, db: STRING, schema: STRING, table: STRING, lsn: BIGINT>"
    names = "'name', 'x', 'db', 'shop', 'schema', 'public', 'table', 'p'"
    changes = spark.sql(
        f"""SELECT CAST(NULL AS {row}) AS before,
            CAST(named_struct('id', id, 'price', id + 0.25, 'at', TIMESTAMP_NTZ'2026-01-01 00:00:00.000001')
                 AS {row}) AS after,
            CAST(named_struct('connector', 'postgresql', {names}, 'lsn', id + 10) AS {source}) AS source,
            'c' AS op, 1790000000000 AS ts_ms
        FROM range(2)"""
    )
    changes.coalesce(1).write.parquet(str(tmp_path / "w"))
    files.put("a.parquet", next((tmp_path / "w").glob("*.parquet")).read_bytes())
    files.run(spark)
    mirror = at(spark, f"{files.lake}/public/p")
    assert dict(mirror.dtypes) == {"id": "int", "price": "decimal(10,2)", "at": "timestamp_ntz"}
    assert sorted(str(row.price) for row in mirror.collect()) == ["0.25", "1.25"]


@pytest.mark.thorough
def test_structs_get_the_members_that_they_lack(spark: SparkSession, tmp_path: Path) -> None:
    """Of typed files, and of JSON, whose values alone say what they are. What is there keeps its type."""
    envelope = {"format": "custom", "fields": {"op": "Op", "key": "id"}, "opMap": OPS}
    typed = Files(tmp_path / "typed", {"format": "parquet", "table": "lab.t"}, envelope=envelope)
    plain = Files(tmp_path / "plain", {"format": "json", "table": "lab.t"}, envelope=envelope)
    for number, (rows, lines) in enumerate(
        (
            (
                "SELECT 1 id, named_struct('a', 1L) s, array(named_struct('p', named_struct('x', 1))) l",
                '{"id":1,"s":{"a":1},"l":[{"p":{"x":1}}]}',
            ),
            (
                "SELECT 'U' Op, 2 id, named_struct('odd `name', 'n', 'a', 2) s, "
                "array(named_struct('p', named_struct('y', 2.5D), 'q', 3)) l",
                '{"Op":"U","id":2,"s":{"odd `name":"n","a":2},"l":[{"p":{"y":2.5},"q":3}]}',
            ),
            (
                "SELECT 'U' Op, 3 id, named_struct('b', true) s, CAST(NULL AS ARRAY<STRUCT<z: INT>>) l",
                '{"Op":"U","id":3,"s":{"b":true},"l":null}\n{"Op":"U","id":4,"s":{"a":"text"}}',
            ),
        )
    ):
        spark.sql(rows).coalesce(1).write.parquet(str(tmp_path / str(number)))
        typed.put(f"{number}.parquet", next((tmp_path / str(number)).glob("*.parquet")).read_bytes())
        plain.put(f"{number}.json", f"{lines}\n")
    for files, whole in ((typed, "int"), (plain, "bigint")):
        summary = files.run(spark)
        mirror = at(spark, f"{files.lake}/lab/t")
        inner = f"struct<x:{whole},y:double>"
        assert dict(mirror.dtypes)["s"] == "struct<a:bigint,odd `name:string,b:boolean>"
        assert dict(mirror.dtypes)["l"].startswith(f"array<struct<p:{inner},q:{whole}")
        found = [(r.id, tuple(r.s), r.l and [(tuple(e.p), e.q) for e in r.l]) for r in mirror.collect()]
        assert sorted(found) == [
            (1, (1, None, None), [((1, None), None)]),
            (2, (2, "n", None), [((None, 2.5), 3)]),
            (3, (None, None, True), None),
        ]
        drift = summary.tables["lab.t"].drift
        assert {(each.column, each.change, each.action, each.feature) for each in drift} == {
            ("s", "widened", "altered", "columnMapping"),
            ("l", "widened", "altered", None),
        }
    assert summary.counts.quarantined == 1
