"""What is believed of tables between batches, and what a batch did to them, without Spark."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from lakemirror.api.spec import Ordering
from lakemirror.driver.checkpoint.possession import Possessor
from lakemirror.driver.columns.changes import schema_of
from lakemirror.driver.columns.fold import OUTCOMES
from lakemirror.driver.columns.payloads import Payloads
from lakemirror.driver.columns.stored import as_tombstones, rows_schema, tombstones_schema
from lakemirror.driver.engine import blocks, buckets, engine, job
from lakemirror.driver.engine.believed import Learned, _facts, _of_mirror, document
from lakemirror.driver.engine.blocks import Dividing, Report, divided
from lakemirror.driver.engine.buckets import Counted, Done, Outcomes
from lakemirror.driver.engine.commits import Author, DeltaTable, Overtaken, changes_in
from lakemirror.driver.engine.engine import Engine, _absent, _Table
from lakemirror.driver.engine.job import JobResult
from lakemirror.driver.engine.mirror_files import MirrorFiles, NotForEngine
from lakemirror.driver.engine.table_change import TableChange, together
from lakemirror.driver.engine.verdicts import Reason, Verdict
from lakemirror.driver.orders import NO_ORDERS
from lakemirror.driver.plan.possession import Possession
from lakemirror.driver.read.base import Batch
from lakemirror.driver.rules.batch import Mirror
from lakemirror.driver.rules.envelopes.records import Record
from lakemirror.driver.rules.kinds import INT, TIMESTAMP
from lakemirror.driver.rules.rows import Column
from lakemirror.driver.rules.values import Outcome
from lakemirror.driver.tables.mirror import CHECKPOINT_PROPERTY
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.tables.tombstones import Summary
from lakemirror.driver.writer.actions import Metadata
from lakemirror.driver.writer.stores import LocalDisk
from lakemirror.driver.writer.transaction import Change
from tests.driver.columns.test_odd import FACTS, with_members
from tests.driver.engine.test_stages import OnDisk, _raw, reports_in
from tests.support.columnar import block_of


def believed_table(folder: Path, newest: bytes | None, *, seed: int = 1) -> _Table:
    disk = OnDisk(folder, FACTS, random.Random(seed))
    state = disk.rows.refresh()
    assert state is not None
    files = MirrorFiles.of(state.snapshot, rows_schema(disk.kinds, soft=None))
    mirrored: Any = SimpleNamespace(tombstone_summary=Summary(newest=newest))
    return _Table(mirrored, disk.believed, LocalDisk(), disk.rows, disk.ends, NO_ORDERS, files)


def is_as_it_was(table: _Table) -> bool:
    engine = Engine(cast(Any, None), "lakemirror/test", Ordering())
    engine._systems.__dict__["_disk"] = LocalDisk()
    engine._tables[table.believed.name] = table
    return engine._is_as_left(table)


def test_a_table_whose_tombstones_are_gone_is_left_for_spark(tmp_path: Path) -> None:
    """Without them, a late change would write a row that was deleted."""
    table = believed_table(tmp_path, newest=b"\1" * 26)
    assert is_as_it_was(table)
    shutil.rmtree(table.ends.folder)
    assert not is_as_it_was(table)


def test_a_table_may_have_had_no_tombstones(tmp_path: Path) -> None:
    table = believed_table(tmp_path, newest=None)
    shutil.rmtree(table.ends.folder)
    assert is_as_it_was(table)


def test_tombstones_that_are_lost_during_a_batch_are_not_begun_anew(tmp_path: Path) -> None:
    """Spark has to see that they are lost: with a new table of tombstones, nobody would."""
    _, done = OnDisk(tmp_path / "other", FACTS, random.Random(1))._job([put(20, op="d")])
    assert all(each.tombstones is not None and each.tombstones.num_rows for each in done)
    table = believed_table(tmp_path, newest=b"\1" * 26)
    cast(Any, table.mirrored).tombstones = SimpleNamespace(summary=table.mirrored.tombstone_summary)
    shutil.rmtree(table.ends.folder)
    applying, plain = Engine(cast(Any, None), "lakemirror/test", Ordering()), SimpleNamespace(done=done)
    with pytest.raises(NotForEngine, match="tombstones are gone"):
        applying._write_tombstones(table, cast(Any, plain), Author("lakemirror/test", 1, {}))


def test_a_mirror_that_another_checkpoint_has_taken_over_is_left_for_spark(tmp_path: Path) -> None:
    state = OnDisk(tmp_path, FACTS, random.Random(1)).rows.refresh()
    assert state is not None
    ours, theirs = (Possessor(each, "s3a://lake/checkpoint") for each in ("ours", "theirs"))
    known: Any = SimpleNamespace(
        tombstone_summary=Summary(), users=(), possession=Possession(ours, (), warn=print)
    )

    def reason(named: Possessor) -> str | None:
        given = state.snapshot.metadata.given
        properties = {**given["configuration"], CHECKPOINT_PROPERTY: named.to_text()}
        metadata = Metadata({**given, "configuration": properties})
        return _of_mirror(known, replace(state.snapshot, metadata=metadata))

    assert reason(ours) is None
    assert reason(theirs) == "another checkpoint has taken its mirror over"


@pytest.mark.parametrize("fields", [("id", "v"), ("id",)])
def test_a_table_whose_source_has_dropped_a_column_is_left_for_spark(fields: tuple[str, ...]) -> None:
    """Its job would fail in each batch: the changes of its rows have no such column."""
    members = [{"field": name, "type": "int32"} for name in fields]
    image = {"field": "after", "type": "struct", "fields": members}
    documents = {1: json.dumps({"type": "struct", "fields": [image]})}
    names = {name: name for name in ("id", "v")}
    plan: Any = SimpleNamespace(
        reading=SimpleNamespace(names=names, key=["id"], placeholder="", columns=names),
        seen=SimpleNamespace(groups=[(1, None)]),
    )
    table: Any = SimpleNamespace(
        name=TableName("demo", "public", "items"),
        spec=SimpleNamespace(order=SimpleNamespace(by="auto")),
        settings=SimpleNamespace(columns=None),
    )
    learned = Learned(table, plan, cast(Any, None), documents)
    if fields == ("id", "v"):
        assert _facts(learned, dict.fromkeys(names, INT)).are_plain
    else:
        with pytest.raises(NotForEngine, match="lack columns"):
            _facts(learned, dict.fromkeys(names, INT))


def test_rows_that_updates_insert_are_counted_in_each_bucket_by_itself() -> None:
    """The creates of one bucket say nothing of the updates of another."""
    created = Done(TableChange(1, inserted=10), counted=Counted({Outcome.APPLIED: 10}))
    changed = {Outcome.APPLIED: 2}
    beside = Done(TableChange(1, inserted=1, updated=1), counted=Counted(changed, keys=2, unborn=1))
    absent = Done(TableChange(1, inserted=2), counted=Counted(changed, keys=2, unborn=1))
    assert list(map(_absent, (created, beside, absent))) == [0, 0, 1]


def test_outcomes_of_plain_changes_and_of_others_are_counted_together() -> None:
    plain = np.array([OUTCOMES.index(each) for each in (Outcome.STALE, Outcome.APPLIED)], np.int8)
    both = Outcomes(plain, [Outcome.NO_ROW_CHANGE, Outcome.STALE])
    assert both.numbers == {Outcome.STALE: 2, Outcome.APPLIED: 1, Outcome.NO_ROW_CHANGE: 1}
    assert both.stale.tolist() == [0, 3]


@pytest.mark.parametrize(("soft", "rows"), [("gone", 1), (None, 0)])
def test_a_softly_deleted_row_that_is_new_is_none_that_an_update_inserts(
    tmp_path: Path, soft: str | None, rows: int
) -> None:
    """The row 1 is deleted, whatever it was, and the row 2 is updated, which is there."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    table = replace(disk.believed, mirrored=replace(disk.believed.mirrored, key=["id"], soft=soft))
    origin = {"__topic": "t", "__partition": 0, "__event_time": 0}
    changes = pa.RecordBatch.from_pylist(
        [
            {**origin, "id": number, "__seq": bytes([number]) * 26, "__op": op, "__offset": number}
            for number, op in ((1, "d"), (2, "u"))
        ],
        schema_of(disk.kinds),
    )
    ends = pa.RecordBatch.from_pylist([], tombstones_schema(disk.kinds, ["id"]))
    outcomes = Outcomes(np.zeros(2, np.int8), [])
    assert outcomes.numbers == {Outcome.APPLIED: 2}
    about: Any = changes, outcomes, None, ends, table, None
    counted = buckets._counted(*about, rows)
    assert _absent(Done(TableChange(1, inserted=rows, updated=1), counted=counted)) == 0
    counted = buckets._counted(*about, rows + 1)
    assert _absent(Done(TableChange(1, inserted=rows + 1), counted=counted)) == 1


