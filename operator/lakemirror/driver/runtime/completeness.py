"""Tracks how far the source is applied while a driver runs (`lakemirror.driver.consistent`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from lakemirror.api.report import CompleteReport
from lakemirror.driver.consistent import text
from lakemirror.driver.consistent.complete import Mark, Top, Watch
from lakemirror.driver.consistent.reach import BEGIN
from lakemirror.driver.document import from_millis, iso
from lakemirror.driver.record.history import AuditHistory
from lakemirror.driver.record.quarantine import OpenRecords
from lakemirror.driver.results import BatchResult
from lakemirror.driver.times import possible_time


class Completeness:
    """Tracks, for each log, the position up to which all changes are applied. ``settle`` is in seconds."""

    def __init__(self, settle: float) -> None:
        self.kept_aside = 0
        """The number of batches of this run that have kept records aside."""
        self._settle = settle
        self._watches: dict[str, Watch] = {}
        self._gaps: dict[str, str] = {}
        self._unknown = False
        self._told: Mapping[str, Mark] = {}

    def kept_aside_before(self, history: AuditHistory) -> None:
        """Record what batches of earlier runs have kept aside."""
        self._unknown |= history.gap
        for source, table in history.tables.items():
            self._lacks(source, table.gap)

    def batch_done(self, result: BatchResult, now: float, *, again: bool) -> None:
        """Record what a batch did.

        ``again`` says that the batch is not part of the source's own sequence of batches.
        """
        if result.counts.quarantined or result.counts.refused:
            self.kept_aside += 1
        self._unknown |= bool(result.rest.quarantined)
        for source, table in result.tables.items():
            self._lacks(source, table.gap)
        if result.tops is not None and not again:
            self.reached(result.tops, now)

    def reached(self, tops: Iterable[Top], now: float) -> None:
        """Record the positions that the streams of all logs have reached."""
        ordered = sorted(tops, key=lambda top: top.log)
        for log, of in groupby(ordered, key=lambda top: top.log):
            self._watches[log] = self._watches.get(log, Watch()).reaching(of, now)

    def had_all(self, at: float) -> None:
        """Record that everything that the source had at the time ``at`` is applied."""
        self._watches = {log: each.had_all(at, self._settle) for log, each in self._watches.items()}

    def told(self, open_records: OpenRecords, counted: int | None, *, again: bool) -> Mapping[str, Mark]:
        """Return, for each log, the position up to which everything is applied and nothing is kept aside.

        Logs about which nothing is known are left out. ``counted`` is the value of ``kept_aside`` when the
        open records were counted. If more has been kept aside since then, the previous answer still holds.
        ``again`` says that tables are being read again.
        """
        if counted == self.kept_aside:
            cap = BEGIN if again else self._cap(open_records)
            marks = {log: watch.settled for log, watch in self._watches.items()}
            self._told = {
                log: mark if cap is None or mark.below <= cap else Mark(cap)
                for log, mark in marks.items()
                if mark.below != BEGIN and cap != BEGIN
            }
        return self._told

    def _lacks(self, source: str, gap: str | None) -> None:
        if gap is not None:
            self._gaps[source] = min(gap, self._gaps.get(source, gap))

    def _cap(self, open_records: OpenRecords) -> str | None:
        """Return a position before all open records, or None if there are none."""
        waiting = {source for source, scopes in open_records.items() if any(scopes.values())}
        self._gaps = {source: gap for source, gap in self._gaps.items() if source in waiting}
        if not waiting:
            self._unknown = False
            return None
        undecided = any(scopes.get("order") for scopes in open_records.values())
        if self._unknown or undecided:
            return BEGIN
        return min(self._gaps.get(source, BEGIN) for source in waiting)


def complete_report(marks: Mapping[str, Mark], now: datetime | None = None) -> dict[str, Any]:
    """Return the fields of a report that say how far the source is applied ``now``."""
    now = now or datetime.now(UTC)
    told = [
        CompleteReport(log=log, below=mark.below, time=_time(mark, now))
        for log, mark in sorted(marks.items())
    ]
    if not told:
        return {"complete": [], "complete_position": None, "complete_time": None}
    texts = [text.shown(each.below) for each in told]
    if len(told) > 1:
        texts = [f"{each.log} {shown}" for each, shown in zip(told, texts, strict=True)]
    times = [each.time for each in told]
    oldest = None if None in times else min(filter(None, times))
    return {"complete": told, "complete_position": ", ".join(texts), "complete_time": oldest}


def _time(mark: Mark, now: datetime) -> str | None:
    at = None if mark.time is None else possible_time(from_millis(mark.time // 1000), now)
    return None if at is None else iso(at)
