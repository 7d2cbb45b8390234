"""Both stages of the job, without Spark.

However records are divided among blocks, buckets and tasks, a mirror on a disk ends as the rules say, and so
do its tombstones and the outcomes of records.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakemirror.driver.columns import stored as in_columns
from lakemirror.driver.columns.facts import Facts
from lakemirror.driver.columns.fold import Mirrored
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.engine import blocks, table_change
from lakemirror.driver.engine.believed import Believed
from lakemirror.driver.engine.blocks import REPORT, Dividing, Report, divided
from lakemirror.driver.engine.buckets import Done, StoredMirror, folded
from lakemirror.driver.engine.commits import (
    Author,
    DeltaTable,
    changes_in,
    commit_rows,
    discard,
    tombstones_of,
)
from lakemirror.driver.engine.mirror_files import VECTORS, MirrorFiles
from lakemirror.driver.engine.stored_ends import TOMBSTONES, TombstoneFiles
from lakemirror.driver.engine.stored_moves import as_facts
from lakemirror.driver.rules.batch import Mirror, apply
from lakemirror.driver.rules.keys import encode
from lakemirror.driver.rules.kinds import Decimals, Kind
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome
from lakemirror.driver.tables.names import TableName
from lakemirror.driver.writer.actions import CommitInfo, Metadata, Protocol
from lakemirror.driver.writer.data_files import Layout
from lakemirror.driver.writer.entry import name_of, text_of
from lakemirror.driver.writer.schema import _PLAIN
from lakemirror.driver.writer.stores import LocalDisk, LocalLogStore
from lakemirror.driver.writer.transaction import Change
from tests.driver.columns.test_histories import facts_of
from tests.driver.engine.mirrors import _METADATA, rows_of
from tests.driver.rules.test_histories import ANYHOW, COMPLETE, over_partitions
from tests.support.columnar import GONE, block_of, cut, read, records_of, shown
from tests.support.histories import Shape, many, play

NAME = TableName("demo", "public", "items")
_AUTHOR = Author("lakemirror/test", 0, {})
_MOVED_BEFORE = "the key of a row of its batch has changed before"


def made(folder: Path, types: dict[str, Any], *, hides: bool) -> DeltaTable:
    """An empty Delta table."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    about = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {"delta.enableDeletionVectors": "true"} if hides else {},
        "createdTime": 1000,
    }
    protocol = Protocol(3, 7, ("deletionVectors",), ("deletionVectors",)) if hides else Protocol(1, 2)
    first = CommitInfo("first", "test", 0, -1, 1000)
    assert LocalLogStore(log).create(name_of(0), text_of(first, (protocol, Metadata(about))))
    table = DeltaTable.on_disk(folder)
    assert table.refresh() is not None
    return table


def type_of(kind: Kind) -> str:
    """The name of a type in Delta's schemas."""
    if isinstance(kind, Decimals):
        return f"decimal({kind.precision},{kind.scale})"
    return next(name for name, each in _PLAIN.items() if each == kind)