@pytest.mark.parametrize(("op", "place", "offset", "keys"), [("c", 5, 6, 2), ("c", 5, 4, 1), ("r", 9, 4, 1)])
def test_what_a_tombstone_forbids_creates_no_row(
    tmp_path: Path, op: str, place: int, offset: int, keys: int
) -> None:
    """The row 1 was deleted at 5, and came again after that or before; the row 2 is updated."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    table = replace(disk.believed, mirrored=replace(disk.believed.mirrored, key=["id"]))
    origin = {"__topic": "t", "__partition": 0, "__event_time": 0}
    tie = bytes(4) if op == "r" else b"\0\0\0\1"
    of_one = {"id": 1, "__seq": bytes([place]) * 22 + tie, "__op": op, "__offset": offset}
    of_two = {"id": 2, "__seq": bytes([8]) * 26, "__op": "u", "__offset": 8}
    changes = pa.RecordBatch.from_pylist([{**origin, **of_one}, {**origin, **of_two}], schema_of(disk.kinds))
    gone = {
        "id": 1,
        "__seq": bytes([5]) * 22 + b"\0\0\0\1",
        "__origin": {"topic": "t", "partition": 0, "offset": 5},
    }
    ends = pa.RecordBatch.from_pylist([gone], tombstones_schema(disk.kinds, ["id"]))
    about: Any = changes, Outcomes(np.zeros(2, np.int8), []), None, ends, table, None, 1
    assert buckets._counted(*about).keys == keys


@pytest.mark.parametrize("reported", [False, True])
def test_the_first_value_that_loses_digits_is_left_for_spark_to_report(
    tmp_path: Path, reported: bool
) -> None:
    facts = replace(FACTS, columns={**FACTS.columns, "at": Column("at", TIMESTAMP)})
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    mirrored = replace(disk.believed.mirrored, kinds={**disk.kinds, "at": TIMESTAMP})
    rounded = frozenset(["at"] if reported else [])
    table = replace(disk.believed, facts=facts, mirrored=mirrored, rounded=rounded)
    report = first_stage(with_members({"at": "2026-01-02T03:04:05.1234567Z"}, {}), table)
    assert (report.odd is None) is reported


def test_a_schema_with_a_fraction_is_that_of_its_records() -> None:
    """The rules keep the digits of numbers: 0.1 is another number as a float."""
    text = '{"type":"struct","fields":[{"type":"double","field":"v","default":0.1}]}'
    known = pickle.loads(pickle.dumps(document(text)))  # as tasks get it
    wrapped = Payloads(known).of([f'{{"schema":{text},"payload":{{"v":1.5}}}}'.encode()])
    assert wrapped == [b'{"v":1.5}']


def test_a_late_change_without_a_time_is_not_said_to_be_out_of_order(tmp_path: Path) -> None:
    """Nobody knows how much older than the stored row it is."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    _, done = disk._job([put(20)])
    disk._commit(done)
    _, [late] = disk._job([put(10, timed=False)])
    assert late.error is None
    assert late.counted == Counted({Outcome.STALE: 1})


