"""Renders the page: HTML that contains its styles and pictures, loads nothing and runs no code."""

from __future__ import annotations

from datetime import datetime

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lakemirror.api.report import OUTCOMES, Counts
from lakemirror.report.plots import Plot, plots
from lakemirror.report.records import Records

ROWS = 500
"""The maximum number of rows that a table shows."""


def page(name: str, checkpoint: str, records: Records, now: datetime) -> str:
    """Return the page about the pipeline ``name`` as it is at ``now``. Everything from outside is escaped."""
    environment = Environment(
        loader=PackageLoader("lakemirror.report", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["picture"] = _picture
    template = environment.get_template("page.html.j2")
    return template.render(
        name=name,
        checkpoint=checkpoint,
        made=now.strftime("%Y-%m-%d %H:%M UTC"),
        facts=_facts(records),
        notes=records.notes,
        plots=plots(records),
        most=ROWS,
    )


def _facts(records: Records) -> list[tuple[str, str]]:
    whole = Counts.sum_of(each.counts for each in records.batches)
    summed = len(records.single) < len(records.batches)
    facts = [
        ("batches that are not summed up" if summed else "batches", f"{len(records.single):,}"),
        ("records", f"{whole.records:,}"),
    ]
    facts += [
        (outcome.replace("_", " "), f"{number:,}")
        for outcome in OUTCOMES
        if (number := getattr(whole, outcome))
    ]
    facts.append(("tables", f"{len({each.source for each in records.tables}):,}"))
    if records.batches:
        first = min(each.since or each.at for each in records.batches)
        facts.append(("first batch (UTC)", first.strftime("%Y-%m-%d %H:%M:%S")))
        facts.append(("last batch (UTC)", records.batches[-1].at.strftime("%Y-%m-%d %H:%M:%S")))
    return facts


def _picture(svg: str, plot: Plot) -> Markup:
    """Return the SVG with a title, for those who cannot see it. It comes from Vega, which escapes text."""
    opening, rest = svg.split(">", 1)
    named = Markup('{} role="img" aria-labelledby="{}-title {}-text">').format(
        Markup(opening), plot.name, plot.name
    )
    return named + Markup("<title>{}</title>").format(plot.title) + Markup(rest)
