"""The report between driver and operator: counters that add up, and a reader that forgives."""

from __future__ import annotations

import json

import pytest

from lakemirror.api import crd
from lakemirror.api.report import (
    COUNTERS,
    CUT_OFF,
    GAUGES,
    OUTCOMES,
    TABLES_SHOWN,
    Counts,
    Report,
    TableReport,
    Totals,
    shown_tables,
)
from lakemirror.driver.record import audit
from lakemirror.driver.runtime.display import counts_text
from lakemirror.driver.runtime.metrics import ReportCollector

pytestmark = pytest.mark.guarantee(
    "A counter is defined once; an older operator reads the report of a newer driver"
)


def test_records_are_the_sum_of_the_outcomes() -> None:
    assert OUTCOMES == (
        "applied",
        "superseded",
        "stale",
        "duplicates",
        "no_row_change",
        "quarantined",
        "refused",
    )
    whole = Counts(records=28, **{name: n for n, name in enumerate(OUTCOMES, 1)})
    assert whole.unaccounted == 0
    assert (whole + Counts(records=2, applied=1, inserted=9)).unaccounted == 1
    assert (whole + whole).values() == {name: 2 * number for name, number in whole.values().items()}


def test_a_counter_stands_everywhere_by_its_one_definition() -> None:
    """Audit, report, CRD and metrics name and describe the counters as the model does."""
    for name in COUNTERS:
        alias = Counts.model_fields[name].alias
        assert f" {name} BIGINT" in audit.COLUMNS
        status = crd.resource_schema()["properties"]["status"]["properties"]
        for node in (status["totals"], status["tables"]["items"]):
            assert node["properties"][alias]["description"] == Counts.model_fields[name].description
        assert alias in Report(totals=Totals()).document()["totals"]


def test_metrics_and_terminal_show_every_counter() -> None:
    """Metrics alone say how records were processed: the terminal says what became of them."""
    every = Counts(**{name: n for n, name in enumerate(COUNTERS, 1)})
    collector = ReportCollector()
    collector.report = Report(pipeline="p", tables=[TableReport(source="a.b", held=7, **every.values())])
    found = {family.name: family for family in collector.collect()}
    for name in (*COUNTERS, *GAUGES):
        family = found[f"lakemirror_table_{name}"]
        assert family.documentation == " ".join((Totals.model_fields[name].description or "").split())
        assert family.samples[0].value == {**every.values(), "held": 7}.get(name, 0)
    assert counts_text(every).split(", ") == [
        f"{number} {name.replace('_', ' ')}"
        for name, number in every.values().items()
        if name != "records_in_columns"
    ]


def test_what_a_newer_driver_says_is_left_out_and_what_it_omits_is_zero() -> None:
    said = Report.read(
        {
            "runId": "r",
            "phase": "Dreaming",
            "batchId": "seven",
            "lagRecords": 5,
            "future": {"a": 1},
            "totals": {"applied": -1, "stale": 2, "lost": 1},
            "tables": [
                {"source": 5},
                {},
                "x",
                {"source": "a.b", "applied": None, "drift": [{}, {"column": 1}]},
            ],
            "resyncing": ["a", 5],
        }
    )
    assert said is not None
    assert (said.run_id, said.phase, said.batch_id, said.lag_records) == ("r", None, None, 5)
    assert said.totals == Totals(stale=2)
    assert said.tables == [TableReport(source="a.b")]
    assert said.resyncing == ["a"]
    assert Report.read("nonsense") is None


def test_the_driver_itself_may_not_say_nonsense() -> None:
    for wrong in ({"phase": "Dreaming"}, {"batch_id": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Report(**wrong)


def test_a_report_is_read_as_it_was_written() -> None:
    table = TableReport(source="a.b", error="e" * 40_000, applied=3, held=2)
    said = Report(pipeline="shop", phase="Running", tables=[table], tables_total=1)
    assert Report.read(json.loads(json.dumps(said.document()))) == said
    assert len(table.error or "") == 32768


def test_what_to_do_is_kept_and_what_is_cut_says_so() -> None:
    remedy = "w" * 900 + ": choose another target"
    said = Report(tables=[TableReport(source="a.b", error=remedy, target="t" * 900)], failure="f" * 9000)
    short = said.shortened()
    [table] = short.tables
    assert table.error == remedy
    assert table.target == "t" * (512 - len(CUT_OFF)) + CUT_OFF
    assert short.failure is not None
    assert (len(short.failure), short.failure.endswith(CUT_OFF)) == (8192, True)


def test_new_drift_is_shown_however_many_tables_have_old_drift() -> None:
    def table(name: str, seen: str | None, at: str = "2026-03-01T00:00:00Z") -> TableReport:
        drift = [{"column": "c", "change": "added", "seen": seen}]
        found = TableReport.read({"source": name, "drift": drift, "lastEventTime": at})
        assert found is not None
        return found

    old = [table(f"s.t{n:03}", "2026-01-01T00:00:00Z") for n in range(TABLES_SHOWN)]
    untold = table("s.first", None)  # by a driver that did not say when it saw it
    busy = table("s.busy", "2026-03-01T13:00:00.5+01:00", "2026-03-01T12:00:00Z")
    broken, quiet = TableReport(source="s.zzz", error="x"), TableReport(source="s.aaa")
    shown = [each.source for each in shown_tables([quiet, untold, *old, busy, broken])]
    assert len(shown) == TABLES_SHOWN
    assert shown[:3] == ["s.zzz", "s.busy", "s.t000"]
    assert [each.source for each in shown_tables([quiet, untold, *old], 999)][-2:] == ["s.first", "s.aaa"]
