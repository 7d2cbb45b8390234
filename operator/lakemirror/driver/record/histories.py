"""Reads from the audit which changes each version of each table brought."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.consistent.answer import History
from lakemirror.driver.consistent.cuts import Commit
from lakemirror.driver.consistent.reach import BEGIN
from lakemirror.driver.document import aware
from lakemirror.driver.profile.positions import from_json
from lakemirror.driver.record import audit


def histories(spark: SparkSession, checkpoint: str) -> tuple[dict[str, History], bool]:
    """Return each table's history, and whether records were kept aside whose table is unknown."""
    rows = audit.read(spark, checkpoint)
    if rows is None:
        return {}, False
    optional = dict.fromkeys(("first_seq", "last_seq", "log", "gap"), "string") | {"since": "timestamp"}
    for name, kind in optional.items():
        if name not in rows.columns:
            rows = rows.withColumn(name, F.lit(None).cast(kind))
    upper = _before_reaches(rows)
    unplaced = F.col("first_seq").isNull()
    found = (
        rows.where("source IS NOT NULL")
        .groupBy("source", "target", "version")
        .agg(
            F.max("committed_at").alias("at"),
            F.min(F.when(unplaced, BEGIN).otherwise(F.col("first_seq"))).alias("first"),
            F.max(F.when(unplaced, upper).otherwise(F.col("last_seq"))).alias("last"),
            F.collect_set("log").alias("logs"),
            F.min("gap").alias("gap"),
            F.max(F.when(F.col("since").isNotNull(), F.col("last_seq"))).alias("summed"),
            F.max(F.when(F.col("since").isNotNull(), F.col("committed_at"))).alias("summed_at"),
        )
    )
    by_source: dict[str, list[Row]] = {}
    for row in found.collect():
        by_source.setdefault(row["source"], []).append(row)
    unknown = rows.where("source IS NULL AND gap IS NOT NULL").first() is not None
    return {source: _of_table(of) for source, of in by_source.items()}, unknown


def _of_table(rows: Sequence[Row]) -> History:
    """Return the history of a table, without versions of a former mirror at another place."""
    placed = [row for row in rows if row["target"] is not None and row["version"] is not None]
    target = max(placed, key=lambda row: row["at"])["target"] if placed else None
    written = [row for row in placed if row["target"] == target]
    commits = [Commit(row["version"], row["first"], row["last"]) for row in written]
    return History(
        target,
        tuple(commits),
        frozenset(log for row in rows for log in row["logs"]),
        min((row["gap"] for row in rows if row["gap"] is not None), default=None),
        max((row["summed"] for row in written if row["summed"] is not None), default=BEGIN),
        max((at for row in written if (at := aware(row["summed_at"])) is not None), default=None),
    )


def _before_reaches(rows: DataFrame) -> str:
    """Return the greatest position reached by batches that do not record the range of their changes.

    An earlier version of Lakemirror wrote their audit rows.
    """
    last = rows.where("source IS NOT NULL AND first_seq IS NULL").agg(F.max("committed_at")).first()
    if last is None or last[0] is None:
        return BEGIN
    told = rows.where((F.col("committed_at") <= last[0]) & F.col("positions").isNotNull())
    newest = told.groupBy("query_id").agg(F.max_by("positions", "batch_id").alias("positions")).collect()
    tops = [place.top.seq for row in newest for place in from_json(row["positions"]).values()]
    return max(tops, default=BEGIN)
