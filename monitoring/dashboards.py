"""The Grafana dashboards of the fleet and of one pipeline, as in the chart."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueColorMode, BigValueGraphMode, StackingMode
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    MatcherConfig,
    Panel,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

FOLDER = Path(__file__).parents[1] / "charts" / "lakemirror" / "dashboards"
FLEET, PIPELINE = "lakemirror-fleet", "lakemirror-pipeline"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WIDTH = 24

Queries = dict[str, str]
"""Maps legends to expressions."""


def fleet() -> Dashboard:
    """Return the dashboard of all pipelines at a glance."""
    of = 'namespace=~"$namespace"'
    up = f'lakemirror_pipeline_condition{{type="Ready", status="True", {of}}}'
    per, each = "by (namespace, pipeline)", "{{namespace}}/{{pipeline}}"
    waited = "time() - max(lakemirror_operator_heartbeat_timestamp_seconds)"
    made = _dashboard("Lakemirror / Fleet", FLEET, "Health of all pipelines and of the operator.")
    made = made.with_variable(
        _variable("namespace", "label_values(lakemirror_pipeline_phase, namespace)")
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )
    panels = [
        _stat("Pipelines", f"count(lakemirror_pipeline_phase{{{of}}})"),
        _stat("Ready", f"count({up}) or vector(0)"),
        _stat(
            "Stalled",
            f'count(lakemirror_pipeline_condition{{type="Stalled", status="True", {of}}}) or vector(0)',
            bad=1,
        ),
        _stat("Unreachable sources", f"count(lakemirror_source_reachable{{{of}}} == 0) or vector(0)", bad=1),
        _stat("Refused tables", f"sum(lakemirror_table_failed{{{of}}})", bad=1),
        _stat("Records in quarantine", f"sum(lakemirror_quarantined_open{{{of}}})", bad=1),
        _pipelines(of),
        _lines("Lag", {each: f"max {per} (lakemirror_lag_seconds{{{of}}})"}, "s"),
        _lines(
            "Records applied",
            {each: f"sum {per} (rate(lakemirror_applied_total{{{of}}}[$__rate_interval]))"},
            "cps",
        ),
        _lines(
            "Pipelines by phase",
            {"{{phase}}": f"count by (phase) (lakemirror_pipeline_phase{{{of}}})"},
            stacked=True,
        ),
        _lines(
            "Driver restarts (last hour)",
            {each: f"increase(lakemirror_pipeline_driver_restarts_total{{{of}}}[1h])"},
        ),
        _lines(
            "Operator passes",
            {"{{result}}": "sum by (result) (rate(lakemirror_operator_passes_total[$__rate_interval]))"},
            "ops",
        ),
        _lines(
            "Operator pass duration",
            {
                name: f"histogram_quantile({share}, sum by (le) "
                "(rate(lakemirror_operator_pass_duration_seconds_bucket[$__rate_interval])))"
                for name, share in (("median", 0.5), ("99th percentile", 0.99))
            },
            "s",
        ),
        _lines(
            "Operator queue and heartbeat",
            {
                "waiting pipelines": "sum(lakemirror_operator_queue)",
                "seconds since last heartbeat": waited,
                "active operators": "sum(lakemirror_operator_leader)",
            },
        ),
        _lines(
            "API server requests",
            {"{{verb}}": "sum by (verb) (rate(lakemirror_operator_api_requests_total[$__rate_interval]))"},
            "reqps",
        ),
        _lines(
            "Rollout of the default image",
            {"{{state}}": "sum by (state) (lakemirror_operator_rollout_pipelines)"},
        ),
    ]
    return _with(made, panels)


def pipeline() -> Dashboard:
    """Return the dashboard of one pipeline in depth."""
    of = 'namespace="$namespace", pipeline="$pipeline"'
    made = _dashboard("Lakemirror / Pipeline", PIPELINE, "Lag, batches and tables of one pipeline.")
    made = made.with_variable(_variable("namespace", "label_values(lakemirror_pipeline_phase, namespace)"))
    made = made.with_variable(
        _variable("pipeline", 'label_values(lakemirror_pipeline_phase{namespace="$namespace"}, pipeline)')
    )

    def rate(name: str) -> str:
        return f"sum by (table) (rate(lakemirror_table_{name}_total{{{of}}}[$__rate_interval]))"

    outcomes = ("applied", "superseded", "stale", "duplicates", "no_row_change", "quarantined", "refused")
    took = "lakemirror_batch_duration_seconds"
    panels = [
        _stat("Lag", f"max(lakemirror_lag_seconds{{{of}}})", unit="s", bad=900),
        _stat("Unapplied records", f"max(lakemirror_lag_records{{{of}}})"),
        _stat("Source reachable", f"min(lakemirror_source_reachable{{{of}}})"),
        _stat("Refused tables", f"sum(lakemirror_table_failed{{{of}}})", bad=1),
        _stat("Records in quarantine", f"max(lakemirror_quarantined_open{{{of}}})", bad=1),
        _stat("Held records", f"max(lakemirror_held{{{of}}})", bad=1),
        _conditions(of),
        _lines("Lag in seconds", {"lag": f"max(lakemirror_lag_seconds{{{of}}})"}, "s"),
        _lines("Lag in records", {"records": f"max(lakemirror_lag_records{{{of}}})"}),
        _lines(
            "Record outcomes",
            {
                name.replace("_", " "): f"sum(rate(lakemirror_{name}_total{{{of}}}[$__rate_interval]))"
                for name in outcomes
            },
            "cps",
            stacked=True,
        ),
        _lines(
            "Average batch duration",
            {
                "average": f"sum(rate({took}_sum{{{of}}}[$__rate_interval]))"
                f" / (sum(rate({took}_count{{{of}}}[$__rate_interval])) > 0)"
            },
            "s",
        ),
        _lines("Records applied by table", {"{{table}}": rate("applied")}, "cps"),
        _lines(
            "Records in columns and in Spark's plans",
            {
                "in columns": f"sum(rate(lakemirror_records_in_columns_total{{{of}}}[$__rate_interval]))",
                "in Spark's plans": f"sum(rate(lakemirror_records_total{{{of}}}[$__rate_interval]))"
                f" - sum(rate(lakemirror_records_in_columns_total{{{of}}}[$__rate_interval]))",
            },
            "cps",
            stacked=True,
        ),
        _lines(
            "Rows changed",
            {
                name: f"sum(rate(lakemirror_{name}_total{{{of}}}[$__rate_interval]))"
                for name in ("inserted", "updated", "deleted")
            },
            "cps",
            stacked=True,
        ),
        _lines(
            "Records in quarantine by table",
            {"{{table}}": f"max by (table) (lakemirror_table_quarantined_open{{{of}}})"},
        ),
        _lines("Held records by table", {"{{table}}": f"max by (table) (lakemirror_table_held{{{of}}})"}),
        _lines(
            "Expectation violations (last hour)",
            {
                "{{table}}: {{expectation}}": "sum by (table, expectation) "
                f"(increase(lakemirror_table_expectation_violations_total{{{of}}}[1h]))"
            },
        ),
        _lines(
            "Drifted columns",
            {"{{table}}": f"max by (table) (lakemirror_table_drifted_columns{{{of}}})"},
        ),
        _lines(
            "Retained tombstones",
            {"{{table}}": f"max by (table) (lakemirror_table_tombstones_retained{{{of}}})"},
        ),
        _lines(
            "Records applied after tombstone collection (last hour)",
            {
                "{{table}}": "sum by (table) "
                f"(increase(lakemirror_table_late_after_collection_total{{{of}}}[1h]))"
            },
        ),
        _lines(
            "Age of the newest applied change by table",
            {"{{table}}": f"time() - max by (table) (lakemirror_table_last_event_timestamp_seconds{{{of}}})"},
            "s",
        ),
        _lines(
            "Age of the complete position by log",
            {"{{log}}": f"time() - max by (log) (lakemirror_complete_timestamp_seconds{{{of}}})"},
            "s",
        ),
        _lines(
            "Driver restarts and failures",
            {
                "restarts (last hour)": f"increase(lakemirror_pipeline_driver_restarts_total{{{of}}}[1h])",
                "consecutive failures": f"lakemirror_pipeline_driver_consecutive_failures{{{of}}}",
            },
        ),
    ]
    return _with(made, panels)


def files() -> dict[Path, str]:
    """Return the files that the chart must contain, as a map from path to text."""
    return {
        FOLDER / f"{made.uid}.json": json.dumps(made, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"
        for made in (fleet(), pipeline())
    }


def expressions(made: Dashboard) -> Iterator[tuple[str, str]]:
    """Yield each panel's title with each of its queries."""
    for panel in made.panels or []:
        for target in panel.targets or []:
            yield panel.title, target.expr


