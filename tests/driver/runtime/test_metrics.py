"""The numbers of the report at /metrics."""

from __future__ import annotations

import socket
from urllib.request import urlopen

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from lakemirror.api.report import Counts, Report, SourceReport
from lakemirror.driver.consistent.complete import Mark
from lakemirror.driver.errors import LakemirrorError
from lakemirror.driver.read.base import Lag
from lakemirror.driver.results import BatchResult, TableResult
from lakemirror.driver.runtime.completeness import complete_report
from lakemirror.driver.runtime.metrics import Metrics, port_from_environment
from lakemirror.driver.runtime.progress import Progress


def families(port: int) -> dict[str, Metric]:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return {each.name: each for each in text_string_to_metric_families(answer.read().decode())}


def scrape(port: int) -> dict[tuple[str, str], float]:
    samples = [sample for family in families(port).values() for sample in family.samples]
    return {(s.name, s.labels.get("table", "")): s.value for s in samples}


def test_the_numbers_of_the_report() -> None:
    progress = Progress("shop")
    tables = {
        name: TableResult(
            name, version=n, counts=Counts(records=n, applied=n, inserted=n - 1), tombstones_retained=2
        )
        for n, name in enumerate(["public.a", "public.b"], 1)
    }
    progress.batch_done(BatchResult(3, Counts(records=4, no_row_change=4), tables), seconds=2.5)
    progress.batch_done(BatchResult(0), again=True)  # a replay's, which is not timed
    with Metrics(0, "127.0.0.1") as metrics:
        assert scrape(metrics.port) == {}
        metrics.publish(progress.report("Running", Lag(5, False), {None: {"record": 3}}))
        found = scrape(metrics.port)
    assert found["lakemirror_batch_id", ""] == 3
    assert found["lakemirror_lag_records", ""] == 5
    assert found["lakemirror_caught_up", ""] == 0
    assert found["lakemirror_phase", ""] == 1
    assert ("lakemirror_lag_seconds", "") not in found  # unknown is left out, not 0
    assert found["lakemirror_records_total", ""] == 7
    assert found["lakemirror_quarantined_open", ""] == 3  # also those of which no table is known
    assert found["lakemirror_batch_duration_seconds_count", ""] == 1
    assert found["lakemirror_batch_duration_seconds_sum", ""] == 2.5
    assert ("lakemirror_source_reachable", "") not in found
    assert found["lakemirror_table_applied_total", "public.b"] == 2
    assert found["lakemirror_table_inserted_total", "public.b"] == 1
    assert found["lakemirror_table_version", "public.a"] == 1
    assert found["lakemirror_table_tombstones_retained", "public.a"] == 2


def test_whether_the_source_is_reached() -> None:
    progress = Progress("shop")
    with Metrics(0, "127.0.0.1") as metrics:
        for said, reachable in (
            (SourceReport(), None),
            (SourceReport(reached_at="2026-03-01T12:00:00Z"), 1),
            (SourceReport(lost_since="2026-03-01T12:00:00Z", error="refused"), 0),
        ):
            metrics.publish(progress.report("Running", Lag(None, False), source=said))
            assert scrape(metrics.port).get(("lakemirror_source_reachable", "")) == reachable


def test_the_complete_position_is_exact_and_replaces_the_last_one() -> None:
    def told(**majors: int) -> tuple[list[dict[str, str]], str | None]:
        marks = {log: Mark(f"{0:04x}{major:020x}{7:020x}{0:08x}") for log, major in majors.items()}
        report = Report(pipeline="shop", **complete_report(marks))
        metrics.publish(report)
        found = families(metrics.port)["lakemirror_complete_position_info"].samples
        assert {sample.value for sample in found} <= {1.0}
        return [sample.labels for sample in found], report.complete_position

    with Metrics(0, "127.0.0.1") as metrics:
        for major in (2**53, 2**53 + 1, 2**79):
            a = {"pipeline": "shop", "log": "a", "position": f"{major}:7"}
            assert told(a=major) == ([a], f"{major}:7"), "as in the status"
        assert told(a=2**79, b=5)[0] == [a, {"pipeline": "shop", "log": "b", "position": "5:7"}]
        assert told() == ([], None)


def test_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert port_from_environment() is None
    monkeypatch.setenv("LAKEMIRROR_METRICS_PORT", "9100")
    assert port_from_environment() == 9100
    for wrong in ("x", "-1", "70000"):
        monkeypatch.setenv("LAKEMIRROR_METRICS_PORT", wrong)
        with pytest.raises(LakemirrorError, match="LAKEMIRROR_METRICS_PORT"):
            port_from_environment()


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LakemirrorError, match=str(port)), Metrics(port, "127.0.0.1"):
            pass
