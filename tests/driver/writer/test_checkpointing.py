"""A checkpoint says what the entries say that it sums up: they can be deleted, and nobody sees it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakemirror.driver.faults import InjectedCrash
from lakemirror.driver.writer.actions import Action, Add, CommitInfo, Domain, Metadata, Remove, Transaction
from lakemirror.driver.writer.checkpointing import REMOVE, checkpoint, is_due, keep_short
from lakemirror.driver.writer.entry import known, name_of, text_of
from lakemirror.driver.writer.log_checkpoints import removed
from lakemirror.driver.writer.log_files import LAST_CHECKPOINT, Damaged, Missing, checkpoint_of
from lakemirror.driver.writer.retention import milliseconds, of_files
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.stores import LocalLogStore
from lakemirror.driver.writer.vectors import Descriptor
from tests.driver.writer.delta_tables import History, Written, histories
from tests.driver.writer.test_log_state import FULL, KINDS, ONCE, PLAIN, checkpointed, log_of, same, state_of
from tests.driver.writer.test_readers import require_all

NOW = 1_700_000_000_000
"""The time of the first commit of `Written`; the others come a millisecond after each other."""
WEEK = 604_800_000


def entries_of(table: Written) -> dict[str, str]:
    return {each.name: each.read_text() for each in (table.path / "_delta_log").glob("*.json")}


def removed_by(entries: dict[str, str], since: int = 0) -> list[str]:
    """What entries say was removed after a time, and not added again."""
    found: dict[Any, Any] = {}
    for _, text in sorted(entries.items()):
        given = [json.loads(each) for each in text.splitlines()]
        found |= {_key(each["remove"]): each["remove"] for each in given if "remove" in each}
        for each in [each["add"] for each in given if "add" in each]:
            found.pop(_key(each), None)
    return _texts([each for each in found.values() if each["deletionTimestamp"] > since])


def _key(each: Any) -> tuple[Any, ...]:
    vector = each.get("deletionVector") or {}
    return each["path"], vector.get("pathOrInlineDv"), vector.get("offset")


def _texts(listed: list[Any]) -> list[str]:
    wanted = {each.name for each in REMOVE}
    return sorted(
        json.dumps(
            {name: each[name] for name in wanted & each.keys() if each[name] is not None}, sort_keys=True
        )
        for each in listed
    )


def removed_in(table: Written, version: int) -> list[str]:
    """What a checkpoint says was removed."""
    log = table.path / "_delta_log"
    read = removed([checkpoint_of(version)], lambda name: (log / name).read_bytes(), REMOVE)
    rows = pa.chunked_array(read, REMOVE).to_pylist()
    return _texts([{**each, "partitionValues": dict(each["partitionValues"] or [])} for each in rows])


def cleaned(table: Written, version: int) -> None:
    """Delete what comes before the checkpoint of a version, and its own entry's statistics file."""
    for each in (table.path / "_delta_log").iterdir():
        if each.name[:20].isdigit() and int(each.name[:20]) < version:
            each.unlink()


@ONCE
@given(histories(), st.data())
def test_a_checkpoint_says_what_the_entries_say(history: History, data: st.DataObject) -> None:
    check_checkpoints(history, data)


