"""Metrics keep Prometheus' conventions, and the page lists them all."""

from __future__ import annotations

import re

from lakemirror.controller.figures import PipelineFigures
from monitoring import metrics, samples

LABELS = {
    *("namespace", "pipeline", "table", "phase", "type", "status", "reason"),
    *("expectation", "on_violation", "result", "state", "version", "le", "log", "position", "verb", "kind"),
}


def test_the_page_lists_all_metrics() -> None:
    text = metrics.PAGE.read_text()
    assert text == metrics.page(text), "stale: scripts/monitoring makes it"


def test_names_and_labels_keep_the_conventions() -> None:
    """As promtool's linter has them: base units, no type in a name, a help text, few labels."""
    every = [*metrics.of_driver(), *metrics.of_operator()]
    assert len({family.name for family in every}) == len(every)
    for family in every:
        assert re.fullmatch(r"lakemirror_[a-z_]+[a-z]", family.name)
        assert not re.search(r"_(ms|millis|minutes|hours|counter|gauge|total|count|sum)$", family.name)
        assert family.documentation
        assert "\n" not in family.documentation
        assert family.samples, family.name
        assert {label for sample in family.samples for label in sample.labels} <= LABELS
        if family.type == "counter":
            assert all(name.endswith(("_total", "_created")) for name in metrics.names(family))


def test_a_pipeline_that_nobody_has_processed_is_pending() -> None:
    body = {"metadata": {"namespace": "n", "name": "new"}}
    found = {s.name: s for f in PipelineFigures(lambda: [body]).collect() for s in f.samples}
    assert found["lakemirror_pipeline_phase"].labels == {
        "namespace": "n",
        "pipeline": "new",
        "phase": "Pending",
    }
    assert found["lakemirror_pipeline_driver_restarts_total"].value == 0
    assert "lakemirror_pipeline_condition" not in found


def test_a_condition_is_told_with_its_status_and_reason() -> None:
    family = {f.name: f for f in PipelineFigures(lambda: [samples.resource()]).collect()}
    told = [tuple(s.labels.values()) for s in family["lakemirror_pipeline_condition"].samples]
    assert ("mirrors", "shop", "Stalled", "True", "ResetNeeded") in told
