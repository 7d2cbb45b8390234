"""The dashboards in the chart are those that are generated, and Grafana's sidecar finds them."""

from __future__ import annotations

import json
import re

import pytest

from monitoring import dashboards, metrics
from tests.chart.test_chart import needs_helm, of_kind, render


def test_the_chart_has_the_generated_dashboards() -> None:
    made = dashboards.files()
    assert set(dashboards.FOLDER.iterdir()) == set(made)
    for path, text in made.items():
        assert path.read_text() == text, "stale: scripts/monitoring makes it"


@pytest.mark.parametrize("made", [dashboards.fleet(), dashboards.pipeline()], ids=lambda made: made.uid)
def test_queries_ask_for_metrics_that_there_are(made: dashboards.Dashboard) -> None:
    known = {n for each in (*metrics.of_driver(), *metrics.of_operator()) for n in metrics.names(each)}
    asked = list(dashboards.expressions(made))
    assert {title for title, _ in asked} == {panel.title for panel in made.panels or []}
    for title, expression in asked:
        names = set(re.findall(r"lakemirror_\w+", expression))
        assert names, title
        assert names <= known, title


@needs_helm
def test_they_are_config_maps_with_the_label_of_the_sidecar() -> None:
    assert not [o for o in of_kind(render(), "ConfigMap") if "grafana_dashboard" in o["metadata"]["labels"]]
    maps = [
        o
        for o in of_kind(render("dashboards.enabled=true"), "ConfigMap")
        if o["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    data = {name: json.loads(text) for o in maps for name, text in o["data"].items()}
    assert data == {path.name: json.loads(path.read_text()) for path in dashboards.files()}
    assert all("annotations" not in o["metadata"] for o in maps)
    settings = "dashboards.enabled=true", "dashboards.annotations.grafana_folder=Lakemirror"
    folders = [o["metadata"].get("annotations") for o in of_kind(render(*settings), "ConfigMap")]
    assert folders.count({"grafana_folder": "Lakemirror"}) == 2