def test_an_error_after_the_files_of_a_bucket_are_stored_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OnDisk(tmp_path, FACTS, random.Random(1))

    def fails(*_: Any) -> Counted:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(buckets, "_counted", fails)
    _, [failed] = disk._job([put(20)])
    assert failed.error == "RuntimeError: a mistake"
    assert not list(Path(disk.rows.folder).glob("*.parquet"))


def test_an_error_after_the_job_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    report, done = disk._job([put(20)])
    table = believed_table(tmp_path / "believed", newest=None)
    cast(Any, table.mirrored).spec = SimpleNamespace(ordering=Ordering())
    table.rows.files = disk.rows.files
    applying = Engine(cast(Any, None), "lakemirror/test", Ordering())
    monkeypatch.setattr(applying, "_dividing", lambda known: Dividing([1], 1))
    monkeypatch.setattr(engine, "stops_pipeline", lambda *_: False)
    assert report is not None
    monkeypatch.setattr(job, "run", lambda *_: JobResult({"demo.public.items": report}, {0: done}))

    def fails(*_: Any) -> Any:
        raise KeyError("a mistake")

    assert [*Path(disk.rows.folder).glob("*.parquet")]
    assert applying._tried_to_read(cast(Any, None), [table], fails) is None
    assert not [*Path(disk.rows.folder).glob("*.parquet")]


