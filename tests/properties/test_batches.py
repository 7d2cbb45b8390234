"""However the records of a source fall into batches, a mirror ends the same, whatever its settings.

Each generated history is delivered as one batch, one record a batch, and cut in between, to tables with the
same settings. All tables of an envelope share one run. Their rows are equal in every column, those of
Lakemirror included, and so is what became of the records: only how many were superseded within their batch
depends on the batches.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.runtime.summary import RunSummary
from lakemirror.driver.tables.delta import quoted
from tests.support.delivery import Batches
from tests.support.mirroring import Mirroring
from tests.support.records import UNAVAILABLE, Column, Message, PostgresPosition, Record, Row, Topic
from tests.support.records import Table as SourceTable

pytestmark = pytest.mark.guarantee(
    "However records fall into batches, a mirror and its counters end the same, whatever the settings of its "
    "table"
)

BEGAN = 1_790_000_000_000_000
SECOND = 1_000_000

COLUMNS = (
    Column("id", "int32"),
    Column("price", "int32", optional=True),
    Column("quantity", "int32", optional=True),
    Column("status", "string", optional=True),
    Column("note", "string", optional=True),
)
GIFT = Column("gift", "int32", default=5)
"""A column that the source adds in the middle of a history."""

SOFT = {"type": "soft", "column": "gone"}
SINCE_1900 = "1900-01-01T00:00:00Z"
ADDED = {
    "metadata": {"at": "sourceTime", "change": "op", "part": "partition", "place": "offset"},
    "rowHash": "row_hash",
    "keyHash": "key_hash",
    "expressions": {"total": "price * quantity", "always": "7", "known": "coalesce(status, 'none')"},
}
LISTED = {name: each for name, each in ADDED.items() if name != "keyHash"}
SPEND = {"name": "spend", "condition": "price >= 0"}


@dataclass(frozen=True)
class Case:
    """Settings of a table, and what its source does.

    ``full``: before images are whole rows, and no value is left out. ``grows``: a column is added.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    full: bool = True
    grows: bool = False
    truncates: bool = True


CASES = (
    Case("soft", {"delete": SOFT, "columns": ADDED}),
    Case(
        "soft_filtered",
        {
            "delete": SOFT,
            "filter": "status = 'on'",
            "columns": ADDED,
            "expectations": [{**SPEND, "onViolation": "quarantine"}],
        },
    ),
    Case("filtered", {"filter": "status = 'on'", "expectations": [{**SPEND, "onViolation": "warn"}]}),
    Case(
        "versions",
        {
            "mode": "scd2",
            "filter": "status = 'on'",
            "initialValidFrom": SINCE_1900,
            "columns": ADDED,
            "expectations": [{**SPEND, "onViolation": "quarantine"}],
        },
    ),
    Case(
        "versions_tracked",
        {
            "mode": "scd2",
            "filter": "status = 'on'",
            "trackedColumns": ["price"],
            "initialValidFrom": SINCE_1900,
            "columns": {"rename": {"price": "amount"}, "exclude": ["note"], "rowHash": "row_hash"},
        },
    ),
    Case(
        "versions_left_out",
        {"mode": "scd2", "trackedColumns": ["note"], "initialValidFrom": SINCE_1900},
        full=False,
    ),
    Case("listed", {"mode": "append", "filter": "status = 'on'", "columns": LISTED}),
    Case("left_out", {"delete": SOFT, "columns": ADDED}, full=False),
    Case("grown", {"columns": ADDED}, grows=True),
    Case("grown_soft", {"delete": SOFT, "filter": "status = 'on'", "columns": ADDED}, grows=True),
    Case("grown_versions", {"mode": "scd2", "columns": ADDED}, grows=True),
    Case("grown_list", {"mode": "append", "columns": LISTED}, grows=True),
    Case(
        "skipped",
        {"mode": "scd2", "columns": {"include": ["id", "status"], "rename": {"status": "state"}}},
        grows=True,
    ),
)


