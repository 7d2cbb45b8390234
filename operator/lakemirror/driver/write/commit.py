"""Carry out what was decided for a table: first its form and its tombstones, then its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampType

from lakemirror.driver import faults
from lakemirror.driver.errors import BatchMismatch
from lakemirror.driver.plan.decision import Refused, State, Work
from lakemirror.driver.plan.lives import to_text
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.read.base import Batch
from lakemirror.driver.reduce.bounds import Bound
from lakemirror.driver.reduce.changes import Transaction, Written
from lakemirror.driver.reduce.scd1 import Scd1, changes
from lakemirror.driver.results import TableResult
from lakemirror.driver.tables import tombstones
from lakemirror.driver.tables.delta import ddl
from lakemirror.driver.tables.keys import encode_row
from lakemirror.driver.tables.mirror import (
    COLUMNS_PROPERTY,
    GAPS_PROPERTY,
    KEY_PROPERTY,
    MODE_PROPERTY,
    NULLS_PROPERTY,
    SOURCE_PROPERTY,
)
from lakemirror.driver.write.append import append

_NOTHING = Written()


# -- before the rows ------------------------------------------------------------------------------


def prepare(table: MirroredTable, work: Work, batch: Batch) -> None:
    """Create or alter the mirror, commits of metadata that may be repeated; then write tombstones."""
    properties = {}
    lives = to_text({**table.stored_lives, **work.lives})
    if lives != table.properties.get(COLUMNS_PROPERTY, to_text({})):
        properties[COLUMNS_PROPERTY] = lives
    if table.writes_nulls:
        properties[NULLS_PROPERTY] = "true"
    if work.state is not None and work.tracked:
        properties[GAPS_PROPERTY] = "true"
    if table.mirror.exists:
        table.mirror.alter(work.plan.add, work.plan.alter, properties, avoided=table.avoided)
    else:
        _create(table, work, properties)
    if work.reading.key:
        _write_tombstones(table, work, batch)
    faults.reach("after-tombstones")


def _create(table: MirroredTable, work: Work, properties: Mapping[str, str]) -> None:
    key = work.reading.key
    soft = {table.soft: TimestampType()} if table.soft and key else {}
    own = {
        SOURCE_PROPERTY: table.source,
        KEY_PROPERTY: json.dumps(list(key)),
        MODE_PROPERTY: "scd1" if key else "append",
    }
    table.mirror.create({**work.plan.columns, **soft}, {**own, **properties}, key, avoided=table.avoided)
    owner = table.properties.get(SOURCE_PROPERTY)
    if owner != table.source:  # somebody else was faster
        raise Refused(f"the target {table.location} is the mirror of {owner}: choose another target")


def _write_tombstones(table: MirroredTable, work: Work, batch: Batch) -> None:
    """Of deletes, of a truncate and of rows that moved, as one commit."""
    state, floor, facts = work.state, work.seen.floor, []
    deletes = moved = 0
    if state is not None and not table.soft:
        deletes = work.counts.deletes - work.counts.known
        if deletes:
            facts.append(_deleted(state, batch))
    if floor is not None:
        nothing = table.spark.range(1)
        facts.append(tombstones.fact(nothing, "truncated", batch=batch.batch_id, seq=F.lit(floor)))
    if state is not None and state.images is not None:
        moved = state.images.count()
        if moved:
            facts.append(_moved(state.images, batch))
    if facts:
        summary = tombstones.raised(
            table.tombstones.summary,
            deletes=deletes,
            last_delete=work.counts.last_delete,
            moved=moved,
            floor=floor,
        )
        table.tombstones.append(reduce(DataFrame.unionByName, facts), summary)


def _deleted(state: State, batch: Batch) -> DataFrame:
    gone = state.frame.where("key IS NOT NULL AND op = 'd' AND NOT known")
    place = {name: F.col(name) for name in ("seq", "event_time", "topic", "partition", "offset")}
    return tombstones.fact(gone, "deleted", batch=batch.batch_id, key=tombstones.encoded_key(gone), **place)


def _moved(images: DataFrame, batch: Batch) -> DataFrame:
    row = images.schema["row"].dataType
    assert isinstance(row, StructType)
    return tombstones.fact(
        images,
        "moved",
        batch=batch.batch_id,
        key=tombstones.encoded_key(images),
        seq=F.col("seq"),
        new_key=tombstones.encoded_key(images, "new_key"),
        image=encode_row(F.col("row"), row),
        seqs=F.col("seqs"),
    )


# -- the rows -------------------------------------------------------------------------------------


def commit(table: MirroredTable, work: Work, result: TableResult, transaction: Transaction) -> TableResult:
    """Write the rows; returns ``result`` with what that did."""
    before = table.mirror.version
    counts = _write(table, work, transaction)
    faults.reach("after-rows")
    table.report(work.drift)
    table.applied(work.seen)
    return _counted(table, work, result, counts, before=before, after=table.mirror.version)


def already(table: MirroredTable, work: Work, batch: Batch, result: TableResult) -> TableResult:
    """``result`` with what the batch did when this table was given it before.

    Raises BatchMismatch when that was another batch under the same number.
    """
    commits = table.mirror.delta().history(50).where("userMetadata IS NOT NULL")
    for row in commits.select("version", "userMetadata", "operationMetrics").collect():
        note = json.loads(row["userMetadata"])
        if note.get("query") != batch.query_id or note.get("batch") != batch.batch_id:
            continue
        if note.get("extent") != json.loads(json.dumps(batch.extent)):
            raise BatchMismatch(
                f"table {table.name} has batch {batch.batch_id} already, with another range of input: "
                f"it was {note.get('extent')}, now {batch.extent}. The checkpoint is not the one that wrote "
                f"{table.mirror.location}: restore it, or start with a new one."
            )
        counts = _said(note, row["operationMetrics"] or {})
        version = int(row["version"])
        return _counted(table, work, result, counts, before=version - 1, after=version)
    return replace(result, version=table.mirror.version)


def _said(note: Mapping[str, Any], metrics: Mapping[str, str]) -> Written:
    """What a commit did, by what it says itself or, as for MERGE, by Delta's metrics."""
    if "rows" in note:
        return Written(**note["rows"])
    return Written(
        *[int(metrics.get(f"numTargetRows{what}", 0)) for what in ("Inserted", "Updated", "Deleted")]
    )


