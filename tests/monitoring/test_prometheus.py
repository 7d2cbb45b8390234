"""A real Prometheus scrapes both exporters: alerts see their series, queries of dashboards give something."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from lakemirror.controller import vitals
from lakemirror.driver.runtime.metrics import Metrics
from monitoring import dashboards, samples
from tests.monitoring.test_alerts import RULES, rules
from tests.support.ports import free_port

PROMETHEUS = shutil.which("prometheus")
PATIENCE_SECONDS = 180
VARIABLES = {
    "$namespace": samples.NAMESPACE,
    "$pipeline": samples.PIPELINE,
    "$__rate_interval": "4s",
}

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus: apt-get install prometheus"),
    pytest.mark.guarantee("Alerts and dashboards query only series that exist"),
]


@contextmanager
def operator() -> Iterator[int]:
    """The operator's HTTP server, of which passes and pipelines are told; its port."""
    port, signs, loop = free_port(), samples.operator(samples.resource()), asyncio.new_event_loop()
    over = threading.Event()

    async def serve() -> None:
        server = await vitals.serve(signs, port)
        while not over.is_set():
            samples.work(signs)
            await asyncio.sleep(0.2)
        await server.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield port
    finally:
        over.set()
        thread.join()
        loop.close()


@contextmanager
def driver(pipeline: str, error: str | None = None) -> Iterator[int]:
    """A driver's exporter, to which reports are published; its port."""
    over = threading.Event()
    with Metrics(0, "127.0.0.1") as exporter:

        def publish() -> None:
            step = 0
            while not over.wait(0.2):
                exporter.publish(samples.report(step := step + 1, pipeline, error))

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield exporter.port
        finally:
            over.set()
            thread.join()


class Prometheus:
    """A server of the test's own, and its HTTP API."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        with urlopen(f"{self._url}/{path}?{urlencode(query)}", timeout=60) as answer:
            return json.load(answer)["data"]

    def series(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask("query", query=expression)["result"]
        return found

    def until(self, what: Callable[[], Any]) -> None:
        """Returns once ``what`` holds; fails when it does not within a while."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                if what():
                    return
            except (URLError, ConnectionError):
                pass
            assert time.monotonic() < deadline, what
            time.sleep(0.2)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    with ExitStack() as stack:
        started = operator(), driver(samples.PIPELINE), driver("away", "no answer")
        targets = [stack.enter_context(each) for each in started]
        config = folder / "prometheus.yml"
        config.write_text(yaml.safe_dump(configuration(*targets)))
        log = stack.enter_context((folder / "log").open("w"))
        command = [
            str(PROMETHEUS),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            server = Prometheus(port)
            several = "min(count_over_time(lakemirror_batch_id[10s])) > 4 and on () " + (
                "count_over_time(lakemirror_operator_leader[10s]) > 4"
            )
            server.until(lambda: server.series(several))
            yield server
        finally:
            process.terminate()
            process.wait(timeout=20)


def configuration(operator_port: int, driver_port: int, other_port: int) -> dict[str, Any]:
    """As the chart's PodMonitors make it."""

    def job(name: str, port: int, namespace: str, honor: bool) -> dict[str, Any]:
        target = {"targets": [f"127.0.0.1:{port}"], "labels": {"namespace": namespace, "pod": name}}
        return {"job_name": name, "honor_labels": honor, "static_configs": [target]}

    return {
        "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            job("operator", operator_port, "operators", honor=True),
            job("driver", driver_port, samples.NAMESPACE, honor=False),
            job("other", other_port, samples.NAMESPACE, honor=False),
        ],
    }


def test_every_query_of_the_dashboards_gives_something(prometheus: Prometheus) -> None:
    for made in (dashboards.fleet(), dashboards.pipeline()):
        for title, expression in dashboards.expressions(made):
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            assert prometheus.series(expression), f"{title}: {expression}"


def test_every_variable_of_the_dashboards_has_values(prometheus: Prometheus) -> None:
    for made in (dashboards.fleet(), dashboards.pipeline()):
        for variable in (made.templating.list_val if made.templating else None) or []:
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", str(variable.query))
            if match is None:
                assert variable.name == "datasource"
                continue
            series, label = match.groups()
            matching = {"match[]": series.replace("$namespace", samples.NAMESPACE)}
            wanted = {"namespace": samples.NAMESPACE, "pipeline": samples.PIPELINE}[label]
            assert prometheus.ask(f"label/{label}/values", **matching) == [wanted]


def test_every_selector_of_the_alerts_finds_series_with_the_labels_that_the_alert_uses(
    prometheus: Prometheus,
) -> None:
    """Also of alerts that are quiet here: with a wrong name or label, they would always be."""
    for rule in rules():
        name, expression = rule["alert"], rule["expr"]
        used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        for grouping in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            used |= set(re.findall(r"\w+", grouping))
        selectors = re.findall(r"\blakemirror_\w+(?:\{[^}]*\})?", expression)
        assert selectors, name
        for selector in selectors:
            found = prometheus.series(selector)
            assert found, f"{name}: {selector}"
            for series in found:
                assert used <= set(series["metric"]), f"{name}: {selector}"


def test_the_alerts_are_evaluated_without_an_error_and_see_these_series(prometheus: Prometheus) -> None:
    """What the samples tell is bad: alerts that look at the present are pending or fire at once."""
    groups = prometheus.ask("rules")["groups"]
    evaluated = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert len(evaluated) == len(rules())
    seen = {
        "LakemirrorPipelineStalled",
        "LakemirrorDriverRestarting",
        "LakemirrorSchemaDrift",
        "LakemirrorMirrorDiffers",
        "LakemirrorPipelineLagging",
        "LakemirrorSourceUnreachable",
        "LakemirrorTableRefused",
        "LakemirrorQuarantineGrowing",
        "LakemirrorLateAfterCollection",
        "LakemirrorOperatorPassesFailing",
    }
    quiet = {
        "LakemirrorOperatorAbsent",
        "LakemirrorOperatorNotReconciling",
        "LakemirrorPipelineNotReady",
        "LakemirrorDriverNotScraped",
    }
    assert seen | quiet == set(evaluated)

    def active() -> set[str]:
        return {alert["labels"]["alertname"] for alert in prometheus.ask("alerts")["alerts"]}

    prometheus.until(lambda: active() == seen)
    errors = {name: rule.get("lastError") for name, rule in evaluated.items()}
    assert set(errors.values()) <= {None, ""}, errors
    for name, pipeline in (("PipelineLagging", samples.PIPELINE), ("SourceUnreachable", "away")):
        found = prometheus.series(f'ALERTS{{alertname="Lakemirror{name}"}}')
        assert [each["metric"]["pipeline"] for each in found] == [pipeline]
    stalled = prometheus.series('ALERTS{alertname="LakemirrorPipelineStalled"}')
    assert [each["metric"]["namespace"] for each in stalled] == [samples.NAMESPACE]  # the pipeline's own


def test_nothing_of_the_exporters_is_refused(prometheus: Prometheus) -> None:
    targets = prometheus.ask("targets")["activeTargets"]
    assert {(t["labels"]["pod"], t["health"], t["lastError"]) for t in targets} == {
        ("operator", "up", ""),
        ("driver", "up", ""),
        ("other", "up", ""),
    }
