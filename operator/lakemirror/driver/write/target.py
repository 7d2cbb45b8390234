"""The kinds of places that mirrors are kept in: what opens a mirror there, and what writes it."""

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


class TargetKind(Protocol):
    """A kind of place that mirrors are kept in."""

    def open(self, spark: SparkSession, location: Location) -> Store:
        """The mirror at a location, which need not be there yet."""
        ...

    def writers(self, table: MirroredTable) -> Writers:
        """What writes a table's mirror."""
        ...

    def check(self, spark: SparkSession) -> None:
        """Raise PipelineStopped where the place cannot be reached, so that no table is to blame."""
        ...

    def count(self, spark: SparkSession, target: str) -> int:
        """How many rows a mirror has, by its location as results have it."""
        ...


class DeltaTarget:
    """Delta tables, by their path or in a catalog."""

    def open(self, spark: SparkSession, location: Location) -> Mirror:
        return Mirror(spark, location, append)

    def writers(self, table: MirroredTable) -> DeltaWriters:
        return DeltaWriters(table)

    def check(self, spark: SparkSession) -> None:
        """A file system that is away shows in what failed."""

    def count(self, spark: SparkSession, target: str) -> int:
        stored = "/" in target
        told = rows_of(delta.snapshot(spark, target)) if stored else None
        if told is not None:
            return told
        frame = spark.read.format("delta").load(target) if stored else spark.table(target)
        return frame.count()


DELTA = DeltaTarget()
