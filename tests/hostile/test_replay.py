"""Replays that are killed, that fail and that are damaged; held records that come back by themselves."""

from __future__ import annotations

import json
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from pyspark.sql import Column as SparkColumn
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api import CdcPipeline
from lakemirror.driver import faults
from lakemirror.driver.checkpoint.owner import Owner
from lakemirror.driver.checkpoint.storage import LocalStorage, open_storage
from lakemirror.driver.record import quarantine
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.runtime.backoff import Backoff
from lakemirror.driver.runtime.held import FIRST_DELAY, HeldRecords
from lakemirror.driver.runtime.replay_requests import ReplayRequest, await_outcome, file_request
from lakemirror.driver.runtime.replayer import replay
from lakemirror.driver.runtime.runner import run
from tests.support.mirroring import Mirroring, at
from tests.support.records import Column
from tests.support.shop import Shop, table

ITEMS, OTHER = table("items", Column("v", "int32")), table("other", Column("v", "int32"))
SOURCE = "demo.public.items"


def settings(kind: str, **more: Any) -> dict[str, Any]:
    return {"tables": [{"source": "public.items", "columns": {"types": {"v": kind}}, **more}]}


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mirroring:
    """Two records of items and one of no table are in quarantine; items are 1, and 2 and 3 are wanted."""
    shop = Shop()
    records = [
        *shop.create(ITEMS, id=1, v=1),
        *shop.create(ITEMS, id=2, v=100_000),
        *shop.create(ITEMS, id=3, v=200_000),
        *shop.garbage(OTHER, "{"),
        *shop.create(OTHER, id=1, v=1),
    ]
    mirroring = Mirroring(tmp_path_factory.mktemp("prepared"), settings("smallint")).deliver([records])
    mirroring.run(spark)
    assert quarantine.open_counts(spark, str(mirroring.checkpoint))[SOURCE] == {"record": 2}
    return mirroring


@pytest.fixture
def narrow(prepared: Mirroring, tmp_path: Path) -> Mirroring:
    """A copy of what was prepared."""
    shutil.copytree(prepared.folder, tmp_path / "copy")
    return Mirroring(tmp_path / "copy", settings("smallint"))


def items(spark: SparkSession, mirroring: Mirroring) -> list[int]:
    return sorted(row["id"] for row in at(spark, mirroring.path("demo", "public", "items")).collect())


def mark(spark: SparkSession, mirroring: Mirroring, **values: str) -> None:
    """Change what the quarantine says of the records of items."""
    target = DeltaTable.forPath(spark, quarantine.path(str(mirroring.checkpoint)))
    changes: dict[str, str | SparkColumn] = {name: F.lit(value) for name, value in values.items()}
    target.update(F.col("source") == SOURCE, changes)


def counts(spark: SparkSession, mirroring: Mirroring) -> dict[str, int]:
    return quarantine.open_counts(spark, str(mirroring.checkpoint)).get(SOURCE, {})


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No open record of the quarantine is forgotten; a record that nobody will mend can be discarded"
)
def test_a_replay_that_is_killed_anywhere_is_done_again(spark: SparkSession, narrow: Mirroring) -> None:
    wide = Mirroring(narrow.folder, settings("int"))
    storage = open_storage(str(wide.checkpoint), spark)
    file_request(storage, ReplayRequest("one", table="items"))
    point: faults.Point | faults.ReplayPoint
    for point in ("after-rows", "after-replay-applied"):
        faults.arm(point)
        with pytest.raises(faults.InjectedCrash):
            wide.run(spark)
        assert counts(spark, wide) == {"record": 2}
        assert items(spark, wide) == [1, 2, 3]
    faults.arm("after-replay-settled")
    with pytest.raises(faults.InjectedCrash):
        wide.run(spark)
    assert (counts(spark, wide), storage.exists("replay/one.json")) == ({}, True)
    told = json.loads(storage.read_text("replay/outcomes/one.json"))
    assert (told["records"], told["still_bad"], told["taken"]) == (2, 0, {SOURCE: 2})
    versions = wide.versions()
    wide.run(spark)
    assert not storage.exists("replay/one.json")
    assert json.loads(storage.read_text("replay/outcomes/one.json")) == told
    assert wide.versions() == versions


