"""Filters of tables in both stages of the job, with answers like Spark's, and without Spark.

What a filter leaves of a history ends as the rules say, also with soft deletes.
"""

from __future__ import annotations

import json
import pickle
import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, DataType, IntegerType, StringType

from lakemirror.driver.codes import WITH_ROW
from lakemirror.driver.columns import stored as in_columns
from lakemirror.driver.columns.changes import as_events, none
from lakemirror.driver.columns.fold import OUTCOMES, Bucket, Mirrored, fold
from lakemirror.driver.columns.raw_records import RawRecords
from lakemirror.driver.engine.believed import Believed, Filter
from lakemirror.driver.engine.blocks import REPORT, SCHEMA, Dividing, Report, divided
from lakemirror.driver.engine.filters import (
    MEETS,
    ODD_ROW,
    PLAIN_ROW,
    Answers,
    FilterFails,
    Parcelled,
    Questions,
    as_filtered,
    show_rows,
)
from lakemirror.driver.rules.batch import apply
from lakemirror.driver.rules.conditions import Condition, Evidence, Fails, filtered_or_why
from lakemirror.driver.rules.envelopes.records import Record
from lakemirror.driver.rules.kinds import INT, STRING, Arrays
from lakemirror.driver.rules.table import Table
from lakemirror.driver.rules.values import Event, Outcome
from tests.driver.columns.test_histories import facts_of, history
from tests.driver.engine.test_stages import OnDisk, _raw, _rows
from tests.driver.engine.test_verdicts import BELIEVED
from tests.driver.rules.test_histories import ANYHOW, COMPLETE, over_partitions
from tests.support.columnar import GONE, Beside, block_of, cut, read, records_of
from tests.support.conditions import CONDITIONS
from tests.support.histories import COLUMNS, History, Shape, Step, many, play

pytestmark = pytest.mark.guarantee(
    "A filtered mirror has the rows that meet the condition, after any delivery"
)

TYPES = {each.name: IntegerType() if each.type == "int32" else StringType() for each in COLUMNS}
PLACE, REMEDY = "tables[items].filter", "set REPLICA IDENTITY FULL on the table"
FILTERS = ["v % 3 <> 0 AND (note LIKE 'note%' OR big > '')", "note IS NULL", "v % 5 <> 2 OR big > ''", "true"]


def filter_of(sql: str) -> Filter:
    return Filter(sql, PLACE, REMEDY, tuple((name, TYPES[name]) for name in CONDITIONS[sql][0]))


def as_condition(sql: str) -> Condition:
    return Condition(sql, PLACE, *CONDITIONS[sql])


def judged(block: pa.RecordBatch, questions: Questions) -> pa.RecordBatch:
    """What Spark makes of a block of the first stage."""
    found = []
    for row in block.to_pylist():
        if row["filter"] is not None:
            of, slots = questions.filters[row["filter"]]
            try:
                met = CONDITIONS[of.sql][1]({name: row[slot] for name, slot in slots.items()})
                row[MEETS] = bool(met)
            except Fails:
                row[MEETS] = None
        found.append(row)
    return pa.RecordBatch.from_pylist(found, pa.schema([*SCHEMA, ("row", pa.int32()), (MEETS, pa.bool_())]))


# -- both stages ------------------------------------------------------------------------------------------


class Filtered(OnDisk):
    """A mirror with a filter."""

    sql = "true"

    @property
    def believed(self) -> Believed:
        return replace(super().believed, filter=filter_of(self.sql))

    def events_in(self, records: list[Any]) -> list[Event]:
        found = super().events_in(records)
        left = [
            filtered_or_why(
                each,
                as_condition(self.sql),
                Evidence([name for name in self.kinds if name in each.gaps]),
                keyed=True,
            )
            for each in found
        ]
        return [each for each in left if isinstance(each, Event)]

    def handed_on(
        self, tasks: list[list[pa.RecordBatch]], table: Believed, dividing: Dividing
    ) -> list[pa.RecordBatch]:
        questions = Questions.of([table])
        return [
            judged(block, questions)
            for task, mine in enumerate(tasks)
            for block in divided(_raw(mine), [table], dividing, questions, task)
        ]


