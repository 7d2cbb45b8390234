"""Sequences of several orders: partitions, logs, kinds. What nothing orders waits, and nothing is wiped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.reload import SnapshotWanted, reload
from tests.support.mirroring import Mirroring, at, audited
from tests.support.records import Column, Message, PostgresPosition, Record, Table, Topic
from tests.support.shop import table

pytestmark = pytest.mark.guarantee(
    "Sequences compare only inside one order: between two, a change waits, a truncate removes nothing, and a "
    "reload gives each row a place in its own"
)

SETTINGS: dict[str, Any] = {
    "envelope": {"format": "custom", "fields": {"op": "op", "after": "new", "key": "key", "table": "t"}}
}
SECOND = 1_000_000


def change(table: str, place: str, op: str, id: int = 0, v: Any = None, **more: Any) -> Record:
    """A custom record at the ``place`` "topic/partition/offset"; ``more`` members stand in the record."""
    topic, partition, offset = place.split("/")
    row = None if op in "dt" else {"id": id, "v": v}
    body = {"op": op, "t": f"s.{table}", "key": {"id": id} if op != "t" else None, "new": row, **more}
    return {
        "topic": topic,
        "partition": int(partition),
        "offset": int(offset),
        "timestamp": 1_700_000_000_000,
        "key": None,
        "value": json.dumps({name: each for name, each in body.items() if each is not None}),
        "headers": [],
    }


def waiting(spark: SparkSession, mirroring: Mirroring, table: str) -> list[tuple[int, int, str]]:
    """The partitions and offsets of records of a table that wait for an order, with the reasons."""
    aside = quarantine.read(spark, str(mirroring.checkpoint))
    if aside is None:
        return []
    found = aside.where(f"state = 'open' AND scope = 'order' AND source LIKE '%.{table}'").collect()
    return sorted((row["partition"], row["offset"], row["reason"]) for row in found)


@dataclass(frozen=True)
class Case:
    """What a table is sent, batch by batch, and how it ends."""

    name: str
    batches: Sequence[Sequence[tuple[Any, ...]]]
    rows: dict[int, Any]
    waits: Sequence[tuple[int, int]] = ()
    declared: dict[int, Any] | None = None
    """The rows once the epoch is declared that the reasons name; the same ones if nothing waits."""
    settings: dict[str, Any] | None = None


BY_OFFSET = (
    Case(
        "a truncate of one partition says nothing about rows of another",
        [[("0/1000", "c", 1, "a"), ("1/50", "c", 2, "b")], [("0/1001", "t")], [("1/51", "c", 3, "c")]],
        {1: "a", 2: "b", 3: "c"},
        [(0, 1001)],
    ),
    Case(
        "a truncate of the only partition is placed",
        [[("0/1000", "c", 1, "a"), ("0/1001", "c", 2, "b")], [("0/1002", "t"), ("0/1003", "c", 3, "c")]],
        {3: "c"},
    ),
    Case(
        "a truncate that was placed says nothing about a partition that is added",
        [[("0/1000", "c", 1, "a")], [("0/1001", "t")], [("1/51", "c", 3, "c"), ("0/1002", "c", 4, "d")]],
        {3: "c", 4: "d"},
    ),
    Case(
        "a truncate that is sent again removes nothing of a partition that was added",
        [[("0/1000", "c", 1, "a")], [("0/1001", "t")], [("1/51", "c", 3, "c")], [("0/1001", "t")]],
        {3: "c"},
    ),
    Case(
        "keys move to a partition that is added",
        [
            [("0/100", "c", 1, "a"), ("0/101", "c", 2, "b"), ("0/102", "c", 3, "c")],
            [("1/0", "u", 1, "A"), ("1/1", "d", 2), ("0/103", "u", 3, "C"), ("1/2", "c", 4, "D")],
            [("1/3", "u", 1, "AA"), ("1/4", "u", 4, "DD")],
        ],
        {1: "a", 2: "b", 3: "C", 4: "DD"},
        [(1, 0), (1, 1), (1, 3)],
        {1: "AA", 3: "C", 4: "DD"},
    ),
    Case(
        "a key moves down, where offsets are higher",
        [[("1/5", "c", 1, "new?"), ("1/6", "d", 1)], [("0/1000", "c", 1, "old?")]],
        {},
        [(0, 1000)],
        {1: "old?"},
    ),
    Case(
        "keys that move in the batch in which they begin",
        [[("1/0", "u", 1, "A"), ("0/100", "c", 1, "a")]],
        {1: "a"},
        [(1, 0)],
        {1: "A"},
    ),
    Case(
        "shuffled offsets of one partition",
        [[("0/5", "u", 1, "c"), ("0/3", "c", 1, "a")], [("0/4", "u", 1, "b")], [("1/4", "c", 2, "x")]],
        {1: "c", 2: "x"},
    ),
    Case(
        "in a history",
        [[("0/100", "c", 1, "a")], [("1/0", "u", 1, "A"), ("1/1", "c", 2, "b")], [("0/101", "t")]],
        {1: "a", 2: "b"},
        [(0, 101), (1, 0)],
        {1: "A", 2: "b"},
        {"mode": "scd2"},
    ),
    Case(
        "softly",
        [[("0/100", "c", 1, "a")], [("1/0", "d", 1), ("1/1", "c", 2, "b")], [("0/101", "t")]],
        {1: "a", 2: "b"},
        [(0, 101), (1, 0)],
        {1: "a", 2: "b"},
        {"delete": {"type": "soft", "column": "gone"}},
    ),
)


TRUNCATES = ((0, 1001), (0, 101))


def _delivered(cases: Sequence[Case]) -> list[list[Record]]:
    batches: list[list[Record]] = [[] for _ in range(max(len(case.batches) for case in cases))]
    for number, case in enumerate(cases):
        for i, batch in enumerate(case.batches):
            batches[i] += [change(f"t{number}", f"t{number}/{each[0]}", *each[1:]) for each in batch]
    return batches


def _shown(spark: SparkSession, mirroring: Mirroring, number: int, case: Case) -> dict[int, Any]:
    [log] = mirroring.folder.glob(f"lake/**/t{number}/_delta_log")
    frame: DataFrame = spark.read.format("delta").load(str(log.parent))
    if (case.settings or {}).get("mode") == "scd2":
        frame = frame.where("__is_current")
    return {row["id"]: row["v"] for row in frame.collect()}


def _end(
    spark: SparkSession, mirroring: Mirroring, number: int, case: Case
) -> tuple[str, dict[int, Any], list[tuple[int, int]]]:
    places = [each[:2] for each in waiting(spark, mirroring, f"t{number}")]
    return case.name, _shown(spark, mirroring, number, case), places


@pytest.mark.thorough
def test_offsets_compare_within_their_partition_only(spark: SparkSession, tmp_path: Path) -> None:
    """A change from another partition waits, until the epoch is declared that its reason names."""
    tables = [
        {"source": f"s.t{number}", **case.settings} for number, case in enumerate(BY_OFFSET) if case.settings
    ]
    settings = {**SETTINGS, "ordering": {"by": "offset"}, "tables": tables}
    mirroring = Mirroring(tmp_path, settings).deliver(_delivered(BY_OFFSET))
    summary = mirroring.run(spark)
    epochs: dict[str, dict[str, int]] = {}
    ends = [_end(spark, mirroring, number, case) for number, case in enumerate(BY_OFFSET)]
    assert ends == [(case.name, case.rows, sorted(case.waits)) for case in BY_OFFSET]
    for number, _ in enumerate(BY_OFFSET):
        found = waiting(spark, mirroring, f"t{number}")
        for _, _, reason in found:
            if "truncate" in reason:
                assert "lakemirror reload" in reason
                continue
            [declared] = json.loads(reason.split("ordering.epochs: ")[1].split(". `lakemirror")[0])
            for topic, starts in declared["from"].items():
                for partition, offset in starts.items():
                    mine = epochs.setdefault(topic, {})
                    mine[partition] = min(offset, mine.get(partition, offset))
    stale = audited(spark, mirroring, ("stale", "quarantined", "applied", "superseded", "duplicates"))
    assert {source: each["stale"] for source, each in stale.items() if each["stale"]} == {"s.t7": 1}
    assert summary.counts.unaccounted == 0
    declared = {"ordering": {"by": "offset", "epochs": [{"epoch": 1, "from": epochs}]}}
    again = Mirroring(tmp_path, {**settings, **declared})
    again.run(spark)
    ends = [_end(spark, again, number, case) for number, case in enumerate(BY_OFFSET)]
    left = [[place for place in case.waits if place in TRUNCATES] for case in BY_OFFSET]
    wanted = [case.rows if case.declared is None else case.declared for case in BY_OFFSET]
    assert ends == [(case.name, *each) for case, *each in zip(BY_OFFSET, wanted, left, strict=True)]


def _of_logs(name: str, prefix: str) -> Table:
    return replace(table(name, Column("v", "string", optional=True)), prefix=prefix)


@dataclass
class Log:
    """A connector's log: where its next change stands."""

    prefix: str
    lsn: int
    seconds: int
    topics: dict[str, Topic] = field(default_factory=dict)

    def send(self, name: str, op: str, id: int = 0, v: str | None = None) -> list[Record]:
        self.lsn, self.seconds = self.lsn + 100, self.seconds + 10
        at_ = PostgresPosition(self.lsn, self.lsn - 50, self.lsn, (1_700_000_000 + self.seconds) * SECOND)
        of, row = _of_logs(name, self.prefix), {"id": id, "v": v}
        made: tuple[Message, ...]
        if op == "d":
            made = of.delete(at_, row)
        elif op == "t":
            made = (of.truncate(at_),)
        else:
            made = (of.create(at_, row) if op == "c" else of.update(at_, row, row),)
        return list(self.topics.setdefault(of.topic, Topic(of.topic, partitions=1)).append(list(made)))


