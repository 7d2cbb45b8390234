"""Batches with bad records that are applied in columns, without Spark for their quarantine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.driver import batch, faults
from lakemirror.driver.engine import blocks
from lakemirror.driver.engine.blocks import Aside, RawRecord, Report
from lakemirror.driver.engine.quarantine_table import QuarantineTable
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.runtime.replayer import replay
from tests.support import engines
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column, Record
from tests.support.shop import Shop, table

pytestmark = pytest.mark.long

ITEMS, OTHER = table("items", Column("v", "int32")), table("other", Column("v", "int32"))
NARROW = {"tables": [{"source": "public.items", "columns": {"types": {"v": "smallint"}}}]}
WIDE = {"tables": [{"source": "public.items", "columns": {"types": {"v": "int"}}}]}
BAD_IN_EACH = 4


def batches(number: int = 6) -> list[list[Record]]:
    """Batches of two topics: no changes, with a key and without one, and a value that is too large."""
    shop, found = Shop(), list[list[Record]]()
    for n in range(number):
        records = [
            *shop.create(ITEMS, id=10 * n, v=n),
            *shop.garbage(ITEMS, '{"payload": {"op": '),
            *[{**each, "key": None} for each in shop.garbage(ITEMS, "")],
            *shop.create(ITEMS, id=10 * n + 1, v=100_000 + n),
            *shop.create(OTHER, id=n, v=n),
            *shop.garbage(OTHER, '{"payload": null}' + " " * 1000),
        ]
        found.append([{**each, "headers": [["n", str(n)], ["none", None]]} for each in records])
    return found


def kept(spark: SparkSession, mirroring: Mirroring, *but: str) -> list[dict[str, Any]]:
    """The rows of the quarantine, without some of their columns."""
    read = quarantine.read(spark, str(mirroring.checkpoint))
    assert read is not None
    rows = read.drop("quarantined_at", *but).toArrow().to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


def ids(spark: SparkSession, mirroring: Mirroring, name: str) -> list[int]:
    return sorted(row["id"] for row in at(spark, mirroring.path("demo", "public", name)).collect())


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """What Spark does with the quarantine, and in which batch."""
    done, current = list[tuple[str, int]](), -1
    apply = batch.BatchApplier.apply

    def applied(self: batch.BatchApplier, raw: Any, given: Batch) -> Any:
        nonlocal current
        current = given.batch_id
        return apply(self, raw, given)

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            done.append((name, current))
            return function(*given)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(batch.BatchApplier, "apply", applied)
        for name in ("store", "close_corrected", "open_counts", "close"):
            patch.setattr(quarantine, name, noted(name, getattr(quarantine, name)))
        yield done


@pytest.fixture
def columns(spark: SparkSession) -> Iterator[SparkSession]:
    with engines.in_columns(spark):
        yield spark


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """What a run has left."""
    mirroring = Mirroring(tmp_path_factory.mktemp("left"), NARROW).deliver(batches())
    with engines.in_columns(spark):
        mirroring.run(spark)
    return mirroring


def test_the_quarantine_is_as_by_spark(spark: SparkSession, left: Mirroring, tmp_path: Path) -> None:
    """The place in a file is a part of an id, so that both read the same files."""
    source = {"files": {"path": str(left.input), "format": "records", "maxFilesPerBatch": 1}}
    other = Mirroring(tmp_path, {**NARROW, "source": source})
    with engines.by_spark(spark):
        other.run(spark)
    assert kept(spark, left, "query_id") == kept(spark, other, "query_id")
    assert len(kept(spark, left)) == 6 * BAD_IN_EACH
    for name in ("items", "other"):
        assert ids(spark, left, name) == ids(spark, other, name)


def test_no_batch_takes_spark_for_it_in_the_steady_state(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch, of which the tables are planned, makes the quarantine."""
    mirroring = Mirroring(tmp_path, NARROW).deliver(batches())
    with watched(monkeypatch) as done:
        mirroring.run(columns)
    assert {name for name, number in done if number == 0} >= {"store"}
    assert [(name, number) for name, number in done if number > 0] == []
    assert len(kept(columns, mirroring)) == 6 * BAD_IN_EACH
    log = Path(quarantine.path(str(mirroring.checkpoint))) / "_delta_log"
    by_engine = [
        each for each in log.glob("*.json") if '"engineInfo":"Lakemirror"' in each.read_text("utf-8")
    ]
    assert len(by_engine) == 6, "of the first batch, the engine keeps what was planned for it"


