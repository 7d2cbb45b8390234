"""The quarantine: records that are not applied, with their raw bytes, in a Delta table beside the checkpoint.

Each row has a ``scope``, which says what has to change before its record can be applied:

======  ==============================================================================================
record  the record itself is bad; `lakemirror replay` applies it once the cause is fixed
table   its table was refused, failed or is suspended; the driver retries automatically
order   its place in the source's order is undecided; the driver retries automatically
        (a truncate waits for a reload, which closes it)
======  ==============================================================================================

Records of scope ``table`` and ``order`` are held.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final, Literal, TypeVar

from delta import DeltaTable
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakemirror.driver.parse.order import WITHOUT_ROW
from lakemirror.driver.read.base import RAW, Batch
from lakemirror.driver.reduce.waiting import TRUNCATE_REASON
from lakemirror.driver.tables import creation, delta
from lakemirror.driver.write.log import forget_lost, tells_of_lost_file

_log = logging.getLogger(__name__)
Out = TypeVar("Out")
Scope = Literal["record", "table", "order"]
HELD: Final = ("table", "order")
"""Scopes of records that the driver retries automatically."""

OpenRecords = Mapping[str, Mapping[str, int]]
"""The number of open records, by source table and scope: {source: {record: n, table: n, order: n}}.

Records of an unknown table are listed under an empty source.
"""

COLUMNS = (
    "id STRING, source STRING, reason STRING, state STRING, quarantined_at TIMESTAMP, query_id STRING, "
    f"batch_id BIGINT, {RAW}, scope STRING"
)
"""Raw bytes, origin, scope and reason of each record.

``state`` is open, replayed, corrected (`close_corrected`), or discarded by somebody. ``id`` is the hash of
origin and value, so a record that arrives again does not get a second row. ``query_id`` and ``batch_id`` name
the batch that last refused it. A null scope, as in tables created by earlier versions, means ``record``.
"""

_PARTITIONS: Final = ("state",)
"""The files of open records are apart, so that reading them does not cost more with each closed one."""

_PLACE: Final = ("topic", "partition", "offset", "file", "row")
"""Where a record is from. Its ``id`` depends on all of these."""
_MOST_RANGES: Final = 16
"""Of how many partitions or files each has a range of its own. More take longer to plan than to read."""

_TOLD = ("source", "reason", "scope", "query_id", "batch_id")
"""Columns that are updated if a record arrives again and is still bad. So are its headers."""

_SCOPE: Final = (
    "CASE WHEN t.state = 'open' AND t.scope = 'order' AND s.scope = 'table' THEN 'order' ELSE s.scope END"
)
"""The scope of a record that arrives again. An undecided record stays undecided while its table is held.

