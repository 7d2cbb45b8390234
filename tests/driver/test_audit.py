"""The audit remembers what the report tells: counts, the drift that was seen, why a table is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import SparkSession

from lakemirror.api.report import COUNTERS, Counts
from lakemirror.driver.read.base import Batch, Lag
from lakemirror.driver.record import audit
from lakemirror.driver.results import BatchResult, Drift, TableResult
from lakemirror.driver.runtime.progress import Progress

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SEEN = datetime(2026, 3, 1, 13, tzinfo=UTC)
ADDED = Drift("note", "added", None, "string", "added", NOON, SEEN)
DRIFT = (
    '[{"column": "n", "change": "added", "from_type": null, "to_type": "int", "action": "added", '
    '"since": null}]'
)
EVERY = Counts(**{name: n for n, name in enumerate(COUNTERS, 1)})


def test_a_new_run_reports_what_the_one_before_did(spark: SparkSession, tmp_path: Path) -> None:
    written = TableResult(
        "s.a", "/lake/a", 3, EVERY, tombstones_retained=5, last_event_time=NOON, drift=(ADDED,)
    )
    refused = TableResult("s.b", counts=Counts(records=2, refused=2), error="s.b: give it another target")
    results = [
        BatchResult(0, Counts(records=1, no_row_change=1), {"s.a": written, "s.b": refused}),
        BatchResult(1, Counts(), {"s.a": TableResult("s.a", counts=Counts(records=1, stale=1))}),
    ]
    before = Progress("shop")
    for result in results:
        batch = Batch("query", result.batch_id, {"files": 1})
        audit.append(spark, str(tmp_path), batch, result, {}, replay=False)
        before.batch_done(result)
    after = Progress("shop")
    after.begin_with(audit.history(spark, str(tmp_path)))
    said, once = after.report("Starting", Lag(0, True)), before.report("Running", Lag(0, True))
    assert said.totals == once.totals
    assert said.tables == once.tables
    a, b = said.tables
    assert (a.target, a.version, a.records) == ("/lake/a", 3, EVERY.records + 1)
    assert [(d.column, d.seen) for d in a.drift] == [("note", "2026-03-01T13:00:00.000Z")]
    assert b.error == "s.b: give it another target"


def test_an_audit_of_an_earlier_version_is_read_and_continued(spark: SparkSession, tmp_path: Path) -> None:
    old = (
        "SELECT timestamp'2026-03-01 12:00:00 UTC' AS committed_at, 'q' AS query_id, 0L AS batch_id, "
        "'{}' AS extent, 5L AS records, 1L AS ignored, s AS source, '/lake/a' AS target, 3L AS version, "
        "4L AS events, 4L AS inserted, 0L AS updated, 0L AS deleted, 0L AS stale, 0L AS duplicates, "
        "0L AS tombstone_records, 0L AS tombstones_retained, 0L AS late_after_collection, 0L AS quarantined, "
        "CAST(NULL AS TIMESTAMP) AS last_event_time, if(s IS NULL, NULL, "
        f"'{DRIFT}') AS drift, CAST(NULL AS STRING) AS error, '{{}}' AS positions "
        "FROM VALUES ('s.a'), (NULL) AS t(s)"
    )
    spark.sql(old).write.format("delta").save(audit.path(str(tmp_path)))
    result = BatchResult(1, tables={"s.a": TableResult("s.a", counts=Counts(records=2, applied=2))})
    audit.append(spark, str(tmp_path), Batch("q", 1, {}), result, {}, replay=True)
    history = audit.history(spark, str(tmp_path))
    table = history.tables["s.a"]
    assert (table.counts.inserted, table.counts.applied, history.whole.records) == (4, 2, 7)
    assert [each.seen.isoformat() for each in table.drift] == ["2026-03-01T12:00:00+00:00"]
