"""What the audit says in total stays when its old rows are summed up, and read-at answers nothing wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.report import Counts
from lakemirror.driver.consistent.answer import why_none
from lakemirror.driver.consistent.cuts import Commit, Span, spans
from lakemirror.driver.consistent.reach import END, Reach
from lakemirror.driver.profile.positions import At, Place, Stream
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import audit, retention
from lakemirror.driver.record.histories import histories
from lakemirror.driver.record.history import FILE
from lakemirror.driver.record.write_behind import WriteBehind
from lakemirror.driver.results import BatchResult, Drift, Left, TableResult, Violated

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ADDED = Drift("note", "added", None, "string", "added", NOON, NOON)
WIDER = Drift("n", "widened", "int", "bigint", "widened", NOON, NOON)


def table(version: int | None, first: int, last: int, log: str = "shop", **more: object) -> TableResult:
    """What a batch brought to a table at a version: changes of these positions."""
    result = TableResult(
        "s.a",
        "/lake/a" if version is not None else None,
        version,
        Counts(records=2, applied=1, stale=1),
        tombstones_retained=first,
        reach=Reach(f"{first:052x}", f"{last:052x}", log),
    )
    return replace(result, **more)  # type: ignore[arg-type]


BATCHES: Sequence[tuple[str, int, Mapping[str, TableResult]]] = (
    ("q", 0, {"s.a": table(0, 10, 100, drift=(ADDED,), violated=(Violated("v", "warn", 2),))}),
    ("q", 1, {"s.a": table(1, 40, 50, "other", drift=(ADDED, WIDER))}),
    ("replay-1", 0, {"s.a": table(2, 20, 20, violated=(Violated("v", "warn", 3), Violated("w", "warn", 1)))}),
    ("q", 2, {"s.a": table(None, 1, 0, error="s.a: refused", gap=f"{7:052x}")}),
    ("replay-2", 0, {"s.b": replace(table(5, 1, 3, checked=3), source="s.b", target="/lake/b")}),
    ("q", 3, {"s.a": table(4, 110, 120, checked=2)}),
    ("q", 4, {"s.a": table(5, 105, 130)}),
)
OLD = 5


@pytest.mark.long
@pytest.mark.guarantee(
    "Old batches of the audit are summed up, and totals, drift and targets stay what they were; no version "
    "answers for a position that is within a sum"
)
def test_rows_that_are_summed_up_say_the_same_in_total(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = str(tmp_path)
    moments, early = [], ""
    for query, number, tables in BATCHES:
        moments.append(datetime.now(UTC))
        time.sleep(0.01)
        result = BatchResult(number, Counts(records=2, applied=1, stale=1), tables)
        memory = {Stream("t", 0, "shop"): Place(At(f"0{number}", number))} if query == "q" else None
        audit.keep(spark, checkpoint, Batch(query, number, {"files": number}), result, memory, 1.0)
        if number == 0 and query == "q":
            WriteBehind(spark, checkpoint).flush()
            early = (tmp_path / FILE).read_text("utf-8")
    WriteBehind(spark, checkpoint).flush()
    before, told = audit.history(spark, checkpoint), histories(spark, checkpoint)
    told_positions = audit.read(spark, checkpoint)
    assert told_positions is not None
    assert told_positions.where("positions IS NOT NULL").count() == 2, "of the last batch of each commit"
    assert retention.sum_up(spark, checkpoint, moments[0]) == 0, "nothing is that old"
    assert retention.sum_up(spark, checkpoint, moments[OLD]) == 2 * OLD
    assert json.loads((tmp_path / FILE).read_text("utf-8"))["version"] == audit.version(spark, checkpoint)
    rows = audit.read(spark, checkpoint)
    assert rows is not None
    # s.a of two logs, and refused ones; s.b; whole batches of the query, and of all replays; two new batches
    assert rows.count() == 3 + 1 + 2 + 4
    assert [row["batch_id"] for row in rows.where("positions IS NOT NULL").collect()] == [4], (
        "the newest ones"
    )
    assert rows.where("since IS NOT NULL").count() == 1 + 2, "s.a of one log, and whole batches of both kinds"
    for kept in ("current", "of before the rows that are summed up", "lost"):
        if kept == "lost":
            (tmp_path / FILE).unlink()
        elif kept != "current":
            (tmp_path / FILE).write_text(early, "utf-8")
        after = audit.history(spark, checkpoint)
        assert after.whole == before.whole
        for source, now in after.tables.items():
            was = before.tables[source]
            assert replace(now, drift=(), violated=()) == replace(was, drift=(), violated=())
            assert {each.identity for each in now.drift} == {each.identity for each in was.drift}
            assert sorted(map(str, now.violated)) == sorted(map(str, was.violated))
        assert (after.logs, after.gap, after.memories) == (before.logs, before.gap, before.memories)
        assert after.last_batches["q"] == before.last_batches["q"] == 4
        assert (after.written, after.places) == (before.written, before.places)
    known = histories(spark, checkpoint)
    assert known[1] == told[1]
    for source, history in known[0].items():
        assert (history.target, history.logs, history.gap) == (
            told[0][source].target,
            told[0][source].logs,
            told[0][source].gap,
        )
        right = spans(told[0][source].commits)
        assert all(within(each, right) for each in spans(history.commits)), "no version shows anything else"
    [newest] = [each for each in spans(known[0]["s.a"].commits) if each.version == 5]
    assert newest.since == f"{130:052x}"
    assert max(known[0]["s.a"].commits, key=lambda each: each.version) == Commit(
        5, f"{105:052x}", f"{130:052x}"
    )
    position = f"{60:052x}"
    reason = why_none("s.a", position, known[0]["s.a"], below=END, waiting=END)
    assert "are summed up (spec.retention.audit)" in reason
    assert retention.sum_up(spark, checkpoint, moments[OLD]) == 0, "there is nothing more to sum up"
    assert retention.sum_up(spark, checkpoint, datetime.now(UTC)) > 0, "and later, what is older by then"
    last = audit.history(spark, checkpoint)
    assert (last.whole, last.last_batches["q"]) == (before.whole, 4)
    (tmp_path / FILE).unlink()
    summed = audit.history(spark, checkpoint).tables
    assert (summed["s.a"].left, summed["s.b"].left) == (Left(5, 5), Left(5, checked=3))


def within(span: Span, others: Sequence[Span]) -> bool:
    """Whether a version is said to be valid only where it is."""
    return any(
        each.version == span.version and each.since <= span.since and span.until <= each.until
        for each in others
    )
