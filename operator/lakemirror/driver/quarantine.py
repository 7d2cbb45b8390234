"""The quarantine: bad records with their raw bytes, in a Delta table beside the checkpoint."""

from __future__ import annotations

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver import delta
from lakemirror.driver.sources.base import RAW, Batch

COLUMNS = (
    "id STRING, source STRING, reason STRING, state STRING, quarantined_at TIMESTAMP, query_id STRING, "
    f"batch_id BIGINT, {RAW}"
)
"""Raw bytes, origin and reason of each record. ``state`` is open or replayed; ``id`` is the hash of origin
and value, so that a record that comes again is one row.
"""


def path(checkpoint: str) -> str:
    """Where the table stands."""
    return f"{checkpoint.rstrip('/')}/quarantine"


def store(records: DataFrame, checkpoint: str, batch: Batch) -> DataFrame:
    """Keep bad records: RAW columns with ``source`` and ``reason``; returns them with their ids.

    A record that is there already stays as it is.
    """
    spark = records.sparkSession
    delta.ensure(spark, path(checkpoint), COLUMNS)
    rows = records.withColumns(
        {
            "id": _identity(),
            "state": F.lit("open"),
            "quarantined_at": F.current_timestamp(),
            "query_id": F.lit(batch.query_id),
            "batch_id": F.lit(batch.batch_id),
        }
    ).dropDuplicates(["id"])
    target = DeltaTable.forPath(spark, path(checkpoint)).alias("t")
    target.merge(rows.alias("s"), "t.id = s.id").whenNotMatchedInsertAll().execute()
    return rows


def open_sources(spark: SparkSession, checkpoint: str) -> set[str]:
    """Source tables that have records which nobody replayed yet."""
    rows = delta.read(spark, path(checkpoint))
    if rows is None:
        return set()
    sources = rows.where("state = 'open'").select("source").distinct()
    return {row[0] for row in sources.collect() if row[0]}


def _identity() -> Column:
    parts = [
        F.coalesce(F.col(name).cast("string"), F.lit(""))
        for name in ("topic", "partition", "offset", "file", "row")
    ]
    body = F.coalesce(F.hex("key"), F.lit("")), F.coalesce(F.hex("value"), F.lit(""))
    return F.sha2(F.concat_ws("/", *parts, *body), 256)
