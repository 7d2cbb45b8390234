"""Folders into which others write: whatever lands there, the other files are mirrored."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.read.files import waiting
from lakemirror.driver.read.files.waiting import InputIncomplete
from tests.support.mirroring import Mirroring, at

SECRET = "id,v\n666,se cret\n"


@pytest.mark.guarantee("A link out of the folder of a source is not read")
@pytest.mark.guarantee(
    "A file whose lines, header, parts or compression are beyond a limit is set aside by name, also "
    "if a batch of an earlier run has it"
)
@pytest.mark.long
def test_what_others_put_into_a_folder_stops_no_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for each table, each with a good file and with one that must not be read.

    The driver's own files, a line without end, more than can be decompressed, and a header for each file.
    """
    monkeypatch.setattr(waiting, "SETTLE_SECONDS", 0.5)
    monkeypatch.setattr(waiting, "PATIENCE_ONCE_SECONDS", 1.0)
    files = {"path": f"{tmp_path}/input/*/*", "format": "csv"}
    envelope = {"format": "custom", "fields": {"key": "id"}}
    target = {"path": f"{tmp_path}/lake/{{table}}"}
    mirroring = Mirroring(tmp_path, {"source": {"files": files}, "envelope": envelope, "target": target})
    (tmp_path / "mounted").mkdir()
    (tmp_path / "mounted" / "password").write_text(SECRET)
    bombs = {
        "links/b.csv": b"",
        "lines/b.csv.gz": gzip.compress(b"id,v\n") + gzip.compress(b"1" * 2**20) * 64,
        "ratios/b.csv.gz": gzip.compress(b"id,v\n") + gzip.compress(b"1,a\n" * 2**18) * 300,
        "cut/b.csv.bz2": bz2.compress(b"id,v\n1,a\n")[:30],
    }
    for name, content in bombs.items():
        path = mirroring.input / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        (path.parent / "a.csv").write_text("id,v\n1,a\n")
        (path.parent / "c.csv").write_text("id,v\n1,b\n2,c\n")
    (mirroring.input / "links/b.csv").unlink()
    (mirroring.input / "links/b.csv").symlink_to(tmp_path / "mounted" / "password")
    (mirroring.input / "mounted").symlink_to(tmp_path / "mounted")  # a table of its own, if it were one
    (mirroring.input / "loop").mkdir()
    (mirroring.input / "loop" / "a.csv").symlink_to("a.csv")
    (mirroring.input / "headers").mkdir()
    for number in range(40):
        (mirroring.input / "headers" / f"{number:02}.csv").write_text(f"id,c{number}\n{number},x\n")
    with pytest.raises(InputIncomplete) as told:
        mirroring.run(spark)
    assert sorted(told.value.names) == sorted([*bombs, "mounted/password"])
    for table in ("links", "lines", "ratios", "cut"):
        rows = sorted((row["id"], row["v"]) for row in at(spark, f"{mirroring.lake}/{table}").collect())
        assert rows == [("1", "b"), ("2", "c")], table
    headers = at(spark, f"{mirroring.lake}/headers")
    assert headers.count() == 40
    assert {f"c{number}" for number in range(40)} <= set(headers.columns)
    assert not (mirroring.lake / "mounted").exists()
    mirrored = b"".join(path.read_bytes() for path in tmp_path.rglob("*.parquet") if path.is_file())
    assert b"se cret" not in mirrored
