"""Serves the numbers of the last progress report to Prometheus, at ``/metrics``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from operator import attrgetter
from types import TracebackType

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from lakemirror.api.report import COUNTERS, GAUGES, Report, TableReport, Totals, Verification
from lakemirror.driver.errors import LakemirrorError

PORT_VARIABLE = "LAKEMIRROR_METRICS_PORT"


class Metrics:
    """A progress sink that serves its report over HTTP while the context is active."""

    def __init__(self, port: int, address: str = "0.0.0.0") -> None:
        """With ``port`` 0, a free port is chosen on entry, and ``self.port`` is set to it."""
        self.port = port
        self._address = address
        self._collector = ReportCollector()

    def publish(self, report: Report) -> None:
        """Serve this report from now on."""
        self._collector.report = report

    def __enter__(self) -> Metrics:
        registry = CollectorRegistry()
        registry.register(self._collector)
        try:
            self._server, self._thread = start_http_server(self.port, self._address, registry)
        except OSError as error:
            raise LakemirrorError(
                f"{PORT_VARIABLE}: cannot serve metrics on port {self.port}: {error.strerror}"
            ) from None
        self.port = self._server.server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def port_from_environment() -> int | None:
    """Return the port set in ``LAKEMIRROR_METRICS_PORT``, or None if metrics are not wanted.

    Raises LakemirrorError if the value is not a valid port.
    """
    text = os.environ.get(PORT_VARIABLE, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) > 65535:
        raise LakemirrorError(f"{PORT_VARIABLE}: {text!r} is not a valid port: give a number up to 65535")
    return int(text)


class ReportCollector(Collector):
    """Collects the metrics of a report."""

    report: Report | None = None

    def collect(self) -> Iterator[Metric]:
        if self.report is not None:
            yield from _of_pipeline(self.report)
            yield from _of_tables(self.report)

    def describe(self) -> list[Metric]:
        return []


def _of_pipeline(report: Report) -> Iterator[Metric]:
    gauges: list[tuple[str, str, float | None]] = [
        ("batch_id", "Last batch that was committed", report.batch_id),
        ("committed_timestamp_seconds", "When the last batch was committed", _seconds(report.committed_at)),
        ("run_started_timestamp_seconds", "When this run began", _seconds(report.started_at)),
        ("observed_timestamp_seconds", "When these numbers were taken", _seconds(report.observed_at)),
        (
            "maintained_timestamp_seconds",
            "When a table was compacted or cleaned last",
            _seconds(report.maintained_at),
        ),
        *_of_verification(report.verified),
        ("event_timestamp_seconds", "Source time of the newest change applied", _seconds(report.event_time)),
        ("lag_records", "Records in the source that are not applied", report.lag_records),
        ("lag_seconds", "Age of the newest change applied, 0 when nothing is left", report.lag_seconds),
        ("caught_up", "1 when nothing is left in the source", report.caught_up),
        (
            "source_restarted",
            "1 when the source's positions began again",
            report.source_restarted is not None,
        ),
        ("run_ended_by_table", "1 when a table failed and ended the run", report.table_failed is not None),
        ("source_reachable", "1 while the source can be reached, 0 while it cannot", _reachable(report)),
        ("tables", "Source tables that have been met", report.tables_total),
        (
            "resyncing_tables",
            "Tables, as the manifest lists them, that are read again",
            len(report.resyncing),
        ),
        *(
            (name, f"{_help(name)} Over all tables, and records of no table", getattr(report.totals, name))
            for name in GAUGES
        ),
    ]
    for name in COUNTERS:
        counter = CounterMetricFamily(
            f"lakemirror_{name}",
            f"{_help(name)} Over all tables, and records of no table",
            labels=["pipeline"],
        )
        counter.add_metric([report.pipeline], getattr(report.totals, name))
        yield counter
    took = SummaryMetricFamily(
        "lakemirror_batch_duration_seconds", "How long the batches of this run took", labels=["pipeline"]
    )
    took.add_metric([report.pipeline], report.batches, report.batch_seconds)
    yield took
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"lakemirror_{name}", text, labels=["pipeline"])
        if value is not None:
            gauge.add_metric([report.pipeline], float(value))
            yield gauge
    complete = GaugeMetricFamily(
        "lakemirror_complete_timestamp_seconds",
        "Source time of the position up to which all tables have all changes, by log of the source",
        labels=["pipeline", "log"],
    )
    for each in report.complete:
        if (time := _seconds(each.time)) is not None:
            complete.add_metric([report.pipeline, each.log], time)
    yield complete
    phase = GaugeMetricFamily(
        "lakemirror_phase", "1 for the phase the run is in", labels=["pipeline", "phase"]
    )
    phase.add_metric([report.pipeline, report.phase or ""], 1.0)
    yield phase


def _of_verification(verified: Verification | None) -> list[tuple[str, str, float | None]]:
    """Return the gauges of the last comparison with the source, without values if there was none."""
    ended = None if verified is None else _seconds(verified.ended_at)
    told = verified is not None and verified.error is None
    wrong = sum(each.missing + each.extra + each.differing for each in verified.findings) if verified else 0
    return [
        ("verified_timestamp_seconds", "When the mirrors were compared with their source last", ended),
        ("verified_equal", "1 when they were all equal", bool(verified.equal) if verified and told else None),
        ("verified_wrong_keys", "Keys that were wrong then, of the first tables", wrong if told else None),
    ]


def _of_tables(report: Report) -> Iterator[Metric]:
    labels = ["pipeline", "table"]
    for name in COUNTERS:
        counter = CounterMetricFamily(f"lakemirror_table_{name}", _help(name), labels=labels)
        for table in report.tables:
            counter.add_metric([report.pipeline, table.source], getattr(table, name))
        yield counter
    unmet = CounterMetricFamily(
        "lakemirror_table_expectation_violations",
        "Records whose row did not meet an expectation, by its name",
        labels=[*labels, "expectation", "on_violation"],
    )
    for table in report.tables:
        for each in table.expectations:
            named = [report.pipeline, table.source, each.name, each.on_violation or ""]
            unmet.add_metric(named, each.violations)
    yield unmet
    states: dict[str, tuple[str, Callable[[TableReport], float | None]]] = {
        **{name: (_help(name), attrgetter(name)) for name in GAUGES},
        "version": ("Version of the Delta table", lambda t: t.version),
        "last_event_timestamp_seconds": (
            "Source time of the newest change applied",
            lambda t: _seconds(t.last_event_time),
        ),
        "drifted_columns": ("Columns whose change was reported", lambda t: len(t.drift)),
        "failed": ("1 while the table is refused", lambda t: t.error is not None),
    }
    for name, (text, value) in states.items():
        gauge = GaugeMetricFamily(f"lakemirror_table_{name}", text, labels=labels)
        for table in report.tables:
            if (number := value(table)) is not None:
                gauge.add_metric([report.pipeline, table.source], float(number))
        yield gauge


def _reachable(report: Report) -> bool | None:
    """Return whether the source can be reached, or None before the first answer."""
    source = report.source
    if source is None or (source.reached_at is None and source.lost_since is None):
        return None
    return source.lost_since is None


def _help(name: str) -> str:
    """Return the description of a number in one line, as Prometheus requires."""
    return " ".join((Totals.model_fields[name].description or "").split())


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()