class OnDisk:
    """A mirror that both stages change, beside what the rules make of the same records."""

    def __init__(self, folder: Path, facts: Facts, rnd: random.Random, *, soft: bool = False) -> None:
        self.facts, self.rnd = facts, rnd
        self.soft = GONE if soft else None
        self.kinds = {name: each.kind for name, each in facts.columns.items()}
        self.key = list(facts.key.names)
        self.hides = hides = rnd.random() < 0.7
        self.buckets = rnd.choice((1, 3)) if hides else 1
        types = {name: type_of(kind) for name, kind in self.kinds.items()}
        gone = {self.soft: "timestamp"} if self.soft else {}
        self.rows = made(folder / "t", {**types, **_METADATA, **gone}, hides=hides)
        self.ends = made(folder / "t" / TOMBSTONES, _ENDS, hides=False)
        self.tracked = [name for name in self.kinds if name not in self.key]
        self.mirror = Mirror()
        self.number = 0
        self.taken = self.left = self.moved = self.opened = 0

    @property
    def table(self) -> Table:
        return Table(list(self.kinds), self.tracked, self.soft is not None, key=self.key)

    @property
    def believed(self) -> Believed:
        gone = [*self.mirror.tombstones.values(), *(each.move for each in self.mirror.images)]
        newest = max((each.seq for each in gone), default=None)
        named = self.facts.table
        return Believed(
            TableName(named.database or "", named.schema, named.table or ""),
            f"demo.{named.schema or named.database}.items",
            str(self.number),
            self.facts,
            Mirrored(self.kinds, self.key, self.table, self.soft),
            frozenset(["demo"]),
            (None, None),
            may_have_gaps=True,
            closer=self.rnd.random() < 0.5,
            newest=newest,
            moved=bool(self.mirror.images),
            may_move=self.buckets == 1,
            may_be_open=self.rnd.random() < 0.7,
        )

    def deliver(self, lines: Any) -> bool:
        """Apply a batch in both ways. Returns whether the engine takes it; if not, Spark would store it."""
        records = records_of(lines)
        events = self.events_in(records)
        report, done = self._job(records)
        before = self.mirror
        applied = apply(before, events, self.table)
        self.mirror = applied.mirror
        is_left = report is not None and report.odd is not None
        if is_left or any(each.error == _MOVED_BEFORE for each in done):
            self.left += 1
            discard(self.rows.files, done)
            self._store(before)
            self._compare()
            return False
        outcomes: Counter[Outcome] = Counter()
        for each in done:
            assert each.error is None, each.error
            outcomes.update(each.counted.outcomes)
        assert +outcomes == +applied.counts(events)
        self.taken, self.moved = self.taken + 1, self.moved + any(each.moves for each in done)
        self.opened += any(each.unanchored for each in events)
        self._commit(done)
        self._compare()
        return True

    def _store(self, before: Mirror) -> None:
        """Store what the rules made of a batch: Spark does that if the engine leaves a table."""
        after = self.mirror
        new = {key: each for key, each in after.tombstones.items() if before.tombstones.get(key) != each}
        ends = in_columns.of_tombstones(new, self.kinds, self.key)
        images = as_facts(after.images[len(before.images) :], self.kinds, self.key)
        change = table_change.TableChange(self.rows.state.snapshot.version)  # type: ignore[union-attr]
        self._commit([Done(change, ends, moved=images)])
        state = self.rows.refresh()
        assert state is not None
        rows = in_columns.of_rows(after.rows, self.kinds, self.key, soft=self.soft)
        paths = {each.path for each in state.snapshot.files.values()}
        change = Change([pa.Table.from_batches([rows])], paths)
        self.rows.commit(change, _AUTHOR, 2000)

    def events_in(self, records: list[Any]) -> list[Event]:
        """What the rules make of records."""
        found = [read(each, self.facts) for each in records]
        return [each for mine in found if isinstance(mine, list) for each in mine]

    def handed_on(
        self, tasks: list[list[pa.RecordBatch]], table: Believed, dividing: Dividing
    ) -> list[pa.RecordBatch]:
        """What the first stage hands on to the second."""
        return [each for mine in tasks for each in divided(_raw(mine), [table], dividing)]

    def _job(self, records: list[Any]) -> tuple[Report | None, list[Done]]:
        table, rnd = self.believed, self.rnd
        dividing = Dividing([self.buckets], rnd.choice((1, 2)))
        state, ends = self.rows.refresh(), self.ends.refresh()
        assert state is not None
        assert ends is not None
        avoided = () if self.hides else (VECTORS,)
        files = MirrorFiles.of(state.snapshot, in_columns.rows_schema(self.kinds, soft=self.soft), avoided)
        listed = TombstoneFiles(Layout.of(ends.snapshot), tuple(ends.snapshot.files.values()))
        place = StoredMirror(LocalDisk(), self.rows.folder, files, listed, 0)
        blocks = [block_of(records[a:b]) for a, b in cut(len(records), rnd)]
        rnd.shuffle(blocks)
        tasks = [blocks[i::2] for i in range(2)]
        blocks = self.handed_on(tasks, table, dividing)
        schema = blocks[0].schema
        parcels = [row for block in blocks for row in _rows(block)]
        rnd.shuffle(parcels)
        report: Report | None = None
        done: list[Done] = []
        for target in range(dividing.tasks):
            mine = [row for row in parcels if row["target"] == target]
            for block in folded(_batches(mine, schema), [table], [place], dividing.buckets):
                for row in block.to_pylist():
                    content = pickle.loads(row["content"])
                    if row["what"] == REPORT:
                        report = content if report is None else report | content
                    else:
                        done.append(content)
        return report, done

    def _commit(self, done: list[Done]) -> None:
        self.number += 1
        author = Author("lakemirror/test", self.number, {"batch": self.number})
        ends = tombstones_of(done, self.kinds, self.key, self.number)
        if ends is not None:
            self.ends.append(ends, author, 2000)
        if changes_in(done):
            commit_rows(self.rows, done, author)

    def _compare(self) -> None:
        stored = self._stored()
        mine = in_columns.as_rows(stored, self.kinds, self.key, soft=self.soft)
        assert len(mine) == stored.num_rows, "a key is stored twice"
        rows = in_columns.of_rows(self.mirror.rows, self.kinds, self.key, soft=self.soft)
        assert shown(mine) == shown(in_columns.as_rows(rows, self.kinds, self.key, soft=self.soft))
        self._require_same_ends()

    def _stored(self) -> pa.RecordBatch:
        rows = [
            {name: _entries(each) if name in _MAPS else each for name, each in row.items()}
            for row in content_of(self.rows)
        ]
        return pa.RecordBatch.from_pylist(rows, in_columns.rows_schema(self.kinds, soft=self.soft))

    def _require_same_ends(self) -> None:
        newest: dict[str, bytes] = {}
        content = content_of(self.ends)
        for row in content:
            if row["kind"] == "deleted":
                newest[row["key"]] = max(newest.get(row["key"], b""), row["seq"])
        kinds = {name: self.kinds[name] for name in self.key}
        assert newest == {
            encode(dict(zip(self.key, key, strict=True)), kinds): each.seq
            for key, each in self.mirror.tombstones.items()
        }
        names = ("key", "seq", "new_key", "image", "seqs", "topic", "partition", "offset")
        images = as_facts(self.mirror.images, self.kinds, self.key).select(names).to_pylist()
        moved = [{name: row[name] for name in names} for row in content if row["kind"] == "moved"]
        assert sorted(map(_text, moved)) == sorted(map(_text, images))