@pytest.mark.thorough
@pytest.mark.guarantee(
    "No open record of the quarantine is forgotten; a record that nobody will mend can be discarded"
)
def test_what_nobody_will_mend_is_discarded_and_its_tombstones_go(
    spark: SparkSession, narrow: Mirroring
) -> None:
    """A record that is delivered again opens its row again. What was closed is forgotten after a time."""
    checkpoint = str(narrow.checkpoint)
    wide = Mirroring(narrow.folder, {**settings("smallint"), "tombstones": {"retention": "1ms"}})
    later = Shop(lsn=5000, seconds=500)
    wide.deliver([later.delete(ITEMS, id=1, v=1)]).run(spark)
    gone = f"{narrow.path('demo', 'public', 'items')}/_tombstones"
    deleted = at(spark, gone).where("kind = 'deleted'")
    assert deleted.count() == 1, "kept for what is open"
    mark(spark, wide, scope="table")
    assert replay(wide.pipeline, discard=True, spark=spark).records == 1, "held records are not for this"
    assert counts(spark, wide) == {"table": 2}
    done = replay(wide.pipeline, table="items", discard=True, spark=spark)
    assert (done.records, done.still_bad, done.done, done.taken) == (2, 0, True, {SOURCE: 2})
    assert quarantine.open_counts(spark, checkpoint) == {}
    assert at(spark, quarantine.path(checkpoint)).where("state = 'discarded'").count() == 3
    assert items(spark, wide) == []
    wide.deliver([later.create(ITEMS, id=7, v=7)]).run(spark)
    assert at(spark, gone).where("kind = 'deleted'").count() == 0
    moment = datetime.now(UTC)
    assert quarantine.forget(spark, checkpoint, moment - timedelta(hours=1)) == 0
    mark(spark, wide, state="open")
    assert quarantine.forget(spark, checkpoint, moment) == 1, "what is open stays"
    assert counts(spark, wide) == {"table": 2}


@pytest.mark.long
def test_a_request_that_fails_or_is_damaged_blocks_no_other(spark: SparkSession, narrow: Mirroring) -> None:
    wide = Mirroring(narrow.folder, settings("int"))
    storage = open_storage(str(wide.checkpoint), spark)
    for name, text in (("0", "{"), ("1", "[]"), ("2", '{"id": "2", "table": 5, "reason": null}'), ("3", "")):
        storage.write_text(f"replay/{name}.json", text)
    file_request(storage, ReplayRequest("4"))
    summary = wide.run(spark)
    assert items(spark, wide) == [1, 2, 3]
    assert [entry.name for entry in storage.list("replay")] == [f"{n}.json" for n in range(4)]
    for name in range(4):
        told = json.loads(storage.read_text(f"replay/outcomes/{name}.json"))
        assert f"replay/{name}.json is not a replay request" in told["error"]
        assert sum(f"the replay {name} failed and is tried again in 5 s" in w for w in summary.warnings) == 1
    done = json.loads(storage.read_text("replay/outcomes/4.json"))
    assert (done["records"], done["still_bad"], done["error"]) == (3, 1, None)
    [bad] = done["bad"]
    assert (bad["source"], bad["records"], "not a Debezium JSON object" in bad["reason"]) == ("", 1, True)
    assert bad["places"] == ["demo.public.other/0/0"]


@pytest.mark.long
@pytest.mark.guarantee(
    "A fault in one record stops that record alone, and a fault in one table stops that table alone "
    "(isolation)"
)
def test_held_records_come_back_by_themselves(spark: SparkSession, narrow: Mirroring) -> None:
    mark(spark, narrow, scope="table", reason="the table was refused")
    suspended = Mirroring(narrow.folder, settings("int", suspend=True))
    suspended.run(spark)
    assert counts(spark, suspended) == {"table": 2}
    left_out = Mirroring(narrow.folder, {"unlisted": "ignore", "tables": [{"source": "public.other"}]})
    left_out.run(spark)
    assert counts(spark, left_out) == {"table": 2}
    outcome = replay(left_out.pipeline, table="items", spark=spark)
    assert (outcome.records, outcome.still_bad, outcome.done) == (2, 2, False)
    assert [bad.reason for bad in outcome.bad] == ["the manifest leaves this table out"]
    again = Mirroring(narrow.folder, settings("smallint"))
    again.run(spark)
    assert counts(spark, again) == {"record": 2}, "they are bad themselves, and wait for a replay"
    mark(spark, again, scope="order")
    wide = Mirroring(narrow.folder, {**settings("int"), "onBadRecord": "fail"})
    summary = wide.run(spark)
    assert counts(spark, wide) == {}
    totals = json.loads((wide.checkpoint / "progress.json").read_text())["totals"]
    assert (totals["quarantinedOpen"], totals["held"]) == (1, 0)
    assert items(spark, wide) == [1, 2, 3]
    assert summary.tables[SOURCE].counts.inserted == 2


