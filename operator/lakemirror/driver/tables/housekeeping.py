"""OPTIMIZE and VACUUM of Delta tables, and when each was last done."""

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
"""Delta's defaults for properties that a table does not set, in seconds."""
_FIRST_LOOK, _FURTHER = 100, 10


class Task(Enum):
    """A kind of housekeeping."""

    OPTIMIZE = "optimize"
    VACUUM = "vacuum"


def session_for(spark: SparkSession) -> SparkSession:
    """Return a session for housekeeping, without the settings of sessions that write batches.

    Small files become files of a size at which a batch still reads few unneeded rows. Files of that size are
    left alone, so the amount of work depends on what was written since. VACUUM would otherwise spread the
    listing of any folder over 10,000 tasks. It logs itself, which is where `last_done` finds it.
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
    """Combine small files, rewrite files with many hidden rows, and return a summary."""
    row = session.sql(f"OPTIMIZE delta.{quoted(path)}").select("metrics.*").first()
    assert row is not None
    return f"{row['numFilesRemoved']} files became {row['numFilesAdded']}"


def vacuum(session: SparkSession, path: str, retain_seconds: int) -> str:
    """Delete files that no version of the last ``retain_seconds`` needs, and return a summary.

    The retention is a table property. Delta also uses it to forget when a file stopped being needed, so a
    longer retention in the statement alone would come too late. And it is never shorter than what the
    statement is checked against. Folders that begin with an underscore, such as ``_tombstones``, are not
    cleaned by the table (Delta, ``DeltaTableUtils.isHiddenDirectory``).
    """
    _keep_for(session, path, retain_seconds)
    session.sql(f"VACUUM delta.{quoted(path)}")
    ended = DeltaTable.forPath(session, path).history(1).select("operation", "operationMetrics").first()
    deleted = (ended["operationMetrics"] or {}).get("numDeletedFiles") if ended is not None else None
    return f"{deleted or 0} files deleted"


def _keep_for(session: SparkSession, path: str, seconds: int) -> None:
    """Make the table keep removed files and its history for this long. Does nothing if it already does."""
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
    """Return when each task was last done, according to the table's history.

    If the history reaches back to the creation of the table, a task that was never done has that time.
    Otherwise, a task that is missing was not done in the last ``every`` seconds (as long as the log is kept).
    OPTIMIZE leaves no trace if it finds nothing to do. In that case, the next run only looks again.
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
    """Return for each commit: at (microseconds), and which task it ended, if any."""
    operation, status = F.col("operation"), F.col("operationParameters")["status"]
    task = F.when(operation == "OPTIMIZE", Task.OPTIMIZE.value).when(
        (operation == "VACUUM END") & (status == "COMPLETED"), Task.VACUUM.value
    )
    return history.select(F.unix_micros("timestamp").alias("at"), task.alias("task"))