@pytest.mark.thorough
def test_positions_of_two_logs_compare_where_times_agree(spark: SparkSession, tmp_path: Path) -> None:
    """A database that moved to another server stops the pipeline; the rest goes on."""
    old, new = Log("old", 100_000, 0), Log("new", 1_000, 10_000)
    above, copy = Log("above", 900_000, 10_000), Log("copy", 100_000, 0)
    first = [
        *old.send("keys", "c", 1, "old"),
        *old.send("above", "c", 1, "old"),
        *(before := old.send("copied", "c", 1, "one")),
        *(after := old.send("copied", "u", 1, "two")),
        *old.send("cleared", "c", 1, "old"),
        *old.send("alone", "c", 1, "old"),
        *old.send("moved", "c", 1, "old"),
        *old.send("moved", "c", 2, "old"),
    ]
    assert before
    assert after
    copy.lsn = 100_000 + 200
    copy.seconds = 20
    second = [
        *new.send("keys", "c", 2, "new"),
        *above.send("above", "u", 1, "above"),
        *copy.send("copied", "c", 1, "one"),
        *copy.send("copied", "u", 1, "two"),
        *new.send("cleared", "c", 2, "new"),
        *old.send("alone", "t"),
        *old.send("alone", "c", 2, "new"),
    ]
    third = [
        *old.send("cleared", "t"),
        *new.send("keys", "u", 2, "newer"),
        *old.send("keys", "u", 1, "older"),
    ]
    mirroring = Mirroring(tmp_path).deliver([first, second, third])
    mirroring.run(spark)

    def shown(name: str) -> dict[int, Any]:
        found = at(spark, mirroring.path("demo", "public", name)).collect()
        return {row["id"]: row["v"] for row in found}

    assert shown("keys") == {1: "older", 2: "newer"}
    assert shown("above") == {1: "above"}
    assert shown("copied") == {1: "two"}
    assert shown("cleared") == {1: "old", 2: "new"}
    assert shown("alone") == {2: "new"}
    [(_, _, reason)] = waiting(spark, mirroring, "cleared")
    assert "lakemirror reload --table demo.public.cleared" in reason
    before_move = mirroring.versions()
    mirroring.deliver([[*new.send("moved", "c", 3, "new"), *new.send("moved", "u", 1, "new")]])
    held = mirroring.run(spark).held
    assert list(held) == ["demo.public.moved"]
    assert '"from": {"new.public.moved": {"0": 0}}' in held["demo.public.moved"]
    assert shown("moved") == {1: "old", 2: "old"}
    lake = str(mirroring.lake)
    assert {p: v for p, v in mirroring.versions().items() if lake in p} == {
        p: v for p, v in before_move.items() if lake in p
    }
    epochs = [{"epoch": 1, "from": {"new.public.moved": {"0": 0}}}]
    Mirroring(tmp_path, {"ordering": {"epochs": epochs}}).run(spark)
    assert shown("moved") == {1: "new", 2: "old", 3: "new"}


