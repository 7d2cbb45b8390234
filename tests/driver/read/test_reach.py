"""Whether the source is reached: what is taken in, what is reported, what is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakemirror.api.report import Report, SourceReport
from lakemirror.driver.errors import SourceUnreachable
from lakemirror.driver.read import kafka_admin, watch
from lakemirror.driver.read.watch import SourceWatch
from lakemirror.driver.runtime import announcer, retry
from lakemirror.driver.runtime.runner import run
from tests.support.beside import beside
from tests.support.counting import Counter, make, record

pytestmark = pytest.mark.guarantee("Ready means that the source was reached")


def asked(of: SourceWatch, error: Exception | None = None) -> None:
    try:
        with of.asking():
            if error is not None:
                raise error
    except type(error or OSError()):
        pass


def test_what_is_told() -> None:
    told: list[SourceReport] = []
    source = SourceWatch(told.append)
    assert (source.said, source.lost) == (SourceReport(), None)
    asked(source, OSError(111, "refused"))
    asked(source, OSError(111, "refused"))
    assert (source.said.reached_at, source.lost) == (None, "refused")
    since = source.said.lost_since
    asked(source, OSError(1, "unknown host"))
    asked(source)
    asked(source)
    assert (source.said.lost_since, source.lost) == (None, None)
    first = source.said.reached_at
    assert first is not None
    time.sleep(0.002)  # times are told in milliseconds
    asked(source, OSError(111, "refused"))
    assert source.said.reached_at == first
    assert [each.error for each in told] == ["refused", "unknown host", None, "refused"]
    assert [each.lost_since == since for each in told] == [True, True, False, False]


def test_a_question_without_an_answer_is_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_UNANSWERED_SECONDS", 1.0)
    source = SourceWatch()
    with source.asking():
        assert source.lost is None
        until(lambda: source.lost is not None)
        assert source.lost is not None
        assert "has not answered for" in source.lost
    assert source.lost is None


class Reports:
    """A sink that keeps the reports."""

    def __init__(self) -> None:
        self.all: list[Report] = []

    def publish(self, report: Report) -> None:
        self.all.append(report)

    @property
    def sources(self) -> list[SourceReport]:
        return [each.source for each in self.all if each.source is not None]


def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    Counter.made = []
    monkeypatch.setattr(retry, "RETRY_SECONDS", (0.1, 0.1, 0.1))
    monkeypatch.setattr(retry, "AWAY_RETRY_SECONDS", 0.1)
    reporter = announcer.Reporter
    fast: Callable[..., Any] = lambda *given: reporter(*given, at_most_every=0.1, at_least_every=0.3)  # noqa: E731
    monkeypatch.setattr(announcer, "Reporter", fast)


def test_files_that_are_not_there_are_waited_for(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a kept checkpoint tells its batch in the first report."""
    quickly(monkeypatch)
    place, reports = tmp_path / "in", Reports()
    pipeline = make(tmp_path, source={"files": {"path": str(place)}})

    def work(stop: threading.Event) -> None:
        run(pipeline, spark=spark, stopping=stop.is_set, sinks=[reports], make_applier=Counter)

    with beside(work):
        until(lambda: any(each.error for each in reports.sources))
        assert "there is no file or directory" in (reports.sources[-1].error or "")
        assert reports.all[-1].caught_up is False
        place.mkdir()
        (place / "0.jsonl").write_text(record("a", 0))
        until(lambda: reports.all[-1].batch_id == 0 and bool(reports.all[-1].caught_up))
        assert (reports.sources[-1].lost_since, reports.sources[0].reached_at) == (None, None)
    again = Reports()
    run(pipeline, once=True, spark=spark, sinks=[again], make_applier=Counter)
    assert (again.all[0].phase, again.all[0].batch_id) == ("Starting", 0)
    assert again.all[0].committed_at is not None


def test_brokers_that_are_away_are_waited_for_but_not_by_a_run_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quickly(monkeypatch)
    monkeypatch.setattr(kafka_admin, "_CLIENT_SECONDS", 1)
    monkeypatch.setattr(kafka_admin, "_REQUEST_SECONDS", 1)
    topics = {"topicPattern": "shop.*"}
    for servers, said in (("127.0.0.1:1", "connection refused"), ("nowhere.invalid:9092", "unknown host")):
        folder = tmp_path / said
        pipeline = make(folder, source={"kafka": {"bootstrapServers": servers, **topics}})
        reports = Reports()
        with pytest.raises(SourceUnreachable, match=f"the source cannot be reached: {servers}: {said}"):
            run(pipeline, once=True, spark=spark, sinks=[reports], make_applier=Counter)
        assert (reports.all[-1].phase, reports.sources[-1].reached_at) == ("Failed", None)
        assert reports.all[-1].failure == f"the source cannot be reached: {reports.sources[-1].error}"
    ended = threading.Event()
    reports = Reports()

    def stopping() -> bool:
        if sum(said.error is not None for said in reports.sources) > 5:
            ended.set()
        return ended.is_set()

    summary = run(pipeline, spark=spark, stopping=stopping, sinks=[reports], make_applier=Counter)
    assert (summary.status, summary.batches) == ("stopped", 0)
    assert reports.all[-1].failure is None


def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