def check_checkpoints(history: History, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Written.of(Path(folder) / "t", history)
        entries = entries_of(table)
        for step in history.steps:
            table.apply(step, summed=False)
            entries |= entries_of(table)
            if not data.draw(st.booleans(), "checkpoint"):
                continue
            before, version = state_of(table), table.snapshot.version
            assert checkpoint(log_of(table), before, NOW) is None
            assert removed_in(table, version) == removed_by(entries)
            cleaned(table, version)
            after = state_of(table)
            assert same(after.snapshot, before.snapshot)
            assert after.known == before.known
        require_all(table)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_removed_is_taken_over_from_every_kind(kind: str, tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", replace(PLAIN, partitions=("text",)))
    # Or else delta-rs leaves out what was removed when these tests say that it is now.
    commit(table, with_properties(table.snapshot, deletedFileRetentionDuration="interval 9999 weeks"))
    entries: dict[str, str] = {}
    for number in range(6):
        table.apply(FULL if number % 2 else replace(FULL, gone=(1.0,)), summed=False)
        entries |= entries_of(table)
        if number == 3:
            checkpointed(table, KINDS[kind])
            cleaned(table, table.snapshot.version)
    assert len(removed_by(entries)) > 5
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    assert same(state_of(table).snapshot, table.snapshot)
    assert removed_in(table, table.snapshot.version) == removed_by(entries)
    require_all(table)


def test_what_was_removed_long_ago_is_left_out(tmp_path: Path) -> None:
    """From entries and from the checkpoint before. The table was written in a few ms, see `NOW`."""
    table = Written.of(tmp_path / "t", PLAIN)
    entries = {}
    for number in range(8):
        table.apply(FULL, summed=False)
        entries |= entries_of(table)
        if number in (3, 7):
            now = NOW + WEEK + number - 2
            assert checkpoint(log_of(table), state_of(table), now) is None
            expected = removed_by(entries, now - WEEK)
            assert removed_in(table, number + 1) == expected
            assert 0 < len(expected) < len(removed_by(entries))


def commit(table: Written, *actions: Action) -> None:
    version = table.snapshot.version + 1
    log = log_of(table)
    assert log.create(name_of(version), text_of(CommitInfo("x", "q", 0, 0, 1), actions))
    table.snapshot, table.last = table.snapshot.after(actions), known(log, version) or table.last


def test_a_file_that_comes_back(tmp_path: Path) -> None:
    """As by RESTORE: it was removed before the last checkpoint, and is there again, and removed again."""
    table = Written.of(tmp_path / "t", PLAIN)
    vector = Descriptor("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    a, b, c = (Add(f"{name}.parquet", {}, 1, 1, '{"numRecords":9}') for name in "abc")
    commit(table, a, b, c)
    commit(table, *(each.removed(NOW) for each in (a, b, c)))
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    commit(table, a, b.hiding(vector), c)
    commit(table, c.removed(NOW + 5))
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    cleaned(table, 4)
    assert state_of(table).snapshot.files.keys() == {a.key, b.hiding(vector).key}
    told = [json.loads(each) for each in removed_in(table, 4)]
    assert [(each["path"], each["deletionTimestamp"]) for each in told] == [
        ("b.parquet", NOW),
        ("c.parquet", NOW + 5),
    ]


def test_everything_about_files_and_domains_is_kept(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    told = {"tags": {"a": "b"}, "baseRowId": 7, "defaultRowCommitVersion": 2, "clusteringProvider": "liquid"}
    file = Add(
        "a%20b.parquet", {"p": None, "q": ""}, 1 << 40, 1, '{"numRecords":1}', more=told, changes=False
    )
    old = Remove("old.parquet", None, None, NOW)
    gone = [Domain("gone", "1", False), Domain("there", '{"x":1}')]
    commit(table, file, old, Transaction("a", 1), Transaction("b", 1 << 40, NOW), *gone)
    commit(table, Domain("gone", "", True))
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    cleaned(table, 2)
    found = state_of(table).snapshot
    assert found.files == {file.key: file}
    assert found == table.snapshot
    assert [json.loads(each)["path"] for each in removed_in(table, 2)] == ["old.parquet"]


def test_what_checkpoints_have_no_column_for_is_left_to_delta(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    commit(table, Add("a.parquet", {}, 1, 1, more={"newest": 1}))
    assert "newest" in str(checkpoint(log_of(table), state_of(table), NOW))
    commit(table, Add("a.parquet", {}, 1, 1), Metadata({**table.snapshot.metadata.given, "strange": 1}))
    assert "strange" in str(checkpoint(log_of(table), state_of(table), NOW))
    assert not list((table.path / "_delta_log").glob("*checkpoint*"))


def with_properties(snapshot: Snapshot, **properties: str) -> Metadata:
    given = snapshot.metadata.given
    named = {f"delta.{name.replace('_', '.', 1)}": value for name, value in properties.items()}
    return Metadata({**given, "configuration": {**given["configuration"], **named}})


def test_statistics_in_columns_are_left_to_delta(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    for properties in ({"checkpoint_writeStatsAsJson": "false"}, {"checkpoint_writeStatsAsStruct": "TRUE"}):
        commit(table, with_properties(table.snapshot, **properties))
        assert "writeStatsAs" in str(checkpoint(log_of(table), state_of(table), NOW))
    defaults = {"checkpoint_writeStatsAsJson": "true", "checkpoint_writeStatsAsStruct": "False"}
    commit(table, with_properties(table.snapshot, **defaults))
    assert checkpoint(log_of(table), state_of(table), NOW) is None


def test_a_table_that_is_another_one_gets_no_checkpoint(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    table.apply(FULL)
    before = state_of(table)
    log = table.path / "_delta_log"
    (log / name_of(1)).rename(log / "kept")
    (log / name_of(1)).write_bytes((log / "kept").read_bytes())
    assert "gone" in str(checkpoint(log_of(table), before, NOW))
    (log / name_of(1)).unlink()
    with pytest.raises(Missing):
        checkpoint(log_of(table), before, NOW)
    assert not list(log.glob("*checkpoint*"))


def test_a_log_with_a_gap_gets_no_checkpoint(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    for _ in range(3):
        table.apply(FULL)
    before = state_of(table)
    (table.path / "_delta_log" / name_of(1)).unlink()
    with pytest.raises(Damaged) as told:
        checkpoint(log_of(table), before, NOW)
    assert told.value.name == name_of(1)


def test_a_checkpoint_of_a_version_that_is_not_the_newest(tmp_path: Path) -> None:
    """And one that is there already stays."""
    table = Written.of(tmp_path / "t", PLAIN)
    table.apply(FULL)
    before = state_of(table)
    table.apply(FULL)
    newest = state_of(table)
    assert checkpoint(log_of(table), newest, NOW) is None
    assert checkpoint(log_of(table), before, NOW) is None
    log = table.path / "_delta_log"
    stamps = {each.name: each.stat().st_mtime_ns for each in log.glob("*checkpoint*")}
    assert len(stamps) == 3
    assert checkpoint(log_of(table), before, NOW) is None
    assert {each.name: each.stat().st_mtime_ns for each in log.glob("*checkpoint*")} == stamps
    assert same(state_of(table).snapshot, newest.snapshot)


def test_a_checksum_that_hadoop_left_is_removed(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    table.apply(FULL)
    log = table.path / "_delta_log"
    left = [log / f".{name}.crc" for name in (LAST_CHECKPOINT, checkpoint_of(1))]
    for each in left:
        each.write_bytes(b"crc\0")
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    assert not any(each.exists() for each in left)
    told = json.loads((log / LAST_CHECKPOINT).read_text())
    rows = pq.read_table(log / checkpoint_of(1))
    assert told == {
        "version": 1,
        "size": len(rows),
        "sizeInBytes": (log / checkpoint_of(1)).stat().st_size,
        "numOfAddFiles": len(table.snapshot.files),
    }
    assert [each.name for each in log.iterdir() if each.name.endswith(".tmp")] == []


class Crashing(LocalLogStore):
    """Crashes when a file is put in place, or when it stands there."""

    def __init__(self, log: Path, name: str, *, done: bool) -> None:
        super().__init__(log)
        self._name, self._done = name, done

    def replace(self, name: str, content: bytes) -> None:
        if name == self._name and not self._done:
            (self._log / f".{name}.half.tmp").write_bytes(content[: len(content) // 2])
            raise InjectedCrash("before-entry")
        super().replace(name, content)
        if name == self._name:
            raise InjectedCrash("after-entry")


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("name", [checkpoint_of(4), LAST_CHECKPOINT])
def test_a_crash_while_a_checkpoint_is_written(name: str, done: bool, tmp_path: Path) -> None:
    """The log is read as before, and the next checkpoint is right."""
    table = Written.of(tmp_path / "t", PLAIN)
    for number in range(4):
        table.apply(FULL, summed=False)
        if number == 1:
            assert checkpoint(log_of(table), state_of(table), NOW) is None
    entries, before = entries_of(table), state_of(table)
    with pytest.raises(InjectedCrash):
        checkpoint(Crashing(table.path / "_delta_log", name, done=done), before, NOW)
    assert same(state_of(table).snapshot, before.snapshot)
    table.apply(FULL, summed=False)
    entries |= entries_of(table)
    assert checkpoint(log_of(table), state_of(table), NOW) is None
    assert removed_in(table, 5) == removed_by(entries)
    cleaned(table, 5)
    assert same(state_of(table).snapshot, table.snapshot)


def test_a_checkpoint_that_is_due_is_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By Delta where it has to be, and the commit stands without it."""
    table, asked = Written.of(tmp_path / "t", PLAIN), list[str]()
    commit(table, with_properties(table.snapshot, checkpointInterval="2"))
    keep_short(log_of(table), state_of(table), NOW, lambda: asked.append("early"))
    commit(table)
    keep_short(log_of(table), state_of(table), NOW, lambda: asked.append("ours"))
    assert (table.path / "_delta_log" / checkpoint_of(2)).exists()
    commit(table, with_properties(table.snapshot, checkpoint_writeStatsAsJson="false"))
    commit(table)
    keep_short(log_of(table), state_of(table), NOW, lambda: asked.append("Delta's"))
    assert asked == ["Delta's"]
    before = state_of(table)
    (table.path / "_delta_log" / name_of(3)).unlink()
    commit(table, with_properties(table.snapshot, checkpoint_writeStatsAsJson="true"))
    commit(table)
    newest = replace(before, snapshot=table.snapshot, known=table.last)
    keep_short(log_of(table), newest, NOW, lambda: asked.append("never"))
    assert name_of(3) in caplog.text
    assert asked == ["Delta's"]


@pytest.mark.parametrize("interval", ["0", "often"])
def test_an_interval_that_is_none_fails_no_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, interval: str
) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    commit(table, with_properties(table.snapshot, checkpointInterval=interval))
    keep_short(log_of(table), state_of(table), NOW, lambda: None)
    assert "no checkpoint of version 1" in caplog.text


@pytest.mark.thorough
@settings(ONCE, max_examples=1_000)
@given(histories(), st.data())
def test_checkpoints_of_thousands_of_histories(history: History, data: st.DataObject) -> None:
    check_checkpoints(history, data)


def test_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    found = Written.of(tmp_path / "t", PLAIN).snapshot
    assert [n for n in range(31) if is_due(replace(found, version=n))] == [10, 20, 30]
    told = replace(found, metadata=with_properties(found, checkpointInterval="3"))
    assert [n for n in range(10) if is_due(replace(told, version=n))] == [3, 6, 9]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("interval 1 week", WEEK),
        ("7 days", WEEK),
        ("INTERVAL 604800 seconds", WEEK),
        ("interval 1 day 2 hours 3 minutes 4 seconds 5 milliseconds", 93_784_005),
        ("interval 0 hours", 0),
        ("interval 1.5 seconds", 1_500),
        ("interval 1 month", None),
        ("interval", None),
        ("interval -1 day", None),
        ("interval 1 day!", None),
        ("", None),
    ],
)
def test_intervals(text: str, length: int | None) -> None:
    assert milliseconds(text) == length
    assert of_files({"delta.deletedFileRetentionDuration": text}) == length
    assert of_files({}) == WEEK