def flat(place: str, op: str, id: int, v: str, seconds: int, table: str = "flat") -> Record:
    """A flat record that names only when the connector sent it."""
    topic, partition, offset = place.split("/")
    value = {"id": id, "v": v, "__op": op, "__table": table, "__db": "s", "__ts_ms": (10**9 + seconds) * 1000}
    return {
        "topic": topic,
        "partition": int(partition),
        "offset": int(offset),
        "timestamp": (10**9 + seconds) * 1000,
        "key": json.dumps({"id": id}),
        "value": json.dumps(value),
        "headers": [],
    }


@pytest.mark.thorough
def test_a_reload_places_each_row_in_its_own_order(spark: SparkSession, tmp_path: Path) -> None:
    """Under ``auto``, flat records are ordered by offset. A reload closes truncates that waited."""
    settings = {"envelope": {"format": "debezium-flat"}}
    mirroring = Mirroring(tmp_path, settings).deliver(
        [
            [flat("f/0/100", "c", 1, "a", 1), flat("f/1/5", "c", 2, "b", 2), flat("f/1/6", "c", 3, "c", 3)],
            [flat("f/0/101", "t", 0, "", 4)],
        ]
    )
    mirroring.run(spark)

    def shown() -> dict[int, Any]:
        [place] = {str(log.parent) for log in tmp_path.glob("lake/**/flat/_delta_log")}
        return {row["id"]: row["v"] for row in at(spark, place).collect()}

    assert shown() == {1: "a", 2: "b", 3: "c"}
    assert [each[:2] for each in waiting(spark, mirroring, "flat")] == [(0, 101)]
    spark.createDataFrame([(1, "A"), (2, "B")], "id BIGINT, v STRING").write.parquet(f"{tmp_path}/export")
    moment = datetime.now(UTC) + timedelta(seconds=1)
    [done] = reload(
        mirroring.pipeline, SnapshotWanted(f"{tmp_path}/export", "parquet"), at=moment, spark=spark
    )
    assert done.error is None
    assert shown() == {1: "A", 2: "B"}
    assert waiting(spark, mirroring, "flat") == []
    mirroring.deliver(
        [
            [flat("f/1/7", "u", 2, "BB", 5), flat("f/0/102", "u", 1, "AA", 6), flat("f/1/8", "c", 4, "D", 7)],
            [flat("f/0/103", "u", 2, "no", 8)],
        ]
    )
    mirroring.run(spark)
    assert shown() == {1: "AA", 2: "BB", 4: "D"}
    assert [each[:2] for each in waiting(spark, mirroring, "flat")] == [(0, 103)]