def _text(fact: dict[str, Any]) -> str:
    return repr({**fact, "seqs": dict(fact["seqs"])})


def content_of(table: DeltaTable) -> list[dict[str, Any]]:
    """The rows of a table, read without the engine."""
    state = table.state
    assert state is not None
    return [
        row
        for add in state.snapshot.files.values()
        for row in rows_of(Path(table.folder), add, state.snapshot)
    ]


def _entries(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else value


_MAPS = ("__column_seq", "__unrepresentable")
_ENDS = {
    "kind": "string",
    "key": "string",
    "seq": "binary",
    "at": "timestamp",
    "event_time": "timestamp",
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "new_key": "string",
    "image": "string",
    "seqs": _METADATA["__column_seq"],
    "batch": "long",
}


def _raw(blocks: Iterable[pa.RecordBatch]) -> Iterator[RawRecords]:
    for each in blocks:
        problem, file, row = (
            pa.nulls(each.num_rows, kind) for kind in (pa.string(), pa.string(), pa.int64())
        )
        columns = [*each.columns, problem, file, row]
        names = [*each.schema.names, "problem", "file", "row"]
        yield RawRecords.of(pa.RecordBatch.from_arrays(columns, names))


def reports_in(blocks: Iterable[pa.RecordBatch]) -> list[Report]:
    """What the first stage reports."""
    rows = [row for block in blocks for row in _rows(block) if row["what"] == REPORT]
    return [pickle.loads(row["content"]) for row in rows]


def _rows(block: pa.RecordBatch) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = block.to_pylist()
    return rows


def _batches(rows: list[dict[str, Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for each in rows:
        yield pa.RecordBatch.from_pylist([each], schema)


def check(number: int, *, moves: bool = False) -> OnDisk:
    """One history, in which rows may change their keys."""
    rnd = random.Random(number)
    shape = Shape(
        rnd.choice(("postgres", "postgres", "mariadb")) if moves else "postgres",
        rnd.choice(("initial", "initial", "open")) if moves else "initial",
        full=rnd.random() < (0.3 if moves else 0.5),
        schemas=rnd.random() < 0.5,
        seed=number,
        name="items",
    )
    steps = many(range(2), rnd)
    if not moves:
        steps = [each._replace(verb=rnd.choice(("put", "put", "drop", "again"))) for each in steps]
    played = play(steps, shape)
    deliver = {**COMPLETE, **ANYHOW}[rnd.choice(sorted({**COMPLETE, **ANYHOW}))]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_change, "SMALL", rnd.choice((1, table_change.SMALL)))
        held = rnd.choice((2_000, blocks.MOST_HELD, blocks.MOST_HELD))
        patch.setattr(blocks, "MOST_HELD", blocks.MOST_HELD if moves else held)
        patch.setattr(blocks, "_MANY", rnd.choice((1, 8, blocks._MANY)))
        patch.setattr(blocks, "_MOST_WAITING", rnd.choice((1, 3_000, blocks._MOST_WAITING)))
        patch.setattr(os, "fsync", lambda _: None)  # nobody pulls the plug here
        table = OnDisk(Path(folder), facts_of(played), rnd, soft=moves and rnd.random() < 0.3)
        if moves and rnd.random() < 0.8:
            table.buckets = 1
        for batch in deliver(over_partitions(played.records, rnd.choice((1, 2, 3))), rnd):
            table.deliver(batch)
    return table


@pytest.mark.parametrize("block", range(2))
def test_a_mirror_ends_as_the_rules_say(block: int) -> None:
    found = [check(number) for number in range(block * 60, block * 60 + 60)]
    assert sum(each.taken for each in found) > 60
    assert sum(each.opened for each in found) > 5


def test_rows_that_change_their_keys_end_as_the_rules_say() -> None:
    """Both halves in one batch or in several, late, repeated, over several hops, beside batches of Spark."""
    found = [check(number, moves=True) for number in range(120)]
    assert sum(each.taken for each in found) > 120
    assert sum(each.moved for each in found) > 40
    assert sum(each.opened for each in found) > 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "count"),
    [(1000, 80), *(pytest.param(n, 250, marks=pytest.mark.thorough) for n in range(1000, 4000, 250))],
)
def test_many_rows_that_change_their_keys_end_as_the_rules_say(first: int, count: int) -> None:
    for number in range(first, first + count):
        check(number, moves=True)