class Source:
    """A table of a PostgreSQL: what it does, as the steps of a history, and what Debezium sends of it."""

    def __init__(self, case: Case, name: str, seed: int) -> None:
        self._case, self._rnd = case, random.Random(f"{case.name} {seed}")
        self._table = SourceTable(
            "demo", "public", name, COLUMNS, ("id",), "demo", full=case.full, schemas=True
        )
        self._rows: dict[int, Row] = {
            id: {"id": id, "price": id, "quantity": 1, "status": "on", "note": f"old {id}"} for id in (1, 2)
        }
        self._lsn, self._us = 1000, BEGAN

    def records(self, steps: int) -> list[Record]:
        """The records of a history. Rows 1 and 2 were there before it, and no snapshot has read them.

        In the beginning, row 1 leaves a filtered mirror and comes back at an earlier time of the source's
        clock, and row 3 is created and deleted. What follows is random.
        """
        messages = [*self._put(1, status="off"), *self._put(1, -5, status="on"), *self._put(3, status="on")]
        messages += self._table.delete(self._at(), self._rows.pop(3))
        for step in range(steps):
            if self._case.grows and step == steps // 2:
                self._grow()
            messages += self._step()
        told = [each for each in messages if each.value is not None]  # Kafka's tombstones change nothing
        return list(Topic(self._table.topic, partitions=1).append(told))

    def _grow(self) -> None:
        self._table = replace(self._table, columns=(*COLUMNS, GIFT))
        self._rows = {id: {**row, "gift": 5} for id, row in self._rows.items()}

    def _put(self, id: int, seconds: int = 1, **values: Any) -> Iterator[Message]:
        before, at = self._rows.get(id), self._at(seconds)
        self._rows[id] = row = {**self._row(id, before), "price": 3, **values}
        yield self._table.create(at, row) if before is None else self._table.update(at, row, before)

    def _at(self, seconds: int | None = None) -> PostgresPosition:
        self._lsn += 100
        self._us += SECOND * (self._rnd.choice((0, 1, 2, 2, -7)) if seconds is None else seconds)
        return PostgresPosition(self._lsn, self._lsn - 50, self._lsn, self._us)

    def _step(self) -> Iterator[Message]:
        rnd, at, id = self._rnd, self._at(), self._rnd.choice((1, 2, 3))
        verb = rnd.choice(("put", "put", "put", "put", "drop", "move", "bad", "truncate"))
        before = self._rows.get(id)
        if verb == "truncate":
            if self._case.truncates and rnd.random() < 0.5:
                self._rows.clear()
                yield self._table.truncate(at)
        elif before is None or verb in ("put", "bad"):
            self._rows[id] = row = self._row(id, before)
            sent = row if before is None else self._sent(row, before)
            if verb == "bad":
                sent = {**sent, "quantity": "many"}
            yield self._table.create(at, sent) if before is None else self._table.update(at, sent, before)
        elif verb == "drop":
            yield from self._table.delete(at, self._rows.pop(id))
        else:
            to = 1 + id % 3
            if to in self._rows:
                yield from self._table.delete(at, self._rows.pop(to))
                at = self._at()
            del self._rows[id]
            self._rows[to] = row = self._row(to, before)
            gone, null, made = self._table.move(at, before, row)
            value = json.loads(made.value or "")
            value["payload"]["after"] = self._sent(row, before)
            yield from (gone, null, replace(made, value=json.dumps(value)))

    def _row(self, id: int, before: Row | None) -> Row:
        rnd = self._rnd
        note = None if before is None else before["note"]
        row = {
            "id": id,
            "price": rnd.choice((-1, 2, 3, 4, None)),
            "quantity": rnd.choice((1, 2, 3)),
            "status": rnd.choice(("on", "on", "off", None)),
            "note": rnd.choice((note, note, f"note {rnd.randrange(9)}", None)),
        }
        return {**row, "gift": rnd.choice((5, 6))} if GIFT in self._table.columns else row

    def _sent(self, row: Row, before: Row) -> Row:
        """The row as an update shows it: a TOASTed value that did not change is left out."""
        left_out = not self._case.full and row["note"] == before["note"] and row["note"] is not None
        return {**row, "note": UNAVAILABLE} if left_out else row


Cuts = Mapping[str, Sequence[int]]


def cuts_of(number: int, more: int, seed: int) -> dict[str, list[int]]:
    """Where a list of records is cut, by the name of the delivery."""
    rnd = random.Random(seed)
    cuts = {"whole": [], "each": list(range(1, number))}
    for n in range(more):
        cuts[f"cut{n}"] = sorted(rnd.sample(range(1, number), min(rnd.choice((1, 2, 4)), number - 1)))
    return cuts


def parts_at(records: Sequence[Record], cuts: Sequence[int]) -> Batches:
    ends = [0, *cuts, len(records)]
    return [list(records[a:b]) for a, b in itertools.pairwise(ends)]


