"""What the records of a table came to, as the commit of its rows tells."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import functions as F

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.table import Reduced
from lakemirror.driver.results import TableResult
from lakemirror.driver.write.writer import Written


def counted(
    table: MirroredTable,
    plan: TablePlan,
    reduced: Reduced,
    result: TableResult,
    rows: Written,
    *,
    before: int | None,
    after: int | None,
) -> TableResult:
    """The result with what the commit between two versions did."""
    outcomes = _keyed(table, plan, reduced, rows, before) if plan.reading.key else _appended(reduced, rows)
    counted = result.counted(
        **outcomes,
        inserted=rows.inserted,
        updated=rows.updated,
        deleted=rows.deleted,
        late_after_collection=_late(table, plan, reduced),
    )
    retained = table.tombstones.summary.retained if plan.reading.key else 0
    return replace(counted, version=after, tombstones_retained=retained)


def _keyed(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> dict[str, int]:
    """Outcomes of the records of a table with a key, truncates included."""
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


def _truncate(floor: bytes, former: bytes | None) -> str:
    """The outcome of the newest truncate of a batch."""
    if former is None or floor > former:
        return "applied"
    return "duplicates" if floor == former else "stale"


def _appended(reduced: Reduced, rows: Written) -> dict[str, int]:
    """Outcomes of the records of a table that is appended to."""
    return {"applied": rows.inserted, "duplicates": reduced.counts.newest - rows.inserted}


def _passed_over(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> tuple[int, int]:
    """(stale, duplicates) among the newest records of their keys, as the rows before the commit tell. Only
    asked of the table when a key was passed over.
    """
    changed = rows.inserted + rows.updated + rows.deleted
    # Only then does each changed row stand for a key of the batch.
    plain = plan.seen.floor is None and not plan.alteration.add
    if reduced.state is None or before is None or (plain and changed >= reduced.counts.expected):
        return 0, 0
    stored = table.stored_seqs(plan.reading, before)
    newest = reduced.state.frame.where("key IS NOT NULL AND op <> 'p'")
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


def _late(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> int:
    """Events older than a collected tombstone that wrote a row after all."""
    if reduced.state is None:
        return 0
    collected, first = table.tombstones.summary.collected, reduced.counts.first_seq
    if collected is None or first is None or first > collected:
        return 0
    written = reduced.state.frame.where("key IS NOT NULL AND op IN ('c', 'u', 'r')")
    old = written.where(F.col("seq") <= F.lit(collected))
    return old.join(table.stored_seqs(plan.reading), "key").where("stored = seq").count()
