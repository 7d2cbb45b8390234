"""The audit: what each batch did, in a Delta table beside the checkpoint.

A batch does not wait for this table. It stores its rows in a small file (`record.pending`), and several such
files are later written to the table at once (`record.write_behind`). Readers get both.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakemirror.api.report import COUNTERS, NONE, Counts
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.consistent.reach import BEGIN, END, Reach
from lakemirror.driver.document import aware
from lakemirror.driver.errors import cause_of, stops_pipeline
from lakemirror.driver.profile.positions import Memory, from_json, to_json
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import history as history_file
from lakemirror.driver.record import pending
from lakemirror.driver.record.beginning import latest
from lakemirror.driver.record.history import (
    FILE,
    AuditHistory,
    HistoryDamaged,
    bounded,
    drift_of,
    moment_of,
    newest_drift,
)
from lakemirror.driver.record.pending import Pending
from lakemirror.driver.results import BatchResult, TableResult, Violated
from lakemirror.driver.tables import commits, delta
from lakemirror.driver.times import possible
from lakemirror.driver.write import log
from lakemirror.driver.writer.schema import arrow_schema, parse

COLUMNS = (
    "committed_at TIMESTAMP, query_id STRING, batch_id BIGINT, extent STRING, source STRING, target STRING, "
    f"version BIGINT, {', '.join(f'{name} BIGINT' for name in COUNTERS)}, tombstones_retained BIGINT, "
    "last_event_time TIMESTAMP, drift STRING, error STRING, positions STRING, violations_by STRING, "
    "seconds DOUBLE, first_seq STRING, last_seq STRING, log STRING, gap STRING, since TIMESTAMP, "
    "checked BIGINT"
)
"""One row per table of a batch, and one with null ``source`` for the batch as a whole.

In the latter, ``seconds`` is how long the batch took until then. The changes that the batch brought to a
table lie between ``first_seq`` and ``last_seq`` (as hexadecimal digits) of the ``log``. What it kept aside
does not lie before ``gap`` (for the batch as a whole: records whose table is unknown). ``positions``, which
later batches of the query need, are kept with the newest batches of a query only. ``checked`` is the version
of the mirror up to which all commits are known, or null if that is ``version``.

Batches from before ``spec.retention.audit`` are summed up (`record.retention`): in such a row, ``since`` is
when the first of them was done, and ``committed_at`` when the last one was. Otherwise, ``since`` is null.
"""


_SHIFTS = ("OPTIMIZE", "VACUUM START", "VACUUM END", "SET TBLPROPERTIES", "DELETE")
"""Operations after which a table has no row that it did not have before."""
_MOST_COMMITS = 50
_STATES = ("target", "version", "checked", "tombstones_retained", "last_event_time", "error")
_BATCH = ("query_id", "batch_id")

_log = logging.getLogger(__name__)


def path(checkpoint: str) -> str:
    """Return the path of the table."""
    return f"{checkpoint.rstrip('/')}/audit"


def read(spark: SparkSession, checkpoint: str) -> DataFrame | None:
    """Return the audit, including pending rows, or None before the first batch."""
    # In this order, rows that are written to the table in between are found in both, never in neither.
    waiting, damaged = pending.read(open_storage(checkpoint, spark))
    table = delta.read(spark, path(checkpoint))
    for message in damaged:
        _log.warning("%s", message)
    if not waiting:
        return table
    rows = _frame(spark, waiting)
    if table is None:
        return rows
    return table.unionByName(rows.join(_of(table, waiting), [*_BATCH], "left_anti"), allowMissingColumns=True)


def keep(
    spark: SparkSession,
    checkpoint: str,
    batch: Batch,
    result: BatchResult,
    memory: Memory | None,
    seconds: float | None = None,
    *,
    not_before: datetime | None = None,
) -> None:
    """Durably record what a batch did, its duration in seconds, and the positions to remember.

    It is recorded as done now, but ``not_before`` what was recorded earlier (`record.beginning`). If a batch
    is repeated, the first record of it is kept.
    """
    now = datetime.now(UTC)
    rows = _rows(batch, result, memory, seconds, now if not_before is None else max(now, not_before))
    pending.keep(open_storage(checkpoint, spark), rows)


def stored(spark: SparkSession, checkpoint: str, batches: Sequence[Pending]) -> set[tuple[str, int]]:
    """Return the ``batches`` that the table contains, as query and number."""
    table = delta.read(spark, path(checkpoint)) if batches else None
    if table is None:
        return set()
    return {(row["query_id"], row["batch_id"]) for row in _of(table, batches).distinct().collect()}


def version(spark: SparkSession, checkpoint: str) -> int:
    """Return the table's newest version, or -1 if there is no table."""
    return int(delta.snapshot(spark, path(checkpoint)).version())


