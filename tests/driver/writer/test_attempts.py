"""Whatever ends an attempt to commit, the next one leaves the table right, and few files are left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from lakemirror.driver import faults
from lakemirror.driver.writer.actions import Add, CommitInfo, Metadata
from lakemirror.driver.writer.attempt import Attempt, FilesGone, complete, store
from lakemirror.driver.writer.data_files import File
from lakemirror.driver.writer.entry import Committed, Conflict, LogStore, Replaced, name_of, text_of
from lakemirror.driver.writer.log_state import State, read
from lakemirror.driver.writer.retention import FILE_RETENTION
from lakemirror.driver.writer.snapshot import actions_of
from lakemirror.driver.writer.stores import Files, LocalFiles, LocalLogStore
from lakemirror.driver.writer.transaction import Prepared, prepare
from tests.driver.writer.delta_tables import History, Step, Written, histories
from tests.driver.writer.test_log_state import FULL, ONCE, PLAIN
from tests.driver.writer.test_readers import require_all

POINTS: tuple[faults.EntryPoint, ...] = get_args(faults.EntryPoint)
APP = "lakemirror/q"
NOW = 1_700_000_000_000
WEEK = 604_800_000


def state_of(table: Path) -> State:
    found = read(LocalLogStore(table / "_delta_log"))
    assert found is not None
    return found


def prepared(table: Written, step: Step = FULL) -> Prepared:
    return prepare(table.snapshot, table.change(step)[0], NOW)


def end(
    attempt: Attempt, table: Written, now: int = NOW, files: Files | None = None, log: LogStore | None = None
) -> object:
    """Complete an attempt as its batch would."""
    number = table.snapshot.version + 1
    info = CommitInfo(f"id-{number}-{now}", APP, number, table.snapshot.version, now)
    log = log or LocalLogStore(table.path / "_delta_log")
    return complete(attempt, files or LocalFiles(table.path), log, table.snapshot, table.last, info)


def data_of(table: Path) -> set[str]:
    """The paths of all files that are not the log's."""
    found = {str(each.relative_to(table)) for each in table.rglob("*") if each.is_file()}
    return {each for each in found if not each.startswith("_delta_log")}


def unreferenced(table: Path) -> set[str]:
    """Files that no entry names."""
    texts = [each.read_text() for each in (table / "_delta_log").glob("*.json")]
    adds = [each for text in texts for each in actions_of(text) if isinstance(each, Add)]
    vectors = {each.vector.file for each in adds if each.vector is not None}
    named = "".join(texts)
    return {each for each in data_of(table) - vectors if Path(each).name not in named}


@ONCE
@given(histories(), st.sampled_from(POINTS))
def test_a_crash_at_each_step(history: History, point: faults.EntryPoint) -> None:
    """The next attempt finds the batch in the log, or commits it; what a crash leaves are its own files."""
    with tempfile.TemporaryDirectory() as folder:
        table = Written.of(Path(folder) / "t", history)
        files = LocalFiles(table.path)
        for number, step in enumerate(history.steps, 1):
            change, new, gone, hidden = table.change(step)
            made = prepare(table.snapshot, change, NOW)
            before = unreferenced(table.path)
            faults.arm(point)
            with pytest.raises(faults.InjectedCrash):
                end(store(files, made, NOW), table)
            left = unreferenced(table.path) - before
            state = state_of(table.path)
            done = (state.snapshot.transactions or {}).get(APP)
            if point == "after-entry":
                assert done is not None
                assert done.version == number
                assert left == set()
            else:
                assert state == State(table.snapshot, table.last)
                assert left == {each.path for each in made.files}
                again = prepare(state.snapshot, change, NOW)
                outcome = end(store(files, again, NOW), table, NOW + 1)
                assert isinstance(outcome, Committed)
                assert unreferenced(table.path) - before == left
                state = state_of(table.path)
            table._learn(state.snapshot, state.known, new, gone, hidden)
        require_all(table)