@pytest.mark.thorough
@pytest.mark.parametrize("timed", [pytest.param(False, marks=pytest.mark.long), True])
def test_rows_of_files_are_one_order_whatever_folder_they_are_in(
    timed: bool, spark: SparkSession, tmp_path: Path
) -> None:
    """A folder for each day is none of a table if a column of the rows names their table."""
    days: list[list[dict[str, Any]]] = [
        [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}],
        [{"id": 1, "v": "A"}, {"id": 2, "op": "D", "v": "b"}, {"id": 3, "v": "c"}],
        [{"id": 3, "v": "C"}, {"id": 1, "op": "D", "v": "A"}],
    ]
    for number, rows in enumerate(days):
        (tmp_path / f"input/2026-01-0{number + 1}").mkdir(parents=True)
        lines = [json.dumps({"op": "U", "t": "s.days", "at": "2026-01-01T00:00:00Z", **row}) for row in rows]
        (tmp_path / f"input/2026-01-0{number + 1}/part.json").write_text("\n".join(lines) + "\n")
    fields = {"op": "op", "table": "t", **({"timestamp": "at"} if timed else {})}
    mirroring = Mirroring(
        tmp_path,
        {
            "source": {
                "files": {"path": f"{tmp_path}/input/*/*.json", "format": "json", "maxFilesPerBatch": 1}
            },
            "envelope": {"format": "custom", "fields": fields},
            "tables": [{"source": "s.days", "primaryKey": ["id"]}],
        },
    )
    summary = mirroring.run(spark)
    [place] = {str(log.parent) for log in tmp_path.glob("lake/**/days/_delta_log")}
    assert {row["id"]: row["v"] for row in at(spark, place).collect()} == {3: "C"}
    assert waiting(spark, mirroring, "days") == []
    assert summary.counts.quarantined == 0
