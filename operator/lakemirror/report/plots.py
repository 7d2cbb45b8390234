"""Draws the plots of a report as SVG. Colors are variables of the page, so that it can be dark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import altair as alt
import vl_convert

from lakemirror.report.records import Records, TableBatch, WholeBatch

BINS = 150
"""The maximum number of time intervals for which a plot has marks."""
TABLES = 25
"""The maximum number of tables that a plot shows. The table beneath it has all of them."""
SERIES = 8
REASONS = 20
DRIFTED = 40
"""The maximum number of columns that the plot of drift shows: the newest ones."""
_COLOURS = [f"var(--c{number})" for number in range(SERIES)]
_WIDTH, _NARROW = 940, 640
_SHORTEST, _DAYS = timedelta(minutes=1), timedelta(days=3)
Row = dict[str, Any]
T = TypeVar("T", WholeBatch, TableBatch)


@dataclass(frozen=True)
class Plot:
    """A plot, with the table of what it shows. ``svg`` is empty if there is nothing to plot."""

    name: str
    title: str
    text: str
    svg: str
    columns: Sequence[str]
    rows: list[Sequence[Any]] = field(default_factory=list)
    parts: Sequence[str] = ()
    """Further pictures under the same title."""


def plots(records: Records) -> list[Plot]:
    """Return all plots, in the order in which a person should see them."""
    return [
        _over_time(records),
        _seconds(records),
        _changes(records),
        _drift(records),
        _quarantine(records),
        _tombstones(records),
    ]


def _over_time(records: Records) -> Plot:
    bins = _binned(records.single)
    rows: list[Row] = [
        {
            "at": _iso(at),
            "records": sum(each.counts.records for each in batches),
            "lag": max((each.lag for each in batches if each.lag is not None), default=None),
        }
        for at, batches in bins
    ]
    lags = [row for row in rows if row["lag"] is not None]
    return Plot(
        "records",
        "Records and lag over time",
        "Records that were read, and how old the newest change of a batch was when it was committed "
        "(seconds; the largest of each part).",
        _svg(_bars_over_time(records, rows, "records", "records")) if rows else "",
        ("time (UTC)", "batches", "records", "lag in seconds"),
        [
            (_shown(at), len(batches), row["records"], _number(row["lag"]))
            for (at, batches), row in zip(bins, rows, strict=True)
        ],
        parts=[_svg(_line_over_time(records, lags, "lag", "lag in seconds"))] if lags else [],
    )


def _seconds(records: Records) -> Plot:
    bins = [
        (at, [each.seconds for each in batches if each.seconds is not None])
        for at, batches in _binned(each for each in records.single if each.seconds is not None)
    ]
    rows = [{"at": _iso(at), "seconds": sum(took) / len(took)} for at, took in bins]
    return Plot(
        "seconds",
        "Seconds per batch",
        "How long batches took, on average of each part of the time.",
        _svg(_line_over_time(records, rows, "seconds", "seconds per batch")) if rows else "",
        ("time (UTC)", "batches", "average in seconds", "longest in seconds"),
        [(_shown(at), len(took), _number(sum(took) / len(took)), _number(max(took))) for at, took in bins],
    )


def _changes(records: Records) -> Plot:
    by_table: dict[str, list[TableBatch]] = defaultdict(list)
    for each in records.tables:
        by_table[each.source].append(each)
    kinds = ("inserted", "updated", "deleted")
    sums = {
        source: {kind: sum(getattr(each.counts, kind) for each in batches) for kind in kinds}
        for source, batches in by_table.items()
    }
    ordered = sorted(sums, key=lambda source: (-sum(sums[source].values()), source))
    rows = [
        {"table": _text(source), "change": kind, "rows": sums[source][kind], "rank": kinds.index(kind)}
        for source in ordered[:TABLES]
        for kind in kinds
        if sums[source][kind]
    ]
    chart = (
        _chart(rows, _NARROW)
        .mark_bar()
        .encode(
            y=alt.Y("table:N", sort=[_text(source) for source in ordered], title=None),
            x=alt.X(**_count("rows", "rows")),
            color=_colour("change:N", kinds),
            order=alt.Order("rank:Q"),
        )
    )
    return Plot(
        "changes",
        "Changes by table",
        "Rows inserted, updated and deleted since the checkpoint began.",
        _svg(chart) if rows else "",
        ("table", *kinds, "why it is refused"),
        [
            (source, *(sums[source][kind] for kind in kinds), by_table[source][-1].error or "")
            for source in ordered
        ],
    )


def _drift(records: Records) -> Plot:
    rows = [
        {
            "at": _iso(each.seen),
            "column": _text(f"{each.source}: {each.column}", 80),
            "change": each.change,
            "action": each.action,
        }
        for each in records.drift[-DRIFTED:]
    ]
    changes = sorted({each["change"] for each in rows})
    chart = (
        _chart(rows, _NARROW)
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            y=alt.Y("column:N", title=None),
            color=_colour("change:N", changes),
            shape=alt.Shape("change:N", title=None, scale=alt.Scale(domain=changes)),
            detail="action:N",
        )
    )
    if rows:
        chart = chart.encode(x=_time(records))
    return Plot(
        "drift",
        "Columns that changed",
        "When the driver saw that a column of the source was another, and what it did.",
        _svg(chart) if rows else "",
        ("time (UTC)", "table", "column", "change", "from", "to", "what was done"),
        [
            (
                _shown(each.seen),
                each.source,
                each.column,
                each.change,
                each.from_type or "",
                each.to_type or "",
                each.action,
            )
            for each in records.drift
        ],
    )


def _quarantine(records: Records) -> Plot:
    by_reason: dict[str, int] = defaultdict(int)
    for each in records.quarantine:
        by_reason[_text(each.reason, 80)] += each.records
    ordered = sorted(by_reason, key=lambda reason: (-by_reason[reason], reason))[:REASONS]
    rows = [{"reason": reason, "records": by_reason[reason]} for reason in ordered]
    chart = (
        _chart(rows, _NARROW)
        .mark_bar(color=_COLOURS[3])
        .encode(
            y=alt.Y("reason:N", sort=ordered, title=None, axis=alt.Axis(labelLimit=360)),
            x=alt.X(**_count("records", "open records")),
        )
    )
    return Plot(
        "quarantine",
        "Quarantine by reason",
        "Records kept aside now. Those of scope table and order are held, and applied by themselves.",
        _svg(chart) if rows else "",
        ("table", "scope", "records", "reason"),
        [(each.source, each.scope, each.records, each.reason) for each in records.quarantine],
    )


def _tombstones(records: Records) -> Plot:
    known = [each for each in records.tables if each.tombstones is not None]
    single = [each for each in known if each.since is None]
    last = {each.source: each.tombstones or 0 for each in known}
    ordered = sorted(last, key=lambda source: (-last[source], source))
    shown = [source for source in ordered if any(each.tombstones for each in known if each.source == source)]
    rows = [
        {"at": _iso(at), "table": _text(source), "tombstones": part[-1].tombstones}
        for source in shown[:SERIES]
        for at, part in _binned(each for each in single if each.source == source)
    ]
    names = [_text(source) for source in shown[:SERIES]]
    return Plot(
        "tombstones",
        "Tombstones",
        f"Tombstones kept, of the {SERIES} tables that have the most.",
        _svg(_line_over_time(records, rows, "tombstones", "tombstones", _colour("table:N", names)))
        if rows
        else "",
        ("table", "tombstones now"),
        [(source, last[source]) for source in ordered],
    )


def _binned(batches: Iterable[T]) -> list[tuple[datetime, list[T]]]:
    """Group batches by time interval, with the time of each interval's first batch. Leaves out empty ones."""
    ordered = list(batches)
    if not ordered:
        return []
    first, last = ordered[0].at, ordered[-1].at
    width = max(timedelta(seconds=1), (last - first) / BINS)
    bins: dict[int, list[T]] = defaultdict(list)
    for each in ordered:
        bins[int((each.at - first) / width)].append(each)
    return [(members[0].at, members) for _, members in sorted(bins.items())]


