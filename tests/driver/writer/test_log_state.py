"""The state that is read from a log is that of its entries, whatever checkpoints there are, or an error."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakemirror.driver.writer.actions import Add, CommitInfo, Domain, Protocol, Transaction, line
from lakemirror.driver.writer.entry import Listed, name_of, prefix_of, text_of
from lakemirror.driver.writer.log_files import (
    LAST_CHECKPOINT,
    Damaged,
    Missing,
    Segment,
    hinted,
    segment_of,
)
from lakemirror.driver.writer.log_state import NotPlain, State, advance, read
from lakemirror.driver.writer.snapshot import Snapshot
from lakemirror.driver.writer.stores import LocalLogStore
from tests.driver.writer.delta_tables import History, Step, Written, histories

ONCE = settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
PLAIN = History(("id", "text", "double"), (), False, True, False, None, ())
ROWS = ({"text": "a", "double": 1.0}, {"text": "b", "double": 2.0}, {"text": "c", "double": None})
FULL = Step(ROWS, (0.4,), True)


def log_of(table: Written) -> LocalLogStore:
    return LocalLogStore(table.path / "_delta_log")


def state_of(table: Written) -> State:
    found = read(log_of(table))
    assert found is not None
    return found


def same(found: Snapshot, expected: Snapshot) -> bool:
    """Whether two snapshots are the same, but for how statistics are spelled and who made a change."""
    return _plain(found) == _plain(expected)


def _plain(snapshot: Snapshot) -> Any:
    files = {
        key: (replace(each, statistics=None, changes=False), json.loads(each.statistics or "null"))
        for key, each in snapshot.files.items()
    }
    about = snapshot.metadata
    told = (about.id, about.schema, about.partitions, about.properties, about.provider)
    return snapshot.version, snapshot.protocol, told, files, snapshot.transactions, snapshot.domains


@ONCE
@given(histories())
def test_a_log_of_entries(history: History) -> None:
    """After each commit, read anew or brought forward, the state is that of all entries."""
    with tempfile.TemporaryDirectory() as folder:
        table = Written.of(Path(folder) / "t", history)
        states = [state_of(table)]
        for step in history.steps:
            table.apply(step)
            found = state_of(table)
            assert found == State(table.snapshot, table.last)
            assert [advance(log_of(table), each) for each in states] == [found] * len(states)
            states.append(found)


# -- every kind of checkpoint ----------------------------------------------------------------------


def classic(log: Path) -> Path:
    """The checkpoint that delta-rs has written."""
    found = sorted(log.glob("*.checkpoint.parquet"))
    assert found
    return found[-1]


def rows_of(file: Path) -> pa.Table:
    """The rows of a checkpoint, in columns that may all be null."""
    rows = pq.read_table(file)
    fields = [pa.field(each.name, _nullable(each.type)) for each in rows.schema]
    return pa.Table.from_pylist(rows.to_pylist(), pa.schema(fields))


def _nullable(kind: pa.DataType) -> pa.DataType:
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([pa.field(each.name, _nullable(each.type)) for each in kind])


def as_classic(log: Path) -> None:
    assert classic(log)


def as_parts(log: Path) -> None:
    """Two parts, the second of which has the rows that come first."""
    file = classic(log)
    rows, stem = rows_of(file), file.name.removesuffix("parquet")
    for number, part in ((1, rows[len(rows) // 2 :]), (2, rows[: len(rows) // 2])):
        pq.write_table(part, log / f"{stem}{number:010d}.0000000002.parquet")
    file.unlink()


def _with_sidecars(log: Path) -> tuple[Path, pa.Table, list[dict[str, Any]]]:
    file = classic(log)
    rows = rows_of(file)
    is_file = pc.or_(rows["add"].is_valid(), rows["remove"].is_valid())
    of_files = rows.select(["add", "remove"]).filter(is_file)
    (log / "_sidecars").mkdir()
    sidecars = []
    for part in (of_files[:1], of_files[1:]):
        name = f"{uuid.uuid4()}.parquet"
        pq.write_table(part, log / "_sidecars" / name)
        size = (log / "_sidecars" / name).stat().st_size
        sidecars.append({"path": name, "sizeInBytes": size, "modificationTime": 1})
    file.unlink()
    return file, rows.drop_columns(["add", "remove", "sidecar"]), sidecars


def as_json(log: Path) -> None:
    """A V2 checkpoint in JSON with two sidecars."""
    state = read(LocalLogStore(log))
    assert state is not None
    before = state.snapshot
    file, _, sidecars = _with_sidecars(log)
    version = int(file.name[:20])
    others = [before.protocol, before.metadata, *(before.transactions or {}).values()]
    lines = [json.dumps({"checkpointMetadata": {"version": version}}), *map(line, others)]
    lines += [json.dumps({"sidecar": each}) for each in sidecars]
    (log / f"{prefix_of(version)}checkpoint.{uuid.uuid4()}.json").write_text("\n".join(lines))


def as_parquet(log: Path) -> None:
    """A V2 checkpoint in Parquet with two sidecars and a classic name."""
    file, rows, sidecars = _with_sidecars(log)
    kind = pa.struct([("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64())])
    own = rows.append_column("sidecar", pa.nulls(len(rows), kind))
    more = pa.table({"sidecar": pa.array(sidecars, kind)})
    pq.write_table(pa.concat_tables([own, more], promote_options="default"), file)


KINDS: Mapping[str, Callable[[Path], None]] = {
    each.__name__: each for each in (as_classic, as_parts, as_json, as_parquet)
}


def checkpointed(table: Written, kind: Callable[[Path], None]) -> None:
    log = table.path / "_delta_log"
    shutil.rmtree(log / "_sidecars", ignore_errors=True)
    for each in log.glob("*.checkpoint.*"):
        each.unlink()
    deltalake.DeltaTable(str(table.path)).create_checkpoint()
    kind(log)


@ONCE
@given(histories(), st.sampled_from([*KINDS]), st.data())
def test_a_log_with_a_checkpoint(history: History, kind: str, data: st.DataObject) -> None:
    """Also without the entries before it, and with a hint at any version."""
    check_log(history, kind, data)


@pytest.mark.thorough
@settings(ONCE, max_examples=1_000)
@given(histories(), st.sampled_from([*KINDS]), st.data())
def test_thousands_of_logs_with_checkpoints(history: History, kind: str, data: st.DataObject) -> None:
    check_log(history, kind, data)


def check_log(history: History, kind: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = Written.of(Path(folder) / "t", history)
        log = table.path / "_delta_log"
        at = data.draw(st.integers(0, len(history.steps)), "checkpoint")
        for number, step in enumerate((None, *history.steps)):
            if step is not None:
                table.apply(step, summed=False)
            if number == at:
                checkpointed(table, KINDS[kind])
        expected = table.snapshot
        if data.draw(st.booleans(), "cleaned"):
            for version in range(at):
                (log / name_of(version)).unlink()
        hint = data.draw(
            st.sampled_from([None, b"", b"{", b"[]", b'{"version":"1"}', at, at + 1, 99]), "hint"
        )
        if hint is None:
            (log / LAST_CHECKPOINT).unlink()
        else:
            text = json.dumps({"version": hint, "size": 9}).encode() if isinstance(hint, int) else hint
            (log / LAST_CHECKPOINT).write_bytes(text)
        found = state_of(table)
        assert same(found.snapshot, expected)
        assert found.known == table.last


# -- what is missing or damaged ---------------------------------------------------------------------


@pytest.fixture(params=["none", *KINDS])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Written:
    """Six versions, with a checkpoint of the third one of each kind."""
    made = Written.of(tmp_path / "t", PLAIN)
    for number in range(5):
        made.apply(FULL, summed=False)
        if number == 2 and request.param != "none":
            checkpointed(made, KINDS[request.param])
            for version in range(3):
                (made.path / "_delta_log" / name_of(version)).unlink()
    return made


def files_of(table: Written) -> list[str]:
    """The files that make the newest version."""
    log = table.path / "_delta_log"
    segment = segment_of(log_of(table).list_from(0))
    assert segment is not None
    sidecars = [f"_sidecars/{each.name}" for each in log.glob("_sidecars/*")]
    return [*map(name_of, segment.entries), *segment.checkpoint, *sidecars]


def test_a_file_that_is_missing(table: Written) -> None:
    for name in files_of(table):
        path = table.path / "_delta_log" / name
        kept = path.read_bytes()
        path.unlink()
        if name == name_of(5):
            assert state_of(table).snapshot.version == 4
        else:
            with pytest.raises(Missing) as told:
                read(log_of(table))
            first = 0 if "checkpoint" in name else None
            assert told.value.name == (name if first is None else name_of(first))
        path.write_bytes(kept)
    assert state_of(table).snapshot.version == 5


def test_a_file_that_is_cut_off(table: Written) -> None:
    """Wherever it is cut, but for between two lines: then nothing tells that there was more."""
    for name in files_of(table):
        path = table.path / "_delta_log" / name
        kept = path.read_bytes()
        for end in {0, 1, 7, len(kept) // 2, len(kept) - 9, len(kept) - 2}:
            if kept[max(0, end - 1) : end + 1].find(b"\n") >= 0:
                continue
            path.write_bytes(kept[:end])
            if end == 0 and "checkpoint" in name:
                continue  # empty checkpoints are passed over, as by Delta
            with pytest.raises(Damaged) as told:
                read(log_of(table))
            assert told.value.name == name
            assert name in str(told.value)
        path.write_bytes(kept)


@pytest.mark.parametrize(
    "text", ["", "\n", "5", "[]", "null", '{"add":{}}', '{"txn":{"appId":1}}', '{"add":5}', "\udc80"]
)
def test_an_entry_that_is_none(text: str, tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    (table.path / "_delta_log" / name_of(1)).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Damaged) as told:
        state_of(table)
    assert told.value.name == name_of(1)
    with pytest.raises(Damaged):
        advance(log_of(table), State(table.snapshot, table.last))


def test_a_log_that_does_not_begin_with_a_table(tmp_path: Path) -> None:
    log = LocalLogStore(tmp_path)
    assert log.create(name_of(0), text_of(CommitInfo("x", "q", 0, -1, 1), [Transaction("q", 0)]))
    with pytest.raises(Damaged) as told:
        read(log)
    assert told.value.name == name_of(0)


def test_there_is_no_table(tmp_path: Path) -> None:
    assert read(LocalLogStore(tmp_path / "never")) is None
    (tmp_path / LAST_CHECKPOINT).write_text('{"version":4}')
    (tmp_path / "_commits").mkdir()
    (tmp_path / f".{name_of(0)}.tmp").write_text("x")
    with pytest.raises(Missing):
        read(LocalLogStore(tmp_path))
    (tmp_path / LAST_CHECKPOINT).unlink()
    assert read(LocalLogStore(tmp_path)) is None


def test_a_table_for_other_readers_is_left_to_delta(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    before = State(table.snapshot, table.last)
    later = Protocol(3, 7, ("catalogManaged", "deletionVectors"), ("catalogManaged", "deletionVectors"))
    log = log_of(table)
    assert log.create(name_of(1), text_of(CommitInfo("x", "q", 0, 0, 1), [later]))
    with pytest.raises(NotPlain, match="catalogManaged"):
        read(log)
    with pytest.raises(NotPlain, match="catalogManaged"):
        advance(log, before)


# -- going on ---------------------------------------------------------------------------------------


class Watched(LocalLogStore):
    """A log of which something is deleted after a file was read or looked at."""

    def __init__(self, log: Path, after: str, gone: str) -> None:
        super().__init__(log)
        self._after, self._gone = after, gone

    def read(self, name: str) -> bytes | None:
        found = super().read(name)
        if name == self._after:
            (self._log / self._gone).unlink(missing_ok=True)
        return found


def test_going_on_from_what_is_gone_or_another_one(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    log = table.path / "_delta_log"
    table.apply(FULL)
    before = state_of(table)
    assert advance(log_of(table), before) == before
    table.apply(FULL)
    table.apply(FULL)
    found = advance(log_of(table), before)
    assert found == state_of(table)
    content = (log / name_of(1)).read_bytes()
    (log / name_of(1)).unlink()
    assert advance(log_of(table), before) is None  # the log was cleaned
    (log / name_of(1)).write_bytes(content)
    assert advance(log_of(table), before) is None  # a copy of the table
    assert advance(log_of(table), found) == found
    assert advance(Watched(log, name_of(2), name_of(1)), before) is None
    shutil.rmtree(table.path)
    assert advance(log_of(table), found) is None


def test_an_entry_that_goes_before_it_is_read(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    before = state_of(table)
    table.apply(FULL)
    table.apply(FULL)

    class Vanishing(LocalLogStore):
        def read(self, name: str) -> bytes | None:
            return None if name == name_of(2) else super().read(name)

    assert advance(Vanishing(table.path / "_delta_log"), before) is None
    found = advance(Watched(table.path / "_delta_log", name_of(1), name_of(2)), before)
    assert found is not None
    assert found.snapshot.version == 1


def test_very_many_entries_are_read_anew(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    before = state_of(table)
    log = log_of(table)
    for version in range(1, 101):
        log.create(name_of(version), text_of(CommitInfo("x", "q", 0, 0, 1), [Transaction("q", version)]))
    found = advance(log, before)
    assert found is not None
    assert found.snapshot.version == 100
    log.create(name_of(101), text_of(CommitInfo("x", "q", 0, 0, 1), [Transaction("q", 101)]))
    assert advance(log, before) is None


def test_a_log_that_is_cleaned_while_it_is_read(tmp_path: Path) -> None:
    """What is missing is looked for again, and then there is a checkpoint."""
    table = Written.of(tmp_path / "t", PLAIN)
    for _ in range(3):
        table.apply(FULL, summed=False)
    log = table.path / "_delta_log"

    class Cleaned(LocalLogStore):
        def read(self, name: str) -> bytes | None:
            if name == name_of(0):
                checkpointed(table, as_classic)
                for version in range(3):
                    (log / name_of(version)).unlink(missing_ok=True)
            return super().read(name)

    found = read(Cleaned(log))
    assert found is not None
    assert same(found.snapshot, table.snapshot)
    assert found.known == table.last


# -- which files make a version ---------------------------------------------------------------------


def listing(*names: str) -> list[Listed]:
    return [Listed(each, 0 if each.startswith("!") else 1) for each in names]


def name(version: int, rest: str) -> str:
    return f"{prefix_of(version)}{rest}"


def entries(*versions: int) -> Iterator[str]:
    return map(name_of, versions)


OF_PARTS = tuple(name(3, f"checkpoint.{part:010d}.0000000002.parquet") for part in (1, 2))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], None),
        ([".tmp", LAST_CHECKPOINT, name(4, "crc"), name(0, "json.tmp"), "0.json"], None),
        ([name(7, "checkpoint.parquet.tmp"), f".{name(7, 'checkpoint.parquet')}"], None),
        ([*entries(0, 1, 2)], Segment(2)),
        ([*entries(2, 0, 1), name(1, "crc"), name(1, f"{2:020d}.compacted.json")], Segment(2)),
        ([*entries(3, 4), name(3, "checkpoint.parquet")], Segment(4, 3, (name(3, "checkpoint.parquet"),))),
        ([*entries(3), name(3, "checkpoint.parquet")], Segment(3, 3, (name(3, "checkpoint.parquet"),))),
        (
            [*entries(1, 3), name(1, "checkpoint.parquet"), name(3, "checkpoint.parquet")],
            Segment(3, 3, (name(3, "checkpoint.parquet"),)),
        ),
        ([*entries(3), *OF_PARTS], Segment(3, 3, OF_PARTS)),
        ([*entries(0, 1, 2, 3), OF_PARTS[0]], Segment(3)),
        (
            [*entries(3), name(3, "checkpoint.u-i-d.json"), name(3, "checkpoint.parquet")],
            Segment(3, 3, (name(3, "checkpoint.parquet"),)),
        ),
        ([*entries(3), name(3, "checkpoint.u-i-d.json")], Segment(3, 3, (name(3, "checkpoint.u-i-d.json"),))),
    ],
)
def test_the_files_of_a_version(names: list[str], expected: Segment | None) -> None:
    assert segment_of(listing(*names)) == expected


@pytest.mark.parametrize(
    ("names", "gone"),
    [
        ([*entries(1, 2)], 0),
        ([*entries(0, 1, 3, 4)], 2),
        ([*entries(4, 5), name(3, "checkpoint.parquet")], None),
        ([*entries(3, 5), name(3, "checkpoint.parquet")], 4),
        ([name(3, "checkpoint.parquet")], 3),
        ([*entries(0, 1), name(3, "checkpoint.parquet")], 3),
    ],
)
def test_gaps(names: list[str], gone: int | None) -> None:
    if gone is None:
        assert segment_of(listing(*names)) == Segment(5, 3, (name(3, "checkpoint.parquet"),))
        return
    with pytest.raises(Missing) as told:
        segment_of(listing(*names))
    assert told.value.name == name_of(gone)


def test_empty_checkpoints_are_passed_over() -> None:
    empty = Listed(name(1, "checkpoint.parquet"), 0)
    assert segment_of([*listing(*entries(0, 1)), empty]) == Segment(1)


def test_hints() -> None:
    assert hinted(None) == hinted(b"") == hinted(b"{") == hinted(b"7") == hinted(b'{"version":-1}') == 0
    assert hinted(b'{"version":7,"size":3}') == 7


def test_domains_that_ended_stay_ended(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    log = log_of(table)
    made = [Domain("a", "1"), Domain("b", "2")]
    assert log.create(name_of(1), text_of(CommitInfo("x", "q", 0, 0, 1), made))
    assert log.create(name_of(2), text_of(CommitInfo("x", "q", 0, 0, 1), [Domain("a", "", True)]))
    assert state_of(table).snapshot.domains == {"b": Domain("b", "2")}


def test_files_without_statistics(tmp_path: Path) -> None:
    table = Written.of(tmp_path / "t", PLAIN)
    bare = Add("a.parquet", {}, 1, 1)
    assert log_of(table).create(name_of(1), text_of(CommitInfo("x", "q", 0, 0, 1), [bare]))
    assert state_of(table).snapshot.files == {bare.key: bare}