def check(number: int) -> tuple[int, int]:
    """One history, and how many of its batches the engine took and left."""
    rnd = random.Random(number)
    shape = Shape(
        snapshot="initial", full=rnd.random() < 0.8, schemas=rnd.random() < 0.5, seed=number, name="items"
    )
    steps = [each._replace(verb=rnd.choice(("put", "put", "drop", "again"))) for each in many(range(2), rnd)]
    played = play(steps, shape)
    deliver = {**COMPLETE, **ANYHOW}[rnd.choice(sorted({**COMPLETE, **ANYHOW}))]
    taken = 0
    with tempfile.TemporaryDirectory() as folder:
        table = Filtered(Path(folder), facts_of(played), rnd)
        table.sql = rnd.choice(FILTERS)
        for batch in deliver(over_partitions(played.records, rnd.choice((1, 2, 3))), rnd):
            taken += table.deliver(batch)
    return taken, table.left


def test_a_mirror_with_a_filter_ends_as_the_rules_say() -> None:
    found = [check(number) for number in range(60)]
    assert sum(taken for taken, _ in found) > 60


# -- what a filter leaves ---------------------------------------------------------------------------------


class BesideRules(Beside):
    """One mirror with a filter that is kept twice: by the rules alone, and in columns."""

    sql = "true"
    moved = 0

    def deliver(self, records: Sequence[Any], rnd: random.Random) -> None:
        told = [read(each, self.facts) for each in records]
        events = [
            self._left(each) for mine in told if isinstance(mine, list) for each in mine if not each.is_half
        ]
        kept = [each for each in events if each is not None]
        table = Table(list(self.kinds), self.tracked, self.soft)
        by_rules = apply(self.mirror, kept, table)
        expected = Counter((each.origin, told) for each, told in zip(kept, by_rules.events, strict=True))
        assert self._in_columns(records, table, rnd) == expected
        self.mirror = by_rules.mirror
        self._compare()

    def _left(self, event: Event) -> Event | None:
        gaps = Evidence([name for name in self.kinds if name in event.gaps])
        left = filtered_or_why(event, as_condition(self.sql), gaps, keyed=True)
        return left if isinstance(left, Event) else None

    def _in_columns(
        self, records: Sequence[Any], table: Table, rnd: random.Random
    ) -> Counter[tuple[Any, Outcome]]:
        parts, odd = [none(self.kinds)], list[Event]()
        for begin, end in cut(len(records), rnd):
            decoded = self.decoder.decode(RawRecords.of(block_of(records[begin:end])))
            parts.append(decoded.changes)
            found = [read(records[begin + int(i)], self.facts) for i in decoded.odd]
            odd += [each for mine in found if isinstance(mine, list) for each in mine if not each.is_half]
        odd = [each for each in odd if not (each.gaps and each.op in WITH_ROW)]
        odd += self._parted_off(parts, rnd)
        changes = pa.concat_batches(parts)
        soft = GONE if self.soft else None
        mirrored = Mirrored(self.kinds, self.key, replace(table, former=self.former), soft)
        believed = replace(BELIEVED, mirrored=mirrored)
        given = as_filtered(changes, self._out(changes), odd, self._out_of(odd), believed)
        self.moved += len(given[1]) - len(odd)
        ends = in_columns.of_tombstones(self.ends, self.kinds, self.key)
        result = fold(Bucket(given[0], self.rows, ends, given[1], self.images), mirrored)
        self._put(result, table)
        origins = [tuple(each.values()) for each in given[0].select(PLACES).to_pylist()]
        outcomes = [OUTCOMES[each] for each in result.outcomes]
        pairs = [*zip(origins, outcomes, strict=True)]
        pairs += [(each.origin, of) for each, of in zip(given[1], result.of_odd, strict=True)]
        return Counter(pairs)

    def _parted_off(self, parts: list[pa.RecordBatch], rnd: random.Random) -> list[Event]:
        """Take some plain changes out of blocks, and return them as if their records were odd."""
        found: list[Event] = []
        for i, each in enumerate(parts):
            chosen = np.array([rnd.random() < 0.1 for _ in range(each.num_rows)], np.bool_)
            found += as_events(each.filter(pa.array(chosen, pa.bool_())), self.kinds, self.key)
            parts[i] = each.filter(pa.array(~chosen, pa.bool_()))
        return found

    def _out(self, changes: pa.RecordBatch) -> Any:
        return show_rows(changes) & ~self._met(changes.to_pylist())

    def _out_of(self, events: Sequence[Event]) -> Any:
        shown = np.array([each.op in WITH_ROW for each in events], np.bool_)
        return shown & ~self._met([each.row for each in events])

    def _met(self, rows: Sequence[Any]) -> Any:
        return np.array([bool(CONDITIONS[self.sql][1](each)) for each in rows], np.bool_)