def test_a_run_that_goes_on_counts_what_is_open(
    columns: SparkSession, left: Mirroring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirroring = copied(left, tmp_path)
    with watched(monkeypatch) as done:
        mirroring.run(columns)
    assert done == []
    told = json.loads((mirroring.checkpoint / "progress.json").read_text("utf-8"))
    assert told["totals"]["quarantinedOpen"] == 6 * BAD_IN_EACH


def copied(mirroring: Mirroring, folder: Path, settings: Any = NARROW) -> Mirroring:
    shutil.copytree(mirroring.folder, folder / "copy")
    return Mirroring(folder / "copy", settings)


def test_what_was_kept_is_replayed(columns: SparkSession, left: Mirroring, tmp_path: Path) -> None:
    wide = copied(left, tmp_path, WIDE)
    outcome = replay(wide.pipeline, spark=columns)
    assert (outcome.records, outcome.still_bad) == (6 * BAD_IN_EACH, 3 * 6)
    assert ids(columns, wide, "items") == sorted([*range(0, 60, 10), *range(1, 60, 10)])
    rows = kept(columns, wide)
    assert len(rows) == 6 * BAD_IN_EACH
    states = [row["state"] for row in rows if "smallint" in row["reason"]]
    assert states == ["replayed"] * 6
    wide.deliver(batches(8)[6:]).run(columns)
    assert len(kept(columns, wide)) == 6 * BAD_IN_EACH + 2 * (BAD_IN_EACH - 1)


@pytest.mark.parametrize(
    "point", ["after-files", "before-entry", "after-entry", "after-tombstones", "after-rows"]
)
def test_a_crash_leaves_one_row_for_each_record(
    columns: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: faults.AnyPoint
) -> None:
    """While the third batch keeps its records, or after it has."""
    mirroring, keep = Mirroring(tmp_path, NARROW).deliver(batches(4)), QuarantineTable.keep

    def crash(self: QuarantineTable, records: Sequence[Any], given: Batch, app_id: str) -> bool:
        if given.batch_id == 2 and not crashed:
            crashed.append(point)
            faults.arm(point)
        return keep(self, records, given, app_id)

    crashed = list[str]()
    monkeypatch.setattr(QuarantineTable, "keep", crash)
    with pytest.raises(faults.InjectedCrash):
        mirroring.run(columns)
    mirroring.run(columns)
    rows = kept(columns, mirroring)
    assert len({row["id"] for row in rows}) == len(rows) == 4 * BAD_IN_EACH
    assert ids(columns, mirroring, "items") == [0, 10, 20, 30]


@pytest.mark.parametrize("limit", ["MOST_ASIDE", "MOST_ASIDE_BYTES"])
def test_a_task_returns_a_limited_amount(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    raw = RawRecord(0, b"", b"x" * 10, [("a", b"b"), None], None, None)
    report = Report("t", 0, 1, aside=(Aside(0, 1, "bad", None, is_change=False, raw=raw),) * 3)
    monkeypatch.setattr(blocks, limit, 6 * (12 if limit == "MOST_ASIDE_BYTES" else 1) - 1)
    room = blocks._Room()
    assert room.fitted(report) == report
    assert not room.is_full
    assert room.fitted(report) == report.without_raw()
    assert room.is_full


def test_a_task_with_too_many_leaves_them_to_spark(
    columns: SparkSession, left: Mirroring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirroring, stored = copied(left, tmp_path), 6 * BAD_IN_EACH
    shop = Shop(lsn=10_000, seconds=100)
    many = [each for _ in range(blocks.MOST_ASIDE + 1) for each in shop.garbage(ITEMS, "{")]
    large = shop.garbage(ITEMS, "{" + " " * blocks.MOST_ASIDE_BYTES)
    few = [each for _ in range(blocks.MOST_ASIDE) for each in shop.garbage(ITEMS, "{")]
    good = [shop.create(ITEMS, id=id, v=id) for id in (7, 8, 9, 11)]
    delivered = [good[0], good[1] + many, good[2] + large, good[3] + few]
    with watched(monkeypatch) as done:
        mirroring.deliver(delivered).run(columns)
    assert [number for name, number in done if name == "store"] == [7, 8]
    assert len(kept(columns, mirroring)) == stored + len(many) + len(large) + len(few)
    assert {7, 8, 9, 11} <= set(ids(columns, mirroring, "items"))


def test_a_line_that_was_not_complete_is_closed(
    columns: SparkSession, left: Mirroring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does that in the batch that brings the whole line, and in no other."""
    mirroring = copied(left, tmp_path)
    shop = Shop(lsn=10_000, seconds=100)
    mirroring.deliver([shop.create(ITEMS, id=id, v=id) for id in (7, 8, 9)])
    cut = mirroring.input / "part-00007.jsonl"
    whole = cut.read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    mirroring.run(columns)
    assert {7, 9} <= set(ids(columns, mirroring, "items"))
    cut.write_bytes(whole)
    with watched(monkeypatch) as done:
        mirroring.deliver([shop.create(ITEMS, id=11, v=11)]).run(columns)
    states = [row["state"] for row in kept(columns, mirroring) if row["file"].endswith(cut.name)]
    assert states == ["corrected"]
    assert [name for name, _ in done].count("close_corrected") == 1
    assert {7, 8, 9, 11} <= set(ids(columns, mirroring, "items"))
