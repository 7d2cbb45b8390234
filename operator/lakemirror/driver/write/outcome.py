"""Determines the outcomes of a table's records from the commit of its rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.plan.mirrored import MirroredTable, stored_key
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.bounds import within
from lakemirror.driver.reduce.history import History
from lakemirror.driver.reduce.table import Reduced
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.tombstones import encoded_key
from lakemirror.driver.write.writer import Written

_LOG = logging.getLogger(__name__)


def counted(
    table: MirroredTable,
    plan: TablePlan,
    reduced: Reduced,
    result: TableResult,
    rows: Written,
    *,
    before: int | None,
    after: int | None,
    told: History | None = None,
) -> TableResult:
    """Return the result with what the commit between two versions did.

    ``told`` is given for a mirror of versions.
    """
    outcomes = rows.outcomes
    if outcomes is None:
        outcomes = outcomes_of(table, plan, reduced, rows, before=before, told=told)
    counted = result.counted(
        **outcomes,
        no_row_change=result.counts.no_row_change + reduced.counts.left_out,
        inserted=rows.inserted,
        updated=rows.updated,
        deleted=rows.deleted,
        late_after_collection=told.outcomes.late if told is not None else _late(table, plan, reduced),
    )
    retained = table.tombstones.summary.retained if plan.reading.key else 0
    return replace(counted, version=after, tombstones_retained=retained)


def outcomes_of(
    table: MirroredTable,
    plan: TablePlan,
    reduced: Reduced,
    rows: Written,
    *,
    before: int | None,
    told: History | None = None,
) -> Mapping[str, int]:
    """Return the outcomes of the records, given the rows that existed ``before`` the commit."""
    if told is not None:
        outcomes = _versioned(plan, reduced, told)
    elif plan.reading.key:
        outcomes = _keyed(table, plan, reduced, rows, before)
    else:
        outcomes = _appended(reduced, rows)
    out_of_order = _out_of_order(table, plan, reduced, outcomes.get("stale", 0), before)
    return {**outcomes, "out_of_order": out_of_order}


def _keyed(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> dict[str, int]:
    """Return the outcomes of the records of a table with a key, including truncates."""
    held = reduced.counts
    stale, duplicates = _passed_over(table, plan, reduced, rows, before)
    found = {
        "applied": held.newest - stale - duplicates,
        "superseded": held.superseded,
        "stale": held.stale + stale,
        "duplicates": held.duplicates + duplicates,
    }
    if plan.seen.floor is not None:
        found[_truncate(plan.seen.floor, plan.former_floor)] += 1
        found["superseded"] += plan.seen.truncates - 1
    return found


def _versioned(plan: TablePlan, reduced: Reduced, told: History) -> dict[str, int]:
    """Return the outcomes of the records of a table whose versions are kept.

    An event that is older than others is applied as well. A truncate counts once.
    """
    found, seen, once = told.outcomes, plan.seen.truncates, len(reduced.truncates)
    return {
        "applied": found.applied + once - told.known,
        "superseded": reduced.counts.superseded,
        "stale": found.stale,
        "duplicates": reduced.counts.duplicates + found.repeated + seen - once + told.known,
    }


def _truncate(floor: bytes, former: bytes | None) -> str:
    """Return the outcome of the newest truncate of a batch."""
    if former is None or floor > former:
        return "applied"
    return "duplicates" if floor == former else "stale"


def _appended(reduced: Reduced, rows: Written) -> dict[str, int]:
    """Return the outcomes of the records of a table that is appended to."""
    return {"applied": rows.inserted, "duplicates": reduced.counts.newest - rows.inserted}


def _passed_over(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> tuple[int, int]:
    """Return (stale, duplicates) among the newest records of their keys, from the rows before the commit.

    The table is queried only if a key was passed over.
    """
    changed = rows.inserted + rows.updated + rows.deleted
    # Only then does each changed row stand for a key of the batch.
    plain = plan.seen.floor is None and not plan.alteration.add
    if reduced.state is None or before is None or (plain and changed >= reduced.counts.expected):
        return 0, 0
    stored = table.stored_seqs(plan.reading, before)
    for name, (low, high) in reduced.counts.bounds.items():
        if low is not None:
            stored = stored.where(within(F.col("key")[name], plan.reading.columns[name], low, high))
    newest = reduced.state.frame.where(f"key IS NOT NULL AND op <> '{Op.PASSED}'")
    own, known = F.col("own"), F.col("known")
    same = (F.col("stored") == F.col("seq")) | (known & F.col("stored").isNull())
    row = (
        newest.join(stored, "key", "left")
        .agg(
            F.sum(F.when(F.col("stored") > F.col("seq"), own)).alias("stale"),
            F.sum(F.when(same, own)).alias("duplicates"),
        )
        .first()
    )
    assert row is not None
    return row["stale"] or 0, row["duplicates"] or 0


def _out_of_order(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, stale: int, before: int | None
) -> int:
    """Return how many stale records were made more than the tolerance before what was stored for their row.

    That is the row, or the tombstone of its key. Applies only to a table of current rows, and runs a query
    only if there are stale records.
    """
    if not stale or plan.mode != "scd1" or reduced.state is None or before is None:
        return 0
    tolerance = F.lit(timedelta(milliseconds=table.spec.ordering.tolerance_ms))
    keyed = reduced.state.frame.where("key IS NOT NULL")
    stood = T("__seq").alias("stood"), T("__event_time").alias("at")
    rows = table.rows(before).select(stored_key(plan.reading), *stood)
    passed = keyed.where(f"NOT stale AND op <> '{Op.PASSED}'").join(rows, "key").where("stood > seq")
    found = _older(passed, tolerance)
    gated = keyed.where("stale")
    if table.tombstone_summary.retained:
        gone = table.tombstones.frame().where("kind IN ('deleted', 'moved')")
        gone = gone.groupBy(F.col("key").alias("gone")).agg(F.max_by("event_time", "seq").alias("at"))
        found += _older(gated.join(gone, encoded_key(gated) == F.col("gone")), tolerance)
    if found and not table.warned_of_order:
        table.warned_of_order = True
        _LOG.warning(
            "table %s: %d record(s) came more than ordering.toleranceMs (%d ms) after newer changes of their "
            "rows, and changed nothing. Further ones are counted as outOfOrder",
            *(table.name, found, table.spec.ordering.tolerance_ms),
        )
    return found


def _older(passed: DataFrame, tolerance: Column) -> int:
    """Return how many records are older than what was stored, ``at``, by more than the tolerance."""
    row = passed.where(F.col("at") - F.col("event_time") > tolerance).agg(F.sum("own")).first()
    return (row[0] if row is not None else None) or 0


def _late(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> int:
    """Return the number of events that are older than a collected tombstone but wrote a row."""
    if reduced.state is None:
        return 0
    collected, first = table.tombstones.summary.collected, reduced.counts.first_seq
    if collected is None or first is None or first > collected:
        return 0
    written = reduced.state.frame.where(F.col("key").isNotNull() & F.col("op").isin(*WITH_ROW))
    old = written.where(F.col("seq") <= F.lit(collected))
    return old.join(table.stored_seqs(plan.reading), "key").where("stored = seq").count()