def append(spark: SparkSession, checkpoint: str, batches: Sequence[Pending], at: int) -> int:
    """Append the ``batches`` to the table in one commit, if the table is still ``at`` this version.

    Otherwise, another driver may have written them. Returns the version that contains them. Raises
    TableChanged or Delta's error.
    """
    columns = _columns()
    rows = _table_of(newest_positions(batches), columns)
    return log.append_at(spark, rows, columns, path(checkpoint), at)


@cache
def _columns() -> StructType:
    found = DataType.fromDDL(COLUMNS)
    assert isinstance(found, StructType)
    return found


def _table_of(batches: Sequence[Pending], columns: StructType) -> pa.Table:
    """Return the rows of the ``batches`` with the table's columns."""
    schema = arrow_schema(parse(columns.json()))
    rows = [row for each in batches for row in each.rows]
    return pa.table([_array([row.get(each.name) for row in rows], each.type) for each in schema], schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        values = [None if each is None else moment_of(each) for each in values]
    return pa.array(values, kind)


def newest_positions(batches: Sequence[Pending]) -> list[Pending]:
    """Return the ``batches`` with the positions of each query's last one alone.

    Positions of all topics are long, and those of a later batch replace those of an earlier one.
    """
    last: dict[str, int] = {}
    for each in batches:
        if any(row.get("positions") is not None for row in each.rows):
            last[each.query_id] = max(each.batch_id, last.get(each.query_id, each.batch_id))
    return [
        each
        if last.get(each.query_id) == each.batch_id
        else replace(each, rows=[{**row, "positions": None} for row in each.rows])
        for each in batches
    ]


def _frame(spark: SparkSession, batches: Sequence[Pending]) -> DataFrame:
    """Return the rows of the ``batches`` with the table's columns."""
    text = json.dumps([row for each in batches for row in each.rows])
    return spark.range(1).select(F.inline(F.from_json(F.lit(text), f"ARRAY<STRUCT<{COLUMNS}>>")))


def _of(table: DataFrame, batches: Sequence[Pending]) -> DataFrame:
    """Return the query and number of the table's rows, at least of those that belong to the ``batches``."""
    queries, numbers = {each.query_id for each in batches}, [each.batch_id for each in batches]
    near = F.col("query_id").isin(queries) & F.col("batch_id").between(min(numbers), max(numbers))
    return table.where(near).select(*_BATCH)


def _rows(
    batch: Batch, result: BatchResult, memory: Memory | None, seconds: float | None, at: datetime
) -> list[dict[str, object]]:
    common = {
        "committed_at": at.isoformat(),
        "query_id": batch.query_id,
        "batch_id": batch.batch_id,
    }
    whole = {
        "extent": json.dumps(batch.extent, sort_keys=True),
        **result.counts.values(),
        "positions": None if memory is None else to_json(memory),
        "seconds": None if seconds is None else round(seconds, 3),
        "gap": BEGIN if result.rest.quarantined else None,
    }
    rows: list[dict[str, object]] = [{**common, **whole}]
    for table in result.tables.values():
        drift = json.dumps([asdict(each) for each in table.drift], default=str) if table.drift else None
        violated = json.dumps([asdict(each) for each in table.violated]) if table.violated else None
        states = {name: getattr(table, name) for name in _STATES}
        told = {"source": table.source, "drift": drift, "violations_by": violated}
        rows.append({**common, **told, **states, **_reach(table), **table.counts.values()})
    return rows


def _reach(table: TableResult) -> dict[str, str | None]:
    """Return the range of positions of new changes. It is empty if the first is after the last."""
    found = table.reach or Reach(END, BEGIN)
    return {"first_seq": found.first, "last_seq": found.last, "log": found.log, "gap": table.gap}


def history(spark: SparkSession, checkpoint: str) -> AuditHistory:
    """Return what all batches did, each counted once, and what their queries remember.

    It is read from a small file, and the table only if it has rows that the file lacks.
    """
    storage = open_storage(checkpoint, spark)
    # In this order, rows that are written to the table in between are found in both, never in neither.
    waiting, damaged = pending.read(storage)
    for message in damaged:
        _log.warning("%s", message)
    told = told_until(spark, checkpoint)
    rows = (row for each in waiting for row in each.rows if not _has(told, row))
    return told.after(rows)


def told_until(spark: SparkSession, checkpoint: str) -> AuditHistory:
    """Return what the batches in the table did, and the version of the table.

    A table that cannot be read is missed only if there is no file with what it says.
    """
    known = _known(open_storage(checkpoint, spark))
    try:
        at = version(spark, checkpoint)
        if known is not None and known.version == at:
            return known
        found = _lacking(spark, checkpoint, known, at)
    except Exception as error:
        if known is None or stops_pipeline(error, spark):
            raise
        _log.warning(
            "%s cannot be read (%s): what earlier batches did is taken from %s",
            *(path(checkpoint), cause_of(error), FILE),
        )
        return known
    return found


def _known(storage: Storage) -> AuditHistory | None:
    """Return what the file has, if there is a whole one."""
    try:
        return history_file.read(storage)
    except HistoryDamaged as error:
        _log.warning("%s/%s is damaged and is made anew from the audit: %s", storage.uri, FILE, error)
        return None


def _lacking(spark: SparkSession, checkpoint: str, known: AuditHistory | None, at: int) -> AuditHistory:
    """Return a history completed by the rows of the table at version ``at`` that it lacks."""
    if known is not None and 0 <= known.version <= at and not _grew(spark, checkpoint, known.version, at):
        return replace(known, version=at)
    rows = delta.read(spark, path(checkpoint)) if at >= 0 else None
    if rows is None:
        return replace(known or AuditHistory(), version=at)
    if known is None or _sums_up_later(rows, known):
        return bounded(_summed(rows, at))
    if "since" in rows.columns:
        rows = rows.where("since IS NULL")  # what is summed up is known
    if known.last_batches:
        listed = [(query, last) for query, last in known.last_batches.items()]
        lasts = spark.createDataFrame(listed, "query_id STRING, last BIGINT")
        later = F.col("last").isNull() | (F.col("batch_id") > F.col("last"))
        rows = rows.join(F.broadcast(lasts), "query_id", "left").where(later)
    columns = [name for name in rows.columns if name not in ("extent", "seconds", "last")]
    found = (row.asDict() for row in rows.select(columns).toLocalIterator())
    return known.after((row for row in found if not _has(known, row)), at)


def _sums_up_later(rows: DataFrame, known: AuditHistory) -> bool:
    """Return whether rows sum up batches that a history lacks, so that they cannot complete it."""
    if "since" not in rows.columns:
        return False
    last = rows.where("since IS NOT NULL").agg(F.max("committed_at")).collect()[0][0]
    return last is not None and moment_of(last) > latest(known)


def _grew(spark: SparkSession, checkpoint: str, after: int, until: int) -> bool:
    """Return whether the table may have got rows after one version, up to another."""
    if until - after > _MOST_COMMITS:
        return True
    found = commits.between(spark, path(checkpoint), after, until)
    return len(found) < until - after or any(each.operation not in _SHIFTS for each in found)


def _has(history: AuditHistory, row: Mapping[str, Any]) -> bool:
    return history.has(row["query_id"], row["batch_id"], moment_of(row["committed_at"]))


def _summed(rows: DataFrame, at: int) -> AuditHistory:
    """Return what the batches of all rows did, for a checkpoint that has no file with that.

    ``at`` is a version of the table that has no more rows.
    """
    # Groups a table's rows over all queries, and the rows of whole batches by query.
    newest = F.struct("committed_at", "batch_id")
    query = F.when(F.col("source").isNull(), F.col("query_id")).alias("query_id")
    first, last = (_column(rows, name) for name in ("first_seq", "last_seq"))
    checked = _column(rows, "checked").cast("bigint")
    found = rows.groupBy("source", query).agg(
        *[F.sum(_column(rows, name)).alias(name) for name in COUNTERS],
        *[
            F.max_by(name, F.when(F.col(name).isNotNull(), newest)).alias(name)
            for name in ("target", "version")
        ],
        F.max_by(checked, F.when(F.col("version").isNotNull(), newest)).alias("checked"),
        *[F.max_by(name, newest).alias(name) for name in ("tombstones_retained", "error")],
        F.max(possible(F.col("last_event_time"), F.col("committed_at"))).alias("last_event_time"),
        F.max("batch_id").alias("last_batch"),
        F.max("committed_at").alias("committed"),
        F.min(_column(rows, "gap")).alias("gap"),
        F.collect_set(_column(rows, "log").cast("string")).alias("logs"),
        F.max(first.isNull() | ((first == BEGIN) & (last == END))).alias("elsewhere"),
        F.collect_list(F.when(F.col("drift").isNotNull(), F.struct("drift", "committed_at"))).alias("drift"),
        F.max_by("positions", F.when(F.col("positions").isNotNull(), F.col("batch_id"))).alias("positions"),
        F.count(_column(rows, "violations_by")).alias("violated"),
        F.max(F.when(F.col("target").isNotNull(), F.col("committed_at"))).alias("written"),
        F.collect_set("target").alias("places"),
    )
    groups = found.collect()
    queries = [row for row in groups if row["source"] is None]
    tables = [row for row in groups if row["source"] is not None]
    violated = _violated(rows) if any(row["violated"] for row in tables) else {}
    return AuditHistory(
        sum((_counts(row) for row in queries), NONE),
        {row["source"]: _table(row, violated.get(row["source"], ())) for row in tables},
        {row["query_id"]: row["last_batch"] for row in queries},
        {row["query_id"]: _memory(row) for row in queries if row["positions"] is not None},
        any(row["gap"] is not None for row in queries),
        at,
        {row["source"]: when for row in tables if (when := aware(row["written"])) is not None},
        {row["source"]: None if row["elsewhere"] else frozenset(row["logs"]) for row in tables},
        {row["query_id"]: when for row in queries if (when := aware(row["committed"])) is not None},
        {row["source"]: frozenset(row["places"]) for row in tables if row["places"]},
    )


def _memory(row: Row) -> Memory:
    """Return the positions that a query remembers, without times later than its last batch."""
    until = aware(row["committed"])
    assert until is not None
    return from_json(row["positions"], until=until)


def _column(rows: DataFrame, name: str) -> Column:
    """Return a column, or null if the table was created before the column existed."""
    return F.col(name) if name in rows.columns else F.lit(None)


def _counts(row: Row) -> Counts:
    return Counts(**{name: int(row[name] or 0) for name in COUNTERS})


def _violated(rows: DataFrame) -> dict[str, tuple[Violated, ...]]:
    """Return the violated expectations by source table."""
    kind = "ARRAY<STRUCT<name: STRING, on_violation: STRING, records: BIGINT>>"
    each = rows.select("source", F.inline(F.from_json("violations_by", kind)))
    sums = each.groupBy("source", "name", "on_violation").agg(F.sum("records").alias("records")).collect()
    found: dict[str, tuple[Violated, ...]] = {}
    for source, *facts in sorted(map(tuple, sums)):
        found[source] = (*found.get(source, ()), Violated(*facts))
    return found


def _table(row: Row, violated: Sequence[Violated]) -> TableResult:
    told = [
        each for some in row["drift"] for each in drift_of(some["drift"], moment_of(some["committed_at"]))
    ]
    drift = {each.identity: each for each in told}.values()
    return TableResult(
        row["source"],
        row["target"],
        row["version"],
        _counts(row),
        row["tombstones_retained"] or 0,
        last_event_time=aware(row["last_event_time"]),
        drift=newest_drift(drift),
        violated=tuple(violated),
        error=row["error"],
        gap=row["gap"],
        checked=row["checked"],
    )