class FakeReplayer:
    """Holds so many records of each table, and notes what is asked for."""

    def __init__(self, **held: int) -> None:
        self.held = held
        self.fails: set[str] = set()
        self.tried: list[list[str]] = []
        self.explained: list[str] = []

    def open_counts(self) -> dict[str, dict[str, int]]:
        return {source: {"table": number, "record": 0} for source, number in self.held.items()}

    def apply(self, chosen: object) -> list[str]:
        return []

    def explain(self, chosen: object, reason: str) -> None:
        self.explained.append(reason)


def test_when_held_records_are_tried_again(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, after a batch that the table took again, and otherwise after a growing delay."""
    now = 0.0
    replayer = FakeReplayer(a=1, b=1, parked=1)
    spec = CdcPipeline.from_dict(
        {
            "apiVersion": "lakemirror.io/v1alpha1",
            "kind": "CdcPipeline",
            "metadata": {"name": "x"},
            "spec": {
                "source": {"files": {"path": "/in"}},
                "target": {"path": "/lake/{table}"},
                "checkpoint": "/state",
                "tables": [{"source": "parked", "suspend": True}],
            },
        }
    ).spec
    warnings: list[str] = []
    held = HeldRecords(spec, replayer, warnings.append, clock=lambda: now)  # type: ignore[arg-type]
    tried: list[list[str]] = []

    def apply(sources: list[str]) -> list[str]:
        tried.append(sources)
        if failing & set(sources):
            raise OSError("the store is away")
        return sources

    failing = {"b"}
    monkeypatch.setattr("lakemirror.driver.runtime.held._held", list)
    replayer.apply = apply  # type: ignore[assignment,method-assign]
    held.serve()
    assert tried == [["a", "b"], ["a"], ["b"]]
    assert replayer.explained == ["OSError: the store is away"]
    assert len(warnings) == 1
    tried.clear()
    held.serve()
    now = FIRST_DELAY + 0.1
    replayer.held = {"a": 1}
    held.serve()
    assert tried == [["a", "b"], ["a"], ["b"]]
    tried.clear()
    now += FIRST_DELAY
    held.serve()
    assert tried == [], "the delay grows"

    def batch(error: str | None) -> None:
        result = TableResult("a", error=error).counted(refused=int(error is not None))
        held.batch_done(BatchResult(1, tables={"a": result}))

    batch("refused")
    held.serve()
    assert tried == []
    batch(None)
    held.serve()
    assert tried == [["a"]], "it takes batches again"


def test_delays_double_up_to_a_limit() -> None:
    now = 0.0
    delays: Backoff[str] = Backoff(5, 60, lambda: now)
    assert delays.is_due("x")
    assert [delays.failed("x") for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    assert (delays.failures("x"), delays.is_due("x"), delays.is_due("y")) == (6, False, True)
    now = 60.0
    assert delays.is_due("x")
    delays.forget("x")
    assert delays.failed("x") == 5


@pytest.mark.thorough
def test_the_command_waits_for_the_driver_that_has_the_checkpoint(
    spark: SparkSession, narrow: Mirroring
) -> None:
    wide = Mirroring(narrow.folder, {**settings("int"), "trigger": {"interval": "1s"}})
    with Owner(LocalStorage(wide.checkpoint)):
        outcome = replay(wide.pipeline, table="items", spark=spark, timeout=0.1)
    assert (outcome.filed, outcome.done) == (True, False)
    stop, failures = threading.Event(), list[BaseException]()

    def drive() -> None:
        try:
            run(wide.pipeline, spark=spark, stopping=stop.is_set)
        except BaseException as error:
            failures.append(error)

    driver = threading.Thread(target=drive)
    driver.start()
    try:
        earlier = await_outcome(LocalStorage(wide.checkpoint), ReplayRequest(outcome.request), 60)
        assert (earlier.records, earlier.done) == (2, True)
        assert items(spark, wide) == [1, 2, 3]
        outcome = replay(wide.pipeline, spark=spark, timeout=60)
        assert (outcome.records, outcome.still_bad, outcome.filed) == (1, 1, False)
    finally:
        stop.set()
        driver.join(60)
    assert failures == []
