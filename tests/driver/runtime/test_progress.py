"""The progress report: its numbers, its document, when it is published."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lakemirror.api.report import Counts, DriverPhase, Report
from lakemirror.driver.checkpoint.storage import LocalStorage
from lakemirror.driver.document import iso
from lakemirror.driver.errors import TableFailed
from lakemirror.driver.read.base import Lag
from lakemirror.driver.read.change_feed import FeedLost
from lakemirror.driver.read.kafka import SourceLost
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.results import BatchResult, Drift, TableResult, add
from lakemirror.driver.runtime.progress import Progress
from lakemirror.driver.runtime.reporter import FileSink, Reporter

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADDED = Drift("note", "added", None, "string", "added", NOON, NOON)
FEW = Counts(records=2, applied=2)
ORDERS = TableResult(
    "public.orders",
    target="/lake/orders",
    version=3,
    counts=Counts(
        records=17,
        applied=8,
        stale=1,
        duplicates=1,
        quarantined=6,
        no_row_change=1,
        inserted=4,
        updated=3,
        deleted=1,
        tombstone_records=1,
        late_after_collection=2,
    ),
    tombstones_retained=5,
    last_event_time=NOON,
    drift=(ADDED,),
)


def batch(batch_id: int, *tables: TableResult) -> BatchResult:
    return BatchResult(batch_id, Counts(records=2, no_row_change=2), {t.source: t for t in tables})


def test_counts_add_up_and_states_are_the_last() -> None:
    later = replace(ORDERS, version=None, target=None, tombstones_retained=2, last_event_time=None)
    both = add(ORDERS, later)
    assert both.counts == ORDERS.counts + ORDERS.counts
    assert (both.counts.records, both.counts.late_after_collection) == (34, 4)
    assert (both.version, both.target, both.tombstones_retained) == (3, "/lake/orders", 2)
    assert both.last_event_time == NOON
    assert both.drift == (ADDED,)


def test_the_document() -> None:
    progress = Progress("shop")
    progress.batch_done(batch(0, ORDERS))
    progress.batch_done(batch(1, replace(ORDERS, version=4), TableResult("public.a", counts=FEW)))
    progress.warn("a file has changed")
    document = json.loads(json.dumps(progress.report("Running", Lag(7, False)).document()))
    assert document["pipeline"] == "shop"
    assert (document["phase"], document["batchId"], document["lagRecords"]) == ("Running", 1, 7)
    assert document["eventTime"] == "2026-03-01T12:00:00.000Z"
    assert document["lagSeconds"] > 0
    assert document["caughtUp"] is False
    assert document["committedAt"] <= document["observedAt"]
    assert document["totals"] == {
        "records": 40,
        "applied": 18,
        "superseded": 0,
        "stale": 2,
        "duplicates": 2,
        "noRowChange": 6,
        "quarantined": 12,
        "refused": 0,
        "inserted": 8,
        "updated": 6,
        "deleted": 2,
        "tombstoneRecords": 2,
        "lateAfterCollection": 4,
        "outOfOrder": 0,
        "absentRows": 0,
        "violations": 0,
        "recordsInColumns": 0,
        "tombstonesRetained": 5,
        "quarantinedOpen": 0,
        "held": 0,
    }
    assert document["tablesTotal"] == 2
    assert [table["source"] for table in document["tables"]] == ["public.a", "public.orders"]
    orders = document["tables"][1]
    assert (orders["applied"], orders["version"]) == (16, 4)
    assert orders["drift"] == [
        {
            "column": "note",
            "change": "added",
            "from": None,
            "to": "string",
            "action": "added",
            "feature": None,
            "rows": None,
            "since": "2026-03-01T12:00:00.000Z",
            "seen": "2026-03-01T12:00:00.000Z",
        }
    ]
    assert document["warnings"] == ["a file has changed"]
    assert (document["sourceRestarted"], document["tableFailed"], document["failure"]) == (None, None, None)


def test_totals_begin_with_what_was_before_and_count_a_repeated_batch_once() -> None:
    progress = Progress("shop")
    before = Counts(records=110, applied=100, quarantined=10)
    history = AuditHistory(before, {"public.orders": TableResult("public.orders", counts=before)})
    progress.begin_with(history)
    assert progress.report("Starting", Lag(None, False)).totals.applied == 100
    # The batch was in the totals of before: the audit table says what they are with it.
    progress.batch_done(batch(7, ORDERS), history)
    totals = progress.report("Running", Lag(0, True)).totals
    assert (totals.applied, totals.records) == (100, 110)
    assert progress.tables["public.orders"].counts.applied == 8  # the summary is of this run
    progress.batch_done(batch(8, ORDERS))
    assert progress.report("Running", Lag(0, True)).totals.applied == 108


def test_what_is_open_in_quarantine_is_told_by_table_and_in_all() -> None:
    progress = Progress("shop")
    progress.batch_done(batch(1, ORDERS, TableResult("public.a")))
    found = {"public.orders": {"record": 3, "table": 4, "order": 1}, "": {"record": 2}}
    report = progress.report("Running", Lag(0, True), found)
    assert (report.totals.quarantined_open, report.totals.held) == (5, 5)
    assert [(t.source, t.quarantined_open, t.held) for t in report.tables] == [
        ("public.a", 0, 0),
        ("public.orders", 3, 5),
    ]


def test_a_table_is_refused_until_a_batch_is_written() -> None:
    progress = Progress("shop")
    progress.batch_done(batch(1, replace(ORDERS, error="public.orders: give it another target")))
    progress.batch_done(batch(2, TableResult("public.a")))
    [_, orders] = progress.report("Running", Lag(0, True)).tables
    assert orders.error == "public.orders: give it another target"
    progress.batch_done(batch(3, ORDERS))
    [_, orders] = progress.report("Running", Lag(0, True)).tables
    assert orders.error is None


def test_lag_in_seconds() -> None:
    progress = Progress("shop")
    assert progress.report("Running", Lag(3, False)).lag_seconds is None
    past = datetime.now(UTC) - timedelta(seconds=90)
    progress.batch_done(batch(0, replace(ORDERS, last_event_time=past)))
    lag = progress.report("Running", Lag(3, False)).lag_seconds
    assert lag is not None
    assert 90 <= lag < 120
    assert progress.report("Running", Lag(0, True)).lag_seconds == 0


def test_a_change_dated_in_the_future_says_nothing_about_the_lag() -> None:
    """Not one that was applied before times of the future were left out, either."""
    progress, future = Progress("shop"), datetime(2100, 1, 1, tzinfo=UTC)
    past = datetime.now(UTC) - timedelta(seconds=90)
    progress.batch_done(batch(0, replace(ORDERS, last_event_time=future)))
    assert progress.report("Running", Lag(3, False)).lag_seconds is None
    progress.batch_done(batch(1, replace(ORDERS, source="public.a", last_event_time=past)))
    report = progress.report("Running", Lag(3, False))
    assert report.lag_seconds is not None
    assert 90 <= report.lag_seconds < 120
    assert {table.source: table.last_event_time for table in report.tables} == {
        "public.a": iso(past),
        "public.orders": None,
    }


@pytest.mark.guarantee("A file that cannot be read keeps the pipeline behind, and is named")
def test_files_that_wait_are_named_and_nothing_is_caught_up() -> None:
    progress = Progress("shop")
    files = tuple(f"{number}.jsonl.gz: it is not a complete gzip stream" for number in range(12))
    report = progress.report("Running", Lag(None, False, waiting=files))
    assert report.waiting == list(files[:10])
    assert not report.caught_up
    assert progress.had_all_at is None
    assert progress.report("Running", Lag(0, True)).waiting is None


def test_what_ended_the_run_is_told() -> None:
    for error, name in (
        (SourceLost("offsets"), "source_lost"),
        (FeedLost("versions"), "source_lost"),
        (TableFailed("orders"), "table_failed"),
    ):
        progress = Progress("shop")
        progress.failed(error)
        report = progress.report("Failed", Lag(None, False))
        assert getattr(report, name) == report.failure == str(error)


def test_positions_that_started_again_are_told_until_an_epoch_is_declared() -> None:
    progress = Progress("shop")

    def told() -> str | None:
        return progress.report("Running", Lag(None, False)).positions_restarted

    progress.restarted("declare")  # known from an earlier run
    assert told() == "declare"
    progress.batch_done(BatchResult(1, restarted="declare more"))
    assert told() == "declare more"
    progress.batch_done(BatchResult(0), again=True)  # a replay says nothing about the source
    assert told() == "declare more"
    progress.batch_done(BatchResult(2))
    assert told() is None


class Kept:
    def __init__(self) -> None:
        self.at: list[tuple[float, DriverPhase | None]] = []

    def publish(self, report: Report) -> None:
        self.at.append((time.monotonic(), report.phase))


class Broken:
    def publish(self, report: Report) -> None:
        raise OSError("away")


def test_reports_come_soon_after_news_but_not_often_and_at_times_without() -> None:
    progress, kept = Progress("shop"), Kept()
    reporter = Reporter(
        lambda phase: progress.report(phase, Lag(0, True)),
        [Broken(), kept],
        at_most_every=0.3,
        at_least_every=1.2,
    )
    began = time.monotonic()
    reporter.start()
    for _ in range(50):
        reporter.news()
        time.sleep(0.02)
    busy, passed = len(kept.at), time.monotonic() - began
    assert 2 <= busy <= passed / 0.3 + 2
    until = time.monotonic() + 60
    while len(kept.at) <= busy:  # renewed while nothing happens
        assert time.monotonic() < until
        time.sleep(0.02)
    reporter.stop("Completed")
    assert [phase for _, phase in kept.at][:: len(kept.at) - 1] == ["Starting", "Completed"]


def test_the_file_holds_the_newest_report(tmp_path: Path) -> None:
    progress = Progress("shop")
    sink = FileSink(LocalStorage(tmp_path))
    sink.publish(progress.report("Running", Lag(1, False)))
    progress.batch_done(batch(4, ORDERS))
    last = progress.report("Completed", Lag(0, True))
    sink.publish(last)
    assert json.loads((tmp_path / "progress.json").read_text()) == last.document()


@pytest.mark.parametrize(
    ("quiet", "overdue"),
    [(None, 14400), (30, 0), (3500, 0), (5400, 1800)],
)
def test_changes_are_overdue_after_more_than_the_interval(quiet: int | None, overdue: int) -> None:
    """The newest applied change is 5 h old; ``quiet`` seconds ago, nothing was left."""
    progress, now = Progress("shop", interval=3600), datetime.now(UTC)
    progress.batch_done(batch(1, TableResult("public.a", last_event_time=now - timedelta(hours=5))))
    if quiet is not None:
        progress.report("Running", Lag(0, True), observed=now - timedelta(seconds=quiet))
    said = progress.report("Running", Lag(3, False), observed=now)
    assert said.overdue_seconds == pytest.approx(overdue, abs=60)
    assert progress.report("Running", Lag(0, True), observed=now).overdue_seconds == 0


def test_since_when_the_source_is_applied_is_remembered() -> None:
    progress, asked = Progress("shop"), datetime(2026, 3, 1, tzinfo=UTC)
    progress.report("Running", Lag(3, False), observed=asked)
    assert progress.had_all_at is None
    progress.report("Running", Lag(0, True), observed=asked)
    assert progress.had_all_at == asked
    progress.report("Running", Lag(3, False))
    assert progress.had_all_at == asked
    progress.report("Running", Lag(3, False, time.monotonic() - 60))
    assert progress.had_all_at is not None
    assert 60 <= (datetime.now(UTC) - progress.had_all_at).total_seconds() < 120