def test_batches_after_a_job_that_failed_are_left_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What kills its workers may be in each batch."""
    table = believed_table(tmp_path, newest=None)
    cast(Any, table.mirrored).spec = SimpleNamespace(ordering=Ordering())
    applying = Engine(cast(Any, None), "lakemirror/test", Ordering())
    applying._systems.__dict__["_disk"] = LocalDisk()
    applying._tables[table.believed.name] = table
    monkeypatch.setattr(applying, "_dividing", lambda known: Dividing([1], 1))
    monkeypatch.setattr(engine, "stops_pipeline", lambda *_: False)
    monkeypatch.setattr(engine, "reason_of_batch", lambda *_: None)
    jobs, works = list[int](), False

    def run(*_: Any) -> JobResult:
        jobs.append(batch)
        if not works:
            raise RuntimeError("a worker has died")
        return JobResult({}, {})

    mirror = SimpleNamespace(path=f"file:{tmp_path}/other")
    about: Any = SimpleNamespace(name=TableName("demo", "public", "other"), mirror=mirror)
    plan: Any = SimpleNamespace(seen=SimpleNamespace(truncates=0, rekeyed=False))
    monkeypatch.setattr(job, "run", run)
    for batch in range(23):
        read = applying.read(cast(Any, None), Batch("q", batch), {})
        assert (read is None) == (not works or batch not in jobs)
        assert applying.can_apply(about, plan, 1) == (read is not None)
        works = 10 <= batch < 19
    assert jobs == [0, 2, 5, 10, 19, 20, 22]
    told = [each.getMessage() for each in caplog.records if "a worker has died" in each.getMessage()]
    assert [text.partition(" are")[0] for text in told] == [
        f"this batch and {more} after it" for more in (1, 2, 4, 8, 1, 2)
    ]


def changed(disk: OnDisk, place: int) -> Change:
    """What a batch that puts the one row does, without the marks of the batch."""
    _, done = disk._job([put(place)])
    return together(changes_in(done)).commit([])


def test_rows_that_others_have_changed_are_told_from_those_of_batches(tmp_path: Path) -> None:
    """The engine notices later changes by others itself; those from before it looked, Spark has to."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    _, done = disk._job([put(20)])
    disk._commit(done)
    assert not disk.rows.was_changed_by_others(0)
    rearranged = replace(changed(disk, 30), rearranges=True)
    disk.rows.commit(rearranged, Author("somebody", 0, {}), 3000)
    assert not disk.rows.was_changed_by_others(0)
    disk.rows.commit(changed(disk, 40), Author("somebody", 0, {}), 4000)
    assert disk.rows.was_changed_by_others(0)
    assert disk.rows.was_changed_by_others(2)
    assert not disk.rows.was_changed_by_others(3)


def test_an_error_does_not_show_what_somebody_else_has_committed(tmp_path: Path) -> None:
    """Their entry has statistics, which are values of rows."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    first, second = changed(disk, 20), changed(disk, 20)
    other = DeltaTable.on_disk(Path(disk.rows.folder))
    other.refresh()
    other.commit(first, Author("somebody", 0, {}), 3000)
    with pytest.raises(Overtaken, match="version=1") as raised:
        disk.rows.commit(second, Author("lakemirror/test", 0, {}), 3000)
    assert "minValues" not in str(raised.value)


def test_a_table_that_could_not_be_applied_is_planned_for_spark_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be planned twice in each batch, the second time without other tables beside it."""
    known = believed_table(tmp_path, newest=None)
    mirror = SimpleNamespace(path=f"file:{known.rows.folder}")
    about: Any = SimpleNamespace(name=known.believed.name, mirror=mirror)
    nothing: Any = SimpleNamespace(truncates=0, moves=0, rekeyed=False)
    plan: Any = SimpleNamespace(seen=nothing)
    decision: Any = SimpleNamespace(name=known.believed.name, plan=plan, bad=0, refused=0)
    applying = Engine(cast(Any, None), "lakemirror/test", Ordering())
    monkeypatch.setattr(engine, "reason_of_batch", lambda *_: None)
    found: list[Any] = [NotForEngine("it is partitioned"), known]

    def learned(*_: Any) -> _Table:
        [first] = found[:1]
        if isinstance(first, Exception):
            raise first
        return known

    monkeypatch.setattr(applying, "_learned", learned)
    assert applying.can_apply(about, plan, 1)
    assert applying._learn_one(decision, about, {}) is None
    assert not applying.can_apply(about, plan, 1)
    del found[0]
    assert applying._learn_one(decision, about, {}) is known
    assert applying.can_apply(about, plan, 1)
    failed = JobResult({"demo.public.items": first_stage(put(20), known.believed)}, {0: [Done(error="no")]})
    monkeypatch.setattr(applying, "_closer", {known.believed.name: False})
    left = Verdict({known.believed.name: Reason("a task failed")})
    applying._sorted(failed, [known], [known.believed], lambda _: left)
    assert not applying.can_apply(about, plan, 1)


