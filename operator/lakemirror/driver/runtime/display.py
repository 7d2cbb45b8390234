"""Shows a run to a person: its progress while it works, and a table of all tables at its end.

On a terminal, one block is redrawn in place. Elsewhere, plain lines are written, so that a log stays
readable.
"""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lakemirror.api.report import COUNTERS, Counts
from lakemirror.api.shown import shown
from lakemirror.driver.read.base import Lag
from lakemirror.driver.results import Drift, TableResult, add
from lakemirror.driver.runtime.events import (
    BatchDone,
    BatchStarted,
    Event,
    Finished,
    Maintained,
    Reported,
    Resync,
    Started,
    Warned,
)
from lakemirror.driver.runtime.progress import drift_report
from lakemirror.driver.runtime.summary import RunSummary

_LINES = 20
_HELD_SHOWN = 5
"""The maximum number of tables shown while a run works. The summary shows all of them."""
_SHOWN = tuple(name for name in COUNTERS if name != "records_in_columns")
"""Names of the counters that say what became of records. The other one says how they were processed."""


class Display:
    """Shows the events of a run: ``run(pipeline, on_event=display)`` inside ``with Display() as display``."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=False, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._tables: dict[str, TableResult] = {}
        self._batches = 0
        self._counts = Counts()
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
            case Maintained():
                if self._live is None:
                    self._print(f"{event.task} {event.path}: {event.done}, {event.seconds:.1f} s")
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
        self._counts += result.counts
        for source, table in result.tables.items():
            self._tables[source] = add(self._tables.get(source), table)
        if self._live is None:
            self._print(f"batch {result.batch_id}: {counts_text(result.counts)}, {event.seconds:.1f} s")
            for table in result.tables.values():
                self._print(f"  {table_line(table)}")

    def _draw(self) -> None:
        if self._live is None:
            return
        working = f", batch {self._working} is being applied" if self._working is not None else ""
        head = f"{self._batches} batches, {self._counts.records} records, lag {self._lag}{working}"
        first = sorted(self._tables.items())[:_LINES]
        lines = [Text(shown(f"  {table_line(table)}")) for _, table in first]
        more = len(self._tables) - len(first)
        rest = [Text(f"  and {more} more tables")] if more > 0 else []
        self._live.update(Group(Text(head), *lines, *rest), refresh=True)

    def _finish(self, summary: RunSummary) -> None:
        if self._live is not None:
            self._live.update(Text(""), refresh=True)
            self._live.stop()
        for line in drift_lines(summary):
            self._print(line)
        for why in summary.held.values():
            self._print(f"held: {why}")
        if summary.tables:
            for line in summary_table(summary).splitlines():
                self._print(line)
        self._print(summary_line(summary))

    def _print(self, text: str) -> None:
        self._console.print(shown(text), markup=False, soft_wrap=True)


def table_line(table: TableResult) -> str:
    """Describe a table's counts in one line, without zeros."""
    violated = ", ".join(f"{each.name} ({each.records}, {each.on_violation})" for each in table.violated)
    unmet = f"; expectations not met: {violated}" if violated else ""
    error = f"; error: {table.error}" if table.error else ""
    return f"{table.source}: {counts_text(table.counts)}{unmet}{error}"


def counts_text(counts: Counts) -> str:
    """Describe counts in one line: the records first, then everything that is not zero."""
    return ", ".join([f"{counts.records} records", *_nonzero(counts)])


def _nonzero(counts: Counts) -> list[str]:
    """Describe each outcome of the records that is not zero."""
    values = counts.values()
    return [f"{values[name]} {_words(name)}" for name in _SHOWN if values[name] and name != "records"]


def _words(name: str) -> str:
    """``tombstone_records`` -> ``tombstone records``."""
    return name.replace("_", " ")


def summary_table(summary: RunSummary) -> str:
    """Return a table of all source tables, with the counters that are not zero for all of them.

    Lines are as long as they need to be, because a truncated number is worse than a wrapped line.
    """
    grid = Table(box=None, pad_edge=False)
    grid.add_column("table", no_wrap=True)
    tables = list(summary.tables.values())
    counters = [name for name in _SHOWN if any(getattr(table.counts, name) for table in tables)]
    for name in ("rows", *counters, "tombstones_retained", "drift"):
        grid.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for source, table in summary.tables.items():
        numbers = [
            table.rows,
            *(getattr(table.counts, name) for name in counters),
            table.tombstones_retained,
            len(table.drift),
        ]
        grid.add_row(shown(source), *("-" if number is None else str(number) for number in numbers))
    wide = Console(width=10_000, force_terminal=False)
    with wide.capture() as text:
        wide.print(grid)
    return "\n".join(line.rstrip() for line in text.get().splitlines())


def summary_line(summary: RunSummary) -> str:
    """Describe the run in one line."""
    word = {"completed": "all applied", "stopped": "stopped"}[summary.status]
    if summary.held:
        tables = ", ".join(sorted(summary.held)[:_HELD_SHOWN])
        more = len(summary.held) - _HELD_SHOWN
        word = f"not all applied, held: {tables}{f' and {more} more' if more > 0 else ''}"
    head = f"{word}: {summary.counts.records} records in {summary.batches} batches"
    rest = [*_nonzero(summary.counts), f"lag {lag_text(summary.lag)}", f"{summary.seconds:.1f} s"]
    return f"{head}, {', '.join(rest)}"


def drift_lines(summary: RunSummary) -> list[str]:
    """Return one line for each changed column."""
    return [
        f"drift: {source}.{drift_text(drift)}" for source, t in summary.tables.items() for drift in t.drift
    ]


def lag_text(lag: Lag) -> str:
    """Describe the lag: a number of records, none, or unknown."""
    if lag.caught_up:
        return "none"
    return "unknown" if lag.records is None else f"{lag.records} records"


def drift_text(drift: Drift) -> str:
    """Describe a changed column in one line."""
    types = " -> ".join(text for text in (drift.from_type, drift.to_type) if text)
    return f"{drift.column} {drift.change}{f' ({types})' if types else ''}: {drift_report(drift).done}"
