"""``read_at(pipeline, position)``: what to read of each mirror, so that all show one state of the source.

The rules are in docs/consistent-reads.md, the pure core in `lakemirror.driver.consistent`. Nothing is
written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.api.report import Report
from lakemirror.api.tables import matches
from lakemirror.driver.checkpoint.storage import Storage, open_storage
from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.consistent import text
from lakemirror.driver.consistent.cuts import Commit, Cut, Found, Span, always, at, spans
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.profile.positions import from_json
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.reporter import REPORT_FILE
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.verifier import chosen
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import KEY_PROPERTY, MODE_PROPERTY
from lakemirror.driver.verify.table import opened


class NotOneLog(LakemirrorError):
    """Tables follow several logs, whose positions cannot be compared."""


@dataclass(frozen=True)
class TableAt:
    """What to read of a table: ``version`` of ``target``, as the ``query`` (Spark SQL) does it; or why there
    is nothing (``reason``).
    """

    source: str
    target: str | None = None
    version: int | None = None
    query: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Moment:
    """A position for which all tables have a version. ``text`` is a shorter way to write it, where there is
    one.
    """

    seq: str
    text: str | None
    versions: Mapping[str, int]


@dataclass(frozen=True)
class ReadAt:
    """What there is for a position. ``complete`` is up to where the tables have all changes, as text; None
    where that is not known. ``before`` and ``after`` are the nearest positions that all tables have a version
    for, where not all have one for this.
    """

    position: str
    seq: str
    log: str | None
    complete: str | None
    tables: tuple[TableAt, ...]
    before: Moment | None = None
    after: Moment | None = None

    @property
    def found(self) -> bool:
        """Whether all tables can be read as of the position."""
        return all(table.reason is None for table in self.tables)


@dataclass(frozen=True)
class _Told:
    """What the audit tells of a table."""

    target: str | None
    commits: tuple[Commit, ...]
    logs: frozenset[str | None]
    gap: str | None


@dataclass(frozen=True)
class _Read:
    """A table with the positions for which it has versions. From ``dated`` on the newest of them can be
    filtered for any position.
    """

    mirror: MirroredTable
    mode: str
    spans: Sequence[Span]
    dated: str | None


def read_at(
    pipeline: CdcPipeline,
    position: str,
    *,
    tables: Sequence[str] = (),
    log: str | None = None,
    settled: bool = False,
    spark: SparkSession | None = None,
) -> ReadAt:
    """What to read of the mirrors of ``pipeline`` (of the ``tables`` that are named, or of all) to see the
    source as it was at ``position`` (`lakemirror.driver.consistent.text` has its forms).

    ``log`` chooses the tables of one connector, where a pipeline reads several. ``settled``: everything that
    the source had at the position is applied, whatever the driver knows of that. Raises LakemirrorError:
    PositionUnclear, NothingToVerify where no table is mirrored or has such a name, and NotOneLog.
    """
    pipeline = with_absolute_paths(pipeline)
    epoch = max((each.epoch for each in pipeline.spec.order.epochs), default=0)
    seq = text.parse(position, epoch)
    session = spark or create_session(f"lakemirror-read-at-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        return _Reading(session, pipeline, position, seq, settled=settled).answer(tables, log)
    finally:
        if spark is None:
            session.stop()


class _Reading:
    """One answer."""

    def __init__(
        self, spark: SparkSession, pipeline: CdcPipeline, position: str, seq: str, *, settled: bool
    ) -> None:
        self._spark, self._pipeline, self._settled = spark, pipeline, settled
        self._position, self._seq = position, seq
        # In this order: what batches do meanwhile lies after what the report has as complete.
        self._report = _report(open_storage(pipeline.spec.checkpoint, spark))
        self._open = quarantine.open_counts(spark, pipeline.spec.checkpoint)
        self._told, self._unknown = _audited(spark, pipeline.spec.checkpoint)

    def answer(self, named: Sequence[str], log: str | None) -> ReadAt:
        wanted = chosen(self._pipeline, self._told, named)
        log, wanted = self._one_log(wanted, log)
        below = self._below(log)
        read: dict[str, _Read] = {}
        refused: dict[str, TableAt] = {}
        for source in wanted:
            try:
                read[source] = self._read(source, below)
            except (LakemirrorError, Refused, AmbiguousTable) as error:
                refused[source] = TableAt(source, self._told[source].target, reason=str(error))
        found = at({source: each.spans for source, each in read.items()}, self._seq)
        rows = [refused.get(source) or self._row(source, read[source], found, below) for source in wanted]
        complete = None if below in (BEGIN, END) else text.shown(below, self._position)
        answer = ReadAt(self._position, self._seq, log, complete, tuple(rows))
        if answer.found or refused:
            return answer
        nearest = found.nearest
        return replace(answer, before=self._moment(nearest.before), after=self._moment(nearest.after))

    def _one_log(self, wanted: Sequence[str], log: str | None) -> tuple[str | None, list[str]]:
        """The log that the tables follow, and those that do."""
        logs = {name for source in wanted for name in self._told[source].logs if name is not None}
        if log is not None:
            found = [source for source in wanted if self._told[source].logs <= {log, None}]
            if log not in logs or not found:
                there = ", ".join(sorted(logs)) or "none"
                raise NotOneLog(f"{log} is no log that these tables follow: there is {there}")
            return log, found
        if len(logs) > 1:
            raise NotOneLog(
                f"the tables follow several logs ({', '.join(sorted(logs))}), and a position means something "
                f"in one of them: choose one, or the tables of one"
            )
        return next(iter(logs), None), list(wanted)

    def _below(self, log: str | None) -> str:
        """Before which position all changes are applied."""
        if self._settled:
            return END
        told = self._report.complete if self._report is not None else []
        return next((each.below for each in told if each.log == log), BEGIN)

    def _read(self, source: str, below: str) -> _Read:
        """The positions for which a table has versions. Raises LakemirrorError where it can have none."""
        told = self._told[source]
        resyncing = self._report.resyncing if self._report is not None else []
        if any(matches(each, source) for each in resyncing):
            raise LakemirrorError(f"{source} is being read again: wait until that is done")
        if len(told.logs - {None}) > 1 or any(each.last == END for each in told.commits):
            raise LakemirrorError(f"{source}: its changes have no positions in one log of the source")
        table = opened(self._spark, self._pipeline, source)
        if table.shard is not None:
            raise LakemirrorError(f"{source}: its mirror has rows of other sources, too (shard)")
        mode = table.properties.get(MODE_PROPERTY, "scd1")
        until = min(below, self._gap(source))
        return self._dated(table, mode, told.commits, until)

    def _gap(self, source: str) -> str:
        """A position before all open records of a table."""
        waiting = [name for name in ("", source) if any(self._open.get(name, {}).values())]
        if not waiting:
            return END
        undecided = any(self._open[name].get("order") for name in waiting)
        if self._unknown or undecided or "" in waiting:
            return BEGIN
        return self._told[source].gap or BEGIN

    def _dated(self, table: MirroredTable, mode: str, commits: Sequence[Commit], until: str) -> _Read:
        """With what the rows themselves tell of when they were so."""
        own, tracked = spans(commits, until), table.settings.tracked_columns
        if mode == "scd1" or tracked or not commits:
            return _Read(table, mode, own, None)
        begins = max(
            (each.last for each in commits if each.first == BEGIN),
            default=min(each.first for each in commits),
        )
        dated = begins if mode == "append" else max(begins, _last_read(table))
        newest = max(each.version for each in commits)
        before = [replace(span, until=min(span.until, dated)) for span in own if span.since < dated]
        return _Read(table, mode, [*before, *always(newest, until, dated)], dated)

    def _row(self, source: str, read: _Read, found: Found, below: str) -> TableAt:
        target = str(read.mirror.location)
        span = next((each for each in read.spans if each.since <= self._seq < each.until), None)
        if span is None:
            return TableAt(source, target, reason=self._why(source, read, below))
        try:
            read.mirror.rows(span.version)
        except Exception as error:
            reason = f"{source}: version {span.version} cannot be read any more: {cause_of(error)}"
            return TableAt(source, target, reason=reason)
        return TableAt(source, target, span.version, _query(read, span.version, self._seq))

    def _why(self, source: str, read: _Read, below: str) -> str:
        """Why a table has no version for the position."""
        if self._seq >= below:
            return (
                f"{source}: changes from before the position may not have arrived yet: wait until the "
                f"pipeline is complete up to there, or say --settled if nothing is on its way any more"
            )
        if self._seq >= self._gap(source):
            return (
                f"{source}: records that may lie before the position are in quarantine: apply them "
                f"(`lakemirror replay`)"
            )
        commits = self._told[source].commits
        if self._seq < min((each.first for each in commits), default=END):
            return f"{source}: the mirror begins after the position"
        return (
            f"{source}: no version has all changes up to the position and no others: one commit has changes "
            f"from before and after it, or changes came later than those after them"
        )

    def _moment(self, cut: Cut | None) -> Moment | None:
        if cut is None:
            return None
        return Moment(cut.since, text.between(cut.since, cut.until, self._position), cut.versions)


def _query(read: _Read, version: int, seq: str) -> str:
    """Spark SQL for a table's rows."""
    place = f"{read.mirror.location.sql} VERSION AS OF {version}"
    if read.dated is None or seq < read.dated:
        return f"SELECT * FROM {place}" + (" WHERE __is_current" if read.mode == "scd2" else "")
    if read.mode == "append":
        return f"SELECT * FROM {place} WHERE __seq <= X'{seq}'"
    key = ", ".join(map(quoted, json.loads(read.mirror.properties.get(KEY_PROPERTY) or "[]")))
    newest = f"row_number() OVER (PARTITION BY {key} ORDER BY __seq DESC) AS __newest"
    return (
        f"SELECT * EXCEPT (__newest) FROM (SELECT *, {newest} FROM {place} WHERE __seq <= X'{seq}') "
        f"WHERE __newest = 1 AND (__delete_seq IS NULL OR __delete_seq > X'{seq}')"
    )