Otherwise, a table that has the rest of a file would be taken to have an undecided row of it as well.
"""


def path(checkpoint: str) -> str:
    """Return the path of the table."""
    return f"{checkpoint.rstrip('/')}/quarantine"


@dataclass(frozen=True)
class _Range:
    """What a column of a group of records has: the least and the greatest value, and whether it has nulls."""

    least: Any
    greatest: Any
    nulls: bool

    def or_of(self, other: _Range) -> _Range:
        """Return the range of both groups."""
        values = [
            each for each in (self.least, self.greatest, other.least, other.greatest) if each is not None
        ]
        nulls = self.nulls or other.nulls
        return _Range(min(values), max(values), nulls) if values else _Range(None, None, nulls)

    def has(self, column: Column) -> Column:
        """BOOLEAN: whether a value is within the range."""
        if self.least is None:
            return column.isNull()
        within = column.between(self.least, self.greatest)
        return within | column.isNull() if self.nulls else within


_Places = Mapping[str, _Range]
"""Where the records of a group are from, by the columns of `_PLACE`."""


def store(records: DataFrame, checkpoint: str, batch: Batch) -> int:
    """Store records (RAW columns with ``source``, ``reason`` and ``scope``), and return their number.

    Without the column ``scope``, the scope is ``record``. If a record is already there, its reason is
    updated. If it was replayed, it becomes open again.
    """
    spark = records.sparkSession
    without_lost_files(spark, checkpoint, lambda: _ensure(spark, checkpoint))
    scope = F.col("scope") if "scope" in records.columns else F.lit(None).cast("string")
    rows = records.withColumns(
        {
            "id": _identity(),
            "scope": F.coalesce(scope, F.lit("record")),
            "state": F.lit("open"),
            "quarantined_at": F.current_timestamp(),
            "query_id": F.lit(batch.query_id),
            "batch_id": F.lit(batch.batch_id),
        }
    ).dropDuplicates(["id"])
    number, same = _counted_by_place(rows)
    again: dict[str, str | Column] = {name: F.col(f"s.{name}") for name in (*_TOLD, "headers", "state")}
    again["scope"] = F.expr(_SCOPE)
    differs = " OR ".join(f"NOT t.{name} <=> s.{name}" for name in _TOLD)

    def merge() -> None:
        (
            DeltaTable.forPath(spark, path(checkpoint))
            .alias("t")
            .merge(rows.alias("s"), same)
            .whenMatchedUpdate("t.state <> 'open'", {**again, "quarantined_at": F.col("s.quarantined_at")})
            .whenMatchedUpdate(differs, again)
            .whenNotMatchedInsertAll()
            .execute()
        )

    without_lost_files(spark, checkpoint, merge)
    return number


def _counted_by_place(rows: DataFrame) -> tuple[int, Column]:
    """Return how many rows there are, and the condition that a stored row ``t`` is one of them (``s``).

    The same record is from the same place. The statistics of most files say that they have none of these
    places, so a file of records that were closed long ago is not read.
    """
    about = [
        column
        for name in _PLACE
        for column in (F.min(name), F.max(name), F.count_if(F.col(name).isNull()) > 0)
    ]
    number, groups = 0, []
    for row in rows.groupBy("topic", "partition", "file").agg(F.count("*"), *about).collect():
        told = tuple(row)[3:]
        number += told[0]
        groups.append({name: _Range(*told[3 * i + 1 : 3 * i + 4]) for i, name in enumerate(_PLACE)})
    same = F.col("t.id") == F.col("s.id")
    return number, same & _within(groups, "t") if groups else same


def _within(groups: Sequence[_Places], alias: str) -> Column:
    """BOOLEAN: whether a row is from a place of one of the groups, or between their places."""
    if len(groups) > _MOST_RANGES:
        groups = [reduce(_together, groups)]
    return reduce(
        Column.__or__,
        [
            reduce(Column.__and__, [each.has(F.col(f"{alias}.{name}")) for name, each in group.items()])
            for group in groups
        ],
    )


def _together(some: _Places, others: _Places) -> _Places:
    return {name: each.or_of(others[name]) for name, each in some.items()}


def without_lost_files(spark: SparkSession, checkpoint: str, step: Callable[[], Out]) -> Out:
    """Return the outcome of a step that reads or changes the table, also if some of its files are gone."""
    try:
        return step()
    except Exception as error:
        if not tells_of_lost_file(error):
            raise
        lost = forget_lost(spark, path(checkpoint))
        if lost is None:
            raise
        _log.warning("%s file(s) of %s are gone, and are done without", lost.files, path(checkpoint))
    return step()


def close_corrected(raw: DataFrame, checkpoint: str) -> int:
    """Close the open records of lines that the RAW records ``raw`` have with other bytes.

    A file may be read before its last line is complete. Returns how many were closed; to repeat it closes
    none. Their ``state`` becomes ``corrected``.
    """
    spark = raw.sparkSession
    rows = read(spark, checkpoint)
    if rows is None:
        return 0
    still = rows.where("state = 'open' AND file IS NOT NULL")
    files = [row["file"] for row in still.select("file").distinct().collect()]
    if not files:
        return 0
    lines = raw.where(F.col("file").isin(files)).select("file", "row", _identity().alias("new"))
    closed = still.join(lines, ["file", "row"]).where("id <> new").select("id").distinct()
    ids = [row["id"] for row in closed.collect()]
    if ids:
        table = DeltaTable.forPath(spark, path(checkpoint))
        table.update(F.col("id").isin(ids) & (F.col("state") == "open"), {"state": F.lit("corrected")})
    return len(ids)


def read(spark: SparkSession, checkpoint: str, version: int | None = None) -> DataFrame | None:
    """Return the rows, now or at a version of the table, with their scope filled in. None without a table."""
    if not delta.is_table(spark, path(checkpoint)):
        return None
    reader = spark.read.format("delta")
    rows = (reader if version is None else reader.option("versionAsOf", version)).load(path(checkpoint))
    scope = F.col("scope") if "scope" in rows.columns else F.lit(None).cast("string")
    return rows.withColumn("scope", F.coalesce(scope, F.lit("record")))


def truncates(source: str) -> Column:
    """BOOLEAN: whether an open row is a truncate of a table that waits because nothing orders it."""
    waits = F.startswith("reason", F.lit(TRUNCATE_REASON)) | F.startswith("reason", F.lit(WITHOUT_ROW))
    return (F.col("state") == "open") & (F.col("source") == source) & F.coalesce(waits, F.lit(False))


def close(spark: SparkSession, checkpoint: str, chosen: Column, state: str = "replayed") -> None:
    """Close open rows: what their records did has reached the mirror by another way, or nobody wants them."""
    rows = read(spark, checkpoint)
    if rows is not None and not rows.where(chosen).isEmpty():
        _ensure(spark, checkpoint)  # the condition may name a column that tables of earlier versions lack
        DeltaTable.forPath(spark, path(checkpoint)).update(chosen, {"state": F.lit(state)})


def forget(spark: SparkSession, checkpoint: str, before: datetime) -> int:
    """Delete closed rows that came into the quarantine before a moment, and return how many there were.

    Rows that are open stay. In a table of an earlier version, their files are set apart from then on.
    """
    _divide(spark, checkpoint)
    rows = read(spark, checkpoint)
    old = (F.col("state") != "open") & (F.col("quarantined_at") < F.lit(before))
    number = 0 if rows is None else rows.where(old).count()
    if number:
        DeltaTable.forPath(spark, path(checkpoint)).delete(old)
    return number


def open_counts(spark: SparkSession, checkpoint: str) -> OpenRecords:
    """Return the number of open records."""
    found: dict[str, dict[str, int]] = {}
    for row in without_lost_files(spark, checkpoint, lambda: _counted(spark, checkpoint)):
        found.setdefault(row[0], {})[row[1]] = row[2]
    return found


def _counted(spark: SparkSession, checkpoint: str) -> list[Row]:
    rows = read(spark, checkpoint)
    if rows is None:
        return []
    source = F.coalesce("source", F.lit("")).alias("source")
    return rows.where("state = 'open'").groupBy(source, "scope").agg(F.count("*")).collect()


def open_sources(spark: SparkSession, checkpoint: str) -> set[str]:
    """Return the source tables that have open records."""
    return {source for source in open_counts(spark, checkpoint) if source}


def topics_of_unknown(spark: SparkSession, checkpoint: str) -> set[str | None]:
    """Return the topics of the open records whose table is unknown, None for records without a topic."""
    rows = read(spark, checkpoint)
    if rows is None:
        return set()
    found = rows.where("state = 'open' AND coalesce(source, '') = ''").select("topic").distinct().collect()
    return {row["topic"] for row in found}


def _ensure(spark: SparkSession, checkpoint: str) -> None:
    """Create the table, or add missing columns to it."""
    where = path(checkpoint)
    if not delta.is_table(spark, where):
        columns = DataType.fromDDL(COLUMNS)
        assert isinstance(columns, StructType)
        creation.create(spark, where, columns, delta.SELDOM_READ, partitions=_PARTITIONS)
    elif "scope" not in spark.read.format("delta").load(where).columns:
        spark.sql(f"ALTER TABLE delta.{delta.quoted(where)} ADD COLUMNS (scope STRING)")


def _divide(spark: SparkSession, checkpoint: str) -> None:
    """Divide the files of a table that an earlier version created, in one commit."""
    where = path(checkpoint)
    newest = delta.snapshot(spark, where)
    if int(newest.version()) < 0 or int(newest.metadata().partitionColumns().size()):
        return
    writer = spark.read.format("delta").load(where).write.format("delta").mode("overwrite")
    writer.option("overwriteSchema", "true").partitionBy(*_PARTITIONS).save(where)


def _identity() -> Column:
    place = [F.col(name) for name in ("topic", "partition", "offset", "file", "row")]
    body = [F.sha2(name, 256).alias(name) for name in ("key", "value")]
    return F.sha2(F.to_json(F.struct(*place, *body)), 256)
