"""Determines the outcomes of a table's records from the commit of its rows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.codes import WITH_ROW, Op
from lakemirror.driver.joins import hinted
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.history import History
from lakemirror.driver.reduce.scd1 import is_newer
from lakemirror.driver.reduce.table import Reduced, bounded, merging
from lakemirror.driver.reduce.waiting import is_checked
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables.columns import T
from lakemirror.driver.tables.tombstones import encoded_key
from lakemirror.driver.times import possible
from lakemirror.driver.write.append import new_events
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
        absent_rows=_absent(table, plan, reduced, rows),
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
        outcomes = _appended(table, plan, reduced, rows, before)
    return outcomes


def _keyed(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> dict[str, int]:
    """Return the outcomes of the records of a table with a key, including truncates."""
    held = reduced.counts
    with ThreadPoolExecutor(1) as pool:
        forbidden = pool.submit(_forbidden_out_of_order, table, reduced)
        passed = _passed_over(table, plan, reduced, rows, before)
    out_of_order = passed.out_of_order + forbidden.result()
    found = {
        "applied": held.newest - passed.stale - passed.duplicates,
        "superseded": held.superseded,
        "stale": held.stale + passed.stale,
        "duplicates": held.duplicates + passed.duplicates,
        "out_of_order": out_of_order,
    }
    if plan.seen.floor is not None:
        once = len(plan.seen.truncated_at)
        found[_truncate(plan.seen.floor, plan.former_floor)] += 1
        found["superseded"] += once - 1
        found["duplicates"] += plan.seen.truncates - once
    warn_of_order(table, out_of_order)
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


def _appended(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> dict[str, int]:
    """Return the outcomes of the records of a table that is appended to.

    An update that changed its row's key added two rows.
    """
    added = rows.inserted + rows.updated
    if plan.reading.former and reduced.events is not None:
        stored = table.mirror.frame(before) if before is not None else None
        added -= new_events(reduced.events.where("records = 0"), plan.reading.columns, stored).count()
    return {"applied": added, "duplicates": reduced.counts.newest - added}


@dataclass(frozen=True)
class _Passed:
    """How many records change nothing although they are the newest ones of their keys in the batch.

    ``stale``: older than the stored row; ``duplicates``: as new; ``out_of_order``: stale, and made more than
    the tolerance before the stored row.
    """

    stale: int = 0
    duplicates: int = 0
    out_of_order: int = 0


def _passed_over(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written, before: int | None
) -> _Passed:
    """Determine what was passed over, from the rows before the commit.

    The table is queried only if a key was passed over.
    """
    if reduced.state is None or before is None or _all_newer(table, plan, reduced, rows):
        return _Passed()
    counts, own, again = reduced.counts, F.col("s.own"), F.col("s.repeated")
    stored = bounded(table.rows(before), plan, reduced)
    kinds = {each.name: each.dataType for each in stored.schema}
    newest = reduced.state.frame.where(f"key IS NOT NULL AND op <> '{Op.PASSED}'")
    same_key = [T(name) == F.col("s.key")[name] for name in plan.reading.key]
    both = stored.join(hinted(newest, counts.keys).alias("s"), reduce(Column.__and__, same_key))
    columns = {name: kind for name, kind in plan.reading.columns.items() if kinds.get(name) == kind}
    newer = is_newer(replace(merging(plan, reduced), columns=columns))
    same = T("__seq") == F.col("s.seq")
    later = ~same & ~newer
    found = _sums(
        both,
        stale=F.when(later, own),
        same=F.when(same & ~newer, own),
        again=F.when(again, own),
        out_of_order=F.when(later & _is_much_older(table, F.col("s.event_time"), T("__event_time")), own),
    )
    # A delete that came before is repeated, even if there is no row any more.
    without_row = counts.repeated - found["again"]
    return _Passed(found["stale"], found["same"] + without_row, found["out_of_order"])


def _all_newer(table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written) -> bool:
    """Return whether no key of a batch was passed over, as far as the numbers of changed rows tell.

    They do only if each changed row stands for a key of the batch that is newer.
    """
    plain = plan.seen.floor is None and not plan.alteration.add
    return plain and _all_changed(plan, reduced, rows) and not _may_fill(table, plan, reduced)


def _may_fill(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> bool:
    """Return whether an event older than a stored row may have changed it: by a value that the row lacked."""
    seen, first = plan.seen, reduced.counts.first_seq
    if not plan.tracked or first is None:
        return False
    return seen.snapshot or seen.unanchored or first <= (table.highest() or b"")


def _all_changed(plan: TablePlan, reduced: Reduced, rows: Written) -> bool:
    """Return whether each key of a batch changed a row, or has a new delete.

    A key that the batch itself created and deleted changes no row, unless the mirror had one of it, which
    would make up for a key that was passed over.
    """
    counts = reduced.counts
    changed = rows.inserted + rows.updated + rows.deleted
    if plan.soft is not None or counts.repeated:
        return changed >= counts.keys
    passing = counts.keys - counts.expected
    return changed >= counts.expected and rows.deleted <= counts.deletes - passing


def _forbidden_out_of_order(table: MirroredTable, reduced: Reduced) -> int:
    """Return how many records that a tombstone forbids were made more than the tolerance before it."""
    if reduced.state is None or not reduced.counts.stale or not table.tombstone_summary.retained:
        return 0
    gated = reduced.state.frame.where("key IS NOT NULL AND stale")
    gated = gated.select(encoded_key(gated).alias("gated"), "number", "own", "event_time")
    gone = table.tombstones.frame().where("kind IN ('deleted', 'moved')")
    gone = gone.select(F.col("key").alias("gone"), F.col("seq"), F.col("event_time").alias("at"))
    both = gone.join(hinted(gated, reduced.counts.stale), F.col("gone") == F.col("gated"))
    newest = both.groupBy("number", "own", "event_time").agg(F.max_by("at", "seq").alias("at"))
    older = _is_much_older(table, F.col("event_time"), F.col("at"))
    return _sums(newest, older=F.when(older, F.col("own")))["older"]


def _is_much_older(table: MirroredTable, made: Column, stood: Column) -> Column:
    """BOOLEAN: whether something was made more than the tolerance before what stood there."""
    past = possible(stood, F.current_timestamp())
    return past - made > F.lit(timedelta(milliseconds=table.spec.ordering.tolerance_ms))


def _sums(frame: DataFrame, **columns: Column) -> dict[str, int]:
    """Return the sums of columns, 0 for one without a value."""
    row = frame.agg(*[F.sum(column).alias(name) for name, column in columns.items()]).first()
    assert row is not None
    return {name: row[name] or 0 for name in columns}


def warn_of_order(table: MirroredTable, records: int) -> None:
    """Warn once of records that came long after newer changes of their rows."""
    if records and not table.warned_of_order:
        table.warned_of_order = True
        _LOG.warning(
            "table %s: %d record(s) came more than ordering.toleranceMs (%d ms) after newer changes of their "
            "rows, and changed nothing. Further ones are counted as outOfOrder",
            *(table.name, records, table.spec.ordering.tolerance_ms),
        )


def _absent(table: MirroredTable, plan: TablePlan, reduced: Reduced, rows: Written) -> int:
    """Return how many rows were inserted by updates, at least: what the source did before is missing.

    Rows that a batch itself created are taken for new ones. An update is only known as such if records say
    what they are, and a filtered row may have been outside before.
    """
    counts, soft = reduced.counts, plan.soft is not None
    if not counts.unborn or plan.mode != "scd1" or table.settings.filter or not _tell_ops(table):
        return 0
    created = counts.keys - counts.unborn - (0 if soft else counts.deletes)
    return min(counts.unborn, max(0, rows.inserted - created))


def _tell_ops(table: MirroredTable) -> bool:
    """Return whether all records of a table's source say whether they create or update a row."""
    envelope, feed = table.spec.envelope, table.spec.source.change_feed
    if feed is not None:
        return not feed.net_changes
    if envelope.format == "custom":
        return envelope.fields is not None and envelope.fields.op is not None
    return envelope.format != "debezium-flat"


def _late(table: MirroredTable, plan: TablePlan, reduced: Reduced) -> int:
    """Return the number of events that are older than a collected tombstone but wrote a row."""
    if reduced.state is None:
        return 0
    collected, first = table.tombstones.summary.collected, reduced.counts.first_seq
    if collected is None or first is None or first > collected:
        return 0
    written = reduced.state.frame.where(F.col("key").isNotNull() & F.col("op").isin(*WITH_ROW))
    old = written.where(F.col("seq") <= F.lit(collected))
    if is_checked(table, plan.seen):  # a tombstone of another order says nothing about the event
        facts = table.tombstones.frame().where("kind = 'collected' AND topic IS NOT NULL")
        same = facts.groupBy("topic", "partition").agg(F.max("seq").alias("_collected"))
        old = old.join(same, ["topic", "partition"]).where(F.col("seq") <= F.col("_collected"))
    stored = table.stored_seqs(plan.reading)
    return stored.join(hinted(old, reduced.counts.keys), "key").where("stored = seq").count()
