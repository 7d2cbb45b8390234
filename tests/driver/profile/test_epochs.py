"""Positions that start again: nothing of them is dropped, and the remedy that the error names ends in the
rows of the source.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.spec import Ordering
from lakemirror.driver.applier import TableApplier
from lakemirror.driver.profile import epochs, stretches
from lakemirror.driver.profile.epochs import Partition
from lakemirror.driver.profile.positions import At, Place, Stream
from lakemirror.driver.runtime.summary import RunSummary
from tests.support.kafka_broker import Broker
from tests.support.mirroring import Mirroring, at
from tests.support.records import BinlogPosition, Column, Message, PostgresPosition, Record, Row, Table

pytestmark = pytest.mark.guarantee(
    "Records from a restored or different server are never dropped: they are applied, or wait, at "
    "most with their table"
)

ID, V = Column("id", "int32"), Column("v", "int32")
BEGAN = 1_700_000_000
OLD, NEW = 1_000_000, 5_000


def table(name: str, prefix: str = "", *, mariadb: bool = False) -> Table:
    """A table with a connector of its own."""
    return Table("demo", None if mariadb else "public", name, (ID, V), ("id",), prefix or name, mariadb, True)


def postgres(lsn: int, second: float, *, commit: bool = True, snapshot: str = "false") -> PostgresPosition:
    micros = int((BEGAN + second) * 1_000_000)
    return PostgresPosition(lsn, lsn - 5 if commit else None, lsn, micros, snapshot)


@dataclass(frozen=True)
class Binlog(BinlogPosition):
    server: int = 1

    def source(self, table: Table) -> Row:
        return {**super().source(table), "server_id": self.server}


@dataclass(frozen=True)
class SqlServer:
    """A change, or a row of a snapshot, which has the position of the last commit and of no change."""

    commit: int
    change: int | None
    ts_us: int

    @property
    def snapshot(self) -> str:
        return "true" if self.change is None else "false"

    def source(self, table: Table) -> Row:
        about = {"connector": "sqlserver", "name": table.prefix, "db": table.db, "schema": table.schema}
        return {
            **about,
            "table": table.name,
            "ts_ms": self.ts_us // 1000,
            "snapshot": self.snapshot,
            "commit_lsn": f"0000002a:{self.commit:08x}:0001",
            "change_lsn": None if self.change is None else f"0000002a:{self.change:08x}:0002",
            "event_serial_no": None if self.change is None else 1,
        }


def sqlserver(commit: int, change: int | None, second: int) -> SqlServer:
    return SqlServer(commit, change, (BEGAN + second) * 1_000_000)


def binlog(pos: int, second: int, server: int) -> Binlog:
    return Binlog("bin.000007", pos, 0, f"0-{server}-{pos}", (BEGAN + second) * 1_000_000, server=server)


@dataclass
class Case:
    """Batches of records of one table, and the rows that its source has in the end."""

    of: Table
    rows: dict[int, int]
    batches: list[list[tuple[int, Message]]] = field(default_factory=lambda: [[], [], []])
    restarts: bool = True

    def put(
        self, batch: int, at: Any, id: int, v: int, *, partition: int = 0, of: Table | None = None
    ) -> Case:
        row: Row = {"id": id, "v": v}
        change = (of or self.of).read if getattr(at, "snapshot", "") == "true" else (of or self.of).create
        self.batches[batch].append((partition, change(at, row)))
        return self

    def gone(self, batch: int, at: Any, id: int, *, partition: int = 0) -> Case:
        self.batches[batch] += [(partition, each) for each in self.of.delete(at, {"id": id, "v": 0})]
        return self

    def again(self, batch: int, first: int, last: int, of: int = 0) -> Case:
        """Changes of an earlier batch, sent again."""
        self.batches[batch] += self.batches[of][first:last]
        return self

    def old(self, count: int = 3, *, partition: int = 0) -> Case:
        """What the former server sent: ids from 1 on."""
        for i in range(1, count + 1):
            self.put(0, postgres(OLD + 100 * i, i), 10 * partition + i, 1, partition=partition)
        return self


def records(cases: Iterable[Case]) -> list[list[Record]]:
    """The batches of all cases, with offsets that count up in each partition."""
    nexts: dict[tuple[str, int], int] = {}
    batches = []
    for number in range(3):
        batch: list[Record] = []
        for case in cases:
            for partition, message in case.batches[number]:
                where = case.of.topic, partition
                nexts[where] = nexts.get(where, -1) + 1
                batch.append(
                    {
                        "topic": case.of.topic,
                        "partition": partition,
                        "offset": nexts[where],
                        "timestamp": message.ts_ms + 60,
                        "key": message.key,
                        "value": message.value,
                        "headers": [list(header) for header in message.headers],
                    }
                )
        batches.append(batch)
    return batches


def cases() -> list[Case]:
    """Each a way to lose what a restored or another server sent. The first two batches tell nothing yet."""
    seconds = Case(table("seconds"), {1: 2, 3: 1, 4: 4}).old()
    seconds.put(2, postgres(NEW, 3.2), 1, 2).gone(2, postgres(NEW + 10, 3.4), 2).put(
        2, postgres(NEW + 20, 4), 4, 4
    )

    cut = Case(table("cut"), {1: 2, 3: 1, 4: 4}).old()
    cut.put(1, postgres(NEW, 2.9), 1, 2).gone(1, postgres(NEW + 10, 3), 2).put(
        2, postgres(NEW + 20, 3.1), 4, 4
    )

    snapshot = Case(table("snapshot"), {1: 7, 2: 8, 3: 1}).old().gone(0, postgres(OLD + 400, 4), 2)
    snapshot.put(2, postgres(NEW, 60, snapshot="true"), 1, 7).put(2, postgres(NEW, 60, snapshot="true"), 2, 6)
    snapshot.put(2, postgres(NEW - 5, 61, commit=False), 2, 8)

    parts = Case(table("parts"), {1: 2, 2: 1, 3: 1, 11: 2, 12: 1, 13: 1, 21: 1, 22: 1}).old().old(partition=1)
    parts.old(2, partition=2).put(1, postgres(NEW + 5, 3), 11, 2, partition=1).put(2, postgres(NEW, 4), 1, 2)

    again = Case(table("again"), {1: 1, 2: 1, 3: 1, 4: 1}, restarts=False).old()
    again.again(1, 0, 3).again(1, 0, 3).again(1, 0, 2).again(2, 1, 3).put(2, postgres(OLD + 400, 9), 4, 1)

    cut_off = Case(table("cut_off"), {1: 2, 2: 1, 3: 1}).old().again(1, 0, 2)
    cut_off.put(2, postgres(NEW, 4), 1, 2)

    passed = Case(table("passed"), {1: 2, 2: 1, 3: 1, 5: 5}).old()
    passed.put(2, postgres(OLD + 250, 4), 1, 2).put(2, postgres(OLD + 900, 5), 5, 5)

    other = Case(table("other", mariadb=True), {1: 2, 2: 1})
    other.put(0, binlog(900, 1, 1), 1, 1).put(0, binlog(950, 1, 1), 2, 1).again(1, 0, 1)
    other.put(2, binlog(940, 1, 2), 1, 2)

    # A snapshot is sent again, or another one with the first one's position.
    read_again = Case(table("read_again"), {1: 2, 2: 1, 3: 1, 4: 5}, restarts=False)
    for batch, second, values in (
        (0, 0, {1: 1, 2: 1, 3: 1}),
        (0, 50, {1: 2, 2: 1}),
        (1, 60, {1: 2, 2: 1, 3: 1, 4: 4}),
    ):
        for id, v in values.items():
            read_again.put(batch, postgres(OLD, second, snapshot="true"), id, v)
        if second == 0:
            read_again.put(0, postgres(OLD + 100, 1), 1, 2)
    read_again.put(2, postgres(OLD + 300, 61), 4, 5)

    old_read = Case(table("old_read"), {1: 1, 2: 1, 3: 1, 5: 5, 7: 7}, restarts=False).old()
    for id in (1, 7):
        old_read.put(1, postgres(OLD - 500, -1, snapshot="true"), id, 7)
    old_read.put(2, postgres(OLD + 900, 9), 5, 5)

    # A connector that is made anew, where nothing has changed since the last change that it sent.
    idle = Case(replace(table("idle"), schemas=False), {1: 2, 2: 1}, restarts=False)
    idle.put(0, sqlserver(700, None, 0), 1, 1).put(0, sqlserver(700, None, 0), 2, 1)
    idle.put(0, sqlserver(800, 790, 1), 1, 2)
    idle.put(1, sqlserver(800, None, 60), 1, 2).put(1, sqlserver(800, None, 60), 2, 1)

    shared = Case(table("shared", "first"), {1: 2, 2: 2}, restarts=False)
    other_table = table("shared", "second")
    for batch in (0, 1, 2):
        shared.put(batch, postgres(OLD + batch, batch), 1, min(batch + 1, 2))
        shared.put(batch, postgres(NEW + batch, batch + 0.5), 2, min(batch + 1, 2), of=other_table)
    repeated = [again, read_again, old_read, idle, shared]
    return [seconds, cut, snapshot, parts, cut_off, passed, other, *repeated]


def found(spark: SparkSession, mirroring: Mirroring, of: Table) -> dict[int, int]:
    rows = at(spark, mirroring.path(of.db, of.schema, of.name)).collect()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["v"] for row in rows}


def open_records(spark: SparkSession, mirroring: Mirroring) -> dict[str, int]:
    """Open records of the quarantine that wait for their order, by table."""
    kept = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine").where("state = 'open'")
    assert {row["scope"] for row in kept.select("scope").distinct().collect()} <= {"order"}
    return {row["source"]: row["count"] for row in kept.groupBy("source").count().collect()}


def remedy(message: str) -> Any:
    """What the message says to declare."""
    said = re.search(r"ordering\.epochs: (\[.*?\]);", message)
    assert said is not None, message
    return json.loads(said[1])


def run_with_remedies(
    spark: SparkSession,
    folder: Path,
    settings: dict[str, Any] | None = None,
    declared: Sequence[Any] = (),
) -> tuple[RunSummary, Sequence[Any]]:
    """Run; do what the tables that wait say, until none does. ``declared`` are epochs."""
    for _ in range(4):
        ordering = {"ordering": {"epochs": list(declared)}} if declared else {}
        mirroring = Mirroring(folder, {**(settings or {}), **ordering})
        before = mirroring.versions()
        summary = mirroring.run(spark)
        if not summary.held:
            return summary, declared
        after = mirroring.versions()
        for source in summary.held:
            target = summary.tables[source].target
            assert target is None or after.get(target) == before.get(target), "a table that waits is written"
        declared, *others = [remedy(message) for message in summary.held.values()]
        assert all(each == declared for each in others)
    raise AssertionError("the remedy does not help")


def ordering(*froms: dict[str, dict[str, int]]) -> Ordering:
    """Epochs from 1 on, with the partitions in which each begins."""
    numbered = [{"epoch": number, "from": from_} for number, from_ in enumerate(froms, start=1)]
    return Ordering.model_validate({"epochs": numbered})


A0, A1, B0, NOWHERE = Partition("a", 0), Partition("a", 1), Partition("b", 0), Partition(None, None)


@pytest.mark.parametrize(
    ("origins", "known", "froms", "epoch"),
    [
        ([A0], {}, [], 0),
        ([A0], {}, [{"a": {"0": 5}}], 1),
        ([A0], {"b": [0]}, [{"a": {"0": 5}}], 1),
        ([B0], {"b": [0]}, [{"a": {"0": 5}}], 0),
        ([A0, A1], {}, [{"a": {"0": 5}}], 0),
        ([A0, B0], {}, [{"a": {"0": 5}}, {"b": {"0": 5}}], 1),
        ([A0, A1], {}, [{"a": {"0": 5, "1": 5}}, {"a": {"1": 9}}], 1),
        # The next row may come from a partition that the mirror has nothing of yet.
        ([A0], {"a": [0, 1]}, [{"a": {"0": 5}}], 0),
        ([A0], {}, [{"a": {"0": 5, "1": 5}}, {"a": {"0": 9}}], 1),
        # Where a table will come from of which no record was seen is unknown, and so is its epoch.
        ([], {"a": [0]}, [{"a": {"0": 5}}], 0),
        ([A0, NOWHERE], {}, [{"a": {"0": 5}}], 0),
    ],
)
def test_a_table_is_in_the_lowest_epoch_of_its_partitions(
    origins: list[Partition], known: dict[str, list[int]], froms: list[dict[str, dict[str, int]]], epoch: int
) -> None:
    assert epochs.epoch_of_table(origins, known, ordering(*froms)) == epoch


def test_a_log_is_in_the_newest_epoch_that_may_have_begun_in_it() -> None:
    streams = [Stream("a", 0, "shop"), Stream("b", 0, "bank"), Stream("c", 0, "shop"), Stream("c", 0, "bank")]
    of = ordering({"a": {"0": 5}}, {"b": {"0": 5}}, {"c": {"0": 5}})
    assert epochs.epoch_of_log(streams, "shop", of) == epochs.epoch_of_log(streams, "bank", of) == 3
    of = ordering({"a": {"0": 5}}, {"b": {"0": 5}})
    assert [epochs.epoch_of_log(streams, log, of) for log in ("shop", "bank", None)] == [1, 2, 2]
    assert epochs.epoch_of_log(streams, "shop", ordering({"b": {"0": 5}}, {"b": {"1": 5}})) == 2
    assert epochs.epoch_of_log(streams, "shop", Ordering()) == 0


def test_a_new_partition_of_a_topic_in_an_epoch_has_to_be_declared() -> None:
    """But none of a topic without epochs, or of which nothing was read before."""
    a0, a1, a2, b0, b1 = (Stream(each[0], int(each[1]), "shop") for each in ("a0", "a1", "a2", "b0", "b1"))
    memory = {each: Place(At("00", 1)) for each in (a0, a1, b0)}
    of = ordering({"a": {"0": 5}, "c": {"0": 5}}, {"a": {"0": 9}})
    c1 = Stream("c", 1, "shop")
    new = epochs.undeclared([a0, a1, a2, b1, c1, a2._replace(name="bank")], memory, of)
    assert new == {("a", 2): 0}
    told = remedy(epochs.remedy_of_undeclared(new, of))
    assert [each["from"] for each in told] == [{"a": {"0": 5}, "c": {"0": 5}}, {"a": {"0": 9, "2": 0}}]
    assert epochs.undeclared([a2], memory, Ordering.model_validate({"epochs": told})) == {}
    partitions = {"a": [0, 1, 2, 3], "b": [0, 1, 2], "d": [0]}
    assert epochs.unread(new, partitions, memory, of) == {("a", 3): 0}
    assert epochs.unread([("b", 0)], partitions, memory, of) == {("b", 1): 0, ("b", 2): 0}


@pytest.mark.thorough
@pytest.mark.sources
def test_a_row_that_moves_to_another_partition_after_a_failover_still_changes(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """To one that had no record before, and to one that was added."""
    case = Case(table("grown"), {1: 5, 2: 1, 3: 1}).old()
    case.put(1, postgres(NEW, 9), 1, 3)
    case.put(2, postgres(NEW + 10, 10), 1, 4, partition=1).put(2, postgres(NEW + 20, 11), 1, 5, partition=2)
    first, second, third = records([case])
    topic = case.of.topic
    kafka.create_named(topic, 2)
    given = {"bootstrapServers": kafka.bootstrap, "topics": [topic], "startingOffsets": "earliest"}
    settings = {"source": {"kafka": given}}

    def read(sent: Iterable[Record], declared: Sequence[Any] = ()) -> Sequence[Any]:
        for record in sent:
            kafka.send(topic, record["value"], key=record["key"], partition=record["partition"])
        kafka.flush()
        return run_with_remedies(spark, tmp_path, settings, declared)[1]

    assert read(first) == ()
    declared = read(second)
    assert [each["from"] for each in declared] == [{topic: {"0": 3, "1": 0}}]
    assert read(third[:1], declared) == declared
    kafka.widen(topic, 4)
    declared = read(third[1:], declared)
    assert [each["from"] for each in declared] == [{topic: {"0": 3, "1": 0, "2": 0, "3": 0}}]
    assert found(spark, Mirroring(tmp_path), case.of) == case.rows


def test_the_remedy_says_that_it_is_a_snapshot(spark: SparkSession) -> None:
    rows = [("t", 0, 1, "c", "s"), ("t", 0, 2, "r", "s"), ("t", 0, 3, "r", "s"), ("t", 0, 4, "c", None)]
    events = spark.createDataFrame(rows, "topic STRING, partition INT, offset LONG, op STRING, stream STRING")
    assert stretches.are_reads(events, {("t", 0): 2})
    assert not stretches.are_reads(events, {("t", 0): 1})
    assert not stretches.are_reads(events, {("u", 0): 0}), "nothing is there"
    begun = {("t", 0): 2}
    told = [epochs.remedy(begun, {}, {}, Ordering(), snapshot=each) for each in (False, True)]
    assert ["All of them are rows of a snapshot" in each for each in told] == [False, True]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_what_is_undecided_waits_and_the_remedy_ends_in_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    every = cases()
    first, second, third = records(every)
    mirroring = Mirroring(tmp_path).deliver([first])
    mirroring.run(spark)
    assert not (mirroring.checkpoint / "quarantine").exists()

    mirroring.deliver([second]).run(spark)
    waiting = {"cut": 3, "parts": 1, "again": 2, "cut_off": 2, "old_read": 2}
    expected = {f"demo.public.{name}": count for name, count in waiting.items()} | {"demo.other": 1}
    expected["demo.public.cut"] = 2  # the Kafka tombstone of the delete has no position
    assert open_records(spark, mirroring) == expected
    assert found(spark, mirroring, every[1].of) == {1: 1, 2: 1, 3: 1}
    aside = spark.read.format("delta").load(f"{mirroring.checkpoint}/quarantine")
    told = {row["source"] for row in aside.where("reason LIKE '%a row of a snapshot%'").collect()}
    assert told == {"demo.public.old_read"}

    mirroring.deliver([third])
    _, declared = run_with_remedies(spark, tmp_path)
    assert len(declared) == 1, "one epoch for all"
    assert set(declared[0]["from"]) == {case.of.topic for case in every if case.restarts}
    assert declared[0]["from"]["parts.public.parts"] == {"0": 3, "1": 3}
    assert declared[0]["from"]["cut_off.public.cut_off"] == {"0": 5}
    Mirroring(tmp_path, {"ordering": {"epochs": declared}}).run(spark)  # what waited is decided now
    wrong = {case.of.name: rows for case in every if (rows := found(spark, mirroring, case.of)) != case.rows}
    assert not wrong
    assert open_records(spark, mirroring) == {}


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("topic", ["the same topic", "another"])
def test_a_new_checkpoint_after_a_restore(topic: str, spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is remembered, but the rows have their positions. What the old server sent is read again, or is
    no longer there.
    """
    old = Case(table("items"), {}).old().gone(0, postgres(OLD + 400, 4), 3)
    new = Case(table("items", "items" if topic == "the same topic" else "fresh"), {1: 2, 2: 1, 3: 3})
    new.put(1, postgres(NEW, 5), 1, 2).put(2, postgres(NEW + 10, 20), 3, 3)
    first, again = records([old])[0], records([old])[0]
    mirroring = Mirroring(tmp_path).deliver([first])
    mirroring.run(spark)
    shutil.rmtree(mirroring.checkpoint)
    mirroring.run(spark)  # what is there already is no evidence
    assert not (mirroring.checkpoint / "quarantine").exists()

    shutil.rmtree(mirroring.checkpoint)
    shutil.rmtree(mirroring.input)
    mirroring.deliver([batch for batch in records([new])[1:] if again])
    _, declared = run_with_remedies(spark, tmp_path)
    assert declared == [{"epoch": 1, "from": {new.of.topic: {"0": 0}}}]
    Mirroring(tmp_path, {"ordering": {"epochs": declared}}).run(spark)
    assert found(spark, mirroring, old.of) == new.rows


