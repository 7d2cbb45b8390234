"""One micro-batch: decide for all tables what would be written, then commit table by table.

Deciding reads only. It ends with one state frame a table, materialised, and with everything that a policy
may refuse; so a batch that is refused has written nothing. Committing writes, in this order: quarantine,
tombstones, rows, the audit record. Rows are one commit per table under the batch's transaction id, so that a
replay changes nothing.

Two laws hold (ARCHITECTURE.md). Isolation: a table that fails is tried once more, from its events on; if it
fails again its records are held, and the other tables go on. Conservation: each record has exactly one
outcome, and the outcomes are added up before the batch is done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lakemirror.api import AmbiguousTable, CdcPipeline, duration_seconds
from lakemirror.api.report import Counts
from lakemirror.driver import faults
from lakemirror.driver.applier import TableApplier, described, hold, of_table
from lakemirror.driver.errors import BadRecordRefused, cause_of, stops_pipeline
from lakemirror.driver.parse import isolate
from lakemirror.driver.parse.envelopes.debezium import Classifier
from lakemirror.driver.plan.decision import Decision, Held, Refused
from lakemirror.driver.plan.mirrored import MirroredTable
from lakemirror.driver.plan.targets import Targets
from lakemirror.driver.profile import epochs, rewinds, stretches
from lakemirror.driver.profile.overview import Overview, overview
from lakemirror.driver.profile.positions import Memory, Standing
from lakemirror.driver.read.base import Batch
from lakemirror.driver.record import audit, quarantine
from lakemirror.driver.record.conservation import require_accounted, require_stored
from lakemirror.driver.results import BatchResult, TableResult, without_open
from lakemirror.driver.tables.mirror import TableName, name_of

log = logging.getLogger(__name__)

_SIDE_BY_SIDE = 4
"""Tables that are decided or committed at the same time."""

_SORTED = 1_000_000
"""Positions of a batch that are sorted at most, if the batch before was as large."""

_TXN_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True)
class _Input:
    """What a batch brings: its records, raw and classified, and the overview of them."""

    raw: DataFrame
    events: DataFrame
    seen: Overview
    batch: Batch
    memory: Memory


class BatchApplier:
    """Applies the micro-batches of one query of one pipeline.

    Not for use from several threads. ``query_id`` names the checkpoint's query: batch numbers count within
    it.
    """

    def __init__(self, spark: SparkSession, pipeline: CdcPipeline, query_id: str) -> None:
        self._pipeline = pipeline
        self._spec = pipeline.spec
        self._checkpoint = pipeline.spec.checkpoint
        self._app_id = f"lakemirror/{pipeline.name}/{query_id}"
        self._tables: dict[TableName, TableApplier] = {}
        self._schemas: dict[int, str] = {}
        self._classifier = Classifier(
            self._spec.ordering, keep_before=any(table.primary_key for table in self._spec.tables)
        )
        self._session = spark
        self._again = query_id.startswith("replay-")
        remembered = audit.positions(spark, self._checkpoint, None if self._again else query_id)
        self._memory = epochs.with_epochs(remembered, self._spec.ordering)
        self._every = 1
        self._fresh: set[str] = set()  # tables whose mirror this query makes
        former = audit.history(spark, self._checkpoint).tables
        self._drift = {name: table.drift for name, table in former.items()}
        self._targets = Targets(
            {
                table.target: name
                for name, table in former.items()
                if table.target and table.version is not None
            }
        )
        self._first = True
        self._ahead = LookAhead()

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        """Apply one batch of RAW records; doing it again changes nothing.

        Raises PipelineStopped: SourceRestarted, SchemaDriftRefused or BadRecordRefused with nothing written,
        BatchMismatch or RecordsUnaccounted when some tables may have been written; a replay completes the
        others.
        """
        self._use(raw.sparkSession)
        events, seen = self._classified(raw)
        try:
            events, seen = _with_readable_schemas(events, seen)
            self._schemas.update(seen.documents)
            for name in sorted(seen.tables, key=str):
                self._table(name)  # one after the other: the first of two that share a target has it
            events_in_order, seen, memory = self._in_order(events, seen)
            return self._apply(_Input(raw, events_in_order, seen, batch, memory))
        finally:
            events.unpersist()

    def _classified(self, raw: DataFrame) -> tuple[DataFrame, Overview]:
        """The classified events, materialised, and their overview. Records that make Spark throw are bad."""
        try:
            return _overviewed(self._classifier.classify(raw, self._schemas), self._every)
        except Exception as error:
            if stops_pipeline(error, self._session):
                raise
            log.warning("a batch cannot be read, so its records are tried one by one: %s", cause_of(error))
            poison = isolate.poisoned(raw, lambda some: overview(self._classifier.classify(some)), error)
        readable = self._classifier.classify(isolate.without(raw, poison), self._schemas)
        bad = isolate.as_bad(raw, poison)
        return _overviewed(readable.unionByName(bad, allowMissingColumns=True), self._every)

    def _in_order(self, events: DataFrame, seen: Overview) -> tuple[DataFrame, Overview, Memory]:
        """The events, of which those are set apart (kind ``held``) whose place in the order is undecided,
        their overview, and what to remember of the source's positions.
        """
        if self._again:
            known = {stream: self._memory[stream] for stream in seen.streams if stream in self._memory}
            verdict = rewinds.Verdict(self._memory, stretches.held_by(known))
        else:
            verdict = rewinds.judge(events, seen.streams, self._memory, self._spec.ordering, self._standing)
        if verdict.held is None:
            return events, seen, verdict.memory
        left_out = [str(name) for name in seen.tables if self._table(name).left_out]
        held = verdict.held & ~F.coalesce(_source(), F.lit("")).isin(left_out)
        kind, reason = F.when(held, "held"), F.when(held, rewinds.REASON)
        marked = events.withColumns(
            {"kind": F.coalesce(kind, "kind"), "reason": F.coalesce(reason, "reason")}
        )
        return marked, overview(marked), verdict.memory

    def _standing(self, source: str) -> Sequence[Standing]:
        """What the mirror of a source table has from before this query; nothing if that cannot be read, for
        then the table is going to be refused.
        """
        name = next((each for each in self._tables if str(each) == source), None)
        if name is None or source in self._fresh:
            return ()
        found = self._tried(name, self._table(name).standing)
        if isinstance(found, Exception):
            return ()
        if found is None:
            self._fresh.add(source)
        return found or ()

    def _apply(self, given: _Input) -> BatchResult:
        seen, batch = given.seen, given.batch
        names = sorted(seen.tables, key=str)
        decisions = _side_by_side(lambda name: self._decide(name, given), names)
        self._refuse_bad(seen, decisions)
        with _settings(self._session, {_USER_METADATA: json.dumps(batch.note, sort_keys=True)}):
            self._keep_aside(given, decisions, rest=seen.bad + seen.held)
            tables = self._commit(decisions, given)
            written = [each.name for each in decisions if each.work and each.name in self._tables]
            self._ahead.begin(self._tables[name].read_log for name in written)
            result = _result(seen, decisions, tables, batch)
            require_accounted(result, seen.records)
            told = bool(result.tables or result.rest.quarantined)
            if self._again:
                result = without_open(result)
            if told:
                memory = None if self._again else given.memory
                audit.keep(self._session, self._checkpoint, batch, result, memory)
            faults.reach("after-audit")
        self._memory = given.memory
        self._every = 1 + seen.records // _SORTED
        self._first = False
        return result

    def forget(self) -> None:
        """Read all mirrors anew before the next batch: something else has written them, or a batch that is
        tried again has written some of them.
        """
        self._tables = {}
        self._first = True

    def collect_tombstones(self, *, caught_up: bool) -> int:
        """Forget tombstones that no event can need any more (between batches); returns how many.

        They must be older than the retention, below every partition's committed position (unless the source
        has nothing left) and of a table without open quarantined records.
        """
        now = datetime.now(UTC)
        retention = timedelta(seconds=duration_seconds(self._spec.tombstones.retention))
        below = (
            None
            if caught_up
            else min((bytes.fromhex(each.top.seq) for each in self._memory.values()), default=b"")
        )
        waiting = quarantine.open_sources(self._session, self._checkpoint)
        collected = 0
        for name, table in self._tables.items():
            if str(name) not in waiting:
                collected += table.collect_tombstones(now - retention, below)
        return collected

    def _use(self, session: SparkSession) -> None:
        if session is not self._session:
            self._session = session
            self._tables = {}

    # -- deciding -----------------------------------------------------------------------------------

    def _decide(self, name: TableName, given: _Input) -> Decision:
        """What to do with one table's part of the batch. A failure is tried once more, then holds it."""

        def attempt(events: DataFrame = given.events) -> Decision | Exception:
            seen = given.seen.tables[name]
            return self._tried(name, lambda: self._table(name).decide(events, seen, self._schemas))

        decision = attempt()
        if isinstance(decision, Exception):
            decision = attempt()
        if isinstance(decision, Exception):
            decision = self._without_poison(attempt, of_table(given.events, name), decision)
        if isinstance(decision, Exception):
            decision = self._failed(name, given, decision)
        return decision

    def _without_poison(
        self, attempt: Callable[[DataFrame], Decision | Exception], events: DataFrame, error: Exception
    ) -> Decision | Exception:
        """What an attempt decides without those ``events`` that are to blame for the ``error``; an error
        where none is, or where it fails for another reason as well.
        """

        def probe(some: DataFrame) -> None:
            outcome = attempt(some)
            if isinstance(outcome, Exception):
                raise outcome

        try:
            poison = isolate.poisoned(events, probe, error)
        except Exception as failure:
            if stops_pipeline(failure, self._session):
                raise
            return failure
        decision = attempt(isolate.without(events, poison))
        return (
            decision if isinstance(decision, Exception) else replace(decision, poison=poison, changes=events)
        )

    def _tried(self, name: TableName, step: Callable[[], Out]) -> Out | Exception:
        """The outcome of a table's step, or the error that it raised unless that stops the pipeline."""
        try:
            return step()
        except Exception as error:
            if stops_pipeline(error, self._session):
                raise
            log.warning("table %s failed: %s", name, cause_of(error))
            self._tables.pop(name, None)  # what it knows may be wrong: it is read anew
            return error

    def _failed(self, name: TableName, given: _Input, error: Exception) -> Decision:
        """The table's records are held, for the reason that it failed twice."""
        log.debug("table %s failed twice in batch %s", name, given.batch.batch_id, exc_info=error)
        self._tables.pop(name, None)
        return hold(name, Held(_failure(name, error)), given.events, given.seen.tables[name])

    def _table(self, name: TableName) -> TableApplier:
        if name not in self._tables:
            self._tables[name] = self._opened(name)
        return self._tables[name]

    def _opened(self, name: TableName) -> TableApplier:
        try:
            settings = self._spec.table_settings(str(name))
            if settings is None:
                return TableApplier(name, None)
            if settings.suspend:
                held = Held(f"tables[{settings.source}].suspend is true", error=False)
                return TableApplier(name, None, held)
            reported = self._drift.get(str(name), ())
            table = MirroredTable(self._session, self._pipeline, name, settings, reported)
            self._targets.claim(table.location, str(name))
            return TableApplier(name, table)
        except (Refused, AmbiguousTable) as reason:
            return TableApplier(name, None, Held(str(reason)))

    def _refuse_bad(self, seen: Overview, decisions: Sequence[Decision]) -> None:
        if self._spec.on_bad_record != "fail":
            return
        bad = [d for d in decisions if d.bad or d.error]
        if not seen.bad and not bad:
            return
        reason = seen.bad_reason or next(d.example() for d in bad)
        count = seen.bad + sum(d.bad + d.refused for d in bad)
        raise BadRecordRefused(
            f"{count} record(s) cannot be applied and onBadRecord is 'fail': nothing was written. First: "
            f"{reason}. "
            f"Set spec.onBadRecord to 'quarantine' to keep them aside, or correct the source."
        )

    # -- committing ---------------------------------------------------------------------------------

    def _commit(self, decisions: Sequence[Decision], given: _Input) -> list[TableResult]:
        """All tables side by side: first their tombstones, then their rows.

        Only the rows carry the transaction id. Looking it up costs Delta a job for each log, and tombstones
        that are written twice say nothing new.
        """
        wanted = [d for d in decisions if d.work is not None]
        prepared = _side_by_side(lambda each: self._prepared(each, given), wanted)
        ready = [each for each, error in zip(wanted, prepared, strict=True) if error is None]
        with _settings(self._session, self._transaction(given.batch)):
            written = _side_by_side(lambda each: self._written(each, given), ready)
        done = {each.name: outcome for each, outcome in zip(ready, written, strict=True)}
        results = []
        for each in decisions:
            outcome = done.get(each.name)
            if isinstance(outcome, TableResult):
                results.append(outcome)
            elif each.work is not None:
                results.append(self._commit_again(each.name, given))
            elif each.held is not None:
                results.append(described(each))
        return results

    def _commit_again(self, name: TableName, given: _Input) -> TableResult:
        """Decide, prepare and write a table alone: what was materialised may be lost with an executor."""
        decision = self._decide(name, given)
        if decision.work is not None:
            error = self._prepared(decision, given, again=True)
            if error is None:
                with _settings(self._session, self._transaction(given.batch)):
                    outcome = self._written(decision, given, again=True)
                if isinstance(outcome, TableResult):
                    return outcome
                error = outcome
            decision = self._failed(name, given, error)
        self._keep_aside(given, [decision])
        return described(decision)

    def _prepared(self, decision: Decision, given: _Input, *, again: bool = False) -> Exception | None:
        """What kept the table from being prepared."""
        table, replay = self._tables[decision.name], self._first or again
        return self._tried(
            decision.name, lambda: table.prepare(decision, given.batch, self._app_id, replay=replay)
        )

    def _written(self, decision: Decision, given: _Input, *, again: bool = False) -> TableResult | Exception:
        """What writing the rows did, or what kept them from being written."""
        table, replay = self._tables[decision.name], self._first or again
        return self._tried(
            decision.name, lambda: table.commit(decision, given.batch, self._app_id, replay=replay)
        )

    def _transaction(self, batch: Batch) -> dict[str, str]:
        return {
            _TXN_ID: self._app_id,
            _TXN_VERSION: str(batch.batch_id),
            _MATERIALIZE: "none",  # what is merged is materialised already
        }

    # -- quarantine ---------------------------------------------------------------------------------

    def _keep_aside(self, given: _Input, decisions: Sequence[Decision], rest: int = 0) -> None:
        """Store what cannot be applied: bad records of tables and all of tables held; and the ``rest``, which
        is unreadable or undecided.
        """
        wanted = [d for d in decisions if d.bad or d.refused]
        expected = rest + sum(d.bad + d.refused for d in wanted)
        if not expected:
            return
        parts = [_unreadable(given.events), _with_bytes(_set_apart(given.events), given.raw)] if rest else []
        parts += [_with_bytes(decision.kept_aside(), given.raw) for decision in wanted]
        stored = quarantine.store(reduce(DataFrame.unionByName, parts), self._checkpoint, given.batch)
        require_stored(expected, stored.count())