def _last_read(table: MirroredTable) -> str:
    """The position of the last row that was read from the source's table, and is no change."""
    own = F.coalesce(F.col("__origin.topic").startswith(OWN_TOPICS), F.lit(False))
    row = table.rows().where((F.col("__op") == Op.READ) | own).agg(F.max("__seq")).first()
    found = None if row is None else as_bytes(row[0])
    return BEGIN if found is None else found.hex()


def _report(storage: Storage) -> Report | None:
    try:
        return Report.read(json.loads(storage.read_text(REPORT_FILE)))
    except (FileNotFoundError, ValueError):
        return None


def _audited(spark: SparkSession, checkpoint: str) -> tuple[dict[str, _Told], bool]:
    """What the audit tells of each table, and whether records were kept aside whose table is not known."""
    rows = audit.read(spark, checkpoint)
    if rows is None:
        return {}, False
    for name in ("first_seq", "last_seq", "log", "gap"):
        if name not in rows.columns:
            rows = rows.withColumn(name, F.lit(None).cast("string"))
    upper = _before_reaches(rows)
    unplaced = F.col("first_seq").isNull()
    found = (
        rows.where("source IS NOT NULL")
        .groupBy("source", "version")
        .agg(
            F.max("target").alias("target"),
            F.min(F.when(unplaced, BEGIN).otherwise(F.col("first_seq"))).alias("first"),
            F.max(F.when(unplaced, upper).otherwise(F.col("last_seq"))).alias("last"),
            F.collect_set("log").alias("logs"),
            F.min("gap").alias("gap"),
        )
    )
    by_source: dict[str, list[Row]] = {}
    for row in found.collect():
        by_source.setdefault(row["source"], []).append(row)
    unknown = rows.where("source IS NULL AND gap IS NOT NULL").first() is not None
    return {source: _of_table(of) for source, of in by_source.items()}, unknown


