"""The progress report: what a driver says of itself, and where it says it.

The document (JSON, names in camelCase, times in UTC as ISO 8601, counts of events unless said otherwise)::

    pipeline, runId, startedAt
    phase            Starting | Running | Completed (run once, all applied) | Stopped (asked to) | Failed
    batchId          the last batch that was committed in this run; null before the first
    committedAt      when that was
    observedAt       when this report was made; renewed while nothing happens
    lagRecords       records the source holds that are not applied; null where it cannot be known
    lagSeconds       age of the newest change that is applied, 0 when nothing is left, null when unknown
    eventTime        when the source made the newest change that is applied
    caughtUp         nothing was left in the source
    totals           applied, inserted, updated, deleted, stale, duplicates, tombstoneRecords (Kafka's),
                     tombstonesRetained, lateAfterCollection, quarantined: since the checkpoint began
    tablesTotal      number of tables
    tables           [{source, target, version, lastEventTime, applied, inserted, updated, deleted, stale,
                     duplicates, tombstoneRecords, tombstonesRetained, lateAfterCollection, quarantined,
                     rows, drift: [{column, change, from, to, action, since}], error}]
    resyncing        sources of tables (as the manifest lists them) that are being read again
    sourceRestarted, tableFailed, failure    messages; null while there is nothing to say
    warnings         the last messages that a person should see
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

from lakemirror.driver.document import to_document, to_json
from lakemirror.driver.errors import SourceRestarted, TableFailed
from lakemirror.driver.results import COUNTS, BatchResult, TableResult
from lakemirror.driver.sources.base import Lag
from lakemirror.driver.storage import Storage

Phase = Literal["Starting", "Running", "Completed", "Stopped", "Failed"]

History = Mapping[str, Mapping[str, int]]
"""What the audit table has of each source table: {source: {inserted: number, ...}}."""

_WARNINGS_KEPT = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Totals:
    """Sums over tables; see the module's description."""

    applied: int = 0
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    stale: int = 0
    duplicates: int = 0
    tombstone_records: int = 0
    tombstones_retained: int = 0
    late_after_collection: int = 0
    quarantined: int = 0