class LookAhead:
    """Reads in the background what the next batch is going to ask for, while this one is brought to its
    end.

    What fails is left to the next batch, which meets it again and tells.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lakemirror-look-ahead")
        self._waiting: list[Future[None]] = []

    def begin(self, reads: Iterable[Callable[[], None]]) -> None:
        """Start with ``reads``, and forget those of before that did not have their turn."""
        for read in self._waiting:
            read.cancel()
        self._waiting = [self._thread.submit(read) for read in reads]


def _overviewed(events: DataFrame, every: int) -> tuple[DataFrame, Overview]:
    """The events, persisted, and what they hold."""
    events = events.persist()
    try:
        return events, overview(events, every=every)
    except Exception:
        events.unpersist()
        raise


def _result(
    seen: Overview, decisions: Sequence[Decision], tables: Sequence[TableResult], batch: Batch
) -> BatchResult:
    rest = _rest(seen, decisions)
    return BatchResult(batch.batch_id, rest=rest, tables={each.source: each for each in tables})


def _rest(seen: Overview, decisions: Sequence[Decision]) -> Counts:
    """The records of a batch that belong to no table of the pipeline."""
    mirrored = [decision for decision in decisions if not decision.left_out]
    tombstones = sum(decision.overview.tombstone_records for decision in mirrored)
    none = seen.ignored - tombstones + sum(d.records for d in decisions if d.left_out)
    aside = seen.bad + seen.held
    return Counts(records=none + aside, no_row_change=none, quarantined=aside)


def _failure(name: TableName, error: Exception) -> str:
    return (
        f"table {name} could not be written: {cause_of(error)}. Its records are kept in quarantine and "
        f"applied again by the driver when the cause is gone; set tables[{name}].suspend: true to stop trying"
    )


@contextmanager
def _settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session that hold for a while: those of Delta's writes can be given in no other way."""
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)


