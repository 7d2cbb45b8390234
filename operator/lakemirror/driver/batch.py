"""One micro-batch: decide for all tables what would be written, then commit table by table.

Deciding reads only. It ends with one state frame a table, materialised, and with everything that a policy
may refuse; so a batch that is refused has written nothing. Committing writes, in this order: quarantine,
tombstones, rows, the audit record. Rows are one commit a table under the batch's transaction id, so that a
replay changes nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession

from lakemirror.api import CdcPipeline, duration_seconds
from lakemirror.api.report import Counts
from lakemirror.driver import audit, faults, quarantine
from lakemirror.driver.envelopes.debezium import Classifier
from lakemirror.driver.errors import BadRecordRefused, LakemirrorError, TableFailed
from lakemirror.driver.mirror import TableName
from lakemirror.driver.overview import Overview, overview, restarted
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.sources.base import Batch
from lakemirror.driver.table.applier import TableApplier
from lakemirror.driver.table.decision import Decision

log = logging.getLogger(__name__)

_SIDE_BY_SIDE = 4
"""Tables that are decided or committed at the same time."""

_TXN_ID = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"

In = TypeVar("In")
Out = TypeVar("Out")


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
        self._positions = audit.last_positions(spark, self._checkpoint, query_id)
        self._drift = {
            name: table.drift for name, table in audit.history(spark, self._checkpoint).tables.items()
        }
        self._first = True
        self.still_bad: DataFrame | None = None
        """The records that the last batch put into quarantine, with their ids."""
        self._ahead = LookAhead()

    def apply(self, raw: DataFrame, batch: Batch) -> BatchResult:
        """Apply one batch of RAW records; doing it again changes nothing.

        Raises SourceRestarted, SchemaDriftRefused or BadRecordRefused with nothing written, and TableFailed
        or BatchMismatch when some tables may have been written: a replay completes the others.
        """
        self._use(raw.sparkSession)
        events = self._classifier.classify(raw, self._schemas).persist()
        try:
            seen = overview(events, self._schemas)
            self._schemas.update(seen.documents)
            restarted(events, seen, self._positions, self._spec.ordering)
            return self._apply(raw, events, seen, batch)
        finally:
            events.unpersist()

    def _apply(self, raw: DataFrame, events: DataFrame, seen: Overview, batch: Batch) -> BatchResult:
        appliers = [self._table(name) for name in seen.tables]
        decisions = _side_by_side(
            lambda table: table.decide(events, seen.tables[table.name], self._schemas), appliers
        )
        self._refuse_bad(seen, decisions)
        with _settings(self._session, {_USER_METADATA: _note(batch)}):
            bad = self._quarantine(raw, events, seen, decisions, batch)
            results = self._commit(decisions, batch)
            self._ahead.begin(self._tables[d.name].read_log for d in decisions if d.work is not None)
            result = BatchResult(
                batch.batch_id,
                rest=_rest(seen, decisions),
                tables={each.source: each for each in results},
            )
            positions = seen.advanced(self._positions)
            if result.tables or bad:
                audit.append(self._session, self._checkpoint, batch, result, positions, replay=self._first)
            faults.reach("after-audit")
        self._positions = positions
        self._first = False
        return result

    def forget(self) -> None:
        """Read all mirrors anew before the next batch, for something else has written them."""
        self._tables = {}

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
            else min((bytes.fromhex(each.seq) for each in self._positions.values()), default=b"")
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

    def _table(self, name: TableName) -> TableApplier:
        if name not in self._tables:
            self._tables[name] = TableApplier(
                self._session, self._pipeline, name, self._drift.get(str(name), ())
            )
        return self._tables[name]

    def _refuse_bad(self, seen: Overview, decisions: Sequence[Decision]) -> None:
        if self._spec.on_bad_record != "fail":
            return
        bad = [d for d in decisions if d.bad]
        if not seen.bad and not bad:
            return
        reason = seen.bad_reason or next(d.example() for d in bad)
        count = seen.bad + sum(d.bad for d in bad)
        raise BadRecordRefused(
            f"{count} record(s) cannot be applied and onBadRecord is 'fail': nothing was written. First: "
            f"{reason}. "
            f"Set spec.onBadRecord to 'quarantine' to keep them aside, or correct the source."
        )

    def _quarantine(
        self, raw: DataFrame, events: DataFrame, seen: Overview, decisions: Sequence[Decision], batch: Batch
    ) -> int:
        count = seen.bad + sum(d.bad for d in decisions)
        self.still_bad = None
        if not count:
            return 0
        parts = []
        if seen.bad:
            parts.append(_unreadable(events))
        parts += [_with_bytes(decision.bad_records(), raw) for decision in decisions if decision.bad]
        records = parts[0]
        for part in parts[1:]:
            records = records.unionByName(part)
        self.still_bad = quarantine.store(records, self._checkpoint, batch)
        return count

    def _commit(self, decisions: Sequence[Decision], batch: Batch) -> list[TableResult]:
        """All tables side by side: first their tombstones, then their rows.

        Only the rows carry the transaction id. Looking it up costs Delta a job for each log, and tombstones
        that are written twice say nothing new.
        """
        wanted = [d for d in decisions if not d.left_out]
        replay, app_id = self._first, self._app_id
        _each_table(
            wanted,
            lambda each, again: self._tables[each.name].prepare(each, batch, app_id, replay=replay or again),
        )
        transaction = {
            _TXN_ID: app_id,
            _TXN_VERSION: str(batch.batch_id),
            _MATERIALIZE: "none",  # what is merged is materialised already
        }
        with _settings(self._session, transaction):
            return _each_table(
                wanted,
                lambda each, again: self._tables[each.name].commit(
                    each, batch, app_id, replay=replay or again
                ),
            )


def _rest(seen: Overview, decisions: Sequence[Decision]) -> Counts:
    """The records of a batch that belong to no table of the pipeline."""
    mirrored = [decision for decision in decisions if not decision.left_out]
    tombstones = sum(decision.overview.tombstone_records for decision in mirrored)
    none = seen.ignored - tombstones + sum(d.events for d in decisions if d.left_out)
    return Counts(records=none + seen.bad, no_row_change=none, quarantined=seen.bad)


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


def _each_table(decisions: Sequence[Decision], step: Callable[[Decision, bool], Out]) -> list[Out]:
    """Do a step of all tables side by side; one that fails is tried once more alone."""

    def attempt(decision: Decision) -> Out | Exception:
        try:
            return step(decision, False)
        except Exception as error:
            return error

    results: list[Out] = []
    for decision, outcome in zip(decisions, _side_by_side(attempt, decisions), strict=True):
        if isinstance(outcome, LakemirrorError):
            raise outcome
        if isinstance(outcome, Exception):
            log.warning("table %s failed and is tried again: %s", decision.name, outcome)
            outcome = _again(decision, step)
        results.append(outcome)
    return results


def _again(decision: Decision, step: Callable[[Decision, bool], Out]) -> Out:
    try:
        return step(decision, True)
    except LakemirrorError:
        raise
    except Exception as error:
        raise TableFailed(
            f"table {decision.name} could not be written: {_first_line(error)}. The other tables of the "
            f"batch are written; set tables[{decision.name}].suspend: true to go on without it."
        ) from error


def _note(batch: Batch) -> str:
    """What a commit says of its batch."""
    note = {"query": batch.query_id, "batch": batch.batch_id, "extent": batch.extent}
    return json.dumps(note, sort_keys=True)


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


def _unreadable(events: DataFrame) -> DataFrame:
    """Records that are bad before any table is known: RAW columns, source and reason."""
    return events.where("kind = 'bad'").selectExpr(
        "nullif(concat_ws('.', database, schema, table), '') AS source",
        "reason",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "raw_key AS key",
        "raw_value AS value",
        "raw_headers AS headers",
        "file",
        "row",
        "CAST(NULL AS STRING) AS problem",
    )


def _with_bytes(bad: DataFrame, raw: DataFrame) -> DataFrame:
    """Bad records of a table (source, reason, topic, partition, offset) with their raw bytes."""
    places = bad.dropDuplicates(["topic", "partition", "offset"])
    records = raw.dropDuplicates(["topic", "partition", "offset"])
    return places.join(records, ["topic", "partition", "offset"]).select(
        "source",
        "reason",
        "topic",
        "partition",
        "offset",
        "timestamp",
        "key",
        "value",
        "headers",
        "file",
        "row",
        "problem",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