@pytest.mark.thorough
def test_a_mirror_that_cannot_be_read_at_first_tells_later(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, but what the mirror has is not known before the restored source's first changes are held."""
    old = Case(table("items"), {}).old().gone(0, postgres(OLD + 400, 4), 3)
    new = Case(table("items"), {1: 2, 2: 1, 3: 3})
    new.put(1, postgres(NEW, 5), 1, 2).put(2, postgres(NEW + 10, 20), 3, 3)
    mirroring = Mirroring(tmp_path).deliver(records([old])[:1])
    mirroring.run(spark)
    before = found(spark, mirroring, old.of)
    shutil.rmtree(mirroring.checkpoint)
    shutil.rmtree(mirroring.input)
    first, second = records([new])[1:]

    def standing(self: TableApplier) -> Any:
        raise OSError("503 Slow Down")

    with monkeypatch.context() as broken:
        broken.setattr(TableApplier, "standing", standing)
        summary = mirroring.deliver([first]).run(spark)
    error = summary.tables["demo.public.items"].error or ""
    assert "could not be written: OSError: 503 Slow Down" in error
    summary = mirroring.deliver([second]).run(spark)
    assert summary.counts.applied == summary.counts.stale == 0
    assert found(spark, mirroring, old.of) == before
    declared = remedy(summary.held["demo.public.items"])
    assert declared == [{"epoch": 1, "from": {new.of.topic: {"0": 0}}}]
    Mirroring(tmp_path, {"ordering": {"epochs": declared}}).run(spark)
    assert found(spark, mirroring, old.of) == new.rows
    assert open_records(spark, mirroring) == {}


@pytest.mark.parametrize("by", [pytest.param("timestamp", marks=pytest.mark.thorough), "offset"])
def test_where_positions_do_not_order_they_may_start_again(
    by: str, spark: SparkSession, tmp_path: Path
) -> None:
    case = cases()[0]
    mirroring = Mirroring(tmp_path, {"ordering": {"by": by}}).deliver(
        [[record for batch in records([case]) for record in batch]]
    )
    mirroring.run(spark)
    assert found(spark, mirroring, case.of) == case.rows