def _side_by_side(do: Callable[[In], Out], items: Iterable[In]) -> list[Out]:
    """Results in order; waits for all before the first error is raised."""
    listed = list(items)
    if len(listed) < 2:
        return [do(each) for each in listed]
    with ThreadPoolExecutor(min(len(listed), _SIDE_BY_SIDE)) as pool:
        futures = [pool.submit(do, each) for each in listed]
    return [future.result() for future in futures]


_PLACE = ["topic", "partition", "offset", "file", "row"]


def _source() -> Column:
    """STRING: the source table of a classified event."""
    return name_of(F.col("database"), F.col("schema"), F.col("table"))


def _unreadable(events: DataFrame) -> DataFrame:
    """Records that are bad before any table is known: RAW columns, source, scope and reason."""
    return events.where("kind = 'bad'").select(
        _source().alias("source"),
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
    """Records whose place in the source's order is undecided, and those whose schema cannot be read: source,
    scope, reason and place.
    """
    scope = F.when(F.col("kind") == "held", "order").otherwise("record")
    apart = events.where(F.col("kind").isin("held", "no schema"))
    return apart.select(_source().alias("source"), scope.alias("scope"), "reason", *_PLACE)


def _with_readable_schemas(events: DataFrame, seen: Overview) -> tuple[DataFrame, Overview]:
    """The batch with those changes set apart (kind ``no schema``) whose embedded schema cannot be read."""
    wrong = seen.unreadable_schemas()
    if not wrong:
        return events, seen
    reason = F.coalesce(*[F.when(F.col(column) == each, why) for (column, each), why in wrong.items()])
    apart = (F.col("kind") == "change") & reason.isNotNull()
    marked = events.withColumns(
        {"kind": F.when(apart, "no schema").otherwise(F.col("kind")), "reason": F.coalesce("reason", reason)}
    )
    return marked, overview(marked)


def _with_bytes(aside: DataFrame, raw: DataFrame) -> DataFrame:
    """Records of a table (source, scope, reason and place) with their raw bytes."""
    same = [F.col(f"a.{name}").eqNullSafe(F.col(f"r.{name}")) for name in _PLACE]
    found = aside.dropDuplicates(_PLACE).alias("a").join(raw.alias("r"), same)
    return found.select("a.source", "a.scope", "a.reason", "r.*")