CHILD = """
import os, signal, sys
from pathlib import Path
from lakemirror.driver import faults
from lakemirror.driver.writer.actions import CommitInfo, Transaction
from lakemirror.driver.writer.attempt import complete, store
from lakemirror.driver.writer.log_state import read
from lakemirror.driver.writer.schema import arrow_schema, parse
from lakemirror.driver.writer.stores import LocalFiles, LocalLogStore
from lakemirror.driver.writer.transaction import Change, prepare
import pyarrow as pa

table, point, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
faults.reach = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None
log, files = LocalLogStore(table / "_delta_log"), LocalFiles(table)
state = read(log)
done = state.snapshot.transactions.get("lakemirror/q")
if done is None or done.version < number:
    schema = arrow_schema(parse(state.snapshot.metadata.schema))
    rows = pa.Table.from_pylist([{"id": number, "text": "x" * 1000, "double": 1.0}], schema=schema)
    change = Change([rows], transactions=[Transaction("lakemirror/q", number)])
    attempt = store(files, prepare(state.snapshot, change, 1), 1)
    info = CommitInfo(f"id-{number}-{os.getpid()}", "lakemirror/q", number, state.snapshot.version, 1)
    complete(attempt, files, log, state.snapshot, state.known, info)
"""


@pytest.mark.long
def test_twenty_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Each leaves at most the files of one attempt, which VACUUM deletes once they are old."""
    table = Written.of(tmp_path / "t", PLAIN).path
    command = [sys.executable, "-c", CHILD, str(table)]
    environment = {**os.environ, "PYTHONPATH": "operator"}
    kills = 0
    for number in range(1, 8):
        for point in (*POINTS, "never"):
            done = subprocess.run([*command, point, str(number)], env=environment, check=False, timeout=120)
            kills += done.returncode == -signal.SIGKILL
            assert done.returncode in (0, -signal.SIGKILL)
    assert kills == 7 * len(POINTS)
    left = unreferenced(table)
    sizes = {each: (table / each).stat().st_size for each in data_of(table)}
    assert 0 < sum(sizes[each] for each in left) <= 14 * max(sizes.values())
    frame = spark.read.format("delta").load(str(table))
    assert sorted(row.id for row in frame.select("id").collect()) == list(range(1, 8))
    for each in table.rglob("*.parquet"):
        os.utime(each, (1, 1))
    spark.sql(f"VACUUM delta.`{table}`")
    assert unreferenced(table) == set()
    assert frame.count() == 7


# -- what is known of the entry decides --------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> Written:
    made = Written.of(tmp_path / "t", PLAIN)
    made.apply(FULL)
    return made


def test_files_of_a_commit_stay(table: Written) -> None:
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    assert len(attempt.paths) >= 2  # rows, and the deletion vector of others
    assert isinstance(end(attempt, table), Committed)
    assert data_of(table.path) >= set(attempt.paths)
    assert unreferenced(table.path) == set()


def test_files_of_a_conflict_are_deleted(table: Written) -> None:
    """Also those that tasks had stored before."""
    files, before = LocalFiles(table.path), data_of(table.path)
    files.write(File("part-early.parquet", b"x"))
    attempt = store(files, prepared(table), NOW, ["part-early.parquet"])
    assert data_of(table.path) == before | set(attempt.paths)
    log = LocalLogStore(table.path / "_delta_log")
    assert log.create(name_of(2), text_of(CommitInfo("x", "q", 0, 0, 1), []))
    assert isinstance(end(attempt, table), Conflict)
    assert data_of(table.path) == before


def test_files_for_a_table_that_is_another_one_are_deleted(table: Written) -> None:
    before = data_of(table.path)
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    os.utime(table.path / "_delta_log" / name_of(1), (5, 5))
    assert isinstance(end(attempt, table), Replaced)
    assert data_of(table.path) == before


class Broken(LocalLogStore):
    """A log whose puts have no answer."""

    def create(self, name: str, content: bytes) -> bool:
        raise TimeoutError


def test_files_of_an_unknown_outcome_stay(table: Written) -> None:
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    with pytest.raises(TimeoutError):
        end(attempt, table, log=Broken(table.path / "_delta_log"))
    assert data_of(table.path) >= set(attempt.paths)


class Failing(LocalFiles):
    """Fails at the n-th call of a method."""

    def __init__(self, table: Path, method: str, after: int = 0) -> None:
        super().__init__(table)
        self._method, self._left = method, after

    def _burn(self, method: str) -> None:
        if method == self._method:
            self._left -= 1
            if self._left < 0:
                raise OSError(28, "no space is left")

    def write(self, file: File) -> None:
        super().write(file)
        self._burn("write")

    def exists(self, path: str) -> bool:
        self._burn("exists")
        return super().exists(path)

    def delete(self, path: str) -> None:
        self._burn("delete")
        super().delete(path)


@pytest.mark.parametrize("after", [0, 1])
def test_files_that_cannot_all_be_stored_are_deleted(after: int, table: Written) -> None:
    before = data_of(table.path)
    with pytest.raises(OSError, match="no space"):
        store(Failing(table.path, "write", after), prepared(table), NOW)
    assert data_of(table.path) == before


def test_files_that_cannot_be_looked_for_are_deleted(table: Written) -> None:
    before = data_of(table.path)
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    with pytest.raises(OSError, match="no space"):
        end(attempt, table, NOW + WEEK, Failing(table.path, "exists"))
    assert data_of(table.path) == before
    assert state_of(table.path).snapshot == table.snapshot


def test_an_outcome_is_told_though_files_cannot_be_deleted(table: Written) -> None:
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    os.utime(table.path / "_delta_log" / name_of(1), (5, 5))
    assert isinstance(end(attempt, table, files=Failing(table.path, "delete")), Replaced)


# -- old attempts ---------------------------------------------------------------------------------------


def with_retention(table: Written, text: str) -> Written:
    given = table.snapshot.metadata.given
    metadata = Metadata({**given, "configuration": {**given["configuration"], FILE_RETENTION: text}})
    return replace(table, snapshot=replace(table.snapshot, metadata=metadata))


@pytest.mark.parametrize(
    ("age", "change", "looks"),
    [
        (0, None, False),
        (WEEK // 2 - 1, None, False),
        (WEEK // 2, None, True),
        (WEEK * 2, None, True),
        (-1, None, True),  # a clock was set back
        (29 * 60_000, "interval 1 hour", False),
        (30 * 60_000, "interval 1 hour", True),
        (0, "interval 0 hours", True),
        (0, "a while", True),
    ],
)
def test_an_old_attempt_looks_whether_its_files_are_there(
    age: int, change: str | None, looks: bool, table: Written
) -> None:
    table = table if change is None else with_retention(table, change)
    before, files = data_of(table.path), LocalFiles(table.path)
    attempt = store(files, prepared(table), NOW)
    lost = attempt.paths[-1]
    files.delete(lost)
    outcome = end(attempt, table, NOW + age)
    if looks:
        assert outcome == FilesGone((lost,))
        assert data_of(table.path) == before
        assert not (table.path / "_delta_log" / name_of(2)).exists()
        again = end(store(files, prepared(table), NOW + age), table, NOW + age)
        assert isinstance(again, Committed)
    else:
        assert isinstance(outcome, Committed)


def test_an_old_attempt_whose_files_are_there_commits(table: Written) -> None:
    attempt = store(LocalFiles(table.path), prepared(table), NOW)
    assert isinstance(end(attempt, table, NOW + WEEK), Committed)
    assert {unquote(path) for path, _ in state_of(table.path).snapshot.files} <= data_of(table.path)