def _write(table: MirroredTable, work: Work, transaction: Transaction) -> Written:
    reading, seen = work.reading, work.seen
    if not reading.key:
        if work.events is None:
            return _NOTHING
        return append(table.mirror, work.events.where("problem IS NULL"), reading.columns)
    fills = work.fills
    if not work.counts.keys and not work.tracked and seen.floor is None and not fills:
        return _NOTHING
    plan = Scd1(
        columns=reading.columns,
        key=reading.key,
        tracked=work.tracked,
        soft=table.soft,
        floor=seen.floor,
        fills=fills,
        snapshot=seen.snapshot,
        unanchored=seen.unanchored,
        bounds={} if seen.floor is not None or fills else _bounds(work),
    )
    state = work.state.frame if work.state is not None else _no_state(table, work)
    wanted = "key IS NOT NULL" if work.tracked else "key IS NOT NULL AND op <> 'p'"
    wanted_changes = changes(plan, work.counts.keys, work.counts.deletes)
    return table.writer(wanted_changes).write(state.where(wanted), wanted_changes, transaction)


def _no_state(table: MirroredTable, work: Work) -> DataFrame:
    """An empty state frame, for a batch that only truncates."""
    columns = work.reading.columns
    key = ddl(StructType([StructField(name, columns[name]) for name in work.reading.key]))
    row = ddl(StructType([StructField(name, kind) for name, kind in columns.items()]))
    return table.spark.createDataFrame(
        [],
        f"key {key}, op STRING, seq BINARY, unanchored BOOLEAN, event_time TIMESTAMP, topic STRING, "
        f"partition INT, offset BIGINT, row {row}, seqs MAP<STRING, BINARY>, "
        "texts MAP<STRING, STRING>, records BIGINT, own BIGINT, duplicates BIGINT, row_seq BINARY, "
        "number BIGINT, born BOOLEAN, known BOOLEAN, stale BOOLEAN",
    )


def _bounds(work: Work) -> dict[str, Bound]:
    """Between which values the batch's keys lie."""
    return {
        name: Bound(work.reading.columns[name], low, high)
        for name, (low, high) in work.counts.bounds.items()
        if low is not None
    }


# -- what it did ----------------------------------------------------------------------------------


def _counted(
    table: MirroredTable,
    work: Work,
    result: TableResult,
    rows: Written,
    *,
    before: int | None,
    after: int | None,
) -> TableResult:
    """The result with what the commit between two versions did."""
    outcomes = _keyed(table, work, rows, before) if work.reading.key else _appended(work, rows)
    counted = result.counted(
        **outcomes,
        inserted=rows.inserted,
        updated=rows.updated,
        deleted=rows.deleted,
        late_after_collection=_late(table, work),
    )
    retained = table.tombstones.summary.retained if work.reading.key else 0
    return replace(counted, version=after, tombstones_retained=retained)


def _keyed(table: MirroredTable, work: Work, rows: Written, before: int | None) -> dict[str, int]:
    """Outcomes of the records of a table with a key, truncates included."""
    held = work.counts
    stale, duplicates = _passed_over(table, work, rows, before)
    found = {
        "applied": held.newest - stale - duplicates,
        "superseded": held.superseded,
        "stale": held.stale + stale,
        "duplicates": held.duplicates + duplicates,
    }
    if work.seen.floor is not None:
        found[_truncate(work.seen.floor, work.former_floor)] += 1
        found["superseded"] += work.seen.truncates - 1
    return found


def _truncate(floor: bytes, former: bytes | None) -> str:
    """The outcome of the newest truncate of a batch."""
    if former is None or floor > former:
        return "applied"
    return "duplicates" if floor == former else "stale"


def _appended(work: Work, rows: Written) -> dict[str, int]:
    """Outcomes of the records of a table that is appended to."""
    return {"applied": rows.inserted, "duplicates": work.counts.newest - rows.inserted}


def _passed_over(table: MirroredTable, work: Work, rows: Written, before: int | None) -> tuple[int, int]:
    """(stale, duplicates) among the newest records of their keys, as the rows before the commit tell. Only
    asked of the table when a key was passed over.
    """
    changed = rows.inserted + rows.updated + rows.deleted
    # Only then does each changed row stand for a key of the batch.
    plain = work.seen.floor is None and not work.plan.add
    if work.state is None or before is None or (plain and changed >= work.counts.expected):
        return 0, 0
    stored = table.stored_seqs(work.reading, before)
    newest = work.state.frame.where("key IS NOT NULL AND op <> 'p'")
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


def _late(table: MirroredTable, work: Work) -> int:
    """Events older than a collected tombstone that wrote a row after all."""
    if work.state is None:
        return 0
    collected, first = table.tombstones.summary.collected, work.counts.first_seq
    if collected is None or first is None or first > collected:
        return 0
    written = work.state.frame.where("key IS NOT NULL AND op IN ('c', 'u', 'r')")
    old = written.where(F.col("seq") <= F.lit(collected))
    return old.join(table.stored_seqs(work.reading), "key").where("stored = seq").count()
