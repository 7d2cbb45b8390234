"""What a run shows a person: progress while it works, a table of tables at its end.

On a terminal one block is redrawn in place; elsewhere plain lines are written, so that a log stays readable.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakemirror.driver.progress import add
from lakemirror.driver.results import Drift, TableResult
from lakemirror.driver.runner import (
    BatchDone,
    BatchStarted,
    Event,
    Finished,
    Reported,
    Resync,
    RunSummary,
    Started,
    Warned,
)
from lakemirror.driver.sources.base import Lag

_COLUMNS = ("inserted", "updated", "deleted", "stale", "duplicates")
_LINES = 20
"""Tables shown while a run works; all are in the summary."""


class Display:
    """Takes the events of a run: ``run(pipeline, on_event=display)`` inside ``with Display() as display``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._tables: dict[str, TableResult] = {}
        self._batches = self._records = 0
        self._working: int | None = None
        self._lag = "?"

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._print(f"{event.pipeline}: checkpoint {event.checkpoint}")
            case BatchStarted():
                self._working = event.batch.batch_id
            case BatchDone():
                self._batch_done(event)
            case Reported():
                self._lag = lag_text(Lag(event.report.lag_records, bool(event.report.caught_up)))
            case Resync():
                told = "were read again" if event.done else "are read again from the beginning"
                self._print(f"{told}: {event.tables}")
            case Warned():
                self._print(f"warning: {event.message}")
            case Finished():
                self._finish(event.summary)
                return
        self._draw()

    def _batch_done(self, event: BatchDone) -> None:
        result = event.result
        self._working = None
        self._batches += 1
        self._records += result.records
        for source, table in result.tables.items():
            self._tables[source] = add(self._tables.get(source), table)
        if self._live is None:
            counts = [f"batch {result.batch_id}: {result.records} records"]
            counts += [f"{result.ignored} no row changes"] if result.ignored else []
            counts += [f"{result.quarantined} quarantined"] if result.quarantined else []
            self._print(f"{', '.join(counts)}, {event.seconds:.1f} s")
            for table in result.tables.values():
                self._print(f"  {table_line(table)}")

    def _draw(self) -> None:
        if self._live is None:
            return
        working = f", batch {self._working} is being applied" if self._working is not None else ""
        head = f"{self._batches} batches, {self._records} records, lag {self._lag}{working}"
        shown = sorted(self._tables.items())[:_LINES]
        lines = [Text(f"  {table_line(table)}") for _, table in shown]
        more = len(self._tables) - len(shown)
        rest = [Text(f"  and {more} more tables")] if more > 0 else []
        self._live.update(Group(Text(head), *lines, *rest), refresh=True)

    def _finish(self, summary: RunSummary) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        for line in drift_lines(summary):
            self._print(line)
        if summary.tables:
            self._print(summary_table(summary))
        self._print(summary_line(summary))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def table_line(table: TableResult) -> str:
    """A table's counts in one line; zeros are left out."""
    counts = [f"{value} {name}" for name in _COLUMNS if (value := getattr(table, name))]
    if table.quarantined:
        counts.append(f"{table.quarantined} quarantined")
    if table.error:
        counts.append(f"error: {table.error}")
    return f"{table.source}: {', '.join(counts) or 'nothing changed'}"


def summary_table(summary: RunSummary) -> str:
    """All tables, numbers aligned, however long the lines get: a number that is cut is worse than a wrap."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("table", no_wrap=True)
    for name in (
        "rows",
        *_COLUMNS,
        "tombstone\nrecords",
        "tombstones\nretained",
        "quarantined",
        "drift",
    ):
        shown.add_column(name, justify="right", no_wrap=True)
    for source, table in summary.tables.items():
        numbers = [
            table.rows,
            *(getattr(table, name) for name in _COLUMNS),
            table.tombstone_records,
            table.tombstones_retained,
            table.quarantined,
            len(table.drift),
        ]
        shown.add_row(source, *("-" if number is None else str(number) for number in numbers))
    wide = Console(width=10_000, force_terminal=False)
    with wide.capture() as text:
        wide.print(shown)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def summary_line(summary: RunSummary) -> str:
    """The run in one line."""
    word = {"completed": "all applied", "stopped": "stopped"}[summary.status]
    return (
        f"{word}: {summary.records} records in {summary.batches} batches, {summary.ignored} no row changes, "
        f"{summary.quarantined} quarantined, lag {lag_text(summary.lag)}, {summary.seconds:.1f} s"
    )


def drift_lines(summary: RunSummary) -> list[str]:
    """A line a changed column."""
    return [
        f"drift: {source}.{_drift_text(drift)}" for source, t in summary.tables.items() for drift in t.drift
    ]


def lag_text(lag: Lag) -> str:
    """The lag as a word: a number of records, none, or unknown."""
    if lag.caught_up:
        return "none"
    return "unknown" if lag.records is None else f"{lag.records} records"


def _drift_text(drift: Drift) -> str:
    types = " -> ".join(text for text in (drift.from_type, drift.to_type) if text)
    return f"{drift.column} {drift.change}{f' ({types})' if types else ''}: {drift.action}"
