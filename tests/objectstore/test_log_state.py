"""The state of a table on an object store is read, brought forward and summed up with few requests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver.java import java_class
from lakemirror.driver.writer.actions import CommitInfo, Transaction
from lakemirror.driver.writer.checkpointing import checkpoint
from lakemirror.driver.writer.entry import Committed, Known, Replaced, commit, known, name_of
from lakemirror.driver.writer.java_store import DeltaLogStore
from lakemirror.driver.writer.log_files import LAST_CHECKPOINT, checkpoint_of
from lakemirror.driver.writer.log_state import State, advance, read
from tests.driver.writer.delta_tables import Written
from tests.driver.writer.test_checkpointing import NOW
from tests.driver.writer.test_log_state import FULL, PLAIN, same
from tests.support.object_store import Bucket

pytestmark = pytest.mark.sources
_Found = TypeVar("_Found")


class Remote:
    """A table on a local disk, and its copy in a bucket: files have an ETag only if they are put."""

    def __init__(self, s3: SparkSession, bucket: Bucket, folder: Path) -> None:
        self.table, self._bucket = Written.of(folder, PLAIN), bucket
        self.log, self._there = DeltaLogStore(s3, f"{bucket.uri}/t"), set[str]()
        self._path = java_class(s3, "org.apache.hadoop.fs.Path")
        settings = s3._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(f"{bucket.uri}/t").getFileSystem(settings)
        self.put()

    def put(self) -> None:
        """Bring the copy up to date."""
        folder = self.table.path
        for each in sorted(each for each in folder.rglob("*") if each.is_file()):
            name = str(each.relative_to(folder))
            if name not in self._there:
                target = self._path(f"{self._bucket.uri}/t/{name}")
                self._files.copyFromLocalFile(self._path(str(each)), target)
                self._there.add(name)

    def apply(self) -> None:
        self.table.apply(FULL, summed=False)
        self.put()

    def state(self) -> State:
        found = read(self.log)
        assert found is not None
        return found

    def delete(self, name: str) -> None:
        (self._bucket.files / "t/_delta_log" / name).unlink()


@pytest.fixture
def remote(s3: SparkSession, bucket: Bucket, tmp_path: Path) -> Remote:
    return Remote(s3, bucket, tmp_path / "t")


def test_a_log_on_an_object_store(remote: Remote, s3: SparkSession, bucket: Bucket) -> None:
    counts: dict[str, int] = {}

    def counted(name: str, do: Callable[[], _Found]) -> _Found:
        before = bucket.proxy.requests
        found = do()
        counts[name] = bucket.proxy.requests - before
        return found

    table, log = remote.table, remote.log
    for _ in range(3):
        remote.apply()
    before = counted("read", remote.state)
    assert before == State(table.snapshot, at(log, 3))
    remote.apply()
    after = counted("advance", lambda: advance(log, before))
    assert after == State(table.snapshot, at(log, 4))
    assert counted("nothing new", lambda: advance(log, after)) == after
    assert counted("checkpoint", lambda: checkpoint(log, after, NOW)) is None
    for version in range(4):
        remote.delete(name_of(version))
    again = counted("read a checkpoint", remote.state)
    assert same(again.snapshot, table.snapshot)
    assert again.known == after.known
    rows = s3.read.format("delta").load(f"{bucket.uri}/t").select("id").collect()
    assert sorted(row.id for row in rows) == sorted(table.rows)
    remote.apply()
    assert checkpoint(log, remote.state(), NOW) is None  # in the place of the hint that is there
    remote.delete(name_of(4))
    remote.delete(checkpoint_of(4))
    assert same(remote.state().snapshot, table.snapshot)
    assert json.loads(log.read(LAST_CHECKPOINT) or b"")["version"] == 5
    # A listing, two requests for each file that is read, one for each look, and one more for what is missing.
    most = {"nothing new": 3, "advance": 6, "read a checkpoint": 6, "read": 11, "checkpoint": 17}
    assert all(counts[name] <= most[name] for name in most), counts


def at(log: DeltaLogStore, version: int) -> Known:
    found = known(log, version)
    assert found is not None
    return found


def test_a_table_that_is_not_there(s3: SparkSession, bucket: Bucket) -> None:
    log = DeltaLogStore(s3, f"{bucket.uri}/never")
    assert read(log) is None
    assert log.list_from(0) == []
    assert log.read(LAST_CHECKPOINT) is None


def test_a_table_that_was_made_anew(remote: Remote, bucket: Bucket) -> None:
    """Its newest entry has the name and the size of the one that is known. It gets nothing."""
    remote.apply()
    state, log = remote.state(), remote.log
    content = log.read(name_of(1))
    assert content is not None
    log.replace(name_of(1), content.replace(b'"lakemirror/q"', b'"lakemirror/r"'))
    info = CommitInfo(str(uuid.uuid4()), "q", 2, 1, NOW)
    assert commit(log, state.known, info, [Transaction("q", 2)]) == Replaced(1)
    assert advance(log, state) is None
    assert "gone" in str(checkpoint(log, state, NOW))
    assert not bucket.exists(f"t/_delta_log/{checkpoint_of(1)}")
    found = remote.state()
    assert (found.snapshot.transactions or {}).keys() == {"lakemirror/r"}
    assert isinstance(commit(log, found.known, info, [Transaction("q", 2)]), Committed)
