"""The pipeline's own tables, beside its checkpoint: quarantine and audit. Written once a batch for all
tables.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.mirror import is_table
from lakemirror.driver.results import BatchResult, Drift
from lakemirror.driver.sources.base import RAW, Batch

QUARANTINE = (
    "id STRING, source STRING, reason STRING, state STRING, quarantined_at TIMESTAMP, query_id STRING, "
    f"batch_id BIGINT, {RAW}"
)
"""Columns of the quarantine: raw bytes, origin and reason of each record. ``state`` is open or replayed;
``id`` is the hash of origin and value, so that a record that comes again is one row.
"""

AUDIT = (
    "committed_at TIMESTAMP, query_id STRING, batch_id BIGINT, extent STRING, records BIGINT, ignored "
    "BIGINT, "
    "source STRING, target STRING, version BIGINT, events BIGINT, inserted BIGINT, updated BIGINT, deleted "
    "BIGINT, "
    "stale BIGINT, duplicates BIGINT, tombstone_records BIGINT, tombstones_retained BIGINT, "
    "late_after_collection BIGINT, quarantined BIGINT, last_event_time TIMESTAMP, drift STRING, error "
    "STRING, "
    "positions STRING"
)
"""Columns of the audit table: one row a batch and table, and one with null ``source`` a batch."""


def path(checkpoint: str, name: str) -> str:
    """Where one of the pipeline's own tables stands."""
    return f"{checkpoint.rstrip('/')}/{name}"


def ensure(spark: SparkSession, where: str, columns: str) -> None:
    """Create an empty table, unless it is there."""
    if is_table(spark, where):
        return
    builder = DeltaTable.createIfNotExists(spark).location(where)
    for field in spark.createDataFrame([], columns).schema.fields:
        builder = builder.addColumn(field.name, field.dataType)
    builder.execute()


def quarantine(records: DataFrame, checkpoint: str, batch: Batch) -> DataFrame:
    """Store bad records: RAW columns with ``source`` and ``reason``. A record that is there already stays
    as it is.

    Returns the records with their ids.
    """
    spark = records.sparkSession
    where = path(checkpoint, "quarantine")
    ensure(spark, where, QUARANTINE)
    rows = records.withColumns(
        {
            "id": _identity(),
            "state": F.lit("open"),
            "quarantined_at": F.current_timestamp(),
            "query_id": F.lit(batch.query_id),
            "batch_id": F.lit(batch.batch_id),
        }
    ).dropDuplicates(["id"])
    target = DeltaTable.forPath(spark, where).alias("t")
    target.merge(rows.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute()
    return rows


def _identity() -> Column:
    parts = [
        F.coalesce(F.col(name).cast("string"), F.lit(""))
        for name in ("topic", "partition", "offset", "file", "row")
    ]
    body = F.coalesce(F.hex("key"), F.lit("")), F.coalesce(F.hex("value"), F.lit(""))
    return F.sha2(F.concat_ws("/", *parts, *body), 256)


def audit(
    spark: SparkSession,
    checkpoint: str,
    batch: Batch,
    result: BatchResult,
    positions: dict[str, list[object]],
    *,
    replay: bool,
) -> None:
    """Append what a batch did. With ``replay`` it may be there already, and is left as it is."""
    where = path(checkpoint, "audit")
    ensure(spark, where, AUDIT)
    if replay and _audited(spark, where, batch):
        return
    common = {
        "committed_at": datetime.now(UTC).isoformat(),
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
    }
    rows: list[dict[str, object]] = [
        {
            **common,
            "extent": json.dumps(batch.extent, sort_keys=True),
            "records": result.records,
            "ignored": result.ignored,
            "quarantined": result.quarantined,
            "positions": json.dumps(positions, sort_keys=True),
        }
    ]
    for table in result.tables.values():
        entry = {name: value for name, value in asdict(table).items() if name != "rows"}
        entry["drift"] = json.dumps(entry["drift"], default=str) if table.drift else None
        rows.append({**common, **entry})
    text = json.dumps(rows, default=str)
    frame = spark.range(1).select(F.inline(F.from_json(F.lit(text), f"ARRAY<STRUCT<{_struct(AUDIT)}>>")))
    frame.coalesce(1).write.format("delta").mode("append").save(where)


def _audited(spark: SparkSession, where: str, batch: Batch) -> bool:
    same = (F.col("query_id") == batch.query_id) & (F.col("batch_id") == batch.batch_id)
    return not spark.read.format("delta").load(where).where(same).isEmpty()


def _struct(columns: str) -> str:
    return ", ".join(f"{part.split(' ')[0]}: {part.split(' ')[1]}" for part in columns.split(", "))


def last_positions(spark: SparkSession, checkpoint: str, query_id: str) -> dict[str, list[object]]:
    """The highest position a partition that a query has seen: {partition: [seq, micros, offset]}."""
    where = path(checkpoint, "audit")
    if not is_table(spark, where):
        return {}
    rows = spark.read.format("delta").load(where).where("source IS NULL AND positions IS NOT NULL")
    newest = rows.where(F.col("query_id") == query_id).agg(F.max_by("positions", "batch_id")).first()
    return dict(json.loads(newest[0])) if newest is not None and newest[0] else {}


def drift_reported(spark: SparkSession, checkpoint: str) -> dict[str, Sequence[Drift]]:
    """Drift of each source table that the audit table knows."""
    where = path(checkpoint, "audit")
    if not is_table(spark, where):
        return {}
    found: dict[str, list[Drift]] = {}
    for row in (
        spark.read.format("delta").load(where).where("drift IS NOT NULL").select("source", "drift").collect()
    ):
        for entry in json.loads(row[1]):
            entry["since"] = datetime.fromisoformat(entry["since"]) if entry["since"] else None
            found.setdefault(row[0], []).append(Drift(**entry))
    return dict(found)


def totals(spark: SparkSession, checkpoint: str) -> dict[str, dict[str, int]]:
    """Sums over all batches a source table, each batch once: {source: {inserted: ..., updated: ..., ...}}."""
    where = path(checkpoint, "audit")
    if not is_table(spark, where):
        return {}
    summed = (
        "events",
        "inserted",
        "updated",
        "deleted",
        "stale",
        "duplicates",
        "tombstone_records",
        "late_after_collection",
        "quarantined",
    )
    rows = spark.read.format("delta").load(where).where("source IS NOT NULL")
    found = rows.groupBy("source").agg(
        *[F.sum(name).alias(name) for name in summed],
        F.max_by("tombstones_retained", F.struct("committed_at", "batch_id")).alias("tombstones_retained"),
    )
    return {
        row["source"]: {name: int(row[name] or 0) for name in (*summed, "tombstones_retained")}
        for row in found.collect()
    }
