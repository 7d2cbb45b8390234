"""What a run reports about itself (`lakemirror.api.report`), added up from its batches."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from lakemirror.api.report import (
    Counts,
    DriftReport,
    DriverPhase,
    ExpectationReport,
    Report,
    SourceReport,
    TableReport,
    Totals,
    Verification,
)
from lakemirror.driver.document import iso
from lakemirror.driver.errors import TableFailed, cause_of
from lakemirror.driver.profile import positions
from lakemirror.driver.profile.positions import Memory
from lakemirror.driver.read.base import ChangesLost, Committed, Lag
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.record.quarantine import OpenRecords
from lakemirror.driver.results import BatchResult, Drift, TableResult, add
from lakemirror.driver.runtime.completeness import Completeness, complete_report
from lakemirror.driver.times import possible_time

_NOTHING_OPEN: OpenRecords = MappingProxyType({})
_WARNINGS_KEPT = 20
SETTLE_SECONDS = 30.0
"""The longest time a change takes from the source to the pipeline, unless the manifest says otherwise."""
_log = logging.getLogger(__name__)


def table_report(table: TableResult, open_records: Mapping[str, int]) -> TableReport:
    """Return the part of the report that describes a table."""
    return TableReport(
        source=table.source,
        target=table.target,
        version=table.version,
        last_event_time=_text(table.last_event_time),
        drift=[drift_report(each) for each in sorted(table.drift, key=lambda d: d.seen, reverse=True)],
        expectations=[
            ExpectationReport(name=each.name, on_violation=each.on_violation, violations=each.records)
            for each in sorted(table.violated, key=lambda v: (-v.records, v.name))
        ],
        error=table.error,
        tombstones_retained=table.tombstones_retained,
        **_open(open_records),
        **table.counts.values(),
    )


def drift_report(drift: Drift) -> DriftReport:
    """Return the part of the report that describes a changed column."""
    return DriftReport(
        column=drift.column,
        change=drift.change,
        from_=drift.from_type,
        to=drift.to_type,
        action=drift.action,
        feature=drift.feature,
        rows=drift.rows,
        since=_text(drift.since),
        seen=iso(drift.seen),
    )


def _open(records: Mapping[str, int]) -> dict[str, int]:
    bad = records.get("record", 0)
    return {"quarantined_open": bad, "held": sum(records.values()) - bad}


class Progress:
    """Adds up what batches did: in this run (``tables``), and since the checkpoint was created (in reports).

    ``settle`` is the maximum number of seconds that a change takes from the source to the pipeline.
    ``interval`` is the number of seconds from one batch to the next. Safe to use from several threads.
    """

    def __init__(self, pipeline: str, settle: float = SETTLE_SECONDS, interval: float = 0.0) -> None:
        self._interval = interval
        self.run_id = uuid.uuid4().hex
        self.tables: dict[str, TableResult] = {}
        self.batches = 0
        self.counts = Counts()
        self.had_all_at: datetime | None = None
        """The latest moment for which it is known that everything that the source had then is applied."""
        self._whole = Counts()
        self._all: dict[str, TableResult] = {}
        self._complete = Completeness(settle)
        self._lock = threading.Lock()
        now = iso(_now())
        self._report = Report(
            pipeline=pipeline, run_id=self.run_id, started_at=now, phase="Starting", observed_at=now
        )

    def begin_with(self, history: AuditHistory) -> None:
        """Use ``history`` as the totals of what was done so far."""
        with self._lock:
            self._whole = history.whole
            self._all = {**self._all, **history.tables}
            self._complete.kept_aside_before(history)

    def reads_on(self, memory: Memory) -> None:
        """Record which positions the source had reached when it was last read."""
        with self._lock:
            self._complete.reached(positions.tops(memory), time.monotonic())

    def restarted(self, message: str | None) -> None:
        """Record what to do if positions of the source have started again, so that tables wait."""
        with self._lock:
            self._say(positions_restarted=message)

    @property
    def kept_aside(self) -> int:
        """How many batches have kept records aside."""
        return self._complete.kept_aside

    def stands_at(self, last: Committed | None) -> None:
        """Record the last batch of the checkpoint, before this run has a batch of its own."""
        if last is not None:
            with self._lock:
                self._say(batch_id=last.batch_id, committed_at=iso(last.at))

    def batch_done(
        self,
        result: BatchResult,
        history: AuditHistory | None = None,
        *,
        again: bool = False,
        seconds: float | None = None,
    ) -> None:
        """Add a batch's result and, unless it is a replay's, how long the batch took.

        ``again`` says that the batch is not part of the source's own sequence of batches. ``history``
        contains the totals including this batch. It is required for a batch that is repeated after a crash,
        because the earlier totals may already include it.
        """
        with self._lock:
            self.batches += 1
            self.counts += result.counts
            self._whole += result.counts
            for source, table in result.tables.items():
                self.tables[source] = add(self.tables.get(source), table)
                self._all[source] = add(self._all.get(source), table)
            self._complete.batch_done(result, time.monotonic(), again=again)
            if not again:
                self._say(positions_restarted=result.restarted)
            batch_id = self._report.batch_id if again else result.batch_id
            self._say(
                batch_id=batch_id,
                committed_at=iso(_now()),
                batches=self._report.batches + (seconds is not None),
                batch_seconds=round(self._report.batch_seconds + (seconds or 0.0), 3),
            )
        if history is not None:
            self.begin_with(history)

    def found(self, results: Mapping[str, TableResult]) -> None:
        """Record what was found about tables before any batch of this run."""
        with self._lock:
            for source, table in results.items():
                self.tables[source] = add(self.tables.get(source), table)
                self._all[source] = add(self._all.get(source), table)

    def known_tables(self) -> dict[str, TableResult]:
        """Return all source tables that this run or an earlier one has seen, with their current state."""
        with self._lock:
            return dict(self._all)

    def written_tables(self) -> dict[str, TableResult]:
        """Return the source tables that this run has had records of, with what it did to them."""
        with self._lock:
            return dict(self.tables)

    def maintained(self) -> None:
        """Record that a table was compacted or cleaned."""
        with self._lock:
            self._say(maintained_at=iso(_now()))

    def verified(self, told: Verification) -> None:
        """Record the outcome of a comparison with the source."""
        with self._lock:
            self._say(verified=told)

    def resyncing(self, sources: Iterable[str]) -> None:
        """Record which tables are being read again from now on."""
        with self._lock:
            self._say(resyncing=sorted(sources))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The newest messages that a person should see."""
        return tuple(self._report.warnings)

    def warn(self, message: str) -> None:
        """Record a message that a person should see."""
        with self._lock:
            self._say(warnings=[*self._report.warnings, message][-_WARNINGS_KEPT:])

    def failed(self, error: BaseException) -> None:
        """Record the error that ended the run."""
        message = cause_of(error)
        with self._lock:
            self._say(
                failure=message,
                source_lost=message if isinstance(error, ChangesLost) else None,
                table_failed=message if isinstance(error, TableFailed) else None,
            )

    def report(
        self,
        phase: DriverPhase,
        lag: Lag,
        open_records: OpenRecords = _NOTHING_OPEN,
        source: SourceReport | None = None,
        observed: datetime | None = None,
        counted: int | None = None,
    ) -> Report:
        """Return the current state, with a lag that was measured at ``observed``.

        ``counted`` is the value of ``kept_aside`` when the ``open_records`` were counted, or None if they
        were not counted.
        """
        with self._lock:
            self.had_all_at = lag.had_all(observed or _now()) or self.had_all_at
            had_all_at = lag.had_all_at
            if had_all_at is None and lag.caught_up:
                ago = 0.0 if observed is None else (_now() - observed).total_seconds()
                had_all_at = time.monotonic() - ago
            if had_all_at is not None:
                self._complete.had_all(had_all_at)
            complete = self._complete.told(open_records, counted, again=bool(self._report.resyncing))
            now = _now()
            tables = [_possible(self._all[source], now) for source in sorted(self._all)]
            times = [t.last_event_time for t in tables if t.last_event_time is not None]
            newest = max(map(_utc, times), default=None)
            lag_seconds = _lag_seconds(newest, lag)
            self._say(
                phase=phase,
                observed_at=iso(observed or _now()),
                lag_records=lag.records,
                lag_seconds=lag_seconds,
                overdue_seconds=self._overdue(lag_seconds, observed or _now()),
                event_time=_text(newest),
                caught_up=lag.caught_up,
                waiting=list(lag.waiting) or None,
                **complete_report(complete, now),
                source=source,
                totals=self._totals(tables, open_records),
                tables_total=len(tables),
                tables=[table_report(table, open_records.get(table.source, {})) for table in tables],
            )
            return self._report

    def _overdue(self, lag_seconds: float | None, observed: datetime) -> float | None:
        """Return for how long more than the interval a change may have been waiting.

        A change that comes after a quiet time has not waited for longer than nothing was left, however old
        the newest applied change is.
        """
        if lag_seconds is None:
            return None
        quiet = self.had_all_at
        waits = lag_seconds if quiet is None else min(lag_seconds, (observed - quiet).total_seconds())
        return round(max(0.0, waits - self._interval), 3)

    def _totals(self, tables: Iterable[TableResult], open_records: OpenRecords) -> Totals:
        scopes = [_open(records) for records in open_records.values()]
        return Totals(
            tombstones_retained=sum(table.tombstones_retained for table in tables),
            quarantined_open=sum(each["quarantined_open"] for each in scopes),
            held=sum(each["held"] for each in scopes),
            **self._whole.values(),
        )

    def _say(self, **news: Any) -> None:
        self._report = Report.model_validate({**dict(self._report), **news})


def _possible(table: TableResult, now: datetime) -> TableResult:
    """Return a result without a time that is still to come."""
    at = table.last_event_time
    if at is None or possible_time(_utc(at), now) is not None:
        return table
    return replace(table, last_event_time=None)


def _lag_seconds(newest: datetime | None, lag: Lag) -> float | None:
    if lag.caught_up:
        return 0.0
    if newest is None:
        return None
    return round(max(0.0, (_now() - newest).total_seconds()), 3)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)


def _utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _now() -> datetime:
    return datetime.now(UTC)
