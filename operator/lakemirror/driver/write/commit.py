"""Writes a batch's tombstones and rows for one table."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

from pyspark.sql import functions as F

from lakemirror.driver import faults
from lakemirror.driver.errors import BatchMismatch
from lakemirror.driver.parse.condition import LEFT_OUT
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.possession import require_possession
from lakemirror.driver.plan.table import TablePlan
from lakemirror.driver.reduce.changes import Changes
from lakemirror.driver.reduce.history import History, history
from lakemirror.driver.reduce.table import Reduced, row_changes, states
from lakemirror.driver.results import TableResult
from lakemirror.driver.write.gone import write_ends, write_tombstones
from lakemirror.driver.write.marks import mark_files
from lakemirror.driver.write.outcome import counted, outcomes_of
from lakemirror.driver.write.own import Own
from lakemirror.driver.write.writer import Transaction, Writers, Written


def write_table(
    table: MirroredTable,
    plan: TablePlan,
    reduced: Reduced,
    result: TableResult,
    transaction: Transaction,
    writers: Writers,
    *,
    before: int | None,
) -> TableResult:
    """Write the tombstones and rows of a mirror that is already in the planned form, at version ``before``.

    Returns ``result``, completed with what was done.
    """
    require_possession(table)
    mark_files(table, transaction)
    told = history(table, plan, reduced, transaction.batch.batch_id) if plan.mode == "scd2" else None
    if told is not None:
        rows = _write_versions(table, plan, told, transaction, writers)
    else:
        tell = partial(outcomes_of, table, plan, reduced, before=before)
        rows = _write(table, plan, reduced, replace(transaction, outcomes=tell), writers)
    faults.reach("after-rows")
    table.report(plan.drift)
    after = table.mirror.version_seen
    try:
        return counted(table, plan, reduced, result, rows, before=before, after=after, told=told)
    finally:
        table.applied(plan.seen)


def _write(
    table: MirroredTable, plan: TablePlan, reduced: Reduced, transaction: Transaction, writers: Writers
) -> Written:
    """Write tombstones, and then commit the rows."""
    if not plan.reading.key:
        faults.reach("after-tombstones")
        if reduced.events is None:
            return Written()
        kept = reduced.events.where(F.col("problem").isNull() & (F.col("op") != LEFT_OUT))
        return writers.append(kept, plan, transaction.batch, transaction.session)

    def first() -> None:
        write_tombstones(table, plan, reduced, transaction.batch)
        faults.reach("after-tombstones")

    changes = row_changes(plan, reduced)
    if changes is None:
        first()
        return Written()
    changes = Own.of(table, plan, transaction.batch).filled(changes)
    changes = _beside_users(table, changes)
    writer = writers.for_changes(changes)
    return writer.write(states(table, plan, reduced), changes, transaction, first)


def _beside_users(table: MirroredTable, changes: Changes) -> Changes:
    """Return the changes for a mirror in which columns were added by hand: rows keep their values."""
    return replace(changes, plain=False) if table.users else changes


def _write_versions(
    table: MirroredTable, plan: TablePlan, told: History, transaction: Transaction, writers: Writers
) -> Written:
    """Write tombstones, and then commit the versions."""

    def first() -> None:
        write_ends(table, told, transaction.batch)
        faults.reach("after-tombstones")

    if told.changes is None:
        first()
        return Written()
    changes = _beside_users(table, Own.of(table, plan, transaction.batch).filled(told.changes))
    return writers.for_changes(changes).write(told.rows, changes, transaction, first)


def already(
    table: MirroredTable,
    plan: TablePlan,
    reduced: Reduced,
    transaction: Transaction,
    result: TableResult,
    writers: Writers,
) -> TableResult:
    """Return ``result``, completed with what the batch did when it was applied to this table before.

    Raises BatchMismatch if that was a different batch with the same number. If the mirror's history no longer
    goes back to the commit, all that is known is that the records had arrived before.
    """
    batch, done = transaction.batch, writers.done(transaction)
    table.applied(plan.seen)
    if done is None:
        _require_newest(table, transaction)
        known = result.counts.duplicates + result.counts.unaccounted
        return replace(result.counted(duplicates=known), version=table.mirror.version)
    extent = done.note.get("extent")
    if extent != json.loads(json.dumps(batch.extent)):
        raise BatchMismatch(
            f"table {table.name} has batch {batch.batch_id} already, with another range of input: "
            f"it was {extent}, now {batch.extent}. The checkpoint is not the one that wrote "
            f"{table.mirror.location}: restore it, or start with a new one."
        )
    before, told = done.version - 1, None
    if plan.mode == "scd2":
        told = history(table, plan, reduced, batch.batch_id, before)
    return counted(table, plan, reduced, result, done.rows, before=before, after=done.version, told=told)


def _require_newest(table: MirroredTable, transaction: Transaction) -> None:
    """Raise BatchMismatch if the mirror has later batches than this one, which its history does not have."""
    app_id, batch = transaction.app_id, transaction.batch
    newest = table.last_batch_of(app_id)
    if newest is not None and newest > batch.batch_id:
        raise BatchMismatch(
            f"table {table.name} has batch {newest} already, but its history does not have batch "
            f"{batch.batch_id}. The checkpoint is older than {table.mirror.location}: restore the newest "
            "one, or start with a new one."
        )
