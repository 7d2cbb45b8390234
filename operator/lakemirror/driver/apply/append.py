"""Change events -> rows of an append-only mirror: every event once."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from lakemirror.driver.apply.scd1 import MergeCounts, S, T
from lakemirror.driver.delta import quoted
from lakemirror.driver.mirror import Mirror
from lakemirror.driver.sequence import is_snapshot


def append(mirror: Mirror, events: DataFrame, columns: Mapping[str, DataType]) -> MergeCounts:
    """Add an event frame's rows that are not there yet, as one commit.

    A change has a sequence of its own in its table; all rows of a snapshot share one, so that where they
    stood tells them apart.
    """
    origin = F.struct("topic", "partition", "offset")
    place = F.when(is_snapshot(F.col("seq")), origin)
    once = (
        events.withColumn("origin", origin).withColumn("place", place).dropDuplicates(["seq", "op", "place"])
    )
    stored = F.when(is_snapshot(T("__seq")), T("__origin"))
    same = (T("__seq") == F.col("s.seq")) & (T("__op") == F.col("s.op")) & stored.eqNullSafe(F.col("s.place"))
    values = {name: S(name) for name in columns}
    meta = {
        "__seq": F.col("s.seq"),
        "__op": F.col("s.op"),
        "__event_time": F.col("s.event_time"),
        "__origin": F.col("s.origin"),
        "__unrepresentable": F.col("s.texts"),
    }
    inserts: dict[str, str | Column] = {quoted(name): value for name, value in {**values, **meta}.items()}
    result = (
        mirror.delta(events.sparkSession)
        .alias("t")
        .merge(once.alias("s"), same)
        .whenNotMatchedInsert(values=inserts)
    )
    counts = result.execute().first()
    assert counts is not None
    return MergeCounts(counts["num_inserted_rows"], 0, 0)
