"""Prometheus metrics about each pipeline, from its status, at the operator's ``/metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakemirror.controller.values import Object

_WHOSE = ["namespace", "pipeline"]


class PipelineFigures(Collector):
    """Collects the metrics of pipelines. ``bodies`` returns their resources as currently known.

    The labels ``namespace`` and ``pipeline`` are the resource's, so a scrape must honor them.
    """

    def __init__(self, bodies: Callable[[], Iterable[Object]]) -> None:
        self._bodies = bodies

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        phase = GaugeMetricFamily(
            "lakemirror_pipeline_phase",
            "Current phase of the pipeline, given by the label. The value is always 1.",
            labels=[*_WHOSE, "phase"],
        )
        condition = GaugeMetricFamily(
            "lakemirror_pipeline_condition",
            "Condition of the pipeline, with its status and reason as labels. The value is always 1.",
            labels=[*_WHOSE, "type", "status", "reason"],
        )
        restarts = CounterMetricFamily(
            "lakemirror_pipeline_driver_restarts",
            "Number of driver restarts. Resets to 0 with each revision of the spec.",
            labels=_WHOSE,
        )
        failures = GaugeMetricFamily(
            "lakemirror_pipeline_driver_consecutive_failures",
            "Number of consecutive driver failures. Beyond restart.backoffLimit, the pipeline stalls.",
            labels=_WHOSE,
        )
        for body in self._bodies():
            status: dict[str, Any] = body.get("status") or {}
            whose = [body["metadata"]["namespace"], body["metadata"]["name"]]
            phase.add_metric([*whose, status.get("phase") or "Pending"], 1)
            for each in status.get("conditions") or []:
                condition.add_metric([*whose, each["type"], each["status"], each["reason"]], 1)
            driver = status.get("driver") or {}
            restarts.add_metric(whose, driver.get("restarts") or 0)
            failures.add_metric(whose, driver.get("consecutiveFailures") or 0)
        yield from (phase, condition, restarts, failures)
