"""The report tells what the audit and the quarantine have, and what is pending; it can do no harm."""

from __future__ import annotations

import os
import re
import stat
import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml
from click.testing import CliRunner, Result

from lakemirror.cli.main import main
from lakemirror.cli.report import _write
from lakemirror.report import page, plots, records
from lakemirror.report.records import Open
from tests.report import histories
from tests.report.histories import HOSTILE, NOON, drift, table, whole

pytestmark = pytest.mark.guarantee(
    "A report shows what the audit contains, makes no network requests, and runs no code hidden in a name"
)


def made(folder: Path, *options: str) -> Result:
    """What `lakemirror report` does with the checkpoint in ``folder``."""
    spec = {
        "source": {"files": {"path": str(folder / "in")}},
        "target": {"path": str(folder / "lake" / "{table}")},
        "checkpoint": str(folder / "state"),
        "tables": [{"source": "public.orders"}],
    }
    document = {
        "apiVersion": "lakemirror.io/v1alpha1",
        "kind": "CdcPipeline",
        "metadata": {"name": "shop"},
        "spec": spec,
    }
    manifest = folder / "pipeline.yaml"
    manifest.write_text(yaml.safe_dump(document))
    return CliRunner().invoke(
        main, ["report", "-f", str(manifest), "-o", str(folder / "report.html"), *options]
    )