def test_a_closer_look_at_positions_lasts_until_none_fall_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beyond a batch that Spark has planned: where changes come late, each batch has some."""
    known = believed_table(tmp_path, newest=None)
    name, topic = known.believed.name, "demo.public.items"
    applying = Engine(cast(Any, None), "lakemirror/test", Ordering())
    monkeypatch.setattr(applying, "_closer", {name: False})
    found = JobResult({topic: first_stage(put(20), known.believed)}, {0: [Done()]})

    def sort(verdict: Verdict) -> bool:
        applying._sorted(found, [known], [known.believed], lambda _: verdict)
        return applying._closer[name]

    assert sort(Verdict({name: Reason("positions fall back", falls_back=True)}))
    assert sort(Verdict({}))  # the same batch, once it is planned
    assert sort(Verdict({}, fell=frozenset({name})))
    assert not sort(Verdict({}, fell=frozenset()))


def test_a_process_keeps_one_decoder_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(blocks, "_DECODERS", kept)
    known = OnDisk(tmp_path, FACTS, random.Random(1)).believed
    for identity in ("first", "second", "second"):
        first_stage(put(20), replace(known, identity=identity))
    assert len(kept) == 1
    more = replace(FACTS, columns={**FACTS.columns, "at": Column("at", TIMESTAMP)})
    mirrored = replace(known.mirrored, kinds={**known.kinds, "at": TIMESTAMP})
    altered = replace(known, identity="third", facts=more, mirrored=mirrored)
    assert first_stage(with_members({"at": "2026-01-02T03:04:05Z"}, {}), altered).odd is None


def test_a_row_of_a_snapshot_does_not_come_back_after_a_delete_from_further_below(tmp_path: Path) -> None:
    """The row was read before, which the offsets tell, although its position is above all tombstones."""
    disk = OnDisk(tmp_path, FACTS, random.Random(1))
    _, [done] = disk._job([put(900, op="d", offset=50)])
    assert done.tombstones is not None
    [gone] = as_tombstones(done.tombstones, disk.kinds, disk.key).items()
    disk.mirror = Mirror({}, dict([gone]))
    disk._commit([done])
    _, [done] = disk._job([put(1000, op="r", offset=10)])
    assert done.counted.outcomes == {Outcome.STALE: 1}
    _, [done] = disk._job([put(1000, op="r", offset=60)])
    assert done.counted.outcomes == {Outcome.APPLIED: 1}


def put(place: int, *, op: str = "u", offset: int | None = None, timed: bool = True) -> Record:
    """A change of the one row, at a place of the log and at an offset, which is the same unless given."""
    record = with_members({"v": place}, {})
    value = json.loads(record.value or b"")
    value["op"] = op
    value["after"] = None if op == "d" else value["after"]
    before = "null" if op == "r" else f'"{place}"'
    value["source"] |= {"lsn": place, "sequence": f'[{before},"{place}"]'}
    offset = place if offset is None else offset
    for name in () if timed else ("ts_ms", "ts_us", "ts_ns"):
        del value["source"][name], value[name]
    return record._replace(value=json.dumps(value).encode(), origin=record.origin._replace(offset=offset))


def first_stage(record: Record, table: Any) -> Report:
    """Return what the first stage reports of a record."""
    [report] = reports_in(divided(_raw([block_of([record])]), [table], Dividing([1], 1)))
    return report
