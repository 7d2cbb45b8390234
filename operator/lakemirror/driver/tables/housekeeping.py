"""OPTIMIZE and VACUUM of Delta tables, when each was last done, and how far back their logs reach."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.driver.java import delta_log, java_class
from lakemirror.driver.tables.delta import (
    FILE_RETENTION,
    LOG_RETENTION,
    configuration,
    interval,
    quoted,
    snapshot,
)

_MIB: Final = 1024 * 1024
_DEFAULTS: Final = {FILE_RETENTION: 7 * 86_400, LOG_RETENTION: 30 * 86_400}
"""Delta's defaults for properties that a table does not set, in seconds."""
_FIRST_LOOK, _FURTHER, _FARTHEST = 100, 10, 1000


class Task(Enum):
    """A kind of housekeeping."""

    OPTIMIZE = "optimize"
    VACUUM = "vacuum"
    FORGET = "forget"
    """Delete or sum up what is older than the retention of a table of our own."""


def version_of(session: SparkSession, path: str) -> int | None:
    """Return the newest version of a table, or None if there is none at the path."""
    version = int(snapshot(session, path).version())
    return None if version < 0 else version


def files_of(session: SparkSession, path: str) -> int:
    """Return how many data files a table has, which must exist. Its checksum says so, if there is one."""
    newest = snapshot(session, path)
    checksum = newest.checksumOpt()
    return int(checksum.get().numFiles() if checksum.isDefined() else newest.numOfFiles())


def keeps_log(session: SparkSession, path: str) -> bool:
    """Return whether a property of the table says how far back its log reaches."""
    return LOG_RETENTION in configuration(snapshot(session, path))


def keep_log(session: SparkSession, path: str, seconds: int, *, files: bool = False) -> None:
    """Make the log of a table reach back this far, unless a property of the table says how far.

    With ``files``, removed files are kept as long, too. Otherwise, the log reaches back as far as these,
    because Delta requires it.
    """
    newest = snapshot(session, path)
    if LOG_RETENTION in configuration(newest):
        return
    if files:
        _set(session, path, {LOG_RETENTION: interval(seconds), FILE_RETENTION: interval(seconds)})
        return
    of_files = int(delta_log(session, path).tombstoneRetentionMillis(newest.metadata())) // 1000
    _set(session, path, {LOG_RETENTION: interval(max(seconds, of_files))})


def clean_log(session: SparkSession, path: str) -> None:
    """Delete what the log of a table has from before its retention, as Delta does.

    Delta does this by whole days, with the first checkpoint of a day: a batch would wait until thousands of
    files are deleted. This is the same code, by whole hours. It is safe beside writers. Only files that
    precede the last checkpoint of the log are deleted, and only if the table's properties do not forbid it.
    """
    log, newest = delta_log(session, path), snapshot(session, path)
    if log.enableExpiredLogCleanup(newest.metadata()):
        hour = java_class(session, "org.apache.spark.sql.delta.TruncationGranularity").HOUR()
        nothing = java_class(session, "scala.Option").empty()  # no catalog, and the retention of the table
        log.cleanUpExpiredLogs(newest, nothing, nothing, hour)


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
    newest = snapshot(session, path)
    configured = configuration(newest)
    wanted = {FILE_RETENTION: seconds}
    if seconds * 1000 > int(delta_log(session, path).deltaRetentionMillis(newest.metadata())):
        wanted[LOG_RETENTION] = seconds
    changed = {
        name: interval(value)
        for name, value in wanted.items()
        if configured.get(name, interval(_DEFAULTS[name])) != interval(value)
    }
    if changed:
        _set(session, path, changed)


def _set(session: SparkSession, path: str, properties: Mapping[str, str]) -> None:
    listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    session.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ({listed})")


def last_done(session: SparkSession, path: str, every: Mapping[Task, float]) -> dict[Task, datetime]:
    """Return when each task was last done, according to the table's history.

    If the history reaches back to the creation of the table, a task that was never done has that time.
    Otherwise, a task that is missing was not done in the last ``every`` seconds, or in the last 1,000
    commits.
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
        if limit >= _FARTHEST:
            return found
        limit *= _FURTHER


def _commits(history: DataFrame) -> DataFrame:
    """Return for each commit: at (microseconds), and which task it ended, if any."""
    operation, status = F.col("operation"), F.col("operationParameters")["status"]
    task = F.when(operation == "OPTIMIZE", Task.OPTIMIZE.value).when(
        (operation == "VACUUM END") & (status == "COMPLETED"), Task.VACUUM.value
    )
    return history.select(F.unix_micros("timestamp").alias("at"), task.alias("task"))