class Elements(HTMLParser):
    """The elements of a page, and its attributes that may ask the network."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_the_page_has_all_plots_and_nothing_that_acts_or_asks_the_network(tmp_path: Path) -> None:
    histories.shop(tmp_path / "state")
    done = made(tmp_path)
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text()
    page = Elements(text)
    assert not {"script", "img", "iframe", "object", "foreignobject"} & set(page.tags)
    assert page.handlers == []
    assert page.links == ["data:,"]
    assert "url(" not in text
    assert "{{7*7}}" in text  # and no template takes it for its own
    assert page.tags.count("svg") == 7  # records and lag are two
    assert page.tags.count("table") == 6
    assert len(text) < 300_000
    headings = re.findall(r'<h2 id="(\w+)-title">', text)
    assert headings == ["records", "seconds", "changes", "drift", "quarantine", "tombstones"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o027, 0o640)])
def test_who_may_read_the_page_is_up_to_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    page = tmp_path / "report.html"
    before = os.umask(mask)
    try:
        _write(page, "<html>")
        assert stat.S_IMODE(page.stat().st_mode) == mode
        _write(page, "<html> again")
    finally:
        os.umask(before)
    assert (page.read_text(), stat.S_IMODE(page.stat().st_mode)) == ("<html> again", mode)
    assert os.listdir(tmp_path) == ["report.html"]


def test_what_is_pending_counts_once(tmp_path: Path) -> None:
    histories.shop(tmp_path)
    before = records.read(str(tmp_path))
    assert [(each.batch_id, each.counts.records) for each in before.batches] == [
        (0, 9),
        (1, 4),
        (2, 2),
        (3, 5),
    ]
    last = [whole(3, records=5, applied=5), table(3, "public.orders", records=5, applied=5)]
    histories.write_audit(tmp_path, last)  # as between the commit and the deletion of the file
    again = records.read(str(tmp_path))
    assert [each.batch_id for each in again.batches] == [0, 1, 2, 3]
    assert [each.source for each in again.tables].count("public.orders") == 3


def test_the_numbers(tmp_path: Path) -> None:
    histories.shop(tmp_path)
    found = records.read(f"file://{tmp_path}")
    assert [each.lag for each in found.batches] == [90.0, 150.0, None, 270.0]
    assert [each.seconds for each in found.batches] == [2.0, 3.0, 4.0, 5.0]
    assert [(each.column, each.change, each.action) for each in found.drift] == [
        ("note", "added", "added"),
        (HOSTILE, "dropped", "kept"),
    ]
    assert found.quarantine == [
        Open("public.odd", "no key", "table", 2),
        Open("no table", HOSTILE, "record", 1),
        Open("public.orders", "total: not a number", "record", 1),
    ]
    shown = {plot.name: plot for plot in plots.plots(found)}
    assert shown["changes"].rows == [
        ("public.orders", 6, 7, 3, ""),
        (HOSTILE, 1, 0, 0, ""),
        ("public.odd", 0, 0, 0, "public.odd: give it a key"),
    ]
    assert shown["tombstones"].rows == [("public.orders", 2), (HOSTILE, 0)]
    assert shown["records"].rows[0] == ("2026-03-01 12:00:00", 1, 9, "90.0")


def test_many_batches_and_tables_keep_the_page_small(tmp_path: Path) -> None:
    rows = [
        row
        for number in range(1000)
        for row in (whole(number, records=2), table(number, f"s.t{number % 100}", records=2, inserted=2))
    ]
    found = records.records_of(rows, [], [])
    shown = {plot.name: plot for plot in plots.plots(found)}
    assert sum(row[2] for row in shown["records"].rows) == 2000
    assert len(shown["records"].rows) <= plots.BINS + 1
    assert shown["records"].svg.count('aria-roledescription="bar"') == len(shown["records"].rows)
    assert len(shown["changes"].rows) == 100
    assert shown["changes"].svg.count('aria-roledescription="bar"') == plots.TABLES


def test_totals_include_batches_that_are_summed_up_and_plots_begin_after_them(tmp_path: Path) -> None:
    began = NOON - timedelta(days=300)
    rows = [
        whole(0, records=1000, seconds=None, since=began),
        table(0, "s.t", records=1000, inserted=900, tombstones_retained=7, since=began),
        *[whole(number, records=1) for number in (1, 2)],
        *[table(number, "s.t", records=1, inserted=1, tombstones_retained=9) for number in (1, 2)],
    ]
    histories.write_audit(tmp_path, rows)
    found = records.read(str(tmp_path))
    shown = {plot.name: plot for plot in plots.plots(found)}
    assert [row[:3] for row in shown["records"].rows] == [
        ("2026-03-01 12:01:00", 1, 1),
        ("2026-03-01 12:02:00", 1, 1),
    ]
    assert shown["changes"].rows == [("s.t", 902, 0, 0, "")]
    text = page.page("shop", str(tmp_path), found, NOON)
    for told in ("1,002", began.strftime("%Y-%m-%d %H:%M:%S"), "Batches until 2026-03-01 12:00:00 UTC are"):
        assert told in text
    only = records.records_of(rows[:2], [], [])
    assert {plot.name for plot in plots.plots(only) if plot.svg} == {"changes"}


def test_an_audit_of_an_earlier_version_lacks_columns(tmp_path: Path) -> None:
    old = [
        {
            name: value
            for name, value in row.items()
            if name in ("committed_at", "query_id", "batch_id", "source")
        }
        for row in (whole(0), table(0, "s.t"))
    ]
    entry = {name: value for name, value in drift("n", "added", 0).items() if name != "seen"}
    old[1]["drift"] = histories.json.dumps([{**entry, "since": None}])
    found = records.records_of(old, [], [])
    assert found.batches[0].seconds is None
    assert found.drift[0].seen == NOON
    shown = {plot.name: plot for plot in plots.plots(found)}
    assert shown["seconds"].svg == ""
    assert shown["seconds"].rows == []


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    done = made(tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path / 'state'} has no audit" in done.output
    assert not (tmp_path / "report.html").exists()
    done = made(tmp_path, "--set", "checkpoint=hdfs://name/state")
    assert done.exit_code == 1
    assert "copy its folders audit, audit-pending and quarantine" in done.output
    histories.shop(tmp_path / "state")
    (tmp_path / "state" / "audit-pending" / "half.json").write_text('[{"query_id": "q"')
    (tmp_path / "state" / "quarantine" / "_delta_log" / f"{0:020}.json").write_text("{")
    done = made(tmp_path)
    assert done.exit_code == 0, done.output
    notes = re.findall('<p class="note" role="note">(.*)</p>', (tmp_path / "report.html").read_text())
    assert len(notes) == 2
    assert "audit-pending/half.json" in notes[0]
    assert "The quarantine cannot be read" in notes[1]
    done = made(tmp_path, "--output", str(tmp_path / "no" / "such" / "folder.html"))
    assert done.exit_code == 1


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plots", "page"):
        monkeypatch.delitem(sys.modules, f"lakemirror.report.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "altair", None)
    done = made(tmp_path)
    assert done.exit_code == 1
    assert "altair is not installed." in done.output
    assert "pip install '.[report]'" in done.output


def test_times_are_those_of_utc() -> None:
    local = NOON.astimezone(ZoneInfo("America/New_York"))
    rows: list[dict[str, Any]] = [
        {**whole(0), "committed_at": local},
        {**whole(1), "committed_at": "2026-03-01T12:01:00Z"},
    ]
    found = records.records_of(rows, [], [])
    assert [each.at - NOON for each in found.batches] == [timedelta(0), timedelta(minutes=1)]