def _dashboard(title: str, uid: str, text: str) -> dashboard.Dashboard:
    link = (
        dashboard.DashboardLink("Lakemirror")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["lakemirror"])
        .include_vars(True)
        .keep_time(True)
        .as_dropdown(True)
    )
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["lakemirror"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .link(link)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


def _with(made: dashboard.Dashboard, panels: Sequence[Any]) -> Dashboard:
    """Add these panels to the dashboard and build it."""
    for number, panel in enumerate(panels, 1):
        made = made.with_panel(panel.id(number))
    return made.build()


def _variable(name: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .query(query)
        .datasource(_SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _query(expression: str, legend: str = "") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).datasource(_SOURCE)


def _stat(title: str, expression: str, *, unit: str = "short", bad: float | None = None) -> Builder[Panel]:
    """Return a panel with one number, which is red from ``bad`` on."""
    steps = [Threshold(value=None, color="green")]
    if bad is not None:
        steps.append(Threshold(value=bad, color="red"))
    thresholds = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
    return (
        stat.Panel()
        .title(title)
        .datasource(_SOURCE)
        .unit(unit)
        .thresholds(thresholds)
        .color_mode(BigValueColorMode.VALUE)
        .graph_mode(BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .with_target(_query(expression))
        .height(4)
        .span(_WIDTH // 6)
    )


def _lines(title: str, queries: Queries, unit: str = "short", *, stacked: bool = False) -> Builder[Panel]:
    panel = timeseries.Panel().title(title).datasource(_SOURCE).unit(unit).min(0).height(8).span(_WIDTH // 2)
    for number, (legend, expression) in enumerate(queries.items()):
        panel = panel.with_target(_query(expression, legend).ref_id(chr(ord("A") + number)))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(25)
    return panel


def _pipelines(of: str) -> Builder[Panel]:
    """Return a table with a row for each pipeline, linked to its own dashboard."""
    ready = f'lakemirror_pipeline_condition{{type="Ready", status="True", {of}}}'
    columns = {
        "Ready": f"max by (namespace, pipeline) ({ready})"
        f" or max by (namespace, pipeline) (0 * lakemirror_pipeline_phase{{{of}}})",
        "Lag": f"max by (namespace, pipeline) (lakemirror_lag_seconds{{{of}}})",
        "Unapplied records": f"max by (namespace, pipeline) (lakemirror_lag_records{{{of}}})",
        "Tables": f"max by (namespace, pipeline) (lakemirror_tables{{{of}}})",
        "Refused tables": f"sum by (namespace, pipeline) (lakemirror_table_failed{{{of}}})",
        "Records in quarantine": f"max by (namespace, pipeline) (lakemirror_quarantined_open{{{of}}})",
        "Restarts": f"max by (namespace, pipeline) (lakemirror_pipeline_driver_restarts_total{{{of}}})",
    }
    made = table.Panel().title("Pipelines").datasource(_SOURCE).height(9).span(_WIDTH)
    renamed = {"namespace": "Namespace", "pipeline": "Pipeline"}
    for number, (name, expression) in enumerate(columns.items()):
        ref = chr(ord("A") + number)
        renamed[f"Value #{ref}"] = name
        made = made.with_target(_query(expression).instant().format(PromQueryFormat.TABLE).ref_id(ref))
    organized = {"excludeByName": {"Time": True}, "renameByName": renamed}
    link = {
        "title": "Open the pipeline's dashboard",
        "url": f"/d/{PIPELINE}?var-datasource=${{datasource}}"
        "&var-namespace=${__data.fields.Namespace}&var-pipeline=${__data.fields.Pipeline}",
    }
    return (
        made.with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(DataTransformerConfig(id_val="organize", options=organized))
        .with_override(_named("Lag"), [DynamicConfigValue(id_val="unit", value="s")])
        .with_override(_named("Pipeline"), [DynamicConfigValue(id_val="links", value=[link])])
    )


def _conditions(of: str) -> Builder[Panel]:
    """Return a table of what the operator says about the pipeline now."""
    wanted = ("type", "status", "reason")
    query = _query(f"max by ({', '.join(wanted)}) (lakemirror_pipeline_condition{{{of}}})")
    hidden = {"excludeByName": {"Time": True, "Value": True}}
    return (
        table.Panel()
        .title("Conditions")
        .datasource(_SOURCE)
        .height(6)
        .span(_WIDTH)
        .with_target(query.instant().format(PromQueryFormat.TABLE))
        .with_transformation(DataTransformerConfig(id_val="organize", options=hidden))
    )


def _named(column: str) -> MatcherConfig:
    return MatcherConfig(id_val="byName", options=column)
