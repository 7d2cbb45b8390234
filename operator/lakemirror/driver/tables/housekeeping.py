"""OPTIMIZE and VACUUM of Delta tables, and when each was done last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.tables.delta import configuration, quoted, snapshot

_MIB: Final = 1024 * 1024
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_LOG_RETENTION: Final = "delta.logRetentionDuration"
_DEFAULTS: Final = {_RETENTION: 7 * 86_400, _LOG_RETENTION: 30 * 86_400}
"""What Delta takes where a table does not say, in seconds."""
_FIRST_LOOK, _FURTHER = 100, 10


class Task(Enum):
    """A kind of housekeeping."""

    OPTIMIZE = "optimize"
    VACUUM = "vacuum"


def session_for(spark: SparkSession) -> SparkSession:
    """A session for housekeeping, without the settings of those that write batches.

    Small files become files of a size at which a batch still reads few rows that it does not need; what has
    that size is left alone, so that the work follows what was written since. VACUUM would spread the listing
    of any folder over 10,000 tasks, and logs itself, from which `last_done` knows it.
    """
    session = spark.newSession()
    parallelism = max(4, 2 * spark.sparkContext.defaultParallelism)
    for name, value in {
        "spark.databricks.delta.optimize.minFileSize": 64 * _MIB,
        "spark.databricks.delta.optimize.maxFileSize": 128 * _MIB,
        "spark.databricks.delta.vacuum.logging.enabled": "true",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": parallelism,
    }.items():
        session.conf.set(name, str(value))
    return session


def optimize(session: SparkSession, path: str) -> str:
    """Make few files of many small ones, and write files with many hidden rows anew; what that did."""
    row = session.sql(f"OPTIMIZE delta.{quoted(path)}").select("metrics.*").first()
    assert row is not None
    return f"{row['numFilesRemoved']} files became {row['numFilesAdded']}"


def vacuum(session: SparkSession, path: str, retain_seconds: int) -> str:
    """Delete files that no version of the last ``retain_seconds`` needs; what that did.

    The time is a property of the table: Delta forgets by it, too, since when a file is needed no more, so
    that a longer one in the statement alone would come too late, and it is never shorter than what the
    statement is checked against. Folders that begin with an underscore, such as ``_tombstones``, are not the
    table's to clean (Delta, ``DeltaTableUtils.isHiddenDirectory``).
    """
    _keep_for(session, path, retain_seconds)
    session.sql(f"VACUUM delta.{quoted(path)}")
    ended = DeltaTable.forPath(session, path).history(1).select("operation", "operationMetrics").first()
    deleted = (ended["operationMetrics"] or {}).get("numDeletedFiles") if ended is not None else None
    return f"{deleted or 0} files deleted"


def _keep_for(session: SparkSession, path: str, seconds: int) -> None:
    """Have the table keep removed files and its history for so long; unchanged if it does already."""
    configured = configuration(snapshot(session, path))
    wanted = {_RETENTION: seconds}
    if seconds > _DEFAULTS[_LOG_RETENTION]:
        wanted[_LOG_RETENTION] = seconds
    changed = {
        name: f"interval {value} seconds"
        for name, value in wanted.items()
        if configured.get(name, f"interval {_DEFAULTS[name]} seconds") != f"interval {value} seconds"
    }
    if changed:
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in changed.items())
        session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({listed})")


def last_done(session: SparkSession, path: str, every: Mapping[Task, float]) -> dict[Task, datetime]:
    """When each task was done last, or else when the table was made, by its own history; a task that is not
    in it was not done in the last ``every`` seconds (as long as the log is kept).

    OPTIMIZE leaves no trace where it finds nothing to do: then it only looks again.
    """
    limit, longest = _FIRST_LOOK, max(every.values(), default=0.0)
    while True:
        commits = _commits(DeltaTable.forPath(session, path).history(limit)).collect()
        found = {
            task: datetime.fromtimestamp(max(times) / 1e6, UTC)
            for task in every
            if (times := [row["at"] for row in commits if row["task"] == task.value])
        }
        oldest = datetime.fromtimestamp(min(row["at"] for row in commits) / 1e6, UTC)
        if len(commits) < limit:
            return dict.fromkeys(every, oldest) | found
        if found.keys() == every.keys() or (datetime.now(UTC) - oldest).total_seconds() > longest:
            return found
        limit *= _FURTHER


def _commits(history: DataFrame) -> DataFrame:
    """Of each commit: at (microseconds) and which task it ended, if any."""
    operation, status = F.col("operation"), F.col("operationParameters")["status"]
    task = F.when(operation == "OPTIMIZE", Task.OPTIMIZE.value).when(
        (operation == "VACUUM END") & (status == "COMPLETED"), Task.VACUUM.value
    )
    return history.select(F.unix_micros("timestamp").alias("at"), task.alias("task"))
