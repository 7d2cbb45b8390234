"""Sums up what the audit has from before its retention, so that it does not grow with each batch.

The old rows of each table, of each place and log, become one, and so do those of each query for its batches
as a whole. Such a row says the same as those that it replaces to all who add up rows: totals, the newest
target and version, positions, drift, and the range of the changes that the mirror had got until then. Earlier
versions of the mirror are no longer told apart. Its ``since`` says when the first of its batches was done.

Positions are long and only the newest ones count, so those of all other batches are removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from lakemirror.api.report import COUNTERS
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.record import audit, history, pending
from lakemirror.driver.tables import delta
from lakemirror.driver.times import possible

_OF_ONE_BATCH: Final = "^(replay|look)-"
"""How the ids of queries begin that are no stream of batches."""
_DRIFT: Final = ("column", "change", "to_type")
_VIOLATED: Final = "ARRAY<STRUCT<name: STRING, on_violation: STRING, records: BIGINT>>"
_NEWEST: Final = ("target", "version", "positions", "extent")
"""Columns of which the newest value that is not null counts."""
_LAST: Final = ("query_id", "batch_id", "tombstones_retained", "error")
"""Columns of which the value of the newest row counts."""
_LEFT: Final = ("version", "checked")
"""Columns that say how a mirror was left."""
_KEYS: Final = ("source", "of_query", "of_place", "of_log")

_Key = tuple[str | None, ...]


def sum_up(spark: SparkSession, checkpoint: str, before: datetime) -> int:
    """Sum up the rows of batches that were done before a moment, and return how many it were.

    Returns 0 if there is nothing to sum up. No other writer of the audit may be active. Rows of versions that
    did not record the ranges of changes stay, with all that are older: they say something in their order.
    """
    stored = delta.read(spark, audit.path(checkpoint))
    if stored is None:
        return 0
    storage, rows = open_storage(checkpoint, spark), _complete(stored)
    told = audit.told_until(spark, checkpoint)
    history.write(storage, told)  # it has all batches of the rows that are changed now
    unplaced = rows.where("source IS NOT NULL AND first_seq IS NULL").agg(
        F.max(F.unix_micros("committed_at"))
    )
    first = unplaced.collect()[0][0]
    after = [] if first is None else [f"unix_micros(committed_at) > {first}"]
    _remove_positions(rows, checkpoint, after)
    # The batches of pending files may be in the table already, and are looked up there.
    before = min([before, *(each.committed_at for each in pending.read(storage)[0])])
    old = " AND ".join([*after, f"committed_at < TIMESTAMP '{before.astimezone(UTC).isoformat()}'"])
    number = _sum_up(_complete(spark.read.format("delta").load(audit.path(checkpoint))), checkpoint, old)
    history.write(storage, replace(told, version=audit.version(spark, checkpoint)))
    return number


def _sum_up(rows: DataFrame, checkpoint: str, old: str) -> int:
    """Replace the rows that are ``old``, in one commit, and return how many it were. 0 if nothing changes."""
    number, summed = rows.where(old).count(), summary(rows.where(old))
    if len(summed) >= number:
        return 0
    writer = _frame(rows.sparkSession, summed).coalesce(1).write.format("delta").mode("overwrite")
    writer.option("mergeSchema", "true").option("replaceWhere", old).save(audit.path(checkpoint))
    return number


def _remove_positions(rows: DataFrame, checkpoint: str, after: Sequence[str]) -> None:
    """Remove the positions of all batches but the last one of each query."""
    told = rows.where(" AND ".join([*after, "positions IS NOT NULL"]))
    last = told.groupBy("query_id").agg(F.max("batch_id"), F.count("*")).collect()
    gone = F.lit(False)
    for query, batch, number in map(tuple, last):
        if number > 1:
            gone = gone | ((F.col("query_id") == query) & (F.col("batch_id") < batch))
    if any(number > 1 for _, _, number in map(tuple, last)):
        condition = F.expr(" AND ".join([*after, "positions IS NOT NULL"])) & gone
        table = DeltaTable.forPath(rows.sparkSession, audit.path(checkpoint))
        table.update(condition, {"positions": F.lit(None).cast("string")})


def summary(rows: DataFrame) -> list[dict[str, Any]]:
    """Return rows of the audit that say the same in total as ``rows``, with times in microseconds.

    A row that is alone stays as it is.
    """
    alone = F.col("query_id").rlike(_OF_ONE_BATCH) & F.col("positions").isNull()
    rows = rows.withColumns(
        {
            "of_query": F.when(F.col("source").isNull(), F.when(alone, "").otherwise(F.col("query_id"))),
            "of_place": F.when(F.col("source").isNotNull(), F.coalesce("target", F.lit(""))),
            "of_log": F.col("log"),
        }
    )
    found, drift, violated = _summed(rows).collect(), _drift(rows), _violated(rows)
    left = _left(found)
    return [
        {
            **row.asDict(),
            **left.get((row["source"], row["target"]), {}),
            "drift": drift.get(_key(row)),
            "violations_by": violated.get(_key(row)),
        }
        for row in found
    ]


def _summed(rows: DataFrame) -> DataFrame:
    """Return one row per group, without what is written as JSON."""
    when, many = F.struct("committed_at", "batch_id"), F.count("*") > 1
    began = F.min(F.coalesce("since", "committed_at"))
    return rows.groupBy(*_KEYS).agg(
        F.unix_micros(F.max("committed_at")).alias("committed_at"),
        F.unix_micros(F.when(many, began).otherwise(F.max("since"))).alias("since"),
        *[F.max_by(name, F.when(F.col(name).isNotNull(), when)).alias(name) for name in _NEWEST],
        F.max_by("checked", F.when(F.col("version").isNotNull(), when)).alias("checked"),
        *[F.max_by(name, when).alias(name) for name in _LAST],
        *[F.sum(name).alias(name) for name in COUNTERS],
        F.unix_micros(F.max(possible(F.col("last_event_time"), F.col("committed_at")))).alias(
            "last_event_time"
        ),
        F.when(many, None).otherwise(F.max("seconds")).alias("seconds"),
        F.min("first_seq").alias("first_seq"),
        F.max("last_seq").alias("last_seq"),
        F.min("gap").alias("gap"),
        F.max("log").alias("log"),
    )


def _left(found: Iterable[Row]) -> Mapping[tuple[str, str], dict[str, int | None]]:
    """Return how each table was left last at each place, to which the rows of all its logs belong."""
    rows = [row for row in found if row["source"] is not None and row["version"] is not None]
    ordered = sorted(rows, key=lambda row: (row["committed_at"], row["version"]))
    return {(row["source"], row["target"]): {name: row[name] for name in _LEFT} for row in ordered}


def _drift(rows: DataFrame) -> dict[_Key, str]:
    """Return the drift of each group as JSON, the newest of each kind."""
    each = rows.where("drift IS NOT NULL").select(
        *_KEYS, "committed_at", F.explode(F.from_json("drift", "ARRAY<STRING>")).alias("one")
    )
    identity = [F.get_json_object("one", f"$.{name}").alias(f"_{name}") for name in _DRIFT]
    returned = F.when(F.get_json_object("one", "$.change") == "returned", F.get_json_object("one", "$.seen"))
    newest = each.groupBy(*_KEYS, *identity, returned.alias("_seen")).agg(
        F.max_by("one", "committed_at").alias("one"), F.unix_micros(F.max("committed_at")).alias("at")
    )
    found: dict[_Key, list[Any]] = {}
    for row in sorted(newest.collect(), key=lambda row: row["at"]):
        seen = datetime.fromtimestamp(row["at"] / 1_000_000, UTC).isoformat()
        # What earlier versions recorded was seen when its batch was done.
        found.setdefault(_key(row), []).append({"seen": seen, **json.loads(row["one"])})
    return {key: json.dumps(told) for key, told in found.items()}


def _violated(rows: DataFrame) -> dict[_Key, str]:
    """Return the violated expectations of each group as JSON."""
    each = rows.where("violations_by IS NOT NULL").select(
        *_KEYS, F.inline(F.from_json("violations_by", _VIOLATED))
    )
    names = ("name", "on_violation")
    found: dict[_Key, list[Any]] = {}
    for row in each.groupBy(*_KEYS, *names).agg(F.sum("records").alias("records")).collect():
        told = {name: row[name] for name in (*names, "records")}
        found.setdefault(_key(row), []).append(told)
    return {key: json.dumps(sorted(told, key=lambda each: each["name"])) for key, told in found.items()}


def _key(row: Row) -> _Key:
    return tuple(row[name] for name in _KEYS)


def _complete(rows: DataFrame) -> DataFrame:
    """Return rows of the audit with the columns that it lacks because an earlier version created it."""
    lacking = [each for each in _schema(rows.sparkSession) if each.name not in rows.columns]
    return rows.withColumns({each.name: _nothing(each) for each in lacking})


def _nothing(column: StructField) -> Column:
    return F.lit(None).cast(column.dataType)


def _frame(spark: SparkSession, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return rows with times in microseconds as rows of the audit."""
    schema = _schema(spark)
    moments = [each.name for each in schema if isinstance(each.dataType, TimestampType)]
    fields = [StructField(each.name, LongType()) if each.name in moments else each for each in schema]
    listed = [tuple(row[each.name] for each in fields) for row in rows]
    made = spark.createDataFrame(listed, StructType(fields))
    return made.withColumns({name: F.timestamp_micros(name) for name in moments})


def _schema(spark: SparkSession) -> StructType:
    return spark.createDataFrame([], audit.COLUMNS).schema