PLACES = ["__topic", "__partition", "__offset"]


@pytest.mark.parametrize("soft", [False, True])
def test_what_a_filter_leaves_ends_as_the_rules_say(soft: bool) -> None:
    moved = 0
    for number in range(100):
        played, rnd = history(number, plain=True), random.Random(number)
        deliver = {**COMPLETE, **ANYHOW}[rnd.choice(sorted({**COMPLETE, **ANYHOW}))]
        beside = BesideRules(facts_of(played), soft)
        beside.sql = rnd.choice(FILTERS)
        for batch in deliver(over_partitions(played.records, rnd.choice((1, 1, 2, 3))), rnd):
            beside.deliver(records_of(doctored(batch, rnd)), rnd)
        moved += beside.moved
    assert moved, "no two changes stood at one position"


def doctored(batch: Sequence[Any], rnd: random.Random) -> list[Any]:
    """A batch with changes that say another value at the same place, or are sent again."""
    found = list(batch)
    for each in batch:
        if each["value"] and rnd.random() < 0.3:
            other = (
                each["value"].replace('"note":"note', '"note":"other')
                if rnd.random() < 0.5
                else each["value"]
            )
            found.append({**each, "offset": each["offset"] + 1_000, "value": other})
    rnd.shuffle(found)
    return found


# -- questions and answers --------------------------------------------------------------------------------


def with_filter(reads: Sequence[tuple[str, DataType]], kinds: dict[str, Any], sql: str = "x") -> Believed:
    return replace(
        BELIEVED,
        mirrored=Mirrored(kinds, ["id"], Table(list(kinds))),
        filter=Filter(sql, PLACE, REMEDY, tuple(reads)),
    )


def test_filters_share_the_slots_of_a_type_and_equal_ones_are_asked_once() -> None:
    kinds = {"id": INT, "a": STRING, "b": STRING, "c": Arrays(STRING)}
    one = with_filter([("a", StringType()), ("id", IntegerType())], kinds)
    two = with_filter([("a", IntegerType()), ("b", StringType())], {**kinds, "a": INT}, "y")
    three = with_filter(
        [("a", StringType()), ("b", StringType()), ("c", ArrayType(StringType()))], kinds, "z"
    )
    found = Questions.of([one, BELIEVED, two, one, three])
    assert found.numbers == {0: 0, 2: 1, 3: 0, 4: 2}
    assert [each.type for each in found.slots] == [
        StringType(),
        IntegerType(),
        StringType(),
        ArrayType(StringType()),
    ]
    assert [dict(slots) for _, slots in found.filters] == [
        {"a": "slot_0", "id": "slot_1"},
        {"a": "slot_1", "b": "slot_0"},
        {"a": "slot_0", "b": "slot_2", "c": "slot_3"},
    ]
    assert not Questions.of([BELIEVED])


def answers(rows: Sequence[tuple[str, int, int, int, int, bool | None]]) -> Answers:
    schema = pa.schema([*SCHEMA, ("row", pa.int32()), (MEETS, pa.bool_())])
    names = ("what", "number", "bucket", "task", "row", MEETS)
    found = Answers()
    for each in rows:
        block = pa.RecordBatch.from_pylist([dict(zip(names, each, strict=True)), {"what": REPORT}], schema)
        assert found.taken(block).column("what").to_pylist() == [REPORT]
    return found


def test_answers_belong_to_the_rows_of_their_parcel() -> None:
    found = answers(
        [
            (PLAIN_ROW, 0, 1, 0, 2, False),
            (PLAIN_ROW, 0, 1, 1, 0, True),
            (ODD_ROW, 0, 1, 0, 0, True),
            (PLAIN_ROW, 0, 1, 0, 0, True),
            (PLAIN_ROW, 1, 1, 0, 0, None),
        ]
    )
    shown = np.array([True, False, True])
    assert found.left_out(PLAIN_ROW, Parcelled(0, 1, 0), shown).tolist() == [False, False, True]
    assert not found.left_out(ODD_ROW, Parcelled(0, 1, 0), shown[:2]).any()
    assert not found.left_out(PLAIN_ROW, Parcelled(0, 2, 0), np.array([False])).any(), "a delete shows no row"
    with pytest.raises(ValueError, match="judged once"):
        found.left_out(PLAIN_ROW, Parcelled(0, 1, 1), shown)
    with pytest.raises(FilterFails):
        found.left_out(PLAIN_ROW, Parcelled(1, 1, 0), shown[:1])


