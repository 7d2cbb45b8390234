"""What the log tells of batches."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from lakemirror.api.report import Counts
from lakemirror.driver.results import BatchResult, Drift, TableResult, without_open
from lakemirror.driver.runtime.events import BatchDone
from lakemirror.driver.runtime.log import LogLines, batch_line, configure

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ORDERS = TableResult(
    "shop.orders", counts=Counts(records=5, applied=4, stale=1, inserted=4), last_event_time=NOON
)


def done(*tables: TableResult) -> BatchDone:
    return BatchDone(BatchResult(7, tables={table.source: table for table in tables}), 2.04)


def test_a_batch_is_one_line() -> None:
    assert batch_line(done(ORDERS), NOON + timedelta(seconds=3)) == (
        "batch 7: 1 table, 5 records, 4 applied, 1 stale, 4 inserted, 2.0 s; the newest change is of "
        "2026-03-01T12:00:00.000Z, 3 s ago"
    )
    assert batch_line(done()) == "batch 7: 0 tables, 0 records, 2.0 s"


def test_what_needs_someone_is_a_warning_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    drift = Drift("v", "widened", "int", "bigint", "altered", feature="typeWidening")
    refused = replace(ORDERS, counts=Counts(records=2, refused=2), error="disk full")
    lines = LogLines()
    for event in (done(replace(ORDERS, drift=(drift,))), done(refused), done(refused), done(ORDERS)):
        lines(event)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if not r.getMessage().startswith("batch")]
    assert told == [
        (
            "WARNING",
            "schema drift: shop.orders.v widened (int -> bigint): altered, readers now need the Delta "
            "feature typeWidening",
        ),
        ("WARNING", "table shop.orders is refused: disk full"),
        ("INFO", "table shop.orders is written again"),
    ]
    levels = [record.levelname for record in caplog.records if record.getMessage().startswith("batch")]
    assert levels == ["INFO", "WARNING", "WARNING", "INFO"]


def test_the_log_is_without_the_noise_of_py4j() -> None:
    configure()
    assert not logging.getLogger("py4j.clientserver").isEnabledFor(logging.INFO)


def test_a_replay_in_vain_counts_no_record_again() -> None:
    held = replace(ORDERS, counts=Counts(records=5, applied=2, refused=3, inserted=2))
    result = without_open(BatchResult(0, Counts(records=4, no_row_change=3, quarantined=1), {"o": held}))
    assert result.tables["o"].counts == Counts(records=2, applied=2, inserted=2)
    assert result.counts == Counts(records=5, applied=2, inserted=2, no_row_change=3)
    assert result.counts.unaccounted == 0