def _of_table(rows: Sequence[Row]) -> _Told:
    written = [row for row in rows if row["version"] is not None]
    commits = [Commit(row["version"], row["first"], row["last"]) for row in written]
    return _Told(
        next((row["target"] for row in rows if row["target"] is not None), None),
        tuple(commits),
        frozenset(log for row in rows for log in row["logs"]),
        min((row["gap"] for row in rows if row["gap"] is not None), default=None),
    )


def _before_reaches(rows: DataFrame) -> str:
    """The greatest position that batches reached of which the audit does not tell between which positions
    their changes lie, for an earlier version wrote them.
    """
    last = rows.where("source IS NOT NULL AND first_seq IS NULL").agg(F.max("committed_at")).first()
    if last is None or last[0] is None:
        return BEGIN
    told = rows.where((F.col("committed_at") <= last[0]) & F.col("positions").isNotNull())
    newest = told.groupBy("query_id").agg(F.max_by("positions", "batch_id").alias("positions")).collect()
    tops = [place.top.seq for row in newest for place in from_json(row["positions"]).values()]
    return max(tops, default=BEGIN)


def to_document(answer: ReadAt) -> dict[str, Any]:
    """An answer as JSON has it."""

    def moment(each: Moment | None) -> dict[str, Any] | None:
        if each is None:
            return None
        return {"seq": each.seq, "position": each.text, "versions": dict(each.versions)}

    return {
        "position": answer.position,
        "seq": answer.seq,
        "log": answer.log,
        "found": answer.found,
        "complete": answer.complete,
        "tables": [
            {
                "source": each.source,
                "target": each.target,
                "version": each.version,
                "query": each.query,
                "reason": each.reason,
            }
            for each in answer.tables
        ],
        "before": moment(answer.before),
        "after": moment(answer.after),
    }