def reported(blocks: Sequence[pa.RecordBatch]) -> Report:
    [found] = [
        pickle.loads(row["content"]) for each in blocks for row in _rows(each) if row["what"] == REPORT
    ]
    assert isinstance(found, Report)
    return found


def placed(played: History, disk: OnDisk) -> list[Record]:
    """The records of a history whose place is known, without tombstones."""
    found = [(each, read(each, disk.facts)) for each in records_of(played.records)]
    return [each for each, events in found if isinstance(events, list) and not events[0].unanchored]


@pytest.mark.parametrize("schemas", [False, True])
@pytest.mark.parametrize(("keeps_bad", "may_have_gaps"), [(True, True), (True, False), (False, True)])
def test_a_record_that_lacks_values_is_kept_aside_or_left_for_spark(
    tmp_path: Path, schemas: bool, keeps_bad: bool, may_have_gaps: bool
) -> None:
    shape = Shape(schemas=schemas, seed=3, name="items")
    played = play([Step(0, "put", 1, big=1), *([Step(0, "put", 1)] * 20)], shape)
    disk = Filtered(tmp_path, facts_of(played), random.Random(1))
    disk.sql = "note IS NULL"
    table = replace(disk.believed, keeps_bad=keeps_bad, may_have_gaps=may_have_gaps)
    records = placed(played, disk)
    blocks = list(divided(_raw([block_of(records)]), [table], Dividing([1], 1), Questions.of([table])))
    report = reported(blocks)
    if not keeps_bad or not may_have_gaps:
        assert "it lacks values" in (report.odd or "")
        return
    gaps = [each for each in records if isinstance(found := read(each, disk.facts), list) and found[0].gaps]
    assert len(gaps) > 3
    assert [(each.partition, each.offset) for each in report.aside] == [each.origin[1:] for each in gaps]
    assert {each.reason for each in report.aside} == {
        f"the source did not send big, and {PLACE} needs the whole row: {REMEDY}"
    }
    assert report.spoilt == len(gaps)


@pytest.mark.parametrize("member", ["note", "big"])
def test_a_row_that_does_not_show_a_column_of_the_filter_is_left_for_spark(
    tmp_path: Path, member: str
) -> None:
    played = play([Step(0, "put", 1), Step(0, "put", 2)], Shape(schemas=False, full=True, name="items"))
    disk = Filtered(tmp_path, facts_of(played), random.Random(1))
    disk.sql = "note IS NULL"
    *_, record = placed(played, disk)
    value = json.loads(record.value or b"")
    del value["after"][member]
    blocks = [block_of([record._replace(value=json.dumps(value).encode())])]
    found = list(divided(_raw(blocks), [disk.believed], Dividing([1], 1), Questions.of([disk.believed])))
    odd = reported(found).odd
    if member == "note":
        assert "it lacks columns that the filter reads" in (odd or "")
    else:
        assert odd is None
        assert [row["slot_0"] for each in found for row in _rows(each) if row["what"] == ODD_ROW] == [None]


@pytest.mark.parametrize("member", ["v", "note"])
def test_a_filter_that_fails_for_a_row_leaves_its_table_for_spark(tmp_path: Path, member: str) -> None:
    """Spark says why in the quarantine. The record may be odd."""
    played = play([Step(0, "put", each) for each in range(3)], Shape(schemas=False, full=True, name="items"))
    disk = Filtered(tmp_path, facts_of(played), random.Random(1))
    disk.sql = "100 / v > 10"
    records = placed(played, disk)
    value = json.loads(records[1].value or b"")
    value["after"]["v"] = 0
    if member == "note":  # then it is odd
        del value["after"]["note"]
    records[1] = records[1]._replace(value=json.dumps(value).encode())
    report, done = disk._job(records)
    assert report is not None
    assert report.odd is None
    assert "the filter fails for a row" in [each.error for each in done]
    assert all(each.change is None for each in done if each.error)