@dataclass(frozen=True)
class Report:
    """One state of a run; ``document`` is what sinks write."""

    pipeline: str
    run_id: str
    started_at: datetime
    phase: Phase
    observed_at: datetime
    batch_id: int | None = None
    committed_at: datetime | None = None
    lag_records: int | None = None
    lag_seconds: float | None = None
    event_time: datetime | None = None
    caught_up: bool | None = None
    totals: Totals = field(default_factory=Totals)
    tables_total: int = 0
    tables: tuple[TableResult, ...] = ()
    resyncing: tuple[str, ...] = ()
    source_restarted: str | None = None
    table_failed: str | None = None
    failure: str | None = None
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The report as the module describes it."""
        document: dict[str, Any] = to_document(self)
        return document | {"tables": [table_document(table) for table in self.tables]}


def table_document(table: TableResult) -> dict[str, Any]:
    """A table of the report."""
    document: dict[str, Any] = to_document(table)
    document["applied"] = document.pop("events")
    for drift in document["drift"]:
        drift["from"], drift["to"] = drift.pop("fromType"), drift.pop("toType")
    return document


def add(before: TableResult | None, now: TableResult) -> TableResult:
    """Both results of one table as one: counts added, states as they are ``now`` where it tells them."""
    if before is None:
        return now
    sums = {name: getattr(before, name) + getattr(now, name) for name in COUNTS}
    kept = {
        name: getattr(before, name) for name in ("target", "version", "rows") if getattr(now, name) is None
    }
    times = [t for t in (before.last_event_time, now.last_event_time) if t is not None]
    drift = {(d.column, d.change, d.to_type): d for d in (*now.drift, *before.drift)}
    return replace(now, **sums, **kept, last_event_time=max(times, default=None), drift=tuple(drift.values()))


class Progress:
    """Adds up what batches did: in this run (``tables``), and since the checkpoint began (in reports).

    Safe to use from several threads.
    """

    def __init__(self, pipeline: str) -> None:
        self.run_id = uuid.uuid4().hex
        self.tables: dict[str, TableResult] = {}
        self.batches = self.records = self.ignored = self.quarantined = 0
        self._all: dict[str, TableResult] = {}
        self._lock = threading.Lock()
        self._report = Report(pipeline, self.run_id, _now(), "Starting", _now())

    def begin_with(self, history: History) -> None:
        """Take ``history`` for the totals so far."""
        with self._lock:
            for source, counts in history.items():
                states = self._all.get(source, TableResult(source))
                self._all[source] = replace(states, **_numbers(counts))

    def batch_done(self, result: BatchResult, history: History | None = None, *, again: bool = False) -> None:
        """Take in a batch's result; ``again`` tells that it is none of the source's own count.

        ``history`` has to be given for a batch that is repeated after a crash: the totals with it, for it
        may be in the totals of before already.
        """
        with self._lock:
            self.batches += 1
            self.records += result.records
            self.ignored += result.ignored
            self.quarantined += result.quarantined
            for source, table in result.tables.items():
                self.tables[source] = add(self.tables.get(source), table)
                self._all[source] = add(self._all.get(source), table)
            batch_id = self._report.batch_id if again else result.batch_id
            self._report = replace(self._report, batch_id=batch_id, committed_at=_now())
        if history is not None:
            self.begin_with(history)

    def resyncing(self, sources: Iterable[str]) -> None:
        """Take in which tables are being read again from now on."""
        with self._lock:
            self._report = replace(self._report, resyncing=tuple(sorted(sources)))

    def warn(self, message: str) -> None:
        """Take in what a person should see."""
        with self._lock:
            kept = (*self._report.warnings, message)[-_WARNINGS_KEPT:]
            self._report = replace(self._report, warnings=kept)

    def failed(self, error: BaseException) -> None:
        """Take in what ended the run."""
        message = str(error) or type(error).__name__
        with self._lock:
            self._report = replace(
                self._report,
                failure=message,
                source_restarted=message if isinstance(error, SourceRestarted) else None,
                table_failed=message if isinstance(error, TableFailed) else None,
            )

    def report(self, phase: Phase, lag: Lag) -> Report:
        """The state now."""
        with self._lock:
            tables = tuple(self._all[source] for source in sorted(self._all))
            times = [t.last_event_time for t in tables if t.last_event_time is not None]
            newest = max(map(_utc, times), default=None)
            self._report = replace(
                self._report,
                phase=phase,
                observed_at=_now(),
                lag_records=lag.records,
                lag_seconds=_lag_seconds(newest, lag),
                event_time=newest,
                caught_up=lag.caught_up,
                totals=_sum(tables),
                tables_total=len(tables),
                tables=tables,
            )
            return self._report


class ProgressSink(Protocol):
    """Where reports go."""

    def publish(self, report: Report) -> None: ...


class FileSink:
    """The newest report as a JSON file beside the checkpoint."""

    def __init__(self, storage: Storage, name: str = "progress.json") -> None:
        self._storage = storage
        self._name = name

    def publish(self, report: Report) -> None:
        self._storage.write_text(self._name, to_json(report.document()))


class LogSink:
    """One line a report."""

    def publish(self, report: Report) -> None:
        totals = ", ".join(f"{count} {name}" for name, count in asdict(report.totals).items() if count)
        lag = "unknown" if report.lag_records is None else report.lag_records
        _log.info("%s: batch %s, lag %s; %s", report.phase, report.batch_id, lag, totals or "nothing applied")


class Reporter:
    """Publishes reports from a thread: soon after news, but not often, and now and then without news.

    ``make`` gives the report of this moment. A sink that fails is logged and tried again with the next one.
    """

    def __init__(
        self,
        make: Callable[[Phase], Report],
        sinks: Iterable[ProgressSink],
        *,
        at_most_every: float = 10.0,
        at_least_every: float = 30.0,
    ) -> None:
        self._make = make
        self._sinks = list(sinks)
        self._soon, self._late = at_most_every, at_least_every
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="lakemirror-progress", daemon=True)

    def start(self) -> None:
        """Publish now, and from now on."""
        self._publish("Starting")
        self._thread.start()

    def news(self) -> None:
        """Something has happened that the next report should tell."""
        self._news.set()

    def stop(self, phase: Phase) -> Report:
        """The last report, published at once."""
        self._stop.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        return self._publish(phase)

    def _loop(self) -> None:
        while True:
            began = time.monotonic()
            if self._stop.wait(self._soon):
                return
            self._news.wait(max(0.0, self._late - (time.monotonic() - began)))
            if self._stop.is_set():
                return
            self._news.clear()
            self._publish("Running")

    def _publish(self, phase: Phase) -> Report:
        report = self._make(phase)
        for sink in self._sinks:
            try:
                sink.publish(report)
            except Exception as error:
                _log.warning("progress could not be reported by %s: %s", type(sink).__name__, error)
        return report


def _numbers(counts: Mapping[str, int]) -> dict[str, Any]:
    known = (*COUNTS, "tombstones_retained")
    return {name: counts[name] for name in known if name in counts}


def _sum(tables: Iterable[TableResult]) -> Totals:
    listed = list(tables)
    names = (*COUNTS, "tombstones_retained")
    sums = {name: sum(getattr(table, name) for table in listed) for name in names}
    return Totals(applied=sums.pop("events"), **sums)


def _lag_seconds(newest: datetime | None, lag: Lag) -> float | None:
    if lag.caught_up:
        return 0.0
    if newest is None:
        return None
    return round(max(0.0, (_now() - newest).total_seconds()), 3)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)
