"""The kinds of places that mirrors are kept in: how to open a mirror there, and how to write to it."""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import SparkSession

from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.tables import delta
from lakemirror.driver.tables.mirror import Mirror
from lakemirror.driver.tables.names import Location
from lakemirror.driver.tables.store import Store
from lakemirror.driver.write.log import append, rows_of
from lakemirror.driver.write.writer import Writers
from lakemirror.driver.write.writers import DeltaWriters
from lakemirror.driver.writer import log_state
from lakemirror.driver.writer.java_store import DeltaLogStore
from lakemirror.driver.writer.log_files import Damaged
from lakemirror.driver.writer.log_state import NotPlain


class TargetKind(Protocol):
    """A kind of place that mirrors are kept in."""

    def open(self, spark: SparkSession, location: Location) -> Store:
        """Return the mirror at a location. It does not have to exist yet."""
        ...

    def writers(self, table: MirroredTable) -> Writers:
        """Return the writers of a table's mirror."""
        ...

    def check(self, spark: SparkSession) -> None:
        """Raise PipelineStopped if the place cannot be reached, so that no table is blamed."""
        ...

    def count(self, spark: SparkSession, target: str) -> int:
        """Return how many rows a mirror has. ``target`` is its location as given in results."""
        ...


class DeltaTarget:
    """Delta tables, by path or in a catalog."""

    def open(self, spark: SparkSession, location: Location) -> Mirror:
        return Mirror(spark, location, append)

    def writers(self, table: MirroredTable) -> DeltaWriters:
        return DeltaWriters(table)

    def check(self, spark: SparkSession) -> None:
        """Do nothing: an unreachable file system shows in the error that was raised."""

    def count(self, spark: SparkSession, target: str) -> int:
        stored = "/" in target
        if stored:
            told = rows_of(delta.snapshot(spark, target))
            if told is None:
                told = _rows_in_log(spark, target)
            if told is not None:
                return told
        frame = spark.read.format("delta").load(target) if stored else spark.table(Location(name=target).sql)
        return frame.count()


def _rows_in_log(spark: SparkSession, target: str) -> int | None:
    """Return how many rows a table has, as the statistics in its log say, or None if they do not.

    Commits without a checksum file say so only here. Spark would need a job or two for each table.
    """
    try:
        state = log_state.read(DeltaLogStore(spark, target))
    except (NotPlain, Damaged):
        return None
    files = [] if state is None else list(state.snapshot.files.values())
    rows = [each.rows for each in files if each.rows is not None]
    hidden = sum(each.vector.rows for each in files if each.vector is not None)
    return None if state is None or len(rows) < len(files) else sum(rows) - hidden


DELTA = DeltaTarget()
