"""The audit: what each batch did, in a Delta table beside the checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver import delta
from lakemirror.driver.overview import Position
from lakemirror.driver.results import COUNTS, BatchResult, Drift
from lakemirror.driver.sources.base import Batch

COLUMNS = (
    "committed_at TIMESTAMP, query_id STRING, batch_id BIGINT, extent STRING, records BIGINT, "
    "ignored BIGINT, source STRING, target STRING, version BIGINT, events BIGINT, inserted BIGINT, "
    "updated BIGINT, deleted BIGINT, stale BIGINT, duplicates BIGINT, tombstone_records BIGINT, "
    "tombstones_retained BIGINT, late_after_collection BIGINT, quarantined BIGINT, "
    "last_event_time TIMESTAMP, drift STRING, error STRING, positions STRING"
)
"""One row a batch and table, and one with null ``source`` a batch."""

_PROPERTIES = {"delta.checkpointInterval": "100"}
"""Each batch is a commit and only a start reads them; a checkpoint takes Delta as long as three commits."""


def path(checkpoint: str) -> str:
    """Where the table stands."""
    return f"{checkpoint.rstrip('/')}/audit"


def read(spark: SparkSession, checkpoint: str) -> DataFrame | None:
    """The audit; None before the first batch."""
    return delta.read(spark, path(checkpoint))


def append(
    spark: SparkSession,
    checkpoint: str,
    batch: Batch,
    result: BatchResult,
    positions: Mapping[str, Position],
    *,
    replay: bool,
) -> None:
    """Say what a batch did. With ``replay`` it may be there already, and is left as it is."""
    delta.ensure(spark, path(checkpoint), COLUMNS, _PROPERTIES)
    if replay and _has(spark, checkpoint, batch):
        return
    text = json.dumps(_rows(batch, result, positions), default=str)
    frame = spark.range(1).select(F.inline(F.from_json(F.lit(text), f"ARRAY<STRUCT<{COLUMNS}>>")))
    frame.coalesce(1).write.format("delta").mode("append").save(path(checkpoint))


def _rows(batch: Batch, result: BatchResult, positions: Mapping[str, Position]) -> list[dict[str, object]]:
    common = {
        "committed_at": datetime.now(UTC).isoformat(),
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
    }
    whole = {
        "extent": json.dumps(batch.extent, sort_keys=True),
        "records": result.records,
        "ignored": result.ignored,
        "quarantined": result.quarantined,
        "positions": json.dumps(positions, sort_keys=True),
    }
    rows: list[dict[str, object]] = [{**common, **whole}]
    for table in result.tables.values():
        entry = {name: value for name, value in asdict(table).items() if name != "rows"}
        entry["drift"] = json.dumps(entry["drift"], default=str) if table.drift else None
        rows.append({**common, **entry})
    return rows


def _has(spark: SparkSession, checkpoint: str, batch: Batch) -> bool:
    rows = read(spark, checkpoint)
    same = (F.col("query_id") == batch.query_id) & (F.col("batch_id") == batch.batch_id)
    return rows is not None and not rows.where(same).isEmpty()


def last_positions(spark: SparkSession, checkpoint: str, query_id: str) -> dict[str, Position]:
    """The highest position a partition that a query has seen."""
    rows = read(spark, checkpoint)
    if rows is None:
        return {}
    batches = rows.where("source IS NULL AND positions IS NOT NULL").where(F.col("query_id") == query_id)
    newest = batches.agg(F.max_by("positions", "batch_id")).first()
    stored = json.loads(newest[0]) if newest is not None and newest[0] else {}
    return {partition: Position(*position) for partition, position in stored.items()}


def drift_reported(spark: SparkSession, checkpoint: str) -> dict[str, Sequence[Drift]]:
    """The drift of each source table that was told."""
    rows = read(spark, checkpoint)
    found: dict[str, list[Drift]] = {}
    for row in (
        rows.where("drift IS NOT NULL").select("source", "drift").collect() if rows is not None else ()
    ):
        for entry in json.loads(row["drift"]):
            entry["since"] = datetime.fromisoformat(entry["since"]) if entry["since"] else None
            found.setdefault(row["source"], []).append(Drift(**entry))
    return dict(found)


def totals(spark: SparkSession, checkpoint: str) -> dict[str, dict[str, int]]:
    """Sums over all batches a source table, each batch once: {source: {inserted: ..., updated: ..., ...}}."""
    rows = read(spark, checkpoint)
    if rows is None:
        return {}
    found = (
        rows.where("source IS NOT NULL")
        .groupBy("source")
        .agg(
            *[F.sum(name).alias(name) for name in COUNTS],
            F.max_by("tombstones_retained", F.struct("committed_at", "batch_id")).alias(
                "tombstones_retained"
            ),
        )
    )
    return {
        row["source"]: {name: int(row[name] or 0) for name in (*COUNTS, "tombstones_retained")}
        for row in found.collect()
    }
