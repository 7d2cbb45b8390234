"""``read_at(pipeline, position)``: what to read of each mirror so that all show one state of the source.

The rules are in docs/consistent-reads.md, and the pure core in `lakemirror.driver.consistent`. Nothing is
written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline
from lakemirror.api.report import Report
from lakemirror.api.tables import matches
from lakemirror.driver.checkpoint.storage import open_storage
from lakemirror.driver.codes import OWN_TOPICS, Op
from lakemirror.driver.consistent import text
from lakemirror.driver.consistent.answer import (
    History,
    Moment,
    ReadAt,
    TableAt,
    dated_spans,
    first_waiting,
    one_log,
    query,
    require_positions,
    why_none,
)
from lakemirror.driver.consistent.cuts import Span, at, spans
from lakemirror.driver.consistent.epochs import complete_in, epoch_of, position_in
from lakemirror.driver.consistent.reach import BEGIN, END
from lakemirror.driver.errors import LakemirrorError, cause_of
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.refusal import Refused
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.record.histories import histories
from lakemirror.driver.runtime.paths import with_absolute_paths
from lakemirror.driver.runtime.reporter import stored_report
from lakemirror.driver.runtime.session import create_session
from lakemirror.driver.runtime.table_epochs import TableEpochs
from lakemirror.driver.runtime.verifier import chosen
from lakemirror.driver.sequence import as_bytes
from lakemirror.driver.tables.delta import quoted
from lakemirror.driver.tables.mirror import KEY_PROPERTY, MODE_PROPERTY
from lakemirror.driver.verify.table import opened


@dataclass(frozen=True)
class _Known:
    """What is known about all tables: how far they are applied, what was written, what is in quarantine."""

    report: Report | None
    open: Mapping[str, Mapping[str, int]]
    histories: Mapping[str, History]
    unplaced: bool
    """Whether records were kept aside whose table is unknown."""

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str) -> _Known:
        # In this order: what batches do in between is above the position that the report calls complete.
        report = stored_report(open_storage(checkpoint, spark))
        return cls(report, quarantine.open_counts(spark, checkpoint), *histories(spark, checkpoint))

    def below(self, log: str | None) -> str:
        """Return the position before which all changes of a log are applied."""
        told = self.report.complete if self.report is not None else []
        return next((each.below for each in told if each.log == log), BEGIN)

    def waiting(self, source: str) -> str:
        """Return a position before all open records of a table."""
        found = first_waiting(source, self.histories[source], self.open)
        return BEGIN if self.unplaced and found != END else found

    def rereads(self, source: str) -> bool:
        """Return whether a table is being read again."""
        return self.report is not None and any(matches(each, source) for each in self.report.resyncing)


@dataclass(frozen=True)
class _Table:
    """A table with the positions for which it has versions.

    From ``dated`` on, its newest version can be filtered for any position. ``seq`` is the wanted position as
    it counts in this table, and all changes before ``below`` are applied.
    """

    mirror: MirroredTable
    mode: str
    spans: Sequence[Span]
    dated: str | None
    seq: str
    below: str


@dataclass(frozen=True)
class _Wanted:
    """The wanted position. All changes of its log before ``below`` are applied."""

    seq: str
    below: str
    epochs: TableEpochs


def read_at(
    pipeline: CdcPipeline,
    position: str,
    *,
    tables: Sequence[str] = (),
    log: str | None = None,
    settled: bool = False,
    spark: SparkSession | None = None,
) -> ReadAt:
    """Return what to read of the mirrors of ``pipeline`` to see the source as it was at ``position``.

    Covers the named ``tables``, or all. `lakemirror.driver.consistent.text` describes the forms of a
    position. ``log`` selects the tables of one connector if a pipeline reads several. ``settled`` says that
    everything that the source had at the position is applied, regardless of what the driver knows about it.
    Raises LakemirrorError: PositionUnclear, NothingToVerify if no table is mirrored or has such a name, and
    NotOneLog.
    """
    pipeline = with_absolute_paths(pipeline)
    if pipeline.spec.target.jdbc is not None:
        raise LakemirrorError("the mirrors are tables of a database (spec.target.jdbc), without versions")
    text.parse(position)
    session = spark or create_session(f"lakemirror-read-at-{pipeline.name}", pipeline.spec.spark.conf)
    try:
        checkpoint = pipeline.spec.checkpoint
        known = _Known.of(session, checkpoint)
        log, named = one_log(known.histories, chosen(pipeline, known.histories, tables), log)
        storage = open_storage(checkpoint, session)
        epochs = TableEpochs(pipeline, storage, lambda: audit.history(session, checkpoint).positions())
        epoch = epochs.of_log(log)
        below = END if settled else known.below(log)
        wanted = _Wanted(text.parse(position, epoch), below, epochs)
        answer = ReadAt(position, wanted.seq, log, _complete(below, position, epoch), ())
        return _answered(answer, _opened(session, pipeline, named, known, wanted), known, epoch)
    finally:
        if spark is None:
            session.stop()


def _complete(below: str, position: str, epoch: int) -> str | None:
    """Return a text for the complete position, if there is one: a text names positions of ``epoch`` only."""
    known = below not in (BEGIN, END) and epoch_of(below) == epoch
    return text.shown(below, position) if known else None


def _opened(
    spark: SparkSession, pipeline: CdcPipeline, named: Sequence[str], known: _Known, wanted: _Wanted
) -> dict[str, _Table | TableAt]:
    """Return the tables by name. Those that cannot be read say why."""
    found: dict[str, _Table | TableAt] = {}
    for source in named:
        try:
            found[source] = _open(spark, pipeline, source, known, wanted)
        except (LakemirrorError, Refused, AmbiguousTable) as error:
            found[source] = TableAt(source, known.histories[source].target, reason=str(error))
    return found


def _open(spark: SparkSession, pipeline: CdcPipeline, source: str, known: _Known, wanted: _Wanted) -> _Table:
    """Open a table. Raises LakemirrorError if nothing tells which version shows the position."""
    if known.rereads(source):
        raise LakemirrorError(f"{source} is being read again: wait until that is done")
    history = known.histories[source]
    require_positions(source, history)
    table = opened(spark, pipeline, source)
    if table.shard is not None:
        raise LakemirrorError(f"{source}: its mirror has rows of other sources, too (shard)")
    mode = table.properties.get(MODE_PROPERTY, "scd1")
    lowest = wanted.epochs.lowest(table)
    seq = position_in(source, wanted.seq, lowest, history.commits)
    below = complete_in(wanted.below, lowest)
    until = min(below, known.waiting(source))
    if mode == "scd1" or table.settings.tracked_columns or not history.commits:
        return _Table(table, mode, spans(history.commits, until), None, seq, below)
    last_read = BEGIN if mode == "append" else _last_read(table)
    return _Table(table, mode, *dated_spans(mode, history.commits, until, last_read), seq, below)


def _answered(answer: ReadAt, tables: Mapping[str, _Table | TableAt], known: _Known, epoch: int) -> ReadAt:
    """Return the answer with what is available of each table. ``epoch`` is that of the log."""
    read = {source: each for source, each in tables.items() if isinstance(each, _Table)}
    rows = [
        _row(source, each, known) if isinstance(each, _Table) else each for source, each in tables.items()
    ]
    answer = replace(answer, tables=tuple(rows))
    if answer.found or len(read) < len(tables) or any(each.seq != answer.seq for each in read.values()):
        return answer  # positions that count differently in some tables have no order
    nearest = at({source: each.spans for source, each in read.items()}, answer.seq).nearest
    return replace(
        answer,
        before=Moment.of(nearest.before, answer.position, epoch),
        after=Moment.of(nearest.after, answer.position, epoch),
    )


def _row(source: str, table: _Table, known: _Known) -> TableAt:
    """Return what to read of a table, after checking that its version is still there."""
    mirror, target, seq = table.mirror, str(table.mirror.location), table.seq
    span = next((each for each in table.spans if each.since <= seq < each.until), None)
    if span is None:
        waiting = known.waiting(source)
        reason = why_none(source, seq, known.histories[source], below=table.below, waiting=waiting)
        return TableAt(source, target, reason=reason)
    try:
        mirror.rows(span.version)
    except Exception as error:
        reason = f"{source}: version {span.version} cannot be read any more: {cause_of(error)}"
        return TableAt(source, target, reason=reason)
    place = f"{mirror.location.sql} VERSION AS OF {span.version}"
    key = [quoted(name) for name in json.loads(mirror.properties.get(KEY_PROPERTY) or "[]")]
    filtered = seq if table.dated is not None and seq >= table.dated else None
    return TableAt(source, target, span.version, query(place, table.mode, key, filtered))


def _last_read(table: MirroredTable) -> str:
    """Return the position of the last row that was read from the source's table and is not a change."""
    own = F.coalesce(F.col("__origin.topic").startswith(OWN_TOPICS), F.lit(False))
    row = table.rows().where((F.col("__op") == Op.READ) | own).agg(F.max("__seq")).first()
    found = None if row is None else as_bytes(row[0])
    return BEGIN if found is None else found.hex()
