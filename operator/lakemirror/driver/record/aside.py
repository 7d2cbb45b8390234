"""Keeps a batch's records aside: selects what goes to the quarantine, and from which of its events."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lakemirror.driver.materialise import materialised, release
from lakemirror.driver.profile.overview import APART, source_of
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import quarantine
from lakemirror.driver.record.conservation import require_stored

_PLACE = ["topic", "partition", "offset", "file", "row"]


def keep_aside(
    events: DataFrame,
    raw: DataFrame,
    rest: int,
    tables: Sequence[tuple[DataFrame, int]],
    checkpoint: str,
    batch: Batch,
) -> None:
    """Store the records of a batch that cannot be applied in the checkpoint's quarantine.

    ``rest`` is the number of classified ``events`` that are unreadable or undecided. ``tables`` are the
    records of tables (source, scope, reason and place), each with their number. Raises RecordsUnaccounted if
    other numbers were stored.
    """
    parts = []
    if rest:
        bad = events.where("kind = 'bad'")
        # The line of a file says itself that it is no record. Records of Kafka need not be read again.
        lines = _with_bytes(_named(bad.where("file IS NOT NULL"), "record"), raw)
        parts = [_unreadable(bad.where("file IS NULL")), lines, _with_bytes(_set_apart(events), raw)]
    parts += [_with_bytes(records, raw) for records, _ in tables]
    if parts:
        stored = quarantine.store(reduce(DataFrame.unionByName, parts), checkpoint, batch)
        require_stored(rest + sum(count for _, count in tables), stored)


class BadRecord(NamedTuple):
    """A record that cannot be applied: its place, its table (None if that is not known), and why."""

    topic: str
    partition: int
    offset: int
    source: str | None
    reason: str


def keep_bad(records: Sequence[BadRecord], raw: DataFrame, checkpoint: str, batch: Batch) -> bool:
    """Store bad records of a batch in the checkpoint's quarantine, with their bytes.

    Returns False, without storing any, if their places are not those of exactly as many records.
    """
    if not records:
        return True
    names = "topic STRING, partition INT, offset BIGINT, source STRING, reason STRING"
    places = raw.sparkSession.createDataFrame([tuple(each) for each in records], names)
    topics = sorted({each.topic for each in records})
    mine = raw.where(F.col("topic").isin(topics) & F.col("problem").isNull())
    found = materialised(mine.join(F.broadcast(places), ["topic", "partition", "offset"]))
    try:
        if found.count() != len(records):
            return False
        stored = quarantine.store(found.withColumn("scope", F.lit("record")), checkpoint, batch)
        require_stored(len(records), stored)
    finally:
        release(found)
    return True


def _unreadable(bad: DataFrame) -> DataFrame:
    """Return records that are bad before their table is known: RAW columns, source, scope and reason."""
    return bad.select(
        source_of().alias("source"),
        F.lit("record").alias("scope"),
        "reason",
        *_PLACE,
        "timestamp",
        F.col("raw_key").alias("key"),
        F.col("raw_value").alias("value"),
        F.col("raw_headers").alias("headers"),
        F.lit(None).cast("string").alias("problem"),
    )


def _set_apart(events: DataFrame) -> DataFrame:
    """Return records that are set apart: source, scope, reason and place.

    These are records whose place in the source's order is undecided or missing, records whose schema cannot
    be read, and records that are not admitted.
    """
    scope = F.when(F.col("kind") == "held", "order").otherwise("record")
    return _named(events.where(F.col("kind").isin("held", *APART)), scope)


def _named(events: DataFrame, scope: Column | str) -> DataFrame:
    """Return source, scope, reason and place of events."""
    scope = F.lit(scope) if isinstance(scope, str) else scope
    return events.select(source_of().alias("source"), scope.alias("scope"), "reason", *_PLACE)


def _with_bytes(aside: DataFrame, raw: DataFrame) -> DataFrame:
    """Return records of a table (source, scope, reason and place) with their raw bytes."""
    same = [F.col(f"a.{name}").eqNullSafe(F.col(f"r.{name}")) for name in _PLACE]
    found = aside.dropDuplicates(_PLACE).alias("a").join(raw.alias("r"), same)
    return found.select("a.source", "a.scope", "a.reason", "r.*")