def _chart(rows: list[Row], width: int = _WIDTH) -> alt.Chart:
    return alt.Chart(alt.Data(values=rows)).properties(width=width)


def _time(records: Records) -> alt.X:
    """Return the time axis, which is the same in all plots of a report."""
    moments = [each.at for each in records.single or records.batches] or [each.at for each in records.tables]
    moments += [each.seen for each in records.drift]
    first, last = min(moments), max(moments)
    if last - first < _SHORTEST:
        first, last = first - _SHORTEST / 2, last + _SHORTEST / 2
    span = last - first
    form = "%H:%M:%S" if span < timedelta(hours=1) else "%m-%d %H:%M" if span < _DAYS else "%Y-%m-%d"
    axis = alt.Axis(format=form, tickCount=8, labelOverlap=True)
    scale = alt.Scale(type="utc", domain=[_iso(first), _iso(last)], padding=16)
    return alt.X("at:T", title="time (UTC)", axis=axis, scale=scale)


def _count(name: str, title: str) -> dict[str, Any]:
    """Return the arguments of an axis of whole numbers."""
    whole = "datum.value % 1 ? '' : format(datum.value, ',')"
    return {"shorthand": f"{name}:Q", "title": title, "axis": alt.Axis(tickMinStep=1, labelExpr=whole)}


def _bars_over_time(records: Records, rows: list[Row], name: str, title: str) -> alt.Chart:
    size = max(2.0, min(24.0, _WIDTH / max(1, len(rows)) - 2))
    mark = _chart(rows).mark_bar(size=size, color=_COLOURS[0])
    return mark.encode(x=_time(records), y=alt.Y(**_count(name, title))).properties(height=160)


def _line_over_time(
    records: Records, rows: list[Row], name: str, title: str, colour: alt.Color | None = None
) -> alt.Chart:
    mark = _chart(rows).mark_line(point=alt.OverlayMarkDef(size=30), color=_COLOURS[1])
    encoded = mark.encode(x=_time(records), y=alt.Y(f"{name}:Q", title=title))
    if colour is not None:
        encoded = encoded.encode(color=colour)
    return encoded.properties(height=160)


def _colour(name: str, domain: Sequence[str]) -> alt.Color:
    colours = [_COLOURS[number % SERIES] for number in range(len(domain))]
    return alt.Color(name, title=None, scale=alt.Scale(domain=list(domain), range=colours))


def _svg(chart: alt.Chart) -> str:
    """Return the picture, drawn without a browser and without the network."""
    dim = "var(--line)"
    styled = (
        chart.configure(background="transparent", font="Arial, Helvetica, Liberation Sans, sans-serif")
        .configure_view(stroke=dim)
        .configure_axis(
            labelColor="currentColor",
            titleColor="currentColor",
            domainColor=dim,
            gridColor=dim,
            tickColor=dim,
            labelLimit=260,
        )
        .configure_legend(labelColor="currentColor", orient="top", labelLimit=260)
        .configure_point(color=_COLOURS[1])
    )
    svg: str = vl_convert.vegalite_to_svg(styled.to_dict())
    return svg


def _text(text: str, most: int = 60) -> str:
    """Return a label in one line, shortened if it is long."""
    line = " ".join(text.split()) or "(no name)"
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _iso(moment: datetime) -> str:
    return moment.isoformat()


def _shown(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