def side_by_side(deliveries: Sequence[Batches]) -> Batches:
    """Batches that have a part of each table."""
    most = max(map(len, deliveries))
    return [[r for each in deliveries for r in (each[n] if n < len(each) else [])] for n in range(most)]


def rows_of(spark: SparkSession, path: str) -> list[str]:
    """A mirror's rows with all columns, as texts, but for the name of the topic, which names the delivery."""
    frame = spark.read.format("delta").load(path)
    values = {name: F.col(quoted(name)) for name in frame.columns}
    values["__origin"] = values["__origin"].dropFields("topic")
    for name in ("__seq", "__delete_seq"):
        if name in values:
            values[name] = F.hex(values[name])
    values["__column_seq"] = F.transform_values("__column_seq", lambda _, value: F.hex(value))
    rows = frame.select([value.alias(name) for name, value in sorted(values.items())])
    return sorted(str(row.asDict(recursive=True)) for row in rows.collect())


COUNTED = ("records", "stale", "duplicates", "quarantined", "refused", "violations")


def counts_of(summary: RunSummary, table: str) -> dict[str, int]:
    """What became of a table's records."""
    counts = summary.tables[table].counts
    found = {name: getattr(counts, name) for name in COUNTED}
    return {**found, "applied or superseded": counts.applied + counts.superseded}


def check(
    spark: SparkSession, folder: Path, cases: Sequence[Case], seeds: Sequence[int], steps: int, more: int
) -> None:
    deliveries, tables, records = [], [], {}
    for case in cases:
        for seed in seeds:
            number = len(Source(case, "any", seed).records(steps))
            for cut, places in cuts_of(number, more, seed).items():
                name = f"{case.name}_{seed}_{cut}"
                tables.append({"source": name, **case.settings})
                records[name] = Source(case, name, seed).records(steps)
                deliveries.append(parts_at(records[name], places))
    mirroring = Mirroring(folder, {"tables": tables}).deliver(side_by_side(deliveries))
    summary = mirroring.run(spark)
    wrong = []
    for case in cases:
        for seed in seeds:
            ends = {
                cut: (
                    rows_of(spark, mirroring.path("demo", "public", f"{case.name}_{seed}_{cut}")),
                    counts_of(summary, f"demo.public.{case.name}_{seed}_{cut}"),
                )
                for cut in cuts_of(2, more, seed)
            }
            for cut, end in ends.items():
                if end != ends["whole"]:
                    wrong.append(_report(case, seed, cut, end, ends["whole"], records))
    assert not wrong, "\n\n".join(wrong)
    assert summary.counts.refused == 0


def _report(
    case: Case, seed: int, cut: str, end: Any, whole: Any, records: Mapping[str, list[Record]]
) -> str:
    sent = []
    for each in records[f"{case.name}_{seed}_whole"]:
        payload = json.loads(each["value"])["payload"] if each["value"] else {}
        source = payload.get("source", {})
        sent.append(
            f"{payload.get('op')} {source.get('lsn')} {each['key'] and json.loads(each['key'])['payload']}"
            f" {payload.get('after')} {source.get('ts_us', 0) // SECOND}"
        )
    more = "\n".join(
        [f"  whole: {row}" for row in whole[0] if row not in end[0]]
        + [f"  {cut}: {row}" for row in end[0] if row not in whole[0]]
    )
    return f"{case.name} {seed} {cut}:\n  {whole[1]}\n  {end[1]}\n{more}\n" + "\n".join(sent)


FEW = ("soft_filtered", "versions", "versions_tracked", "grown_list")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_mirror_does_not_depend_on_batches(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, [case for case in CASES if case.name in FEW], seeds=(1,), steps=4, more=0)


@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "grows",
    [
        pytest.param(False, id="same columns"),
        pytest.param(True, id="columns are added", marks=pytest.mark.thorough),
    ],
)
def test_it_does_not_with_other_settings(grows: bool, spark: SparkSession, tmp_path: Path) -> None:
    others = [case for case in CASES if case.name not in FEW and case.grows is grows]
    check(spark, tmp_path, others, seeds=(1,), steps=6, more=0)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_it_does_not_with_more_histories(spark: SparkSession, tmp_path: Path) -> None:
    check(spark, tmp_path, CASES, seeds=(2, 3, 4), steps=10, more=2)
