"""Serves the numbers of the last progress report to Prometheus, at ``/metrics``."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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

from lakemirror.api.report import COUNTERS, GAUGES, CompleteReport, Report, TableReport, Totals, Verification
from lakemirror.api.shown import shown
from lakemirror.driver.consistent import text as positions
from lakemirror.driver.errors import LakemirrorError

PORT_VARIABLE = "LAKEMIRROR_METRICS_PORT"


class Metrics:
    """A progress sink that serves its report over HTTP while the context is active."""

    def __init__(self, port: int, address: str | None = None) -> None:
        """With ``port`` 0, a free port is chosen on entry, and ``self.port`` is set to it.

        Without an ``address``, it serves on all addresses, of IPv6 and IPv4.
        """
        self.port = port
        self._addresses = (address,) if address is not None else _every_address()
        self._collector = ReportCollector()

    def publish(self, report: Report) -> None:
        """Serve this report from now on."""
        self._collector.report = report

    def __enter__(self) -> Metrics:
        registry = CollectorRegistry()
        registry.register(self._collector)
        *others, last = self._addresses
        for address in others:
            with suppress(OSError):  # a host may know IPv6 and have no such address
                return self._serving(address, registry)
        try:
            return self._serving(last, registry)
        except OSError as error:
            raise LakemirrorError(
                f"{PORT_VARIABLE}: cannot serve metrics on port {self.port}: {error.strerror}"
            ) from None

    def _serving(self, address: str, registry: CollectorRegistry) -> Metrics:
        self._server, self._thread = start_http_server(self.port, address, registry)
        self.port = self._server.server_port
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _every_address() -> tuple[str, ...]:
    """Return the addresses to try for all of a host: ``::`` includes IPv4 where the system can do that."""
    return ("::", "0.0.0.0") if socket.has_dualstack_ipv6() else ("0.0.0.0",)


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
        ("batch_id", "ID of the last committed batch.", report.batch_id),
        (
            "committed_timestamp_seconds",
            "Unix time at which the last batch was committed.",
            _seconds(report.committed_at),
        ),
        (
            "run_started_timestamp_seconds",
            "Unix time at which this run started.",
            _seconds(report.started_at),
        ),
        (
            "observed_timestamp_seconds",
            "Unix time at which these values were measured.",
            _seconds(report.observed_at),
        ),
        (
            "maintained_timestamp_seconds",
            "Unix time at which this run last compacted or vacuumed a table.",
            _seconds(report.maintained_at),
        ),
        *_of_verification(report.verified),
        (
            "event_timestamp_seconds",
            "Source timestamp of the newest applied change.",
            _seconds(report.event_time),
        ),
        ("lag_records", "Number of records in the source that have not been applied.", report.lag_records),
        (
            "lag_seconds",
            "Age of the newest applied change in seconds, 0 if all changes have been applied.",
            report.lag_seconds,
        ),
        (
            "overdue_seconds",
            "How many seconds more than trigger.interval a change may have been waiting to be applied.",
            report.overdue_seconds,
        ),
        ("caught_up", "1 if all changes in the source have been applied, 0 otherwise.", report.caught_up),
        (
            "source_restarted",
            "1 if tables wait because the source's positions started over, 0 otherwise.",
            report.positions_restarted is not None,
        ),
        (
            "run_ended_by_table",
            "1 if the run ended because a table failed, 0 otherwise.",
            report.table_failed is not None,
        ),
        ("source_reachable", "1 if the source is reachable, 0 otherwise.", _reachable(report)),
        ("tables", "Number of source tables seen so far.", report.tables_total),
        (
            "resyncing_tables",
            "Number of entries under `tables` in the manifest that are currently being reread.",
            len(report.resyncing),
        ),
        *(
            (
                name,
                f"{_help(name)} Sum over all tables, including records without a table.",
                getattr(report.totals, name),
            )
            for name in GAUGES
        ),
    ]
    for name in COUNTERS:
        counter = CounterMetricFamily(
            f"lakemirror_{name}",
            f"{_help(name)} Sum over all tables, including records without a table.",
            labels=["pipeline"],
        )
        counter.add_metric([report.pipeline], getattr(report.totals, name))
        yield counter
    took = SummaryMetricFamily(
        "lakemirror_batch_duration_seconds",
        "Duration of the batches of this run in seconds.",
        labels=["pipeline"],
    )
    took.add_metric([report.pipeline], report.batches, report.batch_seconds)
    yield took
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"lakemirror_{name}", text, labels=["pipeline"])
        if value is not None:
            gauge.add_metric([report.pipeline], float(value))
            yield gauge
    yield from _of_completeness(report.pipeline, report.complete)
    phase = GaugeMetricFamily(
        "lakemirror_phase",
        "Current phase of the run, given by the label. The value is always 1.",
        labels=["pipeline", "phase"],
    )
    phase.add_metric([report.pipeline, report.phase or ""], 1.0)
    yield phase


def _of_verification(verified: Verification | None) -> list[tuple[str, str, float | None]]:
    """Return the gauges of the last comparison with the source, without values if there was none."""
    ended = None if verified is None else _seconds(verified.ended_at)
    told = verified is not None and verified.error is None
    wrong = sum(each.missing + each.extra + each.differing for each in verified.findings) if verified else 0
    return [
        (
            "verified_timestamp_seconds",
            "Unix time at which the mirrors were last compared with their source.",
            ended,
        ),
        (
            "verified_equal",
            "1 if all mirrors were equal to their source in the last comparison, 0 otherwise.",
            bool(verified.equal) if verified and told else None,
        ),
        (
            "verified_wrong_keys",
            "Number of wrong keys found by the last comparison in the first tables that differ.",
            wrong if told else None,
        ),
    ]


def _of_completeness(pipeline: str, complete: Iterable[CompleteReport]) -> Iterator[Metric]:
    # The position is a label. As a value it would be rounded: values are floats, exact only up to 2**53, and
    # positions are greater, and pairs. A log has one series at a time: a new position replaces the last one.
    position = GaugeMetricFamily(
        "lakemirror_complete_position_info",
        "Position up to which all tables have all changes, given by the label, by source log. "
        "The value is always 1.",
        labels=["pipeline", "log", "position"],
    )
    time = GaugeMetricFamily(
        "lakemirror_complete_timestamp_seconds",
        "Source timestamp of the position up to which all tables have all changes, by source log.",
        labels=["pipeline", "log"],
    )
    for each in complete:
        position.add_metric([pipeline, shown(each.log), positions.shown(each.below)], 1.0)
        if (seconds := _seconds(each.time)) is not None:
            time.add_metric([pipeline, shown(each.log)], seconds)
    yield position
    yield time


def _of_tables(report: Report) -> Iterator[Metric]:
    labels = ["pipeline", "table"]
    for name in COUNTERS:
        counter = CounterMetricFamily(f"lakemirror_table_{name}", _help(name), labels=labels)
        for table in report.tables:
            counter.add_metric([report.pipeline, table.source], getattr(table, name))
        yield counter
    unmet = CounterMetricFamily(
        "lakemirror_table_expectation_violations",
        "Number of records whose row did not meet an expectation, by name of the expectation.",
        labels=[*labels, "expectation", "on_violation"],
    )
    for table in report.tables:
        for each in table.expectations:
            named = [report.pipeline, table.source, each.name, each.on_violation or ""]
            unmet.add_metric(named, each.violations)
    yield unmet
    states: dict[str, tuple[str, Callable[[TableReport], float | None]]] = {
        **{name: (_help(name), attrgetter(name)) for name in GAUGES},
        "version": ("Version of the Delta table.", lambda t: t.version),
        "last_event_timestamp_seconds": (
            "Source timestamp of the newest applied change.",
            lambda t: _seconds(t.last_event_time),
        ),
        "drifted_columns": (
            "Number of columns for which schema drift has been reported.",
            lambda t: len(t.drift),
        ),
        "failed": ("1 if the table is refused, 0 otherwise.", lambda t: t.error is not None),
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
